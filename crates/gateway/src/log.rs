//! The journal as a file: one JSON object in each line.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ask::{Ask, Direction, Journal, Protocol, Record, Verdict};
use crate::limits::{LOG_END_TIME, LOG_LINES};

/// Writes records as lines of JSON, from a thread of its own: who notes them never waits. Lines
/// beyond [`LOG_LINES`] that were not written yet are lost, and a line says how many.
///
/// Each line has `time` (seconds since 1970), `event` (`verdict`, `opened`, `closed` or `lost`),
/// `guest`, `flow`, `protocol`, `direction`, `from`, `to` and `names`. A verdict has `verdict`, and
/// `via` where it leads elsewhere; an opened flow has `peer`; a closed one has `bytes_out`,
/// `bytes_in`, `seconds` and `how`.
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
    lost: Arc<AtomicU64>,
    /// Disconnected when the thread has written all.
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
        let lost = Arc::<AtomicU64>::default();
        let writer = Writer { queue, lost: Arc::clone(&lost), to: BufWriter::new(to) };
        thread::Builder::new().name("pagewire-log".into()).spawn(move || {
            writer.run();
            drop::<Sender<()>>(ended);
        })?;
        Ok(Self { lines: Some(lines), lost, end: Mutex::new(end) })
    }
}

impl Journal for Log {
    fn note(&self, record: Record) {
        let line = Line { at: SystemTime::now(), record };
        let sent = self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_ok());
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Log {
    /// Waits until all is written, but not for ever: the other end may be a pipe that nobody reads.
    fn drop(&mut self) {
        self.lines = None;
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = end.recv_timeout(LOG_END_TIME);
    }
}

struct Writer<W: Write> {
    queue: Receiver<Line>,
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
            // As many as are there, then what was written goes out.
            for line in first.into_iter().chain(std::iter::from_fn(|| self.queue.try_recv().ok())) {
                result = result.and(write(&mut self.to, &line));
            }
            let result = result.and_then(|()| self.flush());
            if let Err(error) = result
                && !std::mem::replace(&mut failed, true)
            {
                tracing::warn!(%error, "the log of connections cannot be written");
            }
            if over {
                return;
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let at = seconds(SystemTime::now());
            writeln!(self.to, "{{\"time\":{at},\"event\":\"lost\",\"lines\":{lost}}}")?;
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

/// One line, without its end.
fn describe(out: &mut String, line: &Line) {
    let time = seconds(line.at);
    match &line.record {
        Record::Verdict { flow, ask, verdict } => {
            begin(out, &time, "verdict", *flow, ask);
            match verdict {
                Verdict::Allow => out.push_str(",\"verdict\":\"allow\""),
                Verdict::Refuse => out.push_str(",\"verdict\":\"refuse\""),
                Verdict::Prohibit => out.push_str(",\"verdict\":\"prohibit\""),
                Verdict::Drop => out.push_str(",\"verdict\":\"drop\""),
                Verdict::To(to) => {
                    // Writing to a string does not fail.
                    let _ = write!(out, ",\"verdict\":\"to\",\"via\":\"{to}\"");
                }
            }
        }
        Record::Opened { flow, ask, peer } => {
            begin(out, &time, "opened", *flow, ask);
            let _ = write!(out, ",\"peer\":\"{peer}\"");
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
    let protocol = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Echo => "icmp",
    };
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
        out.push_str(if at == 0 { "\"" } else { ",\"" });
        // Names are printable ASCII, which may still have what ends a string.
        for c in name.as_str().chars() {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
        out.push('"');
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ask::{GuestId, How};

    fn ask(names: &[&str]) -> Ask {
        let (from, to) = ("10.0.2.15:4000".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap());
        let names = names.iter().map(|name| name.parse().unwrap()).collect();
        Ask { names, ..Ask::new(GuestId(3), Protocol::Tcp, from, to) }
    }

    fn text(record: Record) -> String {
        let mut out = String::new();
        describe(&mut out, &Line { at: UNIX_EPOCH + Duration::from_micros(1_500_000), record });
        out
    }

    #[test]
    fn a_record_is_one_json_object() {
        let start = "{\"time\":1.500000,\"event\":";
        let flow = "\"guest\":3,\"flow\":7,\"protocol\":\"tcp\",\"direction\":\"out\",\
                    \"from\":\"10.0.2.15:4000\",\"to\":\"[2001:db8::1]:443\",\
                    \"names\":[\"a.org\",\"b.org\"]";
        let ask = ask(&["a.org", "b.org"]);
        let verdict = Record::Verdict { flow: 7, ask: ask.clone(), verdict: Verdict::Prohibit };
        let expected = format!("{start}\"verdict\",{flow},\"verdict\":\"prohibit\"}}");
        assert_eq!(text(verdict), expected);
        let via = Verdict::To("127.0.0.1:80".parse().unwrap());
        let verdict = Record::Verdict { flow: 7, ask: ask.clone(), verdict: via };
        assert!(text(verdict).ends_with(",\"verdict\":\"to\",\"via\":\"127.0.0.1:80\"}"));
        let peer = "192.0.2.1:443".parse().unwrap();
        let opened = Record::Opened { flow: 7, ask: ask.clone(), peer };
        let expected = format!("{start}\"opened\",{flow},\"peer\":\"192.0.2.1:443\"}}");
        assert_eq!(text(opened), expected);
        let duration = Duration::from_micros(2_250_001);
        let how = How::PeerReset;
        let closed = Record::Closed { flow: 7, ask, bytes_out: 5, bytes_in: 6, duration, how };
        let rest = "\"bytes_out\":5,\"bytes_in\":6,\"seconds\":2.250001,\"how\":\"peer-reset\"";
        assert_eq!(text(closed), format!("{start}\"closed\",{flow},{rest}}}"));
    }

    #[test]
    fn a_name_ends_no_string() {
        let ask = ask(&["a\\b\"c.org"]);
        let verdict = Record::Verdict { flow: 1, ask, verdict: Verdict::Allow };
        assert!(text(verdict).contains(r#""names":["a\\b\"c.org"]"#));
    }

    /// Takes lines once it is told to.
    struct Slow {
        begin: Option<Receiver<()>>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(begin) = self.begin.take() {
                let _ = begin.recv();
            }
            self.taken.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Slow, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (start, begin) = channel();
        let taken = Arc::<Mutex<Vec<u8>>>::default();
        (Slow { begin: Some(begin), taken: Arc::clone(&taken) }, start, taken)
    }

    #[test]
    fn all_lines_are_written_before_the_log_is_gone() {
        let (to, start, taken) = slow();
        start.send(()).unwrap();
        let log = Log::new(to).unwrap();
        for flow in 0..1000 {
            log.note(Record::Verdict { flow, ask: ask(&[]), verdict: Verdict::Allow });
        }
        drop(log);
        let text = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1000);
        assert!(text.lines().last().unwrap().contains("\"flow\":999,"));
    }

    #[test]
    fn who_notes_never_waits_and_lost_lines_are_counted() {
        let (to, start, taken) = slow();
        let log = Log::new(to).unwrap();
        let all = 3 * LOG_LINES as u64;
        for flow in 0..all {
            log.note(Record::Verdict { flow, ask: ask(&[]), verdict: Verdict::Allow });
        }
        start.send(()).unwrap();
        drop(log);
        let text = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
        let lost = text.lines().find_map(|line| line.split("\"lost\",\"lines\":").nth(1));
        let lost: u64 = lost.expect("a line about it").trim_end_matches('}').parse().unwrap();
        assert!(lost > 0);
        assert_eq!(lost + text.lines().count() as u64 - 1, all);
    }
}
