//! [`Joined`]: a connection of two sockets of the kernel, and how its bytes and ends pass.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};
use rustix::pipe::{SpliceFlags, splice};

use super::pipes::{Pipe, Pipes};
use crate::limits::{DELIVERY, SPLICE_LEAST, SPLICE_TURN};
use crate::request::How;
use crate::sys;

/// One of the two sockets.
pub(super) struct Side {
    pub(super) socket: OwnedFd,
    /// The socket may have data, or its end.
    readable: bool,
    writable: bool,
    /// The kernel has reported an error.
    failed: bool,
    /// The other end has sent urgent data, at which `splice(2)` stops.
    urgent: bool,
}

/// The bytes from one side to the other.
#[derive(Default)]
struct Way {
    /// A pipe, while there are bytes in it.
    pipe: Option<Pipe>,
    pending: usize,
    /// A byte that was read by itself, and goes first.
    held: Option<u8>,
    /// The source has ended.
    ended: bool,
    /// The end was passed on, or nobody wants it.
    over: bool,
    /// All of it was passed on, with its end.
    whole: bool,
    moved: u64,
}

/// The sockets of a connection: first the client's.
pub(super) struct Joined {
    pub(super) sides: [Side; 2],
    ways: [Way; 2],
    /// The side that is broken, whose received data is still passed on until this time.
    broken: Option<(usize, Instant)>,
    /// The side that is gone, all of whose data was passed on: the other is reset once its program's end has it.
    gone: Option<usize>,
    pub(super) active_at: Instant,
    pub(super) calls: Calls,
}

/// Calls that moved bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    pub(super) reads: u64,
    pub(super) writes: u64,
}

/// The next step for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// There is more to move.
    Again,
    /// There is no pipe for now.
    NoPipe,
    /// Both streams were passed on with their ends.
    Finished,
    /// The other side of a broken one has not delivered all of its data.
    Deliver,
    /// This side is broken, and the other is to be reset.
    Broken(usize),
}

impl Side {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, readable: false, writable: false, failed: false, urgent: false }
    }

    pub(super) fn note(&mut self, ready: EventFlags) {
        let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        self.readable |= ready.intersects(EventFlags::IN | ends);
        self.writable |= ready.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        self.failed |= ready.contains(EventFlags::ERR);
        self.urgent |= ready.contains(EventFlags::PRI);
        self.readable |= ready.contains(EventFlags::PRI);
    }

    /// Whether the socket has failed. Takes the error.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        if !std::mem::take(&mut self.failed) {
            return None;
        }
        sockopt::socket_error(&self.socket).ok().and_then(Result::err).map(io::Error::from)
    }

    /// Whether the kernel has reported an error.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }
}

impl Joined {
    pub(super) fn new(client: Side, far: Side, now: Instant) -> Self {
        Self {
            sides: [client, far],
            ways: Default::default(),
            broken: None,
            gone: None,
            active_at: now,
            calls: Calls::default(),
        }
    }

    /// Bytes from the client, and to it.
    pub(super) fn moved(&self) -> [u64; 2] {
        let [there, back] = &self.ways;
        [there.moved, back.moved]
    }

    /// Whether the stream of this side was passed on, with its end.
    pub(super) fn is_over(&self, side: usize) -> bool {
        self.ways.get(side).is_none_or(|way| way.over)
    }

    /// Moves what can be moved: [`SPLICE_TURN`] bytes at most in each direction.
    pub(super) fn work(&mut self, now: Instant, pipes: &mut Pipes) -> Step {
        if let Some(side) = self.gone {
            return self.deliver(side);
        }
        match self.move_bytes(now, pipes) {
            Step::Broken(side) => self.lose(side, now, pipes),
            step => step,
        }
    }

    /// Notes that a side is gone, and that all of its data was passed on.
    fn lose(&mut self, side: usize, now: Instant, pipes: &mut Pipes) -> Step {
        let (first, _) = *self.broken.get_or_insert((side, now + DELIVERY));
        if first != side {
            // Neither side takes anything.
            return Step::Broken(first);
        }
        for way in &mut self.ways {
            way.over = true;
            way.pipe.take().into_iter().for_each(|pipe| pipes.discard(pipe));
        }
        self.gone = Some(side);
        self.deliver(side)
    }

    /// A reset discards what a socket has not delivered, so it waits for that.
    fn deliver(&self, gone: usize) -> Step {
        match self.sides.get(1 - gone) {
            Some(side) if !side.failed && !sys::is_delivered(side.socket.as_fd()) => Step::Deliver,
            _ => Step::Broken(gone),
        }
    }

    fn move_bytes(&mut self, now: Instant, pipes: &mut Pipes) -> Step {
        let before = self.moved();
        let (mut again, mut no_pipe) = (false, false);
        for from in 0..2 {
            match self.pass(from, pipes) {
                Ok(Passed::All) => {}
                Ok(Passed::Part) => again = true,
                Ok(Passed::NoPipe) => no_pipe = true,
                // Behind the data of a side comes its error, so there is nothing left to pass on.
                Err(Failed::Source) => return Step::Broken(from),
                Err(Failed::Sink) => {
                    self.stop_sending(1 - from, now, pipes);
                    again = true;
                }
            }
        }
        if self.moved() != before {
            self.active_at = now;
        }
        if let Some(step) = self.look_at_errors(now, pipes) {
            return step;
        }
        match self.broken {
            // All that it had sent is passed on.
            Some((side, _)) if self.is_over(side) => Step::Broken(side),
            _ if self.ways.iter().all(|way| way.over) => Step::Finished,
            _ if again => Step::Again,
            _ if no_pipe => Step::NoPipe,
            _ => Step::Wait,
        }
    }

    /// Finds errors that no call returns: those behind the end of a stream, or behind data that nobody takes.
    fn look_at_errors(&mut self, now: Instant, pipes: &mut Pipes) -> Option<Step> {
        for at in 0..2 {
            let (Some(side), Some(way)) = (self.sides.get_mut(at), self.ways.get(at)) else {
                continue;
            };
            if !side.failed {
                continue;
            }
            let is_behind = way.ended || way.pending > 0 || way.held.is_some();
            if way.over {
                if side.take_error().is_some() {
                    return Some(Step::Broken(at));
                }
            } else if is_behind && self.broken.is_none() {
                self.stop_sending(at, now, pipes);
            }
        }
        None
    }

    /// Moves bytes from this side to the other.
    fn pass(&mut self, from: usize, pipes: &mut Pipes) -> Result<Passed, Failed> {
        let [first, second] = &mut self.sides;
        let (source, sink) = if from == 0 { (first, second) } else { (second, first) };
        let Some(way) = self.ways.get_mut(from) else { return Ok(Passed::All) };
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let mut left = Budget(SPLICE_TURN);
        let passed = loop {
            if way.over {
                break Passed::All;
            }
            if left.is_spent() {
                break Passed::Part;
            }
            if let Some(pipe) = &way.pipe {
                if !sink.writable {
                    break Passed::All;
                }
                match splice(&pipe.read, None, &sink.socket, None, way.pending, flags) {
                    Ok(n @ 1..) => {
                        self.calls.writes += 1;
                        way.pending = way.pending.saturating_sub(n);
                        way.moved += n as u64;
                        left.spend(n);
                        if way.pending == 0 {
                            way.pipe.take().into_iter().for_each(|pipe| pipes.give_back(pipe));
                        }
                    }
                    Err(Errno::AGAIN) => sink.writable = false,
                    Err(Errno::INTR) => {}
                    Ok(_) | Err(_) => return Err(Failed::Sink),
                }
                continue;
            }
            if let Some(byte) = way.held {
                if !sink.writable {
                    break Passed::All;
                }
                match send(&sink.socket, &[byte], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Ok(n) => {
                        (way.held, way.moved) = (None, way.moved + n as u64);
                        left.spend(n);
                    }
                    Err(Errno::AGAIN) => sink.writable = false,
                    Err(Errno::INTR) => {}
                    Err(_) => return Err(Failed::Sink),
                }
                continue;
            }
            if way.ended {
                (way.over, way.whole) = (true, true);
                // A socket that is gone reports that itself.
                let _ = shutdown(&sink.socket, Shutdown::Write);
                break Passed::All;
            }
            if !source.readable {
                break Passed::All;
            }
            let Ok(pipe) = pipes.take() else { break Passed::NoPipe };
            let read = splice(&source.socket, None, &pipe.write, None, pipe.size, flags);
            if let Ok(n @ 1..) = read {
                self.calls.reads += 1;
                (way.pending, way.pipe) = (n, Some(pipe));
                continue;
            }
            pipes.give_back(pipe);
            match read {
                Ok(_) => way.ended = true,
                Err(Errno::AGAIN) if source.urgent => {
                    match pass_urgent(&source.socket, &sink.socket) {
                        Urgent::Ahead => source.readable = false,
                        Urgent::Passed(next) => (way.held, source.urgent) = (next, false),
                        Urgent::Failed => return Err(Failed::Source),
                    }
                }
                Err(Errno::AGAIN) => source.readable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Failed::Source),
            }
        };
        Ok(passed)
    }

    /// Notes that this side takes no more. What it has sent before is passed on first.
    fn stop_sending(&mut self, side: usize, now: Instant, pipes: &mut Pipes) {
        if self.broken.is_none() {
            self.broken = Some((side, now + DELIVERY));
        }
        if let Some(way) = self.ways.get_mut(1 - side) {
            way.over = true;
            way.pipe.take().into_iter().for_each(|pipe| pipes.discard(pipe));
        }
        // The rest of its data, its end, or the error, is still to be read.
        if let Some(side) = self.sides.get_mut(side) {
            side.readable = true;
        }
    }

    /// The time when the data of a broken side has waited long enough, and that side.
    pub(super) fn deadline(&self) -> Option<(usize, Instant)> {
        self.broken
    }

    /// Takes the connection apart: gives its pipes back, and resets both sockets unless it has finished.
    pub(super) fn end(self, how: How, pipes: &mut Pipes) {
        let [there, back] = self.ways;
        let [client, far] = self.sides;
        for (way, sink) in [(there, far), (back, client)] {
            // The kernel still delivers a stream that has ended, so that socket is only closed.
            if how != How::Finished && !(how == How::Removed && way.whole) {
                reset_on_drop(&sink.socket);
            }
            way.pipe.into_iter().for_each(|pipe| pipes.discard(pipe));
        }
    }
}

/// Has the kernel reset the other end when the socket is dropped. A socket that is not TCP's is only closed.
pub(super) fn reset_on_drop(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// What is where `splice(2)` stops.
enum Urgent {
    /// The urgent byte is further ahead.
    Ahead,
    /// It was passed on, and perhaps the next byte of the stream was read.
    Passed(Option<u8>),
    /// The socket has failed. Its error was taken.
    Failed,
}

/// Passes the urgent byte on if the stream stops there, and reads the next byte behind it.
fn pass_urgent(source: &OwnedFd, sink: &OwnedFd) -> Urgent {
    // A Unix socket may have no mark.
    if !sys::is_at_mark(source.as_fd()).unwrap_or(false) {
        return Urgent::Ahead;
    }
    let (mut byte, now) = ([0_u8], RecvFlags::DONTWAIT);
    if let Ok((1, _)) = recv(source, &mut byte[..], now | RecvFlags::OOB) {
        // Without room for it, the sink loses the mark.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | SendFlags::OOB;
        let _ = send(sink, &byte, flags);
    }
    // Past the mark, the kernel leaves the urgent byte out.
    match recv(source, &mut byte[..], now) {
        Ok((1, _)) => Urgent::Passed(Some(byte[0])),
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Urgent::Passed(None),
        Err(_) => Urgent::Failed,
    }
}

/// What one direction may still move in its turn, in bytes.
struct Budget(usize);

impl Budget {
    /// Counts a call that has moved bytes.
    fn spend(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(bytes.max(SPLICE_LEAST));
    }

    fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// What was moved in one direction.
enum Passed {
    /// All that can be moved for now.
    All,
    /// A turn's part of it.
    Part,
    NoPipe,
}

/// The side that an error is of.
enum Failed {
    Source,
    Sink,
}

/// The address of the other end, as the kernel has it.
pub(super) fn peer_of(socket: &OwnedFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_few_calls_also_for_single_bytes() {
        for (bytes, calls) in [(1, 256), (SPLICE_LEAST, 256), (64 << 10, 16), (SPLICE_TURN, 1)] {
            let (mut left, mut n) = (Budget(SPLICE_TURN), 0);
            while !left.is_spent() {
                left.spend(bytes);
                n += 1;
            }
            assert_eq!(n, calls, "{bytes}");
        }
    }
}
