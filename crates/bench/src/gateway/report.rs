//! Lines of results, and how ours compare.

use super::load::Bulk;
use super::{Case, Line, Memory, Small};
use crate::failure::say;
use crate::machine::{Machine, SPREAD};
use crate::meter::Spread;
use crate::options::{Engine, GatewayOptions};
use crate::report::{Record, Results, print as print_records, rounded, show};

/// The results, bulk lines first.
pub(super) fn records(lines: &[Line], memory: &[Memory], machine: &Machine) -> Vec<Record> {
    let bulk = lines.iter().filter_map(bulk_record);
    let small = lines.iter().filter_map(|line| small_record(line, memory));
    bulk.chain(small).map(|record| record.on(machine)).collect()
}

fn bulk_record(line: &Line) -> Option<Record> {
    let Case::Bulk { way, flows } = line.case else { return None };
    let rate = Spread::by(&line.bulk, |bulk| bulk.gbit_per_s())?;
    let record = Record::default()
        .with("bench", "gateway")
        .with("engine", line.engine.name())
        .with("mtu", line.mtu)
        .with("direction", way.name())
        .with("flows", flows)
        .with("gbit_per_s", rounded(rate.median.gbit_per_s(), 3));
    let record = match cpus(&line.bulk) {
        Some(cpus) => record.with_spread("cpu_s_per_gib", cpus, 4),
        None => record,
    };
    let record = record
        .with("rounds", line.bulk.len())
        .with("min_gbit_per_s", rounded(rate.min.gbit_per_s(), 3))
        .with("max_gbit_per_s", rounded(rate.max.gbit_per_s(), 3));
    Some(record)
}

/// CPU seconds for a GiB.
fn cpus(all: &[Bulk]) -> Option<Spread> {
    let values: Option<Vec<f64>> = all.iter().map(Bulk::cpu_s_per_gib).collect();
    values.filter(|values| !values.is_empty()).map(Spread::of)
}

fn cpu(all: &[Bulk]) -> Option<f64> {
    cpus(all).map(|cpus| cpus.median)
}

fn spread(all: &[Small], value: fn(&Small) -> f64) -> Spread {
    Spread::of(all.iter().map(value))
}

fn median(all: &[Small], value: fn(&Small) -> f64) -> f64 {
    spread(all, value).median
}

fn small_record(line: &Line, memory: &[Memory]) -> Option<Record> {
    let all = &line.small;
    if line.case != Case::Small || all.is_empty() {
        return None;
    }
    let mut record = Record::default()
        .with("bench", "gateway")
        .with("engine", line.engine.name())
        .with_spread("connections_per_s", spread(all, |s| s.connections_per_s), 0)
        .with_spread("requests_per_s", spread(all, |s| s.requests_per_s), 0)
        .with_spread("rtt_us_p50", spread(all, |s| s.rtt_us), 1)
        .with_spread("udp_rtt_us_p50", spread(all, |s| s.udp_rtt_us), 1);
    if let Some(memory) = memory.iter().find(|memory| memory.engine == line.engine) {
        if let Some(fresh) = memory.fresh {
            record = record.with("rss_bytes", fresh);
        }
        if let Some(idle) = memory.idle {
            record = record.with("rss_bytes_1000_idle", idle);
        }
    }
    Some(record.with("rounds", all.len()))
}

/// Prints them: one object in each line, or two tables.
pub(super) fn print(records: Vec<Record>, options: &GatewayOptions, machine: &Machine) -> Results {
    let heading = machine.heading(options.common.rounds, options.seconds, SPREAD);
    if options.common.json {
        return print_records(records, true, heading, "");
    }
    let (bulk, small): (Vec<Record>, Vec<Record>) =
        records.iter().cloned().partition(|record| record.get("direction").is_some());
    let columns =
        "engine mtu direction flows gbit_per_s min_gbit_per_s max_gbit_per_s cpu_s_per_gib";
    show(&bulk, false, &heading, columns);
    say("");
    let columns = "engine connections_per_s requests_per_s rtt_us_p50 udp_rtt_us_p50 rss_bytes \
                   rss_bytes_1000_idle";
    show(&small, false, "64 connections, 64 bytes each way", columns);
    Results { heading, records }
}

/// A ratio of ours to others', and what it is to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Check {
    what: String,
    ours: f64,
    theirs: f64,
    /// At least so many times theirs, or at most.
    goal: Goal,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Check {
    fn ratio(&self) -> f64 {
        self.ours / self.theirs.max(1e-9)
    }

    pub(super) fn is_met(&self) -> bool {
        match self.goal {
            Goal::AtLeast(goal) => self.ratio() >= goal,
            Goal::AtMost(goal) => self.ratio() <= goal,
        }
    }
}

/// MTU from which a packet is as long as a super-frame: payload, not packets, is what costs.
const LARGE: u32 = 32_768;

/// Ours beside the best of the other gateways: eight times the rate and a quarter of the CPU at
/// small MTUs, one and a half times the rate at no more CPU than pasta's at large ones.
pub(super) fn checks(lines: &[Line]) -> Vec<Check> {
    let mut all = Vec::new();
    for ours in lines.iter().filter(|line| line.engine == Engine::Pagewire) {
        let same = |line: &&Line| line.mtu == ours.mtu && line.case == ours.case;
        let peers = || lines.iter().filter(same).filter(|line| line.engine.is_peer());
        let Case::Bulk { way, flows } = ours.case else {
            all.extend(small_checks(ours, lines));
            continue;
        };
        let large = ours.mtu >= LARGE;
        let what = format!("MTU {}, {}, {flows} flow(s)", ours.mtu, way.name());
        let rate = |line: &Line| Spread::of(line.bulk.iter().map(Bulk::gbit_per_s)).median;
        if let Some(theirs) = peers().map(rate).reduce(f64::max) {
            let goal = Goal::AtLeast(if large { 1.5 } else { 8.0 });
            let what = format!("{what}: Gbit/s, best of the others");
            all.push(Check { what, ours: rate(ours), theirs, goal });
        }
        let compared = peers().filter(|line| !large || line.engine == Engine::Pasta);
        let theirs = compared.filter_map(|line| cpu(&line.bulk)).reduce(f64::min);
        if let (Some(ours), Some(theirs)) = (cpu(&ours.bulk), theirs) {
            let (goal, whose) = if large { (1.0, "pasta") } else { (0.25, "best of the others") };
            let what = format!("{what}: CPU s/GiB, {whose}");
            all.push(Check { what, ours, theirs, goal: Goal::AtMost(goal) });
        }
    }
    all
}

fn small_checks(ours: &Line, lines: &[Line]) -> Vec<Check> {
    let pasta = |line: &&Line| line.engine == Engine::Pasta && line.case == Case::Small;
    let Some(pasta) = lines.iter().find(pasta).filter(|line| !line.small.is_empty()) else {
        return Vec::new();
    };
    let check = |what: &str, value: fn(&Small) -> f64, goal| Check {
        what: format!("{what}, pasta"),
        ours: median(&ours.small, value),
        theirs: median(&pasta.small, value),
        goal,
    };
    vec![
        check("connections/s", |s| s.connections_per_s, Goal::AtLeast(1.5)),
        check("requests/s", |s| s.requests_per_s, Goal::AtLeast(1.3)),
        check("TCP round trip", |s| s.rtt_us, Goal::AtMost(0.5)),
    ]
}

/// Prints each ratio with its goal, and what is not met.
pub(super) fn print_checks(checks: &[Check]) {
    say("");
    for check in checks {
        let (sign, goal) = match check.goal {
            Goal::AtLeast(goal) => (">=", goal),
            Goal::AtMost(goal) => ("<=", goal),
        };
        let met = if check.is_met() { "met" } else { "NOT met" };
        let Check { what, ours, theirs, .. } = check;
        say(format_args!(
            "{met:>7}  {:>8.2} {sign} {goal:<4}  {ours:.3} : {theirs:.3}  {what}",
            check.ratio()
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::load::Way;
    use super::*;

    fn bulk(engine: Engine, mtu: u32, gbit: f64, cpu_ms: Option<u64>) -> Line {
        let cpu = cpu_ms.map(Duration::from_millis);
        let round = Bulk { bytes: (gbit / 8e-9) as u64, time: Duration::from_secs(1), cpu };
        let case = Case::Bulk { way: Way::Out, flows: 1 };
        Line { guest: 0, engine, mtu, case, bulk: vec![round; 3], small: Vec::new() }
    }

    fn small(engine: Engine, factor: f64) -> Line {
        let round = Small {
            connections_per_s: 1000.0 * factor,
            requests_per_s: 1000.0 * factor,
            rtt_us: 10.0 / factor,
            udp_rtt_us: 10.0,
        };
        let small = vec![round; 3];
        Line { guest: 0, engine, mtu: 1500, case: Case::Small, bulk: Vec::new(), small }
    }

    #[test]
    fn a_line_has_the_fields_that_readers_look_for() {
        let machine = Machine { cpu: "c".into(), cpus: 2, kernel: "k".into() };
        let lines = [
            bulk(Engine::Pasta, 1500, 8.589_934_592, Some(500)),
            bulk(Engine::Veth, 1500, 8.0, None),
            small(Engine::Pasta, 1.0),
        ];
        let memory = [Memory { engine: Engine::Pasta, fresh: Some(1), idle: Some(2) }];
        let texts: Vec<String> = records(&lines, &memory, &machine)
            .iter()
            .map(|record| serde_json::to_string(record).unwrap())
            .collect();
        assert!(texts[0].starts_with(
            r#"{"bench":"gateway","engine":"pasta","mtu":1500,"direction":"out","flows":1,"gbit_per_s":8.59,"cpu_s_per_gib":0.5,"#
        ), "{}", texts[0]);
        assert!(!texts[1].contains("cpu_s_per_gib"), "the kernel is no process");
        assert!(texts[2].starts_with(
            r#"{"bench":"gateway","engine":"pasta","connections_per_s":1000.0,"requests_per_s":1000.0,"rtt_us_p50":10.0,"udp_rtt_us_p50":10.0,"rss_bytes":1,"rss_bytes_1000_idle":2,"#
        ), "{}", texts[2]);
    }

    #[test]
    fn ours_is_compared_with_the_best_of_the_other_gateways() {
        let lines = [
            bulk(Engine::Pagewire, 1500, 16.0, Some(100)),
            bulk(Engine::Pasta, 1500, 1.0, Some(500)),
            bulk(Engine::Slirp4netns, 1500, 2.0, Some(900)),
            bulk(Engine::Veth, 1500, 50.0, None),
            small(Engine::Pagewire, 1.4),
            small(Engine::Pasta, 1.0),
        ];
        let checks = checks(&lines);
        let ratios: Vec<(f64, bool)> =
            checks.iter().map(|check| (rounded(check.ratio(), 3), check.is_met())).collect();
        // Rate, CPU, connections, requests, round trip.
        let cpu = (0.1 / 16.0) / (0.9 / 2.0);
        assert_eq!(
            ratios,
            [(8.0, true), (rounded(cpu, 3), true), (1.4, false), (1.4, true), (0.714, false)]
        );
    }

    #[test]
    fn at_large_mtus_the_goals_are_others() {
        let lines = [
            bulk(Engine::Pagewire, 65_520, 15.0, Some(100)),
            bulk(Engine::Pasta, 65_520, 11.0, Some(100)),
            bulk(Engine::Slirp4netns, 65_520, 2.0, Some(1)),
        ];
        let met: Vec<bool> = checks(&lines).iter().map(Check::is_met).collect();
        assert_eq!(met, [false, true], "1.36 times the rate; less CPU than pasta");
    }
}
