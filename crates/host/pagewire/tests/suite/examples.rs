//! Every example runs to its end and finds its own result right; its README lists them all.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use pagewire_device::vhost_user::double::{Guest, GuestConfig};

/// Modules of the files in `examples/`, and a test that runs the named function of each.
macro_rules! examples {
    ($($path:literal $name:ident $run:ident;)*) => {
        $(
            #[path = $path]
            #[allow(dead_code)]
            mod $name;
        )*

        mod runs {
            $(
                #[test]
                fn $name() {
                    super::$name::$run().unwrap();
                }
            )*
        }

        /// The names of those that run.
        const RUN: &[&str] = &[$(stringify!($name)),*];
    };
}

examples! {
    "../../examples/bad_network.rs" bad_network main;
    "../../examples/cores.rs" cores main;
    "../../examples/datagrams.rs" datagrams main;
    "../../examples/echo.rs" echo main;
    "../../examples/echo_tokio.rs" echo_tokio main;
    "../../examples/file_server.rs" file_server main;
    "../../examples/frames.rs" frames main;
    "../../examples/futures_io.rs" futures_io main;
    "../../examples/https.rs" https main;
    "../../examples/hyper_server.rs" hyper_server main;
    "../../examples/mapped_receive.rs" mapped_receive main;
    "../../examples/proxy.rs" proxy main;
    "../../examples/quinn.rs" quinn main;
    "../../examples/rustls.rs" rustls main;
    "../../examples/tokio_rustls.rs" tokio_rustls main;
    "../../examples/tonic.rs" tonic main;
    "../../examples/vm_port.rs" vm_port demonstrate;
    "../../examples/zerocopy_send.rs" zerocopy_send main;
}

#[path = "../../examples/axum_tap.rs"]
#[allow(dead_code)]
mod axum_tap;

/// Examples that are run elsewhere: `tests/suite/ring_to_file.rs`, below, and a measurement.
const ELSEWHERE: [&str; 3] = ["ring_to_file", "axum_tap", "neighbours"];

/// How long a guest waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))
}

/// The names of the files of the folder.
fn names() -> BTreeSet<String> {
    let files = folder().read_dir().unwrap().map(|file| file.unwrap().file_name());
    let names = files.filter_map(|file| Some(file.to_str()?.strip_suffix(".rs")?.to_owned()));
    names.collect()
}

#[test]
fn every_example_is_run() {
    let run = RUN.iter().chain(&ELSEWHERE).map(ToString::to_string).collect();
    assert_eq!(names(), run);
}

#[test]
fn the_readme_lists_every_example_once() {
    let readme = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let listed = readme.lines().filter_map(|line| line.strip_prefix("| [")?.split_once(".rs]"));
    let listed: Vec<_> = listed.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(listed.len(), names().len());
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), names());
}

#[test]
fn every_example_says_how_to_run_it_with_what_it_needs() {
    let manifest = std::fs::read_to_string(folder().join("../Cargo.toml")).unwrap();
    for name in names() {
        let text = std::fs::read_to_string(folder().join(format!("{name}.rs"))).unwrap();
        let header: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let command = header.split("//! cargo run ").nth(1).expect(&name);
        let needs =
            manifest.split("[[example]]").find(|part| part.contains(&format!("\"{name}\"")));
        let needs =
            needs.and_then(|part| part.split("required-features = [").nth(1)?.split(']').next());
        let needs = needs.unwrap_or_default().replace(['"', ' '], "");
        // The feature `tap` is on by default.
        let needs = needs.replace(",tap", "");
        let given = if needs.is_empty() { String::new() } else { format!("--features {needs} ") };
        assert!(command.contains(&format!("{given}--example {name}")), "{name} needs `{needs}`");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn axum_over_a_pair_copies_nothing_of_bodies() {
    axum_tap::over_a_pair().await.unwrap();
}

#[test]
fn a_guest_finds_the_host_behind_its_port() {
    let path = std::env::temp_dir().join(format!("pagewire-vm-{}.sock", std::process::id()));
    let (_host, _) = vm_port::open(&path).unwrap();
    let mut guest = Guest::connect(&path, GuestConfig::default()).unwrap();
    let mac = [2, 0, 0, 0, 0, 9];
    let mut question = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac].concat();
    question.extend([10, 77, 0, 9, 0, 0, 0, 0, 0, 0]);
    question.extend(vm_port::ADDRESS.octets());
    question.resize(60, 0);
    assert!(guest.send(&question));
    let end = Instant::now() + PATIENCE;
    let answer = loop {
        match guest.receive() {
            Some(frame) if frame.bytes.starts_with(&mac) => break frame.bytes,
            _ => assert!(Instant::now() < end, "nobody answers"),
        }
        std::thread::yield_now();
    };
    assert_eq!(answer[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 2], "an answer by ARP");
    assert_eq!(answer[28..32], vm_port::ADDRESS.octets());
}
