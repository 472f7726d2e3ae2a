//! The same seed gives the same run, to the last packet.

use std::collections::BTreeSet;

use pagewire_simulation::net::{TcpListener, TcpStream};
use pagewire_simulation::{Digest, Link, Sim, control, rng};

use crate::common::{MS, S, ask, ask_on, echo_server, mixed};

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
    0 1f2372e9bfb9b575485e93b78afc021e
    1 6af0d1b516b363b2596dd2f39d446eca
    2 689ca250aadf71fee16ae508293b13da
    7 f151646cc79d86cd18e21ea90e52b6d2
    42 cabec968b3530becc6ae1e51d03e119e
    1000003 97e42c9a65824ef7f800f6d476ce0107
    18446744073709551615 9986227fee1495fbe6aa76ee9c2cb7b7
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
    let dir = tempdir();
    let plain = digest(3);
    let builder = Sim::builder().seed(3).capture(dir.join("a.pcapng")).timeline(dir.join("a.txt"));
    assert_eq!(builder.run(mixed).unwrap().digest, plain);
    let timeline = std::fs::read_to_string(dir.join("a.txt")).unwrap();
    for word in ["tcp client 0 > tcp", "SYN seq 0", "lost by chance", "(again: ", "UDP"] {
        assert!(timeline.contains(word), "no {word:?} in the timeline:\n{timeline}");
    }
    for order in ["cut: tcp > tcp client 0, tcp client 0 > tcp", "bounce: udp", "link loss=5%,"] {
        assert!(timeline.contains(order), "no {order:?} in the timeline:\n{timeline}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_timeline_says_why_a_segment_is_sent_again() {
    let file = tempdir().join("why.txt");
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
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
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
    let check = Sim::builder().artifacts(tempdir()).check(0..2, |sim| {
        echo_server(sim, "server");
        let bytes = 100 + RUNS.fetch_add(1, Ordering::Relaxed) as usize;
        sim.client("client", async move {
            ask("server", bytes).await?;
            Err("as planted".into())
        });
        Ok(())
    });
    let failure = check.failure().expect("it fails");
    assert_eq!(failure.kind, pagewire_simulation::FailureKind::NotDeterministic);
    let text = failure.to_string();
    assert!(
        text.contains("as planted") && text.contains("depends on more than its seed"),
        "{text}"
    );
}

fn tempdir() -> std::path::PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let unique = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(format!("pagewire-simulation-{}-{}", unique.0, unique.1));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
