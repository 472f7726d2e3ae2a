use core::mem::size_of;

use std::sync::Arc;

use pagewire_mem::{CopyLedger, PagePool, PageWriter};

use super::*;
use crate::{Env, LinkLimits, Ports, RecvFlags, SendFlags, Seq, Shared};

/// An idle connection is this and nothing else (`conformance/memory.rs`): 100,000 of them are
/// 72 MB at most.
#[test]
fn connection_is_at_most_720_bytes() {
    println!(
        "{} = path {} life {} out {} inbound {}",
        size_of::<Connection>(),
        size_of::<Path>(),
        size_of::<Life>(),
        size_of::<Outbound>(),
        size_of::<Inbound>(),
    );
    assert!(size_of::<Connection>() <= 704, "{}", size_of::<Connection>());
}

/// A connection over which data went both ways, with a loss, gives all memory back.
#[test]
fn idle_connection_owns_no_heap() {
    use core::time::Duration;

    use pagewire_mem::{Frag, FragVec};

    let config = Arc::new(Config::default());
    let link = LinkLimits::new(1460, 1460);
    let (mut ledger, mut writer) = (CopyLedger::new(), PageWriter::new());
    let mut pool = PagePool::new("idle", 1 << 20).unwrap();
    let now = Instant::from_millis(1);
    let mut shared = Shared::default();
    let mut env =
        Env { now, ledger: &mut ledger, pool: &mut pool, writer: &mut writer, shared: &mut shared };
    let (there, back) = (Ports { local: 1, remote: 2 }, Ports { local: 2, remote: 1 });
    let mut a = Connection::connect(now, Arc::clone(&config), link, there, Seq(1), 0);
    let syn = a.poll_transmit(&mut env).unwrap();
    let mut b = Connection::accept(now, config, link, back, Seq(2), 0, &syn.header);
    let mut frags = FragVec::new();
    for round in 0..200 {
        env.now += Duration::from_millis(10);
        if round == 10 {
            frags.push(Frag::from_bytes(vec![1; 100_000].into()));
            a.send(&mut env, &mut frags, SendFlags::empty()).unwrap();
        }
        let mut lose = round == 10;
        while let Some(s) = a.poll_transmit(&mut env) {
            if !core::mem::take(&mut lose) {
                let _ = b.handle_segment(&mut env, &s.header, s.payload, 0);
            }
            a.out.check();
        }
        let mut buffer = vec![0; 200_000];
        let _ = b.read(&mut env, &mut buffer, RecvFlags::empty());
        while let Some(s) = b.poll_transmit(&mut env) {
            let _ = a.handle_segment(&mut env, &s.header, s.payload, 0);
        }
        for conn in [&mut a, &mut b] {
            if conn.poll_timeout().is_some_and(|at| at <= env.now) {
                conn.handle_timeout(&mut env);
            }
        }
    }
    assert_eq!((a.out.transfer.stats.bytes_acked, b.inbound.bytes_received), (100_000, 100_000));
    assert_eq!(a.out.transfer.stats.recoveries, 1);
    for conn in [&a, &b] {
        assert!(!conn.out.has_heap());
        assert_eq!(conn.poll_timeout(), None);
    }
}
