use super::*;
use crate::notice::Signal;

#[test]
fn who_found_the_pipe_empty_is_told_when_a_splice_puts_back_what_it_could_not_send() {
    let queue = Queue { pieces: VecDeque::new(), bytes: 0, readers: true, writers: true };
    let (read_watch, write_watch) = (Arc::<Watch>::default(), Arc::<Watch>::default());
    let pipe = Pipe { queue: Mutex::new(queue), read_watch, write_watch };
    put(&pipe, vec![Frag::from_static(b"data")]).unwrap();
    let taken: FragVec = take(&pipe, 4).unwrap().into_iter().collect();
    assert_eq!(take(&pipe, 4).unwrap_err(), Errno::AGAIN);
    let signal = Signal::new();
    let _watching = pipe.read_watch.watch(Events::IN, &signal);
    signal.clear();
    put_back(&pipe, taken);
    assert!(signal.is_set());
    assert_eq!(take(&pipe, 9).unwrap().len(), 1);
}
