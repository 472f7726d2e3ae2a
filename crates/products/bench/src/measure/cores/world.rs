//! The hosts of a round: a server of one or several cores, and a client for each.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use pagewire::{BindOptions, Cores, Device, Host, TcpListener};

use super::flood::Flood;
use super::link::{CoreLink, DrawnWay, LinkEnd, links};
use super::{CoresCase, ServerKind};
use crate::failure::Failure;
use crate::kit::hosts::{self, PORT, RIGHT};

/// Where the server listens.
pub(super) const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(RIGHT), PORT);

/// Connections that may wait at a shard for `accept`.
const BACKLOG: usize = 4096;

/// Local ports of a client, at most: fewer than a stack keeps connections in TIME-WAIT.
const PORTS: usize = 16_384;

/// The first port that clients use.
const FIRST_PORT: u16 = 1024;

/// The hosts that one core drives, in turns.
pub(super) struct CoreHosts {
    pub(super) shard: Host,
    pub(super) listener: TcpListener,
    pub(super) client: Host,
    /// Frames that the shard's queue passed on in place of the shard.
    pub(super) relayed: Arc<AtomicU64>,
    /// The client's local ends of connections whose home is the shard.
    pub(super) locals: Vec<SocketAddr>,
}

/// The address of a core's client.
pub(super) fn address(core: usize) -> Ipv4Addr {
    let [a, b, c, _] = RIGHT.octets();
    Ipv4Addr::new(a, b, c, u8::try_from(core + 2).unwrap_or(u8::MAX))
}

/// A shard of the server, and its part of the listener.
pub(super) type Served = (Host, TcpListener);

/// Makes a server of several cores, without threads, on a queue of each core.
pub(super) fn server<D: Device + 'static>(queues: Vec<D>) -> Result<(Cores, Vec<Served>), Failure> {
    let host = Host::builder().address(format!("{RIGHT}/24")).manual().cores(queues.len());
    let cores = host.device_queues(queues).start()?;
    let listener = cores.listen_with(SERVER, &BindOptions::new().backlog(BACKLOG))?;
    let shards = cores.shards().iter().cloned().zip(listener.shards().iter().cloned());
    let shards = shards
        .map(|(shard, listener)| listener.set_nonblocking(true).map(|()| (shard, listener)))
        .collect::<io::Result<_>>()?;
    Ok((cores, shards))
}

/// A client's local ends of connections whose home is its core.
pub(super) fn locals(core: usize, home: impl Fn(SocketAddr) -> usize) -> Vec<SocketAddr> {
    let all = (FIRST_PORT..=u16::MAX).map(|port| SocketAddr::from((address(core), port)));
    all.filter(|local| home(*local) == core).take(PORTS).collect()
}

/// Makes the hosts for each core of a case. None of them has a thread. A flood comes in as long as `floods` is set.
pub(super) fn world(case: &CoresCase, floods: &Arc<AtomicBool>) -> Result<Vec<CoreHosts>, Failure> {
    let (mut queues, mut clients) = (Vec::new(), Vec::new());
    let way = match case.server {
        ServerKind::Relay => DrawnWay::Relay,
        ServerKind::Drawn => DrawnWay::Own,
        ServerKind::Late => DrawnWay::Late,
        _ => DrawnWay::Strays,
    };
    for CoreLink { queue, client, relayed } in links(case.cores, case.strays_percent, way)? {
        queues.push(queue);
        clients.push((client, relayed));
    }
    if let (Some(kind), Some(first)) = (case.flood, queues.first_mut()) {
        first.flood = Some(Flood::new(kind, Arc::clone(floods))?);
    }
    let (cores, shards) = if case.server.has_shards() {
        let (cores, shards) = server(queues)?;
        (Some(cores), shards)
    } else {
        // With several cores: as many hosts, which know nothing of each other.
        (None, queues.into_iter().map(plain).collect::<Result<_, _>>()?)
    };
    let mut all = Vec::new();
    for (core, ((shard, listener), (client, relayed))) in
        shards.into_iter().zip(clients).enumerate()
    {
        let client = hosts::on(client, address(core)).manual().start()?;
        let home = |local| cores.as_ref().map_or(core, |cores| cores.home(SERVER, local));
        let locals = locals(core, home);
        all.push(CoreHosts { shard, listener, client, relayed, locals });
    }
    Ok(all)
}

/// Makes a plain server, without a thread.
fn plain(queue: LinkEnd) -> Result<Served, Failure> {
    let host = hosts::on(queue, RIGHT).manual().start()?;
    let listener = host.listen_with(SERVER, &BindOptions::new().backlog(BACKLOG))?;
    listener.set_nonblocking(true)?;
    Ok((host, listener))
}
