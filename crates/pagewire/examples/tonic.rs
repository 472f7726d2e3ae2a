//! tonic: a service and its client over HTTP/2. What tonic's code generator makes of a `.proto` file
//! is written by hand here, so that no `protoc` is needed.
//!
//! ```sh
//! cargo run --package pagewire --features tonic --example tonic
//! ```
//!
//! It prints the answers to ten calls over one connection.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use pagewire::fit::hyper::Connector;
use pagewire::fit::tonic::Incoming;
use pagewire::tokio::TcpListener;
use pagewire::{Host, Pair};
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result {
    let (left, right) = Pair::new(Default::default())?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;

    let incoming = Incoming::new(TcpListener::bind(&server, "10.0.0.1:50051").await?);
    let serving =
        tokio::spawn(Server::builder().add_service(Squares).serve_with_incoming(incoming));
    let endpoint = Endpoint::from_static("http://10.0.0.1:50051");
    let channel = endpoint.connect_with_connector(Connector::new(&client).nodelay(true)).await?;
    for n in 0..10 {
        let square = square(channel.clone(), n).await?;
        println!("{n} * {n} = {square}");
        assert_eq!(square, n * n);
    }
    serving.abort();
    Ok(())
}

/// `rpc Square(google.protobuf.UInt64Value) returns (google.protobuf.UInt64Value)`.
async fn square(channel: Channel, n: u64) -> Result<u64> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let path = PathAndQuery::from_static("/example.Squares/Square");
    let codec = ProstCodec::<u64, u64>::default();
    Ok(grpc.unary(Request::new(n), path, codec).await?.into_inner())
}

/// The server's part.
#[derive(Clone)]
struct Squares;

impl NamedService for Squares {
    const NAME: &'static str = "example.Squares";
}

impl Service<Request<u64>> for Squares {
    type Response = Response<u64>;
    type Error = Status;
    type Future = Ready<std::result::Result<Response<u64>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<u64>) -> Self::Future {
        let square = request.into_inner().checked_pow(2);
        ready(square.map(Response::new).ok_or(Status::out_of_range("the square is too large")))
    }
}

impl Service<http::Request<Body>> for Squares {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future =
        Pin<Box<dyn Future<Output = std::result::Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<u64, u64>::default());
            Ok(match request.uri().path() {
                "/example.Squares/Square" => grpc.unary(Squares, request).await,
                _ => Status::unimplemented("no such call").into_http(),
            })
        })
    }
}
