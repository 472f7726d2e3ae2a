//! Message content: [`Body`] takes it out of an [`Inbox`] by its framing (RFC 9112 sections 6 and 7), by
//! reference. The server skips requests' content with it, the client receives files.

use std::io;

use pagewire::memory::Frag;

use crate::http::connection::Connection;
use crate::http::message::inbox::Inbox;
use crate::limits::{MAX_HEADERS, RECV_PIECE};

/// How the end of the content is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A number of bytes.
    Length(u64),
    /// Chunks, the last of which is empty.
    Chunked,
    /// Everything up to the end of the connection (responses only).
    UntilClose,
}

/// An error in the content.
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
    state: BodyState,
}

enum BodyState {
    /// `left` bytes of content follow; then the end, or the frame of the next chunk.
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
            Framing::Length(0) => BodyState::Done,
            Framing::Length(left) => BodyState::Bytes { left, chunked: false },
            Framing::Chunked => BodyState::ChunkSize,
            Framing::UntilClose => BodyState::UntilClose,
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
                BodyState::Done => return Ok(None),
                BodyState::Bytes { left: 0, chunked: false } => self.state = BodyState::Done,
                BodyState::Bytes { left: 0, chunked: true } => {
                    if !line(connection, inbox)?.is_empty() {
                        return Err(BodyError::Chunk("data beyond the chunk's size"));
                    }
                    self.state = BodyState::ChunkSize;
                }
                BodyState::Bytes { left, chunked } => {
                    let max = usize::try_from(left).unwrap_or(usize::MAX).min(RECV_PIECE);
                    if let Some(frag) = inbox.take(max) {
                        self.state = BodyState::Bytes { left: left - frag.len() as u64, chunked };
                        return Ok(Some(frag));
                    }
                    if !inbox.fill(connection)? {
                        return Err(BodyError::Cut);
                    }
                }
                BodyState::ChunkSize => match chunk_size(&line(connection, inbox)?)? {
                    0 => self.state = BodyState::Trailer { fields: 0 },
                    left => self.state = BodyState::Bytes { left, chunked: true },
                },
                // Trailer fields, up to an empty line, are ignored.
                BodyState::Trailer { fields: MAX_HEADERS } => {
                    return Err(BodyError::Chunk("too many trailer fields"));
                }
                BodyState::Trailer { fields } => {
                    let last = line(connection, inbox)?.is_empty();
                    self.state = if last {
                        BodyState::Done
                    } else {
                        BodyState::Trailer { fields: fields + 1 }
                    };
                }
                BodyState::UntilClose => {
                    if let Some(frag) = inbox.take(RECV_PIECE) {
                        return Ok(Some(frag));
                    }
                    if !inbox.fill(connection)? {
                        self.state = BodyState::Done;
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
