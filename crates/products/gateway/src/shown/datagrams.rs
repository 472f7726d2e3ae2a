//! [`DatagramGate`]: holds the datagrams of one flow back until rules have judged the name that they show by QUIC.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::quic::{Look, QuicFlow};
use super::tls;
use crate::limits::{HELD_DATAGRAMS, QUIC_FLOWS};
use crate::request::{Shown, ShownBy};

/// The way of one flow's datagrams from the guest.
pub(crate) struct DatagramGate {
    flow: QuicFlow,
    /// Datagrams with a part of a ClientHello.
    held: Vec<Vec<u8>>,
    /// The name that rules have refused last, which clients show again when they hear no answer.
    shown: Option<Shown>,
    /// Rules have permitted a name of the flow.
    permitted: bool,
    _place: Place,
}

/// The caller's next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Send this datagram.
    Send(Vec<u8>),
    /// Nothing: the datagram is held.
    Hold,
    /// Judge this, and say so by [`DatagramGate::permit`] or [`DatagramGate::refuse`].
    Judge(Shown),
    /// Drop the datagram, which shows no name that can be read.
    Refuse(Shown),
}

/// A place among the flows of a guest that have a gate, given back on drop.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DatagramGate {
    /// Whether the guest may have one more flow with a gate; `flows` counts them.
    pub(crate) fn has_room(flows: &AtomicUsize) -> bool {
        flows.load(Ordering::Relaxed) < QUIC_FLOWS
    }

    /// The gate of a new flow.
    pub(crate) fn new(flows: &Arc<AtomicUsize>) -> Self {
        flows.fetch_add(1, Ordering::Relaxed);
        Self {
            flow: QuicFlow::default(),
            held: Vec::new(),
            shown: None,
            permitted: false,
            _place: Place(Arc::clone(flows)),
        }
    }

    /// Takes a datagram of the guest: a copy, because a guest may change its memory later.
    pub(crate) fn put(&mut self, datagram: Vec<u8>) -> Pass {
        match self.flow.look(&datagram) {
            Look::Passes => Pass::Send(datagram),
            Look::More if self.held.len() < HELD_DATAGRAMS => {
                self.held.push(datagram);
                Pass::Hold
            }
            Look::ClientHello(message) => {
                self.held.push(datagram);
                let Ok(shown) = tls::hello(&message) else { return self.fail() };
                let by = if shown.by == ShownBy::Tls { ShownBy::Quic } else { shown.by };
                let shown = Shown { by, ..shown };
                self.shown = Some(shown.clone());
                Pass::Judge(shown)
            }
            Look::More => self.fail(),
            Look::Unreadable => {
                let unknown = Shown { by: ShownBy::Unknown, name: None };
                Pass::Refuse(self.shown.clone().unwrap_or(unknown))
            }
        }
    }

    fn fail(&mut self) -> Pass {
        self.refuse();
        let shown = Shown { by: ShownBy::Quic, name: None };
        self.shown = Some(shown.clone());
        Pass::Refuse(shown)
    }

    /// Rules permit what [`Pass::Judge`] had. Returns the held datagrams, which are to be sent.
    pub(crate) fn permit(&mut self) -> Vec<Vec<u8>> {
        (self.shown, self.permitted) = (None, true);
        std::mem::take(&mut self.held)
    }

    /// Whether rules have permitted a name of the flow. Then the guest hears nothing of a datagram that is refused: an
    /// error would end its other connections.
    pub(crate) fn is_permitted(&self) -> bool {
        self.permitted
    }

    /// Rules refuse what [`Pass::Judge`] had.
    pub(crate) fn refuse(&mut self) {
        self.flow.refuse();
        self.held = Vec::new();
    }
}
