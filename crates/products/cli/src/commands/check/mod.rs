//! `pagewire check`: what this system has, and what is missing: [`found`] looks, [`report`] judges. [`rules`] is about
//! files with rules.

mod found;
mod report;
mod rules;

use crate::args::system::{CheckOptions, CheckWhat};
use crate::failure::{Failure, say};
use report::lines;

/// Prints a line for each finding, or answers about files with rules.
pub(crate) fn run(options: &CheckOptions) -> Result<(), Failure> {
    if let Some(probe) = options.probe {
        found::probe(probe);
        return Ok(());
    }
    if let Some(CheckWhat::Rules(options)) = &options.what {
        return rules::run(options);
    }
    let findings = found::look()?;
    for line in lines(&findings) {
        say(line);
    }
    match findings.run {
        Ok(()) => Ok(()),
        Err(_) => Err(Failure::Failed("`pagewire run` does not work here".to_owned())),
    }
}
