//! [`Held`]: datagrams, or echo requests, of flows that a policy is asked about.

use std::collections::HashMap;
use std::net::SocketAddr;

use pagewire::memory::Frag;
use pagewire::services::UdpMessage;

use super::QuestionId;
use crate::limits::{HELD_DATAGRAMS, POLICY_FLOWS, POLICY_HELD};
use crate::request::Ask;
use crate::tally::Tally;

/// A flow that waits for an answer.
pub(crate) struct Waiting {
    pub(crate) flow: u64,
    pub(crate) ask: Ask,
    pub(crate) question: QuestionId,
}

/// Flows that wait, with their first messages.
pub(crate) struct Held {
    flows: HashMap<(SocketAddr, SocketAddr), (Waiting, Vec<UdpMessage>)>,
    /// Bytes of all messages.
    bytes: usize,
    /// The most flows, and bytes.
    most: (usize, usize),
}

impl Held {
    /// None, for a guest with this tally.
    pub(crate) fn new(tally: &Tally) -> Self {
        let most = (tally.part_of(POLICY_FLOWS), tally.part_of(POLICY_HELD));
        Self { flows: HashMap::new(), bytes: 0, most }
    }

    /// Whether one more flow may wait.
    pub(crate) fn has_room(&self) -> bool {
        self.flows.len() < self.most.0
    }

    /// Whether the flow of the message waits; then its messages are for [`add`](Self::add).
    pub(crate) fn has(&self, from: SocketAddr, to: SocketAddr) -> bool {
        !self.flows.is_empty() && self.flows.contains_key(&(from, to))
    }

    /// Has a flow wait.
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        let key = (waiting.ask.from, waiting.ask.to);
        self.flows.insert(key, (waiting, Vec::new()));
    }

    /// Holds a message of a flow that waits. `false`: there is no room, and the message is lost.
    pub(crate) fn add(&mut self, from: SocketAddr, to: SocketAddr, message: &UdpMessage) -> bool {
        let Some((_, messages)) = self.flows.get_mut(&(from, to)) else { return false };
        let bytes = self.bytes + size(message);
        if messages.len() >= HELD_DATAGRAMS || bytes > self.most.1 {
            return false;
        }
        self.bytes = bytes;
        messages.push(message.clone());
        true
    }

    /// Takes the flows that have waited for these questions.
    pub(crate) fn take(&mut self, answered: &[QuestionId]) -> Vec<(Waiting, Vec<UdpMessage>)> {
        let those = self.flows.extract_if(|_, (waiting, _)| answered.contains(&waiting.question));
        let those: Vec<_> = those.map(|(_, flow)| flow).collect();
        let freed = those.iter().flat_map(|(_, messages)| messages).map(size);
        self.bytes = self.bytes.saturating_sub(freed.sum());
        those
    }

    pub(crate) fn clear(&mut self) {
        self.flows.clear();
        self.bytes = 0;
    }
}

fn size(message: &UdpMessage) -> usize {
    message.payload.iter().map(Frag::len).sum()
}
