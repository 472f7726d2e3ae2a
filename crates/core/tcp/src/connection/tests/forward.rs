//! Forwarding between connections: by reference, in bounds, and what it must not pass on.

use pagewire_mem::{Frag, FragVec};
use pagewire_testkit::given;

use super::*;
use crate::tests::Host;
use crate::{Config, LinkLimits, RecvFlags, SegmentOut, Seq, TcpError};

const WIRE: LinkLimits = LinkLimits::new(1460, 1460);
/// As a pair link's: longer super-frames than a wire has.
const MEMORY: LinkLimits = LinkLimits::new(61_440, 1 << 20);

fn config() -> Config {
    Config { nagle: false, recv_buffer_initial: 1 << 20, ..Config::default() }
}

fn len(segments: &[SegmentOut]) -> Vec<usize> {
    segments.iter().map(|s| s.payload.iter().map(Frag::len).sum()).collect()
}

given! {
    let mut host = Host::new();

    what_was_received_on_one_connection_is_sent_on_another_from_the_same_memory {
        let [mut client, mut a] = host.connected(&config(), WIRE);
        let [mut b, mut server] = host.connected(&config(), WIRE);
        let sent = host.send(&mut client, 10_000);
        host.exchange(&mut client, &mut a);
        assert_eq!(a.queued_receive(), 10_000);
        assert_eq!(a.forward(&mut host.env(), &mut b, usize::MAX), 10_000);
        assert_eq!((a.queued_receive(), b.queued_send()), (0, 10_000));
        assert_eq!(a.bytes_read(), 10_000);
        host.exchange(&mut b, &mut server);
        let mut got = Vec::new();
        assert_eq!(
            server.recv_chunks(&mut host.env(), usize::MAX, &mut got, RecvFlags::empty()),
            Ok(10_000)
        );
        assert_eq!(got[0].addr(), sent.addr());
        assert_eq!(host.ledger.ours(), 0, "payload bytes copied");
    }
    no_more_is_passed_on_than_is_asked_for {
        let [mut client, mut a] = host.connected(&config(), WIRE);
        let [mut b, _] = host.connected(&config(), WIRE);
        host.send(&mut client, 10_000);
        host.exchange(&mut client, &mut a);
        assert_eq!(a.forward(&mut host.env(), &mut b, 6000), 6000);
        assert_eq!((a.queued_receive(), b.queued_send()), (4000, 6000));
    }
    what_there_is_no_room_for_stays_and_is_not_waited_for {
        let [mut client, mut a] = host.connected(&config(), WIRE);
        let small = Config { send_buffer: 8192, send_buffer_initial: 8192, ..config() };
        let [mut b, mut server] = host.connected(&small, WIRE);
        host.send(&mut client, 60_000);
        host.exchange(&mut client, &mut a);
        let moved = a.forward(&mut host.env(), &mut b, usize::MAX);
        assert!(moved > 0 && moved < 60_000, "{moved} bytes");
        assert_eq!(a.queued_receive(), 60_000 - moved);
        assert_eq!(a.forward(&mut host.env(), &mut b, usize::MAX), 0);
        assert!(b.takes(), "nobody waits for room: that is the host's to say");
        // When some was acknowledged, more goes.
        host.exchange(&mut b, &mut server);
        assert!(a.forward(&mut host.env(), &mut b, usize::MAX) > 0);
    }
    ends_and_urgent_bytes_and_errors_are_not_passed_on_unseen {
        let env_host = &mut host;
        let [mut client, mut a] = env_host.connected(&config(), WIRE);
        assert!(a.gives() && a.takes());
        client.shutdown_write(&mut env_host.env()).unwrap();
        env_host.exchange(&mut client, &mut a);
        assert!(!a.gives(), "its end was received");
        assert!(a.takes(), "the other way is open");
        assert!(client.gives() && !client.takes(), "and the same seen from there");

        let [mut client, mut a] = env_host.connected(&config(), WIRE);
        let mut frags = FragVec::from_elem(Frag::from_static(b"!"), 1);
        client.send(&mut env_host.env(), &mut frags, SendFlags::URGENT).unwrap();
        env_host.exchange(&mut client, &mut a);
        assert!(!a.gives(), "an urgent byte waits");

        let [mut client, mut a] = env_host.connected(&config(), WIRE);
        client.abort();
        env_host.exchange(&mut client, &mut a);
        assert!(!a.gives() && !a.takes());
        assert_eq!(a.take_error(), Some(TcpError::ConnectionReset));
        assert!(!a.gives() && !a.takes(), "it is over, acknowledged or not");
    }
    while_a_send_waits_for_room_nothing_is_passed_on_before_it {
        let small = Config { send_buffer: 8192, send_buffer_initial: 8192, ..config() };
        let [mut b, mut server] = host.connected(&small, WIRE);
        let mut frags = FragVec::from_elem(Frag::from_bytes(vec![0; 60_000].into()), 1);
        b.send(&mut host.env(), &mut frags, SendFlags::empty()).unwrap();
        assert!(!b.takes());
        host.exchange(&mut b, &mut server);
        assert!(b.takes());
    }
    on_a_link_in_memory_less_than_a_super_frame_waits_while_an_acknowledgement_is_owed_at_once {
        let [mut b, mut server] = host.connected(&config(), MEMORY);
        // Enough is under way that windows do not matter.
        for _ in 0..20 {
            host.send(&mut b, 200_000);
            host.exchange(&mut b, &mut server);
            let _ =
                server.recv_chunks(&mut host.env(), usize::MAX, &mut Vec::new(), RecvFlags::empty());
            host.exchange(&mut b, &mut server);
        }
        b.set_forwards();
        // Alone, it leaves at once.
        host.send(&mut b, 100_000);
        let first = host.output(&mut b);
        assert_eq!(len(&first), [100_000]);
        host.send(&mut b, 3000);
        host.send(&mut b, 4000);
        assert_eq!(len(&host.output(&mut b)), [0; 0], "it waits");
        for segment in first {
            let _ = server.handle_segment(&mut host.env(), &segment.header, segment.payload, 0);
        }
        host.carry(&mut server, &mut b);
        let joined = host.output(&mut b);
        assert_eq!(len(&joined), [7000], "with company");
        // Nothing waits before an end.
        host.send(&mut b, 100_000);
        host.output(&mut b);
        host.send(&mut b, 10);
        b.shutdown_write(&mut host.env()).unwrap();
        assert_eq!(len(&host.output(&mut b)), [10]);
    }
    what_is_under_way_that_may_be_acknowledged_late_keeps_nobody_waiting {
        for link in [WIRE, MEMORY] {
            let [mut b, _] = host.connected(&config(), link);
            b.set_forwards();
            host.send(&mut b, 100);
            assert_eq!(len(&host.output(&mut b)), [100]);
            host.send(&mut b, 100);
            assert_eq!(len(&host.output(&mut b)), [100], "{link:?}");
        }
    }
    from_a_sender_in_the_same_machine_less_is_invited_than_the_send_buffer_takes {
        let config = Config { send_buffer: 300_000, ..config() };
        for (link, limit) in [(MEMORY, 300_000 - 61_440), (WIRE, 1 << 20)] {
            let [_, mut a] = host.connected(&config, link);
            assert_eq!(a.inbound.window_limit(&a.path, &a.out.transfer.rtt), 1 << 20);
            a.set_forwards();
            assert_eq!(a.inbound.window_limit(&a.path, &a.out.transfer.rtt), limit);
        }
    }
    a_window_that_may_no_longer_be_as_large_is_not_taken_back {
        // (RFC 9293 section 3.8.6: a receiver should not move the right edge to the left.)
        let config = Config { send_buffer: 300_000, ..config() };
        let [mut client, mut a] = host.connected(&config, MEMORY);
        host.send(&mut client, 100_000);
        host.exchange(&mut client, &mut a);
        let _ = a.recv_chunks(&mut host.env(), usize::MAX, &mut Vec::new(), RecvFlags::empty());
        host.exchange(&mut client, &mut a);
        a.set_forwards();
        let scale = a.inbound.scale;
        let mut last = None;
        for n in 0..300 {
            host.send(&mut client, 1 + n % 7);
            host.carry(&mut client, &mut a);
            a.inbound.ack.at_once();
            for segment in host.output(&mut a) {
                let edge = Seq(segment.header.ack.0) + (u32::from(segment.header.window) << scale);
                if let Some(last) = last {
                    assert!(!edge.lt(last), "{n}: {edge} after {last}");
                }
                last = Some(edge);
                let _ = client.handle_segment(&mut host.env(), &segment.header, segment.payload, 0);
            }
        }
    }
}

#[test]
fn however_small_the_send_buffer_is_a_sender_in_the_same_machine_waits_for_no_timer() {
    const ALL: usize = 2_000_000;
    for send_buffer in [4096, 16_384, 65_536, 100_000, 130_000] {
        let mut host = Host::new();
        let small = Config { send_buffer, send_buffer_initial: send_buffer, ..config() };
        let [mut client, mut a] = host.connected(&config(), MEMORY);
        let [mut b, mut server] = host.connected(&small, MEMORY);
        *a.path.own_config() = b.path.config().clone();
        // From before, it knows of a window of many segments: nothing less than one leaves for less.
        host.send(&mut client, 100_000);
        host.exchange(&mut client, &mut a);
        a.set_forwards();
        b.set_forwards();
        let (mut sent, mut got) = (100_000, 0);
        while got < ALL {
            let before = (sent, got);
            let rest = Frag::from_bytes(vec![7; ALL - sent].into());
            sent += client
                .send(&mut host.env(), &mut FragVec::from_elem(rest, 1), SendFlags::empty())
                .unwrap_or(0);
            host.carry(&mut client, &mut a);
            a.forward(&mut host.env(), &mut b, usize::MAX);
            host.carry(&mut a, &mut client);
            host.carry(&mut b, &mut server);
            got += server
                .recv_chunks(&mut host.env(), usize::MAX, &mut Vec::new(), RecvFlags::empty())
                .unwrap_or(0);
            host.carry(&mut server, &mut b);
            assert!((sent, got) != before, "{got} of {sent} bytes, send buffer {send_buffer}");
        }
    }
}
