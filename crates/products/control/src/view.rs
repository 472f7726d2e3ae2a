//! [`View`]: the hosts that are shown, and the answers to requests about them.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pagewire::{Cores, Host, WeakHost};

use crate::firewall::{self, Firewall};
use crate::limits::{SOCKETS_BY_DEFAULT, SOCKETS_PER_ANSWER};
use crate::protocol::{Answer, Ask, Info, SocketPage, Stats, VERSION};
use crate::snapshot::{MemoryFile, Shard, add_sockets, host_info, stats_of};

/// Names and values of one part of the program.
pub(crate) type Section = Box<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// A host that is shown. It is not kept running for that.
pub(crate) struct ShownHost {
    name: String,
    /// The host, or the shard of each core.
    shards: Vec<WeakHost>,
}

impl ShownHost {
    pub(crate) fn one(name: &str, host: &Host) -> Self {
        Self { name: name.to_owned(), shards: vec![host.downgrade()] }
    }

    pub(crate) fn several(name: &str, cores: &Cores) -> Self {
        let shards = cores.shards().iter().map(Host::downgrade).collect();
        Self { name: name.to_owned(), shards }
    }
}

/// The hosts and sections of counters that are shown.
pub(crate) struct View {
    pub(crate) hosts: Mutex<Vec<ShownHost>>,
    pub(crate) sections: Vec<(String, Section)>,
    pub(crate) firewall: Option<Arc<dyn Firewall>>,
    pub(crate) began: Instant,
    pub(crate) memory: MemoryFile,
    pub(crate) command: Vec<String>,
}

/// Bits of a page's cursor below the number of the shard, counted over all hosts: the index of the socket.
const SHARD_SHIFT: u32 = 32;

impl View {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<ShownHost>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hosts that there are, each with its name and its shards.
    fn hosts(&self) -> Vec<(String, Vec<Shard>)> {
        let (hosts, mut next) = (self.lock(), 0);
        let mut up = Vec::new();
        for ShownHost { name, shards } in hosts.iter() {
            let is_one = shards.len() == 1;
            let shard = |(index, host): (usize, &WeakHost)| {
                let core = (!is_one).then_some(index as u32);
                Some(Shard { number: next + index, core, host: host.upgrade()? })
            };
            let running: Vec<_> = shards.iter().enumerate().filter_map(shard).collect();
            next += shards.len();
            if !running.is_empty() {
                up.push((name.clone(), running));
            }
        }
        up
    }

    /// The answer to the client of this socket.
    pub(crate) fn answer(&self, ask: &Ask, client: BorrowedFd<'_>) -> Answer {
        match ask {
            Ask::Info => Answer::Info(self.info()),
            Ask::Stats => Answer::Stats(self.stats()),
            Ask::Sockets { after, limit } => {
                let limit = limit.unwrap_or(SOCKETS_BY_DEFAULT).clamp(1, SOCKETS_PER_ANSWER);
                Answer::Sockets(self.sockets(after.unwrap_or(0), limit as usize))
            }
            Ask::Rules | Ask::Flows { .. } | Ask::Refusals | Ask::Change(_) => {
                firewall::answer(self.firewall.as_deref(), ask, client)
            }
        }
    }

    fn info(&self) -> Info {
        Info {
            version: VERSION,
            pagewire: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            command: self.command.clone(),
            uptime_seconds: self.began.elapsed().as_secs_f64(),
            hosts: self.hosts().iter().filter_map(|(name, of)| host_info(name, of)).collect(),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let section = |(name, read): &(String, Section)| {
            let values = read().into_iter().map(|(name, value)| (name.to_owned(), value));
            (name.clone(), values.collect())
        };
        Stats {
            uptime_seconds: self.began.elapsed().as_secs_f64(),
            pagewire: env!("CARGO_PKG_VERSION").to_owned(),
            hosts: self.hosts().iter().filter_map(|(name, of)| stats_of(name, of)).collect(),
            sections: self.sections.iter().map(section).collect(),
            memory: self.memory.read(),
        }
    }

    fn sockets(&self, after: u64, limit: usize) -> SocketPage {
        let mut page = SocketPage::default();
        let first = (after >> SHARD_SHIFT) as usize;
        let mut from = after as u32;
        for (name, shards) in self.hosts() {
            for shard in shards.into_iter().filter(|shard| shard.number >= first) {
                // The shard that the cursor was in may be gone.
                let place = if shard.number == first { from } else { 0 };
                if let Some(next) = add_sockets((&name, &shard), place, limit, &mut page) {
                    page.next = Some((shard.number as u64) << SHARD_SHIFT | u64::from(next));
                    return page;
                }
                from = 0;
            }
        }
        page
    }
}
