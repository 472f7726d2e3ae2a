//! Makes charts of everything that was measured, of rows and the table of their measurement.

use serde_json::Value as Json;

use super::{Bar, Chart, ChartKind, Curve, Group, PlotValue, class};
use crate::table::{FieldInfo, FieldRole, Label, Row, TableInfo};

/// A chart for each measured quantity that the rows have.
pub(crate) fn charts(shown: &TableInfo, rows: &[Row]) -> Vec<Chart> {
    let mut parts: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        sort_into(&mut parts, shown.labels(row, Label::Split), row);
    }
    let of = |(part, rows): &(String, Vec<&Row>)| -> Vec<Chart> {
        shown.entries.iter().filter_map(|entry| shown.chart(entry, part, rows)).collect()
    };
    parts.iter().flat_map(of).collect()
}

fn sort_into<K: PartialEq, T>(groups: &mut Vec<(K, Vec<T>)>, key: K, value: T) {
    match groups.iter_mut().find(|(other, _)| *other == key) {
        Some((_, values)) => values.push(value),
        None => groups.push((key, vec![value])),
    }
}

/// The name of a curve, and its class.
type CurveName = (String, &'static str);
/// The points of a curve.
type Points = Vec<(f64, PlotValue)>;

impl TableInfo {
    fn chart(&self, entry: &FieldInfo, part: &str, rows: &[&Row]) -> Option<Chart> {
        let FieldRole::Measured { title, unit, better } = entry.role else { return None };
        let beside = (self.beside)(entry.name, rows);
        let rows = || rows.iter().copied().chain(&beside);
        let valued = || rows().filter_map(|row| Some((row, value(entry.name, row)?)));
        let over = self.entries.iter().find_map(|entry| Some((entry.name, entry.over?)));
        let kind = match over.filter(|(x, _)| is_various(rows(), x)) {
            Some((x, title)) => {
                let mut curves: Vec<(CurveName, Points)> = Vec::new();
                for (row, value) in valued() {
                    let Some(at) = row.get(x).and_then(Json::as_f64) else { continue };
                    sort_into(&mut curves, (self.line(row), class_of(row)), (at, value));
                }
                let curve = |((label, class), mut points): (CurveName, Points)| {
                    points.sort_by(|a, b| a.0.total_cmp(&b.0));
                    Curve { label, class, points }
                };
                ChartKind::Curves { x: title, curves: curves.into_iter().map(curve).collect() }
            }
            None => {
                let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
                for (row, value) in valued() {
                    let bar = Bar { label: self.line(row), class: class_of(row), value };
                    sort_into(&mut groups, self.labels(row, Label::Group), bar);
                }
                let group = |(title, bars)| Group { title, bars };
                ChartKind::Rows(groups.into_iter().map(group).collect())
            }
        };
        let title = match part {
            "" => title.to_owned(),
            part => format!("{title}, {part}"),
        };
        let is_empty = valued().next().is_none();
        (!is_empty).then_some(Chart { title, unit, better, kind })
    }
}

/// The median of a field, and the spread: from fields of their own, or from the field `spread`.
fn value(name: &str, row: &Row) -> Option<PlotValue> {
    let median = row.get(name)?.as_f64()?;
    let field = |which: &str| row.get(&format!("{which}_{name}"))?.as_f64();
    let of_spread = || {
        let both = row.get("spread")?.get(name)?;
        Some((both.get(0)?.as_f64()?, both.get(1)?.as_f64()?))
    };
    let spread = field("min").zip(field("max")).or_else(of_spread);
    Some(PlotValue { median, spread })
}

fn class_of(row: &Row) -> &'static str {
    class(row.get("engine").and_then(Json::as_str).unwrap_or_default())
}

fn is_various<'a>(mut rows: impl Iterator<Item = &'a Row>, field: &str) -> bool {
    let Some(first) = rows.next() else { return false };
    rows.any(|row| row.get(field) != first.get(field))
}
