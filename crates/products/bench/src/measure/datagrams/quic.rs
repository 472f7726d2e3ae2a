//! QUIC: a stream by quinn, between an endpoint on a host and one on a kernel socket.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use pagewire::Host;
use pagewire_quinn::endpoint_on;
use quinn::{
    ClientConfig, Endpoint, EndpointConfig, MtuDiscoveryConfig, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{DatagramsSample, Run, WINDOW, kernel_socket, runtime};
use crate::failure::{Because, Failure};

const QUIC: &str = "quinn";

/// Bytes that the sender hands over at once, and the receiver takes at once.
const PIECE: usize = 256 << 10;

pub(super) fn kernel_sends(run: Run<'_>, to: SocketAddr) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        send(run, kernel_endpoint(kernel_socket(any)?, None)?, to).await
    })
}

pub(super) fn kernel_receives(run: Run<'_>, socket: UdpSocket) -> Result<DatagramsSample, Failure> {
    runtime()?.block_on(async { receive(run, kernel_endpoint(socket, Some(server(run)?))?).await })
}

pub(super) async fn host_sends(run: Run<'_>, host: &Host, to: SocketAddr) -> Result<(), Failure> {
    let endpoint = endpoint_on(host, "0.0.0.0:0", EndpointConfig::default(), None).await?;
    send(run, endpoint, to).await
}

pub(super) async fn host_receives(
    run: Run<'_>,
    host: &Host,
    at: SocketAddr,
    start: impl FnOnce(),
) -> Result<DatagramsSample, Failure> {
    let endpoint = endpoint_on(host, at, EndpointConfig::default(), Some(server(run)?)).await?;
    start();
    receive(run, endpoint).await
}

fn kernel_endpoint(socket: UdpSocket, server: Option<ServerConfig>) -> Result<Endpoint, Failure> {
    let runtime = Arc::new(TokioRuntime);
    Endpoint::new(EndpointConfig::default(), server, socket, runtime).because(QUIC)
}

async fn send(run: Run<'_>, mut endpoint: Endpoint, to: SocketAddr) -> Result<(), Failure> {
    endpoint.set_default_client_config(client(run)?);
    let connection = endpoint.connect(to, NAME).because(QUIC)?.await.because(QUIC)?;
    let mut stream = connection.open_uni().await.because(QUIC)?;
    for piece in run.source.pieces(PIECE) {
        // The receiver closes the connection once it has counted enough.
        if run.is_done() || stream.write_all(piece).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn receive(run: Run<'_>, endpoint: Endpoint) -> Result<DatagramsSample, Failure> {
    let none = || Failure::Failed("no connection came".into());
    let connection = endpoint.accept().await.ok_or_else(none)?.await.because(QUIC)?;
    let mut stream = connection.accept_uni().await.because(QUIC)?;
    let mut meter = run.meter();
    loop {
        let chunk = stream.read_chunk(PIECE, true).await.because(QUIC)?.ok_or_else(none)?;
        if let Some(sample) = meter.add(chunk.bytes.len()) {
            connection.close(VarInt::from_u32(0), b"done");
            endpoint.wait_idle().await;
            return Ok(sample);
        }
    }
}

const NAME: &str = "server";

/// The settings of both ends' packets: as long as the link takes from the first on.
fn transport(run: Run<'_>) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(run.datagram());
    config
        .initial_mtu(run.datagram())
        .mtu_discovery_config(Some(discovery))
        .stream_receive_window(VarInt::from_u32(WINDOW as u32))
        .receive_window(VarInt::from_u32(WINDOW as u32))
        .send_window(WINDOW as u64);
    Arc::new(config)
}

/// A certificate for every run of this process, and its key.
fn identity() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), Failure> {
    static IDENTITY: std::sync::OnceLock<(CertificateDer<'static>, Vec<u8>)> =
        std::sync::OnceLock::new();
    let (certificate, key) = match IDENTITY.get() {
        Some(known) => known,
        None => {
            let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
            let made = made.because("a certificate")?;
            let new = (made.cert.der().clone(), made.signing_key.serialize_der());
            IDENTITY.get_or_init(|| new)
        }
    };
    let key = PrivateKeyDer::try_from(key.clone());
    Ok((certificate.clone(), key.map_err(|e| Failure::because("a key", e))?))
}

fn server(run: Run<'_>) -> Result<ServerConfig, Failure> {
    let (certificate, key) = identity()?;
    let mut config = ServerConfig::with_single_cert(vec![certificate], key).because(QUIC)?;
    config.transport_config(transport(run));
    Ok(config)
}

fn client(run: Run<'_>) -> Result<ClientConfig, Failure> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity()?.0).because("a certificate")?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots)).because(QUIC)?;
    config.transport_config(transport(run));
    Ok(config)
}
