//! The lifecycle of hosts: adding, starting, stopping and crashing them, and their stacks' settings.

use pagewire_device::{Capabilities, Medium};
use pagewire_stack::{Cidr, PoolMemory, Stack, StackConfig};

use crate::events::queue::SourceOrder;
use crate::host::clock::Clock;
use crate::host::machine::{Machine, Software, watched};
use crate::host::selectors::HostOptions;
use crate::host::world::{HostHandle, HostState, ProcessId};
use crate::limits::MAX_HOSTS;
use crate::network::icmp::{ROUTER_V4, ROUTER_V6};
use crate::random::{SimRng, secret, split};
use crate::record::packet_event::RunEvent;
use crate::runtime::tokio_runtime::{HostRuntime, Program, ProgramEnd};
use crate::sim::Sim;
use crate::{FailureKind, HostId};

impl Sim {
    /// Adds a host, and starts its program at the present time.
    pub(crate) fn add_host(
        &mut self,
        options: HostOptions,
        software: Software,
        client: bool,
    ) -> HostId {
        let shared = self.world.clone();
        let mut world = shared.lock();
        let id = HostId(world.hosts.len() as u32);
        let name = options.name.clone();
        assert!(world.hosts.len() < MAX_HOSTS, "more than {MAX_HOSTS} hosts");
        assert!(world.names.resolve(&name).is_none(), "two hosts are called `{name}`");
        let addresses = match options.addresses.as_slice() {
            [] => world.names.free(self.config.ip, id.0),
            given => given.to_vec(),
        };
        if let Err(taken) = world.names.assign(id.0, &addresses) {
            let other = world.names.host_of(taken).and_then(|n| world.hosts.get(n as usize));
            let other = other.map_or(String::new(), |other| other.name.clone());
            drop(world);
            panic!("`{name}` cannot have the address {taken}: `{other}` has it");
        }
        world.names.set(&name, addresses.clone());
        let order = world.network.order_of(id);
        let mut clock = Clock::default();
        clock.set(world.now, options.skew);
        let state = HostState {
            id,
            order,
            name,
            addresses,
            stack: None,
            running: false,
            paused: None,
            incarnation: 0,
            ended: false,
            needs_turn: false,
            waiters: Default::default(),
            clock,
            random: SimRng::new(0),
            backlog: Vec::new(),
            timer: world.event_queue.add(SourceOrder::Timer(order)),
            run: world.event_queue.add(SourceOrder::Run(order)),
        };
        world.record.host(id, &state.name, &state.addresses);
        let (name, seed) = (&state.name, self.seed);
        let span = tracing::info_span!(target: "pagewire_simulation", "host", name, seed);
        world.hosts.push(state);
        for (link, uplink) in [(options.uplink, true), (options.downlink, false)] {
            if let Some(link) = link {
                world.set_stage_link(id, uplink, link);
            }
        }
        drop(world);
        let idle = self.idle.add(SourceOrder::Run(order));
        let machine = Machine {
            software,
            options,
            client,
            done: false,
            runtime: None,
            just_started: false,
            built_at: 0,
            idle,
            span,
        };
        self.machines.push(machine);
        self.start(id);
        id
    }

    /// Starts a host's program, on a stack of its own if the machine has none.
    pub(crate) fn start(&mut self, id: HostId) {
        let shared = self.world.clone();
        let Some(machine) = self.machines.get_mut(id.index()) else { return };
        let program: Program = match &mut machine.software {
            Software::Again(software) => {
                let software = software.clone();
                // The closure's own code runs with the program.
                Box::pin(async move { software().await })
            }
            Software::Once(program) => match program.take() {
                Some(program) => program,
                None => return self.cannot_start_again(id),
            },
        };
        let mut world = shared.lock();
        if world.hosts.get(id.index()).is_some_and(|host| host.paused.is_some()) {
            // The host was paused while it was down.
            world.resume(id);
        }
        let (seed, now) = (self.seed, world.now);
        let Some(state) = world.hosts.get_mut(id.index()) else { return };
        state.incarnation += 1;
        state.ended = false;
        let incarnation = state.incarnation;
        state.random = SimRng::new(split(split(seed, &state.name, 1), "rng", incarnation.into()));
        machine.built_at = state.clock.local(now);
        let select = split(split(seed, &state.name, 2), "select", incarnation.into());
        let started = match self.config.stack(&machine.options, state, seed) {
            _ if state.stack.is_some() => Ok(()),
            Ok(config) => named_stack(now, config).map(|stack| state.stack = Some(stack)),
            Err(error) => Err(error),
        };
        let runtime =
            started.and_then(|()| HostRuntime::new(&state.name, select).map_err(|e| e.to_string()));
        match runtime {
            Ok(mut runtime) => {
                let host = ProcessId { id, incarnation };
                runtime.start(HostHandle { world: shared.clone(), host }, program);
                self.watch.start(id, &state.name, &runtime);
                machine.runtime = Some(runtime);
                (machine.done, machine.just_started) = (false, true);
                state.running = true;
                let run = state.run;
                world.event_queue.set(run, Some(now.as_nanos()));
                world.record.note(now, RunEvent::Start, Some(id), "started");
            }
            Err(error) => {
                drop(world);
                let what = format!("it cannot start: {error}");
                let failure = self.failure(FailureKind::Host, Some(id), what);
                self.broken.get_or_insert(failure);
            }
        }
    }

    /// Notes the failure that a client of one future, which has run, cannot start again.
    fn cannot_start_again(&mut self, id: HostId) {
        let what = "it cannot start again, because `Sim::client` made it of one future, which has \
                    run: add it with `Sim::client_with`, whose closure makes a future for each start";
        let failure = self.failure(FailureKind::Misuse, Some(id), what);
        self.broken.get_or_insert(failure);
    }

    /// Ends a host's process as a kernel does: its tasks are dropped, its sockets close.
    pub(crate) fn stop(&mut self, id: HostId) {
        let shared = self.world.clone();
        let Some(machine) = self.machines.get_mut(id.index()) else { return };
        self.idle.set(machine.idle, None);
        let Some(runtime) = machine.runtime.take() else { return };
        let incarnation = {
            let mut world = shared.lock();
            let world = &mut *world;
            let Some(state) = world.hosts.get_mut(id.index()) else { return };
            state.running = false;
            state.mark_for_turn(&mut world.needs_turn);
            world.event_queue.set(state.run, None);
            let incarnation = state.incarnation;
            if state.paused.is_some() {
                // The next process is not paused.
                world.resume(id);
            }
            incarnation
        };
        let here = HostHandle { world: shared.clone(), host: ProcessId { id, incarnation } };
        let ((), blocked) = watched(here, &self.watch, &machine.span, || runtime.shutdown());
        // Printing a panic waits, too.
        if let Some(blocked) = blocked.filter(|it| it.is_certain() || shared.panics().is_empty()) {
            let failure = self.failure(blocked.kind(), Some(id), blocked.to_string());
            self.broken.get_or_insert(failure);
        }
        shared.lock().end_process(id);
        let wakes = shared.lock().take_wakes();
        wakes.into_iter().for_each(std::task::Waker::wake);
    }

    /// Takes a host's power away: packets that sockets send when they are dropped reach nobody.
    pub(crate) fn crash(&mut self, id: HostId) {
        let shared = self.world.clone();
        let stack = {
            let mut world = shared.lock();
            let world = &mut *world;
            let Some(state) = world.hosts.get_mut(id.index()) else { return };
            world.event_queue.set(state.timer, None);
            // Sockets of this incarnation are dead from here on.
            state.incarnation += 1;
            state.backlog.clear();
            state.paused = None;
            state.stack.take()
        };
        self.stop(id);
        drop(stack);
    }

    /// Checks whether a host's program has ended, after a run of its tasks.
    pub(crate) fn check_end(&mut self, id: HostId) -> std::result::Result<(), crate::Failure> {
        let Some(machine) = self.machines.get_mut(id.index()) else { return Ok(()) };
        let Some(runtime) = &mut machine.runtime else { return Ok(()) };
        let Some(end) = runtime.take_end() else { return Ok(()) };
        let (client, may_fail) = (machine.client, machine.options.may_fail);
        let tasks = runtime.tasks();
        machine.done = true;
        let text = match &end {
            ProgramEnd::Returned(Ok(())) => "ended".to_owned(),
            ProgramEnd::Returned(Err(error)) => format!("ended: {error}"),
            ProgramEnd::Panicked => "ended: panicked".to_owned(),
        };
        {
            let mut world = self.world.lock();
            let now = world.now;
            world.record.note(now, RunEvent::End, Some(id), &text);
        }
        if tasks > 0 {
            self.note_leak(id, tasks);
        }
        let panicked = self.last_panic.take();
        self.stop(id);
        match end {
            ProgramEnd::Returned(Err(error)) if client => {
                Err(self.failure(FailureKind::Client, Some(id), error.to_string()))
            }
            ProgramEnd::Returned(Err(error)) if !may_fail => {
                Err(self.failure(FailureKind::Host, Some(id), error.to_string()))
            }
            ProgramEnd::Returned(_) => self.check_new_panics(),
            ProgramEnd::Panicked => {
                self.last_panic = panicked;
                let what = self.panic_text();
                Err(self.failure(FailureKind::Panic, Some(id), what))
            }
        }
    }
}

impl crate::Builder {
    fn stack(
        &self,
        options: &HostOptions,
        state: &HostState,
        seed: u64,
    ) -> std::result::Result<StackConfig, String> {
        let mtu = self.link.mtu;
        let capabilities = Capabilities {
            medium: Medium::Ip,
            max_super_frame: if self.super_frames { 65_535.max(mtu) } else { mtu },
            tso_v4: self.super_frames,
            tso_v6: self.super_frames,
            uso: self.super_frames,
            ..Capabilities::offloading([0; 6], mtu)
        };
        let cidr = |addr: &std::net::IpAddr| {
            Cidr::new(*addr, if addr.is_ipv4() { 8 } else { 64 }).map_err(|e| e.to_string())
        };
        let addresses = state.addresses.iter().map(cidr).collect::<std::result::Result<_, _>>()?;
        let secret = secret(seed, &state.name, state.incarnation);
        let mut config = StackConfig::new(capabilities, addresses, secret);
        config.gateways = state
            .addresses
            .iter()
            .map(|addr| if addr.is_ipv4() { ROUTER_V4.into() } else { ROUTER_V6.into() })
            .collect();
        config.gateways.dedup();
        config.tcp = options.tcp.clone().unwrap_or_else(|| self.tcp.clone());
        config.memory = options.memory.unwrap_or(self.memory);
        config.pool = PoolMemory::Anonymous;
        config.announce = false;
        // A copy of what a host sends to itself would come from the same pool.
        config.loopback_by_reference = true;
        Ok(config)
    }
}

/// A host's stack, whose one device has the name that most virtual machines give theirs.
fn named_stack(now: crate::SimTime, config: StackConfig) -> std::result::Result<Stack, String> {
    let mut stack = Stack::new(now.into(), config).map_err(|error| error.to_string())?;
    let link = stack.links().next();
    link.map(|link| stack.name_link(link, DEVICE_NAME))
        .transpose()
        .map_err(|error| error.to_string())?;
    Ok(stack)
}

/// The name of a host's device.
const DEVICE_NAME: &str = "eth0";
