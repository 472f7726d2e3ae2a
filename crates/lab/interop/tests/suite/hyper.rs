//! hyper: server and client, HTTP/1 and HTTP/2, on a bad network.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use pagewire_hyper::Connector;
use pagewire_simulation::HostHandle;
use pagewire_simulation::net::TcpListener;
use pagewire_simulation::{Link, Result, Sim};

#[path = "../../examples/hyper.rs"]
#[allow(dead_code)]
mod example;

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new(body)))
}

/// Echoes bodies over whichever version a client speaks.
async fn server() -> Result {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let echo = service_fn(async |request| {
                let echoed = echo(request).await;
                Ok::<_, Infallible>(echoed.unwrap_or_else(|_| Response::default()))
            });
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new());
            builder.http2().timer(TokioTimer::new());
            let _ = builder.serve_connection(TokioIo::new(stream), echo).await;
        });
    }
}

/// Sends bodies of all sizes, four at once.
async fn client(http2: bool) -> Result {
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .http2_only(http2)
        .build::<_, Full<Bytes>>(Connector::<HostHandle>::new());
    let request = async |len: usize| -> Result {
        let body = Bytes::from(vec![len as u8; len]);
        let request = Request::post("http://server/").body(Full::new(body.clone()))?;
        let response = client.request(request).await?;
        assert_eq!(response.into_body().collect().await?.to_bytes(), body);
        Ok(())
    };
    for len in [0, 1, 1_000, 100_000] {
        tokio::try_join!(request(len), request(len + 1), request(len + 2), request(len + 3))?;
    }
    Ok(())
}

fn run(http2: bool) {
    for seed in 0..5 {
        let link = Link::new().latency(Duration::from_millis(20)).loss(0.05);
        let mut sim = Sim::builder().seed(seed).link(link).build();
        sim.host("server", server);
        sim.client("client", client(http2));
        sim.run().unwrap();
    }
}

#[test]
fn http_1_passes_over_a_network_that_loses_packets() {
    run(false);
}

#[test]
fn http_2_passes_over_a_network_that_loses_packets() {
    run(true);
}

#[test]
fn the_example_runs() {
    example::main().unwrap();
}
