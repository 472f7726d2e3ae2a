//! A thousand hosts with ten thousand connections: what a simulation of this size costs.
//!
//! ```text
//! cargo run --release -p pagewire-simulation --example thousand [HOSTS CONNECTIONS SECONDS]
//! ```

use std::time::{Duration, Instant};

use pagewire_simulation::net::{TcpListener, TcpStream};
use pagewire_simulation::{Leaks, Link, Result, Sim};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MESSAGE: usize = 1024;

async fn serve() -> Result {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(echo(stream));
    }
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * MESSAGE];
    loop {
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        stream.write_all(buffer.get(..n).unwrap_or_default()).await?;
    }
}

/// Asks again and again, for `time`.
async fn ask(server: String, time: Duration) -> std::io::Result<()> {
    let mut stream = TcpStream::connect((server.as_str(), 80)).await?;
    let start = tokio::time::Instant::now();
    let mut message = vec![7; MESSAGE];
    while start.elapsed() < time {
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
    }
    Ok(())
}

fn main() -> Result {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (hosts, connections, seconds) = (next(1000)?, next(10_000)?, next(2)?);
    let servers = (hosts / 11).max(1);
    let clients = hosts - servers;
    let link = Link::new().latency(Duration::from_millis(10));
    let mut sim = Sim::builder().seed(7).link(link).leaks(Leaks::Ignore).build();
    for n in 0..servers {
        sim.host(&format!("server{n}"), serve);
    }
    for n in 0..clients {
        sim.client(&format!("client{n}"), async move {
            let mine = (n..connections).step_by(clients as usize);
            let all = mine.map(|connection| {
                let server = format!("server{}", connection % servers);
                tokio::spawn(ask(server, Duration::from_secs(seconds)))
            });
            for one in all.collect::<Vec<_>>() {
                one.await??;
            }
            Ok(())
        });
    }
    let start = Instant::now();
    let report = sim.run()?;
    let wall = start.elapsed();
    println!("{report:?}");
    println!(
        "{wall:?} for {} packets: {:.0} a second, {:.3} simulated seconds a second",
        report.counts.arrived,
        report.counts.arrived as f64 / wall.as_secs_f64(),
        report.elapsed.as_secs_f64() / wall.as_secs_f64()
    );
    Ok(())
}
