//! The network between the hosts: packets are routed by their address, over paths with faults.
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

use crate::agenda::{Agenda, HostOrder, Order};
use crate::icmp::{self, Why};
use crate::link::Link;
use crate::names::Names;
use crate::path::{Path, Stage};
use crate::random::split;
use crate::record::{Fate, Recorder};
use crate::{HostId, SimTime};

/// What a host hears that sends to an address that no host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreachable {
    /// "Host unreachable", at once, as from the last router.
    #[default]
    Told,
    /// Nothing.
    Silent,
}

/// Parts of the world that a packet meets besides the fabric.
pub(crate) struct Around<'a> {
    pub(crate) now: SimTime,
    pub(crate) names: &'a Names,
    pub(crate) agenda: &'a mut Agenda,
    pub(crate) record: &'a mut Recorder,
    /// Hosts of the simulation.
    pub(crate) hosts: u32,
}

pub(crate) struct Fabric {
    seed: u64,
    default: Link,
    pub(crate) unreachable: Unreachable,
    paths: Vec<Path>,
    numbers: FxHashMap<Stage, u32>,
    /// Some host has an uplink, or a downlink, of its own.
    own_stages: bool,
    /// Ties between hosts are broken by the seed.
    pub(crate) random_order: bool,
    /// Packets that have arrived at their host, in their order.
    arrived: Vec<(HostId, Option<HostId>, PacketBuf)>,
    /// How many paths between hosts have which shortest time.
    latencies: BTreeMap<Duration, u32>,
}

impl Fabric {
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

    /// No packet takes less time from one host to another.
    pub(crate) fn least_latency(&self) -> Duration {
        let default = self.default.least_latency();
        self.latencies.first_key_value().map_or(default, |(&least, _)| least.min(default))
    }

    /// A host sends a packet.
    pub(crate) fn send(&mut self, around: &mut Around<'_>, from: HostId, packet: PacketBuf) {
        let to = icmp::addresses(packet.head()).map(|(_, to)| to);
        let host = to.and_then(|to| around.names.host_of(to)).map(HostId);
        around.record.frame(around.now, Fate::Sent, Some(from), host, &packet);
        if let Some(up) = self.own_stage(Stage::Uplink(from)) {
            return self.enter(around, from, up, packet);
        }
        self.cross_to(around, from, host, packet);
    }

    /// The uplink or downlink of a host, if it has one of its own.
    fn own_stage(&self, stage: Stage) -> Option<u32> {
        if self.own_stages { self.numbers.get(&stage).copied() } else { None }
    }

    /// Packets that leave this path now; [`take_arrived`](Self::take_arrived) has those at the end
    /// of their way.
    pub(crate) fn handle_timeout(&mut self, around: &mut Around<'_>, path: u32) {
        let Some(here) = self.paths.get_mut(path as usize) else { return };
        let stage = here.stage;
        while let Some(packet) =
            self.paths.get_mut(path as usize).and_then(|p| p.poll(around.now, around.record))
        {
            match stage {
                Stage::Uplink(from) => self.cross(around, from, packet),
                Stage::Between(from, to) => self.descend(around, from, to, packet),
                Stage::Downlink(to) => self.arrived.push((to, None, packet)),
            }
        }
        self.schedule(around.agenda, path);
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
    fn cross(&mut self, around: &mut Around<'_>, from: HostId, packet: PacketBuf) {
        let Some((_, to)) = icmp::addresses(packet.head()) else { return };
        let host = around.names.host_of(to).map(HostId);
        self.cross_to(around, from, host, packet);
    }

    /// As [`cross`](Self::cross), for the host that has the packet's address.
    fn cross_to(
        &mut self,
        around: &mut Around<'_>,
        from: HostId,
        host: Option<HostId>,
        packet: PacketBuf,
    ) {
        if let Some(to) = host {
            let path = self.between(around.agenda, from, to);
            return self.enter(around, from, path, packet);
        }
        let Some((_, to)) = icmp::addresses(packet.head()) else { return };
        if is_for_all(to) {
            for to in (0..around.hosts).map(HostId).filter(|&to| to != from) {
                let path = self.between(around.agenda, from, to);
                self.enter(around, from, path, packet.clone());
            }
            return;
        }
        around.record.frame(around.now, Fate::NoHost, Some(from), None, &packet);
        if self.unreachable == Unreachable::Told {
            self.tell(from, &packet, Why::NoHost);
        }
    }

    fn enter(&mut self, around: &mut Around<'_>, from: HostId, path: u32, packet: PacketBuf) {
        if let Some((mtu, packet)) = self.enter_path(around, path, packet) {
            self.tell(from, &packet, Why::TooBig(mtu));
        }
    }

    /// A packet enters a path. `Some`: it is too long, and its sender is to be told of this MTU.
    fn enter_path(
        &mut self,
        around: &mut Around<'_>,
        path: u32,
        packet: PacketBuf,
    ) -> Option<(usize, PacketBuf)> {
        let here = self.paths.get_mut(path as usize)?;
        let too_long = here.handle(around.now, packet, around.record);
        self.schedule(around.agenda, path);
        too_long
    }

    fn descend(&mut self, around: &mut Around<'_>, from: HostId, to: HostId, packet: PacketBuf) {
        match self.own_stage(Stage::Downlink(to)) {
            Some(down) => {
                if let Some((mtu, packet)) = self.enter_path(around, down, packet) {
                    self.tell_from_afar(around, from, to, &packet, Why::TooBig(mtu));
                }
            }
            None => self.arrived.push((to, Some(from), packet)),
        }
    }

    /// A router tells the sender, at once: it is the one next to it.
    fn tell(&mut self, sender: HostId, packet: &PacketBuf, why: Why) {
        if let Some(answer) = icmp::message(packet, why) {
            self.arrived.push((sender, None, answer));
        }
    }

    /// The router in front of `host` tells the sender, which is a way off: the message takes it.
    fn tell_from_afar(
        &mut self,
        around: &mut Around<'_>,
        sender: HostId,
        host: HostId,
        packet: &PacketBuf,
        why: Why,
    ) {
        if let Some(answer) = icmp::message(packet, why) {
            let back = self.between(around.agenda, host, sender);
            self.enter_path(around, back, answer);
        }
    }

    fn schedule(&self, agenda: &mut Agenda, path: u32) {
        if let Some(here) = self.paths.get(path as usize) {
            agenda.set(here.source, here.poll_timeout().map(|at| at.as_nanos()));
        }
    }

    fn between(&mut self, agenda: &mut Agenda, from: HostId, to: HostId) -> u32 {
        let stage = Stage::Between(from, to);
        match self.numbers.get(&stage) {
            Some(&path) => path,
            None => self.add(agenda, stage, self.default),
        }
    }

    fn add(&mut self, agenda: &mut Agenda, stage: Stage, link: Link) -> u32 {
        let number = self.paths.len() as u32;
        // The host whose event it is when a packet leaves.
        let (kind, a, b, host) = match stage {
            Stage::Uplink(host) => ("uplink", host, HostId(0), host),
            Stage::Between(from, to) => ("between", from, to, to),
            Stage::Downlink(host) => ("downlink", host, HostId(0), host),
        };
        self.own_stages |= !matches!(stage, Stage::Between(..));
        let seed = split(self.seed, kind, u64::from(a.0) << 32 | u64::from(b.0));
        let source = agenda.add(Order::Path(self.order_of(host), number));
        let path = Path::new(stage, source, link, seed);
        count(&mut self.latencies, &path, true);
        self.paths.push(path);
        self.numbers.insert(stage, number);
        number
    }

    /// A host's place among those with something to do at the same time.
    pub(crate) fn order_of(&self, host: HostId) -> HostOrder {
        let tie = if self.random_order { split(self.seed, "tie", host.0.into()) } else { 0 };
        HostOrder::new(tie as u32, host.0)
    }

    /// Sets the link of a stage.
    pub(crate) fn set_link(&mut self, agenda: &mut Agenda, stage: Stage, link: Link) {
        let path = match self.numbers.get(&stage) {
            Some(&path) => path,
            None => self.add(agenda, stage, link),
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
    pub(crate) fn slow(&mut self, agenda: &mut Agenda, from: HostId, to: HostId, link: Link) {
        self.change(agenda, from, to, |path| path.make_slow(link));
    }

    /// Ends what [`slow`](Self::slow) began.
    pub(crate) fn recover(&mut self, agenda: &mut Agenda, from: HostId, to: HostId) {
        let default = self.default;
        self.change(agenda, from, to, |path| path.recover(default));
    }

    /// Changes the path between two hosts, one direction.
    pub(crate) fn change(
        &mut self,
        agenda: &mut Agenda,
        from: HostId,
        to: HostId,
        change: impl FnOnce(&mut Path),
    ) {
        let number = self.between(agenda, from, to);
        if let Some(path) = self.paths.get_mut(number as usize) {
            relink(&mut self.latencies, path, change);
        }
        self.schedule(agenda, number);
    }

    /// The pairs of hosts whose path is cut or held, and which of these.
    pub(crate) fn obstacles(&self) -> impl Iterator<Item = (HostId, HostId, &'static str)> {
        self.paths.iter().filter_map(|path| match path.stage {
            Stage::Between(from, to) => Some((from, to, path.obstacle()?)),
            Stage::Uplink(_) | Stage::Downlink(_) => None,
        })
    }
}

/// Changes a path, and counts it by the latency that it then has.
fn relink(
    latencies: &mut BTreeMap<Duration, u32>,
    path: &mut Path,
    change: impl FnOnce(&mut Path),
) {
    count(latencies, path, false);
    change(path);
    count(latencies, path, true);
}

/// Counts a path between two hosts, or no longer. Those in front and behind make no way shorter.
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

/// Broadcasts and groups: every host hears them.
fn is_for_all(to: IpAddr) -> bool {
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
        /// Hosts look ahead as far: one that is too long would let them miss a packet.
        #[test]
        fn the_least_latency_is_that_of_the_quickest_path_between_hosts(
            changes in vec((0u32..5, 0u32..4, 0u32..4, 1u64..50), 0..60)
        ) {
            let (mut fabric, mut agenda) = (Fabric::new(1, Link::new()), Agenda::default());
            for (what, from, to, ms) in changes {
                let link = Link::new().latency(Duration::from_millis(ms));
                let (from, to) = (HostId(from), HostId(to));
                match what {
                    0 => fabric.set_default(link),
                    1 => fabric.set_link(&mut agenda, Stage::Between(from, to), link),
                    2 => fabric.set_link(&mut agenda, Stage::Downlink(to), link),
                    3 => fabric.slow(&mut agenda, from, to, link),
                    _ => fabric.recover(&mut agenda, from, to),
                }
                let between = |path: &&Path| matches!(path.stage, Stage::Between(..));
                let all = fabric.paths.iter().filter(between).map(|it| it.link().least_latency());
                let least = all.chain([fabric.default.least_latency()]).min();
                prop_assert_eq!(Some(fabric.least_latency()), least);
            }
        }
    }
}
