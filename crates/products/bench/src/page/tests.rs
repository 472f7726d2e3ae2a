//! Tests of the page, with rows of every measurement.

use std::time::Duration;

use super::*;
use crate::all::shown;
use crate::table::FieldRole;

/// Rows of every measurement, as quick runs wrote them.
const SAMPLE: &str = include_str!("sample.jsonl");

pub(super) fn facts() -> RunFacts {
    RunFacts {
        date: "Mon, 23 Nov 2026 12:00:00 GMT".to_owned(),
        lines: vec![("Processor", "one <& two>".to_owned())],
        warnings: vec!["A quick run".to_owned()],
    }
}

/// A section for each measurement.
pub(super) fn sections() -> Vec<Section> {
    let rows: Vec<Row> =
        SAMPLE.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let section = |shown: TableInfo| Section {
        name: shown.name.to_owned(),
        command: format!("pagewire bench {} --plot 'a<b'", shown.name),
        outcome: SectionOutcome::Measured {
            rows: rows.iter().filter(|row| row["bench"] == shown.name).cloned().collect(),
            took: Duration::from_secs(7),
        },
        notes: Vec::new(),
        shown,
    };
    shown().into_iter().map(section).collect()
}

fn left_out(why: &str) -> Section {
    let path = sections().into_iter().find(|section| section.name == "path").expect("path");
    let command = "pagewire bench path".to_owned();
    Section { command, outcome: SectionOutcome::LeftOut(why.to_owned()), ..path }
}

#[test]
fn every_measurement_of_the_command_has_its_plots_and_its_rows() {
    let sections = sections();
    let page = page(&facts(), &sections);
    for section in &sections {
        let charts = charts(&section.shown, section.rows());
        assert!(!charts.is_empty(), "{}", section.name);
        for chart in charts {
            let caption = html! { strong { (chart.title) } }.into_string();
            assert!(page.contains(&caption), "{}: {caption}", section.name);
        }
        for text in [
            format!("<section id=\"{}\">", section.name),
            format!("href=\"{}.jsonl\"", section.name),
            format!("All {} rows", section.rows().len()),
            format!("pagewire bench {} --plot 'a&lt;b'", section.name),
        ] {
            assert!(page.contains(&text), "{text}");
        }
    }
}

#[test]
fn every_field_of_a_row_is_in_the_table_of_its_measurement() {
    // The fields that every line begins and ends with.
    let common = [
        "bench", "engine", "link", "bytes", "seconds", "rounds", "cpu", "cpus", "kernel", "spread",
    ];
    for section in sections() {
        let of = |name: &str| {
            name == "gbit_per_s" || section.shown.entries.iter().any(|entry| entry.name == name)
        };
        for field in section.rows().iter().flat_map(Row::keys) {
            let bound = field.strip_prefix("min_").or_else(|| field.strip_prefix("max_"));
            let is_known = common.contains(&&**field) || of(bound.unwrap_or(field));
            assert!(is_known, "{}: {field}", section.name);
        }
    }
}

#[test]
fn what_was_measured_in_rounds_shows_its_spread() {
    // Counts of the median round; the most of all rounds; what is measured once, or follows.
    let plain = [
        "sends",
        "completions",
        "completed_copied",
        "zc_bytes",
        "copy_bytes",
        "payload_bytes_copied",
        "device_bytes_copied",
        "peak_memory_bytes",
        "peak_process_bytes",
        "peak_kernel_bytes",
        "wakeups_per_batch",
        "resident_bytes",
        "bytes_per_connection",
        "rss_bytes_1000_idle",
        "to_accounted",
        "to_kernel_tap",
        "ratio",
        "events",
    ];
    let plain_in = [("idle", "seconds"), ("sim", "gbit_per_s"), ("gateway", "rss_bytes")];
    for Section { shown, outcome, .. } in sections() {
        let SectionOutcome::Measured { rows, .. } = outcome else { panic!("{}", shown.name) };
        let measured =
            shown.entries.iter().filter(|e| matches!(e.role, FieldRole::Measured { .. }));
        for name in measured.map(|entry| entry.name) {
            let is_plain = plain.contains(&name) || plain_in.contains(&(shown.name, name));
            for row in rows.iter().filter(|row| row.contains_key(name)) {
                let spread = row.get("spread").and_then(|all| all.get(name));
                let has_spread = spread.is_some() || row.contains_key(&format!("min_{name}"));
                assert!(has_spread || is_plain, "{}: {name}", shown.name);
            }
        }
    }
}

#[test]
fn nothing_is_fetched_or_run_and_what_is_not_ours_is_text() {
    let page = page(&facts(), &[left_out("<script>alert(1)</script> & more")]);
    for text in ["&lt;script&gt;alert(1)&lt;/script&gt; &amp; more", "one &lt;&amp; two&gt;"] {
        assert!(page.contains(text), "{text}");
    }
    for text in ["<script", "http://", "https://", "src=", "<link", "@import", "url("] {
        assert!(!page.contains(text), "{text}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn what_was_left_out_or_failed_is_said_with_its_reason_and_its_command() {
    let failed = Section { outcome: SectionOutcome::Failed("no luck".into()), ..left_out("") };
    let page = page(&facts(), &[left_out("needs root"), failed]);
    for text in ["Left out", "needs root", "It failed: no luck", "pagewire bench path"] {
        assert!(page.contains(text), "{text}");
    }
}
