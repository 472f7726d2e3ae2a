//! axum: `serve` over a simulated listener, and a client of hyper.

use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Path, State};
use axum::routing::{get, post};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use pagewire_axum::{Listener, Peer};
use pagewire_hyper::Connector;
use pagewire_simulation::HostHandle;
use pagewire_simulation::net::TcpListener;
use pagewire_simulation::{FailureKind, Result, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A service with a route for each of: its peer, a counter, something slow.
fn app() -> Router {
    let count = Arc::<AtomicU64>::default();
    Router::new()
        .route(
            "/who",
            get(async |ConnectInfo(Peer(peer)): ConnectInfo<Peer>| peer.ip().to_string()),
        )
        .route(
            "/add/{n}",
            post(async |State(count): State<Arc<AtomicU64>>, Path(n): Path<u64>| {
                (count.fetch_add(n, Ordering::Relaxed) + n).to_string()
            }),
        )
        .route(
            "/slow",
            get(async || {
                tokio::time::sleep(Duration::from_secs(5)).await;
                "done"
            }),
        )
        .with_state(count)
}

async fn server() -> Result {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    axum::serve(Listener(listener), app().into_make_service_with_connect_info::<Peer>()).await?;
    Ok(())
}

async fn call(method: &str, path: &str) -> Result<String> {
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build::<_, Full<Bytes>>(Connector::<HostHandle>::new());
    let request = Request::builder().method(method).uri(format!("http://server{path}"));
    let response = client.request(request.body(Full::default())?).await?;
    let text = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(text.to_vec())?)
}

#[test]
fn handlers_see_their_peer_and_their_state() {
    let mut sim = Sim::builder().build();
    sim.host("server", server);
    sim.client("client", async {
        // Hosts have addresses in the order in which they are added.
        assert_eq!(call("GET", "/who").await?, "10.0.0.2");
        assert_eq!(call("POST", "/add/3").await?, "3");
        assert_eq!(call("POST", "/add/4").await?, "7");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_restarted_server_has_forgotten() {
    let mut sim = Sim::builder().build();
    sim.host("server", server);
    sim.client("client", async {
        assert_eq!(call("POST", "/add/3").await?, "3");
        let control = pagewire_simulation::Control::current()?;
        control.kill("server");
        control.bounce("server");
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(call("POST", "/add/4").await?, "4");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_graceful_end_lets_requests_finish() {
    let mut sim = Sim::builder().build();
    sim.host("server", async || {
        let listener = TcpListener::bind("0.0.0.0:80").await?;
        let end = async { tokio::time::sleep(Duration::from_secs(1)).await };
        axum::serve(Listener(listener), app()).with_graceful_shutdown(end).await?;
        Ok(())
    });
    sim.client("client", async {
        assert_eq!(call("GET", "/slow").await?, "done");
        assert!(call("GET", "/slow").await.is_err(), "nobody listens any more");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn an_error_of_a_client_fails_the_run() {
    let mut sim = Sim::builder().build();
    sim.client("client", async { call("GET", "/who").await.map(drop) });
    let failure = sim.run().expect_err("there is no server");
    assert_eq!(failure.kind, FailureKind::Client);
}
