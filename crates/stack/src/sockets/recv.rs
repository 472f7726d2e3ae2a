//! Byte path, step R7 seen from the stack: the one way out for what was received.

use pagewire_mem::{Frag, Instant};
use pagewire_tcp::RecvFlags;

use super::handles::Tcp;
use crate::error::Error;

/// Takes received bytes, in one of several ways:
///
/// - `&mut [u8]`: by copy; how many;
/// - [`Chunks`]: by reference, appended to a vector; how many bytes;
/// - [`Discard`]: throws them away; how many;
/// - [`Map`](crate::Map), [`MapSealed`](crate::MapSealed), [`MapPages`](crate::MapPages),
///   [`MapWith`](crate::MapWith): as contiguous memory.
///
/// 0 bytes are the end of the stream.
pub trait Taker {
    /// What was taken.
    type Taken;
    /// Why nothing was.
    type Error;

    /// Takes them.
    #[doc(hidden)]
    fn take(
        self,
        tcp: &mut Tcp<'_>,
        now: Instant,
        flags: RecvFlags,
    ) -> Result<Self::Taken, Self::Error>;
}

/// Takes up to `max` received bytes by reference, appended to `into`.
#[derive(Debug)]
pub struct Chunks<'a> {
    /// How many bytes at most.
    pub max: usize,
    /// Where they go.
    pub into: &'a mut Vec<Frag>,
}

/// Throws away up to so many received bytes.
#[derive(Clone, Copy, Debug)]
pub struct Discard(pub usize);

impl Tcp<'_> {
    /// Byte path, step R7: takes received bytes.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is queued but more may come, `NotConnected`, and what the
    /// connection ended with; what the taker says.
    #[inline]
    pub fn recv<T: Taker>(
        &mut self,
        now: Instant,
        taker: T,
        flags: RecvFlags,
    ) -> Result<T::Taken, T::Error> {
        taker.take(self, now, flags)
    }
}

impl Taker for &mut [u8] {
    type Taken = usize;
    type Error = Error;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        tcp.with(now, |conn, env| conn.read(env, self, flags))
    }
}

impl<const N: usize> Taker for &mut [u8; N] {
    type Taken = usize;
    type Error = Error;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        self.as_mut_slice().take(tcp, now, flags)
    }
}

impl Taker for Chunks<'_> {
    type Taken = usize;
    type Error = Error;

    #[inline]
    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        let Self { max, into } = self;
        tcp.with(now, |conn, env| conn.recv_chunks(env, max, into, flags))
    }
}

impl Taker for Discard {
    type Taken = usize;
    type Error = Error;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        tcp.with(now, |conn, env| conn.recv_chunks(env, self.0, &mut Vec::new(), flags))
    }
}
