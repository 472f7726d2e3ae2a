//! The capture of a run: a pcapng file with an interface for each host, which has the host's name.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pagewire_device::{Medium, PcapConfig, PcapDirection, PcapInterface, PcapWriter};
use pagewire_mem::{CopyLedger, PacketBuf};

use crate::record::packet_event::PacketEvent;
use crate::record::recorder::EventSink;
use crate::{HostId, SimTime};

/// Writes every packet where it leaves and where it arrives. A packet that is lost as it leaves has the reason as
/// a comment; so has a packet that is duplicated, corrupted or held up there.
pub(crate) struct Capture {
    path: PathBuf,
    /// The first error: the run goes on without the rest.
    error: Option<io::Error>,
    writer: PcapWriter<File>,
    /// The interface of each host; `None`: it could not be written.
    interfaces: Vec<Option<PcapInterface>>,
    names: Vec<(IpAddr, String)>,
    /// The packet that left last, until the events at its first link are known.
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
        let path = path.to_owned();
        let (interfaces, names) = (Vec::new(), Vec::new());
        Ok(Self { path, error: None, writer, interfaces, names, last: None })
    }

    fn note_error(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }

    fn write_last(&mut self, ledger: &mut CopyLedger) {
        let Some(Left { at, host, frame, comment }) = self.last.take() else { return };
        let Some(&Some(link)) = self.interfaces.get(host.index()) else { return };
        let (at, out) = (at.into(), PcapDirection::Out);
        let written = self.writer.record_with_comment(link, at, out, &frame, &comment, ledger);
        self.note_error(written);
    }
}

impl EventSink for Capture {
    fn host(&mut self, _host: HostId, name: &str, addresses: &[IpAddr]) {
        // Hosts are added in the order of their numbers.
        let interface = self.writer.add_interface(name, Medium::Ip);
        self.interfaces.push(interface.as_ref().ok().copied());
        self.note_error(interface.map(drop));
        self.names.extend(addresses.iter().map(|&addr| (addr, name.to_owned())));
    }

    fn frame(
        &mut self,
        at: SimTime,
        event: PacketEvent,
        from: Option<HostId>,
        to: Option<HostId>,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    ) {
        match (event, from, to) {
            (PacketEvent::Sent, Some(host), _) => {
                self.write_last(ledger);
                let (frame, comment) = (frame.clone(), String::new());
                self.last = Some(Left { at, host, frame, comment });
            }
            (PacketEvent::Arrived, _, Some(host)) => {
                self.write_last(ledger);
                if let Some(&Some(link)) = self.interfaces.get(host.index()) {
                    let direction = PcapDirection::In;
                    let written = self.writer.record(link, at.into(), direction, frame, ledger);
                    self.note_error(written);
                }
            }
            // Events at the moment of sending are those of the first link.
            (event, Some(host), _) => match &mut self.last {
                Some(last) if last.at == at && last.host == host => {
                    if !last.comment.is_empty() {
                        last.comment += "; ";
                    }
                    last.comment += &event.to_string();
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
        let names = names.iter().map(|(addr, name)| (*addr, name.as_str()));
        let written = self.writer.add_names(names);
        self.note_error(written);
    }

    fn flush(&mut self) -> Result<(), String> {
        self.write_last(&mut CopyLedger::new());
        let written = self.writer.flush();
        self.note_error(written);
        match &self.error {
            Some(error) => Err(format!("the capture {} is cut off: {error}", self.path.display())),
            None => Ok(()),
        }
    }
}
