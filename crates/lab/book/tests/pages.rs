//! Requirements of the book's pages: each page is in SUMMARY.md, links lead somewhere, and Rust is
//! tested.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("workspace root")
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
}
