use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::plot::measures::ALL;

/// Rows of every measurement, as a quick run of an unoptimised build wrote them.
const SAMPLE: &str = include_str!("sample.jsonl");

pub(super) fn facts() -> Facts {
    Facts {
        date: "Mon, 23 Nov 2026 12:00:00 GMT".to_owned(),
        lines: vec![("Processor", "one <& two>".to_owned())],
        warnings: vec!["A quick run".to_owned()],
    }
}

/// A section for each measurement.
pub(super) fn sections() -> Vec<Section> {
    let mut by_bench: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for line in SAMPLE.lines() {
        let row: Row = serde_json::from_str(line).expect("a row");
        let bench = row["bench"].as_str().expect("a name").to_owned();
        by_bench.entry(bench).or_default().push(row);
    }
    let section = |(bench, rows): (String, Vec<Row>)| Section {
        name: bench.clone(),
        command: format!("pagewire bench {bench} --plot 'a<b'"),
        outcome: Outcome::Measured { rows, took: Duration::from_secs(7) },
        notes: Vec::new(),
        bench,
    };
    by_bench.into_iter().map(section).collect()
}

fn left_out(why: &str) -> Section {
    Section {
        name: "path".to_owned(),
        bench: "path".to_owned(),
        command: "pagewire bench path".to_owned(),
        outcome: Outcome::LeftOut(why.to_owned()),
        notes: Vec::new(),
    }
}

#[test]
fn every_measurement_of_the_command_has_its_plots_and_its_rows() {
    let sections = sections();
    assert_eq!(sections.len(), ALL.len(), "the sample has every measurement");
    let page = page(&facts(), &sections);
    for section in &sections {
        let charts = measures::charts(&section.bench, section.rows());
        assert!(!charts.is_empty(), "{}", section.name);
        for chart in charts {
            let caption = html! { strong { (chart.title) } }.into_string();
            assert!(page.contains(&caption), "{}: {caption}", section.name);
        }
        for text in [
            format!("<section id=\"{}\">", section.name),
            format!("href=\"{}.jsonl\"", section.name),
            format!("All {} rows", section.rows().len()),
            format!("pagewire bench {} --plot 'a&lt;b'", section.bench),
        ] {
            assert!(page.contains(&text), "{text}");
        }
    }
}

#[test]
fn every_number_of_a_row_is_plotted_or_says_how_it_was_measured() {
    // Of every measurement: its size, what the machine is, and what rates follow from.
    let common = ["bytes", "seconds", "rounds", "cpus"];
    for section in sections() {
        let shown = measures::shown(&section.bench).expect("it is shown");
        for row in section.rows() {
            for (field, _) in row.iter().filter(|(_, value)| value.is_number()) {
                let setting = |field: &str| shown.settings.contains(&field);
                let of = |field: &str| shown.measures.iter().any(|m| m.field == field);
                let bound = field.strip_prefix("min_").or_else(|| field.strip_prefix("max_"));
                let is_known = of(field)
                    || bound.is_some_and(|field| of(field) || setting(field))
                    || common.contains(&field.as_str())
                    || setting(field);
                assert!(is_known, "{}: {field}", section.bench);
            }
        }
    }
}

#[test]
fn what_was_measured_in_rounds_shows_its_spread() {
    for section in sections() {
        let shown = measures::shown(&section.bench).expect("it is shown");
        // Counts of the median round; what is measured once, or the most of all rounds.
        let without = ["sends", "completions", "completed_copied", "zc_bytes", "copy_bytes"];
        let once =
            ["wakeups_per_batch", "resident_bytes", "bytes_per_connection", "rss_bytes_1000_idle"];
        let derived = ["to_accounted", "to_kernel_tap", "ratio", "events"];
        for measure in shown.measures {
            let all = section.rows().iter().filter_map(|row| measure.value(row));
            let has_spread = all.clone().all(|value| value.spread.is_some());
            let is_plain = without.contains(&measure.field)
                || once.contains(&measure.field)
                || derived.contains(&measure.field)
                || measure.field.ends_with("_copied")
                || measure.field.starts_with("peak_")
                || (section.bench == "idle" && measure.field == "seconds")
                // Follows from what was measured.
                || (section.bench == "sim" && measure.field == "gbit_per_s")
                || (section.bench == "gateway" && measure.field == "rss_bytes");
            assert!(has_spread || is_plain, "{}: {}", section.bench, measure.field);
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
    let failed = Section { outcome: Outcome::Failed("no luck".into()), ..left_out("") };
    let page = page(&facts(), &[left_out("needs root"), failed]);
    for text in ["Left out", "needs root", "It failed: no luck", "pagewire bench path"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn rows_are_files_beside_the_page() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("new/report");
    check(&dir).expect("it is made");
    let sections = sections();
    write(&dir, &facts(), &sections).expect("it is written");
    for section in &sections {
        let text = fs::read_to_string(dir.join(format!("{}.jsonl", section.name))).expect("rows");
        let rows: Vec<Row> =
            text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
        assert_eq!(rows, section.rows());
    }
    assert!(fs::read_to_string(dir.join(INDEX)).expect("the page").starts_with("<!DOCTYPE html>"));
}
