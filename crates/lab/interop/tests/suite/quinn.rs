//! quinn: QUIC over simulated datagrams.

use std::sync::Arc;
use std::time::Duration;

use pagewire_quinn::endpoint;
use pagewire_simulation::HostHandle;
use pagewire_simulation::{Link, Result, Sim};
use quinn::{ClientConfig, EndpointConfig, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["server".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    (made.cert.der().clone(), key.into())
}

/// Endpoints draw what they need at random from the simulation.
fn settings() -> Result<EndpointConfig> {
    let mut seed = [0; 32];
    let mut random = pagewire_simulation::rng::rng()?;
    seed.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next_u64().to_le_bytes()));
    let mut config = EndpointConfig::default();
    config.rng_seed(Some(seed));
    Ok(config)
}

/// Echoes streams.
async fn server(config: ServerConfig) -> Result {
    let endpoint = endpoint::<HostHandle>("0.0.0.0:443", settings()?, Some(config)).await?;
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await?;
            while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                let all = recv.read_to_end(1 << 20).await?;
                send.write_all(&all).await?;
                send.finish()?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
    }
    Ok(())
}

async fn client(config: ClientConfig) -> Result {
    let mut endpoint = endpoint::<HostHandle>("0.0.0.0:0", settings()?, None).await?;
    endpoint.set_default_client_config(config);
    let mut found = pagewire_simulation::net::lookup_host("server:443").await?;
    let server = found.next().ok_or("no address")?;
    let connection = endpoint.connect(server, "server")?.await?;
    let echo = async |len: usize| -> Result {
        let (mut send, mut recv) = connection.open_bi().await?;
        send.write_all(&vec![3; len]).await?;
        send.finish()?;
        assert_eq!(recv.read_to_end(1 << 20).await?, vec![3; len]);
        Ok(())
    };
    tokio::try_join!(echo(1), echo(1_000), echo(100_000))?;
    connection.close(0_u32.into(), b"done");
    endpoint.wait_idle().await;
    Ok(())
}

fn run(seed: u64, link: Link) {
    let (certificate, key) = certificate();
    let server_config = ServerConfig::with_single_cert(vec![certificate.clone()], key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client_config = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
    let mut sim = Sim::builder().seed(seed).link(link).digest_payload(false).build();
    sim.host("server", move || server(server_config.clone()));
    sim.client("client", client(client_config));
    sim.run().unwrap();
}

#[test]
fn streams_pass_over_a_network_that_loses_packets() {
    for seed in 0..3 {
        run(seed, Link::new().latency(Duration::from_millis(20)).loss(0.03));
    }
}

#[test]
fn the_path_may_carry_less_than_the_device() {
    run(1, Link::new().latency(Duration::from_millis(5)).black_hole(1_300));
}
