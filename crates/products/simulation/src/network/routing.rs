//! [`Network`], the network between the hosts: packets are routed by their address, over paths with faults.
//!
//! ```text
//!   host a --uplink(a)--> between(a, b) --downlink(b)--> host b
//! ```
//!
//! Every pair of hosts has a path for each direction, made when the first packet takes it. The stages
//! in front and behind exist only if they are configured.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use pagewire_mem::PacketBuf;
use rustc_hash::FxHashMap;

use crate::events::queue::{EventQueue, HostOrder, SourceOrder};
use crate::network::icmp::{self, IcmpError};
use crate::network::link::Link;
use crate::network::names::Names;
use crate::network::path::{Path, Stage};
use crate::random::split;
use crate::record::packet_event::PacketEvent;
use crate::record::recorder::Recorder;
use crate::{HostId, SimTime};

/// The answer to a host that sends to an address that no host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreachable {
    /// "Host unreachable", at once, as from the last router.
    #[default]
    Told,
    /// No answer.
    Silent,
}

/// The parts of the world that the network needs to handle a packet.
pub(crate) struct NetworkCtx<'a> {
    pub(crate) now: SimTime,
    pub(crate) names: &'a Names,
    pub(crate) event_queue: &'a mut EventQueue,
    pub(crate) record: &'a mut Recorder,
    pub(crate) hosts: u32,
}

pub(crate) struct Network {
    seed: u64,
    default: Link,
    pub(crate) unreachable: Unreachable,
    paths: Vec<Path>,
    numbers: FxHashMap<Stage, u32>,
    /// Some host has an uplink, or a downlink, of its own.
    own_stages: bool,
    /// Ties between hosts are broken by the seed.
    pub(crate) random_order: bool,
    /// Packets that have arrived at their host, in order: the host, the sender if it is known, the packet.
    arrived: Vec<(HostId, Option<HostId>, PacketBuf)>,
    /// Number of paths between hosts with each least latency.
    latencies: BTreeMap<Duration, u32>,
}

impl Network {
    pub(crate) fn new(seed: u64, default: Link) -> Self {
        Self {
            seed,
            default,
            unreachable: Unreachable::Told,
            paths: Vec::new(),
            numbers: FxHashMap::default(),
            own_stages: false,
            random_order: false,
            arrived: Vec::new(),
            latencies: BTreeMap::new(),
        }
    }

    /// The least time that a packet takes from one host to another.
    pub(crate) fn least_latency(&self) -> Duration {
        let default = self.default.least_latency();
        self.latencies.first_key_value().map_or(default, |(&least, _)| least.min(default))
    }

    pub(crate) fn send(&mut self, ctx: &mut NetworkCtx<'_>, from: HostId, packet: PacketBuf) {
        let to = icmp::addresses(packet.head()).map(|(_, to)| to);
        let host = to.and_then(|to| ctx.names.host_of(to)).map(HostId);
        ctx.record.frame(ctx.now, PacketEvent::Sent, Some(from), host, &packet);
        if let Some(up) = self.own_stage(Stage::Uplink(from)) {
            return self.enter(ctx, from, up, packet);
        }
        self.route_to(ctx, from, host, packet);
    }

    /// The uplink or downlink of a host, if it has one of its own.
    fn own_stage(&self, stage: Stage) -> Option<u32> {
        if self.own_stages { self.numbers.get(&stage).copied() } else { None }
    }

    /// Moves packets that leave a path now to the next one; [`take_arrived`](Self::take_arrived) returns those at
    /// the end of their way.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut NetworkCtx<'_>, path: u32) {
        let Some(path_here) = self.paths.get_mut(path as usize) else { return };
        let stage = path_here.stage;
        while let Some(packet) =
            self.paths.get_mut(path as usize).and_then(|p| p.poll(ctx.now, ctx.record))
        {
            match stage {
                Stage::Uplink(from) => self.route(ctx, from, packet),
                Stage::Between(from, to) => self.enter_downlink(ctx, from, to, packet),
                Stage::Downlink(to) => self.arrived.push((to, None, packet)),
            }
        }
        self.schedule(ctx.event_queue, path);
    }

    /// Takes the packets that have arrived: the host, the sender if it is known, the packet.
    pub(crate) fn take_arrived(&mut self) -> Vec<(HostId, Option<HostId>, PacketBuf)> {
        std::mem::take(&mut self.arrived)
    }

    /// Gives back the list, to be used again.
    pub(crate) fn recycle(&mut self, list: Vec<(HostId, Option<HostId>, PacketBuf)>) {
        if self.arrived.capacity() < list.capacity() && self.arrived.is_empty() {
            self.arrived = list;
        }
    }

    /// Routes a packet to its host, or to all for a group.
    fn route(&mut self, ctx: &mut NetworkCtx<'_>, from: HostId, packet: PacketBuf) {
        let Some((_, to)) = icmp::addresses(packet.head()) else { return };
        let host = ctx.names.host_of(to).map(HostId);
        self.route_to(ctx, from, host, packet);
    }

    /// As [`route`](Self::cross), for the host that has the packet's address.
    fn route_to(
        &mut self,
        ctx: &mut NetworkCtx<'_>,
        from: HostId,
        host: Option<HostId>,
        packet: PacketBuf,
    ) {
        if let Some(to) = host {
            let path = self.between(ctx.event_queue, from, to);
            return self.enter(ctx, from, path, packet);
        }
        let Some((_, to)) = icmp::addresses(packet.head()) else { return };
        if is_broadcast_or_multicast(to) {
            for to in (0..ctx.hosts).map(HostId).filter(|&to| to != from) {
                let path = self.between(ctx.event_queue, from, to);
                self.enter(ctx, from, path, packet.clone());
            }
            return;
        }
        ctx.record.frame(ctx.now, PacketEvent::NoHost, Some(from), None, &packet);
        if self.unreachable == Unreachable::Told {
            self.send_icmp(from, &packet, IcmpError::NoHost);
        }
    }

    fn enter(&mut self, ctx: &mut NetworkCtx<'_>, from: HostId, path: u32, packet: PacketBuf) {
        if let Some((mtu, packet)) = self.enter_path(ctx, path, packet) {
            self.send_icmp(from, &packet, IcmpError::TooBig(mtu));
        }
    }

    /// Lets a packet enter a path. `Some`: the packet is longer than the path's MTU, which the sender is to learn.
    fn enter_path(
        &mut self,
        ctx: &mut NetworkCtx<'_>,
        path: u32,
        packet: PacketBuf,
    ) -> Option<(usize, PacketBuf)> {
        let path_here = self.paths.get_mut(path as usize)?;
        let too_long = path_here.handle(ctx.now, packet, ctx.record);
        self.schedule(ctx.event_queue, path);
        too_long
    }

    fn enter_downlink(
        &mut self,
        ctx: &mut NetworkCtx<'_>,
        from: HostId,
        to: HostId,
        packet: PacketBuf,
    ) {
        match self.own_stage(Stage::Downlink(to)) {
            Some(down) => {
                if let Some((mtu, packet)) = self.enter_path(ctx, down, packet) {
                    self.send_icmp_back(ctx, from, to, &packet, IcmpError::TooBig(mtu));
                }
            }
            None => self.arrived.push((to, Some(from), packet)),
        }
    }

    /// Sends an ICMP error from the router next to the sender: it arrives at once.
    fn send_icmp(&mut self, sender: HostId, packet: &PacketBuf, error: IcmpError) {
        if let Some(answer) = icmp::message(packet, error) {
            self.arrived.push((sender, None, answer));
        }
    }

    /// Sends an ICMP error from the router in front of `host`, over the path back to the sender.
    fn send_icmp_back(
        &mut self,
        ctx: &mut NetworkCtx<'_>,
        sender: HostId,
        host: HostId,
        packet: &PacketBuf,
        error: IcmpError,
    ) {
        if let Some(answer) = icmp::message(packet, error) {
            let back = self.between(ctx.event_queue, host, sender);
            self.enter_path(ctx, back, answer);
        }
    }

    fn schedule(&self, event_queue: &mut EventQueue, path: u32) {
        if let Some(path_here) = self.paths.get(path as usize) {
            event_queue.set(path_here.source, path_here.poll_timeout().map(|at| at.as_nanos()));
        }
    }

    fn between(&mut self, event_queue: &mut EventQueue, from: HostId, to: HostId) -> u32 {
        let stage = Stage::Between(from, to);
        match self.numbers.get(&stage) {
            Some(&path) => path,
            None => self.add(event_queue, stage, self.default),
        }
    }

    fn add(&mut self, event_queue: &mut EventQueue, stage: Stage, link: Link) -> u32 {
        let number = self.paths.len() as u32;
        // The host whose event it is when a packet leaves.
        let (kind, a, b, host) = match stage {
            Stage::Uplink(host) => ("uplink", host, HostId(0), host),
            Stage::Between(from, to) => ("between", from, to, to),
            Stage::Downlink(host) => ("downlink", host, HostId(0), host),
        };
        self.own_stages |= !matches!(stage, Stage::Between(..));
        let seed = split(self.seed, kind, u64::from(a.0) << 32 | u64::from(b.0));
        let source = event_queue.add(SourceOrder::Path(self.order_of(host), number));
        let path = Path::new(stage, source, link, seed);
        count(&mut self.latencies, &path, true);
        self.paths.push(path);
        self.numbers.insert(stage, number);
        number
    }

    /// The rank of a host among the hosts with something to do at the same time.
    pub(crate) fn order_of(&self, host: HostId) -> HostOrder {
        let tie = if self.random_order { split(self.seed, "tie", host.0.into()) } else { 0 };
        HostOrder::new(tie as u32, host.0)
    }

    pub(crate) fn set_link(&mut self, event_queue: &mut EventQueue, stage: Stage, link: Link) {
        let path = match self.numbers.get(&stage) {
            Some(&path) => path,
            None => self.add(event_queue, stage, link),
        };
        if let Some(path) = self.paths.get_mut(path as usize) {
            relink(&mut self.latencies, path, |path| path.set_own(link));
        }
    }

    /// Sets the link of all pairs that have none of their own.
    pub(crate) fn set_default(&mut self, link: Link) {
        self.default = link;
        for path in &mut self.paths {
            if matches!(path.stage, Stage::Between(..)) {
                relink(&mut self.latencies, path, |path| path.note_default(link));
            }
        }
    }

    /// Makes the link from one host to another slow, until [`recover`](Self::recover).
    pub(crate) fn slow(
        &mut self,
        event_queue: &mut EventQueue,
        from: HostId,
        to: HostId,
        link: Link,
    ) {
        self.change(event_queue, from, to, |path| path.make_slow(link));
    }

    /// Ends what [`slow`](Self::slow) began.
    pub(crate) fn recover(&mut self, event_queue: &mut EventQueue, from: HostId, to: HostId) {
        let default = self.default;
        self.change(event_queue, from, to, |path| path.recover(default));
    }

    /// Changes the path between two hosts, one direction.
    pub(crate) fn change(
        &mut self,
        event_queue: &mut EventQueue,
        from: HostId,
        to: HostId,
        change: impl FnOnce(&mut Path),
    ) {
        let number = self.between(event_queue, from, to);
        if let Some(path) = self.paths.get_mut(number as usize) {
            relink(&mut self.latencies, path, change);
        }
        self.schedule(event_queue, number);
    }

    /// Pairs of hosts whose path is cut or held, with the words for that.
    pub(crate) fn obstacles(&self) -> impl Iterator<Item = (HostId, HostId, &'static str)> {
        self.paths.iter().filter_map(|path| match path.stage {
            Stage::Between(from, to) => Some((from, to, path.obstacle()?)),
            Stage::Uplink(_) | Stage::Downlink(_) => None,
        })
    }
}

/// Changes a path, and counts it by its new latency.
fn relink(
    latencies: &mut BTreeMap<Duration, u32>,
    path: &mut Path,
    change: impl FnOnce(&mut Path),
) {
    count(latencies, path, false);
    change(path);
    count(latencies, path, true);
}

/// Adds or removes a path between two hosts in the counts. Uplinks and downlinks make no path shorter.
fn count(latencies: &mut BTreeMap<Duration, u32>, path: &Path, there: bool) {
    if !matches!(path.stage, Stage::Between(..)) {
        return;
    }
    let least = path.link().least_latency();
    let paths = latencies.entry(least).or_default();
    *paths = if there { *paths + 1 } else { paths.saturating_sub(1) };
    if *paths == 0 {
        latencies.remove(&least);
    }
}

/// Whether an address is a broadcast or a multicast address, which reaches every host.
fn is_broadcast_or_multicast(to: IpAddr) -> bool {
    match to {
        IpAddr::V4(to) => {
            to.is_broadcast() || to.is_multicast() || to.octets() == [10, 255, 255, 255]
        }
        IpAddr::V6(to) => to.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Hosts look ahead by the least latency; a value that is too large would let them miss a packet.
        #[test]
        fn the_least_latency_is_that_of_the_quickest_path_between_hosts(
            changes in vec((0u32..5, 0u32..4, 0u32..4, 1u64..50), 0..60)
        ) {
            let (mut network, mut event_queue) = (Network::new(1, Link::new()), EventQueue::default());
            for (what, from, to, ms) in changes {
                let link = Link::new().latency(Duration::from_millis(ms));
                let (from, to) = (HostId(from), HostId(to));
                match what {
                    0 => network.set_default(link),
                    1 => network.set_link(&mut event_queue, Stage::Between(from, to), link),
                    2 => network.set_link(&mut event_queue, Stage::Downlink(to), link),
                    3 => network.slow(&mut event_queue, from, to, link),
                    _ => network.recover(&mut event_queue, from, to),
                }
                let between = |path: &&Path| matches!(path.stage, Stage::Between(..));
                let all = network.paths.iter().filter(between).map(|it| it.link().least_latency());
                let least = all.chain([network.default.least_latency()]).min();
                prop_assert_eq!(Some(network.least_latency()), least);
            }
        }
    }
}
