//! Tasks that are woken by code that is no task: of the test, of an invariant, of a foreign thread.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use pagewire_simulation::net::TcpStream;
use pagewire_simulation::{Failure, FailureKind, ForeignThreads, Sim, time};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::common::{MS, S, ask_on, asleep, echo_server, in_time};

/// A client that opens a connection, waits for the test, and then asks on it. Returns when it was woken.
fn client_that_waits(sim: &mut Sim) -> (mpsc::UnboundedSender<()>, Rc<RefCell<Vec<Duration>>>) {
    let (go, mut wait) = mpsc::unbounded_channel();
    let told = Rc::new(RefCell::new(Vec::new()));
    let out = told.clone();
    echo_server(sim, "server");
    sim.client("client", async move {
        let mut stream = TcpStream::connect("server:7").await?;
        wait.recv().await.ok_or("closed")?;
        out.borrow_mut().push(time::elapsed()?);
        ask_on(&mut stream, 10).await
    });
    (go, told)
}

/// Runs a simulation by `drive`, which wakes the client and returns when: the client runs at that time.
fn woken_at_once(drive: fn(&mut Sim, mpsc::UnboundedSender<()>) -> Duration) {
    in_time(move || {
        let mut sim = Sim::builder().build();
        let (go, told) = client_that_waits(&mut sim);
        let at = drive(&mut sim, go);
        assert_eq!(*told.borrow(), [at]);
    });
}

#[test]
fn a_task_that_the_test_wakes_between_two_runs_runs_on_its_host() {
    woken_at_once(|sim, go| {
        sim.run_for(S).unwrap();
        go.send(()).unwrap();
        let elapsed = sim.run().unwrap().elapsed;
        assert!((S + 2 * MS..S + 3 * MS).contains(&elapsed), "{elapsed:?}");
        S
    });
}

#[test]
fn a_task_that_the_test_wakes_between_two_steps_runs_at_once() {
    woken_at_once(|sim, go| {
        // The other host's timer is in the event queue, far ahead.
        sim.host("other", || asleep(100 * S));
        while sim.elapsed() < 3 * MS {
            assert!(!sim.step().unwrap());
        }
        let at = sim.elapsed();
        go.send(()).unwrap();
        while !sim.step().unwrap() {}
        at
    });
}

#[test]
fn a_task_that_a_condition_wakes_runs_at_once() {
    woken_at_once(|sim, go| {
        let mut at = None;
        sim.run_until(|sim| {
            if at.is_none() && sim.elapsed() >= 3 * MS {
                at = Some(sim.elapsed());
                go.send(()).unwrap();
            }
            sim.elapsed() >= 5 * MS
        })
        .unwrap();
        at.unwrap()
    });
}

#[test]
fn a_task_that_an_invariant_or_an_action_wakes_runs_at_once() {
    woken_at_once(|sim, go| {
        sim.at(7 * MS, |_| {});
        sim.invariant("wakes", move |view| {
            if view.now().elapsed() >= 7 * MS {
                let _ = go.send(());
            }
            Ok(())
        });
        sim.run().unwrap();
        7 * MS
    });
    woken_at_once(|sim, go| {
        sim.at(9 * MS, move |_| go.send(()).unwrap());
        sim.run().unwrap();
        9 * MS
    });
}

#[test]
fn a_panic_of_a_task_that_the_test_woke_fails_the_run() {
    in_time(|| {
        let mut sim = Sim::builder().build();
        let (go, wait) = oneshot::channel::<()>();
        sim.client("client", async {
            tokio::spawn(async {
                let _ = wait.await;
                panic!("unheard");
            });
            sleep(2 * S).await;
            Ok(())
        });
        sim.run_for(S).unwrap();
        go.send(()).unwrap();
        let failure = sim.run().unwrap_err();
        assert_eq!((failure.kind, failure.at.elapsed()), (FailureKind::Panic, S), "{failure}");
        assert!(failure.to_string().contains("on `client`: a task panicked: unheard"), "{failure}");
    });
}

/// More than are asked for after every instant.
#[test]
fn hosts_of_many_that_wake_each_other_by_a_channel_run_inside_of_the_simulation() {
    in_time(|| {
        let run = || {
            let mut sim = Sim::builder().build();
            echo_server(&mut sim, "server");
            let (send, mut receive) = mpsc::unbounded_channel();
            let log = Rc::new(RefCell::new(Vec::new()));
            let out = log.clone();
            sim.client("collector", async move {
                let mut stream = TcpStream::connect("server:7").await?;
                for _ in 0..70 * 3 {
                    let n: u32 = receive.recv().await.ok_or("closed")?;
                    out.borrow_mut().push((n, time::elapsed()?));
                    ask_on(&mut stream, 10).await?;
                }
                Ok(())
            });
            for n in 0..70 {
                let send = send.clone();
                sim.client(&format!("client{n}"), async move {
                    for _ in 0..3 {
                        let mut stream = TcpStream::connect("server:7").await?;
                        send.send(n)?;
                        ask_on(&mut stream, 10).await?;
                        sleep(5 * MS).await;
                    }
                    Ok(())
                });
            }
            let link = |us| pagewire_simulation::Link::new().latency(Duration::from_micros(us));
            sim.control().link("collector", "server", link(1130));
            for n in 0..70 {
                sim.control().link(format!("client{n}"), "server", link(1500 + 10 * n));
            }
            sim.run().unwrap();
            log.take()
        };
        assert_eq!(run(), run());
    });
}

/// A waker of a timer. When the timer fires, a thread sends to `client` before the waker wakes its task.
struct SentByAThread {
    task: Waker,
    send: Mutex<Option<oneshot::Sender<()>>>,
}

impl Wake for SentByAThread {
    fn wake(self: Arc<Self>) {
        if let Some(send) = self.send.lock().unwrap().take() {
            let thread = std::thread::spawn(move || send.send(()));
            // A `join` would block the thread of the simulation, which is a failure of another kind.
            while !thread.is_finished() {
                std::thread::yield_now();
            }
        }
        self.task.wake_by_ref();
    }
}

/// A run in which a thread wakes the task of `client` while no host has its turn. Returns its warnings.
///
/// A wake during a turn might be by the host whose turn it is, so only a wake between two turns is
/// noticed. There the simulation looks for the next timer of `other`, the first host, up to the time when
/// a packet of `client` could reach it, which is later than its timer: the timer's waker is called. Then
/// the simulation visits `client`, which was not to be woken.
fn woken_by_a_thread(builder: pagewire_simulation::Builder) -> Result<Vec<String>, Failure> {
    let far = pagewire_simulation::Link::new().latency(100 * MS);
    let mut sim = builder.link(far).build();
    let (send, receive) = oneshot::channel::<()>();
    sim.client("other", async move {
        let mut timer = pin!(sleep(5 * MS));
        let mut send = Some(send);
        poll_fn(|cx| {
            let send = Mutex::new(send.take());
            let waker = Waker::from(Arc::new(SentByAThread { task: cx.waker().clone(), send }));
            timer.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await;
        Ok(())
    });
    sim.client("client", async {
        receive.await?;
        Ok(())
    });
    sim.run().map(|report| report.warnings)
}

#[test]
fn a_foreign_thread_that_wakes_a_task_is_a_failure_or_a_warning() {
    in_time(|| {
        let words = "`client`: a thread outside of the simulation woke a task";
        let failure = woken_by_a_thread(Sim::builder()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::ForeignThread, "{failure}");
        assert!(failure.to_string().contains(&format!("on {words}")), "{failure}");
        let builder = Sim::builder().foreign_threads(ForeignThreads::Report);
        let warnings = woken_by_a_thread(builder).unwrap();
        assert!(warnings.len() == 1 && warnings[0].starts_with(words), "{warnings:?}");
    });
}
