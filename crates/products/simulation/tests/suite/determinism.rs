//! The same seed gives the same run, to the last packet.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use pagewire_simulation::net::{TcpListener, TcpStream, UdpSocket};
use pagewire_simulation::{
    Digest, Failure, FailureKind, HostOptions, Link, Repeats, Sim, control, rng,
};
use tempfile::{TempDir, tempdir};
use tokio::time::sleep;

use crate::common::{
    MS, S, ask, ask_on, asleep, echo_server, in_a_child, mixed, passes, udp_echo_server,
};

fn digest(seed: u64) -> Digest {
    let report = Sim::builder().seed(seed).run(mixed).unwrap();
    assert!(report.counts.lost > 0 && report.counts.arrived > 100, "{report:?}");
    report.digest
}

#[test]
fn a_hundred_seeds_have_a_digest_each_and_the_same_one_again() {
    let first = Sim::check(0..100, mixed);
    let second = Sim::builder().check(0..100, mixed);
    let digests = |check: &pagewire_simulation::Check| {
        check.reports.iter().map(|report| (report.seed, report.digest)).collect::<Vec<_>>()
    };
    assert_eq!(digests(&first), digests(&second));
    let distinct: BTreeSet<_> = digests(&first).into_iter().map(|(_, digest)| digest).collect();
    assert_eq!(distinct.len(), 100, "seeds differ");
    first.assert();
    second.assert();
}

/// On every machine and with every build. They change when what hosts send changes:
/// `INSTA_UPDATE=always cargo test -p pagewire-simulation --test suite determinism` writes new ones.
#[test]
fn the_digests_of_some_seeds_never_change() {
    let line = |seed| format!("{seed} {}\n", digest(seed));
    let lines: String = [0, 1, 2, 7, 42, 1_000_003, u64::MAX].into_iter().map(line).collect();
    insta::assert_snapshot!(lines, @"
    0 6cac883f1150c85aace87ae119f1ade2
    1 5cce3e3414f7f93670f920e69fe9b3c3
    2 1abc4884c2d920855ba79652135dfeb9
    7 65fb54887353831d882573c4e33b1226
    42 eb36226c29fd2b0537a0cd85c0e1ec50
    1000003 f77b3240497b555b56e6d5ffb47b3099
    18446744073709551615 13dd35b2a37e03b4fc08fe60d47e6049
    ");
}

/// The digest says so itself: two runs that differ only there have one digest.
#[test]
fn what_a_host_does_by_itself_is_not_in_the_digest() {
    let run = |alone: bool| {
        let mut sim = Sim::builder().build();
        echo_server(&mut sim, "server");
        sim.client("client", async move {
            if alone {
                rng::rng()?.next_u64();
                tokio::task::yield_now().await;
                let own = TcpListener::bind("127.0.0.1:80").await?;
                TcpStream::connect(own.local_addr()?).await?;
            }
            ask("server", 100).await
        });
        sim.run().unwrap().digest
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_capture_and_a_timeline_do_not_change_the_run() {
    let dir = tempdir().unwrap();
    let (capture, timeline) = (dir.path().join("a.pcapng"), dir.path().join("a.txt"));
    let plain = digest(3);
    let builder = Sim::builder().seed(3).capture(capture).timeline(&timeline);
    assert_eq!(builder.run(mixed).unwrap().digest, plain);
    let timeline = std::fs::read_to_string(timeline).unwrap();
    for word in [
        "  \"................................\"…",
        "tcp client 0 > tcp",
        "SYN seq 0",
        "lost by chance",
        "(again: ",
        "UDP",
    ] {
        assert!(timeline.contains(word), "no {word:?} in the timeline:\n{timeline}");
    }
    for order in ["cut: tcp > tcp client 0, tcp client 0 > tcp", "bounce: udp", "link loss=5%,"] {
        assert!(timeline.contains(order), "no {order:?} in the timeline:\n{timeline}");
    }
}

#[test]
fn a_timeline_says_why_a_segment_is_sent_again() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("why.txt");
    let run = Sim::builder().seed(1).timeline(&file).run(|sim| {
        echo_server(sim, "server");
        sim.client("client", async {
            let mut stream = TcpStream::connect("server:7").await?;
            ask_on(&mut stream, 300_000).await?;
            control::partition("client", "server");
            ask_on(&mut stream, 100).await
        });
        let control = sim.control();
        control.partition("client", "server");
        sim.at(500 * MS, |control| control.repair("client", "server"));
        control.link("client", "server", Link::new().latency(5 * MS).loss(0.02));
        sim.at(10 * S, |control| control.repair("client", "server"));
        Ok(())
    });
    run.unwrap();
    let timeline = std::fs::read_to_string(&file).unwrap();
    let has = |words: &[&str]| timeline.lines().any(|line| words.iter().all(|w| line.contains(w)));
    assert!(has(&["client > server", " SYN seq 0", "(again: timeout)"]), "{timeline}");
    assert!(has(&["client > server", " len 14", "(again: fast retransmit)"]), "{timeline}");
    assert!(has(&["len 100 ", "(again: tail loss probe)"]), "{timeline}");
    assert!(has(&["len 100 ", "(again: timeout)"]), "{timeline}");
}

#[test]
fn a_scenario_that_depends_on_more_than_its_seed_is_reported() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let check = Sim::builder().artifacts(tempdir().unwrap().path()).check(0..2, |sim| {
        echo_server(sim, "server");
        let bytes = 100 + RUNS.fetch_add(1, Ordering::Relaxed) as usize;
        sim.client("client", async move {
            ask("server", bytes).await?;
            Err("as planted".into())
        });
        Ok(())
    });
    let failure = check.failure().expect("it fails");
    // The scenario failed for a reason of its own, which the second run confirms.
    assert_eq!((failure.kind, failure.repeats), (FailureKind::Client, Repeats::OtherDigest));
    let text = failure.to_string();
    for words in ["as planted", "depends on more than its seed", "digest_payload(false)"] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_failure_that_does_not_come_again_keeps_its_kind_and_says_so() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let failed = AtomicBool::new(false);
    let check = Sim::builder().artifacts(tempdir().unwrap().path()).check(0..1, |sim| {
        let fails = !failed.swap(true, Ordering::Relaxed);
        sim.client("client", async move {
            sleep(MS).await;
            if fails { Err("once".into()) } else { Ok(()) }
        });
        Ok(())
    });
    let failure = check.failure().expect("it fails");
    assert_eq!((failure.kind, failure.repeats), (FailureKind::Client, Repeats::No));
    assert!(failure.to_string().contains("when it was run again, it did not fail"), "{failure}");
}

/// Runs a scenario twice that gets another number in each run. The failure, if there is one, whose files
/// are in `dir`.
fn twice(dir: &TempDir, scenario: impl Fn(&mut Sim, u32) + Sync) -> Option<Failure> {
    use std::sync::atomic::{AtomicU32, Ordering};
    let runs = AtomicU32::new(0);
    let check = Sim::builder().twice(true).artifacts(dir.path()).check(0..1, |sim| {
        scenario(sim, runs.fetch_add(1, Ordering::Relaxed));
        Ok(())
    });
    check.failures.into_iter().next()
}

#[test]
fn a_seed_that_passes_and_does_not_repeat_is_found_by_its_first_event_that_differs() {
    let dir = tempdir().unwrap();
    let bytes = twice(&dir, |sim, run| {
        echo_server(sim, "server");
        sim.client("client", async move {
            ask("server", 1_000).await?;
            sleep(10 * MS).await;
            ask("server", 100 + run as usize).await?;
            sleep(10 * S).await;
            Ok(())
        });
    });
    let failure = bytes.expect("it differs");
    let text = failure.to_string();
    assert_eq!((failure.kind, failure.repeats), (FailureKind::NotDeterministic, Repeats::No));
    for words in [
        "of two runs of the seed differs",
        "a packet of 152 bytes, `client` > `server`: sent",
        "a packet of 153 bytes, `client` > `server`: sent (TCP ",
        "depends on more than its seed",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert!(failure.at.elapsed() < 100 * MS, "the second run stops there: {text}");
    assert!(failure.timeline.as_ref().is_some_and(|file| file.is_file()), "{text}");
}

#[test]
fn a_second_run_with_other_contents_more_or_fewer_events_differs() {
    let dir = tempdir().unwrap();
    let contents = twice(&dir, |sim, run| {
        udp_echo_server(sim, "server");
        sim.client("client", async move {
            let socket = UdpSocket::bind("0.0.0.0:0").await?;
            socket.send_to(&[run as u8; 10], "server:7").await?;
            socket.recv(&mut [0; 10]).await?;
            sleep(S).await;
            Ok(())
        });
    });
    let text = contents.expect("they differ").to_string();
    let words = "differ between two runs of the seed: at 0.001000 s, a packet of 38 bytes, \
                 `client` > `server`: arrived (UDP ";
    assert!(text.contains(words), "{text}");
    // The last event of all.
    let end = twice(&dir, |sim, run| {
        sim.host_with(HostOptions::new("host").may_fail(), move || async move {
            sleep(MS).await;
            Err(format!("{run}").into())
        });
        sim.client("client", asleep(5 * MS));
        sim.at(2 * MS, |_| {});
    });
    let text = end.expect("it differs").to_string();
    assert!(text.contains("the end of `host` (ended: 1)"), "{text}");
    for more in [0, 1] {
        let failure = twice(&dir, move |sim, run| {
            echo_server(sim, "server");
            sim.client("client", asleep(5 * MS));
            if run == more {
                sim.at(3 * MS, |control| control.partition("client", "server"));
            }
        });
        let (text, order) = (failure.expect("it differs").to_string(), "an order");
        assert!(text.contains("differs") || text.contains("only in the"), "{text}");
        assert!(text.contains(order), "{text}");
    }
}

#[test]
fn seeds_that_repeat_pass_twice() {
    let check = Sim::builder().twice(true).check(0..5, mixed);
    assert_eq!(check.reports.len(), 5);
    check.assert();
}

/// More lines than a person reads, with a backtrace.
#[test]
fn the_panic_of_a_seed_that_fails_is_printed_once() {
    const CHILD: &str = "PAGEWIRE_TEST_PRINTS";
    if std::env::var_os(CHILD).is_some() {
        let check = Sim::builder().artifacts(tempdir().unwrap().path()).check(0..4, |sim| {
            sim.client("client", async { panic!("a planted panic") });
            Ok(())
        });
        assert_eq!(check.failure().expect("it fails").repeats, Repeats::Same);
        return;
    }
    let name = "determinism::the_panic_of_a_seed_that_fails_is_printed_once";
    let said = passes(&in_a_child(name, &[(CHILD, "1")], &["--nocapture"]));
    assert_eq!(said.matches("a planted panic").count(), 1, "{said}");
}

/// Tasks whose sockets become ready at one moment: in which order they ran.
fn order_of_tasks(builder: pagewire_simulation::Builder) -> Vec<u32> {
    let order = Rc::new(RefCell::new(Vec::new()));
    let out = order.clone();
    let mut sim = builder.build();
    sim.host("receiver", move || {
        let out = out.clone();
        async move {
            for n in 0..8 {
                let socket = UdpSocket::bind(("0.0.0.0", 100 + n)).await?;
                let out = out.clone();
                tokio::task::spawn_local(async move {
                    socket.recv(&mut [0; 4]).await.expect("a datagram");
                    out.borrow_mut().push(u32::from(n));
                });
            }
            std::future::pending().await
        }
    });
    sim.client("sender", async {
        sleep(MS).await;
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        for n in 0..8 {
            socket.send_to(b"x", ("receiver", 100 + n)).await?;
        }
        sleep(S).await;
        Ok(())
    });
    sim.run().unwrap();
    order.take()
}

#[test]
fn tasks_that_are_ready_at_one_moment_run_in_an_order_by_the_seed_if_asked() {
    let plain = |seed| order_of_tasks(Sim::builder().seed(seed));
    assert_eq!((plain(1), plain(2)), ((0..8).collect(), (0..8).collect()));
    let random = |seed| order_of_tasks(Sim::builder().seed(seed).random_wakes());
    assert_eq!(random(1), random(1));
    let orders: BTreeSet<_> = (0..10).map(random).collect();
    assert!(orders.len() > 5, "{orders:?}");
}
