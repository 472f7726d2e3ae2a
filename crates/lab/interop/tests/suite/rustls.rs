//! rustls by tokio-rustls: no adapter is needed. Certificates are checked at the simulated time.

use std::sync::Arc;
use std::time::Duration;

use pagewire_simulation::net::{TcpListener, TcpStream};
use pagewire_simulation::{Link, Result, Sim};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The host's clock.
#[derive(Debug)]
struct SimulatedTime;

impl TimeProvider for SimulatedTime {
    fn current_time(&self) -> Option<UnixTime> {
        let since = pagewire_simulation::time::now().duration_since(std::time::UNIX_EPOCH);
        since.ok().map(UnixTime::since_unix_epoch)
    }
}

/// A certificate for `server`, valid in 2026: the year in which simulations begin.
fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut params = CertificateParams::new(["server".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2026, 1, 1);
    params.not_after = date_time_ymd(2026, 2, 1);
    let certificate = params.self_signed(&key).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    (certificate.der().clone(), key.into())
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn server_config(
    (certificate, key): &(CertificateDer<'static>, PrivateKeyDer<'static>),
) -> Arc<ServerConfig> {
    let config = ServerConfig::builder_with_details(provider(), Arc::new(SimulatedTime))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.clone_key());
    Arc::new(config.unwrap())
}

fn client_config(certificate: &CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let config = ClientConfig::builder_with_details(provider(), Arc::new(SimulatedTime))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

async fn server(config: Arc<ServerConfig>) -> Result {
    let listener = TcpListener::bind("0.0.0.0:443").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let acceptor = TlsAcceptor::from(Arc::clone(&config));
        tokio::spawn(async move {
            let Ok(mut tls) = acceptor.accept(stream).await else { return };
            let mut all = Vec::new();
            if tls.read_to_end(&mut all).await.is_ok() {
                let _ = tls.write_all(&all).await;
                let _ = tls.shutdown().await;
            }
        });
    }
}

async fn client(config: Arc<ClientConfig>) -> Result {
    let stream = TcpStream::connect("server:443").await?;
    let name = ServerName::try_from("server")?;
    let mut tls = TlsConnector::from(config).connect(name, stream).await?;
    let data = vec![9; 200_000];
    tls.write_all(&data).await?;
    tls.shutdown().await?;
    let mut all = Vec::new();
    tls.read_to_end(&mut all).await?;
    assert_eq!(all, data);
    Ok(())
}

#[test]
fn a_session_passes_over_a_network_that_loses_packets() {
    let keys = certificate();
    for seed in 0..5 {
        let link = Link::new().latency(Duration::from_millis(20)).loss(0.05);
        // The keys of a session are random, and so is what is encrypted with them.
        let mut sim = Sim::builder().seed(seed).link(link).digest_payload(false).build();
        let config = server_config(&keys);
        sim.host("server", move || server(Arc::clone(&config)));
        sim.client("client", client(client_config(&keys.0)));
        sim.run().unwrap();
    }
}
