//! Making a vhost-user device: settings, and advice when the system refuses.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::allowance::FrontEndLimits;
use super::control::{Control, Source};
use super::events::Events;
use super::limits::{BY_REFERENCE, MAX_QUEUE_PAIRS};
use super::port_state::PortState;
use super::receive::Receiver;
use super::session::Session;
use super::{VhostUser, features};
use crate::DeviceError;
use crate::limits::{MAX_MTU, MIN_MTU};
use crate::port::limits::MIN_POOL_BYTES;
use crate::port::{Port, PortConfig, PortTable, SendBuffer};
use crate::settings::LinkSettings;
use crate::socket_path::{Listener, bind_listener, derive_mac};
use crate::wake_event::WakeEvent;
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
    /// Memory for copied frames, in bytes; by default 16 MiB, at least 1 MiB. Touched only as
    /// used.
    pool_bytes(bytes: usize): settings.pool_bytes = Some(bytes);
    /// Most queue pairs that a guest may use: 1 by default, at most 64.
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
        self.start(Source::Connect(path.clone()), &path)
    }

    /// Serves only the front end at the other end of a socket.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn over(self, stream: UnixStream) -> Result<VhostUser, DeviceError> {
        self.start(Source::Stream(stream), Path::new(""))
    }

    fn wait(self, listener: Listener, path: &Path) -> Result<VhostUser, DeviceError> {
        let source = match self.one_front_end {
            true => Source::ListenOnce(listener),
            false => Source::Listen(listener),
        };
        self.start(source, path)
    }

    fn start(self, source: Source, path: &Path) -> Result<VhostUser, DeviceError> {
        self.check()?;
        let pairs = self.queue_pairs.unwrap_or(1);
        let wake = Arc::new(WakeEvent::new().map_err(descriptors)?);
        let events = Arc::new(Events::new(&wake).map_err(descriptors)?);
        let mut config = PortConfig::new(Medium::Ethernet);
        config.pool_bytes = self.settings.pool_bytes.unwrap_or(config.pool_bytes);
        let (send_buffer, waker) = (self.send_buffer, Arc::clone(&wake));
        (config.send_buffer, config.table) = (send_buffer, self.table);
        config.wake = Some(Arc::new(move || waker.wake()));
        let pool_bytes = config.pool_bytes;
        let port = Port::new(config).map_err(|e| {
            system(format!("map {pool_bytes} bytes to receive into"), io::Error::other(e))
        })?;
        let receiver = Receiver::new(port, self.by_reference.unwrap_or(BY_REFERENCE));
        let port_state = PortState::new(&wake, pairs, self.limits, self.trusted).map_err(|e| {
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
        let session = Session::new(features::offered(pairs), &events, &port_state);
        let control = Control::start(session, source)
            .map_err(|e| system("start a thread for the socket".into(), e))?;
        let mac = self.settings.mac.unwrap_or_else(|| derive_mac(path));
        // Super-frames are cut in software for a guest that takes none.
        let card = Capabilities::offloading(mac, self.settings.mtu.unwrap_or(1500));
        let capabilities = Capabilities { queues: pairs, ..card };
        Ok(VhostUser::over(control, capabilities, events, receiver))
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

fn system(what: String, source: io::Error) -> DeviceError {
    DeviceError::System { what: format!("vhost-user: {what}"), source }
}

fn descriptors(source: io::Error) -> DeviceError {
    system("make an eventfd (is the limit on open files reached?)".into(), source)
}
