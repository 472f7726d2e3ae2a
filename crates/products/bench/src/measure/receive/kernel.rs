//! A round of `bench receive` by kernel sockets: `read`, and `TCP_ZEROCOPY_RECEIVE`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use pagewire::memory::PAGE_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{CHUNK, ReceiveBench, ReceiveMeter, ReceiveMode, ReceiveSample, Taken};
use crate::failure::{Because, Failure};
use crate::kit::kernel::{
    Between, PATIENCE, SOCKET, accept, connect, join, send, send_zerocopy, set_zerocopy,
};
use crate::kit::source::Source;
use crate::sys::{KernelWindow, set_socket_option};

/// The largest MSS of whole pages that the kernel lets an application ask for, with timestamps.
const MSS: i32 = 7 * PAGE_SIZE as i32 + 12;

/// The MTU on which such segments travel: with IPv4's and TCP's headers.
const MTU: u32 = MSS as u32 + 40;

/// Measures a round between two kernel sockets for each flow.
pub(super) fn round(
    bench: &ReceiveBench,
    between: Between,
    mode: ReceiveMode,
) -> Result<ReceiveSample, Failure> {
    let map = mode == ReceiveMode::Map;
    let between = match between {
        Between::Veth { mtu: None } if map => Between::Veth { mtu: Some(MTU) },
        between => between,
    };
    let mtu = between.mtu();
    let receiving = |listener: &TcpListener| receive(bench, map, listener);
    let sending = |to: SocketAddr| {
        std::thread::scope(|scope| {
            for _ in 0..bench.options.flows {
                let connection = connect(to)?;
                scope.spawn(move || match map {
                    true => send_mappable(&connection, &bench.source),
                    false => send(connection, &bench.source, CHUNK),
                });
            }
            Ok(())
        })
    };
    let ((), sample) = join(between, bench.sides, sending, receiving)?;
    Ok(ReceiveSample { mtu, copied: sample.round.bytes - sample.mapped, ..sample })
}

/// Sends so that data arrives in its own pages, which plain writes do not.
fn send_mappable(connection: &TcpStream, source: &Source) {
    if set_zerocopy(connection).is_err() {
        return;
    }
    for piece in source.pieces(CHUNK) {
        let mut left = piece;
        while !left.is_empty() {
            match send_zerocopy(connection, left) {
                Ok(n) => left = left.get(n..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // More memory than a user may lock, or no room for notifications: it is sent by copy
                // and not mapped, which the figure shows.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    match (&mut &*connection).write(left) {
                        Ok(n) => left = left.get(n..).unwrap_or_default(),
                        Err(_) => return,
                    }
                }
                Err(_) => return,
            }
        }
    }
}

fn receive(
    bench: &ReceiveBench,
    map: bool,
    listener: &TcpListener,
) -> Result<ReceiveSample, Failure> {
    if map {
        set_socket_option(listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, MSS).because(SOCKET)?;
    }
    let mut flows = Vec::new();
    for _ in 0..bench.options.flows {
        let socket = accept(listener)?;
        socket.set_nonblocking(true).because(SOCKET)?;
        let window = map.then(|| KernelWindow::new(socket.as_fd(), CHUNK)).transpose();
        flows.push((socket, window.because(SOCKET)?));
    }
    let mut buffer = vec![0; CHUNK];
    let mut counter = ReceiveMeter::new(bench.options.time.seconds);
    let mut last = Instant::now();
    loop {
        let mut all = Taken::default();
        for (socket, window) in &mut flows {
            let max = match window {
                None => buffer.len(),
                Some(window) => {
                    let see = |bytes: &[u8]| bench.options.reader.see(bytes);
                    let (mapped, skip) = window.receive(socket.as_fd(), see).because(SOCKET)?;
                    all.bytes += mapped;
                    all.mapped += mapped;
                    skip.min(buffer.len())
                }
            };
            let into = buffer.get_mut(..max).unwrap_or_default();
            if into.is_empty() {
                continue;
            }
            match socket.read(into) {
                Ok(0) => return Err(Failure::Failed("a kernel sender ended too early".into())),
                Ok(n) => {
                    bench.options.reader.see(into.get(..n).unwrap_or_default());
                    all.bytes += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Failure::because(SOCKET, e)),
            }
        }
        if all.bytes > 0 {
            last = Instant::now();
            if let Some(sample) = counter.add(all, None) {
                return Ok(sample);
            }
            continue;
        }
        if last.elapsed() > PATIENCE {
            return Err(Failure::Failed("nothing came from the kernel's senders".into()));
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut fds: Vec<_> = flows.iter().map(|(s, _)| PollFd::new(s, PollFlags::IN)).collect();
        // A failure only makes the next turn early.
        let _ = poll(&mut fds, Some(&tick));
    }
}
