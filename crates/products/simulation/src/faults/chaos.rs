//! [`Chaos`]: random faults from the seed, scheduled when the test asks for them.

use std::ops::Range;
use std::time::Duration;

use crate::faults::command::Pause;
use crate::host::selectors::{HostTable, Hosts};
use crate::limits::MIN_PERIOD;
use crate::network::link::Link;
use crate::random::{SimRng, split};
use crate::sim::Sim;
use crate::{HostId, SimTime};

/// How often a kind of fault comes, and how long it lasts; both are drawn evenly each time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rate {
    /// Time from the end of one fault to the begin of the next.
    pub every: Range<Duration>,
    /// Time from the begin of a fault to its end.
    pub lasting: Range<Duration>,
}

impl Rate {
    /// A fault after each `every`, which takes `lasting`. From one begin to the next it takes a millisecond at
    /// least.
    pub fn new(every: Range<Duration>, lasting: Range<Duration>) -> Self {
        Self { every, lasting }
    }
}

/// Random faults: see [`Sim::chaos`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Chaos {
    kinds: Vec<(FaultKind, Rate)>,
    until: Duration,
}

#[derive(Clone, Copy, Debug)]
enum FaultKind {
    Partition,
    OneWay,
    Crash,
    Kill,
    Pause(Pause),
    SlowLink(Link),
}

impl Chaos {
    /// No faults yet; all faults end by this simulated time since the start.
    pub fn until(end: Duration) -> Self {
        Self { kinds: Vec::new(), until: end }
    }

    /// The hosts fall into two groups that cannot reach each other.
    pub fn partition(self, rate: Rate) -> Self {
        self.with(FaultKind::Partition, rate)
    }

    /// A host cannot reach another one.
    pub fn oneway(self, rate: Rate) -> Self {
        self.with(FaultKind::OneWay, rate)
    }

    /// A host loses its power, and starts again.
    pub fn crash(self, rate: Rate) -> Self {
        self.with(FaultKind::Crash, rate)
    }

    /// A host's process is killed, and starts again.
    pub fn kill(self, rate: Rate) -> Self {
        self.with(FaultKind::Kill, rate)
    }

    /// A host stands still.
    pub fn pause(self, rate: Rate, what: Pause) -> Self {
        self.with(FaultKind::Pause(what), rate)
    }

    /// The link between two hosts becomes this one.
    pub fn slow_link(self, rate: Rate, link: Link) -> Self {
        self.with(FaultKind::SlowLink(link), rate)
    }

    fn with(mut self, kind: FaultKind, rate: Rate) -> Self {
        self.kinds.push((kind, rate));
        self
    }
}

impl Sim {
    /// Schedules random faults of these hosts. The times and the hosts are drawn from the seed now, each
    /// kind on its own; all faults have ended by [`Chaos::until`]. The end of one fault may end
    /// another one of the same hosts; a link stays slow until the last of its slow links has ended. Clients
    /// that cannot [start again](crate::Control::bounce) are neither crashed nor killed.
    ///
    /// # Panics
    /// If there are fewer than two hosts, or none that could be crashed or killed.
    #[track_caller]
    pub fn chaos(&mut self, hosts: impl Hosts, chaos: Chaos) {
        let hosts = {
            let world = self.world.lock();
            HostTable(&world).find(&hosts)
        };
        assert!(hosts.len() > 1, "chaos needs two hosts at least");
        let machine = |host: &HostId| self.machines.get(host.index());
        let can_start = |host: &HostId| machine(host).is_some_and(|it| it.software.can_start());
        let mortal: Vec<HostId> = hosts.iter().copied().filter(can_start).collect();
        for (number, (kind, rate)) in chaos.kinds.into_iter().enumerate() {
            self.next_chaos += 1;
            let seed = split(self.seed, "chaos", self.next_chaos << 16 | number as u64);
            let mut random = SimRng::new(seed);
            let (mut at, mut first) = (self.now().elapsed(), Duration::ZERO);
            let hosts =
                if matches!(kind, FaultKind::Crash | FaultKind::Kill) { &mortal } else { &hosts };
            assert!(!hosts.is_empty(), "chaos: none of these hosts can start again");
            loop {
                at = (at + draw(&rate.every, &mut random)).max(first);
                if at >= chaos.until {
                    break;
                }
                let end = (at + draw(&rate.lasting, &mut random)).min(chaos.until);
                self.schedule_fault(kind, hosts, at..end, &mut random);
                (at, first) = (end + Duration::from_nanos(1), at + MIN_PERIOD);
            }
        }
    }

    fn schedule_fault(
        &mut self,
        kind: FaultKind,
        hosts: &[HostId],
        time: Range<Duration>,
        random: &mut SimRng,
    ) {
        let mut order = hosts.to_vec();
        random.shuffle(&mut order);
        // A single host may be crashed or killed.
        let groups = 1 + random.below((order.len() as u64).saturating_sub(1)) as usize;
        let (some, others) = order.split_at(groups);
        let (some, others) = (some.to_vec(), others.to_vec());
        let Some(&one) = some.first() else { return };
        let other = others.first().copied().unwrap_or(one);
        let Range { start, end } = time;
        match kind {
            FaultKind::Partition => {
                let groups = (some.clone(), others.clone());
                self.at(start, move |control| control.partition(groups.0, groups.1));
                self.at(end, move |control| control.repair(some, others));
            }
            FaultKind::OneWay => {
                self.at(start, move |control| control.partition_oneway(one, other));
                self.at(end, move |control| control.repair_oneway(one, other));
            }
            FaultKind::Crash => {
                self.at(start, move |control| control.crash(one));
                self.at(end, move |control| control.bounce(one));
            }
            FaultKind::Kill => {
                self.at(start, move |control| control.kill(one));
                self.at(end, move |control| control.bounce(one));
            }
            FaultKind::Pause(what) => {
                self.at(start, move |control| control.pause(one, what));
                self.at(end, move |control| control.resume(one));
            }
            FaultKind::SlowLink(link) => {
                self.at(start, move |control| control.slow(one, other, link));
                self.at(end, move |control| control.recover(one, other));
            }
        }
    }
}

fn draw(range: &Range<Duration>, random: &mut SimRng) -> Duration {
    let span = SimTime::ZERO.after(range.end.saturating_sub(range.start)).as_nanos();
    range.start + Duration::from_nanos(random.below(span))
}
