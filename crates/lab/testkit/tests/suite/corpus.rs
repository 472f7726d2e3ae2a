//! Replays the corpus of every fuzz target, and checks how far it reaches.

use std::fs;
use std::path::Path;

use pagewire_tcp::State;

#[path = "../../../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub)]
mod targets;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus");

/// The inputs of one target.
fn inputs(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let files = fs::read_dir(Path::new(CORPUS).join(target)).expect("a folder of inputs");
    files.map(|file| {
        let path = file.expect("a file").path();
        // To be seen with a failure.
        eprintln!("{}", path.display());
        fs::read(path).expect("an input")
    })
}

#[test]
fn every_input_of_the_corpus_is_survived() {
    let mut count = 0;
    for target in fs::read_dir(CORPUS).expect("the corpus") {
        let name = target.expect("a folder").file_name().into_string().expect("a target's name");
        for input in inputs(&name) {
            assert!(targets::replay(&name, &input), "no target is called {name}");
            count += 1;
        }
    }
    assert!(count > 2500, "the corpus is gone: {count} inputs");
}

#[test]
fn inputs_reach_every_state_of_a_connection() {
    let mut reached = Vec::new();
    let (mut read, mut written, mut again) = (0, 0, 0);
    for input in inputs("tcp_connection") {
        let progress = targets::tcp_connection(&input);
        reached.extend(progress.states);
        read += progress.read;
        written += progress.written;
        again += progress.again;
    }
    use State::*;
    for state in [
        Closed,
        SynSent,
        SynReceived,
        Established,
        FinWait1,
        FinWait2,
        CloseWait,
        Closing,
        LastAck,
        TimeWait,
    ] {
        assert!(reached.contains(&state), "no input reaches {state:?}");
    }
    assert!(read > 100_000 && written > 100_000 && again > 50, "{read}, {written}, {again}");
}

#[test]
fn inputs_reach_sockets_through_whole_frames() {
    let (mut accepted, mut read, mut written, mut datagrams, mut errors) = (0, 0, 0, 0, 0);
    let (mut completed, mut forwarded) = (0, 0);
    for input in inputs("stack_frames") {
        let depth = targets::stack_frames(&input);
        accepted += depth.accepted;
        read += depth.read;
        written += depth.written;
        datagrams += depth.datagrams;
        errors += depth.errors;
        completed += depth.completed;
        forwarded += depth.forwarded;
    }
    let depth = (accepted, read, written, datagrams, errors);
    assert!(accepted >= 9 && read > 50_000 && written > 100_000, "{depth:?}");
    assert!(datagrams >= 8 && errors >= 10, "{depth:?}");
    assert!(completed >= 4, "{completed} sends by reference completed");
    assert!(forwarded >= 3, "{forwarded} packets passed on");
}

#[test]
fn inputs_reach_the_sockets_of_a_gateway_through_whole_frames() {
    let (mut accepted, mut read, mut datagrams) = (0, 0, 0);
    for input in inputs("gateway_frames") {
        let depth = targets::gateway_frames(&input);
        accepted += depth.accepted;
        read += depth.read;
        datagrams += depth.datagrams;
    }
    assert!(accepted >= 16 && read > 0 && datagrams >= 16, "{accepted} {read} {datagrams}");
}

#[test]
fn inputs_reach_connections_pipes_and_readiness_through_descriptors() {
    let (mut accepted, mut received, mut spliced, mut ready) = (0, 0, 0, 0);
    for input in inputs("posix_calls") {
        let reach = targets::posix_calls(&input);
        accepted += reach.accepted;
        received += reach.received;
        spliced += reach.spliced;
        ready += reach.ready;
    }
    let reach = (accepted, received, spliced, ready);
    assert!(accepted >= 8 && received > 10_000 && spliced > 300 && ready >= 4, "{reach:?}");
}

#[test]
fn inputs_reach_deliveries_and_every_refusal_through_rings() {
    let (mut zc, mut copied, mut opened, mut unregistered) = (0, 0, 0, 0);
    let (mut fills, mut submissions, mut jumps, mut waits) = ([0; 4], 0, 0, [0; 2]);
    let mut datagrams = [0; 4];
    for input in inputs("ring_words") {
        let reach = targets::ring_words(&input);
        let counters = reach.counters;
        let told = [
            counters.datagrams,
            counters.datagrams_truncated,
            counters.datagrams_dropped,
            reach.answered as u64,
        ];
        datagrams.iter_mut().zip(told).for_each(|(sum, n)| *sum += n);
        zc += counters.zc_bytes;
        copied += counters.copy_bytes;
        opened += reach.opened;
        unregistered += reach.unregistered;
        let refused = [
            counters.fills_out_of_range,
            counters.fills_stale,
            counters.fills_not_held,
            counters.fills_foreign,
        ];
        fills.iter_mut().zip(refused).for_each(|(sum, n)| *sum += n);
        submissions += counters.submissions_refused;
        jumps += counters.jumps;
        waits[0] += counters.ring_waits;
        waits[1] += counters.copy_waits;
    }
    assert!(zc > 1_000_000 && copied > 50_000, "{zc}, {copied}");
    assert!(opened > 50 && unregistered >= 1, "{opened}, {unregistered}");
    assert!(fills.iter().all(|n| *n > 0), "{fills:?}");
    assert!(datagrams.iter().all(|n| *n > 0) && datagrams[0] > 1000, "{datagrams:?}");
    assert!(
        submissions > 10 && jumps > 20 && waits.iter().all(|n| *n > 0),
        "{submissions}, {jumps}, {waits:?}"
    );
}
