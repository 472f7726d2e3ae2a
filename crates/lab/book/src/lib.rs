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
    bridging "../../../../docs/BRIDGING.md"
    coming_from_gvisor "../../../../docs/COMING-FROM-GVISOR.md"
    coming_from_io_uring "../../../../docs/COMING-FROM-IO-URING.md"
    coming_from_smoltcp "../../../../docs/COMING-FROM-SMOLTCP.md"
    coming_from_sockets "../../../../docs/COMING-FROM-SOCKETS.md"
    coming_from_turmoil "../../../../docs/COMING-FROM-TURMOIL.md"
    determinism "../../../../docs/DETERMINISM.md"
    embedding "../../../../docs/EMBEDDING.md"
    failing_seeds "../../../../docs/FAILING-SEEDS.md"
    getting_started "../../../../docs/GETTING-STARTED.md"
    guest_port "../../../../docs/GUEST-PORT.md"
    ipv6 "../../../../docs/IPV6.md"
    mapped_receive "../../../../docs/MAPPED-RECEIVE.md"
    observing "../../../../docs/OBSERVING.md"
    proxy "../../../../docs/PROXY.md"
    rings "../../../../docs/RINGS.md"
    server "../../../../docs/SERVER.md"
    several_hosts "../../../../docs/SEVERAL-HOSTS.md"
    simulation "../../../../docs/SIMULATION.md"
    sockets "../../../../docs/SOCKETS.md"
    testing "../../../../docs/TESTING.md"
    zero_copy_send "../../../../docs/ZERO-COPY-SEND.md"
}
