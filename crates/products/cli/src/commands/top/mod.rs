//! `pagewire top`: the throughput, drops, copies and connections of a process, or the flows and refusals of its
//! gateway, updated each second.
//!
//! This file owns the loop over a process and a terminal. [`model`] computes numbers from two snapshots of
//! the process, [`state`] holds the choices made by keys, [`draw`] draws both.

mod draw;
mod model;
mod state;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use pagewire_control::AskError;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use crate::args::view::TopOptions;
use crate::commands::processes::{self, Process};
use crate::failure::{Failure, plain, reason};
use crate::signals::{self, Stop};
use model::{GatewaySnapshot, Model, Snapshot};
use state::Choices;

/// Time between two snapshots.
const REFRESH: Duration = Duration::from_secs(1);

/// Time between two checks for signals.
const SIGNALS: Duration = Duration::from_millis(200);

/// Most connections, and most flows, that are shown, so that a snapshot of a large server stays short. All are counted.
const MOST: usize = 10_000;

pub(crate) fn run(options: &TopOptions) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal; pagewire ss --json is for programs";
        return Err(Failure::Usage(text.into()));
    }
    let mut process = choose(processes::find(&options.target)?)?;
    let stop = signals::watch(|| {})?;
    let failed = |e: io::Error| Failure::because("the terminal", reason(&e));
    // `try_init` also sets a hook that restores the terminal when this program panics.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let end = show(&mut terminal, &mut process, &stop);
    let restored = ratatui::try_restore();
    let end = end.map_err(failed)?;
    restored.map_err(failed)?;
    if let Some(why) = end {
        // The process that was shown has ended, which is no failure.
        println!("pagewire: {}", plain(&format!("{}: {why}", process.name())));
    }
    Ok(())
}

/// The process to show, which must be the only one.
fn choose(mut all: Vec<Process>) -> Result<Process, Failure> {
    match (all.pop(), all.is_empty()) {
        (None, _) => Err(Failure::Failed(processes::none_found().into())),
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            let names: Vec<String> = all.iter().chain([&last]).map(Process::name).collect();
            let text = format!("several run: {}; choose one with --control PID", names.join(", "));
            Err(Failure::Usage(text))
        }
    }
}

/// Shows the process until a key or a signal ends that (`None`), or the process ends: then says why.
fn show(
    terminal: &mut DefaultTerminal,
    process: &mut Process,
    stop: &Stop,
) -> io::Result<Option<String>> {
    let (mut model, mut state) = (Model::new(process.info.clone()), Choices::default());
    let mut next = Instant::now();
    while !stop.is_set() && !state.quit {
        if Instant::now() >= next {
            if !state.paused {
                match snapshot(process) {
                    Ok(snapshot) => model.update(snapshot),
                    Err(error) => return Ok(Some(processes::why_not(&error))),
                }
            }
            next = Instant::now() + REFRESH;
        }
        terminal.draw(|frame| draw::draw(frame, &model, &mut state))?;
        let wait = next.saturating_duration_since(Instant::now()).min(SIGNALS);
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
        {
            state.key(key);
        }
    }
    Ok(None)
}

fn snapshot(process: &mut Process) -> Result<Snapshot, AskError> {
    let client = &mut process.client;
    let mut sockets = client.all_sockets(MOST)?;
    sockets.retain(|socket| socket.remote.is_some());
    let gateway = match client.all_flows(MOST) {
        Ok(flows) => Some(GatewaySnapshot { flows, refusals: client.refusals()? }),
        // The process has no gateway, or its version knows no flows.
        Err(AskError::Refused(_)) => None,
        Err(error) => return Err(error),
    };
    // Last: the flows' rates are by the clock of these counters.
    Ok(Snapshot { stats: client.stats()?, sockets, gateway })
}
