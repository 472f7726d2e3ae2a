//! Names and addresses of hosts: look-ups, and addresses for new hosts.

use super::*;

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const C: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));

#[test]
fn a_name_is_found_without_case_and_with_a_trailing_dot() {
    let mut names = Names::default();
    names.set("Server", vec![A]);
    for name in ["server", "SERVER", "server."] {
        assert_eq!(names.resolve(name), Some(&[A][..]), "{name}");
    }
    assert_eq!(names.resolve("server2"), None);
}

#[test]
fn a_name_that_is_set_again_moves() {
    let mut names = Names::default();
    names.set("leader", vec![A]);
    names.set("LEADER", vec![B, C]);
    assert_eq!(names.resolve("leader"), Some(&[B, C][..]));
}

#[test]
fn two_hosts_cannot_have_one_address() {
    let mut names = Names::default();
    assert_eq!(names.assign(0, &[A, C]), Ok(()));
    assert_eq!(names.assign(1, &[B, C]), Err(C));
    assert_eq!((names.host_of(A), names.host_of(B), names.host_of(C)), (Some(0), None, Some(0)));
}

#[test]
fn hosts_have_addresses_in_the_order_of_their_numbers() {
    assert_eq!(IpVersion::V4.addresses(0), [A]);
    assert_eq!(IpVersion::Both.addresses(1)[0], B);
    assert_eq!(IpVersion::V6.addresses(0), [C]);
    assert_eq!(IpVersion::V4.addresses(256)[0], IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1)));
}

#[test]
fn localhost_has_the_versions_of_the_host() {
    let names = Names::default();
    let found = |own: &[IpAddr]| names.resolve_on("localhost", own).unwrap_or_default();
    assert_eq!(found(&[A]), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    assert_eq!(found(&[C]), [IpAddr::V6(Ipv6Addr::LOCALHOST)]);
    assert_eq!(found(&[A, C])[0], IpAddr::V6(Ipv6Addr::LOCALHOST));
    assert_eq!(found(&[A, C]).len(), 2);
    assert_eq!(names.resolve_on("nobody", &[A]), None);
}

#[test]
fn a_host_that_is_given_no_address_gets_the_next_that_nobody_has() {
    let mut names = Names::default();
    assert_eq!(names.free(IpVersion::Both, 0), [A, C]);
    assert_eq!(names.assign(0, &[B]), Ok(()));
    assert_eq!(names.free(IpVersion::V4, 1), ["10.0.0.3".parse::<IpAddr>().unwrap()]);
}
