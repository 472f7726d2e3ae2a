//! Stateless answers to TCP segments, each in the segment's packet: floods of SYNs cost little.

use std::net::IpAddr;

use pagewire_mem::{Instant, PacketBuf};

use super::head::take;
use super::link::LinkIndex;
use super::neighbor::Lookup;
use super::output::{Envelope, OWN, Refused, TOO_LONG, fits, prepare_checksum};
use super::route::Hop;
use super::wire::{ethernet, protocol};
use super::{Mem, Net, TooLong};
use crate::error::Error;
use crate::limits::DEFAULT_HOP_LIMIT;

impl Net {
    /// Sends a stateless answer to a TCP segment in its packet, whose head is the answer's header.
    /// Only the way to the last gateway is cached: made-up addresses would evict connections.
    pub(crate) fn send_back(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        (src, dst): (IpAddr, IpAddr),
        by: Option<LinkIndex>,
        checksum_offset: u16,
        packet: &mut PacketBuf,
    ) -> Result<(), Error> {
        self.counters.tx_tcp += 1;
        let envelope = Envelope {
            src,
            dst,
            protocol: protocol::TCP,
            ecn: 0,
            dont_fragment: true,
            too_long: TooLong::RefusedByLink,
            hop_limit: DEFAULT_HOP_LIMIT,
            by,
        };
        try_send_back(self, mem, now, &envelope, checksum_offset, packet).map_err(
            |(error, reason)| {
                self.counters.drop_one(reason);
                error
            },
        )
    }
}

#[inline(always)]
fn try_send_back(
    net: &mut Net,
    mem: &mut Mem,
    now: Instant,
    to: &Envelope,
    checksum_offset: u16,
    packet: &mut PacketBuf,
) -> Result<(), Refused> {
    prepare_checksum(net, mem, packet, to, checksum_offset)?;
    let (out, hop) = net.way(now, to)?;
    let header = match hop {
        Hop::Direct => None,
        Hop::Neighbor(next) => match header_to(net, now, out, next) {
            Some(header) => Some(header),
            // It has to be resolved first.
            None => return net.send_slowly(mem, now, *to, take(packet)),
        },
        Hop::Local | Hop::Group(_) => return net.send_slowly(mem, now, *to, take(packet)),
    };
    let link = &net.links.at(out).link;
    if !fits(link, packet, to, link.mtu)? {
        return Err(TOO_LONG);
    }
    net.wrap(packet, to)?;
    net.finish(mem, packet, out, header.as_ref())?;
    net.enqueue(mem, take(packet), out, OWN)
}

/// The link header for a neighbour, if its station is known.
fn header_to(
    net: &mut Net,
    now: Instant,
    out: LinkIndex,
    next: IpAddr,
) -> Option<[u8; ethernet::LEN]> {
    let generation = net.links.at(out).neighbors.generation();
    if let Some(last) = net.last_next
        && (last.next, last.out, last.generation) == (next, out, generation)
        && now < last.until
    {
        return Some(last.link);
    }
    let neighbors = &mut net.links.at_mut(out).neighbors;
    let Lookup::Known { mac, until } = neighbors.lookup(now, next) else { return None };
    let generation = neighbors.generation();
    let link = net.link_header(out, mac, next.is_ipv6());
    net.last_next = Some(LastNext { next, out, generation, until, link });
    Some(link)
}

/// The way to the neighbour that the last answer went to.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastNext {
    next: IpAddr,
    out: LinkIndex,
    /// Of the link's neighbours.
    generation: u32,
    until: Instant,
    link: [u8; ethernet::LEN],
}
