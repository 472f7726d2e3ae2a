//! Heads of responses ([`Head`]), and answers that are a line of text ([`Reject`]). The server writes both.

use std::fmt::Write as _;
use std::time::SystemTime;

/// The status code with its reason phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16);

impl Status {
    /// The reason phrase of RFC 9110 section 15.
    pub(crate) const fn reason(self) -> &'static str {
        match self.0 {
            200 => "OK",
            206 => "Partial Content",
            301 => "Moved Permanently",
            304 => "Not Modified",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            412 => "Precondition Failed",
            413 => "Content Too Large",
            414 => "URI Too Long",
            416 => "Range Not Satisfiable",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            505 => "HTTP Version Not Supported",
            _ => "Unknown",
        }
    }
}

/// A request that is answered with a status and a line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reject {
    pub(crate) status: Status,
    pub(crate) text: String,
    /// The connection cannot be used for another request.
    pub(crate) close: bool,
}

impl Reject {
    /// An answer after which the connection goes on.
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status: Status(status), text: text.into(), close: false }
    }

    /// An answer after which the connection is closed: the next request's begin is not known.
    pub(crate) fn closing(status: u16, text: impl Into<String>) -> Self {
        Self { status: Status(status), text: text.into(), close: true }
    }
}

/// A response head under construction.
pub(crate) struct Head {
    status: Status,
    text: String,
}

impl Head {
    /// Begins with the status line and the fields that every response has.
    pub(crate) fn new(status: Status, keep_alive: bool) -> Self {
        let mut head = Self { status, text: String::with_capacity(512) };
        let _ = write!(head.text, "HTTP/1.1 {} {}\r\n", status.0, status.reason());
        head.field("Server", concat!("pagewire/", env!("CARGO_PKG_VERSION")));
        head.field("Date", &httpdate::fmt_http_date(SystemTime::now()));
        head.field("Connection", if keep_alive { "keep-alive" } else { "close" });
        head
    }

    /// Adds a field. Line ends cannot be smuggled in: control characters are left out.
    pub(crate) fn field(&mut self, name: &str, value: &str) -> &mut Self {
        self.text.push_str(name);
        self.text.push_str(": ");
        self.text.extend(value.chars().filter(|c| !c.is_control()));
        self.text.push_str("\r\n");
        self
    }

    pub(crate) fn finish(mut self) -> (Status, Vec<u8>) {
        self.text.push_str("\r\n");
        (self.status, self.text.into_bytes())
    }
}
