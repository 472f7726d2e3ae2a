//! A round of `bench receive` by a host: over the pair link from another host, over a tap from kernel sockets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pagewire::memory::{Frag, PAGE_SIZE};
use pagewire::tcp::mtu_of_pages;
use pagewire::{Host, HostBuilder, TcpStream};

use super::{CHUNK, ReceiveBench, ReceiveMeter, ReceiveMode, ReceiveSample, Taken};
use crate::failure::Failure;
use crate::kit::hosts::{
    self, Feed, LEFT, PORT, RIGHT, SEND_PIECE, accept, connect_many_in_turns, copied_by,
    would_block,
};
use crate::kit::kernel::{self, PATIENCE};
use crate::kit::machine::{joined, pin};
use crate::kit::namespace::enter_with_tap;
use crate::kit::source::{Reader, SOURCE_LEN};

impl ReceiveBench {
    /// A receiving host's settings.
    fn receiver(&self, builder: HostBuilder) -> HostBuilder {
        match self.options.payload_pages {
            Some(pages) => builder.payload_pages(pages),
            None => builder,
        }
    }

    /// The MTU that was asked for, or that segments of whole pages take.
    fn mtu(&self) -> Option<u32> {
        let pages = self.options.payload_pages.map(|pages| mtu_of_pages(pages, false) as u32);
        self.options.link_mtu.mtu.or(pages)
    }
}

/// Takes data from a connection, in one of the measured modes.
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
        let found = from.map_available(CHUNK)?;
        if let Some(mapping) = found.mapping {
            mapping.for_each_piece(|piece| self.reader.see(piece));
            let mapped = mapping.len();
            return something(Taken { bytes: mapped, mapped });
        }
        match found.copy_next {
            0 if found.ended => something(Taken::default()),
            0 => Ok(None),
            // Part of a page: if it were read now, the rest of the page would have to be read too.
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
pub(super) fn pair(bench: &ReceiveBench, mode: ReceiveMode) -> Result<ReceiveSample, Failure> {
    pin(bench.sides.left);
    let (a, b, mtu) = hosts::pair(bench.mtu())?;
    let left = hosts::on(a, LEFT).manual().start()?;
    let right = bench.receiver(hosts::on(b, RIGHT)).manual().start()?;
    let flows = usize::from(bench.options.flows);
    let connections = connect_many_in_turns(&left, &right, flows)?;
    let pieces = SOURCE_LEN / SEND_PIECE;
    let start = |flow: usize| bench.source.region_frags(SEND_PIECE, flow * pieces / flows);
    let mut feeds: Vec<_> = (0..flows).map(|flow| Feed::new(start(flow))).collect();
    let mut taker = Taker::new(mode, bench.options.reader);
    let mut counter = ReceiveMeter::new(bench.options.time.seconds);
    let mut receiving = Duration::ZERO;
    loop {
        for (feed, (sender, _)) in feeds.iter_mut().zip(&connections) {
            while feed.send(sender)?.is_some() {}
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
            && let Some(sample) = counter.add(all, Some(receiving))
        {
            let copied = copied_by(&[&left, &right], bench.options.common.stats);
            return Ok(ReceiveSample { copied, mtu, ..sample });
        }
    }
}

/// A stack on a tap, and kernel sockets on the tap's other side.
pub(super) fn tap(bench: &ReceiveBench, mode: ReceiveMode) -> Result<ReceiveSample, Failure> {
    pin(bench.sides.left);
    let (tap, mtu) = enter_with_tap(RIGHT, bench.mtu())?;
    // Without a driver thread: all work of our side is on this thread, and its clock counts it.
    let host = bench.receiver(hosts::on(tap, LEFT)).manual().start()?;
    let on = SocketAddr::from((LEFT, PORT));
    let listener = host.listen(on)?;
    let sample = std::thread::scope(|scope| {
        let send = |_| scope.spawn(move || kernel::peer_sends(on, &bench.source, bench.sides));
        let sending: Vec<_> = (0..bench.options.flows).map(send).collect();
        let received = receive(bench, mode, &host, || {
            Ok(accept(&listener, || {
                host.wait_turn(Duration::from_millis(1));
            })?)
        });
        // The senders end because their peer is gone, which it reports in its turns.
        for sender in sending {
            while !sender.is_finished() {
                host.wait_turn(Duration::from_millis(1));
            }
            joined(sender)?;
        }
        received
    })?;
    Ok(ReceiveSample { copied: copied_by(&[&host], bench.options.common.stats), mtu, ..sample })
}

/// Receives on all connections, on one thread that sleeps when nothing comes.
fn receive(
    bench: &ReceiveBench,
    mode: ReceiveMode,
    host: &Host,
    mut accept: impl FnMut() -> Result<TcpStream, Failure>,
) -> Result<ReceiveSample, Failure> {
    let mut connections = Vec::new();
    for _ in 0..bench.options.flows {
        let connection = accept()?;
        connection.set_nonblocking(true)?;
        connections.push(connection);
    }
    let mut taker = Taker::new(mode, bench.options.reader);
    let mut counter = ReceiveMeter::new(bench.options.time.seconds);
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
            if let Some(sample) = counter.add(all, None) {
                break Ok(sample);
            }
        } else if last.elapsed() > PATIENCE {
            break Err(Failure::Failed("nothing came from the kernel's senders".into()));
        }
        host.wait_turn(Duration::from_millis(100));
    };
    connections.iter().for_each(TcpStream::abort);
    result
}
