//! Settings of a datagram socket, and groups.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use pagewire_stack::{GroupLink, MulticastSettings, PacketMarks, SocketOption};

use super::UdpSocket;
use crate::net::device::{find_device, name_device};
use crate::net::error::errno;

fn byte(value: u32) -> io::Result<u8> {
    u8::try_from(value).map_err(|_| io::Error::from_raw_os_error(errno::INVAL))
}

impl UdpSocket {
    /// Whether it may send to broadcast addresses (`SO_BROADCAST`).
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(self.settings().broadcast)
    }

    /// Sets whether it may send to broadcast addresses.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.socket.with(|stack, _| {
            stack.as_udp(self.socket.id)?.set_broadcast(on);
            Ok(())
        })?;
        self.settings().broadcast = on;
        Ok(())
    }

    /// The time to live of packets (`IP_TTL`).
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// Sets the time to live of packets.
    ///
    /// # Errors
    /// `InvalidInput` unless it is 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }

    /// The type of service (`IP_TOS`).
    pub fn tos_v4(&self) -> io::Result<u32> {
        Ok(u32::from(self.socket.marks().traffic_class))
    }

    /// Sets the type of service.
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        let traffic_class = tos as u8;
        self.socket.set_marks(PacketMarks { traffic_class, ..self.socket.marks() })
    }

    /// [`tos_v4`](Self::tos_v4).
    #[deprecated(
        note = "`tos` related methods have been renamed `tos_v4` since they are IPv4-specific."
    )]
    pub fn tos(&self) -> io::Result<u32> {
        self.tos_v4()
    }

    /// [`set_tos_v4`](Self::set_tos_v4).
    #[deprecated(
        note = "`tos` related methods have been renamed `tos_v4` since they are IPv4-specific."
    )]
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        self.set_tos_v4(tos)
    }

    /// The traffic class (`IPV6_TCLASS`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a socket of IPv4.
    pub fn tclass_v6(&self) -> io::Result<u32> {
        self.check_v6(errno::OPNOTSUPP)?;
        self.tos_v4()
    }

    /// Sets the traffic class.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a socket of IPv4, `InvalidInput` for more than 255.
    pub fn set_tclass_v6(&self, tclass: u32) -> io::Result<()> {
        self.check_v6(errno::NOPROTOOPT)?;
        self.set_tos_v4(u32::from(byte(tclass)?))
    }

    /// Linux's answers differ for getters and setters.
    fn check_v6(&self, number: i32) -> io::Result<()> {
        let refused = || io::Error::from_raw_os_error(number);
        self.socket.v6.then_some(()).ok_or_else(refused)
    }

    /// The device that it is bound to (`SO_BINDTODEVICE`).
    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(name_device(self.settings().link))
    }

    /// Binds it to a device, which is `eth0`, or to none.
    ///
    /// # Errors
    /// `ENODEV` for another name.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        let link = find_device(&self.socket.here, interface)?;
        self.socket.with(|stack, _| stack.set_option(self.socket.id, SocketOption::Link(link)))?;
        self.settings().link = link;
        Ok(())
    }
}

/// Groups.
impl UdpSocket {
    fn group<T>(&self, v6: bool, get: impl Fn(MulticastSettings) -> T) -> io::Result<T> {
        self.socket.with(|stack, _| Ok(get(stack.as_udp(self.socket.id)?.multicast(v6))))
    }

    fn set_group(&self, v6: bool, set: impl Fn(&mut MulticastSettings)) -> io::Result<()> {
        self.socket.with(|stack, _| {
            let mut udp = stack.as_udp(self.socket.id)?;
            let mut settings = udp.multicast(v6);
            set(&mut settings);
            udp.set_multicast(v6, settings);
            Ok(())
        })
    }

    /// Whether datagrams to groups loop back to this host (`IP_MULTICAST_LOOP`).
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.group(false, |settings| settings.loops)
    }

    /// Sets whether datagrams to groups loop back to this host.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.set_group(false, |settings| settings.loops = on)
    }

    /// The time to live of datagrams to groups (`IP_MULTICAST_TTL`).
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.group(false, |settings| u32::from(settings.hops))
    }

    /// Sets the time to live of datagrams to groups; 0: on this host only.
    ///
    /// # Errors
    /// `InvalidInput` for more than 255.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        let hops = byte(ttl)?;
        self.set_group(false, |settings| settings.hops = hops)
    }

    /// Whether datagrams to groups of IPv6 loop back to this host (`IPV6_MULTICAST_LOOP`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a socket of IPv4.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.check_v6(errno::OPNOTSUPP)?;
        self.group(true, |settings| settings.loops)
    }

    /// Sets whether datagrams to groups of IPv6 loop back to this host.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for a socket of IPv4.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.check_v6(errno::NOPROTOOPT)?;
        self.set_group(true, |settings| settings.loops = on)
    }

    /// Joins a group on the device with the address `interface`, or if that is unspecified, on the
    /// one that leads there.
    ///
    /// # Errors
    /// `InvalidInput` for what is no group, `AddrInUse` if it has joined, `ENODEV`.
    pub fn join_multicast_v4(&self, multiaddr: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        let on = on_v4(interface);
        self.socket
            .with(|stack, now| stack.as_udp(self.socket.id)?.join_group(now, multiaddr.into(), on))
    }

    /// Joins a group on the device with this number, or if that is 0, on the one that leads there.
    ///
    /// # Errors
    /// As [`join_multicast_v4`](Self::join_multicast_v4); `ENOPROTOOPT` for a socket of IPv4.
    pub fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.check_v6(errno::NOPROTOOPT)?;
        let (group, on) = ((*multiaddr).into(), on_v6(interface));
        self.socket.with(|stack, now| stack.as_udp(self.socket.id)?.join_group(now, group, on))
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `AddrNotAvailable` if it has not joined.
    pub fn leave_multicast_v4(&self, multiaddr: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        let on = on_v4(interface);
        self.socket
            .with(|stack, now| stack.as_udp(self.socket.id)?.leave_group(now, multiaddr.into(), on))
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `AddrNotAvailable` if it has not joined, `ENOPROTOOPT` for a socket of IPv4.
    pub fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.check_v6(errno::NOPROTOOPT)?;
        let (group, on) = ((*multiaddr).into(), on_v6(interface));
        self.socket.with(|stack, now| stack.as_udp(self.socket.id)?.leave_group(now, group, on))
    }
}

fn on_v4(interface: Ipv4Addr) -> GroupLink {
    match interface.is_unspecified() {
        true => GroupLink::Route,
        false => GroupLink::Address(interface.into()),
    }
}

fn on_v6(interface: u32) -> GroupLink {
    if interface == 0 { GroupLink::Route } else { GroupLink::Number(interface) }
}
