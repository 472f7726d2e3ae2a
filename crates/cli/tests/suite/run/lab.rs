//! A network namespace in which the gateway's side is, with servers; gone on drop.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use pagewire_testing::{Need, Netns, can};
use tempfile::TempDir;

pub(crate) const PAGEWIRE: &str = env!("CARGO_BIN_EXE_pagewire");

/// Where servers listen: addresses of the namespace's loopback device, which is no loopback address.
pub(crate) const V4: &str = "198.51.100.1";
pub(crate) const V6: &str = "2001:db8::1";

pub(crate) struct Lab {
    netns: Netns,
    pub(crate) dir: TempDir,
}

impl Lab {
    /// `None` if the test is skipped.
    pub(crate) fn new(programs: &[&str]) -> Option<Self> {
        let programs = programs.iter().chain(&["ip"]).map(|name| Need::Program(name));
        let needs: Vec<Need<'_>> = [Need::Tap].into_iter().chain(programs).collect();
        if !can(&needs) {
            return None;
        }
        // Some tests run as another user, who has to get in.
        let open = std::fs::Permissions::from_mode(0o755);
        let dir = tempfile::Builder::new().permissions(open).tempdir().expect("a directory");
        let lab = Self { netns: Netns::new(), dir };
        for args in [
            &["link", "set", "lo", "up"][..],
            &["addr", "add", &format!("{V4}/32"), "dev", "lo"],
            &["addr", "add", &format!("{V6}/128"), "dev", "lo", "nodad"],
        ] {
            run(lab.command("ip").args(args));
        }
        Some(lab)
    }

    /// A program on the gateway's side.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.netns.command(program);
        command.current_dir(&self.dir);
        command
    }

    /// `pagewire run` with these options, and the program behind it.
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        // Tests may have been started in the background, where a shell ignores interrupts.
        let mut command = self.command("env");
        command.args(["--default-signal", PAGEWIRE, "run"]).args(options).arg("--").args(program);
        command
    }

    /// What a program inside says, which ends well.
    pub(crate) fn inside(&self, options: &[&str], program: &[&str]) -> String {
        run(&mut self.run(options, program))
    }

    /// The same of a program that does not.
    pub(crate) fn fails(&self, options: &[&str], program: &[&str]) -> Output {
        let output = self.run(options, program).output().expect("it runs");
        assert!(!output.status.success(), "{program:?}: {}", text(&output.stdout));
        output
    }

    /// Starts a program and waits for the first line that it prints.
    pub(crate) fn server(&self, program: &str, args: &[&str]) -> Running {
        Running::start(self.command(program).args(args))
    }

    /// An HTTP server with a file, at port 8000 of both addresses.
    pub(crate) fn serve(&self, name: &str, content: &[u8]) -> [Running; 2] {
        std::fs::write(self.path(name), content).expect("a file");
        [V4, V6].map(|at| {
            let args = ["-u", "-m", "http.server", "8000", "--bind", at];
            self.server("python3", &args)
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A child that ends with the test, and what it says.
pub(crate) struct Running(pub(crate) Child, pub(crate) BufReader<ChildStdout>);

impl Running {
    /// Waits for its first line.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut running = Self(child, lines);
        assert!(!running.line().is_empty(), "{command:?} ended without a word");
        running
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("its words");
        line
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&self, name: &str) {
        run(Command::new("kill").args(["-s", name, &self.0.id().to_string()]));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// Ends a child by a signal that `pagewire run` passes on: killed, it would leave its program behind.
pub(crate) fn end(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        let pid = rustix::process::Pid::from_child(child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = child.wait();
    }
}

/// What a program says, which ends well.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("program runs");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `len` bytes that depend on their position.
pub(crate) fn content(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let word = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

pub(crate) fn is_same(file: &Path, content: &[u8]) -> bool {
    std::fs::read(file).expect("a file") == content
}
