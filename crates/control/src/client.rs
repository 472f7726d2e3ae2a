//! The other side: a program that asks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::limits::{ANSWER_BYTES, ANSWER_TIME};
use crate::protocol::{Answer, Ask, Info, Socket, SocketPage, Stats, VERSION};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The process has ended, or does not answer.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What came is no answer.
    #[error("the answer is not understood: {0}")]
    Answer(String),
    /// It refused.
    #[error("{0}")]
    Refused(String),
    /// It speaks another version.
    #[error("the process speaks version {0} of the protocol, this program version {VERSION}")]
    Version(u32),
}

/// A connection to a control socket.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects, and checks that both sides speak one version.
    ///
    /// # Errors
    /// See [`AskError`]; a socket that was left by a process that is gone refuses the connection.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, AskError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        let mut client = Self { stream: BufReader::new(stream) };
        match client.info()?.version {
            VERSION => Ok(client),
            other => Err(AskError::Version(other)),
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask(&mut self, ask: &Ask) -> Result<Answer, AskError> {
        let mut line = serde_json::to_vec(ask).map_err(|e| AskError::Answer(e.to_string()))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        let mut answer = Vec::new();
        let n = (&mut self.stream).take(ANSWER_BYTES as u64).read_until(b'\n', &mut answer)?;
        match answer.last() {
            Some(b'\n') => {}
            _ if n == ANSWER_BYTES => return Err(AskError::Answer("it is too long".to_owned())),
            _ => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
        let answer = serde_json::from_slice(&answer);
        match answer.map_err(|e| AskError::Answer(e.to_string()))? {
            Answer::Error { text } => Err(AskError::Refused(text)),
            answer => Ok(answer),
        }
    }

    /// Which process this is.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn info(&mut self) -> Result<Info, AskError> {
        match self.ask(&Ask::Info)? {
            Answer::Info(info) => Ok(info),
            _ => Err(another()),
        }
    }

    /// Its counters.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn stats(&mut self) -> Result<Stats, AskError> {
        match self.ask(&Ask::Stats)? {
            Answer::Stats(stats) => Ok(stats),
            _ => Err(another()),
        }
    }

    /// A page of its sockets: the first, or the one `after` another's [`SocketPage::next`]; `limit`
    /// sockets at most.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn sockets(
        &mut self,
        after: Option<u64>,
        limit: Option<u32>,
    ) -> Result<SocketPage, AskError> {
        match self.ask(&Ask::Sockets { after, limit })? {
            Answer::Sockets(page) => Ok(page),
            _ => Err(another()),
        }
    }

    /// All its sockets, in pages, at most about `most`.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn all_sockets(&mut self, most: usize) -> Result<Vec<Socket>, AskError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.sockets(after, Some(crate::limits::SOCKETS_PER_ANSWER))?;
            all.extend(page.sockets);
            after = page.next;
            if after.is_none() || all.len() >= most {
                return Ok(all);
            }
        }
    }
}

fn another() -> AskError {
    AskError::Answer("it is the answer to another question".to_owned())
}
