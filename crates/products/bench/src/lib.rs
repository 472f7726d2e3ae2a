//! `pagewire bench`: measurements whose figures can be compared. Every engine runs in every round;
//! the first round warms up; medians are printed with the spread. Read `table` first (a
//! measurement and its results), then `kit` (data, sockets, meters); `measure` has the measurements.

#![deny(unsafe_code)]

mod all;
mod args;
mod failure;
mod kit;
mod measure;
mod numbers;
mod options;
mod page;
mod plot;
mod progress;
mod sys;
mod table;

use std::fs::OpenOptions;
use std::time::Instant;

use args::Plan;
use failure::Because;
pub use failure::Failure;
pub use options::{BenchOptions, EXAMPLES};
use page::{RunFacts, Section, SectionOutcome};
use plot::charts;
use progress::Progress;
use table::{Record, Row, json_lines};

/// Runs one measurement and prints its results on standard output, or runs all that can run here and
/// writes a report.
///
/// # Errors
/// [`Failure`]: options make no sense, or something is missing on this machine.
pub fn run(options: &BenchOptions) -> Result<(), Failure> {
    let Some(bench) = &options.bench else {
        return match &options.report {
            Some(dir) if options.plot.is_none() => all::run(dir, options.quick, command()),
            Some(_) => Err(Failure::Usage("--plot needs a measurement; --report has all".into())),
            None => {
                let text = "give a measurement, or --report DIR for all of them; pagewire bench \
                            --help lists them";
                Err(Failure::Usage(text.into()))
            }
        };
    };
    if options.quick {
        let text = "--quick is for the report of all measurements; give --seconds or the like here";
        return Err(Failure::Usage(text.into()));
    }
    let bench = bench.options();
    let Plan { shown, needs_root, writes } = bench.plan();
    may_run(needs_root)?;
    // Check that the files can be written before minutes of measuring.
    if let Some(file) = &options.plot {
        let opened = OpenOptions::new().create(true).append(true).open(file);
        opened.map(drop).because(format_args!("--plot {}", file.display()))?;
    }
    if let Some(dir) = &options.report {
        page::check(dir)?;
    }
    let facts = options.report.as_ref().map(|_| RunFacts::gather(command(), false));
    let progress = match writes {
        true => Progress::hidden(),
        false => Progress::new(shown.name, options.part.as_deref()),
    };
    let begun = Instant::now();
    let results = bench.run(&progress)?;
    let rows: Vec<Row> = results.records.into_iter().map(Record::row).collect();
    if let Some(file) = &options.rows {
        std::fs::write(file, json_lines(&rows)?).because(file.display())?;
    }
    if let Some(file) = &options.plot {
        let image = plot::document(&charts(&shown, &rows), &results.heading);
        std::fs::write(file, image).because(format_args!("--plot {}", file.display()))?;
    }
    if let (Some(dir), Some(facts)) = (&options.report, &facts) {
        let outcome = SectionOutcome::Measured { rows, took: begun.elapsed() };
        let (name, notes) = (shown.name.to_owned(), bench.notes());
        page::write(dir, facts, &[Section { name, shown, command: command(), outcome, notes }])?;
    }
    Ok(())
}

/// Whether this process may run a measurement.
fn may_run(needs_root: bool) -> Result<(), Failure> {
    if needs_root { kit::namespace::check_privilege() } else { Ok(()) }
}

/// This process's command line, so that a shell takes it again.
fn command() -> String {
    let quoted = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=%:+@".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    ["pagewire".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}
