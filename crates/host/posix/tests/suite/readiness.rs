//! The answers of poll and epoll in each state, and when they come.

use core::fmt::Write as _;
use core::time::Duration;

use pagewire_posix::{EpollEvent, EpollOp, Errno, Events, Fd, PollFd};

use crate::support::{
    Files, addr, bound, connect, connected, datagram, linked, listener, pair, ready, reset,
    set_nonblocking, stream,
};

const NOW: Option<Duration> = Some(Duration::ZERO);

/// Every event that poll reports about a file.
fn state(files: &Files, fd: Fd) -> Events {
    let events = Events::IN
        | Events::PRI
        | Events::OUT
        | Events::RDNORM
        | Events::RDBAND
        | Events::WRNORM
        | Events::WRBAND
        | Events::RDHUP;
    ready(files, fd, events)
}

fn names(events: Events) -> String {
    let names: Vec<_> = events.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(" ") }
}

#[test]
fn poll_says_of_each_state_what_linux_says() {
    let mut table = String::new();
    let mut row =
        |name: &str, events: Events| writeln!(table, "{name:44}{}", names(events)).unwrap();

    let (left, right) = pair();
    let settle = || left.backend().run(Duration::from_millis(20));
    let fresh = stream(&left);
    row("stream, never connected", state(&left, fresh));
    let _ = left.shutdown(fresh, libc::SHUT_RDWR);
    row("stream, never connected, shut down", state(&left, fresh));
    row("no such descriptor", state(&left, 99));
    row("datagram", state(&left, datagram(&left)));

    let server = listener(&right, 80);
    row("LISTEN", state(&right, server));
    let client = stream(&left);
    set_nonblocking(&left, client);
    let _ = left.connect(client, addr("10.0.0.2:80").as_bytes());
    row("SYN-SENT", state(&left, client));
    settle();
    row("LISTEN, one to accept", state(&right, server));
    row("ESTABLISHED", state(&left, client));
    let (peer, _) = right.accept(server).unwrap();
    right.write(peer, b"data").unwrap();
    settle();
    row("ESTABLISHED, data", state(&left, client));
    left.read(client, &mut [0; 4]).unwrap();
    while left.write(client, &[0; 65_536]).is_ok() {}
    row("ESTABLISHED, send buffer full", state(&left, client));
    settle();
    let mut drain = vec![0; 1 << 20];
    set_nonblocking(&right, peer);
    for _ in 0..50 {
        while right.read(peer, &mut drain).is_ok_and(|n| n > 0) {}
        settle();
    }
    row("ESTABLISHED, taken", state(&left, client));
    right.shutdown(peer, libc::SHUT_WR).unwrap();
    row("FIN-WAIT-1", state(&right, peer));
    settle();
    row("FIN-WAIT-2", state(&right, peer));
    row("CLOSE-WAIT", state(&left, client));
    left.shutdown(client, libc::SHUT_WR).unwrap();
    row("LAST-ACK", state(&left, client));
    settle();
    row("CLOSED, after LAST-ACK", state(&left, client));
    row("TIME-WAIT", state(&right, peer));

    let reading = connect(&left, "10.0.0.2:80");
    left.shutdown(reading, libc::SHUT_RD).unwrap();
    row("ESTABLISHED, shut down for reading", state(&left, reading));
    let (peer, _) = right.accept(server).unwrap();
    reset(&right, peer);
    settle();
    row("CLOSED, reset", state(&left, reading));
    let _ = left.read(reading, &mut [0]);
    row("CLOSED, reset, and told", state(&left, reading));
    let refused = stream(&left);
    set_nonblocking(&left, refused);
    let _ = left.connect(refused, addr("10.0.0.2:81").as_bytes());
    settle();
    row("CLOSED, refused", state(&left, refused));

    let (read, write) = left.pipe2(0).unwrap();
    row("pipe, reading end", state(&left, read));
    row("pipe, writing end", state(&left, write));
    left.write(write, b"x").unwrap();
    row("pipe, reading end, data", state(&left, read));
    left.close(write).unwrap();
    row("pipe, reading end, no writer", state(&left, read));
    insta::assert_snapshot!(table);
}

#[test]
fn an_urgent_byte_is_an_event_of_its_own_and_read_apart() {
    let (left, right, [client, server, _]) = linked();
    assert_eq!(right.send(server, b"ab!", libc::MSG_OOB), Ok(3));
    let mut fds = [PollFd { fd: client, events: Events::PRI, ..PollFd::default() }];
    assert_eq!(left.poll(&mut fds, None), Ok(1));
    assert_eq!(fds[0].revents, Events::PRI);
    left.backend().run(Duration::from_millis(5));
    let mut buf = [0; 8];
    assert_eq!(left.recv(client, &mut buf, 0), Ok(2));
    let mut mark = 0;
    left.ioctl(client, 0x8905, &mut mark).unwrap();
    assert_eq!(mark, 1);
    assert_eq!(left.recv(client, &mut buf, libc::MSG_OOB), Ok(1));
    assert_eq!(buf[0], b'!');
    assert_eq!(left.recv(client, &mut buf, libc::MSG_OOB), Err(Errno::INVAL));
    assert_eq!(left.poll(&mut fds, NOW), Ok(0));
}

#[test]
fn poll_waits_for_what_it_is_asked_for_and_no_longer_than_told() {
    let (left, right, [client, server, _]) = linked();
    let mut fds = [
        PollFd { fd: -1, events: Events::IN, ..PollFd::default() },
        PollFd { fd: client, events: Events::IN, ..PollFd::default() },
    ];
    let before = left.backend().clock();
    assert_eq!(left.poll(&mut fds, Some(Duration::from_millis(300))), Ok(0));
    assert_eq!(left.backend().clock() - before, Duration::from_millis(300));
    right.write(server, b"x").unwrap();
    assert_eq!(left.poll(&mut fds, None), Ok(1));
    assert_eq!((fds[0].revents, fds[1].revents), (Events::empty(), Events::IN));
    assert!(left.backend().clock() - before < Duration::from_millis(310));
}

fn add(files: &Files, epoll: Fd, fd: Fd, events: Events) {
    files.epoll_ctl(epoll, EpollOp::Add(EpollEvent { events, data: fd as u64 }), fd).unwrap();
}

fn wait(files: &Files, epoll: Fd) -> Vec<(u64, Events)> {
    let mut out = [EpollEvent::default(); 8];
    let n = files.epoll_wait(epoll, &mut out, NOW).unwrap();
    out[..n].iter().map(|event| (event.data, event.events)).collect()
}

struct Watched {
    left: Files,
    right: Files,
    client: Fd,
    server: Fd,
    epoll: Fd,
}

fn watched(events: Events) -> Watched {
    let (left, right, [client, server, _]) = linked();
    let epoll = left.epoll_create1(0).unwrap();
    add(&left, epoll, client, events);
    Watched { left, right, client, server, epoll }
}

impl Watched {
    fn arrive(&self) {
        self.right.write(self.server, b"data").unwrap();
        self.left.backend().run(Duration::from_millis(5));
    }

    fn wait(&self) -> Option<Events> {
        let found = wait(&self.left, self.epoll);
        assert!(found.len() <= 1 && found.iter().all(|(fd, _)| *fd == self.client as u64));
        found.first().map(|(_, events)| *events)
    }
}

#[test]
fn level_triggered_epoll_repeats_until_it_is_no_longer_so() {
    let w = watched(Events::IN);
    assert_eq!(w.wait(), None);
    w.arrive();
    assert_eq!(w.wait(), Some(Events::IN));
    assert_eq!(w.wait(), Some(Events::IN));
    w.left.read(w.client, &mut [0; 16]).unwrap();
    assert_eq!(w.wait(), None);
}

#[test]
fn edge_triggered_epoll_reports_every_arrival_once_drained_or_not() {
    let w = watched(Events::IN | Events::OUT | Events::EDGE);
    assert_eq!(w.wait(), Some(Events::OUT));
    assert_eq!(w.wait(), None);
    for _ in 0..2 {
        w.arrive();
        assert_eq!(w.wait(), Some(Events::IN | Events::OUT));
        assert_eq!(w.wait(), None);
    }
    w.left.read(w.client, &mut [0; 2]).unwrap();
    assert_eq!(w.wait(), None);
    w.arrive();
    assert_eq!(w.wait(), Some(Events::IN | Events::OUT));
}

#[test]
fn one_shot_epoll_is_silent_until_it_is_armed_again() {
    let w = watched(Events::IN | Events::ONESHOT);
    w.arrive();
    assert_eq!(w.wait(), Some(Events::IN));
    w.arrive();
    assert_eq!(w.wait(), None);
    let event = EpollEvent { events: Events::IN | Events::ONESHOT, data: w.client as u64 };
    w.left.epoll_ctl(w.epoll, EpollOp::Modify(event), w.client).unwrap();
    assert_eq!(w.wait(), Some(Events::IN));
    assert_eq!(w.wait(), None);
}

#[test]
fn a_listener_is_an_edge_for_every_connection() {
    let (left, right) = pair();
    let server = listener(&right, 80);
    let epoll = right.epoll_create1(0).unwrap();
    add(&right, epoll, server, Events::IN | Events::EDGE);
    for _ in 0..2 {
        assert_eq!(wait(&right, epoll), []);
        left.connect(stream(&left), addr("10.0.0.2:80").as_bytes()).unwrap();
        right.backend().run(Duration::from_millis(5));
        assert_eq!(wait(&right, epoll), [(server as u64, Events::IN)]);
    }
}

#[test]
fn epoll_waits_and_watches_other_instances_and_pipes() {
    let (left, _) = pair();
    let (read, write) = left.pipe2(0).unwrap();
    let (inner, outer) = (left.epoll_create1(0).unwrap(), left.epoll_create(1).unwrap());
    add(&left, inner, read, Events::IN);
    add(&left, outer, inner, Events::IN);
    assert_eq!(wait(&left, outer), []);
    left.write(write, b"x").unwrap();
    assert_eq!(wait(&left, outer), [(inner as u64, Events::IN)]);
    assert_eq!(wait(&left, inner), [(read as u64, Events::IN)]);
    left.read(read, &mut [0]).unwrap();
    assert_eq!(wait(&left, outer), []);
    let mut out = [EpollEvent::default()];
    let before = left.backend().clock();
    assert_eq!(left.epoll_wait(outer, &mut out, Some(Duration::from_millis(50))), Ok(0));
    assert_eq!(left.backend().clock() - before, Duration::from_millis(50));
    left.close(read).unwrap();
    assert_eq!(wait(&left, inner), []);
}

#[test]
fn epoll_refuses_what_linux_refuses() {
    let (left, _) = pair();
    let (epoll, other) = (left.epoll_create1(0).unwrap(), left.epoll_create1(0).unwrap());
    let fd = stream(&left);
    let event = |events| EpollEvent { events, data: 0 };
    let ctl = |on, op, fd| left.epoll_ctl(on, op, fd);
    let plain = event(Events::IN);
    assert_eq!(ctl(epoll, EpollOp::Add(plain), 99), Err(Errno::BADF));
    assert_eq!(ctl(99, EpollOp::Add(plain), fd), Err(Errno::BADF));
    assert_eq!(ctl(fd, EpollOp::Add(plain), epoll), Err(Errno::INVAL));
    assert_eq!(ctl(epoll, EpollOp::Add(plain), epoll), Err(Errno::INVAL));
    assert_eq!(ctl(epoll, EpollOp::Modify(plain), fd), Err(Errno::NOENT));
    assert_eq!(ctl(epoll, EpollOp::Delete, fd), Err(Errno::NOENT));
    assert_eq!(ctl(epoll, EpollOp::Add(plain), fd), Ok(()));
    assert_eq!(ctl(epoll, EpollOp::Add(plain), fd), Err(Errno::EXIST));
    assert_eq!(ctl(epoll, EpollOp::Modify(event(Events::EXCLUSIVE)), fd), Err(Errno::INVAL));
    assert_eq!(ctl(epoll, EpollOp::Delete, fd), Ok(()));
    let exclusive = event(Events::IN | Events::EXCLUSIVE);
    assert_eq!(
        ctl(epoll, EpollOp::Add(event(exclusive.events | Events::ONESHOT)), fd),
        Err(Errno::INVAL)
    );
    assert_eq!(ctl(epoll, EpollOp::Add(exclusive), other), Err(Errno::INVAL));
    assert_eq!(ctl(epoll, EpollOp::Add(exclusive), fd), Ok(()));
    assert_eq!(ctl(epoll, EpollOp::Modify(plain), fd), Err(Errno::INVAL));
    assert_eq!(ctl(epoll, EpollOp::Add(plain), other), Ok(()));
    assert_eq!(ctl(other, EpollOp::Add(plain), epoll), Err(Errno::LOOP));
    assert_eq!(left.epoll_create(0), Err(Errno::INVAL));
    assert_eq!(left.epoll_create1(1), Err(Errno::INVAL));
    assert_eq!(left.epoll_wait(epoll, &mut [], None), Err(Errno::INVAL));
    assert_eq!(left.epoll_wait(fd, &mut [plain], None), Err(Errno::INVAL));
    assert_eq!(left.read(epoll, &mut [0]), Err(Errno::INVAL));
}

#[test]
fn a_file_deleted_and_added_again_is_reported_once() {
    let (left, _) = pair();
    let (read, write) = left.pipe2(0).unwrap();
    let epoll = left.epoll_create1(0).unwrap();
    left.write(write, b"x").unwrap();
    for events in [Events::IN, Events::IN | Events::EDGE] {
        for _ in 0..3 {
            add(&left, epoll, read, events);
            left.epoll_ctl(epoll, EpollOp::Delete, read).unwrap();
        }
        add(&left, epoll, read, events);
        assert_eq!(wait(&left, epoll), [(read as u64, Events::IN)]);
        left.epoll_ctl(epoll, EpollOp::Delete, read).unwrap();
        assert_eq!(wait(&left, epoll), []);
    }
}

#[test]
fn a_tower_of_epoll_instances_is_as_low_when_built_from_the_top() {
    let (left, _) = pair();
    let tower: Vec<Fd> = (0..6).map(|_| left.epoll_create1(0).unwrap()).collect();
    let watch = |above: usize| {
        let event = EpollEvent { events: Events::IN, data: 0 };
        left.epoll_ctl(tower[above], EpollOp::Add(event), tower[above + 1])
    };
    for above in 0..4 {
        assert_eq!(watch(above), Ok(()), "{above}");
    }
    assert_eq!(watch(4), Err(Errno::LOOP));
    // A deleted watch does not count.
    left.epoll_ctl(tower[0], EpollOp::Delete, tower[1]).unwrap();
    assert_eq!(watch(4), Ok(()));
    assert_eq!(watch(0), Err(Errno::LOOP));
}

#[test]
fn a_mesh_of_epoll_instances_is_as_dense_as_linux_has_it_and_costs_no_more_than_its_edges() {
    let (left, _) = pair();
    // Four layers; each instance watches all of the layer below. The ways from the bottom to the
    // top are as many as the product of the layers' widths.
    let wide = |width: usize| {
        let layers: Vec<Vec<Fd>> =
            (0..4).map(|_| (0..width).map(|_| left.epoll_create1(0).unwrap()).collect()).collect();
        let mut refused = 0;
        for (above, below) in layers.iter().zip(&layers[1..]) {
            for (&above, &below) in above.iter().flat_map(|a| below.iter().map(move |b| (a, b))) {
                let event = EpollEvent { events: Events::IN, data: 0 };
                match left.epoll_ctl(above, EpollOp::Add(event), below) {
                    Ok(()) => {}
                    Err(error) => {
                        assert_eq!(error, Errno::INVAL);
                        refused += 1;
                    }
                }
            }
        }
        // A wake-up at the bottom ends, and so does a poll from the top.
        let (read, write) = left.pipe2(0).unwrap();
        add(&left, layers[3][0], read, Events::IN);
        left.write(write, b"x").unwrap();
        assert!(!wait(&left, layers[0][0]).is_empty());
        refused
    };
    assert_eq!(wide(8), 0);
    assert!(wide(30) > 0);
}

/// An epoll instance that reports edges of `fd` from now on.
fn edges_of(files: &Files, fd: Fd, events: Events) -> Fd {
    let epoll = files.epoll_create1(0).unwrap();
    add(files, epoll, fd, events | Events::EDGE);
    wait(files, epoll);
    epoll
}

/// Runs `call` while all others are faster than the thread that makes it.
fn hurried<T>(files: &Files, call: impl FnOnce() -> T) -> T {
    files.backend().world().ahead = Duration::from_millis(5);
    let done = call();
    files.backend().world().ahead = Duration::ZERO;
    done
}

#[test]
fn an_answer_that_is_faster_than_connect_is_an_edge_all_the_same() {
    let (left, right) = pair();
    let _listener = listener(&right, 80);
    let client = stream(&left);
    set_nonblocking(&left, client);
    let epoll = edges_of(&left, client, Events::OUT);
    let begun = hurried(&left, || left.connect(client, addr("10.0.0.2:80").as_bytes()));
    // The answer is there already. Programs wait for the outcome, as on Linux.
    assert_eq!(begun, Err(Errno::INPROGRESS));
    assert_eq!(wait(&left, epoll), [(client as u64, Events::OUT)]);
}

#[test]
fn a_connection_that_is_faster_than_listen_is_an_edge_all_the_same() {
    let (left, right) = pair();
    // The neighbours know each other after this, so the SYN is there at once.
    connected(&left, &right);
    let server = bound(&right, stream, "10.0.0.2:81");
    let epoll = edges_of(&right, server, Events::IN);
    let client = stream(&left);
    set_nonblocking(&left, client);
    let _ = left.connect(client, addr("10.0.0.2:81").as_bytes());
    hurried(&right, || right.listen(server, 1)).unwrap();
    assert_eq!(wait(&right, epoll), [(server as u64, Events::IN)]);
}

#[test]
fn a_datagram_that_is_faster_than_bind_is_an_edge_all_the_same() {
    let (left, right) = pair();
    connected(&left, &right);
    let server = datagram(&right);
    let epoll = edges_of(&right, server, Events::IN);
    let client = datagram(&left);
    left.sendto(client, b"early", 0, Some(addr("10.0.0.2:7").as_bytes())).unwrap();
    hurried(&right, || right.bind(server, addr("10.0.0.2:7").as_bytes())).unwrap();
    assert_eq!(wait(&right, epoll), [(server as u64, Events::IN)]);
}
