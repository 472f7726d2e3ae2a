//! Receiving by mapping pages, in both of Linux's forms.
//!
//! [`mmap`](Descriptors::mmap) is the first (commit 93ab6cc69162): mapping a socket *is* receiving
//! from it. [`mmap_reserve`](Descriptors::mmap_reserve) and
//! [`zerocopy_receive`](Descriptors::zerocopy_receive) are the second (05255b823a61): addresses
//! first, pages later. Either way [`munmap`](Descriptors::munmap) unmaps; the kernel's own would
//! take addresses that are not the caller's alone.
//!
//! Both show only pages that no process can make writable: those of a host's own memory, and a
//! tap's. Memory that a sender may still write is read by copy, or mapped with
//! [`TcpStream::map`](pagewire::TcpStream::map).

use pagewire_mem::{Instant, MapFault, PAGE_SIZE, Reserved};
use pagewire_stack::{MapError, MapSealed, MapWith, Parts, RecvFlags, Stack, TcpId};

use super::{Call, Descriptors};
use crate::backend::Backend;
use crate::file::socket::{Kind, Stage};
use crate::mapped::Mapped;
use crate::{Errno, Fd, errno};

/// A `struct tcp_zerocopy_receive`, its pointers resolved by [`raw`](crate::raw).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZerocopyReceive {
    /// Where to map, in a range from [`Descriptors::mmap_reserve`].
    pub address: u64,
    /// Bytes to map at most; bytes mapped.
    pub length: u32,
    /// Out: bytes to read before more can be mapped.
    pub recv_skip_hint: u32,
    /// Out: bytes that wait, and one more for the end of the stream.
    pub inq: u32,
    /// Out: the connection's error, as a negative number, once.
    pub err: i32,
    /// Out: bytes copied into the buffer.
    pub copybuf_len: i32,
    /// [`TLB_CLEAN_HINT`](Self::TLB_CLEAN_HINT); other bits are ignored.
    pub flags: u32,
    /// `TCP_CMSG_TS`, or 0. Out: 0: no receive timestamps are kept here.
    pub msg_flags: u32,
}

impl ZerocopyReceive {
    /// Nothing is mapped in the range, promises the caller: it is not cleared first.
    pub const TLB_CLEAN_HINT: u32 = 1;
    /// The caller wants a timestamp.
    pub const CMSG_TS: u32 = 2;
}

impl<B: Backend> Descriptors<B> {
    /// Receives `len` bytes, rounded up to whole pages, by mapping them; returns the address. Never
    /// blocks. Pages that are adjacent take no system call.
    ///
    /// # Errors
    /// In this order, each of which consumes nothing: `EINVAL` for a length of 0, flags that are
    /// neither shared nor private, `MAP_FIXED`, or an offset; `ENODEV` for what is no stream; `EPERM`
    /// if it is to be written; `ENOTCONN` if the socket listens; `EAGAIN` if less is queued, `EIO` if
    /// that is so and the peer has closed; `EINVAL` if urgent data lies in the range; `ENOMEM`;
    /// `EINVAL` if a byte does not lie in a whole page, or in memory that could be made writable.
    pub fn mmap(
        &self,
        fd: Fd,
        len: usize,
        prot: i32,
        flags: i32,
        offset: i64,
    ) -> Result<usize, Errno> {
        let (len, file) = self.stream_to_map(fd, len, flags, offset)?;
        if offset != 0 {
            return Err(Errno::INVAL);
        }
        if prot & libc::PROT_WRITE != 0 {
            return Err(error(MapError::Writable));
        }
        let id = match file.socket()?.stage() {
            Stage::Listening(_) => return Err(error(MapError::Listening)),
            Stage::Connecting(id) | Stage::Connected(id) => id,
            _ => return Err(Errno::AGAIN),
        };
        let (mapping, held) = self.runtime.with(|stack, now| {
            let mut tcp = stack.tcp(id).map_err(errno)?;
            let mapping = tcp.recv(now, MapSealed(len), RecvFlags::empty()).map_err(error)?;
            let held = tcp.count_held(now, mapping.pinned());
            Ok::<_, Errno>((mapping, held))
        })?;
        Ok(self.mappings.add_received(mapping, held))
    }

    /// Reserves addresses for [`zerocopy_receive`](Self::zerocopy_receive) on any stream of this
    /// table; returns the first. Touching them is `SIGBUS` until pages are mapped there.
    ///
    /// # Errors
    /// `EINVAL` for a length of 0, `ENODEV` for what is no stream, `EPERM` if it is to be written or
    /// run, `ENOMEM`. The offset is ignored, as in Linux, but has to be whole pages.
    pub fn mmap_reserve(
        &self,
        fd: Fd,
        len: usize,
        prot: i32,
        flags: i32,
        offset: i64,
    ) -> Result<usize, Errno> {
        let (len, _file) = self.stream_to_map(fd, len, flags, offset)?;
        if prot & (libc::PROT_WRITE | libc::PROT_EXEC) != 0 {
            return Err(error(MapError::Writable));
        }
        let reserved = Reserved::new(len).map_err(|_| Errno::NOMEM)?;
        Ok(self.mappings.add_reserved(reserved))
    }

    /// Whether an address is of [`mmap`](Self::mmap) or [`mmap_reserve`](Self::mmap_reserve).
    pub fn is_mapped(&self, addr: usize) -> bool {
        self.mappings.contains(addr)
    }

    /// Unmaps what is mapped in a range. The pages of one [`mmap`](Self::mmap) go back when the
    /// last of them is unmapped, and those in reserved addresses at once; the addresses themselves
    /// when all of them are unmapped together.
    ///
    /// # Errors
    /// `EINVAL` for an address that begins no page, or a length of 0. Ranges without anything of
    /// this table are left alone.
    pub fn munmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.mappings.unmap(addr, len)
    }

    /// Unmaps pages in reserved addresses, which stay reserved: `madvise` with `MADV_DONTNEED`.
    /// The length is rounded up to whole pages; 0 does nothing.
    ///
    /// # Errors
    /// `EINVAL` for an address that begins no page, for a range that ends behind the last address,
    /// and for other advice; `ENOMEM` if the range is not reserved.
    pub fn madvise(&self, addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
        let whole = len.checked_next_multiple_of(PAGE_SIZE);
        let len = whole.filter(|&len| addr.checked_add(len).is_some()).ok_or(Errno::INVAL)?;
        if advice != libc::MADV_DONTNEED || !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        if len == 0 {
            return Ok(());
        }
        self.mappings.clear(addr, len)
    }

    /// `getsockopt` with `TCP_ZEROCOPY_RECEIVE`: maps the next whole pages of a stream, copies what
    /// is too little for a page into `copy`, and says what to read. Never blocks. Pages that
    /// their sender may still write (see the head of this file) are not mapped: all is to be read.
    ///
    /// ```
    /// use pagewire_posix::ZerocopyReceive;
    /// # use pagewire::{Host, Pair};
    /// # use pagewire_posix::{Descriptors, SockAddr};
    /// # let (left, right) = Pair::new()?;
    /// # let left = Host::builder().device(left).address("10.0.0.1/24").start()?;
    /// # let right = Host::builder().device(right).address("10.0.0.2/24").start()?;
    /// # let (peer, files) = (Descriptors::new(left), Descriptors::new(right));
    /// # let to = SockAddr::from("10.0.0.2:7".parse::<std::net::SocketAddr>()?);
    /// # let listener = files.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # files.bind(listener, to.as_bytes())?;
    /// # files.listen(listener, 1)?;
    /// # let client = peer.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # peer.connect(client, to.as_bytes())?;
    /// # let (fd, _) = files.accept(listener)?;
    /// # peer.write(client, &[7; 10_000])?;
    /// # files.recv(fd, &mut [0; 10_000], libc::MSG_PEEK | libc::MSG_WAITALL)?;
    /// let at = files.mmap_reserve(fd, 1 << 20, libc::PROT_READ, libc::MAP_SHARED, 0)?;
    /// let mut request =
    ///     ZerocopyReceive { address: at as u64, length: 1 << 20, ..Default::default() };
    /// let mut rest = [0; 4096];
    /// files.zerocopy_receive(fd, &mut request, &mut rest)?; // of a stream on which 10,000 bytes wait
    /// assert_eq!((request.length, request.copybuf_len, request.recv_skip_hint), (8192, 1808, 0));
    /// // `request.length` bytes at `at` and as many of `rest` as `copybuf_len` says are next in the
    /// // stream; what `recv_skip_hint` says is to be read.
    /// files.munmap(at, 1 << 20)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for an address that begins no page or is not reserved, and for flags that are not
    /// known; `ENOTCONN` if the socket listens; `EIO` at the end of the stream. `request` is then as it was.
    pub fn zerocopy_receive(
        &self,
        fd: Fd,
        request: &mut ZerocopyReceive,
        copy: &mut [u8],
    ) -> Result<(), Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        if call.kind != Kind::Stream {
            return Err(Errno::NOPROTOOPT);
        }
        if request.msg_flags & !ZerocopyReceive::CMSG_TS != 0 {
            return Err(Errno::INVAL);
        }
        let address = usize::try_from(request.address).map_err(|_| Errno::INVAL)?;
        if !address.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        let mut answer = ZerocopyReceive { copybuf_len: 0, msg_flags: 0, ..*request };
        match call.stage() {
            Stage::Listening(_) => return Err(Errno::NOTCONN),
            Stage::Connecting(id) | Stage::Connected(id) => {
                self.receive_pages(id, &mut answer, address, copy)?;
            }
            _ => {
                (answer.length, answer.recv_skip_hint, answer.inq, answer.err) = (0, 0, 0, 0);
            }
        }
        *request = answer;
        Ok(())
    }

    /// Checks the length, in whole pages, and the stream: the first step of both kinds of `mmap`.
    fn stream_to_map(
        &self,
        fd: Fd,
        len: usize,
        flags: i32,
        offset: i64,
    ) -> Result<(usize, Call<'_, B>), Errno> {
        let kind = flags & libc::MAP_TYPE;
        let kinds = [libc::MAP_SHARED, libc::MAP_PRIVATE, libc::MAP_SHARED_VALIDATE];
        let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
        if len == 0 || !kinds.contains(&kind) || fixed || offset % PAGE_SIZE as i64 != 0 {
            return Err(Errno::INVAL);
        }
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::NOMEM)?;
        let file = self.file(fd)?;
        let is_stream = file.socket().is_ok_and(|call| call.kind == Kind::Stream);
        if is_stream { Ok((len, file)) } else { Err(Errno::NODEV) }
    }

    fn receive_pages(
        &self,
        id: TcpId,
        answer: &mut ZerocopyReceive,
        address: usize,
        copy: &mut [u8],
    ) -> Result<(), Errno> {
        let mut mappings = self.mappings.lock();
        self.runtime.with(|stack, now| {
            let tcp = stack.tcp(id).map_err(errno)?;
            let (queued, fin) = (tcp.queued(), tcp.has_fin());
            if queued > 0 && queued <= copy.len() {
                let n = read(stack, now, id, &mut copy[..queued])?;
                (answer.length, answer.recv_skip_hint) = (0, 0);
                answer.copybuf_len = i32::try_from(n).unwrap_or(i32::MAX);
            } else if queued < PAGE_SIZE {
                if queued == 0 && fin {
                    return Err(Errno::IO);
                }
                (answer.length, answer.recv_skip_hint) = (0, queued as u32);
            } else {
                let range = mappings.range_mut(..=address).next_back();
                let (offset, reserved) = match range {
                    Some((&at, Mapped::Reserved(range))) if address - at < range.len() => {
                        (address - at, range)
                    }
                    _ => return Err(Errno::INVAL),
                };
                let room = (answer.length as usize).min(reserved.len() - offset);
                let wanted = room.min(queued) / PAGE_SIZE * PAGE_SIZE;
                if answer.flags & ZerocopyReceive::TLB_CLEAN_HINT == 0 && wanted > 0 {
                    let range = offset..offset + wanted;
                    reserved.clear(range).map_err(|_| Errno::NOMEM)?;
                }
                if wanted == 0 {
                    answer.length = 0;
                    answer.recv_skip_hint = room.min(queued) as u32;
                    let n = copy.len().min(answer.recv_skip_hint as usize);
                    if n > 0 {
                        let n = read(stack, now, id, &mut copy[..n])?;
                        answer.copybuf_len = i32::try_from(n).unwrap_or(i32::MAX);
                        answer.recv_skip_hint -= n as u32;
                    }
                } else {
                    let put = |parts: Parts<'_>| match reserved.put(offset, parts) {
                        Err(MapFault::NotPages) => Ok(0),
                        done => done,
                    };
                    let taker = MapWith { max: room, tail: copy, put };
                    let mut tcp = stack.tcp(id).map_err(errno)?;
                    let (mapped, found) =
                        tcp.recv(now, taker, RecvFlags::empty()).map_err(error)?;
                    if mapped > 0 {
                        let range = offset..offset + mapped;
                        let pinned = reserved.pinned(range.clone());
                        reserved.hold(range, tcp.count_held(now, pinned));
                    }
                    answer.length = mapped as u32;
                    answer.copybuf_len = i32::try_from(found.copied).unwrap_or(i32::MAX);
                    let whole = mapped == wanted;
                    answer.recv_skip_hint = if whole { 0 } else { found.copy_next as u32 };
                    answer.err = -found.error.map_or(0, |error| error.errno());
                    answer.inq = inq(stack, id);
                    return Ok(());
                }
            }
            answer.err = -stack.take_error(id).map_or(0, |error| error.errno());
            answer.inq = inq(stack, id);
            Ok(())
        })
    }
}

/// Copies what is queued into `out`.
fn read(stack: &mut Stack, now: Instant, id: TcpId, out: &mut [u8]) -> Result<usize, Errno> {
    let mut tcp = stack.tcp(id).map_err(errno)?;
    tcp.recv(now, out, RecvFlags::empty()).map_err(errno)
}

fn inq(stack: &mut Stack, id: TcpId) -> u32 {
    stack.tcp(id).map(|tcp| tcp.inq()).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

fn error(error: MapError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}
