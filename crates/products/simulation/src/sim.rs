//! [`Sim`], a simulation: its hosts and clients, its methods to run it, and its failures.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::builder::Builder;
use crate::events::queue::{EventQueue, SourceId, SourceOrder};
use crate::faults::control::Control;
use crate::host::clock::show;
use crate::host::machine::{Machine, Software};
use crate::host::selectors::{HostOptions, HostTable, Hosts};
use crate::host::world::{SharedWorld, World};
use crate::network::routing::Network;
use crate::random::{SimRng, split};
use crate::record::capture::Capture;
use crate::record::digest::Digest;
use crate::record::recorder::EventSink;
use crate::record::timeline::Timeline;
use crate::report::outcome::{Failure, FailureDetails, FailureKind, Repeats, Report};
use crate::runtime::panic_hook;
use crate::runtime::watchdog::{Watch, with_turns_paused};
use crate::{HostId, Result, SimTime};

type Action = Box<dyn FnOnce(&Control)>;
/// A named check after every instant at which a host ran.
type Invariant = (String, Box<dyn FnMut(&View<'_>) -> Result>);

/// A simulation of programs: each host has its own address, name, clock, runtime and TCP/IP stack.
///
/// ```
/// use pagewire_simulation::{Sim, net};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let mut sim = Sim::builder().seed(7).build();
/// sim.host("server", || async {
///     let listener = net::TcpListener::bind("0.0.0.0:80").await?;
///     loop {
///         let (mut stream, _) = listener.accept().await?;
///         tokio::spawn(async move {
///             let (mut read, mut write) = stream.split();
///             tokio::io::copy(&mut read, &mut write).await
///         });
///     }
/// });
/// sim.client("client", async {
///     let mut stream = net::TcpStream::connect("server:80").await?;
///     stream.write_all(b"Anybody there?").await?;
///     let mut answer = [0; 14];
///     stream.read_exact(&mut answer).await?;
///     assert_eq!(&answer, b"Anybody there?");
///     Ok(())
/// });
/// sim.run()?;
/// # Ok::<(), pagewire_simulation::Failure>(())
/// ```
pub struct Sim {
    pub(crate) world: SharedWorld,
    pub(crate) config: Builder,
    pub(crate) seed: u64,
    pub(crate) machines: Vec<Machine>,
    /// Hosts with tasks whose next timer is not known, by the time up to which they have none.
    pub(crate) idle: EventQueue,
    pub(crate) scheduled: BTreeMap<(u64, u64), Action>,
    pub(crate) next_action: u64,
    /// Number of random faults so far: each has random numbers of its own.
    pub(crate) next_chaos: u64,
    pub(crate) actions: SourceId,
    pub(crate) invariants: Vec<Invariant>,
    pub(crate) warnings: Vec<String>,
    pub(crate) broken: Option<Failure>,
    pub(crate) turns_now: u64,
    /// The millisecond in which hosts were last asked whether another woke their tasks.
    pub(crate) last_woken_check: u64,
    pub(crate) last_panic: Option<String>,
    pub(crate) watch: std::sync::Arc<Watch>,
    /// The files of the capture and of the timeline that are written.
    files: [Option<PathBuf>; 2],
    /// Messages about files that cannot be written.
    unwritten: Vec<String>,
    /// When tasks were last woken, or a timer of theirs fired.
    pub(crate) last_run: SimTime,
    /// The failure of a run that was not done at its limit.
    pub(crate) over: Option<Failure>,
    /// Something has run.
    pub(crate) moved: bool,
    /// Code of the test may have woken tasks since tasks were last asked.
    pub(crate) test_code_ran: bool,
    failed: Cell<bool>,
    random: SimRng,
    /// The order of wakes, for [`Builder::random_wakes`].
    pub(crate) wake_order: SimRng,
}

/// The simulation, as an invariant sees it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    at: SimTime,
    control: &'a Control,
}

impl View<'_> {
    /// The simulated time.
    pub fn now(&self) -> SimTime {
        self.at
    }

    /// Whether the program of a host runs.
    #[track_caller]
    pub fn is_running(&self, host: impl Hosts) -> bool {
        self.control.is_running(host)
    }
}

impl Sim {
    /// Settings of a simulation.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn new(config: Builder, seed: u64) -> Self {
        panic_hook::install(with_turns_paused);
        show(Some((SimTime::ZERO, config.epoch)));
        let mut network = Network::new(seed, config.link);
        network.unreachable = config.unreachable;
        network.random_order = config.random_order;
        let mut world = World::new(config.epoch, network);
        world.record.payload = config.digest_payload;
        world.record.comparison = config.comparison.clone();
        let actions = world.event_queue.add(SourceOrder::Actions);
        let (files, unwritten) = listen(&config, &mut world);
        let mut sim = Self {
            world: SharedWorld::new(world, config.quiet),
            seed,
            machines: Vec::new(),
            idle: EventQueue::default(),
            scheduled: BTreeMap::new(),
            next_action: 0,
            next_chaos: 0,
            actions,
            invariants: Vec::new(),
            warnings: Vec::new(),
            broken: None,
            turns_now: 0,
            last_woken_check: u64::MAX,
            last_panic: None,
            watch: Watch::new(config.patience, seed, config.test.clone()),
            files,
            unwritten,
            last_run: SimTime::ZERO,
            over: None,
            moved: false,
            test_code_ran: true,
            failed: Cell::new(false),
            random: SimRng::new(split(seed, "scenario", 0)),
            wake_order: SimRng::new(split(seed, "wakes", 0)),
            config,
        };
        if !sim.config.lenient
            && let [what, ..] = &*sim.unwritten
        {
            sim.broken = Some(sim.failure(FailureKind::Scenario, None, what.clone()));
        }
        sim
    }

    /// Adds a host. `software` is called for each start of it: now, and after each
    /// [`bounce`](Control::bounce).
    ///
    /// # Panics
    /// If there is a host of this name.
    pub fn host<F, Fut>(&mut self, name: &str, software: F) -> HostId
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = Result> + 'static,
    {
        self.host_with(name, software)
    }

    /// Adds a host with options of its own.
    ///
    /// # Panics
    /// If there is a host of this name, or with one of its addresses.
    pub fn host_with<F, Fut>(&mut self, options: impl Into<HostOptions>, software: F) -> HostId
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = Result> + 'static,
    {
        self.add_host(options.into(), Software::again(software), false)
    }

    /// Adds a client: a host whose program runs once, and whose end [`run`](Self::run) waits for.
    ///
    /// # Panics
    /// If there is a host of this name.
    pub fn client<Fut>(&mut self, name: &str, program: Fut) -> HostId
    where
        Fut: Future<Output = Result> + 'static,
    {
        self.add_host(name.into(), Software::Once(Some(Box::pin(program))), true)
    }

    /// Adds a client with options of its own, which can be [bounced](Control::bounce).
    ///
    /// # Panics
    /// If there is a host of this name, or with one of its addresses.
    pub fn client_with<F, Fut>(&mut self, options: impl Into<HostOptions>, software: F) -> HostId
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = Result> + 'static,
    {
        self.add_host(options.into(), Software::again(software), true)
    }

    /// Runs until every client is done.
    ///
    /// # Errors
    /// A client or a host failed, a task panicked, an invariant does not hold, clients are not done by
    /// the [limit](Builder::limit), or there are hosts without a client, and nothing has run yet: then
    /// there is nothing to wait for.
    pub fn run(&mut self) -> std::result::Result<Report, Failure> {
        let clients = self.machines.iter().any(|machine| machine.client);
        if !clients && !self.machines.is_empty() && !self.moved {
            let what = "no client was added, so there is nothing that the run could wait for: add \
                        the program that tests with `Sim::client`, or use `Sim::run_for`";
            return Err(self.failure(FailureKind::Misuse, None, what));
        }
        self.test_code_ran = true;
        while !self.are_clients_done() {
            let end = self.config.end();
            if !self.advance(end)? {
                return Err(self.stall_failure());
            }
        }
        self.finish()
    }

    /// Runs for this long, whatever clients do.
    ///
    /// # Errors
    /// As [`run`](Self::run), but for the limit.
    pub fn run_for(&mut self, time: Duration) -> std::result::Result<Report, Failure> {
        let end = self.now().after(time);
        self.test_code_ran = true;
        while self.advance(end)? {}
        self.finish()
    }

    /// Runs until `done` returns `true`; it is called after every instant at which something happened.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_until(
        &mut self,
        mut done: impl FnMut(&Self) -> bool,
    ) -> std::result::Result<Report, Failure> {
        loop {
            match panic_hook::catch(|| done(self)) {
                Ok(false) => {}
                Ok(true) => break,
                Err(text) => {
                    let what = format!("the condition of run_until panicked: {text}");
                    return Err(self.failure(FailureKind::Scenario, None, what));
                }
            }
            self.test_code_ran = true;
            let end = self.config.end();
            if !self.advance(end)? {
                return Err(self.stall_failure());
            }
        }
        self.finish()
    }

    /// Runs to the end of the next instant at which something happens. Returns whether all clients are done.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn step(&mut self) -> std::result::Result<bool, Failure> {
        self.test_code_ran = true;
        let end = self.config.end();
        if !self.are_clients_done() && !self.advance(end)? {
            return Err(self.stall_failure());
        }
        match self.broken.take() {
            Some(failure) => Err(failure),
            None => Ok(self.are_clients_done()),
        }
    }

    /// Simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        self.now().elapsed()
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The hash over what happened between the hosts so far.
    pub fn digest(&self) -> Digest {
        self.world.lock().record.digest()
    }

    /// Random numbers from the seed, for the scenario.
    pub fn rng(&mut self) -> SimRng {
        SimRng::new(self.random.next_u64())
    }

    /// A handle that gives commands to the simulation: partitions, faults, crashes.
    pub fn control(&self) -> Control {
        Control::new(self.world.clone())
    }

    /// Runs `action` at a simulated time since the start; at once if that time has passed.
    pub fn at(&mut self, when: Duration, action: impl FnOnce(&Control) + 'static) {
        let at = SimTime::ZERO.after(when).max(self.now()).as_nanos();
        self.next_action += 1;
        self.scheduled.insert((at, self.next_action), Box::new(action));
        self.queue_actions();
    }

    /// Calls `check` after every instant at which a host ran; an error fails the run.
    pub fn invariant(&mut self, name: &str, check: impl FnMut(&View<'_>) -> Result + 'static) {
        self.invariants.push((name.to_owned(), Box::new(check)));
    }

    /// The host of this name or address.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn find(&self, host: impl Hosts) -> HostId {
        let world = self.world.lock();
        match HostTable(&world).find(&host).as_slice() {
            [host] => *host,
            hosts => panic!("{} hosts, expected one", hosts.len()),
        }
    }

    pub(crate) fn now(&self) -> SimTime {
        self.world.lock().now
    }

    pub(crate) fn are_clients_done(&self) -> bool {
        self.machines.iter().all(|machine| machine.done || !machine.client)
    }

    pub(crate) fn check_invariants(&mut self) -> std::result::Result<(), Failure> {
        if self.invariants.is_empty() {
            return Ok(());
        }
        self.test_code_ran = true;
        let (at, control) = (self.now(), self.control());
        let mut invariants = std::mem::take(&mut self.invariants);
        let view = View { at, control: &control };
        let broken = invariants.iter_mut().find_map(|(name, check)| {
            let wrong = match panic_hook::catch(|| check(&view)) {
                Ok(checked) => checked.err()?.to_string(),
                Err(text) => format!("it panicked: {text}"),
            };
            Some(format!("{name}: {wrong}"))
        });
        self.invariants = invariants;
        match broken {
            Some(what) => Err(self.failure(FailureKind::Invariant, None, what)),
            None => Ok(()),
        }
    }

    /// The report of a run that has come to its end.
    fn finish(&mut self) -> std::result::Result<Report, Failure> {
        if let Some(failure) = self.broken.take() {
            return Err(failure);
        }
        let mut world = self.world.lock();
        let mut warnings = self.warnings.clone();
        warnings.extend(self.unwritten.iter().cloned().chain(world.record.flush()));
        let [capture, timeline] = self.files.clone();
        Ok(Report {
            seed: self.seed,
            elapsed: world.now.elapsed(),
            digest: world.record.digest(),
            events: world.record.events(),
            counts: world.record.counts,
            warnings,
            capture,
            timeline,
        })
    }

    pub(crate) fn failure(
        &self,
        kind: FailureKind,
        host: Option<HostId>,
        what: impl Into<String>,
    ) -> Failure {
        self.failed.set(true);
        let mut world = self.world.lock();
        let unwritten = world.record.flush();
        let [capture, timeline] = self.files.clone();
        let name = |host: HostId| Some(world.hosts.get(host.index())?.name.clone());
        Failure(Box::new(FailureDetails {
            seed: self.seed,
            kind,
            host: host.and_then(name),
            at: world.now,
            what: what.into(),
            details: self.unwritten.iter().cloned().chain(unwritten).collect(),
            digest: world.record.digest(),
            repeats: Repeats::Unknown,
            command: self.config.test.command(),
            capture,
            timeline,
        }))
    }
}

/// Adds the listeners that the settings ask for. Returns the files of the capture and of the timeline, and
/// messages about files that cannot be written.
fn listen(config: &Builder, world: &mut World) -> ([Option<PathBuf>; 2], Vec<String>) {
    let mut unwritten = Vec::new();
    let mut listen =
        |what, path: &Option<PathBuf>, sink: std::io::Result<Box<dyn EventSink + Send>>| match sink
        {
            Ok(sink) => {
                world.record.sinks.push(sink);
                path.clone()
            }
            Err(error) => {
                let path = path.as_deref().unwrap_or(Path::new(""));
                unwritten.push(format!("the {what} {} cannot be written: {error}", path.display()));
                None
            }
        };
    let capture = config.capture.as_ref().and_then(|path| {
        let sink = Capture::create(path, config.epoch).map(|sink| Box::new(sink) as _);
        listen("capture", &config.capture, sink)
    });
    let timeline = config.timeline.as_ref().and_then(|path| {
        let sink = Timeline::create(path).map(|sink| Box::new(sink) as _);
        listen("timeline", &config.timeline, sink)
    });
    ([capture, timeline], unwritten)
}

impl Sim {
    /// Ends all programs, once; their destructors may panic, too. Packets that sockets send when they are
    /// dropped reach nobody.
    pub(crate) fn stop_all(&mut self) -> std::result::Result<(), Failure> {
        for id in 0..self.machines.len() as u32 {
            self.crash(HostId(id));
        }
        self.check_new_panics()?;
        self.broken.take().map_or(Ok(()), Err)
    }
}

impl Drop for Sim {
    /// # Panics
    /// If a destructor of a program panics, and nothing else has failed: the panic would be lost.
    fn drop(&mut self) {
        let failed = self.failed.get();
        let ended = self.stop_all();
        self.world.lock().record.end(&[]);
        show(None);
        match ended {
            Err(failure) if !failed && !std::thread::panicking() => panic!("{failure}"),
            _ => {}
        }
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("seed", &self.seed).field("now", &self.now()).finish()
    }
}
