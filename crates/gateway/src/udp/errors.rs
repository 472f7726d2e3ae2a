//! Errors about datagrams: what the network, or this machine, reports becomes the ICMP message that
//! the guest would have got.

use std::io;
use std::net::IpAddr;

use pagewire_stack::Unreachable;

use crate::context::Denial;
use crate::sys::datagrams::Reported;

/// Of `linux/errqueue.h`.
const LOCAL: u8 = 1;
const ICMP: u8 = 2;
const ICMP6: u8 = 3;

/// What the guest is told about an entry of an error queue, and by whom; `None`: nothing.
pub(crate) fn meaning(reported: &Reported) -> Option<(Unreachable, Option<IpAddr>)> {
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
    // Its own machine is no router: it speaks through the gateway.
    Some((what, reported.offender.filter(|_| reported.origin != LOCAL)))
}

/// What the guest is told when this machine cannot send; `None`: nothing.
pub(crate) fn refusal(error: &io::Error) -> Option<Unreachable> {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => Some(Unreachable::Net),
        io::ErrorKind::HostUnreachable => Some(Unreachable::Host),
        io::ErrorKind::PermissionDenied => Some(Unreachable::Prohibited),
        _ => None,
    }
}

/// What the guest is told about a verdict; `None`: nothing.
pub(crate) fn denial(denial: Denial) -> Option<Unreachable> {
    match denial {
        Denial::Refuse => Some(Unreachable::Port),
        Denial::Prohibit => Some(Unreachable::Prohibited),
        Denial::Drop => None,
    }
}
