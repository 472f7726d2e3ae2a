//! [`Whole`]: what holds for a guest as a whole. Each core has a relay, and all of them share this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::time_wait::TimeWait;
use crate::denials::SharedDenials;
use crate::dns::{Memory, Resolver};
use crate::limits::{
    CONNECTS_BURST, CONNECTS_PER_SECOND, DESTINATIONS_BURST, DESTINATIONS_PER_SECOND,
    POLICY_QUESTIONS_BURST, POLICY_QUESTIONS_PER_SECOND, UDP_CLIENTS_BURST, UDP_CLIENTS_PER_SECOND,
};
use crate::rate::SharedRate;

/// The state that the relays of a guest share. Locks are taken for new flows, for ends of flows, for answers of the
/// resolver, and for datagrams of new clients. A lock is taken under no other of these, but that of invented addresses
/// under that of denials.
#[derive(Clone)]
pub(crate) struct Whole {
    /// The last number of a flow.
    pub(crate) last_flow: Arc<AtomicU64>,
    /// Bytes that the guest's connections hold until their names are judged.
    pub(crate) held: Arc<AtomicUsize>,
    /// The guest's flows of datagrams that must show a name.
    pub(crate) quic_flows: Arc<AtomicUsize>,
    pub(crate) denials: SharedDenials,
    /// The names that the resolver has given the guest.
    pub(crate) memory: Memory,
    /// The rate of new destinations of datagrams and echo requests.
    pub(crate) destinations: SharedRate,
    /// The rate of dials.
    pub(crate) dials: SharedRate,
    /// Connections that the guest has ended first.
    pub(crate) time_wait: TimeWait,
    /// The rate of new clients of published ports for datagrams.
    pub(crate) clients: SharedRate,
    /// The rate of questions to a policy.
    pub(crate) questions: SharedRate,
}

impl Whole {
    pub(crate) fn new(resolver: &Resolver) -> Self {
        Self {
            last_flow: Arc::default(),
            held: Arc::default(),
            quic_flows: Arc::default(),
            denials: SharedDenials::default(),
            memory: Memory::new(resolver),
            destinations: SharedRate::new(DESTINATIONS_PER_SECOND, DESTINATIONS_BURST),
            dials: SharedRate::new(CONNECTS_PER_SECOND, CONNECTS_BURST),
            time_wait: TimeWait::default(),
            clients: SharedRate::new(UDP_CLIENTS_PER_SECOND, UDP_CLIENTS_BURST),
            questions: SharedRate::new(POLICY_QUESTIONS_PER_SECOND, POLICY_QUESTIONS_BURST),
        }
    }
}
