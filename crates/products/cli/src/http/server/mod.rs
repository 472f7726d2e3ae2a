//! [`Server`]: serves the files of a directory on connections, one request after the other.
//!
//! [`Server::serve`] owns a connection from its first request to its end: it reads a head, answers, and
//! closes, aborts or waits for the next request. [`service`] calls it, on a thread for each connection.

pub(crate) mod access;
mod paced;
pub(crate) mod permits;
pub(crate) mod service;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use pagewire::memory::{Frag, FragVec};

use crate::http::connection::{Connection, is_timeout};
use crate::http::message::body::{Body, BodyError};
use crate::http::message::inbox::{HeadError, Inbox, Transfer};
use crate::http::message::request::{self, Method, Request};
use crate::http::message::response::{Head, Reject, Status};
use crate::http::server::access::{Access, AccessLog};
use crate::http::server::paced::{Paced, TooSlow};
use crate::http::server::permits::NoPermit;
use crate::http::site::conditional::Decision;
use crate::http::site::files::{FileState, MappingCache, OpenFile};
use crate::http::site::listing;
use crate::http::site::path::{OpenedPath, RequestPath, Root};
use crate::http::site::range::{Selection, select};
use crate::limits::{
    HEAD_TIME, KEEP_ALIVE_TIME, LINGER_BYTES, LINGER_TIME, MAX_HEAD, MAX_REQUEST_BODY, MAX_TARGET,
    SEND_PIECE, TICK,
};

/// A directory served, shared by all connections.
pub(crate) struct Server {
    root: Root,
    mappings: MappingCache,
    /// Files shorter than this number of bytes are read and copied; `u64::MAX`: everything is copied.
    copy_below: u64,
    /// Bytes that a peer must take in a second; 0: one byte now and then.
    min_rate: u64,
    /// Set while there are too many connections to keep any open for another request.
    pub(crate) crowded: Arc<AtomicBool>,
    /// Set when no new requests are accepted.
    pub(crate) stopping: AtomicBool,
    pub(crate) counters: Counters,
    /// Where requests are logged.
    pub(crate) access: Option<AccessLog>,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Responses begun, by class: 2xx, 3xx, 4xx, 5xx.
    classes: [AtomicU64; 4],
    /// Bytes of files sent by reference.
    pub(crate) by_reference: AtomicU64,
    /// Sends by reference that were completed, and those of them that were copied on the way.
    completed: AtomicU64,
    completed_copied: AtomicU64,
    /// Bytes of files and pages sent by copy.
    pub(crate) by_copy: AtomicU64,
    /// Connections aborted because their file became shorter.
    pub(crate) truncated: AtomicU64,
    /// Connections aborted because their file was written to.
    pub(crate) changed: AtomicU64,
    /// Connections aborted because the peer took too little for too long.
    pub(crate) stalled: AtomicU64,
    /// Connections refused with a 503 because there were too many.
    pub(crate) refused: AtomicU64,
    /// The part of `refused` whose client had too many connections.
    pub(crate) refused_client: AtomicU64,
}

impl Counters {
    fn status(&self, status: Status) {
        let class = usize::from(status.0 / 100).saturating_sub(2);
        if let Some(n) = self.classes.get(class) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection's available completions.
    fn completed(&self, connection: &mut impl Connection) {
        let (sends, copied) = connection.completed();
        self.completed.fetch_add(sends, Ordering::Relaxed);
        self.completed_copied.fetch_add(copied, Ordering::Relaxed);
    }

    /// Names and values, for `--stats`.
    pub(crate) fn report(&self) -> Vec<(&'static str, u64)> {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let names = ["responses_2xx", "responses_3xx", "responses_4xx", "responses_5xx"];
        let mut all: Vec<_> = names.into_iter().zip(self.classes.iter().map(get)).collect();
        all.extend([
            ("bytes_by_reference", get(&self.by_reference)),
            ("bytes_by_copy", get(&self.by_copy)),
            ("sends_completed", get(&self.completed)),
            ("sends_completed_copied", get(&self.completed_copied)),
            ("files_truncated", get(&self.truncated)),
            ("files_changed", get(&self.changed)),
            ("connections_stalled", get(&self.stalled)),
            ("connections_refused", get(&self.refused)),
            ("refused_by_client", get(&self.refused_client)),
        ]);
        all
    }
}

/// Why a connection is aborted.
enum Aborted {
    /// The file became shorter than the promised length.
    Truncated,
    /// The file was written to, so that the response would be of two states of it.
    Changed,
    /// The peer took too little for too long.
    Stalled,
    /// The peer went away, or the file cannot be read.
    Failed,
}

impl From<io::Error> for Aborted {
    fn from(error: io::Error) -> Self {
        if TooSlow::is(&error) { Self::Stalled } else { Self::Failed }
    }
}

/// The file sent last: it must not change until the peer has acknowledged it.
type LastSent = Option<OpenFile>;

/// Whether a response from this file can go on.
fn intact(source: Option<&OpenFile>) -> Result<(), Aborted> {
    match source.map_or(FileState::Intact, OpenFile::state) {
        FileState::Intact => Ok(()),
        FileState::Shorter => Err(Aborted::Truncated),
        FileState::Changed => Err(Aborted::Changed),
    }
}

impl Server {
    pub(crate) fn new(directory: &Path, copy_below: u64, min_rate: u64) -> io::Result<Self> {
        crate::sys::survive_truncated_files()?;
        Ok(Self {
            min_rate,
            crowded: Arc::default(),
            root: Root::open(directory)?,
            mappings: MappingCache::default(),
            copy_below,
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
            access: None,
        })
    }

    fn copies_everything(&self) -> bool {
        self.copy_below == u64::MAX
    }

    /// Serves requests until the peer, an error or `stopping` ends the connection.
    pub(crate) fn serve(&self, connection: &mut impl Connection) {
        let connection = &mut Paced::new(connection, self.min_rate);
        let transfer = if self.copies_everything() { Transfer::Copy } else { Transfer::Reference };
        let mut inbox = Inbox::new(transfer);
        let mut last = None;
        let end = loop {
            match self.exchange(connection, &mut inbox, &mut last) {
                Ok(true) => {}
                Ok(false) => break self.close(connection.inner, &mut inbox, &last),
                Err(broken) => break Err(broken),
            }
        };
        self.counters.completed(connection.inner);
        let counter = match end {
            Ok(()) => return,
            Err(Aborted::Truncated) => Some(&self.counters.truncated),
            Err(Aborted::Changed) => Some(&self.counters.changed),
            Err(Aborted::Stalled) => Some(&self.counters.stalled),
            Err(Aborted::Failed) => None,
        };
        counter.map(|c| c.fetch_add(1, Ordering::Relaxed));
        connection.inner.abort();
    }

    /// Serves one request; `false`: it was the connection's last.
    fn exchange(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        inbox: &mut Inbox,
        last: &mut LastSent,
    ) -> Result<bool, Aborted> {
        self.counters.completed(connection.inner);
        let mut sent = Ok(());
        let head = inbox.read_head(connection.inner, KEEP_ALIVE_TIME, HEAD_TIME, || {
            sent = intact(last.as_ref());
            Ok(sent.is_ok() && !self.stopping.load(Ordering::Relaxed))
        });
        sent?;
        let (at, begun) = (SystemTime::now(), Instant::now());
        connection.take_sent();
        let head = match head {
            Err(HeadError::Ended | HeadError::Idle | HeadError::Stopped | HeadError::Cut) => {
                return Ok(false);
            }
            Err(HeadError::Failed(e)) => return Err(e.into()),
            head => head,
        };
        let done = self.answer(connection, inbox, &head, last);
        if let Some(log) = &self.access {
            let head = head.as_deref().unwrap_or_default();
            let (peer, sent, time) =
                (connection.inner.peer(), connection.take_sent(), begun.elapsed());
            log.note(&Access { peer, at, head, sent, time, complete: done.is_ok() });
        }
        done
    }

    /// Answers what has come.
    fn answer(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        inbox: &mut Inbox,
        head: &Result<Vec<u8>, HeadError>,
        last: &mut LastSent,
    ) -> Result<bool, Aborted> {
        let reject = match head {
            Ok(head) => match request::parse(head) {
                Ok(request) => match self.skip_content(connection.inner, inbox, &request)? {
                    Ok(()) => return self.respond(connection, &request, last),
                    Err(reject) => reject,
                },
                Err(reject) => reject,
            },
            Err(HeadError::Slow) => Reject::closing(408, "the request did not arrive in time"),
            Err(HeadError::LongLine) => {
                let text = format!("the request target is longer than {MAX_TARGET} bytes");
                Reject::closing(414, text)
            }
            Err(HeadError::TooLong) => {
                Reject::closing(431, format!("the request head is longer than {MAX_HEAD} bytes"))
            }
            // Nothing to answer.
            Err(_) => return Ok(false),
        };
        self.send_reject(connection, Method::Get, &reject, false)
    }

    /// Discards the content of a request, which has no meaning for GET and HEAD.
    fn skip_content(
        &self,
        connection: &mut impl Connection,
        inbox: &mut Inbox,
        request: &Request,
    ) -> Result<Result<(), Reject>, Aborted> {
        let deadline = Instant::now() + HEAD_TIME;
        inbox.set_deadline(Some(deadline));
        let skipped = Self::skip_until(deadline, connection, inbox, request);
        inbox.set_deadline(None);
        skipped
    }

    fn skip_until(
        deadline: Instant,
        connection: &mut impl Connection,
        inbox: &mut Inbox,
        request: &Request,
    ) -> Result<Result<(), Reject>, Aborted> {
        let mut body = Body::new(request.framing);
        let mut total = 0;
        loop {
            if Instant::now() >= deadline {
                return Ok(Err(Reject::closing(408, "the request did not arrive in time")));
            }
            match body.next(connection, inbox) {
                Ok(None) => return Ok(Ok(())),
                Ok(Some(frag)) => total += frag.len() as u64,
                Err(BodyError::Io(e)) if is_timeout(&e) => {}
                Err(BodyError::Io(e)) => return Err(e.into()),
                Err(e) => return Ok(Err(Reject::closing(400, e.to_string()))),
            }
            if total > MAX_REQUEST_BODY {
                return Ok(Err(request::too_large()));
            }
        }
    }

    fn respond(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        request: &Request,
        last: &mut LastSent,
    ) -> Result<bool, Aborted> {
        let over = [&self.stopping, &*self.crowded].iter().any(|f| f.load(Ordering::Relaxed));
        let keep_alive = request.keep_alive && !over;
        match self.find(request) {
            Ok(Resource::File { file, mime }) => {
                let file = OpenFile::new(file)?;
                self.send_file(connection, request, file, &mime, keep_alive, last)?;
                Ok(keep_alive)
            }
            Ok(Resource::Page(page)) => {
                let mut head = self.head(Status(200), keep_alive);
                head.field("Content-Type", "text/html; charset=utf-8");
                self.send_text(connection, head, request.method, page)?;
                Ok(keep_alive)
            }
            Ok(Resource::Moved(location)) => {
                let mut head = self.head(Status(301), keep_alive);
                head.field("Location", &location)
                    .field("Content-Type", "text/plain; charset=utf-8");
                self.send_text(connection, head, request.method, format!("see {location}\n"))?;
                Ok(keep_alive)
            }
            Err(reject) => self.send_reject(connection, request.method, &reject, keep_alive),
        }
    }

    fn find(&self, request: &Request) -> Result<Resource, Reject> {
        let path = RequestPath::decode(&request.path)?;
        let directory = match self.root.find(&path)? {
            OpenedPath::File(_) if path.is_directory => {
                return Err(Reject::new(404, "this is a file, its name does not end in a slash"));
            }
            OpenedPath::File(file) => {
                return Ok(Resource::File { file, mime: mime(path.file_name()) });
            }
            // RFC 3986 section 5.2: relative links in an index need the slash.
            OpenedPath::Directory(_) if !path.is_directory => {
                return Ok(Resource::Moved(path.as_directory_url()));
            }
            OpenedPath::Directory(directory) => directory,
        };
        if let Ok(OpenedPath::File(file)) = self.root.find(&path.join(b"index.html")) {
            return Ok(Resource::File { file, mime: mime(b"index.html") });
        }
        let page = listing::page(&directory, &path)
            .map_err(|e| Reject::new(500, format!("the directory cannot be read: {e}")))?;
        Ok(Resource::Page(page))
    }

    fn send_file(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        request: &Request,
        file: OpenFile,
        mime: &str,
        keep_alive: bool,
        last: &mut LastSent,
    ) -> Result<(), Aborted> {
        let decision = file.validators.decide(&request.conditions);
        let range = match &request.range {
            // RFC 9110 section 14.2: Range is for GET only, after the conditions.
            Some(range)
                if request.method == Method::Get
                    && decision == Decision::Proceed
                    && file.validators.range_holds(&request.conditions) =>
            {
                select(range, file.len)
            }
            _ => Selection::Whole,
        };
        let (status, first, end) = match (decision, range) {
            (Decision::NotModified, _) => (304, 0, 0),
            (Decision::Failed, _) => (412, 0, 0),
            (Decision::Proceed, Selection::Whole) => (200, 0, file.len),
            (Decision::Proceed, Selection::Part { first, end }) => (206, first, end),
            (Decision::Proceed, Selection::Unsatisfiable) => (416, 0, 0),
        };
        let mut head = self.head(Status(status), keep_alive);
        head.field("ETag", &file.validators.etag);
        if let Some(date) = file.validators.last_modified() {
            head.field("Last-Modified", &date);
        }
        head.field("Accept-Ranges", "bytes");
        match status {
            304 => {}
            412 => {
                head.field("Content-Type", "text/plain; charset=utf-8");
                let text = "the file is not in the state that the request asks for\n".to_owned();
                return self.send_text(connection, head, request.method, text);
            }
            416 => {
                head.field("Content-Range", &format!("bytes */{}", file.len));
                head.field("Content-Type", "text/plain; charset=utf-8");
                let text = format!("the file has {} bytes\n", file.len);
                return self.send_text(connection, head, request.method, text);
            }
            _ => {
                if status == 206 {
                    let range = format!("bytes {first}-{}/{}", end - 1, file.len);
                    head.field("Content-Range", &range);
                }
                head.field("Content-Type", mime).field("X-Content-Type-Options", "nosniff");
                head.field("Content-Length", &(end - first).to_string());
            }
        }
        let head = connection.begin(head);
        if request.method == Method::Head || first == end {
            return self.send_all(connection, head.into(), None);
        }
        let sent = if file.len < self.copy_below {
            self.copy_file(connection, head, &file, first, end)
        } else {
            self.reference_file(connection, head, &file, first, end)
        };
        if matches!(sent, Err(Aborted::Truncated | Aborted::Changed)) {
            self.mappings.forget(&file);
        }
        sent?;
        *last = Some(file);
        Ok(())
    }

    /// Sends the head and bytes `first..end` of the file as references to its pages.
    fn reference_file(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        head: Vec<u8>,
        file: &OpenFile,
        first: u64,
        end: u64,
    ) -> Result<(), Aborted> {
        let (mut head, mut at) = (Some(head), first);
        while at < end {
            let body = self.mappings.frags(file, at, SEND_PIECE.min(end - at));
            let body = body.map_err(|e| io::Error::other(e.to_string()))?;
            let len: u64 = body.iter().map(|f| f.len() as u64).sum();
            at += len;
            let mut frags = FragVec::new();
            frags.extend(head.take().map(|h| Frag::from_bytes(Bytes::from(h))));
            frags.extend(body);
            self.send_frags(connection, frags, Some(file))?;
            self.counters.by_reference.fetch_add(len, Ordering::Relaxed);
        }
        intact(Some(file))
    }

    /// Sends the head and bytes `first..end` of the file through a buffer.
    fn copy_file(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        head: Vec<u8>,
        file: &OpenFile,
        first: u64,
        end: u64,
    ) -> Result<(), Aborted> {
        let mut source = io::Seek::seek(&mut file.file(), io::SeekFrom::Start(first))
            .map(|_| file.file().take(end - first))?;
        let capacity = (end - first).min(SEND_PIECE / 4) as usize;
        let (mut buffer, mut left) = (head, end - first);
        let mut filled = buffer.len();
        buffer.resize(filled + capacity, 0);
        while left > 0 {
            let room = buffer.get_mut(filled..).unwrap_or_default();
            let n = match source.read(room) {
                Ok(0) => return Err(Aborted::Truncated),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            filled += n;
            left -= n as u64;
            if filled == buffer.len() || left == 0 {
                // After the read, so that all that is sent is of one state.
                intact(Some(file))?;
                self.write(connection, buffer.get(..filled).unwrap_or_default())?;
                filled = 0;
            }
        }
        self.counters.by_copy.fetch_add(end - first, Ordering::Relaxed);
        Ok(())
    }

    fn head(&self, status: Status, keep_alive: bool) -> Head {
        self.counters.status(status);
        Head::new(status, keep_alive)
    }

    /// Sends a response whose content is made here.
    fn send_text(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        mut head: Head,
        method: Method,
        text: String,
    ) -> Result<(), Aborted> {
        head.field("Content-Length", &text.len().to_string());
        let text = (method == Method::Get).then(|| Bytes::from(text));
        let head = connection.begin(head).into();
        self.send_all(connection, head, text)
    }

    /// Answers with a status and a line of text; `false` if the connection ends with it.
    fn send_reject(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        method: Method,
        reject: &Reject,
        keep_alive: bool,
    ) -> Result<bool, Aborted> {
        let keep_alive = keep_alive && !reject.close;
        let mut head = self.head(reject.status, keep_alive);
        head.field("Content-Type", "text/plain; charset=utf-8");
        match reject.status.0 {
            405 => drop(head.field("Allow", "GET, HEAD")),
            503 => drop(head.field("Retry-After", "1")),
            _ => {}
        }
        let Status(code) = reject.status;
        let text = format!("{code} {}: {}\n", reject.status.reason(), reject.text);
        self.send_text(connection, head, method, text)?;
        Ok(keep_alive)
    }

    /// Mappings kept for the next reader.
    #[cfg(test)]
    pub(crate) fn windows_kept(&self) -> usize {
        self.mappings.len()
    }

    /// Refuses one connection too many with a 503.
    pub(crate) fn refuse(&self, connection: &mut impl Connection, full: NoPermit) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        let why = match full {
            NoPermit::All => "too many connections",
            NoPermit::Client => {
                self.counters.refused_client.fetch_add(1, Ordering::Relaxed);
                "too many connections from this address"
            }
        };
        let connection = &mut Paced::new(connection, self.min_rate);
        let reject = Reject::closing(503, why);
        let sent = self.send_reject(connection, Method::Get, &reject, false);
        if sent.is_err() || connection.inner.shutdown_write().is_err() {
            connection.inner.abort();
        }
    }

    fn send_all(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        head: Bytes,
        text: Option<Bytes>,
    ) -> Result<(), Aborted> {
        if self.copies_everything() {
            let whole = [&head[..], text.as_deref().unwrap_or_default()].concat();
            return self.write(connection, &whole);
        }
        let frags = std::iter::once(head).chain(text).map(Frag::from_bytes).collect();
        self.send_frags(connection, frags, None)
    }

    /// Sends until all is queued, and checks while it waits whether the file still has the bytes.
    fn send_frags(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        mut frags: FragVec,
        source: Option<&OpenFile>,
    ) -> Result<(), Aborted> {
        intact(source)?;
        connection.inner.set_write_timeout(Some(TICK))?;
        while !frags.is_empty() {
            match connection.send_frags(&mut frags) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(_) => self.counters.completed(connection.inner),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_timeout(&e) => intact(source)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write(
        &self,
        connection: &mut Paced<'_, impl Connection>,
        mut bytes: &[u8],
    ) -> Result<(), Aborted> {
        connection.inner.set_write_timeout(Some(TICK))?;
        while !bytes.is_empty() {
            match connection.write(bytes) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(e) if is_timeout(&e) || e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// RFC 9112 section 9.6: closing at once would reset the connection if the peer still sends, and
    /// the reset may destroy our last response. So we end sending, and read for a while.
    fn close(
        &self,
        connection: &mut impl Connection,
        inbox: &mut Inbox,
        last: &LastSent,
    ) -> Result<(), Aborted> {
        connection.shutdown_write()?;
        let mut read = 0;
        let deadline = Instant::now() + LINGER_TIME;
        while Instant::now() < deadline && read < LINGER_BYTES {
            intact(last.as_ref())?;
            connection.set_read_timeout(Some(TICK))?;
            match inbox.fill(connection) {
                Ok(false) => break,
                Ok(true) => {
                    while let Some(frag) = inbox.take(usize::MAX) {
                        read += frag.len();
                    }
                }
                Err(e) if is_timeout(&e) => {}
                Err(_) => break,
            }
        }
        Ok(())
    }
}

/// The answer to a request.
enum Resource {
    File { file: File, mime: String },
    Page(String),
    Moved(String),
}

fn mime(name: &[u8]) -> String {
    let path = Path::new(std::ffi::OsStr::from_bytes(name));
    mime_guess::from_path(path).first_or_octet_stream().to_string()
}
