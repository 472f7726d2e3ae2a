//! A capture of all hosts in one file: an interface for each, with the host's name.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pagewire_device::{Medium, PcapConfig, PcapDirection, PcapInterface, PcapWriter};
use pagewire_mem::{CopyLedger, PacketBuf};

use crate::record::{Fate, Sink};
use crate::{HostId, SimTime};

/// Writes every packet where it leaves and where it arrives. The one that is lost as it leaves has
/// the reason as a comment; so has one that is duplicated, corrupted or held up there.
pub(crate) struct Capture {
    writer: PcapWriter<File>,
    interfaces: Vec<PcapInterface>,
    names: Vec<(IpAddr, String)>,
    /// The packet that left last, until its fate is known.
    last: Option<Left>,
}

struct Left {
    at: SimTime,
    host: HostId,
    frame: PacketBuf,
    comment: String,
}

impl Capture {
    /// `epoch` is the wall clock's time at the start of the simulation.
    pub(crate) fn create(path: &Path, epoch: SystemTime) -> io::Result<Self> {
        let epoch = epoch.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let config = PcapConfig { epoch, ..PcapConfig::default() };
        let writer = PcapWriter::new(File::create(path)?, config)?;
        Ok(Self { writer, interfaces: Vec::new(), names: Vec::new(), last: None })
    }

    fn write_last(&mut self, ledger: &mut CopyLedger) {
        let Some(Left { at, host, frame, comment }) = self.last.take() else { return };
        let Some(&link) = self.interfaces.get(host.index()) else { return };
        let (at, out) = (at.into(), PcapDirection::Out);
        // Nobody can be told of a full disk; the run goes on.
        let _ = self.writer.record_with_comment(link, at, out, &frame, &comment, ledger);
    }
}

impl Sink for Capture {
    fn host(&mut self, _host: HostId, name: &str, addresses: &[IpAddr]) {
        // Hosts are added in the order of their numbers.
        if let Ok(interface) = self.writer.add_interface(name, Medium::Ip) {
            self.interfaces.push(interface);
        }
        self.names.extend(addresses.iter().map(|&addr| (addr, name.to_owned())));
    }

    fn frame(
        &mut self,
        at: SimTime,
        fate: Fate,
        from: Option<HostId>,
        to: Option<HostId>,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    ) {
        match (fate, from, to) {
            (Fate::Sent, Some(host), _) => {
                self.write_last(ledger);
                let (frame, comment) = (frame.clone(), String::new());
                self.last = Some(Left { at, host, frame, comment });
            }
            (Fate::Arrived, _, Some(host)) => {
                self.write_last(ledger);
                if let Some(&link) = self.interfaces.get(host.index()) {
                    let direction = PcapDirection::In;
                    let _ = self.writer.record(link, at.into(), direction, frame, ledger);
                }
            }
            // At the moment at which it was sent: the first link.
            (fate, Some(host), _) => match &mut self.last {
                Some(last) if last.at == at && last.host == host => {
                    if !last.comment.is_empty() {
                        last.comment += "; ";
                    }
                    last.comment += &fate.to_string();
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn note(&mut self, _at: SimTime, _host: Option<HostId>, _text: &str) {}

    fn end(&mut self, _lines: &[String]) {
        self.write_last(&mut CopyLedger::new());
        let names = std::mem::take(&mut self.names);
        let _ = self.writer.add_names(names.iter().map(|(addr, name)| (*addr, name.as_str())));
        let _ = self.writer.flush();
    }
}
