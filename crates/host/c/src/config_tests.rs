//! The text of a network: what is read, and the message for each mistake.

use super::{LinkKind, Network};

fn why(text: &str) -> String {
    Network::parse(text).expect_err(text).to_string()
}

#[test]
fn a_text_names_a_link_its_addresses_and_settings() {
    let text = "tap=pw0, addr=10.77.0.2/24 ,addr=fd77::2/64,host-addr=10.77.0.1/24,gateway=10.77.0.1,\
                route=10.88.0.0/16@10.77.0.9,mtu=9000,mac=02:00:00:00:00:0a,spin=50,memory=1048576,";
    let network = Network::parse(text).unwrap();
    assert_eq!(network.link, LinkKind::Tap("pw0".into()));
    assert_eq!(network.addresses, ["10.77.0.2/24", "fd77::2/64"]);
    assert_eq!(network.host_addresses, ["10.77.0.1/24"]);
    assert_eq!(network.gateways, ["10.77.0.1"]);
    assert_eq!(network.routes, [("10.88.0.0/16".into(), "10.77.0.9".into())]);
    assert_eq!(
        (network.mtu, network.spin_us, network.memory),
        (Some(9000), Some(50), Some(1 << 20))
    );
    assert_eq!(network.mac, Some([2, 0, 0, 0, 0, 10]));
    let frames = Network::parse("frames,addr=10.0.0.1/24").unwrap();
    assert_eq!(frames.link, LinkKind::Frames);
}

#[test]
fn every_mistake_has_a_message_that_names_the_word() {
    assert!(why("").contains("no link"));
    assert!(why("addr=10.0.0.1/24").contains("no link"));
    assert!(why("pair=a").contains("addr=ADDRESS/BITS"));
    assert!(why("pair=a,frames,addr=10.0.0.1/24").contains("second link"));
    assert_eq!(why("tap=,addr=10.0.0.1/24"), "\"tap\" needs a value");
    assert_eq!(why("frames=4,addr=10.0.0.1/24"), "\"frames\" takes no value");
    assert!(why("tup=pw0").contains("\"tup\" is no word of a network"));
    assert!(why("frames,addr=10.0.0.1/24,host-addr=10.0.0.2/24").contains("host-addr is for tap"));
    assert!(why("frames,addr=1.1.1.1/8,route=10.0.0.0/8").contains("NETWORK@GATEWAY"));
    for word in ["mtu=x", "mtu=-1", "mac=02:00:00:00:00", "mac=02:00:00:00:00:0g", "spin=1s"] {
        assert!(why(&format!("frames,{word}")).contains(word), "{word}");
    }
    assert!(why("frames,addr=10.0.0.1/24,memory=5").contains("65536 bytes or more"));
    assert!(why("frames,addr=10.0.0.1/24,queues=x").contains("queues=x"));
    assert!(why("frames,mtu=1500,mtu=1500").contains("given twice"));
}
