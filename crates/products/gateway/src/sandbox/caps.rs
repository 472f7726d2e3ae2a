//! Gives up capabilities, core dumps, and being traced.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use super::SandboxPlan;

/// No file gets this process's memory, and no process of its user may trace it.
pub(super) fn no_core_dumps() -> Option<String> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let done = setrlimit(Resource::Core, none)
        .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable));
    done.err().map(|e| format!("core dumps: {e}"))
}

/// Programs with the set-user-id bit get no capability from this process.
pub(super) fn limit_other_programs() {
    // Needs a capability itself; without it there are none to be had by other programs either,
    // because of `no_new_privs`.
    for set in CapabilitySet::all().iter() {
        if capability_is_in_bounding_set(set).unwrap_or(false) {
            let _ = remove_capability_from_bounding_set(set);
        }
    }
    let _ = clear_ambient_capability_set();
}

/// Drops all capabilities but that to bind ports below 1024, as far as it is there.
pub(super) fn keep_only_ports() -> Result<(), String> {
    limit_other_programs();
    let ports = |sets: CapabilitySets| {
        let kept = sets.permitted & CapabilitySet::NET_BIND_SERVICE;
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
        set_no_new_privs(true).and_then(|()| set_capabilities(None, sets))
    };
    let done = capabilities(None).and_then(ports);
    no_core_dumps().map_or(Ok(()), Err)?;
    done.map_err(|e| format!("capabilities: {e}"))
}

/// Drops the capabilities of this thread. One that was root until now keeps those that it needs: to signal what
/// it has started (system calls allow signals to its own child and to itself only), and to open ports below 1024
/// later.
pub(super) fn drop_all(plan: &SandboxPlan, left_root: bool) -> Option<String> {
    let mut needed = CapabilitySet::empty();
    needed.set(CapabilitySet::KILL, plan.child);
    needed.set(CapabilitySet::NET_BIND_SERVICE, plan.listens && plan.low_ports);
    let kept = match capabilities(None) {
        Ok(sets) if left_root => sets.permitted & needed,
        _ => CapabilitySet::empty(),
    };
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    let done = set_no_new_privs(true).and_then(|()| set_capabilities(None, sets));
    done.err().map(|e| format!("capabilities: {e}"))
}
