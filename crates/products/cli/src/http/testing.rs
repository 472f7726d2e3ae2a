//! Connections for tests of HTTP without the stack under it: kernel sockets, and scripted streams.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pagewire::memory::{CopyLedger, Frag, FragVec};

use crate::http::connection::{Connection, advance};

impl Connection for TcpStream {
    fn send_frags(&mut self, frags: &mut FragVec) -> io::Result<usize> {
        let mut bytes = Vec::new();
        for frag in &*frags {
            let part = frag.slice(0..64 * 1024);
            part.for_each_piece(&mut CopyLedger::new(), |p| bytes.extend_from_slice(p));
        }
        let n = self.write(&bytes)?;
        advance(frags, n);
        Ok(n)
    }

    fn recv_frags(&mut self, max: usize, out: &mut Vec<Frag>) -> io::Result<usize> {
        let mut bytes = vec![0; max.min(9000)];
        let n = self.read(&mut bytes)?;
        bytes.truncate(n);
        out.push(Frag::from_bytes(Bytes::from(bytes)));
        Ok(n)
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        TcpStream::set_read_timeout(self, timeout)
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        TcpStream::set_write_timeout(self, timeout)
    }

    fn shutdown_write(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn abort(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Two ends over the kernel's loopback.
pub(crate) fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (left, listener.accept().unwrap().0)
}

/// A stream that gives what its script says, and remembers what was sent.
#[derive(Default)]
pub(crate) struct Script {
    /// Pieces to receive; an error kind where a call fails. At the end, the stream ends.
    pub(crate) incoming: std::collections::VecDeque<Result<Vec<u8>, io::ErrorKind>>,
    pub(crate) sent: Vec<u8>,
    pub(crate) aborted: bool,
    /// The clock of a peer that takes bytes slowly. `None`: it takes them at once.
    clock: Option<Clock>,
}

/// The clock of a peer that takes `bytes` bytes at the end of each turn. Nobody waits for it.
pub(crate) struct Clock {
    begun: Instant,
    /// Since then, by this clock.
    passed: Duration,
    turn: Duration,
    bytes: usize,
}

impl Clock {
    /// Half a second of waiting, which is how long the server waits at once; how many bytes are taken
    /// at its end.
    fn wait(&mut self) -> io::Result<usize> {
        let turns = |passed: Duration| passed.as_millis() / self.turn.as_millis();
        let before = turns(self.passed);
        let now = self.passed + Duration::from_millis(500);
        let due = (turns(now) - before) as usize * self.bytes;
        self.passed = now;
        assert!(now < Duration::from_secs(86_400), "a day, and it is borne with");
        if due == 0 { Err(io::ErrorKind::TimedOut.into()) } else { Ok(due) }
    }
}

impl Script {
    pub(crate) fn new<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let incoming = pieces.into_iter().map(|p| Ok(p.to_vec())).collect();
        Self { incoming, ..Self::default() }
    }

    /// A stream that gives one byte at a time.
    pub(crate) fn trickle(bytes: &[u8]) -> Self {
        Self::new(bytes.chunks(1))
    }

    /// A peer that sends a request and then takes `bytes` bytes at the end of each turn.
    pub(crate) fn slow(request: &[u8], bytes: usize, turn: Duration) -> Self {
        let clock = Clock { begun: Instant::now(), passed: Duration::ZERO, turn, bytes };
        Self { clock: Some(clock), ..Self::new([request]) }
    }

    /// The time by the clock of a slow peer.
    pub(crate) fn passed(&self) -> Duration {
        self.clock.as_ref().map_or(Duration::ZERO, |clock| clock.passed)
    }

    /// Bytes of what is sent now that the peer takes.
    fn room(&mut self) -> io::Result<usize> {
        self.clock.as_mut().map_or(Ok(usize::MAX), Clock::wait)
    }
}

impl Read for Script {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.incoming.pop_front() else { return Ok(0) };
        let piece = piece.map_err(io::Error::from)?;
        let n = piece.len().min(buf.len());
        buf[..n].copy_from_slice(&piece[..n]);
        if n < piece.len() {
            self.incoming.push_front(Ok(piece[n..].to_vec()));
        }
        Ok(n)
    }
}

impl Write for Script {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.room()?.min(buf.len());
        self.sent.extend_from_slice(&buf[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for Script {
    fn send_frags(&mut self, frags: &mut FragVec) -> io::Result<usize> {
        let (mut room, before) = (self.room()?, self.sent.len());
        for frag in frags.iter_mut() {
            let taken = frag.split_to(room.min(frag.len()));
            taken.for_each_piece(&mut CopyLedger::new(), |p| self.sent.extend_from_slice(p));
            room -= taken.len();
        }
        frags.retain(|frag| !frag.is_empty());
        Ok(self.sent.len() - before)
    }

    fn recv_frags(&mut self, max: usize, out: &mut Vec<Frag>) -> io::Result<usize> {
        let mut bytes = vec![0; max];
        let n = self.read(&mut bytes)?;
        bytes.truncate(n);
        out.push(Frag::from_bytes(Bytes::from(bytes)));
        Ok(n)
    }

    fn set_read_timeout(&mut self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn set_write_timeout(&mut self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn shutdown_write(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {
        self.aborted = true;
    }

    fn now(&self) -> Instant {
        self.clock.as_ref().map_or_else(Instant::now, |clock| clock.begun + clock.passed)
    }
}
