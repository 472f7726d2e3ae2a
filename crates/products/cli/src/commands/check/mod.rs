//! `pagewire check`: what this system has, and what is missing. [`found`] looks, [`report`] judges.

mod found;
mod report;

use crate::args::system::CheckOptions;
use crate::failure::{Failure, say};
use report::lines;

/// Prints a line for each finding.
pub(crate) fn run(options: &CheckOptions) -> Result<(), Failure> {
    if let Some(probe) = options.probe {
        found::probe(probe);
        return Ok(());
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
