//! The protocol of a control socket: one JSON object on a line is a request, and one its answer.
//!
//! | request | answer |
//! |---|---|
//! | `{"ask":"info"}` | [`Info`]: the process and its hosts |
//! | `{"ask":"stats"}` | [`Stats`]: counters of every host |
//! | `{"ask":"sockets","after":N,"limit":N}` | [`SocketPage`]: some sockets, and where the next page begins |
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

fn is_zero(n: &u64) -> bool {
    *n == 0
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
        for wrong in ["{}", "[]", r#"{"ask":"halt"}"#, r#"{"ask":"sockets","after":-1}"#] {
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
