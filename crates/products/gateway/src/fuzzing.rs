//! Test hooks for fuzzers: bytes of a guest, and of a resolver.

use std::collections::VecDeque;
use std::net::Ipv6Addr;

use pagewire::device::{PacketBuf, TxChecksum};
use pagewire::memory::{CopyLedger, Frag};
use pagewire::services::Instant;
use pagewire::{Device, Pair};

use crate::autoconf::{Autoconf, AutoconfConfig};
use crate::dns::query::{BadQuery, Code, Query, refuse};

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
