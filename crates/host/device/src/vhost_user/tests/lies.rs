//! A hostile guest: each lie that a ring can tell is survived and counted, costs the frame or at worst
//! the ring, and nobody else anything.

use std::sync::atomic::{AtomicBool, Ordering};

use vhost::VhostBackend;
use vmm_sys_util::eventfd::EventFd;

use super::super::VhostCounters;
use super::super::double::GUEST_BASE;
use super::super::limits::MAX_FRAME;
use super::super::virtqueue::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Desc};
use super::*;

/// A descriptor that the lies leave alone, for honest frames.
const HONEST: u16 = 20;

/// A guest whose descriptors are written by hand, 32 of them.
fn rig() -> Rig {
    Rig::new(GuestConfig { queue_size: 32, send_buffer: 70_000, ..GuestConfig::default() })
}

/// The guest's address of a transmit buffer.
fn buffer(rig: &Rig, index: u16) -> u64 {
    GUEST_BASE + rig.guest.transmit.buffer(index) as u64
}

/// Makes `head` available, and what was posted before.
fn post(rig: &mut Rig, head: u16) {
    rig.guest.transmit.post(head);
    rig.guest.transmit.wants_kick(true);
}

/// Writes descriptors from 0 on, and makes the chain at 0 available.
fn chain(rig: &mut Rig, descs: &[Desc]) {
    for (index, &desc) in descs.iter().enumerate() {
        rig.guest.transmit.ring.set_desc(index as u16, desc);
    }
    post(rig, 0);
}

/// Writes a table to buffer 1, and makes a descriptor of it available.
fn table(rig: &mut Rig, descs: &[Desc], len: usize, flags: u16) {
    let words = descs.iter().flat_map(|desc| [desc.addr, desc.rest()]);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    rig.guest.window.write(rig.guest.transmit.buffer(1), &bytes);
    let addr = buffer(rig, 1);
    let flags = DESC_INDIRECT | flags;
    chain(rig, &[Desc { addr, len: len as u32, flags, next: 2 }]);
}

fn desc(addr: u64, len: usize, flags: u16, next: u16) -> Desc {
    Desc { addr, len: len as u32, flags, next }
}

/// An honest frame arrives.
fn goes_on(rig: &mut Rig) {
    rig.guest.fill(HONEST, [0; 12], &udp(60));
    post(rig, HONEST);
    let frames = rig.receive();
    assert_eq!(frames.iter().map(all_bytes).collect::<Vec<_>>(), [udp(60)]);
}

type Count = fn(&VhostCounters) -> u64;

/// Tells a lie about one frame: nothing arrives, it is counted once and as what it is, the descriptor
/// is back, and the ring goes on.
fn costs_the_frame(name: &str, count: Count, lie: impl FnOnce(&mut Rig)) {
    let mut rig = rig();
    lie(&mut rig);
    let frames = rig.receive();
    assert!(frames.is_empty(), "{name}: something arrived");
    let counters = rig.monitor.counters();
    assert_eq!((count(&counters), counters.lies()), (1, 1), "{name}: {counters:?}");
    assert_eq!(rig.device.counters().rx_dropped_malformed, 1, "{name}");
    assert_eq!(rig.guest.transmit.ring.used_index(), 1, "{name}: not given back");
    assert_eq!(counters.held, 0, "{name}");
    goes_on(&mut rig);
}

/// The same of a chain, which is made of where an honest buffer is.
fn chain_costs_the_frame<const N: usize>(
    name: &str,
    count: Count,
    descs: impl FnOnce(u64) -> [Desc; N],
) {
    costs_the_frame(name, count, |rig| {
        let at = buffer(rig, 2);
        chain(rig, &descs(at));
    });
}

#[test]
fn chains_that_loop_or_leave_the_table_cost_the_frame() {
    let long: Count = |c| c.chain_too_long;
    chain_costs_the_frame("a descriptor that is its own next", long, |at| {
        [desc(at, 1, DESC_NEXT, 0)]
    });
    chain_costs_the_frame("a loop of empty buffers", long, |at| {
        [desc(at, 0, DESC_NEXT, 1), desc(at, 0, DESC_NEXT, 0)]
    });
    let next: Count = |c| c.bad_next;
    for (name, beyond) in [("a next one beyond the table", 32), ("far beyond", 65_535)] {
        chain_costs_the_frame(name, next, |at| [desc(at, 100, DESC_NEXT, beyond)]);
    }
}

#[test]
fn a_chain_of_all_descriptors_is_no_lie() {
    let mut rig = rig();
    rig.guest.fill(31, [0; 12], &udp(74));
    let at = buffer(&rig, 31);
    let part = |i: u16| desc(at + u64::from(i) * 2, 2, DESC_NEXT, i + 1);
    let mut descs: Vec<Desc> = (0..31).map(part).collect();
    descs.push(desc(at + 62, 24, 0, 0));
    chain(&mut rig, &descs);
    let frames = rig.receive();
    assert_eq!((frames.len(), rig.monitor.counters().lies()), (1, 0));
    assert_eq!(all_bytes(&frames[0]), udp(74));
}

#[test]
fn addresses_outside_of_the_guests_memory_cost_the_frame() {
    let bad: Count = |c| c.bad_address;
    let len = rig().guest.window.len() as u64;
    let end = GUEST_BASE + len;
    for (name, at, len) in [
        ("before", GUEST_BASE - 1, 100),
        ("behind", end, 100),
        ("across the end", end - 8, 100),
        ("nowhere", 0, 100),
        ("at the end of all addresses", u64::MAX - 50, 100),
        ("the front end's address", 0x7f00_0000_0000, 100),
    ] {
        chain_costs_the_frame(name, bad, |_| [desc(at, len, 0, 0)]);
        chain_costs_the_frame(name, bad, |first| {
            [desc(first, 54, DESC_NEXT, 1), desc(at, len, 0, 0)]
        });
        costs_the_frame(name, bad, |rig| table(rig, &[desc(at, len, 0, 0)], 16, 0));
        chain_costs_the_frame(name, bad, |_| [desc(at, 16, DESC_INDIRECT, 0)]);
    }
}

#[test]
fn the_last_byte_of_memory_is_no_lie() {
    let mut rig = rig();
    let at = rig.guest.window.len() - 72;
    rig.guest.window.write(at, &[&[0; 12][..], &udp(60)].concat());
    chain(&mut rig, &[desc(GUEST_BASE + at as u64, 72, 0, 0)]);
    assert_eq!((rig.receive().len(), rig.monitor.counters().lies()), (1, 0));
}

#[test]
fn buffers_of_the_wrong_direction_cost_the_frame() {
    let wrong: Count = |c| c.wrong_direction;
    chain_costs_the_frame("to be written", wrong, |at| [desc(at, 100, DESC_WRITE, 0)]);
    chain_costs_the_frame("the second is", wrong, |at| {
        [desc(at, 50, DESC_NEXT, 1), desc(at, 50, DESC_WRITE, 0)]
    });
}

#[test]
fn tables_that_make_no_sense_cost_the_frame() {
    let bad: Count = |c| c.bad_indirect;
    let honest = |rig: &Rig| desc(buffer(rig, 2), 100, 0, 0);
    for (name, len) in [("empty", 0), ("half a descriptor", 8), ("one and a half", 24)] {
        costs_the_frame(name, bad, |rig| table(rig, &[honest(rig)], len, 0));
    }
    costs_the_frame("longer than the ring", bad, |rig| table(rig, &[honest(rig)], 33 * 16, 0));
    costs_the_frame("of 4 GiB", bad, |rig| table(rig, &[honest(rig)], 0xffff_fff0, 0));
    costs_the_frame("with a next one", bad, |rig| table(rig, &[honest(rig)], 16, DESC_NEXT));
    costs_the_frame("nested", bad, |rig| {
        let inner = desc(buffer(rig, 1), 16, DESC_INDIRECT, 0);
        table(rig, &[inner], 16, 0);
    });
    let (beyond, long): (Count, Count) = (|c| c.bad_next, |c| c.chain_too_long);
    for (name, count, len, next) in
        [("a next one beyond it", beyond, 100, 2), ("a loop in it", long, 0, 0)]
    {
        costs_the_frame(name, count, |rig| {
            let inner = desc(buffer(rig, 2), len, DESC_NEXT, next);
            table(rig, &[inner, inner], 32, 0);
        });
    }
}

#[test]
fn a_table_that_was_not_negotiated_costs_the_frame() {
    let config = GuestConfig { queue_size: 32, indirect: false, ..GuestConfig::default() };
    let mut rig = Rig::new(config);
    let inner = desc(buffer(&rig, 2), 100, 0, 0);
    table(&mut rig, &[inner], 16, 0);
    assert!(rig.receive().is_empty());
    assert_eq!(rig.monitor.counters().bad_indirect, 1);
}

#[test]
fn tables_of_every_length_and_order_are_read_right() {
    for n in 1..=32_u16 {
        let mut rig = rig();
        let frame = udp(42 + usize::from(n) * 10);
        rig.guest.fill(3, [0; 12], &frame);
        let (at, total) = (buffer(&rig, 3), 12 + frame.len());
        // The first entry, then from the last one down.
        let order: Vec<u16> = std::iter::once(0).chain((1..n).rev()).collect();
        let mut entries = vec![Desc::default(); usize::from(n)];
        for (place, &entry) in order.iter().enumerate() {
            let last = place + 1 == order.len();
            let len = if last { total - place * 5 } else { 5 };
            let flags = if last { 0 } else { DESC_NEXT };
            let next = order.get(place + 1).copied().unwrap_or(0);
            entries[usize::from(entry)] = desc(at + place as u64 * 5, len, flags, next);
        }
        table(&mut rig, &entries, entries.len() * 16, 0);
        let frames = rig.receive();
        assert_eq!(frames.iter().map(all_bytes).collect::<Vec<_>>(), [frame], "{n} entries");
    }
}

#[test]
fn lengths_that_no_frame_has_cost_the_frame() {
    let bad: Count = |c| c.bad_length;
    for len in [0, 1, 11, 12, 13, 12 + 13] {
        costs_the_frame(&format!("{len} bytes"), bad, |rig| {
            rig.guest.fill(2, [0; 12], &udp(60));
            let at = buffer(rig, 2);
            chain(rig, &[desc(at, len, 0, 0)]);
        });
    }
    for len in [12 + MAX_FRAME + 1, 0xffff_ffff] {
        chain_costs_the_frame(&format!("{len} bytes"), bad, |at| [desc(at, len, 0, 0)]);
    }
    chain_costs_the_frame("too long together", bad, |at| {
        [desc(at, 60_000, DESC_NEXT, 1), desc(at, 10_000, 0, 0)]
    });
}

#[test]
fn headers_that_contradict_the_frame_cost_the_frame() {
    let bad: Count = |c| c.bad_header;
    let lies: [(&str, [u8; 12]); 7] = [
        ("a sum that begins behind the frame", [1, 0, 0, 0, 0, 0, 61, 0, 16, 0, 0, 0]),
        ("a field behind the frame", [1, 0, 0, 0, 0, 0, 34, 0, 25, 0, 0, 0]),
        ("an unknown kind", [1, 3, 0, 0, 100, 0, 34, 0, 6, 0, 0, 0]),
        ("no kind but ECN", [1, 0x80, 0, 0, 100, 0, 34, 0, 6, 0, 0, 0]),
        ("segments of no bytes", [1, 1, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0]),
        ("a super-frame without a checksum", [0, 1, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0]),
        ("TCP's segments of a datagram", [1, 1, 0, 0, 100, 0, 34, 0, 6, 0, 0, 0]),
    ];
    for (name, header) in lies {
        costs_the_frame(name, bad, |rig| {
            rig.guest.fill(0, header, &udp(60));
            post(rig, 0);
        });
    }
}

/// Stops the guest's rings, and starts them where its driver is.
fn set_up_anew(rig: &mut Rig) {
    let [receive, _] = rig.guest.stop().unwrap();
    let now = rig.guest.transmit.next_avail;
    rig.guest.transmit.ring.set_avail_index(now);
    rig.guest.resume([receive, u32::from(now)]).unwrap();
}

/// Tells a lie about the ring itself: it stops, the front end gets an error, all else goes on, and
/// set up anew it works again.
fn costs_the_ring(name: &str, count: Count, lie: impl FnOnce(&mut Rig)) {
    let (mut rig, mut other) = (rig(), Rig::new(GuestConfig::default()));
    let error = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    rig.guest.frontend.set_vring_err(1, &error).unwrap();
    goes_on(&mut rig);
    lie(&mut rig);
    rig.receive();
    let counters = rig.monitor.counters();
    assert_eq!((count(&counters), counters.lies()), (1, 1), "{name}: {counters:?}");
    assert_eq!(error.read().unwrap(), 1, "{name}: the front end was not told");
    assert!(rig.receive().is_empty() && !rig.device.arm(), "{name}: it is not looked at again");
    rig.device.disarm();
    // The other direction, and another port, go on.
    assert!(rig.transmit([packet(&udp(60), 42)]).is_empty());
    assert_eq!(rig.guest.receive().unwrap().bytes, udp(60), "{name}");
    assert!(other.guest.send(&udp(60)));
    assert_eq!(other.receive().len(), 1, "{name}: another port was disturbed");
    set_up_anew(&mut rig);
    goes_on(&mut rig);
}

#[test]
fn indices_that_jump_cost_the_ring() {
    let bad: Count = |c| c.bad_avail_index;
    for jump in [33, 1000, 0x8000, 0xffff] {
        costs_the_ring(&format!("by {jump}"), bad, |rig| {
            let now = rig.guest.transmit.next_avail;
            rig.guest.transmit.ring.set_avail_index(now.wrapping_add(jump));
        });
    }
}

#[test]
fn heads_beyond_the_table_cost_the_ring() {
    for head in [32, 1000, 0xffff] {
        costs_the_ring(&format!("head {head}"), |c| c.bad_head, |rig| post(rig, head));
    }
}

#[test]
fn a_descriptor_that_is_sent_again_while_it_is_held_costs_the_ring() {
    let (mut kept, in_flight): (Vec<PacketBuf>, Count) = (Vec::new(), |c| c.head_in_flight);
    costs_the_ring("held", in_flight, |rig| {
        rig.guest.fill(5, [0; 12], &udp(3000));
        post(rig, 5);
        kept.extend(rig.receive());
        post(rig, 5);
    });
    assert_eq!(all_bytes(&kept[0]), udp(3000));
}

#[test]
fn a_full_ring_is_no_lie() {
    let mut rig = rig();
    for _ in 0..3 {
        for index in 0..32 {
            rig.guest.fill(index, [0; 12], &udp(60));
            rig.guest.transmit.post(index);
        }
        rig.guest.transmit.wants_kick(true);
        assert_eq!(rig.receive().len(), 32);
    }
    assert_eq!(rig.monitor.counters().lies(), 0);
}

#[test]
fn buffers_to_receive_into_that_make_no_sense_are_given_back_and_the_next_are_used() {
    // A name, the counter, and the descriptor, made of where an honest buffer is.
    type Case = (&'static str, Count, fn(u64) -> Desc);
    let cases: [Case; 5] = [
        ("no room for the header", |c| c.bad_receive_buffer, |at| desc(at, 11, DESC_WRITE, 0)),
        ("no room at all", |c| c.bad_receive_buffer, |at| desc(at, 0, DESC_WRITE, 0)),
        ("not to be written", |c| c.wrong_direction, |at| desc(at, 2048, 0, 0)),
        ("outside", |c| c.bad_address, |_| desc(GUEST_BASE - 5000, 2048, DESC_WRITE, 0)),
        ("a next one beyond", |c| c.bad_next, |at| desc(at, 20, DESC_WRITE | DESC_NEXT, 77)),
    ];
    for (name, count, bad) in cases {
        for place in [0, 1] {
            // Behind another, few bytes are as good as many.
            if place == 1 && name == "no room for the header" {
                continue;
            }
            let mut rig = rig();
            let head = rig.guest.receive.ring.avail_entry(place);
            let bad = bad(buffer(&rig, 2));
            rig.guest.receive.ring.set_desc(head, bad);
            // A frame of 3,000 bytes takes two good buffers.
            assert!(rig.transmit([packet(&udp(3000), 42)]).is_empty(), "{name}");
            let counters = rig.monitor.counters();
            assert_eq!(
                (count(&counters), counters.lies()),
                (1, 1),
                "{name}, {place}: {counters:?}"
            );
            let used = rig.guest.receive.ring.used_index();
            let empty = (0..used).filter(|&i| rig.guest.receive.ring.used_entry(i).1 == 0).count();
            assert_eq!((used, empty), (2 + place + 1, usize::from(place) + 1), "{name}, {place}");
        }
    }
}

#[test]
fn a_guest_that_never_gives_buffers_holds_nobody_up() {
    let mut rig = rig();
    let mut left = rig.transmit((0..100).map(|_| packet(&udp(60), 42)));
    assert_eq!(left.len(), 68);
    left = rig.transmit(left);
    assert_eq!(left.len(), 68, "they are the sender's");
    assert!(!rig.device.arm());
}

#[test]
fn memory_that_changes_while_it_is_read_is_survived() {
    let mut rig = rig();
    let (window, stop) = (rig.guest.window.clone(), AtomicBool::new(false));
    let mut kept = VecDeque::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            while !stop.load(Ordering::Relaxed) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Descriptors and heads mostly, and the headers of all buffers.
                let at = match state % 4 {
                    0 | 1 => (state >> 8) as usize % 700,
                    2 => 65_536 + (state >> 8) as usize % 32 * 73_728 + (state >> 40) as usize % 70,
                    _ => 65_536 + (state >> 8) as usize % (32 * 73_728),
                };
                window.write(at, &state.to_le_bytes()[..1 + (state >> 60) as usize % 8]);
            }
        });
        for turn in 0..500_u32 {
            for index in 0..32 {
                if turn % 2 == 0 {
                    let len = 60 + (turn as usize * 37 + usize::from(index) * 211) % 5000;
                    rig.guest.fill(index, [0; 12], &udp(len));
                }
                rig.guest.transmit.post(index);
            }
            // At least one lie, however the threads run.
            rig.guest.transmit.ring.set_desc(3, desc(u64::from(turn), 100, 0, 0));
            rig.guest.transmit.wants_kick(true);
            for packet in rig.receive() {
                assert!(packet.len() <= MAX_FRAME && packet.len() >= 14);
                kept.push_back(packet);
            }
            kept.truncate(10);
            // A ring that is not believed any more is set up anew.
            set_up_anew(&mut rig);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Whatever was written last, set up anew it works.
    set_up_anew(&mut rig);
    drop(kept);
    assert!(rig.receive().is_empty());
    let counters = rig.monitor.counters();
    assert!(counters.lies() >= 500, "one a turn at least: {counters:?}");
    assert!(rig.device.pool_audit().unwrap().is_conserved());
    goes_on(&mut rig);
}
