//! Groups through a tap, with sockets of the kernel's, in a network namespace that goes with the test.
//! Needs root.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::Duration;

use pagewire::{Host, Tap};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

/// Runs `f` on a thread with a network namespace of its own.
fn in_namespace(f: impl FnOnce() + Send + 'static) {
    if !pagewire_testing::can(&[pagewire_testing::Need::Tap]) {
        return;
    }
    let run = move || {
        // SAFETY: only this thread's network namespace changes; its file table stays shared.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
        f();
    };
    if let Err(panic) = thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn the_kernel_hears_our_groups_and_we_hear_the_kernels() {
    in_namespace(|| {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let (kernel, ours) = (Ipv4Addr::new(10, 79, 0, 1), Ipv4Addr::new(10, 79, 0, 2));
        let tap = Tap::builder().name("pwmc0").host_address("10.79.0.1/24").open().unwrap();
        let host = Host::builder().device(tap).address("10.79.0.2/24").start().unwrap();
        let near = host.udp("0.0.0.0:7000").unwrap();
        near.set_read_timeout(LIMIT).unwrap();
        near.join_multicast_v4(&group, &ours).unwrap();
        near.set_multicast_loop_v4(false).unwrap();
        let far = UdpSocket::bind("10.79.0.1:0").unwrap();
        far.set_read_timeout(LIMIT).unwrap();
        // Where the kernel's datagrams to groups go.
        rustix::net::sockopt::set_ip_multicast_if(&far, &kernel).unwrap();
        far.send_to(b"from the kernel", (group, 7000)).unwrap();
        let mut buffer = [0; 100];
        let (n, from) = near.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"from the kernel");
        assert_eq!(from, far.local_addr().unwrap());
        let member = UdpSocket::bind("0.0.0.0:7000").unwrap();
        member.set_read_timeout(LIMIT).unwrap();
        member.join_multicast_v4(&group, &kernel).unwrap();
        near.send_to(b"from us", (group, 7000)).unwrap();
        let (n, from) = member.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"from us");
        assert_eq!(from.ip(), ours);
        assert_eq!(near.leave_multicast_v4(&group, &ours).map_err(|e| e.kind()), Ok(()));
        let again = near.leave_multicast_v4(&group, &ours).map_err(|e| e.kind());
        assert_eq!(again, Err(std::io::ErrorKind::AddrNotAvailable));
    });
}
