//! The file system, abstract sockets and signals, by Landlock.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};

use super::SandboxPlan;

/// What this code knows of: Linux 6.12.
const KNOWN: ABI = ABI::V6;

/// Gives up what Landlock can take. What an older kernel cannot do is left out, and said.
pub(super) fn restrict(plan: &SandboxPlan) -> Option<String> {
    match try_restrict(plan) {
        Ok(RestrictionStatus { ruleset: RulesetStatus::FullyEnforced, .. }) => None,
        Ok(RestrictionStatus { ruleset: RulesetStatus::PartiallyEnforced, .. }) => Some(
            "files: this kernel's Landlock is older than 6.12: abstract Unix sockets, signals or \
             TCP ports are not restricted"
                .into(),
        ),
        Ok(RestrictionStatus { landlock: LandlockStatus::NotEnabled, .. }) => {
            Some("files: Landlock is not enabled in this kernel (boot with lsm=landlock,…)".into())
        }
        Ok(_) => Some("files: this kernel has no Landlock (Linux 5.13 and later)".into()),
        Err(e) => Some(format!("files: {e}")),
    }
}

fn try_restrict(plan: &SandboxPlan) -> Result<RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?;
    if !plan.listens {
        rules = rules.handle_access(AccessNet::BindTcp)?;
    }
    rules = rules.scope(Scope::AbstractUnixSocket)?;
    if !plan.child {
        rules = rules.scope(Scope::Signal)?;
    }
    rules
        .create()?
        .add_rules(path_beneath_rules(&plan.read, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&plan.sockets, AccessFs::MakeSock | AccessFs::RemoveFile))?
        .add_rules(path_beneath_rules(&plan.remove, AccessFs::RemoveFile))?
        .restrict_self()
}
