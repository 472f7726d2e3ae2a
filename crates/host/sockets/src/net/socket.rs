//! [`TcpSocket`]: a TCP socket of tasks before it listens or connects.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagewire_stack::{
    BindOptions, KeepAlive, LinkId, ListenOptions, ListenerId, PacketMarks, SocketOption, Stack,
    TcpConfig,
};

use super::{TcpListener, TcpStream};
use crate::addr::shown;
use crate::connect::{ConnectOptions, reserve};
use crate::limits::{MAX_BUFFER, MIN_RECEIVE_BUFFER, MIN_SEND_BUFFER};
use crate::options::{
    ECN, device_name, errno, find_device, no_descriptor, os_error, whole_seconds,
};
use crate::runtime::Runtime;
use crate::socket::{Reserved, Socket};
use crate::waiters::Call;

/// A TCP socket before it listens or connects, as tokio's.
pub struct TcpSocket<R: Runtime> {
    runtime: R,
    v6: bool,
    settings: Mutex<Settings<R>>,
}

struct Settings<R: Runtime> {
    bound: Option<(SocketAddr, Reserved<R>)>,
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

impl<R: Runtime> Default for Settings<R> {
    fn default() -> Self {
        let (reuse_address, reuse_port, keepalive, no_delay) = Default::default();
        let (linger, send_buffer, receive_buffer, link) = Default::default();
        Self {
            bound: None,
            reuse_address,
            reuse_port,
            keepalive,
            no_delay,
            linger,
            send_buffer,
            receive_buffer,
            marks: PacketMarks::default(),
            link,
        }
    }
}

impl<R: Runtime> Settings<R> {
    /// Options that change the stack's settings of a connection.
    fn options(&self) -> impl Iterator<Item = SocketOption> {
        [
            self.no_delay.then_some(SocketOption::NoDelay(true)),
            self.keepalive.then(|| SocketOption::KeepAlive(Some(KeepAlive::default()))),
            self.linger.map(|linger| SocketOption::Linger(Some(linger))),
            self.send_buffer.map(SocketOption::SendBuffer),
            // Half of a receive buffer is bookkeeping.
            self.receive_buffer.map(|bytes| SocketOption::RecvBuffer(bytes / 2)),
        ]
        .into_iter()
        .flatten()
    }

    fn bind_options(&self) -> BindOptions {
        let (reuse, reuse_port, link) = (self.reuse_address, self.reuse_port, self.link);
        BindOptions { reuse, reuse_port, link, ..BindOptions::default() }
    }
}

/// Linux doubles the size of a buffer; the least is two small packets.
fn doubled(bytes: u32, least: u32) -> u32 {
    (bytes.min(MAX_BUFFER) * 2).max(least)
}

impl<R: Runtime> TcpSocket<R> {
    /// A socket of IPv4 on the stack of the code that runs.
    ///
    /// # Errors
    /// The errors of [`Runtime::current`](crate::Runtime::current).
    pub fn new_v4() -> io::Result<Self> {
        Ok(Self::on(&R::current()?, false))
    }

    /// A socket of IPv6 on the stack of the code that runs.
    ///
    /// # Errors
    /// The errors of [`Runtime::current`](crate::Runtime::current).
    pub fn new_v6() -> io::Result<Self> {
        Ok(Self::on(&R::current()?, true))
    }

    /// A socket of IPv4 on a stack.
    pub fn new_v4_on(runtime: &R) -> Self {
        Self::on(runtime, false)
    }

    /// A socket of IPv6 on a stack.
    pub fn new_v6_on(runtime: &R) -> Self {
        Self::on(runtime, true)
    }

    fn on(runtime: &R, v6: bool) -> Self {
        Self { runtime: runtime.clone(), v6, settings: Mutex::default() }
    }

    fn settings(&self) -> MutexGuard<'_, Settings<R>> {
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
        let (reserved, bound) = reserve(&self.runtime, addr, settings.bind_options())?;
        settings.bound = Some((bound, reserved));
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
    ) -> impl Future<Output = io::Result<TcpStream<R>>> + Send + Sync {
        let call = Call::here("to connect");
        async move {
            self.check_version(addr)?;
            let Self { runtime, settings, .. } = self;
            let mut settings = settings.into_inner().unwrap_or_else(PoisonError::into_inner);
            let (local, reserved) = settings.bound.take().unzip();
            let mut options =
                settings.options().fold(ConnectOptions::new(), ConnectOptions::option);
            options.marks = settings.marks;
            if let Some(local) = local {
                options = options.local(local);
            }
            if let Some(link) = settings.link {
                options = options.link(link);
            }
            options.attempt(&runtime, addr, reserved, call).await.map(TcpStream::new)
        }
    }

    /// Listens, on a free port if it is not bound. `backlog` connections may wait to be accepted.
    ///
    /// # Errors
    /// `AddrInUse` if another socket listens there.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener<R>> {
        if self.settings().bound.is_none() {
            self.bind(self.unbound())?;
        }
        let Self { runtime, v6, settings } = self;
        let mut settings = settings.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (local, reserved) = settings.bound.take().ok_or_else(|| os_error(errno::INVAL))?;
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        let how = ListenOptions { backlog, reservation: Some(reserved.id), v6_only: false };
        let set = |stack: &mut Stack, id: ListenerId| {
            settings.options().try_for_each(|option| stack.listener(id)?.set_option(option))?;
            stack.set_option(id, SocketOption::Marks(settings.marks))
        };
        let id = runtime.enter(|stack, clock, _| {
            // Named since the address was reserved, perhaps.
            stack.reservations().bind_to_link(reserved.id, settings.link)?;
            let id = stack.listen(local, how)?;
            set(stack, id).inspect_err(|_| stack.close(clock.now(), id))?;
            Ok(id)
        })?;
        let id = id.map_err(|error| runtime.error(error))?;
        Ok(TcpListener::new(Socket::with_reservation(runtime.clone(), id, v6, Some(reserved))))
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

    /// Panics: there is no descriptor, and tokio's cannot fail either.
    ///
    /// # Panics
    /// Always.
    pub fn from_std_stream(_: std::net::TcpStream) -> Self {
        panic!("{}", no_descriptor())
    }
}

/// Settings.
impl<R: Runtime> TcpSocket<R> {
    /// Whether connections probe a silent peer (`SO_KEEPALIVE`).
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn keepalive(&self) -> io::Result<bool> {
        Ok(self.settings().keepalive)
    }

    /// Sets whether connections probe a peer that is silent for two hours.
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.settings().keepalive = keepalive;
        Ok(())
    }

    /// Whether the address may be that of other sockets that do not listen (`SO_REUSEADDR`).
    #[doc(alias = "SO_REUSEADDR")]
    pub fn reuseaddr(&self) -> io::Result<bool> {
        Ok(self.settings().reuse_address)
    }

    /// Sets whether the address may be that of other sockets that do not listen.
    pub fn set_reuseaddr(&self, reuseaddr: bool) -> io::Result<()> {
        self.settings().reuse_address = reuseaddr;
        Ok(())
    }

    /// Whether several sockets may listen at the address (`SO_REUSEPORT`).
    #[doc(alias = "SO_REUSEPORT")]
    pub fn reuseport(&self) -> io::Result<bool> {
        Ok(self.settings().reuse_port)
    }

    /// Sets whether several sockets may listen at the address.
    pub fn set_reuseport(&self, reuseport: bool) -> io::Result<()> {
        self.settings().reuse_port = reuseport;
        Ok(())
    }

    /// Bytes of the send buffer (`SO_SNDBUF`).
    #[doc(alias = "SO_SNDBUF")]
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
    #[doc(alias = "SO_RCVBUF")]
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
            None => self.runtime.enter(|stack, _, _| get(&stack.default_config())),
        }
    }

    /// How long a close waits for queued data (`SO_LINGER`), in whole seconds.
    #[doc(alias = "SO_LINGER")]
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
    #[doc(alias = "TCP_NODELAY")]
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.settings().no_delay)
    }

    /// As [`TcpStream::set_nodelay`].
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.settings().no_delay = nodelay;
        Ok(())
    }

    /// The type of service (`IP_TOS`).
    #[doc(alias = "IP_TOS")]
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
    #[doc(alias = "IPV6_TCLASS")]
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
    #[doc(alias = "SO_BINDTODEVICE")]
    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        device_name(&self.runtime, self.settings().link)
    }

    /// Binds it to a device, by the name of its link, or to none.
    ///
    /// # Errors
    /// `ENODEV` for another name.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        let link = find_device(&self.runtime, interface)?;
        self.settings().link = link;
        Ok(())
    }
}

impl<R: Runtime> std::fmt::Debug for TcpSocket<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpSocket").field("local", &self.local_addr().ok()).finish_non_exhaustive()
    }
}
