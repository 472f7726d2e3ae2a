//! The bodies of the fuzz targets. The test that replays the corpus has this file, too, so
//! that `make test` runs every input that was ever of interest.
//!
//! In `fuzz/corpus`, inputs with a name and a number are seeds: valid inputs, each with every length and
//! offset one too small, one too large and at its limits, and cut short; and whole conversations. The
//! others, named by a hash, were found by the fuzzer.
//!
//! A target must return: a panic, an endless loop or unbounded memory is a finding.

mod c;
mod connection;
mod frames;
mod posix;
mod rings;
mod verbs;

use pagewire_device::FaultConfig;
use pagewire_stack::Cidr;
use pagewire_tcp::TcpHeader;

pub use c::c_calls;
pub use connection::tcp_connection;
pub use frames::{gateway_frames, stack_frames};
pub use pagewire_device::fuzzing::{
    frames_datagram, frames_stream, tap_frame, vhost_messages, virtqueue,
};
pub use pagewire_stack::fuzzing::{arp, ethernet, icmp, ipv4, ipv6, ndp, udp};
pub use posix::posix_calls;
pub use rings::ring_words;

/// A replay of one input by the target's name; `false`: no such target.
pub fn replay(target: &str, data: &[u8]) -> bool {
    let run: fn(&[u8]) = match target {
        "arp" => arp,
        "autoconf" => autoconf,
        "c_calls" => |data| _ = c_calls(data, false),
        "cidr" => cidr,
        "control_lines" => control_lines,
        "dns_message" => dns_message,
        "ethernet" => ethernet,
        "fault_spec" => fault_spec,
        "frames_datagram" => frames_datagram,
        "frames_stream" => frames_stream,
        "gateway_frames" => |data| _ = gateway_frames(data),
        "handshake" => handshake,
        "icmp" => icmp,
        "ipv4" => ipv4,
        "ipv6" => ipv6,
        "judge_answers" => judge_answers,
        "ndp" => ndp,
        "posix_calls" => |data| _ = posix_calls(data),
        "ring_words" => |data| _ = ring_words(data),
        "rule" => rule,
        "rules_file" => rules_file,
        "shown_datagrams" => shown_datagrams,
        "shown_stream" => shown_stream,
        "stack_frames" => |data| _ = stack_frames(data),
        "tap_frame" => tap_frame,
        "tcp_connection" => |data| _ = tcp_connection(data),
        "tcp_header" => tcp_header,
        "udp" => udp,
        "vhost_messages" => vhost_messages,
        "via" => via,
        "virtqueue" => virtqueue,
        _ => return false,
    };
    run(data);
    true
}

/// A header that parses is emitted and parsed again to the same value.
pub fn tcp_header(data: &[u8]) {
    if let Ok((header, len)) = TcpHeader::parse(data) {
        assert!(len <= data.len());
        let mut bytes = [0; pagewire_tcp::MAX_HEADER_LEN];
        let emitted = header.emit(&mut bytes);
        let (again, _) = TcpHeader::parse(&bytes[..emitted]).expect("what we emit, we parse");
        assert_eq!(TcpHeader { options: again.options, ..header }, again);
    }
}

/// A guest's query and a resolver's answer, the query behind its length.
pub fn dns_message(data: &[u8]) {
    let Some((len, rest)) = data.split_first_chunk() else { return };
    let at = usize::from(u16::from_be_bytes(*len)).min(rest.len());
    let (query, answer) = rest.split_at(at);
    pagewire_gateway::fuzzing::dns_message(query, answer);
}

/// The text of a gateway's rule.
pub fn rule(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        pagewire_gateway::fuzzing::rule(text);
    }
}

/// The text of a way out of a gateway.
pub fn via(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        pagewire_gateway::fuzzing::via(text);
    }
}

/// The answers of a gateway's proxy: the size of its pieces, its protocol and whether there are credentials, and its
/// bytes.
pub fn handshake(data: &[u8]) {
    let Some((&[piece, how], bytes)) = data.split_first_chunk() else { return };
    pagewire_gateway::fuzzing::handshake(bytes, piece.into(), how & 1 != 0, how & 2 != 0);
}

/// A client of a control socket: the size of its pieces, whether it may change the gateway, and its bytes.
pub fn control_lines(data: &[u8]) {
    let Some((&[piece, switches], bytes)) = data.split_first_chunk() else { return };
    // From single bytes to a whole request.
    let piece = 1 + usize::from(piece) * 16;
    pagewire_control::fuzzing::control_lines(bytes, piece, switches & 1 != 0);
}

/// What a program that judges a gateway's flows writes: the place of a cut, and its bytes.
pub fn judge_answers(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first_chunk() else { return };
    pagewire_gateway::fuzzing::judge_answers(bytes, u16::from_be_bytes(*cut).into());
}

/// The text of a file with a gateway's rules.
pub fn rules_file(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        pagewire_gateway::fuzzing::rules_file(text);
    }
}

/// A connection that must show a name: the size of its pieces, whether the far side agrees to changes of protocol,
/// and its bytes.
pub fn shown_stream(data: &[u8]) {
    let Some((&[piece, switches], bytes)) = data.split_first_chunk() else { return };
    pagewire_gateway::fuzzing::shown(bytes, piece.into(), switches & 1 != 0);
}

/// Datagrams of a flow that must show a name: each behind its length.
pub fn shown_datagrams(data: &[u8]) {
    let mut rest = data;
    let datagrams = std::iter::from_fn(|| {
        let (len, behind) = rest.split_first_chunk()?;
        let (datagram, behind) = behind.split_at(behind.len().min(u16::from_be_bytes(*len).into()));
        rest = behind;
        Some(datagram)
    });
    pagewire_gateway::fuzzing::shown_datagrams(datagrams);
}

/// A guest's frames on a link that configures it: of each the length, how much of it is in the
/// packet's head, and its bytes.
pub fn autoconf(data: &[u8]) {
    let mut rest = data;
    let frames = std::iter::from_fn(|| {
        let (&[high, low, head], behind) = rest.split_first_chunk()?;
        let at = usize::from(u16::from_be_bytes([high, low])).min(behind.len());
        let (frame, behind) = behind.split_at(at);
        rest = behind;
        Some((frame, usize::from(head)))
    });
    pagewire_gateway::fuzzing::autoconf(frames);
}

/// The text of `--fault`: what parses prints as text that parses to the same.
pub fn fault_spec(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(config) = text.parse::<FaultConfig>()
    {
        let again: FaultConfig = config.to_string().parse().expect("what we print, we parse");
        assert_eq!(config.to_string(), again.to_string());
    }
}

/// The text of `--addr`.
pub fn cidr(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(cidr) = text.parse::<Cidr>()
    {
        assert_eq!(cidr.to_string().parse::<Cidr>().expect("what we print, we parse"), cidr);
    }
}
