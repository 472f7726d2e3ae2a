//! The work of one core: a client and a server whose calls never wait.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::Ordering;

use pagewire::device::FaultRng;
use pagewire::memory::Frag;
use pagewire::{ConnectOptions, TcpStream};

use super::CoresWork;
use super::world::{CoreHosts, SERVER};
use crate::failure::{Because, Failure};
use crate::kit::hosts::{Feed, RECV_PIECE, SEND_PIECE, never_wait, would_block};
use crate::kit::source::Source;

/// Bytes of a request, and of an answer.
pub(super) const SIZE: usize = 64;

/// Turns between two connections of a visitor, on average.
const PAUSE: u64 = 4;

/// Connections of a core that carry bulk data.
const FLOWS: usize = 4;

const CONNECTION: &str = "a connection of a core";

/// Client and server of one core, whose calls never wait.
pub(super) trait Ends {
    /// The client's end of a connection.
    type Client: Read + Write;
    /// The server's end of a connection.
    type Server: Read + Write;

    /// Begins a connection; those that are open at a time have different numbers.
    fn start(&self, number: usize) -> io::Result<Self::Client>;

    /// Number of connections that can be told apart.
    fn numbers(&self) -> usize;

    /// The next connection that waits.
    fn accept(&self) -> io::Result<Self::Server>;

    /// The load of the core, with all connections open that stay open. `drive` lets the ends work.
    fn load(&self, plan: LoadPlan, drive: Drive<'_>) -> Result<Box<dyn Load<Self>>, Failure>;

    /// Lets the client do what it can now; returns whether there was anything.
    fn turn_client(&self) -> bool {
        false
    }

    /// Lets the server do what it can now; returns whether there was anything.
    fn turn_server(&self) -> bool {
        false
    }

    /// Frames that the server's queue passed on in place of the server.
    fn relayed(&self) -> u64 {
        0
    }

    /// Packets that the server passed on.
    fn strays(&self) -> u64 {
        0
    }

    /// Prints the server's counters.
    fn print_stats(&self) {}
}

/// Lets the ends of a core work.
pub(super) type Drive<'a> = &'a mut dyn FnMut() -> Result<(), Failure>;

/// The kind and the amount of a core's work.
pub(super) struct LoadPlan {
    pub(super) work: CoresWork,
    pub(super) connections: usize,
    pub(super) source: Source,
}

/// The work of a core.
pub(super) trait Load<E: ?Sized> {
    /// Does what the client can do now; returns the requests or connections that are done, or 0.
    fn client(&mut self, ends: &E) -> Result<u64, Failure>;

    /// Does what the server can do now; returns the bytes that arrived, where those count.
    fn server(&mut self, ends: &E) -> Result<u64, Failure>;
}

/// The load of ends that have no bulk by reference.
pub(super) fn small<E: Ends>(
    ends: &E,
    plan: &LoadPlan,
    drive: Drive<'_>,
) -> Result<Box<dyn Load<E>>, Failure>
where
    E::Client: 'static,
    E::Server: 'static,
{
    match plan.work {
        CoresWork::Requests => requests(ends, plan.connections, drive),
        CoresWork::Connections => Ok(connections(plan.connections)),
        CoresWork::Bulk => Err(Failure::Failed("these ends have no bulk by reference".into())),
    }
}

/// Requests, over connections that are opened now.
fn requests<E: Ends>(ends: &E, count: usize, drive: Drive<'_>) -> Result<Box<dyn Load<E>>, Failure>
where
    E::Client: 'static,
    E::Server: 'static,
{
    let (mut clients, servers) = open(ends, count, drive)?;
    clients.iter_mut().try_for_each(send_message)?;
    Ok(Box::new(Requests { clients, servers }))
}

/// Connections for one request each, so many at a time.
fn connections<E: Ends>(count: usize) -> Box<dyn Load<E>>
where
    E::Client: 'static,
    E::Server: 'static,
{
    let (visits, chance) = ((0..count).map(|_| Visit::Over).collect(), FaultRng::new(1));
    Box::new(Connections { visits, chance, serving: Vec::new(), next: 0 })
}

impl Ends for CoreHosts {
    type Client = TcpStream;
    type Server = TcpStream;

    fn start(&self, number: usize) -> io::Result<TcpStream> {
        let local = self.locals.get(number).ok_or(ErrorKind::AddrNotAvailable)?;
        let options = ConnectOptions::new().local(*local);
        let stream = self.client.start_connect_with(SERVER, &options)?;
        never_wait(&stream)?;
        Ok(stream)
    }

    fn numbers(&self) -> usize {
        self.locals.len()
    }

    fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept()?;
        never_wait(&stream)?;
        Ok(stream)
    }

    fn load(&self, plan: LoadPlan, drive: Drive<'_>) -> Result<Box<dyn Load<Self>>, Failure> {
        if plan.work != CoresWork::Bulk {
            return small(self, &plan, drive);
        }
        let (clients, servers) = open(self, FLOWS, drive)?;
        let feeds = clients.into_iter().map(|client| {
            let pieces: Box<dyn Iterator<Item = Frag>> = Box::new(plan.source.frags(SEND_PIECE));
            (Feed::new(pieces), client)
        });
        Ok(Box::new(Bulk { feeds: feeds.collect(), servers, frags: Vec::new() }))
    }

    fn turn_client(&self) -> bool {
        self.client.turn()
    }

    fn turn_server(&self) -> bool {
        self.shard.turn()
    }

    fn relayed(&self) -> u64 {
        self.relayed.load(Ordering::Relaxed)
    }

    fn strays(&self) -> u64 {
        self.shard.stats().counters.strays_passed
    }

    fn print_stats(&self) {
        eprint!("{}", self.shard.stats());
    }
}

/// The next connection that waits, if there is one.
fn accept<E: Ends>(ends: &E) -> Result<Option<E::Server>, Failure> {
    match ends.accept() {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(Failure::because(CONNECTION, error)),
    }
}

/// The clients' and the servers' ends of connections.
type Opened<E> = (Vec<<E as Ends>::Client>, Vec<<E as Ends>::Server>);

/// Opens connections, and waits until they are established on both sides.
fn open<E: Ends>(ends: &E, count: usize, drive: Drive<'_>) -> Result<Opened<E>, Failure> {
    let clients = (0..count).map(|number| ends.start(number)).collect::<io::Result<Vec<_>>>();
    let (clients, mut servers) = (clients.because(CONNECTION)?, Vec::with_capacity(count));
    while servers.len() < clients.len() {
        drive()?;
        servers.extend(accept(ends)?);
    }
    Ok((clients, servers))
}

/// Reads a message; `false`: it is not there yet.
fn message<S: Read>(stream: &mut S) -> Result<bool, Failure> {
    match would_block(stream.read(&mut [0; SIZE]))? {
        None => Ok(false),
        // One segment carries it all.
        Some(SIZE) => Ok(true),
        Some(n) => Err(Failure::because(CONNECTION, format!("{n} bytes instead of {SIZE}"))),
    }
}

fn send_message<S: Write>(stream: &mut S) -> Result<(), Failure> {
    stream.write_all(&[0x55; SIZE]).because(CONNECTION)
}

/// Requests over connections that stay, one under way on each.
struct Requests<C, S> {
    clients: Vec<C>,
    servers: Vec<S>,
}

impl<E: Ends> Load<E> for Requests<E::Client, E::Server> {
    fn client(&mut self, _: &E) -> Result<u64, Failure> {
        let mut answered = 0;
        for stream in &mut self.clients {
            if message(stream)? {
                answered += 1;
                send_message(stream)?;
            }
        }
        Ok(answered)
    }

    fn server(&mut self, _: &E) -> Result<u64, Failure> {
        for stream in &mut self.servers {
            if message(stream)? {
                send_message(stream)?;
            }
        }
        Ok(0)
    }
}

/// Connections for one request each. The server closes first, so TIME-WAIT is the server's.
struct Connections<C, S> {
    visits: Vec<Visit<C>>,
    /// Draws the beginning of each. Else all connections would stay at the same stage at the same time, which no load
    /// does, and which is cheaper: the first packet that is late would cost as much as many.
    chance: FaultRng,
    /// Connections that the server has not answered.
    serving: Vec<S>,
    /// The number of the next connection.
    next: usize,
}

/// How far a client has come.
enum Visit<C> {
    Over,
    Opening(C),
    Asked(C),
    Answered(C),
}

impl<C: Read + Write> Visit<C> {
    /// Goes on as far as it comes now.
    fn go_on<E: Ends<Client = C>>(self, ends: &E, next: &mut usize) -> Result<Self, Failure> {
        Ok(match self {
            Self::Over => {
                let number = *next;
                *next = (number + 1) % ends.numbers().max(1);
                match ends.start(number) {
                    Ok(stream) => Self::Opening(stream),
                    // The last connection from there is not over.
                    Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Self::Over,
                    Err(error) => return Err(Failure::because(CONNECTION, error)),
                }
            }
            Self::Opening(mut stream) => match would_block(stream.write(&[0x55; SIZE]))? {
                None => Self::Opening(stream),
                Some(_) => Self::Asked(stream),
            },
            Self::Asked(mut stream) => match message(&mut stream)? {
                false => Self::Asked(stream),
                true => Self::Answered(stream).go_on(ends, next)?,
            },
            Self::Answered(mut stream) => match would_block(stream.read(&mut [0; SIZE]))? {
                None => Self::Answered(stream),
                Some(_) => Self::Over,
            },
        })
    }
}

impl<E: Ends> Load<E> for Connections<E::Client, E::Server> {
    fn client(&mut self, ends: &E) -> Result<u64, Failure> {
        let mut over = 0;
        for place in &mut self.visits {
            let was_over = matches!(place, Visit::Over);
            if was_over && self.chance.below(PAUSE) > 0 {
                continue;
            }
            *place = std::mem::replace(place, Visit::Over).go_on(ends, &mut self.next)?;
            over += u64::from(!was_over && matches!(place, Visit::Over));
        }
        Ok(over)
    }

    fn server(&mut self, ends: &E) -> Result<u64, Failure> {
        while let Some(stream) = accept(ends)? {
            self.serving.push(stream);
        }
        let mut at = 0;
        while let Some(stream) = self.serving.get_mut(at) {
            if message(stream)? {
                send_message(stream)?;
                // The drop closes.
                self.serving.swap_remove(at);
            } else {
                at += 1;
            }
        }
        Ok(0)
    }
}

/// Bulk data, in pieces by reference.
type BulkFeed = Feed<Box<dyn Iterator<Item = Frag>>>;

/// Bulk data by reference, which the server drops.
struct Bulk {
    feeds: Vec<(BulkFeed, TcpStream)>,
    servers: Vec<TcpStream>,
    frags: Vec<Frag>,
}

impl Load<CoreHosts> for Bulk {
    fn client(&mut self, _: &CoreHosts) -> Result<u64, Failure> {
        for (feed, stream) in &mut self.feeds {
            while feed.send(stream)?.is_some() {}
        }
        Ok(0)
    }

    fn server(&mut self, _: &CoreHosts) -> Result<u64, Failure> {
        let mut bytes = 0;
        for stream in &self.servers {
            while let Some(n) = would_block(stream.recv_into(RECV_PIECE, &mut self.frags))? {
                bytes += n as u64;
                self.frags.clear();
            }
        }
        Ok(bytes)
    }
}
