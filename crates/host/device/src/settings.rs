//! Settings that links to guests and to the kernel have in common.

use std::ops::RangeInclusive;

use crate::DeviceError;

/// The settings; `None`: the default of the link.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkSettings {
    /// Largest IP packet, in bytes.
    pub(crate) mtu: Option<usize>,
    /// The stack's link address.
    pub(crate) mac: Option<[u8; 6]>,
    /// Memory to receive into, in bytes.
    pub(crate) pool_bytes: Option<usize>,
}

impl LinkSettings {
    /// Refuses what cannot work; `link` begins the text.
    pub(crate) fn check(
        &self,
        link: &str,
        mtus: RangeInclusive<usize>,
        least_pool_bytes: usize,
    ) -> Result<(), DeviceError> {
        let refuse = |what: String| Err(DeviceError::Config(format!("{link}: {what}")));
        if let Some(mtu) = self.mtu.filter(|mtu| !mtus.contains(mtu)) {
            let (least, most) = mtus.into_inner();
            return refuse(format!("an MTU of {mtu} is not possible: choose {least} to {most}"));
        }
        if let Some(mac) = self.mac.filter(|mac| mac[0] & 1 != 0 || *mac == [0; 6]) {
            return refuse(format!("{mac:02x?} is no unicast link address"));
        }
        if let Some(bytes) = self.pool_bytes.filter(|&bytes| bytes < least_pool_bytes) {
            return refuse(format!(
                "{bytes} bytes to receive into are too few: at least {least_pool_bytes}"
            ));
        }
        Ok(())
    }
}

/// Memory to receive into.
#[cfg(any(feature = "tap", feature = "sockets"))]
pub(crate) fn pool(
    link: &str,
    name: &'static str,
    bytes: usize,
) -> Result<pagewire_mem::PagePool, DeviceError> {
    pagewire_mem::PagePool::new(name, bytes).map_err(|e| DeviceError::System {
        what: format!("{link}: map {bytes} bytes to receive into"),
        source: std::io::Error::other(e),
    })
}
