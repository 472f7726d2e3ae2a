//! Lifecycle events: beginnings and ends of connections, with their counts.

use std::time::Duration;

use pagewire_stack::{
    ConnectOptions, LifecycleEvent, LifecycleKind, LinkId, RecvFlags, Stack, TcpId,
};

use crate::common::{A, B, Pair, Verbs, pattern};

const V4: &str = "10.0.0.2:80";

type Seen = (LifecycleKind, String, String, u64, u64);

/// The events since the last call: each with both ends, bytes that the peer acknowledged, bytes received.
fn happened(stack: &mut Stack) -> Vec<Seen> {
    let of = |event: LifecycleEvent| {
        let (sent, received) = (event.info.bytes_acked, event.info.bytes_received);
        (event.kind, event.local.to_string(), event.remote.to_string(), sent, received)
    };
    std::iter::from_fn(|| stack.poll_lifecycle()).map(of).collect()
}

fn ended(stack: &mut Stack) -> Vec<(String, String, u64, u64)> {
    let of = |(kind, local, remote, sent, received): Seen| {
        (kind == LifecycleKind::Ended).then_some((local, remote, sent, received))
    };
    happened(stack).into_iter().filter_map(of).collect()
}

fn connected() -> (Pair, TcpId, TcpId) {
    let mut p = Pair::met();
    p.a.record_lifecycle(true);
    p.b.record_lifecycle(true);
    let (client, server, _) = p.connect(V4);
    p.transfer((B, server), (A, client), &pattern(100_000));
    (p, client, server)
}

fn close_both(p: &mut Pair, client: TcpId, server: TcpId) {
    p.a.close(p.now, client);
    p.b.close(p.now, server);
    p.run(Duration::from_millis(10));
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
    assert_eq!(p.a.socket_count(), 1);
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
    let mut p = Pair::met();
    p.b.record_lifecycle(true);
    let (client, server, _) = p.connect(V4);
    let bytes = pattern(50_000);
    p.b.send(p.now, server, &bytes).unwrap();
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
    p.a.record_lifecycle(true);
    let refused = p.a.connect(p.now, V4.parse().unwrap(), None).unwrap();
    p.run(Duration::from_millis(10));
    p.a.close(p.now, refused);
    let (client, server, _) = p.connect("10.0.0.2:81");
    close_both(&mut p, client, server);
    assert_eq!((ended(&mut p.a).len(), ended(&mut p.b).len()), (1, 0));
}

#[test]
fn a_connection_of_a_link_ends_before_its_time_wait_does() {
    let mut p = Pair::met();
    p.a.record_lifecycle(true);
    let (to, link) = (V4.parse().unwrap(), Some(LinkId::FIRST));
    let listener = p.b.listen(to, 1).unwrap();
    let options = ConnectOptions { link, ..Default::default() };
    let client = p.a.connect(p.now, to, options).unwrap();
    p.run(Duration::from_millis(10));
    let (server, _) = p.b.accept(listener).unwrap();
    close_both(&mut p, client, server);
    assert_eq!(ended(&mut p.a).len(), 1);
    p.run(Duration::from_secs(120));
    assert_eq!(ended(&mut p.a).len(), 0);
}

#[test]
fn who_stops_to_ask_has_no_more_memory_of_it() {
    let (mut p, client, server) = connected();
    close_both(&mut p, client, server);
    p.a.record_lifecycle(false);
    assert_eq!((ended(&mut p.a), p.a.unrecorded_lifecycle()), (vec![], 0));
}

#[test]
fn a_connection_is_established_before_it_ends_on_both_sides() {
    let mut p = Pair::met();
    p.a.record_lifecycle(true);
    p.b.record_lifecycle(true);
    let (client, server, _) = p.connect(V4);
    let kinds = |stack: &mut Stack| happened(stack).iter().map(|one| one.0).collect::<Vec<_>>();
    let [established, ended] = [LifecycleKind::Established, LifecycleKind::Ended];
    assert_eq!((kinds(&mut p.a), kinds(&mut p.b)), (vec![established], vec![established]));
    close_both(&mut p, client, server);
    assert_eq!((kinds(&mut p.a), kinds(&mut p.b)), (vec![ended], vec![ended]));
    // The connection begins and ends between two calls.
    let listener = p.b.listen("10.0.0.2:81".parse().unwrap(), 1).unwrap();
    let client = p.a.connect(p.now, "10.0.0.2:81".parse().unwrap(), None).unwrap();
    p.run(Duration::from_millis(10));
    p.b.close(p.now, listener);
    p.run(Duration::from_millis(10));
    assert_eq!(
        (kinds(&mut p.a), kinds(&mut p.b)),
        (vec![established, ended], vec![established, ended])
    );
    p.a.close(p.now, client);
    p.run(Duration::from_secs(120));
    assert_eq!((kinds(&mut p.a), kinds(&mut p.b)), (vec![], vec![]));
}
