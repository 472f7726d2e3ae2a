//! The network between hosts: addresses and names, links with faults, and what routers send.

pub(crate) mod icmp;
pub(crate) mod link;
pub(crate) mod names;
pub(crate) mod path;
pub(crate) mod routing;
pub(crate) mod summary;
