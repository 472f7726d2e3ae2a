//! Settings of a connection.

use std::io;
use std::time::Duration;

use pagewire_stack::TcpOption;

use super::stream::TcpStream;

impl TcpStream {
    fn set(&self, option: TcpOption) -> io::Result<()> {
        self.socket.with(|stack, now| stack.as_tcp(self.socket.id)?.set_option(now, option))
    }

    /// Whether small segments leave at once (`TCP_NODELAY`).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket.with(|stack, _| Ok(stack.as_tcp(self.socket.id)?.nodelay()))
    }

    /// Sets whether small segments leave at once, without the Nagle algorithm.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set(TcpOption::NoDelay(nodelay))
    }

    /// Whether acknowledgements leave at once (`TCP_QUICKACK`).
    pub fn quickack(&self) -> io::Result<bool> {
        self.socket.with(|stack, _| Ok(stack.as_tcp(self.socket.id)?.quick_ack()))
    }

    /// Sets whether acknowledgements leave at once, until the connection decides anew.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.set(TcpOption::QuickAck(quickack))
    }

    /// How long a close waits for queued data (`SO_LINGER`), in whole seconds.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.socket.with(|stack, _| Ok(stack.as_tcp(self.socket.id)?.config().linger))
    }

    /// Sets how long a close waits for queued data, cut to whole seconds. With zero, a drop resets
    /// the connection; otherwise it closes in the background.
    #[deprecated = "`SO_LINGER` causes the socket to block the thread on drop"]
    pub fn set_linger(&self, dur: Option<Duration>) -> io::Result<()> {
        self.set(TcpOption::Linger(whole_seconds(dur)))
    }

    /// The drop resets the connection.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set(TcpOption::Linger(Some(Duration::ZERO)))
    }

    /// The time to live of packets (`IP_TTL`).
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// Sets the time to live of packets.
    ///
    /// # Errors
    /// `InvalidInput` unless it is 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }
}

/// As `struct linger` has them.
pub(super) fn whole_seconds(linger: Option<Duration>) -> Option<Duration> {
    linger.map(|time| Duration::from_secs(time.as_secs()))
}
