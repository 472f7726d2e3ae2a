//! Tests of plots, from rows to SVG.

use serde_json::json;

use super::*;
use crate::all::shown;
use crate::table::Row;

/// The charts of the measurement of this name.
fn charts(name: &str, rows: &[Row]) -> Vec<Chart> {
    let shown = shown().into_iter().find(|shown| shown.name == name).expect(name);
    super::charts(&shown, rows)
}

fn row(value: serde_json::Value) -> Row {
    value.as_object().expect("an object").clone()
}

fn bars(chart: &Chart) -> Vec<&Bar> {
    match &chart.kind {
        ChartKind::Rows(groups) => groups.iter().flat_map(|group| &group.bars).collect(),
        ChartKind::Curves { .. } => Vec::new(),
    }
}

fn stream(engine: &str, reader: &str, rate: f64) -> Row {
    row(json!({
        "bench": "stream", "engine": engine, "link": "pair", "reader": reader, "threads": 1,
        "gbit_per_s": rate, "min_gbit_per_s": rate / 2.0, "max_gbit_per_s": rate * 2.0,
        "receiver_cpu_us_per_mib": 7.0, "spread": { "receiver_cpu_us_per_mib": [6.0, 9.0] }
    }))
}

#[test]
fn engines_stand_beside_each_other_in_groups_that_are_comparable() {
    let rows = [
        stream("pagewire", "none", 100.0),
        stream("pagewire", "sum", 50.0),
        stream("kernel", "none", 10.0),
    ];
    let all = charts("stream", &rows);
    let ChartKind::Rows(groups) = &all[0].kind else { panic!("rows") };
    let titles: Vec<&str> = groups.iter().map(|group| &*group.title).collect();
    assert_eq!(titles, ["reader: none", "reader: sum"]);
    let classes: Vec<&str> = groups[0].bars.iter().map(|bar| bar.class).collect();
    assert_eq!(classes, ["e-ours", "e-kernel"]);
    assert_eq!(groups[0].bars[0].label, "pagewire over pair, 1 thread");
}

#[test]
fn the_spread_comes_from_fields_of_its_own_or_from_the_spread_of_the_row() {
    let all = charts("stream", &[stream("pagewire", "none", 100.0)]);
    let spreads: Vec<_> = all.iter().flat_map(bars).map(|bar| bar.value.spread).collect();
    assert_eq!(spreads, [Some((50.0, 200.0)), Some((6.0, 9.0))]);
    let image = document(&all, "on a machine");
    assert_eq!(image.matches("class=\"whisker\"").count(), 2, "{image}");
    assert!(image.contains("(50–200)") && image.contains("(6–9)"), "{image}");
}

#[test]
fn what_was_measured_once_has_no_whisker() {
    let idle = row(json!({ "engine": "pagewire", "link": "pair", "bytes_per_connection": 916.6 }));
    let all = charts("idle", &[idle]);
    let image = document(&all, "");
    assert!(image.contains("917") && !image.contains("class=\"whisker\""), "{image}");
}

fn send(engine: &str, mode: &str, size: u64, us: f64) -> Row {
    row(json!({
        "engine": engine, "link": "pair", "mode": mode, "size": size, "sender_cpu_us_per_mib": us,
        "min_sender_cpu_us_per_mib": us / 2.0, "max_sender_cpu_us_per_mib": us * 2.0
    }))
}

#[test]
fn several_sizes_are_a_curve_in_which_larger_ones_are_further_right_and_less_time_is_lower() {
    let rows = [send("pagewire", "copy", 65_536, 10.0), send("pagewire", "copy", 4096, 100.0)];
    let image = document(&charts("send", &rows), "");
    let points = image.split_once("<polyline points=\"").expect("a curve").1;
    let points = points.split_once('"').expect("its end").0;
    let places: Vec<f64> = points.split([',', ' ']).map(|n| n.parse().expect("a number")).collect();
    assert!(places[0] < places[2] && places[1] < places[3], "{points}");
    for text in [">4K<", ">64K<", "pagewire over pair, copy", "bytes of each send"] {
        assert!(image.contains(text), "{text}: {image}");
    }
    assert_eq!(image.matches("class=\"whisker own\"").count(), 2, "{image}");
}

#[test]
fn one_size_is_no_curve() {
    let all = charts("send", &[send("pagewire", "copy", 4096, 100.0)]);
    assert_eq!(bars(&all[0])[0].label, "pagewire over pair, copy");
}

#[test]
fn the_ratios_of_senders_have_the_source_documents_beside_them() {
    let mut zerocopy = send("pagewire", "zerocopy", 4096, 20.0);
    zerocopy.insert("sender_percent_of_copy".into(), 20.0.into());
    let all = charts("send", &[zerocopy]);
    let ratio = all.iter().find(|chart| chart.unit.starts_with('%')).expect("ratios");
    let values: Vec<f64> = bars(ratio).iter().map(|bar| bar.value.median).collect();
    assert_eq!(values, [20.0, 41.0]);
}

#[test]
fn names_from_outside_are_text_and_not_markup() {
    let rows = [stream("<script>alert(\"1\")</script>", "none & 'sum'", 1.0)];
    let image = document(&charts("stream", &rows), "<b>this & that</b>");
    assert!(!image.contains("<script") && !image.contains("<b>"), "{image}");
    for text in ["&lt;script&gt;", "none &amp; 'sum'", "this &amp; that"] {
        assert!(image.contains(text), "{text}: {image}");
    }
}

#[test]
fn no_rows_and_rows_of_zeros_are_drawn_within_the_image() {
    for rows in [&[][..], &[stream("pagewire", "none", 0.0)], &[send("kernel", "copy", 0, 0.0)]] {
        for shown in shown() {
            let image = document(&super::charts(&shown, rows), "");
            assert!(image.starts_with("<svg ") && image.ends_with("</svg>\n"));
            assert!(!image.contains("NaN") && !image.contains("inf"), "{image}");
        }
    }
}
