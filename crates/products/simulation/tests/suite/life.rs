//! The lifecycle of hosts and the states of paths: starts, ends, pauses, cuts and holds.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use pagewire_simulation::net::UdpSocket;
use pagewire_simulation::{
    Chaos, Control, FailureKind, HostOptions, Pause, Rate, Sim, all, control, rng, time,
};
use tokio::time::{sleep, timeout};

use crate::common::{MS, S, ask, asleep, echo_server, in_time, udp_echo_server};

#[test]
fn a_client_of_one_future_that_is_bounced_is_an_error_that_names_what_can_be() {
    let mut sim = Sim::builder().build();
    sim.client("client", async { std::future::pending().await });
    sim.at(5 * MS, |control| control.bounce("client"));
    let failure = sim.run().unwrap_err();
    assert_eq!((failure.kind, failure.at.elapsed()), (FailureKind::Misuse, 5 * MS), "{failure}");
    let text = failure.to_string();
    assert!(text.contains("on `client`: it cannot start again"), "{text}");
    assert!(text.contains("`Sim::client_with`"), "{text}");
}

#[test]
fn a_client_of_a_closure_can_be_bounced() {
    let mut sim = Sim::builder().build();
    let starts = Rc::new(RefCell::new(Vec::new()));
    let out = starts.clone();
    sim.client_with("client", move || {
        let out = out.clone();
        async move {
            out.borrow_mut().push(time::elapsed()?);
            sleep(10 * MS).await;
            Ok(())
        }
    });
    sim.at(5 * MS, |control| control.bounce("client"));
    assert_eq!(sim.run().unwrap().elapsed, 15 * MS);
    assert_eq!(*starts.borrow(), [Duration::ZERO, 5 * MS]);
}

#[test]
fn a_client_that_was_killed_is_named_when_the_run_does_not_end() {
    let mut sim = Sim::builder().build();
    sim.client("client", async { std::future::pending().await });
    sim.at(5 * MS, |control| control.kill("client"));
    let failure = sim.run().unwrap_err();
    let text = failure.to_string();
    assert!(text.contains("`client` was killed, or lost its power"), "{text}");
}

#[test]
fn chaos_neither_crashes_nor_kills_clients_that_cannot_start_again() {
    let mut sim = Sim::builder().seed(1).build();
    echo_server(&mut sim, "server");
    sim.client("client", asleep(20 * S));
    let rate = || Rate::new(100 * MS..S, 100 * MS..S);
    sim.chaos(all(), Chaos::until(15 * S).crash(rate()).kill(rate()));
    sim.run().unwrap();
    assert!(sim.control().is_running("server"));
}

#[test]
fn a_host_that_is_started_again_is_not_paused() {
    for what in [Pause::Process, Pause::Machine] {
        let mut sim = Sim::builder().build();
        echo_server(&mut sim, "server");
        sim.client("client", async move {
            for crash in [false, true] {
                control::pause("server", what);
                match crash {
                    true => control::crash("server"),
                    false => control::kill("server"),
                }
                sleep(5 * MS).await;
                control::bounce("server");
                sleep(MS).await;
                timeout(S, ask("server", 100)).await??;
            }
            control::pause("server", what);
            sleep(MS).await;
            control::bounce("server");
            sleep(MS).await;
            timeout(S, ask("server", 100)).await??;
            // Paused while it is down.
            control::kill("server");
            control::pause("server", what);
            sleep(MS).await;
            control::bounce("server");
            sleep(MS).await;
            timeout(S, ask("server", 100)).await?
        });
        sim.run().unwrap();
    }
}

/// The arrivals, with their times, of datagrams that are sent in each of these milliseconds.
fn arrivals(at: &[u32], orders: impl Fn(&mut Sim)) -> Vec<(u8, Duration)> {
    let mut sim = Sim::builder().build();
    let got = Rc::new(RefCell::new(Vec::new()));
    let out = got.clone();
    sim.host("receiver", move || {
        let out = out.clone();
        async move {
            let socket = UdpSocket::bind("0.0.0.0:9").await?;
            loop {
                let mut buffer = [0; 8];
                socket.recv(&mut buffer).await?;
                out.borrow_mut().push((buffer[0], time::elapsed()?));
            }
        }
    });
    let at = at.to_vec();
    sim.client("sender", async move {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        for (n, at) in at.into_iter().enumerate() {
            sleep(at * MS - time::elapsed()?).await;
            socket.send_to(&[n as u8], "receiver:9").await?;
        }
        sleep(S).await;
        Ok(())
    });
    orders(&mut sim);
    sim.run().unwrap();
    got.take()
}

/// A case: its subject, when packets are sent, commands, and the packets that arrive; times in milliseconds.
type Case = (&'static str, &'static [u32], &'static [Step], &'static [(u8, u32)]);
type Step = (u32, fn(&Control));

const CUT: fn(&Control) = |control| control.partition("sender", "receiver");
const REPAIR: fn(&Control) = |control| control.repair("sender", "receiver");
const HOLD: fn(&Control) = |control| control.hold("sender", "receiver");
const RELEASE: fn(&Control) = |control| control.release("sender", "receiver");
const CRASH: fn(&Control) = |control| control.crash("receiver");
const BOUNCE: fn(&Control) = |control| control.bounce("receiver");
const STOP: fn(&Control) = |control| control.pause("receiver", Pause::Machine);
const RESUME: fn(&Control) = |control| control.resume("receiver");

#[test]
fn cuts_holds_and_pauses_decide_which_packets_arrive_and_when() {
    let table: [Case; 5] = [
        (
            "held packets arrive in their order when they are released",
            &[10, 20, 30, 40, 50],
            &[(15, HOLD), (100, RELEASE)],
            &[(0, 11), (1, 100), (2, 100), (3, 100), (4, 100)],
        ),
        (
            "a release does not end a partition",
            &[20, 40],
            &[(10, CUT), (11, HOLD), (30, RELEASE), (35, REPAIR)],
            &[(1, 41)],
        ),
        (
            "a repair does not end a hold: the first waited before the partition, the second was lost in it",
            &[10, 30, 50, 70],
            &[(5, HOLD), (20, CUT), (40, REPAIR), (60, RELEASE)],
            &[(0, 60), (2, 60), (3, 71)],
        ),
        (
            "packets that are released during a partition are lost",
            &[10, 70],
            &[(5, HOLD), (20, CUT), (40, RELEASE), (60, REPAIR)],
            &[(1, 71)],
        ),
        (
            "a crash loses the packets that waited in front of a paused machine",
            &[10, 30, 60],
            &[(5, STOP), (20, CRASH), (22, BOUNCE), (25, STOP), (50, RESUME)],
            &[(1, 50), (2, 61)],
        ),
    ];
    for (what, sent, steps, expected) in table {
        let got = arrivals(sent, |sim| {
            steps.iter().for_each(|&(at, command)| sim.at(at * MS, command));
        });
        let expected: Vec<_> = expected.iter().map(|&(n, at)| (n, at * MS)).collect();
        assert_eq!(got, expected, "{what}");
    }
}

#[test]
fn of_two_pauses_the_one_of_the_machine_counts_so_that_no_packet_overtakes() {
    for order in [[Pause::Machine, Pause::Process], [Pause::Process, Pause::Machine]] {
        let got = arrivals(&[10, 30], |sim| {
            sim.at(5 * MS, move |control| control.pause("receiver", order[0]));
            sim.at(20 * MS, move |control| control.pause("receiver", order[1]));
            sim.at(50 * MS, |control| control.resume("receiver"));
        });
        assert_eq!(got, [(0, 50 * MS), (1, 50 * MS)], "{order:?}");
    }
}

#[test]
fn each_start_of_a_host_runs_its_program_anew_with_other_random_numbers() {
    let mut sim = Sim::builder().build();
    let drawn = Rc::new(RefCell::new(Vec::new()));
    let out = drawn.clone();
    sim.host("host", move || {
        let out = out.clone();
        async move {
            out.borrow_mut().push(rng::rng()?.next_u64());
            std::future::pending().await
        }
    });
    sim.at(10 * MS, |control| control.bounce("host"));
    sim.at(20 * MS, |control| control.crash("host"));
    sim.at(22 * MS, |control| control.bounce("host"));
    for (ms, runs) in [(19, true), (2, false), (S.as_millis() as u32, true)] {
        sim.run_for(ms * MS).unwrap();
        assert_eq!(sim.control().is_running("host"), runs, "{:?}", sim.elapsed());
    }
    let mut all = drawn.take();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 3, "one for each start");
}

#[test]
fn chaos_without_a_pause_has_one_trouble_a_millisecond() {
    in_time(|| {
        let mut sim = Sim::builder().build();
        udp_echo_server(&mut sim, "server");
        sim.client("client", asleep(S));
        let none = Duration::ZERO..Duration::ZERO;
        sim.chaos(all(), Chaos::until(S).partition(Rate::new(none.clone(), none)));
        sim.run().unwrap();
    });
}

#[test]
fn what_keeps_a_path_from_working_is_named() {
    let mut sim = Sim::builder().limit(S).build();
    udp_echo_server(&mut sim, "server");
    sim.client("client", async { std::future::pending().await });
    sim.control().partition_oneway("client", "server");
    sim.control().hold("server", "client");
    let text = sim.run().unwrap_err().to_string();
    assert!(text.contains("the path from `client` to `server` is cut and held"), "{text}");
    assert!(text.contains("the path from `server` to `client` is held"), "{text}");
}

#[test]
fn a_host_without_an_address_gets_the_next_that_nobody_has() {
    let addr = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
    let mut sim = Sim::builder().build();
    sim.host_with(HostOptions::new("given").address(addr(2)), std::future::pending);
    sim.host("next", std::future::pending);
    sim.host("after", std::future::pending);
    let control = sim.control();
    assert_eq!(control.addresses(["next", "after"]), [addr(3), addr(4)]);
}

#[test]
#[should_panic(expected = "`second` cannot have the address 10.0.0.1: `first` has it")]
fn an_address_that_another_host_has_is_refused_with_its_name() {
    let mut sim = Sim::builder().build();
    sim.host("first", std::future::pending);
    let options = HostOptions::new("second").address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    sim.host_with(options, std::future::pending);
}

#[test]
fn a_run_without_clients_that_did_nothing_is_an_error() {
    let mut sim = Sim::builder().build();
    echo_server(&mut sim, "server");
    let failure = sim.run().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Misuse);
    let text = failure.to_string();
    assert!(text.contains("no client was added") && text.contains("run_for"), "{text}");
}

#[test]
fn a_scenario_without_clients_may_run_by_itself() {
    let run = Sim::builder().run(|sim| {
        echo_server(sim, "server");
        sim.run_for(S)?;
        Ok(())
    });
    assert_eq!(run.unwrap().elapsed, S);
}
