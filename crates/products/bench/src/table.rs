//! [`Measurement`]: a measurement with the table of its results. Each [`Field`] is a value of the results, and
//! knows how the value is computed, named and plotted. JSON lines, the columns of the text and the plots all
//! come from the table.
//!
//! [`in_turns`] measures every line of a [`Measurement`] once in each round.

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::failure::{Failure, say};
use crate::kit::machine::{Machine, on_a_thread};
use crate::kit::meter::{Round, Spread};
use crate::numbers::{rounded, size_name};
use crate::progress::Progress;

/// An object of a measurement's results.
pub(crate) type Row = serde_json::Map<String, Value>;

/// Rows as text: one object in each line.
pub(crate) fn json_lines(rows: &[Row]) -> Result<String, Failure> {
    let line = |row| Ok(serde_json::to_string(row)? + "\n");
    rows.iter().map(line).collect()
}

/// A measurement, and how its results are shown.
pub(crate) trait Measurement: Sized + 'static {
    /// The setting that distinguishes a line of the results.
    type Case;
    /// The result of a round of a case.
    type Sample;

    /// The name on the command line.
    const NAME: &'static str;
    const TITLE: &'static str;
    const ABOUT: &'static str;
    /// The fields of a JSON line in their order, behind those that every line begins with.
    const FIELDS: &'static [Field<Self>];
    /// Whether the rate in Gbit/s is worth a plot.
    const RATE: bool = true;

    /// The engine of a case, and its link.
    fn engine(&self, case: &Self::Case) -> (String, &'static str);

    /// The bytes and times of a sample, for [`Self::HEAD`] and the CPU time of the receiver.
    fn round(&self, _: &Self::Case, _: &Self::Sample) -> Round {
        Round::default()
    }

    /// Whether lines begin with the bytes, the time and the rate of their rounds.
    const HEAD: bool = true;

    /// Rows that were measured elsewhere, to stand beside these in the plot of a field.
    fn beside(_field: &str, _rows: &[&Row]) -> Vec<Row> {
        Vec::new()
    }
}

/// A measurement whose cases are measured in turns.
pub(crate) trait InTurns: Measurement<Case: Sync, Sample: Send> + Sync {
    /// Measures a round of a case, on a thread of its own, which may be pinned and may change its network
    /// namespace. Round 0 warms up.
    fn sample(&self, case: &Self::Case, round: u16) -> Result<Self::Sample, Failure>;
}

/// A case, with the results of the rounds that count.
pub(crate) type Measured<M> = (<M as Measurement>::Case, Vec<<M as Measurement>::Sample>);

/// Measures each case once in each round; the first round warms up and does not count.
pub(crate) fn in_turns<M: InTurns>(
    bench: &M,
    cases: impl IntoIterator<Item = M::Case>,
    rounds: u16,
    progress: &Progress,
) -> Result<Vec<Measured<M>>, Failure> {
    let mut all: Vec<Measured<M>> = cases.into_iter().map(|case| (case, Vec::new())).collect();
    progress.begin((usize::from(rounds) + 1) * all.len());
    measure(bench, &mut all, 0..=rounds, progress)?;
    progress.end();
    Ok(all)
}

/// [`in_turns`], with the order of the cases turned round in every other round: no case always follows another.
pub(crate) fn in_turns_both_ways<M: InTurns>(
    bench: &M,
    cases: impl IntoIterator<Item = M::Case>,
    rounds: u16,
    progress: &Progress,
) -> Result<Vec<Measured<M>>, Failure> {
    let mut all: Vec<Measured<M>> = cases.into_iter().map(|case| (case, Vec::new())).collect();
    progress.begin((usize::from(rounds) + 1) * all.len());
    for round in 0..=rounds {
        measure_round(bench, &mut all, (round, rounds), progress)?;
        all.reverse();
    }
    if rounds.is_multiple_of(2) {
        all.reverse();
    }
    progress.end();
    Ok(all)
}

/// The rounds of these lines, without the begin and the end of the line of progress.
pub(crate) fn measure<M: InTurns>(
    bench: &M,
    all: &mut [Measured<M>],
    rounds: RangeInclusive<u16>,
    progress: &Progress,
) -> Result<(), Failure> {
    let last = *rounds.end();
    rounds.into_iter().try_for_each(|round| measure_round(bench, all, (round, last), progress))
}

/// A round of these lines, with the number of the last one.
fn measure_round<M: InTurns>(
    bench: &M,
    all: &mut [Measured<M>],
    (round, last): (u16, u16),
    progress: &Progress,
) -> Result<(), Failure> {
    for (case, samples) in all {
        progress.round(round, last, &what(bench, case));
        let sample = on_a_thread(|| bench.sample(case, round))?;
        progress.advance(1);
        if round > 0 {
            samples.push(sample);
        }
    }
    Ok(())
}

/// The case as text, for the line of progress.
fn what<M: Measurement>(bench: &M, case: &M::Case) -> String {
    let row = record(&ResultLine { bench, case, samples: &[], all: &[] }).line;
    let shown = TableInfo::of::<M>();
    let groups = [Label::Split, Label::Group].map(|label| shown.labels(&row, label));
    let all = [shown.line(&row)].into_iter().chain(groups).filter(|label| !label.is_empty());
    all.collect::<Vec<_>>().join(", ")
}

/// A line of the results before it is written, with the others beside it.
pub(crate) struct ResultLine<'a, M: Measurement> {
    pub(crate) bench: &'a M,
    pub(crate) case: &'a M::Case,
    pub(crate) samples: &'a [M::Sample],
    pub(crate) all: &'a [Measured<M>],
}

impl<M: Measurement> ResultLine<'_, M> {
    /// The fields that every line begins with.
    fn named(&self) -> Record {
        let (engine, link) = self.bench.engine(self.case);
        let record = Record::default().with("bench", M::NAME).with("engine", engine);
        if link.is_empty() { record } else { record.with("link", link) }
    }

    /// The spread of a value over all rounds.
    pub(crate) fn spread(&self, of: impl Fn(&M::Sample) -> f64) -> Option<Spread> {
        Some(Spread::of(self.samples.iter().map(of)))
    }

    pub(crate) fn rounds(&self) -> Vec<Round> {
        self.samples.iter().map(|sample| self.bench.round(self.case, sample)).collect()
    }

    /// A value of the round whose rate is the median.
    pub(crate) fn median<T: Into<Value>>(&self, of: impl Fn(&M::Sample) -> T) -> Option<Value> {
        let rate = |sample: &&M::Sample| self.bench.round(self.case, sample).gbit_per_s();
        Spread::by(self.samples, rate).map(|all| of(all.median).into())
    }

    /// A figure in relation to that of another case, if it was measured.
    pub(crate) fn ratio_to(
        &self,
        other: &M::Case,
        figure: impl Fn(&[M::Sample]) -> f64,
    ) -> Option<Value>
    where
        M::Case: PartialEq,
    {
        let (_, beside) = self.all.iter().find(|(case, _)| case == other)?;
        some(rounded(figure(self.samples) / figure(beside).max(1e-9), 3))
    }

    /// CPU time of the receiver for each MiB, in microseconds: of all rounds, and the spread of single
    /// ones.
    pub(crate) fn receiver_us_per_mib(&self) -> Spread {
        let (median, spread) = Round::us_per_mib(&self.rounds());
        Spread { median, ..spread }
    }
}

/// The value of a field that every line has.
pub(crate) fn some(value: impl Into<Value>) -> Option<Value> {
    Some(value.into())
}

/// A field, without how it is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldInfo {
    pub(crate) name: &'static str,
    pub(crate) role: FieldRole,
    /// The title of curves over this field, where it has several values.
    pub(crate) over: Option<&'static str>,
    /// The field is plotted before the others.
    pub(crate) is_first: bool,
}

/// The role of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldRole {
    /// A condition of the measurement, or a value that follows from other fields.
    Setting,
    /// A label that distinguishes the row from others, and its text; `{}` is the value.
    Label(Label, &'static str),
    /// A measured value, which has a plot of its own.
    Measured { title: &'static str, unit: &'static str, better: BetterWhen },
}

/// The part of a plot that a label names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    /// The plot.
    Split,
    /// The group in the plot.
    Group,
    /// The line in the group.
    Part,
}

/// The direction in which a quantity is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BetterWhen {
    Higher,
    Lower,
    /// The quantity only describes.
    Neither,
}

/// A field of a measurement's results.
pub(crate) struct Field<M: Measurement> {
    entry: FieldInfo,
    get: FieldSource<M>,
}

/// How a field is computed for a line; `None`: the line does not have the field.
enum FieldSource<M: Measurement> {
    Value(fn(&ResultLine<'_, M>) -> Option<Value>),
    Rounds(OfRounds<M>, SpreadForm),
}

/// How the spread of a line's rounds is computed.
type OfRounds<M> = fn(&ResultLine<'_, M>) -> Option<Spread>;

/// How the spread of rounds is written.
#[derive(Clone, Copy)]
enum SpreadForm {
    /// The median. The lowest and the highest are in plots only: lines are long enough.
    Median(i32),
    /// The median as a whole number.
    Count,
    /// The median, the lowest as `min_`, and the highest as `max_`.
    Bounds(i32),
    /// The lowest and the highest: the median is another field.
    OnlyBounds(i32),
}

/// Units and titles that many measurements share.
pub(crate) const US_PER_MIB: &str = "µs for each MiB";
pub(crate) const IN_A_ROUND: &str = "bytes in a round";
pub(crate) const COPIED: &str = "Payload that our stack copied";

impl<M: Measurement> Field<M> {
    const fn new(name: &'static str, get: FieldSource<M>) -> Self {
        Self {
            entry: FieldInfo { name, role: FieldRole::Setting, over: None, is_first: false },
            get,
        }
    }

    /// A field with one value for all rounds.
    pub(crate) const fn value(
        name: &'static str,
        get: fn(&ResultLine<'_, M>) -> Option<Value>,
    ) -> Self {
        Self::new(name, FieldSource::Value(get))
    }

    /// A median, rounded to `decimals` decimals.
    pub(crate) const fn spread(name: &'static str, decimals: i32, get: OfRounds<M>) -> Self {
        Self::new(name, FieldSource::Rounds(get, SpreadForm::Median(decimals)))
    }

    /// A median of whole numbers.
    pub(crate) const fn count(name: &'static str, get: OfRounds<M>) -> Self {
        Self::new(name, FieldSource::Rounds(get, SpreadForm::Count))
    }

    /// A median, and fields for the lowest and the highest round.
    pub(crate) const fn bounded(name: &'static str, decimals: i32, get: OfRounds<M>) -> Self {
        Self::new(name, FieldSource::Rounds(get, SpreadForm::Bounds(decimals)))
    }

    /// The lowest and the highest round of a field that stands before.
    pub(crate) const fn bounds(name: &'static str, decimals: i32, get: OfRounds<M>) -> Self {
        Self::new(name, FieldSource::Rounds(get, SpreadForm::OnlyBounds(decimals)))
    }

    const fn role(mut self, role: FieldRole) -> Self {
        self.entry.role = role;
        self
    }

    /// A plot of its own for each value.
    pub(crate) const fn split(self, form: &'static str) -> Self {
        self.role(FieldRole::Label(Label::Split, form))
    }

    /// Values are compared within a group, which has one value of this.
    pub(crate) const fn group(self, form: &'static str) -> Self {
        self.role(FieldRole::Label(Label::Group, form))
    }

    /// The field distinguishes the lines of a group.
    pub(crate) const fn part(self, form: &'static str) -> Self {
        self.role(FieldRole::Label(Label::Part, form))
    }

    /// Curves go over the field, where there is more than one value.
    pub(crate) const fn over(mut self, title: &'static str) -> Self {
        self.entry.over = Some(title);
        self
    }

    pub(crate) const fn higher(self, title: &'static str, unit: &'static str) -> Self {
        self.role(FieldRole::Measured { title, unit, better: BetterWhen::Higher })
    }

    pub(crate) const fn lower(self, title: &'static str, unit: &'static str) -> Self {
        self.role(FieldRole::Measured { title, unit, better: BetterWhen::Lower })
    }

    pub(crate) const fn plain(self, title: &'static str, unit: &'static str) -> Self {
        self.role(FieldRole::Measured { title, unit, better: BetterWhen::Neither })
    }

    /// The field is plotted before the others.
    pub(crate) const fn first(mut self) -> Self {
        self.entry.is_first = true;
        self
    }

    fn write(&self, line: &ResultLine<'_, M>, record: &mut Record) {
        let name = self.entry.name;
        let (get, form) = match self.get {
            FieldSource::Value(get) => {
                return record.line.extend(get(line).map(|v| (name.to_owned(), v)));
            }
            FieldSource::Rounds(get, form) => (get, form),
        };
        let Some(Spread { min, median, max }) = get(line) else { return };
        let (both, median): ([Value; 2], Value) = match form {
            SpreadForm::Count => ([min, max].map(|v| (v as u64).into()), (median as u64).into()),
            SpreadForm::Median(places)
            | SpreadForm::Bounds(places)
            | SpreadForm::OnlyBounds(places) => {
                ([min, max].map(|v| rounded(v, places).into()), rounded(median, places).into())
            }
        };
        if !matches!(form, SpreadForm::OnlyBounds(_)) {
            record.line.insert(name.to_owned(), median);
        }
        match form {
            SpreadForm::Median(_) | SpreadForm::Count => {
                record.spreads.insert(name.to_owned(), both.to_vec().into());
            }
            SpreadForm::Bounds(_) | SpreadForm::OnlyBounds(_) => {
                let names = ["min", "max"].map(|which| format!("{which}_{name}"));
                record.line.extend(names.into_iter().zip(both));
            }
        }
    }
}

/// A line of results, ready to be printed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The fields in the order in which they are printed.
    pub(crate) line: Row,
    /// The lowest and the highest round of fields that have no fields of their own for it.
    spreads: Row,
}

impl Record {
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.line.insert(name.to_owned(), value.into());
        self
    }

    /// The fields, and `spread` with the lowest and the highest round of each that has one.
    pub(crate) fn row(self) -> Row {
        let Self { line: mut row, spreads } = self;
        if !spreads.is_empty() {
            row.insert("spread".to_owned(), spreads.into());
        }
        row
    }
}

/// The fields that lines begin with, from the rounds that count.
fn head<M: Measurement>(line: &ResultLine<'_, M>) -> Record {
    if !M::HEAD {
        return line.named();
    }
    let rounds = line.rounds();
    let by_rate = Spread::by(&rounds, |round| round.gbit_per_s());
    let rate = |r: Option<&Round>| rounded(r.map_or(0.0, Round::gbit_per_s), 3);
    let median = by_rate.map(|all| all.median);
    line.named()
        .with("bytes", median.map_or(0, |r| r.bytes))
        .with("seconds", rounded(median.map_or(0.0, |r| r.time.as_secs_f64()), 6))
        .with("gbit_per_s", rate(median))
        .with("rounds", rounds.len())
        .with("min_gbit_per_s", rate(by_rate.map(|all| all.min)))
        .with("max_gbit_per_s", rate(by_rate.map(|all| all.max)))
}

/// The rate of [`head`], as a plot shows it.
const RATE: FieldInfo = FieldInfo {
    name: "gbit_per_s",
    role: FieldRole::Measured { title: "Rate", unit: "Gbit/s", better: BetterWhen::Higher },
    over: None,
    is_first: false,
};

fn record<M: Measurement>(line: &ResultLine<'_, M>) -> Record {
    let mut record = head(line);
    M::FIELDS.iter().for_each(|field| field.write(line, &mut record));
    record
}

/// The lines of results.
pub(crate) fn records<M: Measurement>(bench: &M, all: &[Measured<M>]) -> Vec<Record> {
    let machine = Machine::describe();
    let record = |(case, samples): &Measured<M>| {
        record(&ResultLine { bench, case, samples, all })
            .with("cpu", machine.cpu.as_str())
            .with("cpus", machine.cpus)
            .with("kernel", machine.kernel.as_str())
    };
    all.iter().map(record).collect()
}

/// A measurement as its results are shown.
#[derive(Clone, Debug)]
pub(crate) struct TableInfo {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    /// The fields in the order of plots.
    pub(crate) entries: Vec<FieldInfo>,
    pub(crate) beside: fn(&str, &[&Row]) -> Vec<Row>,
}

impl TableInfo {
    pub(crate) fn of<M: Measurement>() -> Self {
        let rate = M::RATE.then_some(RATE);
        let fields = M::FIELDS.iter().map(|field| field.entry);
        let mut entries: Vec<FieldInfo> = rate.into_iter().chain(fields).collect();
        entries.sort_by_key(|entry| !entry.is_first);
        Self { name: M::NAME, title: M::TITLE, about: M::ABOUT, entries, beside: M::beside }
    }

    /// The engine, its link, and what else distinguishes the row.
    pub(crate) fn line(&self, row: &Row) -> String {
        let text = |field: &str| row.get(field).and_then(Value::as_str);
        let mut line = text("engine").unwrap_or("?").to_owned();
        if let Some(link) = text("link").filter(|link| !link.is_empty()) {
            line = format!("{line} over {link}");
        }
        match self.labels(row, Label::Part) {
            more if more.is_empty() => line,
            more => format!("{line}, {more}"),
        }
    }

    /// The texts of a row's fields with this label, with commas between.
    pub(crate) fn labels(&self, row: &Row, label: Label) -> String {
        let text = |entry: &FieldInfo| {
            let form = match entry.role {
                FieldRole::Label(of, form) if of == label => form,
                _ => return None,
            };
            let value = match row.get(entry.name)? {
                Value::String(text) => text.clone(),
                Value::Number(n) if entry.name == "size" => size_name(n.as_f64()?),
                Value::Number(n) => n.as_f64().map_or_else(|| n.to_string(), |n| n.to_string()),
                other => other.to_string(),
            };
            let form =
                if value == "1" { form.replace("(s)", "") } else { form.replace("(s)", "s") };
            Some(form.replace("{}", &value.replace("zerocopy", "zero copy")))
        };
        self.entries.iter().filter_map(text).collect::<Vec<_>>().join(", ")
    }
}

/// The results of a measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    /// The heading: machine and conditions.
    pub(crate) heading: String,
    pub(crate) records: Vec<Record>,
}

impl Results {
    /// Prints all lines: one object each, or a table of the named columns under the heading.
    pub(crate) fn print(records: Vec<Record>, json: bool, heading: String, columns: &str) -> Self {
        if json {
            print_json(&records);
        } else {
            print_table(&records, &heading, columns);
        }
        Self { heading, records }
    }
}

pub(crate) fn print_json(records: &[Record]) {
    for record in records {
        say(serde_json::to_string(&record.line).unwrap_or_default());
    }
}

pub(crate) fn print_table<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    heading: &str,
    columns: &str,
) {
    say(heading);
    let cell = |value: Option<&Value>| match value {
        None => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(n)) if n.is_f64() => format!("{:.3}", n.as_f64().unwrap_or(0.0)),
        Some(other) => other.to_string(),
    };
    let columns: Vec<&str> = columns.split_whitespace().collect();
    let mut rows = vec![columns.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>()];
    let cells = |r: &Record| columns.iter().map(|c| cell(r.line.get(*c))).collect();
    rows.extend(records.into_iter().map(cells));
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(String::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns.len()).map(width).collect();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(c, w)| format!("{c:>w$}")).collect();
        say(cells.join("  "));
    }
}

#[cfg(test)]
mod tests;
