//! `pagewire completions` and `pagewire man`: what shells and readers get, made from the options.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Cli;
use crate::args::system::{CompletionsOptions, ManOptions};
use crate::dropin;
use crate::failure::{Failure, reason};

/// The commands, by the names that they are started under.
fn all() -> Vec<(String, Command)> {
    let own = ("pagewire".to_owned(), Cli::command());
    [own].into_iter().chain(dropin::commands()).collect()
}

/// Prints the completions of one command.
pub(crate) fn completions(options: &CompletionsOptions) -> Result<(), Failure> {
    let all = all();
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    let found = all.into_iter().find(|(name, _)| *name == options.name);
    let Some((name, mut command)) = found else {
        return Err(Failure::misused(&options.name, format!("there are completions of {names}")));
    };
    clap_complete::generate(options.shell, &mut command, name, &mut io::stdout().lock());
    Ok(())
}

/// Writes a page for each command, and for each of its commands.
pub(crate) fn man(options: &ManOptions) -> Result<(), Failure> {
    let date = date(std::env::var("SOURCE_DATE_EPOCH").ok().as_deref());
    for (name, command) in all() {
        // A page of another program may have the name that this program acts under.
        let title = if name == "pagewire" { name } else { format!("pagewire-{name}") };
        let mut command = command.display_name(title).disable_help_subcommand(true);
        command.build();
        write_pages(&command, &date, &options.dir)
            .map_err(|e| Failure::because(options.dir.display(), reason(&e)))?;
    }
    Ok(())
}

fn write_pages(command: &Command, date: &str, dir: &Path) -> io::Result<()> {
    let man = Man::new(command.clone()).date(date);
    let man = man.source(concat!("Pagewire ", env!("CARGO_PKG_VERSION")));
    let man = man.manual("Pagewire Manual");
    let (file, page) = (dir.join(man.get_filename()), page(&man, command)?);
    fs::write(file, page)?;
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    shown.into_iter().try_for_each(|below| write_pages(below, date, dir))
}

/// A page: examples stand as they were written, which the generator would fill to paragraphs.
fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        sections(&text.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// The line that `--help` has, too.
fn synopsis(command: &Command) -> Roff {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for (number, line) in usage.lines().map(str::trim).filter(|l| !l.is_empty()).enumerate() {
        if number > 0 {
            roff.control("br", []);
        }
        match line.strip_prefix(name.as_str()) {
            Some(rest) => roff.text([bold(name.clone()), roman(rest)]),
            None => roff.text([roman(line)]),
        };
    }
    roff
}

/// Text below the options: a heading begins at the margin and ends with a colon, examples are indented.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    let (mut begins, mut as_written) = (true, false);
    if text.lines().next().is_some_and(|first| heading(first).is_none()) {
        roff.control("SH", ["NOTES"]);
    }
    for line in text.lines() {
        let is_indented = line.starts_with(' ');
        if line.is_empty() {
            begins = true;
        }
        let heading = heading(line).filter(|_| begins);
        if as_written && !is_indented && !line.is_empty() {
            roff.control("fi", []);
            as_written = false;
        }
        if let Some((heading, rest)) = heading {
            roff.control("SH", [heading.to_uppercase().as_str()]);
            if !rest.is_empty() {
                roff.text([roman(rest.trim_start())]);
            }
        } else if line.is_empty() {
            roff.control(if as_written { "sp" } else { "PP" }, []);
        } else {
            if is_indented && !as_written {
                roff.control("nf", []);
                as_written = true;
            }
            roff.text([roman(line)]);
        }
        begins = line.is_empty();
    }
    if as_written {
        roff.control("fi", []);
    }
    roff
}

/// The heading that a line begins with, and the rest of the line.
fn heading(line: &str) -> Option<(&str, &str)> {
    let is_word = |text: &str| text.chars().all(|c| c.is_ascii_alphabetic() || c == ' ');
    line.split_once(':').filter(|(heading, _)| !line.starts_with(' ') && is_word(heading))
}

/// The day that a build says it is of, so that two builds are equal; without one no day.
fn date(epoch: Option<&str>) -> String {
    let seconds = epoch.and_then(|seconds| seconds.parse().ok());
    let day = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    // As in "Tue, 15 Nov 1994 08:12:31 GMT".
    let day = day.map(httpdate::fmt_http_date).unwrap_or_default();
    day.get(5..16).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_day_that_the_build_says() {
        assert_eq!(date(Some("784887151")), "15 Nov 1994");
        assert_eq!((date(None), date(Some("soon"))), (String::new(), String::new()));
    }

    #[test]
    fn text_without_a_heading_is_notes() {
        let page = sections("It runs `a`; see b.\n\nSee also: a(1)").to_roff();
        let lines = [".SH NOTES", "It runs `a`; see b.", ".PP", ".SH \"SEE ALSO\"", "a(1)"];
        assert_eq!(page.lines().collect::<Vec<_>>(), lines, "{page}");
    }

    #[test]
    fn examples_stand_as_written_and_other_text_is_filled() {
        let text = "Examples:\n  pagewire a\n      what it does\n\n  pagewire b\n\nExit status: 0 done,\n1 not.";
        let lines = [
            ".SH EXAMPLES",
            ".nf",
            "  pagewire a",
            "      what it does",
            ".sp",
            "  pagewire b",
            ".sp",
            ".fi",
            ".SH \"EXIT STATUS\"",
            "0 done,",
            "1 not.",
        ];
        let page = sections(text).to_roff();
        assert_eq!(page.lines().collect::<Vec<_>>(), lines, "{page}");
    }
}
