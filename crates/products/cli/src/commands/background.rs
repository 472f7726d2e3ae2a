//! [`Background`]: a command that returns when guests are served, while a process stays; the number of that process,
//! and its messages in a file.
//!
//! ```text
//!   the caller's process          the process that stays: a child, made before all else
//!     waits  <--------------------- one byte: served            has nothing open of the caller then
//!     ends with status 0; or as the child does, if that ends first
//! ```

use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;

use pagewire_gateway::BoundedLog;
use rustix::fs::OFlags;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, set_parent_process_death_signal, setsid, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::args::guest::GatewayOptions;
use crate::failure::{Failure, complain, reason};
use crate::sys;

/// Bytes of messages that are written to the file at once.
const CHUNK: usize = 4096;

/// Status of a process that did not even end by itself.
const FAILED: i32 = 1;

/// What is opened before the sandbox, and used when guests are served.
pub(crate) struct Background {
    /// The process that the caller waits for reads at the other end.
    caller: Option<PipeWriter>,
    null: Option<File>,
    pid: Option<File>,
    messages: Option<BoundedLog>,
}

impl Background {
    /// Goes to the background, if the options say so: this returns in the process that stays. To be called before
    /// there are threads.
    pub(crate) fn begin(options: &GatewayOptions) -> Result<Self, Failure> {
        let failed = |what: &str, path: &Path, e: &io::Error| {
            Failure::because(format!("{what} {}", path.display()), reason(e))
        };
        let caller = match options.background {
            true => Some(leave().map_err(|e| Failure::because("--background", reason(&e)))?),
            false => None,
        };
        let null = File::options().read(true).write(true).open("/dev/null");
        let pid = options.pid.as_deref();
        let pid = pid.map(|path| pid_file(path).map_err(|e| failed("--pid", path, &e)));
        let messages = options.log_file.as_deref().map(|path| {
            let opened = no_link(path).and_then(|()| BoundedLog::open(path, options.log_file_size));
            opened.map_err(|e| failed("--log-file", path, &e))
        });
        Ok(Self {
            null: caller
                .is_some()
                .then_some(null)
                .transpose()
                .map_err(|e| Failure::because("/dev/null", reason(&e)))?,
            caller,
            pid: pid.transpose()?,
            messages: messages.transpose()?,
        })
    }

    /// Guests are served: the caller's process ends. Messages go to the file from here on, or nowhere in the
    /// background.
    pub(crate) fn served(self) -> Result<(), Failure> {
        let Self { caller, null, pid, messages } = self;
        if let Some(mut file) = pid {
            let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
            written.map_err(|e| Failure::because("--pid", reason(&e)))?;
        }
        let failed = |what| move |e: io::Error| Failure::because(what, reason(&e));
        if caller.is_some() {
            // From here on, this process stays without the caller's.
            let freed = set_parent_process_death_signal(None);
            freed.map_err(|e| failed("--background")(e.into()))?;
        }
        if let Some(log) = messages {
            write_to(log).map_err(failed("--log-file"))?;
        } else if let Some(null) = &null {
            dup2_stderr(null).map_err(|e| failed("/dev/null")(e.into()))?;
        }
        if let Some(null) = null {
            let closed = dup2_stdin(&null).and_then(|()| dup2_stdout(&null));
            closed.map_err(|e| failed("/dev/null")(e.into()))?;
        }
        if let Some(mut caller) = caller {
            caller.write_all(&[1]).map_err(failed("--background"))?;
        }
        Ok(())
    }
}

/// Opens a file for the number of this process, as it is: a process that has written its number there may still run. A
/// link may lead to a file that whoever made it could not write to.
fn pid_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o644);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

/// Whether this is no symbolic link.
fn no_link(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_symlink() => {
            Err(io::Error::other("it is a symbolic link; name the file itself"))
        }
        _ => Ok(()),
    }
}

/// Makes the process that stays, in which this returns; the caller's waits here, and ends.
fn leave() -> io::Result<PipeWriter> {
    let (mut reader, writer) = io::pipe()?;
    let caller = getpid();
    let Some(child) = sys::fork()? else {
        drop(reader);
        // Until guests are served, nobody but the caller's process knows of this one.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(caller) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // The signals of the caller's terminal are not for this process.
        setsid()?;
        return Ok(writer);
    };
    drop(writer);
    let served = reader.read_exact(&mut [0]).is_ok();
    std::process::exit(if served { 0 } else { status(child) })
}

/// Waits for the end of a process that has failed, and takes its status.
fn status(child: Pid) -> i32 {
    let ended = waitpid(Some(child), WaitOptions::empty());
    let ended = ended.ok().flatten().map(|(_, status)| status);
    if let Some(signal) = ended.and_then(|status| status.terminating_signal()) {
        complain!("pagewire: a signal ended it before guests were served: {signal}");
    }
    let status = ended.and_then(|status| status.exit_status());
    // Such a process has served nobody.
    status.filter(|status| *status != 0).unwrap_or(FAILED)
}

/// Has what this process writes to standard error written to a log.
fn write_to(mut log: BoundedLog) -> io::Result<()> {
    let (mut reader, writer) = io::pipe()?;
    let pass_on = move || {
        let mut bytes = [0; CHUNK];
        while let Ok(n @ 1..) = reader.read(&mut bytes) {
            // A disk that is full has room again some time.
            let _ = log.write_all(bytes.get(..n).unwrap_or_default());
        }
    };
    thread::Builder::new().name("messages".into()).spawn(pass_on)?;
    Ok(dup2_stderr(writer)?)
}
