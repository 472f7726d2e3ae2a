//! The head of an HTTP/1 request: its name, and where its body ends (RFC 9112). Strict: a head that servers could
//! read in two ways is [`Unreadable`], and so is a request to a proxy, which leads elsewhere.

use std::str;

use httparse::{EMPTY_HEADER, Request, Status};

use super::Unreadable;
use crate::limits::HEADERS;
use crate::request::Name;

/// The part of a request's head that matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The host that the request is for.
    pub(super) name: Name,
    pub(super) body: Body,
    /// The client asks for WebSocket on this connection (RFC 9110 section 7.8, RFC 6455 section 4.1).
    pub(super) upgrade: bool,
}

/// The end of a request's body (RFC 9112 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Bytes(u64),
    Chunked,
}

/// Whether the first line is a request's (RFC 9112 section 3); `false`: more bytes are needed.
pub(super) fn is_request(bytes: &[u8]) -> Result<bool, Unreadable> {
    let method = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
    let is_method = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
    if !(1..=LONGEST_METHOD).contains(&method.len()) || !method.iter().all(is_method) {
        return if bytes.is_empty() { Ok(false) } else { Err(Unreadable) };
    }
    match line(bytes)? {
        None => Ok(false),
        Some((line, _)) => match line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") {
            true => Ok(true),
            false => Err(Unreadable),
        },
    }
}

/// Longest method (IANA's registry: UPDATEREDIRECTREF), in bytes.
const LONGEST_METHOD: usize = 17;

/// Reads a head. Returns its bytes, too; `None`: more bytes are needed.
pub(super) fn head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Unreadable> {
    // Cheap while the end is not there, so that a head in many pieces is not parsed for each.
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let bytes = bytes.get(..end + 4).unwrap_or_default();
    // RFC 9112 section 2.2: "a recipient MAY recognize a single LF as a line terminator", and may not.
    let mut before = 0;
    for byte in bytes {
        if *byte == b'\n' && before != b'\r' {
            return Err(Unreadable);
        }
        before = *byte;
    }
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(n)) if n == bytes.len() => {}
        _ => return Err(Unreadable),
    }
    let (mut host, mut length, mut chunked, mut upgrade) = (None, None, false, None);
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("host") {
            // RFC 9112 section 3.2: a server must refuse "more than one Host header field line".
            if host.replace(authority(header.value)?).is_some() {
                return Err(Unreadable);
            }
        } else if is("content-length") {
            if length.replace(number(header.value, 10).ok_or(Unreadable)?).is_some() {
                return Err(Unreadable);
            }
        } else if is("transfer-encoding") {
            // RFC 9112 section 6.1: a list of codings; clients send only this one.
            if chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(Unreadable);
            }
            chunked = true;
        } else if is("upgrade") {
            // Other protocols, HTTP/2 among them, have requests of their own, for other names.
            let websocket = header.value.eq_ignore_ascii_case(b"websocket");
            if upgrade.replace(websocket).is_some() {
                return Err(Unreadable);
            }
        }
    }
    let name = host.ok_or(Unreadable)?;
    if !target_is_of(request.path.unwrap_or_default(), &name)? || request.method == Some("CONNECT")
    {
        return Err(Unreadable);
    }
    let body = match (chunked, length) {
        // RFC 9112 section 6.3: both may be an attempt at request smuggling; HTTP/1.0 has no chunks.
        (true, Some(_)) => return Err(Unreadable),
        (true, None) if request.version == Some(0) => return Err(Unreadable),
        (true, None) => Body::Chunked,
        (false, length) => Body::Bytes(length.unwrap_or(0)),
    };
    // RFC 9110 section 9.3.1: such a body "might lead some implementations to reject the request", and others take it for
    // the next one.
    if matches!(request.method, Some("GET" | "HEAD" | "OPTIONS" | "TRACE"))
        && body != Body::Bytes(0)
    {
        return Err(Unreadable);
    }
    let upgrade = upgrade.unwrap_or(false);
    Ok(Some((Head { name, body, upgrade }, bytes.len())))
}

/// Whether the target of a request is of this host (RFC 9112 section 3.2): a path, `*`, or a whole address, whose
/// host counts and not the `Host` line.
fn target_is_of(target: &str, name: &Name) -> Result<bool, Unreadable> {
    // A fragment is none, and two slashes begin an address for some.
    if target.contains('#') || target.starts_with("//") {
        return Err(Unreadable);
    }
    if target.starts_with('/') || target == "*" {
        return Ok(true);
    }
    let (_, rest) = target.split_once("://").ok_or(Unreadable)?;
    let end = rest.find('/').unwrap_or(rest.len());
    let host = rest.get(..end).unwrap_or_default();
    Ok(authority(host.as_bytes())? == *name)
}

/// The name in `NAME[:PORT]`.
fn authority(bytes: &[u8]) -> Result<Name, Unreadable> {
    let text = str::from_utf8(bytes).map_err(|_| Unreadable)?;
    let (name, port) = text.split_once(':').unwrap_or((text, ""));
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if !name.chars().all(is_name) || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Unreadable);
    }
    name.parse().map_err(|_| Unreadable)
}

/// The data bytes of the chunk that this line begins (RFC 9112 section 7.1), and the bytes of the line; `None`: more
/// bytes are needed.
pub(super) fn chunk(bytes: &[u8]) -> Result<Option<(u64, usize)>, Unreadable> {
    let Some((line, len)) = line(bytes)? else { return Ok(None) };
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let size = number(trimmed(digits), 16).ok_or(Unreadable)?;
    Ok(Some((size, len)))
}

/// Without spaces and tabs at the end (RFC 9112 section 7.1.1).
fn trimmed(mut bytes: &[u8]) -> &[u8] {
    while let [front @ .., b' ' | b'\t'] = bytes {
        bytes = front;
    }
    bytes
}

/// The first line without its end, and its bytes with the end; `None`: more bytes are needed.
pub(super) fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Unreadable> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(Unreadable)?;
    if line.contains(&b'\r') { Err(Unreadable) } else { Ok(Some((line, end + 1))) }
}

/// A number without sign; `None`: the digits are others, or too many.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let text = str::from_utf8(digits).ok()?;
    let plain = text.chars().all(|c| c.is_digit(radix)) && text.len() <= MAX_DIGITS;
    if plain { u64::from_str_radix(text, radix).ok() } else { None }
}

/// Most digits of a length: the number fits 64 bits in either radix.
const MAX_DIGITS: usize = 15;
