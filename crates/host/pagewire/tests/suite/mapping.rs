//! Receiving by mapping as programs see it, over the pair link, with real threads.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use pagewire::memory::{MapError, Region};
use pagewire::{Mapping, SocketOption};
use pagewire_testkit::given;

use crate::support::{joined, pattern};

const PAGE: usize = 4096;

given! {
    let mut ends = joined();

    a_call_that_waits_has_the_bytes_side_by_side {
        let sent = pattern(64 * PAGE);
        let peer = ends.far.clone();
        let reader = thread::spawn(move || peer.map_wait(64 * PAGE));
        for piece in sent.chunks(5000) {
            ends.near.write_all(piece).unwrap();
        }
        let mapping = reader.join().unwrap().unwrap();
        assert_eq!(mapping.as_slice().unwrap(), sent);
        assert_eq!(ends.far.map(PAGE).unwrap_err(), MapError::WouldBlock);
        assert_eq!(ends.server.stats().ledger.ours(), 0);
    }
    a_mapping_larger_than_any_window_is_an_error_and_not_waited_for {
        ends.far.set_option(SocketOption::RecvBuffer(64 << 10)).unwrap();
        let peer = ends.far.clone();
        let reader = thread::spawn(move || peer.map_wait(64 * PAGE));
        let writer = {
            let mut conn = ends.near.clone();
            thread::spawn(move || conn.write_all(&pattern(64 * PAGE)))
        };
        let error = reader.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(MapError::NoMemory.errno()));
        let mut all = vec![0; 64 * PAGE];
        ends.far.read_exact(&mut all).unwrap();
        assert_eq!(all, pattern(64 * PAGE), "nothing was consumed");
        writer.join().unwrap().unwrap();
    }
    a_mapping_lives_longer_than_its_stream_and_its_host {
        ends.near.write_all(&pattern(4 * PAGE)).unwrap();
        let mapping = ends.far.map_wait(4 * PAGE).unwrap();
        drop(ends);
        let mapping: Mapping = thread::spawn(move || mapping).join().unwrap();
        assert_eq!(mapping.as_slice().unwrap(), pattern(4 * PAGE));
    }
    what_is_available_is_mapped_and_the_tail_copied_into_the_buffer_given_for_it {
        let sent = pattern(3 * PAGE + 100);
        ends.near.write_all(&sent).unwrap();
        ends.near.shutdown(Shutdown::Write).unwrap();
        let (mut got, mut tail) = (Vec::new(), [0; 500]);
        loop {
            ends.far.wait_readable().unwrap();
            let found = ends.far.map_available_with(1 << 20, &mut tail).unwrap();
            if let Some(mapping) = &found.mapping {
                got.extend_from_slice(mapping.as_slice().unwrap());
            }
            got.extend_from_slice(&tail[..found.copied]);
            assert_eq!(found.error, None);
            if found.ended && found.queued == 0 {
                break;
            }
            // Bytes that the buffer did not take are read.
            let mut rest = vec![0; found.copy_next];
            ends.far.read_exact(&mut rest).unwrap();
            got.extend(rest);
        }
        assert_eq!(got, sent);
        assert_eq!(ends.far.map(PAGE).unwrap_err(), MapError::Ended);
    }
    each_refusal_has_its_error_number {
        for (len, errno) in [(0, 22), (1, 22), (PAGE, 11)] {
            assert_eq!(ends.far.map(len).unwrap_err().errno(), errno, "{len}");
        }
        ends.near.write_all(&[1; 10]).unwrap();
        ends.near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(ends.far.map_wait(PAGE).unwrap_err().raw_os_error(), Some(5));
        ends.far.set_nonblocking(true).unwrap();
        assert_eq!(ends.near.map(PAGE).unwrap_err().errno(), 11);
    }
}

#[test]
fn a_mapping_larger_than_the_receive_buffer_is_waited_for() {
    let ends = joined();
    let region = Region::memfd("sent", 512 * PAGE).unwrap();
    let peer = ends.far.clone();
    let reader = thread::spawn(move || peer.map_wait(512 * PAGE));
    ends.near.send(region.frag(0, 512 * PAGE).unwrap()).unwrap();
    let mapping = reader.join().unwrap().unwrap();
    assert_eq!(mapping.as_slice().unwrap(), vec![0; 512 * PAGE]);
    assert_eq!(ends.copied(), 0);
}

#[test]
fn a_mapping_is_sent_on_without_a_copy() {
    let ends = joined();
    let region = Region::memfd("sent", 16 * PAGE).unwrap();
    ends.near.send(region.frag(0, 16 * PAGE).unwrap()).unwrap();
    let mapping = ends.far.map_wait(16 * PAGE).unwrap();
    ends.far.send(&mapping).unwrap();
    ends.far.send(mapping).unwrap();
    let back = ends.near.map_wait(32 * PAGE).unwrap();
    assert_eq!(back.len(), 32 * PAGE);
    assert_eq!(ends.copied(), 0);
}

#[test]
fn the_steady_bulk_case_takes_no_system_call_for_a_mapping() {
    let ends = joined();
    const TOTAL: usize = 4096 * PAGE;
    let region = Region::memfd("sent", TOTAL).unwrap();
    let sender = {
        let conn = ends.near.clone();
        thread::spawn(move || conn.send(region.frag(0, TOTAL).unwrap()))
    };
    let (mut mapped, mut calls) = (0, Vec::new());
    while mapped < TOTAL {
        ends.far.wait_readable().unwrap();
        let found = ends.far.map_available(1 << 20).unwrap();
        if let Some(mapping) = found.mapping {
            mapped += mapping.len();
            calls.push(mapping.system_calls());
        } else if found.copy_next > 0 {
            // A frame that ends in the middle of a page is still under way.
            thread::yield_now();
        }
    }
    assert_eq!(calls.iter().sum::<u32>(), 1, "the alias of the region: {calls:?}");
    sender.join().unwrap().unwrap();
}
