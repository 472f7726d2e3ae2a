//! A connection's throughput on bad networks. `--nocapture` shows the table.

use std::time::Duration;

use pagewire_device::{Chance, FaultConfig};
use pagewire_testkit::sim::Transfer;

const LINK: u64 = 100_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(20);
const MSS: f64 = 1448.0;

/// Bits a second, one way, over a link of 100 Mbit/s and 20 ms there and back.
fn throughput(per_million: u32, buffer: u32) -> f64 {
    let bytes = if per_million >= 30_000 { 1 << 20 } else { 6 << 20 };
    let mut transfer = Transfer {
        faults: FaultConfig {
            loss: Chance::per_million(per_million),
            delay: ROUND_TRIP / 2,
            rate: Some(LINK),
            limit: 200,
            cut: true,
            ..FaultConfig::default()
        },
        bytes: [bytes, 0],
        ..Transfer::new(1)
    };
    transfer.tcp.iter_mut().for_each(|tcp| tcp.recv_buffer = buffer);
    let report = transfer.run(None).unwrap_or_else(|error| panic!("{error}"));
    bytes as f64 * 8.0 / report.time.as_secs_f64()
}

/// Upper bound of the throughput: the link's rate, a window each round trip, and Reno's rate under loss (Mathis,
/// Semke, Mahdavi, Ott: The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm, 1997).
fn bound(per_million: u32, buffer: u32) -> f64 {
    let round_trip = ROUND_TRIP.as_secs_f64();
    let window = f64::from(buffer) * 8.0 / round_trip;
    let loss = f64::from(per_million.max(1)) / 1e6;
    let reno = MSS * 8.0 / round_trip * (1.5 / loss).sqrt();
    (LINK as f64).min(window).min(reno)
}

#[test]
fn throughput_is_at_least_half_of_what_loss_and_buffer_allow() {
    let buffers = [64 << 10, 256 << 10, 6 << 20];
    let mut table = String::from("Mbit/s of what is possible, by loss and receive buffer\n");
    table += "loss            64K          256K            6M\n";
    let mut low = Vec::new();
    for per_million in [0, 100, 1_000, 10_000, 30_000] {
        table += &format!("{:<7}", format!("{}%", f64::from(per_million) / 1e4));
        for buffer in buffers {
            let (got, bound) = (throughput(per_million, buffer), bound(per_million, buffer));
            table += &format!("{:>7.1}/{:<6.1}", got / 1e6, bound / 1e6);
            if got < bound / 2.0 {
                low.push((per_million, buffer));
            }
        }
        table.push('\n');
    }
    eprintln!("{table}");
    assert!(low.is_empty(), "too slow at (loss in millionths, buffer) {low:?}\n{table}");
}
