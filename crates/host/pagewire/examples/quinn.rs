//! QUIC by quinn: many datagrams leave by one call, arrive joined, and carry congestion marks, as
//! over Linux's sockets.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example quinn
//! ```
//!
//! The program prints how many bytes came back over how many streams, and how many datagrams each
//! call sent.

use std::sync::Arc;

use pagewire::{Host, Pair};
use pagewire_quinn::endpoint_on;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig};
use rustls::RootCertStore;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LENGTHS: [usize; 3] = [1, 1_000, 1_000_000];
/// Most bytes of a stream that are read.
const MOST: usize = 1 << 20;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    let (server_config, client_config) = configs()?;

    let settings = EndpointConfig::default;
    let listening = endpoint_on(&server, "10.0.0.1:443", settings(), Some(server_config)).await?;
    let serving = tokio::spawn(serve(listening));
    let mut endpoint = endpoint_on(&client, "0.0.0.0:0", settings(), None).await?;
    endpoint.set_default_client_config(client_config);
    let connection = endpoint.connect("10.0.0.1:443".parse()?, "server")?.await?;
    let [a, b, c] = LENGTHS.map(|len| echo(&connection, len));
    tokio::try_join!(a, b, c)?;

    let sent = connection.stats().udp_tx;
    let (all, streams) = (LENGTHS.iter().sum::<usize>(), LENGTHS.len());
    println!("{all} bytes came back over {streams} streams");
    println!("{} datagrams sent by {} calls", sent.datagrams, sent.ios);
    assert!(sent.datagrams > 2 * sent.ios);
    connection.close(0_u32.into(), b"done");
    endpoint.wait_idle().await;
    serving.await??;
    Ok(())
}

/// Echoes the streams of one connection.
async fn serve(endpoint: Endpoint) -> Result {
    let connection = endpoint.accept().await.ok_or("no connection")?.await?;
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        send.write_all(&recv.read_to_end(MOST).await?).await?;
        send.finish()?;
    }
    Ok(())
}

async fn echo(connection: &Connection, len: usize) -> Result {
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(&vec![3; len]).await?;
    send.finish()?;
    assert!(recv.read_to_end(MOST).await? == vec![3; len]);
    Ok(())
}

/// Settings of a server with a certificate of its own, and of a client that trusts it.
fn configs() -> Result<(ServerConfig, ClientConfig)> {
    let made = rcgen::generate_simple_self_signed(["server".to_owned()])?;
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let server = ServerConfig::with_single_cert(vec![certificate], made.signing_key.into())?;
    Ok((server, ClientConfig::with_root_certificates(Arc::new(roots))?))
}
