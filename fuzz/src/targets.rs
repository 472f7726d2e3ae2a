//! What the fuzz targets do with their bytes. Shared with the test that replays the corpus, so
//! that `make test` runs every input that was ever of interest.
//!
//! A target must return: a panic, an endless loop or unbounded memory is a finding.

use std::collections::VecDeque;
use std::time::Duration;

use pagewire_device::{Capabilities, FaultConfig, HeaderSplit, Medium};
use pagewire_mem::{CopyLedger, Instant, PacketBuf, PagePool, PageWriter, RxChecksum};
use pagewire_stack::{Cidr, Stack, StackConfig, fuzzing};
use pagewire_tcp::TcpHeader;

/// A replay of one input by the target's name; `false`: no such target.
pub(crate) fn replay(target: &str, data: &[u8]) -> bool {
    let run: fn(&[u8]) = match target {
        "arp" => arp,
        "cidr" => cidr,
        "ethernet" => ethernet,
        "fault_spec" => fault_spec,
        "icmp" => icmp,
        "ipv4" => ipv4,
        "ipv6" => ipv6,
        "ndp" => ndp,
        "stack_frames" => stack_frames,
        "tap_frame" => tap_frame,
        "tcp_header" => tcp_header,
        "udp" => udp,
        _ => return false,
    };
    run(data);
    true
}

/// A header that parses is emitted and parsed again to the same value.
pub(crate) fn tcp_header(data: &[u8]) {
    if let Ok((header, len)) = TcpHeader::parse(data) {
        assert!(len <= data.len());
        let mut bytes = [0; pagewire_tcp::MAX_HEADER_LEN];
        let emitted = header.emit(&mut bytes);
        let (again, _) = TcpHeader::parse(&bytes[..emitted]).expect("what we emit, we parse");
        assert_eq!(TcpHeader { options: again.options, ..header }, again);
    }
}

/// Ethernet headers.
pub(crate) fn ethernet(data: &[u8]) {
    fuzzing::ethernet(data);
}

/// ARP packets.
pub(crate) fn arp(data: &[u8]) {
    fuzzing::arp(data);
}

/// IPv4 headers.
pub(crate) fn ipv4(data: &[u8]) {
    fuzzing::ipv4(data);
}

/// IPv6 headers and extension headers.
pub(crate) fn ipv6(data: &[u8]) {
    fuzzing::ipv6(data);
}

/// ICMP and ICMPv6 messages, with what errors quote.
pub(crate) fn icmp(data: &[u8]) {
    fuzzing::icmp(data);
}

/// Neighbour discovery messages.
pub(crate) fn ndp(data: &[u8]) {
    fuzzing::ndp(data);
}

/// UDP headers.
pub(crate) fn udp(data: &[u8]) {
    fuzzing::udp(data);
}

/// Frames with their virtio header, as a tap's kernel side could write them.
pub(crate) fn tap_frame(data: &[u8]) {
    pagewire_device::fuzzing::tap_frame(data);
}

/// The text of `--fault`: what parses prints as text that parses to the same.
pub(crate) fn fault_spec(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(config) = text.parse::<FaultConfig>()
    {
        let again: FaultConfig = config.to_string().parse().expect("what we print, we parse");
        assert_eq!(config.to_string(), again.to_string());
    }
}

/// The text of `--addr`.
pub(crate) fn cidr(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(cidr) = text.parse::<Cidr>()
    {
        assert_eq!(cidr.to_string().parse::<Cidr>().expect("what we print, we parse"), cidr);
    }
}

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn capabilities() -> Capabilities {
    Capabilities {
        medium: Medium::Ethernet,
        mac: MAC,
        mtu: 1500,
        max_super_frame: 65_535,
        rx_checksum: true,
        tx_checksum: true,
        tso_v4: true,
        tso_v6: true,
        max_frags: pagewire_mem::MAX_FRAGS,
        header_split: HeaderSplit::None,
        queues: 1,
        by_reference: false,
    }
}

/// Whole frames into a stack with open sockets. The input is a list of records: one byte of
/// control, two bytes of length, the frame. Control bit 0: the checksum counts as verified; bit 1:
/// time passes; bit 2: the first 20 bytes land in the head, the rest in pages; bit 3: the
/// destination MAC is made ours.
pub(crate) fn stack_frames(data: &[u8]) {
    let addresses = ["10.0.0.1/24", "fd00::1/64"].map(|a| a.parse().expect("address")).to_vec();
    let mut config = StackConfig::new(capabilities(), addresses, [7; 32]);
    config.pool_bytes = 1 << 20;
    let mut now = Instant::from_millis(1);
    let mut stack = Stack::new(now, config).expect("stack");
    let any = |port| std::net::SocketAddr::from(([0, 0, 0, 0], port));
    let listener = stack.tcp_listen(now, any(80), 4).expect("listen");
    let datagrams = stack.udp_bind(any(53)).expect("bind");
    let _ = stack.tcp_connect(now, "10.0.0.2:9".parse().expect("address"), None);

    let mut pool = PagePool::new("fuzz", 1 << 20).expect("pool");
    let (mut writer, mut ledger) = (PageWriter::new(), CopyLedger::new());
    let mut out = VecDeque::new();
    let mut rest = data;
    let mut accepted = Vec::new();
    while let [control, a, b, tail @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*a, *b])).min(tail.len());
        let (frame, next) = tail.split_at(len);
        rest = next;
        let mut frame = frame.to_vec();
        if control & 8 != 0 {
            frame.iter_mut().zip(MAC).for_each(|(to, from)| *to = from);
        }
        let mut packet = PacketBuf::for_rx();
        let linear =
            if control & 4 != 0 { 20 } else { pagewire_mem::HEAD_CAPACITY }.min(frame.len());
        packet.append(linear).expect("fits").copy_from_slice(&frame[..linear]);
        let reason = pagewire_mem::CopyReason::DeviceRx;
        let (frags, _) = writer.write(&mut pool, &frame[linear..], &mut ledger, reason);
        for frag in frags {
            packet.push_frag(frag).expect("few fragments");
        }
        if control & 1 != 0 {
            packet.rx_checksum = RxChecksum::Valid;
        }
        if control & 2 != 0 {
            now += Duration::from_millis(300);
        }
        stack.handle_frame(now, packet);
        if stack.poll_timeout().is_some_and(|at| at <= now) {
            stack.handle_timeout(now);
        }
        while stack.poll_transmit(now, &mut out) {}
        out.clear();
        while stack.poll_event().is_some() {}
        if let Ok((id, _)) = stack.tcp_accept(now, listener) {
            accepted.push(id);
        }
        for &id in &accepted {
            let mut chunks = Vec::new();
            let _ = stack.tcp_recv_chunks(now, id, 1000, &mut chunks);
            let _ = stack.tcp_write(now, id, b"answer");
        }
        let _ = stack.udp_recv_from(now, datagrams);
        stack.end_turn();
    }
    assert!(stack.pool_audit().is_conserved());
}
