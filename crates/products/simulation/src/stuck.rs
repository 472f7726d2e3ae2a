//! What is said of a run that does not come to its end: who waits, since when, and for what.

use pagewire_sockets::Waiter;
use pagewire_stack::{SocketId, Stack};

use crate::limits::IDLE;
use crate::machine::{Machine, watched};
use crate::runtime::TICK;
use crate::sim::Sim;
use crate::watch::Watch;
use crate::world::{HostHandle, HostRef, HostState, SharedWorld, World};
use crate::{Failure, FailureKind, HostId, SimTime};

/// What is still to come when time is up.
#[derive(Debug, Default)]
struct Ahead {
    /// The first of all; `None`: nothing.
    next: Option<SimTime>,
    /// Of each host, the next timer of its tasks, and whether that is its exact time, or it may be later.
    timers: Vec<Option<(SimTime, bool)>>,
}

impl Sim {
    /// Clients are not done, and time is up. The run cannot go on after this.
    pub(crate) fn stuck(&mut self) -> Failure {
        let ahead = look_ahead(&self.world, &self.watch, &mut self.machines);
        let world = self.world.lock();
        let open: Vec<&str> = self
            .machines
            .iter()
            .zip(&world.hosts)
            .filter(|(machine, _)| machine.client && !machine.done)
            .map(|(_, state)| state.name.as_str())
            .collect();
        let open = open.join(", ");
        let last = world.record.last().max(self.last_run);
        // Before the limit, or behind it: the limit says nothing about the program.
        let (kind, what) = match ahead.next {
            None => (FailureKind::NoProgress, format!("nothing happens any more since {last}")),
            Some(next) if next.since(last) >= IDLE => {
                (FailureKind::NoProgress, format!("nothing happens from {last} to {next}"))
            }
            Some(_) => {
                let limit = self.config.limit;
                (FailureKind::TooLong, format!("not done at the limit of {limit:?}"))
            }
        };
        let details = who_waits(&self.machines, &world, &ahead);
        drop(world);
        let mut failure = self.failure(kind, None, format!("{what}; not done: {open}"));
        failure.0.details.splice(0..0, details);
        self.over = Some(failure.clone());
        failure
    }

    /// Notes tasks that still run although their program has ended.
    pub(crate) fn note_leak(&mut self, id: HostId, tasks: usize) {
        if self.config.leaks == crate::Leaks::Ignore {
            return;
        }
        let world = self.world.lock();
        let Some(name) = world.hosts.get(id.index()).map(|host| host.name.clone()) else { return };
        drop(world);
        let tasks = if tasks == 1 { "1 task".into() } else { format!("{tasks} tasks") };
        let what = format!("`{name}` has ended, and {tasks} of it still ran: they were dropped");
        if self.config.leaks == crate::Leaks::Fail {
            let failure = self.failure(FailureKind::Leak, Some(id), what);
            self.broken.get_or_insert(failure);
        } else {
            self.warnings.push(what);
        }
    }
}

/// Finds out what would happen next. This moves the clocks of hosts that nothing can reach.
fn look_ahead(shared: &SharedWorld, watch: &Watch, machines: &mut [Machine]) -> Ahead {
    let now = shared.lock().now;
    let mut ahead = Ahead::default();
    for (index, machine) in machines.iter_mut().enumerate() {
        ahead.timers.push(None);
        let (clock, run, host) = match shared.lock().hosts.get(index) {
            Some(host) if host.paused.is_none() => {
                let HostState { id, incarnation, .. } = *host;
                (host.clock, host.run, HostRef { id, incarnation })
            }
            _ => continue,
        };
        let runtime = machine.runtime.as_mut().filter(|runtime| runtime.tasks() > 0);
        let Some(runtime) = runtime else { continue };
        if runtime.is_woken() || !runtime.clock().is_multiple_of(TICK) {
            // It would run at once.
            ahead.next = Some(now);
            continue;
        }
        let here = HostHandle { world: shared.clone(), host };
        let (timer, _) = watched(here, watch, &machine.span, || runtime.next_timer());
        // A visit of its next tick, without a timer there, is nothing that happens.
        shared.lock().agenda.set(run, None);
        if let Some((local, exact)) = timer {
            ahead.timers.pop();
            ahead.timers.push(Some((clock.global(machine.built + local), exact)));
        }
    }
    let world = shared.lock();
    let timer = ahead.timers.iter().flatten().map(|&(at, _)| at).min();
    let event = world.agenda.first().map(|(at, ..)| SimTime::from_nanos(at));
    ahead.next = ahead.next.into_iter().chain(timer).chain(event).min();
    ahead
}

/// A line for each task that waits for a socket, and one for the others of a host.
fn who_waits(machines: &[Machine], world: &World, ahead: &Ahead) -> Vec<String> {
    let mut lines = Vec::new();
    for ((machine, state), timer) in machines.iter().zip(&world.hosts).zip(&ahead.timers) {
        let Some(runtime) = &machine.runtime else {
            if machine.client && !machine.done {
                lines.push(format!(
                    "`{}` was killed, or lost its power, and was not started again",
                    state.name
                ));
            }
            continue;
        };
        let waiters = state.waiters.sorted();
        // Several waiters may be of one task.
        let others = runtime.tasks().saturating_sub(waiters.len());
        for (socket, waiter) in &waiters {
            lines.push(line(world, state, *socket, waiter));
        }
        if others > 0 {
            let wait = if others == 1 { "task waits" } else { "tasks wait" };
            let what = match timer {
                Some((at, true)) => format!("no socket; the next timer is due at {at}"),
                Some((at, false)) => format!("no socket; no timer is due before {at}"),
                None if state.paused.is_some() => "no socket".to_owned(),
                None => "neither a socket nor a timer: for a channel, a lock or the like".into(),
            };
            lines.push(format!("`{}`: {others} {wait} for {what}", state.name));
        }
        if let Some(what) = state.paused {
            lines.push(format!("`{}` is paused ({what:?})", state.name));
        }
    }
    for (from, to, what) in world.fabric.obstacles() {
        let name = |id: HostId| world.hosts.get(id.index()).map_or("", |h| h.name.as_str());
        lines.push(format!("the path from `{}` to `{}` is {what}", name(from), name(to)));
    }
    lines
}

fn line(world: &World, state: &HostState, socket: SocketId, waiter: &Waiter) -> String {
    let since = SimTime::from(waiter.since.unwrap_or_default());
    let mut line = format!("`{}` waits {} since {since}", state.name, waiter.call.what);
    if let Some(at) = waiter.call.location {
        line += &format!(" ({}:{})", at.file(), at.line());
    }
    if let Some(stack) = &state.stack {
        line += &connection(world, stack, socket);
    }
    line
}

/// The state of a socket, as far as it has one.
fn connection(world: &World, stack: &Stack, socket: SocketId) -> String {
    let mut text = String::new();
    let name = |ip| world.names.host_of(ip).and_then(|id| world.hosts.get(id as usize));
    if let Ok(remote) = stack.remote_addr(socket) {
        match name(remote.ip()) {
            Some(host) => text += &format!(", connected to `{}` port {}", host.name, remote.port()),
            None => text += &format!(", connected to {remote}"),
        }
    } else if let Ok(local) = stack.local_addr(socket) {
        text += &format!(", at {local}");
    }
    text
}
