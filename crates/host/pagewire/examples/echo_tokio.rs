//! Echo, with a task for each connection, on tokio; the server never copies.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example echo_tokio
//! ```
//!
//! The program prints how many bytes came back, and how many of them the server's stack copied: none.

use pagewire::net::{TcpListener, TcpStream};
use pagewire::{Host, Pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: usize = 16;
const LEN: usize = 100_000;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;

    let listener = TcpListener::bind_on(&server, "10.0.0.1:7").await?;
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(stream));
        }
    });
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let client = client.clone();
        clients.spawn(async move { ask(&client, n as u8).await });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    let copied = server.stats().ledger.ours();
    println!("{} bytes came back, {copied} copied by the server's stack", CLIENTS * LEN);
    assert_eq!(copied, 0);
    accepting.abort();
    Ok(())
}

/// Sends back the memory in which the data landed.
async fn echo(stream: TcpStream) -> std::io::Result<()> {
    loop {
        let chunks = stream.recv_chunks(1 << 20).await?;
        if chunks.is_empty() {
            return Ok(());
        }
        stream.send(chunks).await?;
    }
}

/// tokio's traits copy, as everywhere.
async fn ask(host: &Host, byte: u8) -> Result {
    let mut stream = TcpStream::connect_on(host, "10.0.0.1:7").await?;
    stream.write_all(&[byte; LEN]).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    assert_eq!(answer, [byte; LEN]);
    Ok(())
}
