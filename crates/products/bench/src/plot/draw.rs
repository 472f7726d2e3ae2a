//! Draws a chart as SVG. Colours are classes of the style sheet, so that they follow the reader's choice of light
//! or dark. A colour is never the only sign: words and the form of a mark say the same.

use maud::{Markup, PreEscaped, html};

use super::scale::Scale;
use super::{Bar, Chart, ChartKind, Curve, Group, PlotValue, STYLE};
use crate::numbers::{short, size_name};
use crate::table::BetterWhen;

/// Narrow enough to be read on a phone without being made much smaller.
const WIDTH: f64 = 440.0;

/// The letters of a label that fit in one line beside its value.
const LETTERS: usize = 40;

/// The width of a bar of nothing, so that it is seen.
const ZERO: f64 = 1.5;

/// A chart, and the height that it takes.
struct Drawn {
    inside: Markup,
    height: f64,
}

/// The chart as a part of a page.
pub(crate) fn inline(chart: &Chart) -> Markup {
    let Drawn { inside, height } = draw(chart);
    html! {
        svg class="plot" viewBox=(format!("0 0 {WIDTH} {height}")) role="img"
            aria-label=(format!("{}, {}", chart.title, chart.unit)) { (inside) }
    }
}

/// Charts below each other as an image of its own; `measured` says on what, in one line.
pub(crate) fn document(charts: &[Chart], measured: &str) -> String {
    let mut at = 20.0;
    let heading = wrapped(measured, 72);
    let mut parts = vec![html! {
        @for (n, line) in heading.iter().enumerate() {
            text class="soft" x="0" y=(at + 15.0 * n as f64) { (line) }
        }
    }];
    at += 15.0 * heading.len() as f64 + 15.0;
    for chart in charts {
        let Drawn { inside, height } = draw(chart);
        parts.push(html! {
            text class="title" x="0" y=(at) { (chart.title) }
            text class="soft" x="0" y=(at + 16.0) { (subtitle(chart)) }
            g transform=(format!("translate(0 {})", at + 24.0)) { (inside) }
        });
        at += height + 60.0;
    }
    let (margin, width) = (16.0, WIDTH + 32.0);
    let svg = html! {
        svg class="plot" xmlns="http://www.w3.org/2000/svg"
            viewBox=(format!("-{margin} 0 {width} {at}")) width=(width) height=(at)
            font-family="sans-serif" font-size="13" {
            style { (PreEscaped(STYLE)) }
            rect class="paper" x=(-margin) y="0" width=(width) height=(at) {}
            @for part in parts { (part) }
        }
    };
    svg.into_string() + "\n"
}

/// The unit, and which way is better.
pub(crate) fn subtitle(chart: &Chart) -> String {
    match chart.better {
        BetterWhen::Higher => format!("{}; higher is better", chart.unit),
        BetterWhen::Lower => format!("{}; lower is better", chart.unit),
        BetterWhen::Neither => chart.unit.to_owned(),
    }
}

fn draw(chart: &Chart) -> Drawn {
    match &chart.kind {
        ChartKind::Rows(groups) => rows(groups, chart.unit),
        ChartKind::Curves { x, curves } => over(x, curves, chart.unit),
    }
}

/// A value as text: the median, and the spread where there is one.
fn said(value: PlotValue) -> String {
    match value.spread {
        Some((low, high)) => format!("({}–{})", short(low), short(high)),
        None => String::new(),
    }
}

fn rows(groups: &[Group], unit: &str) -> Drawn {
    let all = || groups.iter().flat_map(|group| &group.bars);
    let x = Scale::of(all().flat_map(|bar| bar.value.all()), 4.0, WIDTH - 28.0);
    let mut height = 4.0;
    let mut parts = Vec::new();
    for group in groups {
        if !group.title.is_empty() {
            for line in wrapped(&group.title, LETTERS + 10) {
                height += 16.0;
                parts.push(html! { text class="head" x="0" y=(height) { (line) } });
            }
            height += 6.0;
        }
        for bar in &group.bars {
            let Drawn { inside, height: taken } = row(bar, &x, unit);
            let place = format!("translate(0 {height})");
            parts.push(html! { g transform=(place) { (inside) } });
            height += taken;
        }
        height += 4.0;
    }
    let foot = height + 16.0;
    let ticks: Vec<(String, String)> =
        x.ticks().iter().map(|tick| (place(x.at(*tick)), short(*tick))).collect();
    let inside = html! {
        @for (at, text) in &ticks {
            path class="grid" d=(format!("M{at} 2V{height}")) {}
            text class="soft" x=(at) y=(foot) text-anchor="middle" { (text) }
        }
        @for part in parts { (part) }
        @if x.is_by_powers() {
            text class="soft" x="0" y=(foot + 16.0) { "logarithmic scale" }
        }
    };
    Drawn { inside, height: foot + if x.is_by_powers() { 22.0 } else { 8.0 } }
}

/// A line: what it is, its value, and below them a bar, or a dot on a scale of powers.
fn row(bar: &Bar, x: &Scale, unit: &str) -> Drawn {
    let lines = wrapped(&bar.label, LETTERS);
    let below = 15.0 * lines.len() as f64;
    let (start, end, middle) = (x.at(0.0), x.at(bar.value.median), below + 8.0);
    let full = format!("{}: {} {unit} {}", bar.label, short(bar.value.median), said(bar.value));
    let inside = html! {
        g class=(bar.class) {
            title { (full) }
            @for (n, line) in lines.iter().enumerate() {
                text x="0" y=(12.0 + 15.0 * n as f64) { (line) }
            }
            text x=(WIDTH) y="12" text-anchor="end" {
                tspan class="value" { (short(bar.value.median)) } " "
                tspan class="soft" { (said(bar.value)) }
            }
            @if x.is_by_powers() {
                path d=(format!("M{} {middle}H{}", place(start), place(end)))
                    stroke="currentColor" stroke-width="2" stroke-opacity="0.35" {}
            } @else {
                rect x=(place(start)) y=(middle - 5.0) width=(place((end - start).max(ZERO))) height="10"
                    fill="currentColor" {}
            }
            (whisker("whisker", bar.value, |v| (x.at(v), middle), 0.0, 4.0))
            @if x.is_by_powers() && bar.value.median > 0.0 {
                circle cx=(place(end)) cy=(middle) r="4.5" fill="currentColor" {}
            }
        }
    };
    Drawn { inside, height: below + 18.0 }
}

/// A line from the lowest to the highest round, with ends that stick out by `wide` and `high`.
fn whisker(
    class: &str,
    value: PlotValue,
    at: impl Fn(f64) -> (f64, f64),
    wide: f64,
    high: f64,
) -> Markup {
    let Some((least, most)) = value.spread else { return html! {} };
    let ends = [at(least), at(most)];
    let caps = ends.map(|(x, y)| {
        let (from_x, from_y) = (place(x - wide), place(y - high));
        format!("M{from_x} {from_y}l{} {}", place(2.0 * wide), place(2.0 * high))
    });
    let [(x0, y0), (x1, y1)] = ends;
    let line = format!("M{} {}L{} {}", place(x0), place(y0), place(x1), place(y1));
    html! {
        path class=(class) fill="none" stroke-width="1.5" d=(line + &caps.concat()) {}
    }
}

/// The places of curves, within the image.
const LEFT: f64 = 52.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 250.0;

/// The lines of an engine's first curve, its second, and so on.
const DASHES: [&str; 5] = ["none", "6 4", "2 3", "9 3 2 3", "1 5"];

fn over(x_title: &str, curves: &[Curve], unit: &str) -> Drawn {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let x = Scale::exact(points().map(|point| point.0), LEFT + 14.0, WIDTH - 24.0);
    let y = Scale::of(points().flat_map(|point| point.1.all()), BOTTOM, TOP);
    let mut named: Vec<f64> = points().map(|point| point.0).collect();
    named.sort_by(f64::total_cmp);
    named.dedup();
    let mut parts = Vec::new();
    let legend = BOTTOM + 74.0;
    for (n, curve) in curves.iter().enumerate() {
        let same = |other: &&Curve| other.class == curve.class;
        let nth = curves.iter().take(n).filter(same).count();
        parts.push(one_curve(curve, nth, legend + 18.0 * n as f64, &x, &y, unit));
    }
    let note = if y.is_by_powers() { " (logarithmic)" } else { "" };
    let inside = html! {
        @for tick in y.ticks() {
            @let at = place(y.at(tick));
            path class="grid" d=(format!("M{LEFT} {at}H{WIDTH}")) {}
            text class="soft" x=(LEFT - 6.0) y=(at) dy="4" text-anchor="end" { (short(tick)) }
        }
        @for value in named {
            @let at = place(x.at(value));
            path class="grid" d=(format!("M{at} {TOP}V{BOTTOM}")) {}
            text class="soft" x=(at) y=(BOTTOM + 16.0) text-anchor="middle" {
                (size_name(value))
            }
        }
        text class="soft" x=((LEFT + WIDTH) / 2.0) y=(BOTTOM + 34.0) text-anchor="middle" {
            (x_title)
        }
        text class="soft" x=((LEFT + WIDTH) / 2.0) y=(BOTTOM + 50.0) text-anchor="middle" {
            "upwards: " (unit) (note)
        }
        @for part in parts { (part) }
    };
    Drawn { inside, height: legend + 18.0 * curves.len() as f64 }
}

/// A curve, and its line in the legend; `nth`: of its engine.
fn one_curve(curve: &Curve, nth: usize, legend: f64, x: &Scale, y: &Scale, unit: &str) -> Markup {
    let places: Vec<(f64, f64, PlotValue, f64)> =
        curve.points.iter().map(|(at, v)| (x.at(*at), y.at(v.median), *v, *at)).collect();
    let line: Vec<String> =
        places.iter().map(|(x, y, ..)| format!("{},{}", place(*x), place(*y))).collect();
    let dash = DASHES.get(nth % DASHES.len()).copied().unwrap_or("none");
    html! {
        g class=(curve.class) {
            polyline points=(line.join(" ")) fill="none" stroke="currentColor" stroke-width="2"
                stroke-dasharray=(dash) {}
            @for (px, py, value, at) in places {
                (whisker("whisker own", value, |v| (px, y.at(v)), 4.0, 0.0))
                g {
                    title {
                        (curve.label) ", " (size_name(at)) ": " (short(value.median)) " " (unit) " "
                        (said(value))
                    }
                    (mark(nth, px, py))
                }
            }
            path d=(format!("M0 {legend}h30")) stroke="currentColor" stroke-width="2"
                stroke-dasharray=(dash) {}
            (mark(nth, 15.0, legend))
            text x="38" y=(legend) dy="4" { (curve.label) }
        }
    }
}

/// A circle, a square, a diamond, a triangle, a ring.
fn mark(nth: usize, x: f64, y: f64) -> Markup {
    let (px, py) = (place(x), place(y));
    html! {
        @match nth % 5 {
            0 => circle cx=(px) cy=(py) r="4" fill="currentColor" {},
            1 => rect x=(place(x - 3.5)) y=(place(y - 3.5)) width="7" height="7" fill="currentColor" {},
            2 => path d=(format!("M{px} {}l5 5l-5 5l-5 -5z", place(y - 5.0))) fill="currentColor" {},
            3 => path d=(format!("M{px} {}l5 9h-10z", place(y - 5.5))) fill="currentColor" {},
            _ => circle class="hollow" cx=(px) cy=(py) r="4" stroke="currentColor" stroke-width="2" {},
        }
    }
}

/// A coordinate.
fn place(at: f64) -> String {
    let text = format!("{at:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// The text in lines of at most `letters` letters, unless a word is longer; a list that is too long for a line is
/// one word for each of its parts.
fn wrapped(text: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let parts = text.split_whitespace().flat_map(|word| match word.chars().count() < letters {
        true => vec![word],
        false => word.split_inclusive(',').collect(),
    });
    for word in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
