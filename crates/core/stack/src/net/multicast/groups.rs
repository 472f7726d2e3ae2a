//! The groups of one version of IP on one link: what is reported about them, and when.
//!
//! No socket filters by source: all sources of a group are wanted, or none. RFC 3376 calls that EXCLUDE
//! with an empty list and INCLUDE with an empty list.

use core::time::Duration;
use std::net::IpAddr;

use pagewire_mem::Instant;

use super::messages::{Query, REPORT_LEN, Record, RecordKind, Report, Version};
use crate::error::Error;
use crate::limits::{
    GROUP_OLD_REPORT_INTERVAL, GROUP_QUERY_INTERVAL, GROUP_QUERY_RESPONSE, GROUP_QUERY_SOURCES,
    GROUP_REPORT_INTERVAL, GROUP_ROBUSTNESS, LINK_GROUPS,
};
use crate::random::Random;

/// A group that we are in, or have just left.
#[derive(Debug)]
struct Member {
    group: IpAddr,
    /// How many sockets have joined; 0: the group was left, and that has not been reported often enough.
    sockets: u32,
    /// How often the last change is still to be reported, and when next.
    changes: u8,
    change_at: Instant,
    /// When a query is answered, and what sources it was about.
    answer_at: Option<Instant>,
    asked: Vec<IpAddr>,
}

/// The groups of one version of IP on one link.
#[derive(Debug)]
pub(crate) struct Groups {
    members: Vec<Member>,
    random: Random,
    /// When a query about all groups is answered.
    general_at: Option<Instant>,
    /// Until when routers that speak IGMPv1, and IGMPv2 or MLDv1, are taken to be present.
    oldest_until: Instant,
    older_until: Instant,
    /// As the last query had it, or the default.
    robustness: u8,
    query_interval: Duration,
}

impl Groups {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            members: Vec::new(),
            random,
            general_at: None,
            oldest_until: Instant::ZERO,
            older_until: Instant::ZERO,
            robustness: GROUP_ROBUSTNESS,
            query_interval: GROUP_QUERY_INTERVAL,
        }
    }

    pub(crate) fn contains(&self, group: IpAddr) -> bool {
        self.joined().any(|joined| joined == group)
    }

    pub(crate) fn joined(&self) -> impl Iterator<Item = IpAddr> {
        self.members.iter().filter(|m| m.sockets > 0).map(|m| m.group)
    }

    // Verbs.

    /// Adds a socket to the group. `quietly`: only queries are answered with a report.
    ///
    /// # Errors
    /// `NoBuffers` beyond [`LINK_GROUPS`].
    pub(crate) fn join(&mut self, now: Instant, group: IpAddr, quietly: bool) -> Result<(), Error> {
        if let Some(member) = self.members.iter_mut().find(|m| m.group == group) {
            member.sockets += 1;
            if member.sockets > 1 {
                return Ok(());
            }
        } else {
            if self.members.len() >= LINK_GROUPS {
                return Err(Error::NoBuffers);
            }
            let (changes, change_at) = (0, now);
            let (answer_at, asked) = (None, Vec::new());
            self.members.push(Member { group, sockets: 1, changes, change_at, answer_at, asked });
        }
        self.announce(now, group, if quietly { 0 } else { self.robustness });
        Ok(())
    }

    /// Removes a socket from the group.
    pub(crate) fn leave(&mut self, now: Instant, group: IpAddr) {
        let Some(member) = self.members.iter_mut().find(|m| m.group == group && m.sockets > 0)
        else {
            return;
        };
        member.sockets -= 1;
        if member.sockets > 0 {
            return;
        }
        // Older versions report it once, the oldest not at all.
        let times = match self.version(now) {
            Version::Current => self.robustness,
            Version::Older => 1,
            Version::Oldest => 0,
        };
        self.announce(now, group, times);
    }

    /// RFC 3376 section 5.1: a change is reported at once, and again as often as the robustness variable
    /// says; an earlier change is not reported any more.
    fn announce(&mut self, now: Instant, group: IpAddr, times: u8) {
        for member in self.members.iter_mut().filter(|m| m.group == group) {
            member.changes = if is_reported(group) { times } else { 0 };
            member.change_at = now;
            (member.answer_at, member.asked) = (None, Vec::new());
        }
        self.forget();
    }

    /// The device is gone: nothing can be reported.
    pub(crate) fn quit(&mut self) {
        (self.members, self.general_at) = (Vec::new(), None);
    }

    // In.

    pub(crate) fn handle_query(&mut self, now: Instant, query: &Query) {
        let before = self.version(now);
        // RFC 3376 section 8.12: the time for which an older router is remembered is the robustness
        // variable times the query interval, and one response interval.
        let until = now
            + self.query_interval * u32::from(self.robustness)
            + query.max_delay.max(GROUP_QUERY_RESPONSE);
        match query.version {
            Version::Oldest => self.oldest_until = until,
            Version::Older => self.older_until = until,
            Version::Current => {
                // RFC 3376 sections 4.1.6 and 4.1.7: where they are 0, the defaults hold.
                self.robustness = query.robustness.unwrap_or(GROUP_ROBUSTNESS);
                self.query_interval = query.interval.unwrap_or(GROUP_QUERY_INTERVAL);
            }
        }
        if self.version(now) != before {
            // RFC 3376 section 7.2.1: "Whenever a host changes its compatibility mode, it cancels all
            // its pending response and retransmission timers."
            self.general_at = None;
            for member in &mut self.members {
                (member.changes, member.answer_at, member.asked) = (0, None, Vec::new());
            }
            self.forget();
        }
        let at = now + self.draw(query.max_delay);
        // RFC 3376 section 5.2, rule 1: a pending answer about all groups that comes sooner will do.
        if self.general_at.is_some_and(|general| general <= at) {
            return;
        }
        let Some(group) = query.group else {
            return self.handle_general(now, at, query.max_delay);
        };
        let Some(member) = self.members.iter_mut().find(|m| m.group == group && m.sockets > 0)
        else {
            return;
        };
        if !is_reported(group) {
            return;
        }
        match member.answer_at {
            // Rule 3.
            None => (member.answer_at, member.asked) = (Some(at), query.sources.clone()),
            // Rules 4 and 5.
            Some(pending) => {
                member.answer_at = Some(pending.min(at));
                let all = query.sources.is_empty() || member.asked.is_empty();
                let new = query.sources.iter().filter(|a| !member.asked.contains(a));
                let new: Vec<_> = new.copied().collect();
                if all || member.asked.len() + new.len() > GROUP_QUERY_SOURCES {
                    member.asked = Vec::new();
                } else {
                    member.asked.extend(new);
                }
            }
        }
    }

    /// A query about all groups: the current version answers with one report, others with one for each.
    fn handle_general(&mut self, now: Instant, at: Instant, max_delay: Duration) {
        if self.version(now) == Version::Current {
            self.general_at = Some(at);
            return;
        }
        for member in self.members.iter_mut().filter(|m| m.sockets > 0 && is_reported(m.group)) {
            let at = now + draw(&mut self.random, max_delay);
            member.answer_at = Some(member.answer_at.map_or(at, |pending| pending.min(at)));
            member.asked = Vec::new();
        }
    }

    /// Another host reported the group, in an older version.
    pub(crate) fn handle_report(&mut self, now: Instant, group: IpAddr) {
        // RFC 3376 section 7.2.2 and RFC 2236 section 3: one of all is enough for an older router.
        if self.version(now) == Version::Current {
            return;
        }
        for member in self.members.iter_mut().filter(|m| m.group == group && m.sockets > 0) {
            (member.changes, member.answer_at) = (0, None);
        }
    }

    // Out.

    /// A report that is due, of at most `room` bytes; `None`: nothing more.
    pub(crate) fn poll_transmit(&mut self, now: Instant, room: usize) -> Option<Report> {
        if self.general_at.is_some_and(|at| at <= now) {
            self.general_at = None;
            for member in self.members.iter_mut().filter(|m| m.sockets > 0 && is_reported(m.group))
            {
                (member.answer_at, member.asked) = (Some(now), Vec::new());
            }
        }
        let report = match self.version(now) {
            Version::Current => self.poll_records(now, room),
            version => self.poll_one(now, version),
        };
        self.forget();
        report
    }

    fn poll_records(&mut self, now: Instant, room: usize) -> Option<Report> {
        let (mut records, mut len) = (Vec::new(), REPORT_LEN);
        for member in &mut self.members {
            let Member { group, sockets, .. } = *member;
            let is_change = member.changes > 0 && member.change_at <= now;
            let is_answer = !is_change && member.answer_at.is_some_and(|at| at <= now);
            if !is_change && !is_answer {
                continue;
            }
            let each = if group.is_ipv4() { 4 } else { 16 };
            let asked = if is_answer { member.asked.len() } else { 0 };
            len += 4 + each * (1 + asked);
            if len > room && !records.is_empty() {
                break;
            }
            let (kind, sources) = if is_change {
                member.changes -= 1;
                member.change_at = now + draw(&mut self.random, GROUP_REPORT_INTERVAL);
                let joined = sockets > 0;
                (if joined { RecordKind::ToExclude } else { RecordKind::ToInclude }, Vec::new())
            } else {
                member.answer_at = None;
                // RFC 3376 section 5.2: where all sources are wanted, so are those asked about.
                let sources = core::mem::take(&mut member.asked);
                let all = sources.is_empty();
                (if all { RecordKind::IsExclude } else { RecordKind::IsInclude }, sources)
            };
            records.push(Record { kind, group, sources });
        }
        (!records.is_empty()).then_some(Report::Records(records))
    }

    fn poll_one(&mut self, now: Instant, version: Version) -> Option<Report> {
        let is_due = |m: &&mut Member| {
            (m.changes > 0 && m.change_at <= now) || m.answer_at.is_some_and(|at| at <= now)
        };
        let member = self.members.iter_mut().find(is_due)?;
        if member.changes > 0 && member.change_at <= now {
            member.changes -= 1;
            member.change_at = now + draw(&mut self.random, GROUP_OLD_REPORT_INTERVAL);
        }
        if member.answer_at.is_some_and(|at| at <= now) {
            member.answer_at = None;
        }
        Some(Report::One { version, group: member.group, leaves: member.sockets == 0 })
    }

    /// When [`poll_transmit`](Self::poll_transmit) has a report.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        let changes = self.members.iter().filter(|m| m.changes > 0).map(|m| m.change_at);
        let answers = self.members.iter().filter_map(|m| m.answer_at);
        changes.chain(answers).chain(self.general_at).min()
    }

    /// RFC 3376 section 7.2.1: the version of the oldest router that sent a query lately.
    fn version(&self, now: Instant) -> Version {
        if now < self.oldest_until {
            Version::Oldest
        } else if now < self.older_until {
            Version::Older
        } else {
            Version::Current
        }
    }

    fn draw(&mut self, most: Duration) -> Duration {
        draw(&mut self.random, most)
    }

    /// Forgets groups that were left, once that was reported.
    fn forget(&mut self) {
        self.members.retain(|m| m.sockets > 0 || m.changes > 0);
    }
}

/// A random time of at most `most`.
fn draw(random: &mut Random, most: Duration) -> Duration {
    let micros = u32::try_from(most.as_micros()).unwrap_or(u32::MAX - 1);
    Duration::from_micros(u64::from(random.below(micros.max(1))) + 1)
}

/// Whether the group is reported. RFC 3376 section 5: not all systems; RFC 3810 section 6: nor all
/// nodes, nor groups whose scope ends at the interface or is reserved.
pub(crate) fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(a) => a.octets() != [224, 0, 0, 1],
        IpAddr::V6(a) => {
            let [_, flags_scope, ..] = a.octets();
            flags_scope & 0x0f > 1 && a.segments() != [0xff02, 0, 0, 0, 0, 0, 0, 1]
        }
    }
}
