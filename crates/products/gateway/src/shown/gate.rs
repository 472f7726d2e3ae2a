//! [`Gate`]: holds a guest's bytes back until rules have judged the name that they show. Sans I/O: the caller reads
//! the guest's connection into the gate, and writes what passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::http::{self, Body, Head};
use super::tls::{self, Following};
use super::{Demand, Shown, ShownBy, Unreadable};
use crate::limits::{HELD, HELD_OF_GUEST, HELD_READ};

/// The way of one connection's bytes from the guest, until no name can follow.
#[derive(Debug)]
pub(crate) struct Gate {
    demand: Demand,
    /// Bytes of the guest that were not sent yet.
    pub(super) held: Vec<u8>,
    /// The first of `held`, which may be sent.
    passing: usize,
    state: State,
    /// A name that rules are to judge, the bytes that show it, and the state behind.
    judged: Option<(Shown, usize, State)>,
    /// The name that rules have permitted last.
    permitted: Option<Shown>,
    /// The name that was shown is that of all that follows: the connection can show no other.
    is_bound: bool,
    /// Held bytes of all connections of the guest.
    account: Arc<AtomicUsize>,
}

/// The next bytes of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first of the connection: the protocol is not known yet.
    First,
    ClientHello,
    /// Records behind a ClientHello, which may be early data.
    Following {
        early: bool,
    },
    Head {
        is_first: bool,
    },
    /// Bytes of a body, and the state behind.
    Body(u64, Behind),
    /// The line in front of a chunk, and the line ends behind its data and behind the last chunk (RFC 9112 section 7.1).
    ChunkLine,
    ChunkEnd,
    LastChunkEnd,
    /// The far side's answer comes first: it says whether the protocol changes.
    Answer,
    /// Everything passes.
    Open,
    /// Nothing more passes: a message cannot be read, or its name was refused.
    Shut,
}

/// What follows bytes that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// The head of the next request.
    Head,
    /// The line end behind a chunk's data.
    ChunkEnd,
    /// The next record of early data.
    Following,
}

/// The caller's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send [`Gate::passing`], then say how much by [`Gate::note_sent`].
    Send,
    /// Move up to this many bytes on by reference, then say how many by [`Gate::note_passed`].
    Pass(u64),
    /// Read up to this many bytes of the guest, and [`Gate::put`] them.
    Read(usize),
    /// Judge this, and say so by [`Gate::permit`] or [`Gate::refuse`].
    Judge(Shown),
    /// Wait for the far side's answer, then [`Gate::answered`].
    Wait,
    /// Everything passes from here on: the gate is of no more use.
    Open,
    /// End the connection, for this reason.
    Refuse(Shown),
}

impl Gate {
    /// The gate of a connection; `None`: the connection needs none. `account` counts the bytes that all gates of a
    /// guest hold.
    pub(crate) fn new(demand: Demand, account: &Arc<AtomicUsize>) -> Option<Self> {
        (demand != Demand::Nothing).then(|| Self {
            demand,
            held: Vec::new(),
            passing: 0,
            state: State::First,
            judged: None,
            permitted: None,
            is_bound: false,
            account: Arc::clone(account),
        })
    }

    /// The next step of the caller.
    pub(crate) fn next(&mut self) -> Next {
        self.look();
        if self.passing > 0 {
            return Next::Send;
        }
        if self.state == State::Shut {
            return Next::Refuse(self.reason());
        }
        if let Some((shown, ..)) = &self.judged {
            return Next::Judge(shown.clone());
        }
        match self.state {
            State::Open => Next::Open,
            State::Answer => Next::Wait,
            State::Body(left, _) => Next::Pass(left),
            _ if self.held.len() >= HELD => {
                self.fail();
                self.next()
            }
            _ => Next::Read((HELD - self.held.len()).min(HELD_READ)),
        }
    }

    /// Takes bytes of the guest.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let before = self.account.fetch_add(bytes.len(), Ordering::Relaxed);
        self.held.extend_from_slice(bytes);
        if before + bytes.len() > HELD_OF_GUEST {
            self.fail();
        }
    }

    /// The guest's stream ends within a message.
    pub(crate) fn end(&mut self) {
        self.fail();
    }

    /// Whether a connection that needs no name has sent too little to tell its protocol.
    pub(crate) fn is_ambiguous(&self) -> bool {
        let tells = match self.state {
            // A method and its space are HTTP's.
            State::First => self.held.contains(&b' '),
            State::ClientHello => self.held.len() > tls::RECORD_HEADER,
            _ => true,
        };
        let waits = self.demand == Demand::NoDeniedName && !self.held.is_empty();
        waits && !tells && self.passing == 0 && self.judged.is_none()
    }

    /// Has everything pass of a connection that needs no name, and waits for more of a message for a while: perhaps
    /// the protocol is another. Returns whether there was one.
    pub(crate) fn stop_waiting(&mut self) -> bool {
        let waits = self.demand == Demand::NoDeniedName && !self.held.is_empty();
        if waits && self.passing == 0 && self.judged.is_none() {
            return self.fail();
        }
        false
    }

    /// Rules have changed: what was permitted last is judged again, by another demand.
    pub(crate) fn set_demand(&mut self, demand: Demand) {
        self.permitted = None;
        self.demand = demand;
        if demand == Demand::Nothing && self.state != State::Shut {
            self.judged = None;
            self.passing = self.held.len();
            self.state = State::Open;
        }
    }

    /// Bytes that may be sent.
    pub(crate) fn passing(&self) -> &[u8] {
        self.held.get(..self.passing).unwrap_or_default()
    }

    /// The far side's kernel has taken the first `n` bytes of [`passing`](Self::passing).
    pub(crate) fn note_sent(&mut self, n: usize) {
        let n = n.min(self.passing);
        self.held.drain(..n);
        self.passing -= n;
        self.account.fetch_sub(n, Ordering::Relaxed);
        self.held.shrink_to(HELD_READ);
        if self.held.is_empty() {
            self.held = Vec::new();
        }
    }

    /// `n` bytes have gone on by reference.
    pub(crate) fn note_passed(&mut self, n: u64) {
        if let State::Body(left, behind) = self.state {
            self.state = State::Body(left.saturating_sub(n), behind);
        }
    }

    /// Rules permit what [`Next::Judge`] had.
    pub(crate) fn permit(&mut self) {
        if let Some((shown, n, state)) = self.judged.take() {
            self.permitted = Some(shown);
            self.passing += n;
            self.state = state;
            self.is_bound = state == State::Open;
        }
    }

    /// Rules refuse what [`Next::Judge`] had.
    pub(crate) fn refuse(&mut self) {
        self.state = State::Shut;
    }

    /// The far side has answered a request for another protocol.
    pub(crate) fn answered(&mut self, switches: bool) {
        if self.state == State::Answer {
            self.state = if switches { State::Open } else { State::Head { is_first: false } };
            self.is_bound = switches;
        }
    }

    /// Whether an open gate stays open because of the name that was shown, and not for want of a demand.
    pub(crate) fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Whether the gate waits for the far side's answer.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.state == State::Answer && self.passing == 0
    }

    /// Whether the gate holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The reason of a refusal.
    fn reason(&self) -> Shown {
        let by = match self.state {
            State::ClientHello | State::Following { .. } => ShownBy::Tls,
            State::First | State::Open | State::Shut => ShownBy::Unknown,
            _ => ShownBy::Http,
        };
        match &self.judged {
            Some((shown, ..)) => shown.clone(),
            None => Shown { by, name: None },
        }
    }

    /// Reads on in what is held, as far as that decides.
    fn look(&mut self) {
        while self.judged.is_none() && self.step().unwrap_or_else(|Unreadable| self.fail()) {}
    }

    /// A message that cannot be read, or is too long: it shows no name. Returns whether that opens the gate.
    fn fail(&mut self) -> bool {
        if self.state == State::Shut || self.state == State::Open {
            return self.state == State::Open;
        }
        if self.demand == Demand::NoDeniedName {
            self.state = State::Open;
            return true;
        }
        let shown = self.reason();
        self.state = State::Shut;
        self.judged = Some((shown, 0, State::Shut));
        false
    }

    /// One message further. `false`: more bytes are needed, or none.
    fn step(&mut self) -> Result<bool, Unreadable> {
        let bytes = self.held.get(self.passing..).unwrap_or_default();
        if let State::Body(0, behind) = self.state {
            self.state = match behind {
                Behind::Head => State::Head { is_first: false },
                Behind::ChunkEnd => State::ChunkEnd,
                Behind::Following => State::Following { early: true },
            };
            return Ok(true);
        }
        if bytes.is_empty() {
            return Ok(false);
        }
        let passing = match self.state {
            State::First => {
                let Some(state) = first(bytes)? else { return Ok(false) };
                if state == State::Open {
                    self.found(Shown { by: ShownBy::Ssh, name: None }, bytes.len(), state);
                } else {
                    self.state = state;
                }
                0
            }
            State::ClientHello => {
                let Some((hello, n)) = tls::client_hello(bytes)? else { return Ok(false) };
                self.found(hello.shown, n, State::Following { early: hello.early });
                0
            }
            State::Following { early } => match tls::following(bytes)? {
                None => return Ok(false),
                Some(Following::Passes(n)) => n,
                // RFC 8446 section 4.2.10: a server that asks for another ClientHello skips early data.
                Some(Following::Data(n)) if early => {
                    self.state = State::Body(n, Behind::Following);
                    0
                }
                Some(Following::ClientHello) => {
                    self.state = State::ClientHello;
                    0
                }
                Some(Following::Data(_) | Following::Last) => {
                    (self.state, self.is_bound) = (State::Open, true);
                    0
                }
            },
            State::Head { is_first } => {
                if !http::is_request(bytes)? {
                    return Ok(false);
                }
                let Some((Head { name, body, upgrade }, n)) = http::head(bytes)? else {
                    return Ok(false);
                };
                let state = match body {
                    // Behind other requests nobody knows which answer is this one's, and behind a body the answer may
                    // have begun before: such a change is not followed.
                    Body::Bytes(0) if upgrade && is_first => State::Answer,
                    Body::Bytes(left) => State::Body(left, Behind::Head),
                    Body::Chunked => State::ChunkLine,
                };
                self.found(Shown { by: ShownBy::Http, name: Some(name) }, n, state);
                0
            }
            State::Body(left, behind) => {
                let n = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                self.state = State::Body(left - n as u64, behind);
                n
            }
            State::ChunkLine => {
                let Some((size, n)) = http::chunk(bytes)? else { return Ok(false) };
                self.state = match size {
                    0 => State::LastChunkEnd,
                    size => State::Body(size, Behind::ChunkEnd),
                };
                n
            }
            // Trailers are refused: servers have taken them for a request.
            State::ChunkEnd | State::LastChunkEnd => {
                let Some((line, n)) = http::line(bytes)? else { return Ok(false) };
                if !line.is_empty() {
                    return Err(Unreadable);
                }
                self.state = match self.state {
                    State::ChunkEnd => State::ChunkLine,
                    _ => State::Head { is_first: false },
                };
                n
            }
            State::Open => bytes.len(),
            State::Answer | State::Shut => return Ok(false),
        };
        self.passing += passing;
        Ok(true)
    }

    /// A name is shown by the next `n` bytes, which rules must judge, unless they have permitted it last.
    fn found(&mut self, shown: Shown, n: usize, state: State) {
        let is_known = self.permitted.as_ref() == Some(&shown);
        self.judged = Some((shown, n, state));
        if is_known {
            self.permit();
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.account.fetch_sub(self.held.len(), Ordering::Relaxed);
    }
}

/// The state for a connection that begins so; `None`: more bytes are needed.
fn first(bytes: &[u8]) -> Result<Option<State>, Unreadable> {
    if bytes.first() == Some(&tls::HANDSHAKE) {
        return Ok(Some(State::ClientHello));
    }
    // RFC 4253 section 4.2: the client's first line is its version.
    let n = bytes.len().min(SSH.len());
    if bytes.get(..n) == SSH.get(..n) {
        return Ok((n == SSH.len()).then_some(State::Open));
    }
    Ok(http::is_request(bytes)?.then_some(State::Head { is_first: true }))
}

const SSH: &[u8] = b"SSH-";
