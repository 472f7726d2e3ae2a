//! [`BoundedLog`]: a log file with a limit, which keeps the latest lines.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, fcntl_getfl, fcntl_setfl, flock};
use rustix::io::Errno;

use crate::limits::LOG_MOVE;

const NO_LIMIT: &str = "the log of connections has no limit";

/// Opens a file for appending, and for reading if allowed; its lock keeps other gateways from moving
/// its lines. Returns the file's limit, too: none where lines cannot be moved.
pub(crate) fn open(path: &Path, most: u64) -> io::Result<(File, u64)> {
    let open = |reads| File::options().create(true).append(true).read(reads).open(path);
    // A pipe that this process also reads would never report that its reader is gone.
    let file = open(false)?;
    if !file.metadata()?.is_file() {
        return Ok((file, u64::MAX));
    }
    let (file, most) = match open(true) {
        Ok(file) => (file, most),
        Err(error) => {
            tracing::warn!(%error, "{NO_LIMIT}");
            (file, u64::MAX)
        }
    };
    // On file systems without locks, as some network ones, another writer cannot be detected.
    if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        tracing::warn!(error = "another process writes it", "{NO_LIMIT}");
        return Ok((file, u64::MAX));
    }
    Ok((file, most))
}

/// A writer that appends to a file, and removes the older half when the file would become too long. It needs
/// nothing but the descriptor: a sandbox has no paths.
#[derive(Debug)]
pub struct BoundedLog {
    file: File,
    most: u64,
}

impl BoundedLog {
    /// Opens a file for appending, which gets at most this many bytes long.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: impl AsRef<Path>, most: u64) -> io::Result<Self> {
        let (file, most) = open(path.as_ref(), most)?;
        Self::new(file, most)
    }

    /// Wraps a file that is open for reading and appending. Pipes and the like have no limit, nor has a file whose
    /// lines this process cannot move.
    pub(crate) fn new(file: File, most: u64) -> io::Result<Self> {
        let mut latest = Self { file, most };
        if !latest.file.metadata()?.is_file() {
            latest.most = u64::MAX;
        }
        if latest.most < u64::MAX
            && let Err(error) = latest.try_to_move()
        {
            tracing::warn!(%error, "{NO_LIMIT}");
            latest.most = u64::MAX;
        }
        Ok(latest)
    }

    /// Checks that the file can be read, and written to at other offsets than its end, which the attribute
    /// of append-only files (`chattr +a`) prevents.
    fn try_to_move(&self) -> io::Result<()> {
        let before = fcntl_getfl(&self.file)?;
        if before & OFlags::RWMODE != OFlags::RDWR {
            return Err(io::Error::other("it is not open for reading"));
        }
        fcntl_setfl(&self.file, before - OFlags::APPEND)?;
        Ok(fcntl_setfl(&self.file, before)?)
    }

    /// Moves the latest lines to the beginning, as many as fit into half of the limit.
    fn drop_older(&mut self, len: u64) -> io::Result<()> {
        let before = fcntl_getfl(&self.file)?;
        // With `O_APPEND`, Linux writes to the end of the file only.
        fcntl_setfl(&self.file, before - OFlags::APPEND)?;
        let moved = self.move_later(len - len.min(self.most / 2));
        fcntl_setfl(&self.file, before)?;
        moved
    }

    fn move_later(&self, mut from: u64) -> io::Result<()> {
        let (mut chunk, mut to, mut in_line) = (vec![0; LOG_MOVE], 0, from == 0);
        loop {
            let n = self.file.read_at(&mut chunk, from)?;
            let mut bytes = chunk.get(..n).unwrap_or_default();
            if bytes.is_empty() {
                return self.file.set_len(to);
            }
            from += n as u64;
            // The first line has lost its beginning.
            if !in_line {
                let end = bytes.iter().position(|byte| *byte == b'\n');
                in_line = end.is_some();
                bytes = end.and_then(|end| bytes.get(end + 1..)).unwrap_or_default();
            }
            self.file.write_all_at(bytes, to)?;
            to += bytes.len() as u64;
        }
    }
}

impl Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Other processes may have appended to the file, or emptied it.
        if self.most < u64::MAX {
            let len = self.file.metadata()?.len();
            if len + bytes.len() as u64 > self.most {
                self.drop_older(len)?;
            }
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> File {
        File::options().create(true).read(true).append(true).open(path).unwrap()
    }

    /// Lines beyond a limit of one block, and how many there are then.
    fn lines(latest: &mut BoundedLog) -> usize {
        (0..10_000).for_each(|n| latest.write_all(format!("line {n}\n").as_bytes()).unwrap());
        10_000
    }

    #[test]
    fn a_file_keeps_its_latest_lines_and_whole_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "of an earlier run\n").unwrap();
        let most = 3 * LOG_MOVE as u64;
        let mut latest = BoundedLog::new(open(&path), most).unwrap();
        let all = 40_000;
        for n in 0..all {
            latest.write_all(format!("line {n}\n").as_bytes()).unwrap();
            if n % 1000 == 0 {
                assert!(std::fs::metadata(&path).unwrap().len() <= most);
            }
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() as u64 > most / 2 - 100, "{} bytes", text.len());
        let first: u32 =
            text.lines().next().unwrap().strip_prefix("line ").unwrap().parse().unwrap();
        let expected: String = (first..all).map(|n| format!("line {n}\n")).collect();
        assert!(text == expected, "lines are missing, or broken");
    }

    #[test]
    fn what_others_empty_is_written_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut latest = BoundedLog::new(open(&path), LOG_MOVE as u64).unwrap();
        latest.write_all(b"first\n").unwrap();
        std::fs::write(&path, "").unwrap();
        latest.write_all(b"second\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second\n");
    }

    #[test]
    fn a_file_that_is_not_open_for_reading_has_no_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let mut latest = BoundedLog::new(file, LOG_MOVE as u64).unwrap();
        let all = lines(&mut latest);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), all);
    }

    #[test]
    fn a_file_that_can_only_be_appended_to_has_no_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = open(&path);
        let chattr = |how: &str| std::process::Command::new("chattr").arg(how).arg(&path).output();
        if !pagewire_testkit::can(&[pagewire_testkit::Need::Program("chattr")]) {
            return;
        }
        let done = chattr("+a").unwrap();
        if !done.status.success() {
            // Neither every file system nor every user has the attribute.
            return pagewire_testkit::skip(String::from_utf8_lossy(&done.stderr));
        }
        let text = std::panic::catch_unwind(|| {
            let all = lines(&mut BoundedLog::new(file, LOG_MOVE as u64).unwrap());
            (std::fs::read_to_string(&path).unwrap(), all)
        });
        // Without that, the folder cannot be removed.
        chattr("-a").unwrap();
        let (text, all) = text.unwrap();
        assert_eq!(text.lines().count(), all);
    }

    #[test]
    fn of_two_gateways_that_write_one_file_the_first_alone_has_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let first = super::open(&path, 9).unwrap();
        let second = super::open(&path, 9).unwrap();
        assert_eq!((first.1, second.1), (9, u64::MAX));
        drop(first);
        assert_eq!(super::open(&path, 9).unwrap().1, 9);
        assert_eq!(super::open(Path::new("/dev/null"), 9).unwrap().1, u64::MAX);
    }

    #[test]
    fn what_is_no_file_has_no_limit() {
        let file = File::options().read(true).append(true).open("/dev/null").unwrap();
        let mut latest = BoundedLog::new(file, 1).unwrap();
        latest.write_all(&[b'\n'; 100]).unwrap();
    }
}
