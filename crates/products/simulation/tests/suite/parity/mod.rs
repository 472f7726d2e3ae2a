//! `pagewire::net` and `pagewire_simulation::net` behave as `tokio::net`: the same cases are compiled three
//! times, with tokio's sockets on the kernel's loopback, with those of a host, and with those of a
//! simulation. What a case asserts holds for all. A case has ten seconds of real time.

/// Makes a test of each case.
macro_rules! cases {
    ($($(#[$meta:meta])* async fn $name:ident() $body:block)*) => {$(
        $(#[$meta])*
        #[test]
        fn $name() {
            super::run(async {
                $body
                Ok(())
            });
        }
    )*};
}

mod host;
mod real;
mod simulated;
