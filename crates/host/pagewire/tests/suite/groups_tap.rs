//! Groups through a tap, with sockets of the kernel's, in a network namespace that goes with the test.
//! Needs root, `ip` and `bridge`.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pagewire::{Host, Tap};
use pagewire_testkit::{Need, Netns, can};

use crate::support::on_a_tap;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

#[test]
fn the_kernel_hears_our_groups_and_we_hear_the_kernels() {
    on_a_tap("10.79.0.1/24", "10.79.0.2/24", |host| {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let (kernel, ours) = (Ipv4Addr::new(10, 79, 0, 1), Ipv4Addr::new(10, 79, 0, 2));
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

/// Runs a program in this thread's network namespace.
fn ip(args: &str) -> String {
    let mut words = args.split(' ');
    let program = words.next().unwrap();
    let done = std::process::Command::new(program).args(words).output().unwrap();
    assert!(done.status.success(), "{args}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn a_bridge_of_the_kernels_believes_our_reports_of_both_versions() {
    if !can(&[Need::Tap, Need::Program("ip"), Need::Program("bridge")]) {
        return;
    }
    Netns::new().inside(|| {
        let tap = Tap::builder("pwmc1").host_address("10.79.1.1/24").open().unwrap();
        ip(
            "ip link add pwbr1 type bridge mcast_snooping 1 mcast_igmp_version 3 mcast_mld_version 2",
        );
        ip("ip link set pwmc1 master pwbr1");
        ip("ip link set pwbr1 up");
        let mut monitor = Command::new("bridge");
        let mut monitor = monitor.args(["monitor", "mdb"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let host = Host::builder().device(tap).address("10.79.1.2/24").address("fd79::2/64");
        let host = host.start().unwrap();
        let member = host.udp("[::]:7000").unwrap();
        member.join_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::UNSPECIFIED).unwrap();
        member.join_multicast_v6(&"ff05::1:3".parse().unwrap(), 0).unwrap();
        let mut awaited = vec!["239.1.2.3", "ff05::1:3", "ff02::1:ff00:2"];
        let now = ip("bridge mdb show dev pwbr1");
        let mut known: Vec<String> = now.lines().map(str::to_string).collect();
        loop {
            let has = |group: &str| {
                let of_it = |l: &&String| l.contains("port pwmc1") && !l.contains("Deleted");
                known.iter().filter(of_it).any(|l| l.contains(&format!("grp {group} ")))
            };
            awaited.retain(|group| !has(group));
            if awaited.is_empty() {
                break;
            }
            match told.recv_timeout(Duration::from_secs(20)) {
                Ok(line) => known.push(line),
                Err(_) => break,
            }
        }
        monitor.kill().unwrap();
        monitor.wait().unwrap();
        assert!(awaited.is_empty(), "{awaited:?} in {}", ip("bridge mdb show dev pwbr1"));
    });
}
