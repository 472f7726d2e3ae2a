//! Reads into buffers that grow.

use std::io;

use bytes::BufMut;

use crate::limits::READ_BUF;

/// Reads into the free part of `buf`, at most [`READ_BUF`] bytes; `read` returns how many, and its
/// answer.
pub(crate) fn read_into<B: BufMut, T>(
    buf: &mut B,
    read: impl FnOnce(&mut [u8]) -> io::Result<(usize, T)>,
) -> io::Result<T> {
    // Without unsafe code there is no writing into memory that is not initialised.
    let mut room = vec![0; buf.remaining_mut().min(READ_BUF)];
    let (n, answer) = read(&mut room)?;
    buf.put_slice(room.get(..n).unwrap_or_default());
    Ok(answer)
}
