//! The files of the demonstration: made from a seed, or those of a directory.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use sha2::{Digest, Sha256};

use crate::http::site::path::encode_segment;
use crate::signals::Stop;

pub(crate) type Hash = [u8; 32];

/// A file to be served.
#[derive(Clone, Debug)]
pub(crate) struct ServedFile {
    path: PathBuf,
    /// Path of its URL.
    pub(crate) url: String,
    pub(crate) len: u64,
    pub(crate) hash: Hash,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Groups of files: how many, and between which lengths. The first that do not fit into the size
/// asked for end the list; what is left then is filled with files of the last group's lengths.
const GROUPS: [(&str, u64, u64, u64); 7] = [
    ("empty", 8, 0, 0),
    ("byte", 8, 1, 1),
    ("small", 200, 2, 16 * KIB),
    ("page", 40, 4 * KIB - 1, 4 * KIB + 1),
    ("medium", 100, 16 * KIB, 512 * KIB),
    ("large", 24, MIB, 16 * MIB),
    ("huge", 1, 256 * MIB, 256 * MIB),
];

/// Files that fill up.
const FILL: (u64, u64) = (16 * MIB, 64 * MIB);

/// The seed: files are identical in every run.
const SEED: u64 = 0x7061_6765_7769_7265;

/// Makes files of at least `size` bytes in all.
pub(crate) fn generate(directory: &Path, size: u64, stop: &Stop) -> io::Result<()> {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut left = size;
    for (name, count, least, most) in GROUPS {
        let group = directory.join(name);
        fs::create_dir(&group)?;
        for i in 0..count {
            let len = random.random_range(least..=most).min(left);
            left -= len;
            write_file(&group.join(format!("{i:04}.bin")), len, &mut random, stop)?;
        }
    }
    let group = directory.join("fill");
    fs::create_dir(&group)?;
    let mut i = 0;
    while left > 0 {
        // Odd lengths, but no tiny file at the end.
        let len = (random.random_range(FILL.0..=FILL.1) | 1).min(left);
        write_file(&group.join(format!("{i:04}.bin")), len, &mut random, stop)?;
        left -= len;
        i += 1;
    }
    Ok(())
}

fn write_file(path: &Path, mut len: u64, random: &mut StdRng, stop: &Stop) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut block = vec![0; 256 * 1024];
    while len > 0 {
        check(stop)?;
        let n = len.min(block.len() as u64);
        let block = block.get_mut(..n as usize).unwrap_or_default();
        random.fill_bytes(block);
        file.write_all(block)?;
        len -= n;
    }
    Ok(())
}

fn check(stop: &Stop) -> io::Result<()> {
    if stop.is_set() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}

/// The regular files below a directory, by name. Symbolic links are not followed.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<ServedFile>> {
    let mut entries = Vec::new();
    let mut pending = vec![(directory.to_owned(), String::new())];
    while let Some((at, url)) = pending.pop() {
        for item in fs::read_dir(&at)? {
            let item = item?;
            let url = format!("{url}/{}", encode_segment(item.file_name().as_bytes()));
            let (kind, path) = (item.file_type()?, item.path());
            if kind.is_dir() {
                pending.push((path, url));
            } else if kind.is_file() {
                entries.push(ServedFile {
                    path,
                    url,
                    len: item.metadata()?.len(),
                    hash: Hash::default(),
                });
            }
        }
    }
    entries.sort_by(|a, b| a.url.cmp(&b.url));
    Ok(entries)
}

/// Hashes the files in place, on all processors.
pub(crate) fn hash(entries: Vec<ServedFile>, stop: &Stop) -> io::Result<Vec<ServedFile>> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || -> io::Result<Vec<(usize, Hash)>> {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = entries.get(index) else { return Ok(done) };
            done.push((index, hash_file(&entry.path, stop)?));
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
            .collect()
    });
    let mut hashed = entries.clone();
    for result in results {
        for (index, hash) in result? {
            if let Some(entry) = hashed.get_mut(index) {
                entry.hash = hash;
            }
        }
    }
    Ok(hashed)
}

fn hash_file(path: &Path, stop: &Stop) -> io::Result<Hash> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let mut file = File::open(path).map_err(named)?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; 256 * 1024];
    loop {
        check(stop)?;
        match file.read(&mut block).map_err(named)? {
            0 => return Ok(hasher.finalize().into()),
            n => hasher.update(block.get(..n).unwrap_or_default()),
        }
    }
}
