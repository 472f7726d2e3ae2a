//! Datagrams: readiness, settings, groups.

use std::io::ErrorKind;
use std::net::Ipv4Addr;

use tokio::io::Interest;

use super::net::UdpSocket;
use super::{number, poll_once, settle, two};

cases! {
    async fn a_socket_is_writable_at_once_and_readable_with_a_datagram() {
        let (a, b) = two().await?;
        a.writable().await?;
        assert!(a.ready(Interest::WRITABLE).await?.is_writable());
        assert!(poll_once(b.readable()).is_pending());
        a.send_to(b"x", b.local_addr()?).await?;
        assert!(b.ready(Interest::READABLE).await?.is_readable());
        b.readable().await?;
        assert_eq!(b.try_recv(&mut [0; 2])?, 1);
        assert!(b.try_recv(&mut [0; 2]).is_err());
        assert!(poll_once(b.readable()).is_pending());
    }

    async fn try_io_and_async_io_work_as_for_streams() {
        let (a, b) = two().await?;
        assert!(b.try_recv(&mut [0]).is_err());
        let error = b.try_io(Interest::READABLE, || Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let at = b.local_addr()?;
        let received = b.async_io(Interest::READABLE, || b.try_recv(&mut [0; 4]));
        assert_eq!(tokio::try_join!(received, a.send_to(b"abc", at))?.0, 3);
    }

    async fn two_tasks_receive_one_datagram_each() {
        let (a, b) = two().await?;
        let at = b.local_addr()?;
        let send = async {
            settle().await;
            a.send_to(b"one", at).await?;
            a.send_to(b"two", at).await
        };
        let (mut one, mut other) = ([0; 4], [0; 4]);
        tokio::try_join!(b.recv(&mut one), b.recv(&mut other), send)?;
        assert_ne!(one, other);
    }

    async fn broadcast_is_off_until_it_is_set() {
        let (a, _) = two().await?;
        assert!(!a.broadcast()?);
        a.set_broadcast(true)?;
        assert!(a.broadcast()?);
    }

    async fn a_time_to_live_is_1_to_255() {
        let (a, _) = two().await?;
        assert_eq!(a.ttl()?, 64);
        a.set_ttl(9)?;
        assert_eq!(a.ttl()?, 9);
        assert_eq!(a.set_ttl(0).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    async fn a_type_of_service_is_as_set() {
        let (a, _) = two().await?;
        a.set_tos_v4(0x2e)?;
        assert_eq!(a.tos_v4()?, 0x2e);
        assert_eq!(number(a.tclass_v6()), Some(libc::EOPNOTSUPP));
        let v6 = UdpSocket::bind("[::1]:0").await?;
        v6.set_tclass_v6(0x2e)?;
        assert_eq!(v6.tclass_v6()?, 0x2e);
    }

    async fn settings_for_groups_are_linuxs() {
        let (a, _) = two().await?;
        assert!(a.multicast_loop_v4()?);
        assert_eq!(a.multicast_ttl_v4()?, 1);
        a.set_multicast_loop_v4(false)?;
        a.set_multicast_ttl_v4(7)?;
        assert_eq!((a.multicast_loop_v4()?, a.multicast_ttl_v4()?), (false, 7));
        assert_eq!(a.set_multicast_ttl_v4(256).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(number(a.multicast_loop_v6()), Some(libc::EOPNOTSUPP));
        let v6 = UdpSocket::bind("[::1]:0").await?;
        assert!(v6.multicast_loop_v6()?);
        v6.set_multicast_loop_v6(false)?;
        assert!(!v6.multicast_loop_v6()?);
    }

    async fn what_is_no_group_cannot_be_joined() {
        let (a, _) = two().await?;
        let error = a.join_multicast_v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::UNSPECIFIED);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    async fn a_group_that_was_not_joined_cannot_be_left() {
        let (a, _) = two().await?;
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let error = a.leave_multicast_v4(group, Ipv4Addr::UNSPECIFIED).unwrap_err();
        // Without a route to the group, there is no device to check.
        let no_route = error.raw_os_error() == Some(libc::ENODEV);
        assert!(no_route || error.kind() == ErrorKind::AddrNotAvailable);
    }

    async fn an_unknown_device_is_an_error() {
        let (a, _) = two().await?;
        assert_eq!(a.device()?, None);
        assert_eq!(number(a.bind_device(Some(b"none-such"))), Some(libc::ENODEV));
    }
}
