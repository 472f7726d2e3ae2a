//! Limits of real time, which decide how a run fails and never how it goes, and what needs a kernel.

use pagewire_simulation::{FailureKind, Sim};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::common::{MS, S, client_fails, in_a_child, in_time, nap, passes, says};

#[test]
fn many_short_works_of_spawn_blocking_at_one_time_are_no_turn_without_an_end() {
    in_time(|| {
        let run = Sim::builder().turn_limit(200 * MS).run(|sim| {
            sim.client("client", async {
                for _ in 0..40 {
                    spawn_blocking(|| nap(25)).await?;
                }
                Ok(())
            });
            Ok(())
        });
        run.unwrap();
    });
}

#[test]
fn tasks_that_hand_over_work_are_stopped_once_they_no_longer_do_and_never_come_to_rest() {
    in_time(|| {
        let failure = Sim::builder().turn_limit(200 * MS).run(|sim| {
            sim.client("client", async {
                for _ in 0..10 {
                    spawn_blocking(|| nap(25)).await?;
                }
                loop {
                    tokio::task::yield_now().await;
                }
            });
            Ok(())
        });
        assert_eq!(failure.unwrap_err().kind, FailureKind::Spinning);
    });
}

#[test]
fn how_long_a_task_may_let_its_thread_sleep_is_a_setting() {
    in_time(|| {
        let naps = |sim: &mut Sim| {
            sim.client("client", async {
                nap(400);
                Ok(())
            });
            Ok(())
        };
        Sim::builder().block_limit(S).run(naps).unwrap();
        let failure = Sim::builder().block_limit(100 * MS).run(naps).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Blocked);
    });
}

#[test]
fn what_of_tokio_needs_a_kernel_is_named_with_what_to_do_instead() {
    let signal = client_fails(|| async { Ok(tokio::signal::ctrl_c().await?) });
    let process = client_fails(|| async {
        tokio::process::Command::new("true").status().await?;
        Ok(())
    });
    let socket = client_fails(|| async {
        tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
        Ok(())
    });
    for (failure, words) in [
        (signal, "tokio::signal was used in the simulation: a simulation has no signals"),
        (process, "tokio::process or AsyncFd was used in the simulation: for sockets, use"),
        (socket, "tokio::net was used in the simulation: use pagewire_simulation::net"),
    ] {
        says(&failure, FailureKind::RealSocket, &[words]);
    }
}

#[test]
fn checks_beside_each_other_share_the_jobs_of_their_process() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const CHILD: &str = "PAGEWIRE_TEST_JOBS";
    if std::env::var_os(CHILD).is_some() {
        let (now, most) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let check = || {
            let check = Sim::check(0..10, |sim| {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                nap(3);
                now.fetch_sub(1, SeqCst);
                sim.client("client", async { Ok(()) });
                Ok(())
            });
            assert_eq!(check.reports.len(), 10);
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(check))));
        // The first of each check, and two more.
        let most = most.load(SeqCst);
        assert!((4..=6).contains(&most), "{most}");
        return;
    }
    let name = "real_time::checks_beside_each_other_share_the_jobs_of_their_process";
    passes(&in_a_child(name, &[(CHILD, "1"), ("PAGEWIRE_JOBS", "3")], &[]));
}

/// As in a container that has no more of them.
#[test]
fn a_thread_that_the_system_refuses_is_a_panic_of_the_task_and_no_hang() {
    use rustix::process::{Resource, Rlimit, setrlimit};

    const CHILD: &str = "PAGEWIRE_TEST_REFUSED";
    if std::env::var_os(CHILD).is_some() {
        let mut sim = Sim::builder().patience(5 * S).build();
        sim.client("client", async {
            setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum: Some(0) })?;
            if rustix::process::geteuid().is_root() {
                // The limit is not root's.
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(64_007))?;
            }
            let _ = tokio::spawn(async { spawn_blocking(|| ()).await }).await;
            sleep(MS).await;
            Ok(())
        });
        let failure = sim.run().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Panic, "{failure}");
        assert!(failure.to_string().contains("OS can't spawn worker thread"), "{failure}");
        return;
    }
    let name = "real_time::a_thread_that_the_system_refuses_is_a_panic_of_the_task_and_no_hang";
    passes(&in_a_child(name, &[(CHILD, "1")], &["--test-threads", "1"]));
}
