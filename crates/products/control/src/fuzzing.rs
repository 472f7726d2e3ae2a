//! Test hooks for fuzzers: bytes of a client of the control socket.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{Client, Fate, Kind, READ_BYTES};
use crate::firewall::Firewall;
use crate::limits::{ANSWER_BYTES, REQUEST_BYTES};
use crate::protocol::{Answer, Change, Flow, Refusal, Refusals, Rule, Rules};
use crate::snapshot::MemoryFile;
use crate::view::View;

/// Flows of the gateway: a few pages of those that a request may ask for.
const FLOWS: u64 = 12;

/// Most pieces, each of which costs some system calls.
const PIECES: usize = 512;

/// A gateway that says what a change was, if changes are permitted.
struct Gateway {
    is_open: bool,
    changes: Arc<AtomicU64>,
}

impl Firewall for Gateway {
    fn may_change(&self, _client: BorrowedFd<'_>) -> bool {
        self.is_open
    }

    fn rules(&self) -> Rules {
        let rule = "*.example.org:443".to_owned();
        let rule = Rule { effect: "allow".to_owned(), rule, answer: None };
        Rules { rules: vec![rule], restricted: true, clients_restricted: false }
    }

    fn flows(&self) -> Vec<Flow> {
        let flow = |number| Flow {
            flow: number,
            guest: 1,
            protocol: "tcp".to_owned(),
            direction: "out".to_owned(),
            from: ([10, 0, 2, 15], 40_000).into(),
            to: ([203, 0, 113, 1], 443).into(),
            peer: ([203, 0, 113, 1], 443).into(),
            names: vec!["example.org".to_owned()],
            shown: Some("example.org".to_owned()),
            shown_by: Some("tls".to_owned()),
            bytes_out: u64::MAX,
            bytes_in: 0,
            age_ms: number,
            open: true,
        };
        // The last number is the largest, as no page must lead beyond it.
        (1..FLOWS).chain([u64::MAX]).map(flow).collect()
    }

    fn refusals(&self) -> Refusals {
        let refusal = Refusal { what: "example.com".to_owned(), times: 1, permission: None };
        Refusals { names: 1, addresses: 0, most: vec![refusal] }
    }

    fn change(&self, change: &Change) -> Result<String, String> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        match change {
            Change::Kill { flow } => Err(format!("there is no flow {flow}")),
            // The answer has the client's own text.
            change => Ok(format!("{change:?}")),
        }
    }
}

/// Bytes of a client in pieces of `piece` bytes, or larger ones if these were more than `PIECES`, to a process with a
/// gateway that takes changes, or does not, and no hosts. Each line gets one line of an answer; a client that sends a
/// line without end is closed.
pub fn control_lines(bytes: &[u8], piece: usize, is_open: bool) {
    let changes = Arc::new(AtomicU64::new(0));
    let gateway = Gateway { is_open, changes: Arc::clone(&changes) };
    let view = View {
        hosts: Mutex::default(),
        sections: vec![("gateway".to_owned(), Box::new(|| vec![("flows", FLOWS)]))],
        firewall: Some(Arc::new(gateway)),
        began: Instant::now(),
        // An input must find the same at each run.
        memory: MemoryFile(None),
        command: vec!["pagewire".to_owned()],
    };
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return };
    if ours.set_nonblocking(true).and(theirs.set_nonblocking(true)).is_err() {
        return;
    }
    let mut client = Client::new(ours.into(), Kind::Control, Instant::now());
    let (mut received, mut is_closed) = (Vec::new(), false);
    for piece in bytes.chunks(piece.max(bytes.len() / PIECES).clamp(1, READ_BYTES)) {
        assert!(theirs.write_all(piece).is_ok(), "the server has read all before");
        // Answers may be longer than the socket's buffer.
        loop {
            is_closed = client.serve(&view, false, Instant::now()) == Fate::Goes;
            assert!(client.request.len() <= REQUEST_BYTES + READ_BYTES, "requests pile up");
            assert!(client.out.len() <= ANSWER_BYTES, "an answer is longer than a client takes");
            if read(&mut theirs, &mut received) == 0 || is_closed {
                break;
            }
        }
        if is_closed {
            break;
        }
        assert!(client.out.is_empty() && client.request.len() <= REQUEST_BYTES);
    }
    drop(client);
    read(&mut theirs, &mut received);
    let (lines, is_last_too_long) = requests(bytes);
    assert_eq!(is_closed, is_last_too_long, "who is closed");
    let answers: Vec<&[u8]> = received.split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!(answers.len(), lines, "each line has one answer");
    let mut made = 0;
    for line in answers {
        assert!(line.ends_with(b"\n"), "an answer ends with its line");
        let answer = serde_json::from_slice::<Answer>(line);
        assert!(answer.is_ok(), "a client does not understand {line:?}");
        made += u64::from(matches!(answer, Ok(Answer::Done { .. })));
    }
    let tried = changes.load(Ordering::Relaxed);
    assert!(made <= tried && (is_open || tried == 0), "a change was made that is not permitted");
}

/// Number of requests up to and with the first that is too long, and whether there is such a one.
fn requests(bytes: &[u8]) -> (usize, bool) {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let mut n = 0;
    for line in lines {
        if line.len() > REQUEST_BYTES {
            return (n + 1, true);
        }
        n += usize::from(line.ends_with(b"\n"));
    }
    (n, false)
}

/// Takes what there is to read. Returns its length.
fn read(stream: &mut UnixStream, received: &mut Vec<u8>) -> usize {
    let before = received.len();
    match stream.read_to_end(received) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "the socket works"),
    }
    received.len() - before
}
