//! The namespaces of `bench gateway`: `host`, in which the engines run, `far`, which they reach,
//! and one for each guest.
//!
//! ```text
//!   guest --tap-- engine | host 10.9.0.1 --veth-- 10.9.0.2 far
//! ```

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use crate::failure::{Because, Failure};
use crate::kit::namespace::{NetNs, ip};

/// Ports that the kernel chooses from: more than by default, because each short connection keeps one for a while. No
/// engine listens on one of these.
pub(super) const EPHEMERAL: &str = "10000 65535";

/// MTU of the way from the engines to the far side: no engine's limit.
const OUTER_MTU: u32 = 65_535;

pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A namespace of this measurement.
pub(super) fn namespace() -> Result<NetNs, Failure> {
    let namespace = NetNs::new()?;
    namespace.inside(|| {
        ip(&["link", "set", "lo", "up"])?;
        own_by_cubic("127.0.0.1", "lo")?;
        // Tens of thousands of connections, one after the other.
        set("ipv4/ip_local_port_range", EPHEMERAL)?;
        set("ipv4/tcp_tw_reuse", "1")
    })?;
    Ok(namespace)
}

/// Sets a parameter of this thread's network namespace.
fn set(name: &str, value: &str) -> Result<(), Failure> {
    let file = format!("/proc/sys/net/{name}");
    fs::write(&file, value).because(file)
}

/// The namespaces that all engines share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) host: NetNs,
    pub(super) far: NetNs,
}

impl World {
    pub(super) fn new() -> Result<Self, Failure> {
        let (host, far) = (namespace()?, namespace()?);
        host.veth(("hf", HOST), (&far, "fh", FAR), Some(OUTER_MTU))?;
        host.inside(|| {
            set("ipv4/ip_forward", "1")?;
            by_cubic(&["10.9.0.0/24", "dev", "hf", "src", &HOST.to_string()])?;
            by_cubic(&["default", "via", &FAR.to_string()])
        })?;
        far.inside(|| {
            by_cubic(&["10.9.0.0/24", "dev", "fh", "src", &FAR.to_string()])?;
            // Guests of the veth engine are routed.
            by_cubic(&["10.10.0.0/16", "via", &HOST.to_string()])
        })?;
        Ok(Self { host, far })
    }
}

/// A route whose connections use CUBIC, also those of programs that set nothing.
pub(super) fn by_cubic(route: &[&str]) -> Result<(), Failure> {
    ip(&[&["route", "replace"], route, &["congctl", "cubic"]].concat())
}

/// The same for connections of a namespace with itself, at this address.
pub(super) fn own_by_cubic(address: &str, link: &str) -> Result<(), Failure> {
    by_cubic(&["local", address, "dev", link, "table", "local", "src", address])
}

/// A guest's default route.
pub(super) fn default_route(link: &str, gateway: IpAddr) -> Result<(), Failure> {
    by_cubic(&["default", "via", &gateway.to_string(), "dev", link])
}
