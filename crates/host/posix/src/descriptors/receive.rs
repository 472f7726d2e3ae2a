//! Receiving: read, readv, recv, recvfrom, recvmsg.

use std::io::IoSliceMut;
use std::net::IpAddr;

use pagewire_mem::{Frag, Instant};
use pagewire_stack::{
    Chunks, Discard, Error, ErrorEntry, ErrorOrigin, Lend, Message, Parts, Readiness, RecvFlags,
    Stack, Tcp, TcpId, UdpMessage, option,
};

use super::options::{info_and_data, put_timestamp, returns_payload};
use super::{Descriptors, SocketCall};
use crate::address::{Domain, SockAddr};
use crate::backend::Backend;
use crate::events::Events;
use crate::file::Object;
use crate::file::socket::{Kind, Stage};
use crate::limits::MAX_IOV;
use crate::message::{ReceiveMessage, copy_pieces};
use crate::{Errno, Fd, errno};

/// Numbers that `libc` does not name.
const TCP_INQ: i32 = 36;
const UDP_GRO: i32 = 104;
const SO_EE_ORIGIN_TIMESTAMPING: u8 = 4;
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

impl<B: Backend> Descriptors<B> {
    /// [`recv`](Self::recv) without flags; also from a pipe.
    pub fn read(&self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        self.readv(fd, &mut [IoSliceMut::new(into)])
    }

    /// [`read`](Self::read) into several pieces.
    pub fn readv(&self, fd: Fd, iov: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let file = self.file(fd)?;
        match &file.object {
            Object::Socket(_) => {
                file.socket()?.receive(&mut ReceiveMessage { iov, ..Default::default() }, 0)
            }
            Object::Pipe(end) => end.read(&self.runtime, &file, iov),
            Object::Epoll(_) => Err(Errno::INVAL),
        }
    }

    /// Takes received bytes, or a datagram; 0 is the end of the stream. Blocks until there is
    /// something: `SO_RCVLOWAT` bytes, or with `MSG_WAITALL` all that was asked for.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOTCONN`, and the connection's error, once.
    pub fn recv(&self, fd: Fd, into: &mut [u8], flags: i32) -> Result<usize, Errno> {
        self.recvfrom(fd, into, flags).map(|(n, _)| n)
    }

    /// [`recv`](Self::recv), and the sender of a datagram.
    pub fn recvfrom(
        &self,
        fd: Fd,
        into: &mut [u8],
        flags: i32,
    ) -> Result<(usize, Option<SockAddr>), Errno> {
        let iov = &mut [IoSliceMut::new(into)];
        let mut message = ReceiveMessage { iov, ..Default::default() };
        let n = self.recvmsg(fd, &mut message, flags)?;
        Ok((n, message.name))
    }

    /// Takes up to `max` received bytes of a stream by reference, in `count` fragments at most; none at the end of
    /// the stream. Blocks until there is something; the only flag is `MSG_DONTWAIT`.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv); `EINVAL` for a datagram socket, or if `count` or `max` is 0.
    pub fn recv_frags(
        &self,
        fd: Fd,
        count: usize,
        max: usize,
        flags: i32,
    ) -> Result<Vec<Frag>, Errno> {
        if flags & !libc::MSG_DONTWAIT != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if max == 0 || count == 0 {
            return Err(Errno::INVAL);
        }
        let file = self.file(fd)?;
        let call = file.socket()?;
        let limit = call.lock().options.value(option::ReceiveTimeout);
        call.block_on(Events::IN, flags, limit, || call.receive_few(count, max))
    }

    /// [`recvfrom`](Self::recvfrom) into several pieces, with ancillary data; with `MSG_ERRQUEUE`,
    /// the oldest entry of the error queue; its address is where the datagram was sent to.
    pub fn recvmsg(
        &self,
        fd: Fd,
        message: &mut ReceiveMessage<'_, '_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        self.file(fd)?.socket()?.receive(message, flags)
    }
}

impl<B: Backend> SocketCall<'_, B> {
    fn receive(&self, message: &mut ReceiveMessage<'_, '_>, flags: i32) -> Result<usize, Errno> {
        if message.iov.len() > MAX_IOV {
            return Err(Errno::MSGSIZE);
        }
        (message.control_len, message.name, message.flags) = (0, None, 0);
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.receive_error(message);
        }
        match self.kind {
            Kind::Stream => self.receive_stream(message, flags),
            Kind::Datagram => self.receive_datagram(message, flags),
        }
    }

    /// Takes the oldest entry of the error queue; never waits.
    fn receive_error(&self, message: &mut ReceiveMessage<'_, '_>) -> Result<usize, Errno> {
        let id = self.stage().id().ok_or(Errno::AGAIN)?;
        let (entry, v6) = self.runtime.with(|stack, _| {
            let v6 = stack.local_addr(id).is_ok_and(|addr| addr.is_ipv6());
            (stack.poll_error_queue(id), v6)
        });
        let entry = entry.ok_or(Errno::AGAIN)?;
        message.flags |= libc::MSG_ERRQUEUE;
        let timestamping = self.lock().options.value(option::Timestamping);
        if let ErrorEntry::Timestamp(found) = &entry {
            let at = self.runtime.backend.time_of_day(found.at, self.runtime.now());
            put_timestamp(message, at);
            if returns_payload(timestamping) {
                message.flags |= libc::MSG_TRUNC;
            }
        }
        let to = match &entry {
            ErrorEntry::Network(error) => error.to,
            _ => None,
        };
        message.name = to.map(|to| SockAddr::new(to, self.domain));
        // (A socket of both versions has errors of both.)
        let v6 = to.map_or(v6, |to| to.is_ipv6());
        let (level, kind, offender) = match self.domain {
            Domain::Inet => (libc::SOL_IP, libc::IP_RECVERR, 16),
            Domain::Inet6 => (libc::SOL_IPV6, libc::IPV6_RECVERR, 28),
        };
        // The address of the reporting host follows: there is none, or it is not known.
        let mut data = extended_error(&entry, v6, timestamping);
        data.resize(data.len() + offender, 0);
        message.put_control(level, kind, &data);
        Ok(0)
    }

    fn receive_stream(
        &self,
        message: &mut ReceiveMessage<'_, '_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let (id, limit, lowat, inq) = {
            let mut state = self.lock();
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let id = match state.stage {
                Stage::Connecting(id) | Stage::Connected(id) => id,
                // Linux checks for urgent data before it checks for a connection.
                Stage::Closed if flags & libc::MSG_OOB != 0 => return Err(Errno::INVAL),
                Stage::Closed if state.shut[0] => return Ok(0),
                _ => return Err(Errno::NOTCONN),
            };
            let options = &state.options;
            let limit = options.value(option::ReceiveTimeout);
            (id, limit, options.lowat(), options.value(option::Inq))
        };
        let wanted = message.room();
        let peek = flags & libc::MSG_PEEK != 0;
        if flags & libc::MSG_OOB != 0 {
            return self.receive_urgent(id, message, peek);
        }
        let target = if flags & libc::MSG_WAITALL != 0 { wanted } else { lowat.min(wanted) };
        let discard = flags & libc::MSG_TRUNC != 0;
        let mut received = 0;
        let outcome = self.wait(id, Events::IN, flags, limit, |stack, now| {
            // Bytes that were taken are returned; the error that ended the stream waits for the next call.
            if received > 0 && has_ended(stack, id) {
                return Ok(());
            }
            if peek {
                // Each try peeks from the beginning again.
                received = 0;
            }
            let mut tcp = stack.tcp(id).map_err(errno)?;
            let n = if peek {
                let mut frags = Vec::new();
                let all = Chunks { max: wanted, into: &mut frags };
                let peeked = tcp.recv(now, all, RecvFlags::PEEK);
                peeked.map(|_| copy_pieces(stack, &frags, message.iov))
            } else if discard {
                tcp.recv(now, Discard(wanted - received), RecvFlags::empty())
            } else {
                read_pieces(tcp, now, message.iov, received)
            };
            let n = n.map_err(errno)?;
            received += n;
            // The end may have come with the last bytes, and is not reported again.
            let done = received >= target.max(1) || n == 0 || received == wanted;
            if done || has_ended(stack, id) { Ok(()) } else { Err(Errno::AGAIN) }
        });
        match outcome {
            Err(error) if received == 0 => return Err(error),
            _ => {}
        }
        if inq && !message.control.is_empty() {
            let left = self.runtime.with_tcp(id, |tcp, _| Ok(tcp.inq())).unwrap_or(0);
            let left = i32::try_from(left).unwrap_or(i32::MAX);
            message.put_control(libc::IPPROTO_TCP, TCP_INQ, &left.to_ne_bytes());
        }
        Ok(received)
    }

    /// Appends what the options ask for about a datagram.
    fn put_datagram_info(&self, message: &mut ReceiveMessage<'_, '_>, taken: &UdpMessage) {
        let (v4, v6) = {
            let options = &self.lock().options;
            (options.value(option::PacketInfoV4), options.value(option::PacketInfoV6))
        };
        if let Some(size) = taken.segment {
            let size = i32::from(size).to_ne_bytes();
            message.put_control(libc::IPPROTO_UDP, UDP_GRO, &size);
        }
        let link = taken.link.scope_id().to_ne_bytes();
        let to_ip = taken.to.ip();
        if let (true, IpAddr::V4(to)) = (v4, to_ip) {
            // Our address: the link's, where that in the header is one of a group or of all hosts.
            let ours = self.runtime.with(|stack, _| {
                let is_ours = stack.addresses().iter().any(|ours| ours.addr() == to_ip);
                let mut of_link =
                    stack.link_addresses(taken.link).filter_map(|ours| match ours.addr() {
                        IpAddr::V4(ours) => Some(ours),
                        IpAddr::V6(_) => None,
                    });
                if is_ours || to.is_loopback() { to } else { of_link.next().unwrap_or(to) }
            });
            let info = [link, ours.octets(), to.octets()].concat();
            message.put_control(libc::SOL_IP, libc::IP_PKTINFO, &info);
        }
        if v6 && self.domain == Domain::Inet6 {
            let to = match to_ip {
                IpAddr::V4(to) => to.to_ipv6_mapped(),
                IpAddr::V6(to) => to,
            };
            let info = [to.octets().as_slice(), &link].concat();
            message.put_control(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
        }
    }

    /// Takes up to `max` bytes by reference: none at the end or before an urgent byte. Never waits.
    pub(crate) fn receive_frags(&self, max: usize) -> Result<Vec<Frag>, Errno> {
        if self.kind != Kind::Stream {
            return Err(Errno::INVAL);
        }
        let id = self.stage().connection().ok_or(Errno::NOTCONN)?;
        let mut frags = Vec::new();
        let taker = Chunks { max, into: &mut frags };
        let flags = RecvFlags::STOP_AT_URGENT;
        self.runtime.with_tcp(id, |mut tcp, now| tcp.recv(now, taker, flags))?;
        Ok(frags)
    }

    /// [`receive_frags`](Self::receive_frags) in `count` fragments at most: later ones stay in the queue.
    fn receive_few(&self, count: usize, max: usize) -> Result<Vec<Frag>, Errno> {
        if self.kind != Kind::Stream {
            return Err(Errno::INVAL);
        }
        let id = self.stage().connection().ok_or(Errno::NOTCONN)?;
        let mut frags = Vec::new();
        let give = |parts: Parts<'_>| {
            frags.extend(parts.take(count).map(|(frag, n)| frag.slice(0..n)));
            frags.iter().map(Frag::len).sum()
        };
        let taker = Lend { max, give };
        let flags = RecvFlags::STOP_AT_URGENT;
        self.runtime.with_tcp(id, |mut tcp, now| tcp.recv(now, taker, flags))?;
        Ok(frags)
    }

    fn receive_urgent(
        &self,
        id: TcpId,
        message: &mut ReceiveMessage<'_, '_>,
        peek: bool,
    ) -> Result<usize, Errno> {
        let byte =
            self.runtime.with_tcp(id, |mut tcp, now| tcp.read_urgent(now, peek_flags(peek)))?;
        message.flags |= libc::MSG_OOB;
        match message.iov.iter_mut().find_map(|piece| piece.first_mut()) {
            Some(place) => {
                *place = byte;
                Ok(1)
            }
            None => {
                message.flags |= libc::MSG_TRUNC;
                Ok(0)
            }
        }
    }

    fn receive_datagram(
        &self,
        message: &mut ReceiveMessage<'_, '_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        if flags & libc::MSG_OOB != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let peek = peek_flags(flags & libc::MSG_PEEK != 0);
        let limit = self.lock().options.value(option::ReceiveTimeout);
        let room = message.room();
        let taken = self.block_on(Events::IN, flags, limit, || {
            let (id, shut) = {
                let state = self.lock();
                (state.stage.datagram(), state.shut[0])
            };
            let taken = self.runtime.with(|stack, _| match id {
                Some(id) => stack.udp(id)?.recv(Message(room), peek),
                None => Err(Error::WouldBlock),
            });
            match taken {
                Err(Error::WouldBlock) if shut => Ok(None),
                taken => taken.map(Some).map_err(errno),
            }
        })?;
        let Some(taken) = taken else { return Ok(0) };
        let len: usize = taken.payload.iter().map(|frag| frag.len()).sum();
        let copied = self.runtime.with(|stack, _| copy_pieces(stack, &taken.payload, message.iov));
        message.name = Some(SockAddr::new(taken.from, self.domain));
        self.put_datagram_info(message, &taken);
        if copied < len {
            message.flags |= libc::MSG_TRUNC;
        }
        Ok(if flags & libc::MSG_TRUNC != 0 { len } else { copied })
    }
}

fn peek_flags(peek: bool) -> RecvFlags {
    if peek { RecvFlags::PEEK } else { RecvFlags::empty() }
}

/// A `struct sock_extended_err`: number, origin, type, code, padding, and two numbers more.
fn extended_error(entry: &ErrorEntry, v6: bool, timestamping: u32) -> Vec<u8> {
    let origin = match entry.origin() {
        ErrorOrigin::Icmp if v6 => libc::SO_EE_ORIGIN_ICMP6,
        ErrorOrigin::Icmp => libc::SO_EE_ORIGIN_ICMP,
        ErrorOrigin::ZeroCopy => SO_EE_ORIGIN_ZEROCOPY,
        ErrorOrigin::Timestamping => SO_EE_ORIGIN_TIMESTAMPING,
        _ => libc::SO_EE_ORIGIN_LOCAL,
    };
    let (code, info, data) = match entry {
        ErrorEntry::ZeroCopy(done) if done.copied => (SO_EE_CODE_ZEROCOPY_COPIED, done.lo, done.hi),
        ErrorEntry::ZeroCopy(done) => (0, done.lo, done.hi),
        ErrorEntry::Timestamp(found) => {
            let (info, data) = info_and_data(found, timestamping);
            (0, info, data)
        }
        ErrorEntry::Network(error) => (0, error.mtu, 0),
        _ => (0, 0, 0),
    };
    let kind = u32::from_ne_bytes([origin, 0, code, 0]);
    let words = [entry.errno() as u32, kind, info, data];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Whether nothing more will come.
fn has_ended(stack: &mut Stack, id: TcpId) -> bool {
    stack.readiness(id).is_ok_and(|r| {
        let ended = Readiness::ERROR | Readiness::READ_CLOSED;
        r.intersects(ended) && !r.contains(Readiness::READABLE)
    })
}

/// Reads into the pieces from byte `skip` on, until they are full or nothing is left to read.
fn read_pieces(
    mut tcp: Tcp<'_>,
    now: Instant,
    iov: &mut [IoSliceMut<'_>],
    mut skip: usize,
) -> Result<usize, Error> {
    let mut read = 0;
    for piece in iov {
        let from = skip.min(piece.len());
        skip -= from;
        let piece = &mut piece[from..];
        if piece.is_empty() {
            continue;
        }
        match tcp.recv(now, &mut *piece, RecvFlags::empty()) {
            Ok(n) => {
                read += n;
                if n < piece.len() {
                    break;
                }
            }
            Err(_) if read > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
