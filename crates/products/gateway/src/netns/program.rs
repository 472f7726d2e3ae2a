//! [`Program`]: a child process in namespaces of its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use pagewire::device::TapParts;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

use super::helper_socket::{GO, NOT_EXECUTED};
use super::outside::{Helper, own_program};
use super::{InsideNetwork, Namespace, NetnsError, NsSockets, Users};

/// A program whose only network is a tap: prepared by [`new`](Self::new), begun by
/// [`begin`](Self::begin).
///
/// The program is a child of this process, in the same process group, with the same terminal, directory, environment
/// and descriptors. Dropped before it began, it never runs; afterwards it is left alone.
#[derive(Debug)]
pub struct Program {
    helper: Helper,
    pidfd: OwnedFd,
    notes: Vec<String>,
    begun: bool,
}

/// The reason why a program did not begin.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program could not be executed.
    #[error("{0}")]
    NotExecuted(io::Error),
    /// The helper ended before that.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

/// A change of a program's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The program was stopped, and can be continued.
    Stopped,
    /// The program ended, with this status.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
}

impl Program {
    /// Makes the namespaces and the tap. `program` is a name, which is looked up in `PATH`, and its
    /// arguments. To be called before this process has threads: other processes that a thread
    /// starts meanwhile would keep the helper's socket.
    ///
    /// # Errors
    /// [`NetnsError`], whose text says what to do.
    pub fn new(
        network: &InsideNetwork,
        users: Users,
        program: &[OsString],
    ) -> Result<(Self, TapParts), NetnsError> {
        Self::by_helper(&own_program(), network, users, program)
    }

    /// [`new`](Self::new), with another program's file as the helper; its `main` begins with
    /// [`inside`](super::inside).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn by_helper(
        helper: &Path,
        network: &InsideNetwork,
        users: Users,
        program: &[OsString],
    ) -> Result<(Self, TapParts), NetnsError> {
        if program.is_empty() {
            return Err(NetnsError::Config("there is no program to run".into()));
        }
        let mut helper = Helper::start(helper, None, &[], network, program)?;
        let (parts, notes) = helper.tap(users)?;
        let pidfd = pid(&helper)
            .and_then(|id| Ok(pidfd_open(id, PidfdFlags::empty())?))
            .map_err(NetnsError::system("watch the helper process"))?;
        Ok((Self { helper, pidfd, notes, begun: false }, parts))
    }

    /// Settings inside that failed and are not essential; a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The process identifier.
    pub fn id(&self) -> u32 {
        self.helper.child.id()
    }

    /// Runs the program.
    ///
    /// # Errors
    /// [`ProgramError::NotExecuted`] if there is no such file, or it cannot be executed.
    pub fn begin(&mut self) -> Result<(), ProgramError> {
        let wire = &self.helper.wire;
        let failed = NetnsError::system("talk to the helper process");
        wire.send(GO, b"", &[]).map_err(&failed)?;
        // The socket closes as the program begins.
        let Some(message) = wire.receive().map_err(&failed)? else {
            self.begun = true;
            return Ok(());
        };
        let number = <[u8; 4]>::try_from(&*message.body).ok().map(i32::from_ne_bytes);
        match number.filter(|_| message.kind == NOT_EXECUTED) {
            Some(number) => Err(ProgramError::NotExecuted(io::Error::from_raw_os_error(number))),
            None => Err(NetnsError::HelperEnded.into()),
        }
    }

    /// Sockets of the program's network; see [`NsSockets::of`].
    ///
    /// # Errors
    /// [`NetnsError`], whose text says what to do.
    pub fn sockets(&self) -> Result<NsSockets, NetnsError> {
        NsSockets::of(&Namespace::Process(self.id()), None)
    }

    /// A way to send it signals from other threads.
    ///
    /// # Errors
    /// Errors of the system: no descriptor is left.
    pub fn signals(&self) -> io::Result<impl Fn(i32) + Send + 'static + use<>> {
        let pidfd = self.pidfd.try_clone()?;
        Ok(move |number: i32| {
            // The program may have ended. An ordinary user may not signal a program that became another's.
            if let Some(signal) = Signal::from_named_raw(number) {
                let _ = pidfd_send_signal(&pidfd, signal);
            }
        })
    }

    /// Waits until it is stopped or ends.
    ///
    /// # Errors
    /// Errors of the system: another part of this process waits for all its children.
    pub fn wait(&mut self) -> io::Result<Change> {
        let id = pid(&self.helper)?;
        loop {
            let status = match waitpid(Some(id), WaitOptions::UNTRACED) {
                Ok(Some((_, status))) => status,
                Ok(None) | Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            if status.stopped() {
                return Ok(Change::Stopped);
            }
            if let Some(code) = status.exit_status() {
                return Ok(Change::Exited(code));
            }
            if let Some(number) = status.terminating_signal() {
                return Ok(Change::Killed(number));
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.begun {
            // The signal goes by the descriptor: behind a sandbox there may be no other way.
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            let _ = self.helper.child.wait();
        }
    }
}

fn pid(helper: &Helper) -> io::Result<Pid> {
    let id = i32::try_from(helper.child.id()).ok().and_then(Pid::from_raw);
    id.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
