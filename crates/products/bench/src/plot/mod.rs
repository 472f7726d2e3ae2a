//! Plots of results: every measurement with the median of its rounds, and the lowest and the highest
//! round as whiskers.
//!
//! [`charts()`] makes [`Chart`]s of rows, whose fields are in the table of their measurement.
//! [`scale`] goes from values to places, and [`draw`] makes SVG of a chart.

mod charts;
mod draw;
mod scale;

use crate::table::BetterWhen;
pub(crate) use charts::charts;
pub(crate) use draw::{document, inline, subtitle};

/// The colours of the plots, in the light and in the dark.
pub(crate) const STYLE: &str = include_str!("plot.css");

/// A chart: one measured quantity of all engines.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) better: BetterWhen,
    pub(crate) kind: ChartKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChartKind {
    /// A line for each value, in groups whose values are comparable.
    Rows(Vec<Group>),
    /// Over another quantity.
    Curves { x: &'static str, curves: Vec<Curve> },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// May be empty.
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    pub(crate) value: PlotValue,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    /// The other quantity, and the value.
    pub(crate) points: Vec<(f64, PlotValue)>,
}

/// The median, and the lowest and highest round where several were measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlotValue {
    pub(crate) median: f64,
    pub(crate) spread: Option<(f64, f64)>,
}

impl PlotValue {
    /// The values that have a place in a plot.
    fn all(self) -> impl Iterator<Item = f64> {
        let (low, high) = self.spread.unwrap_or((self.median, self.median));
        [low, self.median, high].into_iter()
    }
}

/// The class of an engine in [`STYLE`], which gives a value its colour.
fn class(engine: &str) -> &'static str {
    match engine {
        "pagewire" => "e-ours",
        "kernel" => "e-kernel",
        // The kernel without what is compared: the most that is possible.
        "veth" | "loopback" => "e-bound",
        "slirp4netns" => "e-peer1",
        "gvproxy" => "e-peer2",
        _ => "e-peer0",
    }
}

#[cfg(test)]
mod tests;
