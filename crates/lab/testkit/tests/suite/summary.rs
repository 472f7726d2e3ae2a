//! The summary at the end of `make test`, with a fake `cargo`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts");

/// `scripts/test` of a checkout with nothing else, where the run of the workspace's tests, by `cargo nextest`, is this script; all other
/// calls of `cargo` succeed silently.
fn summary(nextest: &str) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    let cargo = dir.path().join("cargo");
    let text =
        format!("#!/bin/sh\ncase \"$*\" in\n*--offline*--workspace*--lib*) {nextest} ;;\nesac\n");
    fs::write(&cargo, text).expect("a script");
    fs::set_permissions(&cargo, Permissions::from_mode(0o755)).expect("permissions");
    let path = std::env::var("PATH").expect("a path");
    let scripts = dir.path().join("scripts");
    fs::create_dir(&scripts).expect("a directory");
    for name in ["isolate", "test"] {
        fs::copy(Path::new(SCRIPTS).join(name), scripts.join(name)).expect("a copy");
    }
    let mut command = Command::new(scripts.join("test"));
    command.env("PATH", format!("{}:{path}", dir.path().display()));
    command.env_remove("CARGO_TARGET_DIR").output().expect("it runs")
}

/// Shell commands that leave the report which `cargo nextest` writes of a run.
fn report(tests: u32, failures: u32, cases: &str) -> String {
    format!(
        r#"mkdir -p target/nextest/default
        cat >target/nextest/default/junit.xml <<-'END'
            <testsuites name="nextest-run" tests="{tests}" failures="{failures}" errors="0" uuid="1">
            {cases}
            </testsuites>
END
        "#
    )
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_last_line_counts_what_ran_and_what_did_not() {
    let output = summary(
        &(report(11, 0, "")
            + r"printf 'x::a\tneeds root\nx::b\tneeds curl in PATH\nx::c\tneeds root\nx::a\tneeds root\n' \
            >>$PAGEWIRE_SKIPPED"),
    );
    assert!(output.status.success(), "{output:?}");
    let said = said(&output);
    assert_eq!(said.lines().last(), Some("8 passed, 0 failed, 3 skipped"), "{said}");
    let reasons: Vec<&str> = said.lines().rev().skip(1).take(2).map(str::trim).collect();
    assert_eq!(reasons, ["1 needs curl in PATH", "2 needs root"], "{said}");
}

#[test]
fn the_tests_that_the_documentation_holds_count_too() {
    let line = "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
    let output = summary(&(report(7, 0, "") + &format!("echo '{line}'")));
    assert_eq!(said(&output).lines().last(), Some("11 passed, 0 failed, 0 skipped"));
}

#[test]
fn the_slowest_tests_come_first() {
    let case = |name: &str, time: &str| {
        format!(
            r#"<testcase name="{name}" classname="pagewire-x::suite" timestamp="0" time="{time}">"#
        )
    };
    let cases = [case("a::quick", "0.020"), case("b::slow", "31.400"), case("c::middle", "4.000")];
    let output = summary(&report(3, 0, &cases.join("\n")));
    let said = said(&output);
    let slowest: Vec<&str> =
        said.lines().skip_while(|l| !l.contains("slowest")).skip(1).take(3).collect();
    let expected = [
        "31.400 pagewire-x::suite b::slow",
        "4.000 pagewire-x::suite c::middle",
        "0.020 pagewire-x::suite a::quick",
    ];
    assert_eq!(slowest, expected, "{said}");
}

#[test]
fn the_counts_are_the_last_line_of_a_failure_too() {
    let output =
        summary(&(report(8, 2, "") + r"printf 'x::a\tneeds root\n' >>$PAGEWIRE_SKIPPED; exit 100"));
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert_eq!(said.lines().last(), Some("5 passed, 2 failed, 1 skipped"), "{said}");
    let line = "FAILED: scripts/isolate cargo nextest run --offline --test-threads ";
    assert!(said.lines().any(|l| l.starts_with(line)), "{said}");
}

#[test]
fn what_does_not_build_counts_as_failed() {
    let output = summary("exit 101");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output).lines().last(), Some("0 passed, 1 failed, 0 skipped"));
}

#[test]
fn a_run_without_any_test_is_a_failure() {
    let output = summary("true");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output).lines().last(), Some("0 passed, 1 failed, 0 skipped"));
}
