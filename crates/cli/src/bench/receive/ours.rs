//! A host receives: over the pair link from another host, over a tap from kernel sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use pagewire::stack::mtu_of_pages;
use pagewire::{Host, SendBuf, TcpStream};
use pagewire_device::{Device, Pair, PairConfig, Tap};
use pagewire_mem::{Frag, PAGE_SIZE};

use super::super::kernel::{self, PATIENCE};
use super::super::machine::pin;
use super::super::source::{Reader, SOURCE_LEN};
use super::super::stream::{accept, connect_many_in_turns, joined, would_block};
use super::{Bench, CHUNK, Counter, Taken, Tally};
use crate::args::ReceiveMode;
use crate::failure::{Failure, reason};

/// Bytes handed to a connection at once.
const SEND_PIECE: usize = 1 << 20;

/// Bytes of single writes of a kernel sender: as large as helps.
const PEER_MESSAGE: usize = 1 << 20;

/// Addresses of the two sides of a tap, and the port that is listened on.
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PORT: u16 = 9000;

impl Bench {
    /// A receiving host's settings.
    fn receiver(&self) -> pagewire::Builder {
        let builder = Host::builder();
        match self.payload_pages {
            Some(pages) => builder.payload_pages(pages),
            None => builder,
        }
    }

    /// The MTU that was asked for, or that segments of whole pages take.
    fn mtu(&self) -> Option<usize> {
        let pages = self.payload_pages.map(|pages| mtu_of_pages(pages, false));
        self.mtu.map(|mtu| mtu as usize).or(pages)
    }
}

/// Takes what came on a connection, in one of the ways that are measured.
struct Taker {
    mode: ReceiveMode,
    reader: Reader,
    buffer: Vec<u8>,
    frags: Vec<Frag>,
}

impl Taker {
    fn new(mode: ReceiveMode, reader: Reader) -> Self {
        let buffer = if mode == ReceiveMode::Chunks { 0 } else { CHUNK };
        Self { mode, reader, buffer: vec![0; buffer], frags: Vec::new() }
    }

    /// Takes something, if there is anything.
    fn take(&mut self, from: &TcpStream) -> Result<Option<Taken>, Failure> {
        match self.mode {
            ReceiveMode::Copy => self.read(from, CHUNK),
            ReceiveMode::Chunks => {
                let Some(bytes) = would_block(from.recv_into(CHUNK, &mut self.frags))? else {
                    return Ok(None);
                };
                let reader = self.reader;
                self.frags.drain(..).for_each(|frag| reader.see_frag(&frag));
                something(Taken { bytes, mapped: 0 })
            }
            ReceiveMode::Map => self.map(from),
        }
    }

    /// Maps the whole pages that are next, or reads up to where they begin.
    fn map(&mut self, from: &TcpStream) -> Result<Option<Taken>, Failure> {
        let found = from.map_available(CHUNK).map_err(|e| failed(&e))?;
        if let Some(mapping) = found.mapping {
            mapping.for_each_piece(|piece| self.reader.see(piece));
            let mapped = mapping.len();
            return something(Taken { bytes: mapped, mapped });
        }
        match found.copy_next {
            0 if found.ended => something(Taken::default()),
            0 => Ok(None),
            // Part of a page: reading it now would leave the rest of the page to be read as well.
            next if next == found.queued && next < PAGE_SIZE && !found.ended => Ok(None),
            next => self.read(from, next),
        }
    }

    /// Reads up to `max` bytes by copy.
    fn read(&mut self, mut from: &TcpStream, max: usize) -> Result<Option<Taken>, Failure> {
        let max = max.min(self.buffer.len());
        let buffer = self.buffer.get_mut(..max).unwrap_or_default();
        let Some(bytes) = would_block(std::io::Read::read(&mut from, buffer))? else {
            return Ok(None);
        };
        self.reader.see(buffer.get(..bytes).unwrap_or_default());
        something(Taken { bytes, mapped: 0 })
    }
}

fn something(taken: Taken) -> Result<Option<Taken>, Failure> {
    if taken.bytes == 0 {
        return Err(Failure::Failed("the sender ended too early".into()));
    }
    Ok(Some(taken))
}

/// Sender, receiver and both stacks on one thread, in turns.
pub(super) fn pair(bench: &Bench, mode: ReceiveMode) -> Result<Tally, Failure> {
    pin(bench.sides.left);
    let mut config = PairConfig::default();
    if let Some(mtu) = bench.mtu() {
        config.mtu = mtu;
    }
    let mtu = config.mtu as u32;
    let (a, b) = Pair::new(config).map_err(|e| failed(&e))?;
    let left = Host::builder().device(a).address("10.77.0.2/24").manual().start();
    let right = bench.receiver().device(b).address("10.77.0.1/24").manual().start();
    let (left, right) = (left.map_err(|e| failed(&e))?, right.map_err(|e| failed(&e))?);
    let connections = connect_many_in_turns(&left, &right, bench.flows)?;
    let pieces = SOURCE_LEN / SEND_PIECE;
    let start = |flow: usize| bench.source.region_frags(SEND_PIECE, flow * pieces / bench.flows);
    let mut senders: Vec<_> =
        (0..bench.flows).map(|flow| (start(flow), SendBuf::default())).collect();
    let mut taker = Taker::new(mode, bench.reader);
    let mut counter = Counter::new(bench.seconds);
    let mut receiving = Duration::ZERO;
    loop {
        for ((source, pending), (sender, _)) in senders.iter_mut().zip(&connections) {
            loop {
                if pending.is_empty() {
                    *pending = source.next().map(SendBuf::from).unwrap_or_default();
                }
                if would_block(sender.send_some(pending))?.is_none() {
                    break;
                }
            }
        }
        left.turn();
        let (begun, mut all) = (Instant::now(), Taken::default());
        right.turn();
        for (_, receiver) in &connections {
            while let Some(taken) = taker.take(receiver)? {
                all.bytes += taken.bytes;
                all.mapped += taken.mapped;
            }
        }
        if counter.counts() {
            receiving += begun.elapsed();
        }
        if all.bytes > 0
            && let Some(tally) = counter.add(all, Some(receiving))
        {
            let stats = [&left, &right].map(Host::stats);
            if bench.stats {
                stats.iter().for_each(|stats| eprint!("{stats}"));
            }
            let copied = stats.iter().map(|stats| stats.ledger.ours()).sum();
            return Ok(Tally { copied, mtu, ..tally });
        }
    }
}

/// A stack on a tap, and kernel sockets on the tap's other side, in a network namespace made for
/// it: nothing of the machine's network is touched, and all of it ends with the threads.
pub(super) fn tap(bench: &Bench, mode: ReceiveMode) -> Result<Tally, Failure> {
    pin(bench.sides.left);
    kernel::enter_namespace()?;
    let mut tap = Tap::builder().name("pwbench").host_address(format!("{THEIRS}/24"));
    if let Some(mtu) = bench.mtu() {
        tap = tap.mtu(mtu);
    }
    let tap = tap.open().map_err(|e| failed(&e))?;
    let mtu = tap.capabilities().mtu as u32;
    // Without a driver thread: whatever our side does, this thread does, and its clock counts it.
    let host = bench.receiver().device(tap).address(format!("{OURS}/24")).manual().start();
    let host = host.map_err(|e| failed(&e))?;
    let on = SocketAddr::from((OURS, PORT));
    let listener = host.listen(on).map_err(|e| failed(&reason(&e)))?;
    let tally = std::thread::scope(|scope| {
        let mut sending = Vec::new();
        for _ in 0..bench.flows {
            sending.push(scope.spawn(move || -> Result<(), Failure> {
                pin(bench.sides.right);
                kernel::send(kernel::connect(on)?, &bench.source, PEER_MESSAGE);
                Ok(())
            }));
        }
        let received = receive(bench, mode, &host, || {
            accept(&listener, || {
                host.wait_turn(Duration::from_millis(1));
            })
            .map_err(|e| failed(&reason(&e)))
        });
        // The senders end because their peer is gone; it takes turns to say so.
        for sender in sending {
            while !sender.is_finished() {
                host.wait_turn(Duration::from_millis(1));
            }
            joined(sender)?;
        }
        received
    })?;
    let stats = host.stats();
    if bench.stats {
        eprint!("{stats}");
    }
    Ok(Tally { copied: stats.ledger.ours(), mtu, ..tally })
}

/// Receives on all connections, on one thread that sleeps when nothing comes.
fn receive(
    bench: &Bench,
    mode: ReceiveMode,
    host: &Host,
    mut accept: impl FnMut() -> Result<TcpStream, Failure>,
) -> Result<Tally, Failure> {
    let mut connections = Vec::new();
    for _ in 0..bench.flows {
        let connection = accept()?;
        connection.set_nonblocking(true).map_err(|e| failed(&reason(&e)))?;
        connections.push(connection);
    }
    let mut taker = Taker::new(mode, bench.reader);
    let mut counter = Counter::new(bench.seconds);
    let mut last = Instant::now();
    let result = loop {
        let mut all = Taken::default();
        for connection in &connections {
            while let Some(taken) = taker.take(connection)? {
                all.bytes += taken.bytes;
                all.mapped += taken.mapped;
            }
        }
        if all.bytes > 0 {
            last = Instant::now();
            if let Some(tally) = counter.add(all, None) {
                break Ok(tally);
            }
        } else if last.elapsed() > PATIENCE {
            break Err(Failure::Failed("nothing came from the kernel's senders".into()));
        }
        host.wait_turn(Duration::from_millis(100));
    };
    connections.iter().for_each(TcpStream::abort);
    result
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}
