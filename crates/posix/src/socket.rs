//! Sockets from `socket` to `shutdown`, and their names.
//!
//! ```text
//!                 bind            listen
//!   socket --> Closed(reservation?) ---------> Listening --accept--> Connected (another file)
//!                 | connect            shutdown(RD) | back to Closed
//!                 v
//!             Connecting --SYN,ACK seen by connect--> Connected --connect(AF_UNSPEC)--> Closed
//!                 | failed: back to Closed
//! ```
//!
//! A connection that ended stays `Connected`: what Linux answers then follows from the stack's
//! connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{
    ConnectOptions, ListenerId, PortReservation, Readiness, SocketId, SocketOption, Stack, TcpId,
    UdpId,
};

use crate::address::{Domain, Given, SockAddr, family, parse};
use crate::backend::Backend;
use crate::descriptors::Descriptors;
use crate::file::{File, Object};
use crate::limits::SOMAXCONN;
use crate::notice::{Signal, Watch};
use crate::options::Options;
use crate::poll::Events;
use crate::{Errno, Fd, errno};

/// A socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) domain: Domain,
    pub(crate) kind: Kind,
    state: Mutex<State>,
}

/// What it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Stream,
    Datagram,
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) stage: Stage,
    /// Where `bind` put it.
    pub(crate) bound: Option<SocketAddr>,
    /// The address that its listener is bound to: as in Linux, a connection that is dissolved keeps
    /// that, and not the port, which is the listener's.
    address: Option<IpAddr>,
    /// The stack's word that a stream's address is taken.
    pub(crate) reservation: Option<PortReservation>,
    pub(crate) options: Options,
    /// Directions shut down without a connection: reading, writing.
    pub(crate) shut: [bool; 2],
    /// What the next call is told: the connection was dissolved from this side.
    pub(crate) error: Option<Errno>,
}

/// Where a socket is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No peer, and not listening.
    Closed,
    Listening(ListenerId),
    /// `connect` began, and nobody has been told of the outcome.
    Connecting(TcpId),
    Connected(TcpId),
    Datagram(UdpId),
}

impl State {
    /// The address that it is bound to, if that is one of its own.
    fn bound_address(&self) -> Option<IpAddr> {
        self.bound.map(|bound| bound.ip()).filter(|ip| !ip.is_unspecified())
    }
}

impl Stage {
    /// The stack's socket.
    pub(crate) fn id(self) -> Option<SocketId> {
        match self {
            Self::Closed => None,
            Self::Listening(id) => Some(id.into()),
            Self::Connecting(id) | Self::Connected(id) => Some(id.into()),
            Self::Datagram(id) => Some(id.into()),
        }
    }

    /// The stack's datagram socket.
    pub(crate) fn datagram(self) -> Option<UdpId> {
        match self {
            Self::Datagram(id) => Some(id),
            _ => None,
        }
    }

    /// The stack's connection.
    pub(crate) fn connection(self) -> Option<TcpId> {
        match self {
            Self::Connecting(id) | Self::Connected(id) => Some(id),
            _ => None,
        }
    }
}

impl Socket {
    fn new(domain: Domain, kind: Kind, stage: Stage, options: Options) -> Self {
        let shut = [false; 2];
        let state = State {
            stage,
            bound: None,
            address: None,
            reservation: None,
            options,
            shut,
            error: None,
        };
        Self { domain, kind, state: Mutex::new(state) }
    }

    /// Held over calls into the stack where two must not mix; never while a thread waits.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stage(&self) -> Stage {
        self.lock().stage
    }

    /// Where it is while nobody has bound it: any port of any address, or of the one that it keeps.
    fn unbound(&self, state: &State) -> SocketAddr {
        let any = match self.domain {
            Domain::Inet => Ipv4Addr::UNSPECIFIED.into(),
            Domain::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(state.address.unwrap_or(any), 0)
    }
}

/// Flags of `socket` and `accept4`.
struct OpenFlags {
    nonblocking: bool,
    close_on_exec: bool,
}

fn open_flags(flags: i32) -> Result<OpenFlags, Errno> {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Errno::INVAL);
    }
    Ok(OpenFlags {
        nonblocking: flags & libc::SOCK_NONBLOCK != 0,
        close_on_exec: flags & libc::SOCK_CLOEXEC != 0,
    })
}

/// Bits of the type in the second argument of `socket`.
const TYPE_MASK: i32 = 0xf;
/// One more than the largest protocol number and socket type that there are.
const IPPROTO_MAX: i32 = 263;
const SOCK_MAX: i32 = 11;

impl<B: Backend> Descriptors<B> {
    /// A TCP or UDP socket: `domain` is `AF_INET` or `AF_INET6`, `kind` `SOCK_STREAM` or
    /// `SOCK_DGRAM`, perhaps with `SOCK_NONBLOCK` and `SOCK_CLOEXEC`.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`, `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`, `EINVAL` for unknown flags and numbers,
    /// `EMFILE`.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<Fd, Errno> {
        let flags = open_flags(kind & !TYPE_MASK)?;
        let domain = match domain {
            libc::AF_INET => Domain::Inet,
            libc::AF_INET6 => Domain::Inet6,
            _ => return Err(Errno::AFNOSUPPORT),
        };
        if !(0..IPPROTO_MAX).contains(&protocol) || kind & TYPE_MASK >= SOCK_MAX {
            return Err(Errno::INVAL);
        }
        let kind = match (kind & TYPE_MASK, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Kind::Stream,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Kind::Datagram,
            (libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => return Err(Errno::PROTONOSUPPORT),
            _ => return Err(Errno::SOCKTNOSUPPORT),
        };
        let socket = Socket::new(domain, kind, Stage::Closed, Options::default());
        let file = File::new(Object::Socket(Box::new(socket)), flags.nonblocking);
        self.install(file, flags.close_on_exec)
    }

    /// Gives a socket its local address.
    ///
    /// # Errors
    /// `EINVAL` for a second bind or an address that is too short, `EAFNOSUPPORT`,
    /// `EADDRNOTAVAIL`, `EADDRINUSE`.
    pub fn bind(&self, fd: Fd, addr: &[u8]) -> Result<(), Errno> {
        let held = self.file(fd)?;
        let socket = held.socket()?;
        let local = match parse(socket.domain, addr)? {
            Given::Address(local) => local,
            // Compatibility: AF_UNSPEC with an address of zeros is AF_INET.
            Given::Unspecified if socket.domain == Domain::Inet && addr.len() >= 16 => {
                let mut inet = [0; 16];
                inet.copy_from_slice(&addr[..16]);
                inet[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                match parse(Domain::Inet, &inet)? {
                    Given::Address(local) if local.ip().is_unspecified() => local,
                    _ => return Err(Errno::AFNOSUPPORT),
                }
            }
            Given::Unspecified => return Err(Errno::AFNOSUPPORT),
        };
        let mut state = socket.lock();
        if state.bound.is_some() || state.stage != Stage::Closed {
            return Err(Errno::INVAL);
        }
        if state.options.v6_only && is_mapped(local) {
            return Err(Errno::INVAL);
        }
        self.bind_to(held.shared(), socket, &mut state, local)
    }

    fn bind_to(
        &self,
        file: &File,
        socket: &Socket,
        state: &mut State,
        local: SocketAddr,
    ) -> Result<(), Errno> {
        match socket.kind {
            Kind::Stream => {
                let options = state.options.bind_options();
                let bound =
                    self.backend.with(|stack, _| stack.reservations().reserve(local, options));
                let (reservation, local) = bound.map_err(errno)?;
                (state.bound, state.reservation) = (Some(local), Some(reservation));
            }
            Kind::Datagram => {
                let options = &state.options;
                let (id, local) = self.backend.with(|stack, now| {
                    let id = stack.bind_udp(local, options.bind_options());
                    let id = id.map_err(errno)?;
                    self.notices.insert(id.into(), &file.watch);
                    options.apply(stack, now, id.into());
                    Ok((id, stack.local_addr(id).map_err(errno)?))
                })?;
                state.bound = Some(local);
                state.stage = Stage::Datagram(id);
            }
        }
        Ok(())
    }

    /// A datagram socket that is used before it is bound gets a port.
    pub(crate) fn bind_datagram(&self, file: &File, socket: &Socket) -> Result<UdpId, Errno> {
        let mut state = socket.lock();
        if state.stage == Stage::Closed {
            let local = socket.unbound(&state);
            self.bind_to(file, socket, &mut state, local)?;
        }
        state.stage.datagram().ok_or(Errno::INVAL)
    }

    /// Listens, on a free port if the socket is not bound. Again: changes the backlog.
    ///
    /// # Errors
    /// `EINVAL` if the socket is connected, `EOPNOTSUPP` for datagrams, `EADDRINUSE`.
    pub fn listen(&self, fd: Fd, backlog: i32) -> Result<(), Errno> {
        let held = self.file(fd)?;
        let socket = held.socket()?;
        if socket.kind != Kind::Stream {
            return Err(Errno::OPNOTSUPP);
        }
        // A negative backlog is a large one: Linux compares without sign.
        let backlog = usize::try_from(backlog).unwrap_or(SOMAXCONN).min(SOMAXCONN);
        let mut state = socket.lock();
        match state.stage {
            Stage::Closed => {}
            Stage::Listening(id) => {
                return self
                    .backend
                    .with(|s, _| {
                        s.listener(id).and_then(|mut listener| listener.set_backlog(backlog))
                    })
                    .map_err(errno);
            }
            _ => return Err(Errno::INVAL),
        }
        if state.bound.is_none() {
            let local = socket.unbound(&state);
            self.bind_to(held.shared(), socket, &mut state, local)?;
        }
        let (Some(local), Some(reservation)) = (state.bound, state.reservation) else {
            return Err(Errno::INVAL);
        };
        let options = &state.options;
        let id = self.backend.with(|stack, now| {
            let id = stack.listen(
                local,
                pagewire_stack::ListenOptions {
                    backlog,
                    reservation: Some(reservation),
                    v6_only: options.v6_only,
                },
            );
            let id = id.map_err(errno)?;
            self.notices.insert(id.into(), &held.watch);
            options.apply_to_listener(stack, now, id.into());
            Ok(id)
        })?;
        state.stage = Stage::Listening(id);
        state.shut = [false; 2];
        Ok(())
    }

    /// Takes a connection that waits, and its peer's address. Blocks.
    pub fn accept(&self, fd: Fd) -> Result<(Fd, SockAddr), Errno> {
        self.accept4(fd, 0)
    }

    /// [`accept`](Self::accept) with `SOCK_NONBLOCK` and `SOCK_CLOEXEC`.
    ///
    /// # Errors
    /// `EINVAL` if the socket does not listen, `EOPNOTSUPP` for datagrams, `EAGAIN` if none waits
    /// and the file does not block, or `SO_RCVTIMEO` is over.
    pub fn accept4(&self, fd: Fd, flags: i32) -> Result<(Fd, SockAddr), Errno> {
        let flags = open_flags(flags)?;
        let held = self.file(fd)?;
        let socket = held.socket()?;
        if socket.kind != Kind::Stream {
            return Err(Errno::OPNOTSUPP);
        }
        let limit = socket.lock().options.receive_timeout;
        let blocking = !held.is_nonblocking();
        let (child, watch, peer) = self.block_on(&held, Events::IN, blocking, limit, || {
            let state = socket.lock();
            let Stage::Listening(listener) = state.stage else { return Err(Errno::INVAL) };
            let (watch, options) = (Arc::<Watch>::default(), state.options.inherited());
            let (id, peer, reservation) = self.backend.with(|stack, now| {
                let (id, peer) = stack
                    .listener(listener)
                    .and_then(|mut listener| listener.accept())
                    .map_err(errno)?;
                self.notices.insert(id.into(), &watch);
                options.apply(stack, now, id.into());
                Ok((
                    id,
                    peer,
                    stack.reservations().reserve_connected(id, options.bind_options()).ok(),
                ))
            })?;
            let child = Socket::new(socket.domain, Kind::Stream, Stage::Connected(id), options);
            {
                let mut own = child.lock();
                (own.reservation, own.address) = (reservation, state.bound_address());
            }
            Ok((child, watch, peer))
        })?;
        let file = File::with_watch(Object::Socket(Box::new(child)), flags.nonblocking, watch);
        Ok((self.install(file, flags.close_on_exec)?, SockAddr::new(peer, socket.domain)))
    }

    /// Connects to a peer; with `AF_UNSPEC`, dissolves what there is. Blocks for a stream.
    ///
    /// # Errors
    /// `EINPROGRESS` if the file does not block, or `SO_SNDTIMEO` is over; then `EALREADY` until the
    /// outcome is known, and what the connection met, once. `EISCONN`, `EINVAL`, `EAFNOSUPPORT`,
    /// `ENETUNREACH`, `EADDRNOTAVAIL`, `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`.
    pub fn connect(&self, fd: Fd, addr: &[u8]) -> Result<(), Errno> {
        let held = self.file(fd)?;
        let socket = held.socket()?;
        match socket.kind {
            Kind::Stream => self.connect_stream(held.shared(), socket, addr),
            Kind::Datagram => self.connect_datagram(held.shared(), socket, addr),
        }
    }

    fn connect_datagram(&self, file: &File, socket: &Socket, addr: &[u8]) -> Result<(), Errno> {
        match parse(socket.domain, addr)? {
            Given::Address(remote) => {
                if is_mapped(remote) && socket.lock().options.v6_only {
                    return Err(Errno::NETUNREACH);
                }
                let id = self.bind_datagram(file, socket)?;
                self.backend
                    .with(|stack, _| stack.udp(id).and_then(|mut udp| udp.connect(remote)))
                    .map_err(errno)
            }
            Given::Unspecified => match socket.stage().id() {
                Some(id) => self
                    .backend
                    .with(|stack, _| stack.as_udp(id).map(|mut udp| udp.disconnect()))
                    .map_err(errno),
                None => Ok(()),
            },
        }
    }

    fn connect_stream(&self, file: &File, socket: &Socket, addr: &[u8]) -> Result<(), Errno> {
        let unspecified = family(addr)? == libc::AF_UNSPEC;
        let mut blocking = !file.is_nonblocking();
        // What is said while there is no outcome.
        let mut pending = Errno::INPROGRESS;
        let limit = {
            let mut state = socket.lock();
            if unspecified {
                self.disconnect(&mut state);
                return Ok(());
            }
            match state.stage {
                Stage::Closed => {
                    let fast = state.options.fast_open_connect;
                    let id = self.begin_connect(file, socket, &mut state, addr, fast)?;
                    if fast && self.is_deferred(id) {
                        return Ok(());
                    }
                }
                Stage::Connecting(id) if self.is_deferred(id) => return Err(Errno::ISCONN),
                Stage::Connecting(_) if !blocking => {
                    return match self.connect_outcome(&mut state) {
                        Err(Errno::AGAIN) => Err(Errno::ALREADY),
                        done => done,
                    };
                }
                Stage::Connecting(_) => pending = Errno::ALREADY,
                _ => return Err(Errno::ISCONN),
            }
            state.options.send_timeout
        };
        // Linux: no time to wait is as not waiting at all.
        blocking &= limit != Some(Duration::ZERO);
        let outcome = self.block_on(file, Events::OUT, blocking, limit, || {
            self.connect_outcome(&mut socket.lock())
        });
        match outcome {
            Err(Errno::AGAIN) => Err(pending),
            done => done,
        }
    }

    pub(crate) fn begin_connect(
        &self,
        file: &File,
        socket: &Socket,
        state: &mut State,
        addr: &[u8],
        fast: bool,
    ) -> Result<TcpId, Errno> {
        let Given::Address(remote) = parse(socket.domain, addr)? else {
            return Err(Errno::AFNOSUPPORT);
        };
        // Linux: an unspecified destination is this host, as in BSD. It has no loopback here.
        let local = state.bound.unwrap_or_else(|| socket.unbound(state));
        let options = &state.options;
        if options.v6_only && is_mapped(remote) {
            return Err(Errno::NETUNREACH);
        }
        let held = state.reservation.is_some();
        let (id, own) = self.backend.with(|stack, now| {
            let config = options.config(stack);
            let fast_open = fast.then_some(options.fast_open_no_cookie);
            let (local, config, link) = (Some(local), Some(config), options.link);
            let how = ConnectOptions { local, config, fast_open, link };
            let id = stack.connect(now, remote, how).map_err(errno)?;
            self.notices.insert(id.into(), &file.watch);
            options.apply(stack, now, id.into());
            let own = if held {
                None
            } else {
                stack.reservations().reserve_connected(id, options.bind_options()).ok()
            };
            Ok((id, own))
        })?;
        state.reservation = state.reservation.take().or(own);
        state.stage = Stage::Connecting(id);
        state.error = None;
        Ok(id)
    }

    /// What became of a connect: nothing yet is `EAGAIN`.
    pub(crate) fn connect_outcome(&self, state: &mut State) -> Result<(), Errno> {
        let Stage::Connecting(id) = state.stage else {
            return if state.stage == Stage::Closed { Err(Errno::CONNABORTED) } else { Ok(()) };
        };
        let (readiness, error) = self.backend.with(|stack, _| {
            let readiness = stack.readiness(id).unwrap_or_default();
            let over = readiness.contains(Readiness::WRITE_CLOSED | Readiness::READ_CLOSED);
            let failed = over && !readiness.contains(Readiness::CONNECTED);
            (readiness, failed.then(|| stack.take_error(id)))
        });
        match error {
            None if readiness.contains(Readiness::CONNECTED) => {
                state.stage = Stage::Connected(id);
                Ok(())
            }
            None => Err(Errno::AGAIN),
            Some(error) => {
                self.disconnect(state);
                Err(error.map_or(Errno::CONNABORTED, errno))
            }
        }
    }

    /// Back to a socket without a peer. What was under way is reset, and as in Linux
    /// (`tcp_disconnect`), the next call is told.
    fn disconnect(&self, state: &mut State) {
        state.error = None;
        if let Some(id) = state.stage.id() {
            self.notices.remove(id);
            let cut = self.backend.with(|stack, now| {
                let name =
                    stack.as_tcp(id).map(|tcp| tcp.info()).map_or("", |info| info.state.name());
                let cut = RESET_WHEN_CUT.contains(&name);
                if matches!(state.stage, Stage::Connected(_)) {
                    stack.abort(now, id);
                }
                stack.close(now, id);
                cut && state.stage.connection().is_some()
            });
            state.error = cut.then_some(Errno::CONNRESET);
        }
        // A port that was chosen for the connection goes with it.
        if state.bound.is_none()
            && let Some(reservation) = state.reservation.take()
        {
            self.backend.with(|stack, _| stack.reservations().release(reservation));
        }
        state.stage = Stage::Closed;
        state.shut = [false; 2];
    }

    /// The local address.
    pub fn getsockname(&self, fd: Fd) -> Result<SockAddr, Errno> {
        let held = self.file(fd)?;
        let socket = held.socket()?;
        let state = socket.lock();
        let local = match state.stage.id() {
            Some(id) => self.backend.with(|stack, _| stack.local_addr(id)).map_err(errno)?,
            None => state.bound.unwrap_or_else(|| socket.unbound(&state)),
        };
        Ok(SockAddr::new(local, socket.domain))
    }

    /// The peer's address.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn getpeername(&self, fd: Fd) -> Result<SockAddr, Errno> {
        let held = self.file(fd)?;
        let socket = held.socket()?;
        let id = match socket.stage() {
            Stage::Connecting(id) | Stage::Connected(id) => SocketId::from(id),
            Stage::Datagram(id) => id.into(),
            _ => return Err(Errno::NOTCONN),
        };
        let remote = self.backend.with(|stack, _| {
            if socket.kind == Kind::Stream {
                let state = stack.as_tcp(id).map_or("CLOSED", |tcp| tcp.info().state.name());
                if matches!(state, "SYN-SENT" | "CLOSED") {
                    return Err(Errno::NOTCONN);
                }
            }
            stack.remote_addr(id).map_err(errno)
        })?;
        Ok(SockAddr::new(remote, socket.domain))
    }

    /// Ends one direction or both: `how` is `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
    ///
    /// # Errors
    /// `EINVAL` for another `how`, `ENOTCONN`.
    pub fn shutdown(&self, fd: Fd, how: i32) -> Result<(), Errno> {
        let held = self.file(fd)?;
        let socket = held.socket()?;
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::INVAL),
        };
        let mut state = socket.lock();
        let done = self.shutdown_stage(&mut state, how);
        drop(state);
        held.watch.wake(Events::empty());
        done
    }

    fn shutdown_stage(&self, state: &mut State, how: Shutdown) -> Result<(), Errno> {
        let (read, write) = (how != Shutdown::Write, how != Shutdown::Read);
        match state.stage {
            Stage::Closed | Stage::Datagram(_) => {
                state.shut[0] |= read;
                state.shut[1] |= write;
                let connected = state
                    .stage
                    .id()
                    .is_some_and(|id| self.backend.with(|stack, _| stack.remote_addr(id).is_ok()));
                if connected { Ok(()) } else { Err(Errno::NOTCONN) }
            }
            // As Linux: no more reading means no more listening; writing means nothing.
            Stage::Listening(_) => {
                if read {
                    self.disconnect(state);
                }
                Ok(())
            }
            Stage::Connecting(id) | Stage::Connected(id) => {
                let unanswered = self.backend.with(|stack, now| {
                    let readiness = stack.readiness(id).map_err(errno)?;
                    // One that was accepted with Fast Open may still be shaking hands.
                    let connecting = matches!(state.stage, Stage::Connecting(_));
                    let connected = readiness.contains(Readiness::CONNECTED);
                    if connecting && !connected && is_open(stack, id) {
                        return Ok(true);
                    }
                    stack.tcp(id).and_then(|mut tcp| tcp.shutdown(now, how)).map_err(errno)?;
                    Ok(false)
                })?;
                if unanswered {
                    self.disconnect(state);
                }
                Ok(())
            }
        }
    }

    /// An epoll instance watches: from now on every arrival is an event, not only the first since
    /// somebody looked.
    pub(crate) fn report_edges(&self, file: &File) {
        let Object::Socket(socket) = &file.object else { return };
        let mut state = socket.lock();
        state.options.edges = true;
        if let Some(id) = state.stage.id() {
            let option = SocketOption::EveryArrival(true);
            let _ = self.backend.with(|stack, _| stack.set_option(id, option));
        }
    }

    /// With `SO_LINGER`, waits until the peer has acknowledged everything, the FIN included, or the
    /// time is over: also where the file does not block, as in Linux.
    fn linger(&self, socket: &Socket) {
        let (id, time) = {
            let state = socket.lock();
            match (state.stage, state.options.linger) {
                (Stage::Connected(id), Some(time)) if !time.is_zero() => (id, time),
                _ => return,
            }
        };
        let deadline = self.backend.now() + time;
        let shut = self.backend.with(|stack, now| {
            // Data that nobody read makes this a reset.
            let unread = stack.tcp(id).map(|tcp| tcp.queued()).is_ok_and(|queued| queued > 0);
            !unread && stack.tcp(id).and_then(|mut tcp| tcp.shutdown(now, Shutdown::Write)).is_ok()
        });
        let signal = Signal::new();
        let is_waiting = |stack: &mut Stack, _| {
            stack.tcp(id).map(|tcp| tcp.info()).is_ok_and(|info| {
                matches!(info.state.name(), "FIN-WAIT-1" | "CLOSING" | "LAST-ACK")
            })
        };
        while shut && !self.is_over(Some(deadline)) && self.backend.with(is_waiting) {
            self.backend.wait(&signal, Some(deadline.min(self.backend.now() + LINGER_LOOK)));
        }
    }

    /// The last reference is gone.
    pub(crate) fn release_socket(&self, socket: &Socket) {
        self.linger(socket);
        let mut state = socket.lock();
        let (id, reservation) = (state.stage.id(), state.reservation.take());
        if let Some(id) = id {
            self.notices.remove(id);
        }
        let options = &state.options;
        self.backend.with(|stack, now| {
            if let Some(id) = id {
                close_socket(stack, now, id, options);
            }
            if let Some(reservation) = reservation {
                stack.reservations().release(reservation);
            }
        });
        state.stage = Stage::Closed;
    }
}

/// States in which dissolving a connection is an error for the next call.
const RESET_WHEN_CUT: [&str; 6] =
    ["SYN-SENT", "SYN-RECEIVED", "ESTABLISHED", "FIN-WAIT-1", "FIN-WAIT-2", "CLOSE-WAIT"];

/// How often a close that waits looks whether its time has come: no readiness tells of the
/// acknowledgement of a FIN.
const LINGER_LOOK: Duration = Duration::from_millis(10);

fn close_socket(stack: &mut Stack, now: Instant, id: SocketId, options: &Options) {
    match options.linger {
        // > SO_LINGER with a time of 0: the connection is reset.
        Some(time) if time.is_zero() => {
            stack.abort(now, id);
            stack.close(now, id);
        }
        _ => stack.close(now, id),
    }
}

/// Whether an IPv6 address stands for one of IPv4 (RFC 4291 section 2.5.5.2).
pub(crate) fn is_mapped(addr: SocketAddr) -> bool {
    matches!(addr.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

/// Whether a connection has not ended.
pub(crate) fn is_open(stack: &mut Stack, id: TcpId) -> bool {
    stack.tcp(id).map(|tcp| tcp.info()).is_ok_and(|info| info.state.name() != "CLOSED")
}
