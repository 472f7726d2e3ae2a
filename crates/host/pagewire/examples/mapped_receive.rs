//! Receiving by mapping: records of a stream as contiguous memory, without a copy, and kept as long as
//! the program likes.
//!
//! ```sh
//! cargo run --package pagewire --example mapped_receive
//! ```
//!
//! The program prints how many records were read in place, with how many system calls, and how many
//! bytes the receiver's stack copied: none.

use std::io::Write;
use std::net::Shutdown;
use std::thread;

use pagewire::{Host, Pair, TcpStream};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Records are whole pages, so that each can be mapped.
const RECORD: usize = 16 * 4096;
const RECORDS: usize = 64;

pub(crate) fn main() -> Result {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;

    let listener = server.listen("10.0.0.1:9000")?;
    let sending = thread::spawn(move || -> std::io::Result<()> {
        let mut stream = client.connect("10.0.0.1:9000")?;
        for n in 0..RECORDS {
            stream.write_all(&[n as u8; RECORD])?;
        }
        stream.shutdown(Shutdown::Write)
    });
    let (stream, _) = listener.accept()?;
    let calls = receive(&stream)?;
    sending.join().map_err(|_| "the sender panicked")??;

    let copied = server.stats().ledger.ours();
    println!("{RECORDS} records of {RECORD} bytes in place, {calls} system calls, {copied} copied");
    assert_eq!(copied, 0);
    Ok(())
}

/// Checks every record; how many system calls the mappings took.
fn receive(stream: &TcpStream) -> Result<u32> {
    let (mut calls, mut previous) = (0, None);
    for n in 0..RECORDS {
        let record = stream.map_wait(RECORD)?;
        let bytes = record.as_slice().ok_or("others may change it")?;
        assert!(bytes.iter().all(|&byte| byte == n as u8));
        calls += record.system_calls();
        // Held while the next is received: memory goes back when the mapping is dropped.
        previous = Some(record);
    }
    drop(previous);
    assert!(stream.recv_chunks(1)?.is_empty(), "the end of the stream");
    Ok(calls)
}
