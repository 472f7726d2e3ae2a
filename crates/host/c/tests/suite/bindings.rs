//! The bindings of other languages, each with its own tests, on the library as it is installed.

use std::process::Command;

use pagewire_testkit::{Need, can};

use crate::support::{Folder, archive, here, printed};

/// Runs the tests of a language.
fn test(language: &str, needs: &[Need<'_>]) {
    if !can(needs) {
        return;
    }
    let scripts = here().join("../../../scripts");
    let folder = Folder::new(language);
    let library = folder.path("library");
    let mut made = Command::new(scripts.join("c-library"));
    made.arg(&library).env("PAGEWIRE_C_ARCHIVE", archive());
    printed(&made.output().expect("bash"));
    let mut tests = Command::new(scripts.join("bindings"));
    // A skip within is of the language's own tests, which says why.
    tests.arg(&library).arg(language);
    printed(&tests.output().expect("bash"));
}

#[test]
fn python_has_sockets_that_asyncio_accepts() {
    test("python", &[Need::Program("cc"), Need::Program("python3")]);
}

#[test]
fn go_has_connections_and_listeners_of_net() {
    test("go", &[Need::Program("cc"), Need::Program("go")]);
}
