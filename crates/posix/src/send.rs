//! Sending: write, writev, send, sendto, sendmsg, sendmmsg.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use pagewire_mem::{Frag, FragVec};
use pagewire_stack::{Readiness, SendFlags, SocketId, Stack, UdpTarget, ZeroCopyCall};

use crate::address::{Given, parse};
use crate::backend::Backend;
use crate::descriptors::Descriptors;
use crate::file::{Held, Object};
use crate::limits::{MAX_IOV, MAX_RW_BYTES};
use crate::message::{RawRange, SendMessage, ancillary};
use crate::poll::Events;
use crate::socket::{Kind, Socket, Stage, is_mapped};
use crate::{Errno, Fd, errno};

/// Flags that change what is sent, or how: those that a socket here has.
const KNOWN: i32 = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_MORE
    | libc::MSG_EOR
    | libc::MSG_OOB
    | libc::MSG_CONFIRM
    | libc::MSG_FASTOPEN
    | libc::MSG_ZEROCOPY;

/// In the stack's words.
pub(crate) fn send_flags(flags: i32) -> SendFlags {
    let mut out = SendFlags::empty();
    out.set(SendFlags::MORE, flags & libc::MSG_MORE != 0);
    out.set(SendFlags::END_OF_RECORD, flags & libc::MSG_EOR != 0);
    out.set(SendFlags::URGENT, flags & libc::MSG_OOB != 0);
    out
}

/// A call that sends by reference, with what its flags ask for.
pub(crate) fn new_call(flags: i32) -> ZeroCopyCall {
    ZeroCopyCall::with_flags(send_flags(flags))
}

/// The first `left` bytes.
fn cut(iov: &[RawRange], mut left: usize) -> Vec<RawRange> {
    let first = |range: &RawRange| {
        let len = range.len.min(left);
        left -= len;
        RawRange { len, ..*range }
    };
    iov.iter().map(first).collect()
}

impl<B: Backend> Descriptors<B> {
    /// [`send`](Self::send) without flags; also into a pipe.
    pub fn write(&self, fd: Fd, data: &[u8]) -> Result<usize, Errno> {
        self.writev(fd, &[IoSlice::new(data)])
    }

    /// [`write`](Self::write) of several pieces.
    pub fn writev(&self, fd: Fd, iov: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let held = self.file(fd)?;
        match &held.object {
            Object::Socket(_) => {
                self.send_held(&held, &SendMessage { iov, ..Default::default() }, 0)
            }
            Object::Pipe(end) => self.write_pipe(&held, end, iov),
            Object::Epoll(_) => Err(Errno::INVAL),
        }
    }

    /// Queues a copy of `data`. Blocks until all of it is queued; without blocking, as much as
    /// there is room for. `MSG_ZEROCOPY` changes nothing here, and nothing is notified: what is only
    /// borrowed cannot be sent as it is, see [`sendmsg_zerocopy`](Self::sendmsg_zerocopy).
    ///
    /// # Errors
    /// `EAGAIN`, `EPIPE` if the stream is not connected or closed for sending (no signal is
    /// raised), `EDESTADDRREQ`, `EMSGSIZE`, `EOPNOTSUPP` for flags that no socket here has, and what
    /// the connection met, once.
    pub fn send(&self, fd: Fd, data: &[u8], flags: i32) -> Result<usize, Errno> {
        self.sendto(fd, data, flags, None)
    }

    /// [`send`](Self::send) to the `sockaddr` in `to`; a connected stream ignores it.
    pub fn sendto(
        &self,
        fd: Fd,
        data: &[u8],
        flags: i32,
        to: Option<&[u8]>,
    ) -> Result<usize, Errno> {
        self.sendmsg(fd, &SendMessage { name: to, iov: &[IoSlice::new(data)], control: &[] }, flags)
    }

    /// [`sendto`](Self::sendto) of several pieces, with ancillary data.
    pub fn sendmsg(&self, fd: Fd, message: &SendMessage<'_>, flags: i32) -> Result<usize, Errno> {
        let held = self.file(fd)?;
        self.send_held(&held, message, flags)
    }

    /// Several messages; how many were sent. An error is returned only if none was.
    pub fn sendmmsg(
        &self,
        fd: Fd,
        messages: &[SendMessage<'_>],
        flags: i32,
    ) -> Result<Vec<usize>, Errno> {
        let held = self.file(fd)?;
        held.socket()?;
        let mut sent = Vec::new();
        for message in messages.iter().take(MAX_IOV) {
            match self.send_held(&held, message, flags) {
                Ok(n) => sent.push(n),
                Err(error) if sent.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// [`sendmsg`](Self::sendmsg) with `MSG_ZEROCOPY`: the memory is sent as it is, where the
    /// socket has `SO_ZEROCOPY`; otherwise it is copied, and nothing is notified. Notifications are in
    /// the error queue ([`recvmsg`](Self::recvmsg) with `MSG_ERRQUEUE`, which never blocks; `poll`
    /// reports them as [`Events::ERR`]); whoever leaves them there gets `ENOBUFS` at some time.
    ///
    /// ```
    /// use pagewire_posix::{Events, PollFd, RawRange, ReceiveMessage};
    /// # use pagewire::{Host, Pair};
    /// # use pagewire_posix::{Descriptors, HostBackend, SockAddr};
    /// # let (left, right) = Pair::new(Default::default())?;
    /// # let left = Host::builder().device(left).address("10.0.0.1/24").start()?;
    /// # let right = Host::builder().device(right).address("10.0.0.2/24").start()?;
    /// # let (left, right) = (HostBackend::new(left), HostBackend::new(right));
    /// # let (files, peer) = (Descriptors::new(left), Descriptors::new(right));
    /// # let to = SockAddr::from("10.0.0.2:7".parse::<std::net::SocketAddr>()?);
    /// # let listener = peer.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # peer.bind(listener, to.as_bytes())?;
    /// # peer.listen(listener, 1)?;
    /// # let fd = files.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # files.connect(fd, to.as_bytes())?;
    /// # let (server, _) = peer.accept(listener)?;
    /// files.setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1i32.to_ne_bytes())?;
    /// static DATA: [u8; 8192] = [7; 8192];
    /// let range = [RawRange { start: DATA.as_ptr(), len: DATA.len() }];
    /// // SAFETY: readable for ever.
    /// unsafe { files.sendmsg_zerocopy(fd, None, &range, &[], libc::MSG_ZEROCOPY) }?;
    /// # peer.recv(server, &mut [0; 8192], libc::MSG_WAITALL)?;
    ///
    /// // Errors are reported whether they were asked for or not.
    /// files.poll(&mut [PollFd { fd, events: Events::empty(), revents: Events::empty() }], None)?;
    /// let mut control = [0; 64];
    /// let mut message = ReceiveMessage { control: &mut control, ..Default::default() };
    /// files.recvmsg(fd, &mut message, libc::MSG_ERRQUEUE)?;
    /// // Behind 16 bytes of `cmsghdr` a `sock_extended_err`: the first and the last send that is done.
    /// assert_eq!(control[16 + 8..16 + 16], [0; 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// Every range of `iov` is readable until its notification was received, or the connection is
    /// gone, and nobody forms a `&mut` to it until then. (Bytes that change meanwhile may be sent
    /// as they were or as they are.)
    pub unsafe fn sendmsg_zerocopy(
        &self,
        fd: Fd,
        name: Option<&[u8]>,
        iov: &[RawRange],
        control: &[u8],
        flags: i32,
    ) -> Result<usize, Errno> {
        let held = self.file(fd)?;
        let socket = held.socket()?;
        if !socket.lock().options.zero_copy || iov.len() > MAX_IOV {
            // SAFETY: readable, says the caller; and borrowed only while this call lasts.
            let pieces = unsafe { crate::raw::borrow(iov) };
            return self.send_held(&held, &SendMessage { name, iov: &pieces, control }, flags);
        }
        if flags & !KNOWN != 0 || (socket.kind == Kind::Datagram && flags & libc::MSG_OOB != 0) {
            return Err(Errno::OPNOTSUPP);
        }
        let iov = cut(iov, MAX_RW_BYTES);
        let ranges = iov.iter().flat_map(|range| range.chunks());
        // SAFETY: readable until the notification, says the caller; what nobody forms a `&mut` to
        // may be changed all the same, and is read so that it bears that.
        let lend = |(start, len)| unsafe { Frag::lent(start, len) };
        let mut frags: FragVec = ranges.map(lend).collect();
        match socket.kind {
            Kind::Stream => {
                self.send_stream(&held, socket, name, &mut Payload::Lent(&mut frags), flags)
            }
            Kind::Datagram => {
                let (id, to) = self.datagram_target(&held, socket, name, control, flags)?;
                self.backend
                    .with(|stack, now| stack.udp_send_zc(now, id, frags, to))
                    .map(|(n, _)| n)
                    .map_err(errno)
            }
        }
    }

    /// What a call answers whose payload is at no address: what comes first in Linux, or `EFAULT`.
    pub(crate) fn before_fault(&self, fd: Fd, sending: bool) -> Errno {
        let check = || {
            let held = self.file(fd)?;
            let Object::Socket(socket) = &held.object else { return Ok(()) };
            if sending {
                // The SYN that waits for data does not leave for this.
                if socket.stage().connection().is_some_and(|id| self.is_deferred(id)) {
                    return Ok(());
                }
                return self.send_held(&held, &SendMessage::default(), 0).map(drop);
            }
            let Some(id) = socket.stage().connection() else { return Err(Errno::NOTCONN) };
            let readable =
                self.backend.with(|stack, _| stack.tcp_queued(id)).is_ok_and(|queued| queued > 0);
            if readable { Ok(()) } else { Err(Errno::AGAIN) }
        };
        check().err().unwrap_or(Errno::FAULT)
    }

    fn send_held(
        &self,
        held: &Held<'_, B>,
        message: &SendMessage<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let socket = held.socket()?;
        if message.iov.len() > MAX_IOV {
            return Err(Errno::MSGSIZE);
        }
        if flags & !KNOWN != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        match socket.kind {
            Kind::Stream => self.send_stream(
                held,
                socket,
                message.name,
                &mut Payload::Copied(message.iov),
                flags,
            ),
            Kind::Datagram if flags & libc::MSG_OOB != 0 => Err(Errno::OPNOTSUPP),
            Kind::Datagram => self.send_datagram(held, socket, message, flags),
        }
    }

    /// Sends fragments by reference; what was queued is gone from `frags`.
    pub(crate) fn send_frags(
        &self,
        held: &Held<'_, B>,
        socket: &Socket,
        frags: &mut FragVec,
        flags: i32,
    ) -> Result<usize, Errno> {
        match socket.kind {
            Kind::Stream => self.send_stream(held, socket, None, &mut Payload::Owned(frags), flags),
            Kind::Datagram => Err(Errno::INVAL),
        }
    }

    fn send_stream(
        &self,
        held: &Held<'_, B>,
        socket: &Socket,
        name: Option<&[u8]>,
        payload: &mut Payload<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let fast = flags & libc::MSG_FASTOPEN != 0
            || matches!(socket.stage(), Stage::Connecting(id) if self.is_deferred(id));
        if fast {
            return self.send_fast(held, socket, name, payload, flags);
        }
        self.send_stream_from(held, socket, payload, flags, (0, &mut new_call(flags)))
    }

    /// Sends from byte `done` on (what came before is gone from payload that is sent by reference, as
    /// part of `call`); returns how many bytes are sent, those included.
    pub(crate) fn send_stream_from(
        &self,
        held: &Held<'_, B>,
        socket: &Socket,
        payload: &mut Payload<'_>,
        flags: i32,
        (done, call): (usize, &mut ZeroCopyCall),
    ) -> Result<usize, Errno> {
        let (id, limit) = {
            let mut state = socket.lock();
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            // > A stream that is not connected, and is not being connected, is a broken pipe.
            (state.stage.connection().ok_or(Errno::PIPE)?, state.options.send_timeout)
        };
        let before = if matches!(payload, Payload::Copied(_)) { 0 } else { done };
        let total = (payload.len() + before).min(MAX_RW_BYTES);
        let blocking = !held.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        let mut sent = done;
        let outcome = self.block_on(held, Events::OUT, blocking, limit, || {
            sent += self.send_payload(id, payload, (sent, sent > done), total, flags, call)?;
            if sent < total { Err(Errno::AGAIN) } else { Ok(()) }
        });
        if sent > done && socket.lock().options.timestamping != 0 {
            // A connection that is gone has nothing to tell.
            let _ = self.backend.with(|stack, now| stack.tcp_stamp(now, id));
        }
        match outcome {
            Err(error) if sent == done => Err(error),
            _ => Ok(sent),
        }
    }

    /// Queues what there is room for, from byte `done` on. `later`: the call has sent a part, and an error
    /// is left for the next one.
    pub(crate) fn send_payload(
        &self,
        id: SocketId,
        payload: &mut Payload<'_>,
        (done, later): (usize, bool),
        total: usize,
        flags: i32,
        call: &mut ZeroCopyCall,
    ) -> Result<usize, Errno> {
        match payload {
            Payload::Copied(iov) => self.send_some(id, iov, (done, later), total, flags),
            Payload::Lent(frags) => self.backend.with(|stack, now| {
                leave_error(stack, id, later)?;
                stack.tcp_send_zc(now, id, frags, call).map_err(errno)
            }),
            Payload::Owned(frags) => self.backend.with(|stack, now| {
                leave_error(stack, id, later)?;
                stack.tcp_send_with(now, id, frags, send_flags(flags)).map_err(errno)
            }),
        }
    }

    /// Queues copies of what there is room for, from byte `done` on.
    fn send_some(
        &self,
        id: SocketId,
        iov: &[IoSlice<'_>],
        (done, later): (usize, bool),
        total: usize,
        flags: i32,
    ) -> Result<usize, Errno> {
        self.backend.with(|stack, now| {
            leave_error(stack, id, later)?;
            if total == 0 {
                let connected = stack.readiness(id).is_ok_and(|r| r.contains(Readiness::CONNECTED));
                return match stack.tcp_write(now, id, &[]) {
                    Err(pagewire_stack::Error::WouldBlock) if connected => Ok(0),
                    done => done.map_err(errno),
                };
            }
            let (mut skip, mut sent) = (done, 0);
            for piece in iov {
                let from = skip.min(piece.len());
                skip -= from;
                let piece = &piece[from..];
                let piece = &piece[..piece.len().min(total - done - sent)];
                if piece.is_empty() {
                    continue;
                }
                // What ends the call ends with its last piece; the pieces before have more to come.
                let last = done + sent + piece.len() == total;
                let flags = if last { send_flags(flags) } else { SendFlags::MORE };
                match stack.tcp_write_with(now, id, piece, flags) {
                    Ok(n) => {
                        sent += n;
                        if n < piece.len() {
                            break;
                        }
                    }
                    Err(_) if sent > 0 => break,
                    Err(error) => return Err(errno(error)),
                }
            }
            Ok(sent)
        })
    }

    fn send_datagram(
        &self,
        held: &Held<'_, B>,
        socket: &Socket,
        message: &SendMessage<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let (id, to) = self.datagram_target(held, socket, message.name, message.control, flags)?;
        self.backend
            .with(|stack, now| stack.udp_write_vectored_to(now, id, message.iov, to))
            .map_err(errno)
    }

    /// The stack's socket of a datagram socket that may send to the `sockaddr` in `name`, or where
    /// it is connected; and how.
    fn datagram_target(
        &self,
        held: &Held<'_, B>,
        socket: &Socket,
        name: Option<&[u8]>,
        control: &[u8],
        flags: i32,
    ) -> Result<(SocketId, UdpTarget), Errno> {
        let remote = datagram_remote(socket, name)?;
        let more = {
            let state = socket.lock();
            if state.shut[1] {
                return Err(Errno::PIPE);
            }
            if remote.is_none() && state.stage == Stage::Closed {
                return Err(Errno::DESTADDRREQ);
            }
            flags & libc::MSG_MORE != 0 || state.options.udp_cork
        };
        let id = self.bind_datagram(held.shared(), socket)?;
        if control.is_empty() {
            return Ok((id, UdpTarget { remote, more, ..UdpTarget::default() }));
        }
        self.backend.with(|stack, _| {
            let to = remote.or_else(|| stack.remote_addr(id).ok()).ok_or(Errno::DESTADDRREQ)?.ip();
            let to = to.to_canonical();
            let said = ancillary(control, to.is_ipv4())?;
            let source = source_on(stack, said.interface, to)?;
            let (source, segment) = (said.source.or(source), said.segment);
            Ok((id, UdpTarget { remote, segment, more, source }))
        })
    }
}

fn datagram_remote(socket: &Socket, name: Option<&[u8]>) -> Result<Option<SocketAddr>, Errno> {
    match name.map(|name| parse(socket.domain, name)).transpose()? {
        None => Ok(None),
        Some(Given::Address(remote)) => {
            // A socket for IPv6 only has no way to an address of IPv4.
            let unreachable = is_mapped(remote) && socket.lock().options.v6_only;
            if unreachable { Err(Errno::NETUNREACH) } else { Ok(Some(remote)) }
        }
        Some(Given::Unspecified) => Err(Errno::AFNOSUPPORT),
    }
}

/// The address that leads out by the link of this number (0: any will do) to `to`, where there are
/// several links; as everywhere, a packet leaves by the link of the address that it is from.
fn source_on(stack: &Stack, interface: u32, to: IpAddr) -> Result<Option<IpAddr>, Errno> {
    if interface == 0 {
        return Ok(None);
    }
    let link = stack.links().find(|link| link.scope_id() == interface).ok_or(Errno::NODEV)?;
    if stack.links().count() == 1 || stack.addresses().iter().any(|ours| ours.addr() == to) {
        return Ok(None);
    }
    let is_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let candidates = || {
        let ours = stack.link_addresses(link).map(|ours| ours.addr());
        ours.filter(|ours| ours.is_ipv4() == to.is_ipv4())
    };
    let suits = candidates().find(|ours| is_local(*ours) == is_local(to));
    suits.or_else(|| candidates().next()).map(Some).ok_or(Errno::NETUNREACH)
}

/// What a stream sends.
pub(crate) enum Payload<'a> {
    Copied(&'a [IoSlice<'a>]),
    /// By reference, with a notification; what was queued is gone.
    Lent(&'a mut FragVec),
    /// By reference to what holds itself.
    Owned(&'a mut FragVec),
}

impl Payload<'_> {
    /// Bytes that are left to be sent, of a copy all of them.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Copied(iov) => iov.iter().map(|piece| piece.len()).sum(),
            Self::Lent(frags) | Self::Owned(frags) => frags.iter().map(|frag| frag.len()).sum(),
        }
    }
}

/// Of a call that has sent a part already (`later`): nothing further where an error waits, which Linux
/// keeps for the next call.
fn leave_error(stack: &Stack, id: SocketId, later: bool) -> Result<(), Errno> {
    let waits = later && stack.readiness(id).is_ok_and(|ready| ready.contains(Readiness::ERROR));
    if waits { Err(Errno::PIPE) } else { Ok(()) }
}
