//! `bench idle`: what an established connection costs while nothing happens on it.
//!
//! Both ends of each are in this process, over the pair link. The growth of its resident memory,
//! divided by the number of ends, is the cost: connection, tables, timers, and handle.

use std::fs;
use std::net::SocketAddr;
use std::time::Instant;

use pagewire::{BindOptions, Host, TcpStream};

use crate::failure::{Because, Failure};
use crate::hosts::{RIGHT, accept, on_a_pair};
use crate::kernel::PATIENCE;
use crate::machine::{Machine, joined};
use crate::options::IdleOptions;
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};

const FIRST_PORT: u16 = 9000;

/// Connections to one listening port, fewer than there are local ports.
const PER_PORT: u32 = 20_000;

/// Opened before memory is first measured, so that memory of the whole process does not count.
const WARM_UP: u32 = 64;

pub(crate) fn run(options: &IdleOptions, progress: &Progress) -> Result<Results, Failure> {
    let (left, right, _) = on_a_pair(None, |host| host)?;
    let _warm = open(&left, &right, WARM_UP, FIRST_PORT)?;
    let before = resident()?;
    let started = Instant::now();
    let mut held = Vec::new();
    progress.begin(options.connections as usize);
    let (mut left_to_open, mut port) = (options.connections, FIRST_PORT + 1);
    while left_to_open > 0 {
        progress.say(format!("{left_to_open} connections are left to open"));
        let count = left_to_open.min(PER_PORT);
        held.push(open(&left, &right, count, port)?);
        progress.advance(count.into());
        left_to_open -= count;
        port += 1;
    }
    progress.end();
    let seconds = started.elapsed().as_secs_f64();
    let grown = resident()?.saturating_sub(before);
    let ends = 2 * u64::from(options.connections);
    let machine = Machine::describe();
    let record = Record::default()
        .with("bench", "idle")
        .with("engine", "pagewire")
        .with("link", "pair")
        .with("bytes", 0)
        .with("seconds", rounded(seconds, 3))
        .with("gbit_per_s", 0)
        .with("connections", options.connections)
        .with("bytes_per_connection", rounded(grown as f64 / ends as f64, 1))
        .with("resident_bytes", grown)
        .with("ends", ends)
        .on(&machine);
    let heading = format!("{machine}; both ends of each connection are in this process");
    let columns = "engine link connections ends resident_bytes bytes_per_connection seconds";
    let results = print(vec![record], options.json, heading, columns);
    drop(held);
    Ok(results)
}

/// Opens `count` connections and keeps both ends.
fn open(
    left: &Host,
    right: &Host,
    count: u32,
    port: u16,
) -> Result<Vec<(TcpStream, TcpStream)>, Failure> {
    let on = SocketAddr::from((RIGHT, port));
    let listener = right.listen_with(on, &BindOptions::new().backlog(1024))?;
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| -> Result<Vec<TcpStream>, Failure> {
            (0..count)
                .map(|_| accept(&listener, std::thread::yield_now).map_err(Failure::from))
                .collect()
        });
        let mut clients = Vec::with_capacity(count as usize);
        for _ in 0..count {
            clients.push(left.connect_timeout(on, PATIENCE)?);
        }
        Ok(clients.into_iter().zip(joined(accepting)?).collect())
    })
}

/// Bytes of memory that this process has.
fn resident() -> Result<u64, Failure> {
    let statm = "/proc/self/statm";
    let text = fs::read_to_string(statm).because(statm)?;
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Failure::because(statm, "not understood"))?;
    Ok(pages * rustix::param::page_size() as u64)
}
