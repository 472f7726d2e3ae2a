//! `pagewire run`: a program in namespaces of its own, whose network is the gateway.
//!
//! ```text
//!   this process: gateway --- tap --- the program's kernel --- the program
//! ```
//!
//! Read [`run`] first, then [`Watch`], which has signals and the terminal.

use std::fs::File;
use std::io;
use std::process::ExitCode;
use std::thread;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use pagewire::device::TapBuilder;
use pagewire_gateway::netns::{Change, Program, ProgramError, Users};
use pagewire_gateway::sandbox::SandboxPlan;
use rustix::process::{Resource, Rlimit, Signal, geteuid, getpid, kill_process, setrlimit};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use signal_hook::low_level::emulate_default_handler;

use crate::args::Cli;
use crate::args::guest::RunOptions;
use crate::commands::guest;
use crate::commands::guest_network::GuestNetwork;
use crate::failure::{Failure, reason};
use crate::limits::{LAST_TIME, SHUTDOWN_TIME};
use crate::sys::Inherited;
use crate::view::{Printed, ViewSockets};

/// Statuses as of `env`, `timeout` and shells.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Added to a signal's number where the signal itself cannot end us.
const BY_SIGNAL: i32 = 128;

/// Wrong usage: status 2, but of `run` another, because the program has statuses, too.
pub(crate) fn end_usage(mut error: clap::Error) -> ! {
    if !error.use_stderr() || !is_run() {
        error.exit();
    }
    // The mistake is such as `pagewire run curl`.
    let is_word =
        |word: &ContextValue| matches!(word, ContextValue::String(word) if !word.starts_with('-'));
    if error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::InvalidArg).is_some_and(is_word)
    {
        let tip =
            "put `--` in front of the program, as in `pagewire run -- curl http://192.0.2.1/`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    let _ = error.print();
    std::process::exit(FAILED.into())
}

/// Whether `run` is the command, wherever it stands among the options of all commands.
fn is_run() -> bool {
    let words = Cli::command().ignore_errors(true).try_get_matches();
    words.is_ok_and(|words| words.subcommand_name() == Some("run"))
}

/// Runs the program to its end, and ends as it did.
pub(crate) fn run(options: &RunOptions) -> ExitCode {
    match start(options) {
        Ok(Change::Exited(status)) => ExitCode::from(status as u8),
        Ok(Change::Killed(signal)) => end_by(signal),
        // `Watch` waits for the end.
        Ok(Change::Stopped) => ExitCode::from(FAILED),
        Err((failure, status)) => {
            failure.report();
            ExitCode::from(status)
        }
    }
}

fn start(options: &RunOptions) -> Result<Change, (Failure, u8)> {
    let ours = |failure: Failure| (failure, FAILED);
    // The program has them; this process has no use for them.
    let inherited = Inherited::find();
    let is_root = geteuid().is_root();
    let network = GuestNetwork::of(&options.guest).map_err(ours)?;
    let tap = options.tap.as_deref().or(network.copied.as_deref()).unwrap_or("pw0");
    let inside = network.inside(tap, false);
    let users = if options.map_root_user { Users::Root } else { Users::Same };
    let prepared = Program::new(&inside, users, &options.program);
    let (mut program, parts) = prepared.map_err(|e| ours(Failure::Failed(e.to_string())))?;
    for note in program.notes() {
        crate::failure::complain!("pagewire: {note}");
    }
    let tap = TapBuilder::new().adopt(parts).map_err(|e| ours(e.into()))?;
    let sockets = guest::needs_sockets_inside(&options.guest).then(|| program.sockets());
    let sockets = sockets.transpose();
    let sockets = sockets.map_err(|e| ours(Failure::Failed(e.to_string())))?;
    let opened = guest::open(&options.guest, network, None, sockets).map_err(ours)?;
    let has_terminal = File::open("/dev/tty").is_ok();
    let mut plan = SandboxPlan::default();
    plan.child = true;
    plan.source = !options.guest.source.is_empty();
    plan.splices = guest::needs_sockets_inside(&options.guest);
    plan.read = opened.rule_folders();
    plan.listens = guest::opens_ports_later(&options.guest);
    // Made here, so that no descriptor of it is in the program.
    let asked = ViewSockets::new(&options.guest.view).map_err(ours)?;
    inherited.close();
    guest::enter_sandbox(&options.guest, plan).map_err(ours)?;

    // From here on there are threads.
    let gateway = opened.start(Box::new(tap)).map_err(ours)?;
    let control = asked.start_with(|shown| gateway.shown(shown)).map_err(ours)?;
    let watch = Watch::new(&program, has_terminal).map_err(ours)?;
    program.begin().map_err(|e| not_begun(e, options))?;
    // Behind what may fail: a failure is one line.
    if is_root {
        crate::failure::complain!(
            "pagewire: run as root: the program is root, too, and root's files are its own"
        );
    }
    let end = watch.until_it_ends(&mut program).map_err(ours)?;
    gateway.finish(SHUTDOWN_TIME);
    Printed::new(options.guest.stats, &control, || gateway.report()).at_end();
    // To the program, a refused name is one that does not exist. With `--offline`, refusals are expected.
    if !options.guest.offline {
        for line in gateway.refused() {
            crate::failure::complain!("pagewire: {line}");
        }
    }
    gateway.end(LAST_TIME);
    gateway.write_learned().map_err(ours)?;
    Ok(end)
}

fn not_begun(error: ProgramError, options: &RunOptions) -> (Failure, u8) {
    let name = options.program.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    match error {
        ProgramError::NotExecuted(error) => {
            let status = match error.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => NOT_EXECUTABLE,
            };
            (Failure::because(name, reason(&error)), status)
        }
        ProgramError::Netns(error) => (Failure::Failed(error.to_string()), FAILED),
    }
}

/// Ends as the program did, so that whoever waits for this process gets the same status.
fn end_by(signal: i32) -> ExitCode {
    // The program has left its core; ours would be another's.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // Fails for signals that end no process by themselves, such as real-time ones.
    let _ = emulate_default_handler(signal);
    ExitCode::from((BY_SIGNAL + signal) as u8)
}

/// Signals and the terminal, while the program runs.
///
/// Both processes are in one group, so what the terminal sends (an interrupt, a stop) reaches the
/// program without us: we only must not end by it. What others send to this process was meant for
/// the program and is passed on. When the program is stopped, so are we, and the shell sees a
/// stopped job.
struct Watch {
    has_terminal: bool,
}

impl Watch {
    fn new(program: &Program, has_terminal: bool) -> Result<Self, Failure> {
        let failed = |e: io::Error| Failure::because("handling signals", reason(&e));
        let watched = [SIGINT, SIGQUIT, SIGTSTP, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT];
        let mut signals = SignalsInfo::<WithRawSiginfo>::new(watched).map_err(failed)?;
        let pass_on = program.signals().map_err(failed)?;
        let watching = move || {
            for signal in signals.forever() {
                // The kernel's own have a positive code.
                if signal.si_code <= 0 {
                    pass_on(signal.si_signo);
                }
            }
        };
        let thread = thread::Builder::new().name("signals".into());
        thread.spawn(watching).map_err(failed)?;
        Ok(Self { has_terminal })
    }

    fn until_it_ends(&self, program: &mut Program) -> Result<Change, Failure> {
        loop {
            let change = program.wait();
            match change.map_err(|e| Failure::because("waiting for the program", reason(&e)))? {
                Change::Stopped if self.has_terminal => {
                    let _ = kill_process(getpid(), Signal::STOP);
                }
                Change::Stopped => {}
                end => return Ok(end),
            }
        }
    }
}
