//! The rules of CONTRIBUTING.md that a machine can check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("workspace root")
}

/// The text of a file of the repository.
fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
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
    sources(&root().join("crates"), &mut out);
    out
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("tests.rs") || name.contains("/benches/")
}

#[test]
fn unsafe_code_lives_in_the_files_of_unsafe_md_only_which_lists_no_file_that_is_gone() {
    let listed = read("UNSAFE.md");
    let code = |line: &str| !line.trim_start().starts_with("//");
    for (name, text) in all_sources() {
        let found = text.lines().filter(|l| code(l)).any(|line| {
            ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|what| line.contains(what) && !line.contains(&format!("\"{what}")))
        });
        assert!(!found || listed.contains(&name), "{name} has unsafe code but is not in UNSAFE.md");
    }
    for word in listed.split(['`', ' ', '|']).filter(|w| w.ends_with(".rs")) {
        assert!(root().join(word).is_file(), "UNSAFE.md lists {word}, which is not there");
    }
}

/// Every document: its name and its text.
fn documents() -> Vec<(String, String)> {
    let mut out = Vec::new();
    for dir in ["", "docs"] {
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
fn links_between_documents_lead_somewhere() {
    for (name, text) in documents() {
        let dir = root().join(&name).parent().expect("a directory").to_path_buf();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            if file.starts_with("http") {
                continue;
            }
            // A section of the document itself.
            let path = if file.is_empty() { root().join(&name) } else { dir.join(file) };
            assert!(path.exists(), "{name} links to {link}, which is not there");
            let heading = |line: &str| {
                // As forges and mdBook make anchors: without punctuation.
                let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
                let words = line.trim_start_matches('#').trim().to_lowercase();
                let words: String = words.chars().filter(kept).collect();
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
fn decisions_are_in_the_order_of_their_numbers() {
    let text = read("docs/DECISIONS.md");
    let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    let numbers: Vec<u32> = headings
        .map(|heading| heading.split('.').next().and_then(|n| n.parse().ok()).expect("a number"))
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "docs/DECISIONS.md: {numbers:?}");
    // Numbers stay: the next one is said, so that none is used again.
    let next = numbers.last().map(|last| format!("({})", last + 1)).expect("a decision");
    assert!(text.contains(&next), "docs/DECISIONS.md does not name the next number, {next}");
}

/// The source files of the crates, tests aside: crate with its folder, path within its `src`, text.
fn library_sources() -> Vec<(String, String, String)> {
    let parts = |(name, text): (String, String)| {
        let (of, path) = name.strip_prefix("crates/")?.split_once("/src/")?;
        (!is_test(&name) && of != "lab/fuzz")
            .then(|| (of.to_owned(), path.to_owned(), without_tests(&text)))
    };
    all_sources().into_iter().filter_map(parts).collect()
}

/// A file up to its module of tests.
fn without_tests(text: &str) -> String {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
}

/// Fails with the rule and everything that was found to break it.
fn none(found: Vec<String>, rule: &str) {
    assert!(found.is_empty(), "{rule}\n  {}\n", found.join("\n  "));
}

/// The module that a file is, from its path within `src`.
fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs");
    let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// The paths that the `use` declarations of a file name, each by its parts.
fn imports(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut declaration: Option<String> = None;
    for line in text.lines().map(str::trim) {
        let started = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "]
            .iter()
            .find_map(|word| line.strip_prefix(word));
        match (&mut declaration, started) {
            (Some(so_far), _) => so_far.push_str(line),
            (None, Some(rest)) => declaration = Some(rest.to_owned()),
            (None, None) => continue,
        }
        if line.ends_with(';') {
            let whole = declaration.take().unwrap_or_default();
            spread(&[], whole.trim_end_matches(';'), &mut found);
        }
    }
    found
}

/// Takes the braces of an import apart.
fn spread(front: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let mut path = front.to_vec();
    let (plain, braces) = match tree.split_once('{') {
        Some((plain, rest)) => (plain, Some(rest.strip_suffix('}').unwrap_or(rest))),
        None => (tree, None),
    };
    let names = plain.split("::").map(str::trim).filter(|name| !name.is_empty());
    path.extend(names.map(|name| name.split(' ').next().unwrap_or_default().to_owned()));
    let Some(inside) = braces else { return found.push(path) };
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inside[from..at].trim();
                if !part.is_empty() {
                    spread(&path, part, found);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// The file that an import leads to: the longest beginning of its path that is a module.
fn target(
    from: &[String],
    path: &[String],
    modules: &BTreeSet<Vec<String>>,
) -> Option<Vec<String>> {
    let mut at = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "super" | "self" => from.to_vec(),
        _ => return None,
    };
    for part in path {
        match part.as_str() {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            part => at.push(part.to_owned()),
        }
    }
    while !at.is_empty() && !modules.contains(&at) {
        at.pop();
    }
    Some(at)
}

/// The modules that a module reaches by way of imports.
fn reached(
    from: &Vec<String>,
    edges: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
) -> BTreeSet<Vec<String>> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for to in edges.get(module).into_iter().flatten() {
            if seen.insert(to.clone()) {
                next.push(to);
            }
        }
    }
    seen
}

#[test]
fn files_import_each_other_in_no_circles() {
    let mut crates: BTreeMap<String, Vec<(Vec<String>, String)>> = BTreeMap::new();
    for (of, path, text) in library_sources() {
        crates.entry(of).or_default().push((module_of(&path), text));
    }
    let mut found = Vec::new();
    for (of, files) in crates {
        let modules: BTreeSet<Vec<String>> =
            files.iter().map(|(module, _)| module.clone()).collect();
        let mut edges: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
        for (module, text) in &files {
            let to = imports(text).into_iter().filter_map(|path| target(module, &path, &modules));
            // A parent and what lies below it know each other.
            let apart = |to: &Vec<String>| !to.starts_with(module) && !module.starts_with(to);
            edges.entry(module.clone()).or_default().extend(to.filter(apart));
        }
        let in_circle: Vec<String> = modules
            .iter()
            .filter(|module| reached(module, &edges).contains(*module))
            .map(|module| module.join("::"))
            .collect();
        if !in_circle.is_empty() {
            found.push(format!("{of}: {}", in_circle.join(", ")));
        }
    }
    none(found, "files import each other in no circles, but parents and children");
}

/// The steps of a byte's path (ARCHITECTURE.md).
const STEPS: [&str; 14] =
    ["R1", "R2", "R3", "R4", "R5", "R6", "R7", "S1", "S2", "S3", "S4", "S5", "S6", "S7"];

#[test]
fn each_step_of_the_path_has_one_file() {
    let mut owners: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (of, path, text) in library_sources() {
        let first = text.lines().next().unwrap_or_default();
        let Some(said) = first.strip_prefix("//! Byte path, step") else { continue };
        // Behind the colon stands the work that the file does at the step.
        let said = said.split_once(':').map_or(said, |(steps, _)| steps);
        let words: Vec<_> = said.split(|c: char| !c.is_alphanumeric()).collect();
        for step in STEPS.into_iter().filter(|step| words.contains(step)) {
            owners.entry(step).or_default().push(format!("crates/{of}/src/{path}"));
        }
    }
    let mut found = Vec::new();
    for step in STEPS {
        let owners = owners.remove(step).unwrap_or_default();
        if owners.len() != 1 {
            found.push(format!("{step}: {} files: {}", owners.len(), owners.join(", ")));
        }
    }
    none(
        found,
        "each step has one file whose first line says \"Byte path, step\" and its name; others say \
         \"variant of\" it, or nothing",
    );
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
        let core = ["crates/core/mem/src", "crates/core/tcp/src", "crates/core/stack/src"];
        if core.iter().any(|c| name.starts_with(c)) && !is_test(&name) {
            for word in banned {
                assert!(!text.contains(word), "{name} uses {word}: time and luck are arguments");
            }
        }
    }
}

/// Lines of a crate's manifest that name crates of the workspace it is built on, its tests aside.
fn built_on(of: &str) -> Vec<String> {
    let manifest = read(&format!("crates/{of}/Cargo.toml"));
    let (_, own) = manifest.split_once("\n[dependencies]\n").expect("dependencies");
    let own = own.split("\n[").next().unwrap_or_default();
    own.lines().filter_map(|line| line.strip_prefix("pagewire-")).map(str::to_owned).collect()
}

#[test]
fn the_core_is_built_on_no_driver() {
    let mut found = Vec::new();
    for of in ["core/mem", "core/tcp", "core/stack", "core/ring"] {
        let core = ["mem.workspace", "tcp.workspace", "stack.workspace"];
        let other = |line: &String| !core.iter().any(|core| line.starts_with(core));
        found.extend(built_on(of).into_iter().filter(other).map(|line| format!("{of}: {line}")));
    }
    none(found, "sans-I/O crates only know each other");
}

#[test]
fn products_use_what_programs_can_use() {
    let below = ["device", "mem", "ring", "sockets", "stack", "tcp"];
    let mut found = Vec::new();
    for of in ["products/bench", "products/cli", "products/control", "products/gateway"] {
        let is_below =
            |line: &String| below.contains(&line.split(['.', ' ']).next().unwrap_or_default());
        found.extend(built_on(of).into_iter().filter(is_below).map(|line| format!("{of}: {line}")));
    }
    none(found, "a product is built on `pagewire`: what that lacks, it lacks for every program");
}

/// Loops in assembly that the function which copies payload is made of.
const ASSEMBLY: usize = 5;

/// Files that move bytes beside the function which copies payload: how often at most, and which bytes.
/// Lines that store a number or an address of fixed length (`to_be_bytes`, `octets`, `emit`) do not count.
const MOVES: [(&str, usize, &str); 32] = [
    ("crates/core/mem/src/copy.rs", 1, "the one function"),
    ("crates/core/mem/src/packet.rs", 1, "headers, moved within the head"),
    ("crates/core/tcp/src/life/fast_open/cookie.rs", 1, "a cookie"),
    ("crates/core/stack/src/net/neighbors/discovery.rs", 1, "a message of neighbour discovery"),
    ("crates/core/stack/src/net/input/extensions.rs", 1, "headers, kept for an error"),
    ("crates/core/stack/src/net/ip_forward.rs", 4, "a fragment's headers"),
    ("crates/core/stack/src/net/head.rs", 2, "headers, moved to another head"),
    ("crates/core/stack/src/net/icmp/errors.rs", 1, "headers that an error quotes"),
    ("crates/core/stack/src/net/input/mod.rs", 1, "headers, kept for an error"),
    ("crates/core/stack/src/net/mod.rs", 2, "keys"),
    ("crates/core/stack/src/net/multicast/messages.rs", 2, "an address, a checksum"),
    ("crates/core/stack/src/net/multicast/mod.rs", 4, "headers of reports"),
    ("crates/core/stack/src/net/output/mod.rs", 1, "a header"),
    ("crates/core/stack/src/net/wire/ipv4.rs", 2, "a header and its option"),
    ("crates/core/stack/src/net/wire/ipv6.rs", 2, "addresses"),
    ("crates/core/stack/src/net/wire/ndp.rs", 2, "addresses"),
    ("crates/core/stack/src/sockets/tcp/fast_open/cache.rs", 2, "cookies, in its tests"),
    ("crates/core/stack/src/random.rs", 1, "a key"),
    ("crates/host/device/src/intercept.rs", 2, "headers"),
    ("crates/core/mem/src/link/offload.rs", 2, "headers, repeated in each segment"),
    ("crates/host/device/src/port/write.rs", 2, "headers, moved to the head and within it"),
    ("crates/host/device/src/stream/fuzzing.rs", 1, "a peer's, for tests"),
    ("crates/host/device/src/tap/netlink.rs", 4, "messages of netlink"),
    ("crates/host/device/src/tap/receive.rs", 1, "headers, moved to the head"),
    ("crates/host/device/src/tap/send.rs", 2, "headers, in one piece for the kernel"),
    ("crates/host/device/src/vhost_user/double.rs", 3, "a guest's, for tests"),
    ("crates/host/device/src/vhost_user/fuzzing.rs", 2, "a front end's, for tests"),
    ("crates/lab/packetdrill/src/wire.rs", 2, "headers"),
    ("crates/host/posix/src/message.rs", 1, "a control message"),
    ("crates/host/posix/src/descriptors/options/mod.rs", 1, "the value of an option"),
    ("crates/host/posix/src/raw.rs", 1, "the address of a socket"),
    ("crates/host/posix/src/raw/mapping.rs", 2, "the structure of an option"),
];

#[test]
fn payload_is_copied_by_one_function() {
    let crates = ["core/", "host/device", "host/pagewire", "host/posix", "lab/packetdrill"];
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
    for (name, ..) in MOVES {
        assert!(root().join(name).is_file(), "{name} is listed and not there");
    }
    for (name, text) in all_sources() {
        let ours = crates.iter().any(|c| name.starts_with(&format!("crates/{c}")));
        if !ours || !name.contains("/src/") || is_test(&name) {
            continue;
        }
        let lines = text.lines().filter(is_code).filter(|l| !fixed.iter().any(|f| l.contains(f)));
        let asm = usize::from(name == "crates/core/mem/src/copy.rs") * ASSEMBLY;
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
fn files_of_a_test_program_belong_to_it() {
    // A file that no `mod` names compiles, and its tests never run.
    let all = all_sources();
    let place = |name: &str| {
        let (of, path) = name.split_once("/tests/")?;
        let (program, file) = path.split_once('/')?;
        Some((format!("{of}/tests/"), format!("{program}/{file}")))
    };
    let mut found = Vec::new();
    for (name, _) in &all {
        let Some((tests, file)) = place(name).filter(|(_, file)| !file.ends_with("main.rs")) else {
            continue;
        };
        let module = file.trim_end_matches(".rs").trim_end_matches("/mod").rsplit('/').next();
        let module = module.unwrap_or_default();
        let (declared, path) = (format!("mod {module};"), format!("{module}.rs\""));
        let mut texts = all.iter().filter(|(other, _)| other.starts_with(&tests));
        if !texts.any(|(_, text)| text.contains(&declared) || text.contains(&path)) {
            found.push(name.clone());
        }
    }
    none(found, "a module of the program names each file below its folder");
}

/// Features that no test of the crate itself needs: `testing` is for the tests of other crates, and what
/// needs openraft is tested in a crate of its own.
const OF_OTHERS: [&str; 5] = [
    "pagewire-bench/quinn",
    "pagewire-cli/quinn",
    "pagewire-device/testing",
    "pagewire-gateway/testing",
    "pagewire-simulation/openraft",
];

/// The manifests of the workspace's crates.
fn manifests() -> Vec<String> {
    let dirs = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let crates = dirs(root().join("crates")).flat_map(|folder| dirs(folder.path()));
    crates.filter_map(|of| fs::read_to_string(of.path().join("Cargo.toml")).ok()).collect()
}

/// The quoted words of a text.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('"').skip(1).step_by(2).collect()
}

#[test]
fn the_tests_of_a_crate_have_its_features_without_being_asked_for_them() {
    let mut missing = Vec::new();
    for manifest in manifests() {
        let Some((_, features)) = manifest.split_once("\n[features]\n") else { continue };
        let features = features.split("\n[").next().unwrap_or_default();
        // A list may go over several lines.
        let items = features.split("]\n").filter_map(|item| item.split_once(" = ["));
        let named = |item: &str| item.lines().last().unwrap_or_default().to_owned();
        let features: BTreeMap<String, BTreeSet<&str>> =
            items.map(|(name, list)| (named(name), quoted(list))).collect();
        let of_itself = |line: &&str| line.contains("{ path = \".\",");
        let asked = manifest.lines().find(of_itself).map(quoted).unwrap_or_default();
        let mut has: BTreeSet<&str> = asked.into_iter().chain(["default"]).collect();
        loop {
            let more: Vec<&str> =
                has.iter().filter_map(|f| features.get(*f)).flatten().copied().collect();
            let before = has.len();
            has.extend(more);
            if has.len() == before {
                break;
            }
        }
        let name =
            manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or_default();
        let name = name.trim_matches('"');
        let lacks = features.keys().filter(|feature| !has.contains(feature.as_str()));
        missing.extend(lacks.map(|feature| format!("{name}/{feature}")));
    }
    missing.retain(|feature| !OF_OTHERS.contains(&feature.as_str()));
    none(missing, "a crate's dev-dependencies name the crate itself, with its features");
}

#[test]
fn tests_skip_only_where_it_is_seen_and_counted() {
    for (name, text) in all_sources() {
        let own = name.starts_with("crates/lab/testkit/") || name.ends_with("tidy.rs");
        for word in ["SKIPPED", "skips loudly", "geteuid().is_root() ||"] {
            let found = is_test(&name) && !own && text.contains(word);
            assert!(!found, "{name} contains {word}: pagewire_testkit has `can` and `skip`");
        }
    }
}

#[test]
fn what_a_library_says_names_no_option_of_the_command() {
    // Options of other programs: a container's, cargo's.
    let others = ["(--device /dev/net/tun)", "--test {target}", "--lib", "--exact {test}"];
    let of_command = |name: &str| {
        ["crates/products/cli/", "crates/products/bench/", "crates/lab/"]
            .iter()
            .any(|c| name.starts_with(c))
    };
    for (name, text) in all_sources() {
        let code = |line: &&str| {
            !line.trim_start().starts_with("//") && !others.iter().any(|o| line.contains(o))
        };
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
fn the_readme_has_the_two_commands() {
    let text = fs::read_to_string(root().join("README.md")).expect("README.md");
    for command in ["`make demo`", "`make test`"] {
        assert!(text.contains(command), "README.md does not name {command}");
    }
}

#[test]
fn a_plain_build_has_no_doubles_and_no_test_hooks() {
    let mut found = Vec::new();
    for (of, path, text) in library_sources() {
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("#[doc")).collect();
        for pair in lines.windows(2).filter(|pair| !pair[0].starts_with("#[cfg(")) {
            let words = pair[1].trim_end_matches([';', '{', ' ']).rsplit_once("mod ");
            let name = words.map_or("", |(_, name)| name);
            if ["bench", "double", "fuzzing", "testing"].contains(&name) {
                found.push(format!("`{name}` in crates/{of}/src/{path}"));
            }
        }
    }
    none(
        found,
        "what only tests use has `#[cfg(…)]` in front: of tests, or of the feature `testing`",
    );
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
