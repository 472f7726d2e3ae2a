//! Several hosts on the queues of one tap, with the kernel on the other side. Needs root.
//!
//! A flow that a host begins comes back by its queue. A flow that the kernel begins comes by any
//! queue, and is dropped there by a host that it is not for; the kernel chooses by a random hash,
//! so no test can say which.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use pagewire::{Host, Tap};
use pagewire_testkit::{Need, Netns, can};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn hosts_on_the_queues_of_one_tap_reach_the_kernel_by_connections_that_they_open() {
    if !can(&[Need::Tap]) {
        return;
    }
    Netns::new().inside(|| {
        let queues = Tap::builder("pwq0").host_address("10.79.2.1/24").open_queues(2).unwrap();
        let hosts = queues.into_iter().zip(["10.79.2.2/24", "10.79.2.3/24"]);
        let hosts = hosts.map(|(tap, at)| Host::builder().device(tap).address(at).start().unwrap());
        let hosts: Vec<Host> = hosts.collect();
        let listener = TcpListener::bind("10.79.2.1:9000").unwrap();
        let echo = std::thread::spawn(move || {
            for _ in 0..20 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut data = [0; 100];
                stream.read_exact(&mut data).unwrap();
                stream.write_all(&data).unwrap();
            }
        });
        // In turn, so that each has sent last when the other's flows begin.
        for n in 0..20u8 {
            let mut stream =
                hosts[usize::from(n % 2)].connect_timeout("10.79.2.1:9000", PATIENCE).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&[n; 100]).unwrap();
            let mut back = [0; 100];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, [n; 100]);
        }
        echo.join().unwrap();
    });
}
