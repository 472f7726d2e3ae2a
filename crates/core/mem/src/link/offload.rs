//! Variant of step S6, in software: the work of a device with checksum and segmentation offload,
//! with the same bytes on the wire.
//!
//! [`segment`] cuts a super-frame by reference: each wire frame gets a copy of the headers and
//! slices of the payload; [`cut_within`] cuts it into shorter super-frames in the same way. Only
//! checksums read the payload. Read these two first, the header arithmetic is below them.

use std::collections::VecDeque;

use super::headers::{self, Layout, TCP_CWR, TCP_FIN, TCP_PSH, Transport};
use super::limits::{MAX_UDP_SEGMENTS, MIN_GSO_SIZE};
use crate::checksum::Checksum;
use crate::{
    CopyLedger, CopyReason, Frag, FragVec, Gso, GsoKind, PAGE_SIZE, PacketBuf, PagePool,
    PageWriter, RxChecksum, TxChecksum,
};

/// Why a frame cannot be finished in software. Such a frame must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The checksum field or the start of the sum is not in the packet's head.
    #[error("the transport checksum is not in the frame's head")]
    Checksum,
    /// The headers are not those of the TCP segment or the datagram that the super-frame claims to be.
    #[error("a super-frame's headers do not describe a TCP segment or a datagram")]
    Headers,
    /// A super-frame with segments of zero bytes, or so small that there would be very many.
    #[error("a super-frame's segments have no size, or are too small")]
    Size,
}

/// Checks a frame of `len` bytes whose writer says that it is a super-frame of this kind and segment size;
/// `layout` was found in its first bytes, `head`.
///
/// # Errors
/// `Headers` for headers of another kind, which for UDP include fragments and lengths that contradict each
/// other; `Size` for segments that would become very many frames.
pub fn super_frame(
    (kind, size): (GsoKind, u16),
    layout: Option<&Layout>,
    head: &[u8],
    len: usize,
) -> Result<Gso, OffloadError> {
    let layout = layout.ok_or(OffloadError::Headers)?;
    let (is_it, least) = match kind {
        GsoKind::TcpV4 => (layout.transport == Transport::Tcp && !layout.v6, MIN_GSO_SIZE),
        GsoKind::TcpV6 => (layout.transport == Transport::Tcp && layout.v6, MIN_GSO_SIZE),
        GsoKind::Udp => {
            let payload = layout.end.saturating_sub(layout.payload);
            let least = payload.div_ceil(MAX_UDP_SEGMENTS).max(1);
            (layout.end == len && layout.is_whole_datagram(head), least as u16)
        }
    };
    if !is_it {
        return Err(OffloadError::Headers);
    }
    if size < least {
        return Err(OffloadError::Size);
    }
    Ok(Gso { kind, size, header_len: layout.payload as u16 })
}

/// Completes a transport checksum that was left to the device, if there is one.
///
/// Shared memory is read through snapshots (counted), and the bytes sent later may differ from
/// those summed here; the receiver then drops the frame.
pub fn complete_checksum(
    packet: &mut PacketBuf,
    ledger: &mut CopyLedger,
) -> Result<(), OffloadError> {
    // RFC 768: "If the computed checksum is zero, it is transmitted as all ones". For TCP the two
    // are equivalent, and Linux sends all ones there too.
    complete(packet, ledger, 0xffff)
}

/// Completes a checksum; `zero` is sent for one of 0.
fn complete(
    packet: &mut PacketBuf,
    ledger: &mut CopyLedger,
    zero: u16,
) -> Result<(), OffloadError> {
    let TxChecksum::Partial { start, offset } = packet.tx_checksum else { return Ok(()) };
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    let mut sum = Checksum::new();
    let head = packet.head();
    if head.get(field..field + 2).is_none() {
        return Err(OffloadError::Checksum);
    }
    sum.add_bytes(head.get(start..).ok_or(OffloadError::Checksum)?);
    for frag in packet.frags() {
        sum.add_frag(frag, ledger);
    }
    let value = match sum.finish() {
        0 => zero,
        value => value,
    };
    put16(packet.head_mut(), field, value).ok_or(OffloadError::Checksum)?;
    packet.tx_checksum = TxChecksum::Done;
    Ok(())
}

/// Appends to `out` the wire frames of `packet`: the segments of a super-frame, or the packet
/// itself; all with complete checksums. Returns how many. An error appends nothing.
pub fn segment(
    packet: PacketBuf,
    out: &mut VecDeque<PacketBuf>,
    ledger: &mut CopyLedger,
) -> Result<usize, OffloadError> {
    cut_within(packet, out, ledger, 0, usize::MAX).map(|pieces| pieces.made)
}

/// The result of cutting a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Frames appended.
    pub made: usize,
    /// Frames that there was no room for: their payload is dropped.
    pub left_out: usize,
}

/// Appends to `out` super-frames of at most `longest` bytes of IP packet that together are
/// `packet`: whole segments each, with checksums left to the device. A part no longer than a
/// segment becomes a plain frame, complete. Makes only the first `most` frames. An error appends
/// nothing.
pub fn cut_within(
    mut packet: PacketBuf,
    out: &mut VecDeque<PacketBuf>,
    ledger: &mut CopyLedger,
    longest: usize,
    most: usize,
) -> Result<Pieces, OffloadError> {
    let whole = Pieces { made: 1, left_out: 0 };
    let Some(gso) = packet.gso.take() else {
        complete_checksum(&mut packet, ledger)?;
        out.push_back(packet);
        return Ok(whole);
    };
    let size = usize::from(gso.size);
    if size == 0 {
        return Err(OffloadError::Size);
    }
    let layout = headers::parse_head(packet.head()).map_err(|_| OffloadError::Headers)?;
    let is_it = match gso.kind {
        GsoKind::TcpV4 => layout.transport == Transport::Tcp && !layout.v6,
        GsoKind::TcpV6 => layout.transport == Transport::Tcp && layout.v6,
        GsoKind::Udp => layout.transport == Transport::Udp,
    };
    if !is_it
        || layout.payload != packet.head().len()
        || layout.payload != usize::from(gso.header_len)
    {
        return Err(OffloadError::Headers);
    }
    if packet.frag_len() <= size {
        complete_checksum(&mut packet, ledger)?;
        out.push_back(packet);
        return Ok(whole);
    }
    let room = longest.saturating_sub(layout.payload - layout.ip);
    let each = (room - room % size).max(size);
    let cut = Cut::new(&packet, layout, gso).ok_or(OffloadError::Headers)?;
    let mut payload = Payload { frags: packet.take_frags(), next: 0 };
    let mut left = payload.frags.iter().map(Frag::len).sum::<usize>();
    let (mut made, mut at) = (0, 0);
    while left > 0 && made < most {
        let n = left.min(each);
        left -= n;
        let mut wire = PacketBuf::for_tx();
        let head = wire.push(layout.payload).ok_or(OffloadError::Headers)?;
        head.copy_from_slice(packet.head());
        payload.move_to(&mut wire, n);
        cut.finish(&mut wire, at, left == 0, ledger).ok_or(OffloadError::Headers)?;
        out.push_back(wire);
        made += 1;
        at += n as u32;
    }
    Ok(Pieces { made, left_out: left.div_ceil(each) })
}

/// Makes a received frame one that another device can send, as a bridge does: a verified checksum,
/// which may never have been computed, is left to that device.
pub fn send_on(frame: &mut PacketBuf) {
    if std::mem::take(&mut frame.rx_checksum) == RxChecksum::Valid {
        leave_checksum_open(frame);
    }
}

/// Leaves the checksum of a received frame to be completed: it may never have been filled in.
pub fn leave_checksum_open(frame: &mut PacketBuf) {
    let Ok(layout) = headers::parse(frame.head()) else { return };
    let Some((protocol, offset)) = layout.checksum(frame.head()) else { return };
    let field = layout.transport_at + offset;
    // Without TCP or UDP, only the IP header need be in the head.
    if !frame.linearize(field + 2) {
        return;
    }
    let mut sum = Checksum::new();
    // RFC 792: the checksum of ICMP for IPv4 has no pseudo-header.
    if protocol != headers::IPPROTO_ICMP {
        if let Some(addresses) = layout.addresses(frame.head()) {
            sum.add_bytes(addresses);
        }
        sum.add_u16(u16::from(protocol));
        // A super-frame may be longer than 16 bits can express; carries are added all the same.
        let len = layout.end.min(frame.len()).saturating_sub(layout.transport_at);
        sum.add_u16((len >> 16) as u16);
        sum.add_u16(len as u16);
    }
    let Some(bytes) = frame.head_mut().get_mut(field..field + 2) else { return };
    if protocol == headers::IPPROTO_UDP && bytes == [0, 0] && !layout.v6 {
        // RFC 768: "An all zero transmitted checksum value means that the transmitter generated
        // no checksum".
        return;
    }
    bytes.copy_from_slice(&sum.sum().to_be_bytes());
    frame.tx_checksum =
        TxChecksum::Partial { start: layout.transport_at as u16, offset: offset as u16 };
}

/// Reduces a packet to at most `max_frags` fragments, for a device that cannot gather more: by a
/// counted copy to one, or with `max_frags` 0 to one piece, in the head where it fits, else in a
/// fragment with an empty head. `false`: no page was free, and the packet is unchanged.
pub fn linearize(
    packet: &mut PacketBuf,
    max_frags: usize,
    pool: &mut PagePool,
    writer: &mut PageWriter,
    ledger: &mut CopyLedger,
) -> bool {
    if packet.frags().len() <= max_frags {
        return true;
    }
    let len = packet.len();
    if max_frags == 0 && packet.frag_len() <= packet.tailroom() {
        ledger.note(CopyReason::DeviceLinearize, packet.frag_len());
        return packet.linearize(len);
    }
    let whole = max_frags == 0;
    let need = if whole { len } else { packet.frag_len() };
    if writer.spare() < need {
        writer.abandon();
        if !writer.refill(pool, need.div_ceil(PAGE_SIZE)) || writer.spare() < need {
            return false;
        }
    }
    let mut joined = Frag::empty();
    let mut join = |parts: FragVec| {
        for part in parts {
            // Adjacent parts of one run always join.
            let appended = joined.try_append(part);
            debug_assert!(appended.is_ok());
        }
    };
    if whole {
        // Headers are not payload: not counted.
        let mut uncounted = CopyLedger::new();
        join(writer.write(pool, packet.head(), &mut uncounted, CopyReason::DeviceLinearize).0);
        packet.truncate_head(0);
    }
    for frag in packet.take_frags() {
        join(writer.write_frag(pool, &frag, ledger, CopyReason::DeviceLinearize).0);
    }
    packet.push_frag(joined).is_ok()
}

/// Fragments that are taken front to back.
struct Payload {
    frags: FragVec,
    next: usize,
}

impl Payload {
    /// Moves the next `n` bytes to `packet`; a page cut in two needs one more reference.
    fn move_to(&mut self, packet: &mut PacketBuf, mut n: usize) {
        while n > 0
            && let Some(frag) = self.frags.get_mut(self.next)
        {
            let part = frag.split_to(n);
            n -= part.len();
            if frag.is_empty() {
                self.next += 1;
            }
            // Never more fragments than the super-frame had.
            let pushed = packet.push_frag(part);
            debug_assert!(pushed.is_ok());
        }
    }
}

/// The common part of all segments of one super-frame.
struct Cut {
    layout: Layout,
    gso: Gso,
    /// Sum of the pseudo-header without its length.
    pseudo: Checksum,
    ip_id: u16,
    /// Sequence number and flags; `None`: the transport is UDP.
    tcp: Option<(u32, u8)>,
}

impl Cut {
    fn new(packet: &PacketBuf, layout: Layout, gso: Gso) -> Option<Self> {
        let head = packet.head();
        let mut pseudo = Checksum::new();
        pseudo.add_bytes(layout.addresses(head)?);
        let udp = gso.kind == GsoKind::Udp;
        pseudo.add_u16(u16::from(if udp { headers::IPPROTO_UDP } else { headers::IPPROTO_TCP }));
        let ip_id = match layout.v6 {
            false => get16(head, layout.ip + 4)?,
            true => 0,
        };
        let tcp = match gso.kind {
            GsoKind::Udp => None,
            _ => Some((layout.tcp_seq(head)?, layout.tcp_flags(head)?)),
        };
        Some(Self { layout, gso, pseudo, ip_id, tcp })
    }

    /// Adapts the copied headers of a piece whose payload begins `at` bytes into the super-frame's.
    fn finish(
        &self,
        wire: &mut PacketBuf,
        at: u32,
        last: bool,
        ledger: &mut CopyLedger,
    ) -> Option<()> {
        let Layout { ip, transport_at, .. } = self.layout;
        let size = u32::from(self.gso.size);
        // The index of its first segment.
        let index = at / size;
        // A length beyond the field is left to the frame, as in the original.
        let field = |len: usize| u16::try_from(len).unwrap_or(0);
        let (ip_len, len) = (wire.len() - ip, wire.len() - transport_at);
        let head = wire.head_mut();
        if self.layout.v6 {
            put16(head, ip + 4, field(ip_len - 40))?;
        } else {
            put16(head, ip + 2, field(ip_len))?;
            // RFC 6864, section 4.1: atomic datagrams may have any ID. Linux counts up from the
            // super-frame's, and so do network cards.
            put16(head, ip + 4, self.ip_id.wrapping_add(index as u16))?;
            put16(head, ip + 10, 0)?;
            let mut sum = Checksum::new();
            sum.add_bytes(head.get(ip..transport_at)?);
            put16(head, ip + 10, sum.finish())?;
        }
        let offset = match self.tcp {
            Some((seq, mut flags)) => {
                let seq = seq.wrapping_add(at).to_be_bytes();
                head.get_mut(transport_at + 4..transport_at + 8)?.copy_from_slice(&seq);
                if !last {
                    flags &= !(TCP_FIN | TCP_PSH);
                }
                // RFC 3168, section 6.1.2: CWR is sent once, "in the first new data packet"; so on the
                // first of the segments only.
                if index > 0 {
                    flags &= !TCP_CWR;
                }
                *head.get_mut(transport_at + 13)? = flags;
                16
            }
            None => {
                put16(head, transport_at + 4, field(len))?;
                6
            }
        };
        let mut sum = self.pseudo;
        sum.add_u16((len >> 16) as u16);
        sum.add_u16(len as u16);
        put16(head, transport_at + offset, sum.sum())?;
        let (start, offset) = (transport_at as u16, offset as u16);
        wire.tx_checksum = TxChecksum::Partial { start, offset };
        if wire.frag_len() > size as usize {
            wire.gso = Some(self.gso);
            return Some(());
        }
        // Unlike a whole packet's, Linux leaves that of a cut segment of TCP.
        complete(wire, ledger, if self.tcp.is_some() { 0 } else { 0xffff }).ok()
    }
}

fn get16(bytes: &[u8], at: usize) -> Option<u16> {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => Some(u16::from_be_bytes([high, low])),
        _ => None,
    }
}

fn put16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}
