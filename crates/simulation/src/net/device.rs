//! The one device of a host.

use std::io;

use pagewire_stack::LinkId;

use super::error::errno;
use crate::world::Here;

/// The name of the device, as most virtual machines call theirs.
const NAME: &[u8] = b"eth0";

/// The link of a device's name; none for no name.
///
/// # Errors
/// `ENODEV` for another name.
pub(crate) fn find_device(here: &Here, name: Option<&[u8]>) -> io::Result<Option<LinkId>> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    let link = here.with_stack(|stack, _| stack.links().next())?;
    let link = link.filter(|_| name.strip_suffix(b"\0").unwrap_or(name) == NAME);
    link.map(Some).ok_or_else(|| io::Error::from_raw_os_error(errno::NODEV))
}

/// The name of the device that a socket is bound to.
pub(crate) fn name_device(link: Option<LinkId>) -> Option<Vec<u8>> {
    link.map(|_| NAME.to_vec())
}
