//! A proxy between two networks: whole connections are forwarded by reference, without a thread and
//! without a copy.
//!
//! ```sh
//! cargo run --package pagewire --example proxy
//! ```
//!
//! ```text
//!   client 10.0.0.2 ----- 10.0.0.1 [proxy] 10.0.1.1 ----- 10.0.1.2 server
//! ```
//!
//! The program prints how many connections and bytes were forwarded, and how many bytes the proxy's
//! stack copied: the requests of four bytes, for which a reference would cost more.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use pagewire::proxy::Proxy;
use pagewire::{Host, Link, Pair};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CONNECTIONS: u64 = 8;
const LEN: usize = 1 << 20;

pub(crate) fn main() -> Result {
    let (near, left) = Pair::new()?;
    let (right, far) = Pair::new()?;
    let client = Host::builder().device(near).address("10.0.0.2/24").start()?;
    let middle = Host::builder().device(left).address("10.0.0.1/24");
    let middle = middle.link(Link::new(right).address("10.0.1.1/24")).start()?;
    let server = Host::builder().device(far).address("10.0.1.2/24").start()?;

    let proxy = Proxy::new(&middle, Default::default());
    proxy.listen("10.0.0.1:80", 128, "10.0.1.2:8000".parse()?)?;

    let listener = server.listen("10.0.1.2:8000")?;
    let serving = thread::spawn(move || -> std::io::Result<()> {
        for _ in 0..CONNECTIONS {
            let (mut stream, peer) = listener.accept()?;
            assert_eq!(peer.ip().to_string(), "10.0.1.1", "the server sees the proxy");
            stream.read_exact(&mut [0; 4])?;
            stream.send(vec![7; LEN])?;
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    });
    for _ in 0..CONNECTIONS {
        let mut stream = client.connect("10.0.0.1:80")?;
        stream.write_all(b"data")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        assert!(answer == vec![7; LEN]);
    }
    serving.join().map_err(|_| "the server panicked")??;

    let (counts, copied) = (proxy.counters(), middle.stats().ledger.ours());
    let bytes = counts.bytes_up + counts.bytes_down;
    println!("{CONNECTIONS} connections, {bytes} bytes forwarded, {copied} copied");
    assert_eq!(bytes, CONNECTIONS * (4 + LEN as u64));
    assert!(copied <= 4 * CONNECTIONS);
    Ok(())
}
