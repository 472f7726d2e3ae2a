//! Descriptors over hosts in real time: threads block, and are woken.

use std::thread;
use std::time::Duration;

use pagewire::{Host, Pair};
use pagewire_posix::{Descriptors, EpollEvent, EpollOp, Events, SockAddr};

/// Longer than anything here takes, so that a failure ends.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

fn hosts() -> (Descriptors<Host>, Descriptors<Host>) {
    let (left, right) = Pair::new().unwrap();
    let left = Host::builder().device(left).address("10.0.0.1/24").start().unwrap();
    let right = Host::builder().device(right).address("10.0.0.2/24").start().unwrap();
    (Descriptors::new(left), Descriptors::new(right))
}

fn server_address() -> SockAddr {
    SockAddr::from("10.0.0.2:7".parse::<std::net::SocketAddr>().unwrap())
}

#[test]
fn an_echo_server_on_epoll_serves_blocking_clients() {
    const CLIENTS: usize = 4;
    const BYTES: usize = 1 << 20;
    let (left, right) = hosts();
    let listener = right.socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0).unwrap();
    right.bind(listener, server_address().as_bytes()).unwrap();
    right.listen(listener, 16).unwrap();
    let (left, right) = (&left, &right);
    thread::scope(|scope| {
        for client in 0..CLIENTS as u8 {
            scope.spawn(move || {
                let fd = left.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
                left.connect(fd, server_address().as_bytes()).unwrap();
                let writer = scope.spawn(move || {
                    assert_eq!(left.write(fd, &vec![client; BYTES]), Ok(BYTES));
                    left.shutdown(fd, libc::SHUT_WR).unwrap();
                });
                let mut back = vec![0; BYTES + 1];
                assert_eq!(left.recv(fd, &mut back, libc::MSG_WAITALL), Ok(BYTES));
                assert!(back[..BYTES].iter().all(|&byte| byte == client));
                writer.join().unwrap();
                left.close(fd).unwrap();
            });
        }
        scope.spawn(move || {
            let epoll = right.epoll_create1(0).unwrap();
            let watch = |fd: i32| {
                let events = Events::IN | Events::OUT | Events::RDHUP | Events::EDGE;
                right.epoll_ctl(epoll, EpollOp::Add(EpollEvent { events, data: fd as u64 }), fd)
            };
            watch(listener).unwrap();
            // Bytes that wait to be echoed, and whether there are no more to come.
            let mut open = std::collections::HashMap::<i32, (Vec<u8>, bool)>::new();
            let mut served = 0;
            let mut buf = vec![0; 65_536];
            while served < CLIENTS {
                let mut events = [EpollEvent::default(); 8];
                let n = right.epoll_wait(epoll, &mut events, PATIENCE).unwrap();
                assert!(n > 0, "{served} of {CLIENTS} served");
                for event in &events[..n] {
                    let fd = event.data as i32;
                    if fd == listener {
                        while let Ok((fd, _)) = right.accept4(listener, libc::SOCK_NONBLOCK) {
                            open.insert(fd, (Vec::new(), false));
                            watch(fd).unwrap();
                        }
                        continue;
                    }
                    let Some((waiting, ended)) = open.get_mut(&fd) else { continue };
                    loop {
                        while !*ended && waiting.len() < buf.len() {
                            match right.read(fd, &mut buf) {
                                Ok(0) => *ended = true,
                                Ok(n) => waiting.extend_from_slice(&buf[..n]),
                                Err(_) => break,
                            }
                        }
                        match right.write(fd, waiting) {
                            Ok(n) if n > 0 => drop(waiting.drain(..n)),
                            _ => break,
                        }
                    }
                    if *ended && waiting.is_empty() {
                        open.remove(&fd);
                        right.close(fd).unwrap();
                        served += 1;
                    }
                }
            }
        });
    });
}
