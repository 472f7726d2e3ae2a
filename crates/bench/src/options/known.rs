//! What is known of a measurement before it runs.

use super::{Bench, Link, StreamLink};

impl Bench {
    /// As on the command line.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Stream(_) => "stream",
            Self::Send(_) => "send",
            Self::Path(_) => "path",
            Self::Share(_) => "share",
            Self::Receive(_) => "receive",
            Self::Ring(_) => "ring",
            Self::Rr(_) => "rr",
            Self::Idle(_) => "idle",
            Self::Port(_) => "port",
            Self::Requests(_) => "requests",
            Self::Connections(_) => "connections",
            Self::Crowd(_) => "crowd",
            Self::Gateway(_) => "gateway",
            Self::Sim(_) => "sim",
        }
    }

    /// Whether it makes taps and namespaces.
    pub(crate) fn needs_root(&self) -> bool {
        match self {
            Self::Stream(options) => options.link == StreamLink::Tap,
            Self::Send(options) => options.link == Link::Tap,
            Self::Receive(options) => options.link == Link::Tap,
            Self::Ring(options) => options.link == Link::Tap && !options.place,
            Self::Requests(options) => options.link == Link::Tap,
            Self::Connections(options) => options.link == Link::Tap,
            Self::Crowd(options) => options.link == Link::Tap,
            Self::Path(_) | Self::Share(_) | Self::Gateway(_) => true,
            Self::Rr(_) | Self::Idle(_) | Self::Port(_) | Self::Sim(_) => false,
        }
    }

    /// Whether it writes to standard error meanwhile, where a line of progress would be in the way.
    pub(crate) fn writes_while_measuring(&self) -> bool {
        match self {
            Self::Stream(options) => options.common.stats,
            Self::Send(options) => options.common.stats,
            Self::Path(options) => options.common.stats,
            Self::Share(options) => options.common.stats,
            Self::Receive(options) => options.common.stats,
            Self::Ring(options) => options.common.stats,
            Self::Rr(options) => options.common.stats,
            Self::Port(options) => options.common.stats,
            Self::Requests(options) => options.common.stats,
            Self::Connections(options) => options.common.stats,
            Self::Crowd(options) => options.common.stats,
            Self::Gateway(options) => options.common.stats,
            Self::Sim(options) => options.here,
            Self::Idle(_) => false,
        }
    }
}
