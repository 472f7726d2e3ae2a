//! The most memory that a round takes at one time.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::failure::Failure;
use crate::kit::machine::resident;

/// Time between two samples of memory.
const CHECK_TIME: Duration = Duration::from_millis(5);

/// Bytes of memory, above what there was before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Memory of this process: both programs, and Pagewire's stacks.
    pub(super) process: u64,
    /// Memory of all TCP sockets of the kernel.
    pub(super) kernel: u64,
}

impl Memory {
    pub(super) const fn all(&self) -> u64 {
        self.process + self.kernel
    }

    fn now() -> Self {
        let sockets = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
        let tcp = sockets.lines().find_map(|line| line.strip_prefix("TCP: "));
        let pages = tcp.and_then(|tcp| tcp.split_once(" mem ")?.1.parse::<u64>().ok());
        Self {
            process: resident().unwrap_or_default(),
            kernel: pages.unwrap_or_default() * rustix::param::page_size() as u64,
        }
    }

    fn above(self, base: Self) -> Self {
        Self {
            process: self.process.saturating_sub(base.process),
            kernel: self.kernel.saturating_sub(base.kernel),
        }
    }
}

/// Runs a round, and returns the most memory that it took: both parts of one moment.
pub(super) fn watched<T>(
    round: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, Memory), Failure> {
    let base = Memory::now();
    let (over, is_over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watching = scope.spawn(move || {
            let mut most = Memory::default();
            while is_over.recv_timeout(CHECK_TIME) == Err(RecvTimeoutError::Timeout) {
                let now = Memory::now().above(base);
                if now.all() > most.all() {
                    most = now;
                }
            }
            most
        });
        let done = round();
        drop(over);
        let most = watching.join().unwrap_or_default();
        Ok((done?, most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_round_took_and_gave_back_is_seen() {
        let len = 64 << 20;
        let round = || {
            let bytes = vec![1u8; len];
            std::thread::sleep(20 * CHECK_TIME);
            Ok(std::hint::black_box(bytes).len())
        };
        let (_, most) = watched(round).unwrap();
        assert!(most.process >= len as u64, "{most:?}");
        assert_eq!(most.all(), most.process + most.kernel);
    }
}
