//! A flow of datagrams between a guest and a far side: what passes is what rules permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::datagrams::{DatagramGate, Pass};
use super::gate_tests::named_hello;
use super::quic_tests::initials;
use crate::limits::{HELD_DATAGRAMS, QUIC_FLOWS};
use crate::request::{Shown, ShownBy};

/// Datagrams with the ClientHello of one connection, in `parts`.
fn datagrams(name: &str, parts: usize) -> Vec<Vec<u8>> {
    initials(name.repeat(2).as_bytes(), &named_hello(name), parts)
}

fn shows(name: &str) -> Pass {
    Pass::Judge(Shown { by: ShownBy::Quic, name: Some(name.parse().unwrap()) })
}

fn gate() -> DatagramGate {
    DatagramGate::new(&Arc::default())
}

const SHORT: [u8; 1] = [0x40];

#[test]
fn a_flow_waits_for_its_whole_client_hello_and_then_passes_in_order() {
    let mut gate = gate();
    let all = datagrams("a.org", 2);
    assert_eq!(gate.put(all[0].clone()), Pass::Hold);
    assert_eq!(gate.put(all[1].clone()), shows("a.org"));
    assert_eq!(gate.permit(), all);
    assert_eq!(gate.put(SHORT.to_vec()), Pass::Send(SHORT.to_vec()));
    // The client sends again what was lost.
    assert_eq!(gate.put(all[0].clone()), Pass::Send(all[0].clone()));
}

#[test]
fn a_refused_client_hello_never_passes() {
    let mut gate = gate();
    let all = datagrams("b.org", 1);
    assert_eq!(gate.put(all[0].clone()), shows("b.org"));
    gate.refuse();
    for datagram in [&all[0][..], &SHORT] {
        assert!(matches!(gate.put(datagram.to_vec()), Pass::Refuse(_)));
    }
}

#[test]
fn what_is_no_quic_is_refused() {
    for datagram in [&SHORT[..], b"\0\x01dns", &[0xc0, 0, 0, 0, 9], &[]] {
        let refused = Pass::Refuse(Shown { by: ShownBy::Unknown, name: None });
        assert_eq!(gate().put(datagram.to_vec()), refused);
    }
}

#[test]
fn a_second_connection_on_a_flow_is_judged_too() {
    let mut gate = gate();
    assert_eq!(gate.put(datagrams("a.org", 1).remove(0)), shows("a.org"));
    gate.permit();
    assert_eq!(gate.put(datagrams("b.org", 1).remove(0)), shows("b.org"));
    gate.refuse();
    assert!(gate.is_permitted());
    assert_eq!(gate.put(SHORT.to_vec()), Pass::Send(SHORT.to_vec()));
}

#[test]
fn what_cannot_be_read_later_is_not_laid_to_a_permitted_name() {
    let mut gate = gate();
    assert!(!gate.is_permitted());
    gate.put(datagrams("a.org", 1).remove(0));
    gate.permit();
    let unknown = Shown { by: ShownBy::Unknown, name: None };
    assert_eq!(gate.put(vec![0xc0, 0, 0, 0, 9]), Pass::Refuse(unknown));
}

#[test]
fn a_client_hello_in_too_many_pieces_is_refused() {
    let mut gate = gate();
    let all = datagrams("a.org", 2 * HELD_DATAGRAMS);
    for datagram in &all[..HELD_DATAGRAMS] {
        assert_eq!(gate.put(datagram.clone()), Pass::Hold);
    }
    assert!(matches!(gate.put(all[HELD_DATAGRAMS].clone()), Pass::Refuse(_)));
}

#[test]
fn a_guest_has_so_many_flows_that_must_show_a_name() {
    let flows = Arc::<AtomicUsize>::default();
    let mut all: Vec<_> = (0..QUIC_FLOWS).map(|_| DatagramGate::new(&flows)).collect();
    assert!(!DatagramGate::has_room(&flows));
    all.pop();
    assert!(DatagramGate::has_room(&flows));
    drop(all);
    assert_eq!(flows.load(Ordering::Relaxed), 0);
}
