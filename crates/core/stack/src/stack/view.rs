//! Views of sockets for tools: addresses, queues, and the state of the path.

use std::net::SocketAddr;
use std::time::Duration;

use pagewire_mem::{CopyLedger, Instant};

use super::Stack;
use crate::TcpInfo;
use crate::net::{LinkId, Net, is_link_local};
use crate::sockets::Context;
use crate::sockets::ids::SocketId;
use crate::sockets::table::Socket;
use crate::sockets::tcp::socket::{Owner, TcpSocket};
use crate::sockets::tuple::{Tuple, with_scope};
use crate::sockets::udp::socket::DatagramKind;

/// A part of the sockets of a stack, see [`Stack::sockets_from`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SocketPage {
    /// The sockets, in the order of their slots.
    pub sockets: Vec<SocketView>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<u32>,
}

/// A snapshot of one socket.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SocketView {
    /// The socket's id.
    pub id: SocketId,
    /// The address of this side.
    pub local: SocketAddr,
    /// The address of the other side, if there is one.
    pub remote: Option<SocketAddr>,
    /// The link that the socket is bound to, or that has the local address.
    pub link: Option<LinkId>,
    /// Received payload that the application has not taken, in bytes. For a datagram socket: the memory that
    /// is charged for it. For a listener: the number of connections that wait to be accepted.
    pub receive_queue: usize,
    /// Payload that the peer has not acknowledged, in bytes. For a listener: how many connections may wait.
    pub send_queue: usize,
    /// Details, by kind of socket.
    pub of: ViewOf,
}

/// Details of one kind of socket.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ViewOf {
    /// A connection.
    Tcp(Box<TcpView>),
    /// A connection in TIME-WAIT that its application has closed.
    TimeWait,
    /// A listener.
    Listener {
        /// Connections whose handshakes are not complete.
        half_open: usize,
        /// Whether it takes connections to every address of its link.
        every: bool,
    },
    /// A datagram socket.
    Udp {
        /// Datagrams in the receive queue.
        datagrams: usize,
        /// Datagrams that found no room, modulo 2^32.
        dropped: u32,
        /// Set if it takes datagrams to every address of its link.
        every: Option<DatagramKind>,
    },
}

/// A connection at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpView {
    /// State and counts.
    pub info: TcpInfo,
    /// Since the connection began, in whole seconds.
    pub age: Duration,
    /// Whether the application has closed it, or not accepted it yet.
    pub ownerless: bool,
    /// Copies made for it, if they are counted
    /// ([`SocketOption::CountCopies`](crate::SocketOption::CountCopies)).
    pub copies: Option<CopyLedger>,
}

/// How many sockets a stack has, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCounts {
    /// Connections in every state but TIME-WAIT without an owner.
    pub connections: usize,
    /// Closed connections in TIME-WAIT.
    pub time_wait: usize,
    /// Listeners.
    pub listeners: usize,
    /// Datagram sockets.
    pub datagrams: usize,
}

impl Stack {
    /// The sockets in `places` slots of the table, from slot `from` on: all sockets, if it is called
    /// with 0 and then with [`SocketPage::next`] until that is `None`. A slot may be empty, so a page
    /// may be short, or empty, before the last.
    ///
    /// Each call takes time in proportion to `places`, however many sockets there are. A socket that
    /// lives from the first call to the last is seen exactly once; one that is made or closed meanwhile
    /// may be missing.
    pub fn sockets_from(&self, now: Instant, from: u32, places: usize) -> SocketPage {
        let table = &self.cx.table;
        let end = table.slots().min((from as usize).saturating_add(places));
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        let sockets = (from..end).filter_map(|index| view(&self.cx, now, index)).collect();
        SocketPage { sockets, next: ((end as usize) < table.slots()).then_some(end) }
    }

    /// Counts the sockets by kind: reads each slot of the table, but no socket.
    pub fn socket_counts(&self) -> SocketCounts {
        let mut counts = SocketCounts::default();
        for (_, socket) in self.cx.table.iter() {
            match socket {
                Socket::Tcp(_) => counts.connections += 1,
                Socket::TimeWait(_) => counts.time_wait += 1,
                Socket::Listener(_) => counts.listeners += 1,
                Socket::Udp(_) => counts.datagrams += 1,
            }
        }
        counts
    }
}

fn view(cx: &Context, now: Instant, index: u32) -> Option<SocketView> {
    let table = &cx.table;
    let (id, socket) = (table.id_of(index)?, table.at(index)?);
    Some(match socket {
        Socket::Tcp(socket) => view_of_connection(cx, now, id, socket),
        Socket::TimeWait(time_wait) => {
            let (local, remote, link) = ends(&cx.net, &time_wait.tuple);
            SocketView {
                id,
                local,
                remote: Some(remote),
                link,
                receive_queue: 0,
                send_queue: 0,
                of: ViewOf::TimeWait,
            }
        }
        Socket::Listener(socket) => SocketView {
            id,
            local: socket.local,
            remote: None,
            link: socket.link.or_else(|| link_of(cx, socket.local)),
            receive_queue: socket.queue.len(),
            send_queue: socket.backlog,
            of: ViewOf::Listener {
                half_open: socket.half_open.len(),
                every: socket.requests.is_some(),
            },
        },
        Socket::Udp(socket) => SocketView {
            id,
            local: socket.local,
            remote: socket.remote,
            link: socket.link.or_else(|| link_of(cx, socket.local)),
            receive_queue: socket.queued_bytes,
            send_queue: 0,
            of: ViewOf::Udp {
                datagrams: socket.queue.len(),
                dropped: socket.dropped,
                every: socket.wildcard,
            },
        },
    })
}

fn view_of_connection(cx: &Context, now: Instant, id: SocketId, socket: &TcpSocket) -> SocketView {
    let (local, remote, link) = ends(&cx.net, &socket.tuple);
    let began = Duration::from_secs(socket.began.into());
    let age = now.saturating_since(Instant::ZERO).saturating_sub(began);
    SocketView {
        id,
        local,
        remote: Some(remote),
        link: socket.bound().or(link),
        receive_queue: socket.conn.queued_receive(),
        send_queue: socket.conn.queued_send(),
        of: ViewOf::Tcp(Box::new(TcpView {
            info: socket.conn.info_at(now),
            age: Duration::from_secs(age.as_secs()),
            ownerless: socket.owner != Owner::App,
            copies: socket.extra.as_ref().and_then(|extra| extra.ledger),
        })),
    }
}

/// Both ends of a connection, and the link of ours.
pub(crate) fn ends(net: &Net, tuple: &Tuple) -> (SocketAddr, SocketAddr, Option<LinkId>) {
    let scope = net.scope_of_local(tuple.local);
    let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
    let remote = if is_link_local(remote.ip()) { with_scope(remote, scope) } else { remote };
    (with_scope(local, scope), remote, net.link_of_address(local.ip()))
}

fn link_of(cx: &Context, local: SocketAddr) -> Option<LinkId> {
    cx.net.link_of_address(local.ip())
}
