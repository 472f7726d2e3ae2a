//! Results as JSON lines or as a table.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::failure::say;
use crate::machine::Machine;
use crate::meter::{Round, Spread};
use crate::plot::Row;

/// One line of results: names and values in the order in which they are printed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    fields: Vec<(&'static str, Value)>,
    /// The lowest and the highest round of fields that have no fields of their own for it. Plots
    /// have them; lines do not, because there are many.
    spreads: Row,
}

/// What a measurement came to.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    /// What it was measured on, and how.
    pub(crate) heading: String,
    pub(crate) records: Vec<Record>,
}

impl Record {
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// The median with so many decimals, and for plots its spread.
    pub(crate) fn with_spread(mut self, name: &'static str, spread: Spread, decimals: i32) -> Self {
        let both = [spread.min, spread.max].map(|value| rounded(value, decimals));
        self.spreads.insert(name.to_owned(), both.to_vec().into());
        self.with(name, rounded(spread.median, decimals))
    }

    /// The median of whole numbers, and for plots their spread.
    pub(crate) fn with_counts(mut self, name: &'static str, spread: Spread) -> Self {
        let both = [spread.min as u64, spread.max as u64];
        self.spreads.insert(name.to_owned(), both.to_vec().into());
        self.with(name, spread.median as u64)
    }

    /// The mean over all rounds with so many decimals, and for plots the spread of single rounds.
    pub(crate) fn with_mean(
        self,
        name: &'static str,
        (mean, spread): (f64, Spread),
        decimals: i32,
    ) -> Self {
        self.with_spread(name, Spread { median: mean, ..spread }, decimals)
    }

    /// The fields, and `spread` with the lowest and the highest round of each that has one.
    pub(crate) fn row(&self) -> Row {
        let fields = self.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let mut row: Row = fields.collect();
        if !self.spreads.is_empty() {
            row.insert("spread".to_owned(), self.spreads.clone().into());
        }
        row
    }

    /// The fields that every line has, from the rounds that count: medians, and the spread.
    pub(crate) fn of_rounds(bench: &str, engine: &str, link: &str, rounds: &[Round]) -> Self {
        let by_rate = Spread::by(rounds, |round| round.gbit_per_s());
        let rate = |r: Option<&Round>| rounded(r.map_or(0.0, Round::gbit_per_s), 3);
        let median = by_rate.map(|all| all.median);
        Self::default()
            .with("bench", bench)
            .with("engine", engine)
            .with("link", link)
            .with("bytes", median.map_or(0, |r| r.bytes))
            .with("seconds", rounded(median.map_or(0.0, |r| r.time.as_secs_f64()), 6))
            .with("gbit_per_s", rate(median))
            .with("rounds", rounds.len())
            .with("min_gbit_per_s", rate(by_rate.map(|all| all.min)))
            .with("max_gbit_per_s", rate(by_rate.map(|all| all.max)))
    }

    /// What it was measured on.
    pub(crate) fn on(self, machine: &Machine) -> Self {
        self.with("cpu", machine.cpu.as_str())
            .with("cpus", machine.cpus)
            .with("kernel", machine.kernel.as_str())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }
}

impl Results {
    /// Of a process that measures for another one.
    pub(crate) fn none() -> Self {
        Self { heading: String::new(), records: Vec::new() }
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// A number with so many decimals.
pub(crate) fn rounded(x: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (x * scale).round() / scale
}

/// Prints all lines: one object each, or a table of the named columns under a heading.
pub(crate) fn print(
    records: Vec<Record>,
    json: bool,
    heading: impl Into<String>,
    columns: &str,
) -> Results {
    let results = Results { heading: heading.into(), records };
    show(&results.records, json, &results.heading, columns);
    results
}

/// Prints lines that are a part of the results.
pub(crate) fn show(records: &[Record], json: bool, heading: &str, columns: &str) {
    if json {
        for record in records {
            say(serde_json::to_string(record).unwrap_or_default());
        }
        return;
    }
    say(heading);
    let cell = |value: Option<&Value>| match value {
        None => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(n)) if n.is_f64() => format!("{:.3}", n.as_f64().unwrap_or(0.0)),
        Some(other) => other.to_string(),
    };
    let columns: Vec<&str> = columns.split(' ').collect();
    let mut rows = vec![columns.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>()];
    rows.extend(records.iter().map(|r| columns.iter().map(|c| cell(r.get(c))).collect()));
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(String::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns.len()).map(width).collect();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(c, w)| format!("{c:>w$}")).collect();
        say(cells.join("  "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_record_prints_its_fields_in_order_with_medians_and_spread() {
        let round =
            |bytes| Round { bytes, time: Duration::from_secs(1), receiver_cpu: Duration::ZERO };
        let rounds = [round(3_000_000_000), round(1_000_000_000), round(2_000_000_000)];
        let record = Record::of_rounds("stream", "kernel", "veth", &rounds).with("peer", "kernel");
        assert_eq!(
            serde_json::to_string(&record).unwrap(),
            r#"{"bench":"stream","engine":"kernel","link":"veth","bytes":2000000000,"seconds":1.0,"gbit_per_s":16.0,"rounds":3,"min_gbit_per_s":8.0,"max_gbit_per_s":24.0,"peer":"kernel"}"#
        );
    }
}
