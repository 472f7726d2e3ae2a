//! The pages of the commands in the book: each command has one, which names all of its options, and
//! what the book says to type is understood.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, Parser};

use super::Cli;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs")
}

/// The options of a command and of those below it, without those that all commands have.
fn options(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|a| !a.is_hide_set());
    let own = shown.filter_map(|a| a.get_long()).map(|long| format!("--{long}"));
    let below = command.get_subcommands().filter(|c| c.get_name() != "help").flat_map(options);
    own.chain(below).filter(|o| o != "--help" && o != "--version").collect()
}

#[test]
fn every_command_has_a_page_that_names_each_of_its_options() {
    let mut missing = Vec::new();
    let shown = |c: &&Command| c.get_name() != "help" && !c.is_hide_set();
    for command in Cli::command().get_subcommands().filter(shown) {
        let name = command.get_name();
        let path = docs().join(format!("commands/{name}.md"));
        let Ok(page) = fs::read_to_string(&path) else {
            missing.push(format!("docs/commands/{name}.md"));
            continue;
        };
        let end = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
        for option in options(command) {
            let named = page
                .match_indices(&option)
                .any(|(at, _)| page[at + option.len()..].chars().next().is_none_or(end));
            if !named {
                missing.push(format!("docs/commands/{name}.md: {option}"));
            }
        }
    }
    assert!(missing.is_empty(), "the book lacks\n{}", missing.join("\n"));
}

fn pages(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("readable directory").flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => pages(&path, out),
            false if path.extension().is_some_and(|e| e == "md") => out.push(path),
            false => {}
        }
    }
}

/// The lines of a page's shell blocks, with continued lines joined.
fn shell_lines(text: &str) -> Vec<String> {
    let (mut lines, mut inside, mut open) = (Vec::new(), false, String::new());
    for line in text.lines() {
        let fence = line.trim_start().strip_prefix("```");
        if let Some(info) = fence {
            inside = !inside && (info == "sh" || info == "console");
        } else if inside {
            open.push_str(line);
            if open.ends_with('\\') {
                open.pop();
            } else {
                lines.push(std::mem::take(&mut open));
            }
        }
    }
    lines
}

/// The words of a command line as a shell has them, up to a comment, a pipe or a redirection.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '>' | '<' | '&' | ';' | ')') => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    // The number of a descriptor that is redirected, as in `2>file`.
    word = word.filter(|w| w.parse::<u8>().is_err() || !line.contains(&format!(" {w}>")));
    words.extend(word);
    words
}

#[test]
fn what_the_book_says_to_type_is_understood() {
    let (mut found, mut count, mut wrong) = (Vec::new(), 0, Vec::new());
    pages(&docs(), &mut found);
    for page in found {
        let text = fs::read_to_string(&page).expect("UTF-8 text");
        for line in shell_lines(&text) {
            let words = words(line.trim_start().trim_start_matches("$ "));
            // The words before may be sudo, or ip netns exec NAME.
            let is_ours = |word: &String| word == "pagewire" || word.ends_with("/pagewire");
            let Some(at) = words.iter().position(is_ours) else { continue };
            // An argument of another command, as in `cp target/release/pagewire /usr/local/bin`.
            let runs = ["sudo", "ip", "netns", "exec", "time", "timeout"];
            let before = &words[..at];
            if !before.is_empty() && !runs.contains(&before[0].as_str()) && !before[0].contains('=')
            {
                continue;
            }
            count += 1;
            // An ellipsis stands for what the reader knows.
            let typed = words[at..].iter().filter(|word| *word != "…");
            if let Err(error) = Cli::try_parse_from(typed) {
                let shows =
                    [clap::error::ErrorKind::DisplayHelp, clap::error::ErrorKind::DisplayVersion];
                if !shows.contains(&error.kind()) {
                    wrong.push(format!("{}: {line}\n{error}", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 30, "only {count} command lines were found");
}

#[test]
fn what_the_script_of_figures_runs_is_understood() {
    let script = fs::read_to_string(docs().join("../scripts/figures")).expect("UTF-8 text");
    let (_, runs) = script.split_once("RUNS = {\n").expect("the measurements");
    let (runs, _) = runs.split_once("\n}").expect("their end");
    for line in runs.lines() {
        let arguments = line.split('"').nth(3).expect("a name and arguments");
        let typed = ["pagewire", "bench"].into_iter().chain(arguments.split(' ')).chain(["--json"]);
        if let Err(error) = Cli::try_parse_from(typed) {
            panic!("scripts/figures: {arguments}\n{error}");
        }
    }
    assert!(runs.lines().count() > 10, "only these were found:\n{runs}");
}
