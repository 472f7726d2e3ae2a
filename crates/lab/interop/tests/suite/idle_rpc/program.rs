//! The program, compiled once for each simulation.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::net::{TcpListener, TcpStream};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Bytes of an answer.
const ANSWER: usize = 300_000;
/// Longest time of a call.
const DEADLINE: Duration = Duration::from_millis(250);

/// Answers each byte with 300 KB.
pub(crate) async fn server() -> Outcome {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let answer = vec![7; ANSWER];
            while stream.read_u8().await.is_ok() {
                if stream.write_all(&answer).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// Calls often, rests for 30 s, and calls again.
pub(crate) async fn client() -> Outcome {
    let mut stream = TcpStream::connect("server:80").await?;
    // The first calls have no deadline: the window grows.
    for _ in 0..8 {
        call(&mut stream).await?;
    }
    for _ in 0..3 {
        timeout(DEADLINE, call(&mut stream)).await.map_err(|_| "late while busy")??;
    }
    sleep(Duration::from_secs(30)).await;
    timeout(DEADLINE, call(&mut stream)).await.map_err(|_| "late after a rest")??;
    Ok(())
}

async fn call(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_u8(1).await?;
    stream.read_exact(&mut vec![0; ANSWER]).await?;
    Ok(())
}
