//! Making or opening a tap device: settings, and advice when the system refuses.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use super::limits::{
    MAX_MTU, MAX_NAME, MAX_QUEUES, MIN_MTU, MIN_POOL_BYTES, QUEUE_BYTES, QUEUE_FRAMES,
    SETTLE_PAUSE, SETTLE_TRIES, SPARE_QUEUES,
};
use super::netlink::{Link, Netlink};
use super::sys::{self, Queues, Step};
use super::{Tap, TapQueues, errno};
use crate::DeviceError;
use crate::machine;
use crate::settings::{self, LinkSettings};
use pagewire_mem::link::{Capabilities, HeaderSplit};

/// Settings of a [`Tap`].
///
/// ```no_run
/// use pagewire_device::Tap;
/// let tap = Tap::builder("pw0")
///     .host_addresses(["10.77.0.1/24", "fd77::1/64"])
///     .open()?;
/// # Ok::<(), pagewire_device::DeviceError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct TapBuilder {
    name: Option<String>,
    settings: LinkSettings,
    host_addresses: Vec<String>,
    /// Networks, and the routers that lead there.
    host_routes: Vec<((IpAddr, u8), Option<IpAddr>)>,
    host_mac: Option<[u8; 6]>,
    left_alone: bool,
    no_uso: bool,
}

/// A tap as descriptors: one process makes it, in a network namespace of its own, and hands it to
/// another (over a Unix socket), which [adopts](TapBuilder::adopt) it and has no rights there.
#[derive(Debug)]
pub struct TapParts {
    /// The queues: the first is attached, the others are not, and are for mapped flows.
    pub queues: Vec<OwnedFd>,
    /// Name of the network device.
    pub name: String,
    /// Link address of the kernel's side.
    pub kernel_mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu: usize,
}

pagewire_mem::setters! {
    TapBuilder:
    /// Name of the network device, up to 15 bytes. A device that does not exist is made, and
    /// vanishes with its last queue. Without a name the kernel chooses one (`pw0`, `pw1`, …).
    ///
    /// A new device has room for 16,384 received frames in each queue. An existing one keeps its
    /// length, 1000 by default (`ip link set pw0 txqueuelen 16384`): with thousands of connections
    /// the kernel then drops frames that they send at the same time.
    name(name: impl Into<String>): name = Some(name.into());
    /// Largest IP packet in bytes, 1,280 to 65,521 [default: the device's own; 1,500 of a new one].
    mtu(mtu: usize): settings.mtu = Some(mtu);
    /// The stack's link address, a unicast one. By default it is derived from the kernel side's.
    mac(mac: [u8; 6]): settings.mac = Some(mac);
    /// The kernel side's link address, a unicast one; by default the kernel chooses one.
    host_mac(mac: [u8; 6]): host_mac = Some(mac);
    /// Whether the device's state, MTU and addresses are left to others, who may set them later.
    left_alone(on: bool): left_alone = on;
    /// Memory to receive into, in bytes per queue; by default four thirds of what a host pins by
    /// default, touched only as far as used.
    pool_bytes(bytes: usize): settings.pool_bytes = Some(bytes);
}

impl TapBuilder {
    /// The defaults, without a name: the kernel chooses one (`pw0`, `pw1`, …), or
    /// [`adopt`](Self::adopt) finds one.
    pub fn new() -> Self {
        Self::default()
    }

    /// An address of the kernel's side, as in `10.77.0.1/24` or `fd77::1/64`; repeatable.
    pub fn host_address(mut self, address: impl Display) -> Self {
        self.host_addresses.push(address.to_string());
        self
    }

    /// Several of [`host_address`](Self::host_address).
    pub fn host_addresses<A: Display>(self, addresses: impl IntoIterator<Item = A>) -> Self {
        addresses.into_iter().fold(self, Self::host_address)
    }

    /// A router for the kernel's side, whether in a network of its addresses or not; repeatable.
    pub fn host_gateway(self, router: IpAddr) -> Self {
        let all = match router {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.host_route((all, 0), Some(router))
    }

    /// A network that the kernel's side reaches by a router, or on the link: its address and the length of its
    /// prefix; repeatable.
    pub fn host_route(mut self, network: (IpAddr, u8), router: Option<IpAddr>) -> Self {
        self.host_routes.push((network, router));
        self
    }

    /// Whether several datagrams of one call cross the device as one frame, both ways (`UDP_SEGMENT`,
    /// `UDP_GRO`): by default wherever the kernel can, which is since Linux 6.2.
    pub fn uso(mut self, on: bool) -> Self {
        self.no_uso = !on;
        self
    }

    /// Opens or makes the device, with one queue.
    ///
    /// # Errors
    /// [`DeviceError::Config`] for invalid settings, [`DeviceError::System`] if the system refuses;
    /// the text says what to do.
    pub fn open(self) -> Result<Tap, DeviceError> {
        let mut queues = self.open_queues(1)?;
        queues.pop().ok_or(DeviceError::Closed)
    }

    /// Opens or makes the device with `queues` queues, one [`Tap`] each. The kernel steers each
    /// flow to the queue that last sent for it, and forgets that after three seconds without a frame. It
    /// knows nothing of the queues' addresses: what it sends to no known flow comes by any queue, by a
    /// hash. The queues are for a host of several cores, whose shards pass packets on to where they belong.
    ///
    /// # Errors
    /// As [`open`](Self::open). A device that another program has open is refused, although the kernel would attach
    /// further queues: the two would share its frames.
    pub fn open_queues(self, queues: usize) -> Result<Vec<Tap>, DeviceError> {
        let settings = self.check(queues)?;
        let TapParts { queues: mut all, name, kernel_mac, mtu } = self.make(&settings, queues)?;
        // Where one queue was wanted, the others are spare.
        let mut spare = if queues == 1 { all.split_off(1.min(all.len())) } else { Vec::new() };
        let info = TapInfo { name, kernel_mac, mtu, queues };
        let taps = all
            .into_iter()
            .map(|fd| self.over(fd, std::mem::take(&mut spare), settings.pool_bytes, info.clone()));
        taps.collect()
    }

    /// Makes the device for another process, which is to [adopt](Self::adopt) its descriptors. It
    /// vanishes with the last of them.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_parts(self) -> Result<TapParts, DeviceError> {
        let settings = self.check(1)?;
        self.make(&settings, 1)
    }

    /// The device whose descriptors another process has made with [`open_parts`](Self::open_parts).
    /// The device may be in another network namespace. It uses the link address and the memory of these
    /// settings, and otherwise the settings of its maker.
    ///
    /// # Errors
    /// [`DeviceError::Config`] for invalid settings or without a queue, [`DeviceError::System`] if
    /// there is no memory.
    pub fn adopt(self, parts: TapParts) -> Result<Tap, DeviceError> {
        let settings = Self { name: None, ..self.clone().mtu(parts.mtu) }.check(1)?;
        let TapParts { queues, name, kernel_mac, mtu } = parts;
        let mut queues = queues.into_iter();
        let none = || DeviceError::Config(format!("there is no queue of tap {name} to adopt"));
        let first = queues.next().ok_or_else(none)?;
        let spare = queues.take(settings.spare_queues).collect();
        let info = TapInfo { name, kernel_mac, mtu, queues: 1 };
        self.over(first, spare, settings.pool_bytes, info)
    }

    /// Attaches queues, and gives the kernel's side what the settings say.
    fn make(&self, settings: &Settings, queues: usize) -> Result<TapParts, DeviceError> {
        let name = &settings.name;
        let netlink = Netlink::open().map_err(|e| system("open a netlink socket", e))?;
        let link = |name: &str| {
            netlink.link(name).map_err(|e| system(format!("look up network device {name}"), e))
        };
        // An existing device keeps its settings unless they are given.
        let existing = if name.contains('%') { None } else { link(name)? };
        // The kernel answers this as it answers for a tap that is in use.
        if existing.is_some_and(|link| !link.is_tap) {
            let what = format!(
                "open tap {name}: the network device of that name is no tap; choose another name"
            );
            return Err(system(what, Errno::INVAL.into()));
        }
        let is_new = existing.is_none();
        // Whoever waits for the device finds it with its addresses: they come before all that takes time.
        let addresses = if self.left_alone { &[][..] } else { &settings.addresses };
        let appeared = |name: &str| {
            if let Ok(Some(found)) = netlink.link(name) {
                for &(address, prefix) in addresses {
                    // An error is reported below.
                    let _ = netlink.add_address(found.index, address, prefix);
                }
            }
        };
        let (fds, name) = attach_all(&netlink, settings, queues, existing, appeared)?;
        let gone = || system(format!("set up tap {name}"), io::ErrorKind::NotFound.into());
        let found = link(&name)?.ok_or_else(gone)?;
        if let Some(first) = fds.first().filter(|_| is_new) {
            sys::own(first.as_fd()).map_err(|e| system(format!("set up tap {name}"), e))?;
        }
        let refused = |what: String| move |e: io::Error| system(format!("{what}{}", needs(&e)), e);
        if let Some(mac) = self.host_mac {
            let set = netlink.set_mac(found.index, mac);
            set.map_err(refused(format!("set the link address of tap {name}")))?;
        }
        let kernel_mac = self.host_mac.unwrap_or(found.mac);
        let mtu = self.settings.mtu.unwrap_or(found.mtu);
        let parts = |name| TapParts { queues: fds, name, kernel_mac, mtu };
        if self.left_alone {
            return Ok(parts(name));
        }
        if let Some(mtu) = self.settings.mtu.filter(|&mtu| mtu != found.mtu) {
            let set = netlink.set_mtu(found.index, mtu);
            set.map_err(refused(format!("set the MTU of tap {name} to {mtu}")))?;
        }
        if is_new {
            let set = netlink.set_queue_frames(found.index, QUEUE_FRAMES);
            set.map_err(refused(format!("make the queue of tap {name} longer")))?;
        }
        if !found.up {
            netlink.bring_up(found.index).map_err(refused(format!("bring tap {name} up")))?;
        }
        for &(address, prefix) in &settings.addresses {
            add_address(&netlink, found.index, &name, address, prefix)?;
        }
        for &(network, router) in &self.host_routes {
            // A router outside of all networks is on the link because the route says so.
            let has = |router: &IpAddr| settings.addresses.iter().any(|own| contains(own, *router));
            let on_link = router.as_ref().is_some_and(|router| !has(router));
            let added = netlink.add_route(found.index, network, router, on_link);
            let (network, prefix) = network;
            added.map_err(refused(match router {
                Some(router) if prefix == 0 => {
                    format!("make {router} the router behind tap {name}")
                }
                _ => format!("make a route to {network}/{prefix} by tap {name}"),
            }))?;
        }
        Ok(parts(name))
    }

    /// The driver of a queue and its spare ones.
    fn over(
        &self,
        first: OwnedFd,
        spare: Vec<OwnedFd>,
        pool_bytes: usize,
        info: TapInfo,
    ) -> Result<Tap, DeviceError> {
        let TapInfo { name, kernel_mac, mtu, queues } = info;
        let mac = self.settings.mac.unwrap_or_else(|| derive_mac(kernel_mac));
        let card = Capabilities::offloading(mac, mtu);
        let (header_split, uso) =
            (HeaderSplit::Predicted, !self.no_uso && sys::take_uso(first.as_fd()));
        let capabilities = Capabilities { header_split, queues, uso, ..card };
        let pool = settings::pool("tap", "pagewire-tap", pool_bytes)?;
        let queues =
            TapQueues::new(first, spare).map_err(|e| system("wait on several queues", e))?;
        Ok(Tap::over(queues, name, kernel_mac, capabilities, pool))
    }

    /// Checks everything that needs no system call.
    fn check(&self, queues: usize) -> Result<Settings, DeviceError> {
        let config = |text: String| Err(DeviceError::Config(text));
        let name = self.name.as_deref().unwrap_or("pw%d");
        let strange = |c: char| !c.is_ascii_graphic() || "/:%".contains(c);
        let named = self.name.is_some();
        if named && (name.is_empty() || name.starts_with('.') || name.contains(strange)) {
            return config(format!(
                "'{}' cannot name a network device: use letters, digits, '-' and '_'",
                name.escape_debug()
            ));
        }
        if name.len() > MAX_NAME {
            return config(format!(
                "'{name}' is too long for the name of a network device: at most {MAX_NAME} bytes"
            ));
        }
        self.settings.check("tap", MIN_MTU..=MAX_MTU, MIN_POOL_BYTES)?;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return config(format!("{queues} queues are not possible: choose 1 to {MAX_QUEUES}"));
        }
        let pool_bytes = self.settings.pool_bytes.unwrap_or_else(machine::device_memory);
        let addresses =
            self.host_addresses.iter().map(|text| parse_address(text)).collect::<Result<_, _>>()?;
        let spare_queues = (pool_bytes / QUEUE_BYTES).saturating_sub(1).min(SPARE_QUEUES);
        Ok(Settings { name: name.to_owned(), addresses, pool_bytes, spare_queues })
    }
}

struct Settings {
    name: String,
    addresses: Vec<(IpAddr, u8)>,
    pool_bytes: usize,
    /// Queues beside the first that a new device gets.
    spare_queues: usize,
}

/// The kernel's view of a device that is there.
#[derive(Clone)]
struct TapInfo {
    name: String,
    kernel_mac: [u8; 6],
    mtu: usize,
    queues: usize,
}

/// Attaches as many queues as wanted; beside the only one of a new device, detached spare ones.
fn attach_all(
    netlink: &Netlink,
    settings: &Settings,
    queues: usize,
    existing: Option<Link>,
    appeared: impl FnOnce(&str),
) -> Result<(Vec<OwnedFd>, String), DeviceError> {
    let name = &settings.name;
    if queues == 1
        && existing.is_none()
        && let Some((first, mut spare, name)) = attach_own(name, settings.spare_queues, appeared)
    {
        spare.insert(0, first);
        return Ok((spare, name));
    }
    let (first, name) = attach_first(netlink, name, queues > 1, existing)?;
    let mut fds = vec![first];
    for _ in 1..queues {
        let (fd, _) = sys::attach(&name, Queues::Many)
            .map_err(|(step, e)| attach_error(&name, step, true, e))?;
        fds.push(fd);
    }
    Ok((fds, name))
}

/// Brings up the loopback device of this network namespace; a new one's is down.
///
/// # Errors
/// [`DeviceError::System`] if the system refuses.
pub fn loopback_up() -> Result<(), DeviceError> {
    let up = || -> io::Result<()> { Netlink::open()?.bring_up(LOOPBACK_INDEX) };
    up().map_err(|e| system(format!("bring the loopback device up{}", needs(&e)), e))
}

/// The index of each network namespace's first device.
const LOOPBACK_INDEX: u32 = 1;

/// Makes the device with `spare` queues beside the first, which are detached at once: with one
/// queue the kernel need not classify flows. `None`: an ordinary device may be possible.
fn attach_own(
    name: &str,
    spare: usize,
    appeared: impl FnOnce(&str),
) -> Option<(OwnedFd, Vec<OwnedFd>, String)> {
    let (first, name) = sys::attach(name, Queues::ManyOfNew).ok()?;
    appeared(&name);
    let mut queues = Vec::new();
    for _ in 0..spare {
        let (fd, _) = sys::attach(&name, Queues::Many).ok()?;
        sys::set_attached(fd.as_fd(), false).ok()?;
        queues.push(fd);
    }
    Some((first, queues, name))
}

/// Attaches the first queue. An existing device takes only the kind of request it was made with. One for several
/// queues takes them from several programs, whose frames it would share: refused here.
fn attach_first(
    netlink: &Netlink,
    name: &str,
    multi_queue: bool,
    existing: Option<Link>,
) -> Result<(OwnedFd, String), DeviceError> {
    let existed = existing.is_some();
    let refused = |(step, e)| attach_error(name, step, existed, e);
    let in_use = || refused((Step::Attach, Errno::BUSY.into()));
    let is_open = existing.is_some_and(|link| link.is_open());
    let kind = match existing {
        _ if !multi_queue => Queues::One,
        Some(_) if is_open => return Err(in_use()),
        Some(_) => Queues::Many,
        // Refused if another program makes the device first.
        None => Queues::ManyOfNew,
    };
    let attached = match sys::attach(name, kind) {
        Err((Step::Attach, e)) if existed && !multi_queue && errno(&e) == Errno::INVAL => {
            if is_open {
                return Err(in_use());
            }
            sys::attach(name, Queues::Many)
        }
        done => done,
    };
    let (first, name) = attached.map_err(refused)?;
    // Programs that open the device at the same time all see that here. None of them keeps it.
    let now = if existed { netlink.link(&name).ok().flatten() } else { None };
    if now.and_then(|link| link.open_queues).is_some_and(|queues| queues > 1) {
        return Err(in_use());
    }
    Ok((first, name))
}

/// Whether an address is in the network of another.
fn contains((own, prefix): &(IpAddr, u8), address: IpAddr) -> bool {
    let differs = match (own, address) {
        (IpAddr::V4(own), IpAddr::V4(address)) => {
            u128::from(u32::from(*own) ^ u32::from(address)) << 96
        }
        (IpAddr::V6(own), IpAddr::V6(address)) => u128::from(*own) ^ u128::from(address),
        _ => return false,
    };
    // A link-local address is in the network of every link.
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    is_link_local || differs.leading_zeros() >= u32::from(*prefix)
}

/// Gives the kernel's side an address, and waits until the kernel accepts packets to it.
fn add_address(
    netlink: &Netlink,
    index: u32,
    name: &str,
    address: IpAddr,
    prefix: u8,
) -> Result<(), DeviceError> {
    netlink.add_address(index, address, prefix).map_err(|e| {
        let advice = match errno(&e) {
            Errno::OPNOTSUPP | Errno::ACCESS if address.is_ipv6() => {
                ": IPv6 is disabled, see sysctl net.ipv6.conf.all.disable_ipv6".into()
            }
            _ => needs(&e),
        };
        system(format!("give {address}/{prefix} to tap {name}{advice}"), e)
    })?;
    for _ in 0..SETTLE_TRIES {
        // If the kernel does not say, a packet is lost at most.
        if netlink.is_local(address).unwrap_or(true) {
            break;
        }
        std::thread::sleep(SETTLE_PAUSE);
    }
    Ok(())
}

/// How root makes a tap that another user opens: its address too, without which it is silent.
fn by_hand(name: &str) -> String {
    format!(
        "ip tuntap add {name} mode tap user $USER; ip addr add ADDRESS/24 dev {name}; ip link set \
         {name} up"
    )
}

fn attach_error(name: &str, step: Step, existed: bool, error: io::Error) -> DeviceError {
    let refused = matches!(errno(&error), Errno::PERM | Errno::ACCESS);
    let what = match step {
        Step::Open if refused => {
            "open /dev/net/tun: run as root, or let root allow it (chmod 0666 /dev/net/tun)".into()
        }
        Step::Open => {
            "open /dev/net/tun: load the kernel's module (modprobe tun), and in a container pass \
             the device in (--device /dev/net/tun)"
                .into()
        }
        Step::Attach if refused && existed => format!(
            "open tap {name}: it belongs to somebody else; run as root, or let root remake it for \
             you ({})",
            by_hand(name)
        ),
        Step::Attach if refused => format!(
            "make tap {name}: run as root or with CAP_NET_ADMIN, or let root make it for you \
             ({})",
            by_hand(name)
        ),
        Step::Attach => match errno(&error) {
            Errno::BUSY => format!(
                "open tap {name}: another program has it open, or a host of this one that still \
                 ends (`Host::shutdown` waits for that); stop that, or choose another name"
            ),
            Errno::INVAL if existed => format!(
                "open tap {name}: the network device of that name was made for one queue; choose \
                 another name"
            ),
            _ => format!("open tap {name}"),
        },
        Step::Offload => format!(
            "set up offloads on tap {name}: the kernel is too old for virtio headers, or the \
             device is set up by another program"
        ),
    };
    system(what, error)
}

/// Advice for a refusal, if there is any.
fn needs(error: &io::Error) -> String {
    match errno(error) {
        Errno::PERM | Errno::ACCESS => {
            ": run as root or with CAP_NET_ADMIN, or let root do it beforehand".into()
        }
        _ => String::new(),
    }
}

fn system(what: impl Into<String>, source: io::Error) -> DeviceError {
    DeviceError::System { what: what.into(), source }
}

/// An address other than the kernel side's, derived from it: locally administered, unicast.
fn derive_mac(kernel: [u8; 6]) -> [u8; 6] {
    let [first, b, c, d, e, last] = kernel;
    [first & !1 | 2, b, c, d, e, last ^ 1]
}

fn parse_address(text: &str) -> Result<(IpAddr, u8), DeviceError> {
    let wrong = |why: &str| {
        DeviceError::Config(format!(
            "'{}' {why}: write an address of the kernel's side as 10.77.0.1/24 or fd77::1/64",
            text.escape_debug()
        ))
    };
    let (address, prefix) = text.split_once('/').ok_or_else(|| wrong("has no prefix length"))?;
    let address: IpAddr = address.parse().map_err(|_| wrong("is no IP address"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.parse().ok().filter(|&p: &u8| p <= most && p > 0);
    let prefix = prefix.ok_or_else(|| wrong("has a prefix length that is not possible"))?;
    if address.is_unspecified() || address.is_multicast() {
        return Err(wrong("is no address of one host"));
    }
    Ok((address, prefix))
}
