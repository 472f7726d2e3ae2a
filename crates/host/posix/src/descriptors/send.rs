//! Sending: write, writev, send, sendto, sendmsg.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use pagewire_mem::{Frag, FragVec, Instant};
use pagewire_stack::{
    Error, Readiness, SendFlags, Stack, Tcp, TcpId, UdpId, UdpTarget, ZeroCopyCall, option,
};

use super::{Descriptors, SocketCall};
use crate::address::{Given, is_mapped, parse};
use crate::backend::Backend;
use crate::events::Events;
use crate::file::Object;
use crate::file::socket::{Kind, Stage};
use crate::limits::{MAX_IOV, MAX_RW_BYTES};
use crate::message::{RawRange, SendMessage, ancillary, pieces};
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

fn send_flags(flags: i32) -> SendFlags {
    let mut out = SendFlags::empty();
    out.set(SendFlags::MORE, flags & libc::MSG_MORE != 0);
    out.set(SendFlags::END_OF_RECORD, flags & libc::MSG_EOR != 0);
    out.set(SendFlags::URGENT, flags & libc::MSG_OOB != 0);
    out
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
        let file = self.file(fd)?;
        match &file.object {
            Object::Socket(_) => file.socket()?.send(&SendMessage { iov, ..Default::default() }, 0),
            Object::Pipe(end) => end.write(&self.runtime, &file, iov),
            Object::Epoll(_) => Err(Errno::INVAL),
        }
    }

    /// Queues a copy of `data`. Blocks until all of it is queued; without blocking, as much as
    /// there is room for. `MSG_ZEROCOPY` changes nothing here: memory that is only borrowed has to be
    /// copied, see [`sendmsg_zerocopy`](Self::sendmsg_zerocopy).
    ///
    /// # Errors
    /// `EAGAIN`, `EPIPE` if the stream is not connected or closed for sending (no signal is
    /// raised), `EDESTADDRREQ`, `EMSGSIZE`, `EOPNOTSUPP` for flags that no socket here has, and the
    /// connection's error, once.
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
        self.file(fd)?.socket()?.send(message, flags)
    }

    /// [`sendmsg`](Self::sendmsg) with `MSG_ZEROCOPY`: the memory is sent as it is, where the
    /// socket has `SO_ZEROCOPY`; otherwise it is copied, and nothing is notified. Notifications are in
    /// the error queue ([`recvmsg`](Self::recvmsg) with `MSG_ERRQUEUE`, which never blocks; `poll`
    /// reports them as [`Events::ERR`]); when too many wait there, sending fails with `ENOBUFS`.
    ///
    /// ```
    /// use pagewire_posix::{Events, PollFd, RawRange, ReceiveMessage};
    /// # use pagewire::{Host, Pair};
    /// # use pagewire_posix::{Descriptors, SockAddr};
    /// # let (left, right) = Pair::new()?;
    /// # let left = Host::builder().device(left).address("10.0.0.1/24").start()?;
    /// # let right = Host::builder().device(right).address("10.0.0.2/24").start()?;
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
    /// gone, and there is no `&mut` to it until then. (Bytes that change meanwhile may be sent
    /// as they were or as they are.)
    pub unsafe fn sendmsg_zerocopy(
        &self,
        fd: Fd,
        name: Option<&[u8]>,
        iov: &[RawRange],
        control: &[u8],
        flags: i32,
    ) -> Result<usize, Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        if !call.lock().options.value(option::ZeroCopy) || iov.len() > MAX_IOV {
            // SAFETY: readable, says the caller; and borrowed only while this call lasts.
            let pieces = unsafe { crate::raw::borrow(iov) };
            return call.send(&SendMessage { name, iov: &pieces, control }, flags);
        }
        if flags & !KNOWN != 0 || (call.kind == Kind::Datagram && flags & libc::MSG_OOB != 0) {
            return Err(Errno::OPNOTSUPP);
        }
        let iov = cut(iov, MAX_RW_BYTES);
        let ranges = iov.iter().flat_map(|range| range.chunks());
        // SAFETY: readable until the notification, says the caller, and without a `&mut` to it. The
        // bytes may change all the same, and are read so that this does no harm.
        let lend = |(start, len)| unsafe { Frag::lent(start, len) };
        let mut frags: FragVec = ranges.map(lend).collect();
        match call.kind {
            Kind::Stream => call.send_stream(name, &mut Payload::Lent(&mut frags), flags),
            Kind::Datagram => {
                let (id, to) = call.datagram_target(name, control, flags)?;
                let mut notified = ZeroCopyCall::new();
                let payload = (frags, &mut notified);
                self.runtime.with_udp(id, |mut udp, now| udp.send(now, payload, to))
            }
        }
    }

    /// Sends fragments on a stream by reference, without a notification: an owner of their memory learns from its
    /// drop that nobody reads them any more. Queued fragments are removed from `frags`; the number of bytes.
    ///
    /// # Errors
    /// Those of [`sendmsg`](Self::sendmsg); `EINVAL` for a datagram socket, `EOPNOTSUPP` for an unknown flag.
    pub fn send_frags(&self, fd: Fd, frags: &mut FragVec, flags: i32) -> Result<usize, Errno> {
        if flags & !KNOWN != 0 || flags & (libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.file(fd)?.socket()?.send_frags(frags, flags)
    }

    /// The error of a call whose payload is at no address: what Linux checks first, or `EFAULT`.
    pub(crate) fn before_fault(&self, fd: Fd, sending: bool) -> Errno {
        let check = || {
            let file = self.file(fd)?;
            let Ok(call) = file.socket() else { return Ok(()) };
            let id = call.stage().connection();
            if sending {
                // The SYN that waits for data does not leave for this.
                if id.is_some_and(|id| call.is_deferred(id)) {
                    return Ok(());
                }
                return call.send(&SendMessage::default(), 0).map(drop);
            }
            let id = id.ok_or(Errno::NOTCONN)?;
            match self.runtime.with_tcp(id, |tcp, _| Ok(tcp.queued())) {
                Err(_) | Ok(0) => Err(Errno::AGAIN),
                Ok(_) => Ok(()),
            }
        };
        check().err().unwrap_or(Errno::FAULT)
    }
}

impl<B: Backend> SocketCall<'_, B> {
    fn send(&self, message: &SendMessage<'_>, flags: i32) -> Result<usize, Errno> {
        if message.iov.len() > MAX_IOV {
            return Err(Errno::MSGSIZE);
        }
        if flags & !KNOWN != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        match self.kind {
            Kind::Stream => {
                self.send_stream(message.name, &mut Payload::Copied(message.iov), flags)
            }
            Kind::Datagram if flags & libc::MSG_OOB != 0 => Err(Errno::OPNOTSUPP),
            Kind::Datagram => {
                let (id, to) = self.datagram_target(message.name, message.control, flags)?;
                self.runtime.with_udp(id, |mut udp, now| udp.send(now, message.iov, to))
            }
        }
    }

    /// Sends fragments by reference; queued ones are removed from `frags`.
    pub(crate) fn send_frags(&self, frags: &mut FragVec, flags: i32) -> Result<usize, Errno> {
        match self.kind {
            Kind::Stream => self.send_stream(None, &mut Payload::Owned(frags), flags),
            Kind::Datagram => Err(Errno::INVAL),
        }
    }

    fn send_stream(
        &self,
        name: Option<&[u8]>,
        payload: &mut Payload<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let fast = flags & libc::MSG_FASTOPEN != 0
            || matches!(self.stage(), Stage::Connecting(id) if self.is_deferred(id));
        if fast {
            return self.send_fast(name, payload, flags);
        }
        self.send_stream_from(payload, flags, (0, &mut ZeroCopyCall::new()))
    }

    /// Sends from byte `done` on (earlier bytes are gone from payload that is sent by reference, as
    /// part of `call`); returns how many bytes are sent, those included.
    pub(crate) fn send_stream_from(
        &self,
        payload: &mut Payload<'_>,
        flags: i32,
        (done, call): (usize, &mut ZeroCopyCall),
    ) -> Result<usize, Errno> {
        let (id, limit) = {
            let mut state = self.lock();
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            // > A stream that is not connected, and is not being connected, is a broken pipe.
            (state.stage.connection().ok_or(Errno::PIPE)?, state.options.value(option::SendTimeout))
        };
        let before = if matches!(payload, Payload::Copied(_)) { 0 } else { done };
        let total = (payload.len() + before).min(MAX_RW_BYTES);
        let mut sent = done;
        let outcome = self.wait(id, Events::OUT, flags, limit, |stack, now| {
            let from = (sent, sent > done);
            sent += send_payload((stack, now), id, payload, from, total, flags, call)?;
            if sent < total { Err(Errno::AGAIN) } else { Ok(()) }
        });
        if sent > done && self.lock().options.value(option::Timestamping) != 0 {
            // A connection that is gone reports no times.
            let _ = self.runtime.with(|stack, now| stack.tcp(id).map(|mut tcp| tcp.stamp(now)));
        }
        match outcome {
            Err(error) if sent == done => Err(error),
            _ => Ok(sent),
        }
    }

    /// A datagram socket of the stack that may send to `name`, or where it is connected; and how.
    fn datagram_target(
        &self,
        name: Option<&[u8]>,
        control: &[u8],
        flags: i32,
    ) -> Result<(UdpId, UdpTarget), Errno> {
        let remote = match name.map(|name| parse(self.domain, name)).transpose()? {
            None => None,
            // A socket for IPv6 only has no way to an address of IPv4.
            Some(Given::Address(remote))
                if is_mapped(remote) && self.lock().options.value(option::V6Only) =>
            {
                return Err(Errno::NETUNREACH);
            }
            Some(Given::Address(remote)) => Some(remote),
            Some(Given::Unspecified) => return Err(Errno::AFNOSUPPORT),
        };
        let more = {
            let state = self.lock();
            if state.shut[1] {
                return Err(Errno::PIPE);
            }
            if remote.is_none() && state.stage == Stage::Closed {
                return Err(Errno::DESTADDRREQ);
            }
            flags & libc::MSG_MORE != 0 || state.options.value(option::UdpCork)
        };
        let id = self.bind_datagram()?;
        if control.is_empty() {
            return Ok((id, UdpTarget { remote, more, ..UdpTarget::default() }));
        }
        self.runtime.with(|stack, _| {
            let to = remote.or_else(|| stack.remote_addr(id).ok()).ok_or(Errno::DESTADDRREQ)?.ip();
            let to = to.to_canonical();
            let said = ancillary(control, to.is_ipv4())?;
            let source = source_on(stack, said.interface, to)?;
            let source = said.source.or(source).map(|ip| SocketAddr::new(ip, 0));
            let segment = said.segment;
            Ok((id, UdpTarget { remote, segment, more, source, ecn: None }))
        })
    }
}

/// Queues what there is room for, from byte `done` on. `later`: the call has sent a part, and an error
/// is left for the next one.
pub(crate) fn send_payload(
    (stack, now): (&mut Stack, Instant),
    id: TcpId,
    payload: &mut Payload<'_>,
    (done, later): (usize, bool),
    total: usize,
    flags: i32,
    call: &mut ZeroCopyCall,
) -> Result<usize, Errno> {
    // Linux leaves an error that waits to the next call.
    let failed = |ready: Readiness| ready.contains(Readiness::ERROR);
    if later && stack.readiness(id).is_ok_and(failed) {
        return Err(Errno::PIPE);
    }
    let connected = |ready: Readiness| ready.contains(Readiness::CONNECTED);
    let connected = total == 0 && stack.readiness(id).is_ok_and(connected);
    let mut tcp = stack.tcp(id).map_err(errno)?;
    let queued = match payload {
        Payload::Copied(_) if total == 0 => match tcp.send(now, &[0_u8; 0], SendFlags::empty()) {
            Err(Error::WouldBlock) if connected => Ok(0),
            done => done,
        },
        Payload::Copied(iov) => send_copies(tcp, now, iov, (done, total), flags),
        Payload::Lent(frags) => tcp.send(now, (&mut **frags, call), send_flags(flags)),
        Payload::Owned(frags) => tcp.send(now, &mut **frags, send_flags(flags)),
    };
    queued.map_err(errno)
}

/// Queues copies of what there is room for, from byte `done` to byte `total`.
fn send_copies(
    mut tcp: Tcp<'_>,
    now: Instant,
    iov: &[IoSlice<'_>],
    (done, total): (usize, usize),
    flags: i32,
) -> Result<usize, Error> {
    let mut sent = 0;
    for piece in pieces(iov, done, total - done) {
        // The flags of the call are those of its last piece; the pieces before have more to come.
        let last = done + sent + piece.len() == total;
        let flags = if last { send_flags(flags) } else { SendFlags::MORE };
        match tcp.send(now, piece, flags) {
            Ok(n) => {
                sent += n;
                if n < piece.len() {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// The address by which packets to `to` leave by the link of this number, if there are several.
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

/// The payload of a send.
pub(crate) enum Payload<'a> {
    Copied(&'a [IoSlice<'a>]),
    /// By reference, with a notification; queued fragments are removed.
    Lent(&'a mut FragVec),
    /// By reference; the fragments own their memory.
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
