//! Datagrams through rings on hosts: what programs see of them.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::task::{Context, Waker};

use pagewire::device::Rule;
use pagewire::memory::{CopyReason, Frag};
use pagewire::rings::COPY_GROUP;
use pagewire::rings::{Completion, Submission};
use pagewire::{Host, SendBuf, UdpSocket};
use pagewire_testkit::given;

use crate::support::{
    PATIENCE, block_on, hosts_with_queues, poll_once, private, register_send, rings,
    until_completed,
};

const SERVER: &str = "10.0.0.1:9000";
const CLIENT: &str = "10.0.0.2:5000";

fn client_of(client: &Host) -> UdpSocket {
    let socket = client.udp(CLIENT).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

given! {
    let (server, client) = hosts_with_queues();

    datagrams_come_by_reference_with_whom_they_are_from_and_give_themselves_back {
        let rings = rings(&server).into_async();
        // Far less than what is sent: it goes round.
        let group = rings.register(1, private(256 << 10), &[Rule::udp_port(9000)]).unwrap();
        let socket = block_on(rings.bind(SERVER)).unwrap();
        assert_eq!(socket.local_addr(), SERVER.parse().unwrap());
        let sender = client_of(&client);
        let mut total = 0;
        for n in 0..1000_u32 {
            let bytes: Vec<u8> = (0..600 + n * 10).map(|i| (i ^ n) as u8).collect();
            sender.send_to(&bytes, SERVER).unwrap();
            let datagram = block_on(socket.receive(group, usize::MAX)).unwrap();
            assert_eq!(datagram.from, CLIENT.parse().unwrap());
            assert_eq!(
                (datagram.len, datagram.full_len, datagram.dropped),
                (bytes.len(), bytes.len(), 0)
            );
            let mut got = Vec::new();
            for buffer in &datagram.buffers {
                assert!(!buffer.is_copied());
                got.extend_from_slice(buffer.as_slice().expect("private memory"));
            }
            assert!(got == bytes && !datagram.is_truncated());
            total += bytes.len() as u64;
        }
        // The copy ledger: what the queue wrote into the region, and nothing of ours.
        let ledger = server.stats().ledger;
        assert_eq!((ledger.ours(), ledger.get(CopyReason::DeviceRx)), (0, total));
        let counters = rings.counters();
        assert_eq!((counters.datagrams, counters.zc_bytes, counters.copy_bytes), (1000, total, 0));
        assert_eq!(counters.fills_refused(), 0);
    }
    what_is_too_long_is_cut_off_and_what_is_empty_comes_too {
        let rings = rings(&server).into_async();
        let socket = block_on(rings.bind(SERVER)).unwrap();
        let sender = client_of(&client);
        sender.send_to(&[1; 1000], SERVER).unwrap();
        sender.send_to(&[], SERVER).unwrap();
        sender.send_to(b"end", SERVER).unwrap();
        let receive = || block_on(socket.receive(COPY_GROUP, 10)).unwrap();
        let lengths = [receive(), receive(), receive()]
            .map(|d| (d.len, d.full_len, d.is_truncated(), d.buffers.is_empty()));
        assert_eq!(lengths, [(10, 1000, true, false), (0, 0, false, true), (3, 3, false, false)]);
    }
    a_task_answers_from_registered_memory {
        let rings = rings(&server).into_async();
        let out = register_send(&rings, b"by reference");
        let asker = client_of(&client);
        block_on(async {
            let socket = rings.bind(SERVER).await.unwrap();
            asker.send_to(b"how?", SERVER).unwrap();
            let question = socket.receive(COPY_GROUP, 100).await.unwrap();
            assert_eq!(socket.send_to(out, 0, 12, question.from).await.unwrap(), 12);
            let no_peer = socket.send(out, 0, 2).await.unwrap_err();
            assert_eq!(no_peer.raw_os_error(), Some(89), "EDESTADDRREQ");
            socket.connect(question.from).await.unwrap();
            assert_eq!(socket.send(out, 0, 2).await.unwrap(), 2);
            socket.disconnect().await.unwrap();
        });
        let mut buffer = [0; 100];
        assert_eq!(asker.recv_from(&mut buffer).unwrap(), (12, SERVER.parse().unwrap()));
        assert_eq!(&buffer[..12], b"by reference");
        assert_eq!(asker.recv_from(&mut buffer).unwrap().0, 2);
    }
    a_datagram_that_an_abandoned_receive_has_brought_is_received_next {
        let rings = rings(&server).into_async();
        let socket = block_on(rings.bind(SERVER)).unwrap();
        let sender = client_of(&client);
        // Empty ones are no less than others.
        for len in [0, 1000, 0, 5] {
            let completions = rings.counters().completions;
            {
                let mut receive = pin!(socket.receive(COPY_GROUP, 5000));
                poll_once(&mut receive);
                sender.send_to(&vec![3; len], SERVER).unwrap();
                until_completed(&rings, completions + 1);
                // Here the task gives up, and the datagram has been delivered.
            }
            sender.send_to(&[4; 7], SERVER).unwrap();
            let lengths = [(); 2].map(|()| block_on(socket.receive(COPY_GROUP, 5000)).unwrap().len);
            assert_eq!(lengths, [len, 7], "in order, none lost");
        }
    }
    a_multishot_receive_has_a_completion_for_each_datagram {
        let mut rings = rings(&server);
        let group = rings.register(1, private(1 << 20), &[Rule::udp_port(9000)]).unwrap();
        assert!(rings.submit(Submission::bind(SERVER.parse().unwrap(), 1)));
        assert!(rings.wait(PATIENCE));
        let socket = rings.next_completion().unwrap();
        assert_eq!((socket.user_data, socket.result), (1, 0));
        assert!(rings.submit(Submission::receive(socket.handle, group, 0, 2).multishot()));
        rings.flush();
        // No more at once than the socket's buffer holds, should they all come in one turn.
        let (go, ready) = std::sync::mpsc::channel();
        let sender = std::thread::spawn(move || {
            let sender = client_of(&client);
            for n in 0..100_u8 {
                if n.is_multiple_of(20) {
                    ready.recv().unwrap();
                }
                sender.send_to(&[n; 2000], SERVER).unwrap();
            }
            assert!(client.drain(PATIENCE));
            // The client stays: without it the network is down, which is a completion, too.
            client
        });
        let (mut next, mut asked) = (0, 0);
        while next < 100 {
            if next == asked {
                asked += 20;
                go.send(()).unwrap();
            }
            assert!(rings.wait(PATIENCE), "nothing happens");
            while let Some(done) = rings.next_completion() {
                assert_eq!((done.user_data, done.result, done.length), (2, 2000, 2000));
                assert!(done.has(Completion::MORE) && done.has(Completion::DATAGRAM));
                assert_eq!(done.address.socket(), CLIENT.parse().ok());
                for _ in 0..done.entries {
                    let entry = rings.next_entry().unwrap();
                    assert!(entry.group == group && rings.give_back(entry));
                }
                next += 1;
            }
        }
        sender.join().unwrap();
    }
}

#[test]
fn lent_memory_is_received_where_the_sender_has_it() {
    let (server, client) = hosts_with_queues();
    let rings = rings(&server).into_async();
    let whole = Frag::from_bytes(vec![9; 100_000].into());
    let group = rings.register_lent(whole.clone()).unwrap();
    let socket = block_on(rings.bind(SERVER)).unwrap();
    client_of(&client).send_chunks_to(SendBuf::from(whole.slice(300..60_300)), SERVER).unwrap();
    let datagram = block_on(socket.receive(group, usize::MAX)).unwrap();
    let at: Vec<_> = datagram.buffers.iter().map(|b| (b.entry().offset, b.entry().len)).collect();
    assert_eq!(at, [(300, 60_000)]);
    let ledger = server.stats().ledger;
    assert_eq!((ledger.ours(), ledger.get(CopyReason::DeviceRx)), (0, 0), "nobody copied");
}

#[test]
fn a_peer_that_is_not_there_is_told_once() {
    let (server, _client) = hosts_with_queues();
    let rings = rings(&server).into_async();
    let out = register_send(&rings, &[]);
    block_on(async {
        let taken = rings.bind(SERVER).await.unwrap();
        let second = rings.bind(SERVER).await.unwrap_err();
        assert_eq!(second.kind(), ErrorKind::AddrInUse);
        let elsewhere = rings.bind("10.0.0.77:1").await.unwrap_err();
        assert_eq!(elsewhere.kind(), ErrorKind::AddrNotAvailable);
        taken.connect(CLIENT.parse().unwrap()).await.unwrap();
        taken.send(out, 0, 10).await.unwrap();
        let refused = taken.receive(COPY_GROUP, 100).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let mut receive = pin!(taken.receive(COPY_GROUP, 100));
        poll_once(&mut receive);
    });
}

/// Polls once, and gives up what it may have brought already: the host's thread is quick at times.
fn begin<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) {
    drop(future.as_mut().poll(&mut Context::from_waker(Waker::noop())));
}

#[test]
fn a_socket_that_nobody_waits_for_any_more_is_closed() {
    let (server, _client) = hosts_with_queues();
    let rings = rings(&server).into_async();
    {
        let mut bind = pin!(rings.bind(SERVER));
        begin(&mut bind);
        until_completed(&rings, 1);
    }
    // The port is free again, once a call has read the completions.
    let other = block_on(rings.bind("10.0.0.1:0")).unwrap();
    assert_ne!(other.local_addr().port(), 0);
    let again = block_on(rings.bind(SERVER)).unwrap();
    // Dropped, it is free as well; and a peer that is given up closes nothing.
    drop(again);
    let third = block_on(rings.bind(SERVER)).unwrap();
    let completions = rings.counters().completions;
    {
        let mut connect = pin!(third.connect(CLIENT.parse().unwrap()));
        begin(&mut connect);
        until_completed(&rings, completions + 1);
    }
    assert!(block_on(third.disconnect()).is_ok());
}
