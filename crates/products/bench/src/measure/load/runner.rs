//! [`LoadRunner`]: runs the two programs of a round, a thread for each, over the link between them.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;

use clap::{Args, ValueEnum};
use pagewire::{BindOptions, Host};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::network::{BACKLOG, Kernel, Listener, Network, StackCounts, connect, kernel_listener};
use super::usage::{SideThreads, Threads};
use crate::failure::{Because, Failure};
use crate::kit::engine::Engine;
use crate::kit::hosts::{self, LEFT, PORT, RIGHT};
use crate::kit::kernel::{self, Between, SOCKET};
use crate::kit::machine::{self, Sides, joined};
use crate::kit::namespace::enter_with_tap;

/// Arguments that say where the two programs and their stacks run.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct RunnerOptions {
    /// Driver of Pagewire's hosts
    #[arg(long, value_enum, default_value_t = Driver::Task, value_name = "KIND")]
    driver: Driver,

    /// Keep each side's threads on one processor, instead of leaving them to the kernel
    #[arg(long)]
    pin: bool,
}

/// The driver of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Driver {
    /// A task of the program's runtime
    Task,
    /// A thread of its own, as for programs without a runtime
    Thread,
}

/// The two programs.
pub(super) trait Programs: Sync {
    /// The result of the client's program.
    type Outcome: Send;

    /// Accepts connections, and serves each by a task of its own.
    async fn serve<L: Listener>(&self, listener: L) -> Result<(), Failure>;

    /// The load. The round is over when it ends.
    async fn load<N: Network>(
        &self,
        network: N,
        to: SocketAddr,
        threads: &SideThreads,
    ) -> Result<Self::Outcome, Failure>;
}

/// A round's outcome, and what the stacks counted meanwhile.
pub(super) struct Ran<T> {
    pub(super) outcome: T,
    pub(super) counts: StackCounts,
}

impl<T> Ran<T> {
    /// Adds the counts of the other side.
    fn and(mut self, other: &StackCounts) -> Self {
        self.counts.add(other);
        self
    }
}

/// How the programs run.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadRunner {
    /// The processors of clients and server, if they are to keep to them.
    sides: Sides,
    driver: Driver,
    /// Print the stacks' counters.
    stats: bool,
}

impl LoadRunner {
    pub(super) fn new(options: RunnerOptions, stats: bool) -> Self {
        let nowhere = Sides { left: None, right: None };
        let sides = if options.pin { Sides::choose() } else { nowhere };
        Self { sides, driver: options.driver, stats }
    }

    /// Runs both programs, each on a thread of its own, until the client's ends.
    pub(super) fn run<P: Programs>(
        self,
        engine: Engine,
        programs: &P,
    ) -> Result<Ran<P::Outcome>, Failure> {
        let threads = &SideThreads::default();
        match engine {
            Engine::Pair => self.pair(programs, threads),
            Engine::Tap => self.tap(programs, threads),
            Engine::Kernel(between) => self.kernel(between, programs, threads),
        }
    }

    fn pair<P: Programs>(
        self,
        programs: &P,
        threads: &SideThreads,
    ) -> Result<Ran<P::Outcome>, Failure> {
        let (left, right, _) = hosts::pair(None)?;
        let network = move || self.start(hosts::on(left, LEFT), &threads.client);
        let on = SocketAddr::from((RIGHT, PORT));
        let (ran, client) = self.both(programs, threads, hosts::on(right, RIGHT), network, on)?;
        if self.stats {
            eprint!("{}", client.stats());
        }
        Ok(ran)
    }

    /// A host on a tap serves; clients of the kernel are on the tap's other side.
    fn tap<P: Programs>(
        self,
        programs: &P,
        threads: &SideThreads,
    ) -> Result<Ran<P::Outcome>, Failure> {
        let (tap, _) = enter_with_tap(RIGHT, None)?;
        let on = SocketAddr::from((LEFT, PORT));
        let (ran, Kernel) =
            self.both(programs, threads, hosts::on(tap, LEFT), || Ok(Kernel), on)?;
        Ok(ran)
    }

    /// Starts a host on a thread of its side, whose processor it keeps to, and in its runtime.
    fn start(self, host: pagewire::HostBuilder, threads: &Threads) -> Result<Host, Failure> {
        Ok(match self.driver {
            Driver::Task => host.start_in_runtime()?,
            Driver::Thread => threads.add_those_of(|| host.start())?,
        })
    }

    /// Runs both with a host that serves; also returns what the clients connected from.
    fn both<P: Programs, N: Network + Send>(
        self,
        programs: &P,
        threads: &SideThreads,
        server: pagewire::HostBuilder,
        network: impl FnOnce() -> Result<N, Failure> + Send,
        on: SocketAddr,
    ) -> Result<(Ran<P::Outcome>, N), Failure> {
        let (over, is_over) = oneshot::channel();
        let (sends, receives) = mpsc::channel();
        let ((ran, network), server) = std::thread::scope(|scope| {
            let listen = move || {
                let server = self.start(server, &threads.server)?;
                let listener = server.listen_with(
                    on,
                    &BindOptions::new().backlog(BACKLOG.unsigned_abs() as usize),
                )?;
                let _ = sends.send(server);
                Ok(pagewire::net::TcpListener::from(listener))
            };
            let serving = scope.spawn(move || {
                machine::pin(self.sides.right);
                serve(programs, threads, listen, is_over)
            });
            // Disconnected: the server failed, and reports why.
            let Ok(server) = receives.recv() else {
                return Err(joined(serving).err().unwrap_or_else(died));
            };
            let loading = scope.spawn(move || {
                machine::pin(self.sides.left);
                load(programs, threads, network, on, over)
            });
            let ran = joined(loading);
            joined(serving).and(ran).map(|ran| (ran, server))
        })?;
        if self.stats {
            eprint!("{}", server.stats());
        }
        Ok((ran.and(&server.counts()), network))
    }

    fn kernel<P: Programs>(
        self,
        between: Between,
        programs: &P,
        threads: &SideThreads,
    ) -> Result<Ran<P::Outcome>, Failure> {
        let (over, is_over) = oneshot::channel();
        let loading = move |to| load(programs, threads, || Ok(Kernel), to, over);
        let serving = move |listener: &std::net::TcpListener| {
            let before = Kernel.counts();
            serve(programs, threads, || kernel_listener(listener), is_over)?;
            // Over loopback the client counts for both.
            let its_own = between != Between::Loopback;
            Ok(if its_own { Kernel.counts().since(&before) } else { StackCounts::default() })
        };
        let ((ran, Kernel), counts) = kernel::join(between, self.sides, loading, serving)?;
        Ok(ran.and(&counts))
    }
}

fn died() -> Failure {
    Failure::Failed("a thread of the measurement died".into())
}

/// Runs the server's program on this thread, until the client's has ended.
fn serve<P: Programs, L: Listener>(
    programs: &P,
    threads: &SideThreads,
    listener: impl FnOnce() -> Result<L, Failure>,
    is_over: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    threads.server.add_this();
    on_a_runtime(async move {
        let mut serving = pin!(programs.serve(listener()?));
        let mut is_over = pin!(is_over);
        // The server ends if it fails, or when the client's half of the channel is dropped.
        poll_fn(|cx| match is_over.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(Ok(())),
            Poll::Pending => serving.as_mut().poll(cx),
        })
        .await
    })
}

/// Runs the client's program on this thread; also returns what it connected from.
fn load<P: Programs, N: Network>(
    programs: &P,
    threads: &SideThreads,
    network: impl FnOnce() -> Result<N, Failure>,
    to: SocketAddr,
    over: oneshot::Sender<()>,
) -> Result<(Ran<P::Outcome>, N), Failure> {
    threads.client.add_this();
    on_a_runtime(async {
        let network = network()?;
        let ran: Result<_, Failure> = async {
            let before = network.counts();
            // A link that has just come up may take a second for its first packet.
            drop(connect(&network, to).await.because(SOCKET)?);
            let outcome = programs.load(network.clone(), to, threads).await?;
            Ok(Ran { outcome, counts: network.counts().since(&before) })
        }
        .await;
        // Before the network goes away: the server ends, and does not fail for want of its peer.
        drop(over);
        Ok((ran?, network))
    })
}

/// Runs a program as `#[tokio::main(flavor = "current_thread")]` does, with tasks that stay on the thread.
fn on_a_runtime<T>(program: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.because(SOCKET)?;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, program)
}
