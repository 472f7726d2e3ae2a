//! [`Network`]: the text of a network, as `PAGEWIRE` and `pw_host_open` have it.
//!
//! ```text
//!   tap=pw0,addr=10.77.0.2/24,host-addr=10.77.0.1/24
//!   pair=lan,addr=10.0.0.1/24
//!   vhost-user=/run/guest.sock,addr=fd77::1/64,mtu=9000
//! ```
//!
//! Words are separated by commas; spaces around them mean nothing. Exactly one word names the link.

use std::fmt;

/// The link of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// `tap=NAME`: a tap of that name in the kernel, made if there is none.
    Tap(String),
    /// `pair=NAME`: a link to the other network of this process that names the same pair.
    Pair(String),
    /// `vhost-user=PATH`: a virtual machine's port, a Unix socket that a front end connects to.
    VhostUser(String),
    /// `stream=PATH`: frames over a Unix stream socket that the other side connects to (QEMU's `-netdev stream`).
    Stream(String),
    /// `datagram=PATH`: frames as datagrams of a Unix socket at this path.
    Datagram(String),
    /// `frames`: the program moves the frames (`pw_frames_send`, `pw_frames_receive`).
    Frames,
}

/// A network: a link, and the addresses and routes on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The link.
    pub link: LinkKind,
    /// `addr=ADDRESS/BITS`: addresses of the program.
    pub addresses: Vec<String>,
    /// `host-addr=ADDRESS/BITS`: addresses of the kernel's side of a tap.
    pub host_addresses: Vec<String>,
    /// `gateway=ADDRESS`: default gateways, one for each IP version.
    pub gateways: Vec<String>,
    /// `route=NETWORK@GATEWAY`: networks behind other gateways.
    pub routes: Vec<(String, String)>,
    /// `mtu=BYTES`: the largest IP packet.
    pub mtu: Option<usize>,
    /// `mac=AA:BB:CC:DD:EE:FF`: the link address of the program.
    pub mac: Option<[u8; 6]>,
    /// `spin=MICROSECONDS`: how long a waiting thread polls the link before it sleeps.
    pub spin_us: Option<u64>,
    /// `memory=BYTES`: memory that all sockets together may pin.
    pub memory: Option<usize>,
    /// `queues=N`: receive queues of a link that is no tap, for rings. Their bytes are copied once.
    pub queues: Option<usize>,
    /// `stats=PATH`: the file that gets the report of all counts when the process exits.
    pub stats: Option<String>,
}

/// The reason why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The least memory of a network's sockets, in bytes: less holds no window.
pub const LEAST_MEMORY: usize = 65_536;

/// Every word, for messages.
const WORDS: &str = "tap, pair, vhost-user, stream, datagram, frames, addr, host-addr, gateway, route, mtu, mac, spin, memory, queues, stats";

impl Network {
    /// Reads a text.
    ///
    /// # Errors
    /// [`ConfigError`], which names the word. Addresses are checked when the network starts.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let error = |why: String| Err(ConfigError(why));
        let mut link = None;
        let mut network = Self {
            link: LinkKind::Frames,
            addresses: Vec::new(),
            host_addresses: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
            mtu: None,
            mac: None,
            spin_us: None,
            memory: None,
            queues: None,
            stats: None,
        };
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let (key, value) = (key.trim(), value.trim());
            if value.is_empty() != (key == "frames") && WORDS.split(", ").any(|word| word == key) {
                let needs = if key == "frames" { "takes no value" } else { "needs a value" };
                return error(format!("{key:?} {needs}"));
            }
            let owned = || value.to_owned();
            let kind = match key {
                "tap" => Some(LinkKind::Tap(owned())),
                "pair" => Some(LinkKind::Pair(owned())),
                "vhost-user" => Some(LinkKind::VhostUser(owned())),
                "stream" => Some(LinkKind::Stream(owned())),
                "datagram" => Some(LinkKind::Datagram(owned())),
                "frames" => Some(LinkKind::Frames),
                _ => None,
            };
            if let Some(kind) = kind {
                if link.replace(kind).is_some() {
                    return error(format!("{word:?} is a second link: a text has one"));
                }
                continue;
            }
            match key {
                "addr" => network.addresses.push(owned()),
                "host-addr" => network.host_addresses.push(owned()),
                "gateway" => network.gateways.push(owned()),
                "route" => match value.split_once('@') {
                    Some((to, by)) => network.routes.push((to.to_owned(), by.to_owned())),
                    None => return error(format!("{word:?}: write route=NETWORK@GATEWAY")),
                },
                "mtu" => once(&mut network.mtu, word, value.parse().ok())?,
                "mac" => once(&mut network.mac, word, parse_mac(value))?,
                "spin" => once(&mut network.spin_us, word, value.parse().ok())?,
                "queues" => once(&mut network.queues, word, value.parse().ok())?,
                "stats" => once(&mut network.stats, word, Some(owned()))?,
                "memory" => once(&mut network.memory, word, value.parse().ok())?,
                _ => return error(format!("{key:?} is no word of a network: {WORDS}")),
            }
        }
        let Some(link) = link else {
            let links =
                "tap=NAME, pair=NAME, vhost-user=PATH, stream=PATH, datagram=PATH or frames";
            return error(format!("no link: name one by {links}"));
        };
        if network.addresses.is_empty() {
            return error("no address: give one by addr=ADDRESS/BITS".to_owned());
        }
        let is_tap = matches!(link, LinkKind::Tap(_));
        if !is_tap && !network.host_addresses.is_empty() {
            return error(
                "host-addr is for tap: another link has no side in the kernel".to_owned(),
            );
        }
        if is_tap && network.queues.is_some() {
            return error("queues is not for tap: a tap has the kernel's queues".to_owned());
        }
        if network.memory.is_some_and(|bytes| bytes < LEAST_MEMORY) {
            return error(format!("memory: {LEAST_MEMORY} bytes or more"));
        }
        network.link = link;
        Ok(network)
    }
}

/// Keeps the value of a word that may be given once.
fn once<T>(place: &mut Option<T>, word: &str, value: Option<T>) -> Result<(), ConfigError> {
    let Some(value) = value else {
        return Err(ConfigError(format!("{word:?}: the value cannot be read")));
    };
    match place.replace(value) {
        Some(_) => Err(ConfigError(format!("{word:?} is given twice"))),
        None => Ok(()),
    }
}

/// Six bytes in hexadecimal, separated by colons.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
