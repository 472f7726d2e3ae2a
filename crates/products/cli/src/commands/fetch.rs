//! `pagewire fetch`: a file over HTTP, from the wire to the page cache by reference (`pwritev`).
//!
//! Content goes to `FILE.part`; `FILE.part.from` has the URL and the server's validator, so that an
//! interrupted download goes on only if the file has not changed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::ProgressBar;
use pagewire::memory::{Frag, FragVec};

use crate::args::FetchOptions;
use crate::failure::{Failure, reason, say};
use crate::http::client::{self, CONNECT_TIME, Response};
use crate::http::connection::{Connection, advance, is_timeout};
use crate::http::message::body::{Body, BodyError, Framing};
use crate::http::message::inbox::{Inbox, Transfer};
use crate::http::message::response::Status;
use crate::http::url::Url;
use crate::limits::{MAX_IO_SLICES, MAX_REDIRECTS, PROGRESS_AFTER, STALL_TIME, TICK};
use crate::progress::bar_style;
use crate::signals::Stop;
use crate::view::{Printed, ViewSockets};
use crate::{net, sys};

pub(crate) fn run(options: &FetchOptions) -> Result<(), Failure> {
    let url = Url::parse(&options.url)?;
    let output = Output::choose(options.output.as_deref(), &url)?;
    let asked = ViewSockets::new(&options.net.view)?;
    let opened = net::open(&options.net, 1, None, None)?;
    let control = asked.start(opened.report.shown(&options.net))?;
    let report = opened.report.clone();
    let printed = Printed::new(options.net.stats, &control, move || report.to_string());
    let stop = printed.watch()?;
    opened.wait_for_peer(&options.net, &stop)?;
    let connect = |to: SocketAddr| opened.host.connect_timeout(to, CONNECT_TIME);
    let done = fetch(connect, &url, &output, &stop);
    if let Ok(summary) = &done {
        let line = format!("{output}: {summary}");
        if matches!(output, Output::Stdout) {
            crate::failure::complain!("{line}")
        } else {
            say(format_args!("{line}"))
        }
    }
    opened.end(&options.net);
    printed.at_end();
    done.map(drop)
}

/// The result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Bytes received now.
    pub(crate) bytes: u64,
    /// Bytes that were there already.
    pub(crate) resumed_at: u64,
    pub(crate) seconds: f64,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gbit = self.bytes as f64 * 8e-9 / self.seconds.max(1e-9);
        write!(f, "{} bytes in {:.3} s, {gbit:.2} Gbit/s", self.bytes, self.seconds)?;
        if self.resumed_at > 0 {
            write!(f, ", resumed at {}", self.resumed_at)?;
        }
        Ok(())
    }
}

/// Where content goes.
#[derive(Debug)]
pub(crate) enum Output {
    Stdout,
    File { path: PathBuf, part: PathBuf, note: PathBuf },
}

impl Output {
    fn choose(asked: Option<&Path>, url: &Url) -> Result<Self, Failure> {
        let path = match asked {
            Some(path) if path == Path::new("-") => return Ok(Self::Stdout),
            Some(path) => path.to_owned(),
            None => url.file_name().map(PathBuf::from).ok_or_else(|| {
                Failure::misused(url.as_str(), "the URL names no file; name one with -o FILE")
            })?,
        };
        if path.is_dir() {
            let why = "this is a directory; name a file with -o FILE";
            return Err(Failure::misused(path.display(), why));
        }
        Ok(Self::file(path))
    }

    pub(crate) fn file(path: PathBuf) -> Self {
        let with = |suffix: &str| {
            let mut name = path.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        };
        Self::File { part: with(".part"), note: with(".part.from"), path }
    }

    /// How much of the file is there already, and its validator.
    fn resumable(&self, url: &Url) -> Option<(u64, String)> {
        let Self::File { part, note, .. } = self else { return None };
        let len = fs::metadata(part).ok().filter(|m| m.is_file())?.len();
        let note = fs::read_to_string(note).ok()?;
        let (from, validator) = note.trim_end().split_once('\n')?;
        (len > 0 && from == url.as_str()).then(|| (len, validator.to_owned()))
    }

    /// Opens it at `offset`, cuts off the rest, and notes URL and validator.
    fn open(&self, url: &Url, offset: u64, validator: Option<&str>) -> io::Result<Sink> {
        let Self::File { part, note, .. } = self else { return Ok(Sink::Stdout) };
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(part)?;
        match validator {
            // The note first: a part without a note starts over, which is safe.
            Some(validator) => fs::write(note, format!("{}\n{validator}\n", url.as_str()))?,
            None => drop(fs::remove_file(note)),
        }
        file.set_len(offset)?;
        Ok(Sink::File { file, at: offset })
    }

    /// Removes the part and its note.
    fn discard(&self) {
        if let Self::File { part, note, .. } = self {
            let _ = (fs::remove_file(part), fs::remove_file(note));
        }
    }

    /// Gives the complete file its name.
    fn complete(&self) -> io::Result<()> {
        if let Self::File { path, part, note } = self {
            fs::rename(part, path)?;
            let _ = fs::remove_file(note);
        }
        Ok(())
    }

    fn because(&self, error: &io::Error) -> Failure {
        Failure::because(self, reason(error))
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout => write!(f, "standard output"),
            Self::File { path, .. } => write!(f, "{}", path.display()),
        }
    }
}

enum Sink {
    Stdout,
    /// The next byte belongs at `at`.
    File {
        file: File,
        at: u64,
    },
}

impl Sink {
    /// Writes all of the fragments with few calls. The kernel reads them in place, even if another
    /// process may change them. Chunks, not mappings: one call takes parts of pages, too.
    fn write(&mut self, frags: &[Frag]) -> io::Result<()> {
        let mut left: FragVec = frags.iter().filter(|frag| !frag.is_empty()).cloned().collect();
        while !left.is_empty() {
            match self.write_some(&left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => advance(&mut left, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn write_some(&mut self, frags: &[Frag]) -> io::Result<usize> {
        match self {
            Self::Stdout => {
                // Flushed, so that no buffered byte comes after these.
                let mut out = io::stdout().lock();
                out.flush()?;
                sys::write_frags(out.as_fd(), frags, None)
            }
            Self::File { file, at } => {
                let n = sys::write_frags(file.as_fd(), frags, Some(*at))?;
                *at += n as u64;
                Ok(n)
            }
        }
    }
}

/// Fetches `url` into `output`, following redirects; `connect` makes connections.
pub(crate) fn fetch<C: Connection>(
    mut connect: impl FnMut(SocketAddr) -> io::Result<C>,
    url: &Url,
    output: &Output,
    stop: &Stop,
) -> Result<Summary, Failure> {
    let started = Instant::now();
    let mut at = url.clone();
    let mut resume = output.resumable(url);
    let mut redirects = 0;
    loop {
        let failed = |why: &dyn std::fmt::Display| Failure::because(at.as_str(), why);
        let mut connection = connect(at.address).map_err(|e| failed(&connect_reason(&e)))?;
        let (response, mut inbox) = request(&mut connection, &at, resume.as_ref(), stop)?;
        let have = resume.as_ref().map_or(0, |(len, _)| *len);
        let range = response.content_range;
        let offset = match response.status {
            200 => 0,
            206 if have > 0
                && range.and_then(|r| r.part).is_some_and(|(first, _)| first == have) =>
            {
                have
            }
            416 if have > 0 && range.and_then(|r| r.total) == Some(have) => {
                output.complete().map_err(|e| output.because(&e))?;
                let seconds = started.elapsed().as_secs_f64();
                return Ok(Summary { bytes: 0, resumed_at: have, seconds });
            }
            // Our part does not fit the server's file.
            206 | 416 if have > 0 => {
                output.discard();
                resume = None;
                continue;
            }
            301 | 302 | 303 | 307 | 308 => {
                redirects += 1;
                if redirects > MAX_REDIRECTS {
                    return Err(failed(&format!("more than {MAX_REDIRECTS} redirects")));
                }
                let location = response.location.as_deref();
                at = at.join(location.ok_or_else(|| failed(&"a redirect that leads nowhere"))?)?;
                continue;
            }
            code => {
                let phrase = match Status(code).reason() {
                    "Unknown" => String::new(),
                    phrase => format!(" {phrase}"),
                };
                return Err(failed(&format!("the server answered {code}{phrase}")));
            }
        };
        let validator = response.validator_for_ranges();
        let mut sink = output.open(url, offset, validator).map_err(|e| output.because(&e))?;
        let mut transfer = RunningTransfer::new(&response, offset, started);
        let body = transfer.receive(&mut connection, &mut inbox, &response, &mut sink, stop);
        transfer.bar.finish_and_clear();
        let total = transfer.total.map_or(String::new(), |t| format!(" of {t}"));
        let resumable = validator.is_some() && matches!(output, Output::File { .. });
        let hint = if resumable { "; run the same command again to go on" } else { "" };
        let so_far = format!("after {}{total} bytes{hint}", offset + transfer.bytes);
        match body {
            Ok(()) => {}
            Err(EarlyEnd::Stopped) => {
                return Err(Failure::Interrupted(format!("interrupted {so_far}")));
            }
            Err(EarlyEnd::Stalled) => {
                let silence = STALL_TIME.as_secs();
                return Err(failed(&format!("nothing came for {silence} s, {so_far}")));
            }
            Err(EarlyEnd::Network(e)) => return Err(failed(&format!("{e}, {so_far}"))),
            Err(EarlyEnd::Disk(e)) => return Err(output.because(&e)),
        }
        output.complete().map_err(|e| output.because(&e))?;
        let seconds = started.elapsed().as_secs_f64();
        return Ok(Summary { bytes: transfer.bytes, resumed_at: offset, seconds });
    }
}

/// Requests the file, or the rest of a part; returns the head of the response, and its content.
fn request(
    connection: &mut impl Connection,
    at: &Url,
    have: Option<&(u64, String)>,
    stop: &Stop,
) -> Result<(Response, Inbox), Failure> {
    let range = have.map(|(len, _)| format!("bytes={len}-"));
    let mut fields = vec![("Connection", "close")];
    if let (Some(range), Some((_, validator))) = (&range, have) {
        fields.extend([("Range", range.as_str()), ("If-Range", validator.as_str())]);
    }
    client::send_get(connection, Transfer::Reference, &at.target, &at.host, &fields)
        .map_err(|e| Failure::because(at.as_str(), reason(&e)))?;
    let mut inbox = Inbox::new(Transfer::Reference);
    match client::read_response(connection, &mut inbox, || !stop.is_set()) {
        Ok(response) => Ok((response, inbox)),
        Err(_) if stop.is_set() => {
            Err(Failure::Interrupted("interrupted before the server answered".into()))
        }
        Err(e) => Err(Failure::because(at.as_str(), e)),
    }
}

fn connect_reason(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused => "; is a server listening there?",
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => {
            "; is the address right, and the host up on this link?"
        }
        io::ErrorKind::NetworkUnreachable => {
            "; give an --addr in its network, or a --gateway that knows the way"
        }
        _ => "",
    };
    format!("{}{hint}", reason(error))
}

struct RunningTransfer {
    bytes: u64,
    /// Bytes of the whole file, if known.
    total: Option<u64>,
    offset: u64,
    started: Instant,
    bar: ProgressBar,
}

/// Why content ended too early.
enum EarlyEnd {
    Stopped,
    Stalled,
    Network(String),
    Disk(io::Error),
}

impl RunningTransfer {
    fn new(response: &Response, offset: u64, started: Instant) -> Self {
        let total = match response.framing {
            Framing::Length(n) => Some(offset.saturating_add(n)),
            _ => response.content_range.and_then(|r| r.total),
        };
        Self { bytes: 0, total, offset, started, bar: ProgressBar::hidden() }
    }

    fn receive(
        &mut self,
        connection: &mut impl Connection,
        inbox: &mut Inbox,
        response: &Response,
        sink: &mut Sink,
        stop: &Stop,
    ) -> Result<(), EarlyEnd> {
        let mut body = Body::new(response.framing);
        let mut pending = Vec::new();
        let mut deadline = Instant::now() + STALL_TIME;
        let network = |e: io::Error| EarlyEnd::Network(reason(&e));
        connection.set_read_timeout(Some(TICK)).map_err(network)?;
        loop {
            if stop.is_set() {
                sink.write(&pending).map_err(EarlyEnd::Disk)?;
                return Err(EarlyEnd::Stopped);
            }
            let next = body.next(connection, inbox);
            let end = match next {
                Ok(Some(frag)) => {
                    self.bytes += frag.len() as u64;
                    pending.push(frag);
                    deadline = Instant::now() + STALL_TIME;
                    None
                }
                Ok(None) => Some(Ok(())),
                Err(BodyError::Io(e)) if is_timeout(&e) && Instant::now() < deadline => None,
                Err(BodyError::Io(e)) if is_timeout(&e) => Some(Err(EarlyEnd::Stalled)),
                Err(BodyError::Io(e)) => Some(Err(network(e))),
                Err(e) => Some(Err(EarlyEnd::Network(e.to_string()))),
            };
            if inbox.is_empty() || pending.len() >= MAX_IO_SLICES || end.is_some() {
                sink.write(&pending).map_err(EarlyEnd::Disk)?;
                pending.clear();
                self.show();
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// The bar appears on long transfers only, and only on a terminal.
    fn show(&mut self) {
        if self.bar.is_hidden() {
            if self.started.elapsed() < PROGRESS_AFTER || !io::stderr().is_terminal() {
                return;
            }
            self.bar = match self.total {
                Some(total) => ProgressBar::new(total).with_style(bar_style()),
                None => ProgressBar::new_spinner(),
            };
            self.bar.set_position(self.offset);
            self.bar.reset_eta();
        }
        self.bar.set_position(self.offset + self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagewire::memory::{Access, Region};

    #[test]
    fn what_others_may_change_is_written_as_it_lies_in_pieces_of_any_number() {
        let region = Region::memfd_shared("fetch", 1 << 16).expect("a region");
        let bytes: Vec<u8> = (0..1u32 << 16).map(|n| (n / 7) as u8).collect();
        assert_eq!(region.copy_shared_in(0, &bytes).unwrap(), bytes.len());
        // More pieces than one call takes, of lengths from 0 on.
        let (mut frags, mut at) = (Vec::new(), 0);
        for len in (0..100).cycle().take(3 * MAX_IO_SLICES) {
            frags.push(region.frag(at, len).expect("in the region"));
            at += len;
        }
        assert!(frags.iter().all(|f| f.is_empty() || f.access() == Access::Shared));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let mut sink = Sink::File { file: File::create(&path).expect("a file"), at: 5 };
        sink.write(&frags).expect("room");
        sink.write(&[]).expect("nothing to write is no end");
        sink.write(&[Frag::from_static(b"end")]).expect("room");
        let written = fs::read(&path).expect("a file");
        assert_eq!(written.get(..5), Some(&[0; 5][..]));
        assert!(written.get(5..5 + at) == bytes.get(..at) && written.ends_with(b"end"));
        assert_eq!(written.len(), 5 + at + 3);
    }

    #[test]
    fn a_full_disk_is_an_error_and_not_an_endless_loop() {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("it is always there");
        let mut sink = Sink::File { file: full, at: 0 };
        let error = sink.write(&[Frag::from_static(b"bytes")]).expect_err("no room");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
