//! What `make test` says at its end, with a `cargo` that only pretends.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test");

/// `scripts/test` where `cargo test --workspace` is this script; all else succeeds silently.
fn summary(cargo_test: &str) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    let cargo = dir.path().join("cargo");
    let text = format!("#!/bin/sh\ncase \"$*\" in\n*--workspace*) {cargo_test} ;;\nesac\n");
    fs::write(&cargo, text).expect("a script");
    fs::set_permissions(&cargo, Permissions::from_mode(0o755)).expect("permissions");
    let path = std::env::var("PATH").expect("a path");
    let mut command = Command::new(SCRIPT);
    command.env("PATH", format!("{}:{path}", dir.path().display()));
    command.env("CARGO_TARGET_DIR", dir.path().join("target")).output().expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_last_line_counts_what_ran_and_what_did_not() {
    let output = summary(
        r"echo 'test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'
        echo 'test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'
        printf 'x::a\tneeds root\nx::b\tneeds curl in PATH\nx::c\tneeds root\nx::a\tneeds root\n' \
            >>$PAGEWIRE_SKIPPED",
    );
    assert!(output.status.success(), "{output:?}");
    let said = said(&output);
    assert_eq!(said.lines().last(), Some("8 passed, 0 failed, 3 skipped"), "{said}");
    let reasons: Vec<&str> = said.lines().rev().skip(1).take(2).map(str::trim).collect();
    assert_eq!(reasons, ["1 needs curl in PATH", "2 needs root"], "{said}");
}

#[test]
fn the_counts_are_the_last_line_of_a_failure_too() {
    let output = summary(
        r"echo 'test result: FAILED. 6 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out'
        printf 'x::a\tneeds root\n' >>$PAGEWIRE_SKIPPED; exit 101",
    );
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert_eq!(said.lines().last(), Some("5 passed, 2 failed, 1 skipped"), "{said}");
    let line = "FAILED: cargo test --workspace --exclude pagewire-simulation-crates --all-features \
                --no-fail-fast";
    assert!(said.lines().any(|l| l == line), "{said}");
}

#[test]
fn what_does_not_build_counts_as_failed() {
    let output = summary("exit 101");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output).lines().last(), Some("0 passed, 1 failed, 0 skipped"));
}
