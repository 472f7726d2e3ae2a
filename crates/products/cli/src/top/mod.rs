//! `pagewire top`: a process's throughput, drops, copies and connections, each second anew.
//!
//! [`model`] makes numbers of two looks at the process, [`state`] has what the keys have chosen,
//! [`draw`] makes a screen of both. Here is what needs a process and a terminal.

mod draw;
mod model;
mod state;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use crate::args::view::TopOptions;
use crate::failure::{Failure, plain, reason};
use crate::processes::{self, Process};
use crate::signals::{self, Stop};
use model::{Look, Model};
use state::State;

/// From one look to the next.
const REFRESH: Duration = Duration::from_secs(1);

/// How often signals are looked for.
const SIGNALS: Duration = Duration::from_millis(200);

/// Most connections that are shown, so that a look at a large server stays short. All are counted.
const MOST: usize = 10_000;

pub(crate) fn run(options: &TopOptions) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal; pagewire ss --json is for programs";
        return Err(Failure::Usage(text.into()));
    }
    let mut process = choose(processes::find(&options.target)?)?;
    let stop = signals::watch(|| {})?;
    let failed = |e: io::Error| Failure::because("the terminal", reason(&e));
    // Its hook restores the terminal when this program panics.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let end = show(&mut terminal, &mut process, &stop);
    let restored = ratatui::try_restore();
    let end = end.map_err(failed)?;
    restored.map_err(failed)?;
    if let Some(why) = end {
        // What was looked at has ended: that is no failure.
        println!("pagewire: {}", plain(&format!("{}: {why}", process.name())));
    }
    Ok(())
}

/// The one process to be looked at.
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

/// Shows it until a key or a signal ends that (`None`), or the process does.
fn show(
    terminal: &mut DefaultTerminal,
    process: &mut Process,
    stop: &Stop,
) -> io::Result<Option<String>> {
    let (mut model, mut state) = (Model::new(process.info.clone()), State::default());
    let mut next = Instant::now();
    while !stop.is_set() && !state.quit {
        if Instant::now() >= next {
            if !state.paused {
                match look(process) {
                    Ok(look) => model.update(look),
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

fn look(process: &mut Process) -> Result<Look, pagewire_control::AskError> {
    let mut sockets = process.client.all_sockets(MOST)?;
    sockets.retain(|socket| socket.remote.is_some());
    Ok(Look { stats: process.client.stats()?, sockets })
}
