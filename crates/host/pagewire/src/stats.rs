//! [`Stats`]: the counts of a host at one moment, and their report as text.

use std::fmt;

use pagewire_device::DeviceCounters;
use pagewire_mem::CopyLedger;
use pagewire_stack::{Counters, LinkId};

use crate::contain::Contained;

/// Counts of one host at one moment. `Display` is the report of `--stats`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Payload bytes copied, by reason.
    pub ledger: CopyLedger,
    /// Packets, connections, drops by reason.
    pub counters: Counters,
    /// Counts of the device; of the first link's, if there are several.
    pub device: DeviceCounters,
    /// Every link, the first included.
    pub links: Vec<LinkStats>,
    /// Bytes of memory that sockets pin for data that is unread or forwarded.
    pub receive_memory: usize,
    /// Bytes of memory that sockets pin of all kinds, copies of what is sent included.
    pub memory: usize,
    /// Bytes of memory that they may pin ([`HostBuilder::memory`](crate::HostBuilder::memory)).
    pub memory_limit: usize,
    /// Bytes of windows that peers were promised, and have not used.
    pub memory_promised: usize,
    /// Waiting threads that were woken.
    pub wakeups: u64,
    /// The first failure of a device as a whole, if there was one.
    pub device_error: Option<String>,
    /// Contained panics of the application's code.
    pub contained: Contained,
    /// Why the host has failed, if it has: a panic of this crate's code. All sockets fail then.
    pub failed: Option<String>,
}

impl Stats {
    /// Adds the counts of another shard of the host.
    pub(crate) fn add(&mut self, other: &Self) {
        self.ledger.add(&other.ledger);
        self.counters.add(&other.counters);
        self.device.add(&other.device);
        for (link, of) in self.links.iter_mut().zip(&other.links) {
            link.device.add(&of.device);
            link.device_error = link.device_error.take().or_else(|| of.device_error.clone());
        }
        self.receive_memory += other.receive_memory;
        self.memory += other.memory;
        self.memory_limit += other.memory_limit;
        self.memory_promised += other.memory_promised;
        self.wakeups += other.wakeups;
        self.device_error = self.device_error.take().or_else(|| other.device_error.clone());
        self.contained.add(other.contained);
        self.failed = self.failed.take().or_else(|| other.failed.clone());
    }
}

/// Counts of one link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkStats {
    /// The link.
    pub link: LinkId,
    /// Counts of its device.
    pub device: DeviceCounters,
    /// The first failure of its device as a whole, if there was one.
    pub device_error: Option<String>,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "payload bytes copied: {} by the stack", self.ledger.ours())?;
        for (reason, bytes) in self.ledger.iter().filter(|(_, bytes)| *bytes > 0) {
            writeln!(f, "  {:<24} {bytes}", reason.name())?;
        }
        let several = self.links.len() > 1;
        let name = |link: &LinkStats| match several {
            true => format!("device of link {}", link.link.index()),
            false => "device".to_owned(),
        };
        if !several {
            writeln!(f, "device")?;
            report(f, &self.device)?;
        }
        for link in self.links.iter().filter(|_| several) {
            writeln!(f, "{}", name(link))?;
            report(f, &link.device)?;
        }
        write!(f, "{}", self.counters)?;
        if self.contained != Contained::default() {
            write!(f, "panics contained\n{}", self.contained)?;
        }
        if let Some(why) = &self.failed {
            writeln!(f, "host failed: {why}")?;
        }
        for link in &self.links {
            if let Some(error) = &link.device_error {
                writeln!(f, "{} failed: {error}", name(link))?;
            }
        }
        Ok(())
    }
}

fn report(f: &mut fmt::Formatter<'_>, d: &DeviceCounters) -> fmt::Result {
    for (name, value) in d.iter() {
        if value > 0 {
            writeln!(f, "  {name:<24} {value}")?;
        }
    }
    Ok(())
}
