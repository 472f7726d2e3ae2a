//! [`counters!`](crate::counters): the declaration of a struct of counters with the names that reports show.

/// Declares a struct of counters: the meaning and the name of each, which is also its name in
/// reports. Fields that are no plain counters follow, if there are any: types with methods `add` and `since`.
#[doc(hidden)]
#[macro_export]
macro_rules! counters {
    (
        $(#[$about:meta])+
        pub struct $counters:ident {
            $($(#[$doc:meta])+ $name:ident,)+
        }
        $({ $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ })?
    ) => {
        $(#[$about])+
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $counters {
            $($(#[$doc])+ pub $name: u64,)+
            $($($(#[$field_doc])* $field: $type,)+)?
        }

        impl $counters {
            /// Every plain counter with its name, in the order of a report.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            /// Adds the counts of another one to these.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)+
                $($(self.$field.add(&other.$field);)+)?
            }

            /// The growth since the counts were `earlier`.
            pub fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($name: self.$name.saturating_sub(earlier.$name),)+
                    $($($field: self.$field.since(&earlier.$field),)+)?
                }
            }
        }
    };
}
