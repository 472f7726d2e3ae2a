//! Making a vhost-user device: settings, and advice when the system refuses.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::VhostUser;
use super::allowance::{Allowance, FrontEndLimits};
use super::control::{Control, Source};
use super::events::Events;
use super::limits::{BY_REFERENCE, MAX_QUEUE_PAIRS};
use super::port_state::PortState;
use super::receive::Receiver;
use super::session::Session;
use super::shared::Shared;
use super::spill::{Spill, SpillEnd};
use super::transmit::Sender;
use crate::limits::{MAX_MTU, MIN_MTU};
use crate::port::limits::MIN_POOL_BYTES;
use crate::port::{Port, PortConfig, PortTable, SendBuffer};
use crate::settings::LinkSettings;
use crate::socket_path::{Listener, bind_listener, derive_mac};
use crate::wake_event::WakeEvent;
use crate::{DeviceCounters, DeviceError};
use pagewire_mem::link::{Capabilities, Medium};

/// Settings of a [`VhostUser`].
///
/// ```no_run
/// use pagewire_device::VhostUser;
/// let port = VhostUser::builder().listen("/run/guest0.sock")?;
/// # Ok::<(), pagewire_device::DeviceError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct VhostUserBuilder {
    settings: LinkSettings,
    queue_pairs: Option<usize>,
    by_reference: Option<usize>,
    send_buffer: SendBuffer,
    table: Option<Arc<PortTable>>,
    limits: FrontEndLimits,
    trusted: bool,
    one_front_end: bool,
}

pagewire_mem::setters! {
    VhostUserBuilder:
    /// Largest IP packet in bytes, 576 to 65,535 (at least 1,280 for IPv6); 1,500 by default. The
    /// guest has an MTU of its own: give it the same (`host_mtu=` of QEMU's `virtio-net-pci`).
    mtu(mtu: usize): settings.mtu = Some(mtu);
    /// The stack's link address, a unicast one; by default derived from the socket's path.
    mac(mac: [u8; 6]): settings.mac = Some(mac);
    /// Memory for copied frames of a device, in bytes; by default 16 MiB, at least 1 MiB. Touched only as
    /// used.
    pool_bytes(bytes: usize): settings.pool_bytes = Some(bytes);
    /// Most queue pairs that a guest may use: by default one for each device, at most 64.
    queue_pairs(pairs: usize): queue_pairs = Some(pairs);
    /// Shortest frame, in bytes, that is passed by reference; 1,024 by default. `usize::MAX`: none.
    by_reference_from(bytes: usize): by_reference = Some(bytes);
    /// How many bytes of copied frames may be outstanding; unlimited by default, and only then are
    /// frames built in place. A guest whose frames find no room waits.
    send_buffer(send_buffer: SendBuffer): send_buffer = send_buffer;
    /// The ports between which a hook may redirect frames to and from this one.
    table(table: &Arc<PortTable>): table = Some(Arc::clone(table));
    /// The resources that front ends may use, across sessions.
    front_end_limits(limits: FrontEndLimits): limits = limits;
    /// Whether the first front end is the only one: the device is [closed](DeviceError::Closed) when that one
    /// goes; off by default. Of those that [connect](Self::listen) to the device.
    one_front_end(on: bool): one_front_end = on;
    /// Whether front ends are trusted not to harm this process; they are not by default. A trusted
    /// one may share huge pages, and could punch holes into them, which kills a process that
    /// touches such a page. Its guest is interrupted by a plain write, which the front end could
    /// make wait for ever, and with it this host. The guest itself is trusted in neither case.
    trust_front_end(trusted: bool): trusted = trusted;
}

impl VhostUserBuilder {
    /// Listens on a Unix socket at `path`, where one front end at a time may connect: `qemu …
    /// -chardev socket,id=c0,path=PATH,reconnect=1 -netdev vhost-user,id=n0,chardev=c0`. The
    /// device's drop removes the socket. A socket without a listener is replaced.
    ///
    /// # Errors
    /// [`DeviceError::Config`] for invalid settings, [`DeviceError::System`] if the system refuses;
    /// the text says what to do.
    pub fn listen(self, path: impl AsRef<Path>) -> Result<VhostUser, DeviceError> {
        let path = path.as_ref();
        self.check()?;
        let listener = Self::bind(path)?;
        self.accept(listener, path)
    }

    /// As [`listen`](Self::listen), with several devices, which have the guest's queue pairs in turns: for
    /// a host of several cores, whose shards pass packets on to where they belong. Where the guest
    /// uses fewer pairs than there are devices, the first device sends for the others. A device that is
    /// dropped serves its pairs no longer, whatever the guest sends there: drop all together.
    ///
    /// # Errors
    /// As [`listen`](Self::listen); [`DeviceError::Config`] also if there are more devices than queue pairs, or
    /// none.
    pub fn listen_queues(
        self,
        path: impl AsRef<Path>,
        devices: usize,
    ) -> Result<Vec<VhostUser>, DeviceError> {
        let path = path.as_ref();
        self.check_devices(devices)?;
        let listener = Self::bind(path)?;
        let source = self.waiting(Listener::own(listener, path));
        self.start(source, path, devices)
    }

    /// The socket for [`accept`](Self::accept): together they are [`listen`](Self::listen), of which
    /// the second part, which starts a thread, can be done later, such as behind a sandbox.
    ///
    /// # Errors
    /// [`DeviceError::System`] if the system refuses; the text says what to do.
    pub fn bind(path: impl AsRef<Path>) -> Result<UnixListener, DeviceError> {
        let path = path.as_ref();
        bind_listener(path).map_err(|e| {
            let hint = match e.kind() {
                io::ErrorKind::AddrInUse => " (another program listens there: take another path)",
                _ => "",
            };
            system(format!("listen on {}{hint}", path.display()), e)
        })
    }

    /// As [`listen`](Self::listen), by the socket that [`bind`](Self::bind) made at `path`.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn accept(
        self,
        listener: UnixListener,
        path: impl Into<PathBuf>,
    ) -> Result<VhostUser, DeviceError> {
        let path = path.into();
        self.wait(Listener::own(listener, &path), &path)
    }

    /// As [`listen`](Self::listen), at a socket that somebody else has bound and listens at, too, such as a
    /// service manager: its file stays. Calls of the socket do not block from then on.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn adopt(self, listener: UnixListener) -> Result<VhostUser, DeviceError> {
        let adopted = Listener::adopt(listener);
        let (listener, path) =
            adopted.map_err(|e| system("listen on a socket that was passed".into(), e))?;
        self.wait(listener, &path)
    }

    /// Connects to a front end that listens (`server=on`), again whenever it is there.
    ///
    /// # Errors
    /// As [`listen`](Self::listen), except for the socket: it need not exist yet.
    pub fn connect(self, path: impl Into<PathBuf>) -> Result<VhostUser, DeviceError> {
        let path = path.into();
        self.start_one(Source::Connect(path.clone()), &path)
    }

    /// Serves only the front end at the other end of a socket.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn over(self, stream: UnixStream) -> Result<VhostUser, DeviceError> {
        self.start_one(Source::Stream(stream), Path::new(""))
    }

    /// As [`over`](Self::over), with several [devices](Self::listen_queues).
    ///
    /// # Errors
    /// As [`listen_queues`](Self::listen_queues).
    pub fn over_queues(
        self,
        stream: UnixStream,
        devices: usize,
    ) -> Result<Vec<VhostUser>, DeviceError> {
        self.start(Source::Stream(stream), Path::new(""), devices)
    }

    fn wait(self, listener: Listener, path: &Path) -> Result<VhostUser, DeviceError> {
        let source = self.waiting(listener);
        self.start_one(source, path)
    }

    /// The front ends that connect to a socket.
    fn waiting(&self, listener: Listener) -> Source {
        match self.one_front_end {
            true => Source::ListenOnce(listener),
            false => Source::Listen(listener),
        }
    }

    fn start_one(self, source: Source, path: &Path) -> Result<VhostUser, DeviceError> {
        self.start(source, path, 1)?.pop().ok_or(DeviceError::Closed)
    }

    /// Makes the devices, and starts the thread for their front ends.
    fn start(
        self,
        source: Source,
        path: &Path,
        devices: usize,
    ) -> Result<Vec<VhostUser>, DeviceError> {
        self.check_devices(devices)?;
        let pairs = self.queue_pairs.unwrap_or(devices);
        let allowance = Allowance::new(self.limits, self.trusted);
        let parts = (0..devices).map(|number| {
            // Pairs are dealt in turns.
            let own = pairs.saturating_sub(number).div_ceil(devices);
            self.parts([own, pairs], &allowance)
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let all = parts.iter().map(|parts| Arc::clone(&parts.shared)).collect();
        let control = Control::start(all, source)
            .map_err(|e| system("start a thread for the socket".into(), e))?;
        let control = Arc::new(control);
        let mac = self.settings.mac.unwrap_or_else(|| derive_mac(path));
        // Super-frames are cut in software for a guest that takes none.
        let card = Capabilities::offloading(mac, self.settings.mtu.unwrap_or(1500));
        let first = parts.first().map(|parts| Spill::new(&parts.shared.port_state.wake));
        let made = parts.into_iter().enumerate().map(|(number, parts)| {
            let Parts { shared, events, receiver } = parts;
            let spill = match (&first, number) {
                (Some(spill), 0) if devices > 1 => SpillEnd::First(Arc::clone(spill)),
                (Some(spill), 1..) => {
                    SpillEnd::Other(Arc::clone(spill), Arc::clone(&shared.port_state.wake))
                }
                _ => SpillEnd::None,
            };
            VhostUser {
                capabilities: Capabilities { queues: shared.port_state.pairs, ..card.clone() },
                shared,
                control: Arc::clone(&control),
                spill,
                events,
                receiver,
                sender: Sender::new(),
                counters: DeviceCounters::default(),
                next: 0,
                armed: false,
                retry_at: None,
            }
        });
        Ok(made.collect())
    }

    /// The parts of a device: its queue pairs, and those of the port.
    fn parts(&self, pairs: [usize; 2], allowance: &Arc<Allowance>) -> Result<Parts, DeviceError> {
        let wake = Arc::new(WakeEvent::new().map_err(descriptors)?);
        let events = Arc::new(Events::new(&wake).map_err(descriptors)?);
        let mut config = PortConfig::new(Medium::Ethernet);
        config.pool_bytes = self.settings.pool_bytes.unwrap_or(config.pool_bytes);
        let (send_buffer, waker) = (self.send_buffer, Arc::clone(&wake));
        (config.send_buffer, config.table) = (send_buffer, self.table.clone());
        config.wake = Some(Arc::new(move || waker.wake()));
        let pool_bytes = config.pool_bytes;
        let port = Port::new(config).map_err(|e| {
            system(format!("map {pool_bytes} bytes to receive into"), io::Error::other(e))
        })?;
        let receiver = Receiver::new(port, self.by_reference.unwrap_or(BY_REFERENCE));
        let port_state = PortState::new(&wake, pairs, allowance, self.trusted).map_err(|e| {
            let hint = match e.raw_os_error() {
                Some(libc::EAGAIN) => "raise fs.aio-max-nr",
                _ => "this needs a kernel with asynchronous I/O, io_setup(2)",
            };
            system(
                format!(
                    "prepare to interrupt guests without waiting for them ({hint}, or trust the \
                     front end)"
                ),
                e,
            )
        })?;
        let shared = Arc::new(Shared::new(Session::new(&events, &port_state)));
        Ok(Parts { shared, events, receiver })
    }

    fn check_devices(&self, devices: usize) -> Result<(), DeviceError> {
        self.check()?;
        let pairs = self.queue_pairs.unwrap_or(devices);
        if !(1..=pairs.min(MAX_QUEUE_PAIRS)).contains(&devices) {
            let text = format!("vhost-user: {devices} devices for {pairs} queue pairs");
            return Err(DeviceError::Config(text));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.settings.check("vhost-user", MIN_MTU..=MAX_MTU, MIN_POOL_BYTES)?;
        let refuse = |what: String| Err(DeviceError::Config(format!("vhost-user: {what}")));
        if let Some(pairs) = self.queue_pairs.filter(|n| !(1..=MAX_QUEUE_PAIRS).contains(n)) {
            return refuse(format!("{pairs} queue pairs are not between 1 and {MAX_QUEUE_PAIRS}"));
        }
        if self.send_buffer == SendBuffer::Bytes(0) {
            return refuse("a send buffer has at least one byte".into());
        }
        Ok(())
    }
}

/// The parts of a device that are there before the thread.
struct Parts {
    shared: Arc<Shared>,
    events: Arc<Events>,
    receiver: Receiver,
}

fn system(what: String, source: io::Error) -> DeviceError {
    DeviceError::System { what: format!("vhost-user: {what}"), source }
}

fn descriptors(source: io::Error) -> DeviceError {
    system("make an eventfd (is the limit on open files reached?)".into(), source)
}
