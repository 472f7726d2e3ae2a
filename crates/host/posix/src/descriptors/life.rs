//! Sockets from `socket` to `shutdown`, and their names.
//!
//! ```text
//!                 bind            listen
//!   socket --> Closed(bound?) ---------------> Listening --accept--> Connected (another file)
//!                 | connect            shutdown(RD) | back to Closed
//!                 v
//!             Connecting --SYN,ACK seen by connect--> Connected --connect(AF_UNSPEC)--> Closed
//!                 | failed: back to Closed
//! ```
//!
//! A connection that ended stays `Connected`: answers then follow from the stack's connection.

use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::time::Duration;

use pagewire_stack::{ConnectOptions, ListenOptions, Readiness, TcpId, UdpId, option};

use super::{Descriptors, SocketCall};
use crate::address::{Domain, Given, SockAddr, family, is_mapped, parse};
use crate::backend::Backend;
use crate::events::Events;
use crate::file::socket::{Kind, Socket, Stage, State};
use crate::file::{File, Object};
use crate::limits::SOMAXCONN;
use crate::options::Options;
use crate::{Errno, Fd, errno, field};

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
/// The largest protocol number and socket type, plus one.
const IPPROTO_MAX: i32 = 263;
const SOCK_MAX: i32 = 11;

impl<B: Backend> Descriptors<B> {
    /// A TCP or UDP socket: `AF_INET` or `AF_INET6`, `SOCK_STREAM` or `SOCK_DGRAM`, with flags.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`, `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`, `EINVAL` for unknown flags and
    /// numbers, `EMFILE`.
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
        let file = self.file(fd)?;
        let call = file.socket()?;
        let local = match parse(call.domain, addr)? {
            Given::Address(local) => local,
            // As Linux: AF_UNSPEC with an address of zeros is AF_INET.
            Given::Unspecified
                if call.domain == Domain::Inet && addr.len() >= 16 && addr[4..8] == [0; 4] =>
            {
                (Ipv4Addr::UNSPECIFIED, u16::from_be_bytes(field(addr, 2)?)).into()
            }
            Given::Unspecified => return Err(Errno::AFNOSUPPORT),
        };
        let mut state = call.lock();
        if state.bound.is_some() || state.stage != Stage::Closed {
            return Err(Errno::INVAL);
        }
        if state.options.value(option::V6Only) && is_mapped(local) {
            return Err(Errno::INVAL);
        }
        call.bind_to(&mut state, local)
    }

    /// Listens, on a free port if the socket is not bound. Again: changes the backlog.
    ///
    /// # Errors
    /// `EINVAL` if the socket is connected, `EOPNOTSUPP` for datagrams, `EADDRINUSE`.
    pub fn listen(&self, fd: Fd, backlog: i32) -> Result<(), Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        if call.kind != Kind::Stream {
            return Err(Errno::OPNOTSUPP);
        }
        // A negative backlog is a large one: Linux compares without sign.
        let backlog = usize::try_from(backlog).unwrap_or(SOMAXCONN).min(SOMAXCONN);
        let mut state = call.lock();
        match state.stage {
            Stage::Closed => {}
            Stage::Listening(id) => {
                let set = self.runtime.with(|stack, _| stack.listener(id)?.set_backlog(backlog));
                return set.map_err(errno);
            }
            _ => return Err(Errno::INVAL),
        }
        if state.bound.is_none() {
            let local = call.unbound(&state);
            call.bind_to(&mut state, local)?;
        }
        let (Some(local), reservation @ Some(_)) = (state.bound, state.reservation) else {
            return Err(Errno::INVAL);
        };
        let options = &state.options;
        let id = self.runtime.with_waiters(|stack, now, waiters| {
            let how =
                ListenOptions { backlog, reservation, v6_only: options.value(option::V6Only) };
            let id = stack.listen(local, how).map_err(errno)?;
            file.watch.follow(waiters, id.into());
            options.apply(stack, now, id.into());
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
        let file = self.file(fd)?;
        let call = file.socket()?;
        if call.kind != Kind::Stream {
            return Err(Errno::OPNOTSUPP);
        }
        let limit = call.lock().options.value(option::ReceiveTimeout);
        let (child, peer) = call.block_on(Events::IN, 0, limit, || {
            let state = call.lock();
            let Stage::Listening(listener) = state.stage else { return Err(Errno::INVAL) };
            let options = state.options.inherited();
            let accepted = self.runtime.with(|stack, now| {
                let (id, peer) = stack.listener(listener)?.accept()?;
                options.apply(stack, now, id.into());
                let own = stack.reservations().reserve_connected(id, options.bind_options());
                Ok((id, peer, own.ok()))
            });
            let (id, peer, reservation) = accepted.map_err(errno)?;
            let child = Socket::new(call.domain, Kind::Stream, Stage::Connected(id), options);
            {
                let mut own = child.lock();
                (own.reservation, own.address) = (reservation, state.bound_address());
            }
            Ok((child, peer))
        })?;
        let child = File::new(Object::Socket(Box::new(child)), flags.nonblocking);
        Ok((self.install(child, flags.close_on_exec)?, SockAddr::new(peer, call.domain)))
    }

    /// Connects to a peer; with `AF_UNSPEC`, dissolves what there is. Blocks for a stream.
    ///
    /// # Errors
    /// `EINPROGRESS` if the file does not block, or `SO_SNDTIMEO` is over; then `EALREADY` until the
    /// outcome is known, and the connection's error, once. `EISCONN`, `EINVAL`, `EAFNOSUPPORT`,
    /// `ENETUNREACH`, `EADDRNOTAVAIL`, `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`.
    pub fn connect(&self, fd: Fd, addr: &[u8]) -> Result<(), Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        match call.kind {
            Kind::Stream => call.connect_stream(addr),
            Kind::Datagram => call.connect_datagram(addr),
        }
    }

    /// The local address.
    pub fn getsockname(&self, fd: Fd) -> Result<SockAddr, Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        let state = call.lock();
        let local = match state.stage.id() {
            Some(id) => self.runtime.with(|stack, _| stack.local_addr(id)).map_err(errno)?,
            None => state.bound.unwrap_or_else(|| call.unbound(&state)),
        };
        Ok(SockAddr::new(local, call.domain))
    }

    /// The peer's address.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn getpeername(&self, fd: Fd) -> Result<SockAddr, Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        let id = match call.stage() {
            Stage::Closed | Stage::Listening(_) => None,
            stage => stage.id(),
        };
        let id = id.ok_or(Errno::NOTCONN)?;
        let remote = self.runtime.with(|stack, _| {
            if call.kind == Kind::Stream {
                let state = stack.as_tcp(id).map_or("CLOSED", |tcp| tcp.info().state.name());
                if matches!(state, "SYN-SENT" | "CLOSED") {
                    return Err(Errno::NOTCONN);
                }
            }
            stack.remote_addr(id).map_err(errno)
        })?;
        Ok(SockAddr::new(remote, call.domain))
    }

    /// Ends one direction or both: `how` is `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
    ///
    /// # Errors
    /// `EINVAL` for another `how`, `ENOTCONN`.
    pub fn shutdown(&self, fd: Fd, how: i32) -> Result<(), Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::INVAL),
        };
        let done = call.shutdown(&mut call.lock(), how);
        file.watch.wake(Events::empty());
        done
    }
}

impl<B: Backend> SocketCall<'_, B> {
    fn bind_to(&self, state: &mut State, local: SocketAddr) -> Result<(), Errno> {
        let options = &state.options;
        match self.kind {
            Kind::Stream => {
                let how = options.bind_options();
                let reserved =
                    self.runtime.with(|stack, _| stack.reservations().reserve(local, how));
                let (reservation, local) = reserved.map_err(errno)?;
                (state.bound, state.reservation) = (Some(local), Some(reservation));
            }
            Kind::Datagram => {
                let bound = self.runtime.with_waiters(|stack, now, waiters| {
                    let id = stack.bind_udp(local, options.bind_options())?;
                    self.file.watch.follow(waiters, id.into());
                    options.apply(stack, now, id.into());
                    Ok((id, stack.local_addr(id)?))
                });
                let (id, local) = bound.map_err(errno)?;
                (state.bound, state.stage) = (Some(local), Stage::Datagram(id));
                self.file.watch.wake_threads();
            }
        }
        Ok(())
    }

    /// Gives a datagram socket a port that is used before it is bound.
    pub(crate) fn bind_datagram(&self) -> Result<UdpId, Errno> {
        let mut state = self.lock();
        if state.stage == Stage::Closed {
            let local = self.unbound(&state);
            self.bind_to(&mut state, local)?;
        }
        state.stage.datagram().ok_or(Errno::INVAL)
    }

    fn connect_datagram(&self, addr: &[u8]) -> Result<(), Errno> {
        match (parse(self.domain, addr)?, self.stage()) {
            (Given::Address(remote), _) => {
                if is_mapped(remote) && self.lock().options.value(option::V6Only) {
                    return Err(Errno::NETUNREACH);
                }
                let id = self.bind_datagram()?;
                self.runtime.with_udp(id, |mut udp, _| udp.connect(remote))
            }
            (Given::Unspecified, Stage::Datagram(id)) => self.runtime.with_udp(id, |mut udp, _| {
                udp.disconnect();
                Ok(())
            }),
            (Given::Unspecified, _) => Ok(()),
        }
    }

    fn connect_stream(&self, addr: &[u8]) -> Result<(), Errno> {
        let unspecified = family(addr)? == libc::AF_UNSPEC;
        // The answer while there is no outcome.
        let mut pending = Errno::INPROGRESS;
        let limit = {
            let mut state = self.lock();
            if unspecified {
                self.disconnect(self.runtime, &mut state);
                return Ok(());
            }
            match state.stage {
                Stage::Closed => {
                    let fast = state.options.value(option::FastOpenConnect);
                    let id = self.begin_connect(&mut state, addr, fast)?;
                    if fast && self.is_deferred(id) {
                        return Ok(());
                    }
                    // A peer may have answered already. Programs wait for the outcome, as on Linux, where no peer
                    // answers while the call lasts.
                    if !self.is_blocking(0) {
                        return Err(Errno::INPROGRESS);
                    }
                }
                Stage::Connecting(id) if self.is_deferred(id) => return Err(Errno::ISCONN),
                Stage::Connecting(_) if !self.is_blocking(0) => {
                    return match self.connect_outcome(&mut state) {
                        Err(Errno::AGAIN) => Err(Errno::ALREADY),
                        done => done,
                    };
                }
                Stage::Connecting(_) => pending = Errno::ALREADY,
                _ => return Err(Errno::ISCONN),
            }
            state.options.value(option::SendTimeout)
        };
        // Linux: a time of 0 to wait is the same as not to block.
        let flags = if limit == Some(Duration::ZERO) { libc::MSG_DONTWAIT } else { 0 };
        let outcome = || self.connect_outcome(&mut self.lock());
        match self.block_on(Events::OUT, flags, limit, outcome) {
            Err(Errno::AGAIN) => Err(pending),
            done => done,
        }
    }

    pub(crate) fn begin_connect(
        &self,
        state: &mut State,
        addr: &[u8],
        fast: bool,
    ) -> Result<TcpId, Errno> {
        let Given::Address(remote) = parse(self.domain, addr)? else {
            return Err(Errno::AFNOSUPPORT);
        };
        // Linux: an unspecified destination is this host, as in BSD. It has no loopback here.
        let local = state.bound.unwrap_or_else(|| self.unbound(state));
        let options = &state.options;
        if options.value(option::V6Only) && is_mapped(remote) {
            return Err(Errno::NETUNREACH);
        }
        let held = state.reservation.is_some();
        let (id, own) = self.runtime.with_waiters(|stack, now, waiters| {
            let config = options.config(stack);
            let fast_open = fast.then(|| options.value(option::FastOpenNoCookie));
            let (local, config, link) = (Some(local), Some(config), options.value(option::Link));
            let how = ConnectOptions { local, config, fast_open, link };
            let id = stack.connect(now, remote, how).map_err(errno)?;
            self.file.watch.follow(waiters, id.into());
            options.apply(stack, now, id.into());
            let own = match held {
                true => None,
                false => stack.reservations().reserve_connected(id, options.bind_options()).ok(),
            };
            Ok((id, own))
        })?;
        state.reservation = state.reservation.take().or(own);
        state.stage = Stage::Connecting(id);
        state.error = None;
        Ok(id)
    }

    /// The outcome of a connect; `EAGAIN` while there is none.
    pub(crate) fn connect_outcome(&self, state: &mut State) -> Result<(), Errno> {
        let Stage::Connecting(id) = state.stage else {
            return if state.stage == Stage::Closed { Err(Errno::CONNABORTED) } else { Ok(()) };
        };
        let (connected, error) = self.runtime.with(|stack, _| {
            let readiness = stack.readiness(id).unwrap_or_default();
            let over = readiness.contains(Readiness::WRITE_CLOSED | Readiness::READ_CLOSED);
            let connected = readiness.contains(Readiness::CONNECTED);
            (connected, (over && !connected).then(|| stack.take_error(id)))
        });
        match error {
            None if connected => {
                state.stage = Stage::Connected(id);
                Ok(())
            }
            None => Err(Errno::AGAIN),
            Some(error) => {
                self.disconnect(self.runtime, state);
                Err(error.map_or(Errno::CONNABORTED, errno))
            }
        }
    }

    fn shutdown(&self, state: &mut State, how: Shutdown) -> Result<(), Errno> {
        let (read, write) = (how != Shutdown::Write, how != Shutdown::Read);
        match state.stage {
            Stage::Closed | Stage::Datagram(_) => {
                state.shut[0] |= read;
                state.shut[1] |= write;
                let has_peer = |id| self.runtime.with(|stack, _| stack.remote_addr(id).is_ok());
                if state.stage.id().is_some_and(has_peer) { Ok(()) } else { Err(Errno::NOTCONN) }
            }
            // As Linux: no more reading means no more listening; writing means nothing.
            Stage::Listening(_) => {
                if read {
                    self.disconnect(self.runtime, state);
                }
                Ok(())
            }
            Stage::Connecting(id) | Stage::Connected(id) => {
                let unanswered = self.runtime.with(|stack, now| {
                    let readiness = stack.readiness(id)?;
                    // A connection that was accepted with Fast Open may still be shaking hands.
                    let connecting = matches!(state.stage, Stage::Connecting(_));
                    let connected = readiness.contains(Readiness::CONNECTED);
                    let mut tcp = stack.tcp(id)?;
                    if connecting && !connected && tcp.info().state.name() != "CLOSED" {
                        return Ok(true);
                    }
                    tcp.shutdown(now, how)?;
                    Ok(false)
                });
                if unanswered.map_err(errno)? {
                    self.disconnect(self.runtime, state);
                }
                Ok(())
            }
        }
    }
}
