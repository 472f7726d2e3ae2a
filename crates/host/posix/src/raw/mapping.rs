//! Receiving by mapping, with a C caller's addresses and structures.

use std::ptr;

use libc::c_int;

use super::{Raw, Result, slice_mut};
use crate::backend::Backend;
use crate::limits::MAX_RW_BYTES;
use crate::{Errno, Fd, ZerocopyReceive, field};

/// Numbers that `libc` does not name.
pub(super) const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// `struct tcp_zerocopy_receive`, field by field: each ends where a version of it did.
///
/// ```text
///   0 address   8 length   12 recv_skip_hint   16 inq   20 err   24 copybuf_address
///   32 copybuf_len   36 flags   40 msg_control   48 msg_controllen   56 msg_flags   60 reserved   64
/// ```
const ZEROCOPY_RECEIVE: usize = 64;
const LEAST_ZEROCOPY_RECEIVE: usize = 12;

impl<B: Backend> Raw<'_, B> {
    /// Reads the structure, receives, and writes it back; returns its length.
    ///
    /// # Safety
    /// The buffer in the structure is null or as long and writable as it says.
    pub(super) unsafe fn zerocopy_receive(&self, fd: Fd, value: &mut [u8]) -> Result<usize> {
        if value.len() < LEAST_ZEROCOPY_RECEIVE {
            return Err(Errno::INVAL);
        }
        let len = value.len().min(ZEROCOPY_RECEIVE);
        let (value, beyond) = value.split_at_mut(len);
        if beyond.iter().any(|&byte| byte != 0) {
            return Err(Errno::INVAL);
        }
        let mut fields = [0; ZEROCOPY_RECEIVE];
        fields[..len].copy_from_slice(value);
        let word = |at: usize| field(&fields, at).map(u32::from_ne_bytes);
        let long = |at: usize| field(&fields, at).map(u64::from_ne_bytes);
        if word(60)? != 0 {
            return Err(Errno::INVAL);
        }
        let mut request = ZerocopyReceive {
            address: long(0)?,
            length: word(8)?,
            flags: word(36)?,
            msg_flags: word(56)?,
            ..ZerocopyReceive::default()
        };
        // As Linux: a negative length is none.
        let copy_len = usize::try_from(word(32)? as i32).unwrap_or(0).min(MAX_RW_BYTES);
        let buffer = ptr::with_exposed_provenance_mut::<u8>(long(24)? as usize);
        let copy_len = if buffer.is_null() { 0 } else { copy_len };
        // SAFETY: not null, or of no length; writable, says the caller.
        let copy = unsafe { slice_mut(buffer, copy_len) }?;
        self.0.zerocopy_receive(fd, &mut request, copy)?;
        let mut set =
            |at: usize, word: u32| fields[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        set(8, request.length);
        set(12, request.recv_skip_hint);
        set(16, request.inq);
        set(20, request.err as u32);
        set(32, request.copybuf_len as u32);
        set(56, request.msg_flags);
        if request.msg_flags == 0 {
            // No ancillary data.
            set(48, 0);
            set(52, 0);
        }
        value.copy_from_slice(&fields[..len]);
        Ok(len)
    }
}
