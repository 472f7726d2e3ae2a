//! The layout of the rings' memory: all that an application in another process or language needs.
//!
//! A ring is an array of little-endian 64-bit words, page-aligned. Each word is read and written whole.
//!
//! ```text
//!   byte    0   MAGIC | log2(entries) << 8 | words of an entry     both sides read
//!   byte    8   (120 bytes unused)
//!   byte  128   tail: entries ever put in, modulo 2^32             the producer writes, Release
//!   byte  256   head: entries ever taken out, modulo 2^32          the consumer writes, Release
//!   byte  384   bell: 1 while the consumer sleeps                  consumer sets, producer clears
//!   byte  512   entry 0, entry 1, … (entry i of the stream is at i modulo the number of entries)
//! ```
//!
//! The indices are 128 bytes apart, because processors fetch cache lines in pairs. A producer
//! writes entries, then stores the tail with Release; the consumer loads the tail with Acquire,
//! reads entries, then stores the head with Release; the producer loads the head with Acquire
//! before it overwrites them. So a side that sees an index sees everything done before it moved.
//!
//! **Sleeping.** A consumer that is about to sleep stores 1 in the bell, makes a full fence and
//! checks the tail once more. A producer that has moved the tail makes a full fence and checks the
//! bell: if it is 1 it stores 0 and wakes the consumer. One of the two sees the other's store, so
//! no wake-up is lost, and none is made while the consumer is polling.
//!
//! | ring | producer | entry |
//! |---|---|---|
//! | submissions | application | [`Submission`], 64 bytes |
//! | completions | stack | [`Completion`], 64 bytes |
//! | entries | stack | [`Entry`], 16 bytes |
//! | fill, one for each group | application | [`Fill`], 8 bytes |
//!
//! **Two kinds of socket.** A *connection* is a stream: its completions report the number of bytes, and
//! 0 is its end. A *datagram socket* ([`Op::Bind`]) has a completion for each datagram, also for an
//! empty one: its sender, its length, and the length that was delivered ([`Completion::DATAGRAM`]).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// In the first word: marks a ring of this layout.
pub const MAGIC: u64 = 0x7077_7269_6e67 << 16;

/// Words before the tail, the head, the bell, the entries.
pub const TAIL_WORD: usize = 128 / 8;
/// See [`TAIL_WORD`].
pub const HEAD_WORD: usize = 256 / 8;
/// See [`TAIL_WORD`].
pub const BELL_WORD: usize = 384 / 8;
/// See [`TAIL_WORD`].
pub const ENTRY_WORD: usize = 512 / 8;

/// The group of copied bytes.
pub const COPY_GROUP: u16 = 0;

/// [`Completion::user_data`] of notices, which answer no submission.
pub const NOTICE: u64 = 0xface_0000;

/// An entry of a ring, as words.
pub trait Words: Copy {
    /// Words of an entry.
    type Array: AsRef<[u64]> + AsMut<[u64]> + Default + Copy;

    /// As words.
    fn to_words(self) -> Self::Array;

    /// From words, unchecked.
    fn from_words(words: Self::Array) -> Self;
}

/// Operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Completes with 0.
    Nop = 0,
    /// Accepts on the listener `target` (all: [`Submission::MULTISHOT`]), and reports the handle.
    Accept = 1,
    /// Receives on `target`: by reference where bytes lie in the group `group`, else by copy.
    ///
    /// On a connection up to `argument` bytes in all (0: no limit): once what is there, or with
    /// [`Submission::MULTISHOT`] until the limit, the end or a cancel. On a datagram socket one
    /// datagram, or with [`Submission::MULTISHOT`] one after the other until an error or a cancel;
    /// each is truncated to `argument` bytes (0: not at all).
    Receive = 2,
    /// Sends `len` bytes from `offset` of the send group `group` ([`Submission::send`]), on a
    /// datagram socket as one datagram, to `address` or to its peer. Completes when the memory is
    /// released: until then it must not change.
    Send = 3,
    /// Ends the sending direction of the connection `target`, after the sends submitted before.
    Shutdown = 4,
    /// Closes the socket `target`. Its operations end with `ECANCELED`.
    Close = 5,
    /// Ends `target`'s receive or accept with `user_data` `argument`; with `target` 0, the connect.
    Cancel = 6,
    /// Opens a connection to `address`; the completion has its handle. With a datagram socket as
    /// the `target`: makes `address` its peer, the destination of its sends and the only sender it
    /// receives from, whose errors it reports; no address: removes the peer.
    Connect = 7,
    /// Opens a datagram socket on `address` (port 0: any); the completion has handle and address.
    Bind = 8,
}

impl Op {
    /// The operation of a number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Nop,
            1 => Self::Accept,
            2 => Self::Receive,
            3 => Self::Send,
            4 => Self::Shutdown,
            5 => Self::Close,
            6 => Self::Cancel,
            7 => Self::Connect,
            8 => Self::Bind,
            _ => return None,
        })
    }
}

/// An address and a port.
///
/// ```text
///   word 0   the address's first eight bytes, in the order of the network
///   word 1   the other eight; of IPv4, all but the first four are 0
///   word 2   family (16): 4, 6, or 0 for no address | port (16) | scope (32): the link of an IPv6
///            address that is link-local, else 0
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// See above.
    pub bytes: [u8; 16],
    /// 4, 6 or 0.
    pub family: u16,
    /// The port.
    pub port: u16,
    /// The link.
    pub scope: u32,
}

impl Address {
    /// No address.
    pub const NONE: Self = Self { bytes: [0; 16], family: 0, port: 0, scope: 0 };

    /// The address of a socket.
    pub const fn new(of: SocketAddr) -> Self {
        let (bytes, family, scope) = match of {
            SocketAddr::V4(of) => {
                let [a, b, c, d] = of.ip().octets();
                ([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4, 0)
            }
            SocketAddr::V6(of) => (of.ip().octets(), 6, of.scope_id()),
        };
        Self { bytes, family, port: of.port(), scope }
    }

    /// As a socket's address; `None`: there is none, or its family is unknown.
    pub fn socket(&self) -> Option<SocketAddr> {
        let [a, b, c, d, ..] = self.bytes;
        Some(match self.family {
            4 => SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), self.port).into(),
            6 => SocketAddrV6::new(Ipv6Addr::from(self.bytes), self.port, 0, self.scope).into(),
            _ => return None,
        })
    }

    /// Whether there is no address.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    fn to_words(self) -> [u64; 3] {
        let bytes = u128::from_le_bytes(self.bytes);
        let last =
            u64::from(self.family) | u64::from(self.port) << 16 | u64::from(self.scope) << 32;
        [bytes as u64, (bytes >> 64) as u64, last]
    }

    fn from_words([first, second, last]: [u64; 3]) -> Self {
        let bytes = (u128::from(first) | u128::from(second) << 64).to_le_bytes();
        let (family, port, scope) = (last as u16, (last >> 16) as u16, (last >> 32) as u32);
        Self { bytes, family, port, scope }
    }
}

/// An operation that the application submits.
///
/// ```text
///   word 0        op (8) | flags (8) | group (16) | 0 (32)
///   word 1        user_data
///   word 2        target: a handle
///   word 3        argument
///   word 4 to 6   address
///   word 7        0
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Submission {
    /// Number of an [`Op`].
    pub op: u8,
    /// [`MULTISHOT`](Self::MULTISHOT) or 0.
    pub flags: u8,
    /// The memory; see the operations.
    pub group: u16,
    /// Must be 0.
    pub reserved: u32,
    /// Returned in the completion.
    pub user_data: u64,
    /// Handle of the socket.
    pub target: u64,
    /// See the operations.
    pub argument: u64,
    /// See the operations; otherwise none.
    pub address: Address,
    /// Must be 0.
    pub reserved_word: u64,
}

impl Submission {
    /// The operation goes on after its first completion.
    pub const MULTISHOT: u8 = 1;

    /// An operation on a socket.
    pub const fn new(op: Op, target: u64, user_data: u64) -> Self {
        let (flags, group, reserved, argument) = (0, COPY_GROUP, 0, 0);
        let (address, reserved_word) = (Address::NONE, 0);
        let op = op as u8;
        Self { op, flags, group, reserved, user_data, target, argument, address, reserved_word }
    }

    /// A receive into `group`, of at most `limit` bytes (0: all) in all, or of each datagram.
    pub const fn receive(target: u64, group: u16, limit: u64, user_data: u64) -> Self {
        Self { group, argument: limit, ..Self::new(Op::Receive, target, user_data) }
    }

    /// A send of `len` bytes from `offset` of the send group `group`.
    pub const fn send(target: u64, group: u16, offset: u32, len: u32, user_data: u64) -> Self {
        let argument = (offset as u64) << 32 | len as u64;
        Self { group, argument, ..Self::new(Op::Send, target, user_data) }
    }

    /// A connection to be opened.
    pub const fn connect(to: SocketAddr, user_data: u64) -> Self {
        Self::new(Op::Connect, 0, user_data).to(to)
    }

    /// A datagram socket to be opened on an address.
    pub const fn bind(on: SocketAddr, user_data: u64) -> Self {
        Self::new(Op::Bind, 0, user_data).to(on)
    }

    /// Sets an address: a datagram's destination, or a datagram socket's peer.
    #[must_use]
    pub const fn to(self, address: SocketAddr) -> Self {
        Self { address: Address::new(address), ..self }
    }

    /// A cancel of the operation `what` on `target`.
    pub const fn cancel(target: u64, what: u64, user_data: u64) -> Self {
        Self { argument: what, ..Self::new(Op::Cancel, target, user_data) }
    }

    /// Makes the operation a multishot.
    #[must_use]
    pub const fn multishot(self) -> Self {
        Self { flags: self.flags | Self::MULTISHOT, ..self }
    }
}

impl Words for Submission {
    type Array = [u64; 8];

    fn to_words(self) -> [u64; 8] {
        let Self { op, flags, group, reserved, user_data, target, argument, .. } = self;
        let first = u64::from(op)
            | u64::from(flags) << 8
            | u64::from(group) << 16
            | u64::from(reserved) << 32;
        let [a, b, c] = self.address.to_words();
        [first, user_data, target, argument, a, b, c, self.reserved_word]
    }

    fn from_words([first, user_data, target, argument, a, b, c, last]: [u64; 8]) -> Self {
        Self {
            op: first as u8,
            flags: (first >> 8) as u8,
            group: (first >> 16) as u16,
            reserved: (first >> 32) as u32,
            user_data,
            target,
            argument,
            address: Address::from_words([a, b, c]),
            reserved_word: last,
        }
    }
}

/// The result of an operation.
///
/// ```text
///   word 0        user_data
///   word 1        result (32) | flags (32)
///   word 2        entries (32) | length (32)
///   word 3        handle
///   word 4 to 6   address
///   word 7        dropped (32) | 0 (32)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The submission's, or [`NOTICE`].
    pub user_data: u64,
    /// Bytes received or sent; 0 for the end of a stream, and for an empty datagram; a negative
    /// errno. For a notice: fill entries taken since the last one.
    pub result: i32,
    /// [`MORE`](Self::MORE) and others.
    pub flags: u32,
    /// The number of entries, the next in the ring of entries, that name the bytes.
    pub entries: u32,
    /// The datagram's length; otherwise 0.
    pub length: u32,
    /// For an accept, a connect and a bind, the new socket's handle; for a notice, the group; for a
    /// send 0; otherwise the submission's target.
    pub handle: u64,
    /// A datagram's sender; the address of a bound socket.
    pub address: Address,
    /// Datagrams of its socket that the queue dropped so far, modulo 2^32 (Linux's `SO_RXQ_OVFL`).
    pub dropped: u32,
}

impl Completion {
    /// The operation goes on: more completions follow.
    pub const MORE: u32 = 1;
    /// More bytes are queued.
    pub const NONEMPTY: u32 = 1 << 1;
    /// Some of the bytes were copied.
    pub const COPIED: u32 = 1 << 2;
    /// The receive ends because it reached its limit.
    pub const LIMIT: u32 = 1 << 3;
    /// A datagram: `address` is its sender, `length` its length.
    pub const DATAGRAM: u32 = 1 << 4;
    /// The datagram was longer than its entries: the rest is lost.
    pub const TRUNCATED: u32 = 1 << 5;
    /// A notice: fill entries were taken.
    pub const DRAINED: u32 = 1 << 16;
    /// A notice: fewer buffers than the threshold are left.
    pub const LOW: u32 = 1 << 17;
    /// A notice: no buffer is left; windows are closing.
    pub const EMPTY: u32 = 1 << 18;
    /// A notice: the unregistered group is gone, its memory is the application's.
    pub const UNREGISTERED: u32 = 1 << 19;

    /// Whether flag `flag` is set.
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

impl Words for Completion {
    type Array = [u64; 8];

    fn to_words(self) -> [u64; 8] {
        let Self { user_data, result, flags, entries, length, handle, address, dropped } = self;
        let [a, b, c] = address.to_words();
        let second = u64::from(result as u32) | u64::from(flags) << 32;
        let third = u64::from(entries) | u64::from(length) << 32;
        [user_data, second, third, handle, a, b, c, dropped.into()]
    }

    fn from_words([user_data, second, third, handle, a, b, c, last]: [u64; 8]) -> Self {
        Self {
            user_data,
            result: second as u32 as i32,
            flags: (second >> 32) as u32,
            entries: third as u32,
            length: (third >> 32) as u32,
            handle,
            address: Address::from_words([a, b, c]),
            dropped: last as u32,
        }
    }
}

/// A piece of received bytes, in order.
///
/// ```text
///   word 0   offset (32) | len (32)
///   word 1   buffer (32) | group (16) | 0 (16)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// First byte, from the start of the group's memory.
    pub offset: u32,
    /// Length in bytes; in a queue's group and the copy group within one page.
    pub len: u32,
    /// The buffer to give back, once for each entry.
    pub buffer: u32,
    /// The group that the bytes lie in.
    pub group: u16,
}

impl Entry {
    /// The fill entry that gives the piece back.
    pub const fn fill(self) -> Fill {
        Fill { buffer: self.buffer, group: self.group }
    }
}

impl Words for Entry {
    type Array = [u64; 2];

    fn to_words(self) -> [u64; 2] {
        let Self { offset, len, buffer, group } = self;
        [u64::from(offset) | u64::from(len) << 32, u64::from(buffer) | u64::from(group) << 32]
    }

    fn from_words([first, second]: [u64; 2]) -> Self {
        Self {
            offset: first as u32,
            len: (first >> 32) as u32,
            buffer: second as u32,
            group: (second >> 32) as u16,
        }
    }
}

/// A buffer that is given back, or given for the first time.
///
/// ```text
///   word 0   buffer (32) | group (16) | 0 (16)
/// ```
///
/// Buffers of a new region are its pages, numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// The entry's buffer.
    pub buffer: u32,
    /// The ring's group.
    pub group: u16,
}

impl Words for Fill {
    type Array = [u64; 1];

    fn to_words(self) -> [u64; 1] {
        [u64::from(self.buffer) | u64::from(self.group) << 32]
    }

    fn from_words([word]: [u64; 1]) -> Self {
        Self { buffer: word as u32, group: (word >> 32) as u16 }
    }
}

const _: () = {
    assert!(size_of::<<Submission as Words>::Array>() == 64);
    assert!(size_of::<<Completion as Words>::Array>() == 64);
    assert!(size_of::<<Entry as Words>::Array>() == 16);
    assert!(size_of::<<Fill as Words>::Array>() == 8);
    assert!(ENTRY_WORD * 8 == 512 && BELL_WORD * 8 == 384);
    assert!(cfg!(target_endian = "little"), "words are little-endian in shared memory");
};
