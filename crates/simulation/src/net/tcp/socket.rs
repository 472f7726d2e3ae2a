//! A TCP socket before it listens or connects.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagewire_stack::{
    BindOptions, ConnectOptions, KeepAlive, LinkId, ListenOptions, PacketMarks, SocketOption,
    Stack, TcpConfig, TcpOption,
};

use super::listener::TcpListener;
use super::options::whole_seconds;
use super::stream::TcpStream;
use crate::limits::{MAX_BUFFER, MIN_RECEIVE_BUFFER, MIN_SEND_BUFFER};
use crate::net::addr::shown;
use crate::net::device::{find_device, name_device};
use crate::net::error::{errno, io_error, no_descriptor};
use crate::net::reserved::Reserved;
use crate::net::socket::Socket;
use crate::world::Here;

/// `tokio::net::TcpSocket`, simulated.
pub struct TcpSocket {
    here: Here,
    v6: bool,
    settings: Mutex<Settings>,
}

#[derive(Default)]
struct Settings {
    bound: Option<(SocketAddr, Reserved)>,
    reuse_address: bool,
    reuse_port: bool,
    keepalive: bool,
    no_delay: bool,
    linger: Option<Duration>,
    /// As they are read back: twice what was set.
    send_buffer: Option<u32>,
    receive_buffer: Option<u32>,
    marks: PacketMarks,
    link: Option<LinkId>,
}

impl Settings {
    /// Options that change the stack's settings of a connection.
    fn options(&self) -> impl Iterator<Item = TcpOption> {
        [
            self.no_delay.then_some(TcpOption::NoDelay(true)),
            self.keepalive.then(|| TcpOption::KeepAlive(Some(KeepAlive::default()))),
            self.linger.map(|linger| TcpOption::Linger(Some(linger))),
            self.send_buffer.map(TcpOption::SendBuffer),
            // Half of a receive buffer is bookkeeping.
            self.receive_buffer.map(|bytes| TcpOption::RecvBuffer(bytes / 2)),
        ]
        .into_iter()
        .flatten()
    }

    fn bind_options(&self) -> BindOptions {
        let (reuse, reuse_port, link) = (self.reuse_address, self.reuse_port, self.link);
        BindOptions { reuse, reuse_port, link, ..BindOptions::default() }
    }

    /// What is no setting of the connection, but of its packets.
    fn apply(&self, stack: &mut Stack, socket: &Socket) {
        if self.marks != PacketMarks::default() {
            // A listener only remembers them.
            let _ = stack.set_option(socket.id, SocketOption::Marks(self.marks));
        }
    }
}

fn os_error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// > Linux doubles the size of a buffer; the least is two small packets.
fn doubled(bytes: u32, least: u32) -> u32 {
    (bytes.min(MAX_BUFFER) * 2).max(least)
}

impl TcpSocket {
    /// A socket of IPv4.
    pub fn new_v4() -> io::Result<Self> {
        Self::new(false)
    }

    /// A socket of IPv6.
    pub fn new_v6() -> io::Result<Self> {
        Self::new(true)
    }

    fn new(v6: bool) -> io::Result<Self> {
        Ok(Self { here: Here::get()?, v6, settings: Mutex::default() })
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds it; port 0 stands for a free one.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, `InvalidInput` for a second time, `EAFNOSUPPORT` or
    /// `EINVAL` for an address of the other version, as Linux.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        self.check_version(addr)?;
        let mut settings = self.settings();
        if settings.bound.is_some() {
            return Err(os_error(errno::INVAL));
        }
        let options = settings.bind_options();
        let reserve = |stack: &mut Stack, _| stack.reservations().reserve(addr, options);
        let (id, bound) = self.here.with_stack(reserve)?.map_err(io_error)?;
        settings.bound = Some((bound, Reserved { here: self.here.clone(), id }));
        Ok(())
    }

    /// Linux's answers: a `sockaddr_in` is too short for a socket of IPv6.
    fn check_version(&self, addr: SocketAddr) -> io::Result<()> {
        match (self.v6, addr) {
            (true, SocketAddr::V4(_)) => Err(os_error(errno::INVAL)),
            (false, SocketAddr::V6(_)) => Err(os_error(errno::AFNOSUPPORT)),
            _ => Ok(()),
        }
    }

    fn unbound(&self) -> SocketAddr {
        match self.v6 {
            true => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            false => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        }
    }

    /// Connects, from the address that it is bound to.
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    #[track_caller]
    pub fn connect(
        self,
        addr: SocketAddr,
    ) -> impl Future<Output = io::Result<TcpStream>> + Send + Sync {
        let location = Location::caller();
        async move {
            self.check_version(addr)?;
            let Self { here, settings, .. } = self;
            let mut settings = settings.into_inner().unwrap_or_else(PoisonError::into_inner);
            let mut config = here.with_stack(|stack, _| stack.default_config())?;
            settings.options().for_each(|option| _ = option.apply(Arc::make_mut(&mut config)));
            let (local, address) = settings.bound.take().unzip();
            let link = settings.link;
            let options = ConnectOptions { local, config: Some(config), fast_open: None, link };
            let mut stream = TcpStream::connect_to(&here, addr, options, location).await?;
            stream.address = address;
            stream.socket.set_marks(settings.marks)?;
            Ok(stream)
        }
    }

    /// Listens, on a free port if it is not bound. `backlog` connections may wait to be accepted.
    ///
    /// # Errors
    /// `AddrInUse` if another socket listens there.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        if self.settings().bound.is_none() {
            self.bind(self.unbound())?;
        }
        let Self { here, v6, settings } = self;
        let mut settings = settings.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (local, address) = settings.bound.take().ok_or_else(|| os_error(errno::INVAL))?;
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        let how = ListenOptions { backlog, reservation: Some(address.id), v6_only: false };
        let listen = |stack: &mut Stack, _| {
            let id = stack.listen(local, how)?;
            for option in settings.options() {
                stack.listener(id)?.set_option(option)?;
            }
            Ok(id)
        };
        let id = here.with_stack(listen)?.map_err(io_error)?;
        let socket = Socket::new(here.clone(), id, v6);
        socket.remember_marks(settings.marks);
        let _ = here.with_stack(|stack, _| settings.apply(stack, &socket));
        Ok(TcpListener { socket, _address: Some(address) })
    }

    /// The address that it is bound to; unspecified if it is not.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let bound = self.settings().bound.as_ref().map(|(bound, _)| *bound);
        Ok(shown(bound.unwrap_or_else(|| self.unbound()), self.v6))
    }

    /// `None`: nothing has happened yet.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(None)
    }

    /// Panics: see [`net`](crate::net). tokio's cannot fail either.
    pub fn from_std_stream(_: std::net::TcpStream) -> Self {
        panic!("{}", no_descriptor())
    }
}

/// Settings.
impl TcpSocket {
    /// Whether connections probe a silent peer (`SO_KEEPALIVE`).
    pub fn keepalive(&self) -> io::Result<bool> {
        Ok(self.settings().keepalive)
    }

    /// Sets whether connections probe a peer that is silent for two hours.
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.settings().keepalive = keepalive;
        Ok(())
    }

    /// Whether the address may be that of other sockets that do not listen (`SO_REUSEADDR`).
    pub fn reuseaddr(&self) -> io::Result<bool> {
        Ok(self.settings().reuse_address)
    }

    /// Sets whether the address may be that of other sockets that do not listen.
    pub fn set_reuseaddr(&self, reuseaddr: bool) -> io::Result<()> {
        self.settings().reuse_address = reuseaddr;
        Ok(())
    }

    /// Whether several sockets may listen at the address (`SO_REUSEPORT`).
    pub fn reuseport(&self) -> io::Result<bool> {
        Ok(self.settings().reuse_port)
    }

    /// Sets whether several sockets may listen at the address.
    pub fn set_reuseport(&self, reuseport: bool) -> io::Result<()> {
        self.settings().reuse_port = reuseport;
        Ok(())
    }

    /// Bytes of the send buffer (`SO_SNDBUF`).
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        let set = self.settings().send_buffer;
        self.or_default(set, |config| config.send_buffer_initial)
    }

    /// Sets the bytes of the send buffer: twice as many, as on Linux, and at most twice 4 MiB.
    pub fn set_send_buffer_size(&self, size: u32) -> io::Result<()> {
        self.settings().send_buffer = Some(doubled(size, MIN_SEND_BUFFER));
        Ok(())
    }

    /// Bytes of the receive buffer (`SO_RCVBUF`).
    pub fn recv_buffer_size(&self) -> io::Result<u32> {
        let set = self.settings().receive_buffer;
        self.or_default(set, |config| config.recv_buffer_initial)
    }

    /// Sets the bytes of the receive buffer: twice as many, as on Linux, and at most twice 4 MiB.
    pub fn set_recv_buffer_size(&self, size: u32) -> io::Result<()> {
        self.settings().receive_buffer = Some(doubled(size, MIN_RECEIVE_BUFFER));
        Ok(())
    }

    fn or_default(&self, set: Option<u32>, get: fn(&TcpConfig) -> u32) -> io::Result<u32> {
        match set {
            Some(bytes) => Ok(bytes),
            None => self.here.with_stack(|stack, _| get(&stack.default_config())),
        }
    }

    /// How long a close waits for queued data (`SO_LINGER`), in whole seconds.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.settings().linger)
    }

    /// As [`TcpStream::set_linger`].
    #[deprecated = "`SO_LINGER` causes the socket to block the thread on drop"]
    pub fn set_linger(&self, dur: Option<Duration>) -> io::Result<()> {
        self.settings().linger = whole_seconds(dur);
        Ok(())
    }

    /// As [`TcpStream::set_zero_linger`].
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.settings().linger = Some(Duration::ZERO);
        Ok(())
    }

    /// Whether small segments leave at once (`TCP_NODELAY`).
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.settings().no_delay)
    }

    /// As [`TcpStream::set_nodelay`].
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.settings().no_delay = nodelay;
        Ok(())
    }

    /// The type of service (`IP_TOS`).
    pub fn tos_v4(&self) -> io::Result<u32> {
        Ok(u32::from(self.settings().marks.traffic_class))
    }

    /// Sets the type of service. As on Linux, TCP keeps its two lowest bits for itself.
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        self.settings().marks.traffic_class = tos as u8 & !ECN;
        Ok(())
    }

    /// [`tos_v4`](Self::tos_v4).
    #[deprecated(
        note = "`tos` related methods have been renamed `tos_v4` since they are IPv4-specific."
    )]
    pub fn tos(&self) -> io::Result<u32> {
        self.tos_v4()
    }

    /// [`set_tos_v4`](Self::set_tos_v4).
    #[deprecated(
        note = "`tos` related methods have been renamed `tos_v4` since they are IPv4-specific."
    )]
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        self.set_tos_v4(tos)
    }

    /// The traffic class (`IPV6_TCLASS`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a socket of IPv4.
    pub fn tclass_v6(&self) -> io::Result<u32> {
        self.check_v6(errno::OPNOTSUPP)?;
        self.tos_v4()
    }

    /// Sets the traffic class. As on Linux, TCP keeps its two lowest bits for itself.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a socket of IPv4.
    pub fn set_tclass_v6(&self, tclass: u32) -> io::Result<()> {
        self.check_v6(errno::NOPROTOOPT)?;
        self.set_tos_v4(tclass)
    }

    /// Linux's answers differ for getters and setters.
    fn check_v6(&self, number: i32) -> io::Result<()> {
        if self.v6 { Ok(()) } else { Err(os_error(number)) }
    }

    /// The device that it is bound to (`SO_BINDTODEVICE`).
    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(name_device(self.settings().link))
    }

    /// Binds it to a device, which is `eth0`, or to none.
    ///
    /// # Errors
    /// `ENODEV` for another name.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        let link = find_device(&self.here, interface)?;
        self.settings().link = link;
        Ok(())
    }
}

/// The bits of congestion notification in a traffic class.
const ECN: u8 = 0b11;

impl std::fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpSocket").field("local", &self.local_addr().ok()).finish_non_exhaustive()
    }
}
