//! The curves of `bench send` as an SVG image: CPU time over size, both axes in powers.

use std::fmt::Write;

use super::{Engine, Line, size_name};
use crate::source::Mode;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;

/// The field of the curves, within the image.
const LEFT: f64 = 80.0;
const RIGHT: f64 = WIDTH - 30.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = HEIGHT - 95.0;

/// Ours and the kernel's: a colour for each engine, whole lines for zero copy, broken ones for copy.
const OURS: &str = "#0060a8";
const KERNEL: &str = "#a85000";

struct Curve {
    name: String,
    color: &'static str,
    dashed: bool,
    /// Bytes of a send, microseconds for a mebibyte.
    points: Vec<(f64, f64)>,
}

/// The image; `measured` says on what, in one line.
pub(super) fn draw(lines: &[Line], measured: &str) -> String {
    image(&curves(lines), measured)
}

fn curves(lines: &[Line]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for line in lines {
        let (engine, link) = line.engine.names();
        let mode = match line.case.mode {
            Mode::Copy => "copy",
            Mode::Zerocopy => "zero copy",
        };
        let name = format!("{engine} over {link}, {mode}");
        let point = (line.case.size as f64, line.spread(|s| s.sender).median);
        match curves.iter_mut().find(|c| c.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                name,
                color: if matches!(line.engine, Engine::Kernel(_)) { KERNEL } else { OURS },
                dashed: line.case.mode == Mode::Copy,
                points: vec![point],
            }),
        }
    }
    curves.iter_mut().for_each(|c| c.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    curves
}

fn image(curves: &[Curve], measured: &str) -> String {
    let all = || curves.iter().flat_map(|c| &c.points);
    let x = Axis::of(all().map(|p| p.0.log2()), LEFT, RIGHT);
    let y = Axis::of(all().map(|p| p.1.max(1e-3).log10()), BOTTOM, TOP);
    let mut sizes: Vec<f64> = all().map(|p| p.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"17\">CPU time of a sender, by copy and by \
         reference</text>\n\
         <text x=\"{LEFT}\" y=\"48\" font-size=\"10\" fill=\"#555\">{}</text>\n",
        escaped(measured)
    );
    // Writing to a string does not fail.
    for size in sizes {
        let (at, name) = (x.at(size.log2()), size_name(size as usize));
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
            BOTTOM + 18.0
        );
    }
    for power in y.low as i32..=y.high as i32 {
        for step in [1.0f64, 2.0, 5.0] {
            let value = step * 10f64.powi(power);
            if value.log10() > y.high + 1e-9 {
                break;
            }
            let at = y.at(value.log10());
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                LEFT - 8.0,
                at + 4.0
            );
        }
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">bytes of each send</text>\n\
         <text transform=\"translate(22 {:.1}) rotate(-90)\" text-anchor=\"middle\">\
         microseconds for a mebibyte</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 38.0,
        (TOP + BOTTOM) / 2.0
    );
    for (i, curve) in curves.iter().enumerate() {
        let Curve { name, color, points, .. } = curve;
        let dash = if curve.dashed { " stroke-dasharray=\"7 4\"" } else { "" };
        let place = |&(size, us): &(f64, f64)| (x.at(size.log2()), y.at(us.max(1e-3).log10()));
        let path: Vec<_> =
            points.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>",
            path.join(" ")
        );
        for (x, y) in points.iter().map(place) {
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{color}\"/>");
        }
        let (column, row) = ((i / 2) as f64, (i % 2) as f64);
        let (at, line) = (LEFT + column * 330.0, BOTTOM + 62.0 + row * 18.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{at} {line}h36\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            at + 44.0,
            line + 4.0,
            escaped(name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// From logarithms to places.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Whole powers around the values; at least one.
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values
            .filter(|v| v.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let low = if low.is_finite() { low.floor() } else { 0.0 };
        Self { low, high: high.ceil().max(low + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// As text of a document.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &str, points: &[(f64, f64)]) -> Curve {
        Curve { name: name.to_owned(), color: OURS, dashed: false, points: points.to_vec() }
    }

    #[test]
    fn larger_sizes_are_further_right_and_less_time_is_further_down() {
        let svg = image(&[curve("a<b", &[(4096.0, 100.0), (65_536.0, 10.0)])], "this & that");
        let points = svg.split_once("<polyline points=\"").unwrap().1.split_once('"').unwrap().0;
        let places: Vec<f64> = points.split([',', ' ']).map(|n| n.parse().unwrap()).collect();
        assert!(places[0] < places[2] && places[1] < places[3], "{points}");
        assert_eq!((places[0], places[2]), (LEFT, RIGHT));
        for text in ["4K", "64K", ">10<", ">100<", "a&lt;b", "this &amp; that", "bytes of each"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
    }

    #[test]
    fn one_point_and_none_are_drawn_within_the_image() {
        for points in [&[(5.0, 0.0)][..], &[(4096.0, 3.0)], &[]] {
            let svg = image(&[curve("one", points)], "");
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
