//! HTTPS: a server behind tokio-rustls, and a client whose connector hyper-rustls wraps. Both speak HTTP/2
//! and HTTP/1.1; TLS agrees on one of them.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example https
//! ```
//!
//! The program prints the version that both agreed on, and how long the answer was.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use pagewire::net::TcpListener;
use pagewire::{Host, Pair};
use pagewire_hyper::Connector;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const NAME: &str = "server.test";
const PAGE: &[u8] = &[7; 1 << 20];

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let host = Host::builder().device(right).address("10.0.0.2/24").start()?;
    let (server_config, client_config) = configs()?;

    let listener = TcpListener::bind_on(&server, "10.0.0.1:443").await?;
    let serving = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(server_config))));

    // Nothing asks a resolver: the connector has the names. TLS checks the same name.
    let plain = Connector::on(&host).name(NAME, "10.0.0.1".parse()?).enforce_http(false);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(client_config)
        .https_only()
        .enable_all_versions()
        .wrap_connector(plain);
    let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector);
    let answer = client.get(format!("https://{NAME}/").parse()?).await?;
    let version = answer.version();
    let body = answer.into_body().collect().await?.to_bytes();
    println!("{version:?}, {} bytes", body.len());
    assert_eq!((version, body.as_ref()), (Version::HTTP_2, PAGE));
    serving.abort();
    Ok(())
}

async fn serve(listener: TcpListener, tls: TlsAcceptor) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let tls = tls.clone();
        tokio::spawn(async move {
            let stream = TokioIo::new(tls.accept(stream).await?);
            let http = auto::Builder::new(TokioExecutor::new());
            http.serve_connection(stream, service_fn(answer)).await
        });
    }
}

async fn answer(_: Request<Incoming>) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(PAGE))))
}

/// Settings of a server with a certificate of its own, and of a client that trusts it.
fn configs() -> Result<(ServerConfig, ClientConfig)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let mut server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], made.signing_key.into())?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // The connector adds the versions of HTTP itself.
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok((server, client))
}
