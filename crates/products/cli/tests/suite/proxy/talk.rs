//! Thousands of conversations on the kernel's sockets at once: what each end says follows from a number, so the
//! other end can check it. The test of the proxy with ten thousand connections runs both ends.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

/// Longest time for a conversation, and for opening all connections.
const LIMIT: Duration = Duration::from_secs(180);

/// Connections that are opened at the same time: a lost SYN costs the one that sent it a second.
const DIALLERS: usize = 64;

/// Silence after which each end asks whether the other is still there, and then again. A reset is sent
/// once, and the link loses some: whoever waits for a lost one has nothing else to learn it by. Much
/// longer than it takes to open all connections: a handshake whose last step found a queue full is
/// completed by the first data, and a question before that is answered with a reset.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(30);

/// Bytes that a slow reader takes in one turn, after which all others have theirs.
const SIP: usize = 700;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Polite,
    SlowClient,
    SlowServer,
    ClientAborts,
    ServerAborts,
}

/// The conversation that a number stands for.
#[derive(Clone, Copy, Debug)]
struct Plan {
    number: u64,
    kind: Kind,
    up: usize,
    down: usize,
}

impl Plan {
    fn of(number: u64) -> Self {
        let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let kind = match number % 16 {
            0 => Kind::ClientAborts,
            1 => Kind::ServerAborts,
            2 | 3 => Kind::SlowClient,
            4 | 5 => Kind::SlowServer,
            _ => Kind::Polite,
        };
        let bytes =
            |n: u64| 8 + (n % if number.is_multiple_of(50) { 60_000 } else { 3000 }) as usize;
        Self { number, kind, up: bytes(mixed >> 40), down: bytes((mixed >> 20) & 0xf_ffff) }
    }

    fn is_polite(&self) -> bool {
        !matches!(self.kind, Kind::ClientAborts | Kind::ServerAborts)
    }

    /// A byte of what one side says. What the client says begins with the number.
    fn byte(&self, by_client: bool, at: usize) -> u8 {
        match (by_client, at) {
            (true, 0..8) => self.number.to_be_bytes()[at],
            _ => {
                let word = (2 * self.number + u64::from(by_client)) << 32 | (at / 4) as u64;
                (word.wrapping_mul(0xd134_2543_de82_ef95) >> (24 + 8 * (at % 4))) as u8
            }
        }
    }
}

fn keep_alive(stream: &TcpStream) {
    sockopt::set_socket_keepalive(stream, true).expect("an option");
    sockopt::set_tcp_keepidle(stream, KEEPALIVE).expect("an option");
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE).expect("an option");
}

/// An end of a conversation.
#[derive(Debug)]
struct Talk {
    plan: Plan,
    by_client: bool,
    sent: usize,
    got: usize,
}

impl Talk {
    fn client(plan: Plan) -> Self {
        Self { plan, by_client: true, sent: 0, got: 0 }
    }

    /// The end of a server that has read the number of the client.
    fn server(plan: Plan) -> Self {
        Self { plan, by_client: false, sent: 0, got: 8 }
    }

    /// Whether the conversation was polite, in which case this end got everything.
    async fn run(mut self, mut stream: TcpStream) -> bool {
        let over = timeout(LIMIT, self.both_ways(&mut stream)).await;
        let over = over.unwrap_or_else(|_| panic!("not over: {self:?}"));
        let polite = self.plan.is_polite();
        assert!(!polite || over.is_ok(), "{over:?}: {self:?}");
        polite
    }

    /// Speaks and listens at the same time, until both streams have ended or one end aborts.
    async fn both_ways(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let Self { plan, by_client, sent, got } = self;
        let (plan, by_client) = (*plan, *by_client);
        let (to_say, to_hear) = if by_client { (plan.up, plan.down) } else { (plan.down, plan.up) };
        let (aborting, slow) = match by_client {
            true => (Kind::ClientAborts, Kind::SlowClient),
            false => (Kind::ServerAborts, Kind::SlowServer),
        };
        let aborts = plan.kind == aborting;
        if aborts {
            sockopt::set_socket_linger(&*stream, Some(Duration::ZERO))?;
        }
        let is_halfway = |bytes: usize| aborts && bytes >= plan.up / 2;
        let most = if plan.kind == slow { SIP } else { 16_384 };
        let (mut from, mut to) = stream.split();
        let speak = async {
            let said: Vec<u8> = (0..to_say).map(|at| plan.byte(by_client, at)).collect();
            while *sent < to_say {
                *sent += to.write(&said[*sent..to_say.min(*sent + 16_384)]).await?;
                if by_client && is_halfway(*sent) {
                    return Err(ErrorKind::ConnectionAborted.into());
                }
            }
            to.shutdown().await
        };
        let listen = async {
            let mut buffer = vec![0; most];
            loop {
                if !by_client && is_halfway(*got) {
                    return Err(io::Error::from(ErrorKind::ConnectionAborted));
                }
                let n = from.read(&mut buffer).await?;
                if n == 0 {
                    assert!(*got == to_hear || !plan.is_polite(), "{plan:?}: {got} bytes");
                    return Ok(());
                }
                let expected = (*got..*got + n).map(|at| plan.byte(!by_client, at));
                assert!(buffer[..n].iter().copied().eq(expected), "{plan:?} from byte {got}");
                *got += n;
                if plan.kind == slow {
                    yield_now().await;
                }
            }
        };
        tokio::try_join!(speak, listen).map(|_| ())
    }
}

fn block_on<T>(all: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(all)
}

/// Waits for all. Returns how many were polite.
async fn count_polite(talks: JoinSet<bool>) -> u64 {
    talks.join_all().await.into_iter().map(u64::from).sum()
}

/// Opens `connections` connections, and only then has all of them speak, until each is over. Returns the number of
/// polite ones, all of which got everything.
pub(crate) fn clients(front: &str, connections: u64) -> u64 {
    let to: SocketAddr = front.parse().expect("an address");
    let diallers = Arc::new(Semaphore::new(DIALLERS));
    let dial = |number| {
        let diallers = Arc::clone(&diallers);
        async move {
            let _turn = diallers.acquire().await.expect("it is never closed");
            let stream = TcpStream::connect(to).await.expect("a connection");
            keep_alive(&stream);
            (stream, Plan::of(number))
        }
    };
    block_on(async {
        let dialled: JoinSet<_> = (0..connections).map(dial).collect();
        let open = timeout(LIMIT, dialled.join_all()).await.expect("all are open");
        let talks = open.into_iter().map(|(stream, plan)| Talk::client(plan).run(stream));
        count_polite(talks.collect()).await
    })
}

/// Serves until the sender of `over` is gone: no more will come. Returns how many were polite.
pub(crate) fn servers(listener: std::net::TcpListener, over: oneshot::Receiver<()>) -> u64 {
    listener.set_nonblocking(true).expect("an option");
    block_on(async {
        let listener = TcpListener::from_std(listener).expect("a listener");
        let mut talks = JoinSet::new();
        let accept = async {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                keep_alive(&stream);
                talks.spawn(serve(stream));
            }
        };
        tokio::select! {
            biased;
            () = accept => {}
            _ = over => {}
        }
        count_polite(talks).await
    })
}

async fn serve(mut stream: TcpStream) -> bool {
    // Without a number, the client aborted before it had said it.
    match timeout(LIMIT, stream.read_u64()).await.expect("a number, or the end") {
        Ok(number) => Talk::server(Plan::of(number)).run(stream).await,
        Err(_) => false,
    }
}
