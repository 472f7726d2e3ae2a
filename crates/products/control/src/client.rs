//! The client of a control socket, for programs that ask a process about its hosts.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use crate::limits::{ALL_TIME, ANSWER_BYTES, ANSWER_TIME};
use crate::protocol::{
    Answer, Ask, Change, Flow, Info, Refusals, Rules, Socket, SocketPage, Stats, VERSION,
};
use crate::socket::connect;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The process has ended, or does not answer.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The received bytes are no answer.
    #[error("the answer is not understood: {0}")]
    Answer(String),
    /// The process refused the request.
    #[error("{0}")]
    Refused(String),
    /// The process speaks another version.
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
        let stream = connect(path.as_ref(), Some(ANSWER_TIME))?;
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
        let answer = serde_json::from_slice(&self.line()?);
        match answer.map_err(|e| AskError::Answer(e.to_string()))? {
            Answer::Error { text } => Err(AskError::Refused(text)),
            answer => Ok(answer),
        }
    }

    /// The next line. The limit of time is for all of it: another user's process may send a byte at a
    /// time.
    fn line(&mut self) -> Result<Vec<u8>, AskError> {
        let (until, mut line) = (Instant::now() + ANSWER_TIME, Vec::new());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
            }
            self.stream.get_ref().set_read_timeout(Some(left))?;
            let part = match self.stream.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                part => part?,
            };
            if part.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let n = end.map_or(part.len(), |end| end + 1);
            line.extend_from_slice(part.get(..n).unwrap_or_default());
            self.stream.consume(n);
            if end.is_some() {
                return Ok(line);
            }
            if line.len() >= ANSWER_BYTES {
                return Err(AskError::Answer("it is too long".to_owned()));
            }
        }
    }

    /// Facts about the process and its hosts.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn info(&mut self) -> Result<Info, AskError> {
        match self.ask(&Ask::Info)? {
            Answer::Info(info) => Ok(info),
            _ => Err(another()),
        }
    }

    /// The counters of all hosts.
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

    /// All sockets of the process, in pages, at most about `most`.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn all_sockets(&mut self, most: usize) -> Result<Vec<Socket>, AskError> {
        self.all_pages(most, |client, after| {
            let page = client.sockets(after, Some(crate::limits::SOCKETS_PER_ANSWER))?;
            Ok((page.sockets, page.next))
        })
    }

    /// The rules of the process's gateway.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn rules(&mut self) -> Result<Rules, AskError> {
        match self.ask(&Ask::Rules)? {
            Answer::Rules(rules) => Ok(rules),
            _ => Err(another()),
        }
    }

    /// The flows of the guest of the process's gateway, in pages, at most about `most`.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn all_flows(&mut self, most: usize) -> Result<Vec<Flow>, AskError> {
        self.all_pages(most, |client, after| {
            match client.ask(&Ask::Flows { after, limit: None })? {
                Answer::Flows(page) => Ok((page.flows, page.next)),
                _ => Err(another()),
            }
        })
    }

    /// Asks for pages until one is the last, or there are `most`. `ask` returns the contents of a page, and the number to
    /// ask for next.
    fn all_pages<T>(
        &mut self,
        most: usize,
        mut ask: impl FnMut(&mut Self, Option<u64>) -> Result<(Vec<T>, Option<u64>), AskError>,
    ) -> Result<Vec<T>, AskError> {
        let (mut all, mut after) = (Vec::new(), None);
        let until = Instant::now() + ALL_TIME;
        loop {
            let (page, next) = ask(self, after)?;
            let is_empty = page.is_empty();
            all.extend(page);
            if next.is_none() || all.len() >= most {
                return Ok(all);
            }
            // A faulty server must not keep this loop going for ever.
            if is_empty || next <= after {
                return Err(AskError::Answer("its pages have no end".to_owned()));
            }
            if Instant::now() > until {
                return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
            }
            after = next;
        }
    }

    /// What the process's gateway has refused most frequently.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn refusals(&mut self) -> Result<Refusals, AskError> {
        match self.ask(&Ask::Refusals)? {
            Answer::Refusals(refusals) => Ok(refusals),
            _ => Err(another()),
        }
    }

    /// Changes the process's gateway. Returns what follows from the change, for people.
    ///
    /// # Errors
    /// [`AskError::Refused`] with the reason why nothing was changed; the others.
    pub fn change(&mut self, change: Change) -> Result<String, AskError> {
        match self.ask(&Ask::Change(change))? {
            Answer::Done { text } => Ok(text),
            _ => Err(another()),
        }
    }
}

fn another() -> AskError {
    AskError::Answer("it is the answer to another question".to_owned())
}
