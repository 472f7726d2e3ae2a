//! A wrapper that takes some frames of a link out and answers them itself: for servers that answer
//! machines without an address, which only the link layer can name. Read [`Responder`] first.

use std::collections::VecDeque;

use bytes::Bytes;
use pagewire_mem::{CopyLedger, CopyReason, Frag, Instant, PacketBuf};

use crate::device::{Device, DeviceError, forward_device};

/// A server below the stack, which answers some frames of a link itself.
pub trait Responder: Send {
    /// Answers that wait for room in the device. Frames beyond these get none.
    const ANSWERS: usize;

    /// Whether a frame is for it, and not for the stack. Reads a few header bytes of every frame.
    fn wants(&self, frame: &mut PacketBuf) -> bool;

    /// Takes such a frame, and answers it or not.
    fn handle(
        &mut self,
        now: Instant,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    ) -> Option<PacketBuf>;

    /// A frame gets no answer because too many wait.
    fn handle_unanswered(&mut self);

    /// A frame that is due without being asked for.
    fn poll(&mut self, now: Instant) -> Option<PacketBuf> {
        let _ = now;
        None
    }

    /// When the next such frame is due.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Ends a burst: all of its frames were handled.
    fn end_burst(&mut self) {}
}

/// A device whose link has a [`Responder`]; every other frame passes unchanged.
pub struct Intercept<D, R> {
    device: D,
    responder: R,
    pub(crate) answers: VecDeque<PacketBuf>,
    /// Frames of the stack that the device had no room for in the last call.
    left: usize,
}

impl<D: Device, R: Responder> Intercept<D, R> {
    /// Answers on the link of `device`.
    pub fn new(device: D, responder: R) -> Self {
        Self { device, responder, answers: VecDeque::new(), left: 0 }
    }

    /// The device inside.
    pub fn get_ref(&self) -> &D {
        &self.device
    }

    /// The server.
    pub fn responder(&self) -> &R {
        &self.responder
    }

    /// The server, to change it.
    pub fn responder_mut(&mut self) -> &mut R {
        &mut self.responder
    }

    /// Takes what is for the responder out of the frames received from `before` on.
    pub(crate) fn sort(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        before: usize,
        ledger: &mut CopyLedger,
    ) {
        let mut at = before;
        while let Some(frame) = frames.get_mut(at) {
            if !self.responder.wants(frame) {
                at += 1;
                continue;
            }
            let Some(frame) = frames.remove(at) else { break };
            if self.answers.len() < R::ANSWERS {
                self.answers.extend(self.responder.handle(now, &frame, ledger));
            } else {
                self.responder.handle_unanswered();
            }
        }
        self.responder.end_burst();
    }

    /// Takes what is due.
    fn poll(&mut self, now: Instant) {
        if self.answers.len() < R::ANSWERS {
            self.answers.extend(self.responder.poll(now));
        }
    }
}

impl<D: Device, R: Responder> Device for Intercept<D, R> {
    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        self.poll(now);
        // Frames that the device left behind stay in front, because a wrapper inside counts from there.
        if self.left > 0 {
            frames.append(&mut self.answers);
        } else {
            while let Some(answer) = self.answers.pop_back() {
                frames.push_front(answer);
            }
        }
        let result = self.device.transmit(now, frames, ledger);
        self.left = frames.len();
        result
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let before = frames.len();
        let result = self.device.receive(now, frames, max, ledger);
        if frames.iter_mut().skip(before).any(|frame| self.responder.wants(frame)) {
            self.sort(now, frames, before, ledger);
        }
        self.poll(now);
        if !self.answers.is_empty() && self.left == 0 {
            self.device.transmit(now, &mut self.answers, ledger)?;
        }
        // As many as the device gave: a full burst means more frames, those for the responder included.
        result
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.device.poll_timeout(), self.responder.poll_timeout()].into_iter().flatten().min()
    }

    forward_device! {
        self => self.device;
        capabilities take_refused wait_fd arm disarm counters pool_audit trim room steering
    }
}

/// A frame's bytes, copied out: they must not change any more. `None`: they do not fit.
pub fn copy_out<'a>(
    frame: &PacketBuf,
    into: &'a mut [u8],
    ledger: &mut CopyLedger,
) -> Option<&'a [u8]> {
    let room = into.get_mut(..frame.len())?;
    let (head, mut rest) = room.split_at_mut_checked(frame.head().len())?;
    head.copy_from_slice(frame.head());
    for frag in frame.frags() {
        let n = frag.copy_to(0, rest, ledger, CopyReason::Snapshot);
        rest = rest.get_mut(n..)?;
    }
    Some(room)
}

/// A frame to send, of which the first `headers` bytes are headers.
pub fn frame_of(bytes: Vec<u8>, headers: usize) -> Option<PacketBuf> {
    let bytes = Bytes::from(bytes);
    let mut frame = PacketBuf::for_tx();
    frame.push(headers)?.copy_from_slice(bytes.get(..headers)?);
    frame.push_frag(Frag::from_bytes(bytes.slice(headers..))).ok()?;
    Some(frame)
}
