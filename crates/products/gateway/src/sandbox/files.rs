//! Restricts the file system, abstract sockets and signals, by Landlock.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, NetPort,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, path_beneath_rules,
};

use super::SandboxPlan;

/// The newest ABI that this code handles: Linux 7.1, in which Unix sockets with a path are files like others.
const KNOWN: ABI = ABI::V9;

/// The least ABI without a warning: with it came the restrictions of Linux 6.12.
const COMPLETE: ABI = ABI::V6;

/// Gives up what Landlock can take. `Ok`: files are out of reach; what else an older kernel cannot
/// do is left out, and reported. `Err`: why files are not.
pub(super) fn restrict(plan: &SandboxPlan) -> Result<Option<String>, String> {
    let status = try_restrict(plan).map_err(|e| format!("Landlock: {e}"))?;
    match (status.ruleset, status.landlock) {
        (
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced,
            LandlockStatus::Available { effective_abi, .. },
        ) => Ok((effective_abi < COMPLETE).then(|| {
            "this kernel's Landlock is older than 6.12: abstract Unix sockets, signals or TCP ports \
             are not restricted"
                .into()
        })),
        (_, LandlockStatus::NotEnabled) => {
            Err("Landlock is not enabled in this kernel (boot with lsm=landlock,…)".into())
        }
        _ => Err("this kernel has no Landlock (Linux 5.13 and later)".into()),
    }
}

fn try_restrict(plan: &SandboxPlan) -> Result<RestrictionStatus, RulesetError> {
    let mut files = AccessFs::from_all(KNOWN);
    if plan.unix_peers {
        files.remove(AccessFs::ResolveUnix);
    }
    let mut rules =
        Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(files)?;
    if !plan.listens {
        rules = rules.handle_access(AccessNet::BindTcp)?;
    }
    rules = rules.scope(Scope::AbstractUnixSocket)?;
    if !plan.child {
        rules = rules.scope(Scope::Signal)?;
    }
    // Root would read what else is in there: its secrets.
    let is_root = rustix::process::geteuid().is_root();
    let read = plan.read.iter().filter(|path| !is_root || path.is_file());
    let mut rules = rules.create()?;
    if plan.source && !plan.listens {
        rules = rules.add_rule(NetPort::new(0, AccessNet::BindTcp))?;
    }
    rules
        .add_rules(path_beneath_rules(read, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&plan.sockets, AccessFs::MakeSock | AccessFs::RemoveFile))?
        .restrict_self()
}
