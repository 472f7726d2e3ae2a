//! The client of the demonstration: several connections that fetch at the same time.
//!
//! Files are fetched in batches. The clock runs from when all connections begin a batch to when the
//! last has all of it; hashing follows. By reference, a batch is kept as the fragments received; by
//! copy, in one buffer for each connection, whose pages were touched before.

use std::error::Error;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pagewire::memory::{CopyLedger, Frag};
use pagewire::{Host, TcpStream};
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};

use super::tree::{Hash, ServedFile};
use crate::failure::{Failure, reason};
use crate::http::client::{self, CONNECT_TIME};
use crate::http::message::body::{Body, BodyError, Framing};
use crate::http::message::inbox::{Inbox, Transfer};
use crate::signals::Stop;

/// Bytes in a batch when they are copied, which are kept in memory until hashed.
const COPY_BATCH: u64 = 256 << 20;

/// Bytes in a batch by reference: address space only, no memory beyond the page cache.
const REFERENCE_BATCH: u64 = 16 << 30;

/// Files in a batch.
const BATCH_FILES: usize = 16_384;

/// The result of fetching everything in one mode.
#[derive(Debug, Default)]
pub(crate) struct DemoResult {
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    /// Time while the clock ran.
    pub(crate) time: Duration,
    /// CPU time of all threads of the process, both hosts included, while the clock ran.
    pub(crate) cpu: Duration,
    /// Payload bytes that the two stacks copied.
    pub(crate) copied: u64,
    /// A line for each file that differs.
    pub(crate) mismatches: Vec<String>,
}

impl DemoResult {
    pub(crate) fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Fetches all files and checks them.
pub(crate) fn fetch_all(
    hosts: &[&Host; 2],
    server: SocketAddr,
    files: &[ServedFile],
    transfer: Transfer,
    connections: usize,
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<DemoResult, Failure> {
    let [_, host] = hosts;
    let mut workers = Vec::new();
    for _ in 0..connections {
        let failed = |e: io::Error| Failure::because(format!("connecting to {server}"), reason(&e));
        let stream = host.connect_timeout(server, CONNECT_TIME).map_err(failed)?;
        let _ = stream.set_nodelay(true);
        workers.push(Mutex::new(Worker::new(stream, server, transfer)));
    }
    let copied = || hosts.iter().map(|h| h.stats().ledger.ours()).sum::<u64>();
    let before = copied();
    let mut outcome = DemoResult::default();
    for batch in batches(files, transfer) {
        for (worker, share) in workers.iter_mut().zip(shares(batch, connections)) {
            worker.get_mut().unwrap_or_else(|e| e.into_inner()).prepare(share);
        }
        let (time, cpu) = run_batch(&workers, stop)?;
        outcome.time += time;
        outcome.cpu += cpu;
        for worker in &mut workers {
            let worker = worker.get_mut().unwrap_or_else(|e| e.into_inner());
            if let Some(error) = worker.error.take() {
                return Err(match stop.is_set() {
                    true => Failure::Interrupted("interrupted".into()),
                    false => Failure::Failed(error),
                });
            }
            for (entry, hash) in worker.hashes.drain(..) {
                outcome.files += 1;
                outcome.bytes += entry.len;
                if hash != entry.hash {
                    outcome.mismatches.push(format!("{} differs", entry.url));
                }
                bar.inc(entry.len);
            }
        }
    }
    outcome.copied = copied() - before;
    Ok(outcome)
}

/// Consecutive files up to the limits of a batch; at least one.
fn batches(files: &[ServedFile], transfer: Transfer) -> impl Iterator<Item = &[ServedFile]> {
    let limit = if transfer == Transfer::Copy { COPY_BATCH } else { REFERENCE_BATCH };
    let mut rest = files;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |entry: &&ServedFile| {
            bytes += entry.len;
            bytes <= limit
        };
        let count = rest.iter().take(BATCH_FILES).take_while(fits).count().max(1);
        let (batch, after) = rest.split_at_checked(count)?;
        rest = after;
        Some(batch)
    })
}

/// Divides a batch: the longest file first, each to the connection with the fewest bytes.
fn shares(batch: &[ServedFile], connections: usize) -> Vec<Vec<&ServedFile>> {
    let mut sorted: Vec<_> = batch.iter().collect();
    sorted.sort_by_key(|e| std::cmp::Reverse(e.len));
    let mut shares = vec![(0, Vec::new()); connections];
    for entry in sorted {
        if let Some((bytes, share)) = shares.iter_mut().min_by_key(|(bytes, s)| (*bytes, s.len())) {
            *bytes += entry.len;
            share.push(entry);
        }
    }
    shares.into_iter().map(|(_, share)| share).collect()
}

/// Runs a batch on all connections at once: first they fetch, timed, then they hash.
fn run_batch(workers: &[Mutex<Worker<'_>>], stop: &Stop) -> Result<(Duration, Duration), Failure> {
    let gate = Barrier::new(workers.len() + 1);
    std::thread::scope(|scope| {
        for worker in workers {
            let gate = &gate;
            scope.spawn(move || {
                let mut worker = worker.lock().unwrap_or_else(|e| e.into_inner());
                gate.wait();
                let done = worker.fetch_share(stop);
                gate.wait();
                match done {
                    Ok(()) => worker.hash_share(),
                    Err(error) => worker.error = Some(error),
                }
            });
        }
        gate.wait();
        let (started, cpu) = (Instant::now(), process_cpu());
        gate.wait();
        Ok((started.elapsed(), process_cpu().saturating_sub(cpu)))
    })
}

/// CPU time of all threads of this process.
fn process_cpu() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// A connection, and the files that it has fetched.
struct Worker<'a> {
    stream: TcpStream,
    host: String,
    transfer: Transfer,
    inbox: Inbox,
    share: Vec<&'a ServedFile>,
    /// The share's files, one behind the other, if they are copied.
    buffer: Vec<u8>,
    /// The fragments of each file, if they are received by reference.
    kept: Vec<Vec<Frag>>,
    hashes: Vec<(&'a ServedFile, Hash)>,
    error: Option<String>,
}

impl<'a> Worker<'a> {
    fn new(stream: TcpStream, server: SocketAddr, transfer: Transfer) -> Self {
        Self {
            stream,
            host: server.to_string(),
            transfer,
            inbox: Inbox::new(transfer),
            share: Vec::new(),
            buffer: Vec::new(),
            kept: Vec::new(),
            hashes: Vec::new(),
            error: None,
        }
    }

    fn prepare(&mut self, share: Vec<&'a ServedFile>) {
        if self.transfer == Transfer::Copy {
            let bytes = share.iter().map(|e| e.len).sum::<u64>() as usize;
            if self.buffer.len() < bytes {
                // Written, so that the pages are there before the clock runs.
                self.buffer.resize(bytes, 0xff);
            }
        }
        self.kept =
            share.iter().map(|e| Vec::with_capacity(e.len.div_ceil(32 << 10) as usize)).collect();
        self.share = share;
    }

    fn fetch_share(&mut self, stop: &Stop) -> Result<(), String> {
        let mut at = 0;
        for index in 0..self.share.len() {
            if stop.is_set() {
                return Err("interrupted".into());
            }
            let Some(entry) = self.share.get(index).copied() else { break };
            self.fetch(index, entry, at, stop).map_err(|e| format!("{}: {e}", entry.url))?;
            at += entry.len as usize;
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        index: usize,
        entry: &ServedFile,
        at: usize,
        stop: &Stop,
    ) -> Result<(), Box<dyn Error>> {
        client::send_get(&mut self.stream, self.transfer, &entry.url, &self.host, &[])?;
        let response = client::read_response(&mut self.stream, &mut self.inbox, || !stop.is_set())?;
        if response.status != 200 || response.framing != Framing::Length(entry.len) {
            let text = format!("answered {} and {:?}", response.status, response.framing);
            return Err(text.into());
        }
        self.stream.set_read_timeout(Some(crate::limits::STALL_TIME))?;
        match self.transfer {
            Transfer::Copy => {
                let end = at + entry.len as usize;
                let mut room = self.buffer.get_mut(at..end).ok_or("no room for the file")?;
                // The bytes that came with the head.
                while !room.is_empty()
                    && let Some(frag) = self.inbox.take(room.len())
                {
                    let (now, later) = std::mem::take(&mut room).split_at_mut(frag.len());
                    now.copy_from_slice(frag.as_slice().unwrap_or_default());
                    room = later;
                }
                Ok(self.stream.read_exact(room)?)
            }
            Transfer::Reference => {
                let kept = self.kept.get_mut(index).ok_or("no room for the file")?;
                let mut body = Body::new(response.framing);
                loop {
                    match body.next(&mut self.stream, &mut self.inbox) {
                        Ok(Some(frag)) => kept.push(frag),
                        Ok(None) => return Ok(()),
                        Err(BodyError::Io(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(e.into()),
                    }
                }
            }
        }
    }

    /// Hashes what was fetched, and drops it.
    fn hash_share(&mut self) {
        let mut rest = self.buffer.as_slice();
        for (entry, kept) in self.share.drain(..).zip(self.kept.drain(..)) {
            let mut hasher = Sha256::new();
            if self.transfer == Transfer::Copy {
                let (file, after) = rest.split_at_checked(entry.len as usize).unwrap_or_default();
                hasher.update(file);
                rest = after;
            }
            // Memory that another process may change is hashed through snapshots.
            let mut uncounted = CopyLedger::new();
            for frag in kept {
                frag.for_each_piece(&mut uncounted, |piece| hasher.update(piece));
            }
            self.hashes.push((entry, hasher.finalize().into()));
        }
    }
}
