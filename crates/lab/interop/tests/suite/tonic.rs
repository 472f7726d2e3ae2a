//! tonic: a call, streams both ways, deadlines, and keepalive of HTTP/2 that finds a dead server.
//! The service is what tonic's code generator writes, by hand, so that no `protoc` is needed.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use pagewire_hyper::Connector;
use pagewire_simulation::HostHandle;
use pagewire_simulation::net::TcpListener;
use pagewire_simulation::{Control, Link, Result, Sim};
use pagewire_tonic::Incoming;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// Adds numbers.
#[derive(Clone)]
struct Sums;

impl NamedService for Sums {
    const NAME: &'static str = "test.Sums";
}

type Reply<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Numbers = Pin<Box<dyn Stream<Item = std::result::Result<u64, Status>> + Send>>;

/// `Running`: the sum so far, after each number.
#[derive(Clone)]
struct Running;

impl Service<Request<Streaming<u64>>> for Running {
    type Response = Response<Numbers>;
    type Error = Status;
    type Future = Reply<std::result::Result<Response<Numbers>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<u64>>) -> Self::Future {
        let sums = request.into_inner().scan(0, |sum, number| {
            let next = number.map(|number| {
                *sum += number;
                *sum
            });
            std::future::ready(Some(next))
        });
        Box::pin(async { Ok(Response::new(Box::pin(sums) as Numbers)) })
    }
}

/// `Wait`: answers after a number of seconds.
#[derive(Clone)]
struct Wait;

impl Service<Request<u64>> for Wait {
    type Response = Response<u64>;
    type Error = Status;
    type Future = Reply<std::result::Result<Response<u64>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<u64>) -> Self::Future {
        let seconds = request.into_inner();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(Response::new(seconds))
        })
    }
}

impl Service<http::Request<Body>> for Sums {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Reply<std::result::Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<u64, u64>::default());
            Ok(match request.uri().path() {
                "/test.Sums/Running" => grpc.streaming(Running, request).await,
                "/test.Sums/Wait" => grpc.unary(Wait, request).await,
                _ => Status::unimplemented("no such call").into_http(),
            })
        })
    }
}

async fn server() -> Result {
    let listener = TcpListener::bind("0.0.0.0:50051").await?;
    Server::builder().add_service(Sums).serve_with_incoming(Incoming::new(listener)).await?;
    Ok(())
}

fn endpoint() -> Endpoint {
    Endpoint::from_static("http://server:50051")
}

async fn running(
    channel: &Channel,
    numbers: impl Stream<Item = u64> + Send + 'static,
) -> std::result::Result<Streaming<u64>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/test.Sums/Running");
    let codec = ProstCodec::<u64, u64>::default();
    Ok(grpc.streaming(Request::new(numbers), path, codec).await?.into_inner())
}

async fn wait(channel: &Channel, request: Request<u64>) -> std::result::Result<u64, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/test.Sums/Wait");
    let codec = ProstCodec::<u64, u64>::default();
    Ok(grpc.unary(request, path, codec).await?.into_inner())
}

#[test]
fn streams_run_both_ways_over_a_network_that_loses_packets() {
    for seed in 0..5 {
        let link = Link::new().latency(Duration::from_millis(20)).loss(0.05);
        let mut sim = Sim::builder().seed(seed).link(link).build();
        sim.host("server", server);
        sim.client("client", async {
            let channel = endpoint().connect_with_connector(Connector::<HostHandle>::new()).await?;
            // A number leaves each 100 ms, and its sum comes back meanwhile.
            let numbers = stream::unfold(1, |n| async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                (n <= 50).then_some((n, n + 1))
            });
            let sums: Vec<_> =
                running(&channel, numbers).await?.map(|sum| sum.unwrap()).collect().await;
            assert_eq!(sums.len(), 50);
            assert_eq!(sums.last(), Some(&(50 * 51 / 2)));
            Ok(())
        });
        sim.run().unwrap();
    }
}

#[test]
fn a_deadline_ends_a_slow_call() {
    let mut sim = Sim::builder().build();
    sim.host("server", server);
    sim.client("client", async {
        let channel = endpoint().connect_with_connector(Connector::<HostHandle>::new()).await?;
        let start = tokio::time::Instant::now();
        let mut request = Request::new(10);
        request.set_timeout(Duration::from_secs(2));
        let status = wait(&channel, request).await.unwrap_err();
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
        assert!((2..3).contains(&start.elapsed().as_secs()));
        assert_eq!(wait(&channel, Request::new(3)).await?, 3);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn keepalive_finds_a_server_without_power() {
    let mut sim = Sim::builder().build();
    sim.host("server", server);
    sim.client("client", async {
        let channel = endpoint()
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(2))
            .keep_alive_while_idle(true)
            .connect_with_connector_lazy(Connector::<HostHandle>::new());
        assert_eq!(wait(&channel, Request::new(0)).await?, 0);
        let start = tokio::time::Instant::now();
        let crash = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let control = Control::current()?;
            control.crash("server");
            tokio::time::sleep(Duration::from_secs(1)).await;
            control.bounce("server");
            Result::Ok(())
        };
        let (status, crashed) = tokio::join!(wait(&channel, Request::new(60)), crash);
        crashed?;
        assert!(status.is_err(), "the call fails, it does not wait a minute");
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        assert_eq!(wait(&channel, Request::new(1)).await?, 1, "a new connection serves again");
        Ok(())
    });
    sim.run().unwrap();
}
