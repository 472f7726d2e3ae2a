//! What links over Unix sockets share: received frames as packets, settings, the socket's path.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use pagewire_mem::{FragVec, HEAD_CAPACITY, MAX_FRAGS, PAGE_SIZE, PacketBuf, PagePool};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::limits::{MAX_MTU, MIN_MTU, RECEIVING_PART};
use crate::port::header_len;
use crate::{Capabilities, DeviceError, HeaderSplit, Medium};

/// The packet of a frame in our pages: its headers move to the head. `None`: too many pieces.
pub(crate) fn packet(frags: FragVec, len: usize) -> Option<PacketBuf> {
    let mut front = [0; HEAD_CAPACITY];
    let bytes = frags.iter().flat_map(|frag| frag.as_slice().unwrap_or_default());
    let shown = front.iter_mut().zip(bytes).map(|(to, from)| *to = *from).count();
    let (headers, _) = header_len(Medium::Ethernet, front.get(..shown)?, len);
    let mut packet = PacketBuf::for_rx();
    for frag in frags {
        packet.push_frag(frag).ok()?;
    }
    packet.linearize(headers).then_some(packet)
}

/// Bytes that frames may keep of a pool: a part stays for those that are dropped at once.
pub(crate) fn room(pool: &PagePool) -> usize {
    let stats = pool.stats();
    stats.free.saturating_sub(stats.total / RECEIVING_PART) * PAGE_SIZE
}

/// An Ethernet card without any offload.
pub(crate) fn plain_card(mac: [u8; 6], mtu: usize) -> Capabilities {
    Capabilities {
        max_super_frame: mtu,
        rx_checksum: false,
        tx_checksum: false,
        tso_v4: false,
        tso_v6: false,
        max_frags: MAX_FRAGS,
        header_split: HeaderSplit::None,
        ..Capabilities::offloading(mac, mtu)
    }
}

/// Refuses settings that cannot work; `link` begins the text.
pub(crate) fn check(link: &str, mtu: usize, mac: Option<[u8; 6]>) -> Result<(), DeviceError> {
    let refuse = |what: String| Err(DeviceError::Config(format!("{link}: {what}")));
    if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
        return refuse(format!("mtu {mtu} is not between {MIN_MTU} and {MAX_MTU} bytes"));
    }
    if mac.is_some_and(|mac| mac[0] & 1 != 0 || mac == [0; 6]) {
        return refuse("our link address must be a unicast one".into());
    }
    Ok(())
}

/// A link address derived from a socket's path (FNV-1a): locally administered, unicast.
pub(crate) fn derive_mac(path: &Path) -> [u8; 6] {
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, ..] = (hash ^ hash >> 32).to_le_bytes();
    [0x02, 0x50, 0x57, a, b, c]
}

/// Binds at a path with `bind`, replacing a socket of this type that nobody has open any more.
pub(crate) fn bind_anew<S>(
    path: &Path,
    kind: SocketType,
    bind: impl Fn(&Path) -> io::Result<S>,
) -> io::Result<S> {
    match bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_dead(path, kind) => {
            std::fs::remove_file(path)?;
            bind(path)
        }
        bound => bound,
    }
}

/// Whether nobody has this socket open. Files of other kinds must not be removed.
fn is_dead(path: &Path, kind: SocketType) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connect = || -> io::Result<()> {
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
        Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
    };
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && connect().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}
