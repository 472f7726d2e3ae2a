//! hyper 1: a server, and a client whose connections are kept alive and used again.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example hyper_server
//! ```
//!
//! The program prints how many requests were answered over how many connections, and how many bytes
//! of bodies the stack copied: none.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pagewire::memory::CopyReason;
use pagewire::net::TcpListener;
use pagewire::{Host, Pair};
use pagewire_hyper::ByReference;
use pagewire_hyper::Connector;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const REQUESTS: usize = 16;
const PAGE: &[u8] = &[7; 1 << 20];
/// More than the longest head of an answer.
const HEAD: usize = 256;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let host = Host::builder().device(right).address("10.0.0.2/24").start()?;

    let listener = TcpListener::bind_on(&server, "10.0.0.1:80").await?;
    let serving = tokio::spawn(serve(listener));
    let connector = Connector::on(&host).name("server", "10.0.0.1".parse()?);
    let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector);
    for _ in 0..REQUESTS {
        let answer = client.get("http://server/page".parse()?).await?;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.into_body().collect().await?.to_bytes(), PAGE);
    }
    let answer = client.get("http://10.0.0.1/nothing".parse()?).await?;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);

    let stats = server.stats();
    let (connections, copied) =
        (stats.counters.tcp_passive_opens, stats.ledger.get(CopyReason::AppWrite) as usize);
    println!("{REQUESTS} answers of {} bytes, {connections} connections", PAGE.len());
    println!("{copied} bytes copied: the heads of answers");
    assert!(copied < (REQUESTS + 1) * HEAD);
    serving.abort();
    Ok(())
}

async fn serve(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(connection);
    }
}

/// Bodies of other types go by reference as well, if their data is `Bytes`.
async fn answer(
    request: Request<Incoming>,
) -> std::result::Result<Response<ByReference<Full<Bytes>>>, Infallible> {
    let mut response = Response::new(ByReference(Full::default()));
    match request.uri().path() {
        "/page" => response.body_mut().0 = Full::new(Bytes::from_static(PAGE)),
        _ => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    Ok(response)
}
