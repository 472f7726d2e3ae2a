//! The example `ring_to_file`: files hold what was sent, and it was not copied on its way there.

use std::path::PathBuf;
use std::time::Duration;

use pagewire::device::Queues;
use pagewire::memory::CopyReason;
use pagewire::{Host, Pair};

#[allow(dead_code)]
#[path = "../../examples/ring_to_file.rs"]
pub(crate) mod example;

/// Vanishes with what is in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagewire-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// No page of it is like another, and its length is no multiple of anything.
fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

#[test]
fn what_is_sent_is_in_the_file_and_came_there_by_reference() {
    let (left, right) = Pair::new().unwrap();
    let server = Host::builder().device(Queues::new(left, 2)).address("10.77.0.2/24");
    let server = server.start().unwrap();
    let client = Host::builder().device(right).address("10.77.0.1/24").start().unwrap();
    let folder = Folder::new("ring-to-file");
    let lengths = [40_000_001, 1, 0, 123_457];
    let sending = std::thread::spawn(move || {
        for len in lengths {
            let stream = loop {
                match client.connect(("10.77.0.2", example::PORT)) {
                    Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {}
                    stream => break stream.unwrap(),
                }
            };
            stream.send(data(len)).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert!(client.drain(Duration::from_secs(30)));
    });
    example::serve(&server, 1, &folder.0, lengths.len()).unwrap();
    sending.join().unwrap();
    for (n, len) in lengths.into_iter().enumerate() {
        let file = std::fs::read(folder.0.join(format!("received-{n}"))).unwrap();
        assert!(file == data(len), "file {n} is not what was sent");
    }
    // The queue's end of the pair placed it: what little we copied are the smallest pieces.
    let ledger = server.stats().ledger;
    let sent: usize = lengths.iter().sum();
    assert!(ledger.get(CopyReason::DeviceRx) * 1000 > sent as u64 * 998, "{ledger:?}");
    assert!(ledger.ours() * 1000 < sent as u64 * 2, "{ledger:?}");
}

#[test]
fn its_demonstration_runs() {
    example::demonstrate().unwrap();
}
