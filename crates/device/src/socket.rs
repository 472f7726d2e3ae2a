//! What links over Unix sockets share: received frames as packets, and settings.

use pagewire_mem::{FragVec, HEAD_CAPACITY, MAX_FRAGS, PacketBuf};

use crate::DeviceError;
use crate::limits::{MAX_MTU, MIN_MTU};
use crate::port::header_len;
use pagewire_mem::link::{Capabilities, HeaderSplit, Medium};

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
