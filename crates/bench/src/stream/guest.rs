//! To and from a virtual machine, which connects once for each round; no kernel is beside it.

use std::net::SocketAddr;
use std::path::Path;

use pagewire::device::{Dhcp, DhcpConfig, VhostUser};
use pagewire::{Host, TcpListener};

use super::receive;
use crate::failure::Failure;
use crate::hosts::{self, LEFT, PORT, SEND_PIECE};
use crate::kernel::PATIENCE;
use crate::machine::{Machine, SPREAD};
use crate::meter::{Meter, Round, in_turns};
use crate::options::{Direction, StreamOptions, name};
use crate::progress::Progress;
use crate::report::{Record, Results, print};
use crate::source::{Reader, Source};

/// The port for a guest that receives.
const SENDING_PORT: u16 = PORT + 1;

struct Line {
    direction: Direction,
    reader: Reader,
    rounds: Vec<Round>,
    copied: u64,
}

pub(super) fn run(options: &StreamOptions, progress: &Progress) -> Result<Results, Failure> {
    let Some(path) = &options.socket else {
        let text =
            "--link vhost-user needs --socket PATH: where a virtual machine is to be plugged in";
        return Err(Failure::Usage(text.into()));
    };
    if options.via_proxy {
        return Err(Failure::Usage("--via-proxy is for --link pair and --link tap".into()));
    }
    let (host, mtu) = plugged(options, path)?;
    let listen = |port| host.listen(SocketAddr::from((LEFT, port)));
    let (receiving, sending) = (listen(PORT)?, listen(SENDING_PORT)?);
    eprintln!(
        "waiting for a virtual machine at {}, which gets an address by DHCP; in it:\n  \
         while :; do nc {LEFT} {PORT} </dev/zero; done &\n  \
         while :; do nc {LEFT} {SENDING_PORT} </dev/null >/dev/null; done &",
        path.display()
    );
    let source = Source::new();
    let line = |direction, reader| Line { direction, reader, rounds: Vec::new(), copied: 0 };
    let mut lines = vec![
        line(Direction::Receive, Reader::None),
        line(Direction::Receive, Reader::Sum),
        line(Direction::Send, Reader::None),
    ];
    lines.retain(|line| options.direction.is_none_or(|only| only == line.direction));
    let round = |line: &Line| {
        let before = host.stats().ledger.ours();
        let round = match line.direction {
            Direction::Receive => from_guest(&receiving, line.reader, options.seconds)?,
            Direction::Send => to_guest(&sending, &source, options.seconds)?,
        };
        if options.common.stats {
            eprint!("{}", host.stats());
        }
        Ok((round, host.stats().ledger.ours() - before))
    };
    let what = |line: &Line| {
        let (way, reader) = (name(line.direction), name(line.reader));
        format!("virtual machine, {way}, reader {reader}")
    };
    in_turns(progress, options.common.rounds, &mut lines, what, round, |line, (round, copied)| {
        line.rounds.push(round);
        line.copied = copied;
    })?;
    let machine = Machine::describe();
    let records: Vec<_> = lines.iter().map(|line| line.record(mtu).on(&machine)).collect();
    let heading = machine.heading(options.common.rounds, options.seconds, SPREAD);
    let columns = "engine link direction peer reader mtu gbit_per_s min_gbit_per_s max_gbit_per_s \
        payload_bytes_copied";
    Ok(print(records, options.common.json, heading, columns))
}

/// A host on a port, and the port's MTU.
fn plugged(options: &StreamOptions, path: &Path) -> Result<(Host, u32), Failure> {
    let mut port = VhostUser::builder();
    if let Some(mtu) = options.mtu {
        port = port.mtu(mtu as usize);
    }
    let port = port.listen(path).map_err(|e| Failure::Socket(path.to_owned(), e))?;
    let mtu = pagewire::Device::capabilities(&port).mtu as u32;
    let config = DhcpConfig::network(LEFT, 24)?;
    let port = Dhcp::new(port, config)?;
    Ok((hosts::on(port, LEFT).start()?, mtu))
}

fn from_guest(listener: &TcpListener, reader: Reader, seconds: f64) -> Result<Round, Failure> {
    let (connection, _) = listener.accept()?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let round = receive(&connection, reader, seconds, || {});
    connection.abort();
    round
}

/// Counts what was queued, which differs from what arrived by at most a send buffer.
fn to_guest(listener: &TcpListener, source: &Source, seconds: f64) -> Result<Round, Failure> {
    let (connection, _) = listener.accept()?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut meter = Meter::new(seconds);
    for piece in source.frags(SEND_PIECE) {
        let len = piece.len();
        connection.send(piece)?;
        if let Some(round) = meter.count(len) {
            connection.abort();
            return Ok(round);
        }
    }
    Err(Failure::Failed("nothing is left to send".into()))
}

impl Line {
    fn record(&self, mtu: u32) -> Record {
        Record::of_rounds("stream", "pagewire", "vhost-user", &self.rounds)
            .with("direction", name(self.direction))
            .with("peer", "guest")
            .with("reader", name(self.reader))
            .with("mtu", mtu)
            .with("payload_bytes_copied", self.copied)
    }
}
