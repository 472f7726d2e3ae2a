//! Other people's programs, which start slirp4netns, pasta or passt, and get Pagewire by these names. Each test
//! runs a scenario of `scripts/callers/compare`, first with the original: what the original can, ours can.
//! Needs root, and the programs. `make test-callers` runs all scenarios.

use std::os::unix::fs::symlink;
use std::process::Command;

use pagewire_testkit::{Need, can};

use crate::lab::{PAGEWIRE, text};

const COMPARE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/callers/compare");

/// Fails where a check passes with the original and does not with ours.
#[track_caller]
fn compare(scenario: &str, programs: &[&str]) {
    let mut needs = vec![Need::Tap];
    let always = ["python3", "ip", "ping", "setpriv", "newuidmap", "iperf3"];
    needs.extend(always.iter().chain(programs).map(|program| Need::Program(program)));
    if !can(&needs) {
        return;
    }
    let names = tempfile::tempdir().expect("a directory");
    for name in ["slirp4netns", "pasta", "passt", "pesto"] {
        symlink(PAGEWIRE, names.path().join(name)).expect("a link");
    }
    // Its children are in namespaces that end with it.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", COMPARE, "--brief", "--only", scenario]);
    let done = command.arg(names.path()).output().expect("python3");
    let said = format!("{}{}", text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "ours is worse than the original:\n{said}");
}

macro_rules! same_as_the_original {
    ($($name:ident: $scenario:literal, $programs:expr;)+) => {
        $(
            #[test]
            fn $name() {
                compare($scenario, &$programs);
            }
        )+
    };
}

same_as_the_original! {
    rootlesskit_has_its_network_and_its_ports_by_slirp4netns:
        "rootlesskit-slirp4netns", ["rootlesskit", "slirp4netns"];
    rootlesskit_has_ipv6_and_the_ports_of_the_api_by_slirp4netns:
        "rootlesskit-slirp4netns-ipv6", ["rootlesskit", "slirp4netns"];
    podman_has_its_network_and_its_ports_by_slirp4netns:
        "podman-slirp4netns", ["podman", "runc", "busybox", "slirp4netns"];
    podman_has_its_options_of_slirp4netns:
        "podman-slirp4netns-ports", ["podman", "runc", "busybox", "slirp4netns"];
    a_sandbox_of_bubblewrap_has_a_network_by_slirp4netns:
        "bubblewrap-slirp4netns", ["bwrap", "slirp4netns"];
    a_sandbox_of_bubblewrap_with_its_own_dev_has_a_network_by_slirp4netns:
        "bubblewrap-dev-slirp4netns", ["bwrap", "slirp4netns"];
    a_sandbox_of_bubblewrap_has_a_network_by_pasta:
        "bubblewrap-pasta", ["bwrap", "pasta"];
    slirp4netns_gives_the_same_network: "slirp4netns", ["slirp4netns"];
    slirp4netns_closes_what_its_options_close: "slirp4netns-closed", ["slirp4netns"];
    slirp4netns_of_root_closes_itself_in: "slirp4netns-root", ["slirp4netns"];
    slirp4netns_has_a_dhcp_server: "slirp4netns-dhcp", ["slirp4netns", "busybox"];
    slirp4netns_takes_requests_for_ports: "slirp4netns-api", ["slirp4netns"];
    slirp4netns_begins_and_ends_as_callers_expect: "contract-slirp4netns", ["slirp4netns"];
    pasta_runs_a_command_in_a_copy_of_the_hosts_network: "pasta-command", ["pasta"];
    pasta_leads_from_loopback_to_loopback: "pasta-outbound-loopback", ["pasta"];
    pasta_comes_to_a_namespace: "pasta-attached", ["pasta"];
    pasta_has_a_dhcp_server: "pasta-dhcp", ["pasta", "busybox"];
    pasta_begins_and_ends_as_callers_expect: "contract-pasta", ["pasta"];
    passt_begins_and_ends_as_callers_expect: "contract-passt", ["passt"];
}
