//! What a package installs beside the command, and what the command says about a system.

use std::fs;
use std::io::BufReader;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pagewire_testkit::{Need, can};

use crate::lab::{PAGEWIRE, Running, pagewire, run, text};

/// A file of `packaging`.
fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging").join(name)
}

fn said(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn the_version_is_the_first_line_and_the_build_follows() {
    let long = text(&pagewire(&["--version"]).stdout);
    let first = concat!("pagewire ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(long.starts_with(first) && long.contains("\nfeatures: full"), "{long}");
    assert_eq!(text(&pagewire(&["-V"]).stdout), first);
}

#[test]
fn a_manual_page_of_each_command_is_formatted_without_a_warning() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().to_str().expect("text");
    let written = pagewire(&["man", dir]);
    assert!(written.status.success(), "{}", said(&written));
    let pages: Vec<PathBuf> =
        fs::read_dir(dir).expect("readable").flatten().map(|entry| entry.path()).collect();
    for name in ["pagewire.1", "pagewire-run.1", "pagewire-bench-stream.1", "pagewire-check.1"] {
        assert!(pages.iter().any(|page| page.ends_with(name)), "{name}: {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.ends_with("pagewire-man.1")), "it is hidden");
    if !can(&[Need::Program("man"), Need::Program("groff")]) {
        return;
    }
    for page in pages {
        let mut man = Command::new("man");
        man.args(["--warnings", "--encoding=UTF-8", "--troff-device=utf8", "--ditroff"]);
        man.arg("--local-file").arg(&page).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80");
        let output = man.output().expect("man");
        let warnings = text(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
    }
}

#[test]
fn completions_are_scripts_that_their_shells_understand() {
    for shell in ["bash", "zsh", "fish"] {
        let output = pagewire(&["completions", shell]);
        let script = text(&output.stdout);
        assert!(output.status.success() && script.contains("gateway"), "{}", said(&output));
        if !can(&[Need::Program(shell)]) {
            continue;
        }
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("script");
        fs::write(&file, script).expect("written");
        run(Command::new(shell).arg("-n").arg(&file));
    }
}

#[test]
fn completions_of_an_unknown_command_name_those_that_there_are() {
    let output = pagewire(&["completions", "bash", "other"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("there are completions of pagewire"), "{}", said(&output));
}

#[test]
fn the_profile_of_apparmor_is_understood() {
    if !can(&[Need::Program("apparmor_parser")]) {
        return;
    }
    let profile = fs::read_to_string(packaging("pagewire.apparmor")).expect("the profile");
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("pagewire");
    // A parser before 4.0 knows no user namespaces, and none of its systems restricts them.
    let is_old = !Path::new("/etc/apparmor.d/abi/4.0").exists();
    let known = profile.replace("abi/4.0", "abi/3.0").replace("  userns,\n", "");
    fs::write(&file, if is_old { known } else { profile }).expect("written");
    run(Command::new("apparmor_parser").args(["--skip-kernel-load", "--skip-cache"]).arg(&file));
}

#[test]
fn the_services_of_the_system_and_of_a_user_are_understood() {
    if !can(&[Need::Program("systemd-analyze")]) {
        return;
    }
    for (manager, dir) in [("--system", "."), ("--user", "user")] {
        let place = tempfile::tempdir().expect("a directory");
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", manager, "--man=no"]).env("XDG_RUNTIME_DIR", place.path());
        for name in ["pagewire-gateway@.service", "pagewire-gateway@.socket"] {
            let unit = fs::read_to_string(packaging(dir).join(name)).expect("the unit");
            let file = place.path().join(name);
            fs::write(&file, unit.replace("/usr/bin/pagewire", PAGEWIRE)).expect("written");
            verify.arg(file);
        }
        let output = verify.output().expect("systemd-analyze");
        let said = said(&output);
        assert!(output.status.success() && said.is_empty(), "{manager}: {said}");
    }
}

#[test]
fn the_service_manager_is_told_when_guests_are_served() {
    let place = tempfile::tempdir().expect("a directory");
    let (notify, link) = (place.path().join("notify"), place.path().join("link"));
    let manager = UnixDatagram::bind(&notify).expect("bound");
    let mut gateway = Command::new(PAGEWIRE);
    gateway
        .args(["gateway", "--notify", "--link", "stream", "--control", "none", "--socket"])
        .arg(&link);
    gateway.env("NOTIFY_SOCKET", &notify).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = gateway.spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped"));
    let running = Running(child, lines);
    let mut message = [0; 64];
    let length = manager.recv(&mut message).expect("a datagram");
    assert_eq!(message.get(..length), Some(b"READY=1".as_slice()));
    running.stop("TERM");
}

#[test]
fn check_says_that_programs_can_run_where_they_can() {
    if !can(&[Need::Tap]) {
        return;
    }
    let output = pagewire(&["check"]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{}", said(&output));
    let line = |what: &str| report.lines().find(|line| line.contains(what)).unwrap_or_default();
    for what in ["user namespaces", "network namespaces", "/dev/net/tun", "pagewire run"] {
        assert!(line(what).starts_with("ok "), "{report}");
    }
    // The names that packages install.
    let names = fs::read_to_string(packaging("names")).expect("the names");
    for name in names.lines() {
        assert!(!line(&format!(" {name} ")).is_empty(), "{name}: {report}");
    }
}
