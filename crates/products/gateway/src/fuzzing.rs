//! Test hooks for fuzzers: bytes of a guest, and of a resolver.

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagewire::device::{PacketBuf, TxChecksum};
use pagewire::memory::{CopyLedger, Frag};
use pagewire::services::Instant;
use pagewire::{Device, Pair};

use crate::asking::{Lines, read_answer};
use crate::autoconf::{Autoconf, AutoconfConfig};
use crate::dns::query::{BadQuery, Code, Query, refuse};
use crate::limits::{HELD, HELD_DATAGRAMS, JUDGE_LINE, VIA_HEAD};
use crate::policy::{Rule, RulesEntry, RulesFile};
use crate::request::{Demand, Shown};
use crate::shown::{DatagramGate, Gate, Next, Pass};
use crate::via::{self, Handshake, ProxyKind, Refused, Target, TargetHost, Via};

/// Reads any bytes as a query and as its answer, and answers it in every way.
pub fn dns_message(query: &[u8], answer: &[u8]) {
    match Query::parse(query) {
        Ok(asked) => {
            let error = asked.answer(query, Code::Refused);
            assert!(asked.is_answered_by(query, &error), "an error of ours is no answer");
            let own = asked.lead_to(query, &[[10, 0, 2, 2].into()]);
            assert!(asked.is_answered_by(query, &own), "an own name's answer is none");
            let _ = asked.is_answered_by(query, answer);
            let _ = asked.resolved(answer);
        }
        Err(BadQuery::Answered(code)) => assert_eq!(refuse(query, code).len(), 12),
        Err(BadQuery::Ignored) => {}
    }
}

/// Frames of a guest on a link that configures it: each byte string is one, `head` bytes of it in
/// the packet's head. At most one answer to each.
pub fn autoconf<'a>(frames: impl IntoIterator<Item = (&'a [u8], usize)>) {
    let (Ok((router, mut guest)), Ok(network)) = (Pair::new(), "fd00:2::2/64".parse()) else {
        return;
    };
    let mut config = AutoconfConfig::new(network);
    config.guest = "fd00:2::15".parse().ok();
    config.dns.extend("fd00:2::2".parse::<Ipv6Addr>().ok());
    config.search = vec!["internal".into()];
    let Ok(mut router) = Autoconf::new(router, config) else { return };
    let mut ledger = CopyLedger::new();
    for (bytes, head) in frames {
        let head = head.min(bytes.len()).min(128);
        let mut frame = PacketBuf::for_rx();
        let Some(room) = frame.append(head) else { return };
        room.copy_from_slice(bytes.get(..head).unwrap_or_default());
        let rest = bytes.get(head..).unwrap_or_default().to_vec();
        if frame.push_frag(Frag::from_bytes(rest.into())).is_err() {
            return;
        }
        // The frame counts as verified: the fuzzer could not guess a checksum.
        frame.tx_checksum = TxChecksum::Partial { start: 54, offset: 2 };
        let (mut sent, mut stack, mut back) =
            (VecDeque::from([frame]), VecDeque::new(), VecDeque::new());
        let now = Instant::from_millis(1);
        let _ = guest.transmit(now, &mut sent, &mut ledger);
        let _ = router.receive(now, &mut stack, 8, &mut ledger);
        let _ = guest.receive(now, &mut back, 8, &mut ledger);
        // There may be one more frame than answers: the first advertisement to all nodes.
        assert!(stack.len() + back.len() <= 2, "a frame became several");
    }
}

/// The text of a rule: what parses prints as text that parses to the same.
pub fn rule(text: &str) {
    if let Ok(rule) = text.parse::<Rule>() {
        assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule), "what we print, we parse");
    }
}

/// The text of a file with rules: one that has no mistake prints as a file with the same rules, and mistakes have one
/// line each.
pub fn rules_file(text: &str) {
    match RulesFile::parse(text) {
        Ok(file) => {
            let again = RulesFile::parse(&file.to_string());
            let rules = |file: &RulesFile| -> Vec<_> {
                let parts = |e: &RulesEntry| (e.rule.clone(), e.answer, e.comment.clone());
                file.entries().iter().map(parts).collect()
            };
            assert_eq!(
                again.map(|again| rules(&again)),
                Ok(rules(&file)),
                "what we print, we parse"
            );
        }
        Err(mistakes) => {
            let lines = mistakes.to_string().lines().count();
            assert_eq!(lines, mistakes.mistakes().len(), "a mistake is one line");
            assert!(lines > 0, "no reason is given");
        }
    }
}

/// The bytes of a connection that must show `a.org`, in pieces of at most `piece` bytes. The far side agrees to changes
/// of protocol, or does not. Whatever the pieces, the same bytes pass, from the front on.
pub fn shown(bytes: &[u8], piece: usize, switches: bool) {
    let passed = pass(bytes, piece.max(1), switches);
    assert!(bytes.starts_with(&passed), "other bytes pass than came");
    assert_eq!(passed, pass(bytes, usize::MAX, switches), "pieces change what passes");
}

fn is_permitted(shown: &Shown) -> bool {
    shown.name.as_ref().is_some_and(|name| name.as_str() == "a.org")
}

fn pass(bytes: &[u8], piece: usize, switches: bool) -> Vec<u8> {
    let (mut left, mut passed) = (bytes, Vec::new());
    let account = Arc::default();
    let Some(mut gate) = Gate::new(Demand::PermittedName, &account) else { return passed };
    loop {
        assert!(account.load(Ordering::Relaxed) <= HELD, "more is held than may be");
        match gate.next() {
            Next::Send => {
                let n = gate.passing().len().min(piece);
                passed.extend_from_slice(gate.passing().get(..n).unwrap_or_default());
                gate.note_sent(n);
            }
            Next::Pass(_) | Next::Read(_) if left.is_empty() => return passed,
            Next::Pass(most) => {
                let (front, rest) = left.split_at(left.len().min(piece).min(most as usize));
                passed.extend_from_slice(front);
                gate.note_passed(front.len() as u64);
                left = rest;
            }
            Next::Read(room) => {
                let (front, rest) = left.split_at(left.len().min(piece).min(room));
                gate.put(front);
                left = rest;
            }
            Next::Judge(shown) if is_permitted(&shown) => gate.permit(),
            Next::Judge(_) => gate.refuse(),
            Next::Wait => gate.answered(switches),
            Next::Open => {
                passed.extend_from_slice(left);
                return passed;
            }
            Next::Refuse(_) => return passed,
        }
    }
}

/// Datagrams of a flow that must show `a.org` by QUIC.
pub fn shown_datagrams<'a>(datagrams: impl Iterator<Item = &'a [u8]>) {
    let mut gate = DatagramGate::new(&Arc::default());
    for datagram in datagrams {
        match gate.put(datagram.to_vec()) {
            Pass::Judge(shown) if is_permitted(&shown) => {
                assert!(gate.permit().len() <= HELD_DATAGRAMS + 1, "more is held than may be");
            }
            Pass::Judge(_) => gate.refuse(),
            Pass::Send(same) => assert_eq!(same, datagram),
            Pass::Hold | Pass::Refuse(_) => {}
        }
    }
}

/// The text of a way out: its errors repeat nothing of what may be a password.
pub fn via(text: &str) {
    let Ok(Via { rule, proxy: Some(url) }) = text.parse::<Via>() else { return };
    let rule = rule.map(|rule| format!("{rule}=")).unwrap_or_default();
    let again = format!("{rule}{url}").parse::<Via>();
    assert_eq!(again.ok().and_then(|via| via.proxy), Some(url), "what we print, we parse");
}

/// The bytes of a proxy, in pieces of at most `piece` bytes. Whatever the pieces, as many belong to the proxy's answer,
/// and it means the same.
pub fn handshake(bytes: &[u8], piece: usize, is_http: bool, has_credentials: bool) {
    let kind = if is_http { ProxyKind::Http } else { ProxyKind::Socks5 };
    let ask = |piece| ask_proxy(bytes, piece, kind, has_credentials);
    assert_eq!(ask(piece.max(1)), ask(usize::MAX), "pieces change what an answer means");
}

/// The number of bytes of the proxy's answer, and its meaning; `None`: there is too little of it.
fn ask_proxy(
    bytes: &[u8],
    piece: usize,
    kind: ProxyKind,
    has_credentials: bool,
) -> (usize, Option<Result<(), Refused>>) {
    let host = TargetHost::Address(Ipv6Addr::LOCALHOST.into());
    let credentials = "user:password".parse().ok().filter(|_| has_credentials);
    let target = Target { host, port: 443 };
    let (mut handshake, mut at) = (Handshake::new(kind, &target, credentials.as_ref()), 0);
    loop {
        match handshake.next() {
            via::Next::Done => return (at, Some(Ok(()))),
            via::Next::Refused(why) => return (at, Some(Err(why))),
            via::Next::Send(message) => {
                let n = message.len().min(piece);
                handshake.note_sent(n);
            }
            via::Next::Receive => {
                let rest = bytes.get(at..).unwrap_or_default();
                if rest.is_empty() {
                    return (at, None);
                }
                let shown = rest.get(..rest.len().min(piece)).unwrap_or_default();
                let taken = handshake.take(shown);
                assert!((1..=shown.len()).contains(&taken), "other bytes are taken than are there");
                at += taken;
                assert!(at <= VIA_HEAD, "more is kept than may be");
            }
        }
    }
}

/// What a program that judges writes, in two pieces cut at `at`: the answers are those of the whole.
pub fn judge_answers(bytes: &[u8], at: usize) {
    let read = |pieces: &[&[u8]]| {
        let (mut lines, mut answers) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.take(piece, |line| {
                assert!(line.len() <= JUDGE_LINE, "a line is longer than the limit");
                answers.extend(read_answer(line));
            });
        }
        answers
    };
    let (one, other) = bytes.split_at(at.min(bytes.len()));
    assert_eq!(read(&[one, other]), read(&[bytes]), "the cut changes what is read");
}
