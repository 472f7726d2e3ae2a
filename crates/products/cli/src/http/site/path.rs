//! [`RequestPath`], and [`Root`], which opens the file that a path names beneath the directory served. The kernel
//! resolves the path (`openat2`): no `..`, symbolic link or rename leads out; hostile paths are refused before.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

use crate::http::message::response::Reject;

/// A path below the directory served, decoded: no empty, `.` or `..` segments, no NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestPath {
    segments: Vec<Vec<u8>>,
    /// The path ended in a slash, so a directory is meant.
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

    /// The path for the kernel, relative to the directory served.
    fn relative(&self) -> Vec<u8> {
        if self.segments.is_empty() { b".".to_vec() } else { self.segments.join(&b'/') }
    }

    pub(crate) fn file_name(&self) -> &[u8] {
        self.segments.last().map_or(b"", Vec::as_slice)
    }

    /// The path with one more segment.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut segments = self.segments.clone();
        segments.push(name.to_vec());
        Self { segments, is_directory: false }
    }

    /// The URL path of a directory, with one slash in front, so that it cannot name another host.
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

/// The file or directory that a path names.
pub(crate) enum OpenedPath {
    File(File),
    Directory(File),
}

impl Root {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Without O_PATH, so that a directory that cannot be read is reported now.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(open(path, flags, Mode::empty())?))
    }

    /// Opens what the path names, for reading.
    pub(crate) fn find(&self, path: &RequestPath) -> Result<OpenedPath, Reject> {
        let fd = self.open_beneath(path).map_err(rejection)?;
        let stat = fstat(&fd).map_err(rejection)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(OpenedPath::File(File::from(fd))),
            FileType::Directory => Ok(OpenedPath::Directory(File::from(fd))),
            _ => Err(Reject::new(403, "this is neither a file nor a directory")),
        }
    }

    fn open_beneath(&self, path: &RequestPath) -> Result<OwnedFd, Errno> {
        self.open_by(path, |at, path, flags, mode, resolve| openat2(at, path, flags, mode, resolve))
    }

    /// [`Self::open_beneath`] by this call or, where the kernel does not have it, without.
    fn open_by(
        &self,
        path: &RequestPath,
        openat2: impl Fn(&OwnedFd, &OsStr, OFlags, Mode, ResolveFlags) -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, Errno> {
        // NONBLOCK: opening a FIFO must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let relative = path.relative();
        // EAGAIN: something was renamed meanwhile.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// The kind of file at a path: by `openat2`, and where the kernel does not have it.
    fn both(root: &Root, path: &str) -> [Result<FileType, Errno>; 2] {
        let path = RequestPath::decode(path).expect(path);
        let without = root.open_by(&path, |_, _, _, _, _| Err(Errno::NOSYS));
        let kind = |fd: OwnedFd| FileType::from_raw_mode(fstat(fd).expect("open").st_mode);
        [root.open_beneath(&path).map(kind), without.map(kind)]
    }

    #[test]
    fn a_kernel_without_openat2_gives_the_same_files_and_lets_nothing_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let served = dir.path().join("served");
        fs::create_dir_all(served.join("sub/deep")).expect("directories");
        for file in ["secret", "served/one", "served/sub/deep/two"] {
            fs::write(dir.path().join(file), file).expect("a file");
        }
        for (link, to) in
            [("out", "../secret"), ("up", ".."), ("absolute", "/etc"), ("loop", "loop")]
        {
            symlink(to, served.join(link)).expect("a link");
        }
        symlink("one", served.join("inside")).expect("a link");
        symlink("sub", served.join("inside-sub")).expect("a link");
        let root = Root::open(&served).expect("a directory");
        let (file, directory) = (Ok(FileType::RegularFile), Ok(FileType::Directory));
        for (path, found) in [
            ("/", directory),
            ("/one", file),
            ("/sub/", directory),
            ("/sub/deep/two", file),
            ("/none", Err(Errno::NOENT)),
            ("/sub/none/two", Err(Errno::NOENT)),
            ("/one/two", Err(Errno::NOTDIR)),
            ("/loop", Err(Errno::LOOP)),
        ] {
            assert_eq!(both(&root, path), [found, found], "{path}");
        }
        for path in ["/out", "/up/secret", "/absolute/passwd", "/up"] {
            assert_eq!(both(&root, path), [Err(Errno::XDEV), Err(Errno::LOOP)], "{path}");
        }
        // This way follows no links.
        for (path, found) in [("/inside", file), ("/inside-sub/deep/two", file)] {
            assert_eq!(both(&root, path), [found, Err(Errno::LOOP)], "{path}");
        }
    }

    #[test]
    fn a_path_that_is_renamed_all_the_time_is_tried_again_and_given_up() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("one"), "1").expect("a file");
        let root = Root::open(dir.path()).expect("a directory");
        let path = RequestPath::decode("/one").expect("a path");
        let asked = Cell::new(0_u32);
        let busy_for = |calls: u32| {
            asked.set(0);
            let done = root.open_by(&path, |at, path, flags, mode, resolve| {
                asked.set(asked.get() + 1);
                let again = if asked.get().is_multiple_of(2) { Errno::INTR } else { Errno::AGAIN };
                if asked.get() <= calls {
                    Err(again)
                } else {
                    openat2(at, path, flags, mode, resolve)
                }
            });
            done.map(drop)
        };
        assert_eq!((busy_for(15), asked.get()), (Ok(()), 16));
        assert_eq!((busy_for(u32::MAX), asked.get()), (Err(Errno::AGAIN), 16));
        assert_eq!(rejection(Errno::AGAIN).status.0, 503);
    }
}
