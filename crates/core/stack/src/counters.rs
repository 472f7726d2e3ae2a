//! Counters of received and sent packets, and of drops by reason. Names are stable: `--stats`
//! prints them, tests compare them, other programs parse them.

use core::fmt;

use pagewire_mem::Tally;
use pagewire_tcp::DropReason as TcpDropReason;

pagewire_mem::reasons! {
    DropReason: "Why a packet, or what was in it, was dropped.";

    // Link.
    /// Shorter than an Ethernet header.
    EthernetTruncated = "ethernet_truncated",
    /// Addressed to another station, or to a group we are not in.
    EthernetNotForUs = "ethernet_not_for_us",
    /// The source is a group address.
    EthernetSource = "ethernet_source",
    /// Carries a VLAN tag: we are in no VLAN.
    EthernetVlan = "ethernet_vlan",
    /// An IEEE 802.3 length where the type should be.
    EthernetLength = "ethernet_length",
    /// Neither ARP, IPv4 nor IPv6, or a family that we have no address of.
    EthernetType = "ethernet_type",

    // ARP (RFC 826, RFC 5227).
    /// Shorter than an ARP packet for Ethernet and IPv4.
    ArpTruncated = "arp_truncated",
    /// Hardware type is not Ethernet, or its address length is not 6.
    ArpHardware = "arp_hardware",
    /// Protocol is not IPv4, or its address length is not 4.
    ArpProtocol = "arp_protocol",
    /// Neither request nor reply.
    ArpOperation = "arp_operation",
    /// The sender's addresses cannot be a host's.
    ArpSender = "arp_sender",
    /// Not about an address of ours, nor one that we asked for.
    ArpNotForUs = "arp_not_for_us",
    /// Another station uses an address of ours.
    ArpConflict = "arp_conflict",

    // Links.
    /// To or from a link that was removed.
    LinkRemoved = "link_removed",
    /// To a link whose device is gone for good.
    LinkLost = "link_lost",
    /// Came by another link than answers to its source would leave by (RFC 3704).
    SourceOtherLink = "source_other_link",
    /// On a transparent link, from an address that the routes do not place there (RFC 2827).
    TransparentSource = "transparent_source",
    /// To a connection that is bound to another link.
    SocketOtherLink = "socket_other_link",

    // IPv4 (RFC 791, RFC 1122).
    /// Neither version 4 nor version 6, on a medium without a type field.
    IpVersion = "ip_version",
    /// Shorter than an IPv4 header.
    Ipv4Truncated = "ipv4_truncated",
    /// Version is not 4.
    Ipv4Version = "ipv4_version",
    /// Header length below 20 bytes, or beyond the packet.
    Ipv4HeaderLength = "ipv4_header_length",
    /// Total length below the header length.
    Ipv4TotalLengthSmall = "ipv4_total_length_small",
    /// Total length beyond the frame.
    Ipv4TotalLengthBeyond = "ipv4_total_length_beyond",
    /// The header's checksum is wrong.
    Ipv4Checksum = "ipv4_checksum",
    /// An option's length is below 2 or beyond the header.
    Ipv4OptionLength = "ipv4_option_length",
    /// Carries a source route.
    Ipv4SourceRoute = "ipv4_source_route",
    /// The reserved fragment flag is set.
    Ipv4Flags = "ipv4_flags",
    /// The source cannot be a remote host's.
    Ipv4Source = "ipv4_source",
    /// The destination is not ours.
    Ipv4NotForUs = "ipv4_not_for_us",
    /// A unicast destination in a link broadcast (RFC 1122 section 3.3.6).
    Ipv4LinkBroadcast = "ipv4_link_broadcast",

    // IPv6 (RFC 8200).
    /// Shorter than an IPv6 header.
    Ipv6Truncated = "ipv6_truncated",
    /// Version is not 6.
    Ipv6Version = "ipv6_version",
    /// Payload length beyond the frame.
    Ipv6PayloadLengthBeyond = "ipv6_payload_length_beyond",
    /// A jumbogram (RFC 2675): payload length 0 with more behind the header.
    Ipv6Jumbogram = "ipv6_jumbogram",
    /// The source cannot be a remote host's.
    Ipv6Source = "ipv6_source",
    /// The destination is not ours.
    Ipv6NotForUs = "ipv6_not_for_us",
    /// An extension header ends beyond the packet.
    Ipv6ExtensionTruncated = "ipv6_extension_truncated",
    /// More, or longer, extension headers than we walk.
    Ipv6ExtensionLimit = "ipv6_extension_limit",
    /// A hop-by-hop header that is not the first.
    Ipv6HopByHopPosition = "ipv6_hop_by_hop_position",
    /// An option ends beyond its header.
    Ipv6OptionLength = "ipv6_option_length",
    /// An unknown option that says to drop the packet.
    Ipv6Option = "ipv6_option",
    /// A routing header with segments left.
    Ipv6RoutingHeader = "ipv6_routing_header",
    /// The chain ends in "no next header".
    Ipv6NoNextHeader = "ipv6_no_next_header",

    // Reassembly (RFC 791, 815, 5722, 8200).
    /// A fragment that is not the last has a length that is no multiple of 8, or is empty.
    FragmentLength = "fragment_length",
    /// Ends beyond 65,535 bytes.
    FragmentTooBig = "fragment_too_big",
    /// Overlaps another one: the whole datagram is dropped (RFC 5722).
    FragmentOverlap = "fragment_overlap",
    /// Exactly the same range again.
    FragmentDuplicate = "fragment_duplicate",
    /// Contradicts another one about the end of the datagram.
    FragmentEnd = "fragment_end",
    /// The first does not hold the transport header (RFC 1858, RFC 7112).
    FragmentTiny = "fragment_tiny",
    /// A datagram in more fragments than we keep.
    FragmentCount = "fragment_count",
    /// A fragment inside a reassembled packet.
    FragmentNested = "fragment_nested",
    /// Some fragments are marked "congestion experienced", others "not ECN-capable" (RFC 3168).
    FragmentEcn = "fragment_ecn",
    /// Evicted: too many bytes held for reassembly.
    ReassemblyMemory = "reassembly_memory",
    /// Evicted: too many datagrams in reassembly.
    ReassemblyCount = "reassembly_count",
    /// The other fragments did not come in time.
    ReassemblyTimeout = "reassembly_timeout",

    // ICMP (RFC 792, RFC 4443).
    /// Shorter than its header, or than what its type needs.
    IcmpTruncated = "icmp_truncated",
    /// The checksum is wrong.
    IcmpChecksum = "icmp_checksum",
    /// An unknown type.
    IcmpType = "icmp_type",
    /// A code that its type does not have.
    IcmpCode = "icmp_code",
    /// An echo request to a broadcast or IPv4 multicast address (RFC 1122 section 3.2.2.6).
    IcmpBroadcast = "icmp_broadcast",
    /// An error whose quoted packet is malformed.
    IcmpQuote = "icmp_quote",
    /// An error about a packet that we cannot have sent.
    IcmpQuoteNotOurs = "icmp_quote_not_ours",
    /// An echo reply: we send no requests.
    IcmpEchoReply = "icmp_echo_reply",
    /// A redirect: routes are static.
    IcmpRedirect = "icmp_redirect",

    // Groups (RFC 3376, RFC 3810).
    /// IGMP or MLD: unknown, through a router, without a router alert, or for routers only.
    GroupMessage = "group_message",

    // NDP (RFC 4861).
    /// The hop limit is not 255: it came through a router.
    NdpHopLimit = "ndp_hop_limit",
    /// The code is not 0.
    NdpCode = "ndp_code",
    /// Shorter than its type needs.
    NdpTruncated = "ndp_truncated",
    /// An option of length 0, or one that ends beyond the message.
    NdpOption = "ndp_option",
    /// The target is a multicast address.
    NdpTarget = "ndp_target",
    /// Source and destination do not match (unspecified source, solicited to multicast).
    NdpSource = "ndp_source",
    /// Not about an address of ours, nor one that we asked for.
    NdpNotForUs = "ndp_not_for_us",
    /// Another station uses an address of ours.
    NdpConflict = "ndp_conflict",
    /// A router solicitation: we are no router.
    NdpRouterSolicitation = "ndp_router_solicitation",
    /// A router advertisement: routes and addresses are static.
    NdpRouterAdvertisement = "ndp_router_advertisement",

    // IP forwarding (RFC 1812, RFC 8200).
    /// To a foreign host, in a frame to a group of stations.
    ForwardLinkBroadcast = "forward_link_broadcast",
    /// To an address that routers do not forward to: link-local, loopback, reserved, broadcast.
    ForwardDestination = "forward_destination",
    /// From such an address, or from one of ours.
    ForwardSource = "forward_source",
    /// No route leads on.
    ForwardNoRoute = "forward_no_route",
    /// The hop limit ran out here.
    ForwardHopLimit = "forward_hop_limit",
    /// Too long for the next link, and may not be fragmented.
    ForwardTooBig = "forward_too_big",
    /// A super-frame whose headers are not those of a TCP segment.
    ForwardOffload = "forward_offload",
    /// The queue of forwarded packets to the next link's device is full.
    ForwardQueueFull = "forward_queue_full",
    /// The queue of packets that wait for a neighbour's address is full.
    ForwardNeighborFull = "forward_neighbor_full",

    // Input of the transports.
    /// An unknown transport protocol.
    ProtocolUnknown = "protocol_unknown",
    /// TCP to or from a non-unicast address (RFC 1122 section 4.2.3.10).
    TransportBroadcast = "transport_broadcast",
    /// The header does not fit the packet's head.
    HeadTooLong = "head_too_long",
    /// More fragments of memory than a packet carries.
    TooManyFragments = "too_many_fragments",
    /// No free page for bytes.
    NoPages = "no_pages",

    // UDP (RFC 768).
    /// Shorter than a UDP header.
    UdpTruncated = "udp_truncated",
    /// Length below 8, or beyond the packet.
    UdpLength = "udp_length",
    /// The checksum is wrong, or absent in IPv6.
    UdpChecksum = "udp_checksum",
    /// Destination port 0.
    UdpPort = "udp_port",
    /// No socket is bound to the port.
    UdpNoSocket = "udp_no_socket",
    /// The socket's queue is full.
    UdpQueueFull = "udp_queue_full",
    /// The socket has used its share of the receive memory.
    UdpHostMemory = "udp_host_memory",
    /// The socket is connected to another peer.
    UdpNotConnected = "udp_not_connected",

    // Shards.
    /// For another shard, while too many packets wait for their way there.
    StrayBacklogFull = "stray_backlog_full",
    /// To open a connection at a port that has become another shard's meanwhile.
    PortTaken = "port_taken",

    // TCP in the stack; drops of connections have names of their own.
    /// Shorter than a TCP header.
    TcpTruncated = "tcp_truncated",
    /// Data offset below 20 bytes or beyond the segment.
    TcpDataOffset = "tcp_data_offset",
    /// The checksum is wrong.
    TcpChecksum = "tcp_checksum",
    /// Source or destination port 0.
    TcpPort = "tcp_port",
    /// No connection and no listener.
    TcpNoSocket = "tcp_no_socket",
    /// A segment to a listener that is no SYN.
    TcpListenNotSyn = "tcp_listen_not_syn",
    /// The listener's queue of connections is full.
    TcpBacklogFull = "tcp_backlog_full",
    /// The limit on half-open connections was reached.
    TcpHalfOpenLimit = "tcp_half_open_limit",
    /// The limit on connections was reached.
    TcpConnectionLimit = "tcp_connection_limit",
    /// A reset withheld by the rate limit.
    TcpResetRateLimited = "tcp_reset_rate_limited",

    /// The table of SYNs that wait for the application's answer is full.
    TcpRequestLimit = "tcp_request_limit",
    /// A SYN repeats one that waits for the application's answer.
    TcpRequestRepeated = "tcp_request_repeated",
    /// Answers of the application that their rate limit withheld.
    AnswerRateLimited = "answer_rate_limited",
    /// An echo request to another host's address that no socket takes.
    EchoNoSocket = "echo_no_socket",

    // Output.
    /// No route to the destination.
    NoRoute = "no_route",
    /// The source is not an address of ours.
    OutSource = "out_source",
    /// Longer than IP or the link can carry.
    OutTooLong = "out_too_long",
    /// No room in front of the head for the headers.
    OutHeadroom = "out_headroom",
    /// Software could not segment it for the device: the headers are not those of a super-frame.
    OutOffload = "out_offload",
    /// The queue to the device is full.
    OutQueueFull = "out_queue_full",
    /// Evicted from the queue for a neighbour's address by a later packet.
    NeighborQueueFull = "neighbor_queue_full",
    /// The neighbour did not answer.
    NeighborUnreachable = "neighbor_unreachable",
    /// The neighbour is unknown, and all entries are in use.
    NeighborTableFull = "neighbor_table_full",
    /// The neighbour's entry was evicted while the packet waited.
    NeighborEvicted = "neighbor_evicted",
    /// The loopback queue is full.
    LoopbackFull = "loopback_full",
}

pagewire_mem::counters! {
    /// Counts of a stack, from its beginning.
    pub struct Counters {
        /// Frames received.
        rx_frames,
        /// Bytes in them.
        rx_bytes,
        /// Frames handed to the device.
        tx_frames,
        /// Frames that a device refused.
        tx_refused,
        /// Bytes in them.
        tx_bytes,
        /// Packets that looped back to an address of ours.
        loopback_packets,
        /// Packets forwarded, or waiting for the next hop's address; super-frames counted once.
        forwarded_packets,
        /// Bytes in them, IP headers included.
        forwarded_bytes,
        /// ARP packets received.
        rx_arp,
        /// ARP packets sent.
        tx_arp,
        /// IPv4 packets received, fragments singly.
        rx_ipv4,
        /// IPv4 packets sent, fragments singly.
        tx_ipv4,
        /// IPv6 packets received, fragments singly.
        rx_ipv6,
        /// IPv6 packets sent, fragments singly.
        tx_ipv6,
        /// Fragments received.
        rx_fragments,
        /// Datagrams put together from fragments.
        reassembled,
        /// Packets passed on to the shards that they belong to, and news to other shards.
        strays_passed,
        /// Such packets and news taken from other shards.
        strays_taken,
        /// Fragments sent.
        tx_fragments,
        /// ICMP messages received, neighbour discovery included.
        rx_icmp,
        /// ICMP messages sent, neighbour discovery included.
        tx_icmp,
        /// IGMP messages received; MLD's are among those of ICMP.
        rx_igmp,
        /// IGMP and MLD messages sent.
        tx_group_reports,
        /// Echo requests answered.
        icmp_echo_answered,
        /// ICMP errors sent.
        icmp_errors_sent,
        /// ICMP errors withheld by the rate limit.
        icmp_errors_withheld,
        /// ICMP errors received and passed on to sockets.
        icmp_errors_received,
        /// Neighbours that answered.
        neighbors_resolved,
        /// Neighbours that never answered.
        neighbors_failed,
        /// Neighbour entries evicted to make room.
        neighbors_evicted,
        /// Other stations seen using an address of ours.
        address_conflicts,
        /// Transport checksums verified in software.
        rx_checksums_verified,
        /// Transport checksums completed in software.
        tx_checksums_completed,
        /// Super-frames cut in software.
        tx_cut_in_software,
        /// Received payloads that had bytes behind the headers moved to pages.
        rx_head_payloads,
        /// UDP datagrams received.
        rx_udp,
        /// UDP datagrams sent.
        tx_udp,
        /// TCP segments received, super-frames counted once.
        rx_tcp,
        /// TCP segments sent, super-frames counted once.
        tx_tcp,
        /// Connections we opened.
        tcp_active_opens,
        /// Connections others opened to us.
        tcp_passive_opens,
        /// SYNs that the application was shown before an answer.
        tcp_requests,
        /// Requests that lapsed because no further SYN came.
        tcp_requests_given_up,
        /// Accepted requests that were reset before their handshake was complete, to make room.
        tcp_requests_evicted,
        /// SYNs answered with cookies.
        tcp_syn_cookies_sent,
        /// Connections opened by a returned cookie.
        tcp_syn_cookies_received,
        /// Acknowledgements with an invalid cookie.
        tcp_syn_cookies_failed,
        /// Connection attempts that failed.
        tcp_attempts_failed,
        /// Established connections that the peer reset.
        tcp_established_resets,
        /// Established connections that ended because the peer did not answer, or was unreachable.
        tcp_established_lost,
        /// Connections we opened, with data in the SYN that the peer took (Fast Open).
        tcp_fast_open_active,
        /// Connections others opened to us with Fast Open.
        tcp_fast_open_passive,
        /// SYNs with an invalid Fast Open cookie.
        tcp_fast_open_passive_failures,
        /// SYNs that requested a Fast Open cookie.
        tcp_fast_open_cookie_requests,
        /// SYNs whose data was ignored because too many Fast Open connections were pending.
        tcp_fast_open_overflows,
        /// Connections we opened whose SYN's data the peer did not take, or did not answer.
        tcp_fast_open_refused,
        /// How often a path seemed to swallow Fast Open connections.
        tcp_fast_open_black_holes,
        /// ICMP errors that quote a sequence number not in flight.
        tcp_icmp_outside_window,
        /// Connections in TIME-WAIT that a new connection of ours replaced.
        tcp_time_wait_reused,
        /// Connections in TIME-WAIT that were evicted by later ones.
        tcp_time_wait_evicted,
        /// Segments sent with the reset flag.
        tcp_resets_sent,
        /// Retransmitted segments.
        tcp_retransmits,
        /// Retransmission timeouts.
        tcp_timeouts,
        /// Fast recoveries entered.
        tcp_fast_recoveries,
    }
    {
        drops: Tally<DropReason, { DropReason::COUNT }>,
        tcp_drops: Tally<TcpDropReason, { TcpDropReason::COUNT }>,
    }
}

impl Counters {
    /// Begins with all counters at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one drop.
    pub fn drop_one(&mut self, reason: DropReason) {
        self.drop_many(reason, 1);
    }

    /// Counts `n` drops.
    pub fn drop_many(&mut self, reason: DropReason, n: u64) {
        self.drops.note(reason, n);
    }

    /// Drops for this reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason)
    }

    /// Every reason with its count.
    pub fn iter_drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.drops.iter()
    }

    /// Counts one segment, or a part of one, that a connection dropped.
    pub fn drop_tcp(&mut self, reason: TcpDropReason) {
        self.tcp_drops.note(reason, 1);
    }

    /// Drops by connections for this reason.
    pub fn tcp_drops(&self, reason: TcpDropReason) -> u64 {
        self.tcp_drops.get(reason)
    }

    /// Every reason of connections with its count.
    pub fn iter_tcp_drops(&self) -> impl Iterator<Item = (TcpDropReason, u64)> + '_ {
        self.tcp_drops.iter()
    }

    /// Drops for all reasons.
    pub fn total_drops(&self) -> u64 {
        self.drops.total() + self.tcp_drops.total()
    }
}

/// Writes a line for each counter that is not zero, then one for each reason with drops.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, n) in self.iter().filter(|(_, n)| *n > 0) {
            writeln!(f, "{name:<28} {n}")?;
        }
        for (reason, n) in self.iter_drops().filter(|(_, n)| *n > 0) {
            writeln!(f, "drop {:<23} {n}", reason.name())?;
        }
        for (reason, n) in self.iter_tcp_drops().filter(|(_, n)| *n > 0) {
            writeln!(f, "drop {:<23} {n}", reason.name())?;
        }
        Ok(())
    }
}
