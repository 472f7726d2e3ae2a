//! The machine that a measurement runs on, its processors, and the threads that are pinned to them.

use std::fs;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rustix::system::uname;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::{Because, Failure};

/// The machine that figures depend on.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn describe() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        let cpu = model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned());
        let kernel = uname().release().to_string_lossy().into_owned();
        Self { cpu, cpus: processors().len(), kernel }
    }
}

/// End of a heading whose table has the lowest and the highest beside the median.
pub(crate) const SPREAD: &str = " (lowest and highest beside them)";

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} CPU(s) {}, Linux {}", self.cpus, self.cpu, self.kernel)
    }
}

/// The number in the line of a file that begins with `name`, as in `MemTotal:  2048 kB`.
pub(crate) fn number_in(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes of memory that this process has.
pub(crate) fn resident() -> Result<u64, Failure> {
    let statm = "/proc/self/statm";
    let text = fs::read_to_string(statm).because(statm)?;
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Failure::because(statm, "not understood"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// The processors that this process may use.
pub(crate) fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// The processors of the two sides: two different ones, if there are two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides {
    pub(crate) left: Option<usize>,
    pub(crate) right: Option<usize>,
}

impl Sides {
    /// Chosen before any thread is pinned.
    pub(crate) fn choose() -> Self {
        let allowed = processors();
        let left = allowed.first().copied();
        Self { left, right: allowed.get(1).copied().or(left) }
    }
}

/// Keeps this thread, and those that it starts, on one processor.
pub(crate) fn pin(cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu);
        // Refused: the figure is less steady, not wrong.
        let _ = sched_setaffinity(None, &set);
    }
}

/// The result of a thread of the measurement.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, Failure>>) -> Result<T, Failure> {
    let died = |_| Err(Failure::Failed("a thread of the measurement died".into()));
    thread.join().unwrap_or_else(died)
}

/// Runs something on a thread of its own, which may be pinned and may change its network namespace.
pub(crate) fn on_a_thread<T: Send>(
    run: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| joined(scope.spawn(run)))
}

/// The sleep of a thread that waits for something rare and need not be quick.
pub(crate) fn nap() {
    std::thread::park_timeout(Duration::from_millis(1));
}
