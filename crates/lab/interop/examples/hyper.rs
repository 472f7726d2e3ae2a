//! A hyper server and a hyper client on a bad network: 40 ms away, one packet in twenty lost.
//!
//! `cargo run -p pagewire-interop --example hyper`

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pagewire_hyper::Connector;
use pagewire_simulation::HostHandle;
use pagewire_simulation::net::TcpListener;
use pagewire_simulation::{Link, Result, Sim};

async fn server() -> Result {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let hello = service_fn(async |request: Request<Incoming>| {
                let text = format!("you asked for {}", request.uri().path());
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), hello);
            if let Err(error) = served.await {
                eprintln!("a connection ended: {error}");
            }
        });
    }
}

async fn client() -> Result {
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build::<_, Full<Bytes>>(Connector::<HostHandle>::new());
    for n in 0..10 {
        let start = tokio::time::Instant::now();
        let response = client.get(format!("http://server/{n}").parse()?).await?;
        let text = response.into_body().collect().await?.to_bytes();
        println!("{} after {:?}", String::from_utf8_lossy(&text), start.elapsed());
    }
    Ok(())
}

/// The client makes ten requests.
pub(crate) fn main() -> Result {
    let link = Link::new().latency(Duration::from_millis(40)).loss(0.05);
    let mut sim = Sim::builder().link(link).build();
    sim.host("server", server);
    sim.client("client", client());
    let report = sim.run()?;
    println!("{:?} of simulated time, digest {}", report.elapsed, report.digest);
    Ok(())
}
