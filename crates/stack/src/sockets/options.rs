//! Settings of one socket.

use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_tcp::{
    Config as TcpConfig, CongestionKind, FastOpenKeys, KeepAlive, defer_accept_timeouts,
};

use super::ids::SocketId;
use super::marks::{MtuDiscover, PacketMarks};
use super::table::Socket;
use super::{Listener, Tcp};
use crate::config::Coalescing;
use crate::error::Error;
use crate::limits::MAX_FAST_OPEN_QUEUE;
use crate::net::LinkId;
use crate::sockets::listen::socket::ListenerSocket;
use crate::stack::Stack;

/// A setting of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpOption {
    /// Small segments leave at once (no Nagle algorithm, RFC 896).
    NoDelay(bool),
    /// Only full segments leave (`TCP_CORK`).
    Cork(bool),
    /// Probes of an idle connection; `None`: none.
    KeepAlive(Option<KeepAlive>),
    /// How long data, a SYN or a probe may stay unanswered (RFC 5482); `None`: all retries.
    UserTimeout(Option<Duration>),
    /// Upper bound of the MSS; `None`: the link's.
    MaxSeg(Option<u16>),
    /// Retransmissions of a SYN before connecting fails.
    SynCount(u8),
    /// Of a listener: how long a connection waits for data before it can be accepted without,
    /// rounded up to timeouts of the SYN,ACK ([`defer_accept_timeouts`]). Zero: it does not wait.
    /// Of a new connection: unless zero, its last acknowledgement waits a little for data.
    DeferAccept(Duration),
    /// How long a closed connection waits for the peer's FIN.
    Linger2(Duration),
    /// `Some` zero: closing resets the peer. To wait for other times is up to the caller.
    Linger(Option<Duration>),
    /// Limit on unsent bytes; below half of it the connection is writable. `u32::MAX`: none.
    NotSentLowat(u32),
    /// Bytes that make the connection readable.
    RcvLowat(u32),
    /// Fixed size of the send buffer, in bytes as Linux charges them.
    SendBuffer(u32),
    /// Fixed size of the receive buffer, in bytes of window.
    RecvBuffer(u32),
    /// Upper bound of the announced window; `None`: the buffer.
    WindowClamp(Option<u32>),
    /// The congestion control; the window stays.
    Congestion(CongestionKind),
    /// Acknowledge at once, for now.
    QuickAck(bool),
    /// An urgent byte stays in the stream.
    OobInline(bool),
    /// Keeps a copy ledger for this connection; off drops it.
    CountCopies(bool),
    /// Keeps errors that the network reports in the error queue; off drops those in the queue.
    QueueErrors(bool),
    /// Whether routers may fragment its packets, and whether to heed reports about the path.
    MtuDiscover(MtuDiscover),
    /// Of a listener: connections with incomplete handshakes (Fast Open, RFC 7413); 0: none.
    FastOpen(u32),
    /// Of a listener: its keys for Fast Open cookies; `None`: the stack's.
    FastOpenKeys(Option<FastOpenKeys>),
    /// Of a listener: takes data in SYNs without a Fast Open cookie.
    FastOpenNoCookie(bool),
}

impl TcpOption {
    /// Changes settings of later connections. `false`: they do not have this one.
    pub fn apply(self, config: &mut TcpConfig) -> bool {
        match self {
            Self::NoDelay(on) => config.nagle = !on,
            Self::Cork(on) => config.cork = on,
            Self::KeepAlive(keepalive) => config.keepalive = keepalive,
            Self::UserTimeout(limit) => config.user_timeout = limit,
            Self::MaxSeg(mss) => config.max_mss = mss,
            Self::SynCount(retries) => {
                (config.syn_retries, config.syn_linear_retries) = (retries, 0);
            }
            Self::DeferAccept(time) => config.defer_accept = defer_accept_timeouts(time),
            Self::Linger2(limit) => config.fin_wait2 = limit,
            Self::Linger(linger) => config.linger = linger,
            Self::NotSentLowat(bytes) => config.notsent_lowat = bytes,
            Self::RcvLowat(bytes) => config.recv_lowat = bytes.max(1),
            Self::SendBuffer(bytes) => {
                (config.send_buffer, config.send_buffer_initial) = (bytes, bytes);
            }
            Self::RecvBuffer(bytes) => {
                (config.recv_buffer, config.recv_buffer_initial) = (bytes, bytes);
            }
            Self::WindowClamp(bytes) => config.window_clamp = bytes,
            Self::OobInline(on) => config.oob_inline = on,
            Self::Congestion(kind) => config.congestion = kind,
            Self::QuickAck(_)
            | Self::CountCopies(_)
            | Self::QueueErrors(_)
            | Self::MtuDiscover(_)
            | Self::FastOpen(_)
            | Self::FastOpenKeys(_)
            | Self::FastOpenNoCookie(_) => return false,
        }
        true
    }
}

impl Tcp<'_> {
    /// Changes a setting.
    ///
    /// # Errors
    /// `InvalidInput` for a setting of listeners alone.
    pub fn set_option(&mut self, now: Instant, option: TcpOption) -> Result<(), Error> {
        let socket = &mut *self.socket;
        match option {
            TcpOption::NoDelay(on) => socket.conn.settings().set_nodelay(on),
            TcpOption::Cork(on) => socket.conn.settings().set_cork(on),
            TcpOption::KeepAlive(keepalive) => socket.conn.settings().set_keepalive(now, keepalive),
            TcpOption::UserTimeout(limit) => socket.conn.settings().set_user_timeout(limit),
            TcpOption::MaxSeg(mss) => socket.conn.settings().set_max_mss(mss),
            TcpOption::SynCount(retries) => socket.conn.settings().set_syn_retries(retries),
            TcpOption::DeferAccept(time) => {
                socket.conn.settings().set_defer_accept(defer_accept_timeouts(time));
            }
            TcpOption::Linger2(limit) => socket.conn.settings().set_fin_wait2(limit),
            TcpOption::Linger(linger) => socket.conn.settings().set_linger(linger),
            TcpOption::NotSentLowat(bytes) => socket.conn.settings().set_notsent_lowat(bytes),
            TcpOption::RcvLowat(bytes) => socket.conn.settings().set_recv_lowat(bytes),
            TcpOption::SendBuffer(bytes) => socket.conn.settings().set_send_buffer(bytes),
            TcpOption::RecvBuffer(bytes) => socket.conn.settings().set_recv_buffer(bytes),
            TcpOption::WindowClamp(bytes) => socket.conn.settings().set_window_clamp(bytes),
            TcpOption::Congestion(kind) => socket.conn.settings().set_congestion(kind),
            TcpOption::QuickAck(on) => socket.conn.settings().set_quick_ack(on),
            TcpOption::OobInline(on) => socket.conn.settings().set_oob_inline(on),
            TcpOption::CountCopies(on) => {
                let extra = socket.extra.get_or_insert_default();
                extra.ledger = on.then(|| extra.ledger.unwrap_or_default());
            }
            TcpOption::QueueErrors(on) => {
                let extra = socket.extra.get_or_insert_default();
                extra.errors.get_or_insert_default().keep_errors(on);
            }
            TcpOption::MtuDiscover(how) => {
                socket.extra.get_or_insert_default().mtu_discover = how;
            }
            TcpOption::FastOpen(_)
            | TcpOption::FastOpenKeys(_)
            | TcpOption::FastOpenNoCookie(_) => return Err(Error::InvalidInput),
        }
        self.touch();
        Ok(())
    }
}

impl Listener<'_> {
    /// Changes a setting of later connections.
    ///
    /// # Errors
    /// `NotSupported` if connections cannot inherit it.
    pub fn set_option(&mut self, option: TcpOption) -> Result<(), Error> {
        let ListenerSocket { config, fast_open, .. } = self.socket_mut()?;
        match option {
            TcpOption::FastOpen(limit) => {
                fast_open.get_or_insert_default().limit = limit.min(MAX_FAST_OPEN_QUEUE);
            }
            TcpOption::FastOpenKeys(keys) => fast_open.get_or_insert_default().keys = keys,
            TcpOption::FastOpenNoCookie(on) => fast_open.get_or_insert_default().no_cookie = on,
            _ if option.apply(Arc::make_mut(config)) => {}
            _ => return Err(Error::NotSupported),
        }
        Ok(())
    }
}

/// A setting that sockets of several kinds have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// Binds the socket to a link, or to none (`SO_BINDTODEVICE`): it receives and sends only by
    /// that link, whatever the routes say. A listener's connections inherit it. When the link is
    /// removed, nothing comes or leaves any more. Packets of this host to itself come by no link.
    Link(Option<LinkId>),
    /// What its packets carry in their IP headers; not of a listener.
    Marks(PacketMarks),
    /// Every arrival is an [`Event`](crate::Event), for owners that need edges.
    EveryArrival(bool),
    /// Which notifications of zero-copy sends become one; not of a listener.
    Coalescing(Coalescing),
}

impl Stack {
    /// What a socket's packets carry in their IP headers.
    ///
    /// # Errors
    /// `NotSupported` for a listener.
    pub fn marks(&mut self, id: impl Into<SocketId>) -> Result<PacketMarks, Error> {
        match self.cx.table.get_mut(id.into())? {
            Socket::Tcp(socket) => {
                Ok(socket.extra.as_ref().map_or_else(PacketMarks::default, |extra| extra.marks))
            }
            Socket::Udp(socket) => Ok(socket.marks),
            Socket::Listener(_) => Err(Error::NotSupported),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }

    /// Changes a setting of a socket of any kind.
    ///
    /// # Errors
    /// `InvalidInput` for a link that was removed, or the link of a socket for every address of one;
    /// `NotSupported` for what a listener lacks.
    pub fn set_option(
        &mut self,
        id: impl Into<SocketId>,
        option: SocketOption,
    ) -> Result<(), Error> {
        let id = id.into();
        if let SocketOption::Link(link) = option {
            self.cx.check_link(link)?;
        }
        let (tcp_binds, udp_binds) = (&mut self.listeners.binds, &mut self.udp.binds);
        let is_link = matches!(option, SocketOption::Link(_));
        match self.cx.table.get_mut(id)? {
            // Those for every address of a link have that.
            Socket::Udp(socket) if is_link && socket.every.is_some() => {
                return Err(Error::InvalidInput);
            }
            Socket::Listener(socket) if is_link && socket.requests.is_some() => {
                return Err(Error::InvalidInput);
            }
            Socket::Tcp(socket) => match option {
                SocketOption::Link(link) => {
                    if link.is_some() || socket.extra.is_some() {
                        socket.extra.get_or_insert_default().link = link;
                    }
                    // Its path is looked up again.
                    socket.path_generation = socket.path_generation.wrapping_sub(1);
                }
                SocketOption::Marks(marks) => socket.extra.get_or_insert_default().marks = marks,
                SocketOption::EveryArrival(on) => socket.reporting.every_arrival = on,
                SocketOption::Coalescing(which) => {
                    let extra = socket.extra.get_or_insert_default();
                    extra.errors.get_or_insert_default().sends.coalescing = Some(which);
                }
            },
            Socket::Udp(socket) => match option {
                SocketOption::Link(link) => {
                    socket.link = link;
                    udp_binds.set_link(socket.local.port(), id.index(), link);
                }
                SocketOption::Marks(marks) => socket.marks = marks,
                SocketOption::EveryArrival(on) => socket.reporting.every_arrival = on,
                SocketOption::Coalescing(which) => {
                    socket.errors.get_or_insert_default().sends.coalescing = Some(which);
                }
            },
            Socket::Listener(socket) => match option {
                SocketOption::Link(link) => {
                    socket.link = link;
                    tcp_binds.set_link(socket.local.port(), id.index(), link);
                }
                SocketOption::EveryArrival(on) => socket.reporting.every_arrival = on,
                SocketOption::Marks(_) | SocketOption::Coalescing(_) => {
                    return Err(Error::NotSupported);
                }
            },
            Socket::TimeWait(_) => return Err(Error::NoSuchSocket),
        }
        Ok(())
    }
}
