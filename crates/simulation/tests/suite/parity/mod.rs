//! `pagewire_simulation::net` behaves as `tokio::net`: the same cases are compiled twice, once with
//! tokio's sockets on the kernel's loopback, once with ours in a simulation. What a case asserts
//! holds for both. tokio's side has ten seconds of real time a case.

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

mod real;
mod simulated;
