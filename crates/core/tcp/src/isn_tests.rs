//! Initial sequence numbers (RFC 6528 section 3).

use core::net::SocketAddr;
use core::time::Duration;

use pagewire_mem::Instant;

use super::IsnGenerator;

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const KEY: [u8; 16] = *b"0123456789abcdef";

/// > RFC 6528 section 3: M is the 4 microsecond timer
#[test]
fn numbers_of_one_connection_grow_by_one_every_four_microseconds() {
    let isn = IsnGenerator::new(KEY);
    let (local, remote) = (addr("10.0.0.1:1000"), addr("10.0.0.2:80"));
    let now = Instant::from_millis(5000);
    let first = isn.generate(now, local, remote);
    assert_eq!(isn.generate(now + Duration::from_micros(4), local, remote), first + 1);
    assert_eq!(isn.generate(now + Duration::from_secs(1), local, remote), first + 250_000);
}

#[test]
fn the_clock_wraps_with_the_numbers() {
    let isn = IsnGenerator::new(KEY);
    let (local, remote) = (addr("10.0.0.1:1000"), addr("10.0.0.2:80"));
    let round = Duration::from_micros(4 << 32);
    let at = |t| isn.generate(t, local, remote);
    assert_eq!(at(Instant::ZERO), at(Instant::ZERO + round));
}

#[test]
fn every_part_of_the_connection_and_the_key_change_the_number() {
    let isn = IsnGenerator::new(KEY);
    let (local, remote) = (addr("10.0.0.1:1000"), addr("10.0.0.2:80"));
    let number = isn.generate(Instant::ZERO, local, remote);
    let offset = isn.timestamp_offset(local, remote);
    let others = [
        (isn.clone(), addr("10.0.0.1:1001"), remote),
        (isn.clone(), addr("10.0.0.3:1000"), remote),
        (isn.clone(), local, addr("10.0.0.2:81")),
        (isn.clone(), local, addr("10.0.0.3:80")),
        (isn.clone(), remote, local),
        (isn.clone(), addr("[::ffff:10.0.0.1]:1000"), addr("[::ffff:10.0.0.2]:80")),
        (IsnGenerator::new(*b"0123456789abcdeX"), local, remote),
    ];
    for (isn, local, remote) in others {
        assert_ne!(isn.generate(Instant::ZERO, local, remote), number, "{local} {remote}");
        assert_ne!(isn.timestamp_offset(local, remote), offset, "{local} {remote}");
    }
}

#[test]
fn the_timestamp_offset_says_nothing_about_the_sequence_number() {
    let isn = IsnGenerator::new(KEY);
    let (local, remote) = (addr("[fd00::1]:1000"), addr("[fd00::2]:80"));
    let number = isn.generate(Instant::ZERO, local, remote);
    assert_ne!(number.get(), isn.timestamp_offset(local, remote));
}

#[test]
fn the_key_does_not_show_in_debug_output() {
    assert_eq!(format!("{:?}", IsnGenerator::new(KEY)), "IsnGenerator { .. }");
}
