//! A thread with a real clock that watches the simulations of this process. It never steers a run
//! that is well: it ends one that would not end, and finds tasks that block their thread.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::Duration;

use crate::seeds::SEED_VARIABLE;

use crate::limits::{MAX_BLOCKED, MAX_TURN, MAX_WAIT_ALONE, PATIENCE, WATCH_INTERVAL};
use crate::report::TestName;
use crate::runtime::{HostRuntime, Stopper};
use crate::{FailureKind, HostId};

/// How long things may take, in real time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// A thread sleeps, while the simulation waits for it.
    pub(crate) sleep: Duration,
    /// A thread sleeps in a task.
    pub(crate) block: Duration,
    /// Tasks do not come to rest.
    pub(crate) turn: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { sleep: PATIENCE, block: MAX_BLOCKED, turn: MAX_TURN }
    }
}

/// One simulation, as the thread sees it.
pub(crate) struct Watch {
    /// Odd while tasks run: changes with every begin and end.
    turn: AtomicU64,
    /// The thread that runs them.
    thread: i32,
    /// Milliseconds that this turn's thread was found asleep.
    asleep: AtomicU64,
    /// What it slept in, as a number: see [`Sleep::number`].
    sleep: AtomicI64,
    /// The host whose tasks run.
    host: AtomicUsize,
    limits: Patience,
    /// The run, for the command that repeats it.
    run: (u64, TestName),
    /// The name of each host, and how to end its runs.
    hosts: Mutex<Vec<Option<(String, Stopper)>>>,
}

/// What a thread sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// A call on a socket of the kernel.
    RealSocket,
    /// `std::thread::sleep`, or what it calls.
    Timer,
    /// A lock, a channel, a condition, the end of a thread.
    Lock,
    /// Another call, or one that the kernel does not tell.
    Other,
}

/// A thread slept while tasks ran on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    time: Duration,
    pub(crate) sleep: Sleep,
}

impl Blocked {
    /// Whether it was code of a task: who prints a panic waits neither for a timer nor for a socket.
    pub(crate) fn is_certain(&self) -> bool {
        matches!(self.sleep, Sleep::Timer | Sleep::RealSocket)
    }

    pub(crate) fn kind(&self) -> FailureKind {
        match self.sleep {
            Sleep::RealSocket => FailureKind::RealSocket,
            _ => FailureKind::Blocked,
        }
    }
}

impl std::fmt::Display for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, instead) = match self.sleep {
            Sleep::RealSocket => {
                (", in a call on a real socket", "use pagewire_simulation::net, not std::net")
            }
            Sleep::Timer => (", in std::thread::sleep", "use tokio::time::sleep"),
            Sleep::Lock => (
                ", for a lock, a channel or a thread",
                "use those of tokio::sync, or spawn_blocking",
            ),
            Sleep::Other => {
                ("", "use tokio::time::sleep, an async lock or channel, or spawn_blocking")
            }
        };
        let ms = self.time.as_millis();
        write!(f, "a task blocked its thread for {ms} ms of real time{what}: {instead}")
    }
}

impl Sleep {
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

    /// What a thread of this process sleeps in: its system call and the first argument, as
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

/// Simulations that the thread has not seen yet.
static WATCHED: Mutex<Vec<Weak<Watch>>> = Mutex::new(Vec::new());

/// All simulations.
static LIVE: Mutex<Vec<Weak<Watch>>> = Mutex::new(Vec::new());

/// Nobody may begin a turn.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Does something while no task of a simulation runs on another thread. A turn that lasts for very
/// long is not waited for.
pub(crate) fn alone(work: &mut dyn FnMut()) {
    let this = rustix::thread::gettid().as_raw_nonzero().get();
    ALONE.store(true, SeqCst);
    let live: Vec<Arc<Watch>> = lock(&LIVE).iter().filter_map(Weak::upgrade).collect();
    let since = std::time::Instant::now();
    for watch in live.iter().filter(|watch| watch.thread != this) {
        while !watch.turn.load(SeqCst).is_multiple_of(2) && since.elapsed() < MAX_WAIT_ALONE {
            std::thread::yield_now();
        }
    }
    work();
    ALONE.store(false, SeqCst);
}

impl Watch {
    /// Watches a simulation on this thread, as long as it lives: the run of a seed by a test.
    pub(crate) fn new(limits: Patience, seed: u64, test: TestName) -> Arc<Self> {
        let watch = Arc::new(Self {
            turn: AtomicU64::new(0),
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            asleep: AtomicU64::new(0),
            sleep: AtomicI64::new(0),
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
            // Without the thread, a run that does not end does not end.
            let _ = std::thread::Builder::new().name("pagewire watch".into()).spawn(watch_all);
        });
        watch
    }

    /// A host was started.
    pub(crate) fn start(&self, host: HostId, name: &str, runtime: &HostRuntime) {
        let mut hosts = lock(&self.hosts);
        let len = hosts.len().max(host.index() + 1);
        hosts.resize(len, None);
        if let Some(slot) = hosts.get_mut(host.index()) {
            *slot = Some((name.to_owned(), runtime.stopper()));
        }
    }

    /// Tasks begin to run.
    pub(crate) fn begin(&self, host: HostId) {
        self.host.store(host.index(), Relaxed);
        self.turn.fetch_add(1, SeqCst);
        while ALONE.load(SeqCst) {
            // Not begun: somebody waits for that.
            self.turn.fetch_add(1, SeqCst);
            while ALONE.load(SeqCst) {
                std::thread::yield_now();
            }
            self.turn.fetch_add(1, SeqCst);
        }
    }

    /// Tasks are at rest. `Some`: the thread slept for long meanwhile.
    pub(crate) fn end(&self) -> Option<Blocked> {
        self.turn.fetch_add(1, Relaxed);
        if self.asleep.load(Relaxed) == 0 {
            return None;
        }
        let time = Duration::from_millis(self.asleep.swap(0, Relaxed));
        let sleep = Sleep::of(self.sleep.swap(0, Relaxed));
        (time >= self.limits.block).then_some(Blocked { time, sleep })
    }

    /// The host whose tasks run.
    fn running(&self) -> Option<(String, Stopper)> {
        lock(&self.hosts).get(self.host.load(Relaxed))?.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was seen of a simulation when it was last looked at.
struct Seen {
    watch: Weak<Watch>,
    turn: u64,
    since: Duration,
    /// How often it had waited for blocking work.
    passes: u64,
    /// For how long the thread that it waits for has been asleep in this turn.
    asleep: Duration,
    /// That this turn does not end was said.
    told: bool,
}

fn watch_all() {
    let (mut all, mut time) = (Vec::<Seen>::new(), Duration::ZERO);
    loop {
        std::thread::sleep(WATCH_INTERVAL);
        time += WATCH_INTERVAL;
        let new = std::mem::take(&mut *lock(&WATCHED));
        let seen = |watch| {
            let asleep = Duration::ZERO;
            Seen { watch, turn: 0, since: time, passes: 0, asleep, told: false }
        };
        all.extend(new.into_iter().map(seen));
        all.retain_mut(|seen| {
            let Some(watch) = seen.watch.upgrade() else { return false };
            let turn = watch.turn.load(Relaxed);
            if turn != seen.turn || turn.is_multiple_of(2) {
                (seen.turn, seen.since, seen.told) = (turn, time, false);
                seen.asleep = Duration::ZERO;
                return true;
            }
            look_at(&watch, seen, time);
            true
        });
    }
}

/// Looks at a turn that lasts.
fn look_at(watch: &Watch, seen: &mut Seen, time: Duration) {
    let Some((name, stopper)) = watch.running() else { return };
    let passes = stopper.passes();
    if passes != seen.passes {
        // What was handed over is done: this is no turn without an end.
        (seen.passes, seen.since) = (passes, time);
    }
    // The simulation itself waits for the end of such work.
    let works = stopper.at_gate();
    let thread = works.unwrap_or(Some(watch.thread));
    let asleep = thread.is_some_and(is_asleep);
    match (asleep, works) {
        (true, _) => seen.asleep += WATCH_INTERVAL,
        // Such work may get on between its waits.
        (false, Some(_)) => seen.asleep = Duration::ZERO,
        // Who looks again and again with short sleeps waits, too.
        (false, None) => {}
    }
    let mut sleep = Sleep::Other;
    if let Some(thread) = thread.filter(|_| asleep) {
        let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
        sleep = Sleep::in_call(&call.unwrap_or_default());
        if watch.turn.load(Relaxed) != seen.turn {
            return;
        }
        if works.is_none() {
            watch.sleep.fetch_max(sleep.number(), Relaxed);
            watch.asleep.fetch_add(WATCH_INTERVAL.as_millis() as u64, Relaxed);
        }
    }
    let lasts = time - seen.since;
    let limit = watch.limits.turn;
    if lasts >= limit {
        stopper.stop();
    }
    if !asleep {
        // Tasks that only wake each other are stopped before.
        if lasts >= limit.saturating_mul(2) && !seen.told {
            let what = if works.is_some() { "work of spawn_blocking" } else { "a task's poll" };
            let ms = lasts.as_millis();
            tell(&format!("pagewire-simulation: on `{name}`: {what} takes {ms} ms of real time\n"));
            seen.told = true;
        }
        return;
    }
    let what = || match works {
        Some(_) => format!(
            "work of spawn_blocking has not ended for {} ms of real time: it must not wait for a \
             task of the simulation",
            lasts.as_millis()
        ),
        None => format!("{}; it still does", Blocked { time: seen.asleep, sleep }),
    };
    // Nobody can end what sleeps: people are told, past the harness that captures output.
    if lasts >= limit && !seen.told {
        tell(&format!("pagewire-simulation: on `{name}`: {}\n", what()));
        seen.told = true;
    }
    if seen.asleep >= watch.limits.sleep {
        let (ms, (seed, test)) = (seen.asleep.as_millis(), &watch.run);
        tell(&format!(
            "pagewire-simulation: on `{name}`: {}\n  the process is aborted, because its thread slept \
             for {ms} ms, and nothing else can end that (Builder::patience)\n  again:    \
             {SEED_VARIABLE}={seed} {}\n",
            what(),
            test.command()
        ));
        std::process::abort();
    }
}

/// Writes to the standard error output itself.
fn tell(text: &str) {
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
