//! The Rust of the book in `docs/`, as doc tests: each page with such blocks is one module here.
//! `tests/pages.rs` checks that no page is left out, and everything else about the pages.

/// Makes a module of each page, whose blocks are tests.
macro_rules! pages {
    ($($name:ident $page:literal)*) => {$(
        #[cfg(doctest)]
        #[doc = include_str!($page)]
        mod $name {}
    )*};
}

pages! {
    embedding "../../../../docs/EMBEDDING.md"
    getting_started "../../../../docs/GETTING-STARTED.md"
    guest_port "../../../../docs/GUEST-PORT.md"
    ipv6 "../../../../docs/IPV6.md"
    mapped_receive "../../../../docs/MAPPED-RECEIVE.md"
    observing "../../../../docs/OBSERVING.md"
    proxy "../../../../docs/PROXY.md"
    rings "../../../../docs/RINGS.md"
    server "../../../../docs/SERVER.md"
    simulation "../../../../docs/SIMULATION.md"
    sockets "../../../../docs/SOCKETS.md"
    testing "../../../../docs/TESTING.md"
    tuning "../../../../docs/TUNING.md"
    zero_copy_send "../../../../docs/ZERO-COPY-SEND.md"
}
