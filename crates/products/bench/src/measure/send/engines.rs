//! The engines of `bench send`: a round of one size in one mode on each, with its sides, and how time is divided
//! between them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream as KernelStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pagewire::memory::Frag;
use pagewire::{Completion, Host, HostBuilder, TcpStream};

use super::{SendCase, SendOptions, SendReceiver};
use crate::failure::Failure;
use crate::kit::hosts::{self, LEFT, RECV_PIECE, RIGHT, connect_in_turns, patient, would_block};
use crate::kit::kernel::{self, Between, PATIENCE, PEER_MESSAGE};
use crate::kit::machine::{Sides, joined, nap, pin};
use crate::kit::meter::{Round, WARM_UP, us_per_mib};
use crate::kit::namespace::enter_with_tap;
use crate::kit::source::{Mode, SOURCE_LEN, Source};
use crate::sys::{take_kernel_completion, thread_time, ticks};

/// Bytes that the sender on one thread queues before the receiver's turn, unless a send is longer.
const BATCH: usize = 256 << 10;

/// Bytes that zero-copy sends may hold: enough that the limit is not measured.
const HELD: usize = 1 << 30;

/// Longest wait for sends to complete once the last byte was acknowledged.
const COMPLETION_TIME: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(super) struct SendSample {
    pub(super) round: Round,
    pub(super) sent: SendCounts,
    /// CPU time for a mebibyte, in microseconds: of the sender, and of both sides.
    pub(super) sender: f64,
    pub(super) system: f64,
    /// Ticks of the time-stamp counter that the sender takes for 64 KiB.
    pub(super) ticks: Option<f64>,
    /// Payload bytes that the sender's stack copied.
    pub(super) copied: u64,
    pub(super) mtu: u32,
}

/// Calls that queued something, and their completions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendCounts {
    pub(super) sends: u64,
    pub(super) completions: u64,
    pub(super) completed_copied: u64,
}

impl SendCounts {
    fn since(self, before: Self) -> Self {
        Self {
            sends: self.sends - before.sends,
            completions: self.completions - before.completions,
            completed_copied: self.completed_copied - before.completed_copied,
        }
    }

    /// Checks after the round that all sends by reference completed.
    fn check(self, mode: Mode) -> Result<(), Failure> {
        if mode == Mode::Zerocopy && self.completions != self.sends {
            let Self { sends, completions, .. } = self;
            let text = format!("of {sends} zero-copy sends, {completions} were completed");
            return Err(Failure::Failed(text));
        }
        Ok(())
    }
}

pub(super) struct SendBench {
    pub(super) source: Source,
    pub(super) sides: Sides,
    pub(super) options: SendOptions,
}

impl SendBench {
    /// Both stacks on one thread, in turns. The sender's time is that of its calls and its stack's
    /// turns: the timestamp counter around each side's part divides the thread's CPU time.
    pub(super) fn pair(&self, case: SendCase) -> Result<SendSample, Failure> {
        pin(self.sides.left);
        let set = |host: HostBuilder| host.manual().zerocopy_memory(HELD);
        let (left, right, mtu) = hosts::on_a_pair(self.options.link_mtu.mtu, set)?;
        let (stream, peer) = connect_in_turns(&left, &right)?;
        let mut sides = SidesInTurns {
            sender: Sender::new(&self.source, &stream, case)?,
            receiver: Receiver::new(&peer, self.options.receiver),
            left: &left,
            right: &right,
        };
        let warm = Instant::now() + WARM_UP;
        while Instant::now() < warm {
            sides.turn()?;
        }
        let copied = || left.stats().ledger.ours();
        let (sent, received, copies) = (sides.sender.sent, sides.receiver.bytes, copied());
        let (mut ours, mut theirs) = (0, 0);
        let length = Duration::from_secs_f64(self.options.seconds);
        let (cpu, begun, first) = (thread_time(), Instant::now(), ticks());
        while begun.elapsed() < length {
            let (sender, receiver) = sides.turn()?;
            ours += sender;
            theirs += receiver;
        }
        let (all, time, cpu) = (ticks() - first, begun.elapsed(), thread_time() - cpu);
        let bytes = sides.receiver.bytes - received;
        let sent = sides.sender.sent.since(sent);
        let copied = copied() - copies;
        sides.complete()?;
        self.print_stats(&[&left, &right]);
        // The counter went on while another process ran, for both sides in proportion.
        let share = |part: u64| part as f64 / all.max(1) as f64;
        let mib = (bytes as f64 / f64::from(1 << 20)).max(1e-9);
        let us = us_per_mib(cpu, bytes);
        let running = cpu.as_secs_f64() / time.as_secs_f64().max(1e-9);
        Ok(SendSample {
            round: Round { bytes, time, receiver_cpu: Duration::ZERO },
            sent,
            sender: us * share(ours),
            system: us * share(ours + theirs),
            ticks: Some(running * ours as f64 / mib / 16.0),
            copied,
            mtu,
        })
    }

    /// To a kernel socket on the other side of a tap. The sender's thread has all its stack's cost,
    /// and the kernel's work for the receiver during its system calls.
    pub(super) fn tap(&self, case: SendCase) -> Result<SendSample, Failure> {
        pin(self.sides.left);
        let (tap, mtu) = enter_with_tap(RIGHT, self.options.link_mtu.mtu)?;
        let host = hosts::on(tap, LEFT).manual().zerocopy_memory(HELD).start()?;
        std::thread::scope(|scope| {
            let (listener, to) = kernel::listen(RIGHT)?;
            let receiving = scope.spawn(move || {
                pin(self.sides.right);
                kernel_receive(kernel::accept(&listener)?)
            });
            let stream = patient(host.connect_timeout(to, PATIENCE))?;
            let mut sender = Sender::new(&self.source, &stream, case)?;
            let copied = || host.stats().ledger.ours();
            let (mut clock, mut copies) = (SendMeter::new(self.options.seconds), 0);
            while clock.done.is_none() {
                sender.call()?;
                sender.read_completions();
                if clock.note(sender.bytes, sender.sent) {
                    copies = copied().wrapping_sub(copies);
                }
            }
            while !sender.is_complete()
                && let Some(done) = stream.wait_completion()?
            {
                sender.note(&done);
            }
            sender.sent.check(case.mode)?;
            stream.shutdown(Shutdown::Write)?;
            host.drain(PATIENCE);
            let round = joined(receiving)?;
            self.print_stats(&[&host]);
            Ok(clock.sample(round, copies, mtu))
        })
    }

    pub(super) fn kernel(&self, between: Between, case: SendCase) -> Result<SendSample, Failure> {
        let sending = |connection| self.kernel_send(connection, case);
        let (clock, round) = kernel::connected(between, self.sides, sending, kernel_receive)?;
        Ok(clock.sample(round, 0, between.mtu()))
    }

    fn kernel_send(
        &self,
        mut connection: KernelStream,
        case: SendCase,
    ) -> Result<SendMeter, Failure> {
        let mut clock = SendMeter::new(self.options.seconds);
        let (mut bytes, mut sent) = (0, SendCounts::default());
        if case.mode == Mode::Zerocopy {
            kernel::set_zerocopy(&connection)?;
        }
        for piece in self.source.pieces(case.size) {
            let done = match case.mode {
                Mode::Copy => connection.write_all(piece).map(|()| sent.sends += 1),
                Mode::Zerocopy => kernel_send_zerocopy(&connection, piece, &mut sent),
            };
            done?;
            bytes += piece.len() as u64;
            if clock.note(bytes, sent) && clock.done.is_some() {
                break;
            }
        }
        let deadline = Instant::now() + COMPLETION_TIME;
        while sent.completions < sent.sends && case.mode == Mode::Zerocopy {
            take_kernel_completions(&connection, &mut sent)?;
            if Instant::now() >= deadline {
                break;
            }
            nap();
        }
        sent.check(case.mode)?;
        Ok(clock)
    }

    fn print_stats(&self, hosts: &[&Host]) {
        for host in hosts.iter().filter(|_| self.options.common.stats) {
            eprint!("{}", host.stats());
        }
    }
}

/// Sender, receiver and both stacks on one thread.
struct SidesInTurns<'a> {
    left: &'a Host,
    right: &'a Host,
    sender: Sender<'a>,
    receiver: Receiver<'a>,
}

impl SidesInTurns<'_> {
    /// Moves a batch from sender to receiver; returns the ticks that each took.
    fn turn(&mut self) -> Result<(u64, u64), Failure> {
        let begun = ticks();
        self.left.turn();
        self.sender.batch()?;
        let middle = ticks();
        self.right.turn();
        self.receiver.take()?;
        Ok((middle - begun, ticks() - middle))
    }

    /// Waits until all sends are complete.
    fn complete(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + COMPLETION_TIME;
        while !self.sender.is_complete() && Instant::now() < deadline {
            self.left.turn();
            self.right.turn();
            self.receiver.take()?;
        }
        self.sender.sent.check(self.sender.case.mode)
    }
}

/// Sends from the source in order, and counts.
struct Sender<'a> {
    stream: &'a TcpStream,
    source: &'a Source,
    whole: Frag,
    case: SendCase,
    /// The rest of the piece that is being sent.
    rest: Range<usize>,
    bytes: u64,
    sent: SendCounts,
}

impl<'a> Sender<'a> {
    fn new(source: &'a Source, stream: &'a TcpStream, case: SendCase) -> Result<Self, Failure> {
        // Nagle's algorithm is on, as with the kernel's sockets beside it, and netperf's.
        let set = stream.set_nodelay(false);
        set.and_then(|()| stream.set_zerocopy(case.mode == Mode::Zerocopy))?;
        let (whole, rest) = (source.frag(), 0..case.size);
        Ok(Self { stream, source, whole, case, rest, bytes: 0, sent: SendCounts::default() })
    }

    fn call(&mut self) -> io::Result<usize> {
        let n = match self.case.mode {
            Mode::Copy => {
                let mut stream: &TcpStream = self.stream;
                stream.write(self.source.bytes(self.rest.clone()))?
            }
            Mode::Zerocopy => self.stream.send_zc(self.whole.slice(self.rest.clone()))?.bytes,
        };
        self.bytes += n as u64;
        self.sent.sends += 1;
        self.rest.start += n;
        if self.rest.is_empty() {
            let next = self.rest.end + self.case.size;
            self.rest = if next <= SOURCE_LEN { self.rest.end..next } else { 0..self.case.size };
        }
        Ok(n)
    }

    /// Sends a batch, or as much as there is room for; then reads completions.
    fn batch(&mut self) -> Result<(), Failure> {
        let mut left = BATCH.max(self.case.size);
        while left > 0
            && let Some(n) = would_block(self.call())?
        {
            left = left.saturating_sub(n);
        }
        self.read_completions();
        Ok(())
    }

    fn read_completions(&mut self) {
        if self.case.mode == Mode::Copy {
            return;
        }
        for done in self.stream.completions() {
            self.note(&done);
        }
    }

    fn note(&mut self, done: &Completion) {
        // A range does not go across the end of the numbers.
        let sends = u64::from(done.ids.end() - done.ids.start()) + 1;
        self.sent.completions += sends;
        self.sent.completed_copied += if done.copied { sends } else { 0 };
    }

    fn is_complete(&mut self) -> bool {
        self.read_completions();
        self.case.mode == Mode::Copy || self.sent.completions == self.sent.sends
    }
}

struct Receiver<'a> {
    stream: &'a TcpStream,
    taking: SendReceiver,
    frags: Vec<Frag>,
    buffer: Vec<u8>,
    bytes: u64,
}

impl<'a> Receiver<'a> {
    fn new(stream: &'a TcpStream, taking: SendReceiver) -> Self {
        Self { stream, taking, frags: Vec::new(), buffer: vec![0; RECV_PIECE], bytes: 0 }
    }

    /// Takes everything that is there.
    fn take(&mut self) -> Result<(), Failure> {
        let mut stream: &TcpStream = self.stream;
        loop {
            let taken = match self.taking {
                SendReceiver::Reference => stream.recv_into(RECV_PIECE, &mut self.frags),
                SendReceiver::Copy => stream.read(&mut self.buffer),
            };
            self.frags.clear();
            match would_block(taken)? {
                Some(0) => return Err(Failure::Failed("the sender ended too early".into())),
                Some(n) => self.bytes += n as u64,
                None => return Ok(()),
            }
        }
    }
}

/// Sends all of `piece` with `MSG_ZEROCOPY`, and takes the completions that are there.
fn kernel_send_zerocopy(
    socket: impl AsFd,
    mut piece: &[u8],
    sent: &mut SendCounts,
) -> io::Result<()> {
    while !piece.is_empty() {
        match kernel::send_zerocopy(&socket, piece) {
            Ok(n) => {
                piece = piece.get(n..).unwrap_or_default();
                sent.sends += 1;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Too many completions are outstanding or unread: available ones are taken below.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => std::thread::yield_now(),
            Err(e) => return Err(e),
        }
        take_kernel_completions(&socket, sent)?;
    }
    Ok(())
}

fn take_kernel_completions(socket: impl AsFd, sent: &mut SendCounts) -> io::Result<()> {
    while let Some(done) = take_kernel_completion(&socket)? {
        sent.completions += u64::from(done.sends);
        sent.completed_copied += if done.copied { done.sends.into() } else { 0 };
    }
    Ok(())
}

/// Reads to the end of the stream by copy; counts from the end of the warm-up on.
fn kernel_receive(mut connection: KernelStream) -> Result<Round, Failure> {
    let mut buffer = vec![0; PEER_MESSAGE];
    let (mut begun, mut cpu, mut bytes) = (Instant::now(), thread_time(), 0);
    let (warm_until, mut warm) = (begun + WARM_UP, false);
    loop {
        match connection.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => bytes += n as u64,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
        if !warm && Instant::now() >= warm_until {
            (begun, cpu, bytes, warm) = (Instant::now(), thread_time(), 0, true);
        }
    }
    Ok(Round { bytes, time: begun.elapsed(), receiver_cpu: thread_time() - cpu })
}

/// Measures a sending thread between the end of the warm-up and the end of the round.
struct SendMeter {
    warm_until: Instant,
    length: Duration,
    begun: Option<(Instant, Duration, u64, SendCounts)>,
    /// CPU time, bytes and calls of the round.
    done: Option<(Duration, u64, SendCounts)>,
}

impl SendMeter {
    fn new(seconds: f64) -> Self {
        let (warm_until, length) = (Instant::now() + WARM_UP, Duration::from_secs_f64(seconds));
        Self { warm_until, length, begun: None, done: None }
    }

    /// Notes what was sent so far; whether the round has just begun or ended.
    fn note(&mut self, bytes: u64, sent: SendCounts) -> bool {
        let now = Instant::now();
        match self.begun {
            None if now < self.warm_until => false,
            None => {
                self.begun = Some((now, thread_time(), bytes, sent));
                true
            }
            Some((begun, ..)) if now - begun < self.length => false,
            Some((_, cpu, bytes_before, before)) => {
                self.done = Some((thread_time() - cpu, bytes - bytes_before, sent.since(before)));
                true
            }
        }
    }

    fn sample(self, round: Round, copied: u64, mtu: u32) -> SendSample {
        let (cpu, bytes, sent) = self.done.unwrap_or_default();
        let sender = us_per_mib(cpu, bytes);
        let system = sender + us_per_mib(round.receiver_cpu, round.bytes);
        SendSample { round, sent, sender, system, ticks: None, copied, mtu }
    }
}
