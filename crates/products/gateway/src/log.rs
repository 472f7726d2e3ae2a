//! [`Log`]: a journal that writes one JSON object a line, from a thread of its own.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bounded_log::BoundedLog;
use crate::limits::{LOG_BYTES_LEAST, LOG_END_TIME, LOG_LINES, LOG_VERDICTS};
use crate::request::{Ask, Direction, Journal, Name, Record, Shown, Verdict};

/// Writes records as lines of JSON, from a thread of its own, so callers never wait. Lines that wait beyond
/// [`LOG_LINES`] are lost, as are lines about verdicts and flows without a byte beyond [`LOG_VERDICTS`]; a line
/// reports their number. Lines that cannot be written, on a full disk for instance, are lost, too; later ones
/// are tried again.
///
/// Each line has `time` (seconds since 1970) and `event`. Of a flow, `verdict`, `opened`, `mismatch` and `closed`
/// have `guest`, `flow`, `protocol`, `direction`, `from`, `to` and `names`. A verdict has `verdict`,
/// and `via` where it leads elsewhere; an opened flow has `peer`, and `via` where that is a proxy; a mismatch has `shown`, the name that
/// the flow shows, and `by`, the protocol that shows it; a closed one has `bytes_out`,
/// `bytes_in`, `seconds` and `how`. A `name` that was refused has `guest` and `name`; `denials` has
/// `guest`, and `count`, the refusals in `seconds` that have no line; `lost` has `lines`.
///
/// ```
/// use pagewire_gateway::Log;
///
/// let log = Log::new(std::io::stderr())?;
/// // Gateway::builder().journal(log)
/// # drop(log);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Log {
    /// `None` once the log is being dropped.
    lines: Option<SyncSender<Line>>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    /// The receiver disconnects when the thread has written all lines.
    end: Mutex<Receiver<()>>,
}

#[derive(Debug)]
struct Line {
    at: SystemTime,
    record: Record,
}

impl Log {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn new(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, queue) = sync_channel(LOG_LINES);
        let (ended, end) = channel();
        let (waiting, lost) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let counts = (Arc::clone(&waiting), Arc::clone(&lost));
        let writer = Writer { queue, waiting: counts.0, lost: counts.1, to: BufWriter::new(to) };
        thread::Builder::new().name("pagewire-log".into()).spawn(move || {
            writer.run();
            drop::<Sender<()>>(ended);
        })?;
        Ok(Self { lines: Some(lines), waiting, lost, end: Mutex::new(end) })
    }

    /// As [`new`](Self::new), to a file that is open for reading and appending, and keeps its latest lines: when it
    /// would have more than `most` bytes, but not less than
    /// [`LOG_BYTES_LEAST`](crate::limits::LOG_BYTES_LEAST), the older half is removed. Pipes and the like have no
    /// limit, nor has a file that can only be appended to.
    ///
    /// # Errors
    /// If the system has no thread left, or does not say what the file is.
    pub fn to_file(file: File, most: u64) -> io::Result<Self> {
        Self::new(BoundedLog::new(file, most.max(LOG_BYTES_LEAST))?)
    }

    /// Opens, makes if need be, and locks a file for [`to_file`](Self::to_file), while this process still
    /// may. Returns its limit, too: `most`, or none if the file cannot be read, or another process has
    /// locked it, whose lines would be lost.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path, most: u64) -> io::Result<(File, u64)> {
        crate::bounded_log::open(path, most)
    }
}

impl Journal for Log {
    fn note(&self, record: Record) {
        // A guest causes cheap records as quickly as it sends packets.
        let is_cheap = match record {
            Record::Verdict { .. }
            | Record::DeniedName { .. }
            | Record::Mismatch { .. }
            | Record::Audit { .. } => true,
            Record::Closed { bytes_out, bytes_in, .. } => bytes_out + bytes_in == 0,
            _ => false,
        };
        let line = Line { at: SystemTime::now(), record };
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let has_room = !is_cheap || before < LOG_VERDICTS;
        let sent = has_room && self.lines.as_ref().is_some_and(|to| to.try_send(line).is_ok());
        if !sent {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Log {
    /// Waits until all lines are written, within a limit: the other end may be a pipe that nobody reads.
    fn drop(&mut self) {
        self.lines = None;
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = end.recv_timeout(LOG_END_TIME);
    }
}

struct Writer<W: Write> {
    queue: Receiver<Line>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    to: BufWriter<W>,
}

impl<W: Write> Writer<W> {
    fn run(mut self) {
        let mut failed = false;
        loop {
            let first = self.queue.recv();
            let over = first.is_err();
            let mut result = Ok(());
            // Writes all lines that wait, then flushes.
            for line in first.into_iter().chain(std::iter::from_fn(|| self.queue.try_recv().ok())) {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                let written = write(&mut self.to, &line);
                self.lost.fetch_add(u64::from(written.is_err()), Ordering::Relaxed);
                result = result.and(written);
            }
            let result = result.and_then(|()| self.flush());
            match result {
                Err(error) if !failed => {
                    tracing::warn!(%error, "the log of connections cannot be written");
                    failed = true;
                }
                Err(_) => {}
                Ok(()) if failed => {
                    tracing::warn!("the log of connections is written again");
                    failed = false;
                }
                Ok(()) => {}
            }
            if over {
                return;
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // Bytes that could not be written before go first.
        self.to.flush()?;
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 {
            let at = seconds(SystemTime::now());
            writeln!(self.to, "{{\"time\":{at},\"event\":\"lost\",\"lines\":{lost}}}")?;
            self.lost.fetch_sub(lost, Ordering::Relaxed);
        }
        self.to.flush()
    }
}

fn write(to: &mut impl Write, line: &Line) -> io::Result<()> {
    let mut text = String::with_capacity(256);
    describe(&mut text, line);
    text.push('\n');
    to.write_all(text.as_bytes())
}

fn seconds(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06}", since.as_secs(), since.subsec_micros())
}

/// Formats one line, without its end.
fn describe(out: &mut String, line: &Line) {
    let time = seconds(line.at);
    match &line.record {
        Record::Verdict { flow, ask, verdict } => {
            begin(out, &time, "verdict", *flow, ask);
            match verdict {
                Verdict::Allow => out.push_str(",\"verdict\":\"allow\""),
                Verdict::Refuse => out.push_str(",\"verdict\":\"refuse\""),
                Verdict::Unreachable => out.push_str(",\"verdict\":\"unreachable\""),
                Verdict::Prohibit => out.push_str(",\"verdict\":\"prohibit\""),
                Verdict::Drop => out.push_str(",\"verdict\":\"drop\""),
                Verdict::To(to) => {
                    // Writing to a string does not fail.
                    let _ = write!(out, ",\"verdict\":\"to\",\"via\":\"{to}\"");
                }
            }
        }
        Record::Mismatch { flow, ask, shown } => {
            begin(out, &time, "mismatch", *flow, ask);
            show(out, shown);
            out.push_str(",\"verdict\":\"refuse\"");
        }
        Record::Audit { flow, ask, shown, permission } => {
            begin(out, &time, "audit", *flow, ask);
            if let Some(shown) = shown {
                show(out, shown);
            }
            if let Some(rule) = permission {
                // A rule has neither quotes nor backslashes.
                let _ = write!(out, ",\"allow\":\"{rule}\"");
            }
            out.push_str(",\"verdict\":\"audit\"");
        }
        Record::DeniedName { guest, name, audit } => {
            let _ = write!(out, "{{\"time\":{time},\"event\":\"name\",\"guest\":{guest},\"name\":");
            match name {
                Some(name) => quote(out, name),
                None => out.push_str("null"),
            }
            let verdict = if *audit { "audit" } else { "refuse" };
            let _ = write!(out, ",\"verdict\":\"{verdict}\"");
        }
        Record::Denials { guest, count, duration } => {
            let seconds = duration.as_secs_f64();
            let _ = write!(
                out,
                "{{\"time\":{time},\"event\":\"denials\",\"guest\":{guest},\"count\":{count},\
                 \"seconds\":{seconds:.6}"
            );
        }
        Record::Opened { flow, ask, peer, via } => {
            begin(out, &time, "opened", *flow, ask);
            let _ = write!(out, ",\"peer\":\"{peer}\"");
            if let Some(proxy) = via {
                // A URL of a proxy has no quotes.
                let _ = write!(out, ",\"via\":\"{proxy}\"");
            }
        }
        Record::Closed { flow, ask, bytes_out, bytes_in, duration, how } => {
            begin(out, &time, "closed", *flow, ask);
            let (seconds, how) = (duration.as_secs_f64(), how.name());
            let _ = write!(
                out,
                ",\"bytes_out\":{bytes_out},\"bytes_in\":{bytes_in},\"seconds\":{seconds:.6},\
                 \"how\":\"{how}\""
            );
        }
    }
    out.push('}');
}

fn begin(out: &mut String, time: &str, event: &str, flow: u64, ask: &Ask) {
    let Ask { guest, protocol, from, to, names, direction, .. } = ask;
    let direction = match direction {
        Direction::Out => "out",
        Direction::In => "in",
    };
    let _ = write!(
        out,
        "{{\"time\":{time},\"event\":\"{event}\",\"guest\":{guest},\"flow\":{flow},\
         \"protocol\":\"{protocol}\",\"direction\":\"{direction}\",\"from\":\"{from}\",\
         \"to\":\"{to}\",\"names\":["
    );
    for (at, name) in names.iter().enumerate() {
        out.push_str(if at == 0 { "" } else { "," });
        quote(out, name);
    }
    out.push(']');
}

fn show(out: &mut String, shown: &Shown) {
    let _ = write!(out, ",\"by\":\"{}\",\"shown\":", shown.by.name());
    match &shown.name {
        Some(name) => quote(out, name),
        None => out.push_str("null"),
    }
}

/// Quotes a name as a string of JSON: printable ASCII, which may still have quotes and backslashes.
fn quote(out: &mut String, name: &Name) {
    out.push('"');
    for c in name.as_str().chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
