//! Many connections at once whose programs are rude: they abort, close early, stop reading. Polite
//! connections must get every byte. In the end nothing may be left: no socket, no frame, no page.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use pagewire_device::{Chance, FaultConfig, FaultRng};
use pagewire_mem::{GROUP_PAGES, Instant};
use pagewire_stack::{BindOptions, Datagram, Event, Stack, UdpId};
use pagewire_testkit::frames::payload_of;
use pagewire_testkit::sim::{
    App, NodeId, Sim, SimError, Station, Stream, Verbs, run_seed, seed_from_env,
};

use crate::forwarding::peers::{LONG, Peers, Plan};

const COMMAND: &str = "cargo test -p pagewire-testkit crowd_seed_from_env";

#[test]
fn crowd_seed_from_env_runs_alone() {
    if let Some(seed) = seed_from_env() {
        run_seed(seed, COMMAND, crowd).unwrap_or_else(|failure| panic!("{failure}"));
        eprintln!("seed {seed} holds");
    }
}

#[test]
fn rude_programs_on_bad_networks_leave_nothing_behind() {
    let failures: Vec<_> =
        (0..150).filter_map(|seed| run_seed(seed, COMMAND, crowd).err()).take(3).collect();
    let text: Vec<_> = failures.iter().map(ToString::to_string).collect();
    assert!(text.is_empty(), "{}", text.join("\n"));
}

fn crowd(seed: u64, capture: Option<&Path>) -> Result<(), SimError> {
    let mut sim = Sim::new(seed);
    if let Some(file) = capture {
        sim.capture(file)?;
    }
    let mut random = FaultRng::new(seed ^ 0x0063_726f_7764);
    let faults = FaultConfig {
        loss: Chance::per_million(random.below(50_000) as u32),
        duplicate: Chance::per_million(random.below(20_000) as u32),
        reorder: Chance::per_million(random.below(30_000) as u32),
        delay: Duration::from_micros(random.below(20_000)),
        cut: false,
        ..FaultConfig::default()
    };
    let v6 = random.below(2) == 0;
    let (mtu, offload) = ([1280, 1500, 9000][random.below(3) as usize], random.below(2) == 0);
    let [one, two] = if v6 { ["fd77::1/64", "fd77::2/64"] } else { ["10.0.0.1/24", "10.0.0.2/24"] };
    let at = |host: u8, port: u16| -> SocketAddr {
        let text =
            if v6 { format!("[fd77::{host}]:{port}") } else { format!("10.0.0.{host}:{port}") };
        text.parse().expect("an address")
    };
    let add = |sim: &mut Sim<Station<Program>>, cidr: &str, app: Program, faults| {
        let mut config = sim.stack_config(cidr.parse().expect("an address"));
        let device = &mut config.capabilities;
        device.mtu = mtu;
        if !offload {
            device.max_super_frame = mtu;
            (device.rx_checksum, device.tx_checksum) = (false, false);
            (device.tso_v4, device.tso_v6, device.uso) = (false, false, false);
        }
        let stack = Stack::new(sim.now(), config).expect("a stack");
        sim.add(Station::new(stack, app), faults)
    };
    // A listener with a short backlog: connections wait for their SYNs to be repeated.
    let server = Program { peers: Peers::servers(at(1, 7000), 8), udp: Udp::new(at(1, 9000)) };
    let server = add(&mut sim, one, server, faults)?;
    let plans: Vec<(Instant, u64)> = (0..1 + random.below(30))
        .map(|n| (Instant::from_micros(random.below(2_000_000)), LONG | (seed * 100 + n)))
        .collect();
    let polite = plans.iter().filter(|(_, number)| Plan::of(*number).is_polite()).count();
    let udp = Udp {
        to: Some(at(1, 9000)),
        lengths: (0..random.below(40)).map(|_| 8 + random.below(5000) as usize).collect(),
        stream: Stream(seed),
        ..Udp::new(at(2, 9001))
    };
    let peers = Peers::clients(at(1, 7000), at(1, 7001), plans, Instant::ZERO);
    let client = Program { peers, udp };
    let client = add(&mut sim, two, client, FaultConfig::delayed(Duration::ZERO))?;
    let ends = [server, client];

    sim.run_until(Instant::from_millis(3_600_000), |sim| {
        for id in ends {
            let Program { peers, udp } = &sim.node(id).app;
            if let Some(what) = peers.wrong.as_ref().or(udp.wrong.as_ref()) {
                return Err(SimError::Oracle(what.clone()));
            }
        }
        let Program { peers, udp } = &sim.node(client).app;
        Ok(peers.is_done() && udp.lengths.is_empty())
    })?;
    let ended = sim.node(client).app.peers.polite;
    if ended != polite {
        return Err(SimError::Oracle(format!("{ended} of {polite} got every byte")));
    }
    for id in ends {
        let now = sim.now();
        let Station { stack, app, .. } = sim.node_mut(id);
        app.shut_down(now, stack);
    }
    let limit = sim.now() + Duration::from_secs(3600);
    let ended = sim.run_until(limit, |sim| {
        Ok(sim.in_flight() == 0 && ends.iter().all(|&id| sim.node(id).stack.socket_count() == 0))
    });
    ended.map_err(|error| {
        let left = ends.map(|id| sim.node(id).stack.socket_count());
        SimError::Oracle(format!("after all had closed: {error}; sockets left: {left:?}"))
    })?;
    ends.into_iter().try_for_each(|id| every_page_is_free(&mut sim, id))
}

fn every_page_is_free(sim: &mut Sim<Station<Program>>, id: NodeId) -> Result<(), SimError> {
    sim.node_mut(id).stack.end_turn();
    let audit = sim.node(id).stack.pool_audit();
    if !audit.is_conserved() || audit.out > GROUP_PAGES {
        return Err(SimError::Pages { node: id, audit });
    }
    Ok(())
}

/// One end of all conversations: its connections, and its socket for datagrams.
struct Program {
    peers: Peers,
    udp: Udp,
}

impl App for Program {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        self.peers.turn(now, stack, events);
        if let Err(what) = self.udp.turn(now, stack) {
            self.udp.wrong.get_or_insert(what);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.peers.poll_timeout()
    }
}

impl Program {
    /// Closes every socket, those of conversations that a client left in the middle included.
    fn shut_down(&mut self, now: Instant, stack: &mut Stack) {
        self.peers.shut_down(now, stack);
        self.udp.closed = true;
        if let Some(id) = self.udp.socket.take() {
            stack.close(now, id);
        }
    }
}

/// A socket for datagrams. The client sends datagrams with a number and a part of a stream, the server
/// sends each back by reference.
struct Udp {
    on: SocketAddr,
    socket: Option<UdpId>,
    closed: bool,
    /// Where the client sends; the server has `None`.
    to: Option<SocketAddr>,
    /// Lengths of the datagrams still to be sent.
    lengths: Vec<usize>,
    stream: Stream,
    wrong: Option<String>,
}

impl Udp {
    fn new(on: SocketAddr) -> Self {
        let (stream, lengths) = (Stream(0), Vec::new());
        Self { on, socket: None, closed: false, to: None, lengths, stream, wrong: None }
    }

    fn turn(&mut self, now: Instant, stack: &mut Stack) -> Result<(), String> {
        if self.closed {
            return Ok(());
        }
        let udp = match self.socket {
            Some(id) => id,
            None => {
                let bound = stack.bind_udp(self.on, BindOptions::default());
                *self.socket.insert(bound.map_err(|e| format!("bind: {e}"))?)
            }
        };
        while let Some(len) = self.lengths.pop() {
            let number = self.lengths.len() as u64;
            let mut bytes = number.to_be_bytes().to_vec();
            bytes.extend(self.stream.bytes(number * 10_000, len - 8));
            // A full queue, or a neighbour that does not answer, is a loss.
            let _ = stack.send_to(now, udp, &bytes, self.to);
        }
        while let Ok((payload, from)) = stack.recv_from(udp, Datagram) {
            if self.to.is_none() {
                // A full queue is a loss.
                let _ = stack.send_to(now, udp, payload, Some(from));
                continue;
            }
            let bytes = payload_of(&payload);
            let Some((number, rest)) = bytes.split_first_chunk() else {
                return Err(format!("a datagram of {} bytes from {from}", bytes.len()));
            };
            let at = u64::from_be_bytes(*number) * 10_000;
            self.stream.check(at, rest).map_err(|m| format!("a datagram is damaged: {m:?}"))?;
        }
        Ok(())
    }
}
