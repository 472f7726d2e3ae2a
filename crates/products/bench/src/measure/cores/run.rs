//! A round: a thread on each core drives the core's hosts and its load in turns, without sleeping.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::load::{Ends, Load, LoadPlan};
use super::world::world;
use super::{CoresCase, CoresWork, ServerKind, kernel, tap};
use crate::failure::Failure;
use crate::kit::kernel::PATIENCE;
use crate::kit::machine::{joined, pin};
use crate::kit::meter::WARM_UP;
use crate::kit::source::Source;
use crate::sys::{thread_time, ticks};

/// What a core did in a round, from the end of the warm-up on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CoreRound {
    /// Requests or connections; bytes of bulk data.
    pub(super) done: u64,
    pub(super) time: Duration,
    /// Processor time of the steps of the core's thread that did anything, of client and server: a core that waits
    /// for strays polls meanwhile.
    pub(super) cpu: Duration,
    /// The part of that which went into the server, its shard's turns included.
    pub(super) server_cpu: Duration,
    /// Packets that the shard, or its queue, passed to others.
    pub(super) strays: u64,
}

/// The conditions of a round.
pub(super) struct RoundPlan<'a> {
    /// The processor of each core.
    pub(super) processors: &'a [usize],
    pub(super) sources: &'a [Source],
    pub(super) connections: usize,
    pub(super) seconds: f64,
    pub(super) stats: bool,
}

/// What the threads of a round know of each other.
#[derive(Default)]
struct Together {
    /// Cores whose connections are open.
    open: AtomicUsize,
    /// Cores that have measured.
    done: AtomicUsize,
    failed: AtomicBool,
    /// Whether a flood comes in: from when the connections are open.
    floods: Arc<AtomicBool>,
}

/// Runs a round; one result for each core.
pub(super) fn run(case: &CoresCase, plan: &RoundPlan<'_>) -> Result<Vec<CoreRound>, Failure> {
    let together = Together::default();
    match case.server {
        ServerKind::Kernel => run_on(case, plan, &kernel::world(case)?, &together),
        ServerKind::Tap => run_on(case, plan, &tap::world(case)?, &together),
        _ => run_on(case, plan, &world(case, &together.floods)?, &together),
    }
}

/// Runs a round with these ends, one of each core.
fn run_on<E: Ends + Sync>(
    case: &CoresCase,
    plan: &RoundPlan<'_>,
    all: &[E],
    together: &Together,
) -> Result<Vec<CoreRound>, Failure> {
    let rounds = std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(case.cores);
        for ((ends, processor), source) in all.iter().zip(plan.processors).zip(plan.sources) {
            let (processor, source) = (*processor, source.clone());
            threads.push(scope.spawn(move || {
                pin(Some(processor));
                let ran = drive(case, plan, ends, source, together);
                if ran.is_err() {
                    together.failed.store(true, Ordering::Relaxed);
                }
                ran
            }));
        }
        threads.into_iter().map(joined).collect::<Result<Vec<_>, _>>()
    })?;
    if plan.stats {
        all.iter().for_each(Ends::print_stats);
    }
    Ok(rounds)
}

/// A core's thread.
fn drive<E: Ends>(
    case: &CoresCase,
    plan: &RoundPlan<'_>,
    ends: &E,
    source: Source,
    together: &Together,
) -> Result<CoreRound, Failure> {
    let mut watch = Watch { together, moved: Instant::now() };
    let load = LoadPlan { work: case.work, connections: plan.connections, source };
    let mut load = ends.load(load, &mut || {
        watch.check(false, Instant::now())?;
        ends.turn_server();
        ends.turn_client();
        Ok(())
    })?;
    together.open.fetch_add(1, Ordering::Relaxed);
    watch.moved = Instant::now();
    // Until all are open, and then warm.
    let mut warm_until = None;
    loop {
        let now = Instant::now();
        let step = step(&mut *load, ends)?;
        watch.check(step.done(case.work) > 0, now)?;
        if together.open.load(Ordering::Relaxed) == case.cores
            && now >= *warm_until.get_or_insert(now + WARM_UP)
        {
            break;
        }
    }
    let strays = || ends.strays() + ends.relayed();
    together.floods.store(true, Ordering::Relaxed);
    let (begun, cpu, passed, first_tick) = (Instant::now(), thread_time(), strays(), ticks());
    let length = Duration::from_secs_f64(plan.seconds);
    let (mut round, mut busy_ticks, mut server_ticks) = (CoreRound::default(), 0, 0);
    loop {
        let step = step(&mut *load, ends)?;
        let now = Instant::now();
        round.done += step.done(case.work);
        if step.is_busy {
            busy_ticks += step.ticks;
            server_ticks += step.server_ticks;
        }
        watch.check(step.done(case.work) > 0, now)?;
        round.time = now - begun;
        if round.time >= length {
            break;
        }
    }
    let cpu = thread_time().saturating_sub(cpu);
    // Ticks go on while another thread has the processor: only their shares count.
    let all_ticks = ticks().wrapping_sub(first_tick).max(1);
    let part = |ticks: u64| cpu.mul_f64((ticks as f64 / all_ticks as f64).clamp(0.0, 1.0));
    (round.cpu, round.server_cpu) = (part(busy_ticks), part(server_ticks));
    round.strays = strays() - passed;
    // The others need this core until they have measured, too.
    together.done.fetch_add(1, Ordering::Relaxed);
    while together.done.load(Ordering::Relaxed) < case.cores {
        let step = step(&mut *load, ends)?;
        watch.check(step.done(case.work) > 0, Instant::now())?;
    }
    Ok(round)
}

/// The result of a step of a core.
struct Step {
    /// Requests or connections that are done.
    answered: u64,
    /// Bulk bytes that arrived.
    arrived: u64,
    /// Something came in or was done.
    is_busy: bool,
    ticks: u64,
    server_ticks: u64,
}

impl Step {
    fn done(&self, work: CoresWork) -> u64 {
        if work == CoresWork::Bulk { self.arrived } else { self.answered }
    }
}

/// Client and server do what they can.
fn step<E: Ends>(load: &mut dyn Load<E>, ends: &E) -> Result<Step, Failure> {
    let (begun, relayed) = (ticks(), ends.relayed());
    let answered = load.client(ends)?;
    let mut is_busy = ends.turn_client() | (answered > 0);
    let before = ticks();
    is_busy |= ends.turn_server();
    let arrived = load.server(ends)?;
    is_busy |= ends.turn_server() | (arrived > 0);
    let after = ticks();
    is_busy |= ends.turn_client() | (ends.relayed() != relayed);
    let (server_ticks, ticks) = (after.wrapping_sub(before), ticks().wrapping_sub(begun));
    Ok(Step { answered, arrived, is_busy, ticks, server_ticks })
}

/// Ends a round in which another core has failed, or nothing moves any more.
struct Watch<'a> {
    together: &'a Together,
    /// When something was done last.
    moved: Instant,
}

impl Watch<'_> {
    fn check(&mut self, has_moved: bool, now: Instant) -> Result<(), Failure> {
        if has_moved {
            self.moved = now;
        } else if self.together.failed.load(Ordering::Relaxed) {
            return Err(Failure::Failed("another core failed".into()));
        } else if now.saturating_duration_since(self.moved) > PATIENCE {
            return Err(Failure::Failed("nothing moves on a core".into()));
        }
        Ok(())
    }
}
