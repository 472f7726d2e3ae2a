//! The traits of futures-io, and an executor of a dozen lines: nothing here needs tokio's runtime.
//!
//! ```sh
//! cargo run --package pagewire --features tokio --example futures_io
//! ```
//!
//! The program prints how many bytes came back.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures_util::{AsyncReadExt, AsyncWriteExt, future, io};
use pagewire::net::Compat;
use pagewire::net::{TcpListener, TcpStream};
use pagewire::{Host, Pair};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LEN: usize = 200_000;

pub(crate) fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    block_on(async {
        let listener = TcpListener::bind_on(&server, "10.0.0.1:7").await?;
        let (echoed, came_back) = future::try_join(echo(&listener), ask(&client)).await?;
        println!("{came_back} bytes came back");
        assert_eq!(echoed, came_back as u64);
        Ok(())
    })
}

async fn echo(listener: &TcpListener) -> Result<u64> {
    let (stream, _) = listener.accept().await?;
    let (read, mut write) = Compat::new(stream).split();
    let copied = io::copy(read, &mut write).await?;
    write.close().await?;
    Ok(copied)
}

async fn ask(client: &Host) -> Result<usize> {
    let mut stream = Compat::new(TcpStream::connect_on(client, "10.0.0.1:7").await?);
    stream.write_all(&[7; LEN]).await?;
    stream.close().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    assert_eq!(answer, [7; LEN]);
    Ok(answer.len())
}

/// Runs a task on this thread; any executor will do.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
