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

/// Every document: its name and its text.
fn documents() -> Vec<(String, String)> {
    let mut out = Vec::new();
    for dir in ["", "docs", "docs/decisions"] {
        for entry in fs::read_dir(root().join(dir)).expect("readable directory").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "md") {
                let name = path.strip_prefix(root()).expect("below root").display().to_string();
                out.push((name, fs::read_to_string(&path).expect("UTF-8 text")));
            }
        }
    }
    out
}

#[test]
fn the_readme_is_short_and_has_the_two_commands() {
    let text = fs::read_to_string(root().join("README.md")).expect("README.md");
    assert!(text.lines().count() <= 130, "README.md has more than 130 lines");
    for command in ["`make demo`", "`make test`"] {
        assert!(text.contains(command), "README.md does not name {command}");
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    for (name, text) in documents() {
        let dir = root().join(&name).parent().expect("a directory").to_path_buf();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            if file.starts_with("http") {
                continue;
            }
            let path = dir.join(file);
            assert!(path.exists(), "{name} links to {link}, which is not there");
            let heading = |line: &str| {
                let words = line.trim_start_matches('#').trim().to_lowercase();
                line.starts_with('#') && words.replace(' ', "-") == section
            };
            let found = section.is_empty()
                || fs::read_to_string(&path).expect("UTF-8 text").lines().any(heading);
            assert!(found, "{name} links to {link}, and {file} has no such section");
        }
    }
}

#[test]
fn documents_name_no_source_that_is_gone() {
    for (name, text) in documents() {
        let words = text.split(['`', ' ', '|', '\n']);
        for word in words.filter(|w| w.starts_with("crates/") || w.starts_with("scripts/")) {
            let word = word.trim_end_matches(['/', '.', ',', ';', ')']);
            assert!(root().join(word).exists(), "{name} names {word}, which is not there");
        }
    }
}

#[test]
fn the_index_of_decisions_has_each_of_them() {
    let index = fs::read_to_string(root().join("docs/decisions/README.md")).expect("the index");
    for (name, text) in documents() {
        let file = name.strip_prefix("docs/decisions/").filter(|f| *f != "README.md");
        let Some(file) = file else { continue };
        assert!(index.contains(&format!("({file})")), "the index lacks {file}");
        for part in ["Date: ", "**Context.**", "**Decision.**", "**Consequences.**"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
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

/// What moves bytes beside the one function that copies payload, by file: how often at most, and what
/// that is. A line that stores a number or an address of fixed length (`to_be_bytes`, `octets`, `emit`)
/// is none of them.
const MOVES: [(&str, usize, &str); 34] = [
    ("crates/mem/src/copy.rs", 1, "the one function"),
    ("crates/mem/src/packet.rs", 1, "headers, moved within the head"),
    ("crates/tcp/src/life/fast_open/cookie.rs", 1, "a cookie"),
    ("crates/stack/src/net/discovery.rs", 1, "a message of neighbour discovery"),
    ("crates/stack/src/net/extensions.rs", 1, "headers, kept for an error"),
    ("crates/stack/src/net/icmp.rs", 1, "headers that an error quotes"),
    ("crates/stack/src/net/input.rs", 1, "headers, kept for an error"),
    ("crates/stack/src/net/mod.rs", 2, "keys"),
    ("crates/stack/src/net/multicast/messages.rs", 2, "an address, a checksum"),
    ("crates/stack/src/net/multicast/mod.rs", 4, "headers of reports"),
    ("crates/stack/src/net/output.rs", 1, "a header"),
    ("crates/stack/src/net/transit.rs", 4, "a fragment's headers"),
    ("crates/stack/src/net/transport.rs", 2, "headers, moved to another head"),
    ("crates/stack/src/net/wire/ipv4.rs", 2, "a header and its option"),
    ("crates/stack/src/net/wire/ipv6.rs", 2, "addresses"),
    ("crates/stack/src/net/wire/ndp.rs", 2, "addresses"),
    ("crates/stack/src/sockets/cookie_cache.rs", 2, "cookies, in its tests"),
    ("crates/stack/src/sockets/mod.rs", 1, "a key"),
    ("crates/device/src/dhcp/frame.rs", 2, "headers"),
    ("crates/device/src/offload.rs", 2, "headers, repeated in each segment"),
    ("crates/device/src/port/write.rs", 2, "headers, moved to the head and within it"),
    ("crates/device/src/tap/netlink.rs", 4, "messages of netlink"),
    ("crates/device/src/tap/receive.rs", 1, "headers, moved to the head"),
    ("crates/device/src/vhost_user/double.rs", 3, "a guest's, for tests"),
    ("crates/device/src/vhost_user/fuzzing.rs", 2, "a front end's, for tests"),
    ("crates/packetdrill/src/wire.rs", 2, "headers"),
    ("crates/posix/src/message.rs", 1, "a control message"),
    ("crates/posix/src/options/get.rs", 3, "the value of an option"),
    ("crates/posix/src/options/info.rs", 4, "the value of an option"),
    ("crates/posix/src/options/timestamping.rs", 1, "the value of an option"),
    ("crates/posix/src/raw.rs", 1, "the address of a socket"),
    ("crates/posix/src/raw/mapping.rs", 2, "the structure of an option"),
    ("crates/posix/src/receive.rs", 1, "an entry of the error queue"),
    ("crates/posix/src/socket.rs", 1, "the address of a socket"),
];

#[test]
fn payload_is_copied_by_one_function() {
    let crates = ["mem", "tcp", "stack", "device", "ring", "pagewire", "posix", "packetdrill"];
    let moves = [
        "copy_from_slice(",
        "clone_from_slice(",
        "copy_nonoverlapping(",
        "ptr::copy(",
        "copy_within(",
        "copy_from(",
        "copy_to_nonoverlapping(",
        "extend_from_slice(",
        "SmallVec::from_slice(",
        "Bytes::copy",
        ".to_vec()",
        ".concat()",
        "asm!(",
        "io::copy(",
    ];
    let fixed = ["_bytes()", ".octets()", ".emit()"];
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    for (name, text) in all_sources() {
        let ours = crates.iter().any(|c| name.starts_with(&format!("crates/{c}/src/")));
        if !ours || is_test(&name) {
            continue;
        }
        let lines = text.lines().filter(is_code).filter(|l| !fixed.iter().any(|f| l.contains(f)));
        let asm = usize::from(name == "crates/mem/src/copy.rs") * ASSEMBLY;
        let found: usize = lines.map(|l| moves.iter().filter(|m| l.contains(**m)).count()).sum();
        let listed = MOVES.iter().find(|(file, ..)| *file == name).map_or(0, |(_, n, _)| *n);
        assert!(
            found <= listed + asm,
            "{name} moves bytes {found} times, {listed} are known: payload goes by `Frag::copy_to`, \
             `PageWriter::write` or `copy_bytes`, which count it; what is no payload is listed here"
        );
    }
}

#[test]
fn the_list_of_what_moves_bytes_names_no_file_that_is_gone() {
    for (name, _, _) in MOVES {
        assert!(root().join(name).is_file(), "{name} is not there");
    }
}

/// The loops in assembly that the one function is made of.
const ASSEMBLY: usize = 5;

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
