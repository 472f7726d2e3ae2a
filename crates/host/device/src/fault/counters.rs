//! Counts of the faults of a line, and a view of them from outside of the device.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

pagewire_mem::counters! {
    /// Counts of a line, in frames: with [`FaultConfig::cut`](super::FaultConfig::cut), which is
    /// the default, in packets on the wire.
    ///
    /// `offered + duplicated` is `delivered`, plus everything lost, plus what is on the line.
    #[derive(Copy)]
    pub struct FaultCounters {
        /// Handed to the line.
        offered,
        /// Left the line, copies included.
        delivered,
        /// Lost by chance.
        lost,
        /// Lost because too many waited for the rate.
        lost_queue_full,
        /// Lost because the queue for the rate was long for too long ([`Aqm::Codel`](super::Aqm)).
        lost_early,
        /// Lost because the line can hold no more.
        lost_line_full,
        /// Marked because the queue for the rate was too long.
        marked,
        /// Nanoseconds that frames waited for the rate, in all.
        waited_ns,
        /// Copies made.
        duplicated,
        /// Delayed to be overtaken.
        reordered,
        /// Marked to be damaged.
        corrupted,
    }
}

/// Both directions, as seen from the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Both {
    pub(super) tx: FaultCounters,
    pub(super) rx: FaultCounters,
}

/// A view of bad lines from outside of their devices, on any thread. It adds up what those do that are
/// [`watched_by`](super::Fault::watched_by) it: several, or one after another.
///
/// ```
/// use pagewire_device::{Fault, FaultWatch, Pair};
///
/// let (device, _other) = Pair::new()?;
/// let watch = FaultWatch::default();
/// let device = Fault::new(device, "loss=1%,delay=10ms".parse()?).watched_by(&watch);
/// // The device goes into a host. This stays outside.
/// assert_eq!(watch.transmitted().lost, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultWatch(Arc<Mutex<Both>>);

impl FaultWatch {
    /// Counts of the frames that stacks sent.
    pub fn transmitted(&self) -> FaultCounters {
        self.both().tx
    }

    /// Counts of the frames for stacks.
    pub fn received(&self) -> FaultCounters {
        self.both().rx
    }

    /// Names and counts, the direction in front: `tx_lost`, `rx_lost`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
            let names = |of: &'static str| {
                FaultCounters::default().iter().map(move |(name, _)| format!("{of}_{name}"))
            };
            names("tx").chain(names("rx")).collect()
        });
        let Both { tx, rx } = self.both();
        let counts = tx.iter().chain(rx.iter()).map(|(_, n)| n);
        NAMES.iter().map(String::as_str).zip(counts)
    }

    fn both(&self) -> Both {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was counted from `before` to `after`.
    pub(super) fn add(&self, after: &Both, before: &Both) {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sum.tx.add(&after.tx.since(&before.tx));
        sum.rx.add(&after.rx.since(&before.rx));
    }
}
