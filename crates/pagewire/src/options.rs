//! Byte path, steps S1 and R7: what a stream can be told beyond `std::net`.

use std::io;

use pagewire_stack::{RecvFlags, SendFlags, TcpOption};

use crate::buf::SendBuf;
use crate::shared::{Interest, io_error};
use crate::tcp::{TcpListener, TcpStream};

impl TcpStream {
    /// Changes a setting of the connection, for instance
    /// `TcpOption::NotSentLowat(128 << 10)`. See [`TcpOption`] for units and meanings.
    pub fn set_option(&self, option: TcpOption) -> io::Result<()> {
        self.0.act(|mut tcp, now| tcp.set_option(now, option))
    }

    /// As [`send_some`](Self::send_some), and says whether more follows at once, whether the last
    /// byte ends a record, or whether it is urgent.
    pub fn send_some_with(&self, buf: &mut SendBuf, flags: SendFlags) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Write));
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.host.wait(id, Interest::Write, patience, |stack, now| {
            stack.tcp(id).and_then(|mut tcp| tcp.send(now, &mut buf.frags, flags))
        })
    }

    /// Copies received bytes without taking them, waiting for at least one; 0 at the end of the
    /// stream.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.host.wait(id, Interest::Read, patience, |stack, now| {
            stack.tcp(id).and_then(|mut tcp| tcp.recv(now, &mut *buf, RecvFlags::PEEK))
        })
    }

    /// Throws away up to `max` received bytes, waiting for at least one; returns how many, 0 at the
    /// end of the stream.
    pub fn discard(&self, max: usize) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        self.0.host.wait(id, Interest::Read, patience, |stack, now| {
            stack
                .tcp(id)
                .and_then(|mut tcp| tcp.recv(now, pagewire_stack::Discard(max), RecvFlags::empty()))
        })
    }

    /// The urgent byte (RFC 9293 section 3.8.5), once; never waits.
    ///
    /// # Errors
    /// `InvalidInput` if there is none, or it is in line; `WouldBlock` if it is still to come.
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
    /// Changes a setting of the connections that are still to come.
    ///
    /// # Errors
    /// An error of kind `Unsupported` if connections cannot inherit it.
    pub fn set_option(&self, option: TcpOption) -> io::Result<()> {
        let id = self.0.id;
        self.0.host.shared.with(|stack, _| stack.listener(id)?.set_option(option)).map_err(io_error)
    }
}
