//! From a request's path to an open file that lies beneath the directory served.
//!
//! The kernel is asked to resolve beneath (`openat2`), so that no `..`, no symbolic link and no
//! rename meanwhile leads out. What a hostile path may hold is refused before that.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

use super::response::Reject;

/// A path below the directory served, decoded: no empty, `.` or `..` segments, no NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestPath {
    segments: Vec<Vec<u8>>,
    /// It ended in a slash: a directory is meant.
    pub(crate) is_directory: bool,
}

impl RequestPath {
    /// Decodes the path of a request target.
    pub(crate) fn decode(raw: &str) -> Result<Self, Reject> {
        let bad = |text: &str| Reject::new(400, text);
        if !escapes_are_whole(raw.as_bytes()) {
            return Err(bad("a % in the path is not followed by two hexadecimal digits"));
        }
        let mut segments = Vec::new();
        for segment in raw.split('/') {
            let bytes: Vec<u8> = percent_decode_str(segment).collect();
            match bytes.as_slice() {
                b"" | b"." => {}
                b".." => return Err(bad("the path leads out of the directory served")),
                b if b.contains(&0) => return Err(bad("the path contains a NUL byte")),
                b if b.contains(&b'/') => return Err(bad("the path contains an encoded slash")),
                _ => segments.push(bytes),
            }
        }
        let last = raw.rsplit('/').next().unwrap_or("");
        let is_directory = matches!(&*percent_decode_str(last).collect::<Vec<_>>(), b"" | b".");
        Ok(Self { segments, is_directory })
    }

    /// For the kernel: relative to the directory served.
    fn relative(&self) -> Vec<u8> {
        if self.segments.is_empty() { b".".to_vec() } else { self.segments.join(&b'/') }
    }

    /// The file name, if there is one.
    pub(crate) fn file_name(&self) -> &[u8] {
        self.segments.last().map_or(b"", Vec::as_slice)
    }

    /// The same path with one more segment.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut segments = self.segments.clone();
        segments.push(name.to_vec());
        Self { segments, is_directory: false }
    }

    /// As a URL path that means a directory. It begins with exactly one slash, so that it cannot
    /// be taken for another host.
    pub(crate) fn as_directory_url(&self) -> String {
        let encoded = self.segments.iter().map(|s| encode_segment(s) + "/");
        std::iter::once("/".to_owned()).chain(encoded).collect()
    }
}

/// Every byte that RFC 3986 does not call unreserved.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A file name as a segment of a URL path.
pub(crate) fn encode_segment(name: &[u8]) -> String {
    percent_encode(name, SEGMENT).to_string()
}

fn escapes_are_whole(path: &[u8]) -> bool {
    let mut rest = path.split(|&b| b == b'%');
    rest.next();
    rest.all(|s| s.len() >= 2 && s.iter().take(2).all(u8::is_ascii_hexdigit))
}

/// The directory served.
pub(crate) struct Root(OwnedFd);

/// What a path names.
pub(crate) enum Opened {
    File(File),
    Directory(File),
}

impl Root {
    /// Opens a directory to serve from.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Not O_PATH: a directory that cannot be read is reported now.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(open(path, flags, Mode::empty())?))
    }

    /// Opens what the path names, for reading.
    pub(crate) fn find(&self, path: &RequestPath) -> Result<Opened, Reject> {
        let fd = self.open_beneath(path).map_err(rejection)?;
        let stat = fstat(&fd).map_err(rejection)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Opened::File(File::from(fd))),
            FileType::Directory => Ok(Opened::Directory(File::from(fd))),
            _ => Err(Reject::new(403, "this is neither a file nor a directory")),
        }
    }

    fn open_beneath(&self, path: &RequestPath) -> Result<OwnedFd, Errno> {
        // NONBLOCK: opening a FIFO must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let relative = path.relative();
        // EAGAIN: something was renamed meanwhile and the kernel cannot vouch for the result.
        for _ in 0..16 {
            match openat2(&self.0, OsStr::from_bytes(&relative), flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Before Linux 5.6, or hidden by a seccomp filter of that age.
                Err(Errno::NOSYS) => return self.open_stepwise(path, flags),
                done => return done,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Without `openat2`: each directory in turn, following no symbolic link.
    fn open_stepwise(&self, path: &RequestPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW;
        let mut at = openat(&self.0, ".", flags, Mode::empty())?;
        for segment in &path.segments {
            at = openat(&at, OsStr::from_bytes(segment), flags, Mode::empty())?;
        }
        Ok(at)
    }
}

fn rejection(error: Errno) -> Reject {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => {
            Reject::new(404, "there is no such file")
        }
        Errno::XDEV => Reject::new(403, "the path leads out of the directory served"),
        Errno::LOOP => {
            Reject::new(403, "the path goes through a symbolic link that is not followed")
        }
        Errno::ACCESS | Errno::PERM => Reject::new(403, "the file may not be read"),
        Errno::NXIO => Reject::new(403, "this is neither a file nor a directory"),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => {
            Reject::closing(503, "the server is out of file descriptors or memory")
        }
        other => Reject::new(500, format!("the file cannot be opened: {}", io::Error::from(other))),
    }
}
