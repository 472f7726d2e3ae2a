//! The namespaces of the measurement: `host`, in which the engines run, `far`, which they reach,
//! and one for each guest. A namespace lives as long as its descriptor, so nothing is left behind.
//!
//! ```text
//!   guest --tap-- engine | host 10.9.0.1 --veth-- 10.9.0.2 far
//! ```

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Because, Failure};
use crate::kernel::{enter_namespace, ip};
use crate::machine::on_a_thread;

/// MTU of the way from the engines to the far side: no engine's limit.
const OUTER_MTU: &str = "65535";

pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A network namespace.
#[derive(Debug)]
pub(super) struct NetNs(OwnedFd);

impl NetNs {
    pub(super) fn new() -> Result<Self, Failure> {
        on_a_thread(|| {
            enter_namespace()?;
            let file = fs::File::open("/proc/thread-self/ns/net").because("a network namespace")?;
            ip(&["link", "set", "lo", "up"])?;
            // Tens of thousands of connections, one after the other.
            set("ipv4/ip_local_port_range", "1024 65535")?;
            set("ipv4/tcp_tw_reuse", "1")?;
            Ok(Self(file.into()))
        })
    }

    /// Where other processes find it while this one lives.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Moves this thread, and the processes that it starts, into the namespace.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .because("entering a network namespace")
    }

    /// Runs something inside, on a thread of its own.
    pub(super) fn inside<T: Send>(
        &self,
        run: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        on_a_thread(|| {
            self.enter()?;
            run()
        })
    }
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
        let (host, far) = (NetNs::new()?, NetNs::new()?);
        let path = far.path();
        host.inside(|| {
            set("ipv4/ip_forward", "1")?;
            let ends =
                ["link", "add", "hf", "mtu", OUTER_MTU, "type", "veth", "peer", "name", "fh"];
            ip(&[&ends[..], &["mtu", OUTER_MTU, "netns", &path]].concat())?;
            address("hf", HOST)?;
            by_cubic(&["10.9.0.0/24", "dev", "hf", "src", &HOST.to_string()])?;
            by_cubic(&["default", "via", &FAR.to_string()])
        })?;
        far.inside(|| {
            address("fh", FAR)?;
            by_cubic(&["10.9.0.0/24", "dev", "fh", "src", &FAR.to_string()])?;
            // Guests of the veth engine are routed.
            by_cubic(&["10.10.0.0/16", "via", &HOST.to_string()])
        })?;
        Ok(Self { host, far })
    }
}

/// Gives an interface of this thread's namespace an address of a network of 24 bits.
pub(super) fn address(link: &str, address: Ipv4Addr) -> Result<(), Failure> {
    ip(&["addr", "add", &format!("{address}/24"), "dev", link])?;
    ip(&["link", "set", link, "up"])
}

/// A route whose connections use CUBIC, also those of programs that set nothing.
pub(super) fn by_cubic(route: &[&str]) -> Result<(), Failure> {
    ip(&[&["route", "replace"], route, &["congctl", "cubic"]].concat())
}

/// A guest's default route.
pub(super) fn default_route(link: &str, gateway: IpAddr) -> Result<(), Failure> {
    by_cubic(&["default", "via", &gateway.to_string(), "dev", link])
}
