//! Command lines of the programs that call these names, and the words that come of them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use clap::Parser;
use pagewire_testkit::{Need, can};

use super::{Answer, Machine, Program, answer, by_name, commands, find, is_free, search_of};
use crate::args::Cli;
use crate::commands::api::tests::fixture;
use crate::commands::api::{HostPort, Ports};

const MACHINE: Machine = Machine {
    search: || vec!["example.org".into()],
    shell: || "/bin/zsh".into(),
    socket: || Some(PathBuf::from("/tmp/passt_1.socket")),
};

/// The answer to a line, whose words have spaces between them; `+` stands for a space in a word.
fn answered(line: &str) -> Answer {
    let mut words = line.split(' ').map(|word| OsString::from(word.replace('+', " ")));
    let program = words.next().expect("a program");
    let program = Program::of_word(&program).expect("one of the names");
    answer(program, &words.collect::<Vec<_>>(), &MACHINE)
}

/// The words of pagewire, in the same form.
fn words(line: &str) -> Result<String, String> {
    match answered(line) {
        Answer::Words(words, _) => {
            let texts = words.iter().map(|word| word.to_str().expect("UTF-8").replace(' ', "+"));
            Ok(texts.collect::<Vec<_>>().join(" "))
        }
        Answer::Text(text) => Err(text),
        Answer::Refusal(why) => Err(why),
        Answer::Client(request) => Err(format!("{request:?}")),
    }
}

fn refusal(line: &str) -> String {
    match answered(line) {
        Answer::Refusal(why) => why,
        _ => panic!("{line}: not refused"),
    }
}

fn text(line: &str) -> String {
    match answered(line) {
        Answer::Text(text) => text,
        _ => panic!("{line}: no text"),
    }
}

/// Each line of a caller, and the words behind `pagewire`.
fn check(table: &[(&str, &str)]) {
    for (line, expected) in table {
        // The lines of this file are broken for people.
        let one = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = words(&one(line));
        assert_eq!(words, Ok(format!("pagewire {}", one(expected))), "{line}");
    }
}

const SLIRP4NETNS: &[(&str, &str)] = &[
    // RootlessKit 1.1 and 3.3, whose child configures the tap that it has made.
    (
        "slirp4netns --mtu 65520 -r 3 --disable-host-loopback --cidr 10.9.8.0/24
             --api-socket /run/s.sock --enable-sandbox --enable-seccomp --enable-ipv6 4711 tap0",
        "gateway --link=tap --netns=4711 --tap=tap0 --no-configure
             --addr=10.9.8.2/24 --guest=10.9.8.100 --dhcp-range=10.9.8.15-10.9.8.30
             --addr=fd00::2/64 --addr=fe80::2/64 --guest=fd00::100 --mtu=65520
             --deny=10.9.8.2:1-65535=unreachable --deny=[fd00::2]:1-65535=unreachable
             --dns-addr=10.9.8.3 --dns-addr=fd00::3 --ready-fd=3 --api-socket=/run/s.sock",
    ),
    (
        "slirp4netns --mtu 65520 -r 3 4711 tap0",
        "gateway --link=tap --netns=4711 --tap=tap0 --no-configure
             --addr=10.0.2.2/24 --guest=10.0.2.100 --dhcp-range=10.0.2.15-10.0.2.30 --mtu=65520
             --host=10.0.2.2 --dns-addr=10.0.2.3 --ready-fd=3",
    ),
    // RootlessKit 3.3 with --detach-netns.
    (
        "slirp4netns --mtu 1500 -r 3 --userns-path=/proc/4711/ns/user --netns-type=path
             /proc/4711/root/run/netns tap0",
        "gateway --link=tap --netns=/proc/4711/root/run/netns --userns=/proc/4711/ns/user
             --tap=tap0 --no-configure
             --addr=10.0.2.2/24 --guest=10.0.2.100 --dhcp-range=10.0.2.15-10.0.2.30 --mtu=1500
             --host=10.0.2.2 --dns-addr=10.0.2.3 --ready-fd=3",
    ),
    // Podman 4.3 and 5.
    (
        "slirp4netns --disable-host-loopback --mtu=65520 --enable-sandbox --enable-seccomp
             --enable-ipv6 -c -e 3 -r 4 --api-socket /run/p.sock --netns-type=path
             /run/user/1000/netns/netns-1 tap0",
        "gateway --link=tap --netns=/run/user/1000/netns/netns-1 --tap=tap0
             --addr=10.0.2.2/24 --guest=10.0.2.100 --dhcp-range=10.0.2.15-10.0.2.30
             --addr=fd00::2/64 --addr=fe80::2/64 --guest=fd00::100 --mtu=65520
             --deny=10.0.2.2:1-65535=unreachable --deny=[fd00::2]:1-65535=unreachable
             --dns-addr=10.0.2.3 --dns-addr=fd00::3 --ready-fd=4 --exit-fd=3
             --api-socket=/run/p.sock",
    ),
    (
        "slirp4netns --mtu=1500 -c -r 3 -e 4 --cidr=10.7.7.0/24 --outbound-addr=198.51.100.77
             --outbound-addr6=eth0 --netns-type=path /run/netns/1 tap0",
        "gateway --link=tap --netns=/run/netns/1 --tap=tap0
             --addr=10.7.7.2/24 --guest=10.7.7.100 --dhcp-range=10.7.7.15-10.7.7.30 --mtu=1500
             --host=10.7.7.2 --dns-addr=10.7.7.3 --source=198.51.100.77 --source=eth0/6
             --ready-fd=3 --exit-fd=4",
    ),
    // MXC.
    (
        "slirp4netns --configure --mtu=65520 --ready-fd 9 --exit-fd 4 4711 tap0",
        "gateway --link=tap --netns=4711 --tap=tap0
             --addr=10.0.2.2/24 --guest=10.0.2.100 --dhcp-range=10.0.2.15-10.0.2.30 --mtu=65520
             --host=10.0.2.2 --dns-addr=10.0.2.3 --ready-fd=9 --exit-fd=4",
    ),
    // Its own tests: options behind operands, and values in the same word.
    (
        "slirp4netns -c 4711 tap11 --disable-dns -m1500 -6",
        "gateway --link=tap --netns=4711 --tap=tap11
             --addr=10.0.2.2/24 --guest=10.0.2.100 --dhcp-range=10.0.2.15-10.0.2.30
             --addr=fd00::2/64 --addr=fe80::2/64 --guest=fd00::100 --mtu=1500 --host=10.0.2.2 --host=fd00::2
             --dns=none --addr=10.0.2.3/24 --deny=10.0.2.3:53=drop
             --addr=fd00::3/64 --deny=[fd00::3]:53=drop",
    ),
    (
        "slirp4netns -c --macaddress 0e:d4:18:d9:38:fb 4711 --cidr 10.0.135.128/25 tap11",
        "gateway --link=tap --netns=4711 --tap=tap11 --tap-mac=0e:d4:18:d9:38:fb
             --addr=10.0.135.130/25 --guest=10.0.135.228 --dhcp-range=10.0.135.143-10.0.135.158
             --mtu=1500 --host=10.0.135.130 --dns-addr=10.0.135.131",
    ),
    (
        "slirp4netns -ce10 --netns-type path 12 tap11",
        "gateway --link=tap --netns=./12 --tap=tap11
             --addr=10.0.2.2/24 --guest=10.0.2.100 --dhcp-range=10.0.2.15-10.0.2.30 --mtu=1500
             --host=10.0.2.2 --dns-addr=10.0.2.3 --exit-fd=10",
    ),
];

const PASTA: &[(&str, &str)] = &[
    // RootlessKit 3.3: implicit ports without the host's loopback, then pesto, then 1.1's form.
    (
        "pasta --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100 --netmask=24
             --gateway=10.0.2.2 --dns-forward=10.0.2.3 --no-map-gw --tcp-ns=none --udp-ns=none
             --ipv4-only --tcp-ports=auto --udp-ports=auto --host-lo-to-ns-lo 4711",
        "gateway --link=tap --netns=4711 --tap=tap0 --addr=10.0.2.2/24 --guest=10.0.2.100
             --proxy-arp --mtu=65520 --dns-addr=10.0.2.3 --publish=auto --publish=auto/udp
             --loopback --background",
    ),
    (
        "pasta --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100 --netmask=24
             --gateway=10.0.2.2 --dns-forward=10.0.2.3 --address=fd00::100 --gateway=fd00::2
             --dns-forward=fd00::3 --tcp-ports=none --udp-ports=none
             --conf-path=/run/.pasta.sock --userns=/proc/4711/ns/user --netns=/run/d/netns",
        "gateway --link=tap --netns=/run/d/netns --userns=/proc/4711/ns/user --tap=tap0
             --addr=10.0.2.2/24 --guest=10.0.2.100 --addr=fd00::2/64 --guest=fd00::100
             --proxy-arp --mtu=65520 --host=10.0.2.2 --host=fd00::2
             --dns-addr=10.0.2.3 --dns-addr=fd00::3 --splice --forward=auto --forward=auto/udp
             --background --api-socket=/run/.pasta.sock",
    ),
    (
        "pasta --stderr --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100
             --netmask=24 --gateway=10.0.2.2 --dns-forward=10.0.2.3 --ipv4-only
             --tcp-ports=none --udp-ports=none --host-lo-to-ns-lo 4711",
        "gateway --link=tap --netns=4711 --tap=tap0 --addr=10.0.2.2/24 --guest=10.0.2.100
             --proxy-arp --mtu=65520 --host=10.0.2.2 --dns-addr=10.0.2.3 --loopback
             --forward=auto --forward=auto/udp --background",
    ),
    // Podman 5.4 and 5.8, Buildah: a container, and a bridge with ports.
    (
        "pasta --config-net --dns-forward 169.254.1.1 -t none -u none -T none -U none
             --no-map-gw --quiet --netns /run/user/1000/netns/netns-1
             --map-guest-addr 169.254.1.2",
        "gateway --link=tap --netns=/run/user/1000/netns/netns-1 --copy --mtu=65520
             --map=169.254.1.2=host --dns-addr=169.254.1.1 --background --quiet",
    ),
    (
        "pasta --config-net --pid /run/p.pid -m 1500 -t 18080-18080:80-80
             -u 127.0.0.1/18081-18081:81-81 --dns-forward 169.254.1.1 -T none -U none
             --no-map-gw --quiet --netns /run/user/1000/netns/netns-1
             --map-guest-addr 169.254.1.2",
        "gateway --link=tap --netns=/run/user/1000/netns/netns-1 --copy --mtu=1500
             --map=169.254.1.2=host --dns-addr=169.254.1.1 --publish=18080:80
             --publish=127.0.0.1:18081:81/udp --splice --background --quiet --pid=/run/p.pid",
    ),
    // Nix, with descriptors.
    (
        "pasta --quiet --foreground --config-net --gateway 169.254.1.1 --address 169.254.1.2
             --netmask 16 --dns-forward 169.254.1.1 --gateway fd00:169:254::1
             --address fd00:169:254::2 --dns-forward fd00:169:254::1 --ns-ifname eth0
             --no-netns-quit --netns /proc/self/fd/0 --userns /proc/self/fd/1",
        "gateway --link=tap --netns=/proc/self/fd/0 --userns=/proc/self/fd/1 --keep --tap=eth0
             --addr=169.254.1.1/16 --guest=169.254.1.2 --addr=fd00:169:254::1/64
             --guest=fd00:169:254::2 --proxy-arp --mtu=65520
             --host=169.254.1.1 --host=fd00:169:254::1
             --dns-addr=169.254.1.1 --dns-addr=fd00:169:254::1 --publish=auto --publish=auto/udp
             --splice --forward=auto --forward=auto/udp --quiet",
    ),
    // Without splice, and with datagrams only.
    (
        "pasta -q -t 8080 -u none -T none -U none --no-splice --config-net --netns blue",
        "gateway --link=tap --netns=/run/netns/blue --copy --mtu=65520 --host=router
             --publish=8080 --background --quiet",
    ),
    (
        "pasta -q -t none -u 53 -T none -U none --config-net --netns blue",
        "gateway --link=tap --netns=/run/netns/blue --copy --mtu=65520 --host=router
             --publish=53/udp --background --quiet",
    ),
    // nsjail: with addresses, by DHCP, and without a network.
    (
        "pasta -f -q --no-dhcp --no-dhcpv6 --no-ra --config-net --dns-forward 10.255.255.3
             --no-udp --no-icmp --no-map-gw -a 10.255.255.2 -n 255.255.255.0 -g 10.255.255.1
             -4 -I eth0 -t 8080:80 -u none -T none -U none 4711",
        "gateway --link=tap --netns=4711 --tap=eth0 --addr=10.255.255.1/24
             --guest=10.255.255.2 --proxy-arp --mtu=65520 --dns-addr=10.255.255.3
             --deny=0.0.0.0/0/udp=drop --deny=::/0/udp=drop
             --deny=0.0.0.0/0/icmp=drop --deny=::/0/icmp=drop
             --no-dhcp --no-dhcp6 --no-ra --publish=8080:80 --splice --quiet",
    ),
    (
        "pasta -f -q --no-dhcpv6 --dhcp-dns -4 -t none -u none -T none -U none 4711",
        "gateway --link=tap --netns=4711 --no-configure --copy=/4 --mtu=65520 --host=router/4
             --no-dhcp6 --quiet",
    ),
    (
        "pasta -f -q -T 8080,9000-9001:80-81 -U none --splice-only 4711",
        "gateway --link=tap --netns=4711 --no-configure --tap=tap0
             --addr=169.254.2.2/16 --guest=169.254.2.1 --dns=none
             --deny=0.0.0.0/2 --deny=64.0.0.0/3 --deny=96.0.0.0/4 --deny=112.0.0.0/5
             --deny=120.0.0.0/6 --deny=124.0.0.0/7 --deny=126.0.0.0/8 --deny=128.0.0.0/1
             --publish=auto --publish=auto/udp --loopback
             --forward=8080 --forward=9000-9001:80-81 --quiet",
    ),
    // Commands.
    (
        "pasta --config-net -- curl --version",
        "run --map-root-user --copy --mtu=65520 --host=router --publish=auto
             --publish=auto/udp --splice --forward=auto --forward=auto/udp -- curl --version",
    ),
    (
        "pasta -t none -u none -T none -U none --no-map-gw sh -c id -4",
        "run --map-root-user --copy --mtu=65520 -- sh -c id -4",
    ),
    (
        "pasta -4 -6 -i eth1 -D 2001:db8::53 -D 2001:db8::54 -S a.example+b.example -t none -u none -T 5432 -U none",
        "run --map-root-user --copy=eth1/6 --mtu=65520 --host=router/6
             --dns-addr=2001:db8::53 --dns=2001:db8::53 --dns=2001:db8::54
             --search=a.example --search=b.example --forward=5432 -- /bin/zsh",
    ),
    (
        "pasta -q --splice-only -t none -u none -U none -T 11437 -D none -- 4711 x",
        "run --map-root-user --tap=tap0 --addr=169.254.2.2/16 --guest=169.254.2.1 --dns=none
             --deny=0.0.0.0/2 --deny=64.0.0.0/3 --deny=96.0.0.0/4 --deny=112.0.0.0/5
             --deny=120.0.0.0/6 --deny=124.0.0.0/7 --deny=126.0.0.0/8 --deny=128.0.0.0/1
             --loopback --forward=11437 -- 4711 x",
    ),
    // The rest.
    (
        "pasta -d --runas 0:0 -p /tmp/a.pcap -M 02:00:00:00:00:02 --ns-mac-addr
             02:00:00:00:00:01 -l /tmp/a.log --log-size 131072 -o 192.0.2.7 -o 192.0.2.8
             --outbound-if4 eth0 --outbound-if6 eth1 --dhcp-search -m 0 --netns blue -t none
             -u none -T none -U none",
        "gateway --link=tap --netns=/run/netns/blue --no-configure
             --tap-mac=02:00:00:00:00:01 --copy=eth0/4 --copy=eth1/6 --mtu=1500
             --mac=02:00:00:00:00:02 --host=router --no-dhcp-dns --search=example.org
             --source=192.0.2.8 --source=eth0/4 --source=eth1/6
             -v --user=0 --pcap=/tmp/a.pcap --background --log-file=/tmp/a.log
             --log-file-size=131072",
    ),
    (
        "pasta --trace -f --config-net -a 192.0.2.9/28 --map-host-loopback 192.0.2.3
             --map-guest-addr none --dns-host 192.0.2.53 --outbound-if4 eth0 --outbound-if6 eth0 --no-tcp
             --no-ndp -t 80 -u none -T 1 -U none 1",
        "gateway --link=tap --netns=1 --copy=eth0/6 --addr=192.0.2.1/28 --guest=192.0.2.9
             --mtu=65520 --host=router/6 --host=192.0.2.3 --dns=192.0.2.53
             --deny=0.0.0.0/0/tcp=drop --deny=::/0/tcp=drop --no-ra --source=eth0
             --forward=1 -vv",
    ),
];

const PASST: &[(&str, &str)] = &[
    // QEMU: the least, and nearly all that it can say.
    (
        "passt --quiet --tcp-ports 18080:80 --pid /tmp/p.pid --fd 3",
        "gateway --link=stream --fd=3 --copy --mtu=65520 --host=router --search=example.org
             --publish=18080:80 --background --quiet --pid=/tmp/p.pid",
    ),
    (
        "passt --vhost-user --quiet --mtu 1500 --address 10.0.2.15 --netmask 24
             --mac-addr 52:54:00:12:34:56 --gateway 10.0.2.2 --interface eth0
             --outbound 192.0.2.7 --dns 10.0.2.3 --no-dhcp-dns --no-dhcp-search
             --map-host-loopback none --dns-forward 10.0.2.3 --dns-host 192.0.2.53 --no-tcp
             --ipv4-only --search a.example+b.example --udp-ports 127.0.0.1/53:5353,~60
             --pid /tmp/p.pid --fd 3",
        "gateway --link=vhost-user --fd=3 --addr=10.0.2.2/24 --guest=10.0.2.15 --proxy-arp
             --mtu=1500 --mac=52:54:00:12:34:56 --dns-addr=10.0.2.3 --dns=192.0.2.53
             --no-dhcp-dns --deny=0.0.0.0/0/tcp=drop --deny=::/0/tcp=drop --source=192.0.2.7
             --publish=127.0.0.1:53:5353/udp --background --quiet --pid=/tmp/p.pid",
    ),
    // libvirt.
    (
        "passt --one-off --socket /run/passt/1-net0.socket --mac-addr 52:54:00:12:34:56
             --mtu 1500 --interface eth0 --log-file /var/log/p.log --address 192.168.221.122
             --netmask 24 --address 2001:db8::1 --tcp-ports
             127.0.0.1/2022:22,8080-8090:80-90,~8085 --udp-ports all",
        "gateway --link=stream --socket=/run/passt/1-net0.socket --one-off
             --addr=192.168.221.1/24 --guest=192.168.221.122 --addr=2001:db8::2/64
             --guest=2001:db8::1 --proxy-arp --mtu=1500 --mac=52:54:00:12:34:56
             --host=192.168.221.1 --host=2001:db8::2 --search=example.org
             --publish=127.0.0.1:2022:22 --publish=127.0.0.1:8080-8084:80-84
             --publish=127.0.0.1:8086-8090:86-90 --publish=all/udp --background
             --log-file=/var/log/p.log",
    ),
    // Others.
    (
        "passt -f --fd 9 -a 192.168.124.20 -t6443:192.168.124.20/6443 -S none",
        "gateway --link=stream --fd=9 --copy=/6 --addr=192.168.124.1/24 --guest=192.168.124.20
             --mtu=65520 --host=192.168.124.1 --host=router/6 --publish=6443",
    ),
    (
        "passt --foreground --stderr --fd 3 --conf-path /d/n.sock --address 10.0.2.15
             --address fd00:676f:626c::15 --netmask 255.255.255.0 --gateway 10.0.2.2
             --gateway fe80::1 --dns none --no-dhcp --no-dhcpv6 --no-ra",
        "gateway --link=stream --fd=3 --addr=10.0.2.2/24 --guest=10.0.2.15
             --addr=fd00:676f:626c::1/64 --addr=fe80::1/64 --guest=fd00:676f:626c::15
             --proxy-arp --mtu=65520 --host=10.0.2.2 --host=fe80::1 --no-dhcp-dns
             --search=example.org --no-dhcp --no-dhcp6 --no-ra --api-socket=/d/n.sock",
    ),
    (
        "passt --socket-path /tmp/a --vhost-user -f --repair-path none --chroot-fallback -4 -a 10.1.2.3",
        "gateway --link=vhost-user --socket=/tmp/a --addr=10.0.0.1/8 --guest=10.1.2.3
             --proxy-arp --mtu=65520 --host=10.0.0.1 --search=example.org",
    ),
    (
        "passt",
        "gateway --link=stream --socket=/tmp/passt_1.socket --copy --mtu=65520 --host=router
             --search=example.org --background",
    ),
];

#[test]
fn lines_of_callers_of_slirp4netns_are_translated() {
    check(SLIRP4NETNS);
}

#[test]
fn lines_of_callers_of_pasta_are_translated() {
    check(PASTA);
}

#[test]
fn lines_of_callers_of_passt_are_translated() {
    check(PASST);
}

#[test]
fn a_path_is_free_if_there_is_nothing_or_an_own_socket_that_nobody_listens_at() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("passt_1.socket");
    assert!(is_free(&path));
    let listener = UnixListener::bind(&path).expect("a socket");
    assert!(!is_free(&path), "somebody listens");
    drop(listener);
    assert!(is_free(&path));
    fs::remove_file(&path).expect("a socket");
    fs::write(&path, "").expect("a file");
    assert!(!is_free(&path), "a file of somebody");
}

#[test]
fn all_words_are_understood() {
    for (line, _) in [SLIRP4NETNS, PASTA, PASST].concat() {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let Answer::Words(words, _) = answered(&line) else { panic!("{line}") };
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{line}\n{error}");
        }
    }
}

#[test]
fn names_are_those_of_the_file_or_the_first_word() {
    let found = |words: &[&str]| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        find(&words).map(|(program, rest)| (program, rest.len()))
    };
    assert_eq!(found(&["slirp4netns", "-c"]), Some((Program::Slirp4netns, 1)));
    assert_eq!(found(&["/usr/bin/pasta.avx2"]), Some((Program::Pasta, 0)));
    assert_eq!(found(&["./passt.avx2", "pasta"]), Some((Program::Passt, 1)));
    assert_eq!(found(&["pesto"]), Some((Program::Pesto, 0)));
    assert_eq!(found(&["pagewire", "pasta", "--help"]), Some((Program::Pasta, 1)));
    for others in
        [&["pagewire", "run"][..], &["pagewire"], &[], &["pagewire", "-v", "pasta"], &["pastas"]]
    {
        assert_eq!(found(others), None, "{others:?}");
    }
    assert!(by_name(&["pagewire".into(), "gateway".into()]).is_none());
}

#[test]
fn callers_find_in_the_help_what_they_look_for() {
    let help = text("slirp4netns --help");
    // Podman, Docker, RootlessKit, containerd.
    for option in [
        "--netns-type",
        "--mtu",
        "--cidr",
        "--disable-host-loopback",
        "--api-socket",
        "--enable-sandbox",
        "--enable-seccomp",
        "--enable-ipv6",
        "--outbound-addr",
        "--outbound-addr6",
        "--disable-dns",
        "--macaddress",
        "--target-type",
        "--configure",
        "--ready-fd",
        "--exit-fd",
        "--userns-path",
    ] {
        // As `grep -w` has it.
        let is_word = help.split_whitespace().any(|word| word.trim_end_matches(',') == option);
        assert!(is_word, "{option}\n{help}");
    }
    for option in ["--splice-only", "--map-host-loopback", "--host-lo-to-ns-lo", "--foreground"] {
        assert!(text("pasta -h").contains(option), "{option}");
    }
    assert!(text("passt --quiet --help").contains("Usage: passt [OPTION]..."));
    assert!(text("pesto --help").contains("--tcp-ports"));
}

#[test]
fn callers_read_the_version_that_they_need() {
    // Docker takes the last line with the word, and the line of the commit.
    let lines = text("slirp4netns --version");
    let version = lines.lines().filter_map(|line| line.split("version").nth(1)).next_back();
    assert_eq!(version.map(str::trim), Some("1.3.3"));
    assert!(lines.lines().any(|line| line.starts_with("commit: pagewire")));
    // Tests of slirp4netns skip what is newer than this number.
    assert!(lines.lines().any(|line| line == "SLIRP_CONFIG_VERSION_MAX: 5"));
    for name in ["pasta", "passt", "pesto"] {
        let line = text(&format!("{name} --version"));
        let date = line.strip_prefix(&format!("{name} ")).expect("the name first");
        assert!(date > "2026_05_07.1afd4ed", "{line}");
        assert!(line.contains("\npagewire "), "{line}");
    }
}

#[test]
fn probes_of_callers_succeed_and_fail_as_they_expect() {
    // RootlessKit: each of these says that a feature is there.
    for probe in [
        "pasta --version",
        "pasta --host-lo-to-ns-lo --version",
        "pasta --conf-path=/dev/null --version",
        "pesto --version",
        // Help and version count where they stand.
        "pasta --version --no-such-option",
        "slirp4netns -v --cidr",
        "slirp4netns --help --cidr nonsense",
    ] {
        assert!(!text(probe).is_empty(), "{probe}");
    }
    // Podman goes on without the option if it reads this.
    let said = refusal("pasta --config-net --map-nobody 169.254.1.2");
    assert_eq!(said, "unrecognized option '--map-nobody'; see pasta --help");
    assert!(refusal("pasta --no-such-option --version").starts_with("unrecognized option"));
}

#[test]
fn long_options_may_be_shortened_while_they_are_unambiguous() {
    assert_eq!(words("slirp4netns --conf --mt 1500 4711 t"), words("slirp4netns -c -m1500 4711 t"));
    // A whole name is no beginning of another.
    assert!(words("pasta --netns blue").is_ok());
    assert_eq!(
        refusal("pasta --net blue"),
        "option '--net' is ambiguous; possibilities: '--netmask' '--netns' '--netns-only'; \
         see pasta --help"
    );
    assert!(refusal("slirp4netns --enable-s 4711 t").contains("is ambiguous"));
}

#[test]
fn the_last_of_several_counts() {
    assert_eq!(words("pasta -m 1300 -m 1400 -q -q 1"), words("pasta -q -m 1400 1"));
    assert_eq!(
        words("pasta -a 10.0.0.2/24 -a 10.9.0.2/24 -a fd00::7 1"),
        words("pasta -a 10.9.0.2/24 -a fd00::7 1")
    );
    assert_eq!(
        words("pasta --map-host-loopback 192.0.2.1 --map-host-loopback none 1"),
        words("pasta --no-map-gw 1")
    );
}

#[test]
fn wrong_options_values_and_combinations_are_refused_with_a_reason() {
    for (line, says) in [
        // slirp4netns; its tests look for the first ones.
        ("slirp4netns -c --cidr 24 4711 t", "invalid CIDR: 24"),
        ("slirp4netns -c --cidr foo 4711 t", "invalid CIDR: foo"),
        ("slirp4netns -c --cidr 10.0.2.0 4711 t", "invalid CIDR: 10.0.2.0"),
        ("slirp4netns -c --cidr fd00::/64 4711 t", "invalid CIDR: fd00::/64"),
        (
            "slirp4netns -c --cidr 10.0.2.100/24 4711 t",
            "CIDR needs to be a network address like 10.0.2.0/24, not like 10.0.2.100/24",
        ),
        ("slirp4netns -c --cidr 10.0.2.100/26 4711 t", "prefix length needs to be 1-25"),
        ("slirp4netns -c --cidr 10.0.2.0/0 4711 t", "prefix length needs to be 1-25"),
        ("slirp4netns -m 65522 4711 t", "MTU must be a positive integer (< 65522)"),
        ("slirp4netns -m x 4711 t", "MTU must be a positive integer (< 65522)"),
        ("slirp4netns -m 576 4711 t", "1280 at least"),
        ("slirp4netns", "give a PID or PATH"),
        ("slirp4netns 4711", "the name of the tap"),
        ("slirp4netns 4711 t u", "the name of the tap"),
        ("slirp4netns x t", "PID must be a positive integer"),
        ("slirp4netns --netns-type foo 4711 t", "\"path\" or \"pid\""),
        ("slirp4netns --target-type=bess /tmp/b.sock", "bess is not supported"),
        ("slirp4netns --target-type=foo 4711 t", "must be \"netns\""),
        ("slirp4netns --macaddress 02:00:00:00:00:01 4711 t", "only for --configure"),
        ("slirp4netns -c --macaddress zz 4711 t", "six bytes"),
        ("slirp4netns -r x 4711 t", "--ready-fd x: give the number"),
        ("slirp4netns -e -1 4711 t", "--exit-fd -1: give the number"),
        ("slirp4netns --outbound-addr fd00::1 4711 t", "IPv4 address or the name"),
        ("slirp4netns --outbound-addr6 192.0.2.1 4711 t", "IPv6 address or the name"),
        ("slirp4netns -c 4711 t --cidr", "option '--cidr' requires an argument"),
        ("slirp4netns -z 4711 t", "invalid option -- 'z'"),
        ("slirp4netns --configure=yes 4711 t", "option '--configure' doesn't allow an argument"),
        // pasta.
        ("pasta --netns /x 4711", "exclude each other"),
        ("pasta --netns /x sh", "exclude each other"),
        ("pasta --userns /x sh", "--userns needs --netns, or a PID"),
        ("pasta --userns /x --netns-only --netns /y", "exclude each other"),
        ("pasta --host-lo-to-ns-lo --no-splice 1", "exclude each other"),
        ("pasta -q -d 1", "exclude each other"),
        ("pasta --splice-only --no-splice 1", "exclude each other"),
        ("pasta -a 1.2.3 1", "--address 1.2.3: not an IP address"),
        ("pasta -a 10.0.0.1/33 1", "'33' is no IPv4 mask"),
        ("pasta -a 10.0.0.1 -n 255.0.255.0 1", "'255.0.255.0' is no IPv4 mask"),
        ("pasta -a 10.0.0.1/24 -n 24 1", "contradicts the prefix"),
        ("pasta -n 24 1", "--netmask needs an IPv4 --address"),
        ("pasta -g 10.0.0.1 1", "--gateway 10.0.0.1 needs an --address"),
        ("pasta -a 10.0.0.1/32 1", "leaves no address for a router"),
        ("pasta -a 10.0.0.2/24 -g 10.1.0.1 1", "in the network of --address 10.0.0.2/24"),
        ("pasta -a 10.0.0.2/24 -g 10.0.0.2 1", "another address"),
        ("pasta -m 1000 1", "from 1280 to 65521"),
        ("pasta -m 70000 1", "from 1280 to 65521"),
        ("pasta -M zz 1", "--mac-addr zz: give six bytes"),
        ("pasta --ns-mac-addr zz 1", "--ns-mac-addr zz: give six bytes"),
        ("pasta -o eth0 1", "--outbound eth0: not an IP address"),
        ("pasta -i eth0/4 1", "not the name of an interface"),
        ("pasta --outbound-if4 a-name-too-long-for-it 1", "not the name of an interface"),
        ("pasta --dns-forward none 1", "--dns-forward none: not an IP address"),
        ("pasta -D 127.0.0.1 1", "own name server"),
        ("pasta -D 192.0.2.1 --dns-forward 192.0.2.2 --dns-host 192.0.2.3 1", "one name server"),
        ("pasta --runas 1000:100 1", "give --runas 1000"),
        ("pasta --log-size 70000 1", "--log-size needs --log-file"),
        ("pasta -l /tmp/l --log-size 4 1", "from 65536 on"),
        ("pasta --stats 5 1", "see `pagewire top`"),
        ("pasta --freebind 1", "--freebind is not supported"),
        ("pasta -H name 1", "set the name in the guest"),
        ("pasta --fqdn name 1", "set the name in the guest"),
        ("pasta -F 3 1", "--fd is not supported"),
        ("pasta --no-copy-routes 1", "name the address"),
        ("pasta --no-copy-addrs -a 10.0.0.2/24 1", "name the address"),
        ("pasta -P /tmp/p sh", "--pid is not supported with a COMMAND"),
        ("pasta -l /tmp/p sh", "--log-file is not supported with a COMMAND"),
        ("pasta -c /tmp/p sh", "--conf-path is not supported with a COMMAND"),
        ("pasta -t 80 -t none 1", "--tcp-ports none contradicts the ports in front of it"),
        ("pasta -t foo 1", "--tcp-ports: 'foo' is no port specifier: 'foo' is no port"),
        ("pasta -t 80%eth0/80 1", "leave out %eth0"),
        ("pasta -u %eth0/80 1", "leave out %eth0"),
        ("pasta -t ::1/auto 1", "auto is for every address"),
        ("pasta -t 80:192.0.2.1/80 1", "192.0.2.1 is not the guest's address"),
        ("pasta -T 192.0.2.1/80 1", "leave out the address"),
        ("pasta -U all 1", "name them, or give auto"),
        ("pasta -s /tmp/x 1", "invalid option -- 's'"),
        // passt.
        ("passt -t auto", "auto is for pasta"),
        ("passt -u 80,auto", "auto is for pasta"),
        ("passt -T 80", "invalid option -- 'T'"),
        ("passt word", "unexpected argument 'word'"),
        ("passt --fd x", "--fd x: give the number"),
        ("passt --fd 3 -s /tmp/x", "exclude each other"),
        ("passt --repair-path /tmp/r", "migration is not supported"),
        ("passt --migrate-exit", "migration is not supported"),
        ("passt --migrate-no-linger", "migration is not supported"),
        // pesto.
        ("pesto -A", "give the socket"),
        ("pesto -T 80 /s", "give them to pasta"),
        ("pesto -C SPLICE /s", "HOST"),
        ("pesto -A -t auto /s", "name the ports"),
        ("pesto -A -t all /s", "name the ports"),
        ("pesto --foo /s", "unrecognized option '--foo'"),
    ] {
        let said = refusal(line);
        assert!(said.contains(says), "{line}\n{said}");
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn without_a_free_socket_passt_asks_for_one() {
    let machine = Machine { socket: || None, ..MACHINE };
    match answer(Program::Passt, &[], &machine) {
        Answer::Refusal(why) => assert!(why.contains("give --socket"), "{why}"),
        _ => panic!("not refused"),
    }
}

#[test]
fn passt_says_where_it_listens_if_nobody_told_it() {
    let note = |line: &str| match answered(line) {
        Answer::Words(_, note) => note,
        _ => panic!("{line}"),
    };
    let said = "UNIX domain socket bound at /tmp/passt_1.socket";
    assert_eq!(note("passt").as_deref(), Some(said));
    assert_eq!(note("passt -q"), None);
    assert_eq!(note("passt -s /tmp/a"), None);
}

#[test]
fn vhost_user_is_described_as_back_ends_do() {
    let described: serde_json::Value =
        serde_json::from_str(&text("passt --vhost-user --print-capabilities")).expect("JSON");
    assert_eq!(described, serde_json::json!({ "type": "net" }));
}

#[test]
fn the_last_search_list_of_the_machine_counts() {
    let text = "domain a.example\nnameserver 192.0.2.1\nsearch b.example  c.example\n# search d\n";
    assert_eq!(search_of(text), ["b.example", "c.example"]);
    assert_eq!(search_of("nameserver 192.0.2.1\n"), [""; 0]);
}

#[test]
fn pesto_executes_options_in_their_order() {
    let request = |line: &str| match answered(line) {
        Answer::Client(request) => format!("{request:?}"),
        _ => panic!("{line}"),
    };
    let steps = |line: &str| {
        let text = request(line);
        let of = |word: &str| text.matches(word).count();
        (of("Add("), of("Delete("), of("Clear"))
    };
    assert_eq!(steps("pesto -A --tcp-ports=0.0.0.0/18080:80 /s"), (1, 0, 0));
    assert_eq!(steps("pesto -D --udp-ports=0.0.0.0/18080:80 /s"), (0, 1, 0));
    assert_eq!(steps("pesto -A -t 1 -D -t 2 -u 3 -A -u 4 /s"), (2, 2, 0));
    assert_eq!(steps("pesto --add -t 1 -C HOST -A -t 2 /s"), (2, 0, 1));
    // Ports alone replace all that are there.
    assert_eq!(steps("pesto -t 1024 -u 1025 /s"), (2, 0, 1));
    assert_eq!(steps("pesto -t none /s"), (1, 0, 1));
    assert!(request("pesto /s").contains("steps: [], shows: true"), "{}", request("pesto /s"));
    assert!(request("pesto -A -t 1 /s").contains("shows: false"));
    assert!(request("pesto -s -A -t 1 /s").contains("shows: true"));
}

#[test]
fn pesto_changes_the_ports_of_a_running_gateway() {
    let gateway = fixture();
    let run =
        |options: &str| match answered(&format!("pesto {options} {}", gateway.path().display())) {
            Answer::Client(request) => request.run(),
            _ => panic!("{options}"),
        };
    let open = || {
        let name = |port: HostPort| {
            let proto = if port.udp { "udp" } else { "tcp" };
            format!("{proto} {} {}", port.host, port.guest)
        };
        let mut all: Vec<String> = gateway.ports.all().into_iter().map(name).collect();
        all.sort();
        all
    };
    // RootlessKit.
    assert_eq!(run("-A --tcp-ports=0.0.0.0/18080:80"), Ok(()));
    assert_eq!(run("-A --udp-ports=127.0.0.1/53:5353"), Ok(()));
    assert_eq!(open(), ["tcp 0.0.0.0:18080 10.0.2.100:80", "udp 127.0.0.1:53 10.0.2.100:5353"]);
    assert_eq!(run("-D --tcp-ports=0.0.0.0/18080:80"), Ok(()));
    let why = run("-D --tcp-ports=0.0.0.0/18080:80").unwrap_err();
    assert_eq!(why, "tcp port 18080 is not there");
    // Podman: several at once, to an address behind.
    let both = "--add -t 192.0.2.1/81:10.88.0.2/80 -u 192.0.2.1/81:10.88.0.2/80";
    assert_eq!(run(both), Ok(()));
    assert_eq!(run(&both.replace("--add", "--delete")), Ok(()));
    assert_eq!(open(), ["udp 127.0.0.1:53 10.0.2.100:5353"]);
    // Ports alone replace the others; without an address they are of both IP versions.
    assert_eq!(run("-t 8000-8001:9000-9001"), Ok(()));
    assert_eq!(
        open(),
        [
            "tcp 0.0.0.0:8000 10.0.2.100:9000",
            "tcp 0.0.0.0:8001 10.0.2.100:9001",
            "tcp [::]:8000 [fd00::100]:9000",
            "tcp [::]:8001 [fd00::100]:9001",
        ]
    );
    // What was added before a failure is taken back.
    let why = run("-A -t 0.0.0.0/82 -t 0.0.0.0/1").unwrap_err();
    assert!(why.starts_with("0.0.0.0/1: ") && why.contains("already in use"), "{why}");
    assert_eq!(open().len(), 4);
    // So is what was removed, and a range is one request.
    let before = open();
    assert!(run("-t 8000 -t 0.0.0.0/1").is_err());
    assert!(run("-C HOST -A -t 8000 -D -t 77").is_err());
    assert_eq!(open(), before);
    assert_eq!(run("-A -u 0.0.0.0/1024-65535 -D -u 0.0.0.0/1024-65535"), Ok(()));
    // A port that another program has for IPv6 is not open; without IPv6 the other half is.
    let why = run("-A -t 2").unwrap_err();
    assert!(why.starts_with("::/2: "), "{why}");
    assert_eq!(open(), before);
    assert_eq!(run("-A -t 3"), Ok(()));
    assert_eq!(open().len(), 5);
    // Rules end with the table.
    gateway.ports.rules.lock().unwrap().push("auto".into());
    assert!(run("-t 1").is_err());
    assert_eq!(*gateway.ports.rules.lock().unwrap(), ["auto"]);
    assert_eq!(run("-C HOST"), Ok(()));
    assert_eq!(open(), [""; 0]);
    assert!(gateway.ports.rules.lock().unwrap().is_empty());
}

/// The long options that a help text names at the beginning of its lines.
fn long_options(help: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in help.lines() {
        let words = line.trim_start().split([' ', ',', '\t', '=', '|']);
        let options = words.take_while(|word| word.is_empty() || word.starts_with('-'));
        let long = options.filter_map(|word| word.strip_prefix("--")).filter(|w| !w.is_empty());
        found.extend(long.map(str::to_owned));
    }
    found
}

#[test]
fn every_option_of_the_installed_originals_is_known() {
    let needs = ["slirp4netns", "pasta", "passt"].map(Need::Program);
    if !can(&needs) {
        return;
    }
    for program in Program::ALL {
        let name = program.name();
        // A name of ours would compare itself. Older packages of passt lack pesto.
        let output = Command::new(format!("/usr/bin/{name}")).arg("--help").output();
        let Ok(output) = output else { continue };
        let help = [output.stdout, output.stderr].concat();
        let help = String::from_utf8_lossy(&help).into_owned();
        if help.contains("pagewire") {
            continue;
        }
        let (_, command) =
            commands().into_iter().find(|(of, _)| of == name).expect("each has options");
        let theirs = long_options(&help);
        assert!(theirs.len() > 8, "{help}");
        for option in theirs {
            let has = |arg: &clap::Arg| {
                let others = arg.get_all_aliases().unwrap_or_default();
                arg.get_long() == Some(&option) || others.contains(&option.as_str())
            };
            assert!(command.get_arguments().any(has), "{name} --{option}");
        }
    }
}

#[test]
fn the_definitions_are_consistent() {
    commands().into_iter().for_each(|(_, command)| command.debug_assert());
}

mod ports {
    use crate::dropin::ports::Spec;

    fn published(text: &str) -> Vec<String> {
        let guest = ["192.0.2.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        Spec::parse(text).unwrap().published(false, &guest).unwrap()
    }

    fn forwarded(text: &str) -> Vec<String> {
        Spec::parse(text).unwrap().forwarded(true).unwrap()
    }

    #[test]
    fn the_examples_of_the_manual_are_understood() {
        for (spec, ports) in [
            ("none", &[][..]),
            ("all", &["all"]),
            ("22", &["22"]),
            ("22:23", &["22:23"]),
            ("22,25", &["22", "25"]),
            ("22-80", &["22-80"]),
            ("22-80:32-90", &["22-80:32-90"]),
            ("192.0.2.1/22", &["192.0.2.1:22"]),
            ("::1/22:23", &["[::1]:22:23"]),
            ("0.0.0.0/5000:192.0.2.5/6000", &["0.0.0.0:5000:6000"]),
            ("5000:192.0.2.5/6000", &["5000:6000"]),
            ("5000:192.0.2.5", &["5000"]),
            ("5000:fd00::5", &["5000"]),
            ("all:192.0.2.5", &["all"]),
            ("2000-5000,~3000-3010", &["2000-2999", "3011-5000"]),
            ("192.0.2.1/20-30,~25", &["192.0.2.1:20-24", "192.0.2.1:26-30"]),
            ("~20000-20010", &["all,~20000-20010"]),
            ("all,~22,~80-90", &["all,~22,~80-90"]),
            ("auto", &["auto"]),
            ("auto,~80", &["auto,~80"]),
            ("8000-8010,auto", &["auto,~1-7999,~8011-65535"]),
            ("8000-8010,~8005,auto", &["auto,~1-7999,~8005,~8011-65535"]),
        ] {
            assert_eq!(published(spec), ports, "{spec}");
        }
    }

    #[test]
    fn excluded_ports_are_cut_out_of_mapped_ranges() {
        assert_eq!(published("10-20:110-120,~15"), ["10-14:110-114", "16-20:116-120"]);
        assert_eq!(published("10-20,~5-12,~18-30"), ["13-17"]);
        assert_eq!(published("10-20,~10-20"), [""; 0]);
        assert_eq!(published("1-65535,~1,~65535"), ["2-65534"]);
    }

    #[test]
    fn ports_of_the_namespace_lead_to_loopback() {
        assert_eq!(forwarded("53"), ["53/udp"]);
        assert_eq!(forwarded("127.0.0.1/53:54"), ["53:54/udp"]);
        assert_eq!(forwarded("auto,~53"), ["auto,~53/udp"]);
        assert_eq!(forwarded("none"), [""; 0]);
    }

    #[test]
    fn mistakes_are_refused() {
        for text in [
            "",
            "0",
            "65536",
            "-1",
            "+1",
            "80-",
            "80-79",
            "80:",
            "80:90-91",
            "80-81:90",
            "x",
            "~",
            "~x",
            "80,,81",
            "80:192.0.2.5/",
            "80:x/1",
            "1.2.3/80",
            "all:80",
            "192.0.2.1%eth0/80",
            "80:192.0.2.1,81:192.0.2.2",
            "80:81,auto",
            "none,80",
            "80/tcp",
        ] {
            assert!(Spec::parse(text).is_err(), "{text}: {:?}", Spec::parse(text));
        }
    }
}
