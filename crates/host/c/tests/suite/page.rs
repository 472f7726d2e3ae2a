//! The programs of the book's page "From C": each is compiled as it stands, and run.

use std::fs;
use std::process::Command;

use pagewire_testkit::{Need, can};

use crate::support::{Folder, Way, compile, here, printed};

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
