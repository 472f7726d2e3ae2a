//! The server name of a ClientHello, from the records that carry it (RFC 8446 sections 4.1.2 and 5.1). Strict: a
//! message that servers could read in two ways is [`Unreadable`].

use std::str;

use super::{Shown, ShownBy, Unreadable};
use crate::limits::HELD;

/// Content types of records (RFC 8446 section 5.1).
pub(super) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;

/// The handshake type of a ClientHello (RFC 8446 section 4).
const CLIENT_HELLO: u8 = 1;

/// Extensions (RFC 6066 section 3, RFC 9849 section 5).
pub(super) const SERVER_NAME: u16 = 0;
pub(super) const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// The extension of a ClientHello that early data follows (RFC 8446 section 4.2.10).
pub(super) const EARLY_DATA: u16 = 42;

/// The content type of data (RFC 8446 section 5.1).
const APPLICATION_DATA: u8 = 23;

/// A ClientHello, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) shown: Shown,
    /// Early data may follow, and another ClientHello behind that.
    pub(super) early: bool,
}

/// Longest payload of a record in the clear (RFC 8446 section 5.1).
const MAX_RECORD: usize = 1 << 14;

/// Bytes of a record's header.
pub(super) const RECORD_HEADER: usize = 5;

/// A record that follows the ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Following {
    /// A record of this many bytes that may stand in front of another ClientHello.
    Passes(usize),
    /// A record of data of this many bytes.
    Data(u64),
    /// The begin of another ClientHello, which answers a HelloRetryRequest.
    ClientHello,
    /// Any other record: no ClientHello in the clear follows.
    Last,
}

/// Reads the ClientHello that begins with the first record. Returns its shown name and the bytes of its records;
/// `None`: more bytes are needed.
pub(super) fn client_hello(mut bytes: &[u8]) -> Result<Option<(Hello, usize)>, Unreadable> {
    let all = bytes.len();
    let mut message = Vec::new();
    loop {
        let Some((record, rest)) = record(bytes)? else { return Ok(None) };
        // RFC 8446 section 5.1: "Implementations MUST NOT send zero-length fragments of Handshake types".
        if record.content != HANDSHAKE || record.payload.is_empty() {
            return Err(Unreadable);
        }
        message.extend_from_slice(record.payload);
        bytes = rest;
        let mut header = Bytes(&message);
        let (Ok(kind), Ok(len)) = (header.u8(), header.u24()) else { continue };
        if kind != CLIENT_HELLO || len > HELD {
            return Err(Unreadable);
        }
        match header.0.len() {
            have if have < len => {}
            // Nothing else may stand in the record: the client waits for the server's answer.
            have if have > len => return Err(Unreadable),
            _ => return Ok(Some((read(header)?, all - bytes.len()))),
        }
    }
}

/// Reads a ClientHello without records, as QUIC has it (RFC 9001 section 4).
pub(super) fn hello(message: &[u8]) -> Result<Shown, Unreadable> {
    let mut message = Bytes(message);
    match (message.u8()?, message.u24()?) {
        (CLIENT_HELLO, len) if len == message.0.len() => Ok(read(message)?.shown),
        _ => Err(Unreadable),
    }
}

/// Looks at the record behind a ClientHello; `None`: more bytes are needed.
pub(super) fn following(bytes: &[u8]) -> Result<Option<Following>, Unreadable> {
    let Some(content) = bytes.first() else { return Ok(None) };
    match *content {
        HANDSHAKE => {
            // The second ClientHello begins a record (RFC 8446 section 5.1): nothing else can stand before it.
            let Some(header) = bytes.get(..RECORD_HEADER) else { return Ok(None) };
            if header.ends_with(&[0, 0]) {
                return Err(Unreadable);
            }
            let Some(kind) = bytes.get(RECORD_HEADER) else { return Ok(None) };
            let is_hello = *kind == CLIENT_HELLO;
            Ok(Some(if is_hello { Following::ClientHello } else { Following::Last }))
        }
        CHANGE_CIPHER_SPEC | ALERT => {
            let Some((_, rest)) = record(bytes)? else { return Ok(None) };
            Ok(Some(Following::Passes(bytes.len() - rest.len())))
        }
        APPLICATION_DATA => {
            let Some([.., high, low]) = bytes.first_chunk::<RECORD_HEADER>() else {
                return Ok(None);
            };
            let len = u16::from_be_bytes([*high, *low]);
            Ok(Some(Following::Data(RECORD_HEADER as u64 + u64::from(len))))
        }
        _ => Ok(Some(Following::Last)),
    }
}

struct Record<'a> {
    content: u8,
    payload: &'a [u8],
}

/// The first record and the bytes behind it; `None`: more bytes are needed.
fn record(bytes: &[u8]) -> Result<Option<(Record<'_>, &[u8])>, Unreadable> {
    let mut bytes = Bytes(bytes);
    let (Ok(content), Ok(version), Ok(len)) = (bytes.u8(), bytes.u16(), bytes.u16()) else {
        return Ok(None);
    };
    // RFC 8446 section 5.1: the version is ignored, but for its first byte nothing else was ever sent.
    if version >> 8 != 3 || usize::from(len) > MAX_RECORD {
        return Err(Unreadable);
    }
    let Ok(payload) = bytes.take(len.into()) else { return Ok(None) };
    Ok(Some((Record { content, payload }, bytes.0)))
}

/// The name in the body of a ClientHello (RFC 8446 section 4.1.2).
fn read(mut hello: Bytes<'_>) -> Result<Hello, Unreadable> {
    hello.take(2 + 32)?;
    let session = hello.u8()?;
    hello.take(session.into())?;
    let suites = hello.u16()?;
    hello.take(suites.into())?;
    let compressions = hello.u8()?;
    hello.take(compressions.into())?;
    let (mut names, mut is_encrypted, mut early) = (None, false, false);
    // Clients of TLS 1.2 may leave the extensions out.
    if !hello.0.is_empty() {
        let mut extensions = hello.vector()?;
        if !hello.0.is_empty() {
            return Err(Unreadable);
        }
        while !extensions.0.is_empty() {
            let kind = extensions.u16()?;
            let data = extensions.vector()?;
            match kind {
                // RFC 8446 section 4.2: "There MUST NOT be more than one extension of the same type".
                SERVER_NAME if names.is_some() => return Err(Unreadable),
                SERVER_NAME => names = Some(data),
                ENCRYPTED_CLIENT_HELLO => is_encrypted = true,
                EARLY_DATA => early = true,
                _ => {}
            }
        }
    }
    let by = if is_encrypted { ShownBy::EncryptedHello } else { ShownBy::Tls };
    let Some(mut names) = names else {
        return Ok(Hello { shown: Shown { by, name: None }, early });
    };
    // RFC 6066 section 3: a list of names, which "MUST NOT contain more than one name of the same name_type";
    // host names are the only type.
    let mut list = names.vector()?;
    let kind = list.u8()?;
    let name = list.vector()?.0;
    if kind != 0 || !list.0.is_empty() || !names.0.is_empty() {
        return Err(Unreadable);
    }
    let name = str::from_utf8(name).map_err(|_| Unreadable)?;
    let name = Some(name.parse().map_err(|_| Unreadable)?);
    Ok(Hello { shown: Shown { by, name }, early })
}

/// Bytes that are read from their front.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Unreadable> {
        let (front, rest) = self.0.split_at_checked(n).ok_or(Unreadable)?;
        self.0 = rest;
        Ok(front)
    }

    /// An integer of `N` bytes in network order.
    fn int<const N: usize>(&mut self) -> Result<usize, Unreadable> {
        Ok(self.take(N)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn u8(&mut self) -> Result<u8, Unreadable> {
        self.int::<1>().map(|n| n as u8)
    }

    fn u16(&mut self) -> Result<u16, Unreadable> {
        self.int::<2>().map(|n| n as u16)
    }

    fn u24(&mut self) -> Result<usize, Unreadable> {
        self.int::<3>()
    }

    /// A vector with a length of two bytes (RFC 8446 section 3.4).
    fn vector(&mut self) -> Result<Bytes<'a>, Unreadable> {
        let len = self.u16()?;
        self.take(len.into()).map(Bytes)
    }
}
