//! Pagewire's streams as what HTTP asks of a connection.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use pagewire::{SendBuf, TcpStream};
use pagewire_mem::{Frag, FragVec};

use crate::http::connection::Connection;

impl Connection for TcpStream {
    fn send_frags(&mut self, frags: &mut FragVec) -> io::Result<usize> {
        let mut pieces: SendBuf = frags.iter().cloned().collect();
        let taken = self.send_some(&mut pieces)?;
        drop(pieces);
        let mut left = taken;
        frags.retain(|frag| {
            let n = left.min(frag.len());
            frag.advance(n);
            left -= n;
            !frag.is_empty()
        });
        Ok(taken)
    }

    fn recv_frags(&mut self, max: usize, out: &mut Vec<Frag>) -> io::Result<usize> {
        self.recv_into(max, out)
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
        TcpStream::abort(self);
    }
}
