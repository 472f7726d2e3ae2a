//! `bench stream --link vhost-user`: to and from a virtual machine, which connects once for each round. No kernel
//! is measured beside it.

use std::net::SocketAddr;
use std::path::Path;

use pagewire::device::{Dhcp, DhcpConfig, VhostUser};
use pagewire::{Device, Host, TcpListener};

use super::{StreamBench, StreamOptions, StreamSample, receive};
use crate::args::Direction;
use crate::failure::Failure;
use crate::kit::hosts::{self, LEFT, PORT, SEND_PIECE};
use crate::kit::kernel::PATIENCE;
use crate::kit::meter::{Meter, Round};
use crate::kit::source::{Reader, Source};

/// The port for a guest that receives.
const SENDING_PORT: u16 = PORT + 1;

/// A host on a port that a virtual machine is plugged into.
pub(super) struct Guest {
    host: Host,
    mtu: u32,
    receiving: TcpListener,
    sending: TcpListener,
}

impl Guest {
    pub(super) fn plugged(options: &StreamOptions, path: &Path) -> Result<Self, Failure> {
        let mut port = VhostUser::builder();
        if let Some(mtu) = options.link_mtu.mtu {
            port = port.mtu(mtu as usize);
        }
        let port = port.listen(path).map_err(|e| Failure::Socket(path.to_owned(), e))?;
        let mtu = port.capabilities().mtu as u32;
        let port = Dhcp::new(port, DhcpConfig::network(LEFT, 24)?)?;
        let host = hosts::on(port, LEFT).start()?;
        let listen = |port| host.listen(SocketAddr::from((LEFT, port)));
        let (receiving, sending) = (listen(PORT)?, listen(SENDING_PORT)?);
        eprintln!(
            "waiting for a virtual machine at {}, which gets an address by DHCP; in it:\n  \
             while :; do nc {LEFT} {PORT} </dev/zero; done &\n  \
             while :; do nc {LEFT} {SENDING_PORT} </dev/null >/dev/null; done &",
            path.display()
        );
        Ok(Self { host, mtu, receiving, sending })
    }

    pub(super) fn round(
        &self,
        bench: &StreamBench,
        direction: Direction,
        reader: Reader,
    ) -> Result<StreamSample, Failure> {
        let before = self.host.stats().ledger.ours();
        let round = match direction {
            Direction::Receive => from_guest(&self.receiving, reader, bench.options.time.seconds)?,
            Direction::Send => to_guest(&self.sending, &bench.source, bench.options.time.seconds)?,
        };
        let StreamSample { round, copied, mtu } = bench.finish(round, self.mtu, &[&self.host]);
        Ok(StreamSample { round, copied: copied - before, mtu })
    }
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
