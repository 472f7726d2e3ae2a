//! rustls over tasks: tokio-rustls takes whatever is `AsyncRead` and `AsyncWrite`, so no adapter is
//! needed.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example tokio_rustls
//! ```
//!
//! The program prints how many bytes came back through TLS.

use std::sync::Arc;

use pagewire::net::{TcpListener, TcpStream};
use pagewire::{Host, Pair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio_rustls::{TlsAcceptor, TlsConnector};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LEN: usize = 200_000;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    let (server_config, client_config) = configs()?;

    let listener = TcpListener::bind_on(&server, "10.0.0.1:443").await?;
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let (mut read, mut write) = split(TlsAcceptor::from(server_config).accept(stream).await?);
        copy(&mut read, &mut write).await?;
        write.shutdown().await
    });
    let stream = TcpStream::connect_on(&client, "10.0.0.1:443").await?;
    let name = ServerName::try_from("server")?;
    let mut tls = TlsConnector::from(client_config).connect(name, stream).await?;
    tls.write_all(&[9; LEN]).await?;
    tls.shutdown().await?;
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer).await?;
    assert_eq!(answer, [9; LEN]);
    serving.await??;
    println!("{} bytes came back through TLS", answer.len());
    Ok(())
}

/// Settings of a server with a certificate of its own, and of a client that trusts it.
fn configs() -> Result<(Arc<ServerConfig>, Arc<ClientConfig>)> {
    let made = rcgen::generate_simple_self_signed(["server".to_owned()])?;
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], made.signing_key.into())?;
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok((Arc::new(server), Arc::new(client)))
}
