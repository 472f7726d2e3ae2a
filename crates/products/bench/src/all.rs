//! `bench --report DIR` without a name: every measurement that can run here.
//!
//! Each has a process of its own, as if it were typed: what one leaves in memory would count for the
//! next. The process writes its rows to a file that we name (`--rows`).

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use clap::Parser;

use crate::failure::{Because, Failure, say};
use crate::options::Bench;
use crate::page::{self, INDEX, RunFacts, Section, SectionOutcome};
use crate::table::Row;

/// A command of the run.
struct PlannedBench {
    /// Begins with the measurement's name; unique.
    name: &'static str,
    args: &'static str,
    /// More options of a quick run.
    quick: &'static str,
}

const fn planned(name: &'static str, args: &'static str, quick: &'static str) -> PlannedBench {
    PlannedBench { name, args, quick }
}

/// The commands of the run, in their order.
const PLAN: &[PlannedBench] = &[
    planned("stream", "stream --via-proxy", "--seconds 0.2"),
    planned("send", "send", "--seconds 0.1 --size 4K,64K,1M"),
    planned("receive", "receive", "--seconds 0.2"),
    planned("receive-sum", "receive --reader sum", "--seconds 0.2"),
    planned("ring", "ring", "--seconds 0.2"),
    planned("rr", "rr", "--seconds 0.2"),
    planned("idle", "idle", "--connections 10000"),
    planned("port", "port", "--frames 50000 --frame 60,256,1500"),
    planned("requests", "requests", "--seconds 0.2"),
    planned("connections", "connections", "--seconds 0.2"),
    planned("crowd", "crowd", "--connections 200 --size 256K"),
    planned("sim", "sim", "--seconds 0.5"),
    planned("cores", "cores", "--seconds 0.1 --strays 0,50"),
    planned("stream-tap", "stream --link tap --via-proxy", "--seconds 0.2"),
    planned("send-tap", "send --link tap", "--seconds 0.1 --size 4K,64K,1M"),
    planned("receive-tap", "receive --link tap", "--seconds 0.2"),
    planned("ring-tap", "ring --link tap", "--seconds 0.2"),
    planned("datagrams", "datagrams", "--seconds 0.2 --protocol udp"),
    planned("requests-tap", "requests --link tap", "--seconds 0.2 --connections 1,64"),
    planned("connections-tap", "connections --link tap", "--seconds 0.2"),
    planned("crowd-tap", "crowd --link tap", "--connections 200 --size 256K"),
    planned("path", "path", "--seconds 0.5 --loss 0%,1% --delay 1ms"),
    planned("share", "share", "--seconds 1"),
    planned("gateway", "gateway", "--seconds 0.2 --mtu 1500 --flows 1"),
];

/// A command that needs a virtual machine, so no run can do it alone.
const WITH_A_PEER: PlannedBench =
    planned("stream-vhost-user", "stream --link vhost-user --socket PATH", "");

/// The part of the command line behind `bench`.
#[derive(Debug, Parser)]
struct BenchWords {
    #[command(subcommand)]
    bench: Bench,
}

impl PlannedBench {
    fn words(&self, quick: bool) -> Vec<&'static str> {
        let more = if quick { self.quick } else { "" };
        self.args.split(' ').chain(more.split(' ')).filter(|word| !word.is_empty()).collect()
    }

    fn bench(&self, quick: bool) -> Result<Bench, Failure> {
        let words = ["bench"].into_iter().chain(self.words(quick));
        Ok(BenchWords::try_parse_from(words)?.bench)
    }
}

/// Measures everything, and writes the page; what fails does not keep the others from being shown.
pub(crate) fn run(dir: &Path, quick: bool, command: String) -> Result<(), Failure> {
    page::check(dir)?;
    let facts = RunFacts::gather(command, quick);
    let mut sections = Vec::new();
    for (n, planned) in PLAN.iter().enumerate() {
        let part = format!("{} of {}", n + 1, PLAN.len());
        let section = section(planned, quick, &part)?;
        match &section.outcome {
            SectionOutcome::Measured { .. } => say(""),
            SectionOutcome::LeftOut(why) => {
                say(format_args!("left out: {}: {why}\n", section.command))
            }
            SectionOutcome::Failed(why) => eprintln!("FAILED: {}: {why}\n", section.command),
        }
        sections.push(section);
    }
    sections.push(with_a_peer()?);
    page::write(dir, &facts, &sections)?;
    say(format_args!("report: {}", dir.join(INDEX).display()));
    let failed = sections.iter().filter(|s| matches!(s.outcome, SectionOutcome::Failed(_))).count();
    match failed {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} measurement(s) failed; the report says why"))),
    }
}

fn with_a_peer() -> Result<Section, Failure> {
    let why =
        "It needs a virtual machine that connects to its socket, as scripts/guest/boot starts one.";
    Ok(Section {
        name: WITH_A_PEER.name.to_owned(),
        shown: WITH_A_PEER.bench(false)?.options().plan().shown,
        command: format!("pagewire bench {} --report DIR", WITH_A_PEER.args),
        outcome: SectionOutcome::LeftOut(why.to_owned()),
        notes: Vec::new(),
    })
}

fn section(planned: &PlannedBench, quick: bool, part: &str) -> Result<Section, Failure> {
    let (bench, words) = (planned.bench(quick)?, planned.words(quick));
    let plan = bench.options().plan();
    let command = format!("pagewire bench {}", words.join(" "));
    let outcome = match crate::may_run(plan.needs_root) {
        Err(error) => SectionOutcome::LeftOut(error.to_string()),
        Ok(()) => {
            let begun = Instant::now();
            match measured(&words, part) {
                Ok(rows) => SectionOutcome::Measured { rows, took: begun.elapsed() },
                Err(error) => SectionOutcome::Failed(error.to_string()),
            }
        }
    };
    let (name, notes) = (planned.name.to_owned(), bench.options().notes());
    Ok(Section { name, shown: plan.shown, command, outcome, notes })
}

/// The rows of one measurement, which prints its table as always.
fn measured(words: &[&str], part: &str) -> Result<Vec<Row>, Failure> {
    let place = tempfile::tempdir().because("a directory for rows")?;
    let file = place.path().join("rows.jsonl");
    let program = std::env::current_exe().because("our program's file")?;
    let status = Command::new(program)
        .arg("bench")
        .args(words)
        .args(["--part", part])
        .arg("--rows")
        .arg(&file)
        .status()
        .because("a process for the measurement")?;
    if !status.success() {
        return Err(Failure::because("see its message above the report's line", status));
    }
    let text = std::fs::read_to_string(&file).because("the measurement's rows")?;
    let rows = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    rows.because("the measurement's rows")
}

/// How each measurement is shown.
#[cfg(test)]
pub(crate) fn shown() -> Vec<crate::table::TableInfo> {
    let mut all: Vec<crate::table::TableInfo> = Vec::new();
    for planned in PLAN {
        let shown = planned.bench(false).expect("it is in the plan").options().plan().shown;
        if all.iter().all(|other| other.name != shown.name) {
            all.push(shown);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_measurement_is_in_the_plan_with_options_that_it_takes() {
        let mut benches = BTreeSet::new();
        let mut names = BTreeSet::new();
        for planned in PLAN {
            for quick in [false, true] {
                let bench =
                    planned.bench(quick).unwrap_or_else(|e| panic!("{}: {e}", planned.args));
                let name = bench.options().plan().shown.name;
                assert!(planned.name.starts_with(name), "{}", planned.name);
                benches.insert(name);
            }
            assert!(names.insert(planned.name), "{} is there twice", planned.name);
        }
        use clap::CommandFactory;
        let line = BenchWords::command();
        let commands: BTreeSet<&str> = line.get_subcommands().map(|c| c.get_name()).collect();
        assert_eq!(benches, commands);
    }
}
