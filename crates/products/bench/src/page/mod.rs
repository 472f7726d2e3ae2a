//! The report of a run as one page: the machine, the commands, and every measurement as a plot with
//! its rows below. It needs no network and no script. The rows are also files beside it.

mod facts;

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use crate::failure::{Because, Failure};
use crate::plot::{STYLE, charts, inline, subtitle};
use crate::table::{Row, TableInfo, json_lines};
pub(crate) use facts::RunFacts;

/// The page's file within the report's directory.
pub(crate) const INDEX: &str = "index.html";

/// The style of the page, without the plots.
const PAGE_STYLE: &str = include_str!("page.css");

/// Nothing is fetched and nothing runs, whatever a name of a row contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A command of the run, with its results.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// The name of the file of rows, without its ending.
    pub(crate) name: String,
    pub(crate) shown: TableInfo,
    /// The command as it was typed.
    pub(crate) command: String,
    pub(crate) outcome: SectionOutcome,
    /// Parts that could not be measured, and why.
    pub(crate) notes: Vec<String>,
}

/// The outcome of a command.
#[derive(Clone, Debug)]
pub(crate) enum SectionOutcome {
    Measured {
        rows: Vec<Row>,
        took: Duration,
    },
    /// Why the command cannot run here.
    LeftOut(String),
    Failed(String),
}

impl Section {
    fn rows(&self) -> &[Row] {
        match &self.outcome {
            SectionOutcome::Measured { rows, .. } => rows,
            SectionOutcome::LeftOut(_) | SectionOutcome::Failed(_) => &[],
        }
    }

    /// A heading: the measurement's, and the link where there are several.
    fn title(&self) -> String {
        let title = self.shown.title;
        match self.name.strip_prefix(self.shown.name) {
            Some(more) if !more.is_empty() => {
                format!("{title}: {}", more.trim_start_matches('-').replace('-', ", "))
            }
            _ => title.to_owned(),
        }
    }
}

/// Makes the directory, and checks that the page can be written, before minutes of measuring.
pub(crate) fn check(dir: &Path) -> Result<(), Failure> {
    let what = || format!("--report {}", dir.display());
    fs::create_dir_all(dir).because(what())?;
    let page = OpenOptions::new().create(true).append(true).open(dir.join(INDEX));
    page.map(drop).because(what())
}

/// Writes the page, and the rows of each section to `NAME.jsonl`.
pub(crate) fn write(dir: &Path, facts: &RunFacts, sections: &[Section]) -> Result<(), Failure> {
    let put = |name: &str, text: &str| {
        let file = dir.join(name);
        fs::write(&file, text).because(format_args!("--report: {}", file.display()))
    };
    for section in sections {
        if !section.rows().is_empty() {
            put(&format!("{}.jsonl", section.name), &json_lines(section.rows())?)?;
        }
    }
    put(INDEX, &page(facts, sections))
}

/// The page as HTML.
fn page(facts: &RunFacts, sections: &[Section]) -> String {
    let (measured, others): (Vec<&Section>, Vec<&Section>) =
        sections.iter().partition(|s| matches!(s.outcome, SectionOutcome::Measured { .. }));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Pagewire bench, " (facts.date) }
                style { (PreEscaped(STYLE)) (PreEscaped(PAGE_STYLE)) }
            }
            body {
                header {
                    h1 { "Pagewire bench" }
                    p { (facts.date) }
                    @for warning in &facts.warnings { p class="warning" { (warning) } }
                    (machine(facts))
                    (reading())
                }
                nav aria-label="Measurements" {
                    ul {
                        @for section in &measured {
                            li { a href=(format!("#{}", section.name)) { (section.title()) } }
                        }
                        @if !others.is_empty() { li { a href="#left-out" { "Left out" } } }
                    }
                }
                main {
                    @for section in &measured { (measurement(section)) }
                    @if !others.is_empty() { (left_out(&others)) }
                }
            }
        }
    };
    page.into_string() + "\n"
}

fn machine(facts: &RunFacts) -> Markup {
    html! {
        dl {
            @for (name, value) in &facts.lines {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// How the plots are read.
fn reading() -> Markup {
    let keys = [
        ("e-ours", "Pagewire"),
        ("e-kernel", "the kernel's sockets"),
        ("e-peer0", "other programs"),
        ("e-bound", "the kernel's forwarding, loopback"),
    ];
    html! {
        p class="key" {
            @for (class, name) in keys {
                span {
                    svg class="plot" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" {
                        g class=(class) {
                            rect width="12" height="12" rx="2" fill="currentColor" {}
                        }
                    }
                    " " (name)
                }
            }
        }
        p {
            "A value is the median of the rounds. The thin line across it goes from the lowest to the \
             highest round, which stand in brackets; what was measured once has none. Compare values \
             of one plot only: all of them were measured in turns, in one run."
        }
    }
}

fn measurement(section: &Section) -> Markup {
    let rows = section.rows();
    html! {
        section id=(section.name) {
            h2 { (section.title()) }
            p { (section.shown.about) }
            pre { code { (section.command) } }
            p class="soft" { (conduct(section)) }
            @for note in &section.notes { p class="note" { (note) } }
            div class="charts" {
                @for chart in charts(&section.shown, rows) {
                    figure {
                        figcaption { strong { (chart.title) } br; span class="soft" { (subtitle(&chart)) } }
                        (inline(&chart))
                    }
                }
            }
            details {
                summary { "All " (rows.len()) " rows" }
                p { a href=(format!("{}.jsonl", section.name)) { (section.name) ".jsonl" } }
                (table(rows))
            }
        }
    }
}

/// How many rounds there were, and how long it all took.
fn conduct(section: &Section) -> String {
    let SectionOutcome::Measured { rows, took } = &section.outcome else { return String::new() };
    let rounds = rows.iter().filter_map(|row| row.get("rounds")?.as_u64()).max();
    let rounds = match rounds {
        None | Some(1) => "measured once".to_owned(),
        Some(n) => format!("{n} rounds that count, engines in turns"),
    };
    format!("{rounds}; {:.0} s in all", took.as_secs_f64().max(1.0))
}

/// Fields of all rows that the page says once.
const SAID_ALREADY: [&str; 4] = ["bench", "cpu", "cpus", "kernel"];

fn table(rows: &[Row]) -> Markup {
    let mut columns: Vec<&str> = Vec::new();
    for name in rows.iter().flat_map(Row::keys) {
        if !columns.contains(&&**name) && !SAID_ALREADY.contains(&&**name) {
            columns.push(name);
        }
    }
    let cell = |value: Option<&Value>| match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    html! {
        div class="wide" tabindex="0" {
            table {
                thead { tr { @for column in &columns { th { (column) } } } }
                tbody {
                    @for row in rows {
                        tr { @for column in &columns { td { (cell(row.get(*column))) } } }
                    }
                }
            }
        }
    }
}

fn left_out(sections: &[&Section]) -> Markup {
    html! {
        section id="left-out" {
            h2 { "Left out" }
            @for section in sections {
                h3 { (section.title()) }
                pre { code { (section.command) } }
                @match &section.outcome {
                    SectionOutcome::Failed(why) => p class="warning" { "It failed: " (why) },
                    SectionOutcome::LeftOut(why) => p { (why) },
                    SectionOutcome::Measured { .. } => {},
                }
            }
        }
    }
}

#[cfg(test)]
mod browser;
#[cfg(test)]
mod tests;
