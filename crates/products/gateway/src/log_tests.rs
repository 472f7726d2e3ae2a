//! The log: records as lines, losses, and the end.

use std::time::Duration;

use super::*;
use crate::request::Protocol;
use crate::request::{GuestId, How};

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
    let opened = Record::Opened { flow: 7, ask: ask.clone(), peer, via: None };
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

/// A writer that takes lines once the test lets it.
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

#[test]
fn refused_names_and_sums_of_refusals_are_lines_too() {
    let start = "{\"time\":1.500000,\"event\":";
    let name = Some("pypi.org".parse().unwrap());
    let line = text(Record::DeniedName { guest: GuestId(3), name, audit: false });
    let rest = "\"name\",\"guest\":3,\"name\":\"pypi.org\",\"verdict\":\"refuse\"}";
    assert_eq!(line, format!("{start}{rest}"));
    let line = text(Record::DeniedName { guest: GuestId(3), name: None, audit: false });
    assert!(line.contains("\"name\":null,"), "{line}");
    let duration = Duration::from_secs(1);
    let line = text(Record::Denials { guest: GuestId(3), count: 1234, duration });
    let rest = "\"denials\",\"guest\":3,\"count\":1234,\"seconds\":1.000000}";
    assert_eq!(line, format!("{start}{rest}"));
}

#[test]
fn a_flood_of_verdicts_leaves_room_for_connections() {
    let (to, start, taken) = slow();
    let log = Log::new(to).unwrap();
    for flow in 0..3 * LOG_LINES as u64 {
        log.note(Record::Verdict { flow, ask: ask(&[]), verdict: Verdict::Prohibit });
    }
    let opened = (LOG_LINES - LOG_VERDICTS) as u64;
    for flow in 0..opened {
        let peer = "192.0.2.1:443".parse().unwrap();
        log.note(Record::Opened { flow, ask: ask(&[]), peer, via: None });
    }
    start.send(()).unwrap();
    drop(log);
    let text = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
    let count = |event: &str| text.lines().filter(|line| line.contains(event)).count();
    assert_eq!(count("\"event\":\"opened\""), opened as usize);
    assert_eq!(count("\"event\":\"lost\""), 1);
}

/// A writer that takes nothing while its disk is full.
struct Disk {
    full: Arc<std::sync::atomic::AtomicBool>,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.taken.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_a_full_disk_the_log_goes_on_and_says_how_much_is_lost() {
    let full = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let taken = Arc::<Mutex<Vec<u8>>>::default();
    let log = Log::new(Disk { full: Arc::clone(&full), taken: Arc::clone(&taken) }).unwrap();
    let note = |flow| {
        log.note(Record::Verdict { flow, ask: ask(&[]), verdict: Verdict::Allow });
        while log.waiting.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
    };
    let all = 200;
    (0..all).for_each(note);
    full.store(false, Ordering::SeqCst);
    note(all);
    drop(log);
    let text = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
    let lost = text.lines().find_map(|line| line.split("\"lost\",\"lines\":").nth(1));
    let lost: u64 = lost.expect("a line about it").trim_end_matches('}').parse().unwrap();
    assert!(lost > 0);
    let verdicts = text.lines().filter(|line| line.contains("\"verdict\"")).count() as u64;
    assert_eq!(lost + verdicts, all + 1);
    assert!(text.contains(&format!("\"flow\":{all},")));
}
