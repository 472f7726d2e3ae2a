//! Options that were set on a socket, which keeps them from one connection to the next.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use pagewire_mem::Instant;
use pagewire_stack::{
    GroupLink, KeepAlive, Memberships, OptionName, SocketId, SocketOptions, Stack, TcpConfig,
    option,
};

/// The options of a socket, and the groups that it joined before the stack had a socket for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    set: SocketOptions,
    pub(crate) groups: Memberships,
}

impl Deref for Options {
    type Target = SocketOptions;
    fn deref(&self) -> &SocketOptions {
        &self.set
    }
}

impl DerefMut for Options {
    fn deref_mut(&mut self) -> &mut SocketOptions {
        &mut self.set
    }
}

impl Options {
    /// The options that an accepted connection inherits from its listener.
    pub(crate) fn inherited(&self) -> Self {
        let mut own = self.clone();
        own.unset(OptionName::Inq);
        own.unset(OptionName::EveryArrival);
        own
    }

    /// Bytes that end a wait to read.
    pub(crate) fn lowat(&self) -> usize {
        self.value(option::RcvLowat).max(1) as usize
    }

    /// The times of keep-alive, which may be off.
    pub(crate) fn keepalive(&self) -> KeepAlive {
        KeepAlive {
            idle: self.value(option::KeepIdle),
            interval: self.value(option::KeepInterval),
            probes: self.value(option::KeepCount),
        }
    }

    pub(crate) fn config(&self, stack: &Stack) -> Arc<TcpConfig> {
        self.set.config(stack.default_config())
    }

    /// Sets the options of a new socket of the stack's.
    pub(crate) fn apply(&self, stack: &mut Stack, now: Instant, id: SocketId) {
        stack.set_options(id, &self.set);
        if let Ok(mut udp) = stack.as_udp(id) {
            for (group, link) in self.groups.iter() {
                let _ = udp.join_group(now, group, GroupLink::Number(link.scope_id()));
            }
        }
    }
}
