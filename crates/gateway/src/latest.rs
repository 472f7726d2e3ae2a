//! A file that has a limit, and keeps its latest lines.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::limits::LOG_MOVE;

/// Writes behind what a file has, and removes its older half when it would become too long. It needs
/// nothing but the descriptor: a sandbox has no paths.
#[derive(Debug)]
pub(crate) struct Latest {
    file: File,
    most: u64,
}

impl Latest {
    /// A file that is open for reading and appending. What is no file has no limit.
    pub(crate) fn new(file: File, most: u64) -> io::Result<Self> {
        let most = if file.metadata()?.is_file() { most } else { u64::MAX };
        Ok(Self { file, most })
    }

    /// Moves the latest lines to the beginning, as many as fit into half of the limit.
    fn drop_older(&mut self, len: u64) -> io::Result<()> {
        let before = fcntl_getfl(&self.file)?;
        // While a file is open for appending, Linux writes to its end only.
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

impl Write for Latest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Others may have appended, or emptied it.
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

    fn open(path: &std::path::Path) -> File {
        File::options().create(true).read(true).append(true).open(path).unwrap()
    }

    #[test]
    fn a_file_keeps_its_latest_lines_and_whole_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "of an earlier run\n").unwrap();
        let most = 3 * LOG_MOVE as u64;
        let mut latest = Latest::new(open(&path), most).unwrap();
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
        let mut latest = Latest::new(open(&path), LOG_MOVE as u64).unwrap();
        latest.write_all(b"first\n").unwrap();
        std::fs::write(&path, "").unwrap();
        latest.write_all(b"second\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second\n");
    }

    #[test]
    fn what_is_no_file_has_no_limit() {
        let file = File::options().read(true).append(true).open("/dev/null").unwrap();
        let mut latest = Latest::new(file, 1).unwrap();
        latest.write_all(&[b'\n'; 100]).unwrap();
    }
}
