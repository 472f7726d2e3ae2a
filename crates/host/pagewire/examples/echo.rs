//! Echo, with a thread for each connection, as over `std::net`; the server never copies.
//!
//! ```sh
//! cargo run --package pagewire --example echo
//! ```
//!
//! The program prints how many bytes came back, and how many of them the server's stack copied: none.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use pagewire::{Host, Pair, TcpListener, TcpStream};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: usize = 4;
const LEN: usize = 100_000;

pub(crate) fn main() -> Result {
    // Two hosts and the cable between them. With `Tap::open("pw0")?` the other end is the kernel.
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;

    let listener = server.listen("10.0.0.1:7")?;
    let accepting = thread::spawn(move || accept(&listener));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let client = client.clone();
            thread::spawn(move || ask(&client, n as u8))
        })
        .collect();
    for asking in clients {
        asking.join().map_err(|_| "a client panicked")??;
    }
    let copied = server.stats().ledger.ours();
    println!("{} bytes came back, {copied} copied by the server's stack", CLIENTS * LEN);
    assert_eq!(copied, 0);
    // The listener fails from here on, which ends its thread.
    server.shutdown(Duration::from_secs(1));
    accepting.join().map_err(|_| "the server panicked")?;
    Ok(())
}

fn accept(listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        thread::spawn(move || echo(&stream));
    }
}

/// Sends back the memory in which the data landed.
fn echo(stream: &TcpStream) -> std::io::Result<()> {
    loop {
        let chunks = stream.recv_chunks(1 << 20)?;
        if chunks.is_empty() {
            return Ok(());
        }
        stream.send(chunks)?;
    }
}

/// `Read` and `Write` are those of std, and copy, as everywhere.
fn ask(host: &Host, byte: u8) -> Result {
    let mut stream = host.connect("10.0.0.1:7")?;
    stream.write_all(&[byte; LEN])?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    assert_eq!(answer, [byte; LEN]);
    Ok(())
}
