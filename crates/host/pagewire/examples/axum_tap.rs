//! An axum service over a tap; without a tap, over a pair with a client of its own. Bodies leave by
//! reference: the stack copies the heads of answers and nothing else.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example axum_tap
//! sudo target/debug/examples/axum_tap pw0             # runs until Ctrl-C, then try:
//! curl --output /dev/null http://10.77.0.2/page; curl http://10.77.0.2/ledger
//! ```
//!
//! The program prints how many bytes of bodies were sent, and how many of them the stack copied: none.

use axum::Router;
use axum::extract::ConnectInfo;
use axum::middleware::map_response;
use axum::routing::get;
use pagewire::memory::CopyReason;
use pagewire::net::{TcpListener, TcpStream};
use pagewire::{Host, Pair, Tap};
use pagewire_axum::{Peer, by_reference};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PAGE: &[u8] = &[7; 1 << 20];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    match std::env::args().nth(1) {
        None => over_a_pair().await,
        Some(name) => over_a_tap(&name).await,
    }
}

async fn over_a_tap(name: &str) -> Result {
    let tap = Tap::builder(name).host_address("10.77.0.1/24").open()?;
    let host = Host::builder().device(tap).address("10.77.0.2/24").start_in_runtime()?;
    let listener = TcpListener::bind_on(&host, "0.0.0.0:80").await?;
    println!("http://10.77.0.2/page and http://10.77.0.2/ledger");
    serve(listener, host).await
}

async fn serve(listener: TcpListener, host: Host) -> Result {
    let app = Router::new()
        .route("/page", get(async || PAGE))
        .route("/who", get(async |ConnectInfo(Peer(peer)): ConnectInfo<Peer>| peer.to_string()))
        .route("/ledger", get(async move || host.stats().to_string()))
        .layer(map_response(by_reference))
        .into_make_service_with_connect_info::<Peer>();
    Ok(axum::serve(pagewire_axum::Listener(listener), app).await?)
}

pub(crate) async fn over_a_pair() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.77.0.2/24").start()?;
    let client = Host::builder().device(right).address("10.77.0.1/24").start()?;
    let listener = TcpListener::bind_on(&server, "0.0.0.0:80").await?;
    tokio::spawn(serve(listener, server.clone()));
    let (mut heads, mut bodies) = (0, 0);
    for _ in 0..16 {
        let (head, body) = ask(&client, "/page").await?;
        assert_eq!(body, PAGE);
        (heads, bodies) = (heads + head, bodies + body.len());
    }
    let copied = server.stats().ledger.get(CopyReason::AppWrite) as usize;
    println!("{bodies} bytes of bodies, {} copied; {heads} bytes of heads", copied - heads);
    assert_eq!(copied, heads, "heads are copied, and nothing else");
    let (_, peer) = ask(&client, "/who").await?;
    assert!(peer.starts_with(b"10.77.0.1:"));
    Ok(())
}

/// The length of the answer's head, and its body.
async fn ask(host: &Host, path: &str) -> Result<(usize, Vec<u8>)> {
    let mut stream = TcpStream::connect_on(host, "10.77.0.2:80").await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no head")? + 4;
    Ok((head, answer.split_off(head)))
}
