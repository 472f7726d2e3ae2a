//! The view that a running command gives to other programs: its control socket, its metrics, `--stats`.
//!
//! Every command with a host binds the sockets first ([`ViewSockets`]), answers on them once the host runs
//! ([`RunningView`]), and prints its counters ([`Printed`]).

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagewire_control::{AskError, BindError, Builder, Client, Control, ControlSocket};

use crate::args::view::{StatsFormat, ViewOptions};
use crate::failure::{Failure, reason};
use crate::signals::{self, Stop};

/// Where root's processes have their sockets.
const OF_ROOT: &str = "/run/pagewire";

/// The directory of this user's control sockets, by default.
pub(crate) fn directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(OF_ROOT.into());
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty())?;
    Some(PathBuf::from(runtime).join("pagewire"))
}

/// The control socket of a process, by default.
pub(crate) fn default_path(pid: u32) -> Option<PathBuf> {
    Some(directory()?.join(format!("{pid}.sock")))
}

/// Bound sockets on which nothing is answered yet. They are bound before rights are given up.
pub(crate) struct ViewSockets {
    control: Option<ControlSocket>,
    metrics: Option<TcpListener>,
    /// Knows this process's memory by a file that is open from now on.
    shown: Builder,
}

impl ViewSockets {
    /// Binds what the options ask for. The default control socket is made if that is possible.
    pub(crate) fn new(options: &ViewOptions) -> Result<Self, Failure> {
        let control = match &options.control {
            Some(path) if path == Path::new("none") => None,
            Some(path) => Some(bind(path)?),
            None => {
                // A sandbox kept earlier processes from removing their sockets.
                directory().iter().for_each(|directory| sweep(directory));
                by_default()
            }
        };
        let listen = |address| {
            let failed = |e: std::io::Error| {
                let hint = match e.kind() {
                    std::io::ErrorKind::AddrInUse => "; choose another port",
                    std::io::ErrorKind::AddrNotAvailable => "; give an address of this machine",
                    _ => "",
                };
                Failure::because(format!("--metrics {address}"), reason(&e) + hint)
            };
            TcpListener::bind(address).map_err(failed)
        };
        let metrics = options.metrics.map(listen).transpose()?;
        Ok(Self { control, metrics, shown: Builder::new() })
    }

    /// Whether there is a control socket.
    pub(crate) fn is_asked(&self) -> bool {
        self.control.is_some()
    }

    /// Answers for what the builder shows.
    pub(crate) fn start(self, shown: Builder) -> Result<RunningView, Failure> {
        self.start_with(|_| shown)
    }

    /// The same, behind a sandbox: `show` adds to a builder that was made before.
    pub(crate) fn start_with(
        mut self,
        show: impl FnOnce(Builder) -> Builder,
    ) -> Result<RunningView, Failure> {
        let mut shown = show(std::mem::take(&mut self.shown));
        if let Some(socket) = self.control {
            shown = shown.listen(socket);
        }
        if let Some(listener) = self.metrics {
            shown = shown.metrics(listener);
        }
        let control = shown.start().map_err(|e| Failure::because("--control", reason(&e)))?;
        Ok(RunningView(Arc::new(control)))
    }
}

/// Ends the answers when it is dropped, and removes the socket: whoever else has the control, as the
/// thread for signals, which does not end.
pub(crate) struct RunningView(Arc<Control>);

impl Drop for RunningView {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn bind(path: &Path) -> Result<ControlSocket, Failure> {
    ControlSocket::bind(path).map_err(|error| {
        let why = match &error {
            BindError::System(e) => {
                let hint = match e.kind() {
                    std::io::ErrorKind::NotFound => "; take a path in a directory that exists",
                    std::io::ErrorKind::PermissionDenied => {
                        "; take a path in a directory that you may write to"
                    }
                    _ => "",
                };
                reason(e) + hint
            }
            other => other.to_string(),
        };
        Failure::because(format!("--control {}", path.display()), why)
    })
}

/// The default socket, or none where it cannot be made: nobody has asked for it.
fn by_default() -> Option<ControlSocket> {
    let made = match default_path(std::process::id()) {
        Some(path) => make(path),
        None => Err("XDG_RUNTIME_DIR is not set".to_owned()),
    };
    made.inspect_err(|why| tracing::info!(why, "there is no control socket")).ok()
}

fn make(path: PathBuf) -> Result<ControlSocket, String> {
    let directory = path.parent().filter(|directory| !directory.is_dir());
    let made = directory.map(|path| std::fs::DirBuilder::new().mode(0o700).create(path));
    made.transpose().map_err(|e| reason(&e))?;
    ControlSocket::bind(path).map_err(|e| e.to_string())
}

/// The control sockets in a directory, and no links to others.
pub(crate) fn sockets(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = files.filter(|file| file.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "sock"))
}

/// Removes from a directory the sockets that processes left: killed ones, and those that a sandbox kept
/// from removing them. The name of such a file is the number of a process that is no more.
pub(crate) fn sweep(directory: &Path) {
    let is_left = |path: &PathBuf| {
        let pid = path.file_stem().and_then(|name| name.to_str()?.parse::<u32>().ok());
        let has_ended = pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists());
        // Other process namespaces may share the directory.
        let refused = |error| match error {
            AskError::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
            _ => false,
        };
        has_ended && Client::connect(path).is_err_and(refused)
    };
    for path in sockets(directory).filter(is_left) {
        let _ = std::fs::remove_file(path);
    }
}

/// A part of what `--stats` prints: its title, and counts.
pub(crate) fn part(title: &str, counts: impl Iterator<Item = (&'static str, u64)>) -> String {
    let counts = counts.map(|(name, value)| format!("  {name:<24} {value}\n"));
    std::iter::once(format!("{title}\n")).chain(counts).collect()
}

/// Counters that go to standard error: on SIGUSR1, and at the end where `--stats` asks for them.
#[derive(Clone)]
pub(crate) struct Printed<T> {
    asked: Option<StatsFormat>,
    control: Arc<Control>,
    /// Lines for people. In JSON, they are what a control socket says of them.
    text: T,
}

impl<T: Fn() -> String> Printed<T> {
    pub(crate) fn new(asked: Option<StatsFormat>, answering: &RunningView, text: T) -> Self {
        Self { asked, control: Arc::clone(&answering.0), text }
    }

    /// Watches for signals; SIGUSR1 prints the counters.
    pub(crate) fn watch(&self) -> Result<Stop, Failure>
    where
        T: Clone + Send + 'static,
    {
        let printed = self.clone();
        signals::watch(move || printed.print())
    }

    pub(crate) fn at_end(&self) {
        if self.asked.is_some() {
            self.print();
        }
    }

    fn print(&self) {
        let text = match self.asked {
            None | Some(StatsFormat::Text) => (self.text)(),
            Some(StatsFormat::Json) => match serde_json::to_string(&self.control.stats()) {
                Ok(line) => line + "\n",
                Err(error) => {
                    return tracing::error!(%error, "the counters cannot be written as JSON");
                }
            },
        };
        // Whoever read them may be gone: the command goes on.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_ended_processes_left_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        // There is no process of this number.
        let names = ["4000000000.sock", "name.sock", "4000000000.txt"];
        let made = names.map(|name| std::os::unix::net::UnixListener::bind(path(name)));
        let [dead, living, other] = made.map(|made| made.expect("a socket"));
        sweep(dir.path());
        assert!(path(names[0]).exists(), "somebody listens");
        drop((dead, other));
        sweep(dir.path());
        assert_eq!(names.map(|name| path(name).exists()), [false, true, true]);
        drop(living);
    }
}
