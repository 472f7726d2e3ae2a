//! Tests of the lines that a table makes of rounds.

use std::time::Duration;

use super::*;

/// A measurement of given rounds, whose bytes are also a field of each kind.
struct Bytes;

type F = Field<Bytes>;

impl Measurement for Bytes {
    type Case = ();
    type Sample = u64;

    const NAME: &'static str = "bytes";
    const TITLE: &'static str = "Bytes";
    const ABOUT: &'static str = "Of a test.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("peer", |_| some("kernel")).part("{}"),
        F::value("via", |_| None),
        F::spread("gb", 1, |of| of.spread(|&bytes| bytes as f64 / 1e9)).plain("GB", "GB").first(),
        F::count("whole", |of| of.spread(|&bytes| bytes as f64)),
        F::bounded("half", 0, |of| of.spread(|&bytes| bytes as f64 / 2e9)),
        F::bounds("gb", 1, |of| of.spread(|&bytes| bytes as f64 / 1e9)),
        F::value("median", |of| of.median(|&bytes| bytes)),
    ];

    fn engine(&self, (): &()) -> (String, &'static str) {
        ("kernel".to_owned(), "veth")
    }

    fn round(&self, (): &(), bytes: &u64) -> Round {
        Round { bytes: *bytes, time: Duration::from_secs(1), receiver_cpu: Duration::ZERO }
    }
}

#[test]
fn a_record_prints_its_fields_in_order_with_medians_and_spread() {
    let samples = vec![3_000_000_000, 1_000_000_000, 2_000_000_000];
    let records = records(&Bytes, &[((), samples)]);
    let [record] = &records[..] else { panic!("one line: {records:?}") };
    let text = serde_json::to_string(&record.line).unwrap();
    let expected = r#"{"bench":"bytes","engine":"kernel","link":"veth","bytes":2000000000,"seconds":1.0,"gbit_per_s":16.0,"rounds":3,"min_gbit_per_s":8.0,"max_gbit_per_s":24.0,"peer":"kernel","gb":2.0,"whole":2000000000,"half":1.0,"min_half":1.0,"max_half":2.0,"min_gb":1.0,"max_gb":3.0,"median":2000000000,"cpu":"#;
    assert!(text.starts_with(expected), "{text}");
    let row = serde_json::to_string(&record.clone().row()["spread"]).unwrap();
    assert_eq!(row, r#"{"gb":[1.0,3.0],"whole":[1000000000,3000000000]}"#);
}

#[test]
fn plots_begin_with_those_that_are_to_be_first() {
    let shown = TableInfo::of::<Bytes>();
    let measured = |entry: &&FieldInfo| matches!(entry.role, FieldRole::Measured { .. });
    let names: Vec<&str> = shown.entries.iter().filter(measured).map(|entry| entry.name).collect();
    assert_eq!(names, ["gb", "gbit_per_s"]);
}
