//! From frames to transport packets and back: link, IP, ICMP, neighbours and routes.
//!
//! Read first: [`Net`], whose methods are sorted by direction. `input.rs` takes a frame apart
//! (byte path, steps R2 and R3), `output.rs` puts one together (S4 and S5); the rest is what they
//! consult: `route.rs`, `neighbor.rs`, `reassembly.rs`, `icmp.rs`, and `wire/` for the headers.
//!
//! Nothing here reads a clock or a random source: time is an argument, the secret is given.

use std::collections::VecDeque;
use std::net::IpAddr;

use pagewire_device::Capabilities;
use pagewire_mem::{CopyLedger, Instant, PacketBuf, PagePool, PageWriter};

use crate::cidr::Cidr;
use crate::counters::Counters;
use crate::error::{Error, StackError};

/// Protocol numbers of the transports (RFC 9293, RFC 768).
pub(crate) mod protocol {
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ICMPV6: u8 = 58;
}

/// The memory that input and output may use: lent for each call.
pub(crate) struct Mem {
    /// Pages.
    pub pool: PagePool,
    /// Where bytes that must live in pages are written.
    pub writer: PageWriter,
    /// Copies so far.
    pub ledger: CopyLedger,
}

/// What a [`Net`] is made from.
#[derive(Clone, Debug)]
pub(crate) struct NetConfig {
    /// Of the device.
    pub capabilities: Capabilities,
    /// Ours. The link-local IPv6 address is added where the medium is Ethernet and any other
    /// IPv6 address is given.
    pub addresses: Vec<Cidr>,
    /// Default gateways, in order of preference; each must be in one of our networks.
    pub gateways: Vec<IpAddr>,
    /// Further routes: network, and the gateway that leads there.
    pub routes: Vec<(Cidr, IpAddr)>,
    /// Keys the tables that strangers fill, and the identification fields.
    pub secret: [u8; 32],
    /// Whether payload that loops back to ourselves passes by reference; otherwise it is copied
    /// (`CopyReason::LoopPrivate`).
    pub loopback_by_reference: bool,
    /// Whether our addresses are announced on the link at the start.
    pub announce: bool,
}

/// What came in for the sockets.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// A transport packet to an address of ours (or to a group or broadcast, UDP only).
    Transport(Received),
    /// A network error about something we sent: an ICMP error whose quoted packet was found sound
    /// and ours, or a neighbour that never answered. Whether the quoted ports and sequence number
    /// belong to a living socket is the sockets' to check (RFC 5927).
    IcmpError {
        /// The packet of ours.
        about: Quoted,
        /// What became of it.
        kind: IcmpKind,
    },
}

/// A transport packet, checksum verified.
#[derive(Debug)]
pub(crate) struct Received {
    /// Who sent it.
    pub src: IpAddr,
    /// Which of our addresses (or groups) it is to.
    pub dst: IpAddr,
    /// TCP or UDP, see [`protocol`].
    pub protocol: u8,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// The hop limit it came with.
    pub hop_limit: u8,
    /// Bytes of IP headers still in memory in front of the head, for quoting; 0 where they are
    /// gone.
    pub network_header: u16,
    /// Head: exactly the transport header (its length validated, options not). Fragments: exactly
    /// the payload.
    pub packet: PacketBuf,
}

/// What an ICMP error quotes of a packet we sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quoted {
    /// Ours.
    pub src: IpAddr,
    /// The peer's.
    pub dst: IpAddr,
    /// See [`protocol`].
    pub protocol: u8,
    /// Our port.
    pub src_port: u16,
    /// The peer's port.
    pub dst_port: u16,
    /// TCP's sequence number, 0 for others.
    pub seq: u32,
}

/// What became of a packet we sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpKind {
    /// Too long for a link on the path, which takes IP packets of `mtu` bytes.
    PacketTooBig {
        /// Already bounded below by the smallest MTU that we believe.
        mtu: usize,
    },
    /// No route on the way (soft).
    NetUnreachable,
    /// The last router, or we, cannot find the host (soft).
    HostUnreachable,
    /// The host does not speak the protocol (hard).
    ProtocolUnreachable,
    /// Nobody listens at the port (hard).
    PortUnreachable,
    /// Forbidden by somebody (soft for TCP).
    Prohibited,
    /// The hop limit or the time for reassembly ran out (soft).
    TimeExceeded,
    /// Somebody found our header faulty (soft).
    ParameterProblem,
}

/// A transport packet to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// One of ours: see [`Net::source_for`].
    pub src: IpAddr,
    /// To whom.
    pub dst: IpAddr,
    /// See [`protocol`].
    pub protocol: u8,
    /// ECN bits for the IP header.
    pub ecn: u8,
    /// `None`: the default of 64.
    pub hop_limit: Option<u8>,
    /// Where in the transport header its checksum is, the field being 0; `None`: there is none.
    pub checksum_offset: Option<u16>,
    /// Head: the transport header. Fragments: the payload. `gso.header_len` counts the transport
    /// header only. Needs 62 bytes of headroom ([`PacketBuf::for_tx`] and a header of at most 66).
    pub packet: PacketBuf,
}

/// Link and network layer of one stack.
pub(crate) struct Net {
    /// Counts of the whole stack: the sockets count here too.
    pub counters: Counters,
}

impl Net {
    /// Checks the configuration.
    pub(crate) fn new(_now: Instant, _config: NetConfig) -> Result<Self, StackError> {
        Ok(Self { counters: Counters::new() })
    }

    // Getters.

    /// The address that packets to `dst` are sent from.
    pub(crate) fn source_for(&self, _dst: IpAddr) -> Result<IpAddr, Error> {
        Err(Error::NetworkUnreachable)
    }

    /// The longest IP packet that reaches `dst` in one piece, as far as is known.
    pub(crate) fn mtu_for(&self, _dst: IpAddr) -> usize {
        1500
    }

    /// The longest IP packet that reaches `dst` in one piece, and the longest super-frame (as an
    /// IP packet, all headers included) that [`send`](Self::send) takes for it.
    pub(crate) fn link_limits(&self, dst: IpAddr) -> (usize, usize) {
        (self.mtu_for(dst), self.mtu_for(dst))
    }

    /// Whether the address is ours (loopback addresses are).
    pub(crate) fn is_local(&self, _addr: IpAddr) -> bool {
        false
    }

    /// Whether a datagram to it goes to all hosts of a network of ours.
    pub(crate) fn is_broadcast(&self, _addr: IpAddr) -> bool {
        false
    }

    // In.

    /// Byte path, steps R2 and R3: takes a frame from the device. Answers what is the network's
    /// own business (ARP, neighbour discovery, echo) itself. After it, and after anything that
    /// sends, [`poll_inbound`](Self::poll_inbound) may have something.
    pub(crate) fn handle_frame(
        &mut self,
        _mem: &mut Mem,
        _now: Instant,
        _frame: PacketBuf,
    ) -> Option<Inbound> {
        None
    }

    /// Called when `now` has reached [`poll_timeout`](Self::poll_timeout).
    pub(crate) fn handle_timeout(&mut self, _mem: &mut Mem, _now: Instant) {}

    /// A path MTU that the owner of a socket has validated (RFC 8201 section 4, RFC 5927).
    pub(crate) fn handle_path_mtu(&mut self, _now: Instant, _dst: IpAddr, _mtu: usize) {}

    /// A transport heard from `dst` in a way that proves that our packets arrive (RFC 4861
    /// section 7.3.1): spares the neighbour a probe. Cheap, but once per turn is enough.
    pub(crate) fn handle_reachable(&mut self, _now: Instant, _dst: IpAddr) {}

    // Verbs of the transports.

    /// Byte path, steps S4 and S5. A packet that cannot be sent is dropped, counted and reported;
    /// one that waits for its neighbour's address is `Ok`.
    pub(crate) fn send(
        &mut self,
        _mem: &mut Mem,
        _now: Instant,
        _out: Outgoing,
    ) -> Result<(), Error> {
        Err(Error::NetworkUnreachable)
    }

    /// Answers a datagram that no socket wants with "port unreachable", subject to the rules about
    /// errors and the rate limit. `received` as it was handed up.
    pub(crate) fn send_port_unreachable(
        &mut self,
        _mem: &mut Mem,
        _now: Instant,
        _received: Received,
    ) {
    }

    // Out.

    /// Packets that looped back, and notices about neighbours that never answered, one at a time
    /// until `None`. The caller bounds how many it takes in one turn; while some are left,
    /// [`poll_timeout`](Self::poll_timeout) is already due.
    pub(crate) fn poll_inbound(&mut self, _mem: &mut Mem, _now: Instant) -> Option<Inbound> {
        None
    }

    /// Moves all frames for the device to the back of `out`.
    pub(crate) fn poll_transmit(&mut self, _out: &mut VecDeque<PacketBuf>) {}

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_inbound`](Self::poll_inbound) is
    /// next to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
