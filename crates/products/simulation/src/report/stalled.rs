//! The failure of a run that does not come to its end: which task waits, since when, and for what.

use pagewire_sockets::Waiter;
use pagewire_stack::{SocketId, Stack};

use crate::host::machine::{Machine, watched};
use crate::host::world::{HostHandle, HostState, ProcessId, SharedWorld, World};
use crate::limits::MAX_IDLE;
use crate::runtime::tokio_runtime::TICK;
use crate::runtime::watchdog::Watch;
use crate::sim::Sim;
use crate::{Failure, FailureKind, HostId, SimTime};

/// Events that are still to come when time is up.
#[derive(Debug, Default)]
struct NextEvents {
    next: Option<SimTime>,
    /// The next timer of each host's tasks, and whether the time is exact, or only a lower bound.
    timers: Vec<Option<(SimTime, bool)>>,
}

impl Sim {
    /// The failure of a run whose clients are not done when time is up. The run cannot go on after this.
    pub(crate) fn stall_failure(&mut self) -> Failure {
        let next = next_events(&self.world, &self.watch, &mut self.machines);
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
        // The next event may lie before the limit or behind it: the limit says nothing about the program.
        let (kind, what) = match next.next {
            None => (FailureKind::NoProgress, format!("nothing happens any more since {last}")),
            Some(next) if next.since(last) >= MAX_IDLE => {
                (FailureKind::NoProgress, format!("nothing happens from {last} to {next}"))
            }
            Some(_) => {
                let limit = self.config.limit;
                (FailureKind::TooLong, format!("not done at the limit of {limit:?}"))
            }
        };
        let details = waiting_tasks(&self.machines, &world, &next);
        drop(world);
        let mut failure = self.failure(kind, None, format!("{what}; not done: {open}"));
        failure.0.details.splice(0..0, details);
        self.over = Some(failure.clone());
        failure
    }

    /// Reports tasks that still run although their program has ended, as the settings ask.
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

/// Finds the next events. This moves the clocks of hosts that nothing can reach.
fn next_events(shared: &SharedWorld, watch: &Watch, machines: &mut [Machine]) -> NextEvents {
    let now = shared.lock().now;
    let mut next = NextEvents::default();
    for (index, machine) in machines.iter_mut().enumerate() {
        next.timers.push(None);
        let (clock, run, host) = match shared.lock().hosts.get(index) {
            Some(host) if host.paused.is_none() => {
                let HostState { id, incarnation, .. } = *host;
                (host.clock, host.run, ProcessId { id, incarnation })
            }
            _ => continue,
        };
        let runtime = machine.runtime.as_mut().filter(|runtime| runtime.tasks() > 0);
        let Some(runtime) = runtime else { continue };
        if runtime.is_woken() || !runtime.clock().is_multiple_of(TICK) {
            // The host would run at once.
            next.next = Some(now);
            continue;
        }
        let here = HostHandle { world: shared.clone(), host };
        let (timer, _) = watched(here, watch, &machine.span, || runtime.next_timer());
        // A visit of the host's next tick, without a timer there, is no event.
        shared.lock().event_queue.set(run, None);
        if let Some((local, exact)) = timer {
            next.timers.pop();
            next.timers.push(Some((clock.global(machine.built_at + local), exact)));
        }
    }
    let world = shared.lock();
    let timer = next.timers.iter().flatten().map(|&(at, _)| at).min();
    let event = world.event_queue.first().map(|(at, ..)| SimTime::from_nanos(at));
    next.next = next.next.into_iter().chain(timer).chain(event).min();
    next
}

/// A line for each task that waits for a socket, and one for the others of a host.
fn waiting_tasks(machines: &[Machine], world: &World, next: &NextEvents) -> Vec<String> {
    let mut lines = Vec::new();
    for ((machine, state), timer) in machines.iter().zip(&world.hosts).zip(&next.timers) {
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
        // One task may have several waiters.
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
    for (from, to, what) in world.network.obstacles() {
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
