//! Byte path, step S6: the tap sends a frame with one gathering `writev`.

use std::collections::VecDeque;

use pagewire_mem::{CopyLedger, CopyReason, Instant, PacketBuf};
use rustix::io::Errno;

use super::limits::{MAX_FRAME, VNET_HEADER};
use super::{FRONT, Tap, errno, sys};
use crate::DeviceError;
use crate::limits::TAP_REFUSED_FRAMES;
use crate::vnet;

enum Sent {
    /// The frame is sent, or lost for good.
    Done,
    /// There is no room now, keep it.
    NoRoom,
    /// The kernel had no memory for it.
    Refused,
}

impl Tap {
    /// Sends frames from the front of `frames`, as many as the kernel takes.
    #[inline]
    pub(super) fn send_all(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        while let Some(packet) = frames.front() {
            let sent = self.send(now, packet, ledger)?;
            if let Sent::NoRoom = sent {
                break;
            }
            let packet = frames.pop_front();
            if let Sent::Refused = sent {
                self.refused.extend(packet);
                if self.refused.len() > TAP_REFUSED_FRAMES {
                    self.refused.pop_front();
                }
            }
        }
        Ok(())
    }

    fn send(
        &mut self,
        now: Instant,
        packet: &PacketBuf,
        ledger: &mut CopyLedger,
    ) -> Result<Sent, DeviceError> {
        let len = packet.len();
        let Some(header) = vnet::encode(packet).filter(|_| len <= MAX_FRAME) else {
            self.counters.tx_dropped_error += 1;
            return Ok(Sent::Done);
        };
        // Both headers in one piece save the kernel one; private, so that what is checked is sent.
        let mut front = [0; FRONT];
        let (first, rest) = front.split_at_mut(VNET_HEADER);
        first.copy_from_slice(&header);
        let head = packet.head();
        if let Some(place) = rest.get_mut(..head.len()) {
            place.copy_from_slice(head);
        }
        let front = front.get(..VNET_HEADER + head.len()).unwrap_or_default();
        let fd = self.queues.fd_for(now, packet, self.steering.queue_of_sent(packet.head()));
        loop {
            self.counters.syscalls += 1;
            let error = match sys::write_frame(fd, front, packet.frags()) {
                Ok(_) => {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += len as u64;
                    ledger.note(CopyReason::DeviceTx, packet.frag_len());
                    return Ok(Sent::Done);
                }
                Err(error) => error,
            };
            match errno(&error) {
                Errno::INTR => {}
                Errno::AGAIN => return Ok(Sent::NoRoom),
                Errno::NOMEM | Errno::NOBUFS => {
                    self.counters.tx_dropped_full += 1;
                    return Ok(Sent::Refused);
                }
                Errno::BADFD => return Err(DeviceError::Closed),
                // A bad address (a file truncated under its memory map), a header that the kernel does
                // not accept, an interface that is down: this frame is lost, others may be sent.
                _ => {
                    self.counters.tx_dropped_error += 1;
                    return Ok(Sent::Done);
                }
            }
        }
    }
}
