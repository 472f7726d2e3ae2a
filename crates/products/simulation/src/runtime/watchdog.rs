//! The watchdog: a thread with a real clock that watches the simulations of this process. It never steers a healthy
//! run. It ends a run that would not end, and finds tasks that block their thread.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::Duration;

use crate::seeds::SEED_VARIABLE;

use crate::limits::{MAX_BLOCKED, MAX_TURN, MAX_WAIT_FOR_TURNS, PATIENCE, WATCH_INTERVAL};
use crate::report::outcome::TestName;
use crate::runtime::tokio_runtime::{HostRuntime, TurnStopper};
use crate::{FailureKind, HostId};

/// Limits in real time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RealTimeLimits {
    /// The longest sleep of a thread that the simulation waits for; then the process is aborted.
    pub(crate) sleep: Duration,
    /// The longest sleep of a thread in a task; then the run fails.
    pub(crate) block: Duration,
    /// The longest time until tasks come to rest; then they are stopped.
    pub(crate) turn: Duration,
}

impl Default for RealTimeLimits {
    fn default() -> Self {
        Self { sleep: PATIENCE, block: MAX_BLOCKED, turn: MAX_TURN }
    }
}

/// The state of one simulation that the watchdog reads.
pub(crate) struct Watch {
    /// The number of begins and ends of turns: odd while tasks run.
    turn: AtomicU64,
    thread: i32,
    /// Milliseconds that the thread was found asleep in this turn.
    asleep: AtomicU64,
    /// The call that the thread slept in, as a number: see [`BlockingCall::number`].
    call: AtomicI64,
    host: AtomicUsize,
    limits: RealTimeLimits,
    /// The run, for the command that repeats it.
    run: (u64, TestName),
    /// The name of each host, and how to end its runs.
    hosts: Mutex<Vec<Option<(String, TurnStopper)>>>,
}

/// The kind of system call that a thread sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockingCall {
    /// A call on a socket of the kernel.
    RealSocket,
    /// `std::thread::sleep`, or what it calls.
    Timer,
    /// A lock, a channel, a condition, the end of a thread.
    Lock,
    /// Another call, or one that the kernel does not report.
    Other,
}

/// A thread slept while tasks ran on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockedThread {
    time: Duration,
    pub(crate) call: BlockingCall,
}

impl BlockedThread {
    /// Whether code of a task slept: printing a panic waits neither for a timer nor for a socket.
    pub(crate) fn is_certain(&self) -> bool {
        matches!(self.call, BlockingCall::Timer | BlockingCall::RealSocket)
    }

    pub(crate) fn kind(&self) -> FailureKind {
        match self.call {
            BlockingCall::RealSocket => FailureKind::RealSocket,
            _ => FailureKind::Blocked,
        }
    }
}

impl std::fmt::Display for BlockedThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, instead) = match self.call {
            BlockingCall::RealSocket => {
                (", in a call on a real socket", "use pagewire_simulation::net, not std::net")
            }
            BlockingCall::Timer => (", in std::thread::sleep", "use tokio::time::sleep"),
            BlockingCall::Lock => (
                ", for a lock, a channel or a thread",
                "use those of tokio::sync, or spawn_blocking",
            ),
            BlockingCall::Other => {
                ("", "use tokio::time::sleep, an async lock or channel, or spawn_blocking")
            }
        };
        let ms = self.time.as_millis();
        write!(f, "a task blocked its thread for {ms} ms of real time{what}: {instead}")
    }
}

impl BlockingCall {
    const fn number(self) -> i64 {
        match self {
            Self::RealSocket => 3,
            Self::Timer => 2,
            Self::Lock => 1,
            Self::Other => 0,
        }
    }

    const fn of(number: i64) -> Self {
        match number {
            3 => Self::RealSocket,
            2 => Self::Timer,
            1 => Self::Lock,
            _ => Self::Other,
        }
    }

    /// The kind of the system call that a thread of this process sleeps in, by the call's number and first argument as
    /// proc_pid_syscall(5) has them.
    fn in_call(text: &str) -> Self {
        let mut words = text.split_ascii_whitespace();
        let number = words.next().and_then(|word| word.parse::<i64>().ok());
        let first = words.next().and_then(|word| word.strip_prefix("0x"));
        match number {
            Some(libc::SYS_futex) => Self::Lock,
            Some(libc::SYS_nanosleep | libc::SYS_clock_nanosleep) => Self::Timer,
            Some(
                libc::SYS_read
                | libc::SYS_write
                | libc::SYS_readv
                | libc::SYS_writev
                | libc::SYS_connect
                | libc::SYS_accept
                | libc::SYS_accept4
                | libc::SYS_recvfrom
                | libc::SYS_recvmsg
                | libc::SYS_sendto
                | libc::SYS_sendmsg,
            ) if is_socket(first) => Self::RealSocket,
            _ => Self::Other,
        }
    }
}

/// Whether a descriptor of this process, in hexadecimal digits, is a socket.
fn is_socket(descriptor: Option<&str>) -> bool {
    let Some(fd) = descriptor.and_then(|text| u64::from_str_radix(text, 16).ok()) else {
        return false;
    };
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    link.to_string_lossy().starts_with("socket:")
}

/// New simulations, which the watchdog has not seen yet.
static WATCHED: Mutex<Vec<Weak<Watch>>> = Mutex::new(Vec::new());

/// All simulations of this process.
static LIVE: Mutex<Vec<Weak<Watch>>> = Mutex::new(Vec::new());

/// No simulation may begin a turn.
static TURNS_PAUSED: AtomicBool = AtomicBool::new(false);

/// Runs `work` while no task of a simulation runs on another thread. A turn that takes very long is
/// not waited for.
pub(crate) fn with_turns_paused(work: &mut dyn FnMut()) {
    let this = rustix::thread::gettid().as_raw_nonzero().get();
    TURNS_PAUSED.store(true, SeqCst);
    let live: Vec<Arc<Watch>> = lock(&LIVE).iter().filter_map(Weak::upgrade).collect();
    let since = std::time::Instant::now();
    for watch in live.iter().filter(|watch| watch.thread != this) {
        while !watch.turn.load(SeqCst).is_multiple_of(2) && since.elapsed() < MAX_WAIT_FOR_TURNS {
            std::thread::yield_now();
        }
    }
    work();
    TURNS_PAUSED.store(false, SeqCst);
}

impl Watch {
    /// Registers the simulation of this thread: the run of a seed by a test. It is watched as long as it lives.
    pub(crate) fn new(limits: RealTimeLimits, seed: u64, test: TestName) -> Arc<Self> {
        let watch = Arc::new(Self {
            turn: AtomicU64::new(0),
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            asleep: AtomicU64::new(0),
            call: AtomicI64::new(0),
            host: AtomicUsize::new(0),
            limits,
            run: (seed, test),
            hosts: Mutex::new(Vec::new()),
        });
        lock(&WATCHED).push(Arc::downgrade(&watch));
        let mut live = lock(&LIVE);
        live.retain(|watch| watch.strong_count() > 0);
        live.push(Arc::downgrade(&watch));
        drop(live);
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // A run that never ends is stopped by this thread only: without it, the test hangs.
            let _ = std::thread::Builder::new().name("pagewire watch".into()).spawn(watch_all);
        });
        watch
    }

    pub(crate) fn start(&self, host: HostId, name: &str, runtime: &HostRuntime) {
        let mut hosts = lock(&self.hosts);
        let len = hosts.len().max(host.index() + 1);
        hosts.resize(len, None);
        if let Some(slot) = hosts.get_mut(host.index()) {
            *slot = Some((name.to_owned(), runtime.stopper()));
        }
    }

    pub(crate) fn begin(&self, host: HostId) {
        self.host.store(host.index(), Relaxed);
        self.turn.fetch_add(1, SeqCst);
        while TURNS_PAUSED.load(SeqCst) {
            // Counts as not begun, because the thread that set `TURNS_PAUSED` waits for that.
            self.turn.fetch_add(1, SeqCst);
            while TURNS_PAUSED.load(SeqCst) {
                std::thread::yield_now();
            }
            self.turn.fetch_add(1, SeqCst);
        }
    }

    /// Notes that tasks are at rest. `Some`: the thread slept for long meanwhile.
    pub(crate) fn end(&self) -> Option<BlockedThread> {
        self.turn.fetch_add(1, Relaxed);
        if self.asleep.load(Relaxed) == 0 {
            return None;
        }
        let time = Duration::from_millis(self.asleep.swap(0, Relaxed));
        let call = BlockingCall::of(self.call.swap(0, Relaxed));
        (time >= self.limits.block).then_some(BlockedThread { time, call })
    }

    fn running(&self) -> Option<(String, TurnStopper)> {
        lock(&self.hosts).get(self.host.load(Relaxed))?.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The watchdog's last reading of a simulation.
struct WatchReading {
    watch: Weak<Watch>,
    turn: u64,
    since: Duration,
    /// Number of times that the turn had waited for blocking work.
    passes: u64,
    /// For how long the thread that the simulation waits for has been asleep in this turn.
    asleep: Duration,
    /// The endless turn was reported on the standard error output.
    reported: bool,
}

fn watch_all() {
    let (mut all, mut time) = (Vec::<WatchReading>::new(), Duration::ZERO);
    loop {
        std::thread::sleep(WATCH_INTERVAL);
        time += WATCH_INTERVAL;
        let new = std::mem::take(&mut *lock(&WATCHED));
        let reading = |watch| {
            let asleep = Duration::ZERO;
            WatchReading { watch, turn: 0, since: time, passes: 0, asleep, reported: false }
        };
        all.extend(new.into_iter().map(reading));
        all.retain_mut(|reading| {
            let Some(watch) = reading.watch.upgrade() else { return false };
            let turn = watch.turn.load(Relaxed);
            if turn != reading.turn || turn.is_multiple_of(2) {
                (reading.turn, reading.since, reading.reported) = (turn, time, false);
                reading.asleep = Duration::ZERO;
                return true;
            }
            check_turn(&watch, reading, time);
            true
        });
    }
}

/// Checks a turn that lasts: stops it, or reports it, or aborts the process, by its limits.
fn check_turn(watch: &Watch, reading: &mut WatchReading, time: Duration) {
    let Some((name, stopper)) = watch.running() else { return };
    let passes = stopper.passes();
    if passes != reading.passes {
        // Blocking work was done: this turn is not an endless one.
        (reading.passes, reading.since) = (passes, time);
    }
    // While blocking work runs, the simulation's own thread waits for it.
    let blocking_work = stopper.blocking_thread();
    let thread = blocking_work.unwrap_or(Some(watch.thread));
    let asleep = thread.is_some_and(is_asleep);
    match (asleep, blocking_work) {
        (true, _) => reading.asleep += WATCH_INTERVAL,
        // Blocking work may proceed between its waits.
        (false, Some(_)) => reading.asleep = Duration::ZERO,
        // A loop with short sleeps waits, too, so the sum stays.
        (false, None) => {}
    }
    let mut call = BlockingCall::Other;
    if let Some(thread) = thread.filter(|_| asleep) {
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
        call = BlockingCall::in_call(&text.unwrap_or_default());
        if watch.turn.load(Relaxed) != reading.turn {
            return;
        }
        if blocking_work.is_none() {
            watch.call.fetch_max(call.number(), Relaxed);
            watch.asleep.fetch_add(WATCH_INTERVAL.as_millis() as u64, Relaxed);
        }
    }
    let elapsed = time - reading.since;
    let limit = watch.limits.turn;
    if elapsed >= limit {
        stopper.stop();
    }
    if !asleep {
        // Tasks that only wake each other were stopped earlier.
        if elapsed >= limit.saturating_mul(2) && !reading.reported {
            let what =
                if blocking_work.is_some() { "work of spawn_blocking" } else { "a task's poll" };
            let ms = elapsed.as_millis();
            print_stderr(&format!(
                "pagewire-simulation: on `{name}`: {what} takes {ms} ms of real time\n"
            ));
            reading.reported = true;
        }
        return;
    }
    let what = || match blocking_work {
        Some(_) => format!(
            "work of spawn_blocking has not ended for {} ms of real time: it must not wait for a \
             task of the simulation",
            elapsed.as_millis()
        ),
        None => format!("{}; it still does", BlockedThread { time: reading.asleep, call }),
    };
    // Nothing can end a sleep: it is reported past the harness, which captures output.
    if elapsed >= limit && !reading.reported {
        print_stderr(&format!("pagewire-simulation: on `{name}`: {}\n", what()));
        reading.reported = true;
    }
    if reading.asleep >= watch.limits.sleep {
        let (ms, (seed, test)) = (reading.asleep.as_millis(), &watch.run);
        print_stderr(&format!(
            "pagewire-simulation: on `{name}`: {}\n  the process is aborted, because its thread slept \
             for {ms} ms, and nothing else can end that (Builder::patience)\n  again:    \
             {SEED_VARIABLE}={seed} {}\n",
            what(),
            test.command()
        ));
        std::process::abort();
    }
}

/// Writes to the standard error output itself, past the test harness.
fn print_stderr(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Whether a thread of this process sleeps, and does not merely wait for a processor.
fn is_asleep(thread: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")) else {
        return false;
    };
    // proc_pid_stat(5): the state follows the name, which is in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}
