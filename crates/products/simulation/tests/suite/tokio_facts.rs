//! Facts about tokio's paused runtime that the event loop rests on. A version of tokio that changes one of these
//! fails here, by name, before anything else is wrong.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::time::{Instant, sleep, sleep_until};

use crate::common::MS;

const US: Duration = Duration::from_micros(1);

/// A hook that counts, and wakes the future of `block_on` when it is asked to.
#[derive(Default)]
struct Hook {
    calls: AtomicU32,
    root: Mutex<Option<Waker>>,
}

impl Hook {
    fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let root = self.root.lock().unwrap().clone();
        if let Some(root) = root {
            root.wake();
        }
    }
}

struct Paused {
    runtime: LocalRuntime,
    park: Arc<Hook>,
    unpark: Arc<Hook>,
}

fn paused() -> Paused {
    let (park, unpark) = (Arc::new(Hook::default()), Arc::new(Hook::default()));
    let (on_park, on_unpark) = (park.clone(), unpark.clone());
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(move || on_park.call())
        .on_thread_unpark(move || on_unpark.call())
        .build_local(LocalOptions::default())
        .expect("a runtime");
    Paused { runtime, park, unpark }
}

/// Polls tasks until the run queue is empty, without a move of the clock.
fn rest(paused: &Paused) {
    let before = paused.park.calls.load(Ordering::Relaxed);
    paused.runtime.block_on(poll_fn(|cx| {
        *paused.park.root.lock().unwrap() = Some(cx.waker().clone());
        if paused.park.calls.load(Ordering::Relaxed) > before {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }));
    *paused.park.root.lock().unwrap() = None;
}

fn now(paused: &Paused) -> Instant {
    let _inside = paused.runtime.enter();
    Instant::now()
}

fn advance(paused: &Paused, by: Duration) {
    let mut advance = Box::pin(tokio::time::advance(by));
    let park = &paused.park;
    let before = park.calls.load(Ordering::Relaxed);
    let mut done = false;
    paused.runtime.block_on(poll_fn(|cx| {
        *park.root.lock().unwrap() = Some(cx.waker().clone());
        if !done && advance.as_mut().poll(cx).is_ready() {
            done = true;
        }
        if done && park.calls.load(Ordering::Relaxed) > before {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }));
    *park.root.lock().unwrap() = None;
}

#[test]
fn f1_advance_is_exact_and_timers_fire_at_whole_milliseconds_since_the_runtime_was_built() {
    let host = paused();
    let start = now(&host);
    advance(&host, Duration::from_nanos(300_001));
    assert_eq!(now(&host) - start, Duration::from_nanos(300_001));
    let fired = Rc::new(RefCell::new(false));
    let out = fired.clone();
    host.runtime.spawn_local(async move {
        sleep(100 * US).await;
        *out.borrow_mut() = true;
    });
    rest(&host);
    assert_eq!(now(&host) - start, Duration::from_nanos(300_001), "time stays");
    // The deadline is 0.4 ms: it fires at 1 ms.
    advance(&host, Duration::from_nanos(699_998));
    assert_eq!(now(&host) - start, Duration::from_nanos(999_999));
    assert!(!*fired.borrow(), "one nanosecond before the tick");
    advance(&host, Duration::from_nanos(1));
    assert!(*fired.borrow(), "on the tick");
}

#[test]
fn f2_the_clock_moves_by_itself_to_the_next_timer_only_when_nothing_can_run() {
    let host = paused();
    let start = now(&host);
    let at = Rc::new(RefCell::new(Vec::new()));
    let out = at.clone();
    let task = host.runtime.spawn_local(async move {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        out.borrow_mut().push(Instant::now() - start);
        sleep(7 * MS).await;
        out.borrow_mut().push(Instant::now() - start);
    });
    host.runtime.block_on(task).expect("the task");
    assert_eq!(*at.borrow(), [Duration::ZERO, 7 * MS]);
}

#[test]
fn f3_a_park_hook_that_wakes_the_root_keeps_the_time_and_the_driver_is_polled() {
    let host = paused();
    let start = now(&host);
    let woken = Rc::new(RefCell::new(false));
    let out = woken.clone();
    host.runtime.spawn_local(async move {
        sleep(5 * MS).await;
        *out.borrow_mut() = true;
    });
    for _ in 0..10 {
        rest(&host);
    }
    assert_eq!(now(&host), start, "the clock never moved");
    assert!(!*woken.borrow());
    // A clock that was moved without a poll of the driver: the next rest fires the timer.
    advance(&host, 5 * MS);
    assert!(*woken.borrow(), "one rest is enough");
}

#[test]
fn f4_an_unpark_hook_that_wakes_the_root_returns_before_a_task_is_polled() {
    let host = paused();
    let start = now(&host);
    let polled = Rc::new(RefCell::new(Vec::new()));
    for n in 0..3 {
        let out = polled.clone();
        host.runtime.spawn_local(async move {
            sleep(4 * MS).await;
            out.borrow_mut().push(n);
        });
    }
    rest(&host);
    // Looks ahead up to 10 ms.
    let unpark = host.unpark.clone();
    let mut limit = None;
    host.runtime.block_on(poll_fn(|cx| {
        *unpark.root.lock().unwrap() = Some(cx.waker().clone());
        if Instant::now() > start {
            return Poll::Ready(());
        }
        let limit = limit.get_or_insert_with(|| Box::pin(sleep_until(start + 10 * MS)));
        limit.as_mut().poll(cx)
    }));
    *unpark.root.lock().unwrap() = None;
    assert_eq!(now(&host) - start, 4 * MS, "the clock stands at the next timer");
    assert!(polled.borrow().is_empty(), "no task was polled");
    drop(limit);
    rest(&host);
    assert_eq!(*polled.borrow(), [0, 1, 2], "they run with the next block_on");
    assert_eq!(now(&host) - start, 4 * MS);
}

#[test]
fn f5_a_runtime_without_io_needs_no_descriptor() {
    let count = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let before = count();
    let hosts: Vec<_> = (0..50).map(|_| paused()).collect();
    for host in &hosts {
        rest(host);
    }
    // Other tests of this process may open some meanwhile.
    assert!(count() < before + 50, "{} more", count() - before);
}

#[test]
fn f6_tasks_that_are_woken_from_outside_run_in_the_order_of_their_wakes() {
    let host = paused();
    let order = Rc::new(RefCell::new(Vec::new()));
    let wakers = Rc::new(RefCell::new(Vec::new()));
    for n in 0..100_usize {
        let (order, wakers) = (order.clone(), wakers.clone());
        host.runtime.spawn_local(async move {
            let mut first = true;
            poll_fn(|cx| {
                if !std::mem::take(&mut first) {
                    return Poll::Ready(());
                }
                wakers.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            })
            .await;
            order.borrow_mut().push(n);
        });
    }
    rest(&host);
    let wakers = wakers.take();
    let asked: Vec<usize> = (0..100).map(|n| n * 37 % 100).collect();
    for &n in &asked {
        wakers[n].wake_by_ref();
    }
    assert_eq!(host.runtime.metrics().global_queue_depth(), 100);
    rest(&host);
    assert_eq!(*order.borrow(), asked);
    assert_eq!(host.runtime.metrics().num_alive_tasks(), 0);
}

#[test]
fn f7_blocking_work_holds_the_clock_and_its_thread_can_be_gated() {
    let (open, is_open) = std::sync::mpsc::channel::<()>();
    let (stopped, has_stopped) = std::sync::mpsc::channel::<()>();
    let (is_open, stopped) = (Mutex::new(is_open), Mutex::new(stopped));
    let named = Arc::new(AtomicU32::new(0));
    let naming = named.clone();
    let park = Arc::new(Hook::default());
    let on_park = park.clone();
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .max_blocking_threads(1)
        .thread_keep_alive(Duration::ZERO)
        .thread_name_fn(move || {
            naming.fetch_add(1, Ordering::Relaxed);
            "blocking".into()
        })
        .on_thread_start(move || is_open.lock().unwrap().recv().expect("the gate"))
        .on_thread_stop(move || stopped.lock().unwrap().send(()).expect("the test"))
        .on_thread_park(move || on_park.call())
        .build_local(LocalOptions::default())
        .expect("a runtime");
    let host = Paused { runtime, park, unpark: Arc::default() };
    let before = named.load(Ordering::Relaxed);
    let results = Rc::new(RefCell::new(Vec::new()));
    for n in 0..3 {
        let out = results.clone();
        host.runtime.spawn_local(async move {
            let n = tokio::task::spawn_blocking(move || n).await.expect("the work");
            out.borrow_mut().push(n);
        });
    }
    rest(&host);
    assert_eq!(named.load(Ordering::Relaxed) - before, 1, "one thread, named where it is spawned");
    assert!(results.borrow().is_empty(), "the thread waits at the gate");
    open.send(()).expect("the thread");
    has_stopped.recv().expect("it stops by itself");
    rest(&host);
    assert_eq!(*results.borrow(), [0, 1, 2], "first in, first out");
}

#[test]
fn f10_an_unfinished_sleep_of_the_root_leaves_no_timer_behind() {
    let host = paused();
    let start = now(&host);
    rest(&host);
    host.runtime.block_on(poll_fn(|cx| {
        let mut limit = Box::pin(sleep_until(start + 3 * MS));
        assert!(limit.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    }));
    let task = host.runtime.spawn_local(async { sleep(9 * MS).await });
    host.runtime.block_on(task).expect("the task");
    assert_eq!(now(&host) - start, 9 * MS);
}

/// F8: what only the unstable interface has.
#[cfg(tokio_unstable)]
#[test]
fn f8_select_is_seeded_and_the_length_of_the_run_queue_is_known() {
    use tokio::runtime::RngSeed;
    let branches = |seed: &[u8]| {
        let runtime = Builder::new_current_thread()
            .rng_seed(RngSeed::from_bytes(seed))
            .build_local(LocalOptions::default())
            .expect("a runtime");
        runtime.block_on(async {
            let mut taken = Vec::new();
            for _ in 0..64 {
                taken.push(tokio::select! { () = async {} => 0, () = async {} => 1 });
            }
            assert_eq!(tokio::runtime::Handle::current().metrics().worker_local_queue_depth(0), 0);
            taken
        })
    };
    assert_eq!(branches(b"seven"), branches(b"seven"));
    assert_ne!(branches(b"seven"), branches(b"eight"));
}
