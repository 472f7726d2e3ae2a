//! CONNECT of HTTP/1.1 (RFC 9110 section 9.3.6), with the credentials of RFC 7617.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use httparse::{EMPTY_HEADER, Response, Status};

use super::{Credentials, Next, Refused, Target};
use crate::limits::{HEADERS, VIA_HEAD};

pub(crate) struct Connect {
    request: Vec<u8>,
    sent: usize,
    /// The head of the answer so far.
    head: Vec<u8>,
    /// Bytes of all heads so far: there may be interim ones.
    taken: usize,
    end: Option<Result<(), Refused>>,
}

impl Connect {
    pub(super) fn new(target: &Target, credentials: Option<&Credentials>) -> Self {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(credentials) = credentials {
            let pair = [credentials.user(), b":", credentials.password()].concat();
            request.extend_from_slice(b"Proxy-Authorization: Basic ");
            request.extend_from_slice(STANDARD.encode(pair).as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        Self { request, sent: 0, head: Vec::new(), taken: 0, end: None }
    }

    pub(super) fn next(&self) -> Next<'_> {
        match (self.end, self.request.get(self.sent..)) {
            (Some(Ok(())), _) => Next::Done,
            (Some(Err(why)), _) => Next::Refused(why),
            (None, Some(rest)) if !rest.is_empty() => Next::Send(rest),
            (None, _) => Next::Receive,
        }
    }

    pub(super) fn note_sent(&mut self, n: usize) {
        self.sent = self.request.len().min(self.sent + n);
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        // A head ends with a line: one line after the other, no byte behind the head is touched.
        while self.next() == Next::Receive {
            let rest = bytes.get(taken..).unwrap_or_default();
            let line = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
            let part = rest.get(..line.min(VIA_HEAD - self.taken)).unwrap_or_default();
            if part.is_empty() {
                break;
            }
            self.head.extend_from_slice(part);
            (taken, self.taken) = (taken + part.len(), self.taken + part.len());
            if self.head.ends_with(b"\n\r\n") || self.head.ends_with(b"\n\n") {
                self.read();
            }
            if self.taken >= VIA_HEAD && self.end.is_none() {
                self.end();
            }
        }
        taken
    }

    pub(super) fn end(&mut self) {
        self.end = Some(Err(Refused::Broken));
    }

    /// Reads a whole head.
    fn read(&mut self) {
        let mut headers = [EMPTY_HEADER; HEADERS];
        let mut response = Response::new(&mut headers);
        let code = match response.parse(&self.head) {
            Ok(Status::Complete(n)) if n == self.head.len() => response.code.unwrap_or_default(),
            _ => 0,
        };
        self.end = match code {
            // RFC 9110 section 15.2: interim answers come before the final one. 101 answers no CONNECT.
            100 | 102..200 => {
                self.head.clear();
                return;
            }
            // RFC 9110 section 9.3.6: "Any 2xx (Successful) response indicates that the sender […] will switch to
            // tunnel mode immediately after the response header section", whatever lengths the head has.
            200..300 => Some(Ok(())),
            _ => Some(Err(refused(code))),
        };
    }
}

impl fmt::Debug for Connect {
    /// Without the request, which has the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect").field("end", &self.end).finish_non_exhaustive()
    }
}

/// The meaning of a status (RFC 9110 section 15) as far as proxies agree.
fn refused(code: u16) -> Refused {
    match code {
        401 | 407 => Refused::Credentials,
        // "Bad Gateway": the destination refused, or said something strange.
        502 => Refused::Destination,
        // Names that do not resolve, destinations that do not answer, and failures of all kinds.
        404 | 408 | 410 | 500..600 => Refused::HostUnreachable,
        300..500 => Refused::Prohibited,
        _ => Refused::Broken,
    }
}
