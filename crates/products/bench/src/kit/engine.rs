//! The engines that most measurements compare: Pagewire on a link, and the kernel beside it.

use crate::args::Link;
use crate::kit::kernel::Between;

/// An engine on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Pair,
    Tap,
    Kernel(Between),
}

impl Engine {
    /// The engines that are compared: ours, and the kernel.
    pub(crate) const fn on(link: Link, mtu: Option<u32>) -> [Self; 2] {
        match link {
            Link::Pair => [Self::Pair, Self::Kernel(Between::Loopback)],
            Link::Tap => [Self::Tap, Self::Kernel(Between::Veth { mtu })],
        }
    }

    pub(crate) const fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel(_))
    }

    /// The engine and its link, as results have them.
    pub(crate) fn names(self) -> (String, &'static str) {
        let (engine, link) = match self {
            Self::Pair => ("pagewire", "pair"),
            Self::Tap => ("pagewire", "tap"),
            Self::Kernel(Between::Loopback) => ("kernel", "loopback"),
            Self::Kernel(Between::Veth { .. }) => ("kernel", "veth"),
        };
        (engine.to_owned(), link)
    }
}
