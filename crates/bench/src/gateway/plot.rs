//! The rates of `bench gateway` as an SVG image: a group of bars for each case, a bar for each
//! engine, on a scale of powers.

use std::fmt::Write;

use super::load::Bulk;
use super::{Case, Line};
use crate::meter::Spread;
use crate::options::Engine;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 440.0;

/// The field of the bars, within the image.
const LEFT: f64 = 60.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 90.0;
const BOTTOM: f64 = HEIGHT - 60.0;

const fn color(engine: Engine) -> &'static str {
    match engine {
        Engine::Pagewire => "#0060a8",
        Engine::Pasta => "#a85000",
        Engine::Slirp4netns => "#c8a040",
        Engine::Gvproxy => "#709050",
        Engine::Veth => "#909090",
        Engine::Loopback => "#c8c8c8",
    }
}

/// A group: its name, and each engine's Gbit/s.
struct Group {
    name: String,
    bars: Vec<(Engine, f64)>,
}

/// The image; `measured` says on what, in one line.
pub(super) fn draw(lines: &[Line], measured: &str) -> String {
    image(&groups(lines), measured)
}

fn groups(lines: &[Line]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for line in lines.iter().filter(|line| !line.bulk.is_empty()) {
        let Case::Bulk { way, flows } = line.case else { continue };
        let name = format!("{} {}, {flows}", line.mtu, way.name());
        let rate = Spread::of(line.bulk.iter().map(Bulk::gbit_per_s)).median;
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.bars.push((line.engine, rate)),
            None => groups.push(Group { name, bars: vec![(line.engine, rate)] }),
        }
    }
    groups
}

/// From Gbit/s to a height: from 0.1 to 100, by powers.
fn place(rate: f64) -> f64 {
    let share = (rate.clamp(0.1, 100.0).log10() + 1.0) / 3.0;
    BOTTOM - share * (BOTTOM - TOP)
}

fn image(groups: &[Group], measured: &str) -> String {
    let measured = measured.replace('&', "&amp;").replace('<', "&lt;");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"17\">Gbit/s of a guest through a gateway</text>\n\
         <text x=\"{LEFT}\" y=\"44\" font-size=\"10\" fill=\"#555\">{measured}</text>\n"
    );
    // Writing to a string does not fail.
    for rate in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        let at = place(rate);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rate}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let room = (RIGHT - LEFT) / groups.len().max(1) as f64;
    for (n, group) in groups.iter().enumerate() {
        let start = LEFT + room * n as f64;
        let bar = room * 0.84 / group.bars.len().max(1) as f64;
        for (i, (engine, rate)) in group.bars.iter().enumerate() {
            let (x, top) = (start + room * 0.08 + bar * i as f64, place(*rate));
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                 fill=\"{}\"><title>{} {rate:.2} Gbit/s</title></rect>",
                bar * 0.9,
                BOTTOM - top,
                color(*engine),
                engine.name()
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            start + room / 2.0,
            BOTTOM + 18.0,
            group.name
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">MTU, direction as the guest sees it, \
         connections</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 40.0
    );
    let engines = Engine::ALL.iter().filter(|engine| {
        groups.iter().flat_map(|group| &group.bars).any(|(one, _)| one == *engine)
    });
    for (n, engine) in engines.enumerate() {
        let x = LEFT + 125.0 * n as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"58\" width=\"14\" height=\"14\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"70\">{}</text>",
            color(*engine),
            x + 20.0,
            engine.name()
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_rate_is_a_higher_bar_and_every_engine_is_named() {
        let bars = vec![(Engine::Pagewire, 20.0), (Engine::Pasta, 1.0)];
        let svg = image(&[Group { name: "1500 out, 1".into(), bars }], "this & that");
        let heights: Vec<f64> = svg
            .split("height=\"")
            .filter_map(|rest| rest.split_once("\" fill=\"#")?.0.parse().ok())
            .filter(|height| *height > 20.0)
            .collect();
        assert!(heights.len() == 2 && heights[0] > heights[1], "{heights:?}");
        for text in ["pagewire", "pasta", "1500 out, 1", "this &amp; that"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        assert!(!svg.contains(">gvproxy<"));
    }

    #[test]
    fn no_results_are_drawn_within_the_image_and_rates_beyond_it_at_its_edge() {
        assert!(image(&[], "").ends_with("</svg>\n"));
        assert_eq!((place(0.0), place(1e6)), (BOTTOM, TOP));
    }
}
