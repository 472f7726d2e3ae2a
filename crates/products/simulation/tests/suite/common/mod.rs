//! The kit of these tests: programs that several run, and checks of failures.

#![allow(dead_code, unreachable_pub)]

use std::future::Future;
use std::process::{Command, Output};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use pagewire_simulation::net::{TcpListener, TcpStream, UdpSocket};
use pagewire_simulation::{Failure, FailureKind, Link, Result, Sim, rng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

pub const MS: Duration = Duration::from_millis(1);
pub const S: Duration = Duration::from_secs(1);

/// Fails a test that hangs, by its name; the simulation is on a thread of its own.
#[track_caller]
pub fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        test();
        let _ = done.send(());
    });
    let thread = thread.expect("a thread");
    if is_done.recv_timeout(Duration::from_secs(40)) == Err(RecvTimeoutError::Timeout) {
        panic!("it hangs");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Lets this thread sleep, as programs should not.
pub fn nap(ms: u64) {
    use std::thread as of_std;
    of_std::sleep(Duration::from_millis(ms));
}

/// A program that does nothing for a while.
pub async fn asleep(time: Duration) -> Result {
    sleep(time).await;
    Ok(())
}

/// The failure of a scenario.
pub fn fails(scenario: impl FnOnce(&mut Sim) -> Result + Send) -> Failure {
    Sim::builder().seed(3).run(scenario).expect_err("a failure")
}

/// The failure of a scenario of one client.
pub fn client_fails<F>(client: impl FnOnce() -> F + Send) -> Failure
where
    F: Future<Output = Result> + 'static,
{
    fails(|sim| {
        sim.client("client", client());
        Ok(())
    })
}

/// The failure is of this kind, and says these words and how to see it again.
#[track_caller]
pub fn says(failure: &Failure, kind: FailureKind, words: &[&str]) {
    let text = failure.to_string();
    assert_eq!(failure.kind, kind, "{text}");
    let seed = failure.seed;
    let again = format!("PAGEWIRE_SEED={seed} cargo test -p pagewire-simulation --test suite");
    for word in words.iter().copied().chain([&*again]) {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

/// Runs a test in a process of its own.
pub fn in_a_child(test: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", test]).args(arguments).envs(variables.iter().copied());
    child.output().expect("a child")
}

/// Checks that a child succeeded. Returns its output.
#[track_caller]
pub fn passes(child: &Output) -> String {
    let said = [&child.stdout[..], &child.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(child.status.success(), "{said}");
    said
}

/// A host that sends back what it gets, on TCP port 7.
pub fn echo_server(sim: &mut Sim, name: &str) {
    sim.host(name, || async {
        let listener = TcpListener::bind("0.0.0.0:7").await?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(echo(stream));
        }
    });
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            n => stream.write_all(&buffer[..n]).await?,
        }
    }
}

/// A host that sends back datagrams, on UDP port 7.
pub fn udp_echo_server(sim: &mut Sim, name: &str) {
    sim.host(name, || async {
        let socket = UdpSocket::bind("0.0.0.0:7").await?;
        let mut buffer = vec![0; 2048];
        loop {
            let (n, from) = socket.recv_from(&mut buffer).await?;
            socket.send_to(&buffer[..n], from).await?;
        }
    });
}

/// Sends `bytes` bytes to an echo server, and checks what comes back.
pub async fn ask(server: &str, bytes: usize) -> Result {
    let mut stream = TcpStream::connect((server, 7)).await?;
    ask_on(&mut stream, bytes).await
}

pub async fn ask_on(stream: &mut TcpStream, bytes: usize) -> Result {
    let sent: Vec<u8> = (0..bytes).map(|n| ((n * 31) >> 3) as u8).collect();
    let mut got = vec![0; bytes];
    let (mut read, mut write) = stream.split();
    let (wrote, was_read) = tokio::join!(write.write_all(&sent), read.read_exact(&mut got));
    wrote?;
    was_read?;
    if got == sent { Ok(()) } else { Err("the echo is not what was sent".into()) }
}

/// TCP and UDP, over links that lose, delay and reorder, with a crash and a partition on the way.
pub fn mixed(sim: &mut Sim) -> Result {
    echo_server(sim, "tcp");
    udp_echo_server(sim, "udp");
    for n in 0..3 {
        sim.client(&format!("tcp client {n}"), async move {
            let mut random = rng::rng()?;
            for _ in 0..3 {
                sleep(Duration::from_millis(random.below(50))).await;
                let bytes = random.below(20_000) as usize + 1;
                while timeout(Duration::from_secs(20), ask("tcp", bytes)).await.is_err() {}
            }
            Ok(())
        });
    }
    sim.client("udp client", async {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        socket.connect("udp:7").await?;
        let mut answers = 0;
        for n in 0..40_u8 {
            socket.send(&[n; 100]).await?;
            let mut buffer = [0; 200];
            answers += u32::from(timeout(30 * MS, socket.recv(&mut buffer)).await.is_ok());
        }
        assert!(answers > 0);
        Ok(())
    });
    let control = sim.control();
    let bad = Link::new().latency(3 * MS).jitter(MS).loss(0.05).reorder(0.02).duplicate(0.01);
    control.link(pagewire_simulation::all(), ["tcp", "udp"], bad);
    sim.at(40 * MS, |control| control.partition("tcp", "tcp client 0"));
    sim.at(400 * MS, |control| control.repair("tcp", "tcp client 0"));
    sim.at(90 * MS, |control| control.bounce("udp"));
    Ok(())
}
