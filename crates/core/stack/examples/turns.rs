//! Counts for valgrind: two stacks on one wire, in one thread and in virtual time. `rr` sends 64 bytes there and back
//! on one connection, `connections` opens a connection for each 64 bytes.
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
use pagewire_stack::{ListenerId, PoolMemory, RecvFlags, SendFlags, Stack, StackConfig, TcpId};

const SERVER: &str = "10.0.0.2:80";

fn main() {
    let usage = "turns rr|connections ROUNDS";
    let mut args = std::env::args().skip(1);
    let what = args.next().expect(usage);
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).expect(usage);
    let mut w = World::new();
    let (client, server) = w.connect();
    for _ in 0..rounds {
        w.now += Duration::from_micros(50);
        match what.as_str() {
            "rr" => {
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
}

/// Two stacks and the frames between them.
struct World {
    stacks: [Stack; 2],
    listener: ListenerId,
    now: Instant,
    frames: VecDeque<PacketBuf>,
}

impl World {
    fn new() -> Self {
        let now = Instant::from_millis(1000);
        let mut stacks = [1, 2].map(|host| {
            let mac = [2, 0, 0, 0, 0, host];
            let capabilities =
                Capabilities { by_reference: true, ..Capabilities::offloading(mac, 1500) };
            let addresses = vec![format!("10.0.0.{host}/24").parse().expect("an address")];
            let mut config = StackConfig::new(capabilities, addresses, [host; 32]);
            (config.announce, config.pool) = (false, PoolMemory::Anonymous);
            Stack::new(now, config).expect("a stack")
        });
        let listener = stacks[1].listen(server(), 128).expect("a listener");
        Self { stacks, listener, now, frames: VecDeque::new() }
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
            idle = if self.frames.is_empty() { idle + 1 } else { 0 };
            for frame in &mut self.frames {
                if frame.tx_checksum != TxChecksum::Done {
                    (frame.tx_checksum, frame.rx_checksum) = (TxChecksum::Done, RxChecksum::Valid);
                }
            }
            let to = &mut self.stacks[1 - from];
            let link = to.links().next().expect("a link");
            to.handle_frames_on(now, link, &mut self.frames);
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
