//! A world of real kernels: the gateway in one network namespace, its guest in another.
//!
//! ```text
//!   guest's namespace                         gateway's namespace
//!   10.0.2.15, fd00:2::15  tap --- [ gateway ] --- lo 192.0.2.1, 2001:db8::1
//!                                              \-- veth 198.51.100.1/24, nobody at its other end
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use pagewire::Tap;
use pagewire_gateway::{Ask, Builder, Gateway, Guest, GuestConfig, Verdict};
use pagewire_testkit::{Need, Netns, can, ip};

use super::{Notes, PATIENCE};

/// Addresses of the gateway's own machine.
pub const NEAR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const NEAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// An address that nobody has: packets to it get no answer at all.
pub const SILENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);

/// More than any test in two worlds takes.
const LIMIT: Duration = Duration::from_secs(45);

/// A tap lives until its last descriptor is closed, and a child that starts holds copies.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The gateway's side of a test.
pub struct Outside {
    pub guest: Guest,
    pub gateway: Gateway,
    pub journal: Notes,
}

/// How the two sides wait for each other.
pub struct Line {
    says: mpsc::Sender<()>,
    hears: mpsc::Receiver<()>,
}

impl Line {
    fn new() -> (Self, Self) {
        let ((to_a, from_b), (to_b, from_a)) = (mpsc::channel(), mpsc::channel());
        (Self { says: to_b, hears: from_b }, Self { says: to_a, hears: from_a })
    }

    /// Lets the other side go on.
    pub fn go_on(&self) {
        // The other side may be over.
        let _ = self.says.send(());
    }

    /// Waits until the other side says so.
    #[track_caller]
    pub fn wait(&self) {
        self.hears.recv_timeout(PATIENCE).expect("the other side goes on");
    }
}

/// Runs `inside` in the guest's namespace, and `outside` in the gateway's, each on a thread of its
/// own. Needs root. Both namespaces go with the threads.
pub fn worlds(
    outside: impl FnOnce(Outside, Line) + Send + 'static,
    inside: impl FnOnce(Line) + Send + 'static,
) {
    worlds_with(|builder| builder, outside, inside);
}

/// As [`worlds`], with a gateway of these settings.
pub fn worlds_with(
    settings: impl FnOnce(Builder) -> Builder + Send + 'static,
    outside: impl FnOnce(Outside, Line) + Send + 'static,
    inside: impl FnOnce(Line) + Send + 'static,
) {
    if !can(&[Need::Tap, Need::Program("ip")]) {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (give_tap, take_tap) = mpsc::channel();
    let (start, started) = mpsc::channel::<()>();
    let (inner, outer) = Line::new();
    let guest = move || {
        let tap = Tap::builder("guest0").host_addresses(["10.0.2.15/24", "fd00:2::15/64"]);
        give_tap.send(tap.open().unwrap()).unwrap();
        ip("route add default via 10.0.2.2");
        ip("-6 route add default via fd00:2::2");
        started.recv().unwrap();
        inside(inner);
    };
    let host = move || {
        furnish();
        let journal = Notes::default();
        let allow = |_: &Ask| Some(Verdict::Allow);
        let builder = Gateway::builder().judge(allow).journal(journal.take());
        let gateway = settings(builder).start();
        let settings = GuestConfig::new().network("10.0.2.2/24").unwrap();
        let settings = settings.network("fd00:2::2/64").unwrap();
        let settings = settings.guest("10.0.2.15".parse().unwrap());
        let settings = settings.guest("fd00:2::15".parse().unwrap());
        let guest = gateway.add(take_tap.recv().unwrap(), settings).unwrap();
        start.send(()).unwrap();
        outside(Outside { guest, gateway, journal }, outer);
    };
    let sides =
        [thread::spawn(|| Netns::new().inside(guest)), thread::spawn(|| Netns::new().inside(host))];
    join(sides);
}

/// Waits for both sides, but not for ever: what hangs is a lost wake-up, and has to fail by name.
#[track_caller]
fn join(sides: [thread::JoinHandle<()>; 2]) {
    let end = Instant::now() + LIMIT;
    for side in sides {
        while !side.is_finished() {
            assert!(Instant::now() < end, "a side of this test hangs");
            thread::park_timeout(Duration::from_millis(1));
        }
        if let Err(panic) = side.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// The addresses and routes of the gateway's namespace.
fn furnish() {
    ip("link set lo up");
    ip(&format!("address add {NEAR_V4}/32 dev lo"));
    ip(&format!("-6 address add {NEAR_V6}/128 dev lo"));
    ip("link add near type veth peer name nobody");
    ip("address add 198.51.100.1/24 dev near");
    ip("link set near up");
    ip("link set nobody up");
    ip(&format!("neigh add {SILENT} lladdr 02:00:00:00:00:99 dev near nud permanent"));
    ip("route add unreachable 203.0.113.0/26");
    ip("route add prohibit 203.0.113.64/26");
    ip("route add blackhole 203.0.113.128/26");
    ip("-6 route add unreachable 2001:db8:1::/64");
    ip("-6 route add prohibit 2001:db8:2::/64");
}
