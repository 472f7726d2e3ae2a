//! The event loop: one order of all events, to the nanosecond.
//!
//! Events are frames that arrive, stacks' timers, tasks' timers, and scheduled actions. The first
//! three are known in advance: their sources are in [`World::agenda`]. A task's next timer is not:
//! tokio does not tell, it only jumps there ([`HostRuntime::look`]). A clock that jumped cannot come
//! back, so a host may look ahead only as far as nothing can reach it before:
//!
//! - up to its own first event in the agenda, and the first scheduled action, and
//! - up to one latency beyond the first event of any other host, and beyond what the other hosts, whose
//!   timers are not known either, have been looked at: none of them can send earlier, and a packet
//!   takes a latency at least.
//!
//! So every host is *armed* (its next run is in the agenda) or *clean* up to some time (in
//! [`Sim::clean`]), and the one that is clean for the shortest time looks further. Nothing is visited
//! in vain by a tick, and a timer still fires at its own nanosecond.
//!
//! There is one exception: code shortens a latency, or releases held packets, or wakes a task by shared
//! memory, of another host or from the test between two steps, while that host's clock has moved ahead.
//! It then runs at its own clock's time: late by at most the old latency, and the same in each run.
//!
//! A look polls tasks that were woken before it, so every host that was is to have a turn first: others
//! wake it in an instant, which ends when nobody is woken ([`Sim::gather_others`]), the test between two
//! ([`Sim::run_woken`]). Whoever else wakes it is no part of the simulation ([`Sim::foreign_wake`]).

use crate::agenda::{Agenda, HostOrder, Order};
use crate::clock::{Clock, show};
use crate::command::{Command, PathChange, Pause};
use crate::limits::{MAX_TURNS_AT_ONE_TIME, WATCHED_HOSTS};
use crate::machine::{Machine, watched};
use crate::notes::Note;
use crate::path::{Path, Stage};
use crate::record::Kind;
use crate::runtime::{HostRuntime, TICK, Unrest};
use crate::sim::Sim;
use crate::tape::Tape;
use crate::watch::alone;
use crate::world::{HostHandle, HostRef, World};
use crate::{Failure, FailureKind, HostId, SimTime, panics};

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
        self.obey()?;
        self.run_woken();
        let first = loop {
            let first = self.world.lock().next();
            match self.clean.first() {
                Some((clean, Order::Run(host), _)) if clean < first.min(end.as_nanos()) => {
                    self.look(HostId(host.host()), first, end)?;
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
        self.instant(SimTime::from_nanos(first))?;
        if let Some(parted) = self.config.tape.as_ref().and_then(Tape::parted) {
            return Err(self.failure(FailureKind::NotDeterministic, None, parted));
        }
        self.check_invariants()?;
        Ok(true)
    }

    /// Lets hosts run now whose tasks were woken by code that is no task's: by the test between two
    /// runs, by an invariant, a condition or a scheduled action.
    fn run_woken(&mut self) {
        if !std::mem::take(&mut self.test_ran) {
            return;
        }
        let mut woken = Vec::new();
        let mut world = self.world.lock();
        find_woken(&self.machines, &world, &mut woken);
        for (host, _) in woken {
            let id = HostId(host.host());
            self.last_run = world.now;
            run_now(&mut world, &mut self.clean, &self.machines, id);
        }
    }

    /// Finds the next timer of the host that is clean for the shortest time, as far as it may look:
    /// `first` is when anything is due next.
    fn look(&mut self, id: HostId, first: u64, end: SimTime) -> Done {
        let others = self.clean.second().unwrap_or(u64::MAX).min(first);
        let Some(machine) = self.machines.get_mut(id.index()) else { return Ok(()) };
        let shared = self.world.clone();
        let mut guard = shared.lock();
        let world = &mut *guard;
        let latency = world.fabric.least_latency().as_nanos() as u64;
        let Some(state) = world.hosts.get(id.index()) else { return Ok(()) };
        let Some(runtime) = &mut machine.runtime else {
            self.clean.set(machine.clean, None);
            return Ok(());
        };
        if runtime.is_woken() {
            drop(guard);
            // Many hosts are not asked for after every instant: it may have been another one.
            let certain = self.machines.len() <= WATCHED_HOSTS;
            return self.foreign_wake(id, certain);
        }
        let (clock, built, run) = (state.clock, machine.built, state.run);
        let agenda = &world.agenda;
        let known = [Order::Run(state.order), Order::Actions].map(|order| agenda.first_of(order));
        let own = known.into_iter().flatten().min().unwrap_or(u64::MAX);
        let reached = others.saturating_add(latency);
        let bound = SimTime::from_nanos(own.min(reached).min(end.as_nanos()));
        let target = clock.local(bound).saturating_sub(built) / TICK * TICK;
        if !self.config.look_ahead || target <= runtime.clock() {
            // Too near to look: its next tick is visited.
            let next = clock.global(built + runtime.clock() + TICK);
            world.agenda.set(run, Some(next.as_nanos()));
            self.clean.set(machine.clean, None);
            return Ok(());
        }
        world.record.counts.looks += 1;
        let (touched, tasks) = (state.touched, runtime.tasks());
        let host = HostRef { id, incarnation: state.incarnation };
        drop(guard);
        let here = HostHandle { world: shared.clone(), host };
        let (fired, blocked) = watched(here, &self.watch, &machine.span, || runtime.look(target));
        let at = clock.global(built + runtime.clock()).as_nanos();
        let tasks = tasks != runtime.tasks();
        let mut world = shared.lock();
        if fired {
            if runtime.found_timer(target) {
                self.last_run = self.last_run.max(SimTime::from_nanos(at));
            }
            world.agenda.set(run, Some(at));
        }
        self.clean.set(machine.clean, if fired { None } else { Some(at) });
        let touched = world.hosts.get(id.index()).is_some_and(|host| host.touched) != touched;
        drop(world);
        self.hear_panics()?;
        if touched || tasks || blocked.is_some() {
            // A task has run, which a thread woke after it was asked for: it may have been the last.
            return self.foreign_wake(id, true);
        }
        Ok(())
    }

    /// A host was woken although no task has run since it was last asked for. If that is `certain`, it
    /// was by a thread that is not of the simulation: when, no seed says.
    fn foreign_wake(&mut self, id: HostId, certain: bool) -> Done {
        run_now(&mut self.world.lock(), &mut self.clean, &self.machines, id);
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
    fn instant(&mut self, at: SimTime) -> Done {
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
            while let Some((host, run)) = self.gather(at)? {
                self.turn(HostId(host.host()), run)?;
            }
            self.gather_others(at, &mut hosts);
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
                self.turn(HostId(host.host()), run)?;
            }
        }
    }

    /// Does what is due for the network and for one host, which is to have a turn then: who, and
    /// whether tasks have to run although nothing woke them yet.
    fn gather(&mut self, at: SimTime) -> Done<Option<(HostOrder, bool)>> {
        let (mut found, mut run) = (None, false);
        while let Some(order) = self.take_due(at, found) {
            match order {
                Order::Actions => self.act(at)?,
                Order::Path(host, _) | Order::Timer(host) => found = Some(host),
                Order::Run(host) => (found, run) = (Some(host), true),
            }
        }
        Ok(found.map(|host| (host, run)))
    }

    /// Collects the hosts that others, or orders, have made work for.
    fn gather_others(&mut self, at: SimTime, hosts: &mut Vec<(HostOrder, bool)>) {
        let mut world = self.world.lock();
        let world = &mut *world;
        for id in world.touched.drain(..) {
            let state = world.hosts.get(id.index()).filter(|state| state.touched);
            hosts.extend(state.map(|state| (state.order, false)));
        }
        let ms = at.as_nanos() / TICK;
        if self.machines.len() <= WATCHED_HOSTS || self.last_watch != ms {
            self.last_watch = ms;
            let before = hosts.len();
            find_woken(&self.machines, world, hosts);
            if hosts.len() > before {
                self.last_run = at;
            }
        }
    }

    /// Takes the first source that is due, if it is `of` this host; the network does what it has to
    /// do at once.
    fn take_due(&mut self, at: SimTime, of: Option<HostOrder>) -> Option<Order> {
        let mut world = self.world.lock();
        let (due, order, source) = world.agenda.first()?;
        if due > at.as_nanos() || of.is_some_and(|host| order.host() != Some(host)) {
            return None;
        }
        match order {
            Order::Path(_, number) => world.path_timeout(number),
            Order::Timer(host) => world.stack_timeout(HostId(host.host())),
            Order::Run(_) | Order::Actions => world.agenda.set(source, None),
        }
        Some(order)
    }

    /// Runs scheduled actions that are due.
    fn act(&mut self, at: SimTime) -> Done {
        let control = self.control();
        while let Some(entry) = self.scheduled.first_entry() {
            if entry.key().0 > at.as_nanos() {
                break;
            }
            let action = entry.remove();
            self.test_ran = true;
            if let Err(text) = panics::catch(|| action(&control)) {
                let what = format!("a scheduled action panicked: {text}");
                return Err(self.failure(FailureKind::Panic, None, what));
            }
            self.obey()?;
        }
        self.arm_actions();
        Ok(())
    }

    pub(crate) fn arm_actions(&mut self) {
        let first = self.scheduled.first_key_value().map(|(&(at, _), _)| at);
        self.world.lock().agenda.set(self.actions, first);
    }

    /// A host's turn: its stack sends, its tasks run as long as the stack or others wake them. A host
    /// whose stack nothing has touched only runs.
    fn turn(&mut self, id: HostId, mut run: bool) -> Done {
        let (mut ran, mut sent) = (false, false);
        loop {
            // What tasks said of the network counts for the packets of their run.
            self.obey_network()?;
            let (mut wakes, paused, now) = {
                let mut world = self.world.lock();
                let Some(state) = world.hosts.get(id.index()) else { break };
                let (touched, paused) = (state.touched, state.paused.is_some());
                if touched {
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
            self.arm(id);
        }
        if sent {
            self.world.lock().end_turn(id);
        }
        self.obey()
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
            (tick_at(&state.clock, machine.built, now), state.incarnation)
        };
        let host = HostRef { id, incarnation };
        self.last_panic = None;
        let here = HostHandle { world: self.world.clone(), host };
        let (rest, blocked) = watched(here, &self.watch, &machine.span, || runtime.run(local));
        if std::mem::take(&mut machine.fresh) {
            // A program that sets a panic hook does so as it starts.
            panics::install(alone);
        }
        let failure = match rest {
            Err(Unrest::Spinning) => (
                FailureKind::Spinning,
                "tasks wake themselves, or each other, without an end while time stands still: \
                 does one poll in a loop? Let it sleep, or wait for what it polls"
                    .to_owned(),
            ),
            Err(Unrest::ClockMoved) => (
                FailureKind::Misuse,
                "the program changed tokio's clock (tokio::time::advance, pause or resume): the \
                 simulation moves it"
                    .to_owned(),
            ),
            Ok(()) => {
                // Those who print a panic wait for a lock, and read files of the program's lines.
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

    /// Fails if code of a host has panicked since this was last asked, unless panics are ignored.
    pub(crate) fn hear_panics(&mut self) -> Done {
        let notes = self.world.panics().take();
        self.check_panics(&notes)
    }

    /// Fails if there are panics, unless these are ignored.
    fn check_panics(&mut self, notes: &[Note]) -> Done {
        let Some(first) = notes.first() else { return Ok(()) };
        let host = |note: &Note| note.host.map(HostId);
        {
            let mut world = self.world.lock();
            let now = world.now;
            for note in notes {
                world.record.note(now, Kind::Panic, host(note), &note.text);
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
    fn arm(&mut self, id: HostId) {
        let Some(machine) = self.machines.get_mut(id.index()) else { return };
        let mut world = self.world.lock();
        let world = &mut *world;
        let Some(state) = world.hosts.get(id.index()) else { return };
        let runtime = machine.runtime.as_ref().filter(|runtime| runtime.tasks() > 0);
        let (mut run, mut clean) = (None, None);
        if let Some(runtime) = runtime {
            let local = machine.built + runtime.clock();
            let off = runtime.clock() % TICK;
            if off == 0 && self.config.look_ahead {
                clean = Some(state.clock.global(local).max(world.now).as_nanos());
            } else {
                // Tokio's clock jumps by whole ticks, so a look has to begin on one.
                run = Some(state.clock.global(local - off + TICK).as_nanos());
            }
        }
        world.agenda.set(state.run, run);
        self.clean.set(machine.clean, clean);
    }

    /// Carries out all orders.
    pub(crate) fn obey(&mut self) -> Done {
        loop {
            let command = self.world.lock().next_order(|_| true);
            let Some(command) = command else { return Ok(()) };
            self.carry_out(command)?;
        }
    }

    /// Carries out orders for the network, up to the first one for a host.
    fn obey_network(&mut self) -> Done {
        loop {
            let command = self.world.lock().next_order(Command::is_for_network);
            let Some(command) = command else { return Ok(()) };
            self.carry_out(command)?;
        }
    }

    fn carry_out(&mut self, command: Command) -> Done {
        match command {
            Command::Paths(pairs, change) => {
                let mut world = self.world.lock();
                pairs.into_iter().for_each(|(from, to)| world.change_path(from, to, change));
            }
            Command::DefaultLink(link) => self.world.lock().fabric.set_default(link),
            Command::Uplink(hosts, link) => {
                let mut world = self.world.lock();
                hosts.into_iter().for_each(|host| world.set_stage_link(host, true, link));
            }
            Command::Downlink(hosts, link) => {
                let mut world = self.world.lock();
                hosts.into_iter().for_each(|host| world.set_stage_link(host, false, link));
            }
            Command::Crash(hosts) => hosts.into_iter().for_each(|host| self.crash(host)),
            Command::Kill(hosts) => hosts.into_iter().for_each(|host| self.stop(host)),
            Command::Bounce(hosts) => {
                for host in hosts {
                    self.stop(host);
                    self.start(host);
                }
            }
            Command::Pause(hosts, what) => {
                let mut world = self.world.lock();
                for host in hosts {
                    if let Some(machine) = self.machines.get(host.index()) {
                        self.clean.set(machine.clean, None);
                    }
                    world.pause(host, what);
                }
            }
            Command::Resume(hosts) => {
                let mut world = self.world.lock();
                hosts.into_iter().for_each(|host| world.resume(host));
            }
            Command::Skew(hosts, skew) => {
                let mut world = self.world.lock();
                let world = &mut *world;
                for host in hosts {
                    let Some(state) = world.hosts.get_mut(host.index()) else { continue };
                    state.clock.set(world.now, skew);
                    // Its timers are due at other times now.
                    if state.running {
                        world.agenda.set(state.run, Some(world.now.as_nanos()));
                    }
                }
            }
        }
        // Of destructors.
        self.hear_panics()?;
        match self.broken.take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

/// What a runtime's clock is to show now. A clock that runs fast may pass a tick between two
/// nanoseconds; its timers are due at the tick itself.
fn tick_at(clock: &Clock, built: u64, now: SimTime) -> u64 {
    let local = clock.local(now).saturating_sub(built);
    let tick = local - local % TICK;
    if local > tick && clock.drifts() && clock.global(built + tick) == now { tick } else { local }
}

/// Finds hosts whose tasks were woken by tasks of another host, or from outside.
fn find_woken(machines: &[Machine], world: &World, hosts: &mut Vec<(HostOrder, bool)>) {
    for (machine, state) in machines.iter().zip(&world.hosts) {
        let woken = machine.runtime.as_ref().is_some_and(HostRuntime::is_woken);
        if woken && state.paused.is_none() {
            hosts.push((state.order, true));
        }
    }
}

/// Lets a host run at the present time.
fn run_now(world: &mut World, clean: &mut Agenda, machines: &[Machine], id: HostId) {
    let World { hosts, agenda, now, .. } = world;
    if let (Some(machine), Some(state)) = (machines.get(id.index()), hosts.get(id.index())) {
        agenda.set(state.run, Some(now.as_nanos()));
        clean.set(machine.clean, None);
    }
}

/// What orders do to the network.
impl World {
    /// Takes the next order, if it is of this kind.
    fn next_order(&mut self, is_due: impl FnOnce(&Command) -> bool) -> Option<Command> {
        let command = self.commands.pop_front_if(|command| is_due(command))?;
        let hosts = &self.hosts;
        let name = |host: HostId| hosts.get(host.index()).map_or("", |host| host.name.as_str());
        let words = command.describe(name);
        self.record.order(self.now, &command.to_string(), &words);
        tracing::info!(target: "pagewire_simulation", at = %self.now, "{words}");
        Some(command)
    }

    fn pause(&mut self, id: HostId, what: Pause) {
        let Self { hosts, agenda, .. } = self;
        let Some(state) = hosts.get_mut(id.index()) else { return };
        // Of two pauses the one that stops more, or packets would overtake those that wait.
        let more = state.paused == Some(Pause::Machine);
        state.paused = Some(if more { Pause::Machine } else { what });
        agenda.set(state.run, None);
        if what == Pause::Machine {
            agenda.set(state.timer, None);
        }
    }

    fn change_path(&mut self, from: HostId, to: HostId, change: PathChange) {
        let Self { fabric, agenda, .. } = self;
        match change {
            PathChange::Cut => fabric.change(agenda, from, to, Path::cut),
            PathChange::Repair => fabric.change(agenda, from, to, Path::repair),
            PathChange::Hold => fabric.change(agenda, from, to, Path::hold),
            PathChange::Release => fabric.change(agenda, from, to, Path::release),
            PathChange::Link(link) => fabric.set_link(agenda, Stage::Between(from, to), link),
            PathChange::Slow(link) => fabric.slow(agenda, from, to, link),
            PathChange::Recover => fabric.recover(agenda, from, to),
        }
    }

    /// Ends a pause: what became due meanwhile is due now.
    pub(crate) fn resume(&mut self, id: HostId) {
        let now = self.now.as_nanos();
        self.take_backlog(id);
        let Some(state) = self.hosts.get(id.index()) else { return };
        if state.stack.is_some() {
            self.agenda.set(state.timer, Some(now));
        }
        if state.running {
            self.agenda.set(state.run, Some(now));
        }
    }

    /// Sets a host's uplink or downlink.
    pub(crate) fn set_stage_link(&mut self, host: HostId, up: bool, link: crate::Link) {
        let stage = if up { Stage::Uplink(host) } else { Stage::Downlink(host) };
        let Self { fabric, agenda, .. } = self;
        fabric.set_link(agenda, stage, link);
    }

    /// When something is due next, as far as the agenda knows; `u64::MAX`: never.
    fn next(&self) -> u64 {
        let first = self.agenda.first().map_or(u64::MAX, |(at, ..)| at);
        // Orders from outside have made work for now, or what they made due is overdue.
        if self.touched.is_empty() { first.max(self.now.as_nanos()) } else { self.now.as_nanos() }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
