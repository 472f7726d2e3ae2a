//! Messages: what `sendmsg` and `recvmsg` take, and ancillary data.

use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::ptr::NonNull;

use pagewire_mem::{CopyReason, Frag};
use pagewire_stack::Stack;

use crate::{Errno, SockAddr, field};

/// A message for [`Descriptors::sendmsg`](crate::Descriptors::sendmsg): a `msghdr` without pointers.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendMessage<'a> {
    /// The destination's `sockaddr`, if there is one.
    pub name: Option<&'a [u8]>,
    /// The payload's pieces.
    pub iov: &'a [IoSlice<'a>],
    /// Ancillary data, as C lays it out (`cmsg(3)`).
    pub control: &'a [u8],
}

/// Where [`Descriptors::recvmsg`](crate::Descriptors::recvmsg) puts what it receives.
#[derive(Debug, Default)]
pub struct ReceiveMessage<'m, 'b> {
    /// Where the payload goes.
    pub iov: &'m mut [IoSliceMut<'b>],
    /// Where ancillary data goes, as C lays it out (`cmsg(3)`).
    pub control: &'m mut [u8],
    /// Set: bytes of `control` used.
    pub control_len: usize,
    /// Set: the sender, where there is one.
    pub name: Option<SockAddr>,
    /// Set: `MSG_TRUNC`, `MSG_CTRUNC`, `MSG_ERRQUEUE` and so on.
    pub flags: i32,
}

/// Memory that is sent by reference: it is read until its completion is reported.
#[derive(Clone, Copy, Debug)]
pub struct RawRange {
    /// The first byte.
    pub start: *const u8,
    /// How many.
    pub len: usize,
}

/// Longest piece that is one fragment, in bytes.
const MAX_PIECE: usize = 1 << 30;

impl RawRange {
    /// The range's bytes in pieces that a fragment can be of: all of them in one, as a rule.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + use<> {
        let Self { start, len } = *self;
        let piece = move |at: usize| {
            let start = NonNull::new(start.wrapping_add(at).cast_mut())?;
            Some((start, (len - at).min(MAX_PIECE)))
        };
        (0..len).step_by(MAX_PIECE).filter_map(piece)
    }
}

/// A number that `libc` does not name.
const UDP_SEGMENT: i32 = 103;

/// Alignment of ancillary data, and bytes of its header: length, level, type.
const ALIGN: usize = 8;
const HEADER: usize = 16;

/// The settings for datagrams in a call's ancillary data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ancillary {
    /// The size of the datagrams to cut (`UDP_SEGMENT`).
    pub(crate) segment: Option<u16>,
    /// Our source address, and the number of the link, 0 for any (`IP_PKTINFO`, `IPV6_PKTINFO`).
    pub(crate) source: Option<IpAddr>,
    pub(crate) interface: u32,
}

/// Reads the ancillary data of a datagram (`v4`: to an IPv4 address); other protocols' is ignored.
///
/// # Errors
/// `EINVAL` for data that is cut short, unknown UDP options, and an IPv6 source over IPv4.
pub(crate) fn ancillary(mut control: &[u8], v4: bool) -> Result<Ancillary, Errno> {
    let mut found = Ancillary::default();
    while control.len() >= HEADER {
        let len = usize::from_ne_bytes(field(control, 0)?);
        let data = control.get(HEADER..len).ok_or(Errno::INVAL)?;
        match (i32::from_ne_bytes(field(control, 8)?), i32::from_ne_bytes(field(control, 12)?)) {
            (libc::IPPROTO_UDP, UDP_SEGMENT) => {
                let size = data.try_into().map_err(|_| Errno::INVAL)?;
                found.segment = Some(u16::from_ne_bytes(size));
            }
            (libc::IPPROTO_UDP, _) => return Err(Errno::INVAL),
            // `struct in_pktinfo`: link, our address, the address in the header, which is ignored.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if v4 => {
                let data: &[u8; 12] = data.try_into().map_err(|_| Errno::INVAL)?;
                found.interface = u32::from_ne_bytes(field(data, 0)?);
                found.source = Some(field::<4>(data, 4)?.into());
            }
            // `struct in6_pktinfo`: our address, link.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let data: &[u8; 20] = data.try_into().map_err(|_| Errno::INVAL)?;
                found.interface = u32::from_ne_bytes(field(data, 16)?);
                let source = IpAddr::from(field::<16>(data, 0)?).to_canonical();
                if source.is_ipv4() != v4 && !source.is_unspecified() {
                    return Err(Errno::INVAL);
                }
                found.source = Some(source);
            }
            _ => {}
        }
        control = control.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
    found.source = found.source.filter(|ip| !ip.is_unspecified());
    Ok(found)
}

impl ReceiveMessage<'_, '_> {
    /// Appends ancillary data; `MSG_CTRUNC` where it does not fit. As `put_cmsg` in Linux: a
    /// header that fits with part of its data is written, with the length that was written.
    pub(crate) fn put_control(&mut self, level: i32, kind: i32, data: &[u8]) {
        let Some(room) = self.control.get_mut(self.control_len..).filter(|r| r.len() >= HEADER)
        else {
            self.flags |= libc::MSG_CTRUNC;
            return;
        };
        let whole = HEADER + data.len();
        if room.len() < whole {
            self.flags |= libc::MSG_CTRUNC;
        }
        let len = whole.min(room.len());
        room[..8].copy_from_slice(&len.to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..len].copy_from_slice(&data[..len - HEADER]);
        self.control_len += whole.next_multiple_of(ALIGN).min(room.len());
    }

    /// Bytes that the pieces can take.
    pub(crate) fn room(&self) -> usize {
        self.iov.iter().map(|piece| piece.len()).sum()
    }
}

/// The bytes from `skip` on, `max` of them at most, piece by piece.
pub(crate) fn pieces<'a>(
    iov: &'a [IoSlice<'_>],
    mut skip: usize,
    mut max: usize,
) -> impl Iterator<Item = &'a [u8]> {
    iov.iter().filter_map(move |piece| {
        let from = skip.min(piece.len());
        skip -= from;
        let piece = &piece[from..];
        let piece = &piece[..piece.len().min(max)];
        max -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Copies fragments into the pieces; returns how many bytes there was room for.
pub(crate) fn copy_pieces(stack: &mut Stack, frags: &[Frag], iov: &mut [IoSliceMut<'_>]) -> usize {
    let (mut copied, mut at) = (0, 0);
    let mut frags = frags.iter();
    let mut frag = frags.next();
    for piece in iov {
        let mut room: &mut [u8] = piece;
        while let Some(source) = frag.filter(|_| !room.is_empty()) {
            let n = source.copy_to(at, room, stack.ledger_mut(), CopyReason::AppRead);
            copied += n;
            at += n;
            room = &mut room[n..];
            if at == source.len() {
                (frag, at) = (frags.next(), 0);
            }
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancillary_data_that_does_not_fit_is_cut_and_said_so() {
        let mut control = [0u8; 40];
        let mut message = ReceiveMessage { control: &mut control, ..Default::default() };
        message.put_control(6, 36, &9000i32.to_ne_bytes());
        assert_eq!((message.control_len, message.flags), (24, 0));
        message.put_control(6, 36, &[0; 4]);
        assert_eq!((message.control_len, message.flags), (40, libc::MSG_CTRUNC));
        assert_eq!(control[..8], 20usize.to_ne_bytes());
        assert_eq!(control[24..32], 16usize.to_ne_bytes());
    }
}
