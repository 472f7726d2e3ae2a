//! [`View`]: the hosts that are shown, and the answers to requests about them.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pagewire::{Host, WeakHost};

use crate::firewall::{self, Firewall};
use crate::limits::{SOCKETS_BY_DEFAULT, SOCKETS_PER_ANSWER};
use crate::protocol::{Answer, Ask, Info, SocketPage, Stats, VERSION};
use crate::snapshot::{MemoryFile, add_sockets, host_info, host_stats};

/// Names and values of one part of the program.
pub(crate) type Section = Box<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// The hosts and sections of counters that are shown.
pub(crate) struct View {
    pub(crate) hosts: Mutex<Vec<(String, WeakHost)>>,
    pub(crate) sections: Vec<(String, Section)>,
    pub(crate) firewall: Option<Arc<dyn Firewall>>,
    pub(crate) began: Instant,
    pub(crate) memory: MemoryFile,
    pub(crate) command: Vec<String>,
}

/// Bits of a page's cursor below the number of the host: the index of the socket.
const HOST_SHIFT: u32 = 32;

impl View {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<(String, WeakHost)>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hosts that there are. Their numbers stay: they are part of cursors.
    fn hosts(&self) -> Vec<(usize, String, Host)> {
        let hosts = self.lock();
        let up = hosts.iter().enumerate();
        up.filter_map(|(at, (name, host))| Some((at, name.clone(), host.upgrade()?))).collect()
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
            hosts: self.hosts().iter().map(|(_, name, host)| host_info(name, host)).collect(),
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
            hosts: self.hosts().iter().map(|(_, name, host)| host_stats(name, host)).collect(),
            sections: self.sections.iter().map(section).collect(),
            memory: self.memory.read(),
        }
    }

    fn sockets(&self, after: u64, limit: usize) -> SocketPage {
        let mut page = SocketPage::default();
        let first = (after >> HOST_SHIFT) as usize;
        let mut from = after as u32;
        for (at, name, host) in self.hosts().into_iter().filter(|(at, _, _)| *at >= first) {
            // The host that the cursor was in may be gone.
            let place = if at == first { from } else { 0 };
            if let Some(next) = add_sockets((&name, &host), place, limit, &mut page) {
                page.next = Some((at as u64) << HOST_SHIFT | u64::from(next));
                return page;
            }
            from = 0;
        }
        page
    }
}
