//! A server on several cores: each core has a runtime of one thread, a shard of the host, and a listener that accepts
//! the connections of that shard: as with `SO_REUSEPORT` and kernel sockets.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example cores
//! ```
//!
//! The program prints how many connections each core accepted, and how many packets it passed to the other.

use std::error::Error;
use std::thread;
use std::time::Duration;

use pagewire::net::TcpListener;
use pagewire::{Host, Pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::runtime::{Builder, Runtime};

const CORES: usize = 2;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // On a tap: `Tap::builder("pw0").open_queues(CORES)?`, and `device_queues` with the result.
    let (left, right) = Pair::new()?;
    let runtime = || Builder::new_current_thread().enable_io().build();
    let runtimes = (0..CORES).map(|_| runtime()).collect::<Result<Vec<_>, _>>()?;
    let handles: Vec<_> = runtimes.iter().map(|runtime| runtime.handle().clone()).collect();
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(CORES);
    let server = server.start_in_runtimes(&handles)?;
    let listener = server.listen("10.0.0.1:7")?;

    let serve = |(runtime, shard): (Runtime, &pagewire::TcpListener)| {
        let listener = TcpListener::from(shard.clone());
        thread::spawn(move || runtime.block_on(echo(listener)))
    };
    let threads: Vec<_> = runtimes.into_iter().zip(listener.shards()).map(serve).collect();

    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    let requests = async {
        for n in 0..100u8 {
            let mut stream = pagewire::net::TcpStream::connect_on(&client, "10.0.0.1:7").await?;
            stream.write_all(&[n; 64]).await?;
            let mut answer = [0; 64];
            stream.read_exact(&mut answer).await?;
            assert_eq!(answer, [n; 64]);
        }
        Ok::<_, std::io::Error>(())
    };
    Builder::new_current_thread().build()?.block_on(requests)?;
    let stats = server.stats();
    for (core, shard) in stats.shards.iter().enumerate() {
        let accepted = shard.counters.tcp_passive_opens;
        println!(
            "core {core}: {accepted} connections, {} packets passed on",
            shard.counters.strays_passed
        );
        assert!(accepted > 0, "connections spread over the cores");
    }
    server.shutdown(Duration::from_secs(1));
    threads.into_iter().for_each(|thread| thread.join().expect("a core's thread"));
    Ok(())
}

/// Sends back what each connection of a shard sends, until the host is shut down.
async fn echo(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut from, mut to) = split(stream);
            copy(&mut from, &mut to).await
        });
    }
}
