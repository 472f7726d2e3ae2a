//! A gate between a guest and a far side, both of them byte strings: what passes is what rules permit, whatever the
//! pieces in which it comes.

use super::*;

/// The handshake message of a ClientHello with these extensions.
pub(super) fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    let mut all = Vec::new();
    for (kind, data) in extensions {
        all.extend(kind.to_be_bytes());
        all.extend((data.len() as u16).to_be_bytes());
        all.extend(data);
    }
    body.extend((all.len() as u16).to_be_bytes());
    body.extend(all);
    let mut message = vec![1];
    message.extend(&(body.len() as u32).to_be_bytes()[1..]);
    message.extend(body);
    message
}

/// Records of at most `most` bytes with the message.
pub(super) fn records(message: &[u8], most: usize) -> Vec<u8> {
    let record = |part: &[u8]| {
        let mut record = vec![22, 3, 1];
        record.extend((part.len() as u16).to_be_bytes());
        record.extend(part);
        record
    };
    message.chunks(most.min(message.len())).flat_map(record).collect()
}

/// The extension with a server name.
fn server_name(name: &str) -> (u16, Vec<u8>) {
    let mut data = ((name.len() + 3) as u16).to_be_bytes().to_vec();
    data.push(0);
    data.extend((name.len() as u16).to_be_bytes());
    data.extend(name.as_bytes());
    (0, data)
}

/// The handshake message of a ClientHello with a server name.
pub(super) fn named_hello(name: &str) -> Vec<u8> {
    hello(&[server_name(name)])
}

/// A ClientHello with a server name, in a record.
fn client_hello(name: &str) -> Vec<u8> {
    records(&named_hello(name), usize::MAX)
}

const DATA: &[u8] = &[23, 3, 3, 0, 3, 1, 2, 3];

/// What comes out of a gate.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    passed: Vec<u8>,
    judged: Vec<String>,
    refused: Option<Shown>,
    waits: bool,
    open: bool,
}

/// Has a guest send `bytes`, in pieces of at most `piece`, through a gate whose rules permit the names `permitted`.
fn send(demand: Demand, permitted: &[&str], bytes: &[u8], piece: usize) -> Outcome {
    let account = std::sync::Arc::default();
    let mut gate = Gate::new(demand, &account).unwrap();
    let (mut left, mut outcome) = (bytes, Outcome::default());
    loop {
        match gate.next() {
            Next::Send => {
                let n = gate.passing().len().min(piece);
                outcome.passed.extend(&gate.passing()[..n]);
                gate.note_sent(n);
            }
            Next::Pass(_) | Next::Read(_) if left.is_empty() => break,
            Next::Pass(most) => {
                let n = left.len().min(piece).min(most as usize);
                outcome.passed.extend(&left[..n]);
                left = &left[n..];
                gate.note_passed(n as u64);
            }
            Next::Read(room) => {
                let n = left.len().min(piece).min(room);
                gate.put(&left[..n]);
                left = &left[n..];
            }
            Next::Judge(shown) => {
                let name = shown.name.as_ref().map_or("none", |name| name.as_str());
                outcome.judged.push(format!("{} {name}", shown.by.name()));
                if permitted.contains(&name) { gate.permit() } else { gate.refuse() }
            }
            Next::Wait => {
                outcome.waits = true;
                break;
            }
            Next::Open => {
                outcome.passed.extend(left);
                outcome.open = true;
                break;
            }
            Next::Refuse(shown) => {
                outcome.refused = Some(shown);
                break;
            }
        }
    }
    let held = account.load(std::sync::atomic::Ordering::Relaxed);
    assert!(held <= crate::limits::HELD);
    drop(gate);
    assert_eq!(account.load(std::sync::atomic::Ordering::Relaxed), 0);
    outcome
}

/// The same outcome whatever the pieces.
fn outcome(permitted: &[&str], bytes: &[u8]) -> Outcome {
    let whole = send(Demand::PermittedName, permitted, bytes, usize::MAX);
    for piece in [1, 2, 3, 7, 100] {
        assert_eq!(send(Demand::PermittedName, permitted, bytes, piece), whole, "{piece}");
    }
    whole
}

/// Asserts that nothing of `evil` passes behind `good`.
fn refuses_behind(good: &[u8], evil: &[u8]) {
    let outcome = outcome(&["a.org"], &[good, evil].concat());
    assert!(outcome.refused.is_some());
    assert_eq!(outcome.passed, good, "{:?}", String::from_utf8_lossy(&outcome.passed));
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n";
const EVIL: &[u8] = b"GET / HTTP/1.1\r\nHost: b.org\r\n\r\n";

#[test]
fn tls_with_a_permitted_name_passes_whole() {
    let bytes = [&client_hello("a.org"), DATA].concat();
    let outcome = outcome(&["a.org"], &bytes);
    assert_eq!((outcome.passed, outcome.open), (bytes, true));
    assert_eq!(outcome.judged, ["tls a.org"]);
}

#[test]
fn tls_with_another_name_or_none_sends_no_byte() {
    for hello in [client_hello("b.org"), records(&hello(&[]), 9)] {
        let outcome = outcome(&["a.org"], &hello);
        assert_eq!(outcome.passed, b"");
        assert_eq!(outcome.refused.unwrap().by, ShownBy::Tls);
    }
}

#[test]
fn a_second_client_hello_is_judged_as_the_first() {
    let (a, b) = (client_hello("a.org"), client_hello("b.org"));
    let changed = [20, 3, 3, 0, 1, 1];
    refuses_behind(&a, &b);
    refuses_behind(&[&a, &changed[..]].concat(), &b);
    // Early data stands between the two, and a server that asks for the second one skips it.
    let early = records(&hello(&[(42, vec![]), server_name("a.org")]), usize::MAX);
    refuses_behind(&[&early, DATA, &changed[..], DATA].concat(), &b);
    let twice = [&a, &changed[..], &a, DATA].concat();
    let outcome = outcome(&["a.org"], &twice);
    assert_eq!((outcome.passed, outcome.judged.len()), (twice, 1));
}

#[test]
fn each_request_of_a_connection_is_judged() {
    let post = b"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 5\r\n\r\nhello".as_slice();
    let chunks = b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\n\r\n"
        .as_slice();
    for good in [GET, post, chunks] {
        let many = [good, GET, good].concat();
        let all = outcome(&["a.org"], &many);
        assert_eq!((all.passed, all.refused), (many, None));
        refuses_behind(good, EVIL);
    }
}

#[test]
fn a_body_is_never_taken_for_a_request() {
    let post = [b"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 31\r\n\r\n", EVIL].concat();
    let all = outcome(&["a.org"], &post);
    assert_eq!((all.passed, all.refused), (post, None));
}

#[test]
fn broken_chunks_end_the_connection() {
    let begin = b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n";
    refuses_behind(&[begin, b"1\r\na".as_slice()].concat(), b"b\r\n0\r\n\r\n");
    refuses_behind(begin, b"x\r\n");
    // Some servers take lines behind the last chunk for the next request.
    refuses_behind(&[begin, b"0\r\n".as_slice()].concat(), b"Trailer: x\r\n\r\n");
}

#[test]
fn behind_a_wish_for_another_protocol_the_answer_decides() {
    let wish = b"GET / HTTP/1.1\r\nHost: a.org\r\nUpgrade: websocket\r\n\r\n";
    let all = outcome(&["a.org"], &[wish, EVIL].concat());
    assert_eq!((all.passed.as_slice(), all.waits), (wish.as_slice(), true));
    for (switches, expected) in [(true, Next::Open), (false, Next::Read(crate::limits::HELD_READ))]
    {
        let mut gate = Gate::new(Demand::PermittedName, &std::sync::Arc::default()).unwrap();
        gate.put(wish);
        assert!(matches!(gate.next(), Next::Judge(_)));
        gate.permit();
        assert_eq!((gate.next(), gate.awaits_answer()), (Next::Send, false));
        gate.note_sent(wish.len());
        assert_eq!((gate.next(), gate.awaits_answer()), (Next::Wait, true));
        gate.answered(switches);
        assert_eq!(gate.next(), expected);
    }
    // Behind a body the answer may have begun before: its bytes prove nothing.
    let late =
        b"POST / HTTP/1.1\r\nHost: a.org\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\nx";
    refuses_behind(late, EVIL);
    // HTTP/2 would name others, and its first bytes are no request.
    let http2 = b"GET / HTTP/1.1\r\nHost: a.org\r\nUpgrade: h2c\r\n\r\n";
    refuses_behind(http2, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    // Behind another request the change is not followed.
    refuses_behind(&[GET, wish].concat(), &[0x81, 5, b'h', b'e', b'l', b'l', b'o']);
}

#[test]
fn ssh_shows_no_name_and_is_told_by_its_version() {
    let bytes = b"SSH-2.0-OpenSSH_9.2\r\n\0\0\x04";
    let whole = send(Demand::PermittedName, &["none"], bytes, usize::MAX);
    assert_eq!(
        (whole.passed.as_slice(), whole.judged),
        (bytes.as_slice(), vec!["ssh none".into()])
    );
}

#[test]
fn other_protocols_show_no_name() {
    for bytes in
        [b"\0\0\0\x08\x04\xd2\x16\x2f".as_slice(), b"EHLO\r\n", b"SS7", b"get x\r\n", b"\r\n"]
    {
        let outcome = outcome(&["a.org", "none"], bytes);
        assert_eq!((outcome.passed, outcome.judged), (vec![], vec![]), "{bytes:?}");
        assert_eq!(outcome.refused, Some(Shown { by: ShownBy::Unknown, name: None }), "{bytes:?}");
    }
}

#[test]
fn a_message_without_an_end_is_held_up_to_a_limit() {
    let begin = b"GET / HTTP/1.1\r\nHost: a.org\r\nX: ".as_slice();
    let outcome = outcome(&["a.org"], &[begin, &[b'x'; 2 * crate::limits::HELD]].concat());
    assert_eq!((outcome.passed, outcome.refused.unwrap().by), (vec![], ShownBy::Http));
}

#[test]
fn connections_of_a_guest_share_what_is_held() {
    let account = std::sync::Arc::default();
    let gates = crate::limits::HELD_OF_GUEST / crate::limits::HELD;
    let begin = [b'G'; crate::limits::HELD];
    let full = |_| {
        let mut gate = Gate::new(Demand::PermittedName, &account).unwrap();
        gate.put(&begin);
        gate
    };
    let mut held: Vec<Gate> = (0..gates).map(full).collect();
    let mut another = Gate::new(Demand::PermittedName, &account).unwrap();
    another.put(GET);
    assert!(matches!(another.next(), Next::Refuse(_)));
    drop(another);
    held.pop();
    let mut another = Gate::new(Demand::PermittedName, &account).unwrap();
    another.put(GET);
    assert!(matches!(another.next(), Next::Judge(_)));
}

#[test]
fn without_permissions_nothing_is_held_for_good() {
    let account = std::sync::Arc::default();
    let gate = |bytes: &[u8]| {
        let mut gate = Gate::new(Demand::NoDeniedName, &account).unwrap();
        gate.put(bytes);
        assert!(matches!(gate.next(), Next::Read(_)));
        gate
    };
    // A client of another protocol waits for an answer, or has ended its stream.
    for bytes in [b"HELLO".as_slice(), b"SSH", &[22, 3, 1]] {
        let mut waits = gate(bytes);
        assert!(waits.stop_waiting());
        assert_eq!((waits.next(), waits.passing()), (Next::Send, bytes));
        let mut ends = gate(bytes);
        ends.end();
        assert_eq!((ends.next(), ends.passing()), (Next::Send, bytes));
    }
    let long = [GET, &[b'x'; 2 * crate::limits::HELD]].concat();
    let long = [&GET[..GET.len() - 2], b"X: ", &long[GET.len()..]].concat();
    assert_eq!(send(Demand::NoDeniedName, &[], &long, 100).passed, long);
    // Where a name is needed, the end shuts the gate.
    let mut gate = Gate::new(Demand::PermittedName, &account).unwrap();
    gate.put(&GET[..9]);
    assert!(!gate.stop_waiting());
    gate.end();
    assert!(matches!(gate.next(), Next::Refuse(_)));
}

#[test]
fn memory_of_sent_bytes_is_given_back() {
    let mut gate = Gate::new(Demand::PermittedName, &std::sync::Arc::default()).unwrap();
    gate.put(&GET.repeat(crate::limits::HELD / GET.len()));
    gate.put(b"G");
    assert!(matches!(gate.next(), Next::Judge(_)));
    gate.permit();
    while let Next::Send = gate.next() {
        gate.note_sent(gate.passing().len());
    }
    assert_eq!(gate.held, b"G");
    assert!(gate.held.capacity() <= crate::limits::HELD_READ);
}

#[test]
fn without_permissions_only_denied_names_are_refused() {
    let watch = |bytes: &[u8]| send(Demand::NoDeniedName, &["a.org", "none"], bytes, 1);
    for bytes in [GET, &client_hello("a.org"), b"\0\x01binary", b"EHLO there\r\n", b"GET x\n\n"] {
        let outcome = watch(bytes);
        assert_eq!((outcome.passed.as_slice(), outcome.refused), (bytes, None), "{bytes:?}");
    }
    for bytes in [EVIL, &client_hello("b.org")] {
        assert_eq!(watch(bytes).passed, b"");
    }
}
