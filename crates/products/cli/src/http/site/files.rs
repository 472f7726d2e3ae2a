//! Byte path, variant of S1 for files: their pages, mapped window by window, by reference.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::time::SystemTime;

use pagewire::memory::{FragVec, MemError, Region};
use rustix::fs::{Stat, fstat};

use crate::http::site::conditional::Validators;
use crate::limits::{MAP_WINDOW, MAX_CACHED_WINDOWS};

/// An open file as it was when the response to it began.
pub(crate) struct OpenFile {
    file: File,
    key: FileKey,
    begun: Stat,
    pub(crate) len: u64,
    pub(crate) validators: Validators,
}

/// How a file changed since the response to it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    Intact,
    /// Pages beyond its new end must not be touched.
    Shorter,
    /// The file was written to: the response would mix two states of it.
    Changed,
}

/// Identifies one state of a file. A changed file is mapped anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    inode: u64,
    len: u64,
    mtime_ns: i128,
    ctime_ns: i128,
}

impl OpenFile {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let stat = fstat(&file)?;
        let key = FileKey::of(&stat);
        let now = SystemTime::now();
        let validators = Validators::new(key.len, key.mtime_ns, key.ctime_ns, key.inode, now);
        Ok(Self { file, key, begun: stat, len: key.len, validators })
    }

    /// How the file changed, by its timestamps: a write to mapped memory may move them late.
    pub(crate) fn state(&self) -> FileState {
        let Ok(now) = fstat(&self.file) else { return FileState::Changed };
        let (key, begun) = (FileKey::of(&now), &self.begun);
        if key.len < self.len {
            return FileState::Shorter;
        }
        // The change time also moves when another file takes its name, or when its rights change.
        let renamed = now.st_nlink != begun.st_nlink;
        let given =
            (now.st_mode, now.st_uid, now.st_gid) != (begun.st_mode, begun.st_uid, begun.st_gid);
        let same = FileKey { ctime_ns: self.key.ctime_ns, ..key } == self.key;
        if same && (key.ctime_ns == self.key.ctime_ns || renamed || given) {
            FileState::Intact
        } else {
            FileState::Changed
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl FileKey {
    fn of(stat: &Stat) -> Self {
        let ns = |s: i64, n: i128| i128::from(s) * 1_000_000_000 + n;
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            len: u64::try_from(stat.st_size).unwrap_or(0),
            mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec.into()),
            ctime_ns: ns(stat.st_ctime, stat.st_ctime_nsec.into()),
        }
    }
}

/// Mappings in use or lately used: 32 downloads of one file share one.
#[derive(Default)]
pub(crate) struct MappingCache(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    windows: HashMap<(FileKey, u64), MappedWindow>,
    clock: u64,
}

struct MappedWindow {
    region: Region,
    used: u64,
}

impl MappingCache {
    /// Bytes `start..` of the file by reference, up to `max` and to the end of their window.
    pub(crate) fn frags(&self, open: &OpenFile, start: u64, max: u64) -> Result<FragVec, MemError> {
        let index = start / MAP_WINDOW;
        let region = self.window(open, index)?;
        let offset = (start - index * MAP_WINDOW) as usize;
        let len = (region.len() - offset).min(usize::try_from(max).unwrap_or(usize::MAX));
        Ok(FragVec::from_elem(region.frag(offset, len)?, 1))
    }

    fn window(&self, open: &OpenFile, index: u64) -> Result<Region, MemError> {
        let mut cache = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        cache.clock += 1;
        let now = cache.clock;
        if let Some(window) = cache.windows.get_mut(&(open.key, index)) {
            window.used = now;
            return Ok(window.region.clone());
        }
        let start = index * MAP_WINDOW;
        let len = (open.len - start).min(MAP_WINDOW) as usize;
        let region = Region::file(&open.file, start, len)?;
        if cache.windows.len() >= MAX_CACHED_WINDOWS {
            // Fragments in flight keep their mapping alive; only the cache forgets it.
            let oldest = cache.windows.iter().min_by_key(|(_, w)| w.used).map(|(k, _)| *k);
            oldest.map(|k| cache.windows.remove(&k));
        }
        cache.windows.insert((open.key, index), MappedWindow { region: region.clone(), used: now });
        Ok(region)
    }

    /// Forgets all windows of a file.
    pub(crate) fn forget(&self, open: &OpenFile) {
        let mut cache = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        cache.windows.retain(|(key, _), _| *key != open.key);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().windows.len()
    }
}
