//! The words of a failure, and the command that repeats it.

use super::*;

#[test]
fn the_command_names_package_target_and_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of = |exe: &str, test| command(Some("pagewire-simulation"), Path::new(exe), root, test);
    assert_eq!(
        of("/t/debug/deps/suite-0123456789abcdef", Some("tokio_facts::f5")),
        "cargo test -p pagewire-simulation --test suite -- --exact tokio_facts::f5"
    );
    // A test program that is one file.
    let (root_of_pagewire, exe) =
        (root.join("../../host/pagewire"), Path::new("/t/debug/deps/memlock-01"));
    assert_eq!(
        command(Some("pagewire"), exe, &root_of_pagewire, Some("t")),
        "cargo test -p pagewire --test memlock -- --exact t"
    );
    assert_eq!(
        of("/t/debug/deps/pagewire_simulation-0123", Some("a::b")),
        "cargo test -p pagewire-simulation --lib -- --exact a::b"
    );
    assert_eq!(of("/t/debug/other", None), "cargo test -p pagewire-simulation");
    assert_eq!(command(None, Path::new("/bin/x"), root, Some("t")), "/bin/x");
}

#[test]
fn the_command_names_no_target_where_it_may_be_another() {
    let of = |files: &[&str], exe: &str| {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("src")).unwrap();
        for file in files {
            std::fs::write(root.path().join("src").join(file), "").unwrap();
        }
        command(Some("my-bank"), Path::new(exe), root.path(), Some("t"))
    };
    let exe = "/t/debug/deps/my_bank-01";
    assert_eq!(of(&["main.rs"], exe), "cargo test -p my-bank -- --exact t");
    assert_eq!(of(&["lib.rs"], exe), "cargo test -p my-bank --lib -- --exact t");
    assert_eq!(of(&["lib.rs", "main.rs"], exe), "cargo test -p my-bank -- --exact t");
    assert_eq!(of(&["main.rs"], "/t/debug/deps/tool-01"), "cargo test -p my-bank -- --exact t");
}

#[test]
fn the_files_of_two_tests_have_two_names() {
    let of = |package, exe: &str, test| file_stem(Some(package), Path::new(exe), Some(test));
    let names = [
        of("a-crate", "/t/debug/deps/a_crate-0123", "tests::it_works"),
        of("a-crate", "/t/debug/deps/client-0123", "it_works"),
        of("a-crate", "/t/debug/deps/server-0123", "it_works"),
        of("b-crate", "/t/debug/deps/server-0123", "it_works"),
        of("b-crate", "/t/debug/deps/server-0123", "it_works_too"),
    ];
    assert_eq!(names[0], "a-crate-tests--it_works");
    assert_eq!(names[1], "a-crate-client-it_works");
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
    assert!(of("c", "/t/deps/c-0", &"long".repeat(100)).len() <= 200);
}

#[test]
fn a_failure_says_where_what_and_how_to_repeat_it() {
    let failure = Failure(Box::new(FailureDetails {
        seed: 7,
        kind: FailureKind::NoProgress,
        host: Some("client".into()),
        at: SimTime::from_nanos(1_204_000_000),
        what: "nothing will happen any more".into(),
        details: vec!["`client` waits to read since 1.104000 s".into()],
        digest: crate::record::digest::Digester::default().digest(),
        repeats: Repeats::Same,
        command: "cargo test -p x".into(),
        capture: Some("/t/x.pcapng".into()),
        timeline: None,
    }));
    assert_eq!(
        failure.to_string(),
        "seed 7 failed at 1.204000 s on `client`: nothing will happen any more\n  \
         `client` waits to read since 1.104000 s\n  \
         again:    PAGEWIRE_SEED=7 cargo test -p x\n  \
         capture:  /t/x.pcapng"
    );
    assert_eq!(format!("{failure:?}"), failure.to_string());
    let kind = FailureKind::NotDeterministic;
    let differs = Failure(Box::new(FailureDetails { kind, ..*failure.0 }));
    let again = "again:    PAGEWIRE_TWICE=1 PAGEWIRE_SEED=7 cargo test -p x\n";
    assert!(differs.to_string().contains(again), "{differs}");
}
