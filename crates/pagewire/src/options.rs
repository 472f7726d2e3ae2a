//! Streams and listeners: options and verbs that `std::net` does not have.

use std::io;
use std::time::Duration;

use pagewire_stack::{
    Error, KeepAlive, OptionKey, RecvFlags, SendFlags, SocketId, SocketOption, TcpConfig,
    TcpOption, limits, option,
};

use crate::buf::SendBuf;
use crate::error::io_error;
use crate::socket::Socket;
use crate::stream::{TcpListener, TcpStream};
use crate::waiters::Interest;

/// Settings with the names of `std` and of the crate `socket2`. For all others, see
/// [`set_option`](TcpStream::set_option) and [`config`](TcpStream::config).
impl TcpStream {
    /// Whether small segments leave at once; see [`set_nodelay`](Self::set_nodelay).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.0.ask(|tcp| tcp.nodelay())
    }

    /// Probes an idle connection, and ends it when the peer does not answer; `None`, the default: never.
    pub fn set_keepalive(&self, probes: Option<KeepAlive>) -> io::Result<()> {
        self.set_option(TcpOption::KeepAlive(probes))
    }

    /// See [`set_keepalive`](Self::set_keepalive).
    pub fn keepalive(&self) -> io::Result<Option<KeepAlive>> {
        self.config().map(|config| config.keepalive)
    }

    /// `Some` zero: a drop of the connection resets it, and queued data is lost. `None` and other times:
    /// queued data is delivered after the drop, which never waits for that; see
    /// [`Host::drain`](crate::Host::drain).
    pub fn set_linger(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_option(TcpOption::Linger(limit))
    }

    /// See [`set_linger`](Self::set_linger).
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.config().map(|config| config.linger)
    }

    /// Fixes the size of the receive buffer, in bytes of window; by default it grows with what is read.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.set_option(TcpOption::RecvBuffer(clamp(bytes)))
    }

    /// The largest size of the receive buffer in bytes.
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.config().map(|config| config.recv_buffer as usize)
    }

    /// Fixes the size of the send buffer in bytes; by default it grows with the congestion window.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.set_option(TcpOption::SendBuffer(clamp(bytes)))
    }

    /// The largest size of the send buffer in bytes.
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        self.config().map(|config| config.send_buffer as usize)
    }

    /// How long data may stay unacknowledged before the connection ends (RFC 5482); `None`, the default:
    /// for all retransmissions.
    pub fn set_tcp_user_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_option(TcpOption::UserTimeout(limit))
    }

    /// See [`set_tcp_user_timeout`](Self::set_tcp_user_timeout).
    pub fn tcp_user_timeout(&self) -> io::Result<Option<Duration>> {
        self.config().map(|config| config.user_timeout)
    }

    /// The time to live of its packets, or their hop limit: 1 to 255, 64 by default.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.0.set_ttl(ttl)
    }

    /// See [`set_ttl`](Self::set_ttl).
    pub fn ttl(&self) -> io::Result<u32> {
        self.0.ttl()
    }

    /// The type of service of its packets, or their traffic class; the two lowest bits are TCP's own.
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        self.0.set_tos(tos)
    }

    /// See [`set_tos`](Self::set_tos).
    pub fn tos(&self) -> io::Result<u32> {
        self.0.tos()
    }

    /// The settings of this connection.
    pub fn config(&self) -> io::Result<TcpConfig> {
        self.0.ask(|tcp| tcp.config().clone())
    }
}

fn clamp(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// What sockets of both kinds have in the headers of their packets.
impl<Id: Copy + Into<SocketId>> Socket<Id> {
    pub(crate) fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = u8::try_from(ttl).ok().filter(|ttl| *ttl > 0);
        let ttl = ttl.ok_or_else(|| io_error(Error::InvalidInput))?;
        self.set(SocketOption::HopLimit(Some(ttl)))
    }

    pub(crate) fn ttl(&self) -> io::Result<u32> {
        Ok(self.get(option::HopLimit)?.unwrap_or(limits::DEFAULT_HOP_LIMIT).into())
    }

    pub(crate) fn set_tos(&self, tos: u32) -> io::Result<()> {
        let tos = u8::try_from(tos).map_err(|_| io_error(Error::InvalidInput))?;
        self.set(SocketOption::TrafficClass(tos))
    }

    pub(crate) fn tos(&self) -> io::Result<u32> {
        self.get(option::TrafficClass).map(u32::from)
    }

    fn get<K: OptionKey>(&self, key: K) -> io::Result<K::Value> {
        let shared = &self.host.shared;
        let value = shared.lock().stack.option(self.id, key);
        value.map_err(|e| shared.error(e))
    }

    fn set(&self, option: SocketOption) -> io::Result<()> {
        let shared = &self.host.shared;
        let done = shared.lock().stack.set_option(self.id, option);
        done.map_err(|e| shared.error(e))
    }
}

impl TcpStream {
    /// Changes a setting of the connection; see [`TcpOption`] for units and meanings.
    pub fn set_option(&self, option: TcpOption) -> io::Result<()> {
        self.0.act(|mut tcp, now| tcp.set_option(now, option))
    }

    /// As [`send_some`](Self::send_some), with flags.
    pub fn send_some_with(&self, buf: &mut SendBuf, flags: SendFlags) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.wait(Interest::Write, |mut tcp, now| tcp.send(now, &mut buf.frags, flags))
    }

    /// Copies received bytes without consuming them, waiting for one; 0 at the end of the stream.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.wait(Interest::Read, |mut tcp, now| tcp.recv(now, &mut *buf, RecvFlags::PEEK))
    }

    /// Discards up to `max` received bytes, waiting for one; how many, 0 at the stream's end.
    pub fn discard(&self, max: usize) -> io::Result<usize> {
        let discard = pagewire_stack::Discard(max);
        self.0.wait(Interest::Read, |mut tcp, now| tcp.recv(now, discard, RecvFlags::empty()))
    }

    /// The urgent byte (RFC 9293 section 3.8.5), once; never waits.
    ///
    /// # Errors
    /// `InvalidInput` if there is none, or it is in line; `WouldBlock` if it has not arrived yet.
    pub fn read_urgent(&self) -> io::Result<u8> {
        self.0.act(|mut tcp, now| tcp.read_urgent(now, RecvFlags::empty()))
    }

    /// Whether the stream has been read up to its urgent byte.
    pub fn at_urgent_mark(&self) -> io::Result<bool> {
        self.0.ask(|tcp| tcp.at_urgent_mark())
    }

    /// Bytes queued that the peer has not acknowledged, and of these, bytes that were never sent.
    pub fn queued_send(&self) -> io::Result<(usize, usize)> {
        self.0.ask(|tcp| tcp.queued_send())
    }

    /// Bytes that can be read without waiting, up to an urgent byte.
    pub fn queued_receive(&self) -> io::Result<usize> {
        self.0.ask(|tcp| tcp.queued())
    }
}

impl TcpListener {
    /// Accepts data in SYNs (TCP Fast Open, RFC 7413) of at most so many connections whose handshake is
    /// incomplete; 0, the default: none. The host has to do it as well
    /// ([`Builder::fast_open`](crate::Builder::fast_open)). Such data may arrive twice.
    pub fn set_fast_open(&self, limit: u32) -> io::Result<()> {
        self.set_option(TcpOption::FastOpen(limit))
    }

    /// Changes a setting of future connections.
    ///
    /// # Errors
    /// An error of kind `Unsupported` if connections cannot inherit it.
    pub fn set_option(&self, option: TcpOption) -> io::Result<()> {
        self.0.act(|mut listener, _| listener.set_option(option))
    }
}
