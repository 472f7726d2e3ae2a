//! The answer to a segment that belongs to no connection.

use crate::header::{Flags, TcpHeader};
use crate::seq::Seq;

/// The reset for a segment to no connection, or `None` if there must be none. `payload_len` is the
/// length of its payload in bytes.
///
/// > RFC 9293 section 3.10.7.1: all data in the incoming segment is discarded. An incoming segment
/// > containing a RST is discarded. An incoming segment not containing a RST causes a RST to be
/// > sent in response. [...] If the ACK bit is off, sequence number zero is used,
/// > `<SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>`. If the ACK bit is on, `<SEQ=SEG.ACK><CTL=RST>`
pub fn reset_for(header: &TcpHeader, payload_len: usize) -> Option<TcpHeader> {
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let mut reset =
        TcpHeader { src_port: header.dst_port, dst_port: header.src_port, ..TcpHeader::default() };
    if header.flags.contains(Flags::ACK) {
        reset.seq = header.ack;
        reset.flags = Flags::RST;
    } else {
        let syn_fin = (header.flags & (Flags::SYN | Flags::FIN)).iter().count() as u32;
        reset.seq = Seq(0);
        reset.ack = header.seq + (payload_len as u32).wrapping_add(syn_fin);
        reset.flags = Flags::RST | Flags::ACK;
    }
    Some(reset)
}
