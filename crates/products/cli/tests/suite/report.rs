//! Tests of reports and plots of measurements, and of the line of progress.

use std::fs;
use std::path::Path;
use std::process::Command;

use pagewire_testkit::{Need, can};
use serde_json::Value;

use crate::lab::{PAGEWIRE, pagewire, text};

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn a_report_is_one_page_with_plots_the_machine_and_the_command_and_rows_beside_it() {
    let place = tempfile::tempdir().expect("a directory");
    let (dir, image) = (place.path().join("new/report"), place.path().join("rr.svg"));
    let (dir_text, image_text) = (dir.to_str().expect("text"), image.to_str().expect("text"));
    let args =
        ["bench", "rr", "--seconds", "0.02", "--report", dir_text, "--plot", image_text, "--json"];
    let output = pagewire(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "no line of progress without a terminal");

    let rows = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
    };
    let (printed, kept) = (rows(&text(&output.stdout)), rows(&read(&dir.join("rr.jsonl"))));
    for (printed, kept) in printed.iter().zip(&kept) {
        let mut without = kept.clone();
        let spread = without.as_object_mut().expect("an object").remove("spread");
        assert_eq!((&without, printed.get("spread")), (printed, None));
        assert!(spread.is_some_and(|spread| spread["rtt_us_p99"][0].is_f64()), "{kept}");
    }
    assert_eq!((printed.len(), kept.len()), (2, 2));

    let page = read(&dir.join("index.html"));
    for text in [
        "A message there and back",
        "pagewire over pair",
        "kernel over loopback",
        "Congestion control",
        "Processor",
        "Memory",
        &format!("pagewire {}", args.join(" ")),
        "3 rounds that count",
        "class=\"whisker\"",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let svg = read(&image);
    assert!(svg.starts_with("<svg ") && svg.contains("Round trip, median"), "{svg}");
    assert!(!svg.contains("<svg class=\"plot\" viewBox"), "one image, not several");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("file");
    fs::write(&file, "precious").expect("a file");
    let file = file.to_str().expect("text");
    for args in [
        &["bench", "rr", "--seconds", "3600", "--report", file][..],
        &["bench", "--quick", "--report", file],
    ] {
        let output = pagewire(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("--report {file}")), "{said}");
    }
    assert_eq!(read(Path::new(file)), "precious");
}

#[test]
fn options_of_reports_that_make_no_sense_say_what_to_do() {
    for (args, hint) in [
        (&["bench", "--quick"][..], "--report"),
        (&["bench", "--plot", "x.svg"], "--report DIR"),
        (&["bench", "--plot", "x.svg", "--report", "out"], "--plot needs a measurement"),
        (&["bench", "--quick", "--report", "out", "rr"], "--seconds"),
    ] {
        let output = pagewire(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(hint), "{args:?}: {said}");
    }
    assert!(!Path::new("out").exists() && !Path::new("x.svg").exists());
}

#[test]
fn a_terminal_sees_which_round_is_measured_and_results_in_a_file_stay_clean() {
    if !can(&[Need::Program("script")]) {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let results = place.path().join("results");
    let line = format!("{PAGEWIRE} bench rr --seconds 0.3 --json >{}", results.display());
    // A terminal of its own for the command's standard error.
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).output();
    let output = output.expect("script runs");
    let seen = text(&output.stdout);
    assert!(output.status.success(), "{seen}");
    for text in ["rr  ", "warm-up round: ", "round 1 of 3: ", "kernel over loopback"] {
        assert!(seen.contains(text), "{text}: {seen}");
    }
    for line in read(&results).lines() {
        let _: Value = serde_json::from_str(line).expect("an object and nothing else");
    }
}
