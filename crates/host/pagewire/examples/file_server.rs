//! A file server by reference: files are sent from their memory maps, and nothing of them is copied.
//!
//! ```sh
//! cargo run --package pagewire --example file_server
//! ```
//!
//! The program prints how many bytes of files were sent, and how many bytes the server's stack
//! copied: requests and the heads of answers.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::thread;

use pagewire::memory::Region;
use pagewire::{Host, Pair, TcpStream};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const HEAD: &[u8] = b"HTTP/1.0 200 OK\r\n\r\n";
const LENGTHS: [usize; 4] = [1, 4096, 100_000, 10_000_001];
/// Most bytes of a request that are read.
const REQUEST: u64 = 8 << 10;

pub(crate) fn main() -> Result {
    let dir = std::env::temp_dir().join(format!("pagewire-files-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;

    let listener = server.listen("10.0.0.1:80")?;
    let served = dir.clone();
    let serving = thread::spawn(move || {
        for stream in listener.incoming().take(LENGTHS.len()) {
            serve(&stream?, &served)?;
        }
        io::Result::Ok(())
    });
    for len in LENGTHS {
        let content: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        fs::write(dir.join(len.to_string()), &content)?;
        assert!(fetch(&client, &len.to_string())? == content);
    }
    serving.join().map_err(|_| "the server panicked")??;
    fs::remove_dir_all(&dir)?;

    let (all, copied) = (LENGTHS.iter().sum::<usize>(), server.stats().ledger.ours());
    println!("{all} bytes of files were sent, {copied} bytes copied: requests and heads");
    assert!(copied < LENGTHS.len() as u64 * 128);
    Ok(())
}

/// Answers one request.
fn serve(mut stream: &TcpStream, dir: &Path) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST)).read_line(&mut line)?;
    // The last part of the path only: nothing outside of the directory.
    let path = line.split(' ').nth(1).map(Path::new);
    let name = path.and_then(Path::file_name).unwrap_or(OsStr::new("index.html"));
    let Ok(file) = File::open(dir.join(name)) else {
        return stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n");
    };
    stream.write_all(HEAD)?;
    let len = file.metadata()?.len() as usize;
    let region = Region::file(&file, 0, len).map_err(io::Error::other)?;
    // The map stays until the peer has acknowledged the data.
    stream.send(region.frag(0, len).map_err(io::Error::other)?)?;
    stream.shutdown(Shutdown::Write)
}

fn fetch(host: &Host, name: &str) -> Result<Vec<u8>> {
    let mut stream = host.connect("10.0.0.1:80")?;
    write!(stream, "GET /{name} HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.strip_prefix(HEAD).ok_or("not found")?.to_vec())
}
