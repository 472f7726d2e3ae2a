//! Compiling C programs, and running them beside peers.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pagewire_testkit::Netns;

/// The crate's folder.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A test program's source.
pub fn program(name: &str) -> PathBuf {
    here().join("tests/programs").join(name)
}

/// The archive that cargo has made of this crate beside the test.
pub fn archive() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let folder = fs::read_dir(test.parent().expect("a folder")).expect("the folder of the test");
    let archives = folder.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("libpagewire_c-") && name.ends_with(".a")
    });
    let newest = archives.max_by_key(|path| path.metadata().and_then(|of| of.modified()).ok());
    newest.expect("cargo makes the archive with the test")
}

/// A folder for programs, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagewire-c-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As it is: on the kernel.
    Kernel,
    /// With the include that renames its calls, and the library.
    Include,
    /// The same, with address and undefined-behaviour sanitizers.
    Sanitized,
    /// With the library, whose functions it calls by their own names.
    Library,
}

/// Compiles a source.
pub fn compile(source: &Path, to: &Path, way: Way) {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(to);
    cc.arg("-I").arg(here().join("include"));
    if matches!(way, Way::Include | Way::Sanitized) {
        cc.args(["-include", "pagewire/posix.h"]);
    }
    if way == Way::Sanitized {
        cc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    cc.arg(source);
    if way != Way::Kernel {
        cc.arg(archive()).args(["-Wl,--gc-sections", "-lm", "-ldl", "-lgcc_s"]);
    }
    let output = cc.arg("-lpthread").output().expect("the C compiler");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} ({way:?}):\n{errors}", source.display());
}

/// The network that test programs get, with the kernel at 10.77.0.1 beyond a tap.
pub const NETWORK: &str = "tap=pw0,addr=10.77.0.2/24,host-addr=10.77.0.1/24";

/// A namespace with that tap, which the kernel's side keeps while no program has it open.
pub fn namespace() -> Netns {
    let netns = Netns::new();
    netns.inside(|| {
        pagewire_testkit::ip("link set lo up");
        pagewire_testkit::ip("tuntap add pw0 mode tap vnet_hdr");
        pagewire_testkit::ip("address add 10.77.0.1/24 dev pw0");
        pagewire_testkit::ip("link set pw0 up");
    });
    netns
}

/// A program in a namespace, which ends after a minute.
pub fn run(netns: &Netns, program: &Path, arguments: &str, network: Option<&str>) -> Command {
    let mut command = netns.command("timeout");
    command.args(["--kill-after=5", "60"]);
    // Sanitizers reserve more addresses than a test may have as memory.
    command
        .args(["sh", "-c", "ulimit -S -d $(ulimit -H -d); exec \"$@\"", "sh"])
        .arg(program)
        .args(arguments.split_whitespace());
    command.env_remove("PAGEWIRE").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // What sanitizers find ends the program. Memory of Rust's statics at the exit is no leak.
    command.env("ASAN_OPTIONS", "detect_leaks=0:halt_on_error=1");
    if let Some(network) = network {
        command.env("PAGEWIRE", network);
    }
    command
}

/// What a program printed; it has to succeed.
pub fn printed(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}
