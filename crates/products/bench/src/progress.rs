//! How far a measurement is: a line on the terminal's standard error, which goes away at the end.
//! Where standard error is no terminal, nothing is written.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the line is drawn without news. Seldom: the measurement is to have the processors.
const REDRAW: Duration = Duration::from_secs(1);

/// The line of one measurement.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The measurement's name, behind its number among several.
    title: String,
}

impl Progress {
    /// The line of the measurement `name`; `part` is its number among several, as in "3 of 12".
    pub(crate) fn new(name: &str, part: Option<&str>) -> Self {
        let title = part.map_or_else(|| name.to_owned(), |part| format!("{part}: {name}"));
        Self { bar: ProgressBar::hidden(), title }
    }

    /// Shows nothing: for measurements that write something else to standard error.
    pub(crate) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), title: String::new() }
    }

    /// Shows the line, for a number of steps.
    pub(crate) fn begin(&self, steps: usize) {
        if self.title.is_empty() {
            return;
        }
        let template = "{prefix}  {bar:20}  {wide_msg} {elapsed}";
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_length(steps as u64);
        self.bar.set_prefix(self.title.clone());
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
        self.bar.enable_steady_tick(REDRAW);
    }

    /// Shows the line before the number of steps is known, and says what is done.
    pub(crate) fn prepare(&self, what: &str) {
        self.begin(1);
        self.say(what);
    }

    /// Says what is measured now. Round 0 warms up.
    pub(crate) fn round(&self, round: u16, rounds: u16, what: &str) {
        self.say(match round {
            0 => format!("warm-up round: {what}"),
            _ => format!("round {round} of {rounds}: {what}"),
        });
    }

    /// Says what is done now.
    pub(crate) fn say(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    /// Counts steps that are done.
    pub(crate) fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Prints a line on standard error, above this one.
    pub(crate) fn note(&self, text: &str) {
        self.bar.suspend(|| eprintln!("note: {text}"));
    }

    /// Takes the line away, so that results can be printed.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_which_round_of_how_many_and_what_is_measured() {
        let progress = Progress::new("stream", Some("3 of 12"));
        progress.round(0, 3, "kernel over loopback");
        assert_eq!(progress.bar.message(), "warm-up round: kernel over loopback");
        progress.round(2, 3, "kernel over loopback");
        assert_eq!(progress.bar.message(), "round 2 of 3: kernel over loopback");
        assert_eq!(progress.title, "3 of 12: stream");
    }
}
