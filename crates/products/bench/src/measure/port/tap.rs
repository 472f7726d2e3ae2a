//! A round of `bench port` by the kernel: frames are written to a tap.

use std::net::UdpSocket;
use std::time::Duration;

use super::{MAC, RECEIVER, SINK, datagram};
use crate::failure::{Because, Failure};
use crate::kit::namespace::{address, enter_new, ip};
use crate::sys::{open_tap, thread_time};

/// Name of the tap in error texts.
const TAP: &str = "a tap of the kernel";

const NAME: &str = "pwport";

/// Writes `frames` frames of `len` bytes; returns how much of this thread's time that took. The
/// kernel processes each, up to a socket that is not read. Uses its own network namespace.
pub(super) fn round(len: usize, frames: u64) -> Result<Duration, Failure> {
    enter_new()?;
    let tap = open_tap(NAME).because(TAP)?;
    let [a, b, c, d, e, f] = MAC;
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    ip(&["link", "set", NAME, "address", &mac, "mtu", "9000"])?;
    address(NAME, RECEIVER)?;
    let _sink = UdpSocket::bind((RECEIVER, SINK)).because(TAP)?;
    let frame = datagram(len);
    let started = thread_time();
    for _ in 0..frames {
        match rustix::io::write(&tap, &frame) {
            Ok(n) if n == len => {}
            Ok(n) => return Err(Failure::Failed(format!("the tap took {n} of {len} bytes"))),
            Err(e) => return Err(Failure::because(TAP, e)),
        }
    }
    Ok(thread_time() - started)
}
