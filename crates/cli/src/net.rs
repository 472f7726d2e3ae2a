//! From network options to a running host.

use std::net::IpAddr;

use pagewire::Host;

use crate::args::{Link, NetOptions};
use crate::failure::Failure;
use crate::serve::unspecified;

/// A host on the link that was asked for.
pub(crate) struct Opened {
    pub(crate) host: Host,
    /// Ours.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Opened {
    /// The unspecified address of each IP version that we have an address of.
    pub(crate) fn unspecified(&self) -> Vec<IpAddr> {
        let mut all: Vec<_> = self.addresses.iter().copied().map(unspecified).collect();
        all.sort();
        all.dedup();
        all
    }
}

pub(crate) fn open(options: &NetOptions) -> Result<Opened, Failure> {
    if options.link == Link::Pair {
        return Err(Failure::Usage("x".into()));
    }
    Err(Failure::Failed("not yet".into()))
}
