//! The timeline of a run: a text file with a line for each event, packets in readable form.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use pagewire_mem::{CopyLedger, PacketBuf};
use pagewire_stack::{CaState, TcpInfo};

use crate::network::summary::{PacketSummary, TcpFlow, Transport};
use crate::record::packet_event::PacketEvent;
use crate::record::recorder::EventSink;
use crate::{HostId, SimTime};

/// Writes a line for each event to a file.
pub(crate) struct Timeline {
    path: PathBuf,
    /// The first error: the run goes on without the rest.
    error: Option<io::Error>,
    out: BufWriter<File>,
    hosts: Vec<String>,
    names: HashMap<IpAddr, String>,
    flows: HashMap<TcpFlow, SentRange>,
    /// The reason of a retransmission, if the next packet is one.
    why: &'static str,
}

/// The reason where nothing else is known: the timer of a handshake, or of a lost window.
const TIMEOUT: &str = "timeout";

/// The sequence numbers that a flow has sent so far.
#[derive(Clone, Copy, Debug)]
struct SentRange {
    first: u32,
    next: u32,
}

impl Timeline {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let out = BufWriter::new(File::create(path)?);
        let path = path.to_owned();
        let (hosts, names, flows) = (Vec::new(), HashMap::new(), HashMap::new());
        Ok(Self { path, error: None, out, hosts, names, flows, why: TIMEOUT })
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        if let Err(error) = self.out.write_fmt(format_args!("{text}\n")) {
            self.error.get_or_insert(error);
        }
    }

    fn name(&self, addr: IpAddr) -> String {
        self.names.get(&addr).cloned().unwrap_or_else(|| addr.to_string())
    }

    /// The packet, with sequence numbers that count from 0 in each direction.
    fn describe(&mut self, event: PacketEvent, packet: &PacketSummary) -> String {
        let (from, to) = (self.name(packet.from), self.name(packet.to));
        let mut line = format!("{from} > {to}  ");
        match &packet.transport {
            Transport::Tcp { flow, flags, seq, ack, window, len } => {
                let span = *len as u32
                    + u32::from(flags.contains("SYN"))
                    + u32::from(flags.contains("FIN"));
                let new = SentRange { first: *seq, next: *seq };
                let restarts = flags.contains("SYN") && event == PacketEvent::Sent;
                let sent = match self.flows.get(flow) {
                    Some(sent) if !restarts || sent.first == *seq => *sent,
                    _ => new,
                };
                let end = seq.wrapping_add(span);
                // A segment that ends at or before `next` is a retransmission. Sequence numbers wrap: half of all count as before.
                let again = span > 0 && sent.next.wrapping_sub(end) < 1 << 31 && sent.next != *seq;
                let relative = seq.wrapping_sub(sent.first);
                let _ = write!(line, "TCP {}>{} {flags} seq {relative}", flow.1, flow.3);
                if *len > 0 {
                    let _ = write!(line, " len {len}");
                }
                let back = (flow.2, flow.3, flow.0, flow.1);
                if let Some(ack) = ack {
                    let first = self.flows.get(&back).map_or(*ack, |sent| sent.first);
                    let _ = write!(line, " ack {}", ack.wrapping_sub(first));
                }
                let _ = write!(line, " win {window}");
                if event == PacketEvent::Sent {
                    if again {
                        let _ = write!(line, "  (again: {})", self.why);
                    }
                    let next = if again { sent.next } else { end };
                    self.flows.insert(*flow, SentRange { next, ..sent });
                }
            }
            Transport::Udp { ports, len } => {
                let _ = write!(line, "UDP {}>{} len {len}", ports.0, ports.1);
            }
            Transport::Icmp { what } => {
                let _ = write!(line, "ICMP {what}");
            }
            Transport::Other => line += "IP",
        }
        line
    }
}

impl EventSink for Timeline {
    fn host(&mut self, host: HostId, name: &str, addresses: &[IpAddr]) {
        self.hosts.resize(self.hosts.len().max(host.index() + 1), String::new());
        if let Some(slot) = self.hosts.get_mut(host.index()) {
            *slot = name.to_owned();
        }
        self.names.extend(addresses.iter().map(|&addr| (addr, name.to_owned())));
    }

    fn state(&mut self, of: &TcpInfo) {
        self.why = match of.ca_state {
            CaState::Recovery => "fast retransmit",
            CaState::Loss => TIMEOUT,
            // A handshake has only its timer.
            _ if of.bytes_sent == 0 => TIMEOUT,
            _ if of.probes > 0 => "window probe",
            CaState::Open | CaState::Disorder | CaState::Cwr => "tail loss probe",
        };
    }

    fn frame(
        &mut self,
        at: SimTime,
        event: PacketEvent,
        _from: Option<HostId>,
        _to: Option<HostId>,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    ) {
        let line = match PacketSummary::of(frame) {
            Some(summary) => {
                let (line, text) = (self.describe(event, &summary), summary.text(frame, ledger));
                if text.is_empty() { line } else { format!("{line}  {text}") }
            }
            None => format!("{} bytes", frame.len()),
        };
        self.why = TIMEOUT;
        let (at, event) = (at.to_string(), event.to_string());
        self.line(format_args!("{at:>14}  {event:<10} {line}"));
    }

    fn note(&mut self, at: SimTime, host: Option<HostId>, text: &str) {
        let name = host.and_then(|host| self.hosts.get(host.index())).cloned().unwrap_or_default();
        // Further lines stand below the first.
        let text = text.replace('\n', &format!("\n{:27}", ""));
        self.line(format_args!("{at:>14}  {name:<10} {text}", at = at.to_string()));
    }

    fn end(&mut self, lines: &[String]) {
        lines.iter().for_each(|line| self.line(format_args!("{line}")));
    }

    fn flush(&mut self) -> Result<(), String> {
        if let Err(error) = self.out.flush() {
            self.error.get_or_insert(error);
        }
        match &self.error {
            Some(error) => Err(format!("the timeline {} is cut off: {error}", self.path.display())),
            None => Ok(()),
        }
    }
}
