//! Counts for valgrind: two stacks on one wire, in one thread and in virtual time. `rr` sends 64 bytes there and back
//! on one connection, `connections` opens a connection for each 64 bytes, and `strays` is `rr` with a server of two shards,
//! where each packet comes in at the shard without the connection. The number of strays is printed.
//!
//! ```text
//! cargo build --release -p pagewire-stack --example turns
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/turns rr 2500
//! ```
//!
//! The difference between two runs, by the difference of their numbers, is the instructions of one round. It repeats
//! exactly.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use pagewire_mem::link::Capabilities;
use pagewire_mem::{Instant, PacketBuf, RxChecksum, TxChecksum};
use pagewire_stack::{
    LinkId, ListenerId, PoolMemory, RecvFlags, SendFlags, Shard, Stack, StackConfig, Stray, TcpId,
};

const SERVER: &str = "10.0.0.2:80";

fn main() {
    let usage = "turns rr|connections|strays ROUNDS";
    let mut args = std::env::args().skip(1);
    let what = args.next().expect(usage);
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).expect(usage);
    let mut w = World::new(what == "strays");
    let (client, server) = w.connect();
    for _ in 0..rounds {
        w.now += Duration::from_micros(50);
        match what.as_str() {
            "rr" | "strays" => {
                w.pass(0, client, 1, server);
                w.pass(1, server, 0, client);
            }
            "connections" => {
                let (client, server) = w.connect();
                w.pass(0, client, 1, server);
                w.stacks[0].abort(w.now, client);
                w.exchange();
                w.stacks[1].close(w.now, server);
                w.exchange();
            }
            _ => panic!("{usage}"),
        }
    }
    if let Some(other) = &w.other {
        println!("{} strays", other.counters().strays_passed);
    }
}

/// Two stacks and the frames between them.
struct World {
    stacks: [Stack; 2],
    /// The server's shard that gets the server's packets, and passes them on.
    other: Option<Stack>,
    listener: ListenerId,
    now: Instant,
    frames: VecDeque<PacketBuf>,
    strays: VecDeque<Stray>,
}

impl World {
    fn new(strays: bool) -> Self {
        let now = Instant::from_millis(1000);
        let mut places = Shard::all(2, &[2; 32]).filter(|_| strays).unwrap_or_default().into_iter();
        let mut stack = |host| {
            let mac = [2, 0, 0, 0, 0, host];
            let capabilities =
                Capabilities { by_reference: true, ..Capabilities::offloading(mac, 1500) };
            let addresses = vec![format!("10.0.0.{host}/24").parse().expect("an address")];
            let mut config = StackConfig::new(capabilities, addresses, [host; 32]);
            (config.announce, config.pool) = (false, PoolMemory::Anonymous);
            config.shard = if host == 2 { places.next() } else { None };
            Stack::new(now, config).expect("a stack")
        };
        let mut stacks = [1, 2].map(&mut stack);
        let other = strays.then(|| stack(2));
        let listener = stacks[1].listen(server(), 128).expect("a listener");
        Self { stacks, other, listener, now, frames: VecDeque::new(), strays: VecDeque::new() }
    }

    fn connect(&mut self) -> (TcpId, TcpId) {
        let client = self.stacks[0].connect(self.now, server(), None).expect("a connection");
        self.exchange();
        let mut listener = self.stacks[1].listener(self.listener).expect("it listens");
        (client, listener.accept().expect("a client").0)
    }

    /// Sends 64 bytes from a connection of one stack to its other end.
    fn pass(&mut self, from: usize, sender: TcpId, to: usize, receiver: TcpId) {
        let mut buf = [0; 64];
        let mut sender = self.stacks[from].tcp(sender).expect("a connection");
        sender.send(self.now, &buf[..], SendFlags::default()).expect("room");
        self.exchange();
        let mut receiver = self.stacks[to].tcp(receiver).expect("a connection");
        let got = receiver.recv(self.now, &mut buf[..], RecvFlags::default());
        assert_eq!(got, Ok(64));
    }

    /// Carries frames until there are none.
    fn exchange(&mut self) {
        let mut idle = 0;
        for from in (0..2).cycle() {
            let now = self.now;
            while self.stacks[from].poll_transmit(now, &mut self.frames) {}
            if from == 1
                && let Some(other) = &mut self.other
            {
                while other.poll_transmit(now, &mut self.frames) {}
            }
            idle = if self.frames.is_empty() { idle + 1 } else { 0 };
            for frame in &mut self.frames {
                if frame.tx_checksum != TxChecksum::Done {
                    (frame.tx_checksum, frame.rx_checksum) = (TxChecksum::Done, RxChecksum::Valid);
                }
            }
            let home = &mut self.stacks[1 - from];
            let to = if from == 0 { self.other.as_mut() } else { None };
            match to {
                Some(to) => {
                    to.handle_frames_on(now, LinkId::FIRST, &mut self.frames);
                    while to.poll_strays(&mut self.strays).is_some() {
                        for stray in &mut self.strays {
                            home.handle_stray(now, stray);
                        }
                        self.strays.clear();
                    }
                    to.end_turn();
                }
                None => {
                    home.handle_frames_on(now, LinkId::FIRST, &mut self.frames);
                }
            }
            for stack in &mut self.stacks {
                while stack.poll_event().is_some() {}
                stack.end_turn();
            }
            if idle == 2 {
                return;
            }
        }
    }
}

fn server() -> SocketAddr {
    SERVER.parse().expect("an address")
}
