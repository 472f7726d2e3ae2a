//! SYN cookies: what they keep of a SYN, how long, and against whom.

use core::time::Duration;

use std::sync::Arc;

use super::*;
use crate::{Connection, Ports};

const LINK: LinkLimits = LinkLimits::new(1460, 1460);
const OFFSET: u32 = 0xdead_beef;

fn ends() -> (SocketAddr, SocketAddr) {
    ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:4000".parse().unwrap())
}

fn jar() -> CookieJar {
    CookieJar::new([3; 16])
}

fn syn(options: TcpOptions) -> TcpHeader {
    TcpHeader {
        src_port: 4000,
        dst_port: 80,
        seq: Seq(u32::MAX),
        flags: Flags::SYN,
        window: 1000,
        options,
        ..TcpHeader::default()
    }
}

/// The peer's answer to our SYN,ACK.
fn ack(syn_ack: &TcpHeader) -> TcpHeader {
    let stamps = syn_ack.options.timestamps;
    TcpHeader {
        src_port: syn_ack.dst_port,
        dst_port: syn_ack.src_port,
        seq: syn_ack.ack,
        ack: syn_ack.seq + 1,
        flags: Flags::ACK,
        window: 1000,
        options: TcpOptions {
            timestamps: stamps.map(|(value, echo)| (echo + 1, value)),
            ..TcpOptions::default()
        },
        ..TcpHeader::default()
    }
}

fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000 + 77)
}

fn answer(now: Instant, syn: &TcpHeader) -> TcpHeader {
    jar().answer(now, &Config::default(), LINK, ends(), OFFSET, syn)
}

#[test]
fn cookie_gives_back_what_the_syn_said() {
    for mss in MSS_TABLE {
        for scale in [None, Some(0), Some(7), Some(14)] {
            for sack in [false, true] {
                let options = TcpOptions {
                    mss: Some(mss),
                    window_scale: scale,
                    sack_permitted: sack,
                    timestamps: Some((5, 0)),
                    ..TcpOptions::default()
                };
                let sent = answer(at(1000), &syn(options));
                let found = jar().check(at(1001), ends(), OFFSET, &ack(&sent)).unwrap();
                let got = found.syn.options;
                assert_eq!((got.mss, got.window_scale), (Some(mss), scale));
                assert_eq!((got.sack_permitted, got.timestamps), (sack, Some((6, 0))));
                assert_eq!((found.iss, found.syn.seq), (sent.seq, Seq(u32::MAX)));
            }
        }
    }
}

#[test]
fn mss_is_rounded_down_to_the_table() {
    for (offered, kept) in [(None, 536), (Some(100), 536), (Some(1459), 1440), (Some(9000), 8940)] {
        let options = TcpOptions { mss: offered, ..TcpOptions::default() };
        let sent = answer(at(5), &syn(options));
        let found = jar().check(at(5), ends(), OFFSET, &ack(&sent)).unwrap();
        assert_eq!(found.syn.options.mss, Some(kept));
    }
}

#[test]
fn without_timestamps_only_the_mss_is_kept_and_nothing_else_is_offered() {
    let options = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..TcpOptions::default()
    };
    let sent = answer(at(5), &syn(options));
    assert_eq!(sent.options, TcpOptions { mss: Some(1460), ..TcpOptions::default() });
}

#[test]
fn cookie_counts_for_one_to_two_minutes() {
    // Minutes begin at multiples of 64 seconds.
    let sent = answer(at(640), &syn(TcpOptions::default()));
    let check = |s| jar().check(at(s), ends(), OFFSET, &ack(&sent)).is_some();
    assert!(check(640) && check(704) && check(640 + 127));
    assert!(!check(640 + 128) && !check(639));
    // The eight bits of the minute come round.
    assert!(!check(640 + 64 * 256 - 64));
}

#[test]
fn cookie_of_other_ends_or_another_key_does_not_count() {
    let sent = answer(at(5), &syn(TcpOptions::default()));
    let (local, remote) = ends();
    let other: SocketAddr = "10.0.0.3:4000".parse().unwrap();
    assert_eq!(jar().check(at(5), (local, other), OFFSET, &ack(&sent)), None);
    let other = CookieJar::new([4; 16]);
    assert_eq!(other.check(at(5), (local, remote), OFFSET, &ack(&sent)), None);
}

#[test]
fn guessed_acknowledgement_passes_once_in_a_million() {
    let mut rng = 0x9e37_79b9_7f4a_7c15_u64;
    let mut passed = 0;
    let tries = 4_000_000;
    for _ in 0..tries {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        let minute = minute(at(700)) as u32;
        // A stranger knows the minute, and its own number.
        let guess = minute << 24 | (rng as u32 & LOW);
        let forged = TcpHeader {
            seq: Seq(1),
            ack: Seq(guess) + 1,
            flags: Flags::ACK,
            ..TcpHeader::default()
        };
        passed += u32::from(jar().check(at(700), ends(), OFFSET, &forged).is_some());
    }
    // Eight in 2^24 each: 1.9 are expected.
    assert!(passed <= 10, "{passed} of {tries}");
}

#[test]
fn numbers_grow_with_the_peers_and_with_time() {
    let first = answer(at(640), &syn(TcpOptions::default())).seq;
    let later = answer(at(640 + 64), &syn(TcpOptions::default())).seq;
    let step = later.since(first);
    assert!((0..2 << 24).contains(&step), "{step}");
}

#[test]
fn timestamps_of_cookies_are_never_ahead_of_the_clock_nor_far_behind() {
    for ms in 0..200 {
        for bits in [0, 1, 0x1f, OPTION_MASK] {
            let now = Instant::from_millis(10_000 + ms);
            let behind = (now.as_millis() as u32).wrapping_sub(stamp(now, bits));
            assert!(behind < 64, "{behind}");
            assert_eq!(stamp(now, bits) & OPTION_MASK, bits);
        }
    }
    // Where the clock wraps, too.
    assert_eq!(stamp(Instant::ZERO, 9), 9_u32.wrapping_sub(64));
}

#[test]
fn connection_from_a_cookie_is_as_one_whose_handshake_was_remembered() {
    let options = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((5, 0)),
        ..TcpOptions::default()
    };
    let (now, ports) = (at(5), Ports { local: 80, remote: 4000 });
    let sent = answer(now, &syn(options));
    let back = now + Duration::from_millis(20);
    let cookie = jar().check(back, ends(), OFFSET, &ack(&sent)).unwrap();
    let config = Arc::new(Config::default());
    let mut remembered =
        Connection::accept(now, Arc::clone(&config), LINK, ports, sent.seq, OFFSET, &syn(options));
    // The SYN,ACK announces the first window.
    let next = remembered.inbound.rcv_nxt();
    remembered.inbound.announce_first_window(&remembered.path, next);
    let found = Connection::from_cookie(back, config, LINK, ports, OFFSET, &cookie);
    let says = |c: &Connection| {
        let (snd, rcv) = (&c.out.transfer.snd, &c.inbound);
        let p = &c.path;
        let agreed = [p.active, p.timestamps_ok, p.sack_ok, p.scaling_ok, p.fast_open_server];
        let flags = (agreed, c.life.flags, c.out.flags, c.inbound.flags);
        (flags, snd.scale, rcv.scale, snd.peer_mss, rcv.irs(), rcv.edge, c.path.state())
    };
    assert_eq!(says(&found), says(&remembered));
}
