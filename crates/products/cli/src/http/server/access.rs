//! The access log: a line for each request, written by the server when the response is queued or the
//! connection broken.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use clap::ValueEnum;

/// How a request is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccessFormat {
    /// As nginx and Apache write it, with the seconds behind: ADDRESS - - [TIME] "REQUEST" STATUS
    /// BYTES "REFERER" "AGENT" SECONDS
    #[default]
    Combined,
    /// An object of JSON
    #[cfg(feature = "full")]
    Json,
}

/// Where requests are written to.
pub(crate) struct AccessLog {
    format: AccessFormat,
    to: Mutex<Box<dyn Write + Send>>,
    failed: AtomicBool,
}

impl AccessLog {
    /// Appends to a file; `-` is standard output.
    pub(crate) fn open(path: &Path, format: AccessFormat) -> io::Result<Self> {
        let to: Box<dyn Write + Send> = match path {
            path if path == Path::new("-") => Box::new(io::stdout()),
            path => Box::new(File::options().create(true).append(true).open(path)?),
        };
        Ok(Self::to(to, format))
    }

    pub(crate) fn to(to: Box<dyn Write + Send>, format: AccessFormat) -> Self {
        Self { format, to: Mutex::new(to), failed: AtomicBool::new(false) }
    }

    /// Writes one request.
    pub(crate) fn note(&self, access: &Access<'_>) {
        let mut line = match self.format {
            AccessFormat::Combined => access.combined(),
            #[cfg(feature = "full")]
            AccessFormat::Json => access.json(),
        };
        line.push('\n');
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        // A line is one write, so that lines of several writers stay whole.
        if let Err(error) = to.write_all(line.as_bytes()).and_then(|()| to.flush())
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "the access log cannot be written; requests are served");
        }
    }
}

/// The bytes that a connection has sent since a request came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Status of the response; 0: none was begun.
    pub(crate) status: u16,
    /// Bytes of the content.
    pub(crate) bytes: u64,
    /// Status and length of a head of which nothing was sent yet.
    next: Option<(u16, u64)>,
    /// Bytes of the head that are still to be counted off.
    head: u64,
}

impl Sent {
    /// The bytes that are sent next begin with a head.
    pub(crate) fn begin(&mut self, status: u16, head: usize) {
        self.next = Some((status, head as u64));
    }

    /// Counts bytes that were sent.
    pub(crate) fn note(&mut self, n: usize) {
        if let Some(begun) = self.next.take() {
            (self.status, self.head) = begun;
        }
        let of_head = self.head.min(n as u64);
        self.head -= of_head;
        self.bytes += n as u64 - of_head;
    }
}

/// A request, and how it was answered.
pub(crate) struct Access<'a> {
    pub(crate) peer: Option<IpAddr>,
    pub(crate) at: SystemTime,
    /// The head of the request, as it came; perhaps not a whole one.
    pub(crate) head: &'a [u8],
    pub(crate) sent: Sent,
    /// Time from the last byte of the head until the last byte of the response was queued.
    pub(crate) time: Duration,
    /// Whether the response was queued whole.
    pub(crate) complete: bool,
}

impl Access<'_> {
    fn line(&self) -> &[u8] {
        let line = self.head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        line.trim_ascii_end()
    }

    fn field(&self, name: &str) -> Option<&[u8]> {
        self.head.split(|byte| *byte == b'\n').skip(1).find_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (found, value) = line.split_at_checked(colon)?;
            found
                .eq_ignore_ascii_case(name.as_bytes())
                .then(|| value.get(1..))?
                .map(<[u8]>::trim_ascii)
        })
    }

    fn combined(&self) -> String {
        let peer = self.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string());
        let field = |name| self.field(name).map_or_else(|| "-".to_owned(), escaped);
        let Sent { status, bytes, .. } = self.sent;
        // Sun, 06 Nov 1994 08:49:37 GMT
        let date = httpdate::fmt_http_date(self.at);
        let part = |from, to| date.get(from..to).unwrap_or("-");
        let (day, month, year, time) = (part(5, 7), part(8, 11), part(12, 16), part(17, 25));
        format!(
            "{peer} - - [{day}/{month}/{year}:{time} +0000] \"{}\" {status} {bytes} \"{}\" \"{}\" {:.3}",
            escaped(self.line()),
            field("referer"),
            field("user-agent"),
            self.time.as_secs_f64()
        )
    }

    #[cfg(feature = "full")]
    fn json(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let seconds = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let entry = serde_json::json!({
            "time": (seconds.as_secs_f64() * 1000.0).round() / 1000.0,
            "client": self.peer,
            "request": text(self.line()),
            "status": self.sent.status,
            "bytes": self.sent.bytes,
            "seconds": (self.time.as_secs_f64() * 1e6).round() / 1e6,
            "complete": self.complete,
            "referer": self.field("referer").map(text),
            "user_agent": self.field("user-agent").map(text),
        });
        crate::failure::ascii(&entry.to_string())
    }
}

/// Bytes as nginx writes them: nobody can end a field, a line or a terminal's mode.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => {
                let _ = write!(text, "\\x{byte:02X}");
            }
            byte => text.push(char::from(byte)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(head: &[u8]) -> Access<'_> {
        Access {
            peer: Some([10, 77, 0, 1].into()),
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777),
            head,
            sent: Sent { status: 200, bytes: 612, ..Sent::default() },
            time: Duration::from_micros(3210),
            complete: true,
        }
    }

    #[test]
    fn a_request_is_a_line_that_nginxs_users_know() {
        let head = b"GET /a?b HTTP/1.1\r\nHost: x\r\nUser-Agent:  curl/8.5 \r\n\r\n";
        assert_eq!(
            access(head).combined(),
            "10.77.0.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b HTTP/1.1\" 200 612 \"-\" \
             \"curl/8.5\" 0.003"
        );
    }

    #[cfg(feature = "full")]
    #[test]
    fn or_an_object_of_json() {
        let head = b"GET / HTTP/1.1\r\nReferer: http://a/\r\n\r\n";
        let value: serde_json::Value = serde_json::from_str(&access(head).json()).unwrap();
        assert_eq!((&value["status"], &value["bytes"]), (&200.into(), &612.into()));
        assert_eq!(value["client"], "10.77.0.1");
        assert_eq!(value["referer"], "http://a/");
        assert_eq!(value["time"], 784_111_777.0);
        let head = "GET /\u{9b}2J\u{7f} HTTP/1.1\r\n\r\n".as_bytes();
        let line = access(head).json();
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
    }

    #[test]
    fn a_client_cannot_write_lines_of_its_own() {
        let head = b"GET /\" 200 0 \x1b[2J\xff\\ HTTP/1.1\r\n\r\n";
        let line = access(head).combined();
        assert!(line.contains(r#""GET /\x22 200 0 \x1B[2J\xFF\x5C HTTP/1.1""#), "{line}");
        assert!(!line.contains('\n') && line.is_ascii());
    }

    #[test]
    fn bytes_are_those_of_the_content_in_however_many_pieces() {
        let mut sent = Sent::default();
        sent.begin(206, 40);
        assert_eq!((sent.status, sent.bytes), (0, 0), "nothing was sent");
        sent.note(10);
        sent.note(33);
        sent.note(1000);
        assert_eq!((sent.status, sent.bytes), (206, 1003));
    }
}
