//! A link over Unix datagrams: who becomes its peer, and where frames stay that find no room.

use pagewire_testkit::frames::{bytes_of, to_send};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

struct Rig {
    link: DatagramLink,
    dir: TempDir,
    ledger: CopyLedger,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let link = DatagramLink::builder().bind(dir.path().join("link")).unwrap();
        Self { link, dir, ledger: CopyLedger::new() }
    }

    fn peer(&self, name: &str) -> UnixDatagram {
        let peer = UnixDatagram::bind(self.dir.path().join(name)).unwrap();
        peer.set_nonblocking(true).unwrap();
        peer
    }

    fn say(&self, peer: &UnixDatagram, what: &[u8]) {
        peer.send_to(what, self.dir.path().join("link")).unwrap();
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = VecDeque::new();
        self.link.receive(Instant::ZERO, &mut frames, 64, &mut self.ledger).unwrap();
        frames.iter().map(bytes_of).collect()
    }

    fn transmit(&mut self, frames: &mut VecDeque<PacketBuf>) {
        self.link.transmit(Instant::ZERO, frames, &mut self.ledger).unwrap();
    }
}

fn heard(peer: &UnixDatagram) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 2000];
    let n = peer.recv(&mut buffer).ok()?;
    buffer.truncate(n);
    Some(buffer)
}

#[test]
fn a_socket_that_was_passed_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("link");
    let kept = UnixDatagram::bind(&path).unwrap();
    let link = DatagramLink::builder().adopt(kept.try_clone().unwrap()).unwrap();
    assert_eq!(link.capabilities().mac, crate::socket_path::derive_mac(&path));
    let mut rig = Rig { link, dir, ledger: CopyLedger::new() };
    assert!(rig.receive().is_empty(), "it does not wait");
    let peer = rig.peer("peer");
    rig.say(&peer, b"VFKT");
    rig.say(&peer, &[7; 1000]);
    assert_eq!(rig.receive(), [vec![7; 1000]]);
    drop(rig.link);
    assert!(path.exists());
}

#[test]
fn frames_go_both_ways_with_whoever_greeted() {
    let mut rig = Rig::new();
    let peer = rig.peer("peer");
    rig.say(&peer, b"VFKT");
    rig.say(&peer, &[7; 1000]);
    assert_eq!(rig.receive(), [vec![7; 1000]]);
    assert!(rig.link.is_up());
    let mut frames = VecDeque::from([to_send(&[8; 900], 14), to_send(&[9; 60], 14)]);
    rig.transmit(&mut frames);
    assert!(frames.is_empty());
    assert_eq!(heard(&peer), Some(vec![8; 900]));
    assert_eq!(heard(&peer), Some(vec![9; 60]));
    assert_eq!(heard(&peer), None);
}

#[test]
fn before_the_greeting_the_link_is_down_and_strangers_are_not_heard() {
    let mut rig = Rig::new();
    let (peer, stranger) = (rig.peer("peer"), rig.peer("stranger"));
    rig.say(&stranger, &[7; 60]);
    assert!(rig.receive().is_empty());
    let mut frames = VecDeque::from([to_send(&[8; 60], 14)]);
    rig.transmit(&mut frames);
    assert_eq!((frames.len(), rig.link.counters().tx_dropped_closed), (0, 1));
    rig.say(&peer, b"VFKT");
    rig.say(&stranger, &[7; 60]);
    rig.say(&peer, &[7; 13]);
    rig.say(&peer, &vec![7; 1519]);
    assert!(rig.receive().is_empty());
    assert_eq!(rig.link.counters().rx_dropped_malformed, 4);
    // A socket without an address, which could not be answered, does not become the peer.
    let unnamed = UnixDatagram::unbound().unwrap();
    rig.say(&unnamed, b"VFKT");
    rig.say(&peer, &vec![7; 1518]);
    assert_eq!(rig.receive(), [vec![7; 1518]]);
}

#[test]
fn another_greeting_makes_another_peer_and_one_that_is_gone_is_forgotten() {
    let mut rig = Rig::new();
    let (first, second) = (rig.peer("first"), rig.peer("second"));
    rig.say(&first, b"VFKT");
    rig.say(&second, b"VFKT");
    rig.say(&first, &[1; 60]);
    rig.say(&second, &[2; 60]);
    assert_eq!(rig.receive(), [vec![2; 60]]);
    drop(second);
    let mut frames = VecDeque::from([to_send(&[3; 60], 14)]);
    rig.transmit(&mut frames);
    assert!(!rig.link.is_up());
    rig.say(&first, b"VFKT");
    assert!(rig.receive().is_empty());
    let mut frames = VecDeque::from([to_send(&[4; 60], 14)]);
    rig.transmit(&mut frames);
    assert_eq!(heard(&first), Some(vec![4; 60]));
}

#[test]
fn what_a_slow_peer_has_no_room_for_stays_and_is_tried_again() {
    let mut rig = Rig::new();
    let peer = rig.peer("peer");
    rig.say(&peer, b"VFKT");
    rig.receive();
    let mut frames: VecDeque<_> = (0..5000).map(|i: u32| to_send(&[i as u8; 200], 14)).collect();
    rig.transmit(&mut frames);
    let mut left = frames.len();
    assert!(left > 0);
    let mut count = 0;
    while left > 0 {
        assert!(rig.link.poll_timeout().is_some());
        while heard(&peer).is_some() {
            count += 1;
        }
        rig.transmit(&mut frames);
        assert!(frames.len() < left);
        left = frames.len();
    }
    while heard(&peer).is_some() {
        count += 1;
    }
    assert_eq!((count, rig.link.poll_timeout()), (5000, None));
}

#[test]
fn its_socket_is_removed_and_one_left_behind_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("link");
    drop(UnixDatagram::bind(&path).unwrap());
    let link = DatagramLink::builder().bind(&path).unwrap();
    assert!(DatagramLink::builder().bind(&path).is_err(), "it is in use");
    drop(link);
    assert!(!path.exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_the_fuzz_target_is_fed_is_survived(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        super::fuzzing::frames_datagram(&data);
    }
}
