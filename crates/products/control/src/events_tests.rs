//! Events of tracing: each is reported once.

use std::fmt;
use std::io::Read;
use std::sync::{Arc, Mutex};

use pagewire::Pair;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use super::*;

/// The fields of each reported event.
#[derive(Clone, Default)]
struct Reported(Arc<Mutex<Vec<String>>>);

impl Reported {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Reported {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pagewire_control")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().expect("no panic").push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn tracer() -> Tracer {
    Tracer { name: "a".to_owned(), counts: Counts::default(), look_at: Some(Instant::ZERO) }
}

fn hosts() -> (Host, Host) {
    let (left, right) = Pair::new().expect("a pair");
    let host = |device, at| Host::builder().device(device).address(at).start().expect("a host");
    (host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24"))
}

#[test]
fn only_what_came_since_the_last_look_is_news() {
    let mut counts = Counts::default();
    assert_eq!(counts.grown(vec![("a", 3), ("b", 0)]), [("a", 3)]);
    assert_eq!(counts.grown(vec![("a", 3), ("b", 0)]), []);
    assert_eq!(counts.grown(vec![("a", 5), ("b", 1)]), [("a", 2), ("b", 1)]);
    assert_eq!(counts.grown(vec![("a", 5), ("b", 1)]), []);
}

#[test]
fn an_anomaly_is_said_once() {
    let (host, peer) = hosts();
    let (reported, mut tracer) = (Reported::default(), tracer());
    tracing::subscriber::with_default(reported.clone(), || {
        let mut check = || host.with_stack(|stack, _| tracer.note_anomalies(stack));
        check();
        assert_eq!(reported.take(), [""; 0], "nothing has happened");
        assert!(peer.connect("10.0.0.1:81").is_err(), "nobody listens");
        check();
        let lines = reported.take();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("what=\"tcp_no_socket\" count=1"), "{lines:?}");
        check();
        assert_eq!(reported.take(), [""; 0], "it was said");
    });
}

#[test]
fn connections_are_said_once_when_they_begin_and_when_they_end() {
    let (left, right) = Pair::new().expect("a pair");
    let host = Host::builder().device(left).address("10.0.0.1/24").manual();
    let host = host.start().expect("a host");
    let peer = Host::builder().device(right).address("10.0.0.2/24").start().expect("a host");
    let listener = peer.listen("10.0.0.2:80").expect("a listener");
    let reported = Reported::default();
    tracing::subscriber::with_default(reported.clone(), || {
        trace("a", &host);
        let lines = |part: &str| {
            let all = reported.0.lock().expect("no panic");
            all.iter().filter(|line| line.contains(part)).cloned().collect::<Vec<_>>()
        };
        for _ in 0..2 {
            let stream = host.connect("10.0.0.2:80").expect("a connection");
            let (mut accepted, _) = listener.accept().expect("a connection");
            stream.send(vec![7; 1000]).expect("room");
            drop(stream);
            assert_eq!(accepted.read_to_end(&mut Vec::new()).expect("bytes"), 1000);
            drop(accepted);
        }
        while lines("connection ended").len() < 2 {
            host.wait_turn(std::time::Duration::from_secs(1));
        }
        let _open = host.connect("10.0.0.2:80").expect("a connection");
        assert_eq!(lines("connection established").len(), 3);
        let ended = lines("connection ended");
        assert!(ended.iter().all(|line| line.contains("sent=1000 received=0")), "{ended:?}");
        // An event that another service takes is not reported again.
        struct Other;
        impl Service for Other {
            fn turn(&mut self, _: Instant, _: &mut Stack, _: &[Event]) {}
        }
        host.attach(Other);
        host.turn();
        host.shutdown(std::time::Duration::from_secs(5));
        assert_eq!(lines("connection ended").len(), 2);
        trace_end("a", &host);
        assert_eq!(
            (lines("connection established").len(), lines("connection ended").len()),
            (3, 3)
        );
    });
}
