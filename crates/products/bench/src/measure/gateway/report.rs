//! The results of `bench gateway`: their fields, tables, and the checks of our ratios to other gateways
//! (`--check`).

use serde_json::Value;

use super::engines::GatewayEngine;
use super::load::{Client, GatewaySample, SmallRates};
use super::{EngineMemory, GatewayBench, GatewayCase, GatewayOptions, Load};
use crate::args::name;
use crate::failure::say;
use crate::kit::machine::SPREAD;
use crate::kit::meter::Spread;
use crate::numbers::rounded;
use crate::table::{
    Field, Measured, Measurement, Record, ResultLine, Results, print_json, print_table, some,
};

type F = Field<GatewayBench>;

impl Measurement for GatewayBench {
    type Case = GatewayCase;
    type Sample = GatewaySample;

    const NAME: &'static str = "gateway";
    const TITLE: &'static str = "A guest's network through a gateway";
    const ABOUT: &'static str = "\
        Each gateway with a guest of its own, all in one run. veth is the kernel's own \
        forwarding, loopback no way at all.";
    const RATE: bool = false;
    const HEAD: bool = false;
    const FIELDS: &'static [Field<Self>] = &[
        F::value("ports", |of| published(of).then(|| "published".into())).group("{} ports"),
        F::value("names", |of| of.case.shows.map(|shows| name(shows).into()))
            .group("names shown by {}"),
        F::value("mtu", |of| of.bulk().map(|_| of.case.mtu.into())).group("MTU {}"),
        F::value("direction", |of| of.bulk().map(|(direction, _)| name(direction).into()))
            .group("{} of the guest"),
        F::value("flows", |of| of.bulk().map(|(_, flows)| flows.into())).group("{} connection(s)"),
        F::value("gbit_per_s", |of| rates(of).map(|rates| rounded(rates.median, 3).into()))
            .higher("Rate", "Gbit/s"),
        F::spread("cpu_s_per_gib", 4, |of| cpus(of.samples))
            .lower("CPU time of the gateway", "s for each GiB"),
        F::spread("connections_per_s", 0, |of| small(of.samples, |s| Some(s.connections_per_s)))
            .higher("Connections", "a second"),
        F::spread("requests_per_s", 0, |of| small(of.samples, |s| Some(s.requests_per_s)))
            .higher("Requests", "a second"),
        F::spread("rtt_us_p50", 1, |of| small(of.samples, |s| Some(s.rtt_us)))
            .lower("Round trip over TCP, median", "µs"),
        F::spread("udp_rtt_us_p50", 1, |of| small(of.samples, |s| s.udp_rtt_us))
            .lower("Round trip over UDP, median", "µs"),
        F::value("rss_bytes", |of| of.memory(|memory| memory.fresh))
            .lower("Memory at the start", "bytes"),
        F::value("rss_bytes_1000_idle", |of| of.memory(|memory| memory.idle))
            .lower("Memory with 1,000 idle connections", "bytes"),
        F::value("rounds", |of| some(of.samples.len())),
        F::bounds("gbit_per_s", 3, rates),
    ];

    fn engine(&self, case: &GatewayCase) -> (String, &'static str) {
        (name(case.engine), "")
    }
}

impl ResultLine<'_, GatewayBench> {
    fn bulk(&self) -> Option<(super::BulkDirection, usize)> {
        match self.case.load {
            Load::Bulk { direction, flows, .. } => Some((direction, flows)),
            Load::SmallRates(_) => None,
        }
    }

    /// Memory of the engine, on the line that an engine has once.
    fn memory(&self, get: fn(&EngineMemory) -> Option<u64>) -> Option<Value> {
        let of_engine = |memory: &&EngineMemory| memory.engine == self.case.engine;
        let memory = self.bench.memory.iter().find(of_engine)?;
        get(memory).filter(|_| self.case.load == Load::SmallRates(Client::Guest)).map(Value::from)
    }
}

/// Whether the clients are those of a published port.
fn published(of: &ResultLine<'_, GatewayBench>) -> bool {
    of.case.load.client() == Client::Machine
}

fn rates(of: &ResultLine<'_, GatewayBench>) -> Option<Spread> {
    of.bulk().map(|_| rate(of.samples))
}

fn rate(all: &[GatewaySample]) -> Spread {
    Spread::of(all.iter().map(|outcome| outcome.round.gbit_per_s()))
}

/// CPU seconds for a GiB; nothing if the engine is the kernel.
fn cpus(all: &[GatewaySample]) -> Option<Spread> {
    spread(all, GatewaySample::cpu_s_per_gib)
}

fn small(all: &[GatewaySample], value: fn(&SmallRates) -> Option<f64>) -> Option<Spread> {
    spread(all, |outcome| outcome.small.as_ref().and_then(value))
}

/// The spread of a value; `None` unless every round has it.
fn spread(all: &[GatewaySample], value: impl Fn(&GatewaySample) -> Option<f64>) -> Option<Spread> {
    let values: Option<Vec<f64>> = all.iter().map(value).collect();
    values.filter(|values| !values.is_empty()).map(Spread::of)
}

/// Prints them: one object in each line, or two tables.
pub(super) fn print(records: Vec<Record>, options: &GatewayOptions) -> Results {
    let heading = options.common.heading(options.seconds, SPREAD);
    if options.common.json {
        print_json(&records);
        return Results { heading, records };
    }
    let (bulk, small): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| record.line.contains_key("direction"));
    let columns = "engine ports names mtu direction flows gbit_per_s min_gbit_per_s max_gbit_per_s cpu_s_per_gib";
    print_table(bulk, &heading, columns);
    say("");
    let columns = "engine ports names connections_per_s requests_per_s rtt_us_p50 udp_rtt_us_p50 rss_bytes \
        rss_bytes_1000_idle";
    print_table(small, "64 connections, 64 bytes each way", columns);
    Results { heading, records }
}

/// A ratio of ours to others', and what it is to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RatioCheck {
    what: String,
    ours: f64,
    theirs: f64,
    /// The least or the most ratio that is good.
    goal: Goal,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl RatioCheck {
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
/// small MTUs, one and a half times the rate at no more CPU than pasta's at large ones. Published ports, which pasta
/// splices, have the goal of pasta's rate where ours splices them, too.
pub(super) fn checks(lines: &[Measured<GatewayBench>]) -> Vec<RatioCheck> {
    let mut all = published_checks(lines);
    let is_checked = |case: &GatewayCase| {
        case.engine == GatewayEngine::Pagewire && case.load.client() == Client::Guest
    };
    for (case, samples) in lines.iter().filter(|(case, _)| is_checked(case)) {
        let peers = |of: fn(GatewayEngine) -> bool| {
            let same =
                move |c: &GatewayCase| c.mtu == case.mtu && c.load == case.load && of(c.engine);
            lines.iter().filter(move |(case, _)| same(case)).map(|(_, samples)| &**samples)
        };
        let Load::Bulk { direction, flows, .. } = case.load else {
            all.extend(
                peers(|e| e == GatewayEngine::Pasta).flat_map(|pasta| small_checks(samples, pasta)),
            );
            continue;
        };
        let large = case.mtu >= LARGE;
        let what = format!("MTU {}, {}, {flows} flow(s)", case.mtu, name(direction));
        let median = |all: &[GatewaySample]| rate(all).median;
        if let Some(theirs) = peers(GatewayEngine::is_peer).map(median).reduce(f64::max) {
            let goal = Goal::AtLeast(if large { 1.5 } else { 8.0 });
            let what = format!("{what}: Gbit/s, best of the others");
            all.push(RatioCheck { what, ours: median(samples), theirs, goal });
        }
        let cpu = |all: &[GatewaySample]| cpus(all).map(|cpus| cpus.median);
        let compared = if large { |e| e == GatewayEngine::Pasta } else { GatewayEngine::is_peer };
        let theirs = peers(compared).filter_map(cpu).reduce(f64::min);
        if let (Some(ours), Some(theirs)) = (cpu(samples), theirs) {
            let (goal, whose) = if large { (1.0, "pasta") } else { (0.25, "best of the others") };
            let what = format!("{what}: CPU s/GiB, {whose}");
            all.push(RatioCheck { what, ours, theirs, goal: Goal::AtMost(goal) });
        }
    }
    all
}

/// Published ports by splice, beside pasta's.
fn published_checks(lines: &[Measured<GatewayBench>]) -> Vec<RatioCheck> {
    let of = |engine| {
        lines
            .iter()
            .filter(move |(case, _)| case.engine == engine && case.load.client() == Client::Machine)
    };
    let mut all = Vec::new();
    for (case, samples) in of(GatewayEngine::Spliced) {
        let Load::Bulk { direction, flows, .. } = case.load else { continue };
        let same = |other: &GatewayCase| other.mtu == case.mtu && other.load == case.load;
        if let Some((_, theirs)) = of(GatewayEngine::Pasta).find(|(other, _)| same(other)) {
            let what = format!(
                "published, MTU {}, {}, {flows} flow(s): Gbit/s, pasta",
                case.mtu,
                name(direction)
            );
            let (ours, theirs) = (rate(samples).median, rate(theirs).median);
            all.push(RatioCheck { what, ours, theirs, goal: Goal::AtLeast(1.0) });
        }
    }
    all
}

fn small_checks(ours: &[GatewaySample], pasta: &[GatewaySample]) -> Vec<RatioCheck> {
    let check = |what: &str, value: fn(&SmallRates) -> Option<f64>, goal| {
        let median = |all| small(all, value).map(|spread| spread.median);
        let (ours, theirs) = (median(ours).unwrap_or_default(), median(pasta)?);
        Some(RatioCheck { what: format!("{what}, pasta"), ours, theirs, goal })
    };
    let all = [
        check("connections/s", |s| Some(s.connections_per_s), Goal::AtLeast(1.5)),
        check("requests/s", |s| Some(s.requests_per_s), Goal::AtLeast(1.3)),
        check("TCP round trip", |s| Some(s.rtt_us), Goal::AtMost(0.5)),
    ];
    all.into_iter().flatten().collect()
}

/// Prints each ratio with its goal, and what is not met.
pub(super) fn print_checks(checks: &[RatioCheck]) {
    say("");
    for check in checks {
        let (sign, goal) = match check.goal {
            Goal::AtLeast(goal) => (">=", goal),
            Goal::AtMost(goal) => ("<=", goal),
        };
        let met = if check.is_met() { "met" } else { "NOT met" };
        let RatioCheck { what, ours, theirs, .. } = check;
        say(format_args!(
            "{met:>7}  {:>8.2} {sign} {goal:<4}  {ours:.3} : {theirs:.3}  {what}",
            check.ratio()
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::load::BulkDirection;
    use super::*;
    use crate::kit::meter::Round;
    use crate::table::records;

    fn bulk(
        engine: GatewayEngine,
        mtu: u32,
        gbit: f64,
        cpu_ms: Option<u64>,
    ) -> Measured<GatewayBench> {
        let (bytes, time) = ((gbit / 8e-9) as u64, Duration::from_secs(1));
        let round = Round { bytes, time, receiver_cpu: Duration::ZERO };
        let bulk = GatewaySample { round, cpu: cpu_ms.map(Duration::from_millis), small: None };
        let load = Load::Bulk { client: Client::Guest, direction: BulkDirection::Out, flows: 1 };
        (GatewayCase { guest: 0, engine, mtu, load, shows: None }, vec![bulk; 3])
    }

    fn small(engine: GatewayEngine, factor: f64) -> Measured<GatewayBench> {
        let small = SmallRates {
            connections_per_s: 1000.0 * factor,
            requests_per_s: 1000.0 * factor,
            rtt_us: 10.0 / factor,
            udp_rtt_us: Some(10.0),
        };
        let case = GatewayCase {
            guest: 0,
            engine,
            mtu: 1500,
            load: Load::SmallRates(Client::Guest),
            shows: None,
        };
        (case, vec![GatewaySample { small: Some(small), ..GatewaySample::default() }; 3])
    }

    #[test]
    fn a_line_has_the_fields_that_readers_look_for() {
        let lines = [
            bulk(GatewayEngine::Pasta, 1500, 8.589_934_592, Some(500)),
            bulk(GatewayEngine::Veth, 1500, 8.0, None),
            small(GatewayEngine::Pasta, 1.0),
        ];
        let memory =
            vec![EngineMemory { engine: GatewayEngine::Pasta, fresh: Some(1), idle: Some(2) }];
        let texts: Vec<String> = records(&GatewayBench { memory }, &lines)
            .iter()
            .map(|record| serde_json::to_string(&record.line).unwrap())
            .collect();
        assert!(texts[0].starts_with(
            r#"{"bench":"gateway","engine":"pasta","mtu":1500,"direction":"out","flows":1,"gbit_per_s":8.59,"cpu_s_per_gib":0.5,"rounds":3,"#
        ), "{}", texts[0]);
        assert!(!texts[1].contains("cpu_s_per_gib"), "the kernel is no process");
        assert!(texts[2].starts_with(
            r#"{"bench":"gateway","engine":"pasta","connections_per_s":1000.0,"requests_per_s":1000.0,"rtt_us_p50":10.0,"udp_rtt_us_p50":10.0,"rss_bytes":1,"rss_bytes_1000_idle":2,"#
        ), "{}", texts[2]);
    }

    #[test]
    fn ours_is_compared_with_the_best_of_the_other_gateways() {
        let lines = [
            bulk(GatewayEngine::Pagewire, 1500, 16.0, Some(100)),
            bulk(GatewayEngine::Pasta, 1500, 1.0, Some(500)),
            bulk(GatewayEngine::Slirp4netns, 1500, 2.0, Some(900)),
            bulk(GatewayEngine::Veth, 1500, 50.0, None),
            small(GatewayEngine::Pagewire, 1.4),
            small(GatewayEngine::Pasta, 1.0),
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
            bulk(GatewayEngine::Pagewire, 65_520, 15.0, Some(100)),
            bulk(GatewayEngine::Pasta, 65_520, 11.0, Some(100)),
            bulk(GatewayEngine::Slirp4netns, 65_520, 2.0, Some(1)),
        ];
        let met: Vec<bool> = checks(&lines).iter().map(RatioCheck::is_met).collect();
        assert_eq!(met, [false, true], "1.36 times the rate; less CPU than pasta");
    }
}
