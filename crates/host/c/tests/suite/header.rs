//! The header, the functions of the code and the renamed calls agree; each renamed call has the C library's type.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use pagewire_testkit::{Need, can};

use crate::support::{Folder, here};

/// The names with `pw_` that follow `before`, up to the first byte that no name has.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let name = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        format!("pw_{}", &rest[..end])
    };
    text.split(before).skip(1).map(name).collect()
}

fn header() -> String {
    fs::read_to_string(here().join("include/pagewire.h")).expect("the header")
}

fn posix() -> String {
    fs::read_to_string(here().join("include/pagewire/posix.h")).expect("the include")
}

/// The functions that the header declares: a name at the start of a declaration, with its arguments.
fn declared() -> BTreeSet<String> {
    let header = header();
    let code = header.lines().filter(|line| !line.starts_with([' ', '/', '#', '\t', '}']));
    let declared = code.filter(|line| line.contains('(') && !line.starts_with("typedef"));
    let name = |line: &str| names(&line[line.rfind("pw_").unwrap_or(0)..], "pw_");
    declared.flat_map(|line| name(&line[..line.find('(').unwrap_or(0)])).collect()
}

/// The functions that the code exports.
fn exported() -> BTreeSet<String> {
    let mut exported = BTreeSet::new();
    for name in ["boundary", "epoll", "files", "hosts", "memory", "poll", "rings", "sockets"] {
        let path = here().join("src").join(name).with_extension("rs");
        let code = fs::read_to_string(path).expect("the code");
        exported.extend(names(&code, "extern \"C\" fn pw_"));
        // The table of calls.
        let calls = code.lines().filter(|line| line.starts_with("    pw_") && line.contains(" = "));
        exported.extend(calls.flat_map(|line| names(line, "    pw_")));
    }
    exported
}

/// The renamed calls: the C library's name, and ours.
fn renamed() -> Vec<(String, String)> {
    let pragmas = posix();
    let pragmas = pragmas.lines().filter_map(|line| line.strip_prefix("#pragma redefine_extname "));
    let pair = |line: &str| {
        let (from, to) = line.split_once(' ').expect("two names");
        (from.to_owned(), to.to_owned())
    };
    let labels = ["fcntl", "fstat", "mmap", "sendfile"];
    pragmas.map(pair).chain(labels.map(|name| (name.to_owned(), format!("pw_{name}")))).collect()
}

#[test]
fn the_header_declares_what_the_code_exports() {
    assert_eq!(declared(), exported());
}

#[test]
fn every_renamed_call_is_one_of_the_library() {
    let declared = declared();
    for (from, to) in renamed() {
        assert!(declared.contains(&to), "{to}");
        assert_eq!(format!("pw_{}", from.trim_end_matches("64")), to);
    }
    for name in ["fcntl", "fstat", "mmap", "sendfile"] {
        assert!(posix().contains(&format!("__asm__(\"pw_{name}\")")), "{name}");
    }
}

#[test]
fn both_headers_are_clean_in_c11_and_cpp17_and_the_types_are_the_c_librarys() {
    if !can(&[Need::Program("cc")]) {
        return;
    }
    let folder = Folder::new("header");
    let own = ["pipe2", "recvmmsg", "sendmmsg", "epoll_pwait2"];
    let mut code = String::from(
        "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <sys/ioctl.h>\n#include <sys/mman.h>\n\
         #include <sys/sendfile.h>\n#include <unistd.h>\n#include \"pagewire.h\"\n",
    );
    for (from, to) in renamed() {
        if !from.ends_with("64") && !own.contains(&&*from) {
            let types = format!("__typeof__(&{to}), __typeof__(&{from})");
            code +=
                &format!("_Static_assert(__builtin_types_compatible_p({types}), \"{from}\");\n");
        }
    }
    let source = folder.path("types.c");
    fs::write(&source, code).expect("a source");
    let empty = folder.path("empty.c");
    fs::write(&empty, "#include \"pagewire.h\"\nint main(void) { return pw_error() == 0; }\n")
        .expect("a source");
    let cc = |compiler: &str, arguments: &[&str], source: &std::path::Path| {
        let mut cc = Command::new(compiler);
        cc.args(arguments).args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]);
        let output = cc.arg("-I").arg(here().join("include")).arg(source).output().expect("cc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    cc("cc", &["-std=gnu11"], &source);
    for renames in [&[][..], &["-include", "pagewire/posix.h"]] {
        cc("cc", &[&["-std=c11"], renames].concat(), &empty);
        cc("cc", &[&["-std=gnu11", "-D_FILE_OFFSET_BITS=64"], renames].concat(), &empty);
        if can(&[Need::Program("c++")]) {
            cc("c++", &[&["-std=c++17", "-x", "c++"], renames].concat(), &empty);
        }
    }
}
