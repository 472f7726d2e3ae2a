//! A server on rings alone: received data goes to files, from the memory in which it landed.
//!
//! ```sh
//! cargo run --package pagewire --features rings --example ring_to_file     # a client of its own
//! sudo target/debug/examples/ring_to_file pw0 /tmp                         # on a tap
//! nc -N 10.77.0.2 9000 < some.file                                         # from the kernel's side
//! ```
//!
//! Begin at `serve`: the rings with their copy group, a region that a queue of the device receives
//! into, a rule that steers the port there; then `receive`, the loop of one connection. For each
//! file it prints how many bytes were copied and how many were written from where they had landed.

use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use pagewire::device::{Queues, Rule};
use pagewire::memory::Region;
use pagewire::rings::{AsyncRings, EngineConfig, QueueConfig, RingStream};
use pagewire::{Host, Pair, Tap};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) const PORT: u16 = 9000;
const REGION: usize = 16 << 20;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [tap, dir] => {
            let tap = Tap::builder(tap).host_address("10.77.0.1/24").open()?;
            let host = Host::builder().device(tap).address("10.77.0.2/24").start()?;
            // A queue of the tap's own: flows of the rule arrive there, all others at the first.
            serve(&host, 1, Path::new(dir), usize::MAX)
        }
        [] => demonstrate(),
        _ => Err("give a tap and a directory, or nothing".into()),
    }
}

/// A client in this process sends a megabyte, twice.
pub(crate) fn demonstrate() -> Result<()> {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(Queues::new(left, 2)).address("10.77.0.2/24").start()?;
    let client = Host::builder().device(right).address("10.77.0.1/24").start()?;
    let dir = std::env::temp_dir().join(format!("pagewire-rings-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let data: Vec<u8> = (0..1 << 20).map(|i: u32| (i >> 8) as u8).collect();
    let sending = {
        let data = data.clone();
        std::thread::spawn(move || -> std::io::Result<()> {
            for _ in 0..2 {
                let stream = loop {
                    // The server may not listen yet.
                    match client.connect(("10.77.0.2", PORT)) {
                        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {}
                        stream => break stream?,
                    }
                };
                stream.send(data.clone())?;
                stream.shutdown(std::net::Shutdown::Write)?;
            }
            client.drain(std::time::Duration::from_secs(5));
            Ok(())
        })
    };
    serve(&server, 1, &dir, 2)?;
    sending.join().map_err(|_| "the client died")??;
    for n in 0..2 {
        if std::fs::read(dir.join(format!("received-{n}")))? != data {
            return Err(format!("file {n} is not what was sent").into());
        }
    }
    println!("both files are what was sent");
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// Receives `files` files.
pub(crate) fn serve(host: &Host, queue: usize, dir: &Path, files: usize) -> Result<()> {
    let copy = QueueConfig::new(Region::memfd("copy", REGION)?);
    let rings = host.rings(EngineConfig::new(copy))?.into_async();
    let region = QueueConfig::new(Region::memfd("region", REGION)?);
    let group = rings.register(queue, region, &[Rule::tcp_port(PORT)])?;
    block_on(async {
        let listener = rings.listen(("10.77.0.2", PORT))?;
        for n in 0..files {
            let stream = listener.accept().await?;
            receive(&rings, &stream, group, &dir.join(format!("received-{n}"))).await?;
        }
        Ok(())
    })
}

async fn receive(rings: &AsyncRings, stream: &RingStream, group: u16, path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    let before = rings.counters();
    loop {
        let received = stream.receive(group, 1 << 20).await?;
        if received.buffers.is_empty() {
            break;
        }
        for buffer in received.buffers {
            // The region is private, so its bytes can be lent to the system as they are.
            file.write_all(buffer.as_slice().ok_or("shared memory")?)?;
            // Dropped here, the buffer goes back to the device.
        }
    }
    let now = rings.counters();
    let (zc, copied) = (now.zc_bytes - before.zc_bytes, now.copy_bytes - before.copy_bytes);
    println!("{}: copy bytes: {copied}, ZC bytes: {zc}", path.display());
    Ok(())
}

/// Runs a task on this thread; any executor will do.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
