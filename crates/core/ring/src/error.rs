//! Errors of a registration: why memory or a ring is refused, with Linux's numbers.

use pagewire_mem::MemError;
use pagewire_mem::link::BindError;

/// Why a registration failed; nothing is registered then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The number of entries is not a power of two.
    #[error("a ring has a power of two of entries, not {0}")]
    NotPowerOfTwo(u32),
    /// The number of entries is 0 or beyond the limit.
    #[error("a ring has 1 to {max} entries, not {0}", max = crate::limits::MAX_RING_ENTRIES)]
    Entries(u32),
    /// The region does not begin on a page.
    #[error("the region begins at {0:#x}, which is no multiple of 4096")]
    Unaligned(usize),
    /// The region's length is not a multiple of groups of pages, or is beyond the limit.
    #[error("the region has {0} bytes: it needs a positive multiple of 256 KiB, up to 4 GiB")]
    Length(usize),
    /// The stack may not write the region.
    #[error("the region is read-only")]
    ReadOnly,
    /// The threshold is more than half of the region's buffers: closed windows could never open again.
    #[error("a threshold of {0} buffers is more than half of the region's")]
    Threshold(usize),
    /// The region shares bytes with a registered one.
    #[error("the region overlaps with group {0}")]
    Overlap(u16),
    /// The region has another use.
    #[error("the region is in use: {0}")]
    InUse(MemError),
    /// The engine has as many groups as it takes.
    #[error("no more than {max} groups can be registered", max = crate::limits::MAX_GROUPS)]
    TooManyGroups,
    /// The engine has as many sockets as it takes.
    #[error("no more than {max} sockets can be registered", max = crate::limits::MAX_SOCKETS)]
    TooManySockets,
    /// More memory than the engine may register.
    #[error("{wanted} bytes more than the {limit} that may be registered")]
    Memory {
        /// Bytes beyond the limit.
        wanted: usize,
        /// The limit.
        limit: usize,
    },
    /// The device's queue has other memory already.
    #[error("queue {0} of the device is taken")]
    QueueTaken(usize),
    /// The kernel does not attach the device's queue, for this reason.
    #[error("queue {0} of the device cannot be attached: {1}")]
    Attach(usize, std::io::ErrorKind),
    /// A rule already leads to another queue.
    #[error("the same rule leads to queue {0} of the device")]
    Steered(usize),
    /// The device has no such queue.
    #[error("the device has no queue {0}")]
    NoQueue(usize),
    /// The device cannot receive into memory of the application.
    #[error("the device cannot receive into registered memory: wrap it in Queues")]
    Unsupported,
    /// The device reads headers from received memory, and the region counts as shared.
    #[error("the device needs memory that nobody else writes: a region that is not shared")]
    Shared,
    /// The device takes no more rules.
    #[error("the device takes no more than {max} rules", max = pagewire_mem::link::limits::MAX_RULES)]
    TooManyRules,
    /// The rings' host or engine is gone.
    #[error("the host does not serve these rings any more")]
    Gone,
    /// No group has this number.
    #[error("group {0} is not registered")]
    NoGroup(u16),
    /// The system refused memory.
    #[error(transparent)]
    System(#[from] MemError),
}

impl From<BindError> for RegisterError {
    fn from(why: BindError) -> Self {
        match why {
            BindError::Unsupported => Self::Unsupported,
            BindError::NoQueue(queue) => Self::NoQueue(queue),
            BindError::Taken(queue) => Self::QueueTaken(queue),
            BindError::Attach(queue, why) => Self::Attach(queue, why),
            BindError::Shared => Self::Shared,
            BindError::Steered(queue) => Self::Steered(queue),
            BindError::TooManyRules => Self::TooManyRules,
        }
    }
}

impl RegisterError {
    /// Linux's number for this error (`errno(3)`), as io_uring would return it.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotPowerOfTwo(_)
            | Self::Entries(_)
            | Self::Unaligned(_)
            | Self::Length(_)
            | Self::Threshold(_)
            | Self::TooManyGroups => 22, // EINVAL
            Self::ReadOnly | Self::Shared => 14, // EFAULT
            Self::Overlap(_) | Self::InUse(_) | Self::QueueTaken(_) | Self::Steered(_) => 17, // EEXIST
            Self::Memory { .. } | Self::System(_) => 12, // ENOMEM
            Self::TooManySockets => 24,                  // EMFILE
            Self::TooManyRules => 28,                    // ENOSPC
            Self::NoQueue(_) | Self::Gone => 19,         // ENODEV
            Self::Attach(..) => 5,                       // EIO
            Self::Unsupported => 95,                     // EOPNOTSUPP
            Self::NoGroup(_) => 6,                       // ENXIO
        }
    }
}
