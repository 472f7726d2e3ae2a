//! [`Request`]: the head of a request, parsed and checked. A head that a server must or should refuse is a
//! [`Reject`], which the server sends.

use crate::http::message::body::Framing;
use crate::http::message::response::Reject;
use crate::limits::{MAX_HEADERS, MAX_REQUEST_BODY, MAX_TARGET};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
}

/// The fields that make a request conditional, as they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    pub(crate) if_match: Option<String>,
    pub(crate) if_none_match: Option<String>,
    pub(crate) if_modified_since: Option<String>,
    pub(crate) if_unmodified_since: Option<String>,
    pub(crate) if_range: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// The path of the target, still percent-encoded, beginning with a slash.
    pub(crate) path: String,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    pub(crate) range: Option<String>,
    pub(crate) conditions: Conditions,
}

/// Reads a complete head.
pub(crate) fn parse(head: &[u8]) -> Result<Request, Reject> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut fields);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => {
            return Err(Reject::closing(400, "the request head is incomplete"));
        }
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Reject::closing(431, format!("more than {MAX_HEADERS} header fields")));
        }
        Err(httparse::Error::Version) if names_a_version(head) => {
            return Err(Reject::closing(505, "this server speaks HTTP/1.1 and HTTP/1.0"));
        }
        Err(e) => return Err(Reject::closing(400, format!("malformed request: {e}"))),
    }
    let minor = parsed.version.unwrap_or(0);
    let (method, target) = (parsed.method.unwrap_or(""), parsed.path.unwrap_or(""));
    let fields = Fields(parsed.headers);
    let framing = framing(&fields, minor)?;
    let keep_alive = keep_alive(&fields, minor);
    if target.len() > MAX_TARGET {
        let text = format!("the request target is longer than {MAX_TARGET} bytes");
        return Err(Reject::closing(414, text));
    }
    check_host(&fields, minor)?;
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        // RFC 9110 section 9.1: 501 for a method that is not recognised, 405 for one that is and is not
        // allowed. Content that follows is not read: close.
        "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH" => {
            return Err(Reject::closing(
                405,
                format!("{method} is not allowed here, GET and HEAD are"),
            ));
        }
        _ => return Err(Reject::closing(501, "the method is not known to this server")),
    };
    // RFC 9110 section 10.1.1: a client that waits for 100 gets its final answer instead, and may
    // or may not send the content then: the connection cannot go on.
    let expects = fields.get("expect").next().is_some();
    Ok(Request {
        method,
        path: path_of(target)?,
        framing,
        keep_alive: keep_alive && !expects,
        range: fields.only("range"),
        conditions: Conditions {
            if_match: fields.list("if-match"),
            if_none_match: fields.list("if-none-match"),
            if_modified_since: fields.only("if-modified-since"),
            if_unmodified_since: fields.only("if-unmodified-since"),
            if_range: fields.only("if-range"),
        },
    })
}

/// Length and chunking; combinations that serve request smuggling are refused.
fn framing(fields: &Fields<'_>, minor: u8) -> Result<Framing, Reject> {
    let readable = |name| fields.all(name).count() == fields.get(name).count();
    if !readable("content-length") || !readable("transfer-encoding") {
        return Err(Reject::closing(400, "the message length is not readable"));
    }
    let mut lengths = fields.get("content-length");
    let length = lengths.next();
    if lengths.next().is_some() {
        return Err(Reject::closing(400, "more than one Content-Length"));
    }
    if let Some(coding) = fields.list("transfer-encoding") {
        // RFC 9112 section 6.3: a message with both "ought to be handled as an error"; section 6.1:
        // a server that receives an unknown transfer coding "SHOULD respond with 501".
        if length.is_some() || minor == 0 {
            return Err(Reject::closing(400, "contradictory message length"));
        }
        if !coding.trim().eq_ignore_ascii_case("chunked") {
            return Err(Reject::closing(501, "the only transfer coding known here is chunked"));
        }
        return Ok(Framing::Chunked);
    }
    let Some(length) = length else { return Ok(Framing::Length(0)) };
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Reject::closing(400, "Content-Length is not a number"));
    }
    match length.parse() {
        Ok(n) if n <= MAX_REQUEST_BODY => Ok(Framing::Length(n)),
        _ => Err(too_large()),
    }
}

/// Content beyond the limit.
pub(crate) fn too_large() -> Reject {
    let text = format!("more than {MAX_REQUEST_BODY} bytes of content are not accepted");
    Reject::closing(413, text)
}

/// RFC 9112 section 9.3: HTTP/1.1 persists unless closed, HTTP/1.0 only if asked to.
fn keep_alive(fields: &Fields<'_>, minor: u8) -> bool {
    let options = fields.list("connection").unwrap_or_default();
    let has = |name| options.split(',').any(|o| o.trim().eq_ignore_ascii_case(name));
    !has("close") && (minor >= 1 || has("keep-alive"))
}

/// RFC 9112 section 3.2: "A server MUST respond with a 400 (Bad Request) status code to any
/// HTTP/1.1 request message that lacks a Host header field and to any request message that
/// contains more than one Host header field line".
fn check_host(fields: &Fields<'_>, minor: u8) -> Result<(), Reject> {
    match fields.all("host").count() {
        0 if minor >= 1 => Err(Reject::closing(400, "the Host field is missing")),
        0 | 1 => Ok(()),
        _ => Err(Reject::closing(400, "more than one Host field")),
    }
}

/// The path of an origin-form or absolute-form target (RFC 9112 section 3.2), without its query.
fn path_of(target: &str) -> Result<String, Reject> {
    let bad = || Reject::closing(400, "the request target is neither a path nor an http URL");
    let path = if target.starts_with('/') {
        target
    } else {
        let scheme = target.get(..7).ok_or_else(bad)?;
        let rest = target.get(7..).filter(|_| scheme.eq_ignore_ascii_case("http://"));
        let rest = rest.ok_or_else(bad)?;
        match rest.find(['/', '?']) {
            Some(0) => return Err(bad()),
            Some(at) if rest.as_bytes().get(at) == Some(&b'/') => rest.get(at..).unwrap_or("/"),
            _ if rest.is_empty() => return Err(bad()),
            _ => "/",
        }
    };
    if path.contains('#') {
        return Err(bad());
    }
    Ok(path.split('?').next().unwrap_or("/").to_owned())
}

/// Whether the request line ends in some version of HTTP: then it is one that we do not speak.
fn names_a_version(head: &[u8]) -> bool {
    let line = head.trim_ascii_start().split(|&b| b == b'\n').next().unwrap_or_default();
    let last = line.trim_ascii_end().rsplit(|&b| b == b' ').next().unwrap_or_default();
    match last.strip_prefix(b"HTTP/") {
        Some([major]) => major.is_ascii_digit(),
        Some([major, b'.', minor]) => major.is_ascii_digit() && minor.is_ascii_digit(),
        _ => false,
    }
}

struct Fields<'a>(&'a [httparse::Header<'a>]);

impl<'a> Fields<'a> {
    /// The values of every field line with this name.
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
    }

    /// The values that are text.
    fn get(&self, name: &'static str) -> impl Iterator<Item = &'a str> {
        self.all(name).filter_map(|v| std::str::from_utf8(v).ok().map(str::trim))
    }

    /// The value of a field that may come once; `None` if it came more often.
    fn only(&self, name: &'static str) -> Option<String> {
        let mut values = self.get(name);
        let value = values.next()?;
        values.next().is_none().then(|| value.to_owned())
    }

    /// Every value of a list field, joined.
    fn list(&self, name: &'static str) -> Option<String> {
        let values: Vec<_> = self.get(name).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }
}
