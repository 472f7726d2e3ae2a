//! Frames that a device refuses: the connection gets the error at once, without a timeout.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use pagewire_mem::PacketBuf;
use pagewire_stack::LinkId;

use crate::common::{A, B, Pair, Verbs, pattern};

/// While it is set, A's device refuses everything.
struct Refusing {
    on: Rc<Cell<bool>>,
    frames: Rc<RefCell<VecDeque<PacketBuf>>>,
}

impl Refusing {
    fn new(p: &mut Pair) -> Self {
        let this = Self { on: Rc::new(Cell::new(true)), frames: Rc::default() };
        let (on, frames) = (Rc::clone(&this.on), Rc::clone(&this.frames));
        p.carry = Some(Box::new(move |side, frame| {
            let refused = side == A && on.get();
            if refused {
                frames.borrow_mut().push_back(frame.clone());
            }
            !refused
        }));
        this
    }

    /// Lets time pass, and gives back what was refused; how often there was something.
    fn run(&self, p: &mut Pair, ms: u64) -> usize {
        let mut count = 0;
        for _ in 0..ms {
            p.run(Duration::from_millis(1));
            count += usize::from(!self.frames.borrow().is_empty());
            p.a.handle_refused_on(p.now, LinkId::FIRST, &mut self.frames.borrow_mut());
            p.flush();
        }
        count
    }
}

#[test]
fn what_the_device_refuses_is_sent_within_half_a_second_and_without_blame() {
    for to in ["10.0.0.2:80", "[fd00::2]:80"] {
        let mut p = Pair::met();
        let (client, server, _) = p.connect(to);
        let before = p.a.tcp(client).unwrap().info();
        let refusing = Refusing::new(&mut p);
        let data = pattern(20_000);
        assert_eq!(p.a.send(p.now, client, &data), Ok(20_000));
        // At once, after the timeout of 200 ms, and then each 500.
        assert_eq!(refusing.run(&mut p, 2500), 6, "{to}");
        let info = p.a.tcp(client).unwrap().info();
        assert_eq!((info.unacked, info.unsent), (0, 20_000), "{to}");
        assert_eq!((info.timeouts, info.retransmits, info.cwnd), (0, 0, before.cwnd), "{to}");
        assert!(p.a.counters().tx_refused >= 4);
        refusing.on.set(false);
        p.run(Duration::from_millis(700));
        assert_eq!(p.b.tcp(server).map(|tcp| tcp.queued()), Ok(20_000), "{to}");
        let mut got = vec![0; 20_000];
        p.b.recv(p.now, server, &mut got[..]).unwrap();
        assert!(got == data);
        p.transfer((A, client), (B, server), &data);
    }
}

#[test]
fn what_is_no_segment_of_ours_is_dropped() {
    let mut p = Pair::met();
    let (client, ..) = p.connect("10.0.0.2:80");
    let frames = (0..200u8).map(|n| {
        let mut frame = PacketBuf::for_rx();
        let bytes: Vec<u8> = (0..n).map(|i| i.wrapping_mul(n) | 0x40).collect();
        if let Some(room) = frame.append(bytes.len()) {
            room.copy_from_slice(&bytes);
        }
        frame
    });
    p.a.handle_refused_on(p.now, LinkId::FIRST, &mut frames.collect());
    p.run(Duration::from_millis(10));
    assert_eq!(p.a.tcp(client).unwrap().info().probes, 0);
}
