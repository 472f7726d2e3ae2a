//! `struct tcp_info` as Linux 6.18 lays it out: 280 bytes. (Older ones are a front part of it.)

use std::time::Duration;

use pagewire_stack::TcpInfo;

const LEN: usize = 280;

/// Bits of `tcpi_options`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const SCALING: u8 = 4;
const ECN: u8 = 8;
const ECN_SEEN: u8 = 16;
const SYN_DATA: u8 = 32;

/// The state's number (`tcp_states.h`).
fn state_number(info: &TcpInfo, listening: bool) -> u8 {
    if listening {
        return 10;
    }
    match info.state.name() {
        "ESTABLISHED" => 1,
        "SYN-SENT" => 2,
        "SYN-RECEIVED" => 3,
        "FIN-WAIT-1" => 4,
        "FIN-WAIT-2" => 5,
        "TIME-WAIT" => 6,
        "CLOSE-WAIT" => 8,
        "LAST-ACK" => 9,
        "CLOSING" => 11,
        _ => 7,
    }
}

/// The structure. `headers`: bytes of the IP and TCP headers, 0 without a connection.
pub(super) fn tcp_info(info: &TcpInfo, listening: bool, headers: u32) -> Vec<u8> {
    let bit = |on: bool, bit: u8| if on { bit } else { 0 };
    let options = bit(info.timestamps, TIMESTAMPS)
        | bit(info.sack, SACK)
        | bit(info.scaling, SCALING)
        | bit(info.ecn, ECN)
        | bit(info.ecn_seen, ECN_SEEN)
        | bit(info.syn_data, SYN_DATA);
    let mut out = Vec::with_capacity(LEN);
    out.extend([
        state_number(info, listening),
        info.ca_state as u8,
        info.backoff,
        info.probes,
        info.backoff,
        options,
        info.send_scale | info.recv_scale << 4,
        0,
    ]);
    fn put<const N: usize>(out: &mut Vec<u8>, words: [u32; N]) {
        out.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }
    fn put_long<const N: usize>(out: &mut Vec<u8>, words: [u64; N]) {
        out.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }
    let connected = headers > 0;
    // Nothing is paced: no limit.
    let pacing = if connected { u64::MAX } else { 0 };
    let min_rtt = if connected && info.min_rtt.is_zero() { u32::MAX } else { micros(info.min_rtt) };
    let long = |time: Duration| time.as_micros() as u64;
    put(&mut out, words(info, headers));
    put_long(&mut out, [pacing, u64::MAX, info.bytes_acked, info.bytes_received]);
    put(&mut out, [info.segments_out, info.segments_in, info.unsent, min_rtt]);
    put(&mut out, [info.data_segments_in, info.data_segments_out]);
    // tcpi_delivery_rate is not measured: 0, as before the first sample.
    let limited = [long(info.window_limited), long(info.buffer_limited)];
    put_long(&mut out, [0, long(info.busy), limited[0], limited[1]]);
    put(&mut out, [info.delivered, info.delivered_ce]);
    put_long(&mut out, [info.bytes_sent, info.bytes_retransmitted]);
    // tcpi_rcv_ooopack is not counted; tcpi_rehash and the counts of timeouts neither.
    let windows = [info.send_window, info.recv_window];
    put(&mut out, [info.dsack_dups, info.reord_seen, 0, windows[0], windows[1], 0, 0, 0]);
    let counts = info.ecn_counts.unwrap_or_default();
    let ([sent0, sent_ce, sent1], [got0, got_ce, got1]) =
        (counts.delivered_bytes, counts.received_bytes);
    // tcpi_accecn_fail_mode and tcpi_accecn_opt_seen are 0.
    put(&mut out, [counts.received_ce, sent1, sent0, sent_ce, got1, got0, got_ce, 0]);
    out
}

/// From `tcpi_rto` to `tcpi_total_retrans`.
fn words(info: &TcpInfo, headers: u32) -> [u32; 24] {
    let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let mtu = if headers == 0 { 0 } else { u32::from(info.path_mss) + headers };
    [
        micros(info.rto),
        micros(info.ack_timeout),
        u32::from(info.send_mss),
        u32::from(info.recv_mss),
        info.unacked_segments,
        info.sacked_segments,
        info.lost_segments,
        info.retransmitting_segments,
        0, // tcpi_fackets: no longer kept in Linux either
        millis(info.last_data_sent),
        0, // tcpi_last_ack_sent: not remembered in Linux either
        millis(info.last_data_received),
        millis(info.last_ack_received),
        mtu,
        info.recv_ssthresh,
        micros(info.srtt),
        micros(info.rttvar),
        info.ssthresh_segments,
        info.cwnd_segments,
        u32::from(info.announced_mss),
        info.reordering,
        micros(info.recv_rtt),
        info.recv_space,
        info.retransmits,
    ]
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use pagewire_stack::EcnCounts;

    use super::*;

    #[test]
    fn fields_lie_where_linux_has_them() {
        let mut info = TcpInfo::default();
        info.rto = Duration::from_millis(200);
        info.cwnd_segments = 10;
        info.retransmits = 7;
        info.bytes_acked = 1;
        info.unsent = 3;
        info.delivered = 4;
        info.bytes_retransmitted = 5;
        info.recv_window = 6;
        info.min_rtt = Duration::from_micros(8);
        info.ecn_counts = Some(EcnCounts {
            received_ce: 9,
            received_bytes: [10, 11, 12],
            delivered_bytes: [13, 14, 15],
        });
        let out = tcp_info(&info, false, 40);
        let word = |at: usize| u32::from_ne_bytes(out[at..at + 4].try_into().unwrap());
        assert_eq!(out.len(), 280);
        assert_eq!(word(8), 200_000);
        assert_eq!(word(80), 10);
        assert_eq!(word(100), 7);
        assert_eq!(word(120), 1);
        assert_eq!(word(144), 3);
        assert_eq!(word(148), 8);
        assert_eq!(word(192), 4);
        assert_eq!(word(208), 5);
        assert_eq!(word(232), 6);
        // tcpi_received_ce, tcpi_delivered_e1_bytes … tcpi_received_ce_bytes.
        let counts = [248, 252, 256, 260, 264, 268, 272].map(word);
        assert_eq!(counts, [9, 15, 13, 14, 12, 10, 11]);
    }
}
