//! [`HostRuntime`], the runtime of one start of a host: a stock tokio runtime whose paused clock is moved from here.
//!
//! Tokio's timers fire at whole milliseconds since the runtime was built (*ticks*). Between two ticks no timer
//! can fire, so a frame may arrive there, at any nanosecond, without knowledge of tokio's timers.
//!
//! - [`HostRuntime::run`] moves the clock to a time, fires the timers that are due, and polls tasks until
//!   none can run. The call ends when the runtime is about to park.
//! - [`HostRuntime::look_ahead`] lets the runtime park, which moves its paused clock to the next timer. The call
//!   ends there, before a task is polled: so the next timer is found although tokio has no call for it.
//!
//! `tests/suite/tokio_facts.rs` tests the facts about tokio that this rests on. Read [`Parking`] for how both calls end.
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime, RuntimeMetrics};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::Result;
use crate::host::world::HostHandle;
use crate::runtime::blocking_gate::BlockingGate;

/// Nanoseconds of a tick, the granularity of tokio's timers.
pub(crate) const TICK: u64 = 1_000_000;

/// Slots of a level of tokio's timer wheel: a slot of the lowest level is a tick, a slot of the next level is a
/// turn of the lowest. Looking ahead ends where the slot begins that has the next timer.
const WHEEL: u64 = 64;

const WHEEL_LEVELS: u32 = 6;

/// A program, or one start of it.
pub(crate) type Program = std::pin::Pin<Box<dyn Future<Output = Result>>>;

/// Tokio's runtime of one start of a host.
pub(crate) struct HostRuntime {
    /// Dropped before the runtime.
    hook_release: HookRelease,
    tokio: LocalRuntime,
    metrics: RuntimeMetrics,
    parking: Arc<Parking>,
    /// Tokio's clock when the runtime was built.
    base: Instant,
    /// Nanoseconds on tokio's clock since `base`.
    clock: u64,
    main: Option<JoinHandle<()>>,
    result: Rc<RefCell<Option<Result>>>,
}

/// The reason why a run of a host's tasks did not come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnError {
    /// Tasks wake themselves, or each other, for ever.
    Spinning,
    /// The program moved, paused or resumed tokio's clock.
    ClockMoved,
}

/// The end of a program.
#[derive(Debug)]
pub(crate) enum ProgramEnd {
    Returned(Result),
    Panicked,
}

/// State shared with the runtime's hooks, which end a `block_on` by waking its future.
#[derive(Default)]
struct Parking {
    mode: AtomicU8,
    root: Mutex<Option<Waker>>,
    /// No task can run, and the driver was polled at this time.
    parked: AtomicBool,
    /// Set by the watchdog, again and again: tasks have not come to rest for long.
    stop: AtomicBool,
    /// The clock's reading at the begin of looking ahead.
    clock: OnceLock<Mutex<Instant>>,
    gate: BlockingGate,
}

/// Number of times that a run is asked to stop before it counts as one without an end.
const STOPS: u32 = 5;

const RUN: u8 = 1;
const LOOK_AHEAD: u8 = 2;

impl Parking {
    /// Called when the run queue is empty. If the root future is woken here, tokio polls its driver without waiting,
    /// so the clock stays, and then the root.
    fn on_park(&self) {
        if self.mode.load(Relaxed) == RUN {
            // Blocking work first. Its results go to the run queue, so this is not the end.
            if !self.gate.pass() {
                self.parked.store(true, Relaxed);
            }
            self.wake_root();
        }
    }

    /// Called when the driver has fired timers, and tasks were not polled yet. The root future is polled first; if it
    /// ends the `block_on`, the tasks wait in the run queue for the next one.
    fn on_unpark(&self) {
        if self.mode.load(Relaxed) != LOOK_AHEAD {
            return;
        }
        let Some(clock) = self.clock.get() else { return };
        // The clock did not move if the driver had been woken before: then the runtime parks again.
        if Instant::now() != *clock.lock().unwrap_or_else(PoisonError::into_inner) {
            self.wake_root();
        }
    }

    fn wake_root(&self) {
        if let Some(root) = &*self.root.lock().unwrap_or_else(PoisonError::into_inner) {
            root.wake_by_ref();
        }
    }

    fn set_root(&self, waker: &Waker) {
        let mut root = self.root.lock().unwrap_or_else(PoisonError::into_inner);
        if root.is_none() {
            *root = Some(waker.clone());
        }
    }
}

/// Ends a run that does not come to rest; for the watchdog's thread.
#[derive(Clone)]
pub(crate) struct TurnStopper(std::sync::Weak<Parking>);

impl TurnStopper {
    pub(crate) fn stop(&self) {
        if let Some(parking) = self.0.upgrade() {
            parking.stop.store(true, Relaxed);
            parking.wake_root();
        }
    }

    /// Number of times that the runtime has waited for blocking work.
    pub(crate) fn passes(&self) -> u64 {
        self.0.upgrade().map_or(0, |parking| parking.gate.passes())
    }

    /// `Some`: the run waits for the end of blocking work, done by the thread with this id.
    pub(crate) fn blocking_thread(&self) -> Option<Option<i32>> {
        self.0.upgrade()?.gate.at_work()
    }
}

impl HostRuntime {
    /// A runtime without tasks. `seed` is for the branches of `select!`, where tokio lets us.
    pub(crate) fn new(name: &str, seed: u64) -> io::Result<Self> {
        let parking = Arc::new(Parking::default());
        let hook = |f: fn(&Parking)| {
            let parking = parking.clone();
            move || f(&parking)
        };
        let (spawning, thread) = (parking.clone(), format!("{name} blocking"));
        let mut builder = Builder::new_current_thread();
        builder
            .enable_time()
            .start_paused(true)
            .max_blocking_threads(1)
            .thread_keep_alive(Duration::ZERO)
            .thread_name_fn(move || {
                spawning.gate.handle_spawn();
                thread.clone()
            })
            .on_thread_start(hook(|parking| parking.gate.enter()))
            .on_thread_stop(hook(|parking| parking.gate.leave()))
            .on_thread_park(hook(Parking::on_park))
            .on_thread_unpark(hook(Parking::on_unpark));
        #[cfg(tokio_unstable)]
        builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
        #[cfg(not(tokio_unstable))]
        let _ = seed;
        let tokio = builder.build_local(LocalOptions::default())?;
        let base = {
            let _inside = tokio.enter();
            Instant::now()
        };
        let _ = parking.clock.set(Mutex::new(base));
        let metrics = tokio.metrics();
        let result = Rc::default();
        let hook_release = HookRelease(parking.clone());
        Ok(Self { hook_release, tokio, metrics, parking, base, clock: 0, main: None, result })
    }

    /// Starts the program, which first runs in the next [`run`](Self::run).
    pub(crate) fn start(&mut self, here: HostHandle, program: Program) {
        self.parking.gate.set_host(here);
        let result = self.result.clone();
        self.main = Some(self.tokio.spawn_local(async move {
            let returned = program.await;
            *result.borrow_mut() = Some(returned);
        }));
    }

    /// Nanoseconds on tokio's clock since the runtime was built.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// Tasks that are not complete, the program's main one included.
    pub(crate) fn tasks(&self) -> usize {
        self.metrics.num_alive_tasks()
    }

    /// Whether a task was woken since the last run, from outside of this runtime.
    pub(crate) fn is_woken(&self) -> bool {
        self.metrics.global_queue_depth() > 0
    }

    pub(crate) fn take_end(&mut self) -> Option<ProgramEnd> {
        let main = self.main.take_if(|main| main.is_finished())?;
        drop(main);
        Some(self.result.borrow_mut().take().map_or(ProgramEnd::Panicked, ProgramEnd::Returned))
    }

    /// Drops all tasks. Also works inside of another runtime, where a mere drop would panic.
    pub(crate) fn shutdown(self) {
        drop(self.hook_release);
        // Threads of the pool have no work left: every run waits for it.
        self.tokio.shutdown_background();
    }

    /// Ends a run that does not come to rest.
    pub(crate) fn stopper(&self) -> TurnStopper {
        TurnStopper(Arc::downgrade(&self.parking))
    }

    /// Moves the clock to `clock`, unless it is beyond, fires timers that are due by then, and polls
    /// tasks until none can run.
    pub(crate) fn run(&mut self, clock: u64) -> std::result::Result<(), TurnError> {
        let by = Duration::from_nanos(clock.saturating_sub(self.clock));
        self.clock = self.clock.max(clock);
        let parking = &*self.parking;
        parking.parked.store(false, Relaxed);
        parking.stop.store(false, Relaxed);
        parking.mode.store(RUN, Relaxed);
        let expected = self.base + Duration::from_nanos(self.clock);
        let unrest = self.tokio.block_on(async {
            poll_fn(|cx| {
                parking.set_root(cx.waker());
                Poll::Ready(())
            })
            .await;
            if !by.is_zero() {
                // Yields to the driver, which then fires what is due.
                tokio::time::advance(by).await;
            }
            let (mut asked, mut passes) = (0, 0);
            poll_fn(|_| {
                if parking.parked.load(Relaxed) {
                    let moved = Instant::now() != expected;
                    return Poll::Ready(if moved { Err(TurnError::ClockMoved) } else { Ok(()) });
                }
                // A single request to stop may have come in one long poll, after which all tasks rest.
                if parking.stop.swap(false, Relaxed) {
                    // A program that hands over blocking work comes to rest each time.
                    let now = parking.gate.passes();
                    asked = if now == passes { asked + 1 } else { 1 };
                    passes = now;
                }
                if asked < STOPS { Poll::Pending } else { Poll::Ready(Err(TurnError::Spinning)) }
            })
            .await
        });
        parking.mode.store(0, Relaxed);
        unrest
    }

    /// Moves the clock, which must be on a tick, to the next timer, at most to the tick `until`. Polls no task that
    /// a timer wakes: these tasks wait for the next [`run`](Self::run). A task that was woken before is polled, so
    /// check [`is_woken`](Self::is_woken) first; a thread outside of the simulation may wake one in between.
    /// `false`: certainly no timer is due at the new time, which is known only with tokio's unstable interface.
    pub(crate) fn look_ahead(&mut self, until: u64) -> bool {
        debug_assert!(self.clock.is_multiple_of(TICK) && until.is_multiple_of(TICK));
        debug_assert!(until > self.clock);
        let parking = &*self.parking;
        let start = self.base + Duration::from_nanos(self.clock);
        if let Some(clock) = parking.clock.get() {
            *clock.lock().unwrap_or_else(PoisonError::into_inner) = start;
        }
        parking.mode.store(LOOK_AHEAD, Relaxed);
        let end = self.base + Duration::from_nanos(until);
        let now = self.tokio.block_on(async {
            let mut limit = pin!(sleep_until(end));
            poll_fn(|cx| {
                parking.set_root(cx.waker());
                let now = Instant::now();
                if now != start || limit.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(now);
                }
                Poll::Pending
            })
            .await
        });
        parking.mode.store(0, Relaxed);
        self.clock = u64::try_from((now - self.base).as_nanos()).unwrap_or(u64::MAX);
        self.may_have_fired()
    }

    /// Whether [`look_ahead`](Self::look_ahead) to `until` certainly ended at a timer of a task, or less than
    /// `WHEEL` ticks before one.
    pub(crate) fn found_timer(&self, until: u64) -> bool {
        let (tick, until) = (self.clock / TICK, until / TICK);
        // The limit of looking ahead is a timer, too.
        let own = tick == until || tick == until - until % WHEEL;
        !own && !tick.is_multiple_of(WHEEL * WHEEL)
    }

    /// The next timer, if there is one in the next days: the clock, and whether the time is exact or a lower
    /// bound. Moves the clock there, as [`look_ahead`](Self::look_ahead) does.
    pub(crate) fn next_timer(&mut self) -> Option<(u64, bool)> {
        // A limit at the begin of a slot on every level ends nothing before its time.
        let slot = WHEEL.pow(WHEEL_LEVELS - 1) * TICK;
        let until = (self.clock / slot + 2) * slot;
        self.look_ahead(until);
        (self.clock < until).then(|| (self.clock, !(self.clock / TICK).is_multiple_of(WHEEL)))
    }

    #[cfg(tokio_unstable)]
    fn may_have_fired(&self) -> bool {
        self.metrics.worker_local_queue_depth(0) > 0
    }

    #[cfg(not(tokio_unstable))]
    fn may_have_fired(&self) -> bool {
        true
    }
}

/// Breaks the cycle of references through the hooks, so that the runtime can be dropped.
struct HookRelease(Arc<Parking>);

impl Drop for HookRelease {
    fn drop(&mut self) {
        self.0.gate.open_for_good();
        // The waker holds the runtime's handle, which holds the hooks, which hold `Parking`.
        self.0.root.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
