//! The types that all parts of the gateway share: a flow that asks for permission ([`Ask`]), the decision
//! ([`Verdict`]), and the records that are written about both ([`Record`]).

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The number of a guest, which one gateway never gives twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestId(pub(crate) u32);

impl GuestId {
    /// A number for logs: the first guest is 1.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A TCP connection.
    Tcp,
    /// Datagrams.
    Udp,
    /// Echo requests, "ping". The identifier stands in the port of [`Ask::from`]; the port of
    /// [`Ask::to`] is 0.
    Echo,
}

impl Protocol {
    /// The name in rules, logs and events.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Echo => "icmp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The direction of a flow, by the side that began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The guest.
    Out,
    /// A client of a published port.
    In,
}

/// A host name as DNS has it: ASCII labels in lower case, without the final dot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// The text is no host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a host name has labels of 1 to 63 printable ASCII characters, at most 253 in all")]
pub struct NameError;

/// Longest name as text (RFC 1035 section 2.3.4: 255 octets on the wire).
const MAX_NAME: usize = 253;

/// Longest label (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether others take the name for a host's, and for no address: it has letters, digits, `-` and `_` (RFC 952, and
    /// what is in use), ends in no number (`10.1`, `0x7f.1`), and is none of a loopback (RFC 6761 section 6.3).
    pub(crate) fn is_host_name(&self) -> bool {
        let last = self.0.rsplit('.').next().unwrap_or_default();
        let digits = last.strip_prefix("0x").map(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let is_number = digits.unwrap_or_else(|| last.bytes().all(|b| b.is_ascii_digit()));
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        !is_number && last != "localhost" && self.0.bytes().all(is_plain)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let is_label =
            |l: &str| (1..=MAX_LABEL).contains(&l.len()) && l.bytes().all(|b| b.is_ascii_graphic());
        if text.len() > MAX_NAME || !text.split('.').all(is_label) {
            return Err(NameError);
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A flow that asks whether it may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ask {
    /// The guest of the flow.
    pub guest: GuestId,
    /// The protocol.
    pub protocol: Protocol,
    /// The source: the guest's address, or that of a published port's client.
    pub from: SocketAddr,
    /// The destination, as the source named it.
    pub to: SocketAddr,
    /// Names that were resolved to the destination's address for the guest, the latest first.
    pub names: Arc<[Name]>,
    /// The destination is an address of the gateway's own machine. Known only where a judge has
    /// asked for it ([`Judge::asks_for_ours`]).
    pub ours: bool,
    /// The side that began the flow.
    pub direction: Direction,
    /// The part of `names` that the gateway's own settings give this address.
    pub(crate) given: Arc<[Name]>,
    /// Names that denials have, which once led to this address.
    pub(crate) once: Arc<[Name]>,
    /// The demand of the rules that permit the flow.
    pub(crate) demand: Demand,
    /// The rules themselves have redirected the flow here, from an address that they permit.
    pub(crate) mapped: bool,
    /// What rules say of the flow that only write down what they refuse.
    pub(crate) audit: Audit,
    /// The number of the permission whose rate the flow has.
    pub(crate) rate: Option<usize>,
    /// What a policy says of the flow.
    pub(crate) by_policy: ByPolicy,
}

impl Ask {
    /// A flow of a guest to `to`, whose names are not known.
    pub fn new(guest: GuestId, protocol: Protocol, from: SocketAddr, to: SocketAddr) -> Self {
        let (names, direction) = (Arc::default(), Direction::Out);
        let (given, once, demand) = (Arc::default(), Arc::default(), Demand::Nothing);
        let (ours, mapped, audit) = (false, false, Audit::Permitted);
        let by_policy = ByPolicy::Unasked;
        Self {
            guest,
            protocol,
            from,
            to,
            names,
            ours,
            direction,
            given,
            once,
            demand,
            mapped,
            audit,
            rate: None,
            by_policy,
        }
    }

    /// The destination as text: the address with port and protocol as in a rule, and the latest name. Of a client: the
    /// guest's port, and the client's address.
    pub(crate) fn destination(&self) -> String {
        let Self { to, protocol, names, .. } = self;
        if self.direction == Direction::In {
            return format!("{to}/{protocol} for {}", self.from.ip().to_canonical());
        }
        let name = names.first().map(|name| format!(" ({name})")).unwrap_or_default();
        match protocol {
            Protocol::Echo => format!("{}/{protocol}{name}", to.ip()),
            Protocol::Tcp | Protocol::Udp => format!("{to}/{protocol}{name}"),
        }
    }
}

/// The rules' demand on a connection that they permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Demand {
    /// No demand: an address, or a rule that asks for no name, permits the connection.
    #[default]
    Nothing,
    /// The connection goes on unless it shows a name that a denial has.
    NoDeniedName,
    /// Only names permit the connection, which must show one of them.
    PermittedName,
}

/// What rules say of a flow that only write down what they refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Audit {
    /// They permit the flow, or their refusal is written down already.
    #[default]
    Permitted,
    /// They permit the flow if it shows the right name.
    AsksForName,
    /// They refuse the flow. The name that it shows is to be written down, too.
    Refused,
}

/// What a policy says of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ByPolicy {
    /// It has said nothing.
    #[default]
    Unasked,
    /// It is being asked.
    Asked,
    /// It permits the flow.
    Permitted(Owed),
}

/// What a flow must show that a policy has permitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// One of these names; none: the address decides.
    pub(crate) names: Arc<[Name]>,
    /// The ClientHello that shows the name may be an encrypted one.
    pub(crate) encrypted: bool,
}

/// The protocol by which a connection shows its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShownBy {
    /// TLS: the server name of a ClientHello (RFC 6066 section 3).
    Tls,
    /// TLS with an encrypted ClientHello (RFC 9849): the name in the clear need not be the server's.
    EncryptedHello,
    /// QUIC: the server name of the ClientHello in Initial packets (RFC 9001 section 4).
    Quic,
    /// HTTP/1: the `Host` line of a request (RFC 9112 section 3.2).
    Http,
    /// SSH, which shows no name (RFC 4253 section 4.2).
    Ssh,
    /// Another protocol, or a message of these that cannot be read.
    Unknown,
}

impl ShownBy {
    /// The word in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Quic => "quic",
            Self::EncryptedHello => "ech",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::Unknown => "unknown",
        }
    }
}

/// The first bytes of a connection: its protocol and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The protocol.
    pub by: ShownBy,
    /// The name; `None`: the connection shows none.
    pub name: Option<Name>,
}

/// The state of a flow that rules permit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowState {
    /// The number of the flow, as in [records](Record).
    pub flow: u64,
    /// The question that the flow was.
    pub ask: Ask,
    /// The protocol and the name that the flow has shown last; `None`: rules have asked for neither.
    pub shown: Option<Shown>,
    /// The other side's address, as this host's kernel has it.
    pub peer: SocketAddr,
    /// Payload bytes from the guest to the network.
    pub bytes_out: u64,
    /// Payload bytes from the network to the guest.
    pub bytes_in: u64,
    /// The time since the first packet.
    pub age: Duration,
    /// Both sides are connected.
    pub open: bool,
}

/// The decision about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The flow goes to its destination.
    Allow,
    /// The flow goes to another destination instead, which rules judge again.
    To(SocketAddr),
    /// The guest learns at once: a reset for TCP, "port unreachable" for others.
    Refuse,
    /// The guest learns at once, by ICMP, that the flow is prohibited.
    Prohibit,
    /// The guest learns at once, by ICMP, that no route leads to the destination's network.
    Unreachable,
    /// The guest gets no answer; its own time limit ends the flow.
    Drop,
}

/// Decides about flows at once; called under a host's lock, so it neither waits nor takes a lock.
pub trait Judge: Send + Sync {
    /// The verdict; `None`: this judge has no opinion.
    fn judge(&self, ask: &Ask) -> Option<Verdict>;

    /// Whether [`Ask::ours`] matters to this judge.
    fn asks_for_ours(&self) -> bool {
        false
    }
}

impl<F: Fn(&Ask) -> Option<Verdict> + Send + Sync> Judge for F {
    fn judge(&self, ask: &Ask) -> Option<Verdict> {
        self(ask)
    }
}

/// Takes records; called under a host's lock, so it must not wait.
pub trait Journal: Send + Sync {
    /// Takes a record.
    fn note(&self, record: Record);
}

impl<F: Fn(Record) + Send + Sync> Journal for F {
    fn note(&self, record: Record) {
        self(record);
    }
}

/// An entry of the journal. `flow` is a number that no other flow of this gateway's guest
/// has: the records of one flow share it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// A decision about a flow.
    Verdict {
        /// The flow.
        flow: u64,
        /// The question.
        ask: Ask,
        /// The answer.
        verdict: Verdict,
    },
    /// A flow that goes no further: it does not show a name that permits it, or shows one that is denied.
    Mismatch {
        /// The flow.
        flow: u64,
        /// The question.
        ask: Ask,
        /// What the flow shows.
        shown: Shown,
    },
    /// A flow that rules refuse, and that goes on because they are an [audit](crate::Rules::audit).
    Audit {
        /// The flow.
        flow: u64,
        /// The question.
        ask: Ask,
        /// What the flow shows; `None`: it has no name to show.
        shown: Option<Shown>,
        /// A rule that would permit the flow, as text.
        permission: Option<String>,
    },
    /// A name that a rule, or the lack of a resolver, kept from the guest.
    DeniedName {
        /// The guest that asked.
        guest: GuestId,
        /// The name; `None`: the question has none that can be read.
        name: Option<Name>,
        /// The guest gets the name's addresses all the same: the rules are an [audit](crate::Rules::audit).
        audit: bool,
    },
    /// Refusals, of names and flows, that have no records of their own: there were too many.
    Denials {
        /// The guest that was refused.
        guest: GuestId,
        /// Their number.
        count: u64,
        /// The time during which they were counted.
        duration: Duration,
    },
    /// Both sides of a flow are connected.
    Opened {
        /// The flow.
        flow: u64,
        /// The question.
        ask: Ask,
        /// The other side's address, as this host's kernel has it: that of the proxy, if the flow goes by one.
        peer: SocketAddr,
        /// The URL of the proxy by which the flow goes.
        via: Option<Arc<str>>,
    },
    /// A flow is over, or was never opened.
    Closed {
        /// The flow.
        flow: u64,
        /// The question.
        ask: Ask,
        /// Payload bytes from the guest to the network.
        bytes_out: u64,
        /// Payload bytes from the network to the guest.
        bytes_in: u64,
        /// The time from the first packet to the end.
        duration: Duration,
        /// The reason of the end.
        how: How,
    },
}

/// How a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum How {
    /// Both sides ended their streams, or a datagram flow had been silent for its time.
    Finished,
    /// The guest reset the flow.
    GuestReset,
    /// The far side reset the flow.
    PeerReset,
    /// The guest did not answer for too long.
    GuestTimedOut,
    /// The far side did not answer for too long.
    PeerTimedOut,
    /// The guest gave up before the far side answered.
    GaveUp,
    /// The far side refused the flow.
    Refused,
    /// There is no route to the destination's network.
    NetUnreachable,
    /// The destination's host does not answer.
    HostUnreachable,
    /// This host, a router, or a rule prohibits the flow.
    Prohibited,
    /// The program that embeds the gateway, or its operator, ended the flow.
    Killed,
    /// This process, or its kernel, lacks resources: descriptors, ports or memory.
    Exhausted,
    /// The flow was silent for longer than the limit.
    Idle,
    /// The guest, or its device, is gone.
    Removed,
}

impl How {
    /// The word in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::GuestReset => "guest-reset",
            Self::PeerReset => "peer-reset",
            Self::GuestTimedOut => "guest-timed-out",
            Self::PeerTimedOut => "peer-timed-out",
            Self::GaveUp => "gave-up",
            Self::Refused => "refused",
            Self::NetUnreachable => "net-unreachable",
            Self::HostUnreachable => "host-unreachable",
            Self::Prohibited => "prohibited",
            Self::Killed => "killed",
            Self::Exhausted => "exhausted",
            Self::Idle => "idle",
            Self::Removed => "removed",
        }
    }
}
