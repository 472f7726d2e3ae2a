//! Judging flows: names, redirections, local addresses, and the shares of guests.

use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::dns::OwnNames;
use crate::policy::{Resolved, RouteSocket};
use crate::world::{Settings, lone_context};

const NOW: Instant = Instant::from_millis(1000);

fn judge(context: &mut Context, to: &str) -> Result<SocketAddr, Denial> {
    let from = "10.0.2.15:4000".parse().unwrap();
    context.judge(NOW, Protocol::Tcp, from, to.parse().unwrap()).at_once().to
}

/// The guest has asked for the name.
fn learn(context: &mut Context, name: &str, address: &str) {
    let addresses = vec![(address.parse().unwrap(), Duration::from_secs(60))];
    context.dns.names().learn(NOW, &Resolved { names: vec![name.parse().unwrap()], addresses });
}

#[test]
fn a_name_that_the_gateway_gave_opens_its_address_and_not_where_a_judge_leads() {
    let [given, elsewhere] = ["192.168.1.5:443", "192.168.1.6:443"];
    for leads in [false, true] {
        let mut names = OwnNames::default();
        names.add("git".parse().unwrap(), "192.168.1.5".parse().unwrap());
        let to = elsewhere.parse().unwrap();
        let opinion = move |ask: &Ask| {
            (leads && ask.to.ip() == IpAddr::from([192, 168, 1, 5])).then_some(Verdict::To(to))
        };
        let rules = Rules::default().allow("git:443".parse().unwrap());
        let settings =
            Settings { rules, names, judge: Some(Arc::new(opinion)), ..Settings::default() };
        let (mut context, _) = lone_context(settings);
        learn(&mut context, "git", "192.168.1.5");
        let expected = if leads { Err(Denial::Prohibit) } else { Ok(given.parse().unwrap()) };
        assert_eq!(judge(&mut context, given), expected);
    }
}

#[test]
fn where_it_is_not_known_whose_address_it_is_rules_about_that_permit_nothing() {
    for (rules, permits) in [
        (Rules::default().deny("host".parse().unwrap()), false),
        (Rules::default().allow("*.example.org".parse().unwrap()), false),
        (Rules::default().allow("203.0.113.0/24".parse().unwrap()), true),
        (Rules::default(), true),
    ] {
        let routes = Arc::new(RouteSocket::unavailable());
        let (mut context, records) =
            lone_context(Settings { rules, routes, ..Settings::default() });
        learn(&mut context, "www.example.org", "203.0.113.1");
        let to = judge(&mut context, "203.0.113.1:443");
        assert_eq!(to.is_ok(), permits, "{to:?}");
        assert_eq!(to.err(), (!permits).then_some(Denial::Forget));
        assert_eq!(context.counters.undecided, u64::from(!permits));
        assert_eq!(records.lock().unwrap().len(), 1);
    }
}

#[test]
fn a_denial_by_name_holds_for_good_where_the_guest_was_told_of_the_address() {
    let rules = Rules::default().deny("*.evil.net:25".parse().unwrap());
    let (mut context, _) = lone_context(Settings { rules, ..Settings::default() });
    learn(&mut context, "mx.evil.net", "203.0.113.1");
    let kept = ["203.0.113.1".parse().unwrap()].into_iter();
    context.dns.names().deny(&"mx.evil.net".parse().unwrap(), kept, |_| false).unwrap();
    let later = NOW + Duration::from_secs(30 * 86_400);
    let from = "10.0.2.15:4000".parse().unwrap();
    for (port, may) in [(25, false), (80, true)] {
        let to = SocketAddr::from(([203, 0, 113, 1], port));
        let judged = context.judge(later, Protocol::Tcp, from, to).at_once();
        assert!(judged.ask.names.is_empty(), "it is still remembered");
        assert_eq!(judged.to.is_ok(), may, "port {port}");
    }
}

#[test]
fn guests_have_equal_parts_of_the_descriptors() {
    let share = DescriptorShare { all: 1000, guests: Arc::default() };
    assert_eq!(share.per_guest(), 1000);
    share.guests.store(4, Ordering::Relaxed);
    assert_eq!(share.per_guest(), 250);
}

#[test]
fn guests_leave_half_of_the_ports_to_the_machine() {
    let share = DescriptorShare { all: 1000, guests: Arc::default() };
    for (guests, ports) in [(1, UDP_ENDPOINTS), (3, UDP_ENDPOINTS), (7, 2000), (140, 100)] {
        share.guests.store(guests, Ordering::Relaxed);
        assert_eq!(share.ports_per_guest(), ports, "{guests} guests");
    }
}
