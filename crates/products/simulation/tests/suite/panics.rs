//! Panics: whichever code of a simulation panics, on whichever thread, the run fails and says so.

use std::panic;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pagewire_simulation::{FailureKind, HostOptions, Panics, Result, Sim};
use tokio::time::sleep;

use crate::common::{MS, S, asleep, client_fails, fails, says};

/// Tests that replace the process's hook run alone.
static HOOK: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    HOOK.read().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces hooks; the standard one is back when this is dropped.
struct Alone(#[allow(dead_code)] RwLockWriteGuard<'static, ()>);

impl Alone {
    fn new() -> Self {
        Self(HOOK.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(panic::take_hook());
        }
    }
}

/// Panics when it is dropped, as no destructor should.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("in a destructor");
        }
    }
}

/// A server that panics when it ends.
fn bombed(sim: &mut Sim) {
    sim.host("server", || async {
        let _bomb = Bomb;
        std::future::pending().await
    });
}

fn client_of_a_task_that_panics(sim: &mut Sim) -> Result {
    sim.client("client", async {
        sleep(MS).await;
        tokio::spawn(async { panic!("nobody looks at this") });
        sleep(S).await;
        Ok(())
    });
    Ok(())
}

#[test]
fn a_panic_of_any_task_is_the_failure_unless_panics_are_ignored() {
    let _others = beside_others();
    let words = ["a task panicked: nobody looks at this", "tests/suite/panics.rs:"];
    says(&fails(client_of_a_task_that_panics), FailureKind::Panic, &words);
    Sim::builder().panics(Panics::Ignore).run(client_of_a_task_that_panics).unwrap();
}

#[test]
fn a_panic_is_heard_although_somebody_replaced_the_hook_before_the_run() {
    let _alone = Alone::new();
    // The first one puts the hook in place.
    for _ in 0..2 {
        let failure = fails(client_of_a_task_that_panics);
        says(&failure, FailureKind::Panic, &["on `client`: a task panicked: nobody looks at this"]);
        panic::set_hook(Box::new(|_| {}));
    }
}

#[test]
fn a_panic_is_heard_although_a_program_replaces_the_hook_as_it_starts() {
    let _alone = Alone::new();
    for keeps in [true, false] {
        let failure = fails(move |sim| {
            sim.host("server", move || async move {
                let before = panic::take_hook();
                panic::set_hook(Box::new(move |info| {
                    if keeps {
                        before(info);
                    }
                }));
                std::future::pending().await
            });
            client_of_a_task_that_panics(sim)
        });
        says(&failure, FailureKind::Panic, &["nobody looks at this", "tests/suite/panics.rs:"]);
    }
}

#[test]
fn a_panic_in_spawn_blocking_fails_the_run() {
    let _others = beside_others();
    let failure = client_fails(|| async {
        drop(tokio::task::spawn_blocking(|| panic!("on a thread of its own")));
        sleep(S).await;
        Ok(())
    });
    says(&failure, FailureKind::Panic, &["on `client`: a task panicked: on a thread of its own"]);
}

#[test]
fn a_panic_in_a_destructor_fails_the_run_whenever_the_program_ends() {
    let _others = beside_others();
    let words = ["on `server`: a task panicked: in a destructor", "tests/suite/panics.rs:"];
    for kill in [true, false] {
        let failure = fails(move |sim| {
            bombed(sim);
            sim.client("client", asleep(S));
            sim.at(7 * MS, move |control| match kill {
                true => control.kill("server"),
                false => control.crash("server"),
            });
            Ok(())
        });
        says(&failure, FailureKind::Panic, &words);
        assert_eq!(failure.at.elapsed(), 7 * MS);
    }
    let failure = fails(|sim| {
        bombed(sim);
        sim.client("client", async { Ok(()) });
        Ok(())
    });
    says(&failure, FailureKind::Panic, &words);
    let failure = client_fails(|| async {
        tokio::spawn(async {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
        });
        sleep(MS).await;
        Ok(())
    });
    says(&failure, FailureKind::Panic, &["on `client`: a task panicked: in a destructor"]);
}

#[test]
#[should_panic(expected = "on `server`: a task panicked: in a destructor")]
fn a_panic_in_a_destructor_after_the_run_fails_the_test() {
    let _others = beside_others();
    let mut sim = Sim::builder().build();
    bombed(&mut sim);
    sim.run_for(MS).unwrap();
}

#[test]
fn a_panic_of_one_run_is_not_one_of_the_next() {
    let _others = beside_others();
    let mut sim = Sim::builder().panics(Panics::Ignore).build();
    bombed(&mut sim);
    sim.run_for(MS).unwrap();
    drop(sim);
    let mut sim = Sim::builder().build();
    sim.client("client", asleep(MS));
    sim.run().unwrap();
}

#[test]
fn a_panic_that_is_ignored_is_not_the_end_of_another_program() {
    let _others = beside_others();
    let failure = Sim::builder().seed(3).panics(Panics::Ignore).run(|sim| {
        sim.host_with(HostOptions::new("server"), || async {
            tokio::spawn(async { panic!("of the server") });
            std::future::pending().await
        });
        sim.client("client", async {
            sleep(MS).await;
            panic::resume_unwind(Box::new("no hook hears this"))
        });
        Ok(())
    });
    let failure = failure.unwrap_err();
    says(&failure, FailureKind::Panic, &["on `client`: a task panicked: without a message"]);
}

#[test]
fn the_place_of_a_panic_follows_its_first_line() {
    let _others = beside_others();
    let failure = client_fails(|| async {
        assert_eq!(10, 9);
        Ok(())
    });
    let text = failure.to_string();
    let lines: Vec<&str> = text.lines().take(3).collect();
    let [first, "    left: 10", "   right: 9"] = lines[..] else { panic!("{text}") };
    assert!(first.contains("`left == right` failed (") && first.contains("panics.rs:"), "{text}");
}

#[test]
fn a_panic_in_an_invariant_has_the_seed_and_the_time() {
    let _others = beside_others();
    let failure = fails(|sim| {
        sim.client("client", async {
            sleep(MS).await;
            asleep(S).await
        });
        let mut times = 0;
        sim.invariant("few instants", move |_| {
            times += 1;
            assert!(times < 2, "{times} instants");
            Ok(())
        });
        Ok(())
    });
    let words = ["at 0.001000 s: few instants: it panicked: 2 instants", "tests/suite/panics.rs:"];
    says(&failure, FailureKind::Invariant, &words);
}

#[test]
fn a_panic_in_a_scheduled_action_has_the_seed_and_the_time() {
    let _others = beside_others();
    let failure = fails(|sim| {
        sim.client("client", asleep(S));
        sim.at(5 * MS, |control| control.crash("sever"));
        Ok(())
    });
    let words = [
        "at 0.005000 s: a scheduled action panicked: no host is called `sever`",
        "there are: client",
        "tests/suite/panics.rs:",
    ];
    says(&failure, FailureKind::Panic, &words);
}

#[test]
fn a_panic_of_the_scenario_has_the_seed() {
    let _others = beside_others();
    let failure = fails(|sim| {
        sim.client("client", asleep(S));
        sim.control().crash("sever");
        Ok(())
    });
    says(&failure, FailureKind::Panic, &["the scenario panicked: no host is called `sever`"]);
    let mut sim = Sim::builder().seed(3).build();
    sim.client("client", asleep(S));
    let failure = sim.run_until(|_| panic!("who knows?")).unwrap_err();
    says(&failure, FailureKind::Scenario, &["the condition of run_until panicked: who knows?"]);
}
