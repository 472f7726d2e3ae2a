//! Message content, by its framing (RFC 9112 sections 6 and 7), passed on by reference.

use std::io;

use pagewire::memory::Frag;

use super::connection::Connection;
use super::inbox::Inbox;
use crate::limits::{MAX_HEADERS, RECV_PIECE};

/// How the end of the content is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A number of bytes.
    Length(u64),
    /// In chunks, the last of which is empty.
    Chunked,
    /// All that comes (responses only).
    UntilClose,
}

/// What can go wrong with content.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the connection was closed before the end of the content")]
    Cut,
    #[error("malformed chunked content: {0}")]
    Chunk(&'static str),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Takes content out of an inbox. After a timeout, `next` may be called again.
pub(crate) struct Body {
    state: State,
}

enum State {
    /// So many bytes of content follow; then the end, or what frames the next chunk.
    Bytes {
        left: u64,
        chunked: bool,
    },
    ChunkSize,
    Trailer {
        fields: usize,
    },
    UntilClose,
    Done,
}

impl Body {
    pub(crate) fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(left) => State::Bytes { left, chunked: false },
            Framing::Chunked => State::ChunkSize,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    /// The next piece; `None` at the end.
    pub(crate) fn next(
        &mut self,
        connection: &mut impl Connection,
        inbox: &mut Inbox,
    ) -> Result<Option<Frag>, BodyError> {
        loop {
            match self.state {
                State::Done => return Ok(None),
                State::Bytes { left: 0, chunked: false } => self.state = State::Done,
                State::Bytes { left: 0, chunked: true } => {
                    if !line(connection, inbox)?.is_empty() {
                        return Err(BodyError::Chunk("data beyond the chunk's size"));
                    }
                    self.state = State::ChunkSize;
                }
                State::Bytes { left, chunked } => {
                    let max = usize::try_from(left).unwrap_or(usize::MAX).min(RECV_PIECE);
                    if let Some(frag) = inbox.take(max) {
                        self.state = State::Bytes { left: left - frag.len() as u64, chunked };
                        return Ok(Some(frag));
                    }
                    if !inbox.fill(connection)? {
                        return Err(BodyError::Cut);
                    }
                }
                State::ChunkSize => match chunk_size(&line(connection, inbox)?)? {
                    0 => self.state = State::Trailer { fields: 0 },
                    left => self.state = State::Bytes { left, chunked: true },
                },
                // Trailer fields, up to an empty line, are ignored.
                State::Trailer { fields: MAX_HEADERS } => {
                    return Err(BodyError::Chunk("too many trailer fields"));
                }
                State::Trailer { fields } => {
                    let last = line(connection, inbox)?.is_empty();
                    self.state =
                        if last { State::Done } else { State::Trailer { fields: fields + 1 } };
                }
                State::UntilClose => {
                    if let Some(frag) = inbox.take(RECV_PIECE) {
                        return Ok(Some(frag));
                    }
                    if !inbox.fill(connection)? {
                        self.state = State::Done;
                    }
                }
            }
        }
    }
}

fn line(connection: &mut impl Connection, inbox: &mut Inbox) -> Result<Vec<u8>, BodyError> {
    inbox.read_line(connection)?.ok_or(BodyError::Cut)
}

/// RFC 9112 section 7.1: `chunk-size [ chunk-ext ]`; extensions are ignored.
fn chunk_size(line: &[u8]) -> Result<u64, BodyError> {
    let digits = line.split(|&b| b == b';').next().unwrap_or_default().trim_ascii_end();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(BodyError::Chunk("a chunk's size is not a hexadecimal number"));
    }
    let text = std::str::from_utf8(digits).unwrap_or_default();
    // "Recipients MUST anticipate potentially large hexadecimal numerals and prevent parsing errors
    // due to integer conversion overflows".
    u64::from_str_radix(text, 16).map_err(|_| BodyError::Chunk("a chunk's size is out of range"))
}
