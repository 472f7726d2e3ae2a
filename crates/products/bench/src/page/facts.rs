//! [`RunFacts`]: the machine and the conditions of a run, for the head of its page.

use std::fs;
use std::time::SystemTime;

use crate::kit::machine::{Machine, number_in};

/// The facts about the machine and the run as a whole.
#[derive(Clone, Debug)]
pub(crate) struct RunFacts {
    /// When the run began.
    pub(crate) date: String,
    /// Names and values.
    pub(crate) lines: Vec<(&'static str, String)>,
    /// Why figures of this run are not to be quoted.
    pub(crate) warnings: Vec<String>,
}

impl RunFacts {
    /// Gathers the facts of this machine before the run, so that the load is the load without it.
    pub(crate) fn gather(command: String, quick: bool) -> Self {
        let machine = Machine::describe();
        let setting = |file: &str| read(file).unwrap_or_else(|| "unknown".to_owned());
        let lines = vec![
            ("Command", command),
            ("Processor", machine.cpu),
            ("Processors to run on", machine.cpus.to_string()),
            ("Memory", memory().unwrap_or_else(|| "unknown".to_owned())),
            ("Kernel", format!("Linux {}", machine.kernel)),
            (
                "Congestion control",
                format!(
                    "cubic on every measured socket; the machine's default is {}",
                    setting("/proc/sys/net/ipv4/tcp_congestion_control")
                ),
            ),
            ("Huge pages", setting("/sys/kernel/mm/transparent_hugepage/enabled")),
            ("Load before", format!("{} processes in the last minute", load())),
            ("Pagewire", format!("{} ({})", env!("CARGO_PKG_VERSION"), build())),
        ];
        let mut warnings = Vec::new();
        if cfg!(debug_assertions) {
            let text = "This command was built with debug assertions: its figures say nothing. \
                        Build it with cargo build --release.";
            warnings.push(text.to_owned());
        }
        if quick {
            let text = "A quick run: rounds are too short for figures that are to be quoted.";
            warnings.push(text.to_owned());
        }
        Self { date: httpdate::fmt_http_date(SystemTime::now()), lines, warnings }
    }
}

fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug assertions" } else { "optimised" }
}

fn read(file: &str) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

fn memory() -> Option<String> {
    let kib = number_in("/proc/meminfo", "MemTotal:")?;
    Some(format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)))
}

fn load() -> String {
    let text = read("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}
