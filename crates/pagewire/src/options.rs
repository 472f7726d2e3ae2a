//! Streams and listeners: options and verbs that `std::net` does not have.

use std::io;

use pagewire_stack::{RecvFlags, SendFlags, TcpOption};

use crate::buf::SendBuf;
use crate::tcp::{TcpListener, TcpStream};
use crate::waiters::Interest;

impl TcpStream {
    /// Changes a setting of the connection; see [`TcpOption`] for units and meanings.
    pub fn set_option(&self, option: TcpOption) -> io::Result<()> {
        self.0.act(|mut tcp, now| tcp.set_option(now, option))
    }

    /// As [`send_some`](Self::send_some), with flags.
    pub fn send_some_with(&self, buf: &mut SendBuf, flags: SendFlags) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.wait(Interest::Write, |mut tcp, now| tcp.send(now, &mut buf.frags, flags))
    }

    /// Copies received bytes without consuming them, waiting for one; 0 at the end of the stream.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.wait(Interest::Read, |mut tcp, now| tcp.recv(now, &mut *buf, RecvFlags::PEEK))
    }

    /// Discards up to `max` received bytes, waiting for one; how many, 0 at the stream's end.
    pub fn discard(&self, max: usize) -> io::Result<usize> {
        let discard = pagewire_stack::Discard(max);
        self.0.wait(Interest::Read, |mut tcp, now| tcp.recv(now, discard, RecvFlags::empty()))
    }

    /// The urgent byte (RFC 9293 section 3.8.5), once; never waits.
    ///
    /// # Errors
    /// `InvalidInput` if there is none, or it is in line; `WouldBlock` if it has not arrived yet.
    pub fn read_urgent(&self) -> io::Result<u8> {
        self.0.act(|mut tcp, now| tcp.read_urgent(now, RecvFlags::empty()))
    }

    /// Whether the stream has been read up to its urgent byte.
    pub fn at_urgent_mark(&self) -> io::Result<bool> {
        self.0.ask(|tcp| tcp.at_urgent_mark())
    }

    /// Bytes queued that the peer has not acknowledged, and of these, bytes that were never sent.
    pub fn queued_send(&self) -> io::Result<(usize, usize)> {
        self.0.ask(|tcp| tcp.queued_send())
    }

    /// Bytes that can be read without waiting, up to an urgent byte.
    pub fn queued_receive(&self) -> io::Result<usize> {
        self.0.ask(|tcp| tcp.queued())
    }
}

impl TcpListener {
    /// Changes a setting of future connections.
    ///
    /// # Errors
    /// An error of kind `Unsupported` if connections cannot inherit it.
    pub fn set_option(&self, option: TcpOption) -> io::Result<()> {
        self.0.act(|mut listener, _| listener.set_option(option))
    }
}
