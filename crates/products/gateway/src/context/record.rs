//! [`FlowRecord`], the state of a flow that rules permit, for the log and for those who ask.

use std::net::SocketAddr;
use std::sync::Arc;

use pagewire::services::Instant;

use super::Context;
use crate::request::{Ask, Demand, FlowState, How, Name, Record, Shown};

/// The record of a flow from its verdict on, logged when the flow ends.
pub(crate) struct FlowRecord {
    pub(crate) flow: u64,
    pub(crate) ask: Ask,
    /// The proxy by which the flow goes, for people.
    pub(crate) via: Option<Arc<str>>,
    /// The name by which the proxy was asked for the destination.
    pub(crate) told: Option<Name>,
    pub(crate) began: Instant,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    /// The protocol and the name that rules have permitted last.
    pub(crate) shown: Option<Shown>,
}

impl FlowRecord {
    pub(crate) fn new(now: Instant, flow: u64, ask: Ask) -> Self {
        let (via, told, shown) = (None, None, None);
        Self { flow, ask, via, told, began: now, bytes_out: 0, bytes_in: 0, shown }
    }

    /// The state of the flow, whose other side has this address.
    pub(crate) fn state(&self, now: Instant, peer: SocketAddr, open: bool) -> FlowState {
        let Self { flow, ask, began, bytes_out, bytes_in, shown, .. } = self;
        FlowState {
            flow: *flow,
            ask: ask.clone(),
            shown: shown.clone(),
            peer,
            bytes_out: *bytes_out,
            bytes_in: *bytes_in,
            age: now.saturating_since(*began),
            open,
        }
    }

    /// Payload bytes in both directions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_out + self.bytes_in
    }

    /// Writes down that both sides are connected, with the far side's address.
    pub(crate) fn open(&self, peer: SocketAddr, context: &Context) {
        let via = self.via.clone();
        context.note(|| Record::Opened { flow: self.flow, ask: self.ask.clone(), peer, via });
    }

    pub(crate) fn close(self, now: Instant, how: How, context: &Context) {
        let Self { flow, ask, began, bytes_out, bytes_in, .. } = self;
        let duration = now.saturating_since(began);
        context.note(|| Record::Closed { flow, ask, bytes_out, bytes_in, duration, how });
    }
}

/// Whether a flow goes on: `Ok` with the new demand on what the flow has yet to show, if that may be another; `Err` with
/// the reason of the end.
pub(crate) type Fate = Result<Option<Demand>, How>;

/// Decides about a flow, whose other side has the address.
pub(crate) type Decide<'a> = dyn FnMut(&mut Context, &mut FlowRecord, SocketAddr) -> Fate + 'a;
