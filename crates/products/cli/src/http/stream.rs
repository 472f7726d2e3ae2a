//! Pagewire's [`TcpStream`] as a connection of [`http`](crate::http).

use std::io;
use std::net::{IpAddr, Shutdown};
use std::time::Duration;

use pagewire::memory::{Frag, FragVec};
use pagewire::services::Error;
use pagewire::{SendBuf, TcpStream};

use crate::http::connection::{Connection, advance};

/// Whether a zero-copy send met a limit, of pages or of notifications.
fn is_limit(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(inner, Some(Error::TooManyPagesHeld | Error::TooManyNotifications))
}

impl Connection for TcpStream {
    fn send_frags(&mut self, frags: &mut FragVec) -> io::Result<usize> {
        let pieces = || frags.iter().cloned().collect::<SendBuf>();
        let sent = match self.zerocopy()? {
            true => self.send_zc(pieces()).map(|sent| sent.bytes),
            false => self.send_some(&mut pieces()),
        };
        let taken = match sent {
            // A limit of zero-copy sends. No completion is needed here: it is sent without.
            Err(e) if is_limit(&e) => self.send_some(&mut pieces())?,
            sent => sent?,
        };
        advance(frags, taken);
        Ok(taken)
    }

    fn peer(&self) -> Option<IpAddr> {
        // A client of IPv4 has an address of IPv4 in the log.
        self.peer_addr().ok().map(|peer| peer.ip().to_canonical())
    }

    fn completed(&mut self) -> (u64, u64) {
        let mut counted = (0, 0);
        for done in self.completions() {
            let sends = u64::from(done.ids.end() - done.ids.start()) + 1;
            counted.0 += sends;
            counted.1 += if done.copied { sends } else { 0 };
        }
        counted
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
