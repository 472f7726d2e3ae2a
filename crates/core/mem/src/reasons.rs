//! Enumerations of reasons, each with a name, and tables that count by them: drops of a crate, copies.

use core::fmt;

/// Declares an enum of reasons: what is done for them, then meaning, name, and stable name of each.
#[doc(hidden)]
#[macro_export]
macro_rules! reasons {
    ($reasons:ident: $what:literal; $($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $reasons {
            $($(#[$doc])+ $variant,)+
        }

        impl $reasons {
            /// All reasons, in the order of `reason as usize`: for tables of counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Name in reports, in snake case; never changes once released.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl $crate::Reason for $reasons {
            const ALL: &'static [Self] = Self::ALL;

            #[inline]
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// An enum that the macro `reasons` declares.
#[doc(hidden)]
pub trait Reason: Copy + 'static {
    /// Every reason, in the order of the indices.
    const ALL: &'static [Self];

    /// The index in a table of counters.
    fn index(self) -> usize;
}

/// A count for each of `N` reasons.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tally<R, const N: usize> {
    counts: [u64; N],
    of: core::marker::PhantomData<R>,
}

impl<R: Reason, const N: usize> Tally<R, N> {
    /// Counters of zero.
    pub const fn new() -> Self {
        Self { counts: [0; N], of: core::marker::PhantomData }
    }

    /// Counts `n` more.
    #[inline]
    pub fn note(&mut self, reason: R, n: u64) {
        if let Some(count) = self.counts.get_mut(reason.index()) {
            *count += n;
        }
    }

    /// The count for a reason.
    pub fn get(&self, reason: R) -> u64 {
        self.counts.get(reason.index()).copied().unwrap_or(0)
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (R, u64)> + '_ {
        R::ALL.iter().copied().zip(self.counts)
    }

    /// The sum for all reasons.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds the counts of another one to these.
    pub fn add(&mut self, other: &Self) {
        for (n, m) in self.counts.iter_mut().zip(other.counts) {
            *n += m;
        }
    }

    /// The growth since the counts were `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = *self;
        for (n, m) in since.counts.iter_mut().zip(earlier.counts) {
            *n = n.saturating_sub(m);
        }
        since
    }
}

impl<R: Reason, const N: usize> Default for Tally<R, N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The counts, in order.
impl<R, const N: usize> fmt::Debug for Tally<R, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.fmt(f)
    }
}
