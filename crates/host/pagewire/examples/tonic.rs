//! tonic: a service and its client over HTTP/2. What tonic's code generator makes of a `.proto` file
//! is written by hand here, so that no `protoc` is needed.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example tonic
//! ```
//!
//! The program prints the answers to ten calls over one connection.

use pagewire::net::TcpListener;
use pagewire::{Host, Pair};
use pagewire_hyper::Connector;
use pagewire_tonic::Incoming;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Context, Poll, Service, StdError, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

type Result<T = (), E = StdError> = std::result::Result<T, E>;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    let incoming = Incoming::new(TcpListener::bind_on(&server, "10.0.0.1:50051").await?);
    tokio::spawn(Server::builder().add_service(Squares).serve_with_incoming(incoming));
    let endpoint = Endpoint::from_static("http://10.0.0.1:50051");
    let channel = endpoint.connect_with_connector(Connector::on(&client).nodelay(true)).await?;
    for n in 0..10 {
        let square = square(channel.clone(), n).await?;
        println!("{n} * {n} = {square}");
        assert_eq!(square, n * n);
    }
    Ok(())
}

/// `rpc Square(google.protobuf.UInt64Value) returns (google.protobuf.UInt64Value)`.
async fn square(channel: Channel, n: u64) -> Result<u64> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let path = PathAndQuery::from_static("/example.Squares/Square");
    Ok(grpc.unary(Request::new(n), path, ProstCodec::<u64, u64>::default()).await?.into_inner())
}

#[derive(Clone)]
struct Squares;

impl NamedService for Squares {
    const NAME: &'static str = "example.Squares";
}

impl UnaryService<u64> for Squares {
    type Response = u64;
    type Future = BoxFuture<Response<u64>, Status>;

    fn call(&mut self, request: Request<u64>) -> Self::Future {
        let square = request.into_inner().checked_pow(2).map(Response::new);
        Box::pin(async { square.ok_or(Status::out_of_range("the square is too large")) })
    }
}

impl Service<http::Request<Body>> for Squares {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut grpc = tonic::server::Grpc::new(ProstCodec::<u64, u64>::default());
        // The service has one call only: `request.uri().path()` would distinguish several.
        Box::pin(async move { Ok(grpc.unary(Squares, request).await) })
    }
}
