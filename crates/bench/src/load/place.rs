//! Where the two programs of a round run: a thread for each, and the link between them.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;

use pagewire::Host;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::Engine;
use super::network::{BACKLOG, Counts, Kernel, Listener, Network, connect, kernel_listener};
use super::usage::Books;
use crate::failure::{Because, Failure};
use crate::hosts::{self, LEFT, PORT, RIGHT};
use crate::kernel::{self, Between, SOCKET};
use crate::machine::{self, Sides, joined, on_a_thread};

/// The two programs.
pub(super) trait Programs: Sync {
    /// What the client reports.
    type Outcome: Send;

    /// Accepts connections, and serves each by a task of its own.
    async fn serve<L: Listener>(&self, listener: L) -> Result<(), Failure>;

    /// The load. The round is over when it ends.
    async fn load<N: Network>(
        &self,
        network: N,
        to: SocketAddr,
        books: &Books,
    ) -> Result<Self::Outcome, Failure>;
}

/// A round's outcome, and what the stacks counted meanwhile.
pub(super) struct Ran<T> {
    pub(super) outcome: T,
    pub(super) counts: Counts,
}

/// How the programs run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The processors of clients and server, if they are to keep to them.
    sides: Sides,
    /// Print the stacks' counters.
    stats: bool,
}

impl Place {
    pub(super) fn new(pinned: bool, stats: bool) -> Self {
        let nowhere = Sides { left: None, right: None };
        Self { sides: if pinned { Sides::choose() } else { nowhere }, stats }
    }

    /// Runs both programs, each on a thread of its own, until the client's ends.
    pub(super) fn run<P: Programs>(
        self,
        engine: Engine,
        programs: &P,
    ) -> Result<Ran<P::Outcome>, Failure> {
        let books = &Books::default();
        on_a_thread(|| match engine {
            Engine::Pair => self.pair(programs, books),
            Engine::Tap => self.tap(programs, books),
            Engine::Kernel(between) => self.kernel(between, programs, books),
        })
    }

    fn pair<P: Programs>(self, programs: &P, books: &Books) -> Result<Ran<P::Outcome>, Failure> {
        let (left, right, _) = hosts::pair(None)?;
        // The driver threads keep to the processors of those who start them.
        machine::pin(self.sides.left);
        let client = books.client.add_those_of(|| hosts::on(left, LEFT).start())?;
        machine::pin(self.sides.right);
        let server = books.server.add_those_of(|| hosts::on(right, RIGHT).start())?;
        let on = SocketAddr::from((RIGHT, PORT));
        let (ran, counts) = self.both(programs, books, &server, client.clone(), on)?;
        if self.stats {
            eprint!("{}", client.stats());
        }
        Ok(Ran { outcome: ran.outcome, counts: sum(ran.counts, &counts) })
    }

    /// A host on a tap serves; clients of the kernel are on the tap's other side.
    fn tap<P: Programs>(self, programs: &P, books: &Books) -> Result<Ran<P::Outcome>, Failure> {
        let (tap, _) = hosts::tap(RIGHT, None)?;
        machine::pin(self.sides.right);
        let server = books.server.add_those_of(|| hosts::on(tap, LEFT).start())?;
        let on = SocketAddr::from((LEFT, PORT));
        let (ran, counts) = self.both(programs, books, &server, Kernel, on)?;
        Ok(Ran { outcome: ran.outcome, counts: sum(ran.counts, &counts) })
    }

    /// The client's outcome and counts, and those of a host that serves.
    fn both<P: Programs>(
        self,
        programs: &P,
        books: &Books,
        server: &Host,
        network: impl Network + Send,
        on: SocketAddr,
    ) -> Result<(Ran<P::Outcome>, Counts), Failure> {
        let listener = server.listen_with(on, BACKLOG.unsigned_abs() as usize)?;
        let listener = pagewire::tokio::TcpListener::from(listener);
        let (over, is_over) = oneshot::channel();
        let ran = std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                machine::pin(self.sides.right);
                serve(programs, books, || Ok(listener), is_over)
            });
            let loading = scope.spawn(move || {
                machine::pin(self.sides.left);
                let _over = over;
                load(programs, books, network, on)
            });
            let ran = joined(loading);
            joined(serving).and(ran)
        })?;
        if self.stats {
            eprint!("{}", server.stats());
        }
        Ok((ran, server.counts()))
    }

    fn kernel<P: Programs>(
        self,
        between: Between,
        programs: &P,
        books: &Books,
    ) -> Result<Ran<P::Outcome>, Failure> {
        let (over, is_over) = oneshot::channel();
        let (sends, receives) = mpsc::channel();
        let loading = move |to| {
            let ran = load(programs, books, Kernel, to);
            drop(over);
            ran
        };
        let serving = move |listener: &std::net::TcpListener| {
            let before = Kernel.counts();
            serve(programs, books, || kernel_listener(listener), is_over)?;
            // Over loopback the client counts for both.
            let its_own = between != Between::Loopback;
            let counts = if its_own { Kernel.counts().since(&before) } else { Counts::default() };
            let _ = sends.send(counts);
            Ok(())
        };
        let (ran, ()) = kernel::join(between, self.sides, loading, serving)?;
        let counts = receives.recv().unwrap_or_default();
        Ok(Ran { outcome: ran.outcome, counts: sum(ran.counts, &counts) })
    }
}

fn sum(mut counts: Counts, other: &Counts) -> Counts {
    counts.add(other);
    counts
}

/// Runs the server's program on this thread, until the client's has ended.
fn serve<P: Programs, L: Listener>(
    programs: &P,
    books: &Books,
    listener: impl FnOnce() -> Result<L, Failure>,
    is_over: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    books.server.add_this();
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

/// Runs the client's program on this thread.
fn load<P: Programs>(
    programs: &P,
    books: &Books,
    network: impl Network,
    to: SocketAddr,
) -> Result<Ran<P::Outcome>, Failure> {
    books.client.add_this();
    let before = network.counts();
    let outcome = on_a_runtime(async {
        // A link that has just come up may take a second for its first packet.
        drop(connect(&network, to).await.because(SOCKET)?);
        programs.load(network.clone(), to, books).await
    })?;
    Ok(Ran { outcome, counts: network.counts().since(&before) })
}

/// As `#[tokio::main(flavor = "current_thread")]`, with tasks that stay on the thread.
fn on_a_runtime<T>(program: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.because(SOCKET)?;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, program)
}
