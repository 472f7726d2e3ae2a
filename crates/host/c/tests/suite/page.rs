//! The programs of the book's page "From C": each is compiled as it stands, and run.

use std::fs;
use std::process::Command;

use pagewire_testkit::{Need, can};

use crate::support::{Folder, Way, archive, compile, here, printed};

/// The program of that name on the page.
fn program(name: &str) -> String {
    let page = fs::read_to_string(here().join("../../../docs/FROM-C.md")).expect("the page");
    let start = format!("```c\n/* {name}.c */\n");
    let rest = page.split_once(&start).expect(name).1;
    rest.split_once("\n```").expect("its end").0.to_owned()
}

#[track_caller]
fn prints(name: &str, expected: &str) {
    if !can(&[Need::Program("cc")]) {
        return;
    }
    let folder = Folder::new(name);
    let (source, built) = (folder.path(&format!("{name}.c")), folder.path(name));
    fs::write(&source, program(name)).expect("a source");
    compile(&source, &built, Way::Library);
    let output = Command::new("timeout").arg("60").arg(&built).output().expect("a program");
    assert_eq!(printed(&output), expected);
}

#[test]
fn a_send_without_a_copy_is_notified() {
    prints("zerocopy", "sends 0 to 0 are done, copied 0\n");
}

#[test]
fn received_pages_are_mapped() {
    prints("mapped", "most of it was mapped\n");
}

#[test]
fn rings_receive_into_registered_memory() {
    prints("rings", "most of it is in registered memory\n");
}

#[test]
fn chunks_go_back_as_they_came() {
    prints("chunks", "released 200000, copied 0\n");
}

#[test]
fn corners_are_as_the_header_says() {
    if !can(&[Need::Program("cc")]) {
        return;
    }
    let folder = Folder::new("corners");
    let built = folder.path("corners");
    compile(&here().join("tests/programs/corners.c"), &built, Way::Library);
    let output = Command::new("timeout").arg("60").arg(&built).output().expect("a program");
    let checks = ["failed_open", "numbers_of_a_set", "cut_file", "child", "releases", "sizes"];
    assert_eq!(printed(&output), checks.map(|name| format!("ok {name}\n")).concat());
}

#[test]
fn an_installed_library_is_found_by_pkg_config_and_has_versions() {
    let needs = [Need::Program("cc"), Need::Program("pkg-config"), Need::Program("readelf")];
    if !can(&needs) {
        return;
    }
    let folder = Folder::new("installed");
    let library = folder.path("usr");
    let mut script = Command::new(here().join("../../../scripts/c-library"));
    let made = script.arg(&library).env("PAGEWIRE_C_ARCHIVE", archive()).output().expect("bash");
    printed(&made);
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "pagewire"])
        .env("PKG_CONFIG_PATH", library.join("lib/pkgconfig"))
        .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
        .output();
    let flags = printed(&flags.expect("pkg-config"));
    let (source, built) = (folder.path("chunks.c"), folder.path("chunks"));
    fs::write(&source, program("chunks")).expect("a source");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&built).arg(&source).args(flags.split_whitespace());
    printed(&cc.output().expect("cc"));
    let run = Command::new(&built).env("LD_LIBRARY_PATH", library.join("lib")).output();
    assert_eq!(printed(&run.expect("a program")), "released 200000, copied 0\n");
    let object = library.join("lib/libpagewire.so");
    let dynamic = Command::new("readelf").args(["-d", "-V", "--wide"]).arg(&object).output();
    let dynamic = printed(&dynamic.expect("readelf"));
    assert!(dynamic.contains("soname: [libpagewire.so.0.1]"), "{dynamic}");
    assert!(dynamic.contains("PAGEWIRE_0.1"), "{dynamic}");
}
