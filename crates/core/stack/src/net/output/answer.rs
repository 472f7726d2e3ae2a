//! Stateless answers to TCP segments, each in the segment's packet: floods of SYNs cost little.

use std::net::IpAddr;

use pagewire_mem::{Instant, PacketBuf};

use crate::error::Error;
use crate::limits::DEFAULT_HOP_LIMIT;
use crate::net::links::config::LinkIndex;
use crate::net::neighbors::NeighborLookup;
use crate::net::output::{Envelope, OWN, SendFailure, TOO_LONG, fits};
use crate::net::routes::Hop;
use crate::net::wire::{ethernet, protocol};
use crate::net::{Net, TooLong};

impl Net {
    /// Sends a stateless answer to a TCP segment in its packet, whose head is the answer's header.
    /// Only the next to the last gateway is cached: made-up addresses would evict connections.
    pub(crate) fn send_back(
        &mut self,
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
        self.try_send_back(now, &envelope, checksum_offset, packet).map_err(|(error, reason)| {
            self.counters.drop_one(reason);
            error
        })
    }
}

impl Net {
    #[inline(always)]
    fn try_send_back(
        &mut self,
        now: Instant,
        to: &Envelope,
        checksum_offset: u16,
        packet: &mut PacketBuf,
    ) -> Result<(), SendFailure> {
        self.prepare_checksum(packet, to, checksum_offset)?;
        let (out, hop) = self.next_hop(now, to)?;
        let header = match hop {
            Hop::Direct => None,
            Hop::Neighbor(next) => match self.header_to(now, out, next) {
                Some(header) => Some(header),
                // The neighbour has to be resolved first.
                None => return self.send_slowly(now, *to, packet.take()),
            },
            Hop::Local | Hop::Group(_) => return self.send_slowly(now, *to, packet.take()),
        };
        let link = &self.links.at(out).device;
        if !fits(link, packet, to, link.mtu)? {
            return Err(TOO_LONG);
        }
        self.wrap(packet, to)?;
        self.finish(packet, out, header.as_ref())?;
        self.enqueue(packet.take(), out, OWN)
    }

    /// The link header for a neighbour, if its station is known.
    fn header_to(
        &mut self,
        now: Instant,
        out: LinkIndex,
        next: IpAddr,
    ) -> Option<[u8; ethernet::LEN]> {
        let generation = self.links.at(out).neighbors.generation();
        if let Some(last) = self.last_neighbor
            && (last.next, last.out, last.generation) == (next, out, generation)
            && now < last.until
        {
            return Some(last.link);
        }
        let neighbors = &mut self.links.at_mut(out).neighbors;
        let NeighborLookup::Known { mac, until } = neighbors.lookup(now, next) else { return None };
        let generation = neighbors.generation();
        let link = self.link_header(out, mac, next.is_ipv6());
        self.last_neighbor = Some(LastNeighbor { next, out, generation, until, link });
        Some(link)
    }
}

/// The next to the neighbour that the last answer went to.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct LastNeighbor {
    next: IpAddr,
    out: LinkIndex,
    /// The generation of the link's neighbours for which `hop` holds.
    generation: u32,
    until: Instant,
    link: [u8; ethernet::LEN],
}
