//! Queues that were given memory, over datagram sockets that keep frames apart as a tap does. Which
//! socket a frame comes by is the test's choice, as it is the kernel's.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use pagewire_mem::{
    CopyLedger, CopyReason, GROUP_PAGES, HEAD_CAPACITY, Instant, Lease, PAGE_SIZE, PacketBuf,
    PagePool, Region,
};

use super::limits::{MOVE_FRAMES, QUEUE_IDLE, VNET_HEADER};
use super::*;
use pagewire_mem::link::{HeaderSplit, QueueMemory, Rule};
use pagewire_testkit::frames::{bytes_of, ip, to_send};
use pagewire_testkit::{built, given};

const SPARE: usize = 3;
const PORT: u16 = 9000;
const OTHER: u16 = 9001;

struct Rig {
    tap: Tap,
    now: Instant,
    /// The other ends: of the first queue, then of the spare ones.
    kernel: Vec<UnixDatagram>,
    ledger: CopyLedger,
    seq: u32,
}

/// The index of the tap's queue behind queue 1 of the interface.
const QUEUE: usize = SPARE;

thread_local! {
    /// How many queues can still be attached.
    static ATTACHABLE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn attach(_: BorrowedFd<'_>, attached: bool) -> io::Result<()> {
    let left = ATTACHABLE.get();
    if attached && left == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    ATTACHABLE.set(if attached { left - 1 } else { left + 1 });
    Ok(())
}

impl Rig {
    fn new() -> Self {
        Self::with_attachable(usize::MAX)
    }

    /// The kernel attaches no more than `queues` queues.
    fn with_attachable(queues: usize) -> Self {
        ATTACHABLE.set(queues);
        let (mut ours, mut kernel) = (Vec::new(), Vec::new());
        for _ in 0..=SPARE {
            let (a, b) = UnixDatagram::pair().unwrap();
            a.set_nonblocking(true).unwrap();
            b.set_nonblocking(true).unwrap();
            ours.push(OwnedFd::from(a));
            kernel.push(b);
        }
        let offloading = Capabilities::offloading([2, 0, 0, 0, 0, 1], 1500);
        let capabilities = Capabilities { header_split: HeaderSplit::Predicted, ..offloading };
        let first = ours.remove(0);
        let mut queues = TapQueues::new(first, ours).unwrap();
        queues.attach_by(attach);
        let pool = PagePool::new("test", 8 << 20).unwrap();
        let tap = Tap::over(queues, "test".into(), [2, 0, 0, 0, 0, 2], capabilities, pool);
        Self { tap, now: Instant::ZERO, kernel, ledger: CopyLedger::new(), seq: 1 }
    }

    /// Gives queue 1 of the interface `pages` pages, and the flows to `PORT`.
    fn bind(&mut self, pages: usize) -> Lease {
        let groups = pages.next_multiple_of(GROUP_PAGES);
        let mut pool =
            PagePool::over(Region::memfd("queues", groups * PAGE_SIZE).unwrap()).unwrap();
        let mut lease = Lease::all(&mut pool).unwrap();
        let mut memory = QueueMemory::new(pool);
        for page in 0..pages as u32 {
            lease.take_back(pagewire_mem::BufferId::first(page)).unwrap();
        }
        memory.drain();
        let steering = self.tap.steering().unwrap();
        steering.bind(1, memory).unwrap();
        steering.steer(Rule::tcp_port(PORT), 1).unwrap();
        self.poll();
        lease
    }

    fn poll(&mut self) -> VecDeque<PacketBuf> {
        let mut out = VecDeque::new();
        self.tap.receive(self.now, &mut out, 64, &mut self.ledger).unwrap();
        out
    }

    /// A frame to `port` comes in by a queue.
    fn receive(&mut self, queue: usize, port: u16, payload: usize) -> PacketBuf {
        let frame = frame(4000, port, self.seq, payload);
        self.seq += payload as u32;
        self.put(queue, &frame);
        let packet = self.poll().pop_front().expect("not dropped");
        assert_eq!(bytes_of(&packet), frame, "byte for byte");
        packet
    }

    /// The kernel puts a frame into a queue.
    fn put(&self, queue: usize, frame: &[u8]) {
        self.kernel[queue].send(&[&[0; VNET_HEADER][..], frame].concat()).unwrap();
    }

    /// By which queue an answer from `port` leaves, whose application maps what it receives.
    fn queue_of_answer(&mut self, port: u16) -> usize {
        let mut frames = VecDeque::from([answer(port)]);
        self.tap.transmit(self.now, &mut frames, &mut self.ledger).unwrap();
        let mut buffer = [0; VNET_HEADER + HEAD_CAPACITY];
        let came = |end: &UnixDatagram| end.recv(&mut buffer).is_ok();
        self.kernel.iter().position(came).expect("it left")
    }

    fn level(&mut self) -> (u64, u64) {
        let level = self.tap.steering().unwrap().memory_mut(1).unwrap().level();
        (level.placed(), level.missed())
    }
}

fn frame(from: u16, to: u16, seq: u32, payload: usize) -> Vec<u8> {
    let (source, target) = if from == 4000 { (1, 2) } else { (2, 1) };
    let ends = [source, target].map(|host| [10, 0, 0, host].into());
    // Time stamps, as the driver expects them.
    let stamps = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    let tcp = ip([[0xee; 6]; 2], ends, 64).tcp(from, to, seq, 0).ack(0).options_raw(&stamps);
    let payload: Vec<u8> = (0..payload).map(|i| (seq as usize + i * 7) as u8).collect();
    built!(tcp.unwrap(), &payload)
}

fn answer(port: u16) -> PacketBuf {
    let mut packet = to_send(&frame(port, 4000, 1, 0), 66);
    packet.maps = true;
    packet
}

/// The sequence number of a frame of `frame`.
fn seq(packet: &PacketBuf) -> u32 {
    u32::from_be_bytes(packet.head()[38..42].try_into().unwrap())
}

fn is_in(lease: &Lease, packet: &PacketBuf) -> bool {
    let owned = packet.frags().iter().filter(|frag| lease.owns(frag)).count();
    assert!(owned == 0 || owned == packet.frags().len(), "all or nothing");
    owned > 0
}

given! {
    let mut rig = Rig::new();

    flows_of_a_rule_leave_and_come_by_their_own_queue_into_its_memory {
        assert_eq!(rig.tap.steering().unwrap().queues(), 1 + SPARE);
        let lease = rig.bind(256);
        assert_eq!((rig.queue_of_answer(PORT), rig.queue_of_answer(OTHER)), (QUEUE, 0));
        for _ in 0..50 {
            let packet = rig.receive(QUEUE, PORT, 20_000);
            assert!(is_in(&lease, &packet));
            assert!(!is_in(&lease, &rig.receive(0, OTHER, 20_000)));
        }
        assert_eq!(rig.ledger.ours(), 0);
        assert_eq!(rig.level(), (50 * 20_000, 0));
    }
    payload_of_others_that_lands_there_is_moved_out_and_counted {
        let lease = rig.bind(64);
        rig.receive(QUEUE, PORT, 5000);
        for n in 1..=200 {
            assert!(!is_in(&lease, &rig.receive(QUEUE, OTHER, 5000)));
            assert_eq!(rig.ledger.get(CopyReason::Misplaced), n * 5000);
        }
        assert!(is_in(&lease, &rig.receive(QUEUE, PORT, 5000)), "and none of its pages is lost");
        assert_eq!(rig.level(), (10_000, 0));
    }
    a_flow_of_the_queue_that_comes_by_another_queue_is_counted_as_missed {
        let lease = rig.bind(64);
        assert!(!is_in(&lease, &rig.receive(0, PORT, 5000)));
        assert_eq!((rig.level(), rig.ledger.get(CopyReason::Misplaced)), ((0, 5000), 0));
    }
    without_pages_frames_land_in_the_taps_own_until_there_are_some {
        let mut lease = rig.bind(20);
        let first = rig.receive(QUEUE, PORT, 60_000);
        assert!(is_in(&lease, &first));
        let second = rig.receive(QUEUE, PORT, 60_000);
        assert!(!is_in(&lease, &second));
        assert_eq!(rig.level(), (60_000, 60_000));
        // The application gives the rest.
        for page in 20..64 {
            lease.take_back(pagewire_mem::BufferId::first(page)).unwrap();
        }
        assert!(is_in(&lease, &rig.receive(QUEUE, PORT, 60_000)));
    }
    a_queue_that_loses_its_memory_lets_go_of_every_page_at_once {
        for _ in 0..5 {
            let lease = rig.bind(64);
            let packet = rig.receive(QUEUE, PORT, 10_000);
            assert!(is_in(&lease, &packet) && !lease.is_home());
            drop((packet, rig.tap.steering().unwrap().unbind(1)));
            // Nothing need come in for it.
            rig.poll();
            assert!(lease.is_home());
            assert_eq!(rig.queue_of_answer(PORT), 0);
            // Frames that are still on their way there are received as others are.
            assert!(!is_in(&lease, &rig.receive(QUEUE, PORT, 10_000)));
        }
    }
    memory_that_takes_the_place_of_other_memory_at_once_is_not_confused_with_it {
        let old = rig.bind(64);
        drop(rig.receive(QUEUE, PORT, 10_000));
        drop(rig.tap.steering().unwrap().unbind(1));
        let new = rig.bind(64);
        assert!(old.is_home());
        assert!(is_in(&new, &rig.receive(QUEUE, PORT, 10_000)));
    }
    memory_that_others_may_write_is_refused {
        let region = Region::memfd_shared("shared", GROUP_PAGES * PAGE_SIZE).unwrap();
        let shared = QueueMemory::new(PagePool::over(region).unwrap());
        let steering = rig.tap.steering().unwrap();
        assert_eq!(steering.bind(1, shared), Err(crate::BindError::Shared));
        assert_eq!(steering.bind(SPARE + 1, memory()), Err(crate::BindError::NoQueue(SPARE + 1)));
        steering.bind(SPARE, memory()).unwrap();
        assert_eq!(steering.bind(SPARE, memory()), Err(crate::BindError::Taken(SPARE)));
    }
    a_queue_that_was_attached_is_read_even_if_it_lost_its_memory_at_once {
        let steering = rig.tap.steering().unwrap();
        steering.bind(1, memory()).unwrap();
        drop(steering.unbind(1));
        rig.receive(QUEUE, PORT, 5000);
    }
    frames_of_a_flow_that_gets_a_queue_stay_in_order {
        take_turns(&mut rig, 3);
        // Behind some frames of others, two of the flow are still in the first queue.
        for n in 0..8 {
            let port = if n < 6 { OTHER + 9 } else { OTHER };
            rig.put(0, &frame(4000, port, n, 100));
        }
        assert_eq!(rig.queue_of_answer(OTHER), 1);
        rig.put(1, &frame(4000, OTHER, 8, 100));
        // Whichever queue has its turn.
        rig.tap.queues.next = 1;
        let seqs: Vec<u32> = rig.poll().iter().map(seq).collect();
        assert_eq!(seqs, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
    queues_without_a_flow_for_a_second_are_detached_the_last_one_first {
        take_turns(&mut rig, 3);
        let [first, second] = [OTHER, OTHER + 1].map(|port| rig.queue_of_answer(port));
        assert_eq!((first, second, attached_queues()), (1, 2, 2));
        let wait = |rig: &mut Rig, sends: Option<u16>| {
            for _ in 0..4 {
                rig.now += QUEUE_IDLE / 2;
                sends.map(|port| rig.queue_of_answer(port));
                rig.poll();
            }
            attached_queues()
        };
        // Another one's number would change if the first queue went.
        assert_eq!(wait(&mut rig, Some(OTHER + 1)), 2);
        assert_eq!(wait(&mut rig, Some(OTHER)), 1);
        assert_eq!(wait(&mut rig, None), 0);
        assert_eq!(rig.queue_of_answer(OTHER), 0, "alone now");
        take_turns(&mut rig, 3);
        assert_eq!((rig.queue_of_answer(OTHER), attached_queues()), (1, 1));
        rig.receive(1, OTHER, 5000);
    }
    flows_one_after_the_other_do_not_take_turns {
        for flow in 0..3 {
            for _ in 0..70 {
                rig.receive(0, OTHER + flow, 20_000);
                assert_eq!(rig.queue_of_answer(OTHER + flow), 0);
            }
        }
    }
    a_queue_that_has_a_frame_is_not_detached {
        take_turns(&mut rig, 3);
        assert_eq!(rig.queue_of_answer(OTHER), 1);
        rig.now += QUEUE_IDLE * 2;
        rig.receive(1, OTHER, 5000);
        assert_eq!(attached_queues(), 1);
    }
}

#[test]
fn bulk_flows_get_the_queues_that_are_left() {
    let mut rig = Rig::new();
    let lease = rig.bind(256);
    take_turns(&mut rig, 6);
    assert!(is_in(&lease, &rig.receive(QUEUE, PORT, 20_000)));
    let mut queues: Vec<usize> = (1..6).map(|other| rig.queue_of_answer(OTHER + other)).collect();
    queues.sort_unstable();
    assert_eq!(queues, [0, 0, 0, 1, 2], "all but the dedicated one");
    assert_eq!(rig.queue_of_answer(PORT), QUEUE);
    drop(rig.tap.steering().unwrap().unbind(1));
    rig.poll();
    take_turns(&mut rig, 6);
    assert!((1..6).any(|other| rig.queue_of_answer(OTHER + other) == QUEUE), "that one too, now");
}

/// Memory for a queue.
fn memory() -> QueueMemory {
    let region = Region::memfd("private", GROUP_PAGES * PAGE_SIZE).unwrap();
    QueueMemory::new(PagePool::over(region).unwrap())
}

#[test]
fn a_queue_that_cannot_be_attached_leaves_those_before_it_to_their_flows() {
    for attachable in 0..SPARE {
        let mut rig = Rig::with_attachable(attachable);
        take_turns(&mut rig, 4);
        let mut queues: Vec<usize> = (0..4).map(|flow| rig.queue_of_answer(OTHER + flow)).collect();
        queues.sort_unstable();
        queues.dedup();
        assert_eq!(queues, Vec::from_iter(0..=attachable), "{attachable} could be attached");
        // Frames that the kernel puts there are read, whoever they are for.
        for queue in 0..=attachable {
            for flow in 0..4 {
                rig.receive(queue, OTHER + flow, 20_000);
            }
        }
    }
}

#[test]
fn a_queue_that_cannot_be_attached_refuses_its_memory_and_says_why() {
    let mut rig = Rig::with_attachable(1);
    let steering = rig.tap.steering().unwrap();
    steering.bind(0, memory()).unwrap();
    steering.bind(1, memory()).unwrap();
    let refused = crate::BindError::Attach(2, io::ErrorKind::PermissionDenied);
    assert_eq!(steering.bind(2, memory()), Err(refused));
    assert!(!steering.is_bound(2));
    ATTACHABLE.set(1);
    assert_eq!(rig.tap.steering().unwrap().bind(2, memory()), Ok(()), "later it can");
}

/// Bulk flows to `OTHER` and to the ports after it come by the first queue, in turns.
fn take_turns(rig: &mut Rig, flows: u16) {
    for _ in 0..5 {
        for flow in 0..flows {
            rig.receive(0, OTHER + flow, 20_000);
        }
    }
}

/// How many spare queues are attached.
fn attached_queues() -> usize {
    usize::MAX - ATTACHABLE.get()
}

#[test]
fn a_queue_is_read_although_the_first_queue_is_never_empty() {
    let mut rig = Rig::new();
    take_turns(&mut rig, 3);
    rig.queue_of_answer(OTHER + 1);
    rig.poll();
    let queues = &mut rig.tap.queues;
    let spare: Vec<_> = queues.spare.iter().map(|(fd, _)| fd.as_raw_fd()).collect();
    let position = |fd: BorrowedFd<'_>| spare.iter().position(|&other| other == fd.as_raw_fd());
    // Another flow gets the second spare queue: what comes by it may be younger than what is in the first.
    queues.fd_for(Instant::ZERO, &answer(OTHER), 0);
    // Nothing is taken out of the queues: all have frames all the time.
    for end in &rig.kernel {
        end.send(&[0]).unwrap();
    }
    let (mut first, mut moved, mut others) = (0, None, None);
    for _ in 0..100 {
        let read = |fd: BorrowedFd<'_>, _: &mut TapQueue| {
            let since = match position(fd) {
                None => {
                    first += 1;
                    return Ok(None);
                }
                Some(1) => &mut moved,
                Some(_) => &mut others,
            };
            since.get_or_insert(first);
            Err(io::ErrorKind::WouldBlock.into())
        };
        queues.read_each(64, read, |_| ()).unwrap();
    }
    let moved = moved.expect("the queue starves");
    assert!((MOVE_FRAMES..MOVE_FRAMES + 64).contains(&moved), "after {moved} frames");
    assert!(others.expect("others starve") <= 64, "they wait for nothing");
}
