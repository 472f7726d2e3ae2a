//! Fast Open cookies (RFC 7413 section 4.1): Linux's bytes, keys and lengths.

use super::*;

fn keys(words: [u32; 4]) -> FastOpenKeys {
    let mut key = [0; 16];
    for (place, word) in key.chunks_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    FastOpenKeys::new(key, None)
}

fn show(keys: &FastOpenKeys, client: &str, server: &str) -> String {
    format!("{:?}", keys.cookie(client.parse().unwrap(), server.parse().unwrap()))
}

/// Computed with an independent implementation of SipHash-2-4 over the two addresses; what Linux
/// answers with the same `tcp_fastopen_key`.
#[test]
fn rfc7413_4_1_2_cookies_are_those_of_linux_servers_with_the_same_key() {
    let first = keys([0xa1a1_a1a1, 0xb2b2_b2b2, 0xc3c3_c3c3, 0xd4d4_d4d4]);
    assert_eq!(show(&first, "192.0.2.1", "192.168.0.1"), "FO 3021b9d889017eeb");
    assert_eq!(show(&first, "fd3d:fa7b:d17d::1", "fd3d:a0b:17d6::1"), "FO c1d1e9742a47a9bc");
    let zero = keys([0; 4]);
    assert_eq!(show(&zero, "192.0.2.1", "192.168.0.1"), "FO b7c12350a90dc8f5");
}

#[test]
fn rfc7413_4_1_2_a_cookie_is_good_for_one_client_and_one_address_of_ours() {
    let keys = keys([1, 2, 3, 4]);
    let ip = |s: &str| s.parse::<IpAddr>().unwrap();
    let cookie = keys.cookie(ip("10.0.0.1"), ip("10.0.0.2"));
    assert_eq!(keys.check(&cookie, ip("10.0.0.1"), ip("10.0.0.2")), CookieCheck::Valid);
    assert_eq!(keys.check(&cookie, ip("10.0.0.3"), ip("10.0.0.2")), CookieCheck::Invalid);
    assert_eq!(keys.check(&cookie, ip("10.0.0.1"), ip("10.0.0.3")), CookieCheck::Invalid);
    let other_form = cookie.in_form(true);
    assert_eq!(keys.check(&other_form, ip("10.0.0.1"), ip("10.0.0.2")), CookieCheck::Valid);
}

#[test]
fn rfc7413_4_1_2_a_cookie_of_the_replaced_key_counts_as_outdated() {
    let old = FastOpenKeys::new([1; 16], None);
    let new = FastOpenKeys::new([2; 16], Some([1; 16]));
    let (client, server) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    assert_eq!(new.check(&old.cookie(client, server), client, server), CookieCheck::Outdated);
    assert_eq!(new.check(&new.cookie(client, server), client, server), CookieCheck::Valid);
    assert_eq!(old.check(&new.cookie(client, server), client, server), CookieCheck::Invalid);
}

#[test]
fn rfc7413_4_1_1_cookies_have_four_to_sixteen_bytes_and_an_even_number() {
    for len in 0..20 {
        let cookie = FastOpenCookie::from_option(&vec![0xab; len], false);
        let valid = len == 0 || (4..=16).contains(&len) && len % 2 == 0;
        assert_eq!(cookie.map(|c| c.as_slice().len()), valid.then_some(len), "{len}");
    }
    assert!(FastOpenCookie::from_option(&[], true).unwrap().is_request());
}
