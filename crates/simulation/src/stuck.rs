//! What is said of a run that does not come to its end: who waits, since when, and for what.

use pagewire_stack::{SocketId, Stack};

use crate::limits::IDLE;
use crate::sim::Sim;
use crate::waiters::Waiter;
use crate::world::{HostState, World};
use crate::{Failure, FailureKind, HostId};

impl Sim {
    /// Clients are not done, and time is up.
    pub(crate) fn stuck(&self) -> Failure {
        let world = self.world.lock();
        let open: Vec<&str> = self
            .machines
            .iter()
            .zip(&world.hosts)
            .filter(|(machine, _)| machine.client && !machine.done)
            .map(|(_, state)| state.name.as_str())
            .collect();
        let last = world.record.last();
        let idle = world.now.since(last);
        let (kind, what) = if idle >= IDLE {
            (FailureKind::NoProgress, format!("nothing happens any more since {last}"))
        } else {
            (FailureKind::TooLong, format!("not done at the limit of {:?}", self.config.limit))
        };
        let what = format!("{what}; not done: {}", open.join(", "));
        let details = self.who_waits(&world);
        drop(world);
        let mut failure = self.failure(kind, None, what);
        failure.0.details.splice(0..0, details);
        failure
    }

    /// A line for each task that waits for a socket, and one for the others of a host.
    fn who_waits(&self, world: &World) -> Vec<String> {
        let mut lines = Vec::new();
        for (machine, state) in self.machines.iter().zip(&world.hosts) {
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
                lines.push(format!(
                    "`{}`: {others} {} for no socket: a timer, a channel or a lock",
                    state.name,
                    if others == 1 { "task waits" } else { "tasks wait" }
                ));
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

fn line(world: &World, state: &HostState, socket: SocketId, waiter: &Waiter) -> String {
    let mut line = format!("`{}` waits {} since {}", state.name, waiter.what, waiter.since);
    if let Some(at) = waiter.location {
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
