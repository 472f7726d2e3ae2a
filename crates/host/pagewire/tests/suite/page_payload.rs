//! Segments of whole pages on a link without super-frames.

use std::io::Read;

use pagewire::device::PairConfig;
use pagewire::tcp::{TcpConfig, mtu_of_pages};
use pagewire::{Device, Host, HostBuilder, Pair, StartError};

use crate::support::{builders_on, connect};

/// A link like a plain network card's: every frame is one segment.
fn plain(mtu: usize) -> (impl Device, impl Device) {
    Pair::with(PairConfig { mtu, offload: false, ..PairConfig::default() }).expect("a pair")
}

/// Sends to a host with such settings; the payload bytes of a full segment.
fn segments(mtu: usize, address: &str, settings: impl FnOnce(HostBuilder) -> HostBuilder) -> usize {
    const TOTAL: usize = 240 * 4096;
    let (server, client) = builders_on(plain(mtu));
    let server = settings(server.address("fd00::1/64")).start().expect("it fits");
    let client = client.address("fd00::2/64").start().expect("a host");
    let (near, mut far) = connect(&client, &server.listen(address).expect("listen"));
    let sending = std::thread::spawn(move || {
        assert_eq!(near.send(vec![7; TOTAL]).expect("sent"), TOTAL);
        near
    });
    let mut content = vec![0; TOTAL];
    far.read_exact(&mut content).expect("all of it");
    assert!(content.iter().all(|&byte| byte == 7));
    let near = sending.join().expect("the sender ends");
    usize::from(near.info().expect("a connection").send_mss)
}

#[test]
fn segments_carry_the_pages_asked_for_over_either_ip_version() {
    for (pages, mtu) in [(1, 4168), (2, 9000), (3, mtu_of_pages(3, true)), (15, 65_535)] {
        for address in ["10.0.0.1:80", "[fd00::1]:80"] {
            let got = segments(mtu, address, |host| host.payload_pages(pages));
            assert_eq!(got, usize::from(pages) * 4096, "{pages} pages, MTU {mtu}, to {address}");
        }
    }
}

#[test]
fn without_the_setting_ipv4_segments_are_longer_than_a_page_on_an_mtu_for_ipv6() {
    assert_eq!(segments(4168, "10.0.0.1:80", |host| host), 4096 + 20);
    assert_eq!(segments(4168, "[fd00::1]:80", |host| host), 4096);
}

#[test]
fn segments_are_whole_pages_without_timestamps_too() {
    let settings = |host: HostBuilder| {
        host.payload_pages(1).tcp_config(TcpConfig { timestamps: false, ..TcpConfig::default() })
    };
    for address in ["10.0.0.1:80", "[fd00::1]:80"] {
        assert_eq!(segments(4168, address, settings), 4096);
    }
}

#[test]
fn a_link_that_is_too_narrow_says_what_it_takes() {
    let start = |mtu: usize, pages: u8, address: &str| {
        let (device, _other) = plain(mtu);
        Host::builder().device(device).address(address).payload_pages(pages).start().map(drop)
    };
    assert!(start(4148, 1, "10.0.0.1/24").is_ok());
    for (mtu, pages, address, needs) in [
        (1500, 1, "10.0.0.1/24", "4148"),
        (4167, 1, "fd00::1/64", "4168"),
        (61_511, 15, "fd00::1/64", "61512"),
        (65_535, 0, "10.0.0.1/24", "1 to 15"),
        (65_535, 16, "10.0.0.1/24", "1 to 15"),
    ] {
        let error = start(mtu, pages, address).expect_err("it does not fit");
        assert!(matches!(error, StartError::PayloadPages { .. }), "{error:?}");
        assert!(error.to_string().contains(needs), "{error}");
    }
}
