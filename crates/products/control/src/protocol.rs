//! The protocol of a control socket: one JSON object on a line is a request, and one its answer.
//!
//! | request | answer |
//! |---|---|
//! | `{"ask":"info"}` | [`Info`]: the process and its hosts |
//! | `{"ask":"stats"}` | [`Stats`]: counters of every host |
//! | `{"ask":"sockets","after":N,"limit":N}` | [`SocketPage`]: some sockets, and where the next page begins |
//! | `{"ask":"rules"}` | [`Rules`]: the rules of the gateway |
//! | `{"ask":"flows","after":N,"limit":N}` | [`FlowPage`]: some flows of the gateway's guest |
//! | `{"ask":"refusals"}` | [`Refusals`]: the most frequent ones |
//! | `{"ask":"change","change":"allow","rule":"example.org:443"}` | `{"answer":"done","text":"…"}`; see [`Change`] |
//!
//! The last four are for processes with a gateway. A change is taken from clients in the network namespace of the process
//! alone, so that the gateway's guest cannot make one.
//!
//! Requests are answered in their order. A request that cannot be answered gets
//! `{"answer":"error","text":"…"}`, and the connection goes on; after one that is too long
//! ([`limits::REQUEST_BYTES`](crate::limits::REQUEST_BYTES)) it ends. Within one [`VERSION`], members
//! are added and never change: readers ignore those that they do not know.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The version of the protocol; [`Info`] has it.
pub const VERSION: u32 = 1;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ask {
    /// Facts about the process and its hosts.
    Info,
    /// The counters of all hosts.
    Stats,
    /// Sockets, a page at a time.
    Sockets {
        /// [`SocketPage::next`] of the page before; none for the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
        /// Most sockets in the answer; fewer may come although there are more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    },
    /// The rules of the gateway.
    Rules,
    /// Flows of the gateway's guest, a page at a time.
    Flows {
        /// [`FlowPage::next`] of the page before; none for the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
        /// Most flows in the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    },
    /// What the gateway has refused most frequently.
    Refusals,
    /// A change of the gateway's rules, ports or flows.
    Change(Change),
}

/// A change of a gateway. Rules and ports are written as on the command line of `pagewire`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// Permits what the rule matches.
    Allow {
        /// The rule.
        rule: String,
    },
    /// Forbids what the rule matches; flows that it matches end.
    Deny {
        /// The rule.
        rule: String,
    },
    /// Takes a rule back, be it a permission or a denial; flows that the others forbid end.
    Remove {
        /// The rule, as [`Rules`] has it.
        rule: String,
    },
    /// Publishes ports of the guest.
    Publish {
        /// The ports.
        port: String,
    },
    /// Closes published ports. Clients that are connected stay.
    Unpublish {
        /// The ports, as they were published.
        port: String,
    },
    /// Ends a flow, on both sides at once.
    Kill {
        /// [`Flow::flow`].
        flow: u64,
    },
    /// Reads the files of rules again.
    Reload,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// To [`Ask::Info`].
    Info(Info),
    /// To [`Ask::Stats`].
    Stats(Stats),
    /// To [`Ask::Sockets`].
    Sockets(SocketPage),
    /// To [`Ask::Rules`].
    Rules(Rules),
    /// To [`Ask::Flows`].
    Flows(FlowPage),
    /// To [`Ask::Refusals`].
    Refusals(Refusals),
    /// To [`Ask::Change`]: the change was made.
    Done {
        /// What follows from the change, for people.
        text: String,
    },
    /// The request cannot be answered.
    Error {
        /// Why.
        text: String,
    },
}

/// The process behind a control socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// See [`VERSION`].
    pub version: u32,
    /// The version of Pagewire.
    pub pagewire: String,
    /// The number of the process.
    pub pid: u32,
    /// The arguments on the command line.
    pub command: Vec<String>,
    /// Seconds since the control socket was opened.
    pub uptime_seconds: f64,
    /// The hosts of the process.
    pub hosts: Vec<HostInfo>,
}

/// Facts about one host of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// The host's name.
    pub name: String,
    /// The host's addresses with their prefix lengths.
    pub addresses: Vec<String>,
    /// The names of its links.
    pub links: Vec<String>,
}

/// Counters of the process's hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Seconds since the control socket was opened: the clock for rates.
    pub uptime_seconds: f64,
    /// The version of Pagewire.
    #[serde(default)]
    pub pagewire: String,
    /// Each host.
    pub hosts: Vec<HostStats>,
    /// Counts of what the process does with its hosts, by part and name: a server's responses, a
    /// gateway's connections.
    #[serde(default)]
    pub sections: BTreeMap<String, BTreeMap<String, u64>>,
    /// The process's memory, if the system reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// Memory of the process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Private memory: what the process costs.
    pub anonymous_bytes: u64,
    /// Pages of mapped files that are in memory: the page cache, which goes when memory is needed.
    pub file_bytes: u64,
    /// Shared memory: pools that a device or a virtual machine maps too.
    pub shared_bytes: u64,
}

/// Counters of one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostStats {
    /// The host's name.
    pub name: String,
    /// Sockets that exist now.
    pub sockets: SocketCounts,
    /// Packets, segments, connections, by name.
    pub counters: BTreeMap<String, u64>,
    /// Packets and segments dropped, by reason; those that are not zero.
    pub drops: BTreeMap<String, u64>,
    /// Payload bytes copied, by reason; those that are not zero.
    pub copies: BTreeMap<String, u64>,
    /// The part of `copies` that the stack made itself.
    pub copied_by_stack: u64,
    /// The host's links.
    pub links: Vec<LinkStats>,
    /// Bytes of memory that unread data holds.
    pub receive_memory_bytes: u64,
    /// Why the host has failed, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The counters of each core, in the order of [`Socket::core`], if the host has several: the others are their
    /// sums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<Self>,
}

/// Numbers of sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketCounts {
    /// TCP connections, those in TIME-WAIT that are closed left out.
    pub connections: u64,
    /// Closed connections in TIME-WAIT.
    pub time_wait: u64,
    /// Listeners.
    pub listeners: u64,
    /// Datagram sockets.
    pub datagrams: u64,
}

/// Counters of one link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// The link's name.
    pub name: String,
    /// Frames, bytes, system calls and drops of its device, by name.
    pub device: BTreeMap<String, u64>,
    /// The first failure of the device as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Some sockets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SocketPage {
    /// The sockets.
    pub sockets: Vec<Socket>,
    /// The number to ask for next ([`Ask::Sockets`]); none: these were the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// The state of one socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Socket {
    /// The name of its host.
    pub host: String,
    /// `tcp`, `udp` or `echo`.
    pub protocol: String,
    /// The state of a connection in snake case (`established`, `time_wait`), `listen`, or
    /// `unconnected`.
    pub state: String,
    /// This side.
    pub local: SocketAddr,
    /// The other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// The name of its link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The core that has the socket, from 0 on, if the host has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// Bytes received and not read; of a listener, connections that wait to be accepted.
    pub receive_queue: u64,
    /// Bytes not acknowledged; of a listener, how many connections may wait.
    pub send_queue: u64,
    /// Datagrams that found no room in the receive queue.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// More about a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
}

/// More about a connection. Times are in microseconds, sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tcp {
    /// Since it began, in seconds.
    pub age_seconds: u64,
    /// The application has closed it, or not accepted it yet.
    pub ownerless: bool,
    /// Smoothed round-trip time; 0 before the first measurement.
    pub rtt_us: u64,
    /// The variation of the round-trip time.
    pub rttvar_us: u64,
    /// The smallest measured.
    pub min_rtt_us: u64,
    /// Retransmission timeout.
    pub rto_us: u64,
    /// Payload of a full segment that we send.
    pub mss: u64,
    /// The congestion control.
    pub congestion: String,
    /// Congestion window, in segments.
    pub cwnd_segments: u64,
    /// Congestion window.
    pub cwnd: u64,
    /// Slow-start threshold, in segments; 2147483647 before the first loss.
    pub ssthresh_segments: u64,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u64,
    /// Segments that are considered lost.
    pub lost_segments: u64,
    /// Segments sent again so far.
    pub retransmits: u64,
    /// Retransmission timeouts so far.
    pub timeouts: u64,
    /// The peer's window.
    pub send_window: u64,
    /// Our window.
    pub receive_window: u64,
    /// Payload queued and never sent.
    pub unsent: u64,
    /// Payload sent, repeated payload included.
    pub bytes_sent: u64,
    /// Payload acknowledged.
    pub bytes_acked: u64,
    /// Payload sent again.
    pub bytes_retransmitted: u64,
    /// Payload received in order.
    pub bytes_received: u64,
    /// Segments sent.
    pub segments_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Since data was sent last.
    pub last_sent_us: u64,
    /// Since data was received last.
    pub last_received_us: u64,
    /// Explicit congestion notification is in use.
    pub ecn: bool,
    /// Payload copied by reason, if that is counted for this connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<BTreeMap<String, u64>>,
}

/// The rules of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Each rule; denials come first, as in decisions.
    pub rules: Vec<Rule>,
    /// Nothing is permitted to the guest but what a permission names.
    pub restricted: bool,
    /// No client of published ports is permitted but those that a permission names.
    #[serde(default)]
    pub clients_restricted: bool,
}

/// A rule of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// `allow` or `deny`.
    pub effect: String,
    /// The rule, as on the command line of `pagewire`.
    pub rule: String,
    /// The guest's answer to what a denial matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// Some flows of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowPage {
    /// The flows, in the order of their numbers.
    pub flows: Vec<Flow>,
    /// The number to ask for next ([`Ask::Flows`]); none: these were the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A flow of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The number of the flow, as in the log.
    pub flow: u64,
    /// The number of the guest.
    pub guest: u32,
    /// `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// `out`, or `in` for a client of a published port.
    pub direction: String,
    /// The source.
    pub from: SocketAddr,
    /// The destination, as the source named it.
    pub to: SocketAddr,
    /// The other side's address, as the kernel of the gateway's machine has it.
    pub peer: SocketAddr,
    /// Names that were resolved to the destination's address for the guest, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The name that the flow has shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// The protocol by which the flow has shown a name, or none: `tls`, `http`, `quic`, `ssh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown_by: Option<String>,
    /// Payload bytes from the guest to the network.
    pub bytes_out: u64,
    /// Payload bytes from the network to the guest.
    pub bytes_in: u64,
    /// Milliseconds since the first packet.
    pub age_ms: u64,
    /// Both sides are connected.
    pub open: bool,
}

/// What a gateway has refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// Number of different names that were refused, as far as these are remembered.
    pub names: u64,
    /// The same of addresses.
    pub addresses: u64,
    /// The most frequent ones.
    pub most: Vec<Refusal>,
}

/// A name or a destination that a gateway has refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The name or the destination, for people.
    pub what: String,
    /// Number of refusals.
    pub times: u64,
    /// The permission that would let it pass, if one would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission: Option<String>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl HostStats {
    /// The counters of a host with these of its cores; `None` without any.
    pub(crate) fn of_cores(cores: Vec<Self>) -> Option<Self> {
        let (first, others) = cores.split_first()?;
        let mut sum = first.clone();
        others.iter().for_each(|core| sum.add(core));
        Some(Self { cores, ..sum })
    }

    fn add(&mut self, other: &Self) {
        let (sockets, of_other) = (&mut self.sockets, &other.sockets);
        sockets.connections += of_other.connections;
        sockets.time_wait += of_other.time_wait;
        sockets.listeners += of_other.listeners;
        sockets.datagrams += of_other.datagrams;
        for (all, of_other) in [
            (&mut self.counters, &other.counters),
            (&mut self.drops, &other.drops),
            (&mut self.copies, &other.copies),
        ] {
            add(all, of_other);
        }
        self.copied_by_stack += other.copied_by_stack;
        for (link, of_other) in self.links.iter_mut().zip(&other.links) {
            add(&mut link.device, &of_other.device);
            link.error = link.error.take().or_else(|| of_other.error.clone());
        }
        self.receive_memory_bytes += other.receive_memory_bytes;
        self.failed = self.failed.take().or_else(|| other.failed.clone());
    }
}

/// Adds counts to those of the same names.
fn add(all: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (name, n) in more {
        *all.entry(name.clone()).or_default() += n;
    }
}

impl Stats {
    /// Bytes that devices received and sent, of all hosts.
    pub fn device_bytes(&self) -> (u64, u64) {
        let links = || self.hosts.iter().flat_map(|host| &host.links);
        let sum = |name: &str| links().filter_map(|link| link.device.get(name)).sum();
        (sum("rx_bytes"), sum("tx_bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Option<Ask> {
        serde_json::from_str(text).ok()
    }

    #[test]
    fn requests_are_as_documented_and_unknown_members_are_ignored() {
        assert_eq!(ask(r#"{"ask":"info"}"#), Some(Ask::Info));
        assert_eq!(ask(r#"{"ask":"stats","later":1}"#), Some(Ask::Stats));
        let all = Ask::Sockets { after: None, limit: None };
        assert_eq!(ask(r#"{"ask":"sockets"}"#), Some(all));
        let page = Ask::Sockets { after: Some(7), limit: Some(3) };
        assert_eq!(ask(r#"{"ask":"sockets","after":7,"limit":3}"#), Some(page));
        let change = Change::Allow { rule: "example.org:443".into() };
        let text = r#"{"ask":"change","change":"allow","rule":"example.org:443"}"#;
        assert_eq!(ask(text), Some(Ask::Change(change.clone())));
        assert_eq!(serde_json::to_string(&Ask::Change(change)).unwrap(), text);
        assert_eq!(ask(r#"{"ask":"change","change":"reload"}"#), Some(Ask::Change(Change::Reload)));
        for wrong in [
            r#"{"ask":"change"}"#,
            r#"{"ask":"change","change":"allow"}"#,
            "{}",
            "[]",
            r#"{"ask":"halt"}"#,
            r#"{"ask":"sockets","after":-1}"#,
        ] {
            assert_eq!(ask(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_answer_of_a_later_release_can_be_read() {
        let text = r#"{"answer":"sockets","sockets":[{"host":"a","protocol":"tcp","state":"listen",
            "local":"[fd77::1]:80","receive_queue":0,"send_queue":128,"new":{"a":1}}],"more":[]}"#;
        let Ok(Answer::Sockets(page)) = serde_json::from_str(text) else { panic!("{text}") };
        assert_eq!(page.sockets[0].local, "[fd77::1]:80".parse().unwrap());
        assert_eq!((page.next, &page.sockets[0].tcp), (None, &None));
    }
}
