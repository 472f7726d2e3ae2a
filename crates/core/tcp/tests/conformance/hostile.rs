//! A peer (or a stranger who guesses well) says whatever it likes: nothing panics, nothing grows
//! without bound, and the connection can still be closed.

use crate::support::*;

impl Rng {
    /// A number at, near or far from one of these.
    fn near(&mut self, edges: &[u32]) -> u32 {
        match self.below(8) {
            0 => self.pick(&[0, 1, 1 << 31, u32::MAX, 1 << 30]),
            1 => self.below(u32::MAX),
            _ => {
                self.pick(edges).wrapping_add(self.below(5)).wrapping_sub(self.pick(&[0, 2, 1000]))
            }
        }
    }
}

#[test]
fn nothing_that_a_peer_says_breaks_a_connection() {
    for seed in 0..2000 {
        run(seed);
    }
}

fn run(seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let config = Config {
        timestamps: rng.below(2) == 0,
        nagle: rng.below(2) == 0,
        recv_buffer: rng.pick(&[2048, 60_000, 6 << 20]),
        ..Config::default()
    };
    let link = LinkLimits::new(1000, rng.pick(&[1000, 64_000]));
    let mut t = Test::connecting_over(config, link);
    let _ = t.sent();
    if rng.below(10) > 0 {
        let options =
            rng.pick(&["mss 1000,sackOK,wscale 7", "mss 1,TS val 5 ecr 0", "wscale 15", ""]);
        t.peer_any(&format!("S. 0:0(0) ack 1 win 65535 <{options}>"));
    }
    let (mut sent, mut got) = (1u32, 1u32);
    for _ in 0..120 {
        let segments = t.sent_segments();
        for s in &segments {
            sent = sent.max(end_of(s).min(1 << 24));
            got = got.max(s.header.ack.since(IRS).min(1 << 24));
        }
        match rng.below(12) {
            0 => drop(t.try_send(rng.pick(&[1, 999, 1000, 20_000, 200_000]))),
            1 => drop(t.try_read(rng.pick(&[1, 100, 100_000]))),
            2 => {
                t.wait(rng.pick(&[1u64, 39, 200, 1000, 70_000]));
            }
            3 if rng.below(12) == 0 => {
                t.close();
            }
            4 => {
                let mss = rng.pick(&[0, 1, 512, 900, u16::MAX]);
                let seq = rng.near(&[sent, 1]);
                t.icmp(seq, IcmpKind::PacketTooBig { mss });
            }
            _ => {
                let flags = rng.pick(&[
                    ".", ".", ".", ".", "P.", "F.", "S", "S.", "R", "R.", "-", "SF.", "U.",
                ]);
                let seq = rng.near(&[got]);
                let len = rng.pick(&[0, 0, 1, 10, 1000, 1000, 5000]);
                let ack = rng.near(&[sent, sent / 2, 1]);
                let win = rng.pick(&[0, 1, 100, 1000, 65_535]);
                let mut options = Vec::new();
                if rng.below(3) == 0 {
                    let blocks: Vec<String> = (0..1 + rng.below(4))
                        .map(|_| {
                            let (l, r) = (rng.near(&[sent / 2, sent]), rng.near(&[sent]));
                            format!("{l}:{r}")
                        })
                        .collect();
                    options.push(format!("sack {}", blocks.join(" ")));
                }
                if rng.below(3) == 0 {
                    let (v, e) = (rng.near(&[5]), rng.near(&[10_000]));
                    options.push(format!("TS val {v} ecr {e}"));
                }
                let end = seq.wrapping_add(len);
                let text = format!(
                    "{flags} {seq}:{end}({len}) ack {ack} win {win} <{}>",
                    options.join(",")
                );
                t.peer_any(&text);
            }
        }
        let info = t.conn.info();
        assert!(info.sacked + info.lost <= info.unacked, "seed {seed}: {info:?}");
        assert!(t.conn.queued_receive() <= (6 << 20) + 65_536, "seed {seed}");
    }
    t.abort().state(State::Closed);
    assert!(t.conn.is_closed());
    assert_eq!(t.conn.poll_timeout(), None);
}
