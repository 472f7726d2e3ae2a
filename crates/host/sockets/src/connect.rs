//! Opening connections and binding sockets: options, one attempt, several addresses.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pagewire_stack::{
    Error, LinkId, ListenerId, PacketMarks, PortReservation, SocketOption, Stack, TcpId, UdpId,
};

use crate::addr::{Target, ToSocketAddrs, destination, target};
use crate::ops::connected;
use crate::options::{errno, os_error};
use crate::runtime::{Blocking, Clock, Patience, Runtime, timeout};
use crate::socket::{Reserved, Socket, WRITE};
use crate::waiters::Call;

/// How long an attempt goes on alone before the next address is tried beside it (RFC 8305 section 5:
/// "Connection Attempt Delay").
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// How a connection is opened.
///
/// ```
/// use pagewire::{ConnectOptions, Host, Pair, SocketOption};
/// use std::io::Write;
///
/// # let (left, right) = Pair::new()?;
/// # let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// # let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
/// # let _listener = server.listen("10.0.0.1:9000")?;
/// let options = ConnectOptions::new().option(SocketOption::RecvBuffer(1 << 20)).fast_open();
/// let mut conn = client.connect_with("10.0.0.1:9000", &options)?;
/// conn.write_all(b"perhaps in the SYN")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ConnectOptions {
    local: Option<SocketAddr>,
    link: Option<LinkId>,
    /// Whether it needs no cookie.
    fast_open: Option<bool>,
    timeout: Option<Duration>,
    options: Vec<SocketOption>,
    pub(crate) marks: PacketMarks,
}

impl ConnectOptions {
    /// The stack's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// A setting that counts from the SYN on, such as the size of a buffer.
    pub fn option(mut self, option: SocketOption) -> Self {
        self.options.push(option);
        self
    }

    /// With TCP Fast Open (RFC 7413). If the stack has a cookie of the server, the call returns at once and
    /// the first write sends its data in the SYN: write before you read. Else the connection opens as
    /// usual and asks for a cookie. The server may get the data of a SYN twice. A shutdown before the
    /// server has answered ends the connection, as on Linux.
    pub fn fast_open(mut self) -> Self {
        self.fast_open = Some(false);
        self
    }

    /// [`fast_open`](Self::fast_open) without a cookie, for servers that need none.
    pub fn fast_open_without_cookie(mut self) -> Self {
        self.fast_open = Some(true);
        self
    }
}

pagewire_mem::setters! {
    ConnectOptions:
    /// The local address, which may be unspecified (`0.0.0.0`), and port, which may be 0.
    local(address: SocketAddr): local = Some(address);
    /// The only link that the connection uses (`SO_BINDTODEVICE`).
    #[doc(alias = "SO_BINDTODEVICE")]
    link(link: LinkId): link = Some(link);
    /// The time to live of all packets, or their hop limit: 1 to 255 (`IP_TTL`). With 0 the call fails.
    #[doc(alias = "IP_TTL")]
    ttl(ttl: u8): marks.hop_limit = Some(ttl);
    /// The type of service of all packets, or their traffic class (`IP_TOS`, `IPV6_TCLASS`). The two lowest
    /// bits are TCP's own.
    #[doc(alias("IP_TOS", "IPV6_TCLASS"))]
    tos_v4(tos: u8): marks.traffic_class = tos & !crate::options::ECN;
    /// How long all attempts together may take: names, and every address. The error is `TimedOut`. Without
    /// a limit, TCP gives up an address that does not answer after some 130 seconds.
    timeout(limit: Duration): timeout = Some(limit);
}

impl ConnectOptions {
    /// Begins to open a connection on the stack.
    fn start(
        &self,
        stack: &mut Stack,
        now: pagewire_mem::Instant,
        remote: SocketAddr,
    ) -> Result<TcpId, Error> {
        let (mut config, mut later) = (stack.default_config(), Vec::new());
        for option in &self.options {
            if !option.apply(Arc::make_mut(&mut config)) {
                later.push(*option);
            }
        }
        let Self { local, link, fast_open, .. } = *self;
        let config = (!self.options.is_empty()).then_some(config);
        let options = pagewire_stack::ConnectOptions { local, link, fast_open, config };
        let id = stack.connect(now, remote, options)?;
        let set = |stack: &mut Stack| {
            later.iter().try_for_each(|option| stack.tcp(id)?.set_option(now, *option))?;
            match self.marks == PacketMarks::default() {
                true => Ok(()),
                false => stack.set_option(id, SocketOption::Marks(self.marks)),
            }
        };
        set(stack).inspect_err(|_| stack.close(now, id))?;
        Ok(id)
    }

    /// Opens a connection to one address, and returns at once.
    ///
    /// # Errors
    /// As Linux: `ConnectionRefused` for port 0, `NetworkUnreachable` for a group; those of the stack.
    pub(crate) fn open<R: Runtime>(
        &self,
        runtime: &R,
        remote: SocketAddr,
        reservation: Option<Reserved<R>>,
    ) -> io::Result<Arc<Socket<R, TcpId>>> {
        let to = destination(remote);
        if self.marks.hop_limit == Some(0) {
            return Err(runtime.error(Error::InvalidInput));
        }
        // Linux sends a SYN to port 0 too, where nobody can listen.
        if to.port() == 0 {
            return Err(runtime.error(Error::ConnectionRefused));
        }
        if to.ip().is_multicast() {
            return Err(os_error(errno::NETUNREACH));
        }
        let id = runtime.enter(|stack, clock, _| self.start(stack, clock.now(), to))?;
        let id = id.map_err(|error| runtime.error(error))?;
        Ok(Socket::with_reservation(runtime.clone(), id, remote.is_ipv6(), reservation))
    }

    /// Opens a connection to the first address that answers. While one does not answer, the next is tried
    /// beside it (RFC 8305).
    pub(crate) async fn connect<R: Runtime>(
        &self,
        runtime: &R,
        to: Target,
        call: Call,
    ) -> io::Result<Arc<Socket<R, TcpId>>> {
        let connect = async {
            let found = to.resolve(runtime).await?;
            match found[..] {
                [remote] => self.attempt(runtime, remote, None, call).await,
                _ => self.race(runtime, found, call).await,
            }
        };
        let done = timeout(runtime, self.timeout, connect).await;
        done.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Opens a connection to one address, and waits for its answer.
    pub(crate) async fn attempt<R: Runtime>(
        &self,
        runtime: &R,
        remote: SocketAddr,
        reservation: Option<Reserved<R>>,
        call: Call,
    ) -> io::Result<Arc<Socket<R, TcpId>>> {
        let socket = self.open(runtime, remote, reservation)?;
        if !self.is_deferred(&socket)? {
            let id = socket.id();
            socket.wait(WRITE, call, move |stack, clock| connected(stack, clock, id)).await?;
        }
        Ok(socket)
    }

    /// Whether the SYN waits for the first write.
    fn is_deferred<R: Runtime>(&self, socket: &Socket<R, TcpId>) -> io::Result<bool> {
        if self.fast_open.is_none() {
            return Ok(false);
        }
        socket.with(|mut tcp, _| Ok(tcp.is_deferred()))
    }

    /// The first of several attempts, each of which begins when the one before it failed, or has not
    /// answered for a while.
    async fn race<R: Runtime>(
        &self,
        runtime: &R,
        found: Vec<SocketAddr>,
        call: Call,
    ) -> io::Result<Arc<Socket<R, TcpId>>> {
        let mut left = interleave(found).into_iter();
        let mut attempts = Vec::new();
        let mut last = None;
        loop {
            let next = left.next();
            let more = left.len() > 0;
            attempts.extend(next.map(|remote| Box::pin(self.attempt(runtime, remote, None, call))));
            let mut delay = pin!(runtime.sleep(ATTEMPT_DELAY));
            let won = poll_fn(|cx| {
                let (mut failed, mut at) = (false, 0);
                while let Some(attempt) = attempts.get_mut(at) {
                    match attempt.as_mut().poll(cx) {
                        Poll::Pending => at += 1,
                        Poll::Ready(Ok(socket)) => return Poll::Ready(Some(socket)),
                        Poll::Ready(Err(error)) => {
                            drop(attempts.swap_remove(at));
                            last = Some(error);
                            failed = true;
                        }
                    }
                }
                let next = more && (failed || delay.as_mut().poll(cx).is_ready());
                if next || attempts.is_empty() { Poll::Ready(None) } else { Poll::Pending }
            });
            if let Some(socket) = won.await {
                return Ok(socket);
            }
            if attempts.is_empty() && !more {
                return Err(last.unwrap_or_else(|| os_error(errno::INVAL)));
            }
        }
    }
}

/// Addresses of both IP versions in turns, beginning with the first's (RFC 8305 section 4).
fn interleave(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first = found.first().is_some_and(SocketAddr::is_ipv6);
    let (ours, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|address| address.is_ipv6() == first);
    let (mut ours, mut others) = (ours.into_iter(), others.into_iter());
    let mut all = Vec::new();
    loop {
        let pair = [ours.next(), others.next()];
        if pair == [None, None] {
            return all;
        }
        all.extend(pair.into_iter().flatten());
    }
}

impl ConnectOptions {
    /// [`connect`](Self::connect) on a thread: one address is waited for as by other calls, which poll the
    /// device themselves.
    pub(crate) fn connect_blocking<R: Blocking>(
        &self,
        runtime: &R,
        to: Target,
    ) -> io::Result<Arc<Socket<R, TcpId>>> {
        let to = match to.literal() {
            Ok(found) => match found?[..] {
                [remote] => return self.attempt_blocking(runtime, remote),
                ref several => Target::Addresses(several.to_vec()),
            },
            Err(name) => name,
        };
        runtime.block_on(self.connect(runtime, to, Call::new("to connect")))?
    }

    fn attempt_blocking<R: Blocking>(
        &self,
        runtime: &R,
        remote: SocketAddr,
    ) -> io::Result<Arc<Socket<R, TcpId>>> {
        let socket = self.open(runtime, remote, None)?;
        if !self.is_deferred(&socket)? {
            wait_connected(&socket, Patience::For(self.timeout))?;
        }
        Ok(socket)
    }
}

/// Waits until the connection is established.
pub(crate) fn wait_connected<R: Blocking>(
    socket: &Socket<R, TcpId>,
    patience: Patience,
) -> io::Result<()> {
    let id = socket.id();
    match socket.enter(|stack, clock| connected(stack, clock, id)) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let connected = |stack: &mut Stack, clock: &Clock<'_>| connected(stack, clock, id);
            socket.runtime().wait(id.into(), WRITE, patience, connected)
        }
        done => done,
    }
}

/// How an address is bound to listen, or for datagrams.
#[derive(Clone, Debug)]
#[must_use]
pub struct BindOptions {
    backlog: usize,
    pub(crate) bind: pagewire_stack::BindOptions,
}

impl BindOptions {
    /// The defaults: 128 connections may wait to be accepted, and the address is not shared.
    pub fn new() -> Self {
        Self { backlog: 128, bind: pagewire_stack::BindOptions::default() }
    }
}

pagewire_mem::setters! {
    BindOptions:
    /// How many connections may wait to be accepted.
    backlog(connections: usize): backlog = connections;
    /// Whether the address may be that of other sockets that do not listen (`SO_REUSEADDR`). Connections in
    /// TIME-WAIT never count.
    #[doc(alias = "SO_REUSEADDR")]
    reuse_address(on: bool): bind.reuse = on;
    /// Whether several sockets may have the address, and share what arrives there (`SO_REUSEPORT`).
    #[doc(alias = "SO_REUSEPORT")]
    reuse_port(on: bool): bind.reuse_port = on;
    /// Whether `::` stands for addresses of IPv6 only (`IPV6_V6ONLY`).
    #[doc(alias = "IPV6_V6ONLY")]
    v6_only(on: bool): bind.v6_only = on;
    /// The only link of the socket (`SO_BINDTODEVICE`).
    #[doc(alias = "SO_BINDTODEVICE")]
    link(link: LinkId): bind.link = Some(link);
    /// Whether every shard of a host of several cores binds the address. Without it, the port is the shard's alone.
    every_shard(on: bool): bind.every_shard = on;
}

impl BindOptions {
    /// Listens at one address.
    pub(crate) fn listen<R: Runtime>(
        &self,
        runtime: &R,
        at: SocketAddr,
    ) -> io::Result<Arc<Socket<R, ListenerId>>> {
        let (backlog, v6_only) = (self.backlog, self.bind.v6_only);
        if self.bind == pagewire_stack::BindOptions::default() {
            let id = runtime.enter(|stack, _, _| stack.listen(at, backlog))?;
            let id = id.map_err(|error| runtime.error(error))?;
            return Ok(Socket::new(runtime.clone(), id, at.is_ipv6()));
        }
        let (reserved, at) = reserve(runtime, at, self.bind)?;
        let reservation = Some(reserved.id);
        let how = pagewire_stack::ListenOptions { backlog, reservation, v6_only };
        let id = runtime.enter(|stack, _, _| stack.listen(at, how))?;
        let id = id.map_err(|error| runtime.error(error))?;
        Ok(Socket::with_reservation(runtime.clone(), id, at.is_ipv6(), Some(reserved)))
    }

    /// Binds a datagram socket to one address.
    pub(crate) fn bind_udp<R: Runtime>(
        &self,
        runtime: &R,
        at: SocketAddr,
    ) -> io::Result<Arc<Socket<R, UdpId>>> {
        let id = runtime.enter(|stack, _, _| stack.bind_udp(at, self.bind))?;
        let id = id.map_err(|error| runtime.error(error))?;
        Ok(Socket::new(runtime.clone(), id, at.is_ipv6()))
    }
}

impl Default for BindOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Reserves an address for a socket that will listen there or connect from there.
pub(crate) fn reserve<R: Runtime>(
    runtime: &R,
    at: SocketAddr,
    options: pagewire_stack::BindOptions,
) -> io::Result<(Reserved<R>, SocketAddr)> {
    let done = runtime.enter(|stack, _, _| stack.reservations().reserve(at, options))?;
    let (id, at): (PortReservation, _) = done.map_err(|error| runtime.error(error))?;
    Ok((Reserved { runtime: runtime.clone(), id }, at))
}

/// The answer for the first address of several for which `attempt` succeeds.
///
/// # Errors
/// The error of the last.
pub fn first<T>(
    found: Vec<SocketAddr>,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for address in found {
        match attempt(address) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| os_error(errno::INVAL)))
}

/// The addresses of a name or of a text, on a thread. At least one.
///
/// # Errors
/// The resolver's; `InvalidInput` for text without a port.
pub fn resolve_blocking<R: Blocking>(
    runtime: &R,
    of: impl ToSocketAddrs,
) -> io::Result<Vec<SocketAddr>> {
    match target(&of)?.literal() {
        Ok(found) => found,
        Err(name) => runtime.block_on(name.resolve(runtime))?,
    }
}
