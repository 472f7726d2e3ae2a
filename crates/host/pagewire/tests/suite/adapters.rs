//! The adapters, beyond the sockets: which payload goes by reference, and what QUIC asks of datagrams.

use std::convert::Infallible;
use std::future::{IntoFuture, poll_fn};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::middleware::map_response;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use pagewire::Host;
use pagewire::memory::CopyReason;
use pagewire::net::{TcpListener, TcpStream, UdpSocket};
use pagewire_axum::{Peer, by_reference};
use pagewire_hyper::ByReference;
use pagewire_hyper::Connector;
use pagewire_quinn::Socket;
use quinn::AsyncUdpSocket;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{builders, hosts, pattern};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SERVER: &str = "10.0.0.1:80";
/// Bodies of an answer, larger than what a connection holds at once.
const LONG: usize = 8 << 20;
/// Most bytes of one answer's head.
const HEAD: u64 = 256;

/// Payload bytes that the host's program had copied to send them.
fn copied(host: &Host) -> u64 {
    host.stats().ledger.get(CopyReason::AppWrite)
}

/// Serves `page` at `/page` and peers at `/who`.
async fn serve(host: &Host, page: Bytes, refer: bool) -> Result {
    let page = get(async move || Body::from(page.clone()));
    let who = get(async |ConnectInfo(Peer(peer)): ConnectInfo<Peer>| peer.ip().to_string());
    let mut app = Router::new().route("/page", page).route("/who", who);
    if refer {
        app = app.layer(map_response(by_reference));
    }
    let listener = TcpListener::bind_on(host, SERVER).await?;
    tokio::spawn(async move {
        axum::serve(
            pagewire_axum::Listener(listener),
            app.into_make_service_with_connect_info::<Peer>(),
        )
        .await
    });
    Ok(())
}

async fn ask(client: &Client<Connector<Host>, Empty<Bytes>>, uri: &str) -> Result<Bytes> {
    let answer = client.get(uri.parse()?).await?;
    assert_eq!(answer.status(), 200);
    Ok(answer.into_body().collect().await?.to_bytes())
}

#[tokio::test]
async fn bodies_of_axum_leave_by_reference_if_the_layer_is_there_and_by_copy_without() -> Result {
    let page = pattern(LONG);
    for refer in [false, true] {
        let (server, host) = hosts();
        serve(&server, page.clone(), refer).await?;
        let connector = Connector::on(&host).name("Server", "10.0.0.1".parse()?);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        for _ in 0..3 {
            assert!(ask(&client, "http://server/page").await? == page);
        }
        let heads = 3 * HEAD;
        let copied = copied(&server);
        match refer {
            true => assert!(copied <= heads, "{copied} bytes copied, of heads at most {heads}"),
            false => assert!(copied >= 3 * LONG as u64, "{copied}"),
        }
        assert_eq!(ask(&client, "http://server/who").await?, "10.0.0.2");
    }
    Ok(())
}

#[tokio::test]
async fn bodies_of_http_2_leave_by_reference_frame_by_frame() -> Result {
    let (server, host) = hosts();
    let listener = TcpListener::bind_on(&server, SERVER).await?;
    let page = pattern(LONG);
    let body = page.clone();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let answer = service_fn(move |_| {
            let body = ByReference(Full::new(body.clone()));
            async { Ok::<_, Infallible>(hyper::Response::new(body)) }
        });
        let builder = auto::Builder::new(TokioExecutor::new());
        builder.serve_connection(TokioIo::new(stream), answer).await
    });
    let client: Client<_, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build(Connector::on(&host));
    assert!(ask(&client, "http://10.0.0.1/").await? == page);
    // Windows of HTTP/2 end anywhere, so some frames are shorter than what is worth a reference.
    let copied = copied(&server);
    assert!(copied < LONG as u64 / 32, "{copied} bytes copied");
    Ok(())
}

#[tokio::test]
async fn what_is_written_in_parts_arrives_whole_and_noted_memory_may_be_dropped_meanwhile() -> Result
{
    let (server, host) = hosts();
    let listener = TcpListener::bind_on(&server, SERVER).await?;
    let page = pattern(LONG);
    let mut stream = TcpStream::connect_on(&host, SERVER).await?;
    let (mut peer, _) = listener.accept().await?;
    let noted = pagewire::by_reference(page.clone());
    let writer = tokio::spawn(async move {
        // The peer does not read yet: the first call queues a part only.
        let first = stream.write(&noted).await?;
        assert!(first > 0 && first < LONG);
        let rest = noted.slice(first..);
        drop(noted);
        stream.write_all(&rest).await?;
        drop(rest);
        stream.shutdown().await
    });
    let mut received = Vec::new();
    peer.read_to_end(&mut received).await?;
    writer.await??;
    assert!(received == page);
    assert_eq!(copied(&host), 0);
    Ok(())
}

#[tokio::test]
async fn a_server_of_axum_ends_with_its_device() -> Result {
    let (server, right) = builders();
    let server = server.start()?;
    let listener = TcpListener::bind_on(&server, SERVER).await?;
    let (says, why) = tokio::sync::oneshot::channel();
    let failed = server.failed();
    let served = axum::serve(pagewire_axum::Listener(listener), Router::new())
        .with_graceful_shutdown(async move {
            let _ = says.send(failed.await);
        });
    drop(right);
    tokio::time::timeout(Duration::from_secs(30), served.into_future()).await??;
    assert_eq!(why.await?.cause, "the device was closed by its other side, or deleted");
    Ok(())
}

#[tokio::test]
async fn a_server_of_tonic_ends_with_its_host() -> Result {
    use futures_util::StreamExt;

    let (server, host) = hosts();
    let mut incoming = pagewire_tonic::Incoming::new(TcpListener::bind_on(&server, SERVER).await?);
    let _stream = TcpStream::connect_on(&host, SERVER).await?;
    assert!(incoming.next().await.is_some_and(|accepted| accepted.is_ok()));
    server.shutdown(Duration::ZERO);
    // tonic passes over errors: a stream that had nothing else would keep a processor busy.
    assert!(incoming.next().await.is_some_and(|accepted| accepted.is_err()));
    assert!(incoming.next().await.is_none());
    Ok(())
}

#[tokio::test]
async fn connector_says_which_name_it_does_not_know() -> Result {
    let (_server, host) = hosts();
    let client: Client<_, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build(Connector::on(&host));
    let error = client.get("http://elsewhere/".parse()?).await.expect_err("an unknown name");
    let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(why.starts_with("`elsewhere` is no IP address, and the host has no resolver"), "{why}");
    Ok(())
}

async fn receive(socket: &Socket<Host>) -> io::Result<(RecvMeta, Vec<u8>)> {
    let (mut buf, mut meta) = (vec![0; 1 << 16], [RecvMeta::default()]);
    let n = poll_fn(|cx| {
        AsyncUdpSocket::poll_recv(socket, cx, &mut [IoSliceMut::new(&mut buf)], &mut meta)
    })
    .await?;
    assert_eq!(n, 1);
    let [meta] = meta;
    buf.truncate(meta.len);
    Ok((meta, buf))
}

#[tokio::test]
async fn quic_sends_several_datagrams_by_one_call_and_receives_them_as_one_with_their_marks()
-> Result {
    let (server, client) = builders();
    let server = server.address("fd00::1/64").start()?;
    let client = client.address("fd00::2/64").start()?;
    for (ours, theirs) in [("10.0.0.1:443", "10.0.0.2:9"), ("[fd00::1]:443", "[fd00::2]:9")] {
        let (ours, theirs): (SocketAddr, SocketAddr) = (ours.parse()?, theirs.parse()?);
        let to = Socket(UdpSocket::bind_on(&server, ours).await?);
        to.0.set_gro(true)?;
        let from = Socket(UdpSocket::bind_on(&client, theirs).await?);
        let contents = pattern(2_500);
        let transmit = Transmit {
            destination: ours,
            ecn: Some(EcnCodepoint::Ect0),
            contents: &contents,
            segment_size: Some(1_000),
            src_ip: Some(theirs.ip()),
        };
        AsyncUdpSocket::try_send(&from, &transmit)?;
        let mut all = Vec::new();
        while all.len() < contents.len() {
            let (meta, bytes) = receive(&to).await?;
            assert_eq!((meta.addr, meta.dst_ip), (theirs, Some(ours.ip())));
            assert_eq!(meta.ecn, Some(EcnCodepoint::Ect0));
            assert!(meta.stride == 1_000 || bytes.len() == 500, "{meta:?}");
            all.extend(bytes);
        }
        assert!(all == contents);
        let unmarked = Transmit { ecn: None, segment_size: None, src_ip: None, ..transmit };
        AsyncUdpSocket::try_send(&from, &unmarked)?;
        let (meta, bytes) = receive(&to).await?;
        assert_eq!((meta.ecn, meta.stride, bytes.len()), (None, 2_500, 2_500));
        let mut poller = Arc::new(from).create_io_poller();
        poll_fn(|cx| Pin::as_mut(&mut poller).poll_writable(cx)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn quic_sends_more_than_64_kib_of_long_segments_by_one_call() -> Result {
    let (server, client) = hosts();
    let (ours, theirs): (SocketAddr, SocketAddr) = ("10.0.0.1:443".parse()?, "10.0.0.2:9".parse()?);
    let to = Socket(UdpSocket::bind_on(&server, ours).await?);
    let from = Socket(UdpSocket::bind_on(&client, theirs).await?);
    // Segments as quinn makes them for a path with an MTU of 9000.
    let contents = pattern(10 * 8_900);
    let transmit = Transmit {
        destination: ours,
        ecn: None,
        contents: &contents,
        segment_size: Some(8_900),
        src_ip: None,
    };
    AsyncUdpSocket::try_send(&from, &transmit)?;
    let received = async {
        let mut all = Vec::new();
        while all.len() < contents.len() {
            all.extend(receive(&to).await?.1);
        }
        io::Result::Ok(all)
    };
    let all = tokio::time::timeout(Duration::from_secs(20), received).await;
    assert!(all.expect("all of it arrives")? == contents);
    Ok(())
}
