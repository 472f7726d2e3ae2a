//! Connections that ended, with their last counts.

use std::time::Duration;

use pagewire_stack::{EndedConnection, RecvFlags, SendFlags, Stack, TcpId};

use crate::common::{A, B, Pair, pattern};

const V4: &str = "10.0.0.2:80";

/// All that ended since the last call: both ends, bytes that the peer acknowledged, bytes received.
fn ended(stack: &mut Stack) -> Vec<(String, String, u64, u64)> {
    let of = |one: EndedConnection| {
        let (sent, received) = (one.info.bytes_acked, one.info.bytes_received);
        (one.local.to_string(), one.remote.to_string(), sent, received)
    };
    std::iter::from_fn(|| stack.poll_ended()).map(of).collect()
}

fn connected() -> (Pair, TcpId, TcpId) {
    let mut p = Pair::new();
    p.meet();
    p.a.record_ended();
    p.b.record_ended();
    let (client, server, _) = p.connect(V4);
    p.transfer((B, server), (A, client), &pattern(100_000));
    (p, client, server)
}

#[test]
fn each_connection_ends_once_with_all_its_bytes() {
    let (mut p, client, server) = connected();
    let client_addr = p.a.local_addr(client).unwrap().to_string();
    p.a.close(p.now, client);
    p.run(Duration::from_millis(10));
    assert_eq!(ended(&mut p.a), [], "the server has not closed it");
    p.b.close(p.now, server);
    p.run(Duration::from_millis(10));
    // The client is in TIME-WAIT, which is no part of the connection.
    let of_client = (client_addr.clone(), V4.to_owned(), 0, 100_000);
    assert_eq!(ended(&mut p.a), [of_client]);
    assert_eq!(ended(&mut p.b), [(V4.to_owned(), client_addr, 100_000, 0)]);
    p.run(Duration::from_secs(120));
    assert_eq!((ended(&mut p.a), ended(&mut p.b)), (vec![], vec![]));
    assert_eq!(p.a.socket_count(), 0);
}

#[test]
fn a_reset_is_an_end_although_its_application_still_has_the_socket() {
    let (mut p, client, _server) = connected();
    p.a.abort(p.now, client);
    p.run(Duration::from_millis(10));
    assert_eq!((ended(&mut p.a).len(), ended(&mut p.b).len()), (1, 1));
}

#[test]
fn bytes_that_were_acknowledged_after_the_close_count() {
    let mut p = Pair::new();
    p.meet();
    p.b.record_ended();
    let (client, server, _) = p.connect(V4);
    let bytes = pattern(50_000);
    p.b.tcp(server).unwrap().send(p.now, &bytes, SendFlags::empty()).unwrap();
    p.b.close(p.now, server);
    p.run(Duration::from_millis(10));
    let mut buffer = vec![0; 60_000];
    let flags = RecvFlags::empty();
    let n = p.a.tcp(client).unwrap().recv(p.now, &mut buffer[..], flags).unwrap();
    assert_eq!(n, 50_000);
    p.a.close(p.now, client);
    p.run(Duration::from_millis(10));
    let ended = ended(&mut p.b);
    assert_eq!(ended.iter().map(|one| one.2).collect::<Vec<_>>(), [50_000], "{ended:?}");
}

#[test]
fn what_was_never_established_has_no_end_and_nobody_pays_who_does_not_ask() {
    let mut p = Pair::new();
    p.a.record_ended();
    let refused = p.a.connect(p.now, V4.parse().unwrap(), None).unwrap();
    p.run(Duration::from_millis(10));
    p.a.close(p.now, refused);
    let (client, server, _) = p.connect("10.0.0.2:81");
    p.a.close(p.now, client);
    p.b.close(p.now, server);
    p.run(Duration::from_millis(10));
    assert_eq!((ended(&mut p.a).len(), ended(&mut p.b).len()), (1, 0));
}
