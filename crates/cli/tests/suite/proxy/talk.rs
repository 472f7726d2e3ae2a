//! Very many conversations on the kernel's sockets, none of which waits for another.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

/// Longest time for all of it.
const LIMIT: Duration = Duration::from_secs(180);

/// Threads that open connections: a lost SYN costs the one that sent it a second.
const DIALLERS: usize = 64;

/// Silence after which each end asks whether the other is still there, and then again. A reset is sent
/// once, and the link loses some: whoever waits for a lost one has nothing else to learn it by. Much
/// longer than it takes to open all connections: a handshake whose last step found a queue full is
/// completed by the first data, and a question before that is answered with a reset.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(30);

/// What a slow reader takes in one round.
const SIP: usize = 700;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Polite,
    SlowClient,
    SlowServer,
    ClientAborts,
    ServerAborts,
}

/// What a number stands for.
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

#[derive(Debug)]
struct Talk {
    stream: TcpStream,
    by_client: bool,
    plan: Option<Plan>,
    head: Vec<u8>,
    sent: usize,
    got: usize,
    said_end: bool,
    seen_end: bool,
}

/// How far a conversation is.
enum Turn {
    Idle,
    Moved,
    Polite,
    Cut,
}

impl Talk {
    fn new(stream: TcpStream, plan: Option<Plan>) -> Self {
        stream.set_nonblocking(true).expect("an option");
        sockopt::set_socket_keepalive(&stream, true).expect("an option");
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE).expect("an option");
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE).expect("an option");
        let (head, by_client) = (Vec::new(), plan.is_some());
        let (said_end, seen_end) = (false, false);
        Self { stream, by_client, plan, head, sent: 0, got: 0, said_end, seen_end }
    }

    fn turn(&mut self) -> Turn {
        match self.try_turn() {
            Ok(turn) => turn,
            Err(error) => {
                let polite = self.plan.is_some_and(|plan| plan.is_polite());
                assert!(!polite, "{error}: {:?}, sent {}, got {}", self.plan, self.sent, self.got);
                Turn::Cut
            }
        }
    }

    fn try_turn(&mut self) -> std::io::Result<Turn> {
        let mut moved = false;
        if let Some(plan) = self.plan {
            let aborts = match plan.kind {
                Kind::ClientAborts => self.by_client && self.sent >= plan.up / 2,
                Kind::ServerAborts => !self.by_client && self.got >= plan.up / 2,
                _ => false,
            };
            if aborts {
                let linger = Some(Duration::ZERO);
                sockopt::set_socket_linger(&self.stream, linger)?;
                return Ok(Turn::Cut);
            }
            let all = if self.by_client { plan.up } else { plan.down };
            if self.sent < all {
                let until = all.min(self.sent + 16_384);
                let piece: Vec<u8> =
                    (self.sent..until).map(|at| plan.byte(self.by_client, at)).collect();
                match self.stream.write(&piece) {
                    Ok(n) => {
                        self.sent += n;
                        moved = true;
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
            }
            if self.sent == all && !self.said_end {
                self.stream.shutdown(Shutdown::Write)?;
                self.said_end = true;
            }
        }
        if !self.seen_end {
            moved |= self.take()?;
        }
        if self.said_end && self.seen_end {
            return Ok(Turn::Polite);
        }
        Ok(if moved { Turn::Moved } else { Turn::Idle })
    }

    fn take(&mut self) -> std::io::Result<bool> {
        let slow = self.plan.is_some_and(|plan| match plan.kind {
            Kind::SlowClient => self.by_client,
            Kind::SlowServer => !self.by_client,
            _ => false,
        });
        let most = match self.plan {
            None => 8 - self.head.len(),
            Some(_) if slow => SIP,
            Some(_) => 65_536,
        };
        let mut buffer = vec![0; most];
        let n = match self.stream.read(&mut buffer) {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        };
        let read = &buffer[..n];
        match self.plan {
            _ if n == 0 => {
                self.seen_end = true;
                let plan = self.plan.ok_or(ErrorKind::UnexpectedEof)?;
                let all = if self.by_client { plan.down } else { plan.up };
                assert!(self.got == all || !plan.is_polite(), "{plan:?}: {} bytes", self.got);
            }
            None => {
                self.head.extend(read);
                if let Some(number) = self.head.first_chunk() {
                    self.plan = Some(Plan::of(u64::from_be_bytes(*number)));
                }
            }
            Some(plan) => {
                let expected = (self.got..self.got + n).map(|at| plan.byte(!self.by_client, at));
                assert!(read.iter().copied().eq(expected), "{plan:?} from byte {}", self.got);
            }
        }
        self.got += n;
        Ok(true)
    }
}

/// Opens so many connections, and only then has all of them speak, until each is over. Returns how many
/// were polite, all of which got everything.
pub(crate) fn clients(front: &str, connections: u64) -> u64 {
    let to: SocketAddr = front.parse().expect("an address");
    let open = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..DIALLERS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed) as u64;
                    if number >= connections {
                        break;
                    }
                    let stream = TcpStream::connect_timeout(&to, LIMIT).expect("a connection");
                    let talk = Talk::new(stream, Some(Plan::of(number)));
                    open.lock().expect("no panics").push(talk);
                }
            });
        }
    });
    let polite = (0..connections).filter(|n| Plan::of(*n).is_polite()).count() as u64;
    let talks = open.into_inner().expect("no panics");
    assert_eq!(run(talks, Instant::now() + LIMIT, |_| true), polite, "clients");
    polite
}

/// Serves until `over` says that no more will come. Returns how many were polite.
pub(crate) fn servers(listener: &TcpListener, over: impl Fn() -> bool) -> u64 {
    listener.set_nonblocking(true).expect("an option");
    run(Vec::new(), Instant::now() + LIMIT, |talks| {
        while let Ok((stream, _)) = listener.accept() {
            talks.push(Talk::new(stream, None));
        }
        over()
    })
}

/// Rounds over all conversations until none is left and none will come. Returns how many were polite.
fn run(
    mut talks: Vec<Talk>,
    deadline: Instant,
    mut all_came: impl FnMut(&mut Vec<Talk>) -> bool,
) -> u64 {
    let mut polite = 0;
    loop {
        let complete = all_came(&mut talks);
        if complete && talks.is_empty() {
            return polite;
        }
        if Instant::now() >= deadline {
            let left: Vec<String> = talks.iter().take(8).map(|t| format!("{t:?}")).collect();
            panic!("{} conversations are not over: {}", talks.len(), left.join("; "));
        }
        let mut moved = false;
        talks.retain_mut(|talk| match talk.turn() {
            Turn::Idle => true,
            Turn::Moved => {
                moved = true;
                true
            }
            Turn::Polite => {
                polite += u64::from(talk.plan.is_some_and(|plan| plan.is_polite()));
                false
            }
            Turn::Cut => false,
        });
        if !moved {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
