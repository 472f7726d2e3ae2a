//! The ClientHello that a QUIC client shows in its Initial packets (RFC 9000, RFC 9001, RFC 9369).
//!
//! Everybody on the path can compute the keys of Initial packets (RFC 9001 section 5.2). So a guest
//! can compute them too, and writes every byte that is read here. What is read must be what the
//! server reads, whichever datagrams the server drops:
//!
//! - Each byte of a connection's CRYPTO stream has one value. A different value for a byte that was
//!   shown makes the datagram unreadable, also after the ClientHello was judged.
//! - Exactly one of the keys that a server may have opens a packet. AES-GCM does not commit to its
//!   key: a guest can make a packet that two keys open, to two different payloads.
//! - The original connection ID of a connection that was forgotten begins no other connection. The
//!   server may still have parts of the first one.
//!
//! No datagram that is unreadable changes what is known.

use std::collections::VecDeque;

use aes_gcm::aes::Aes128;
use aes_gcm::aes::cipher::BlockCipherEncrypt;
use aes_gcm::{AeadInOut, Aes128Gcm, KeyInit};
use hkdf::Hkdf;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

/// Connections of a flow that are remembered. A client may have several on one socket, and each
/// needs its keys until its handshake is done.
const CONNECTIONS: usize = 8;

/// Bytes of all CRYPTO streams of a flow that are held, as offsets count them. A ClientHello has
/// 300 to 2,000 bytes. A connection that needs more than this is unreadable; other connections are
/// forgotten for it.
const HELD: usize = 16 * 1024;

/// Bytes of the filter of forgotten connections. A thousand of them let 2% of new connections seem
/// forgotten.
const FORGOTTEN: usize = 1024;

/// Least payload of a client's datagram with an Initial packet (RFC 9000 section 14.1).
const MIN_DATAGRAM: usize = 1200;

/// Least and greatest length of a client's first destination connection ID (RFC 9000 sections 7.2
/// and 17.2).
const MIN_ORIGINAL_ID: usize = 8;
const MAX_ID: usize = 20;

/// Bits of a packet's first byte (RFC 9000 section 17.2): long header, fixed bit, reserved bits,
/// length of the packet number less one.
const LONG: u8 = 0x80;
const FIXED: u8 = 0x40;
const RESERVED: u8 = 0x0c;
const NUMBER_LENGTH: u8 = 0x03;

/// Versions on the wire (RFC 9000 section 15, RFC 9369 section 3.1).
const VERSION_1: u32 = 1;
const VERSION_2: u32 = 0x6b33_43cf;

/// Salts of Initial keys (RFC 9001 section 5.2, RFC 9369 section 3.3.1).
const SALT_1: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad,
    0xcc, 0xbb, 0x7f, 0x0a,
];
const SALT_2: [u8; 20] = [
    0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb,
    0xf9, 0xbd, 0x2e, 0xd9,
];

/// Bytes of an AES-128 key, of a nonce, and of an authentication tag (RFC 9001 section 5.3).
const KEY: usize = 16;
const NONCE: usize = 12;
const TAG: usize = 16;

/// Bytes between the start of the packet number and the sample for header protection (RFC 9001
/// section 5.4.2).
const SAMPLE_AT: usize = 4;

/// Frames of Initial packets (RFC 9000 sections 12.4 and 19).
const PADDING: u8 = 0x00;
const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const ACK_ECN: u8 = 0x03;
const CRYPTO: u8 = 0x06;
const CONNECTION_CLOSE: u8 = 0x1c;

/// A ClientHello's type, and the bytes of a handshake message's header (RFC 8446 section 4).
const CLIENT_HELLO: u8 = 1;
const MESSAGE_HEADER: usize = 4;

/// A connection ID.
type ConnectionId = SmallVec<[u8; MAX_ID]>;

/// What a datagram shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing in the datagram needs a decision: a short header, Handshake, 0-RTT, or an Initial of
    /// a connection whose ClientHello is known.
    Passes,
    /// A part of a ClientHello, or what goes with one. The caller holds the datagram.
    More,
    /// The whole ClientHello, with the 4 bytes of its handshake header. The caller judges it for
    /// this datagram and for those that it holds.
    ClientHello(Vec<u8>),
    /// It is not QUIC of version 1 or 2, cannot be decrypted, contradicts what was shown, or is too
    /// long.
    Unreadable,
}

/// What the datagrams show that a client sends from one address and port to one address and port.
///
/// The caller looks at no further datagram of the flow until it has judged a ClientHello.
#[derive(Clone, Default)]
pub(crate) struct QuicFlow {
    /// The connections, the most recently used last.
    connections: VecDeque<Connection>,
    forgotten: Forgotten,
    /// A forgotten connection showed a ClientHello that was not refused.
    passed: bool,
    /// The connection that showed a ClientHello last.
    shown: Option<ConnectionId>,
}

impl QuicFlow {
    /// Looks at a datagram from the client.
    pub(crate) fn look(&mut self, datagram: &[u8]) -> Look {
        // RFC 9000 section 17.3.1: only Initial packets precede the keys of short headers. RFC 9287
        // section 3: the fixed bit has any value then.
        if datagram.first().is_some_and(|first| first & LONG == 0) {
            return if self.is_open() { Look::Passes } else { Look::Unreadable };
        }
        let mut next = self.clone();
        let Some(seen) = next.read(datagram) else { return Look::Unreadable };
        *self = next;
        match seen {
            Seen::Known => Look::Passes,
            Seen::Part => Look::More,
            Seen::Whole(hello) => Look::ClientHello(hello),
        }
    }

    /// Refuses the connection that showed a ClientHello last: from now on its Initial packets are
    /// unreadable. The flow's other connections go on.
    pub(crate) fn refuse(&mut self) {
        let refused = self.shown.take();
        for connection in &mut self.connections {
            connection.refused |= Some(&connection.id) == refused.as_ref();
        }
    }

    /// Whether a connection of the flow showed a ClientHello that was not refused.
    fn is_open(&self) -> bool {
        self.passed || self.connections.iter().any(Connection::is_open)
    }

    /// Reads the packets of a datagram that begins with a long header; `None`: it is unreadable.
    fn read(&mut self, datagram: &[u8]) -> Option<Seen> {
        let mut seen = Seen::Known;
        let mut current = None;
        let mut rest = datagram;
        let first = Packet::parse(datagram)?.0;
        // RFC 9000 section 12.2: a datagram holds several packets. A short header has no length, so
        // it takes the rest. RFC 9000 section 14.1: what follows may be invalid, to fill the
        // datagram. A short header opens no connection, so that it matters not which it is.
        while rest.first().is_some_and(|first| first & LONG != 0) {
            let (packet, after) = Packet::parse(rest)?;
            rest = after;
            // RFC 9000 section 12.2: all packets of a datagram have the same destination.
            if packet.destination != first.destination {
                return None;
            }
            // RFC 9000 section 17.2: the fixed bit is 1. RFC 9287 section 3: it has any value when
            // the client knows the server's transport parameters.
            if packet.first & FIXED == 0 && !self.is_open() {
                return None;
            }
            let next = match packet.kind {
                Kind::Initial => {
                    self.initial(&packet, &mut current, datagram.len() >= MIN_DATAGRAM)?
                }
                Kind::ZeroRtt => self.zero_rtt(packet.destination)?,
                // RFC 9001 section 4.1.4: Handshake keys come from the server's answer to a
                // ClientHello.
                Kind::Handshake => self.is_open().then_some(Seen::Known)?,
            };
            seen = seen.and(next)?;
        }
        Some(seen)
    }

    /// Reads an Initial packet. `current` is the connection of those before it in its datagram.
    fn initial(
        &mut self,
        packet: &Packet<'_>,
        current: &mut Option<ConnectionId>,
        long_enough: bool,
    ) -> Option<Seen> {
        let (mut connection, opened) = self.open(packet)?;
        // A datagram is for one connection.
        if connection.refused
            || *current.get_or_insert_with(|| connection.id.clone()) != connection.id
        {
            return None;
        }
        // RFC 9000 section 17.2: other values of the reserved bits end the connection.
        if opened.first & RESERVED != 0 {
            return None;
        }
        connection.largest = connection.largest.max(Some(opened.number));
        let seen = connection.read(&opened.payload, long_enough)?;
        if matches!(seen, Seen::Whole(_)) {
            self.shown = Some(connection.id.clone());
        }
        self.remember(connection);
        Some(seen)
    }

    /// Decrypts an Initial packet, and takes its connection out, or makes it. Exactly one
    /// connection's keys must open the packet.
    fn open(&mut self, packet: &Packet<'_>) -> Option<(Connection, Opened)> {
        // RFC 9001 section 5.2: the keys come from the destination of the client's first Initial,
        // and stay when the destination changes to what the server chose. RFC 9369 section 4: they
        // come from the same destination when client and server change the version.
        let mut found = None;
        for (at, connection) in self.connections.iter().enumerate() {
            let keys = connection.keys(packet.version);
            if let Some(opened) = keys.open(packet, connection.largest)
                && found.replace((at, opened)).is_some()
            {
                return None;
            }
        }
        // RFC 9001 section 5.2: after a Retry the keys come from the destination that the Retry
        // names. This is a new connection here, as any other with keys of its own.
        let id = packet.destination;
        let is_new = self.connections.iter().all(|connection| connection.id.as_slice() != id);
        if is_new && let Some(opened) = Keys::client(packet.version, id)?.open(packet, None) {
            // RFC 9000 section 7.2: the client's first destination has at least 8 bytes.
            if found.is_some() || id.len() < MIN_ORIGINAL_ID || self.forgotten.has(id) {
                return None;
            }
            return Some((Connection::new(id)?, opened));
        }
        let (at, opened) = found?;
        Some((self.connections.remove(at)?, opened))
    }

    /// Remembers a connection as the most recently used, and forgets others until the limits hold.
    fn remember(&mut self, connection: Connection) {
        let others = HELD.saturating_sub(connection.crypto.len());
        while self.connections.len() >= CONNECTIONS || self.held() > others {
            let Some(oldest) = self.connections.pop_front() else { break };
            self.passed |= oldest.is_open();
            self.forgotten.add(&oldest.id);
        }
        self.connections.push_back(connection);
    }

    /// Bytes of CRYPTO streams that are held.
    fn held(&self) -> usize {
        self.connections.iter().map(|connection| connection.crypto.len()).sum()
    }

    /// Whether a 0-RTT packet to this destination passes or waits.
    ///
    /// RFC 9000 section 17.2.3: it goes with a client's first Initial packets. The server has its
    /// keys when it has the ClientHello.
    fn zero_rtt(&self, destination: &[u8]) -> Option<Seen> {
        let mut connections = self.connections.iter();
        if let Some(its) = connections.find(|its| its.id.as_slice() == destination) {
            let seen = if its.is_open() { Seen::Known } else { Seen::Part };
            return (!its.refused).then_some(seen);
        }
        if self.is_open() {
            return Some(Seen::Known);
        }
        self.connections.iter().any(|other| !other.refused).then_some(Seen::Part)
    }
}

/// What packets show.
enum Seen {
    /// Nothing that is not known.
    Known,
    /// A part of a ClientHello.
    Part,
    /// The last part of this ClientHello.
    Whole(Vec<u8>),
}

impl Seen {
    /// What two packets of a datagram show.
    fn and(self, other: Self) -> Option<Self> {
        match (self, other) {
            // RFC 8446 section 4.1.4: a server's answer comes between two ClientHellos.
            (Self::Whole(_), Self::Whole(_)) => None,
            (whole @ Self::Whole(_), _) | (_, whole @ Self::Whole(_)) => Some(whole),
            (Self::Part, _) | (_, Self::Part) => Some(Self::Part),
            (Self::Known, Self::Known) => Some(Self::Known),
        }
    }
}

/// A connection, known by the keys of its Initial packets.
#[derive(Clone)]
struct Connection {
    /// The destination connection ID that the keys come from.
    id: ConnectionId,
    version_1: Keys,
    version_2: Keys,
    /// The largest packet number of an Initial packet.
    largest: Option<u64>,
    /// The stream of CRYPTO frames; `None`: this byte has not been shown.
    crypto: Vec<Option<u8>>,
    /// The length of the whole messages at the start of the stream.
    read: usize,
    /// The caller refused its ClientHello.
    refused: bool,
}

impl Connection {
    /// A connection that begins with this destination.
    fn new(id: &[u8]) -> Option<Self> {
        Some(Self {
            id: ConnectionId::from_slice(id),
            version_1: Keys::client(Version::One, id)?,
            version_2: Keys::client(Version::Two, id)?,
            largest: None,
            crypto: Vec::new(),
            read: 0,
            refused: false,
        })
    }

    fn keys(&self, version: Version) -> &Keys {
        match version {
            Version::One => &self.version_1,
            Version::Two => &self.version_2,
        }
    }

    /// Whether it showed a ClientHello that was not refused.
    fn is_open(&self) -> bool {
        self.read > 0 && !self.refused
    }

    /// Reads the frames of an Initial packet. `long_enough`: its datagram is one that servers read.
    fn read(&mut self, payload: &[u8], long_enough: bool) -> Option<Seen> {
        // RFC 9000 section 12.4: a packet has at least one frame.
        if payload.is_empty() {
            return None;
        }
        let mut shows_unread = false;
        let mut frames = Reader(payload);
        // RFC 9000 section 17.2.2: an Initial packet has frames of these types alone. RFC 9000
        // section 12.4: a frame's type has its shortest encoding, here one byte.
        while let Some(kind) = frames.byte() {
            match kind {
                PADDING | PING => {}
                ACK | ACK_ECN => skip_ack(&mut frames, kind)?,
                CRYPTO => {
                    let offset = frames.length()?;
                    let length = frames.length()?;
                    let data = frames.take(length)?;
                    // RFC 9000 section 14.1: a server discards an Initial packet in a shorter
                    // datagram.
                    if !long_enough {
                        return None;
                    }
                    shows_unread |= self.insert(offset, data)? > self.read;
                }
                CONNECTION_CLOSE => {
                    frames.varint()?;
                    frames.varint()?;
                    let reason = frames.length()?;
                    frames.take(reason)?;
                }
                _ => return None,
            }
        }
        match self.next_message()? {
            Message::Whole(hello) => match self.next_message()? {
                // RFC 8446 section 4.1.4: a server's answer comes between two ClientHellos.
                Message::Whole(_) => None,
                Message::Part => Some(Seen::Whole(hello)),
            },
            // RFC 9000 section 17.2.2: a client's first packets show the first message.
            Message::Part if self.read == 0 || shows_unread => Some(Seen::Part),
            Message::Part => Some(Seen::Known),
        }
    }

    /// Puts a CRYPTO frame's data in its place, and returns where it ends.
    ///
    /// RFC 9000 section 2.2: data at an offset does not change. RFC 9000 section 7.5: an endpoint
    /// limits what it holds.
    fn insert(&mut self, offset: usize, data: &[u8]) -> Option<usize> {
        if data.is_empty() {
            return Some(0);
        }
        let end = offset.checked_add(data.len()).filter(|&end| end <= HELD)?;
        if self.crypto.len() < end {
            self.crypto.resize(end, None);
        }
        for (known, &byte) in self.crypto.get_mut(offset..end)?.iter_mut().zip(data) {
            if *known.get_or_insert(byte) != byte {
                return None;
            }
        }
        Some(end)
    }

    /// The next message of the stream, which must be a ClientHello.
    ///
    /// RFC 8446 section 4.1.1: a client's messages without keys are its ClientHello, and a second
    /// one after a HelloRetryRequest. RFC 9001 section 4.3: a ClientHello may take several packets.
    fn next_message(&mut self) -> Option<Message> {
        let rest = self.crypto.get(self.read..)?;
        let byte = |at| rest.get(at).copied().flatten();
        if byte(0).is_some_and(|kind| kind != CLIENT_HELLO) {
            return None;
        }
        let (Some(_), Some(high), Some(middle), Some(low)) = (byte(0), byte(1), byte(2), byte(3))
        else {
            return Some(Message::Part);
        };
        let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).ok()?;
        let length = length.checked_add(MESSAGE_HEADER)?;
        let end = self.read.checked_add(length).filter(|&end| end <= HELD)?;
        let message = rest.get(..length).and_then(|bytes| bytes.iter().copied().collect());
        let Some(message) = message else { return Some(Message::Part) };
        self.read = end;
        Some(Message::Whole(message))
    }
}

/// A handshake message of a stream.
enum Message {
    /// Some of its bytes have not been shown.
    Part,
    Whole(Vec<u8>),
}

/// Skips an ACK frame behind its type (RFC 9000 section 19.3).
fn skip_ack(frames: &mut Reader<'_>, kind: u8) -> Option<()> {
    // Largest acknowledged, delay.
    frames.varint()?;
    frames.varint()?;
    let ranges = frames.varint()?;
    // First range.
    frames.varint()?;
    // Each range has a byte at least, so the loop ends with the payload.
    for _ in 0..ranges {
        frames.varint()?;
        frames.varint()?;
    }
    if kind == ACK_ECN {
        frames.varint()?;
        frames.varint()?;
        frames.varint()?;
    }
    Some(())
}

/// The original connection IDs of forgotten connections, in a Bloom filter: it may have one that
/// was not added, and has all that were.
#[derive(Clone, Default)]
struct Forgotten(Vec<u8>);

impl Forgotten {
    fn add(&mut self, id: &[u8]) {
        self.0.resize(FORGOTTEN, 0);
        for (at, bit) in Self::bits(id) {
            if let Some(byte) = self.0.get_mut(at) {
                *byte |= bit;
            }
        }
    }

    fn has(&self, id: &[u8]) -> bool {
        Self::bits(id).all(|(at, bit)| self.0.get(at).is_some_and(|byte| byte & bit != 0))
    }

    /// The bits of a connection ID: bytes, and masks in them.
    fn bits(id: &[u8]) -> impl Iterator<Item = (usize, u8)> {
        let hash: [u8; 32] = Sha256::digest(id).into();
        let (words, _) = hash.as_chunks::<4>();
        let words: SmallVec<[u32; 4]> =
            words.iter().take(4).map(|word| u32::from_be_bytes(*word)).collect();
        words.into_iter().map(|word| {
            let at = usize::try_from(word >> 3).unwrap_or_default() % FORGOTTEN;
            (at, 1 << (word & 7))
        })
    }
}

/// A version of QUIC that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// RFC 9000 and RFC 9001.
    One,
    /// RFC 9369.
    Two,
}

impl Version {
    /// The version with this number on the wire. Version negotiation has 0 (RFC 9000 section
    /// 17.2.1), and comes from servers.
    fn of(number: u32) -> Option<Self> {
        match number {
            VERSION_1 => Some(Self::One),
            VERSION_2 => Some(Self::Two),
            _ => None,
        }
    }

    /// The kind of a packet by its first byte (RFC 9000 section 17.2, RFC 9369 section 3.2). A Retry
    /// comes from servers.
    fn kind(self, first: u8) -> Option<Kind> {
        match (self, first >> 4 & 3) {
            (Self::One, 0) | (Self::Two, 1) => Some(Kind::Initial),
            (Self::One, 1) | (Self::Two, 2) => Some(Kind::ZeroRtt),
            (Self::One, 2) | (Self::Two, 3) => Some(Kind::Handshake),
            _ => None,
        }
    }

    fn salt(self) -> [u8; 20] {
        match self {
            Self::One => SALT_1,
            Self::Two => SALT_2,
        }
    }

    /// Labels of key, nonce and header protection (RFC 9001 section 5.1, RFC 9369 section 3.3.2).
    fn labels(self) -> [&'static [u8]; 3] {
        match self {
            Self::One => [b"tls13 quic key", b"tls13 quic iv", b"tls13 quic hp"],
            Self::Two => [b"tls13 quicv2 key", b"tls13 quicv2 iv", b"tls13 quicv2 hp"],
        }
    }
}

/// A packet with a long header that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Initial,
    ZeroRtt,
    Handshake,
}

/// A packet with a long header, not decrypted.
#[derive(Clone, Copy)]
struct Packet<'a> {
    first: u8,
    version: Version,
    kind: Kind,
    /// The destination connection ID.
    destination: &'a [u8],
    /// The header before the packet number.
    header: &'a [u8],
    /// The packet number, the payload and the tag.
    protected: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the packet at the start, and returns what follows (RFC 9000 section 17.2).
    fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut reader = Reader(bytes);
        let first = reader.byte()?;
        let version = Version::of(u32::from_be_bytes(*reader.take(4)?.first_chunk()?))?;
        let kind = version.kind(first)?;
        let destination = reader.connection_id()?;
        reader.connection_id()?;
        // RFC 9000 section 17.2.2: an Initial has the token of a Retry or of an earlier connection.
        if kind == Kind::Initial {
            let token = reader.length()?;
            reader.take(token)?;
        }
        let length = reader.length()?;
        let header = bytes.get(..bytes.len().checked_sub(reader.0.len())?)?;
        let protected = reader.take(length)?;
        Some((Self { first, version, kind, destination, header, protected }, reader.0))
    }
}

/// A decrypted packet.
struct Opened {
    /// The first byte without protection.
    first: u8,
    /// The packet number.
    number: u64,
    payload: Vec<u8>,
}

/// The keys of a client's Initial packets in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) key: [u8; KEY],
    pub(super) iv: [u8; NONCE],
    /// The key of header protection.
    pub(super) header: [u8; KEY],
}

impl Keys {
    /// The keys of a client's Initial packets, by the destination of the first (RFC 9001 section
    /// 5.2).
    pub(super) fn client(version: Version, destination: &[u8]) -> Option<Self> {
        let initial = Hkdf::<Sha256>::new(Some(&version.salt()), destination);
        let secret: [u8; 32] = expand(&initial, b"tls13 client in")?;
        let secret = Hkdf::<Sha256>::from_prk(&secret).ok()?;
        let [key, iv, header] = version.labels();
        Some(Self {
            key: expand(&secret, key)?,
            iv: expand(&secret, iv)?,
            header: expand(&secret, header)?,
        })
    }

    /// The mask of header protection (RFC 9001 section 5.4.3): for the first byte, and for the
    /// packet number.
    pub(super) fn mask(&self, sample: [u8; 16]) -> (u8, [u8; 4]) {
        let mut block = sample.into();
        Aes128::new(&self.header.into()).encrypt_block(&mut block);
        let [first, a, b, c, d, ..]: [u8; 16] = block.into();
        (first & (RESERVED | NUMBER_LENGTH), [a, b, c, d])
    }

    /// The nonce of a packet (RFC 9001 section 5.3).
    pub(super) fn nonce(&self, number: u64) -> [u8; NONCE] {
        let mut nonce = self.iv;
        for (byte, number) in nonce.iter_mut().rev().zip(number.to_le_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// Decrypts a packet; `None`: these are not its keys.
    fn open(&self, packet: &Packet<'_>, largest: Option<u64>) -> Option<Opened> {
        // RFC 9001 section 5.4.1: header protection covers the low bits of the first byte, and the
        // packet number.
        let sample = packet.protected.get(SAMPLE_AT..)?.first_chunk()?;
        let (mask, number_mask) = self.mask(*sample);
        let first = packet.first ^ mask;
        let number_length = usize::from(first & NUMBER_LENGTH) + 1;
        let (number, rest) = packet.protected.split_at_checked(number_length)?;
        let number = number.iter().zip(number_mask).map(|(byte, mask)| byte ^ mask);
        // RFC 9001 section 5.3: the header without protection is authenticated too.
        let mut header = Vec::with_capacity(packet.header.len() + number_length);
        header.push(first);
        header.extend_from_slice(packet.header.get(1..)?);
        header.extend(number.clone());
        let number = number.fold(0, |number, byte| number << 8 | u64::from(byte));
        let number = whole_number(number, number_length, largest);
        let (payload, tag) = rest.split_last_chunk::<TAG>()?;
        let mut payload = payload.to_vec();
        Aes128Gcm::new(&self.key.into())
            .decrypt_inout_detached(
                &self.nonce(number).into(),
                &header,
                payload.as_mut_slice().into(),
                &(*tag).into(),
            )
            .ok()?;
        Some(Opened { first, number, payload })
    }
}

/// Derives bytes by a label and without context (RFC 8446 section 7.1, HKDF-Expand-Label). `label`
/// includes TLS 1.3's prefix.
fn expand<const LENGTH: usize>(secret: &Hkdf<Sha256>, label: &[u8]) -> Option<[u8; LENGTH]> {
    let mut info = SmallVec::<[u8; 32]>::new();
    info.extend_from_slice(&u16::try_from(LENGTH).ok()?.to_be_bytes());
    info.push(u8::try_from(label.len()).ok()?);
    info.extend_from_slice(label);
    info.push(0);
    let mut bytes = [0; LENGTH];
    secret.expand(&info, &mut bytes).ok()?;
    Some(bytes)
}

/// The packet number whose low bytes a header has (RFC 9000 appendix A.3): the nearest to the one
/// after the largest.
fn whole_number(low: u64, length: usize, largest: Option<u64>) -> u64 {
    let expected = largest.map_or(0, |largest| largest.saturating_add(1));
    let window = 1 << (8 * length.min(4));
    let near = expected & !(window - 1) | low;
    if near.saturating_add(window / 2) <= expected && near < (1 << 62) - window {
        near + window
    } else if near > expected.saturating_add(window / 2) && near >= window {
        near - window
    } else {
        near
    }
}

/// Reads bytes from the front; `None`: they end too soon.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    /// A number of 1, 2, 4 or 8 bytes (RFC 9000 section 16).
    fn varint(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let rest = self.take((1 << (first >> 6)) - 1)?;
        let start = u64::from(first & 0x3f);
        Some(rest.iter().fold(start, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// A number of 1, 2, 4 or 8 bytes that counts bytes in memory.
    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }

    /// A connection ID behind its length (RFC 9000 section 17.2).
    fn connection_id(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.byte()?);
        self.take(length).filter(|id| id.len() <= MAX_ID)
    }
}
