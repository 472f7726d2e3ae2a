//! Several messages with one call, one after the other, each as `sendmsg` and `recvmsg` take it.

use std::time::Duration;

use libc::{c_int, c_uint, mmsghdr, timespec};

use super::{Raw, Result, slice_mut};
use crate::backend::Backend;
use crate::limits::MAX_IOV;
use crate::{Errno, Fd};

impl<B: Backend> Raw<'_, B> {
    /// `sendmmsg(2)`. An error is returned only if nothing was sent.
    ///
    /// # Safety
    /// `messages` is null or points to `count` elements, each valid as for [`sendmsg`](Self::sendmsg).
    pub unsafe fn sendmmsg(
        &self,
        fd: Fd,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> Result<usize> {
        self.0.file(fd)?.socket()?;
        // SAFETY: as the caller says.
        let messages = unsafe { slice_mut(messages, (count as usize).min(MAX_IOV)) }?;
        let mut sent = 0;
        for message in messages {
            // SAFETY: as the caller says.
            match unsafe { self.sendmsg(fd, &raw const message.msg_hdr, flags) } {
                Ok(n) => message.msg_len = n as c_uint,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
            sent += 1;
        }
        Ok(sent)
    }

    /// `recvmmsg(2)`, also from the error queue. An error is returned only if nothing was received;
    /// `timeout` is checked between messages, and the rest of it is written back.
    ///
    /// # Safety
    /// `messages` is null or points to `count` elements, each valid as for [`recvmsg`](Self::recvmsg); `timeout` is
    /// null or valid.
    pub unsafe fn recvmmsg(
        &self,
        fd: Fd,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> Result<usize> {
        // SAFETY: null or valid, says the caller.
        let timeout = unsafe { timeout.as_mut() };
        let runtime = &self.0.runtime;
        let limit = timeout.as_deref().map(duration).transpose()?;
        let deadline = limit.map(|limit| runtime.now() + limit);
        self.0.file(fd)?.socket()?;
        // SAFETY: as the caller says.
        let messages = unsafe { slice_mut(messages, (count as usize).min(MAX_IOV)) }?;
        let mut received = 0;
        let mut each = flags & !libc::MSG_WAITFORONE;
        for message in messages {
            // SAFETY: as the caller says.
            match unsafe { self.recvmsg(fd, &raw mut message.msg_hdr, each) } {
                Ok(n) => message.msg_len = n as c_uint,
                Err(error) if received == 0 => return Err(error),
                Err(_) => break,
            }
            received += 1;
            if flags & libc::MSG_WAITFORONE != 0 {
                each |= libc::MSG_DONTWAIT;
            }
            if deadline.is_some_and(|at| runtime.now() >= at) {
                break;
            }
        }
        if let (Some(timeout), Some(deadline)) = (timeout, deadline) {
            let left = deadline.saturating_since(runtime.now());
            (timeout.tv_sec, timeout.tv_nsec) = (left.as_secs() as _, left.subsec_nanos().into());
        }
        Ok(received)
    }
}

fn duration(time: &timespec) -> Result<Duration> {
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|&n| n < 1_000_000_000);
    Ok(Duration::new(seconds, nanos.ok_or(Errno::INVAL)?))
}
