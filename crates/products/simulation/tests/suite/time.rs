//! Time in a simulation: exact, virtual, and the same for all hosts.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use pagewire_simulation::{Control, HostOptions, Pause, Sim, Skew, time};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use crate::common::MS;

const HOUR: Duration = Duration::from_secs(3600);

type Log = Rc<RefCell<Vec<(&'static str, Duration)>>>;

fn note(log: &Log, what: &'static str) {
    log.borrow_mut().push((what, time::elapsed().expect("inside")));
}

#[test]
fn sleeps_end_at_their_own_millisecond_and_take_no_real_time() {
    let log = Log::default();
    let mut sim = Sim::builder().limit(100 * HOUR).build();
    let out = log.clone();
    sim.client("sleeper", async move {
        sleep(3 * MS).await;
        note(&out, "3 ms");
        sleep(50 * HOUR).await;
        note(&out, "50 hours later");
        Ok(())
    });
    let out = log.clone();
    sim.client("other", async move {
        let start = Instant::now();
        for _ in 0..5 {
            sleep(2 * MS).await;
        }
        assert_eq!(start.elapsed(), 10 * MS);
        note(&out, "10 ms");
        Ok(())
    });
    let report = sim.run().unwrap();
    let expected = [("3 ms", 3 * MS), ("10 ms", 10 * MS), ("50 hours later", 50 * HOUR + 3 * MS)];
    assert_eq!(*log.borrow(), expected);
    assert_eq!(report.elapsed, 50 * HOUR + 3 * MS);
    assert!(report.counts.runs < 100, "{:?}", report.counts);
}

#[test]
fn a_sleep_is_rounded_up_to_a_whole_millisecond_as_tokio_does() {
    let mut sim = Sim::builder().build();
    sim.client("c", async {
        sleep(Duration::from_micros(1)).await;
        assert_eq!(time::elapsed()?, MS);
        sleep_until(Instant::now() + Duration::from_micros(1500)).await;
        assert_eq!(time::elapsed()?, 3 * MS);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn intervals_timeouts_channels_and_spawned_tasks_work() {
    let mut sim = Sim::builder().build();
    sim.client("c", async {
        let (send, mut receive) = mpsc::channel(2);
        let producer = tokio::spawn(async move {
            let mut ticks = interval(10 * MS);
            for n in 0..5 {
                ticks.tick().await;
                send.send(n).await.expect("room");
            }
        });
        let mut got = Vec::new();
        while let Some(n) = receive.recv().await {
            got.push((n, time::elapsed()?));
        }
        producer.await?;
        assert_eq!(got, (0..5).map(|n| (n, n * 10 * MS)).collect::<Vec<_>>());
        let never = std::future::pending::<()>();
        assert!(timeout(7 * MS, never).await.is_err());
        assert_eq!(time::elapsed()?, 47 * MS);
        let first = tokio::select! { biased;
            () = sleep(5 * MS) => "short",
            () = sleep(6 * MS) => "long",
        };
        assert_eq!(first, "short");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn hosts_that_share_memory_wake_each_other_at_once() {
    let mut sim = Sim::builder().build();
    let (send, receive) = oneshot::channel();
    sim.client("waits", async {
        let at: Duration = receive.await?;
        assert_eq!(at, 12 * MS);
        assert_eq!(time::elapsed()?, at);
        Ok(())
    });
    sim.client("tells", async {
        sleep(12 * MS).await;
        send.send(time::elapsed()?).expect("it waits");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn blocking_work_is_done_in_order_at_one_simulated_time() {
    let mut sim = Sim::builder().build();
    let log = Arc::new(Mutex::new(Vec::new()));
    for host in 0..3 {
        let log = log.clone();
        sim.client(&format!("host{host}"), async move {
            sleep(5 * MS).await;
            let log = &log;
            let all = (0..4).map(|n| {
                let log = log.clone();
                tokio::task::spawn_blocking(move || {
                    // The later ones are quicker, and would come first.
                    let (_send, never) = std::sync::mpsc::channel::<()>();
                    let _ = never.recv_timeout(Duration::from_millis(4 - n));
                    log.lock().unwrap().push((host, n));
                    assert_eq!(time::elapsed().expect("inside"), 5 * MS);
                    n
                })
            });
            for (n, work) in all.collect::<Vec<_>>().into_iter().enumerate() {
                assert_eq!(work.await?, n as u64);
            }
            assert_eq!(time::elapsed()?, 5 * MS);
            sleep(3 * MS).await;
            assert_eq!(time::elapsed()?, 8 * MS);
            Ok(())
        });
    }
    sim.run().unwrap();
    let expected: Vec<_> = (0..3).flat_map(|host| (0..4).map(move |n| (host, n))).collect();
    assert_eq!(*log.lock().unwrap(), expected);
}

#[test]
fn the_wall_clock_is_the_epoch_and_the_time_since() {
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let mut sim = Sim::builder().epoch(epoch).build();
    sim.client("c", async move {
        sleep(90 * MS).await;
        assert_eq!(time::now(), epoch + 90 * MS);
        assert!(time::in_simulation());
        Ok(())
    });
    sim.run().unwrap();
    assert!(!time::in_simulation());
    assert!(time::elapsed().is_err());
}

#[test]
fn code_of_the_test_has_the_clock_of_its_simulation() {
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let mut sim = Sim::builder().epoch(epoch).build();
    assert_eq!(time::now(), epoch);
    sim.client("c", async {
        sleep(90 * MS).await;
        Ok(())
    });
    sim.invariant("the clock", move |view| {
        assert_eq!(time::now(), epoch + view.now().elapsed());
        Ok(())
    });
    sim.run_for(MS * 300).unwrap();
    assert_eq!(time::now(), epoch + 300 * MS);
    drop(sim);
    assert!(time::now() > epoch + 24 * HOUR, "the real one");
}

#[test]
fn a_skewed_clock_runs_fast_and_is_off() {
    let mut sim = Sim::builder().build();
    let skew = Skew { offset: 7_000_000_000, drift: 100_000 };
    let ends = Log::default();
    let out = ends.clone();
    sim.client_with(HostOptions::new("fast").skew(skew), move || {
        let out = out.clone();
        async move {
            let (start, wall) = (Instant::now(), time::now());
            sleep(1100 * MS).await;
            note(&out, "fast");
            assert_eq!(start.elapsed(), 1100 * MS, "its own clock says so");
            assert_eq!(time::now().duration_since(wall)?, 1100 * MS);
            Ok(())
        }
    });
    let out = ends.clone();
    sim.client("exact", async move {
        sleep(1050 * MS).await;
        note(&out, "exact");
        Ok(())
    });
    sim.run().unwrap();
    assert_eq!(*ends.borrow(), [("fast", 1000 * MS), ("exact", 1050 * MS)]);
}

#[test]
fn a_clock_that_is_behind_goes_on_from_before_the_epoch() {
    let mut sim = Sim::builder().build();
    let skew = Skew { offset: -5_000_000_000, drift: 0 };
    sim.client_with(HostOptions::new("behind").skew(skew), || async {
        let before = time::now();
        sleep(1000 * MS).await;
        assert_eq!(time::now().duration_since(before)?, 1000 * MS);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_paused_process_finds_its_timers_due_when_it_resumes() {
    let mut sim = Sim::builder().build();
    let log = Log::default();
    let out = log.clone();
    sim.client("c", async move {
        for _ in 0..3 {
            sleep(10 * MS).await;
            note(&out, "slept");
        }
        Ok(())
    });
    sim.at(15 * MS, |control: &Control| control.pause("c", Pause::Process));
    sim.at(100 * MS, |control| control.resume("c"));
    sim.run().unwrap();
    assert_eq!(*log.borrow(), [("slept", 10 * MS), ("slept", 100 * MS), ("slept", 110 * MS)]);
}

#[test]
fn actions_happen_at_their_time_in_the_order_in_which_they_were_given() {
    let mut sim = Sim::builder().build();
    let log = Rc::new(RefCell::new(Vec::new()));
    for (n, at) in [(0, 30), (1, 10), (2, 30), (3, 0)] {
        let log = log.clone();
        sim.at(at * MS, move |_| log.borrow_mut().push(n));
    }
    sim.run_for(20 * MS).unwrap();
    assert_eq!((sim.elapsed(), log.borrow().clone()), (20 * MS, vec![3, 1]));
    sim.run_for(20 * MS).unwrap();
    assert_eq!((sim.elapsed(), log.borrow().clone()), (40 * MS, vec![3, 1, 0, 2]));
}

#[test]
fn a_run_is_seen_step_by_step_and_ends_where_it_is_told_to() {
    let mut sim = Sim::builder().build();
    sim.client("c", async {
        for _ in 0..10 {
            sleep(10 * MS).await;
        }
        Ok(())
    });
    sim.run_until(|sim| sim.elapsed() >= 35 * MS).unwrap();
    assert_eq!(sim.elapsed(), 40 * MS);
    while !sim.step().unwrap() {}
    assert_eq!(sim.elapsed(), 100 * MS);
}
