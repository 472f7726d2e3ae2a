//! Zero-copy sends with completions: the stack says when it is done with a buffer, and the program
//! fills the buffer again.
//!
//! ```sh
//! cargo run --package pagewire --example zerocopy_send
//! ```
//!
//! The program prints how many bytes went through how many buffers, and how many were copied: none.

use std::collections::HashMap;
use std::net::Shutdown;
use std::thread;

use bytes::{Bytes, BytesMut};
use pagewire::{Host, Pair, TcpStream};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const BUFFERS: usize = 4;
const LEN: usize = 64 << 10;
const SENDS: usize = 256;

pub(crate) fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;

    let listener = server.listen("10.0.0.1:9000")?;
    let receiving = thread::spawn(move || -> Result<u64> {
        let (stream, _) = listener.accept()?;
        let mut sum = 0;
        loop {
            let chunks = stream.recv_chunks(LEN)?;
            if chunks.is_empty() {
                return Ok(sum);
            }
            chunks.for_each_piece(|piece| sum += piece.iter().map(|&b| u64::from(b)).sum::<u64>());
        }
    });
    let stream = client.connect("10.0.0.1:9000")?;
    let sent = send(&stream)?;
    stream.shutdown(Shutdown::Write)?;
    let received = receiving.join().map_err(|_| "the receiver panicked")??;
    assert_eq!(received, sent, "every byte arrived, and before its buffer was filled again");

    let copied = client.stats().ledger.ours();
    println!("{} bytes through {BUFFERS} buffers of {LEN} bytes, {copied} copied", SENDS * LEN);
    assert_eq!(copied, 0);
    Ok(())
}

/// The sum of all bytes sent.
fn send(stream: &TcpStream) -> Result<u64> {
    stream.set_zerocopy(true)?;
    let mut free = vec![BytesMut::zeroed(LEN); BUFFERS];
    let mut under_way: HashMap<u32, Bytes> = HashMap::new();
    let mut sum = 0;
    for n in 0..SENDS {
        while free.is_empty() {
            let done = stream.wait_completion()?.ok_or("no send is outstanding")?;
            assert!(!done.copied, "the memory itself was sent");
            for id in done.ids {
                let buffer = under_way.remove(&id).ok_or("an unknown send")?;
                // The stack has no reference left, so the memory is ours again.
                free.push(buffer.try_into_mut().map_err(|_| "still in use")?);
            }
        }
        let mut buffer = free.pop().ok_or("no buffer")?;
        buffer.fill(n as u8);
        sum += u64::from(n as u8) * LEN as u64;
        let buffer = buffer.freeze();
        let sent = stream.send_zc(buffer.clone())?;
        under_way.insert(sent.id.ok_or("the stream has not opted in")?, buffer);
    }
    Ok(sum)
}
