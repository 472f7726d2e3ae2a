//! Memory sent by reference: never touched where it need not be, whatever its owner does with it,
//! and given back once. Over the pair link, with real threads.

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pagewire::counts::DropReason;
use pagewire::memory::{CopyReason, Region};
use pagewire::{Chunks, Completion, Sent, TcpStream};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::support::{Joined, PATIENCE, connect, copied, hosts, joined_with, opted_in};

fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

/// Memory of the program's own, which it maps, protects and writes to as it likes.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Self {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose a free range.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) };
        let memory = Self { at: NonNull::new(at.unwrap().cast()).unwrap(), len };
        (0..len).for_each(|at| memory.write(at, pattern(at)));
        memory
    }

    fn write(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: within the mapping, by the check.
        let place = unsafe { self.at.as_ptr().add(at) };
        // SAFETY: mapped while `self` lives; nobody has a reference to these bytes, and the stack
        // reads them in a way that bears a writer.
        unsafe { place.write_volatile(byte) };
    }

    fn protect(&self, flags: MprotectFlags) {
        // SAFETY: our own mapping, to which nobody has references.
        unsafe { mprotect(self.at.as_ptr().cast(), self.len, flags) }.unwrap();
    }

    fn piece(&self, at: usize, len: usize) -> (NonNull<u8>, usize) {
        assert!(at + len <= self.len);
        // SAFETY: within the mapping, by the check.
        (unsafe { self.at.add(at) }, len)
    }
}

// SAFETY: plain memory, written through raw pointers only.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; every send of it is complete, and every chunk dropped.
        unsafe { munmap(self.at.as_ptr().cast(), self.len) }.unwrap();
    }
}

fn ids(done: Option<Completion>) -> Option<(RangeInclusive<u32>, bool)> {
    done.map(|done| (done.ids, done.copied))
}

#[test]
fn pages_without_access_arrive_by_reference_and_are_read_only_then() {
    const LEN: usize = 8 << 20;
    // Whoever touches a byte before the end takes a SIGSEGV. So does a deadline's copy.
    let Joined { server, client, near, far, .. } = opted_in(|host| host.received_deadline(None));
    let memory = Mapping::new(LEN);
    memory.protect(MprotectFlags::empty());
    let reader = thread::spawn(move || {
        let (mut got, mut all) = (0, Vec::<Chunks>::new());
        while got < LEN {
            all.push(far.recv_chunks(1 << 20).unwrap());
            assert!(!all.last().unwrap().is_empty(), "the stream ended after {got} bytes");
            got += all.last().unwrap().len();
        }
        all
    });
    // SAFETY: the mapping outlives the completion below, and everything received.
    let sent = unsafe { near.send_zc_raw(&[memory.piece(0, LEN)]) }.unwrap();
    assert_eq!(sent, Sent { bytes: LEN, id: Some(0) });
    let all = reader.join().unwrap();
    let (a, b) = (client.udp("10.0.0.2:0").unwrap(), server.udp("10.0.0.1:53").unwrap());
    a.set_zerocopy(true).unwrap();
    a.set_read_timeout(Some(PATIENCE)).unwrap();
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    // SAFETY: as above.
    let sent = unsafe { a.send_zc_raw_to(&[memory.piece(0, 10_000)], "10.0.0.1:53") }.unwrap();
    assert_eq!(sent, Sent { bytes: 10_000, id: Some(0) });
    drop(b.recv_chunks_from().unwrap());
    assert_eq!(ids(a.wait_completion().unwrap()), Some((0..=0, false)));
    assert_eq!(copied(&[&client, &server]), 0);

    memory.protect(MprotectFlags::READ);
    let (mut at, mut buffer) = (0, vec![0; LEN]);
    for chunk in all.iter().flat_map(Chunks::iter) {
        assert_eq!(chunk.as_frag().addr(), memory.at.as_ptr().addr() + at, "the page itself");
        let n = chunk.copy_to(&mut buffer[..chunk.len()]);
        assert!(buffer[..n].iter().enumerate().all(|(n, &byte)| byte == pattern(at + n)));
        at += n;
    }
    assert_eq!(at, LEN);
    drop(all);
    assert_eq!(ids(near.wait_completion().unwrap()), Some((0..=0, false)));
}

/// Says stop when the test is over, also when it failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads exactly `into.len()` bytes, by reference until they are copied to `into`.
fn read(from: &TcpStream, into: &mut [u8]) {
    let mut at = 0;
    while at < into.len() {
        let chunks = from.recv_chunks(into.len() - at).unwrap();
        assert!(!chunks.is_empty(), "the stream ended");
        for chunk in chunks {
            at += chunk.copy_to(&mut into[at..]);
        }
    }
}

#[test]
fn a_buffer_that_is_scribbled_over_in_flight_spoils_its_payload_and_nothing_else() {
    const LEN: usize = 300_000;
    const ROUNDS: u32 = if cfg!(debug_assertions) { 32 } else { 128 };
    let marker = |round: u32| [b"between ", &round.to_be_bytes()[..]].concat();
    let ends = opted_in(|host| host);
    let (near, far, (near2, far2)) = (&ends.near, &ends.far, ends.connect());
    near2.set_zerocopy(true).unwrap();
    let memory = Mapping::new(LEN);
    let (stop, looks) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        // As long as the test runs, and over all of the buffer.
        scope.spawn(|| {
            let mut at = 1_usize;
            while !stop.load(Ordering::Relaxed) {
                at = at
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                memory.write((at >> 20) % LEN, (at >> 50) as u8);
                looks.store(true, Ordering::Relaxed);
            }
        });
        let reader = scope.spawn(|| {
            let mut buffer = vec![0; LEN];
            for round in 0..ROUNDS {
                read(far, &mut buffer);
                let between = marker(round);
                read(far, &mut buffer[..between.len()]);
                assert!(buffer[..between.len()] == between, "no byte more or less was sent");
            }
        });
        let neighbour = scope.spawn(|| {
            let mut buffer = vec![0; LEN];
            for round in 0..ROUNDS as usize {
                read(&far2, &mut buffer);
                let same = |(at, &byte): (usize, &u8)| byte == pattern(at + round);
                assert!(buffer.iter().enumerate().all(same), "another flow is as it was sent");
            }
        });
        scope.spawn(|| {
            for round in 0..ROUNDS as usize {
                let data: Vec<u8> = (0..LEN).map(|at| pattern(at + round)).collect();
                near2.send_zc(data).unwrap();
            }
        });
        for round in 0..ROUNDS {
            // SAFETY: the mapping outlives the completions below; nobody has a reference to it.
            let sent = unsafe { near.send_zc_raw(&[memory.piece(0, LEN)]) }.unwrap();
            assert_eq!(sent, Sent { bytes: LEN, id: Some(2 * round) });
            near.send_zc(marker(round)).unwrap();
        }
        reader.join().unwrap();
        neighbour.join().unwrap();
        for (conn, calls) in [(near, 2 * ROUNDS), (&near2, ROUNDS)] {
            let mut told = 0;
            while told < calls {
                let done = conn.wait_completion().unwrap().expect("more are to come");
                told += done.ids.count() as u32;
            }
        }
    });
    assert!(looks.load(Ordering::Relaxed));
    for host in [&ends.client, &ends.server] {
        // But for the neighbours' announcements when they start.
        let counts = |&(reason, n): &(DropReason, u64)| n > 0 && reason != DropReason::ArpNotForUs;
        let drops: Vec<_> = host.stats().counters.iter_drops().filter(counts).collect();
        assert!(drops.is_empty(), "no header was wrong: {drops:?}");
    }
}

#[test]
fn ranges_of_a_region_are_sent_by_reference_one_or_many() {
    let Joined { client, near, far, .. } = opted_in(|host| host);
    let region = Region::memfd_shared("ranges", 64 << 10).unwrap();
    let file = std::fs::File::from(region.fd().unwrap().try_clone_to_owned().unwrap());
    let content: Vec<u8> = (0..64 << 10).map(pattern).collect();
    std::os::unix::fs::FileExt::write_all_at(&file, &content, 0).unwrap();
    let ranges = [(0, 4096), (5000, 100), (8192, 20_000)];
    let frags: Vec<_> = ranges.iter().map(|&(at, len)| region.frag(at, len).unwrap()).collect();
    assert_eq!(near.send_zc(frags).unwrap(), Sent { bytes: 24_196, id: Some(0) });
    assert_eq!(near.send_zc(region.frag(60_000, 77).unwrap()).unwrap().id, Some(1));
    let mut got = vec![0; 24_196 + 77];
    read(&far, &mut got);
    let all: Vec<u8> = ranges
        .iter()
        .chain([&(60_000, 77)])
        .flat_map(|&(at, len)| content[at..at + len].to_vec())
        .collect();
    assert!(got == all);
    let mut told = Vec::new();
    while let Some(done) = near.wait_completion().unwrap() {
        assert!(!done.copied);
        told.extend(done.ids);
    }
    assert_eq!(told, [0, 1]);
    assert_eq!(client.stats().ledger.ours(), 0);
}

/// Memory that says when it is freed.
struct Told(Vec<u8>, mpsc::Sender<()>);

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // Nobody listens any more in a test that failed.
        let _ = self.1.send(());
    }
}

#[test]
fn a_program_that_drops_its_stream_and_its_host_has_its_memory_freed_once() {
    for peer_reads in [true, false] {
        let Joined { client, server, listener, near, far } = opted_in(|host| host);
        let (freed, wait) = mpsc::channel();
        near.send_zc(Bytes::from_owner(Told(vec![7; 100_000], freed))).unwrap();
        drop((near, client));
        if peer_reads {
            read(&far, &mut vec![0; 100_000]);
        } else {
            far.abort();
        }
        drop((far, listener, server));
        assert_eq!(wait.recv_timeout(PATIENCE), Ok(()), "it is freed");
        assert_eq!(wait.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected), "once");
    }
}

#[test]
fn what_a_receiver_leaves_unread_is_copied_after_the_deadline_that_was_set() {
    let deadline = Some(Duration::from_millis(5));
    let Joined { server, near, far, .. } = opted_in(|host| host.received_deadline(deadline));
    near.send_zc(vec![7; 50_000]).unwrap();
    assert_eq!(ids(near.wait_completion().unwrap()), Some((0..=0, true)), "nobody has read it");
    assert_eq!(server.stats().ledger.get(CopyReason::LoopPrivate), 50_000, "and counted");
    let mut got = vec![0; 50_000];
    read(&far, &mut got);
    assert!(got.iter().all(|&byte| byte == 7));
}

#[test]
fn a_host_that_talks_to_itself_copies_unless_it_is_told_not_to() {
    for by_reference in [false, true] {
        let ends = joined_with(|host| host.loopback_by_reference(by_reference));
        let (near, far) = connect(&ends.server, &ends.listener);
        near.set_zerocopy(true).unwrap();
        near.send_zc(vec![7; 50_000]).unwrap();
        let mut got = vec![0; 50_000];
        read(&far, &mut got);
        assert_eq!(ids(near.wait_completion().unwrap()), Some((0..=0, !by_reference)));
        let stats = ends.server.stats();
        let copied = stats.ledger.get(CopyReason::LoopPrivate);
        match stats.counters.tcp_retransmits {
            _ if by_reference => assert_eq!(copied, 0),
            0 => assert_eq!(copied, 50_000),
            // On a machine so busy that its own acknowledgement came late: that was copied, too.
            _ => assert!(copied > 50_000),
        }
    }
}

#[test]
fn one_call_sends_datagrams_of_one_size() {
    let (server, client) = hosts();
    let near = client.udp("10.0.0.2:0").unwrap();
    let far = server.udp("10.0.0.1:53").unwrap();
    for end in [&near, &far] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    near.set_zerocopy(true).unwrap();
    near.set_segment_size(8192).unwrap();
    let sent = near.send_zc_to(vec![7; 20_000], "10.0.0.1:53").unwrap();
    assert_eq!(sent, Sent { bytes: 20_000, id: Some(0) });
    let lens = [(); 3].map(|()| far.recv_chunks_from().unwrap().0.len());
    assert_eq!(lens, [8192, 8192, 3616]);
    assert_eq!(ids(near.wait_completion().unwrap()), Some((0..=0, false)));
}

#[tokio::test]
async fn completions_are_a_stream_that_ends_when_no_send_is_outstanding() -> std::io::Result<()> {
    use futures_util::Stream;
    use pagewire::net::{TcpStream, UdpSocket};
    use std::future::poll_fn;
    use std::pin::pin;

    let Joined { server, client, near, far, .. } = opted_in(|host| host);
    let (near, far) = (TcpStream::from(near), TcpStream::from(far));
    near.send_zc(vec![7; 10_000]).await?;
    let mut got = 0;
    while got < 10_000 {
        got += far.recv_chunks(1 << 20).await?.len();
    }
    let mut stream = pin!(near.completion_stream());
    let first = poll_fn(|cx| stream.as_mut().poll_next(cx)).await.transpose()?;
    assert_eq!(ids(first), Some((0..=0, false)));
    assert!(poll_fn(|cx| stream.as_mut().poll_next(cx)).await.is_none());

    let near = UdpSocket::bind_on(&client, "10.0.0.2:0").await?;
    let far = UdpSocket::bind_on(&server, "10.0.0.1:53").await?;
    near.set_zerocopy(true)?;
    let sent = near.send_zc_to(vec![7; 1000], "10.0.0.1:53").await?;
    assert_eq!(sent, Sent { bytes: 1000, id: Some(0) });
    assert_eq!(far.recv_from(&mut [0; 2000]).await?.0, 1000);
    let mut stream = pin!(near.completion_stream());
    let done = poll_fn(|cx| stream.as_mut().poll_next(cx)).await.transpose()?;
    assert_eq!(ids(done), Some((0..=0, false)));
    assert_eq!(ids(near.next_completion().await?), None);
    Ok(())
}
