//! The program, compiled once for each simulation.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

use super::net::{TcpListener, TcpStream};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Answers after 100 ms of work.
pub(crate) async fn server() -> Outcome {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut request = [0; 4];
            while stream.read_exact(&mut request).await.is_ok() {
                sleep(Duration::from_millis(100)).await;
                if stream.write_all(b"pong").await.is_err() {
                    break;
                }
            }
        });
    }
}

/// Asks until there is an answer. `patience` is the read timeout; `None`: the bug.
pub(crate) async fn client(patience: Option<Duration>) -> Outcome {
    while ask(patience).await.is_err() {
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn ask(patience: Option<Duration>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect("server:80").await?;
    stream.write_all(b"ping").await?;
    let mut answer = [0; 4];
    let read = stream.read_exact(&mut answer);
    match patience {
        None => read.await?,
        Some(patience) => tokio::time::timeout(patience, read).await??,
    };
    Ok(())
}
