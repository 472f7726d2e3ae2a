//! The client's side of a connection: sends a request, reads the head of the response ([`Response`]).
//!
//! `fetch` and `demo` call it, and receive the content with [`Body`](crate::http::message::body::Body).

use std::io;
use std::time::Duration;

use bytes::Bytes;
use pagewire::memory::{Frag, FragVec};

use crate::http::connection::Connection;
use crate::http::message::body::Framing;
use crate::http::message::inbox::{HeadError, Inbox, Transfer};
use crate::limits::{MAX_HEAD, MAX_HEADERS, STALL_TIME};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) framing: Framing,
    pub(crate) etag: Option<String>,
    pub(crate) last_modified: Option<String>,
    pub(crate) date: Option<String>,
    pub(crate) location: Option<String>,
    pub(crate) content_range: Option<ContentRange>,
    /// Whether the connection can take another request.
    pub(crate) keep_alive: bool,
}

/// `Content-Range: bytes first-last/total`, or `bytes */total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentRange {
    /// First byte and the one after the last.
    pub(crate) part: Option<(u64, u64)>,
    pub(crate) total: Option<u64>,
}

impl Response {
    /// The validator that a later `If-Range` may hold for this file, if there is one.
    ///
    /// RFC 9110 section 13.1.5: no weak entity tag, and no date unless there is no entity tag and
    /// the date is strong: at least one second before the response's own (section 8.8.2.2).
    pub(crate) fn validator_for_ranges(&self) -> Option<&str> {
        if let Some(etag) = &self.etag {
            return Some(etag.as_str()).filter(|e| e.starts_with('"'));
        }
        let parse = |text: &Option<String>| httpdate::parse_http_date(text.as_deref()?).ok();
        let age = parse(&self.date)?.duration_since(parse(&self.last_modified)?).ok()?;
        self.last_modified.as_deref().filter(|_| age >= Duration::from_secs(1))
    }
}

/// An error before the content.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("the server closed the connection without an answer")]
    Ended,
    #[error("the server sent nothing for {} s", STALL_TIME.as_secs())]
    Silent,
    #[error("the server's answer is longer than {MAX_HEAD} bytes before its content")]
    TooLong,
    #[error("the server's answer is not HTTP: {0}")]
    Malformed(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Sends a GET request. `host` is the authority of the URL.
pub(crate) fn send_get(
    connection: &mut impl Connection,
    transfer: Transfer,
    target: &str,
    host: &str,
    fields: &[(&str, &str)],
) -> io::Result<()> {
    let mut head = format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: pagewire/{}\r\nAccept: */*\r\n\
         Accept-Encoding: identity\r\n",
        env!("CARGO_PKG_VERSION")
    );
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    connection.set_write_timeout(Some(STALL_TIME))?;
    match transfer {
        Transfer::Copy => connection.write_all(head.as_bytes()),
        Transfer::Reference => {
            let mut frags = FragVec::from_elem(Frag::from_bytes(Bytes::from(head)), 1);
            while !frags.is_empty() {
                connection.send_frags(&mut frags)?;
            }
            Ok(())
        }
    }
}

/// Waits for the final response's head; stops when `proceed`, called regularly, returns `false`.
pub(crate) fn read_response(
    connection: &mut impl Connection,
    inbox: &mut Inbox,
    mut proceed: impl FnMut() -> bool,
) -> Result<Response, ClientError> {
    loop {
        let on_tick = || match proceed() {
            true => Ok(true),
            false => Err(io::Error::from(io::ErrorKind::Interrupted)),
        };
        let head = inbox.read_head(connection, STALL_TIME, STALL_TIME, on_tick);
        let head = head.map_err(|e| match e {
            HeadError::Ended | HeadError::Cut => ClientError::Ended,
            HeadError::Idle | HeadError::Slow | HeadError::Stopped => ClientError::Silent,
            HeadError::LongLine | HeadError::TooLong => ClientError::TooLong,
            HeadError::Failed(e) => ClientError::Io(e),
        })?;
        let response = parse(&head)?;
        // RFC 9110 section 15.2: a client must read past 1xx responses that it did not ask for.
        if response.status >= 200 {
            return Ok(response);
        }
        if response.status == 101 {
            return Err(ClientError::Malformed("an upgrade that was not requested".into()));
        }
    }
}

/// Reads a complete head.
pub(crate) fn parse(head: &[u8]) -> Result<Response, ClientError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut fields);
    let malformed = |text: &str| ClientError::Malformed(text.to_owned());
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(malformed("its head is incomplete")),
        Err(e) => return Err(malformed(&e.to_string())),
    }
    let status = parsed.code.unwrap_or(0);
    let http_11 = parsed.version == Some(1);
    let get = |name: &str| {
        let mut values = parsed.headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name));
        values.next().and_then(|h| std::str::from_utf8(h.value).ok()).map(|v| v.trim().to_owned())
    };
    let framing = match (status, get("transfer-encoding"), get("content-length")) {
        // RFC 9112 section 6.3, in its order.
        (100..=199 | 204 | 304, _, _) => Framing::Length(0),
        (_, Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
        (_, Some(coding), _) => {
            return Err(ClientError::Malformed(format!("transfer coding {coding:?} is not known")));
        }
        (_, None, Some(length)) => {
            let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
            let length = length.parse().ok().filter(|_| digits);
            Framing::Length(length.ok_or_else(|| malformed("its Content-Length is no number"))?)
        }
        (_, None, None) => Framing::UntilClose,
    };
    let options = get("connection").unwrap_or_default();
    let option = |name| options.split(',').any(|o| o.trim().eq_ignore_ascii_case(name));
    Ok(Response {
        status,
        framing,
        etag: get("etag"),
        last_modified: get("last-modified"),
        date: get("date"),
        location: get("location"),
        content_range: get("content-range").as_deref().and_then(content_range),
        keep_alive: framing != Framing::UntilClose
            && !option("close")
            && (http_11 || option("keep-alive")),
    })
}

fn content_range(value: &str) -> Option<ContentRange> {
    let (range, total) = value.strip_prefix("bytes ")?.trim().split_once('/')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    if range == "*" {
        return Some(ContentRange { part: None, total });
    }
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let end = last.checked_add(1).filter(|_| first <= last)?;
    Some(ContentRange { part: Some((first, end)), total })
}

/// How long `fetch` waits for a connection.
pub(crate) const CONNECT_TIME: Duration = STALL_TIME;
