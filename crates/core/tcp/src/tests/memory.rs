//! The account of a host's memory: shares, promises, the reserve.

use pagewire_testkit::given;

use super::*;

/// An account of which `bytes` are for received data, which pins no more than its length.
fn exact(bytes: usize) -> MemoryAccount {
    MemoryAccount { overhead: 16, ..MemoryAccount::for_received(bytes) }
}

#[test]
fn windows_are_the_smaller_the_more_memory_their_bytes_pin() {
    let mut account = exact(1 << 20);
    let mut promise = Promise::default();
    account.note_overhead(30_000, 10_000);
    account.promise(&mut promise, 1000);
    assert_eq!((account.promised(), account.allowance()), (1000, ((3 << 18) - 1000) / 4));
    account.handle_time(Instant::ZERO + PROMISE_EPOCH);
    account.promise(&mut promise, 1000);
    assert_eq!(account.promised(), 3000);
    let window = account.allowance();
    assert!(window.abs_diff(((3 << 18) - 3000) / 12) < 16, "{window}");
    // Small pieces are compacted, beyond this factor.
    account.note_overhead(30_000, 600);
    account.note_overhead(usize::MAX, 100);
    account.handle_time(Instant::ZERO + 2 * PROMISE_EPOCH);
    account.promise(&mut promise, 1000);
    assert_eq!(account.promised(), 4000);
}

#[test]
fn lone_connection_may_pin_a_fifth_of_what_windows_may_have() {
    let mut account = exact(1 << 20);
    let mut pinned = 0;
    while pinned < account.allowance() {
        account.charge(pinned, pinned + 1);
        pinned += 1;
    }
    assert_eq!(pinned, (3 << 18) / 5);
}

#[test]
fn many_connections_that_nobody_reads_leave_a_share_to_the_next() {
    // Each takes what it may, again and again, until nothing moves.
    let mut account = exact(64 << 20);
    let mut pinned = [0_usize; 100];
    for _ in 0..1000 {
        for held in &mut pinned {
            let more = account.allowance().saturating_sub(*held).min(1 << 12);
            account.charge(*held, *held + more);
            *held += more;
        }
    }
    let next = account.allowance();
    let fair = (48 << 20) / (4 + 100);
    assert!(next >= fair * 9 / 10, "{next} bytes for the next, of {fair}");
}

given! {
    let mut account = exact(3200);

    last_eighth_is_kept_for_those_who_hold_nothing_and_for_those_who_read {
        account.charge(0, 2700);
        assert!(account.is_ample(100) && !account.is_ample(101));
        assert!(account.has_room(300, false, true) && !account.has_room(301, false, true));
        assert!(account.has_room(400, false, false) && !account.has_room(401, false, false));
        assert!(account.has_room(500, true, true) && account.has_room(500, true, false));
        for holds in [true, false] {
            assert!(!account.has_room(501, true, holds), "nothing is let in beyond the account");
        }
    }
    query_gets_through_beside_streams_as_long_as_they_left_anything {
        account.charge(0, 3150);
        assert!(!account.has_room(1, false, false), "others get nothing any more");
        assert!(account.takes_datagram(0, 50) && !account.takes_datagram(0, 51));
        account.set_room(0);
        assert!(account.takes_datagram(0, 50), "also if the device has little left");
        account.charge_datagrams(0, 50);
        assert!(!account.takes_datagram(0, 1));
    }
    device_with_little_memory_left_bounds_what_is_taken_and_promised {
        account.charge(0, 800);
        account.set_room(usize::MAX);
        assert_eq!((account.limit(), account.allowance()), (3200, 400));
        // Pinned memory is not promised again: a fourth of the rest is.
        account.set_room(800);
        assert_eq!((account.limit(), account.allowance()), (1600, 100));
        assert!(account.is_ample(600) && !account.is_ample(601));
        assert!(account.has_room(750, false, false) && !account.has_room(751, false, false));
        // The device has nothing left: nothing is taken.
        account.set_room(0);
        assert_eq!(account.allowance(), 0);
        assert!(!account.is_ample(1) && !account.has_room(1, true, false));
        assert!(!account.takes_datagram(1, 1));
        // Data was read: there is room at once, before the device reports it.
        account.charge(800, 400);
        assert!(account.has_room(300, true, true));
        account.set_room(10_000);
        assert_eq!(account.limit(), 3200);
    }
    socket_without_a_datagram_takes_one_beside_streams_that_took_their_all {
        account.charge(0, 2800);
        assert!(!account.takes_datagram(1, 1), "the last eighth is begun");
        assert!(account.takes_datagram(0, 300) && !account.takes_datagram(0, 301));
        account.charge(2800, 0);
        account.charge_datagrams(0, 1500);
        assert!(account.takes_datagram(0, 100) && !account.takes_datagram(0, 101), "half is for streams");
    }
}

#[test]
fn datagrams_that_nobody_reads_leave_half_of_the_account_and_a_share_to_the_next_socket() {
    let mut account = exact(64 << 20);
    let mut pinned = [0_usize; 64];
    for _ in 0..10_000 {
        for held in &mut pinned {
            if account.takes_datagram(*held, 4 << 10) {
                account.charge_datagrams(0, 4 << 10);
                *held += 4 << 10;
            }
        }
    }
    assert_eq!((account.used(), account.datagrams()), (pinned.iter().sum(), account.used()));
    assert!(account.used() <= 32 << 20, "{}", account.used());
    let fair = (32 << 20) / (4 + 64);
    assert!(pinned.iter().all(|held| held.abs_diff(fair) < fair / 10), "{fair}: {pinned:?}");
    assert!(account.takes_datagram(fair / 2, 4 << 10), "the next has a share too");
    for held in pinned {
        account.charge_datagrams(held, 0);
    }
    assert_eq!((account.used(), account.datagrams()), (0, 0));
}

given! {
    let mut account = exact(1 << 20);

    promised_windows_are_not_free_until_their_peers_have_been_silent_for_two_epochs {
        let mut promise = Promise::default();
        account.promise(&mut promise, 100_000);
        assert_eq!((account.promised(), account.allowance()), (100_000, ((3 << 18) - 100_000) / 4));
        account.handle_time(Instant::ZERO + PROMISE_EPOCH);
        assert_eq!(account.promised(), 100_000);
        account.handle_time(Instant::ZERO + 2 * PROMISE_EPOCH);
        assert_eq!(account.promised(), 0);
        // A promise that expired is not taken from those of others.
        let mut other = Promise::default();
        account.promise(&mut other, 5000);
        account.promise(&mut promise, 0);
        assert_eq!(account.promised(), 5000);
    }
    promise_that_is_renewed_counts_once {
        let mut promise = Promise::default();
        for n in 0..20 {
            account.handle_time(Instant::ZERO + n * PROMISE_EPOCH / 2);
            account.promise(&mut promise, 1000 + n);
            assert_eq!(account.promised(), 1000 + n as usize);
        }
        account.promise(&mut promise, 0);
        assert_eq!(account.promised(), 0);
    }
    windows_of_many_leave_a_share_to_the_next {
        let mut promises = [Promise::default(); 96];
        for _ in 0..1000 {
            for promise in &mut promises {
                let window = account.allowance().min(64 << 10) as u32;
                account.promise(promise, window.max(1000));
            }
        }
        let (fair, next) = ((3 << 18) / (4 + 96), account.allowance());
        assert!(next >= fair * 9 / 10, "{next} bytes for the next, of {fair}");
        assert!(account.promised() < 1 << 20);
    }
    copies_of_what_is_sent_have_a_part_of_their_own_and_share_the_rest {
        let own = account.all() - account.limit();
        account.set_copies(own);
        assert_eq!(account.allowance(), 3 << 16, "received data has its own part, too");
        account.set_copies(own + (1 << 18));
        account.charge(0, 1 << 18);
        assert_eq!((account.received(), account.taken()), (1 << 18, 1 << 19));
        // Of the half of the received data's part, a half is left.
        assert_eq!((account.allowance(), account.free_for_copies()), (1 << 16, 1 << 18));
        // A device with little memory left bounds what is received only.
        account.set_room(0);
        assert_eq!((account.allowance(), account.free_for_copies()), (0, 1 << 18));
        // Promises bound copies beyond their own part only.
        let mut promise = Promise::default();
        account.promise(&mut promise, 1 << 20);
        assert_eq!(account.free_for_copies(), 0);
        account.set_copies(own / 2);
        assert_eq!(account.free_for_copies(), own - own / 2);
    }
    peers_that_do_not_read_what_is_sent_leave_half_to_what_is_received {
        let own = account.all() - account.limit();
        account.set_copies(own + account.limit() / 2);
        assert_eq!(account.free_for_copies(), 0);
        assert!(account.allowance() > 0 && account.is_ample(account.limit() / 3));
    }
    first_window_is_small_where_little_is_left_and_never_less_than_a_few_segments {
        assert_eq!(account.first_window(u16::MAX, 1460), u16::MAX);
        account.charge(0, (3 << 18) - 40_000);
        assert_eq!(account.first_window(u16::MAX, 1460), 10_000);
        account.charge(0, 40_000);
        assert_eq!(account.first_window(u16::MAX, 1460), 4 * 1460);
    }
}
