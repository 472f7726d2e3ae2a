//! [`GuestFirewall`]: the gateway of this process as its control socket shows and changes it.

use std::os::fd::BorrowedFd;
use std::sync::Weak;

use pagewire_control::Firewall;
use pagewire_control::protocol::{Change, Flow, Refusal, Refusals, Rule, Rules};
use pagewire_gateway::netns;
use pagewire_gateway::{Direction, FlowState, Publish, PublishError};

use super::{Served, publish_reason};
use crate::args::guest::{denial, denial_word};

/// The guest of a gateway, for as long as it is served.
pub(super) struct GuestFirewall(pub(super) Weak<Served>);

impl Firewall for GuestFirewall {
    fn may_change(&self, client: BorrowedFd<'_>) -> bool {
        netns::is_ours(client)
    }

    fn rules(&self) -> Rules {
        let Some(served) = self.0.upgrade() else { return Rules::default() };
        let rules = served.guest().rules();
        let denials = rules.prohibitions().map(|(rule, answer)| Rule {
            effect: "deny".to_owned(),
            rule: rule.to_string(),
            answer: Some(denial_word(answer).to_owned()),
        });
        let permissions = rules.permissions().map(|rule| Rule {
            effect: "allow".to_owned(),
            rule: rule.to_string(),
            answer: None,
        });
        Rules {
            rules: denials.chain(permissions).collect(),
            restricted: rules.is_restricted(),
            clients_restricted: rules.are_clients_restricted(),
        }
    }

    fn flows(&self) -> Vec<Flow> {
        let flows = self.0.upgrade().map(|served| served.guest().flows());
        flows.unwrap_or_default().into_iter().map(shown).collect()
    }

    fn refusals(&self) -> Refusals {
        let Some(served) = self.0.upgrade() else { return Refusals::default() };
        let denied = served.guest().denied();
        let refusal = |refusal: &pagewire_gateway::Refusal| Refusal {
            what: refusal.what.clone(),
            times: refusal.times,
            permission: refusal.permission.as_ref().map(ToString::to_string),
        };
        Refusals {
            names: denied.names as u64,
            addresses: denied.addresses as u64,
            most: denied.most.iter().map(refusal).collect(),
        }
    }

    fn change(&self, change: &Change) -> Result<String, String> {
        let served = self.0.upgrade().ok_or("the guest has ended")?;
        match change {
            Change::Allow { rule } => {
                let rule = rule.parse::<pagewire_gateway::Rule>().map_err(|e| e.to_string())?;
                let before = served.guest().rules();
                let ended = served.change_rules(|rules| rules.allow(rule))?;
                let after = served.guest().rules();
                let first = match () {
                    () if after.is_restricted() && !before.is_restricted() => {
                        ": from now on nothing else is"
                    }
                    () if after.are_clients_restricted() && !before.are_clients_restricted() => {
                        ": from now on no other client is"
                    }
                    () => "",
                };
                Ok(format!("permitted{first}{}", ended_text(ended)))
            }
            Change::Deny { rule } => {
                let (rule, answer) = denial(rule)?;
                let ended = served.change_rules(|rules| rules.deny_with(rule, answer))?;
                Ok(format!("forbidden{}", ended_text(ended)))
            }
            Change::Remove { rule } => {
                let rule = rule.parse::<pagewire_gateway::Rule>().map_err(|e| e.to_string())?;
                let rules = served.guest().rules();
                let mut all = rules.permissions().chain(rules.prohibitions().map(|(rule, _)| rule));
                if !all.any(|other| *other == rule) {
                    return Err(format!("there is no rule {rule}"));
                }
                let ended = served.change_rules(|rules| rules.without(&rule))?;
                Ok(format!("taken back{}", ended_text(ended)))
            }
            Change::Publish { port } => {
                let what: Publish = port.parse().map_err(|e: PublishError| e.to_string())?;
                let at =
                    served.guest().publish(&what).map_err(|error| publish_later_reason(&error))?;
                let at: Vec<String> = at.iter().map(ToString::to_string).collect();
                Ok(format!(
                    "published {}",
                    if at.is_empty() { what.to_string() } else { at.join(", ") }
                ))
            }
            Change::Unpublish { port } => {
                let what: Publish = port.parse().map_err(|e: PublishError| e.to_string())?;
                match served.guest().unpublish(&what) {
                    true => Ok(format!("closed {what}")),
                    false => Err(format!("{what} is not published")),
                }
            }
            Change::Kill { flow } => match served.guest().kill(*flow) {
                true => Ok(format!("ended flow {flow}")),
                false => Err(format!("there is no flow {flow}")),
            },
            Change::Reload => {
                served.reload().map(|ended| format!("read again{}", ended_text(ended)))
            }
            _ => Err("this version does not know the change".to_owned()),
        }
    }
}

/// Why a port cannot be published now, and what to do about it.
fn publish_later_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "the sandbox opens no ports: start the command with --control PATH, take a port from 1024 on".to_owned()
        }
        _ => publish_reason(error),
    }
}

fn ended_text(ended: usize) -> String {
    match ended {
        0 => String::new(),
        1 => "; 1 flow was ended".to_owned(),
        n => format!("; {n} flows were ended"),
    }
}

fn shown(state: FlowState) -> Flow {
    let FlowState { flow, ask, shown, peer, bytes_out, bytes_in, age, open, .. } = state;
    let direction = match ask.direction {
        Direction::Out => "out",
        Direction::In => "in",
    };
    Flow {
        flow,
        guest: ask.guest.number(),
        protocol: ask.protocol.to_string(),
        direction: direction.to_owned(),
        from: ask.from,
        to: ask.to,
        peer,
        names: ask.names.iter().map(ToString::to_string).collect(),
        shown_by: shown.as_ref().map(|shown| shown.by.name().to_owned()),
        shown: shown.and_then(|shown| shown.name).map(|name| name.to_string()),
        bytes_out,
        bytes_in,
        age_ms: age.as_millis() as u64,
        open,
    }
}
