//! The work of one core: a client and a server whose calls never wait.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use pagewire::memory::Frag;
use pagewire::{ConnectOptions, TcpStream};

use super::CoresWork;
use super::world::{CoreHosts, SERVER};
use crate::failure::{Because, Failure};
use crate::kit::hosts::{Feed, RECV_PIECE, SEND_PIECE, never_wait, would_block};
use crate::kit::source::Source;

/// Bytes of a request, and of an answer.
pub(super) const SIZE: usize = 64;

/// Connections of a core that carry bulk data.
const FLOWS: usize = 4;

const CONNECTION: &str = "a connection of a core";

/// The work of a core.
pub(super) trait Load {
    /// Does what the client can do now; returns the requests or connections that are done, or 0.
    fn client(&mut self, hosts: &CoreHosts) -> Result<u64, Failure>;

    /// Does what the server can do now; returns the bytes that arrived, where those count.
    fn server(&mut self, hosts: &CoreHosts) -> Result<u64, Failure>;
}

/// The load of a core, with all connections open that stay open. `drive` lets the hosts work.
pub(super) fn load(
    work: CoresWork,
    hosts: &CoreHosts,
    connections: usize,
    source: Source,
    drive: impl FnMut() -> Result<(), Failure>,
) -> Result<Box<dyn Load>, Failure> {
    Ok(match work {
        CoresWork::Requests => {
            let (clients, servers) = open(hosts, connections, drive)?;
            for mut client in &clients {
                client.write_all(&[0x55; SIZE]).because(CONNECTION)?;
            }
            Box::new(Requests { clients, servers })
        }
        CoresWork::Connections => {
            let visits = (0..connections).map(|_| Visit::Over).collect();
            Box::new(Connections { visits, serving: Vec::new(), next: 0 })
        }
        CoresWork::Bulk => {
            let (clients, servers) = open(hosts, FLOWS, drive)?;
            let feeds = clients.into_iter().map(|client| {
                let pieces: Box<dyn Iterator<Item = Frag>> = Box::new(source.frags(SEND_PIECE));
                (Feed::new(pieces), client)
            });
            Box::new(Bulk { feeds: feeds.collect(), servers, frags: Vec::new() })
        }
    })
}

/// Begins a connection from a local end.
fn start(hosts: &CoreHosts, local: SocketAddr) -> io::Result<TcpStream> {
    let stream = hosts.client.start_connect_with(SERVER, &ConnectOptions::new().local(local))?;
    never_wait(&stream)?;
    Ok(stream)
}

/// The next connection that waits.
fn accept(hosts: &CoreHosts) -> Result<Option<TcpStream>, Failure> {
    match hosts.listener.accept() {
        Ok((stream, _)) => {
            never_wait(&stream).because(CONNECTION)?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(Failure::because(CONNECTION, error)),
    }
}

/// Opens connections, and waits until they are established on both sides.
fn open(
    hosts: &CoreHosts,
    count: usize,
    mut drive: impl FnMut() -> Result<(), Failure>,
) -> Result<(Vec<TcpStream>, Vec<TcpStream>), Failure> {
    let locals = hosts.locals.iter().take(count);
    let clients = locals.map(|local| start(hosts, *local)).collect::<io::Result<Vec<_>>>();
    let (clients, mut servers) = (clients.because(CONNECTION)?, Vec::new());
    while servers.len() < clients.len() {
        drive()?;
        servers.extend(accept(hosts)?);
    }
    Ok((clients, servers))
}

/// Reads a message; `false`: it is not there yet.
fn message(stream: &mut TcpStream) -> Result<bool, Failure> {
    match would_block(stream.read(&mut [0; SIZE]))? {
        None => Ok(false),
        // One segment carries it all.
        Some(SIZE) => Ok(true),
        Some(n) => Err(Failure::because(CONNECTION, format!("{n} bytes instead of {SIZE}"))),
    }
}

fn send_message(stream: &mut TcpStream) -> Result<(), Failure> {
    stream.write_all(&[0x55; SIZE]).because(CONNECTION)
}

/// Requests over connections that stay, one under way on each.
struct Requests {
    clients: Vec<TcpStream>,
    servers: Vec<TcpStream>,
}

impl Load for Requests {
    fn client(&mut self, _: &CoreHosts) -> Result<u64, Failure> {
        let mut answered = 0;
        for stream in &mut self.clients {
            if message(stream)? {
                answered += 1;
                send_message(stream)?;
            }
        }
        Ok(answered)
    }

    fn server(&mut self, _: &CoreHosts) -> Result<u64, Failure> {
        for stream in &mut self.servers {
            if message(stream)? {
                send_message(stream)?;
            }
        }
        Ok(0)
    }
}

/// Connections for one request each. The server closes first, so TIME-WAIT is the server's.
struct Connections {
    visits: Vec<Visit>,
    /// Connections that the server has not answered.
    serving: Vec<TcpStream>,
    /// The place of the next local end.
    next: usize,
}

/// How far a client has come.
enum Visit {
    Over,
    Opening(TcpStream),
    Asked(TcpStream),
    Answered(TcpStream),
}

impl Visit {
    /// Goes on as far as it comes now.
    fn go_on(self, hosts: &CoreHosts, next: &mut usize) -> Result<Self, Failure> {
        Ok(match self {
            Self::Over => {
                let local = hosts.locals.get(*next).or_else(|| hosts.locals.first());
                *next = (*next + 1) % hosts.locals.len().max(1);
                let none = || Failure::because(CONNECTION, "a core has no local ports");
                match start(hosts, *local.ok_or_else(none)?) {
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
                true => Self::Answered(stream).go_on(hosts, next)?,
            },
            Self::Answered(mut stream) => match would_block(stream.read(&mut [0; SIZE]))? {
                None => Self::Answered(stream),
                Some(_) => Self::Over,
            },
        })
    }
}

impl Load for Connections {
    fn client(&mut self, hosts: &CoreHosts) -> Result<u64, Failure> {
        let mut over = 0;
        for place in &mut self.visits {
            let was_over = matches!(place, Visit::Over);
            *place = std::mem::replace(place, Visit::Over).go_on(hosts, &mut self.next)?;
            over += u64::from(!was_over && matches!(place, Visit::Over));
        }
        Ok(over)
    }

    fn server(&mut self, hosts: &CoreHosts) -> Result<u64, Failure> {
        while let Some(stream) = accept(hosts)? {
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

impl Load for Bulk {
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
