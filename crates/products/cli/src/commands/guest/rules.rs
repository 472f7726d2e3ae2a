//! [`RulesSource`]: the rules of options and files, which are read at the start and again.

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Instant;

use pagewire_gateway::{Rules, RulesFile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::Served;
use crate::args::guest::GuestOptions;
use crate::failure::{Failure, complain, reason};
use crate::limits::{RULES_LATEST, RULES_SETTLE};

/// The options that make rules, and the addresses that stand for others.
pub(super) struct RulesSource {
    options: GuestOptions,
    mappings: Vec<(IpAddr, IpAddr)>,
    /// Locked while rules are read and applied: those that are read last are applied last.
    last: Mutex<Last>,
}

/// The state after the last reading.
#[derive(Default)]
struct Last {
    rules: Option<Rules>,
    /// The names of the files, those of a failed reading too.
    names: Vec<OsString>,
}

/// Rules that were read, with the files that they are of.
pub(super) struct Read {
    pub(super) rules: Rules,
    pub(super) files: Vec<PathBuf>,
}

/// Why there are no rules: the mistakes in a file, and the sum of them.
pub(super) struct Mistaken {
    mistakes: Vec<String>,
    failure: Failure,
}

impl Mistaken {
    /// Prints the mistakes. Returns the failure that sums them up.
    pub(super) fn complain(self) -> Failure {
        for mistake in self.mistakes {
            complain!("{mistake}");
        }
        self.failure
    }

    fn into_text(self) -> String {
        match self.mistakes.is_empty() {
            true => self.failure.into_text(),
            false => self.mistakes.join("; "),
        }
    }
}

impl RulesSource {
    /// The source of these options. Relative paths are of the directory of this time.
    pub(super) fn new(options: &GuestOptions, mappings: Vec<(IpAddr, IpAddr)>) -> Self {
        let mut options = options.clone();
        for path in &mut options.rules {
            *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
        }
        Self { options, mappings, last: Mutex::default() }
    }

    /// Makes the rules for the first time.
    pub(super) fn begin(&self) -> Result<Read, Mistaken> {
        let read = self.read()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        (last.rules, last.names) = (Some(read.rules.clone()), names(&read.files));
        Ok(read)
    }

    /// Makes the rules once more, and has `apply` put them in the place of those before; `only_changes`: unless they are
    /// the same as at the last reading. Where nothing but permissions was permitted, that stays so: a file may be cut off
    /// while a program writes to it. Returns the number of flows that have ended. The error has all mistakes.
    pub(super) fn read_again(
        &self,
        only_changes: bool,
        apply: impl FnOnce(Rules) -> Result<usize, String>,
    ) -> Result<usize, String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let read = self.read().map_err(Mistaken::into_text)?;
        last.names = names(&read.files);
        let rules = match &last.rules {
            Some(before) => read.rules.restrict_like(before),
            None => read.rules,
        };
        if only_changes && last.rules.as_ref() == Some(&rules) {
            return Ok(0);
        }
        let ended = apply(rules.clone())?;
        last.rules = Some(rules);
        Ok(ended)
    }

    /// Whether a file of this name was read.
    fn has_name(&self, name: &[u8]) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.names.iter().any(|other| other.as_bytes() == name)
    }

    fn read(&self) -> Result<Read, Mistaken> {
        let options = &self.options;
        let mut rules = if options.offline { Rules::offline() } else { Rules::default() };
        for rule in &options.allow {
            rules = rules.allow(rule.clone());
        }
        for (rule, answer) in &options.deny {
            rules = rules.deny_with(rule.clone(), *answer);
        }
        let mut files = Vec::new();
        for path in &options.rules {
            let file = RulesFile::read(path).map_err(|mistakes| {
                let mistakes = mistakes.mistakes().iter().map(ToString::to_string);
                let mistakes: Vec<String> = mistakes.collect();
                let n = mistakes.len();
                let why = format!("{n} {}", if n == 1 { "mistake" } else { "mistakes" });
                let failure = Failure::misused(format!("--rules {}", path.display()), why);
                Mistaken { mistakes, failure }
            })?;
            if file.entries().is_empty() {
                complain!("pagewire: {}: there is no rule in the file", path.display());
            }
            files.extend_from_slice(file.files());
            rules = file.apply(rules);
        }
        for prefix in &options.nat64 {
            rules = rules.nat64(*prefix);
        }
        for (address, to) in &self.mappings {
            rules = rules.map(*address, *to);
        }
        if options.learn.is_some() {
            rules = rules.restrict();
        }
        if options.audit || options.learn.is_some() {
            rules = rules.audit();
        }
        let failed = |error| {
            let text = format!("--allow, --deny, --rules and --nat64: {error}");
            Mistaken { mistakes: Vec::new(), failure: Failure::Usage(text) }
        };
        Ok(Read { rules: rules.checked().map_err(failed)?, files })
    }
}

/// The names of files in their folders.
fn names(files: &[PathBuf]) -> Vec<OsString> {
    files.iter().filter_map(|file| file.file_name().map(OsString::from)).collect()
}

/// The folders of files, in which programs put other files in their places.
pub(super) fn folders(files: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        files.iter().filter_map(|file| file.parent().map(Path::to_path_buf)).collect();
    folders.sort();
    folders.dedup();
    folders
}

/// The watch on the files of rules.
pub(super) struct RulesWatch {
    inotify: OwnedFd,
}

impl RulesWatch {
    /// Watches the folders. Called before rights are given up.
    pub(super) fn new(folders: &[PathBuf]) -> Result<Self, Failure> {
        let failed =
            |e: rustix::io::Errno| Failure::because("--rules-watch", reason(&io::Error::from(e)));
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let changes = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE;
        for folder in folders {
            inotify::add_watch(&inotify, folder, changes).map_err(failed)?;
        }
        Ok(Self { inotify })
    }

    /// Reads the rules again after each change, once no more follow, for as long as the guest is served.
    pub(super) fn start(self, served: Weak<Served>) -> Result<(), Failure> {
        let watching = move || {
            let is_ours =
                |name: &[u8]| served.upgrade().is_some_and(|served| served.rules.has_name(name));
            while self.wait(&is_ours) {
                let Some(served) = served.upgrade() else { return };
                served.reload_loudly(true);
            }
        };
        let thread = std::thread::Builder::new().name("rules".into());
        let started = thread.spawn(watching);
        started.map(drop).map_err(|e| Failure::because("--rules-watch", reason(&e)))
    }

    /// Waits for a change of a file with such a name, and for the quiet after it, which other changes put off for
    /// [`RULES_LATEST`] at most. `false`: the system does not say.
    fn wait(&self, is_ours: &dyn Fn(&[u8]) -> bool) -> bool {
        let mut latest: Option<Instant> = None;
        loop {
            if latest.is_some_and(|latest| latest <= Instant::now()) {
                return true;
            }
            let is_changed = latest.is_some();
            let limit = Timespec {
                tv_sec: RULES_SETTLE.as_secs() as i64,
                tv_nsec: RULES_SETTLE.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(&self.inotify, PollFlags::IN)];
            match poll(&mut fds, is_changed.then_some(&limit)) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return false,
            }
            let mut room = [std::mem::MaybeUninit::uninit(); 4096];
            let mut events = inotify::Reader::new(&self.inotify, &mut room);
            while let Ok(event) = events.next() {
                // Without a name, events were lost.
                if event.file_name().is_none_or(|name| is_ours(name.to_bytes())) {
                    latest.get_or_insert(Instant::now() + RULES_LATEST);
                }
            }
        }
    }
}
