//! A pipe while several readers, writers and splices use it.

use std::task::Waker;

use pagewire_sockets::{Signal, WaiterId};

use super::*;

#[test]
fn what_a_splice_cannot_send_stays_and_nobody_finds_the_pipe_empty_meanwhile() {
    let pipe = Pipe::new();
    pipe.put(|_| Ok(vec![Frag::from_static(b"data")])).unwrap();
    pipe.lock().writers = false;
    let taken = pipe.take(4, |frags| {
        // Another reader would find neither data nor writers, and take that for the end.
        assert!(pipe.queue.try_lock().is_err());
        drop(frags[0].split_to(1));
        Ok(())
    });
    assert_eq!(taken, Ok(Some(1)));
    let failed = pipe.take(9, |_| Err(Errno::AGAIN));
    assert_eq!(failed, Err(Errno::AGAIN));
    assert_eq!(pipe.lock().take(9).iter().map(Frag::len).sum::<usize>(), 3);
    assert_eq!(pipe.take(9, |_| Ok(())), Ok(Some(0)));
}

#[test]
fn nothing_is_fetched_for_a_reader_that_is_gone_nor_beyond_the_room() {
    let pipe = Pipe::new();
    let put = pipe.put(|room| {
        // Another writer would be promised the same room.
        assert!(pipe.queue.try_lock().is_err());
        Ok(vec![Frag::from_static(&[0; PIPE_BYTES][..room])])
    });
    assert_eq!(put, Ok(Some(PIPE_BYTES)));
    assert_eq!(pipe.put(|_| unreachable!()), Ok(None));
    pipe.lock().readers = false;
    assert_eq!(pipe.put(|_| unreachable!()), Err(Errno::PIPE));
}

#[test]
fn pouring_wakes_who_waits_for_room_and_who_waits_for_data() {
    let (from, into) = (Pipe::new(), Pipe::new());
    from.put(|_| Ok(vec![Frag::from_static(b"data")])).unwrap();
    let (writer, reader) = (Arc::<Signal>::default(), Arc::<Signal>::default());
    from.write_watch.add(Events::OUT, WaiterId::new(), &Waker::from(Arc::clone(&writer)));
    into.read_watch.add(Events::IN, WaiterId::new(), &Waker::from(Arc::clone(&reader)));
    assert_eq!(from.pour(&into, 3), Ok(Some(3)));
    assert!(writer.is_set() && reader.is_set());
    assert_eq!(into.pour(&from, 9), Ok(Some(3)));
    assert_eq!(into.pour(&from, 9), Ok(None));
    into.lock().writers = false;
    assert_eq!(into.pour(&from, 9), Ok(Some(0)));
}
