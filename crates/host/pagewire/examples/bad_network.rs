//! A test on a bad network: a device that loses, doubles, reorders, damages and delays frames, by a
//! seed. A new seed is a new run of bad luck.
//!
//! ```sh
//! cargo run --package pagewire --features fault --example bad_network
//! ```
//!
//! The program prints, for each seed, how often TCP had to send again; the data arrived intact each time.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use pagewire::device::{Fault, FaultConfig, PairConfig};
use pagewire::{Host, Pair};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// `cut`: the chances are those of packets on the wire, not of the pair's super-frames.
const NETWORK: &str = "loss=1%,dup=1%,reorder=1%,corrupt=0.5%,delay=1ms";
const LEN: usize = 500_000;

pub(crate) fn main() -> Result {
    let mut again = 0;
    for seed in 0..3 {
        let retransmitted = transfer(seed)?;
        println!(
            "seed {seed}: {LEN} bytes arrived intact, {retransmitted} packets were sent again"
        );
        again += retransmitted;
    }
    assert!(again > 0, "the network was bad");
    Ok(())
}

/// Sends data over a network; how many packets that took in addition.
fn transfer(seed: u64) -> Result<u64> {
    let faults = FaultConfig { seed, ..NETWORK.parse()? };
    let (left, right) = Pair::with(PairConfig { mtu: 1500, ..Default::default() })?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client =
        Host::builder().device(Fault::new(right, faults)).address("10.0.0.2/24").start()?;

    let data: Vec<u8> = (0..LEN).map(|i| (i / 7 % 251) as u8).collect();
    let listener = server.listen("10.0.0.1:9000")?;
    let receiving = thread::spawn(move || -> std::io::Result<Vec<u8>> {
        let (mut stream, _) = listener.accept()?;
        let mut received = Vec::new();
        stream.read_to_end(&mut received)?;
        Ok(received)
    });
    let mut stream = client.connect("10.0.0.1:9000")?;
    stream.write_all(&data)?;
    stream.shutdown(Shutdown::Write)?;
    let received = receiving.join().map_err(|_| "the receiver panicked")??;
    assert!(received == data, "what arrived is what was sent");
    Ok(client.stats().counters.tcp_retransmits)
}
