//! Echo through a tap as the kernel's raw sockets see it, in a network namespace that goes with the test.
//! Needs root and `ip`.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};

use crate::support::on_a_tap;

/// Adds up 16-bit words; a message with its checksum gives 0xffff.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

/// A raw socket gets messages as they are in memory, and no kernel completes their checksums.
#[test]
fn an_echo_reply_has_its_checksum_where_a_raw_socket_looks() {
    on_a_tap("10.79.8.1/24", "10.79.8.2/24", |host| {
        let (family, kind) = (AddressFamily::INET, SocketType::RAW);
        let raw = rustix::net::socket(family, kind, Some(ipproto::ICMP)).unwrap();
        let limit = Some(Duration::from_secs(30));
        sockopt::set_socket_timeout(&raw, sockopt::Timeout::Recv, limit).unwrap();
        let to: SocketAddr = "10.79.8.2:0".parse().unwrap();
        for len in [0, 1, 56, 1001, 1400] {
            let mut request = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
            request.extend((0..len).map(|i| i as u8));
            let check = !sum(&request);
            request[2..4].copy_from_slice(&check.to_be_bytes());
            rustix::net::sendto(&raw, &request, SendFlags::empty(), &to).unwrap();
            let mut buffer = [0u8; 2000];
            let reply = loop {
                let (n, _) = rustix::net::recv(&raw, &mut buffer[..], RecvFlags::empty()).unwrap();
                // The IP header is in front.
                let message = &buffer[20..n];
                if message[0] == 0 {
                    break message;
                }
            };
            assert_eq!(reply[4..], request[4..], "identifier, sequence and payload");
            assert_eq!(sum(reply), 0xffff, "the checksum of a reply of {len} bytes");
        }
        drop(host);
    });
}
