//! The name that connections of a guest show in front of everything else (`--names`), so that a gateway with rules
//! by name looks at each of them.

use clap::ValueEnum;

/// The name of the far side, whose address a guest learns from the gateway.
pub(super) const FAR_NAME: &str = "far.example";

/// Bytes in front of a connection's traffic: those of a common ClientHello, and a multiple of a request's.
const HEAD: usize = 512;

/// Bytes of [`client_hello`] without the name and the padding.
const UNPADDED: usize = 70;

/// Protocols that show a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Shows {
    /// A ClientHello with a server name, and a record
    Tls,
    /// A request with a Host line, and a body
    Http,
}

impl Shows {
    /// The bytes that show [`FAR_NAME`]. Any number of bytes may follow.
    pub(super) fn head(self) -> Vec<u8> {
        match self {
            Self::Tls => client_hello(),
            Self::Http => request(),
        }
    }
}

/// A ClientHello (RFC 8446 section 4.1.2), and the header of a record with data behind it.
fn client_hello() -> Vec<u8> {
    let name = FAR_NAME.as_bytes();
    let mut names = vec![0];
    names.extend(prefixed(name));
    let pad = HEAD.saturating_sub(UNPADDED + FAR_NAME.len());
    let mut extensions = extension(0, &prefixed(&names));
    extensions.extend(extension(21, &vec![0; pad]));
    // The version, random bytes, no session, a cipher suite, no compression.
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(prefixed(&extensions));
    let mut message = vec![1, 0];
    message.extend(prefixed(&body));
    let mut bytes = vec![22, 3, 1];
    bytes.extend(prefixed(&message));
    bytes.extend([23, 3, 3, 0x40, 0]);
    bytes
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &prefixed(data)].concat()
}

/// The bytes behind their number in two bytes.
fn prefixed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

/// The head of a request whose body does not end.
fn request() -> Vec<u8> {
    let head = format!(
        "POST / HTTP/1.1\r\nHost: {FAR_NAME}\r\nContent-Length: 999999999999999\r\nCookie: \r\n\r\n"
    );
    let (front, end) = head.split_at(head.len() - 4);
    let pad = "x".repeat(HEAD.saturating_sub(head.len()));
    format!("{front}{pad}{end}").into_bytes()
}

/// A query for the address of [`FAR_NAME`] (RFC 1035 section 4).
pub(super) fn query() -> Vec<u8> {
    let mut query = vec![0x1d, 0x1d, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in FAR_NAME.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a TLS record's header (RFC 8446 section 5.1).
    const RECORD_HEADER: usize = 5;

    #[test]
    fn heads_are_a_multiple_of_requests() {
        for shows in Shows::value_variants() {
            assert_eq!(shows.head().len(), HEAD, "{shows:?}");
        }
    }

    #[test]
    fn lengths_of_a_client_hello_are_right() {
        let hello = client_hello();
        let at = |n: usize| usize::from(hello[n]) << 8 | usize::from(hello[n + 1]);
        assert_eq!(at(3), HEAD - 2 * RECORD_HEADER, "the record");
        assert_eq!(at(7), at(3) - 4, "the message");
    }
}
