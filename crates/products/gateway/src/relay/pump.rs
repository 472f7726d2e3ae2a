//! The two pumps of a connection: payload moves between the stack's queues and the kernel's socket
//! with one copy each way, the kernel's.
//!
//! ```text
//!            [receive queue] --lend, sendmsg--> [kernel's send queue]
//!   guest                                                             far side
//!            [send queue] <--readv, fill-- [kernel's receive queue]
//! ```
//!
//! Data that one side has no room for stays where it is: the queue before it fills, its window closes,
//! and the sender waits. The relay itself holds no payload but urgent bytes, one in each direction.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use pagewire::memory::CopyReason;
use pagewire::services::{Error, Instant, Lend, RecvFlags, SendFlags, Stack};
use rustix::net::{RecvFlags as KernelRecv, SendFlags as KernelSend};

use super::pair::{Broken, Flags, Pair};
use crate::counters::Counters;
use crate::limits::HELD_READ;
use crate::shown::Next;
use crate::sys::{self, Moved};

impl Pair {
    /// Moves up to `burst` bytes from the guest to the kernel's socket.
    pub(super) fn pump_out(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        burst: usize,
        counters: &mut Counters,
    ) -> Result<(), Broken> {
        let mut moved = 0;
        while moved < burst {
            let Some(most) = self.pass_gate(now, stack, burst, &mut moved)? else { break };
            // The gate has moved bytes, too.
            if moved >= burst || !self.can_pump_out() {
                break;
            }
            if self.urgent_out.is_some() {
                self.send_urgent()?;
                continue;
            }
            let flags = match self.flags.contains(Flags::PASS_MARK) {
                true => RecvFlags::empty(),
                false => RecvFlags::STOP_AT_URGENT,
            };
            let fd = self.socket.as_fd();
            let mut written: Option<io::Result<Moved>> = None;
            let give = |parts: pagewire::services::Parts<'_>| {
                let done = written.insert(sys::write_parts(fd, parts));
                done.as_ref().map_or(0, |written| written.bytes)
            };
            let lend = Lend { max: most.min(burst - moved), give };
            let mut tcp = stack.tcp(self.tcp)?;
            let taken = tcp.recv(now, lend, flags);
            counters.writes += u64::from(written.is_some());
            match taken {
                Ok(0) => self.end_out(),
                Ok(n) => {
                    let dry = tcp.inq() == 0;
                    let full = !matches!(written, Some(Ok(Moved { all: true, .. })));
                    self.flags.remove(Flags::PASS_MARK);
                    self.flags.set(Flags::GUEST_IN, !dry);
                    self.flags.set(Flags::HOST_OUT, !full);
                    stack.ledger_mut().note(CopyReason::SocketTx, n);
                    if let Some(gate) = &mut self.gate {
                        gate.note_passed(n as u64);
                    }
                    moved += n;
                }
                Err(Error::WouldBlock) => match written {
                    None if tcp.at_urgent_mark() && self.gate.is_some() => {
                        self.gate.iter_mut().for_each(|gate| gate.refuse());
                    }
                    None if tcp.at_urgent_mark() && !self.flags.contains(Flags::PASS_MARK) => {
                        self.urgent_out = tcp.read_urgent(now, RecvFlags::empty()).ok();
                        self.flags.insert(Flags::PASS_MARK);
                    }
                    None => self.flags.remove(Flags::GUEST_IN),
                    Some(Ok(_)) => self.flags.remove(Flags::HOST_OUT),
                    Some(Err(error)) => self.refuse_out(error)?,
                },
                Err(error) => return Err(error.into()),
            }
        }
        self.record.bytes_out += moved as u64;
        counters.bytes_out += moved as u64;
        Ok(())
    }

    fn can_pump_out(&self) -> bool {
        self.flags.contains(Flags::HOST_OUT)
            && (self.flags.contains(Flags::GUEST_IN) || self.urgent_out.is_some())
            && !self.flags.contains(Flags::OUT_ENDED)
    }

    /// Passes the end of the guest's stream on.
    fn end_out(&mut self) {
        // After the far side's end, the socket is closed next.
        if !self.flags.contains(Flags::IN_ENDED) {
            // The call fails only for a broken socket, which the next read reports.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
        }
        let is_first = !self.flags.intersects(Flags::IN_ENDED | Flags::HOST_ENDS);
        self.flags.set(Flags::CLOSED_FIRST, is_first);
        self.flags.insert(Flags::OUT_ENDED);
    }

    /// Moves what the gate holds, as far as rules permit what it shows. Returns the number of bytes that may follow
    /// by reference, if there is no gate or a body passes; `None`: nothing may, for now.
    fn pass_gate(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        burst: usize,
        moved: &mut usize,
    ) -> Result<Option<usize>, Broken> {
        while *moved < burst && !self.flags.contains(Flags::OUT_ENDED) {
            let Some(gate) = &mut self.gate else { return Ok(Some(usize::MAX)) };
            match gate.next() {
                Next::Open => {
                    // Where no demand was the reason, the name that was shown last says nothing of what follows.
                    if !gate.is_bound() {
                        self.record.shown = None;
                    }
                    self.gate = None;
                }
                Next::Pass(most) => return Ok(Some(most.try_into().unwrap_or(usize::MAX))),
                // The far side's stream has ended: it gives no answer.
                Next::Wait if self.flags.contains(Flags::IN_ENDED) => gate.answered(false),
                Next::Judge(_) | Next::Refuse(_) | Next::Wait => return Ok(None),
                Next::Send if !self.flags.contains(Flags::HOST_OUT) => return Ok(None),
                Next::Read(_) if !self.flags.contains(Flags::GUEST_IN) => return Ok(None),
                Next::Send => {
                    let flags = KernelSend::NOSIGNAL | KernelSend::DONTWAIT;
                    match rustix::net::send(&self.socket, gate.passing(), flags) {
                        Ok(n) => {
                            gate.note_sent(n);
                            stack.ledger_mut().note(CopyReason::SocketTx, n);
                            *moved += n;
                        }
                        Err(error) => self.refuse_out(error.into())?,
                    }
                }
                Next::Read(room) => self.read_to_gate(now, stack, room)?,
            }
        }
        Ok(None)
    }

    /// Reads what must be judged: a copy, because a guest may change its memory later.
    fn read_to_gate(&mut self, now: Instant, stack: &mut Stack, room: usize) -> Result<(), Broken> {
        let Some(gate) = &mut self.gate else { return Ok(()) };
        let mut bytes = [0; HELD_READ];
        let room = bytes.len().min(room);
        let bytes = bytes.get_mut(..room).unwrap_or_default();
        let mut tcp = stack.tcp(self.tcp)?;
        match tcp.recv(now, &mut *bytes, RecvFlags::STOP_AT_URGENT) {
            Ok(0) if gate.is_empty() => self.end_out(),
            Ok(0) => gate.end(),
            Ok(n) => gate.put(bytes.get(..n).unwrap_or_default()),
            // An urgent byte would pass by the judge.
            Err(Error::WouldBlock) if tcp.at_urgent_mark() => gate.refuse(),
            Err(Error::WouldBlock) => self.flags.remove(Flags::GUEST_IN),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Looks at the far side's answer to a request for WebSocket, of which `moved` bytes went on in this turn. `false`:
    /// there is too little of it.
    fn look_at_answer(&mut self, moved: usize) -> bool {
        const SWITCHES: &[u8] = b"HTTP/1.1 101";
        let Some(gate) = self.gate.as_mut().filter(|gate| gate.awaits_answer()) else {
            return true;
        };
        // An answer that began before the request was whole, or that an urgent byte cuts, is none that agrees.
        let is_first = self.record.bytes_in == 0 && moved == 0;
        if !is_first || self.flags.contains(Flags::HOST_URGENT) {
            gate.answered(false);
            return true;
        }
        let mut start = [0; SWITCHES.len()];
        let flags = KernelRecv::PEEK | KernelRecv::DONTWAIT;
        let (len, _) = rustix::net::recv(&self.socket, &mut start, flags).unwrap_or_default();
        let is_short = len < SWITCHES.len() && start.get(..len) == SWITCHES.get(..len);
        if is_short && !self.flags.intersects(Flags::HOST_ENDS | Flags::HOST_BROKEN) {
            self.flags.remove(Flags::HOST_IN);
            return false;
        }
        gate.answered(start == SWITCHES);
        true
    }

    /// The kernel's socket took nothing.
    fn refuse_out(&mut self, error: io::Error) -> Result<(), Broken> {
        match error.kind() {
            io::ErrorKind::WouldBlock => self.flags.remove(Flags::HOST_OUT),
            io::ErrorKind::Interrupted => {}
            _ => return Err(Broken::Host(error)),
        }
        Ok(())
    }

    fn send_urgent(&mut self) -> Result<(), Broken> {
        let Some(byte) = self.urgent_out else { return Ok(()) };
        let flags = KernelSend::OOB | KernelSend::NOSIGNAL | KernelSend::DONTWAIT;
        match rustix::net::send(&self.socket, &[byte], flags) {
            Ok(_) => {
                self.urgent_out = None;
                self.record.bytes_out += 1;
                Ok(())
            }
            Err(error) => self.refuse_out(error.into()),
        }
    }

    /// Moves up to `most` bytes from the kernel's socket to the guest.
    pub(super) fn pump_in(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        most: usize,
        counters: &mut Counters,
    ) -> Result<(), Broken> {
        let mut moved = 0;
        while moved < most && self.can_pump_in() {
            if !self.look_at_answer(moved) {
                break;
            }
            if self.flags.contains(Flags::HOST_URGENT) && !self.pass_urgent_in(now, stack)? {
                break;
            }
            let fd: BorrowedFd<'_> = self.socket.as_fd();
            let mut read: Option<io::Result<Moved>> = None;
            let filled = stack.tcp(self.tcp)?.fill(now, most - moved, |spare| {
                let done = read.insert(sys::read_spare(fd, spare));
                done.as_ref().map_or(0, |read| read.bytes)
            });
            counters.reads += u64::from(read.is_some());
            match filled {
                Ok(0) => self.read_nothing(now, stack, read)?,
                Ok(n) => {
                    let full = matches!(read, Some(Ok(Moved { all: true, .. })));
                    // A short read means that the socket is empty, unless something follows that
                    // ends a read early.
                    let early = Flags::HOST_ENDS | Flags::HOST_URGENT;
                    if !full && !self.flags.intersects(early) {
                        self.flags.remove(Flags::HOST_IN);
                    }
                    stack.ledger_mut().note(CopyReason::SocketRx, n);
                    moved += n;
                }
                Err(Error::WouldBlock | Error::NoBuffers) => self.flags.remove(Flags::GUEST_OUT),
                Err(error) => return Err(error.into()),
            }
        }
        self.record.bytes_in += moved as u64;
        counters.bytes_in += moved as u64;
        Ok(())
    }

    fn can_pump_in(&self) -> bool {
        self.flags.contains(Flags::HOST_IN | Flags::GUEST_OUT)
            && !self.flags.contains(Flags::IN_ENDED)
    }

    /// The kernel's socket gave no byte: not now, or its stream has ended.
    fn read_nothing(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        read: Option<io::Result<Moved>>,
    ) -> Result<(), Broken> {
        match read {
            // No page was lent.
            None => self.flags.remove(Flags::GUEST_OUT),
            Some(Ok(_)) if self.flags.contains(Flags::HOST_BROKEN) => {
                self.flags.insert(Flags::IN_ENDED);
            }
            Some(Ok(_)) => {
                stack.tcp(self.tcp)?.shutdown(now, Shutdown::Write)?;
                self.flags.insert(Flags::IN_ENDED);
            }
            Some(Err(error)) => match error.kind() {
                io::ErrorKind::WouldBlock => self.flags.remove(Flags::HOST_IN),
                io::ErrorKind::Interrupted => {}
                _ => return Err(Broken::Host(error)),
            },
        }
        Ok(())
    }

    /// Passes an urgent byte of the far side on, if it is the next; `false`: there is no room.
    fn pass_urgent_in(&mut self, now: Instant, stack: &mut Stack) -> Result<bool, Broken> {
        if self.urgent_in.is_none() {
            // Before the mark, normal reads end at the mark.
            if !sys::is_at_mark(self.socket.as_fd()).map_err(Broken::Host)? {
                return Ok(true);
            }
            let mut byte = [0];
            let flags = KernelRecv::OOB | KernelRecv::DONTWAIT;
            match rustix::net::recv(&self.socket, &mut byte, flags) {
                Ok((1, _)) => self.urgent_in = Some(byte[0]),
                // The byte is announced, and not there yet: another event follows.
                Err(rustix::io::Errno::AGAIN) => {
                    self.flags.remove(Flags::HOST_IN);
                    return Ok(false);
                }
                // The byte was read before.
                _ => {
                    self.flags.remove(Flags::HOST_URGENT);
                    return Ok(true);
                }
            }
        }
        let Some(byte) = self.urgent_in else { return Ok(true) };
        match stack.tcp(self.tcp)?.send(now, &[byte], SendFlags::URGENT) {
            Ok(_) => {
                self.urgent_in = None;
                self.record.bytes_in += 1;
                self.flags.remove(Flags::HOST_URGENT);
                Ok(true)
            }
            Err(Error::WouldBlock | Error::NoBuffers) => {
                self.flags.remove(Flags::GUEST_OUT);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}
