//! Captures and timelines: each run has its own, and failed writes are reported.

use std::fs;
use std::path::Path;

use pagewire_simulation::{Builder, Failure, FailureKind, Result, Sim};
use tempfile::TempDir;

use crate::common::{MS, ask, echo_server, in_a_child, passes};

/// A directory that is removed with all that is in it.
struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

/// Fails for seeds from 5 on; each asks for as many bytes as its seed says.
fn fails_from_five(sim: &mut Sim) -> Result {
    let seed = sim.seed();
    echo_server(sim, "server");
    sim.client("client", async move {
        ask("server", 1000 + seed as usize).await?;
        if seed >= 5 { Err("planted".into()) } else { Ok(()) }
    });
    Ok(())
}

fn failure(builder: Builder) -> Failure {
    let check = builder.check(0..40, fails_from_five);
    let failure = check.failure().expect("a failure").clone();
    assert_eq!((failure.seed, failure.kind), (5, FailureKind::Client), "{failure}");
    assert!(
        check.seeds_run() < 40 && check.reports.len() == 5,
        "seeds beyond the smallest were run"
    );
    assert!(failure.to_string().contains("again:    PAGEWIRE_SEED=5 cargo test"), "{failure}");
    failure
}

fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap()
}

#[test]
fn a_check_writes_the_files_of_the_seed_that_fails_and_of_no_other() {
    let dir = Dir::new();
    let (capture, timeline) =
        (dir.0.path().join("own.pcapng"), dir.0.path().join("own.timeline.txt"));
    let failure = failure(Sim::builder().capture(&capture).timeline(&timeline));
    assert_eq!(dir.names(), ["own-seed-5.pcapng", "own-seed-5.timeline.txt"]);
    assert_eq!(failure.capture, Some(dir.0.path().join("own-seed-5.pcapng")));
    let timeline = text(failure.timeline.as_ref().unwrap());
    assert!(timeline.contains("len 1005") && timeline.contains("planted"), "{timeline}");
    assert!(!timeline.contains("len 1006"), "{timeline}");
    assert!(timeline.contains("SYN,ACK"), "{timeline}");
    assert!(fs::metadata(failure.capture.as_ref().unwrap()).unwrap().len() > 1000);
}

#[test]
fn the_names_of_files_have_the_package_the_program_and_the_test() {
    let dir = Dir::new();
    let failure = failure(Sim::builder().artifacts(dir.0.path()));
    let test = "the_names_of_files_have_the_package_the_program_and_the_test";
    let stem = format!("pagewire-pagewire-simulation-suite-files--{test}-seed-5");
    assert_eq!(dir.names(), [format!("{stem}.pcapng"), format!("{stem}.timeline.txt")]);
    assert!(failure.capture.is_some() && failure.timeline.is_some());
}

#[test]
fn files_of_an_earlier_run_are_not_taken_for_those_of_this_one() {
    let dir = Dir::new();
    failure(Sim::builder().artifacts(dir.0.path()));
    let [capture, timeline] = <[String; 2]>::try_from(dir.names()).unwrap();
    // A directory cannot be written as a file.
    fs::remove_file(dir.0.path().join(&capture)).unwrap();
    fs::create_dir(dir.0.path().join(&capture)).unwrap();
    fs::write(dir.0.path().join(&timeline), "stale").unwrap();
    let failure = failure(Sim::builder().artifacts(dir.0.path()));
    assert_eq!((failure.capture.clone(), failure.timeline.is_some()), (None, true));
    let said = failure.to_string();
    assert!(said.contains(&format!("{capture} cannot be written: Is a directory")), "{said}");
    assert!(!text(&dir.0.path().join(&timeline)).contains("stale"));
}

#[test]
fn a_directory_that_cannot_be_made_is_said_and_the_failure_stays_what_it_is() {
    let dir = Dir::new();
    fs::write(dir.0.path().join("file"), "").unwrap();
    let failure = failure(Sim::builder().artifacts(dir.0.path().join("file/below")));
    assert_eq!((&failure.capture, &failure.timeline), (&None, &None));
    let said = failure.to_string();
    assert!(said.contains("planted") && said.contains("cannot be written"), "{said}");
}

#[test]
fn a_full_disk_is_said_and_the_failure_stays_what_it_is() {
    let dir = Dir::new();
    for name in ["own-seed-5.pcapng", "own-seed-5.txt"] {
        std::os::unix::fs::symlink("/dev/full", dir.0.path().join(name)).unwrap();
    }
    let builder = Sim::builder();
    let builder =
        builder.capture(dir.0.path().join("own.pcapng")).timeline(dir.0.path().join("own.txt"));
    let said = failure(builder).to_string();
    for what in ["the capture", "the timeline"] {
        assert!(said.contains(what), "{said}");
    }
    assert_eq!(said.matches("is cut off: No space left on device").count(), 2, "{said}");
}

#[test]
fn a_run_says_which_files_it_wrote_and_which_are_cut_off() {
    let dir = Dir::new();
    let full = dir.0.path().join("full.pcapng");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let builder = Sim::builder().capture(&full).timeline(dir.0.path().join("t.txt"));
    let report = builder.clone().seed(1).run(fails_from_five).unwrap();
    assert_eq!(report.timeline, Some(dir.0.path().join("t.txt")));
    let [warning] = &*report.warnings else { panic!("{report:?}") };
    assert!(warning.contains("full.pcapng is cut off"), "{warning}");
    let failure = builder.seed(9).run(fails_from_five).unwrap_err();
    assert_eq!(failure.timeline, Some(dir.0.path().join("t.txt")));
    assert!(failure.to_string().contains("full.pcapng is cut off"), "{failure}");
    let failure = Sim::builder().capture(dir.0.path().join("no/such/dir")).run(fails_from_five);
    let failure = failure.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Scenario);
    assert!(failure.to_string().contains("no/such/dir cannot be written"), "{failure}");
}

#[test]
fn what_tasks_log_is_in_the_timeline_with_its_time_and_host_and_changes_no_digest() {
    const CHILD: &str = "PAGEWIRE_TEST_LOGS";
    let name =
        "files::what_tasks_log_is_in_the_timeline_with_its_time_and_host_and_changes_no_digest";
    if let Some(file) = std::env::var_os(CHILD) {
        let run = |timeline: bool, logs: bool| {
            let mut builder = Sim::builder().seed(7);
            if timeline {
                builder = builder.timeline(&file);
            }
            let mut sim = builder.build();
            echo_server(&mut sim, "server");
            sim.client("client", async move {
                tokio::time::sleep(3 * MS).await;
                if logs {
                    tracing::info!(target: "bank", order = 5, "adds ten");
                    tracing::debug!(target: "bank", "unseen");
                }
                ask("server", 10).await
            });
            sim.run().unwrap().digest
        };
        pagewire_simulation::trace::init();
        assert_eq!(run(false, false), run(true, true));
        return;
    }
    let file = std::env::temp_dir().join(format!("pagewire-logs-{}.txt", std::process::id()));
    let path = file.to_str().expect("a path");
    passes(&in_a_child(name, &[(CHILD, path), ("RUST_LOG", "bank=info")], &[]));
    let timeline = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let line = timeline.lines().find(|line| line.contains("adds ten")).expect("the line");
    assert_eq!(line.trim_start(), "0.003000 s  client     INFO bank: adds ten order=5");
    assert!(!timeline.contains("unseen"), "{timeline}");
}
