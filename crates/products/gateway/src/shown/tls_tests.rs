//! The name in a ClientHello, whole and in pieces, and messages that show none.

use super::gate_tests::{hello, records};
use super::tls::*;
use super::*;

fn show(by: ShownBy, name: &str) -> Shown {
    Shown { by, name: Some(name.parse().unwrap()) }
}

/// A ClientHello with these extensions.
fn with(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    records(&hello(extensions), usize::MAX)
}

fn server_name(name: &[u8]) -> (u16, Vec<u8>) {
    let mut list = vec![0];
    list.extend((name.len() as u16).to_be_bytes());
    list.extend(name);
    let mut data = (list.len() as u16).to_be_bytes().to_vec();
    data.extend(list);
    (SERVER_NAME, data)
}

fn read(bytes: &[u8]) -> Result<Option<(Shown, usize)>, Unreadable> {
    Ok(client_hello(bytes)?.map(|(hello, n)| (hello.shown, n)))
}

#[test]
fn a_client_hello_shows_its_server_name_in_lower_case_and_without_a_final_dot() {
    for name in ["example.org", "EXAMPLE.org", "example.org."] {
        let bytes = with(&[(10, vec![0, 2, 0, 29]), server_name(name.as_bytes())]);
        let all = bytes.len();
        assert_eq!(read(&bytes), Ok(Some((show(ShownBy::Tls, "example.org"), all))));
    }
}

#[test]
fn bytes_behind_its_record_are_not_part_of_it() {
    let mut bytes = with(&[server_name(b"a.org")]);
    let all = bytes.len();
    bytes.extend([23, 3, 3, 0, 1, 0]);
    assert_eq!(read(&bytes).unwrap().unwrap().1, all);
}

#[test]
fn a_client_hello_in_many_records_is_put_together() {
    let message = hello(&[server_name(b"example.org")]);
    for most in [1, 2, 3, 5, 50] {
        let bytes = records(&message, most);
        let all = bytes.len();
        assert_eq!(read(&bytes), Ok(Some((show(ShownBy::Tls, "example.org"), all))), "{most}");
        for end in 0..all {
            assert_eq!(read(&bytes[..end]), Ok(None), "{most} {end}");
        }
    }
}

#[test]
fn without_extensions_or_without_a_server_name_nothing_is_shown() {
    let none = Shown { by: ShownBy::Tls, name: None };
    assert_eq!(read(&with(&[])).unwrap().unwrap().0, none);
    assert_eq!(read(&with(&[(10, vec![0, 2, 0, 29])])).unwrap().unwrap().0, none);
    let mut bare = hello(&[]);
    bare.truncate(bare.len() - 2);
    bare[3] -= 2;
    assert_eq!(read(&records(&bare, usize::MAX)).unwrap().unwrap().0, none);
}

#[test]
fn an_encrypted_client_hello_is_told_from_a_plain_one() {
    let bytes = with(&[(ENCRYPTED_CLIENT_HELLO, vec![0; 40]), server_name(b"a.org")]);
    assert_eq!(read(&bytes).unwrap().unwrap().0, show(ShownBy::EncryptedHello, "a.org"));
}

#[test]
fn early_data_is_announced() {
    let early = |bytes: &[u8]| client_hello(bytes).unwrap().unwrap().0.early;
    assert!(early(&with(&[(EARLY_DATA, vec![])])));
    assert!(!early(&with(&[])));
}

#[test]
fn names_that_servers_could_read_in_two_ways_are_unreadable() {
    let two = {
        let (_, first) = server_name(b"a.org");
        let (_, second) = server_name(b"b.org");
        let mut data = ((first.len() + second.len() - 4) as u16).to_be_bytes().to_vec();
        data.extend(&first[2..]);
        data.extend(&second[2..]);
        (SERVER_NAME, data)
    };
    let behind = {
        let (kind, mut data) = server_name(b"a.org");
        data.push(0);
        (kind, data)
    };
    let other_type = {
        let (kind, mut data) = server_name(b"a.org");
        data[2] = 1;
        (kind, data)
    };
    let wrong = [
        vec![two],
        vec![behind],
        vec![other_type],
        vec![server_name(b"a.org"), server_name(b"b.org")],
        vec![server_name(b"a.org\0.b.org")],
        vec![server_name(b"a b.org")],
        vec![server_name(b"")],
        vec![server_name("bücher.example".as_bytes())],
        vec![(SERVER_NAME, vec![])],
    ];
    for extensions in wrong {
        assert_eq!(read(&with(&extensions)), Err(Unreadable), "{extensions:?}");
    }
}

#[test]
fn records_that_are_no_handshake_are_unreadable() {
    let good = with(&[server_name(b"a.org")]);
    let mut alert = good.clone();
    alert[0] = ALERT;
    let mut version = good.clone();
    version[1] = 2;
    let mut kind = good.clone();
    kind[5] = 2;
    let mut long = good.clone();
    long[6..9].copy_from_slice(&[1, 0, 0]);
    let mut more = records(&[hello(&[]), vec![1]].concat(), usize::MAX);
    more.extend([0; 8]);
    for bytes in [alert, version, kind, long, more, vec![HANDSHAKE, 3, 1, 0, 0, 22, 3, 1, 0, 1]] {
        assert_eq!(read(&bytes), Err(Unreadable), "{bytes:?}");
    }
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let good = with(&[server_name(b"example.org"), (10, vec![0, 2, 0, 29])]);
    for at in 0..good.len() {
        for value in [0, 1, 127, 255] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let _ = read(&bytes);
            let _ = following(&bytes[at..]);
        }
    }
}

#[test]
fn behind_a_client_hello_another_one_is_told_from_what_ends_the_handshake_in_the_clear() {
    let hello = with(&[]);
    assert_eq!(following(&hello), Ok(Some(Following::ClientHello)));
    assert_eq!(following(&[CHANGE_CIPHER_SPEC, 3, 3, 0, 1, 1]), Ok(Some(Following::Passes(6))));
    assert_eq!(following(&[ALERT, 3, 3, 0, 2, 1]), Ok(None));
    assert_eq!(following(&[ALERT, 3, 3, 0, 2, 1, 0, 9]), Ok(Some(Following::Passes(7))));
    // A ClientKeyExchange, and data.
    assert_eq!(following(&[HANDSHAKE, 3, 3, 0, 66, 16]), Ok(Some(Following::Last)));
    assert_eq!(following(&[23, 3, 3, 1, 2]), Ok(Some(Following::Data(5 + 258))));
    assert_eq!(following(&[23, 3, 3, 1]), Ok(None));
    assert_eq!(following(&[24]), Ok(Some(Following::Last)));
    assert_eq!(following(&[HANDSHAKE, 3, 3, 0]), Ok(None));
    assert_eq!(following(&[HANDSHAKE, 3, 3, 0, 0]), Err(Unreadable));
    assert_eq!(following(&[]), Ok(None));
}
