//! Capabilities, core dumps, tracing.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// No file gets this process's memory, and no process of its user may trace it.
pub(super) fn no_core_dumps() -> Option<String> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let done = setrlimit(Resource::Core, none)
        .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable));
    done.err().map(|e| format!("core dumps: {e}"))
}

/// Drops all capabilities of this thread, and the ways to get others.
pub(super) fn drop_all() -> Option<String> {
    // Needs a capability itself; without it there are none to be had by other programs either,
    // because of `no_new_privs`.
    for set in CapabilitySet::all().iter() {
        if capability_is_in_bounding_set(set).unwrap_or(false) {
            let _ = remove_capability_from_bounding_set(set);
        }
    }
    let _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let done = set_no_new_privs(true).and_then(|()| set_capabilities(None, none));
    done.err().map(|e| format!("capabilities: {e}"))
}
