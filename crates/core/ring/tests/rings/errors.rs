//! Each error of a registration: typed, with its errno, and nothing is half registered.

use std::ptr::NonNull;

use crate::support::*;

fn engine() -> Engine {
    Engine::new(EngineConfig::new(config(1))).unwrap().0
}

fn refused(engine: &mut Engine, config: QueueConfig) -> RegisterError {
    let error = engine.register_queue(1, config).unwrap_err();
    // A valid registration still succeeds afterwards.
    let group = engine.register_queue(1, crate::support::config(1)).unwrap().0.group;
    engine.unregister(group).unwrap();
    error
}

#[test]
fn a_ring_has_a_power_of_two_of_entries_within_the_limit() {
    let with = |fill_entries| QueueConfig { fill_entries, ..config(1) };
    for (entries, name) in [(0, "Entries"), (3, "NotPowerOfTwo"), (65_536, "Entries")] {
        let error = refused(&mut engine(), with(entries));
        assert!(format!("{error:?}").starts_with(name), "{error:?}");
        assert_eq!(error.errno(), 22, "EINVAL");
    }
    let config = EngineConfig { submissions: 100, ..EngineConfig::new(config(1)) };
    assert!(matches!(Engine::new(config), Err(RegisterError::NotPowerOfTwo(100))));
}

#[test]
fn a_region_is_aligned_and_of_whole_groups_of_pages() {
    let odd = Region::memfd_shared("odd", PAGE_SIZE).unwrap();
    let error = refused(&mut engine(), QueueConfig { fill_entries: 64, ..QueueConfig::new(odd) });
    assert!(matches!(error, RegisterError::Length(PAGE_SIZE)));

    let memory = Box::leak(vec![0u8; 2 * GROUP].into_boxed_slice());
    let base = NonNull::from(&mut memory[0]);
    let skew = base.as_ptr().align_offset(PAGE_SIZE) + 8;
    let base = NonNull::from(&mut memory[skew]);
    // SAFETY: leaked memory of twice that length, which nobody else uses.
    let region = unsafe { Region::adopt(base, GROUP, Access::Shared, true, Box::new(())) };
    let error = refused(&mut engine(), QueueConfig::new(region));
    assert!(matches!(error, RegisterError::Unaligned(_)) && error.errno() == 22);
}

#[test]
fn regions_may_not_overlap() {
    let memory = Box::leak(vec![0u8; 4 * GROUP].into_boxed_slice());
    let skew = memory.as_ptr().align_offset(PAGE_SIZE);
    let mut part = |at: usize, len: usize| {
        let base = NonNull::from(&mut memory[skew + at]);
        // SAFETY: leaked memory that is only used through these regions, which are shared.
        unsafe { Region::adopt(base, len, Access::Shared, true, Box::new(())) }
    };
    let (first, inside, beside) = (part(0, 2 * GROUP), part(GROUP, GROUP), part(2 * GROUP, GROUP));
    let mut engine = engine();
    let group = engine.register_queue(0, QueueConfig::new(first)).unwrap().0.group;
    let error = engine.register_queue(1, QueueConfig::new(inside.clone())).unwrap_err();
    assert!(matches!(error, RegisterError::Overlap(other) if other == group));
    assert_eq!(error.errno(), 17, "EEXIST");
    assert!(matches!(engine.register_send(inside), Err(RegisterError::Overlap(_))));
    engine.register_queue(1, QueueConfig::new(beside)).unwrap();
}

#[test]
fn a_region_serves_one_use_only() {
    let region = Region::memfd_shared("pool", GROUP).unwrap();
    let _pool = PagePool::over(region.clone()).unwrap();
    assert!(matches!(refused(&mut engine(), QueueConfig::new(region)), RegisterError::InUse(_)));
}

#[test]
fn memory_that_the_stack_may_not_write_is_refused() {
    let file = tempfile();
    let region = Region::file(&file, 0, GROUP).unwrap();
    let error = refused(&mut engine(), QueueConfig::new(region));
    assert!(matches!(error, RegisterError::ReadOnly) && error.errno() == 14);
    let private = Region::memfd("private", GROUP).unwrap();
    assert!(matches!(engine().register_send(private), Err(RegisterError::ReadOnly)));
}

fn tempfile() -> std::fs::File {
    use std::os::fd::AsFd;
    let region = Region::memfd_shared("file", GROUP).unwrap();
    region.fd().unwrap().as_fd().try_clone_to_owned().unwrap().into()
}

given! {
    let mut engine = engine();

    a_queue_has_one_owner {
        engine.register_queue(1, config(1)).unwrap();
        let error = engine.register_queue(1, config(1)).unwrap_err();
        assert!(matches!(error, RegisterError::QueueTaken(1)) && error.errno() == 17);
        let memory = || QueueMemory::new(PagePool::over(config(1).region).unwrap());
        let mut steering = Steering::new(2);
        steering.bind(1, memory()).unwrap();
        assert_eq!(steering.bind(1, memory()), Err(BindError::Taken(1)));
        assert_eq!(steering.bind(2, memory()), Err(BindError::NoQueue(2)));
        assert_eq!(steering.steer(Rule::tcp_port(1), 2), Err(BindError::NoQueue(2)));
    }
    limits_on_groups_and_memory_are_kept {
        for queue in 1..16 {
            engine.register_queue(queue, config(1)).unwrap();
        }
        let error = engine.register_queue(16, config(1)).unwrap_err();
        assert!(matches!(error, RegisterError::TooManyGroups));

        let config_of = EngineConfig { region_bytes: 3 * GROUP, ..EngineConfig::new(config(1)) };
        let mut engine = Engine::new(config_of).unwrap().0;
        engine.register_queue(1, config(1)).unwrap();
        let error = engine.register_queue(2, config(2)).unwrap_err();
        assert!(matches!(error, RegisterError::Memory { wanted: GROUP, .. }) && error.errno() == 12);
        engine.register_queue(2, config(1)).unwrap();
    }
    memory_to_send_from_can_be_exchanged_and_counts {
        let memory = |bytes| Region::memfd_shared("send", bytes).unwrap();
        for n in 0..16 {
            assert_eq!(engine.register_send(memory(PAGE_SIZE)).unwrap(), n);
        }
        let error = engine.register_send(memory(PAGE_SIZE)).unwrap_err();
        assert!(matches!(error, RegisterError::TooManyGroups) && error.errno() == 22);
        engine.unregister_send(5).unwrap();
        assert!(matches!(engine.unregister_send(5), Err(RegisterError::NoGroup(5))));
        assert!(matches!(engine.unregister_send(16), Err(RegisterError::NoGroup(16))));
        assert_eq!(engine.register_send(memory(PAGE_SIZE)).unwrap(), 5);

        let config_of = EngineConfig { region_bytes: 2 * GROUP, ..EngineConfig::new(config(1)) };
        let mut engine = Engine::new(config_of).unwrap().0;
        let error = engine.register_send(memory(2 * GROUP)).unwrap_err();
        assert!(matches!(error, RegisterError::Memory { wanted: GROUP, limit } if limit == 2 * GROUP));
        engine.register_send(memory(GROUP)).unwrap();
    }
    only_what_is_registered_can_be_unregistered_and_never_the_copy_group {
        assert!(matches!(engine.unregister(0), Err(RegisterError::NoGroup(0))));
        assert!(matches!(engine.unregister(1), Err(RegisterError::NoGroup(1))));
        let group = engine.register_queue(1, crate::support::config(1)).unwrap().0.group;
        engine.unregister(group).unwrap();
        assert!(matches!(engine.unregister(group), Err(RegisterError::NoGroup(_))));
        let nothing = engine.register_lent(Frag::empty(), 64).unwrap_err();
        assert!(matches!(nothing, RegisterError::Length(0)));
    }
}

#[test]
fn a_ring_of_completions_has_room_for_a_close() {
    let config = EngineConfig { completions: 2, ..EngineConfig::new(config(1)) };
    assert!(matches!(Engine::new(config), Err(RegisterError::Entries(2))));
}

#[test]
fn what_a_device_can_refuse_has_an_error_of_its_own() {
    let mut steering = Steering::new(2);
    for port in 0..=256 {
        let steered = steering.steer(Rule::tcp_port(port), 1);
        assert_eq!(steered.is_err(), port == 256, "{port}");
    }
    // A rule that is there already is no further one, and stays where it leads.
    steering.steer(Rule::tcp_port(7), 1).unwrap();
    assert_eq!(steering.steer(Rule::tcp_port(7), 0), Err(BindError::Steered(1)));
    drop(steering.unbind(1));
    steering.steer(Rule::tcp_port(7), 0).unwrap();
    let of = |why: BindError| RegisterError::from(why).errno();
    assert_eq!(of(BindError::TooManyRules), 28, "ENOSPC");
    assert_eq!(of(BindError::Shared), 14, "EFAULT");
    assert_eq!(of(BindError::Taken(1)), 17, "EEXIST");
    assert_eq!(of(BindError::Steered(1)), 17, "EEXIST");
    assert_eq!(of(BindError::NoQueue(1)), 19, "ENODEV");
    assert_eq!(of(BindError::Unsupported), 95, "EOPNOTSUPP");
}
