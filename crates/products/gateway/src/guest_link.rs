//! [`GuestLink`]: the addresses on a guest's link, and which of them only the gateway answers for.

use std::net::IpAddr;

use pagewire::Cidr;

/// The link between a guest and its gateway.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestLink {
    /// The gateway's addresses, those of the guest's routers first.
    pub(crate) ours: Vec<IpAddr>,
    /// The networks of the guest's addresses.
    pub(crate) networks: Vec<Cidr>,
    /// The guest's own addresses, as far as they are known.
    pub(crate) guests: Vec<IpAddr>,
    /// The networks have other hosts, which the guest reaches through the gateway.
    pub(crate) proxy_arp: bool,
}

impl GuestLink {
    /// The gateway's first address of the same version of IP.
    pub(crate) fn own_address(&self, like: IpAddr) -> Option<IpAddr> {
        self.ours.iter().find(|ip| ip.is_ipv4() == like.is_ipv4()).copied()
    }

    /// Whether the address leads nowhere beyond this link: it is the guest's own, or of a network in which the
    /// gateway is the only other host.
    pub(crate) fn ends_here(&self, ip: IpAddr) -> bool {
        if self.proxy_arp {
            return self.guests.contains(&ip);
        }
        self.ours.contains(&ip) || self.networks.iter().any(|network| network.contains(ip))
    }

    /// Whether the guest can answer to the client's own address. It cannot answer to an address that means
    /// another host in each place, to one of this link's own, nor to one of a network in which nobody stands for the
    /// client.
    pub(crate) fn can_answer(&self, client: IpAddr, guest: IpAddr) -> bool {
        let local = match client {
            IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.is_unspecified(),
            IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified(),
        };
        let same = client.is_ipv4() == guest.is_ipv4();
        let free = client != guest && !self.ours.contains(&client) && !self.ends_here(client);
        same && !local && free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(proxy_arp: bool) -> GuestLink {
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        GuestLink {
            ours: all(&["10.0.2.2", "fd00:2::2"]),
            networks: vec!["10.0.2.0/24".parse().unwrap(), "fd00:2::/64".parse().unwrap()],
            guests: all(&["10.0.2.15", "fd00:2::f"]),
            proxy_arp,
        }
    }

    #[test]
    fn the_guests_network_ends_at_the_gateway_unless_that_stands_for_others() {
        for (address, alone, among_others) in [
            ("10.0.2.2", true, false),
            ("10.0.2.99", true, false),
            ("fd00:2::99", true, false),
            ("10.0.2.15", true, true),
            ("203.0.113.1", false, false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(link(false).ends_here(address), alone, "{address}");
            assert_eq!(link(true).ends_here(address), among_others, "{address}");
        }
    }

    #[test]
    fn a_client_keeps_its_address_where_the_guest_can_answer_to_that() {
        for (client, guest, kept) in [
            ("203.0.113.1", "10.0.2.15", [true, true]),
            // These addresses mean another host to the guest.
            ("127.0.0.1", "10.0.2.15", [false, false]),
            ("127.5.5.5", "10.0.2.15", [false, false]),
            ("169.254.1.1", "10.0.2.15", [false, false]),
            ("0.0.0.0", "10.0.2.15", [false, false]),
            ("10.0.3.7", "10.0.2.15", [true, true]),
            // The addresses are of different versions of IP.
            ("2001:db8::1", "10.0.2.15", [false, false]),
            ("203.0.113.1", "fd00:2::f", [false, false]),
            ("2001:db8::1", "fd00:2::f", [true, true]),
            ("::1", "fd00:2::f", [false, false]),
            ("::", "fd00:2::f", [false, false]),
            ("fe80::1", "fd00:2::f", [false, false]),
            ("febf::1", "fd00:2::f", [false, false]),
            // The guest resolves these on its link.
            ("10.0.2.7", "10.0.2.15", [false, true]),
            ("10.0.2.15", "10.0.2.15", [false, false]),
            ("10.0.2.2", "10.0.2.15", [false, false]),
            ("fd00:2::7", "fd00:2::f", [false, true]),
        ] {
            let (client, guest) = (client.parse().unwrap(), guest.parse().unwrap());
            let found = [false, true].map(|proxy| link(proxy).can_answer(client, guest));
            assert_eq!(found, kept, "{client} to {guest}");
        }
    }
}
