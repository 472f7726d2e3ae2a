//! Hosts that a task of the program's runtime drives.

use std::io::{Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagewire::device::{Fault, FaultConfig, PairConfig};
use pagewire::net::{TcpListener, TcpStream};
use pagewire::{Host, Link, Pair, StartError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};

use crate::support::{builders, builders_on, pattern};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SERVER: &str = "10.0.0.1:9000";
/// More than two connections hold together.
const MUCH: usize = 8 << 20;

/// Names of threads are those of the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads of this process that drive hosts.
fn drivers() -> Result<usize> {
    let mut count = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        // A thread may end meanwhile.
        let name = std::fs::read_to_string(thread?.path().join("comm")).unwrap_or_default();
        count += usize::from(name.trim_end() == "pagewire");
    }
    Ok(count)
}

fn one_thread() -> Result<Runtime> {
    Ok(RuntimeBuilder::new_current_thread().enable_all().build()?)
}

fn of_workers(workers: usize) -> Result<Runtime> {
    Ok(RuntimeBuilder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}

fn in_runtime() -> Result<(Host, Host)> {
    let (server, client) = builders();
    Ok((server.start_in_runtime()?, client.start_in_runtime()?))
}

/// Sends `data` to an echo over both hosts, and checks what comes back.
async fn echo(server: &Host, client: &Host, data: &[u8]) -> Result {
    let listener = TcpListener::bind_on(server, SERVER).await?;
    let echo = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let (mut reads, mut writes) = stream.into_split();
        tokio::io::copy(&mut reads, &mut writes).await?;
        writes.shutdown().await
    });
    let stream = TcpStream::connect_on(client, SERVER).await?;
    let (mut reads, mut writes) = stream.into_split();
    let (mut back, sent) = (Vec::new(), data.to_vec());
    let sends = tokio::spawn(async move {
        writes.write_all(&sent).await?;
        writes.shutdown().await
    });
    reads.read_to_end(&mut back).await?;
    assert!(back == data, "{} bytes came back", back.len());
    sends.await??;
    echo.await??;
    Ok(())
}

#[test]
fn a_runtime_of_one_thread_or_several_drives_hosts_without_another_thread() -> Result {
    let _alone = alone();
    for runtime in [one_thread()?, of_workers(2)?] {
        runtime.block_on(async {
            let (server, client) = in_runtime()?;
            echo(&server, &client, &pattern(MUCH)).await?;
            assert_eq!(drivers()?, 0);
            Result::Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_host_that_does_not_poll_is_woken_for_frames_and_timers() -> Result {
    let _alone = alone();
    one_thread()?.block_on(async {
        let (left, right) = Pair::with(PairConfig { mtu: 1500, ..Default::default() })?;
        // Lost segments are only sent again when a timer fires.
        let config: FaultConfig = "loss=10%".parse()?;
        let (server, client) = builders_on((Fault::new(left, config), right));
        let server = server.spin(Duration::ZERO).start_in_runtime()?;
        let client = client.spin(Duration::ZERO).start_in_runtime()?;
        echo(&server, &client, &pattern(256 << 10)).await?;
        assert!(server.stats().counters.tcp_retransmits > 0);
        Ok(())
    })
}

#[test]
fn blocking_calls_on_the_only_thread_drive_the_host_themselves() -> Result {
    let _alone = alone();
    one_thread()?.block_on(async {
        let (server, client) = builders();
        // The peer has a thread of its own.
        let (server, client) = (server.start()?, client.start_in_runtime()?);
        let listener = server.listen(SERVER)?;
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            let mut data = [0; 5];
            stream.read_exact(&mut data)?;
            stream.write_all(&data)
        });
        let mut stream = client.connect(SERVER)?;
        stream.write_all(b"hello")?;
        let mut back = [0; 5];
        stream.read_exact(&mut back)?;
        assert_eq!(&back, b"hello");
        echo.join().expect("no panic")?;
        // The task goes on where the calls left off.
        drop(stream);
        self::echo(&client, &server, b"hello").await.expect_err("the address is the other host's");
        let listener = TcpListener::bind_on(&client, "10.0.0.2:9000").await?;
        let connects = std::thread::spawn(move || server.connect("10.0.0.2:9000").map(drop));
        listener.accept().await?;
        connects.join().expect("no panic")?;
        Ok(())
    })
}

#[test]
fn blocking_calls_on_other_threads_wait_for_the_runtime() -> Result {
    let _alone = alone();
    for runtime in [one_thread()?, of_workers(2)?] {
        runtime.block_on(async {
            let (server, client) = in_runtime()?;
            let listener = TcpListener::bind_on(&server, SERVER).await?;
            let asks = tokio::task::spawn_blocking(move || {
                let mut stream = client.connect(SERVER)?;
                stream.write_all(b"hello")?;
                let mut back = Vec::new();
                stream.read_to_end(&mut back)?;
                std::io::Result::Ok(back)
            });
            let (mut stream, _) = listener.accept().await?;
            let mut data = [0; 5];
            stream.read_exact(&mut data).await?;
            stream.write_all(&data).await?;
            drop(stream);
            assert_eq!(asks.await??, b"hello");
            Result::Ok(())
        })?;
    }
    Ok(())
}

/// A peer with a thread of its own, which sends to all that connect, on request.
fn sender(server: Host, connections: usize) -> Result<std::sync::mpsc::Sender<()>> {
    let (says, hears) = std::sync::mpsc::channel();
    let listener = server.listen(SERVER)?;
    std::thread::spawn(move || {
        let streams = (0..connections).map(|_| Ok(listener.accept()?.0));
        let streams: std::io::Result<Vec<_>> = streams.collect();
        hears.recv().expect("it is told");
        for mut stream in streams? {
            stream.write_all(b"hello")?;
        }
        // The host stays until the test is over.
        let _ = hears.recv();
        drop(server);
        std::io::Result::Ok(())
    });
    Ok(says)
}

/// Blocking reads in `workers` tasks of a runtime with as many threads, which the host's task needs, too.
fn blocked_readers(workers: usize) -> Result {
    let _alone = alone();
    let runtime = of_workers(workers)?;
    let (server, client) = builders();
    let tells = sender(server.start()?, workers)?;
    let (says, hears) = std::sync::mpsc::channel();
    let client = runtime.block_on(async { client.start_in_runtime() })?;
    let streams =
        (0..workers).map(|_| client.connect(SERVER)).collect::<std::io::Result<Vec<_>>>()?;
    let begun = std::sync::Arc::new(std::sync::Barrier::new(workers + 1));
    for mut stream in streams {
        let (says, begun) = (says.clone(), std::sync::Arc::clone(&begun));
        runtime.spawn(async move {
            begun.wait();
            let mut data = [0; 5];
            let read = stream.read_exact(&mut data).map(|()| data);
            says.send(read).expect("the test listens");
        });
    }
    begun.wait();
    // The readers are about to wait: the runtime has no thread left.
    tells.send(())?;
    let sent = std::time::Instant::now();
    let reads = (0..workers).map(|_| hears.recv_timeout(Duration::from_secs(20)));
    let reads: Vec<_> = reads.collect();
    let took = sent.elapsed();
    // Does not wait for readers that never end.
    runtime.shutdown_background();
    for read in reads {
        assert_eq!(&read.expect("the bytes arrive")?, b"hello");
    }
    assert!(took < Duration::from_secs(1), "{took:?}");
    drop(tells);
    Ok(())
}

#[test]
fn a_blocking_read_on_the_only_worker_gets_what_comes_later() -> Result {
    blocked_readers(1)
}

#[test]
fn blocking_reads_on_all_workers_get_what_comes_later() -> Result {
    blocked_readers(3)
}

#[test]
fn a_host_is_shut_down_and_drained_on_the_only_worker_of_its_runtime() -> Result {
    let _alone = alone();
    let runtime = of_workers(1)?;
    let (server, client) = builders();
    let server = server.start()?;
    let listener = server.listen(SERVER)?;
    let ends = async move {
        let client = client.start_in_runtime()?;
        let mut stream = client.connect(SERVER)?;
        stream.write_all(b"the last words")?;
        assert!(client.drain(Duration::from_secs(60)));
        let report = client.shutdown(Duration::from_secs(60));
        assert!(report.is_clean() && report.connections == 1, "{report:?}");
        Result::Ok(())
    };
    let begun = std::time::Instant::now();
    runtime.block_on(async { tokio::spawn(ends).await })??;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let mut words = String::new();
    listener.accept()?.0.read_to_string(&mut words)?;
    assert_eq!(words, "the last words");
    Ok(())
}

#[test]
fn what_is_queued_when_the_runtime_ends_is_still_delivered() -> Result {
    let _alone = alone();
    for runtime in [one_thread()?, of_workers(2)?] {
        let (server, client) = builders();
        let server = server.start()?;
        let listener = server.listen(SERVER)?;
        let (client, stream, queued) = runtime.block_on(async {
            let client = client.start_in_runtime()?;
            let stream = TcpStream::connect_on(&client, SERVER).await?;
            // Nobody reads yet: what the peer does not take waits here.
            let mut queued = 0;
            while let Ok(n) = stream.try_write(&[7; 4096]) {
                queued += n;
            }
            Result::Ok((client, stream.to_blocking(), queued))
        })?;
        drop(runtime);
        let (mut peer, _) = listener.accept()?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut all = Vec::new();
        peer.read_to_end(&mut all)?;
        assert!(all.len() == queued, "{} bytes", all.len());
        drop((stream, client));
    }
    Ok(())
}

#[test]
fn a_host_is_shut_down_in_its_runtime_and_by_the_drop_of_its_last_handle() -> Result {
    let _alone = alone();
    for runtime in [one_thread()?, of_workers(2)?] {
        runtime.block_on(async {
            for drops in [false, true] {
                let (server, client) = builders();
                let (server, client) = (server.start()?, client.start_in_runtime()?);
                let listener = TcpListener::bind_on(&server, SERVER).await?;
                let mut stream = TcpStream::connect_on(&client, SERVER).await?;
                stream.write_all(b"the last words").await?;
                if drops {
                    drop((stream, client));
                } else {
                    let report = client.shutdown(Duration::from_secs(5));
                    assert!(report.is_clean() && report.connections == 1, "{report:?}");
                }
                let (mut peer, _) = listener.accept().await?;
                let mut words = String::new();
                peer.read_to_string(&mut words).await?;
                assert_eq!(words, "the last words");
            }
            Result::Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_link_that_is_added_later_wakes_the_task() -> Result {
    let _alone = alone();
    one_thread()?.block_on(async {
        let (server, client) = builders();
        let server = server.spin(Duration::ZERO).start_in_runtime()?;
        let _first = client.start_in_runtime()?;
        // The task sleeps on the first device.
        tokio::task::yield_now().await;
        let (left, right) = Pair::new()?;
        server.add_link(Link::new(left).address("10.1.0.1/24"))?;
        let other = Host::builder().device(right).address("10.1.0.2/24");
        let other = other.spin(Duration::ZERO).start_in_runtime()?;
        let listener = TcpListener::bind_on(&server, "10.1.0.1:9000").await?;
        let (accepted, connected) =
            tokio::join!(listener.accept(), TcpStream::connect_on(&other, "10.1.0.1:9000"));
        accepted?;
        connected?;
        Ok(())
    })
}

#[test]
fn without_a_runtime_or_its_io_the_host_does_not_start() -> Result {
    let (server, client) = builders();
    let refused = server.start_in_runtime();
    assert!(matches!(refused, Err(StartError::NoRuntime)), "{refused:?}");
    let silent = RuntimeBuilder::new_current_thread().build()?;
    let refused = silent.block_on(async { client.start_in_runtime() });
    assert!(matches!(refused, Err(StartError::NoRuntime)), "{refused:?}");
    Ok(())
}
