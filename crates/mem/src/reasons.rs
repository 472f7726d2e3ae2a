//! The list of reasons for which a crate drops packets.

/// Declares an enum of drop reasons: name and meaning, then the same and a stable name of each.
#[doc(hidden)]
#[macro_export]
macro_rules! drop_reasons {
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
    };
}
