//! Misuse and failures: each is found, and reported clearly.

use std::time::Duration;

use pagewire_simulation::net::{TcpListener, TcpStream, UdpSocket};
use pagewire_simulation::{FailureKind, Leaks, Panics, Result, Sim, control};
use tokio::time::sleep;

use crate::common::{MS, S, ask, asleep, client_fails, echo_server, fails, in_a_child, nap, says};

#[test]
fn an_error_of_a_client_is_the_failure() {
    let failure = client_fails(|| async {
        sleep(7 * MS).await;
        TcpStream::connect("nobody:80").await?;
        Ok(())
    });
    says(
        &failure,
        FailureKind::Client,
        &["at 0.007000 s on `client`", "Name or service not known"],
    );
}

#[test]
fn an_error_of_a_host_is_the_failure_unless_it_may_fail() {
    let build = |may_fail: bool| {
        move |sim: &mut Sim| {
            let options = pagewire_simulation::HostOptions::new("server");
            let options = if may_fail { options.may_fail() } else { options };
            sim.host_with(options, || async { Err("the disk is full".into()) });
            sim.client("client", asleep(S));
            Ok(())
        }
    };
    says(&fails(build(false)), FailureKind::Host, &["on `server`: the disk is full"]);
    Sim::builder().run(build(true)).unwrap();
}

#[test]
fn a_program_that_panics_fails_even_if_panics_are_ignored() {
    let failure = Sim::builder()
        .panics(Panics::Ignore)
        .run(|sim| {
            sim.client("client", async { panic!("the end") });
            Ok(())
        })
        .unwrap_err();
    says(&failure, FailureKind::Panic, &["the end"]);
}

#[test]
fn no_progress_says_who_waits_for_what_since_when_and_where() {
    let failure = Sim::builder().limit(150 * S).run(|sim| {
        sim.host("server", || async {
            let listener = TcpListener::bind("0.0.0.0:80").await?;
            let (_stream, _) = listener.accept().await?;
            std::future::pending().await
        });
        sim.client("client", async {
            let mut stream = TcpStream::connect("server:80").await?;
            sleep(5 * MS).await;
            control::partition("client", "server");
            let mut answer = [0; 4];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await?;
            Ok(())
        });
        Ok(())
    });
    let failure = failure.unwrap_err();
    says(
        &failure,
        FailureKind::NoProgress,
        &[
            "nothing happens any more since 0.007000 s; not done: client",
            "`client` waits to read since 0.007000 s",
            "connected to `server` port 80",
            "`server`: 1 task waits for neither a socket nor a timer: for a channel, a lock or the like",
            "the path from `client` to `server` is cut",
        ],
    );
}

/// A server that crashes and comes back, and a client that waits for its answer without a timeout.
fn half_open(sim: &mut Sim) -> Result {
    sim.host("server", || async {
        let listener = TcpListener::bind("0.0.0.0:80").await?;
        let _accepted = listener.accept().await?;
        std::future::pending().await
    });
    sim.client("client", async {
        let mut stream = TcpStream::connect("server:80").await?;
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut [0; 4]).await?;
        Ok(())
    });
    sim.at(50 * MS, |control| control.crash("server"));
    sim.at(60 * MS, |control| control.bounce("server"));
    Ok(())
}

#[test]
fn no_progress_is_found_under_a_limit_of_any_length() {
    for limit in [2 * S, 10 * S, 400 * S] {
        let failure = Sim::builder().limit(limit).run(half_open).unwrap_err();
        let words = ["nothing happens any more since 0.060000 s", "`client` waits to read since"];
        says(&failure, FailureKind::NoProgress, &words);
        assert_eq!(failure.at.elapsed(), limit);
    }
}

#[test]
fn a_program_whose_tasks_run_is_too_long_although_it_sends_nothing() {
    let failure = Sim::builder().limit(300 * S).run(|sim| {
        sim.client("client", async {
            loop {
                sleep(S).await;
            }
        });
        Ok(())
    });
    let words = ["not done at the limit of 300s", "no timer is due before 300.992000 s"];
    says(&failure.unwrap_err(), FailureKind::TooLong, &words);
}

#[test]
fn a_wait_for_a_channel_is_told_from_one_for_a_timer() {
    let failure = Sim::builder().limit(300 * S).run(|sim| {
        sim.client("locked", async {
            let (_keep, receive) = tokio::sync::oneshot::channel::<()>();
            Ok(receive.await?)
        });
        sim.client("asleep", async {
            sleep(3_000 * S).await;
            Ok(())
        });
        Ok(())
    });
    let words = [
        "nothing happens from 0.000000 s to 2883.584000 s; not done: locked, asleep",
        "`locked`: 1 task waits for neither a socket nor a timer: for a channel, a lock",
        "`asleep`: 1 task waits for no socket; no timer is due before 2883.584000 s",
    ];
    says(&failure.unwrap_err(), FailureKind::NoProgress, &words);
}

#[test]
fn a_run_that_was_stuck_stays_so() {
    let mut sim = Sim::builder().limit(10 * S).build();
    half_open(&mut sim).unwrap();
    let failure = sim.run().unwrap_err();
    assert_eq!(sim.run_for(S).unwrap_err(), failure);
}

#[test]
fn a_simulated_socket_outside_of_a_simulation_is_an_error_and_no_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(UdpSocket::bind("0.0.0.0:0")).unwrap_err();
    assert!(error.to_string().contains("no simulation is running on this thread"), "{error}");
}

#[test]
fn a_simulation_inside_of_another_runtime_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let failure = runtime.block_on(async {
        let mut sim = Sim::builder().build();
        sim.client("client", async { Ok(()) });
        sim.run().unwrap_err()
    });
    says(&failure, FailureKind::Misuse, &["run it from a plain `#[test]`"]);
}

#[test]
fn a_task_that_blocks_its_thread_is_found() {
    let failure = client_fails(|| async {
        sleep(MS).await;
        let (_send, receive) = std::sync::mpsc::channel::<()>();
        let _ = receive.recv_timeout(Duration::from_millis(500));
        Ok(())
    });
    let words = ["on `client`", "blocked its thread for", "a lock, a channel or a thread"];
    says(&failure, FailureKind::Blocked, &words);
}

#[test]
fn a_task_that_lets_its_thread_sleep_is_told_what_to_use() {
    let failure = client_fails(|| async {
        nap(400);
        Ok(())
    });
    let words = ["on `client`", "::sleep: use tokio::time::sleep"];
    says(&failure, FailureKind::Blocked, &words);
}

#[test]
fn a_task_that_waits_for_a_socket_of_the_standard_library_is_told_what_to_use() {
    let failure = client_fails(|| async {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(400)))?;
        let _ = socket.recv(&mut [0; 10]);
        Ok(())
    });
    let words = ["on `client`", "in a call on a real socket: use pagewire_simulation::net"];
    says(&failure, FailureKind::RealSocket, &words);
}

#[test]
fn work_of_spawn_blocking_may_take_long() {
    let run = Sim::builder().run(|sim| {
        sim.client("client", async { Ok(tokio::task::spawn_blocking(|| nap(600)).await?) });
        Ok(())
    });
    run.unwrap();
}

/// Waits in its destructor.
struct Waits(std::sync::mpsc::Receiver<()>);

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

/// Nothing can end such a wait, and a test that hangs for ever is worse than a process that ends.
#[test]
fn a_wait_that_never_ends_aborts_the_process_and_says_why() {
    const CHILD: &str = "PAGEWIRE_TEST_WAITS";
    let test = "failures::a_wait_that_never_ends_aborts_the_process_and_says_why";
    if let Ok(what) = std::env::var(CHILD) {
        let mut sim = Sim::builder().seed(5).patience(S).build();
        sim.host("server", move || {
            let what = what.clone();
            async move {
                let (_send, receive) = std::sync::mpsc::channel::<()>();
                match what.as_str() {
                    "lock" => {
                        let lock = std::sync::Mutex::new(());
                        let _first = lock.lock();
                        let _second = lock.lock();
                    }
                    "channel" => drop(receive.recv()),
                    // When the program is dropped.
                    "destructor" => {
                        let _waits = Waits(receive);
                        std::future::pending().await
                    }
                    _ => drop(tokio::task::spawn_blocking(move || receive.recv()).await),
                }
                Ok(())
            }
        });
        let _ = sim.run_for(S);
        return;
    }
    for what in ["lock", "channel", "destructor", "work"] {
        let child = in_a_child(test, &[(CHILD, what)], &[]);
        let signal = std::os::unix::process::ExitStatusExt::signal(&child.status);
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(signal, Some(libc::SIGABRT), "{what}: {said}");
        let why = match what {
            "work" => "work of spawn_blocking has not ended",
            _ => "for a lock, a channel or a thread: use those of tokio::sync",
        };
        for word in ["on `server`: ", why, "the process is aborted", "PAGEWIRE_SEED=5 cargo test"] {
            assert!(said.contains(word), "{what}: no {word:?} in {said}");
        }
    }
}

/// Nothing can end such a wait, so the failure has to be reported while it lasts.
#[test]
fn a_task_that_blocks_for_ever_is_named_while_it_does() {
    const CHILD: &str = "PAGEWIRE_TEST_BLOCKS";
    if std::env::var_os(CHILD).is_some() {
        let mut sim = Sim::builder().build();
        sim.host("server", || async {
            std::net::TcpListener::bind("127.0.0.1:0")?.accept()?;
            Ok(())
        });
        let _ = sim.run_for(S);
        return;
    }
    let name = "failures::a_task_that_blocks_for_ever_is_named_while_it_does";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD, "1")
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("on `server`: a task blocked its thread for"), "{line}");
    assert!(line.contains("real socket: use pagewire_simulation::net, not std::net"), "{line}");
}

#[test]
fn tasks_that_never_come_to_rest_are_stopped() {
    let failure = client_fails(|| async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    says(&failure, FailureKind::Spinning, &["without an end while time stands still"]);
}

#[test]
fn a_program_that_moves_the_clock_is_found() {
    let failure = client_fails(|| async {
        tokio::time::advance(S).await;
        sleep(S).await;
        Ok(())
    });
    says(&failure, FailureKind::Misuse, &["tokio::time::advance"]);
}

#[test]
fn tasks_that_outlive_their_program_are_reported() {
    fn leaks(sim: &mut Sim) -> Result {
        sim.client("client", async {
            tokio::spawn(sleep(10 * S));
            tokio::spawn(sleep(10 * S));
            Ok(())
        });
        Ok(())
    }
    let report = Sim::builder().run(leaks).unwrap();
    let what = "`client` has ended, and 2 tasks of it still ran: they were dropped";
    assert_eq!(report.warnings, [what]);
    let failure = Sim::builder().leaks(Leaks::Fail).run(leaks).unwrap_err();
    says(&failure, FailureKind::Leak, &[what]);
    assert!(Sim::builder().leaks(Leaks::Ignore).run(leaks).unwrap().warnings.is_empty());
}

#[test]
fn an_invariant_is_checked_after_every_instant() {
    let failure = fails(|sim| {
        echo_server(sim, "server");
        sim.client("client", ask("server", 100));
        sim.invariant("the server lives", |view| {
            if view.is_running("server") { Ok(()) } else { Err("it does not".into()) }
        });
        sim.at(3 * MS, |control| control.crash("server"));
        Ok(())
    });
    says(&failure, FailureKind::Invariant, &["at 0.003000 s: the server lives: it does not"]);
}

#[test]
fn an_error_of_the_scenario_is_a_failure() {
    let failure = fails(|_| Err("no such file".into()));
    says(&failure, FailureKind::Scenario, &["no such file"]);
}

#[test]
#[should_panic(expected = "no host is called `sever`; there are: server")]
fn a_host_that_does_not_exist_is_named_with_those_that_do() {
    let mut sim = Sim::builder().build();
    echo_server(&mut sim, "server");
    sim.control().crash("sever");
}

#[test]
#[should_panic(expected = "two hosts are called `Server`")]
fn two_hosts_cannot_have_one_name() {
    let mut sim = Sim::builder().build();
    echo_server(&mut sim, "server");
    echo_server(&mut sim, "Server");
}

#[test]
fn a_destructor_that_blocks_fails_the_run() {
    struct Naps;
    impl Drop for Naps {
        fn drop(&mut self) {
            nap(400);
        }
    }
    for kill in [true, false] {
        let failure = fails(move |sim| {
            sim.host("server", || async {
                let _naps = Naps;
                std::future::pending().await
            });
            sim.client("client", asleep(S));
            if kill {
                sim.at(MS, |control| control.kill("server"));
            }
            Ok(())
        });
        says(
            &failure,
            FailureKind::Blocked,
            &["on `server`: a task blocked", "use tokio::time::sleep"],
        );
    }
}

#[test]
fn a_panic_that_is_ignored_hides_no_sleep() {
    let failure = Sim::builder().panics(Panics::Ignore).run(|sim| {
        sim.client("client", async {
            tokio::spawn(async { panic!("ignored") });
            tokio::spawn(async { nap(400) });
            sleep(S).await;
            Ok(())
        });
        Ok(())
    });
    says(&failure.unwrap_err(), FailureKind::Blocked, &["use tokio::time::sleep"]);
}

/// How long it slept is real time, which differs from run to run.
#[test]
fn a_check_calls_a_task_that_blocks_by_its_name() {
    let check = Sim::check(0..2, |sim| {
        sim.client("client", async {
            nap(300);
            Ok(())
        });
        Ok(())
    });
    assert_eq!(check.failure().expect("it fails").kind, FailureKind::Blocked);
}

#[test]
#[should_panic(expected = "no seed was run")]
fn a_check_of_no_seeds_says_that_nothing_was_checked() {
    Sim::check(7..7, |_| Ok(())).assert();
}

#[test]
fn a_run_by_steps_fails_by_a_leak_too() {
    let mut sim = Sim::builder().leaks(Leaks::Fail).build();
    sim.client("client", async {
        tokio::spawn(std::future::pending::<()>());
        Ok(())
    });
    let failure = loop {
        match sim.step() {
            Ok(done) => assert!(!done, "it leaks"),
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.kind, FailureKind::Leak);
}
