//! Network namespaces, and the interfaces in them. A namespace lives as long as its descriptor or a
//! thread in it, so nothing is left behind.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;

use pagewire::device::TapBuilder;
use pagewire::{Device, Tap};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Because, Failure};
use crate::kit::machine::on_a_thread;
use crate::sys::new_network_namespace;

/// A network namespace.
#[derive(Debug)]
pub(crate) struct NetNs(OwnedFd);

impl NetNs {
    pub(crate) fn new() -> Result<Self, Failure> {
        on_a_thread(|| {
            enter_new()?;
            Self::of_this_thread()
        })
    }

    /// A namespace in which the kernel has this address on a tap, and the tap.
    pub(crate) fn with_tap(kernel: Ipv4Addr) -> Result<(Self, Tap), Failure> {
        on_a_thread(|| {
            let (tap, _) = enter_with_tap(kernel, None)?;
            Ok((Self::of_this_thread()?, tap))
        })
    }

    fn of_this_thread() -> Result<Self, Failure> {
        let file = File::open("/proc/thread-self/ns/net").because("a network namespace")?;
        Ok(Self(file.into()))
    }

    /// Where other processes find it while this one lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Moves this thread, and the processes that it starts, into the namespace.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .because("entering a network namespace")
    }

    /// Runs something inside, on a thread of its own.
    pub(crate) fn inside<T: Send>(
        &self,
        run: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        on_a_thread(|| {
            self.enter()?;
            run()
        })
    }

    /// A veth pair from here to another namespace: the name and the address of each end.
    pub(crate) fn veth(
        &self,
        here: (&str, Ipv4Addr),
        there: (&Self, &str, Ipv4Addr),
        mtu: Option<u32>,
    ) -> Result<(), Failure> {
        let (far, peer, far_address) = there;
        let mtu = mtu.map(|mtu| mtu.to_string());
        let mtu = mtu.as_ref().map_or(vec![], |mtu| vec!["mtu", mtu]);
        let (near, far_end) = (["link", "add", here.0], ["type", "veth", "peer", "name", peer]);
        let path = far.path();
        self.inside(|| {
            ip(&[&near[..], &mtu, &far_end, &mtu, &["netns", &path]].concat())?;
            address(here.0, here.1)
        })?;
        far.inside(|| address(peer, far_address))
    }
}

/// Moves this thread into a new namespace, which ends with what uses it.
pub(crate) fn enter_new() -> Result<(), Failure> {
    new_network_namespace().map_err(|e| {
        let why = format!("{e}; this measurement needs root (CAP_SYS_ADMIN)");
        Failure::because("making a network namespace", why)
    })
}

/// Checks first whether threads of this process may do that, on a thread of its own.
pub(crate) fn check_privilege() -> Result<(), Failure> {
    on_a_thread(enter_new)
}

/// Checks first whether threads of this process may make taps in namespaces, on a thread of its own.
pub(crate) fn check_tap() -> Result<(), Failure> {
    on_a_thread(|| enter_with_queues([], 1).map(drop))
}

/// Moves this thread into a new namespace with a tap; returns the tap and its MTU.
pub(crate) fn enter_with_tap(kernel: Ipv4Addr, mtu: Option<u32>) -> Result<(Tap, u32), Failure> {
    enter_with_tap_with(kernel, mtu, |tap| tap)
}

/// [`enter_with_tap`] with settings.
pub(crate) fn enter_with_tap_with(
    kernel: Ipv4Addr,
    mtu: Option<u32>,
    set: impl FnOnce(TapBuilder) -> TapBuilder,
) -> Result<(Tap, u32), Failure> {
    enter_new()?;
    let mut tap = set(Tap::builder("pwbench").host_address(format!("{kernel}/24")));
    if let Some(mtu) = mtu {
        tap = tap.mtu(mtu as usize);
    }
    let tap = tap.open()?;
    let mtu = tap.capabilities().mtu as u32;
    Ok((tap, mtu))
}

/// Moves this thread into a new namespace in which the kernel has these addresses on a tap; returns the tap's queues.
pub(crate) fn enter_with_queues(
    kernel: impl IntoIterator<Item = Ipv4Addr>,
    queues: usize,
) -> Result<Vec<Tap>, Failure> {
    enter_new()?;
    let addresses = kernel.into_iter().map(|address| format!("{address}/24"));
    Ok(Tap::builder("pwbench").host_addresses(addresses).open_queues(queues)?)
}

/// Gives an interface of this thread's namespace an address of a network of 24 bits.
pub(crate) fn address(link: &str, address: Ipv4Addr) -> Result<(), Failure> {
    ip(&["addr", "add", &format!("{address}/24"), "dev", link])?;
    ip(&["link", "set", link, "up"])
}

/// Runs iproute2 in this thread's network namespace.
pub(crate) fn ip(args: &[&str]) -> Result<(), Failure> {
    let what = format!("ip {}", args.join(" "));
    let output = Command::new("ip").args(args).output().map_err(|e| {
        Failure::because(&what, format!("{e}; install iproute2 to compare with veth"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::because(what, said))
}
