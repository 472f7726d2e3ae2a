//! Tests of `demo` and `bench` from end to end: without privilege, and with root over taps.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::mem::discriminant;
use std::process::{Command, Stdio};

use pagewire_testkit::{Need, can, skip};
use serde_json::Value;

use crate::lab::{PAGEWIRE, pagewire, text};

#[test]
fn the_demo_delivers_made_up_files_intact_and_copies_nothing_by_reference() {
    let place = tempfile::tempdir().expect("a directory");
    let mut demo = Command::new(PAGEWIRE);
    let output =
        demo.args(["demo", "--size", "20M", "--stats"]).env("TMPDIR", place.path()).output();
    let output = output.expect("the command runs");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let row = |mode: &str| -> Vec<String> {
        let line = out.lines().find(|l| l.starts_with(mode)).expect(mode);
        line.split_whitespace().map(str::to_owned).collect()
    };
    let (copy, zero) = (row("copy"), row("zero-copy"));
    assert_eq!(zero[2], "20971520");
    assert_eq!(zero.last().map(String::as_str), Some("0"), "{out}");
    assert!(copy.last().and_then(|n| n.parse::<u64>().ok()) >= Some(2 * 20_971_520), "{out}");
    assert!(out.contains("intact both ways"), "{out}");
    assert!(err.contains("app_write"), "{err}");
    let left = fs::read_dir(place.path()).expect("a directory").count();
    assert_eq!(left, 0, "the files were not removed");
}

#[test]
fn the_demo_serves_a_directory_that_it_is_given() {
    let place = tempfile::tempdir().expect("a directory");
    fs::create_dir(place.path().join("a b%")).expect("a directory");
    fs::write(place.path().join("a b%/<odd> #name?"), vec![7; 100_001]).expect("a file");
    fs::write(place.path().join("index.html"), "index").expect("a file");
    fs::write(place.path().join("nothing"), "").expect("a file");
    let output = pagewire(&["demo", place.path().to_str().expect("text")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("all 3 files intact"), "{}", text(&output.stdout));
    assert!(place.path().join("nothing").exists());
}

#[test]
fn an_interrupted_demo_removes_its_files() {
    let place = tempfile::tempdir().expect("a directory");
    let mut demo = pagewire_testkit::command(PAGEWIRE);
    demo.args(["demo", "--size", "8G"]).env("TMPDIR", place.path());
    let mut demo = demo.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    let mut lines = BufReader::new(demo.stderr.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("text");
    assert!(first.starts_with("making"), "{first}");
    let pid = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal is sent");
    let last = lines.last().expect("a line").expect("text");
    assert_eq!(last, "pagewire: interrupted");
    assert_eq!(demo.wait().expect("it ends").code(), Some(130));
    assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 0);
}

/// A line of a measurement.
type Row = BTreeMap<String, Value>;

/// Rows of every measurement, which the tests of their page read too.
const SAMPLE: &str = include_str!("../../../bench/src/page/sample.jsonl");

/// Whether a line has a field of the type of this value.
fn has(line: &Row, name: &str, like: &Value) -> bool {
    line.get(name).is_some_and(|value| discriminant(value) == discriminant(like))
}

/// The fields that all rows of a measurement have, each with a value of its type. The page alone has
/// the spread.
fn fields(measurement: &str) -> Row {
    let rows = SAMPLE.lines().map(|line| serde_json::from_str::<Row>(line).expect(line));
    let mut rows = rows.filter(|row| row["bench"] == measurement);
    let first = rows.next().expect(measurement);
    let mut shared = rows.fold(first, |mut shared, row| {
        shared.retain(|name, value| has(&row, name, value));
        shared
    });
    shared.remove("spread");
    shared
}

/// The lines of a measurement, checked: each has its fields.
fn bench(args: &[&str]) -> Vec<Row> {
    let output = pagewire(&[&["bench"], args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    let lines: Vec<Row> =
        text(&output.stdout).lines().map(|l| serde_json::from_str(l).expect(l)).collect();
    for (name, sample) in fields(args[0]) {
        for line in &lines {
            assert!(has(line, &name, &sample), "{name}, such as {sample}, in {line:?}");
        }
    }
    lines
}

#[test]
fn bench_stream_prints_pagewire_and_kernel_with_their_fields() {
    let lines = bench(&["stream", "--seconds", "0.05"]);
    let engines = |engine| lines.iter().filter(|l| l["engine"] == engine).count();
    assert_eq!((engines("pagewire"), engines("kernel")), (4, 2));
    for line in lines.iter().filter(|l| l["engine"] == "pagewire") {
        assert_eq!(line["payload_bytes_copied"], 0, "{line:?}");
    }
}

fn percent_mapped(line: &Row) -> f64 {
    line["mapped_percent"].as_f64().expect("a number")
}

#[test]
fn bench_receive_prints_every_mode_and_maps_without_a_copy() {
    for more in [&[][..], &["--flows", "3", "--reader", "sum"]] {
        let lines = bench(&[&["receive", "--seconds", "0.05"][..], more].concat());
        let who = |line: &Row| format!("{} {}", text_of(&line["engine"]), text_of(&line["mode"]));
        let all: Vec<_> = lines.iter().map(who).collect();
        let ours = ["pagewire copy", "pagewire map", "pagewire chunks"];
        assert_eq!(all, [&ours[..], &["kernel copy", "kernel map"]].concat());
        for line in &lines {
            assert!(line["receiver_cpu_us_per_mib"].as_f64() > Some(0.0), "{line:?}");
            match who(line).as_str() {
                "pagewire map" => assert!(percent_mapped(line) >= 99.9, "{line:?}"),
                "kernel map" => {}
                _ => assert_eq!(percent_mapped(line), 0.0, "{line:?}"),
            }
            match who(line).as_str() {
                "pagewire map" | "pagewire chunks" => {
                    assert_eq!(line["payload_bytes_copied"], 0, "{line:?}");
                }
                "pagewire copy" | "kernel copy" => {
                    assert!(line["payload_bytes_copied"].as_u64() > Some(0), "{line:?}");
                }
                _ => {}
            }
        }
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().expect("text")
}

#[test]
fn the_readable_form_of_bench_receive_has_the_lines_of_the_kernels_program() {
    let output = pagewire(&["bench", "receive", "--mode", "map", "--seconds", "0.05"]);
    let out = text(&output.stdout);
    let received: Vec<_> = out.lines().filter(|l| l.starts_with("received ")).collect();
    assert_eq!(received.len(), 9, "three rounds of three engines and modes: {out}");
    let lines = out.lines().zip(out.lines().skip(1));
    for (first, second) in lines.filter(|(l, _)| l.starts_with("received ")) {
        let words: Vec<_> = first.split_whitespace().collect();
        let [_, mb, "MB", percent, "%", "mmap'ed)", "in", seconds, "s,", rate, "Gbit,"] = words[..]
        else {
            panic!("{first}")
        };
        for number in [mb, &percent[1..], seconds, rate] {
            assert!(number.parse::<f64>().is_ok(), "{first}");
        }
        for part in ["  cpu usage user:", " sys:", " usec per MB, ", " c-switches"] {
            assert!(second.contains(part), "{second}");
        }
    }
}

/// The lines of `bench send`, checked: each size, engine and mode once.
fn bench_send(args: &[&str], sizes: &[u64]) -> Vec<Row> {
    let lines = bench(&[&["send", "--seconds", "0.05"], args].concat());
    for line in &lines {
        let ours = line["engine"] == "pagewire";
        let zerocopy = line["mode"] == "zerocopy";
        let cycles = line["link"] == "pair" && cfg!(target_arch = "x86_64");
        let more = usize::from(ours) + usize::from(cycles) + 2 * usize::from(zerocopy);
        assert_eq!(line.len(), fields("send").len() + more, "other fields: {line:?}");
        assert!(line["sends"].as_u64() > Some(0), "{line:?}");
        if zerocopy {
            let ratios = ["sender_percent_of_copy", "system_percent_of_copy"];
            assert!(ratios.iter().all(|r| line[*r].as_f64() > Some(0.0)), "{line:?}");
        }
        match (ours, zerocopy) {
            (true, true) => {
                assert_eq!(line["payload_bytes_copied"], 0, "{line:?}");
                assert_eq!(line["completed_copied"], 0, "{line:?}");
                assert!(line["completions"].as_u64() > Some(0), "{line:?}");
            }
            (true, false) => assert!(line["payload_bytes_copied"].as_u64() > Some(0), "{line:?}"),
            // Over loopback and veth the kernel always copies, and says so.
            (false, true) => assert_eq!(line["completed_copied"], line["completions"], "{line:?}"),
            (false, false) => assert_eq!(line["completions"], 0, "{line:?}"),
        }
    }
    for size in sizes {
        for engine in ["pagewire", "kernel"] {
            for mode in ["copy", "zerocopy"] {
                let is =
                    |l: &&Row| l["size"] == *size && l["engine"] == engine && l["mode"] == mode;
                assert_eq!(lines.iter().filter(is).count(), 1, "{size} {engine} {mode}");
            }
        }
    }
    assert_eq!(lines.len(), 4 * sizes.len());
    lines
}

#[test]
fn bench_send_prints_both_engines_in_both_modes_and_draws_them() {
    let place = tempfile::tempdir().expect("a directory");
    let plot = place.path().join("send.svg");
    let plot = plot.to_str().expect("text");
    let lines = bench_send(&["--size", "4k,1M", "--plot", plot], &[4096, 1 << 20]);
    for line in lines.iter().filter(|l| l["engine"] == "pagewire") {
        assert_eq!((&line["receiver"], &line["link"]), (&"reference".into(), &"pair".into()));
    }
    let svg = fs::read_to_string(plot).expect("an image");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    // A curve for each engine and mode, of each quantity.
    assert!(svg.matches("<polyline").count() >= 4, "{svg}");
    for text in ["pagewire over pair, zero copy", "kernel over loopback, copy", ">4K<", ">1M<"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}

#[test]
fn bench_send_takes_any_size_an_mtu_and_a_receiver_that_copies() {
    let lines = bench_send(&["--size", "5000", "--mtu", "9000", "--receiver", "copy"], &[5000]);
    for line in lines.iter().filter(|l| l["engine"] == "pagewire") {
        assert_eq!((&line["receiver"], &line["mtu"]), (&"copy".into(), &9000.into()));
    }
}

#[test]
fn the_readable_form_of_bench_send_has_the_source_document_beside_it() {
    let output = pagewire(&["bench", "send", "--seconds", "0.05", "--size", "64K"]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for part in ["CPU(s)", "Linux", "3 rounds", "sender_cycles_per_64k", "cover letter"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let ours = out.lines().find(|l| l.trim_start().starts_with("64K  pagewire")).expect("a row");
    assert!(ours.contains("11 %") && ours.contains("64 %"), "{ours}");
}

/// The lines of `bench ring`, checked: copy and zero copy.
fn bench_ring(args: &[&str]) -> Vec<Row> {
    let lines = bench(&[&["ring", "--seconds", "0.05"], args].concat());
    assert_eq!(lines.iter().map(|l| &l["mode"]).collect::<Vec<_>>(), ["copy", "zerocopy"]);
    for line in &lines {
        let bytes = |name: &str| line[name].as_u64().unwrap();
        assert_eq!(bytes("copy_bytes") + bytes("zc_bytes"), bytes("total_bytes"), "{line:?}");
        assert_eq!(bytes("total_bytes"), bytes("bytes"), "{line:?}");
    }
    lines
}

#[test]
fn bench_ring_receives_by_copy_and_by_reference() {
    let small = &["--place", "--region", "1"][..];
    let placed = [(&["--place"][..], "placed", 0), (small, "placed", 0)];
    for (args, memory, copied_by_us) in [(&[][..], "lent", 0)].into_iter().chain(placed) {
        let lines = bench_ring(args);
        let share =
            |line: &Row| line["zc_bytes"].as_f64().unwrap() / line["total_bytes"].as_f64().unwrap();
        assert_eq!((share(&lines[0]), &lines[0]["memory"]), (0.0, &Value::from("copied")));
        assert!(share(&lines[1]) >= 0.998, "{:?}", lines[1]);
        assert_eq!(lines[1]["memory"], memory);
        assert_eq!(lines[1]["payload_bytes_copied"], copied_by_us, "{:?}", lines[1]);
        let device = lines[1]["device_bytes_copied"].as_u64().unwrap();
        assert_eq!(device > 0, memory == "placed", "{:?}", lines[1]);
    }
}

#[test]
fn bench_ring_receives_datagrams_by_copy_and_by_reference() {
    let size = &["--place", "--datagram", "1400"][..];
    let cases =
        [(&[][..], "lent", 61_440), (&["--place"], "placed", 61_440), (size, "placed", 1400)];
    for (args, memory, datagram) in cases {
        let lines = bench_ring(&[&["--udp"], args].concat());
        for line in &lines {
            assert!(line["datagrams_dropped"].is_number(), "{line:?}");
            let bytes = |name: &str| line[name].as_u64().unwrap();
            assert_eq!((&line["transport"], bytes("datagram_bytes")), (&"udp".into(), datagram));
            assert_eq!(bytes("datagrams") * datagram, bytes("total_bytes"), "{line:?}");
        }
        assert_eq!(lines[0]["zc_bytes"], 0);
        assert_eq!((&lines[1]["copy_bytes"], &lines[1]["memory"]), (&0.into(), &memory.into()));
        assert_eq!(lines[1]["payload_bytes_copied"], 0, "{:?}", lines[1]);
    }
}

#[test]
fn with_root_bench_datagrams_moves_them_both_ways_with_uso_and_without() {
    let Some(()) = with_taps() else { return };
    let lines = bench(&["datagrams", "--seconds", "0.05"]);
    let ways =
        |line: &Row| ["protocol", "direction", "uso", "engine"].map(|name| line.get(name).cloned());
    let all: std::collections::BTreeSet<String> =
        lines.iter().map(|line| format!("{:?}", ways(line))).collect();
    let count = if cfg!(feature = "quinn") { 12 } else { 6 };
    assert_eq!((lines.len(), all.len()), (count, count), "{all:?}");
    assert!(lines.iter().all(|line| line["gbit_per_s"].as_f64().unwrap() > 0.0));
}

#[test]
fn with_root_bench_ring_receives_from_the_kernel_by_reference() {
    let Some(()) = with_taps() else { return };
    for (more, datagram) in [(&[][..], None), (&["--udp"], Some(&Value::from(1472)))] {
        let lines = bench_ring(&[&["--link", "tap"], more].concat());
        let bytes = |name: &str| lines[1][name].as_f64().unwrap();
        assert!(bytes("zc_bytes") >= 0.99 * bytes("total_bytes"), "{:?}", lines[1]);
        assert_eq!(lines[1]["memory"], "registered");
        assert_eq!(lines[1].get("datagram_bytes"), datagram);
    }
}

#[test]
fn the_readable_form_of_bench_ring_has_the_lines_of_the_source_documents_sample() {
    let output = pagewire(&["bench", "ring", "--seconds", "0.05"]);
    let shown = text(&output.stdout);
    for line in [" copy bytes: ", "   ZC bytes: ", "Total bytes: ", "       Rate: "] {
        assert_eq!(shown.lines().filter(|l| l.starts_with(line)).count(), 2, "{shown}");
    }
}

#[test]
fn bench_rr_prints_percentiles_and_wakeups() {
    let lines = bench(&["rr", "--seconds", "0.05"]);
    assert_eq!(lines.len(), 2);
    assert!(lines[0]["wakeups_per_batch"].is_number());
}

#[test]
fn bench_idle_prints_what_a_connection_costs() {
    let lines = bench(&["idle", "--connections", "2000"]);
    assert_eq!(lines[0]["connections"], 2000);
}

#[test]
fn bench_sim_prints_every_engine_and_repeats_its_digest() {
    let args = ["sim", "--hosts", "11", "--connections", "10", "--seconds", "0.2", "--rounds", "1"];
    let (first, second) = (bench(&args), bench(&args));
    for line in &first {
        assert!(line["messages_per_s"].as_f64() > Some(0.0), "{line:?}");
    }
    let engines: Vec<_> = first.iter().map(|line| line["engine"].clone()).collect();
    assert_eq!(engines, ["pagewire", "turmoil"]);
    assert!(first[0]["digest"].is_string());
    assert_eq!(first[0]["digest"], second[0]["digest"]);
}

#[test]
fn bench_cores_prints_one_core_and_two_beside_others_and_only_strays_are_passed_on() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return skip("two cores need two processors");
    }
    let few = ["--seconds", "0.05", "--connections", "8"];
    let cases = ["--strays", "50", "--floods", "syns,fragments"];
    let lines = bench(&[&["cores"][..], &few, &cases].concat());
    let has_tap = can(&[Need::Tap]);
    let who = |line: &Row| {
        let [cores, strays] = ["cores", "strays_percent"].map(|name| line[name].as_u64());
        (text_of(&line["engine"]).to_owned(), cores, strays)
    };
    let (flooded, lines): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line.contains_key("flood"));
    let (tap, lines): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line["link"] == "tap");
    for what in ["requests", "connections", "bulk"] {
        let lines: Vec<&Row> = lines.iter().filter(|line| line["what"] == what).collect();
        let kernel = [("kernel", 1, 0), ("kernel", 2, 0)].into_iter().filter(|_| what != "bulk");
        let expected = kernel.chain([
            ("plain", 1, 0),
            ("plain", 2, 0),
            ("pagewire", 1, 0),
            ("pagewire", 2, 0),
            ("drawn", 2, 50),
            ("late", 2, 50),
            ("relay", 2, 50),
            ("pagewire", 2, 50),
        ]);
        let expected =
            expected.map(|(engine, cores, strays)| (engine.to_owned(), Some(cores), Some(strays)));
        let engines = lines.iter().map(|line| who(line));
        assert_eq!(engines.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{what}");
        for line in lines {
            assert!(line["rate"].as_f64() > Some(0.0), "{line:?}");
            let (engine, _, strays) = who(line);
            let is_passed_on = strays > Some(0) && !["drawn", "late"].contains(&engine.as_str());
            assert_eq!(line["strays_each"].as_f64() > Some(0.0), is_passed_on, "{line:?}");
            assert_eq!(line.contains_key("stray_ns"), is_passed_on, "{line:?}");
        }
    }
    for what in ["requests", "connections"] {
        let lines: Vec<&Row> = tap.iter().filter(|line| line["what"] == what).collect();
        let expected = [1, 2].map(|cores| ("pagewire".to_owned(), Some(cores), Some(0)));
        let expected = if has_tap { &expected[..] } else { &[] };
        assert_eq!(lines.iter().map(|line| who(line)).collect::<Vec<_>>(), expected, "{what}");
        for line in lines {
            assert!(line["rate"].as_f64() > Some(0.0), "{line:?}");
            // The kernel's steering knows no new flow.
            let is_passed_on = what == "connections" && line["cores"] == 2;
            assert!(!is_passed_on || line["strays_each"].as_f64() > Some(0.0), "{line:?}");
            assert!(!line.contains_key("stray_ns"), "{line:?}");
        }
    }
    assert!(tap.iter().all(|line| line["what"] != "bulk"));
    let kinds: Vec<_> = flooded.iter().map(|line| text_of(&line["flood"])).collect();
    assert_eq!(kinds, ["syns", "fragments"]);
    for line in flooded {
        assert_eq!((who(&line).0.as_str(), text_of(&line["what"])), ("pagewire", "requests"));
        assert!(line["times_quiet"].as_f64() > Some(0.0), "{line:?}");
    }
}

#[test]
fn bench_cores_takes_all_cores_as_other_commands_do() {
    let few = ["bench", "cores", "--what", "bulk", "--strays", "0", "--seconds", "0.05", "--json"];
    let output = pagewire(&[&few[..], &["--cores", "all"]].concat());
    let (all, said) = (text(&output.stdout), text(&output.stderr));
    match std::thread::available_parallelism().map_or(1, usize::from).min(32) {
        1 => assert!(said.contains("this process has one processor"), "{said}"),
        count => assert!(all.contains(&format!(r#""cores":{count},"#)), "{all}{said}"),
    }
    for wrong in ["1", "33", "many"] {
        let output = pagewire(&[&few[..], &["--cores", wrong]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("give a number from 2 to 32, or all"), "{said}");
    }
}

#[test]
fn bench_port_prints_every_path_of_every_frame_and_loses_none() {
    let lines = bench(&["port", "--frames", "2000", "--frame", "60,1500"]);
    let ours = ["build", "accounted", "hook-pass", "hook-drop"];
    for frame in [60, 1500] {
        for path in ours {
            let of = |l: &&Row| l["path"] == path && l["frame"] == frame;
            let line = lines.iter().find(of).expect("one line each");
            assert_eq!(line["engine"], "pagewire");
            assert!(line["mpps"].as_f64() > Some(0.0), "{line:?}");
        }
    }
    let kernel = lines.iter().filter(|l| l["path"] == "kernel-tap").count();
    assert_eq!(lines.len(), 2 * ours.len() + kernel);
}

#[test]
fn with_root_bench_port_writes_the_same_frames_to_a_tap_of_the_kernel() {
    let Some(()) = with_taps() else { return };
    let paths = ["build", "kernel-tap"];
    let lines = bench(&["port", "--frames", "2000", "--frame", "60", "--path", &paths.join(",")]);
    assert_eq!(lines.iter().map(|l| &l["path"]).collect::<Vec<_>>(), paths);
    assert_eq!((&lines[1]["engine"], &lines[1]["link"]), (&"kernel".into(), &"tap".into()));
    assert!(lines[0]["to_kernel_tap"].is_number());
}

/// `Some`, where this machine can make taps: else the test is skipped.
fn with_taps() -> Option<()> {
    can(&[Need::Tap, Need::Program("ip")]).then_some(())
}

/// The lines of a measurement of requests, checked: each engine with each number of connections.
fn bench_load(args: &[&str], rate: &str, connections: &[u64]) -> Vec<Row> {
    let lines = bench(args);
    for line in &lines {
        let number = |name: &str| line[name].as_f64().expect("a number");
        assert!(number(rate) > 0.0 && number("p50_us") > 0.0, "{line:?}");
        assert!(number("p50_us") <= number("p99_us"), "{line:?}");
    }
    let who = |l: &Row| (l["connections"].clone(), l["engine"].clone());
    let each = connections.iter().flat_map(|n| ["pagewire", "kernel"].map(|e| (n, e)));
    let each: Vec<_> = each.map(|(n, e)| (Value::from(*n), Value::from(e))).collect();
    assert_eq!(lines.iter().map(who).collect::<Vec<_>>(), each);
    lines
}

#[test]
fn bench_requests_prints_both_engines_for_each_number_of_connections() {
    let args = ["requests", "--connections", "1,20", "--size", "300", "--seconds", "0.1"];
    let lines = bench_load(&args, "requests_per_s", &[1, 20]);
    for line in lines {
        assert_eq!(line["size"], 300);
        let links = [("pagewire", "pair"), ("kernel", "loopback")];
        assert!(links.iter().any(|l| *l == (text_of(&line["engine"]), text_of(&line["link"]))));
    }
}

#[test]
fn bench_connections_opens_and_closes_one_for_each_request() {
    let args = ["connections", "--connections", "4", "--seconds", "0.1"];
    bench_load(&args, "connections_per_s", &[4]);
}

/// The lines of `bench crowd`, checked: both engines.
fn bench_crowd(args: &[&str]) -> Vec<Row> {
    let lines = bench(&[&["crowd", "--connections", "20", "--size", "100K"], args].concat());
    for line in &lines {
        assert_eq!((&line["connections"], &line["size"]), (&20.into(), &102_400.into()));
        assert!(line["seconds"].as_f64() > Some(0.0), "{line:?}");
    }
    assert_eq!(lines.iter().map(|l| &l["engine"]).collect::<Vec<_>>(), ["pagewire", "kernel"]);
    lines
}

#[test]
fn bench_crowd_moves_every_byte_of_every_client_that_reads() {
    for (more, reading) in [(&[][..], 20), (&["--not-reading", "50"], 10)] {
        for line in bench_crowd(more) {
            assert_eq!(line["not_reading"], 20 - reading);
            assert_eq!(line["bytes"], 2 * reading * 102_400, "there and back: {line:?}");
        }
    }
}

#[test]
fn with_root_the_measurements_of_load_have_the_same_clients_over_a_tap_and_over_veth() {
    let Some(()) = with_taps() else { return };
    let tap = ["--link", "tap"];
    let short = ["--connections", "8", "--seconds", "0.1"];
    let requests = [&["requests"], &tap[..], &short].concat();
    let connections = [&["connections"], &tap[..], &short].concat();
    let mut lines = bench_load(&requests, "requests_per_s", &[8]);
    lines.extend(bench_load(&connections, "connections_per_s", &[8]));
    lines.extend(bench_crowd(&tap));
    for line in lines {
        assert_eq!(line["peer"], "kernel", "{line:?}");
        let links = [("pagewire", "tap"), ("kernel", "veth")];
        assert!(links.iter().any(|l| *l == (text_of(&line["engine"]), text_of(&line["link"]))));
    }
}

#[test]
fn with_root_bench_path_compares_both_directions_with_two_kernels_on_the_same_path() {
    let Some(()) = with_taps() else { return };
    let path = ["path", "--loss", "0%,5%", "--delay", "1ms", "--seconds", "0.2", "--flows", "2"];
    let lines = bench(&path);
    for line in &lines {
        assert!(line["mbit_per_s"].as_f64() > Some(0.0), "{line:?}");
    }
    let count = |engine: &str, direction: &str, loss: f64| {
        let wanted = |l: &&Row| {
            l["engine"] == engine && l["direction"] == direction && l["loss_percent"] == loss
        };
        lines.iter().filter(wanted).count()
    };
    for loss in [0.0, 5.0] {
        let each = [("kernel", "send"), ("pagewire", "send"), ("pagewire", "receive")];
        for (engine, direction) in each {
            assert_eq!(count(engine, direction, loss), 1, "{engine} {direction} {loss}");
        }
    }
    assert_eq!(lines.len(), 6);
}

#[test]
fn with_root_bench_share_gives_every_flow_a_part_of_one_bottleneck() {
    let Some(()) = with_taps() else { return };
    for more in [&[][..], &["--kernels"]] {
        let share = ["share", "--seconds", "1", "--flows", "1", "--rate", "20mbit"];
        let lines = bench(&[&share[..], more].concat());
        assert_eq!(lines.len(), 2);
        let share = |line: &Row| line["share_percent"].as_f64().expect("share");
        let all: f64 = lines.iter().map(share).sum();
        assert!((99.0..101.0).contains(&all), "{lines:?}");
        let of_rate = |line: &Row| line["of_rate_percent"].as_f64();
        let used: f64 = lines.iter().filter_map(of_rate).sum();
        assert!((0.0..101.0).contains(&used), "one bottleneck for both: {lines:?}");
        for line in &lines {
            assert!(share(line) > 0.0, "{line:?}");
        }
    }
}

#[test]
fn with_root_bench_stream_over_a_tap_prints_both_directions_and_veth() {
    let Some(()) = with_taps() else { return };
    let lines = bench(&["stream", "--link", "tap", "--seconds", "0.05"]);
    for line in &lines {
        assert_eq!(line["peer"], "kernel");
    }
    let count = |link: &str, direction: &str| {
        lines.iter().filter(|l| l["link"] == link && l["direction"] == direction).count()
    };
    assert_eq!((count("tap", "send"), count("tap", "receive"), count("veth", "send")), (1, 2, 2));
}

#[test]
fn with_root_bench_receive_over_a_tap_maps_all_but_a_hundredth_of_one_and_of_eight_flows() {
    let Some(()) = with_taps() else { return };
    for more in [&["--flows", "1"][..], &["--flows", "8"], &["--payload-pages", "1"]] {
        let receive = ["receive", "--link", "tap", "--mode", "map", "--seconds", "0.2"];
        let lines = bench(&[&receive[..], more].concat());
        let ours = lines.iter().find(|l| l["engine"] == "pagewire").expect("a line");
        assert!(percent_mapped(ours) >= 99.0, "{ours:?}");
        assert_eq!(lines.len(), 3);
    }
}

#[test]
fn with_root_bench_send_over_a_tap_copies_nothing_of_its_own() {
    let Some(()) = with_taps() else { return };
    let lines = bench_send(&["--link", "tap", "--size", "64K"], &[65_536]);
    assert!(lines.iter().all(|l| l["receiver"] == "kernel"), "{lines:?}");
}

#[test]
fn with_root_bench_gateway_prints_every_engine_with_its_fields_and_draws_them() {
    if !can(&[Need::Tap, Need::Program("ip"), Need::Program("pasta"), Need::Program("slirp4netns")])
    {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let image = place.path().join("gateway.svg");
    let engines = ["pagewire", "pasta", "slirp4netns", "veth", "loopback"];
    let rows = bench(&[
        "gateway",
        "--engine",
        &engines.join(","),
        "--mtu",
        "1500",
        "--flows",
        "1",
        "--seconds",
        "0.2",
        "--plot",
        image.to_str().expect("text"),
    ]);
    let number = |row: &Row, field: &str| row.get(field).and_then(Value::as_f64);
    for engine in engines {
        let own: Vec<_> = rows.iter().filter(|row| row["engine"] == engine).collect();
        // Out, in, both for a published port, and one line each for all the rest.
        assert_eq!(own.len(), 6, "{engine}: {rows:?}");
        let is_process = !matches!(engine, "veth" | "loopback");
        for (nth, direction) in ["out", "in", "out", "in"].into_iter().enumerate() {
            let row = own[nth];
            assert_eq!((&row["direction"], &row["mtu"]), (&direction.into(), &1500.into()));
            assert_eq!(row.contains_key("ports"), nth >= 2, "{row:?}");
            assert!(number(row, "gbit_per_s") > Some(0.0), "{row:?}");
            assert_eq!(row.contains_key("cpu_s_per_gib"), is_process, "{row:?}");
        }
        for field in ["connections_per_s", "requests_per_s", "rtt_us_p50", "udp_rtt_us_p50"] {
            assert!(number(own[4], field) > Some(0.0), "{field}: {:?}", own[4]);
            let published = number(own[5], field);
            assert_eq!(published > Some(0.0), field != "udp_rtt_us_p50", "{field}: {:?}", own[5]);
        }
        for field in ["rss_bytes", "rss_bytes_1000_idle"] {
            assert_eq!(number(own[4], field) > Some(0.0), is_process, "{field}: {:?}", own[4]);
        }
    }
    let image = fs::read_to_string(image).expect("the image");
    assert!(engines.iter().all(|engine| image.contains(&format!(">{engine}<"))), "{image}");
}
