//! The kit of these tests: the command and its output, children that end with the test ([`Running`]), and a
//! network namespace with a directory, both gone on drop ([`Lab`]).

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use pagewire_testkit::{Need, Netns, can};
use tempfile::TempDir;

pub(crate) const PAGEWIRE: &str = env!("CARGO_BIN_EXE_pagewire");

/// Where servers listen: addresses of the namespace's loopback device, which is no loopback address.
pub(crate) const V4: &str = "198.51.100.1";
pub(crate) const V6: &str = "2001:db8::1";

/// A network namespace in which a tap or the gateway's side is, with servers, and a directory.
pub(crate) struct Lab {
    pub(crate) netns: Netns,
    pub(crate) dir: TempDir,
}

impl Lab {
    /// With a tap and these programs; `None` if the test is skipped.
    pub(crate) fn new(programs: &[&str]) -> Option<Self> {
        let programs = programs.iter().chain(&["ip"]).map(|name| Need::Program(name));
        let needs: Vec<Need<'_>> = [Need::Tap].into_iter().chain(programs).collect();
        can(&needs).then(Self::make)
    }

    /// Where the caller knows that it can be made.
    pub(crate) fn make() -> Self {
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
        lab
    }

    /// A program in the namespace: on the gateway's side.
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

    /// The output of a program inside, which ends well.
    pub(crate) fn inside(&self, options: &[&str], program: &[&str]) -> String {
        run(&mut self.run(options, program))
    }

    /// Runs a program inside, which fails.
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
        Self::saying(command, "")
    }

    /// Waits for its first line, which begins with `words`.
    pub(crate) fn saying(command: &mut Command, words: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut running = Self(child, lines);
        let first = running.line();
        assert!(!first.is_empty(), "{command:?} ended without a word");
        assert!(first.starts_with(words), "{first:?} does not begin with {words:?}");
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

    /// Waits for its end with this status; returns what it said on standard error, which is piped.
    pub(crate) fn ends_with(mut self, status: i32) -> String {
        let mut said = String::new();
        let stderr = self.0.stderr.as_mut().expect("piped");
        stderr.read_to_string(&mut said).expect("text");
        assert_eq!(self.0.wait().expect("its end").code(), Some(status), "{said}");
        said
    }

    /// Sends a signal on which the child ends well; returns its standard error.
    pub(crate) fn stop(self, signal: &str) -> String {
        self.signal(signal);
        self.ends_with(0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.0);
        // The reason of a failure may be there.
        let mut said = String::new();
        if std::thread::panicking()
            && let Some(stderr) = self.0.stderr.as_mut()
            && stderr.read_to_string(&mut said).is_ok()
        {
            eprintln!("the child said: {said}");
        }
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

/// Runs the command with these arguments.
pub(crate) fn pagewire(args: &[&str]) -> Output {
    Command::new(PAGEWIRE).args(args).output().expect("the command runs")
}

/// The output of a program, which ends well.
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

/// A counter of a report, behind its name on a line. Those that are zero are left out of some.
pub(crate) fn counter(report: &str, name: &str) -> u64 {
    let value = |line: &str| {
        let rest = line.trim_start().strip_prefix(name)?;
        rest.strip_prefix(' ')?.split_whitespace().next()?.parse().ok()
    };
    report.lines().find_map(value).unwrap_or(0)
}

/// Words that depend on `seed` and on their position.
fn words(seed: u64) -> impl Iterator<Item = [u8; 8]> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    })
}

/// `len` bytes that depend on their position.
pub(crate) fn content(len: usize) -> Vec<u8> {
    words(1).flatten().take(len).collect()
}

/// A file of `len` bytes that depend on `seed` and on their position.
pub(crate) fn write_file(path: &Path, len: u64, seed: u64) {
    let mut file = BufWriter::new(std::fs::File::create(path).expect("a file"));
    let mut left = len;
    for word in words(seed) {
        let part = &word[..left.min(8) as usize];
        file.write_all(part).expect("room for the file");
        left -= part.len() as u64;
        if left == 0 {
            break;
        }
    }
    file.flush().expect("room for the file");
}

pub(crate) fn is_same(file: &Path, content: &[u8]) -> bool {
    std::fs::read(file).expect("a file") == content
}
