//! The rules of CONTRIBUTING.md that a machine can check.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest source file, in lines, that still counts as one sitting.
const MAX_LINES: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("workspace root")
}

fn sources(dir: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).expect("readable directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target" && n != "corpus" && n != "found") {
                sources(&path, out);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(root()).expect("below root").display().to_string();
            out.push((name, fs::read_to_string(&path).expect("UTF-8 source")));
        }
    }
}

fn all_sources() -> Vec<(String, String)> {
    let mut out = Vec::new();
    for dir in ["crates", "fuzz"] {
        let dir = root().join(dir);
        if dir.is_dir() {
            sources(&dir, &mut out);
        }
    }
    out
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("tests.rs") || name.contains("/benches/")
}

#[test]
fn unsafe_code_lives_in_the_files_of_unsafe_md_only() {
    let listed = fs::read_to_string(root().join("UNSAFE.md")).expect("UNSAFE.md");
    let code = |line: &str| !line.trim_start().starts_with("//");
    for (name, text) in all_sources() {
        let found = text.lines().filter(|l| code(l)).any(|line| {
            ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|what| line.contains(what) && !line.contains(&format!("\"{what}")))
        });
        assert!(!found || listed.contains(&name), "{name} has unsafe code but is not in UNSAFE.md");
    }
}

#[test]
fn unsafe_md_lists_no_file_that_is_gone() {
    let listed = fs::read_to_string(root().join("UNSAFE.md")).expect("UNSAFE.md");
    for word in listed.split(['`', ' ', '|']).filter(|w| w.ends_with(".rs")) {
        assert!(root().join(word).is_file(), "UNSAFE.md lists {word}, which is not there");
    }
}

#[test]
fn files_stay_short_enough_for_one_sitting() {
    for (name, text) in all_sources() {
        let lines = text.lines().count();
        assert!(
            is_test(&name) || lines <= MAX_LINES,
            "{name} has {lines} lines, at most {MAX_LINES}"
        );
    }
}

#[test]
fn files_begin_with_what_to_read_first() {
    for (name, text) in all_sources() {
        let first = text.lines().find(|l| !l.starts_with("#!")).unwrap_or_default();
        assert!(
            is_test(&name) || first.starts_with("//!"),
            "{name} does not begin with a `//!` line"
        );
    }
}

#[test]
fn the_core_reads_no_clock_and_no_random_source() {
    let banned = ["SystemTime", "std::time::Instant", "thread_rng", "rand::rng()", "rand::random"];
    for (name, text) in all_sources() {
        let core = ["crates/mem/src", "crates/tcp/src", "crates/stack/src"];
        if core.iter().any(|c| name.starts_with(c)) && !is_test(&name) {
            for word in banned {
                assert!(!text.contains(word), "{name} uses {word}: time and luck are arguments");
            }
        }
    }
}

#[test]
fn tests_do_not_sleep() {
    let banned = concat!("thread::", "sleep");
    for (name, text) in all_sources() {
        let tests = is_test(&name) && !name.ends_with("tidy.rs");
        assert!(
            !tests || !text.contains(banned),
            "{name} sleeps; use virtual time or wait for an event"
        );
    }
}

#[test]
fn tests_skip_only_where_it_is_seen_and_counted() {
    for (name, text) in all_sources() {
        let own = name.starts_with("crates/testing/") || name.ends_with("tidy.rs");
        for word in ["SKIPPED", "skips loudly", "geteuid().is_root() ||"] {
            let found = is_test(&name) && !own && text.contains(word);
            assert!(!found, "{name} contains {word}: pagewire_testing has `can` and `skip`");
        }
    }
}

#[test]
fn what_a_library_says_names_no_option_of_the_command() {
    // An option of other programs.
    let others = "(--device /dev/net/tun)";
    let of_command =
        |name: &str| ["crates/cli/", "crates/packetdrill/"].iter().any(|c| name.starts_with(c));
    for (name, text) in all_sources() {
        let code = |line: &&str| !line.trim_start().starts_with("//") && !line.contains(others);
        for line in text.lines().filter(code) {
            let option = line
                .split("--")
                .skip(1)
                .any(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
            let library = name.starts_with("crates/") && !of_command(&name) && !is_test(&name);
            assert!(!library || !option, "{name}: {line}");
        }
    }
}

#[test]
fn nothing_is_left_unfinished() {
    for (name, text) in all_sources() {
        if name.ends_with("tidy.rs") {
            continue;
        }
        for word in ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("] {
            assert!(!text.contains(word), "{name} contains {word}");
        }
    }
}
