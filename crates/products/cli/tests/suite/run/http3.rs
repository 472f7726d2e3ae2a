//! HTTP/3 under rules by name: a browser, and a server that has no other protocol.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use h3::server::Connection;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::runtime::Builder;

use super::names::{certify, events, under};
use crate::lab::{Lab, V4, run, text};

/// Serves "by HTTP/3" at every path until the test ends.
fn serve(lab: &Lab) {
    let read = |name: &str| std::fs::read(lab.path(name)).expect("a file");
    let certificate = CertificateDer::from_pem_slice(&read("ca.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(&read("key.pem")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider);
    let tls = tls.with_protocol_versions(&[&rustls::version::TLS13]).expect("TLS 1.3");
    let mut tls = tls
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate and its key");
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let config = QuicServerConfig::try_from(tls).expect("suites of QUIC");
    let config = quinn::ServerConfig::with_crypto(Arc::new(config));
    let address: SocketAddr = format!("{V4}:443").parse().expect("an address");
    let socket = lab.netns.inside(|| UdpSocket::bind(address).expect("a socket"));
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let tokio = Arc::new(quinn::TokioRuntime);
            let endpoint = quinn::Endpoint::new(Default::default(), Some(config), socket, tokio);
            let endpoint = endpoint.expect("an endpoint");
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(async move { answer(incoming.await.ok()?).await.ok() });
            }
        });
    });
}

async fn answer(connection: quinn::Connection) -> Result<(), Box<dyn std::error::Error>> {
    let mut requests = Connection::new(h3_quinn::Connection::new(connection)).await?;
    while let Some(request) = requests.accept().await? {
        let (_, mut stream) = request.resolve_request().await?;
        let head = http::Response::builder().header("content-type", "text/plain").body(())?;
        stream.send_response(head).await?;
        stream.send_data(bytes::Bytes::from_static(b"by HTTP/3")).await?;
        stream.finish().await?;
    }
    Ok(())
}

#[test]
fn a_browser_reaches_a_permitted_name_by_http_3_and_no_other_at_its_address() {
    let Some(lab) = Lab::new(&["chromium", "openssl"]) else { return };
    certify(&lab);
    serve(&lab);
    // The browser takes the certificate by its key's hash: it has no option for a file of authorities.
    let hash = "openssl x509 -in ca.pem -pubkey -noout | openssl pkey -pubin -outform der \
                | openssl dgst -sha256 -binary | openssl base64";
    let hash = run(lab.command("sh").args(["-c", hash]));
    let browser = |name: &str| {
        format!(
            "getent hosts good.example >/dev/null; exec timeout 60 chromium --headless --no-sandbox --disable-gpu \
             --disable-dev-shm-usage --user-data-dir=profile-{name} --enable-quic \
             --origin-to-force-quic-on={name}:443 --ignore-certificate-errors-spki-list={} \
             --dump-dom https://{name}/file",
            hash.trim()
        )
    };
    // Browsers send encrypted ClientHellos, or what looks like them.
    let page = |rule: &str, name: &str| {
        let output = lab.run(&under(&[rule]), &["sh", "-c", &browser(name)]).output();
        text(&output.expect("it runs").stdout)
    };
    let is_shown = |rule: &str, name: &str| page(rule, name).contains("by HTTP/3");
    assert!(is_shown("ech:good.example", "good.example"));
    for (rule, name, by) in
        [("ech:good.example", "evil.example", "ech"), ("good.example", "good.example", "ech")]
    {
        assert!(!is_shown(rule, name), "{rule} {name}");
        let shown = events(&lab, "mismatch");
        let is_told = |line: &serde_json::Value| line["shown"] == name && line["by"] == by;
        assert!(shown.iter().any(is_told), "{rule} {name}: {shown:?}");
    }
    // The rule alone kept the browser from this name.
    assert!(is_shown("ech:evil.example", "evil.example"));
}
