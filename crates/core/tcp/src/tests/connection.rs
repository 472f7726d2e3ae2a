//! The size of a connection, and that an idle one owns no heap.

use core::mem::size_of;
use core::time::Duration;

use super::*;
use crate::tests::Host;
use crate::{LinkLimits, RecvFlags};

/// An idle connection is this and nothing else: 100,000 of them are 57 MB at most.
#[test]
fn connection_is_at_most_568_bytes() {
    println!(
        "{} = path {} life {} out {} inbound {}",
        size_of::<Connection>(),
        size_of::<Path>(),
        size_of::<Life>(),
        size_of::<Outbound>(),
        size_of::<Inbound>(),
    );
    assert!(size_of::<Connection>() <= 568, "{}", size_of::<Connection>());
}

/// A connection over which data went both ways, with a loss, gives all memory back.
#[test]
fn idle_connection_owns_no_heap() {
    let mut host = Host::new();
    let [mut a, mut b] = host.connected(&Config::default(), LinkLimits::new(1460, 1460));
    for round in 0..200 {
        host.now += Duration::from_millis(10);
        if round == 10 {
            host.send(&mut a, 100_000);
        }
        let mut lose = round == 10;
        while let Some(s) = a.poll_transmit(&mut host.env()) {
            if !core::mem::take(&mut lose) {
                let _ = b.handle_segment(&mut host.env(), &s.header, s.payload, 0);
            }
            a.out.check();
        }
        let mut buffer = vec![0; 200_000];
        let _ = b.read(&mut host.env(), &mut buffer, RecvFlags::empty());
        while let Some(s) = b.poll_transmit(&mut host.env()) {
            let _ = a.handle_segment(&mut host.env(), &s.header, s.payload, 0);
        }
        for conn in [&mut a, &mut b] {
            if conn.poll_timeout().is_some_and(|at| at <= host.now) {
                conn.handle_timeout(&mut host.env());
            }
        }
    }
    assert_eq!((a.out.transfer.bytes_acked, b.inbound.bytes_received), (100_000, 100_000));
    assert_eq!(a.out.transfer.losses().recoveries, 1);
    for conn in [&a, &b] {
        assert!(!conn.out.has_heap());
        assert_eq!(conn.poll_timeout(), None);
    }
}
