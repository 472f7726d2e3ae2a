//! Requirements of the parser of settings files.

use pagewire_stack::{Cidr, StackConfig};

use super::*;
use crate::wire::Wire;

fn config(text: &str) -> StackConfig {
    let address: Cidr = "192.168.0.1/16".parse().expect("an address");
    let mut config = StackConfig::new(Wire::capabilities(1500), vec![address], [0; 32]);
    Settings::parse(text).apply(&mut config);
    config
}

#[test]
fn the_last_of_several_lines_counts() {
    let tcp =
        config("net.ipv4.tcp_timestamps=1\nnet.ipv4.tcp_sack=1\nnet.ipv4.tcp_timestamps=0\n").tcp;
    assert!(!tcp.timestamps && tcp.sack);
}

#[test]
fn names_may_be_written_with_slashes_and_values_with_quotes_tabs_and_remarks() {
    let tcp = config("net/ipv4/tcp_wmem=\"4096\t50000 4194304\" # three numbers\n").tcp;
    assert_eq!(tcp.send_buffer, 4_194_304);
}

#[test]
fn what_makes_no_sense_changes_nothing() {
    let (before, after) = (
        config("").tcp,
        config("net.ipv4.tcp_rmem=1 2\nnet.ipv4.tcp_syn_retries=many\nnonsense\nkernel.x=1").tcp,
    );
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
}

#[test]
fn numbers_of_accurate_ecn_are_linuxs() {
    use EcnOption::{Always, Off, Persistent, Sparing};
    for (number, setting) in [Off, Sparing, Always, Persistent].into_iter().enumerate() {
        let tcp = config(&format!("net.ipv4.tcp_ecn=3\nnet.ipv4.tcp_ecn_option={number}\n")).tcp;
        assert_eq!((tcp.ecn, tcp.ecn_option), (EcnMode::Accurate, setting));
    }
    assert_eq!(config("net.ipv4.tcp_ecn_option=4\n").tcp.ecn_option, Always);
}

#[test]
fn windows_shrink_by_setting() {
    assert!(config("net.ipv4.tcp_shrink_window=1\n").tcp.shrink_window);
    assert!(!config("").tcp.shrink_window);
}

#[test]
fn a_file_is_read_again_when_it_has_changed_and_only_then() {
    let path = std::env::temp_dir().join(format!("pagewire-settings-{}", std::process::id()));
    let mut file = SettingsFile::new(path.clone());
    assert_eq!(file.changed().expect("no file is no error"), None);
    fs::write(&path, "net.ipv4.tcp_ecn=1\n").expect("a temporary file");
    assert_eq!(
        file.changed().expect("readable").and_then(|s| s.get("net.ipv4.tcp_ecn")),
        Some("1")
    );
    assert_eq!(file.changed().expect("readable"), None);
    fs::write(&path, "net.ipv4.tcp_ecn=1\nnet.ipv4.tcp_ecn=0\n").expect("a temporary file");
    assert_eq!(
        file.changed().expect("readable").and_then(|s| s.get("net.ipv4.tcp_ecn")),
        Some("0")
    );
    fs::remove_file(&path).expect("it is there");
}
