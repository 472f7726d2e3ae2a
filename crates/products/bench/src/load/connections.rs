//! `bench connections`: connect, one request, close.
//!
//! The server closes first, as one does that says `Connection: close`, so TIME-WAIT is the
//! server's. So many clients do that side by side, again and again.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::network::{Listener, Network, connect};
use super::requests::{Window, answer};
use super::runner::Programs;
use super::usage::SideThreads;
use super::{RequestOptions, Requests, RequestsBench, RequestsSample};
use crate::args::{Link, Options, Plan};
use crate::failure::{Because, Failure};
use crate::progress::Progress;
use crate::table::Results;

/// Connect, one request, close
///
/// The programs are as those of `bench requests`; the server closes first.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ConnectionsOptions {
    /// Kind of link; over a tap the clients are kernel sockets (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    link: Link,

    /// Clients side by side, each with one connection at a time; several numbers with commas
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    connections: Vec<u32>,

    #[command(flatten)]
    more: RequestOptions,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench connections
      64 clients side by side over the pair link, beside kernel loopback
  pagewire bench connections --link tap --connections 1,64
      from clients of the kernel over a tap, beside veth; root";

impl Options for ConnectionsOptions {
    fn plan(&self) -> Plan {
        Plan::of::<RequestsBench<Visits>>(self.link == Link::Tap, self.more.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let columns = "engine link peer connections size connections_per_s min_connections_per_s \
            max_connections_per_s p50_us p99_us server_cpu_us_per_request \
            client_cpu_us_per_request";
        RequestsBench::<Visits>::run(self.link, &self.connections, &self.more, columns, progress)
    }
}

struct Visits {
    /// Connections at any time.
    clients: u32,
    /// Bytes of a request, and of an answer.
    size: usize,
    seconds: f64,
}

impl Requests for Visits {
    const NAME: &'static str = "connections";
    const TITLE: &'static str = "Connect, one request, close";
    const ABOUT: &'static str = "The same tokio programs on both engines. The server closes first.";
    const RATE: (&'static str, &'static str) = ("connections_per_s", "Connections");
    const GROUP: &'static str = "{} client(s) side by side";
    const OVER: &'static str = "clients side by side";

    fn new(clients: u32, size: usize, seconds: f64) -> Self {
        Self { clients, size, seconds }
    }
}

impl Programs for Visits {
    type Outcome = RequestsSample;

    async fn serve<L: Listener>(&self, listener: L) -> Result<(), Failure> {
        loop {
            let mut stream = listener.accept().await.because("accepting")?;
            let mut buffer = vec![0; self.size];
            tokio::task::spawn_local(async move {
                // The drop closes.
                let _ = answer(&mut stream, &mut buffer).await;
            });
        }
    }

    async fn load<N: Network>(
        &self,
        network: N,
        to: SocketAddr,
        threads: &SideThreads,
    ) -> Result<RequestsSample, Failure> {
        let window = Rc::new(Window::default());
        for _ in 0..self.clients {
            let (network, size) = (network.clone(), self.size);
            let mut buffer = Vec::with_capacity(size + 1);
            window.repeat(async move || visit(&network, to, size, &mut buffer).await);
        }
        window.measure(self.seconds, threads).await
    }
}

async fn visit<N: Network>(
    network: &N,
    to: SocketAddr,
    size: usize,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let mut stream = connect(network, to).await?;
    buffer.clear();
    buffer.resize(size, 0x55);
    stream.write_all(buffer).await?;
    buffer.clear();
    match stream.read_to_end(buffer).await? {
        n if n == size => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
