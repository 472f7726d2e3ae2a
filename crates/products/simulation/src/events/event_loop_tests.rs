//! Looking ahead and visiting every millisecond give the same runs.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use crate::{Digest, Sim, time};

#[path = "../../tests/suite/common/mod.rs"]
mod common;

fn digest(seed: u64, look_ahead: bool) -> Digest {
    Sim::builder().seed(seed).look_ahead(look_ahead).run(common::mixed).unwrap().digest
}

#[test]
fn looking_ahead_gives_the_same_run_as_a_visit_in_every_millisecond() {
    for seed in 0..10 {
        assert_eq!(digest(seed, true), digest(seed, false), "seed {seed}");
    }
}

#[test]
fn many_timers_of_many_hosts_fire_in_the_order_of_time() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let mut expected = Vec::new();
    for look_ahead in [true, false] {
        log.borrow_mut().clear();
        expected.clear();
        let mut sim = Sim::builder().look_ahead(look_ahead).build();
        for host in 0..20_u64 {
            for n in 0..10_u64 {
                expected.push(((host * 7919 + n * n * 104_729) % 5_000 + 1, host, n));
            }
            let log = log.clone();
            sim.client(&format!("host{host}"), async move {
                let tasks: Vec<_> = (0..10_u64)
                    .map(|n| {
                        let at = (host * 7919 + n * n * 104_729) % 5_000 + 1;
                        let log = log.clone();
                        tokio::task::spawn_local(async move {
                            sleep(Duration::from_millis(at)).await;
                            let now = time::elapsed().expect("inside").as_millis() as u64;
                            assert_eq!(now, at);
                            log.borrow_mut().push((at, host, n));
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await?;
                }
                Ok(())
            });
        }
        sim.run().unwrap();
        let order = log.borrow().clone();
        assert!(order.is_sorted_by_key(|&(at, host, _)| (at, host)), "{order:?}");
        let mut all = order;
        all.sort_unstable();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }
}
