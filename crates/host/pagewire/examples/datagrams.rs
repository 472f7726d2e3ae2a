//! UDP: a server that sends back the memory in which a datagram landed, from the address that was asked;
//! then a batch of datagrams by one call, and a group.
//!
//! ```sh
//! cargo run --package pagewire --example datagrams
//! ```
//!
//! The program prints what came back, and how many bytes the stacks copied: only the call that
//! copies by name.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use pagewire::{Host, Pair, UdpSocket};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LEN: usize = 60_000;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// Datagrams may be lost anywhere but here: who waits for one sets a limit.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").address("10.0.0.9/24");
    let (server, client) =
        (server.start()?, Host::builder().device(right).address("10.0.0.2/24").start()?);

    let echo = socket(&server, "0.0.0.0:7")?;
    let serving = thread::spawn(move || serve(&echo));
    let asking = socket(&client, "0.0.0.0:0")?;
    asking.connect("10.0.0.9:7")?; // from here on it hears this address alone

    asking.send_chunks(vec![7; LEN])?; // by reference; `send` would copy
    let answer = asking.recv_chunks()?;
    println!("{} bytes came back", answer.len());
    assert_eq!((answer.len(), copied(&server), copied(&client)), (LEN, 0, 0));

    asking.send(&[7; 1000])?; // the buffer stays ours
    assert_eq!((asking.recv_chunks()?.len(), copied(&client)), (1000, 1000));

    // A single call sends three datagrams.
    asking.set_segment_size(4000)?;
    asking.send_chunks(vec![7; 10_000])?;
    let lengths = [asking.recv_chunks()?, asking.recv_chunks()?, asking.recv_chunks()?];
    assert_eq!(lengths.map(|datagram| datagram.len()), [4000, 4000, 2000]);

    asking.send_chunks(Vec::<u8>::new())?; // an empty datagram ends the server
    serving.join().map_err(|_| "the server panicked")??;
    group(&server, &client)?;
    println!("{} bytes copied", copied(&server) + copied(&client));
    Ok(())
}

fn socket(host: &Host, on: &str) -> std::io::Result<UdpSocket> {
    let socket = host.udp(on)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn copied(host: &Host) -> u64 {
    host.stats().ledger.ours()
}

/// Each datagram back, from the address that it came to: a socket that is bound to all of them would choose.
fn serve(socket: &UdpSocket) -> std::io::Result<()> {
    loop {
        let asked = socket.recv_message()?;
        if asked.payload.is_empty() {
            return Ok(());
        }
        socket.send_from(asked.to, asked.payload, Some(asked.from))?;
    }
}

fn group(server: &Host, client: &Host) -> Result {
    let member = socket(server, "0.0.0.0:5000")?;
    member.join_multicast_v4(&GROUP, &Ipv4Addr::UNSPECIFIED)?;
    client.udp("0.0.0.0:0")?.send_chunks_to(vec![1; 1000], (GROUP, 5000))?;
    let heard = member.recv_message()?;
    assert_eq!((heard.payload.len(), heard.to), (1000, GROUP.into()));
    Ok(())
}
