//! A skip is seen, counted and forbidden as the documentation says.

use std::path::Path;
use std::process::{Command, Output};

use pagewire_testkit::{Need, RECORD, REQUIRE_ALL, can};

#[test]
#[ignore = "the tests of this file run it"]
fn a_test_that_cannot_run() {
    assert!(!can(&[Need::Program("sh"), Need::Program("no-such-program-anywhere")]));
}

/// The test above, alone, as `cargo test` runs it: what it prints is kept.
fn run(record: Option<&Path>, required: &str, more: &[&str]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "skip::a_test_that_cannot_run", "--ignored"]).args(more);
    command.env(REQUIRE_ALL, required).env_remove(RECORD);
    if let Some(record) = record {
        command.env(RECORD, record);
    }
    command.output().expect("it runs")
}

#[test]
fn a_skip_is_one_line_on_standard_error_although_output_is_captured() {
    let output = run(None, "", &[]);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = "SKIPPED pagewire-testkit::suite::skip::a_test_that_cannot_run: \
                needs no-such-program-anywhere in PATH\n";
    assert_eq!(said, line);
}

#[test]
fn a_skip_is_recorded_for_the_summary() {
    let dir = tempfile::tempdir().expect("a directory");
    let record = dir.path().join("record");
    // With one thread for all tests the thread lacks the test's name: file and line stand for the name.
    for more in [&[][..], &["--test-threads=1"]] {
        assert!(run(Some(&record), "0", more).status.success());
    }
    let lines = std::fs::read_to_string(&record).expect("a record");
    let (first, second) = lines.split_once('\n').expect("two lines");
    assert_eq!(
        first,
        "pagewire-testkit::suite::skip::a_test_that_cannot_run\t\
         needs no-such-program-anywhere in PATH"
    );
    assert!(
        second.starts_with("pagewire-testkit::suite::") && second.ends_with("anywhere in PATH\n"),
        "{second}"
    );
}

#[test]
fn where_every_test_is_required_a_skip_is_a_failure() {
    let output = run(None, "1", &[]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("every test is required"), "{said}");
}
