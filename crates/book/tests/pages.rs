//! What must hold for the pages of the book: each is in SUMMARY.md, links lead somewhere, Rust is
//! tested, and the text of every error can be looked up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("workspace root")
}

/// Every page: its path below `docs/`, and its text.
fn pages() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![root().join("docs")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).expect("readable directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                let name = path.strip_prefix(root().join("docs")).expect("below docs");
                let text = fs::read_to_string(&path).expect("UTF-8 text");
                found.insert(name.display().to_string(), text);
            }
        }
    }
    found
}

fn parse(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

/// Where the links of a page lead.
fn links(text: &str) -> Vec<String> {
    let target = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.into_string())
        }
        _ => None,
    };
    parse(text).filter_map(target).collect()
}

/// The anchors of a page's headings, as mdBook and forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut heading) = (BTreeSet::new(), None);
    for event in parse(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::End(TagEnd::Heading(_)) => found.extend(heading.take().map(|h| anchor(&h))),
            _ => {}
        }
    }
    found
}

fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    heading.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The page that a link of `from` names, as a path below `docs/`; `None`: outside.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[test]
fn every_page_is_in_the_summary_once() {
    let pages = pages();
    let mut listed: BTreeMap<String, usize> = BTreeMap::new();
    for link in links(&pages["SUMMARY.md"]) {
        *listed.entry(link).or_default() += 1;
    }
    for (page, times) in &listed {
        assert!(pages.contains_key(page), "SUMMARY.md names {page}, which is not there");
        assert_eq!(*times, 1, "SUMMARY.md names {page} {times} times");
    }
    for page in pages.keys().filter(|page| *page != "SUMMARY.md") {
        assert!(listed.contains_key(page), "SUMMARY.md lacks {page}");
    }
}

#[test]
fn links_lead_to_a_page_and_to_a_heading_of_it() {
    let pages = pages();
    let mut dead = Vec::new();
    for (from, text) in &pages {
        for link in links(text).into_iter().filter(|link| !link.starts_with("http")) {
            let (file, section) = link.split_once('#').unwrap_or((&link, ""));
            let to = if file.is_empty() { Some(from.clone()) } else { resolve(from, file) };
            // A page of the book links to pages of the book: others are not there when it is built.
            match to.and_then(|to| pages.get(&to)) {
                None => dead.push(format!("{from}: {link} is no page of the book")),
                Some(text) if !section.is_empty() && !anchors(text).contains(section) => {
                    dead.push(format!("{from}: {link}: there is no such heading"));
                }
                Some(_) => {}
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// The languages of a page's code blocks.
fn languages(text: &str) -> Vec<String> {
    let language = |event| match event {
        Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => Some(info.into_string()),
        Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)) => Some("indented".to_owned()),
        _ => None,
    };
    parse(text).filter_map(language).collect()
}

#[test]
fn every_block_says_what_it_is() {
    let known = ["rust", "sh", "console", "toml", "text", "c", "json", "yaml", "ini"];
    for (page, text) in pages() {
        for language in languages(&text) {
            let first = language.split(',').next().unwrap_or_default();
            assert!(
                known.contains(&first),
                "{page}: a block is {language:?}, not one of {known:?}"
            );
            let ignored = language.contains("ignore");
            assert!(!ignored, "{page}: Rust that nobody compiles goes stale");
        }
    }
}

#[test]
fn every_page_with_rust_is_a_doc_test() {
    let tested = include_str!("../src/lib.rs");
    for (page, text) in pages() {
        let has_rust = languages(&text).iter().any(|l| l.split(',').next() == Some("rust"));
        let listed = tested.contains(&format!("docs/{page}\""));
        assert_eq!(has_rust, listed, "docs/{page}: Rust in it {has_rust}, in src/lib.rs {listed}");
    }
}

/// Rust sources of published crates, without their tests.
fn sources(dir: &Path, out: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(dir).expect("readable directory").flatten() {
        let path = entry.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if path.is_dir() && name != "tests" {
            sources(&path, out);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            out.push((path.clone(), fs::read_to_string(&path).expect("UTF-8 source")));
        }
    }
}

/// The first string literal in `text`, with `\` at the end of lines resolved, and what follows it.
fn literal(text: &str) -> Option<(String, &str)> {
    let (mut out, mut chars) = (String::new(), text[text.find('"')? + 1..].chars());
    loop {
        match chars.next()? {
            '"' => return Some((out, chars.as_str())),
            '\\' => match chars.next()? {
                '\n' => chars = chars.as_str().trim_start().chars(),
                'n' => out.push(' '),
                other => out.push(other),
            },
            other => out.push(other),
        }
    }
}

/// A text as readers see it, with an ellipsis for each value.
fn with_ellipses(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        out.push('…');
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    out + rest
}

/// What is inside of the parentheses that `text` begins behind, and what follows them.
fn arguments(text: &str) -> (&str, &str) {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[..at], &text[at + 1..]);
        }
    }
    (text, "")
}

/// Errors whose text is a value only, or of crates that only tests and Google's packetdrill use.
const INTERNAL: [&str; 4] = ["bench", "packetdrill", "testing", "book"];

/// The texts of all errors of the published crates, as readers see them.
fn error_texts() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let dir = entry.path().join("src");
        if INTERNAL.contains(&name.as_str()) || !dir.is_dir() {
            continue;
        }
        let mut files = Vec::new();
        sources(&dir, &mut files);
        for (path, text) in files {
            let double = path.ends_with("vhost_user/double.rs");
            let mut rest = text.as_str();
            while let Some((_, after)) = rest.split_once("#[error(") {
                let (inside, after) = arguments(after);
                let text = literal(inside).map(|(text, _)| with_ellipses(&text));
                found.extend(text.filter(|_| !double).map(|text| (name.clone(), text)));
                rest = after;
            }
        }
    }
    found
}

/// What texts of errors stand behind, in the sources of what users meet.
const BEGINS: [&str; 23] = [
    "Failed(",
    "Usage(",
    "because(",
    "misused(",
    "Interrupted(",
    "failed(",
    "usage(",
    "Err(",
    "config(",
    "Config(",
    "system(",
    "wrong(",
    "refused(",
    "io::Error::new(",
    "Error::other(",
    "let why =",
    "let text =",
    "ok_or(",
    "ok_or_else(|| ",
    "map_err(|_| ",
    "eprintln!(",
    "let hint =",
    "=> \"; ",
];

/// Longest statement that counts as one error, in bytes.
const LONGEST: usize = 500;

/// The texts that the command and the crates below it make where the error happens.
fn other_texts() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for name in ["cli", "device", "gateway", "pagewire"] {
        let mut files = Vec::new();
        sources(&root().join("crates").join(name).join("src"), &mut files);
        for (path, text) in files {
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            if path.ends_with("vhost_user/double.rs") {
                continue;
            }
            for begin in BEGINS {
                for (at, _) in text.match_indices(begin) {
                    let mut rest = statement(text, at, begin);
                    while let Some((words, after)) = literal(rest).filter(|_| rest.len() < LONGEST)
                    {
                        found.insert((name.to_owned(), with_ellipses(&words)));
                        rest = after;
                    }
                }
            }
        }
    }
    found
}

/// What belongs to the beginning at `at`: its arguments, or the rest of the line.
fn statement<'a>(text: &'a str, at: usize, begin: &str) -> &'a str {
    if begin.ends_with('(') {
        return arguments(&text[at + begin.len()..]).0;
    }
    let rest = &text[at..];
    // A literal may go on in further lines.
    let end = rest.find([';', ',']).map_or(rest.len(), |end| end + 1);
    let line = rest.find('\n').unwrap_or(rest.len());
    &rest[..end.max(line)]
}

#[test]
fn every_error_text_is_in_troubleshooting() {
    let page: String = pages().remove("TROUBLESHOOTING.md").expect("the page");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ").replace("\\|", "|");
    let texts = error_texts().into_iter().chain(other_texts());
    let missing: Vec<String> = texts
        .filter(|(_, text)| {
            let words = text.trim_start_matches("pagewire: ");
            let words = words.trim_matches([' ', ';', ':', ',', '…', '-', '.']);
            // Names of options, paths and values alone say nothing.
            words.split_whitespace().count() > 2 && !page.contains(words)
        })
        .map(|(name, text)| format!("{name}: {text}"))
        .collect();
    assert!(missing.is_empty(), "TROUBLESHOOTING.md lacks:\n{}", missing.join("\n"));
}

#[test]
fn each_figure_of_the_readme_names_its_measurement_and_the_script_measures_it() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect("UTF-8 text");
    let (readme, script) = (read("README.md"), read("scripts/figures"));
    let (_, rest) = readme.split_once("## Figures").expect("the section");
    let (section, _) = rest.split_once("\n## ").expect("its end");
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| what"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let [what, _, _, command] = row[..] else { panic!("{row:?}") };
        let measured = command.starts_with("`pagewire bench ") || command.starts_with("`cargo ");
        assert!(measured || command == "the same", "README.md: {what}: no measurement");
        for words in [what, command] {
            assert!(script.contains(&format!("\"{words}\"")), "scripts/figures lacks {words}");
        }
    }
}

#[test]
fn what_is_looked_for_is_found() {
    assert_eq!(anchor("In a program: `run`, 2"), "in-a-program-run-2");
    assert_eq!(resolve("commands/run.md", "../LIMITS.md").as_deref(), Some("LIMITS.md"));
    assert_eq!(resolve("LIMITS.md", "../README.md"), None);
    assert_eq!(with_ellipses("queue {0} of {what}: x"), "queue … of …: x");
    assert_eq!(literal("f(\"a \\\n   b\", c)").map(|(text, _)| text).as_deref(), Some("a b"));
    assert!(error_texts().len() > 100 && other_texts().len() > 100);
}
