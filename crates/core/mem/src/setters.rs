//! [`setters!`](crate::setters): the methods of a builder that change one setting each.

/// Declares methods of a builder that change one setting each: the method and its argument, the setting,
/// its new value. Documentation above the builder's name is that of the `impl` block.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($(#[$about:meta])* $Builder:ty: $(
        $(#[$doc:meta])+
        $name:ident($arg:ident: $kind:ty): $($setting:ident).+ = $value:expr;
    )+) => {
        $(#[$about])*
        impl $Builder {$(
            $(#[$doc])+
            pub fn $name(mut self, $arg: $kind) -> Self {
                self.$($setting).+ = $value;
                self
            }
        )+}
    };
}
