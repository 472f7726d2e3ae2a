//! Requirements of the parser of `--so_flags`.

use super::*;

#[test]
fn addresses_and_gateways_may_be_repeated() {
    let flags = Flags::parse(
        "addr=192.168.0.1/16,addr=fd3d:a0b:17d6::1/48,gateway=192.168.0.2,gateway=fd3d:a0b:17d6::2,\
         sysctl=/tmp/x=y,looped=copy",
    )
    .expect("good flags");
    assert_eq!((flags.addresses.len(), flags.gateways.len()), (2, 2));
    assert_eq!(flags.sysctl, Some("/tmp/x=y".into()));
    assert!(flags.looped_copy);
}

#[test]
fn an_mss_of_1460_is_left_over_either_protocol() {
    let mtu = |list| Flags::parse(list).expect("good flags").mtu();
    assert_eq!(mtu("addr=192.168.0.1/16"), 1460 + 40);
    assert_eq!(mtu("addr=fd3d:a0b:17d6::1/48"), 1460 + 60);
    assert_eq!(mtu("addr=192.168.0.1/16,mtu=9000"), 9000);
    let both = Flags::parse("addr=192.168.0.1/16,addr=fd3d:a0b:17d6::1/48").expect("good flags");
    assert_eq!((both.mtu(), both.max_mss()), (1460 + 60, Some(1460)));
}

#[test]
fn mistakes_are_named() {
    for (list, word) in [
        ("", "no address"),
        ("addr=192.168.0.1/16,speed=10", "speed=10"),
        ("addr=192.168.0.1/99", "192.168.0.1/99"),
        ("addr=192.168.0.1/16,looped=reference", "copy"),
        ("addr=192.168.0.1/16,mtu=big", "mtu=big"),
        ("addr=192.168.0.1/16,shards=0", "1 to 32"),
        ("addr=192.168.0.1/16,shards=33", "1 to 32"),
    ] {
        let error = Flags::parse(list).expect_err(list).to_string();
        assert!(error.contains(word), "{error}");
    }
}
