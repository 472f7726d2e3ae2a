//! The share of a bottleneck that each of many flows gets, by round trip, buffer, loss, queue and
//! number of flows. The table is kept in `snapshots/`, so that a change of what TCP does shows as a
//! change of figures that a person can judge:
//!
//! - `used`: of the link, how much carried payload that arrived for the first time, per cent (in
//!   order: what waited for a gap before the measurement began may lift it over 100);
//! - `Jain`: Jain's index of fairness; `least` and `most`: what the worst and the best off flow
//!   got, in even shares;
//! - `again`: packets that carried nothing new; `lost`, `mark`: packets that the queue lost and
//!   marked; all per cent;
//! - `wait`: average time in the queue, ms; `RTO`, `rec`: timeouts and fast recoveries of all flows.

use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

use pagewire_device::{Aqm, Chance};
use pagewire_stack::TcpConfig;
use pagewire_tcp::{CongestionKind, EcnMode};
use pagewire_testkit::sim::{Bottleneck, Shares};

const SEED: u64 = 1;
const HEADINGS: &str = " used  Jain  least   most  again   lost   mark   wait    RTO    rec";

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A row of the table: its name, and its scenario.
type Case = (String, Bottleneck);

fn row(name: &str, shares: &Shares) -> String {
    let (least, most) = shares.extremes();
    let percent = |part: f64| part * 100.0;
    format!(
        "{name} {:5.0} {:5.2} {least:6.2} {most:6.2} {:6.1} {:6.1} {:6.1} {:6.0} {:6} {:6}\n",
        percent(shares.utilisation()),
        shares.fairness(),
        percent(shares.sent_again()),
        percent(shares.dropped()),
        percent(shares.marked()),
        shares.waited().as_secs_f64() * 1e3,
        shares.timeouts(),
        shares.recoveries(),
    )
}

/// Runs all, on as many threads as a small machine has.
fn run(cases: &[Case]) -> Vec<Shares> {
    let next = Mutex::new(0..cases.len());
    let results: Mutex<Vec<Option<Shares>>> = Mutex::new(vec![None; cases.len()]);
    let work = || {
        while let Some(at) = { next.lock().expect("no panics").next() } {
            let (name, bottleneck) = &cases[at];
            let shares = bottleneck.run(None).unwrap_or_else(|error| panic!("{name}: {error}"));
            results.lock().expect("no panics")[at] = Some(shares);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let results = results.into_inner().expect("no panics");
    results.into_iter().map(|shares| shares.expect("every case was run")).collect()
}

fn table(title: &str, columns: &str, cases: &[Case]) -> (String, Vec<Shares>) {
    let results = run(cases);
    let mut text = format!("{title}\n{columns} {HEADINGS}\n");
    for ((name, _), shares) in cases.iter().zip(&results) {
        text += &row(name, shares);
    }
    (text, results)
}

/// With a buffer in per cent of the product of bandwidth and delay.
fn drop_tail(flows: usize, round_trip: u64, percent: u32) -> Bottleneck {
    let mut bottleneck = Bottleneck::new(SEED, flows, ms(round_trip));
    bottleneck.buffer = bottleneck.packets_in(ms(round_trip) * percent / 100);
    bottleneck
}

fn with_ecn(mut bottleneck: Bottleneck, ecn: bool) -> Bottleneck {
    let mode = if ecn { EcnMode::Request } else { EcnMode::Off };
    let tcp = TcpConfig { ecn: mode, ..TcpConfig::default() };
    for group in &mut bottleneck.groups {
        group.tcp = tcp.clone();
    }
    bottleneck.receiver = tcp;
    bottleneck
}

#[test]
fn drop_tail_queues_by_round_trip_buffer_and_flows() {
    let mut cases: Vec<Case> = Vec::new();
    for round_trip in [10, 100] {
        for percent in [25, 100, 400] {
            for flows in [2, 8, 32] {
                let bottleneck = drop_tail(flows, round_trip, percent);
                let packets = bottleneck.buffer;
                let name = format!("{round_trip:4} {percent:4} {packets:7} {flows:5}");
                cases.push((name, bottleneck));
            }
        }
    }
    let title = "20 Mbit/s, drop-tail, CUBIC; round trip in ms, buffer in % of the product of \
                 bandwidth and delay and in packets";
    let (text, results) = table(title, " RTT  buf packets flows", &cases);
    for ((name, bottleneck), shares) in cases.iter().zip(&results) {
        let full = bottleneck.packets_in(bottleneck.groups[0].round_trip);
        let what = format!("{name}\n{text}");
        assert_eq!(shares.flows.len(), bottleneck.groups[0].flows, "{what}");
        if bottleneck.buffer >= full {
            assert!(shares.utilisation() > 0.95, "the link is not full: {what}");
            assert!(shares.fairness() > 0.75, "somebody has too much: {what}");
        }
        // Room for some packets of every flow: nobody has to wait for a timeout.
        if bottleneck.buffer + full > 8 * shares.flows.len() {
            assert!(shares.timeouts() * 10 <= shares.recoveries(), "timeouts: {what}");
        }
        let waste = shares.sent_again() - shares.dropped();
        assert!(waste < 0.03, "too much is sent again: {what}");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn random_loss_by_round_trip() {
    let mut cases: Vec<Case> = Vec::new();
    for round_trip in [10, 100] {
        for per_million in [1_000, 10_000, 30_000, 100_000] {
            let mut bottleneck = drop_tail(8, round_trip, 100);
            bottleneck.loss = Chance::per_million(per_million);
            let loss = f64::from(per_million) / 1e4;
            cases.push((format!("{round_trip:4} {loss:5.1}"), bottleneck));
        }
    }
    let title = "20 Mbit/s, 8 flows, CUBIC, a buffer of the product of bandwidth and delay; round \
                 trip in ms, packets lost by chance in %";
    let (text, results) = table(title, " RTT  loss", &cases);
    for ((name, bottleneck), shares) in cases.iter().zip(&results) {
        // Lost segments must be sent again. A quarter more than these is waste.
        let chance = f64::from(bottleneck.loss.as_per_million()) / 1e6;
        let allowed = 1.25 * (chance + shares.dropped()) + 0.01;
        assert!(shares.sent_again() < allowed, "too much is sent again: {name}\n{text}");
        assert!(shares.fairness() > 0.85, "{name}\n{text}");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn queues_that_say_that_they_are_long() {
    let queues = [
        ("drop-tail", Aqm::None, false),
        ("mark above 5 ms, ECN", Aqm::Mark { above: ms(5) }, true),
        ("CoDel", Aqm::Codel, false),
        ("CoDel, ECN", Aqm::Codel, true),
    ];
    let mut cases: Vec<Case> = Vec::new();
    for (name, aqm, ecn) in queues {
        for flows in [2, 8, 32] {
            let mut bottleneck = with_ecn(drop_tail(flows, 50, 400), ecn);
            bottleneck.aqm = aqm;
            cases.push((format!("{name:20} {flows:5}"), bottleneck));
        }
    }
    let title = "20 Mbit/s, round trip 50 ms, CUBIC, a buffer of four products of bandwidth and \
                 delay";
    let (text, results) = table(title, &format!("{:20} flows", "queue"), &cases);
    for ((name, bottleneck), shares) in cases.iter().zip(&results) {
        let what = format!("{name}\n{text}");
        let ecn = bottleneck.receiver.ecn == EcnMode::Request;
        if bottleneck.aqm == Aqm::None {
            assert!(shares.waited() > ms(50), "a queue that nobody keeps short: {what}");
        } else {
            assert!(shares.waited() < ms(50), "nobody listens: {what}");
        }
        assert_eq!(shares.queue.marked > 0, ecn, "{what}");
        if ecn {
            assert!(shares.sent_again() < 0.02, "marks are there to save packets: {what}");
        }
        assert!(shares.fairness() > 0.85, "somebody has too much: {what}");
    }
    insta::assert_snapshot!(text);
}

/// Accurate feedback (RFC 9768) tells the same congestion control more: it must not do worse.
#[test]
fn accurate_feedback_shares_as_classic_does() {
    let bottleneck = |mode| {
        let mut bottleneck = with_ecn(drop_tail(8, 50, 400), true);
        bottleneck.aqm = Aqm::Codel;
        for group in &mut bottleneck.groups {
            group.tcp.ecn = mode;
        }
        bottleneck.receiver.ecn = mode;
        bottleneck
    };
    let cases: Vec<Case> = [("classic", EcnMode::Request), ("accurate", EcnMode::Accurate)]
        .map(|(name, mode)| (name.to_owned(), bottleneck(mode)))
        .into();
    let (text, results) = table("CoDel, ECN", "", &cases);
    for shares in &results {
        assert!(shares.queue.marked > 0 && shares.sent_again() < 0.02, "{text}");
        assert!(shares.waited() < ms(50) && shares.utilisation() > 0.85, "{text}");
        assert!(shares.fairness() > 0.85, "{text}");
    }
}

#[test]
fn unlike_flows() {
    let mut cases: Vec<Case> = Vec::new();
    let mut add = |name: &str, change: &dyn Fn(&mut Bottleneck)| {
        let mut bottleneck = drop_tail(4, 50, 100);
        let group = bottleneck.groups[0].clone();
        bottleneck.groups.push(group);
        change(&mut bottleneck);
        cases.push((format!("{name:34}"), bottleneck));
    };
    add("4 and 4 alike", &|_| {});
    add("4 at 25 ms, 4 at 100 ms", &|b| {
        b.groups[0].round_trip = ms(25);
        b.groups[1].round_trip = ms(100);
    });
    add("4 CUBIC, 4 NewReno", &|b| b.groups[1].tcp.congestion = CongestionKind::NewReno);
    add("4 from the start, 4 after 10 s", &|b| {
        b.groups[1].begins = ms(10_000);
        b.warm_up = ms(20_000);
    });
    add("4 with SACK, 4 without", &|b| b.groups[1].tcp.sack = false);
    let title = "20 Mbit/s, drop-tail, round trip 50 ms unless said otherwise, a buffer of the \
                 product of bandwidth and delay; `first`: what the first four got of all, in %";
    let results = run(&cases);
    let mut text = format!("{title}\n{:34} first {HEADINGS}\n", "");
    for ((name, _), shares) in cases.iter().zip(&results) {
        let first = shares.part(0) * 100.0;
        let _ = write!(text, "{}", row(&format!("{name} {first:5.0}"), shares));
    }
    for ((name, _), shares) in cases.iter().zip(&results) {
        let first = shares.part(0);
        assert!((0.35..0.65).contains(&first), "somebody starves: {name}\n{text}");
        assert!(shares.utilisation() > 0.95, "the link is not full: {name}\n{text}");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn one_seed_is_the_same_again() {
    let once = |seed| {
        let mut bottleneck = Bottleneck { seed, ..drop_tail(4, 20, 100) };
        (bottleneck.warm_up, bottleneck.length) = (ms(500), ms(2_000));
        let shares = bottleneck.run(None).expect("it runs");
        (shares.flows.iter().map(|flow| flow.bytes).collect::<Vec<_>>(), shares.queue)
    };
    assert_eq!(once(3), once(3));
    assert_ne!(once(3), once(4));
}
