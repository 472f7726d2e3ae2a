//! The promises of a shared device: who receives, whose turn it is to send, and who is woken for what.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagewire_mem::link::Capabilities;
use pagewire_mem::{CopyLedger, Instant, PacketBuf};
use pagewire_testkit::{frames::to_send, given};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SharedDevice;
use crate::ends::{receive, send};
use crate::limits::{SHARED_REFUSED_FRAMES, SHARED_TURN};
use crate::{Device, DeviceCounters, DeviceError, Fault, Pair, PairConfig, PairEnd, Queues};

const T0: Instant = Instant::ZERO;

fn frame(tag: u8) -> PacketBuf {
    to_send(&[tag; 64], 54)
}

fn tags(frames: &[PacketBuf]) -> Vec<u8> {
    frames.iter().map(|frame| frame.head()[0]).collect()
}

/// Ends of a device.
fn ends<const N: usize>(device: impl Device + 'static) -> [SharedDevice; N] {
    let ends = SharedDevice::split(Box::new(device), N).expect("ends");
    ends.try_into().expect("as many as asked for")
}

/// Ends of one side of a pair, and the other side.
fn pair<const N: usize>(queue_frames: usize) -> ([SharedDevice; N], PairEnd) {
    let config = PairConfig { queue_frames, ..PairConfig::default() };
    let (left, right) = Pair::with(config).expect("a pair");
    (ends(left), right)
}

fn is_readable(end: &SharedDevice) -> bool {
    let fd = end.wait_fd().expect("a descriptor");
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&none)).expect("poll") > 0
}

/// Whether both directions say that the device is gone.
fn is_closed(end: &mut SharedDevice) -> bool {
    let (mut frames, mut ledger) = (VecDeque::new(), CopyLedger::new());
    let received = end.receive(T0, &mut frames, 1, &mut ledger);
    let sent = end.transmit(T0, &mut VecDeque::from([frame(0)]), &mut ledger);
    matches!((received, sent), (Err(DeviceError::Closed), Err(DeviceError::Closed)))
}

fn refused(end: &mut SharedDevice) -> Vec<u8> {
    let mut frames = VecDeque::new();
    end.take_refused(&mut frames);
    tags(frames.make_contiguous())
}

/// A device without a descriptor, as a test sets its behaviour.
struct Card {
    settings: Arc<Mutex<Settings>>,
    capabilities: Capabilities,
}

#[derive(Default)]
struct Settings {
    /// Frames that it still takes.
    room: usize,
    /// Takes frames, and loses them.
    refuses: bool,
    /// Frames taken and lost.
    refused: VecDeque<PacketBuf>,
    sent: Vec<u8>,
    /// The frame that has to come first next time.
    first: Option<u8>,
    fails: Option<fn() -> DeviceError>,
    panics: bool,
    timeout: Option<Instant>,
    memory: Option<usize>,
    times: Vec<Instant>,
    /// A frame of its own, sent behind those that it is called with.
    answer: Option<PacketBuf>,
}

/// A card with room for any number of frames.
fn card() -> (Card, Arc<Mutex<Settings>>) {
    let settings = Arc::new(Mutex::new(Settings { room: usize::MAX, ..Settings::default() }));
    let capabilities = Pair::new().expect("a pair").0.capabilities().clone();
    (Card { settings: Arc::clone(&settings), capabilities }, settings)
}

fn set(settings: &Mutex<Settings>) -> MutexGuard<'_, Settings> {
    settings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device for Card {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        _: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        let mut card = set(&self.settings);
        assert!(!card.panics, "as the test asked");
        card.times.push(now);
        if let Some(fails) = card.fails {
            return Err(fails());
        }
        let left = card.first.filter(|_| !frames.is_empty());
        assert!(left.is_none_or(|tag| frames[0].head()[0] == tag), "{left:?} stayed: it is first");
        frames.extend(card.answer.take());
        while card.room > 0
            && let Some(frame) = frames.pop_front()
        {
            card.room -= 1;
            card.sent.push(frame.head()[0]);
            if card.refuses {
                card.refused.push_back(frame);
            }
        }
        card.first = frames.front().map(|frame| frame.head()[0]);
        Ok(())
    }

    fn receive(
        &mut self,
        _: Instant,
        _: &mut VecDeque<PacketBuf>,
        _: usize,
        _: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn take_refused(&mut self, frames: &mut VecDeque<PacketBuf>) {
        frames.append(&mut set(&self.settings).refused);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        set(&self.settings).timeout
    }

    fn room(&self) -> Option<usize> {
        set(&self.settings).memory
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

given! {
    let (ends, mut peer) = pair::<3>(8);

    each_end_sends_in_its_order {
        let [mut zero, mut one, mut two] = ends;
        send(&mut one, T0, [frame(10), frame(11)]);
        send(&mut zero, T0, [frame(1)]);
        send(&mut two, T0, [frame(20)]);
        send(&mut one, T0, [frame(12)]);
        assert_eq!(tags(&receive(&mut peer, T0)), [10, 11, 1, 20, 12]);
    }
    only_end_0_receives {
        let [mut zero, mut one, mut two] = ends;
        send(&mut peer, T0, [frame(1), frame(2)]);
        assert!(receive(&mut two, T0).is_empty());
        assert!(receive(&mut one, T0).is_empty());
        assert_eq!(tags(&receive(&mut zero, T0)), [1, 2]);
    }
    frames_that_arrive_wake_end_0_alone {
        let [mut zero, mut one, _] = ends;
        assert!(!zero.arm() && !one.arm(), "nothing came");
        assert!(!is_readable(&zero) && !is_readable(&one));
        send(&mut peer, T0, [frame(1)]);
        assert_eq!((is_readable(&zero), is_readable(&one)), (true, false));
        zero.disarm();
        assert!(!is_readable(&zero), "the device's event was read");
        assert!(zero.arm(), "the frame is still there");
    }
    counts_are_those_of_the_device_once {
        let [mut zero, mut one, two] = ends;
        send(&mut one, T0, [frame(1), frame(2)]);
        send(&mut zero, T0, [frame(3)]);
        assert_eq!(receive(&mut peer, T0).len(), 3);
        assert_eq!(zero.counters().tx_frames, 3);
        assert_eq!((one.counters(), two.counters()), Default::default());
        let [ours, theirs] = [&zero, &one].map(Device::capabilities);
        assert_eq!((ours.mac, ours.mtu), (theirs.mac, theirs.mtu));
    }
    the_peer_loses_the_device_with_its_last_end {
        let [zero, mut one, two] = ends;
        drop(zero);
        assert!(!peer.is_peer_gone());
        send(&mut one, T0, [frame(1)]);
        drop(one);
        assert!(!peer.is_peer_gone(), "end 2 may send");
        drop(two);
        assert!(peer.is_peer_gone());
        assert_eq!(tags(&receive(&mut peer, T0)), [1]);
    }
}

#[test]
fn the_loss_of_the_peer_closes_all_ends_and_wakes_those_that_sleep() {
    let ([mut zero, mut one, mut two], peer) = pair(8);
    assert!(!zero.arm() && !one.arm() && !two.arm());
    drop(peer);
    assert_eq!((is_readable(&zero), is_readable(&one)), (true, false), "only end 0 looks");
    zero.disarm();
    assert!(is_closed(&mut zero));
    assert!(is_readable(&one) && is_readable(&two));
    one.disarm();
    assert!(is_closed(&mut one) && is_closed(&mut two));
    assert!(one.arm(), "there is nothing to sleep for");
}

#[test]
fn refused_frames_return_to_the_end_that_sent_them() {
    let (device, settings) = card();
    let [mut zero, mut one, mut two] = ends(device);
    set(&settings).refuses = true;
    send(&mut one, T0, [frame(1), frame(2)]);
    send(&mut two, T0, [frame(3)]);
    send(&mut zero, T0, [frame(4)]);
    send(&mut one, T0, [frame(5)]);
    assert_eq!(refused(&mut one), [1, 2, 5]);
    assert_eq!((refused(&mut zero), refused(&mut two)), (vec![4], vec![3]));
    assert!(refused(&mut one).is_empty(), "each once");
    // What a wrapper of the device sends while it receives.
    set(&settings).refused.push_back(frame(6));
    receive(&mut zero, T0);
    send(&mut one, T0, [frame(7)]);
    assert_eq!((refused(&mut zero), refused(&mut one)), (vec![6], vec![7]));
}

#[test]
fn refused_frames_that_nobody_takes_are_bounded() {
    let (device, settings) = card();
    let [_zero, mut one] = ends(device);
    set(&settings).refuses = true;
    for tag in (0..=u8::MAX).chain([7]) {
        send(&mut one, T0, [frame(tag)]);
    }
    let left = refused(&mut one);
    assert_eq!(left.len(), SHARED_REFUSED_FRAMES);
    assert_eq!((left.first(), left.last()), (Some(&1), Some(&7)), "the newest");
}

#[test]
fn a_loss_that_any_end_meets_wakes_the_others() {
    let (left, _right) = Pair::new().expect("a pair");
    for meets in 0..3 {
        let (card, settings) = card();
        let mut ends = ends::<3>(card);
        set(&settings).fails = Some(|| DeviceError::Closed);
        assert!(!ends.iter_mut().any(|end| end.arm()));
        let result = ends[meets].transmit(T0, &mut [frame(1)].into(), &mut CopyLedger::new());
        assert!(matches!(result, Err(DeviceError::Closed)));
        assert!(is_readable(&ends[1]) && is_readable(&ends[2]));
        assert!(ends.iter_mut().all(is_closed), "met by end {meets}");
    }
    // End 0 sleeps on the device's descriptor and on its own.
    let [mut zero, one] = ends(left);
    assert!(!zero.arm() && !is_readable(&zero));
    one.core.close();
    assert!(is_readable(&zero));
}

#[test]
fn other_errors_go_to_the_end_that_met_them() {
    let (device, settings) = card();
    let [_zero, mut one, mut two] = ends(device);
    let config = || DeviceError::Config("broken".into());
    set(&settings).fails = Some(config);
    let result = one.transmit(T0, &mut [frame(1)].into(), &mut CopyLedger::new());
    assert!(matches!(result, Err(DeviceError::Config(_))));
    set(&settings).fails = None;
    assert!(send(&mut two, T0, [frame(2)]).is_empty());
    assert!(send(&mut one, T0, [frame(3)]).is_empty());
    assert_eq!(set(&settings).sent, [2, 3]);
}

#[test]
fn a_panic_of_the_device_closes_all_ends() {
    let (device, settings) = card();
    let [mut zero, mut one, mut two] = ends(device);
    set(&settings).panics = true;
    assert!(!two.arm());
    let mut frames = VecDeque::from([frame(1)]);
    let call = AssertUnwindSafe(|| one.transmit(T0, &mut frames, &mut CopyLedger::new()));
    assert!(catch_unwind(call).is_err(), "the panic is the caller's");
    assert!(is_readable(&two), "whoever sleeps is woken");
    assert!(is_closed(&mut two) && is_closed(&mut one) && is_closed(&mut zero));
    assert_eq!((zero.counters(), zero.pool_audit()), Default::default());
    assert!(zero.arm(), "there is nothing to sleep for");
    zero.disarm();
    zero.trim();
}

/// A line that delays frames by a second.
fn slow_line() -> ([SharedDevice; 2], PairEnd) {
    let (left, right) = Pair::new().expect("a pair");
    let slow = "delay=1s,on=tx".parse().expect("a line");
    (ends(Fault::new(left, slow)), right)
}

#[test]
fn frames_that_another_end_delays_wake_end_0_and_leave_on_time() {
    let ([mut zero, mut one], mut peer) = slow_line();
    let due = T0 + Duration::from_secs(1);
    assert_eq!(zero.poll_timeout(), None);
    assert!(!zero.arm());
    assert!(!is_readable(&zero));
    send(&mut one, T0, [frame(1)]);
    assert!(is_readable(&zero), "it would sleep for ever");
    assert_eq!((zero.poll_timeout(), one.poll_timeout()), (Some(due), None));
    zero.disarm();
    assert!(!zero.arm() && !is_readable(&zero), "the event was read");
    send(&mut one, T0 + Duration::from_millis(1), [frame(2)]);
    assert!(!is_readable(&zero), "it wakes early enough by itself");
    zero.disarm();
    assert!(receive(&mut peer, due).is_empty(), "on the line");
    send(&mut zero, due, []);
    assert_eq!(tags(&receive(&mut peer, due)), [1]);
}

#[test]
fn frames_that_end_0_delays_itself_do_not_wake_it() {
    let ([mut zero, _one], _peer) = slow_line();
    assert!(!zero.arm());
    send(&mut zero, T0, [frame(1)]);
    assert!(!is_readable(&zero), "it asks for how long it may sleep");
}

#[test]
fn end_0_does_not_sleep_if_a_frame_was_delayed_after_it_asked_for_how_long() {
    let ([mut zero, mut one], _peer) = slow_line();
    assert!(!zero.arm());
    zero.disarm();
    assert_eq!(zero.poll_timeout(), None);
    send(&mut one, T0, [frame(1)]);
    assert!(!is_readable(&zero), "nobody slept");
    assert!(zero.arm(), "it would sleep for ever");
    zero.disarm();
    assert!(zero.poll_timeout().is_some());
    assert!(!zero.arm());
}

#[test]
fn the_turn_stays_with_the_end_whose_frames_found_no_room() {
    let (device, settings) = card();
    let [mut zero, mut one, mut two] = ends(device);
    set(&settings).room = 1;
    let rest = send(&mut one, T0, [frame(10), frame(11), frame(12)]);
    assert_eq!(rest.len(), 2);
    let theirs = send(&mut two, T0, [frame(20)]);
    let ours = send(&mut zero, T0, [frame(1)]);
    assert_eq!((theirs.len(), ours.len()), (1, 1));
    set(&settings).room = usize::MAX;
    assert_eq!(send(&mut two, T0, theirs).len(), 1, "the device counts on frame 11");
    assert!(!is_readable(&two));
    assert!(send(&mut one, T0, rest).is_empty());
    assert!(is_readable(&two), "now there is room");
    assert!(send(&mut two, T0, [frame(20)]).is_empty());
    assert!(send(&mut zero, T0, ours).is_empty());
    assert_eq!(set(&settings).sent, [10, 11, 12, 20, 1]);
}

#[test]
fn an_end_that_does_not_come_back_loses_its_turn() {
    for takes in 0..2 {
        let (device, settings) = card();
        let [mut zero, mut one, mut two] = ends(device);
        set(&settings).room = 0;
        assert_eq!(send(&mut one, T0, [frame(10)]).len(), 1);
        set(&settings).room = usize::MAX;
        let before = T0 + SHARED_TURN - Duration::from_nanos(1);
        assert_eq!(send(&mut two, before, [frame(20)]).len(), 1);
        if takes == 0 {
            // Otherwise the device would report room to end 0 for ever.
            receive(&mut zero, T0 + SHARED_TURN);
            assert_eq!(set(&settings).first, None, "the device was told");
        }
        assert!(send(&mut two, T0 + SHARED_TURN, [frame(20)]).is_empty());
        assert!(send(&mut one, T0 + SHARED_TURN, [frame(10)]).is_empty());
        assert_eq!(set(&settings).sent, [20, 10]);
    }
}

#[test]
fn an_end_that_is_dropped_or_fails_gives_up_its_turn() {
    let (device, settings) = card();
    let [zero, mut one, mut two, three] = ends(device);
    set(&settings).room = 0;
    assert_eq!(send(&mut one, T0, [frame(10)]).len(), 1);
    assert_eq!(send(&mut two, T0, [frame(20)]).len(), 1);
    drop(three);
    assert_eq!(set(&settings).first, Some(10), "the turn was not its own");
    drop(one);
    assert_eq!(set(&settings).first, None, "the device was told");
    assert!(is_readable(&two));
    assert_eq!(send(&mut two, T0, [frame(20)]).len(), 1);
    set(&settings).fails = Some(|| DeviceError::Config("broken".into()));
    assert!(two.transmit(T0, &mut [frame(20)].into(), &mut CopyLedger::new()).is_err());
    assert!(zero.core.with(|state| state.turn.is_none()).expect("no panic"));
}

#[test]
fn end_0_passes_the_news_of_room_on() {
    let ([mut zero, mut one], mut peer) = pair(2);
    let rest = send(&mut one, T0, [frame(1), frame(2), frame(3)]);
    assert_eq!(rest.len(), 1);
    assert!(!zero.arm() && !one.arm());
    assert!(!is_readable(&zero) && !is_readable(&one));
    receive(&mut peer, T0);
    assert!(is_readable(&zero) && !is_readable(&one), "the device tells end 0");
    zero.disarm();
    assert!(is_readable(&one), "and that tells end 1");
    one.disarm();
    assert!(!is_readable(&one));
    assert!(zero.arm(), "the room is still there");
    assert!(!is_readable(&one), "once for each try");
    assert!(send(&mut one, T0, rest).is_empty());
    zero.disarm();
    assert!(!zero.arm(), "nobody waits for room");
}

#[test]
fn end_0_passes_on_that_there_is_room_before_it_sleeps() {
    let ([mut zero, mut one], mut peer) = pair(2);
    assert_eq!(send(&mut one, T0, [frame(1), frame(2), frame(3)]).len(), 1);
    receive(&mut peer, T0);
    assert!(!is_readable(&one), "end 0 has not looked");
    assert!(zero.arm());
    assert!(is_readable(&one));
}

#[test]
fn frames_of_the_device_itself_that_find_no_room_go_with_the_next() {
    let (device, settings) = card();
    let [_zero, mut one, mut two] = ends(device);
    set(&settings).room = 0;
    assert_eq!(send(&mut one, T0, [frame(10)]).len(), 1);
    set(&settings).answer = Some(frame(99));
    drop(one);
    set(&settings).room = usize::MAX;
    assert!(send(&mut two, T0, [frame(20)]).is_empty());
    assert_eq!(set(&settings).sent, [99, 20]);
}

#[test]
fn a_device_that_needs_frames_on_time_gets_them_from_the_end_that_has_the_turn() {
    let (device, settings) = card();
    let [mut zero, mut one] = ends(device);
    set(&settings).room = 0;
    set(&settings).timeout = Some(Instant::from_millis(1));
    assert_eq!(send(&mut one, T0, [frame(1)]).len(), 1);
    send(&mut zero, T0, []);
    assert!(!is_readable(&one), "not yet");
    send(&mut zero, Instant::from_millis(1), []);
    assert!(is_readable(&one));
}

#[test]
fn the_device_sees_no_time_run_backwards() {
    let (device, settings) = card();
    let [mut zero, mut one] = ends(device);
    send(&mut one, Instant::from_millis(5), [frame(1)]);
    send(&mut zero, Instant::from_millis(4), [frame(2)]);
    assert_eq!(set(&settings).times, [Instant::from_millis(5); 2]);
}

#[test]
fn all_ends_share_the_room_that_the_last_burst_left() {
    let (device, settings) = card();
    let [mut zero, one] = ends(device);
    assert_eq!((zero.room(), one.room()), (None, None), "no bound");
    set(&settings).memory = Some(4096);
    receive(&mut zero, T0);
    assert_eq!((zero.room(), one.room()), (Some(2048), Some(2048)), "half each");
}

#[test]
fn a_device_without_a_descriptor_is_polled_by_end_0() {
    let [zero, one] = ends(card().0);
    assert!(zero.wait_fd().is_none());
    assert!(!is_readable(&one), "of the others only the loss is news");
}

#[test]
fn steering_is_for_an_only_end() {
    let queues = || Queues::new(Pair::new().expect("a pair").0, 2);
    let [mut only] = ends(queues());
    assert_eq!(only.steering().map(|steering| steering.queues()), Some(2));
    let [mut zero, _one] = ends(queues());
    assert!(zero.steering().is_none());
}

#[test]
fn no_ends_are_refused() {
    let refused = SharedDevice::split(Box::new(card().0), 0).map(|ends| ends.len());
    assert_eq!(refused.map_err(|e| e.kind()), Err(std::io::ErrorKind::InvalidInput));
}

#[test]
fn two_threads_that_send_at_once_lose_and_double_nothing() {
    const N: u16 = 5000;
    const TRIES: usize = 100_000_000;
    let ([zero, one], mut peer) = pair::<2>(16);
    let threads = [zero, one].map(|mut end| {
        std::thread::spawn(move || {
            let sender = end.index as u8;
            for number in 0..N {
                let [high, low] = number.to_be_bytes();
                let mut frames = VecDeque::from([to_send(&[sender, high, low, 0], 3)]);
                for _ in 0..TRIES {
                    frames = send(&mut end, T0, frames);
                    if frames.is_empty() {
                        break;
                    }
                    std::thread::yield_now();
                }
                assert!(frames.is_empty(), "frame {number} found no room");
            }
            end
        })
    });
    let mut next = [0; 2];
    for _ in 0..TRIES {
        for frame in receive(&mut peer, T0) {
            let [sender, high, low] = frame.head().try_into().expect("three bytes");
            let expected: &mut u16 = &mut next[usize::from(sender)];
            assert_eq!(u16::from_be_bytes([high, low]), *expected, "of end {sender}");
            *expected += 1;
        }
        if next == [N; 2] {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(next, [N; 2]);
    let ends = threads.map(|thread| thread.join().expect("all was sent"));
    assert_eq!(ends[0].counters().tx_frames, 2 * u64::from(N));
}
