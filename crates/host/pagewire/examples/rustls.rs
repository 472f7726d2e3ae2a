//! rustls over blocking streams: `pagewire::TcpStream` is `Read` and `Write`, so no adapter is needed.
//!
//! ```sh
//! cargo run --package pagewire --example rustls
//! ```
//!
//! The program prints the version of TLS, the cipher suite, and how many bytes came back.

use std::io::{Read, Write};
use std::sync::Arc;
use std::thread;

use pagewire::{Host, Pair};
use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LEN: usize = 200_000;

pub(crate) fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    let (server_config, client_config) = configs()?;

    let listener = server.listen("10.0.0.1:443")?;
    let serving = thread::spawn(move || -> Result {
        let (stream, _) = listener.accept()?;
        let mut tls = StreamOwned::new(ServerConnection::new(server_config)?, stream);
        let mut data = vec![0; LEN];
        tls.read_exact(&mut data)?;
        tls.write_all(&data)?;
        tls.conn.send_close_notify();
        Ok(tls.flush()?)
    });
    let name = ServerName::try_from("server")?;
    let connection = ClientConnection::new(client_config, name)?;
    let mut tls = StreamOwned::new(connection, client.connect("10.0.0.1:443")?);
    tls.write_all(&[9; LEN])?;
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer)?;
    assert_eq!(answer, [9; LEN]);
    serving.join().map_err(|_| "the server panicked")??;

    let (version, suite) = (tls.conn.protocol_version(), tls.conn.negotiated_cipher_suite());
    let (version, suite) = version.zip(suite).ok_or("no handshake")?;
    println!("{version:?}, {:?}, {} bytes came back", suite.suite(), answer.len());
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
