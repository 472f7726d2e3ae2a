//! ICMP errors for the guest, made of the errors that the network or this machine reports: of error queues of datagram
//! sockets, and of refusals to send or connect.

use std::io;
use std::net::IpAddr;

use pagewire::services::{Flow, Instant, Stack, Unreachable};

use crate::context::Denial;
use crate::sys::datagrams::Reported;

/// Origins of errors, from `linux/errqueue.h`.
const LOCAL: u8 = 1;
const ICMP: u8 = 2;
const ICMP6: u8 = 3;

/// The ICMP error for an entry of an error queue, and the sender that the guest sees; `None`: no error. The guest
/// knows the destination as `asked`.
pub(crate) fn icmp_of(reported: &Reported, asked: IpAddr) -> Option<(Unreachable, Option<IpAddr>)> {
    let mtu = reported.info;
    let what = match (reported.origin, reported.kind) {
        (LOCAL, _) if reported.error == libc::EMSGSIZE => Unreachable::TooBig { mtu },
        // RFC 792, RFC 1812 section 5.2.7.1.
        (ICMP, (3, 4)) => Unreachable::TooBig { mtu },
        (ICMP, (3, 0 | 6 | 11)) => Unreachable::Net,
        (ICMP, (3, 1 | 5 | 7 | 8 | 12)) => Unreachable::Host,
        (ICMP, (3, 2)) => Unreachable::Protocol,
        (ICMP, (3, 3)) => Unreachable::Port,
        (ICMP, (3, 9 | 10 | 13..=15)) => Unreachable::Prohibited,
        (ICMP, (11, 0)) => Unreachable::TimeExceeded,
        // RFC 4443 section 3.
        (ICMP6, (1, 0)) => Unreachable::Net,
        (ICMP6, (1, 1 | 5 | 6)) => Unreachable::Prohibited,
        (ICMP6, (1, 2 | 3)) => Unreachable::Host,
        (ICMP6, (1, 4)) => Unreachable::Port,
        (ICMP6, (2, _)) => Unreachable::TooBig { mtu },
        (ICMP6, (3, 0)) => Unreachable::TimeExceeded,
        _ => return None,
    };
    let by = match reported.offender {
        // An error of the destination itself comes from the address that the guest knows.
        Some(by) if by == reported.to.ip() => Some(asked),
        // This machine is no router: its own errors come from the gateway.
        Some(by) if by.is_loopback() || reported.origin == LOCAL => None,
        by => by,
    };
    Some((what, by))
}

/// The ICMP error when this machine cannot send; `None`: no error.
pub(crate) fn unreachable_of(error: &io::Error, v6: bool) -> Option<Unreachable> {
    match error.kind() {
        // Linux selects a source address first: this machine has no address of that version.
        io::ErrorKind::AddrNotAvailable if v6 => Some(Unreachable::Net),
        _ if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Some(Unreachable::Net),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => Some(Unreachable::Net),
        io::ErrorKind::HostUnreachable => Some(Unreachable::Host),
        io::ErrorKind::PermissionDenied => Some(Unreachable::Prohibited),
        _ => None,
    }
}

/// Sends the guest an ICMP error about a packet, from the given sender.
pub(crate) fn send_error(
    now: Instant,
    stack: &mut Stack,
    about: &Flow,
    (why, by): (Unreachable, Option<IpAddr>),
) {
    // The stack limits these messages, and counts those beyond.
    let _ = stack.send_unreachable(now, about, why, by);
}

/// The ICMP error for a denial; `None`: no error.
pub(crate) fn unreachable_of_denial(denial: Denial) -> Option<Unreachable> {
    match denial {
        Denial::Refuse => Some(Unreachable::Port),
        Denial::Prohibit => Some(Unreachable::Prohibited),
        Denial::Unreachable => Some(Unreachable::Net),
        Denial::Drop | Denial::Forget => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(origin: u8, kind: (u8, u8), by: &str) -> Reported {
        Reported {
            error: libc::EMSGSIZE,
            origin,
            kind,
            info: 1400,
            to: "192.0.2.9:53".parse().unwrap(),
            offender: by.parse().ok(),
            quoted: ([0; 8], 0),
        }
    }

    #[test]
    fn the_destination_speaks_by_the_name_that_the_guest_has_for_it() {
        let asked = "203.0.113.1".parse().unwrap();
        let about = |kind, by| icmp_of(&reported(ICMP, kind, by), asked);
        assert_eq!(about((3, 3), "192.0.2.9"), Some((Unreachable::Port, Some(asked))));
        let router = "198.51.100.1".parse().unwrap();
        assert_eq!(about((11, 0), "198.51.100.1"), Some((Unreachable::TimeExceeded, Some(router))));
        assert_eq!(about((3, 1), "127.0.0.1"), Some((Unreachable::Host, None)));
        assert_eq!(about((12, 0), "192.0.2.9"), None);
    }

    #[test]
    fn each_report_of_the_network_is_the_message_that_the_guest_would_have_got() {
        use Unreachable::{Host, Net, Port, Prohibited, Protocol, TimeExceeded};
        let too_big = Unreachable::TooBig { mtu: 1400 };
        for (origin, kind, codes, expected) in [
            (ICMP, 3, &[0, 6, 11][..], Some(Net)),
            (ICMP, 3, &[1, 5, 7, 8, 12], Some(Host)),
            (ICMP, 3, &[2], Some(Protocol)),
            (ICMP, 3, &[3], Some(Port)),
            (ICMP, 3, &[4], Some(too_big)),
            (ICMP, 3, &[9, 10, 13, 14, 15], Some(Prohibited)),
            (ICMP, 3, &[16], None),
            (ICMP, 11, &[0], Some(TimeExceeded)),
            // Reassembly took too long.
            (ICMP, 11, &[1], None),
            (ICMP, 4, &[0], None),
            (ICMP6, 1, &[0], Some(Net)),
            (ICMP6, 1, &[1, 5, 6], Some(Prohibited)),
            (ICMP6, 1, &[2, 3], Some(Host)),
            (ICMP6, 1, &[4], Some(Port)),
            (ICMP6, 1, &[7], None),
            (ICMP6, 2, &[0], Some(too_big)),
            (ICMP6, 3, &[0], Some(TimeExceeded)),
            (ICMP6, 3, &[1], None),
            (ICMP6, 4, &[1], None),
            // No origin of errors.
            (0, 3, &[3], None),
        ] {
            for code in codes {
                let found = icmp_of(&reported(origin, (kind, *code), ""), [203, 0, 113, 1].into());
                assert_eq!(found.map(|(what, _)| what), expected, "{origin} {kind} {code}");
            }
        }
    }

    #[test]
    fn a_datagram_that_this_machine_finds_too_long_is_too_long_for_the_guest() {
        let asked = "203.0.113.1".parse().unwrap();
        let too_big = Unreachable::TooBig { mtu: 1400 };
        assert_eq!(icmp_of(&reported(LOCAL, (0, 0), ""), asked), Some((too_big, None)));
        assert_eq!(icmp_of(&reported(ICMP6, (2, 0), ""), asked), Some((too_big, None)));
    }
}
