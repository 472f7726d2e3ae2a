//! DHCP messages in Ethernet frames: recognising, reading and building them.

use std::net::Ipv4Addr;

use pagewire_mem::{CopyLedger, Instant, PacketBuf, RxChecksum};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    DHCP_CLIENT_PORT, DHCP_SERVER_PORT, DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr,
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Packet,
    Ipv4Repr, UdpPacket, UdpRepr,
};

use super::DhcpConfig;
use super::server::{Answer, Request, Server};
use crate::intercept::{copy_out, frame_of};
use crate::limits::DHCP_MAX_FRAME;

/// Ethernet, IPv4 without options, UDP.
const HEADERS: usize = 14 + 20 + 8;

/// RFC 1542 section 2.1: "The minimum length of a BOOTP message is 300 octets".
const SHORTEST_MESSAGE: usize = 300;

/// Options 15 and 26 of RFC 2132, and those of RFC 3397 and RFC 3442.
const DOMAIN_NAME: u8 = 15;
const INTERFACE_MTU: u8 = 26;
const DOMAIN_SEARCH: u8 = 119;
const CLASSLESS_ROUTES: u8 = 121;

/// Whether a frame is UDP for a DHCP server here. Reads a few header bytes of every frame.
#[inline]
pub(super) fn is_request(frame: &mut PacketBuf, config: &DhcpConfig) -> bool {
    if !frame.linearize(HEADERS) {
        return false;
    }
    let head = frame.head();
    // UDP in IPv4 without options, no fragment, to port 67.
    if head.get(12..15) != Some(&[8, 0, 0x45])
        || head.get(23) != Some(&17)
        || head.get(36..38) != Some(&DHCP_SERVER_PORT.to_be_bytes())
        || head.get(20..22).is_none_or(|f| f.first().is_none_or(|f| f & 0x3f != 0))
    {
        return false;
    }
    let to = head.get(30..34).and_then(|to| <[u8; 4]>::try_from(to).ok()).map(Ipv4Addr::from);
    to.is_some_and(|to| to.is_broadcast() || to == config.server || to == config.broadcast())
}

/// Reads a request, lets the server decide, and builds the answer's frame.
pub(super) fn answer(
    server: &mut Server,
    now: Instant,
    frame: &PacketBuf,
    mac: [u8; 6],
    ledger: &mut CopyLedger,
) -> Option<PacketBuf> {
    let mut bytes = [0; DHCP_MAX_FRAME];
    let checked = frame.rx_checksum == RxChecksum::Valid;
    let Some(message) = copy_out(frame, &mut bytes, ledger).and_then(|b| message(b, checked))
    else {
        server.counters.malformed += 1;
        return None;
    };
    let answer = server.handle(now, &message.request)?;
    let built = build(server, &message, answer, mac);
    if built.is_none() {
        server.counters.unanswered += 1;
    }
    built
}

/// The content of a request, and what its answer repeats.
struct Message {
    request: Request,
    transaction: u32,
    /// The client cannot receive packets to an address that it does not have yet.
    broadcast: bool,
    identifier: Option<EthernetAddress>,
}

/// Reads a valid frame; `checked`: its UDP checksum is known to be right.
fn message(bytes: &[u8], checked: bool) -> Option<Message> {
    let ip = Ipv4Packet::new_checked(bytes.get(14..)?).ok()?;
    if !ip.verify_checksum() {
        return None;
    }
    let udp = UdpPacket::new_checked(ip.payload()).ok()?;
    if !checked && !udp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()) {
        return None;
    }
    let packet = DhcpPacket::new_checked(udp.payload()).ok()?;
    let said = DhcpRepr::parse(&packet).ok()?;
    Some(Message {
        request: Request {
            kind: said.message_type,
            client: said.client_hardware_address.0,
            has: said.client_ip,
            wants: said.requested_ip,
            server: said.server_identifier,
            relay: said.relay_agent_ip,
        },
        transaction: said.transaction_id,
        broadcast: said.broadcast,
        identifier: said.client_identifier,
    })
}

/// RFC 2131 section 4.1: to the address that the client has; to all, if it has none and says so, or
/// is refused; else to its new address, at its link address.
fn destination(
    message: &Message,
    given: Option<Ipv4Addr>,
    configures: bool,
) -> (Ipv4Addr, [u8; 6]) {
    let request = &message.request;
    let to = match (request.has, given) {
        _ if !configures => Ipv4Addr::BROADCAST,
        (has, _) if !has.is_unspecified() => has,
        (_, Some(given)) if !message.broadcast => given,
        _ => Ipv4Addr::BROADCAST,
    };
    (to, if to.is_broadcast() { EthernetAddress::BROADCAST.0 } else { request.client })
}

/// Domains as DNS encodes them (RFC 3397 section 2, RFC 1035 section 3.1), as many as one option holds.
fn search_list(domains: &[String]) -> Vec<u8> {
    let mut list = Vec::new();
    for domain in domains {
        // Each label has its length in front of it, and the root's ends the name.
        if list.len() + domain.len() + 2 > usize::from(u8::MAX) {
            break;
        }
        for label in domain.split('.') {
            list.push(label.len() as u8);
            list.extend_from_slice(label.as_bytes());
        }
        list.push(0);
    }
    list
}

/// The routes of a client whose router is outside of its network: to the router, on the link, and through
/// it to all others (RFC 3442). A route is the prefix, as many bytes as that needs, and the router.
fn routes_through(router: Ipv4Addr) -> Vec<u8> {
    let [a, b, c, d] = router.octets();
    vec![32, a, b, c, d, 0, 0, 0, 0, 0, a, b, c, d]
}

fn build(server: &Server, message: &Message, answer: Answer, mac: [u8; 6]) -> Option<PacketBuf> {
    let (config, request) = (server.config(), &message.request);
    let (kind, given) = match answer {
        Answer::Offer(address) => (DhcpMessageType::Offer, Some(address)),
        Answer::Ack(address) => (DhcpMessageType::Ack, Some(address)),
        Answer::Inform => (DhcpMessageType::Ack, None),
        Answer::Nak => (DhcpMessageType::Nak, None),
    };
    // RFC 2131 table 3: a DHCPNAK has none of the client's settings.
    let configures = answer != Answer::Nak;
    let mtu = server.mtu.to_be_bytes();
    let mut options = vec![DhcpOption { kind: INTERFACE_MTU, data: &mtu }];
    let list = search_list(&config.search);
    if let Some(domain) = config.search.first() {
        options.push(DhcpOption { kind: DOMAIN_NAME, data: domain.as_bytes() });
        options.push(DhcpOption { kind: DOMAIN_SEARCH, data: &list });
    }
    let apart = config.router.filter(|router| !config.is_around(*router));
    let routes = apart.map(routes_through);
    options.extend(routes.iter().map(|data| DhcpOption { kind: CLASSLESS_ROUTES, data }));
    let dns = (configures && !config.dns.is_empty()).then(|| config.dns.iter().copied().collect());
    let repr = DhcpRepr {
        message_type: kind,
        transaction_id: message.transaction,
        secs: 0,
        client_hardware_address: EthernetAddress(request.client),
        client_ip: if configures { request.has } else { Ipv4Addr::UNSPECIFIED },
        your_ip: given.unwrap_or(Ipv4Addr::UNSPECIFIED),
        server_ip: Ipv4Addr::UNSPECIFIED,
        router: config.router.filter(|_| configures),
        subnet_mask: configures.then(|| config.mask()),
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: message.broadcast,
        requested_ip: None,
        // RFC 6842: the client's identifier is repeated.
        client_identifier: message.identifier,
        server_identifier: Some(config.server),
        parameter_request_list: None,
        dns_servers: dns,
        max_size: None,
        lease_duration: given.map(|_| config.lease.as_secs() as u32),
        renew_duration: None,
        rebind_duration: None,
        additional_options: if configures { &options } else { &[] },
    };

    let (to, link) = destination(message, given, configures);
    let len = repr.buffer_len().max(SHORTEST_MESSAGE);
    let mut bytes = vec![0; HEADERS + len];
    let mut ethernet = EthernetFrame::new_checked(&mut bytes).ok()?;
    let (src_addr, dst_addr) = (EthernetAddress(mac), EthernetAddress(link));
    EthernetRepr { src_addr, dst_addr, ethertype: EthernetProtocol::Ipv4 }.emit(&mut ethernet);
    let (src_addr, dst_addr) = (config.server, to);
    let ip = Ipv4Repr {
        src_addr,
        dst_addr,
        next_header: IpProtocol::Udp,
        payload_len: 8 + len,
        hop_limit: 64,
    };
    let checksums = ChecksumCapabilities::default();
    let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
    ip.emit(&mut packet, &checksums);
    let mut emitted = Ok(());
    UdpRepr { src_port: DHCP_SERVER_PORT, dst_port: DHCP_CLIENT_PORT }.emit(
        &mut UdpPacket::new_unchecked(packet.payload_mut()),
        &src_addr.into(),
        &dst_addr.into(),
        len,
        |payload| emitted = repr.emit(&mut DhcpPacket::new_unchecked(payload)),
        &checksums,
    );
    emitted.ok()?;
    frame_of(bytes, HEADERS)
}
