//! The instances of epoll that an event of a file reaches.

use super::*;

/// An instance in which `waiters` threads wait, and that watches `watch`.
fn instance(watch: &Watch, events: Events, waiters: usize) -> Arc<Core> {
    let core = Core::new(Arc::default());
    core.waiters.store(waiters, Ordering::Release);
    let exclusive = events.contains(Events::EXCLUSIVE);
    let link = Arc::new(Ready { core: Arc::downgrade(&core), key: (1, 1), exclusive });
    let entry = Entry {
        file: Weak::new(),
        wanted: events,
        data: 0,
        queued: false,
        link: Arc::clone(&link),
    };
    core.lock().entries.insert((1, 1), entry);
    let weak = Arc::downgrade(&link);
    watch.add_epoll(weak);
    core
}

fn is_queued(core: &Core) -> bool {
    !core.lock().ready.is_empty()
}

#[test]
fn of_exclusive_instances_the_first_with_somebody_waiting_is_told() {
    let watch = Watch::default();
    let exclusive = Events::IN | Events::EXCLUSIVE;
    let idle = instance(&watch, exclusive, 0);
    let first = instance(&watch, exclusive, 1);
    let second = instance(&watch, exclusive, 1);
    let shared = instance(&watch, Events::IN, 1);
    watch.wake(Events::READ);
    // A thread that waits at the idle one later finds it; none was woken there.
    let queued = [&idle, &first, &second, &shared].map(|core| is_queued(core));
    assert_eq!(queued, [true, true, false, true]);
}

#[test]
fn a_wake_up_for_something_else_leaves_an_instance_alone() {
    let watch = Watch::default();
    let reads = instance(&watch, Events::IN, 1);
    let silent = instance(&watch, Events::ONESHOT, 1);
    watch.wake(Events::WRITE);
    assert!(!is_queued(&reads));
    // A change of state is for all, except those that reported once.
    watch.wake(Events::empty());
    assert!(is_queued(&reads));
    assert!(!is_queued(&silent));
}
