//! The event loop: one order of all events, to the nanosecond.
//!
//! Events are frames that arrive, stacks' timers, tasks' timers, and scheduled actions. The first
//! three are known in advance: their sources are in [`World::event_queue`]. A task's next timer is not:
//! tokio does not report it, but only jumps there ([`HostRuntime::look_ahead`]). A clock that jumped cannot come
//! back, so a host may look ahead only as far as nothing can reach it before:
//!
//! - up to its own first event in the queue, and the first scheduled action, and
//! - up to one latency beyond the first event of any other host, and beyond the time up to which other hosts
//!   with unknown timers are idle: none of them can send earlier, and a packet takes a latency at least.
//!
//! Therefore every host is *armed* (its next run is in the queue) or *idle* up to some time (in
//! [`Sim::idle`]), and the host that is idle for the shortest time looks further. No host is visited
//! in vain by a tick, and a timer still fires at its own nanosecond.
//!
//! There is one exception: code shortens a latency, or releases held packets, or wakes a task by shared
//! memory, of another host or from the test between two steps, while that host's clock has moved ahead.
//! The host then runs at its own clock's time: late by at most the old latency, and the same in each run.
//!
//! Looking ahead polls tasks that were woken before, so every woken host is to have a turn first: other hosts
//! wake it in an instant, which ends when nobody is woken ([`Sim::collect_woken`]), the test between two
//! ([`Sim::run_woken`]). Any other waker is no part of the simulation ([`Sim::on_foreign_wake`]).
use crate::events::queue::{EventQueue, HostOrder, SourceOrder};
use crate::faults::command::{Command, HostChange, PathChange, Pause};
use crate::host::clock::{Clock, show};
use crate::host::machine::{Machine, watched};
use crate::host::world::{HostHandle, ProcessId, World};
use crate::limits::{MAX_TURNS_AT_ONE_TIME, WATCHED_HOSTS};
use crate::network::path::{Path, Stage};
use crate::record::comparison::RunComparison;
use crate::record::packet_event::RunEvent;
use crate::runtime::panic_hook;
use crate::runtime::panic_notes::PanicNote;
use crate::runtime::tokio_runtime::{HostRuntime, TICK, TurnError};
use crate::runtime::watchdog::with_turns_paused;
use crate::sim::Sim;
use crate::{Failure, FailureKind, HostId, SimTime};

type Done<T = ()> = std::result::Result<T, Failure>;

impl Sim {
    /// Moves on to the next instant at which something is due, and does it. `false`: nothing is due
    /// by `end`, and it is `end` now.
    pub(crate) fn advance(&mut self, end: SimTime) -> Done<bool> {
        if tokio::runtime::Handle::try_current().is_ok() {
            let what = "the simulation was run inside of another tokio runtime: run it from a plain \
                        `#[test]`, not from `#[tokio::test]` or an async function";
            return Err(self.failure(FailureKind::Misuse, None, what));
        }
        if let Some(failure) = self.broken.take().or_else(|| self.over.clone()) {
            return Err(failure);
        }
        self.moved = true;
        self.run_commands()?;
        self.run_woken();
        let first = loop {
            let first = self.world.lock().next();
            match self.idle.first() {
                Some((idle, SourceOrder::Run(host), _)) if idle < first.min(end.as_nanos()) => {
                    self.look_ahead(HostId(host.host()), first, end)?;
                }
                _ => break first,
            }
        };
        if first > end.as_nanos() {
            let mut world = self.world.lock();
            world.now = end;
            show(Some((end, world.epoch)));
            return Ok(false);
        }
        self.run_instant(SimTime::from_nanos(first))?;
        if let Some(parted) = self.config.comparison.as_ref().and_then(RunComparison::parted) {
            return Err(self.failure(FailureKind::NotDeterministic, None, parted));
        }
        self.check_invariants()?;
        Ok(true)
    }

    /// Lets hosts run now whose tasks were woken by code that is no task's: by the test between two
    /// runs, by an invariant, a condition or a scheduled action.
    fn run_woken(&mut self) {
        if !std::mem::take(&mut self.test_code_ran) {
            return;
        }
        let mut woken = Vec::new();
        let mut world = self.world.lock();
        collect_woken_by_tasks(&self.machines, &world, &mut woken);
        for (host, _) in woken {
            let id = HostId(host.host());
            self.last_run = world.now;
            run_now(&mut world, &mut self.idle, &self.machines, id);
        }
    }

    /// Finds the next timer of the host that is idle for the shortest time, as far as it may look:
    /// `first` is when anything is due next.
    fn look_ahead(&mut self, id: HostId, first: u64, end: SimTime) -> Done {
        let others = self.idle.second().unwrap_or(u64::MAX).min(first);
        let Some(machine) = self.machines.get_mut(id.index()) else { return Ok(()) };
        let shared = self.world.clone();
        let mut guard = shared.lock();
        let world = &mut *guard;
        let latency = world.network.least_latency().as_nanos() as u64;
        let Some(state) = world.hosts.get(id.index()) else { return Ok(()) };
        let Some(runtime) = &mut machine.runtime else {
            self.idle.set(machine.idle, None);
            return Ok(());
        };
        if runtime.is_woken() {
            drop(guard);
            // In a large simulation hosts are not asked after every instant: another host may have woken this one.
            let certain = self.machines.len() <= WATCHED_HOSTS;
            return self.on_foreign_wake(id, certain);
        }
        let (clock, built, run) = (state.clock, machine.built_at, state.run);
        let event_queue = &world.event_queue;
        let known = [SourceOrder::Run(state.order), SourceOrder::Actions]
            .map(|order| event_queue.first_of(order));
        let own = known.into_iter().flatten().min().unwrap_or(u64::MAX);
        let reached = others.saturating_add(latency);
        let bound = SimTime::from_nanos(own.min(reached).min(end.as_nanos()));
        let target = clock.local(bound).saturating_sub(built) / TICK * TICK;
        if !self.config.look_ahead || target <= runtime.clock() {
            // The bound is too near to look ahead: the host runs at its next tick.
            let next = clock.global(built + runtime.clock() + TICK);
            world.event_queue.set(run, Some(next.as_nanos()));
            self.idle.set(machine.idle, None);
            return Ok(());
        }
        world.record.counts.looks += 1;
        let (needs_turn, tasks) = (state.needs_turn, runtime.tasks());
        let host = ProcessId { id, incarnation: state.incarnation };
        drop(guard);
        let here = HostHandle { world: shared.clone(), host };
        let (fired, blocked) =
            watched(here, &self.watch, &machine.span, || runtime.look_ahead(target));
        let at = clock.global(built + runtime.clock()).as_nanos();
        let tasks = tasks != runtime.tasks();
        let mut world = shared.lock();
        if fired {
            if runtime.found_timer(target) {
                self.last_run = self.last_run.max(SimTime::from_nanos(at));
            }
            world.event_queue.set(run, Some(at));
        }
        self.idle.set(machine.idle, if fired { None } else { Some(at) });
        let needs_turn =
            world.hosts.get(id.index()).is_some_and(|host| host.needs_turn) != needs_turn;
        drop(world);
        self.check_new_panics()?;
        if needs_turn || tasks || blocked.is_some() {
            // A task has run, which a thread woke after the check above: that may have been the task's last run.
            return self.on_foreign_wake(id, true);
        }
        Ok(())
    }

    /// Handles a host that was woken although no task has run since it was last asked for. If `certain`, the
    /// waker was a thread outside of the simulation, at a time that no seed determines.
    fn on_foreign_wake(&mut self, id: HostId, certain: bool) -> Done {
        run_now(&mut self.world.lock(), &mut self.idle, &self.machines, id);
        if !certain {
            return Ok(());
        }
        let what = "a thread outside of the simulation woke a task: when it does so is real time, which \
                    no seed determines. Use tokio::spawn, or spawn_blocking, whose work the simulation \
                    waits for";
        if self.config.foreign_threads == crate::ForeignThreads::Fail {
            return Err(self.failure(FailureKind::ForeignThread, Some(id), what));
        }
        let world = self.world.lock();
        let name = world.hosts.get(id.index()).map_or("", |host| host.name.as_str());
        let warning = format!("`{name}`: {what}");
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
        Ok(())
    }

    /// Does everything that is due at `at`, in order: actions, then host after host its arrivals, its
    /// stack's timer, its tasks. Hosts do not meet within an instant, as every packet takes time; one
    /// after the other, each finds its memory in the processor's caches.
    fn run_instant(&mut self, at: SimTime) -> Done {
        {
            let mut world = self.world.lock();
            if world.now < at {
                self.turns_now = 0;
            }
            world.now = at;
            show(Some((at, world.epoch)));
        }
        let mut hosts = Vec::new();
        loop {
            while let Some((host, run)) = self.collect_due(at)? {
                self.run_turn(HostId(host.host()), run)?;
            }
            self.collect_woken(at, &mut hosts);
            if hosts.is_empty() {
                return Ok(());
            }
            // By their order, which may be random among ties.
            hosts.sort_unstable();
            hosts.dedup_by(|again, first| {
                let same = again.0 == first.0;
                first.1 |= same && again.1;
                same
            });
            for (host, run) in hosts.drain(..) {
                self.run_turn(HostId(host.host()), run)?;
            }
        }
    }

    /// Does everything that is due for the network and for one host. Returns the host, which is to have a turn
    /// then, and whether its tasks have to run although nothing woke them yet.
    fn collect_due(&mut self, at: SimTime) -> Done<Option<(HostOrder, bool)>> {
        let (mut found, mut run) = (None, false);
        while let Some(order) = self.take_due(at, found) {
            match order {
                SourceOrder::Actions => self.run_actions(at)?,
                SourceOrder::Path(host, _) | SourceOrder::Timer(host) => found = Some(host),
                SourceOrder::Run(host) => (found, run) = (Some(host), true),
            }
        }
        Ok(found.map(|host| (host, run)))
    }

    /// Collects the hosts that other hosts, or commands, have made work for.
    fn collect_woken(&mut self, at: SimTime, hosts: &mut Vec<(HostOrder, bool)>) {
        let mut world = self.world.lock();
        let world = &mut *world;
        for id in world.needs_turn.drain(..) {
            let state = world.hosts.get(id.index()).filter(|state| state.needs_turn);
            hosts.extend(state.map(|state| (state.order, false)));
        }
        let ms = at.as_nanos() / TICK;
        if self.machines.len() <= WATCHED_HOSTS || self.last_woken_check != ms {
            self.last_woken_check = ms;
            let before = hosts.len();
            collect_woken_by_tasks(&self.machines, world, hosts);
            if hosts.len() > before {
                self.last_run = at;
            }
        }
    }

    /// Takes the first source that is due, if it is `of` this host; work of the network is done
    /// at once.
    fn take_due(&mut self, at: SimTime, of: Option<HostOrder>) -> Option<SourceOrder> {
        let mut world = self.world.lock();
        let (due, order, source) = world.event_queue.first()?;
        if due > at.as_nanos() || of.is_some_and(|host| order.host() != Some(host)) {
            return None;
        }
        match order {
            SourceOrder::Path(_, number) => world.path_timeout(number),
            SourceOrder::Timer(host) => world.stack_timeout(HostId(host.host())),
            SourceOrder::Run(_) | SourceOrder::Actions => world.event_queue.set(source, None),
        }
        Some(order)
    }

    fn run_actions(&mut self, at: SimTime) -> Done {
        let control = self.control();
        while let Some(entry) = self.scheduled.first_entry() {
            if entry.key().0 > at.as_nanos() {
                break;
            }
            let action = entry.remove();
            self.test_code_ran = true;
            if let Err(text) = panic_hook::catch(|| action(&control)) {
                let what = format!("a scheduled action panicked: {text}");
                return Err(self.failure(FailureKind::Panic, None, what));
            }
            self.run_commands()?;
        }
        self.queue_actions();
        Ok(())
    }

    pub(crate) fn queue_actions(&mut self) {
        let first = self.scheduled.first_key_value().map(|(&(at, _), _)| at);
        self.world.lock().event_queue.set(self.actions, first);
    }

    /// Gives a host its turn: its stack sends, its tasks run as long as the stack or others wake them. If the
    /// stack has no work, only the tasks run.
    fn run_turn(&mut self, id: HostId, mut run: bool) -> Done {
        let (mut ran, mut sent) = (false, false);
        loop {
            // Commands of tasks for the network count for the packets of their run.
            self.run_network_commands()?;
            let (mut wakes, paused, now) = {
                let mut world = self.world.lock();
                let Some(state) = world.hosts.get(id.index()) else { break };
                let (needs_turn, paused) = (state.needs_turn, state.paused.is_some());
                if needs_turn {
                    sent = true;
                    world.transmit(id);
                    world.collect_wakes(id);
                }
                (world.take_wakes(), paused, world.now)
            };
            if wakes.is_empty() && !run {
                break;
            }
            if !wakes.is_empty() {
                self.last_run = now;
            }
            if self.config.random_wakes {
                self.wake_order.shuffle(&mut wakes);
            }
            wakes.into_iter().for_each(std::task::Waker::wake);
            if paused {
                break;
            }
            (run, ran) = (false, true);
            self.run_tasks(id)?;
            self.turns_now += 1;
            if self.turns_now > MAX_TURNS_AT_ONE_TIME {
                let what = format!(
                    "time stands still: hosts had {} turns at one simulated time",
                    self.turns_now
                );
                return Err(self.failure(FailureKind::Spinning, Some(id), what));
            }
        }
        if ran {
            self.check_end(id)?;
            self.schedule_next_run(id);
        }
        if sent {
            self.world.lock().end_turn(id);
        }
        self.run_commands()
    }

    /// Lets a host's tasks run at the present time, until they are at rest.
    fn run_tasks(&mut self, id: HostId) -> Done {
        let Some(machine) = self.machines.get_mut(id.index()) else { return Ok(()) };
        let Some(runtime) = &mut machine.runtime else { return Ok(()) };
        let (local, incarnation) = {
            let mut world = self.world.lock();
            world.record.counts.runs += 1;
            let now = world.now;
            let Some(state) = world.hosts.get(id.index()) else { return Ok(()) };
            (tick_at(&state.clock, machine.built_at, now), state.incarnation)
        };
        let host = ProcessId { id, incarnation };
        self.last_panic = None;
        let here = HostHandle { world: self.world.clone(), host };
        let (rest, blocked) = watched(here, &self.watch, &machine.span, || runtime.run(local));
        if std::mem::take(&mut machine.just_started) {
            // A program that sets a panic hook does so as it starts.
            panic_hook::install(with_turns_paused);
        }
        let failure = match rest {
            Err(TurnError::Spinning) => (
                FailureKind::Spinning,
                "tasks wake themselves, or each other, without an end while time stands still: \
                 does one poll in a loop? Let it sleep, or wait for what it polls"
                    .to_owned(),
            ),
            Err(TurnError::ClockMoved) => (
                FailureKind::Misuse,
                "the program changed tokio's clock (tokio::time::advance, pause or resume): the \
                 simulation moves it"
                    .to_owned(),
            ),
            Ok(()) => {
                // Printing a panic waits for a lock, and reads files of debug information.
                let notes = self.world.panics().take();
                // A panic that fails the run is the better reason.
                self.check_panics(&notes)?;
                match blocked.filter(|it| it.is_certain() || notes.is_empty()) {
                    Some(blocked) => (blocked.kind(), blocked.to_string()),
                    None => return Ok(()),
                }
            }
        };
        Err(self.failure(failure.0, Some(id), failure.1))
    }

    /// Fails if code of a host has panicked since the last call, unless panics are ignored.
    pub(crate) fn check_new_panics(&mut self) -> Done {
        let notes = self.world.panics().take();
        self.check_panics(&notes)
    }

    /// Records these panics, and fails if there are any, unless panics are ignored.
    fn check_panics(&mut self, notes: &[PanicNote]) -> Done {
        let Some(first) = notes.first() else { return Ok(()) };
        let host = |note: &PanicNote| note.host.map(HostId);
        {
            let mut world = self.world.lock();
            let now = world.now;
            for note in notes {
                world.record.note(now, RunEvent::Panic, host(note), &note.text);
            }
        }
        if let Some((used, instead)) = first.needs_kernel() {
            let what = format!(
                "{used} was used in the simulation: {instead} ({first}). For tests in `tests/` a crate \
                 is built without `cfg(test)`: switch by a feature there"
            );
            return Err(self.failure(FailureKind::RealSocket, host(first), what));
        }
        self.last_panic = Some(first.to_string());
        if self.config.panics == crate::Panics::Fail {
            let what = self.panic_text();
            return Err(self.failure(FailureKind::Panic, host(first), what));
        }
        Ok(())
    }

    pub(crate) fn panic_text(&mut self) -> String {
        let text = self.last_panic.take().unwrap_or_else(|| "without a message".into());
        format!("a task panicked: {text}")
    }

    /// Decides when the host runs again by itself, after its tasks ran.
    fn schedule_next_run(&mut self, id: HostId) {
        let Some(machine) = self.machines.get_mut(id.index()) else { return };
        let mut world = self.world.lock();
        let world = &mut *world;
        let Some(state) = world.hosts.get(id.index()) else { return };
        let runtime = machine.runtime.as_ref().filter(|runtime| runtime.tasks() > 0);
        let (mut run, mut idle) = (None, None);
        if let Some(runtime) = runtime {
            let local = machine.built_at + runtime.clock();
            let off = runtime.clock() % TICK;
            if off == 0 && self.config.look_ahead {
                idle = Some(state.clock.global(local).max(world.now).as_nanos());
            } else {
                // Tokio's clock jumps by whole ticks, so looking ahead has to begin on one.
                run = Some(state.clock.global(local - off + TICK).as_nanos());
            }
        }
        world.event_queue.set(state.run, run);
        self.idle.set(machine.idle, idle);
    }

    pub(crate) fn run_commands(&mut self) -> Done {
        loop {
            let command = self.world.lock().next_command(|_| true);
            let Some(command) = command else { return Ok(()) };
            self.run_command(command)?;
        }
    }

    /// Carries out commands for the network, up to the first one for a host.
    fn run_network_commands(&mut self) -> Done {
        loop {
            let command = self.world.lock().next_command(Command::is_for_network);
            let Some(command) = command else { return Ok(()) };
            self.run_command(command)?;
        }
    }

    fn run_command(&mut self, command: Command) -> Done {
        match command {
            Command::Paths(pairs, change) => {
                let mut world = self.world.lock();
                pairs.into_iter().for_each(|(from, to)| world.change_path(from, to, change));
            }
            Command::DefaultLink(link) => self.world.lock().network.set_default(link),
            Command::Hosts(hosts, change) => {
                hosts.into_iter().for_each(|host| self.change_host(host, change));
            }
        }
        // Destructors of the tasks may have panicked.
        self.check_new_panics()?;
        match self.broken.take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn change_host(&mut self, id: HostId, change: HostChange) {
        match change {
            HostChange::Uplink(link) => self.world.lock().set_stage_link(id, true, link),
            HostChange::Downlink(link) => self.world.lock().set_stage_link(id, false, link),
            HostChange::Crash => self.crash(id),
            HostChange::Kill => self.stop(id),
            HostChange::Bounce => {
                self.stop(id);
                self.start(id);
            }
            HostChange::Pause(what) => {
                if let Some(machine) = self.machines.get(id.index()) {
                    self.idle.set(machine.idle, None);
                }
                self.world.lock().pause(id, what);
            }
            HostChange::Resume => self.world.lock().resume(id),
            HostChange::Skew(skew) => {
                let mut world = self.world.lock();
                let World { hosts, event_queue, now, .. } = &mut *world;
                let Some(state) = hosts.get_mut(id.index()) else { return };
                state.clock.set(*now, skew);
                // Timers of the host are due at other times now.
                if state.running {
                    event_queue.set(state.run, Some(now.as_nanos()));
                }
            }
        }
    }
}

/// The reading of a runtime's clock now. A clock that runs fast may pass a tick between two
/// nanoseconds; its timers are due at the tick itself.
fn tick_at(clock: &Clock, built: u64, now: SimTime) -> u64 {
    let local = clock.local(now).saturating_sub(built);
    let tick = local - local % TICK;
    if local > tick && clock.drifts() && clock.global(built + tick) == now { tick } else { local }
}

/// Finds hosts whose tasks were woken by tasks of another host, or from outside.
fn collect_woken_by_tasks(machines: &[Machine], world: &World, hosts: &mut Vec<(HostOrder, bool)>) {
    for (machine, state) in machines.iter().zip(&world.hosts) {
        let woken = machine.runtime.as_ref().is_some_and(HostRuntime::is_woken);
        if woken && state.paused.is_none() {
            hosts.push((state.order, true));
        }
    }
}

fn run_now(world: &mut World, idle: &mut EventQueue, machines: &[Machine], id: HostId) {
    let World { hosts, event_queue, now, .. } = world;
    if let (Some(machine), Some(state)) = (machines.get(id.index()), hosts.get(id.index())) {
        event_queue.set(state.run, Some(now.as_nanos()));
        idle.set(machine.idle, None);
    }
}

/// Commands for the network.
impl World {
    /// Takes the next command, if `is_due` accepts it.
    fn next_command(&mut self, is_due: impl FnOnce(&Command) -> bool) -> Option<Command> {
        let command = self.commands.pop_front_if(|command| is_due(command))?;
        let hosts = &self.hosts;
        let name = |host: HostId| hosts.get(host.index()).map_or("", |host| host.name.as_str());
        let words = command.describe(name);
        self.record.order(self.now, &command.to_string(), &words);
        tracing::info!(target: "pagewire_simulation", at = %self.now, "{words}");
        Some(command)
    }

    fn pause(&mut self, id: HostId, what: Pause) {
        let Self { hosts, event_queue, .. } = self;
        let Some(state) = hosts.get_mut(id.index()) else { return };
        // The stricter of two pauses counts; otherwise packets would overtake the backlog.
        let more = state.paused == Some(Pause::Machine);
        state.paused = Some(if more { Pause::Machine } else { what });
        event_queue.set(state.run, None);
        if what == Pause::Machine {
            event_queue.set(state.timer, None);
        }
    }

    fn change_path(&mut self, from: HostId, to: HostId, change: PathChange) {
        let Self { network, event_queue, .. } = self;
        match change {
            PathChange::Cut => network.change(event_queue, from, to, Path::cut),
            PathChange::Repair => network.change(event_queue, from, to, Path::repair),
            PathChange::Hold => network.change(event_queue, from, to, Path::hold),
            PathChange::Release => network.change(event_queue, from, to, Path::release),
            PathChange::Link(link) => network.set_link(event_queue, Stage::Between(from, to), link),
            PathChange::Slow(link) => network.slow(event_queue, from, to, link),
            PathChange::Recover => network.recover(event_queue, from, to),
        }
    }

    /// Ends a pause: everything that became due meanwhile is due now.
    pub(crate) fn resume(&mut self, id: HostId) {
        let now = self.now.as_nanos();
        self.take_backlog(id);
        let Some(state) = self.hosts.get(id.index()) else { return };
        if state.stack.is_some() {
            self.event_queue.set(state.timer, Some(now));
        }
        if state.running {
            self.event_queue.set(state.run, Some(now));
        }
    }

    pub(crate) fn set_stage_link(&mut self, host: HostId, up: bool, link: crate::Link) {
        let stage = if up { Stage::Uplink(host) } else { Stage::Downlink(host) };
        let Self { network, event_queue, .. } = self;
        network.set_link(event_queue, stage, link);
    }

    /// The time of the first event in the queue; `u64::MAX`: none.
    fn next(&self) -> u64 {
        let first = self.event_queue.first().map_or(u64::MAX, |(at, ..)| at);
        // Commands from outside have made work for now, or events that they made due are overdue.
        if self.needs_turn.is_empty() {
            first.max(self.now.as_nanos())
        } else {
            self.now.as_nanos()
        }
    }
}

#[cfg(test)]
#[path = "event_loop_tests.rs"]
mod tests;
