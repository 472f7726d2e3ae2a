//! axum over the pair link beside axum over the kernel's loopback, in one run: small answers over
//! keep-alive connections, and bodies of a mebibyte. Server and clients have a thread each.
//!
//! `cargo run --release --package pagewire-bench --example axum [ROUNDS [SECONDS]]`
//!
//! Each case is a line: medians of the rounds, the spread in brackets. `task`: hosts that a task of their
//! program's runtime drives; `thread`: hosts with a thread of their own. The CPU is that of the process:
//! both sides, and the driver threads of hosts.

use std::error::Error;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::middleware::map_response;
use axum::routing::get;
use axum::serve::Listener;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use pagewire::memory::CopyReason;
use pagewire::net::{TcpListener, TcpStream};
use pagewire::{Host, HostBuilder, Pair};
use pagewire_axum::by_reference;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{self, Runtime};
use tokio::task::JoinSet;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SERVER: &str = "10.0.0.1:80";
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;
/// The cases: bytes of a body, and connections.
const CASES: [(usize, usize); 4] = [(SMALL, 1), (SMALL, 64), (LARGE, 1), (LARGE, 8)];

/// Requests a second, and microseconds of CPU for each.
#[derive(Clone, Copy)]
struct Rate {
    requests: f64,
    cpu_us: f64,
}

fn app() -> Router {
    let body = |len| {
        let bytes = Bytes::from(vec![7; len]);
        get(async move || Body::from(bytes.clone()))
    };
    Router::new().route(&path(SMALL), body(SMALL)).route(&path(LARGE), body(LARGE))
}

fn path(len: usize) -> String {
    format!("/{len}")
}

fn runtime() -> Result<Runtime> {
    Ok(runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Serves on a thread of its own until the process ends.
fn serve<L, F>(listen: impl FnOnce() -> F + Send + 'static, app: Router) -> Result<SocketAddr>
where
    L: Listener<Addr = SocketAddr>,
    F: Future<Output = Result<L>>,
{
    let (told, ready) = std::sync::mpsc::channel();
    thread::spawn(move || -> Result {
        runtime()?.block_on(async {
            let listener = listen().await?;
            told.send(listener.local_addr()?)?;
            Ok(axum::serve(listener, app).await?)
        })
    });
    Ok(ready.recv()?)
}

/// A client's host in this runtime, and the host of a server with a runtime of its own.
async fn hosts<E>(
    start: impl Fn(HostBuilder) -> std::result::Result<Host, E> + Copy + Send + 'static,
) -> Result<(Host, Host)>
where
    E: Error + Send + Sync + 'static,
{
    let (left, right) = Pair::new()?;
    let (told, ready) = std::sync::mpsc::channel();
    let listen = move || async move {
        let server = start(Host::builder().device(left).address("10.0.0.1/24"))?;
        told.send(server.clone())?;
        Ok(pagewire_axum::Listener(TcpListener::bind_on(&server, SERVER).await?))
    };
    serve(listen, app().layer(map_response(by_reference)))?;
    Ok((start(Host::builder().device(right).address("10.0.0.2/24"))?, ready.recv()?))
}

async fn ask(sender: &mut SendRequest<Empty<Bytes>>, len: usize) -> Result {
    let request = Request::get(path(len)).header("host", "server").body(Empty::new())?;
    let mut answer = sender.send_request(request).await?;
    assert_eq!(answer.status(), StatusCode::OK);
    let mut received = 0;
    while let Some(frame) = answer.body_mut().frame().await {
        received += frame?.data_ref().map_or(0, Bytes::len);
    }
    if received == len { Ok(()) } else { Err("a body of another length".into()) }
}

/// Asks over some connections for a while.
async fn load<T, F>(connect: impl Fn() -> F, case: (usize, usize), last: Duration) -> Result<Rate>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = std::io::Result<T>>,
{
    let (len, connections) = case;
    let mut tasks = JoinSet::new();
    let (warm, cpu) = (Instant::now() + last / 8, Arc::new(std::sync::OnceLock::new()));
    let end = warm + last;
    for _ in 0..connections {
        let (mut sender, connection) = http1::handshake(TokioIo::new(connect().await?)).await?;
        tokio::spawn(connection);
        let cpu = Arc::clone(&cpu);
        tasks.spawn(async move {
            let mut counted = 0_u64;
            loop {
                ask(&mut sender, len).await?;
                match Instant::now() {
                    now if now >= end => return Result::Ok(counted),
                    now if now >= warm => {
                        cpu.get_or_init(cpu_time);
                        counted += 1;
                    }
                    _ => {}
                }
            }
        });
    }
    let mut counted = 0;
    while let Some(done) = tasks.join_next().await {
        counted += done??;
    }
    let spent = cpu_time() - *cpu.get_or_init(cpu_time);
    let (requests, each) = (counted as f64 / last.as_secs_f64(), counted.max(1) as f64);
    Ok(Rate { requests, cpu_us: spent.as_secs_f64() * 1e6 / each })
}

/// CPU time of the process.
fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), spent.tv_nsec as u32)
}

fn spread(rates: &[Rate], value: impl Fn(&Rate) -> f64) -> String {
    let mut values: Vec<f64> = rates.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    let [Some(least), Some(most)] = [values.first(), values.last()] else { return String::new() };
    let median = values.get(values.len() / 2).copied().unwrap_or_default();
    format!("{median:.1} ({least:.1}-{most:.1})")
}

fn main() -> Result {
    let mut args = std::env::args().skip(1);
    let rounds: usize = args.next().map_or(Ok(3), |text| text.parse())?;
    let last = Duration::try_from_secs_f64(args.next().map_or(Ok(1.0), |text| text.parse())?)?;

    let runtime = runtime()?;
    let (task, server) = runtime.block_on(hosts(HostBuilder::start_in_runtime))?;
    let (thread, _) = runtime.block_on(hosts(HostBuilder::start))?;
    let kernel = || async { Ok(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?) };
    let kernel = serve(kernel, app())?;

    println!("{rounds} rounds of {} s, medians (spread)", last.as_secs_f64());
    println!("engine    body bytes  connections  requests/s                    CPU us/request");
    for case in CASES {
        let mut rates = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            let [by_task, by_thread, of_kernel] = &mut rates;
            let connect = || TcpStream::connect_on(&task, SERVER);
            by_task.push(runtime.block_on(load(connect, case, last))?);
            let connect = || TcpStream::connect_on(&thread, SERVER);
            by_thread.push(runtime.block_on(load(connect, case, last))?);
            let connect = || tokio::net::TcpStream::connect(kernel);
            of_kernel.push(runtime.block_on(load(connect, case, last))?);
        }
        for (engine, rates) in ["task", "thread", "kernel"].into_iter().zip(&rates) {
            let (len, connections) = case;
            let (requests, cpu) = (spread(rates, |r| r.requests), spread(rates, |r| r.cpu_us));
            println!("{engine:9} {len:>10}  {connections:>11}  {requests:28}  {cpu}");
        }
    }
    let ledger = server.stats().ledger;
    println!("the server copied {} bytes to send", ledger.get(CopyReason::AppWrite));
    Ok(())
}
