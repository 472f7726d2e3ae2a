use super::*;

fn why(text: &str) -> String {
    text.parse::<Publish>().expect_err(text).to_string()
}

#[test]
fn what_is_published_reads_as_it_was_written() {
    for text in ["80", "8080:80", "127.0.0.1:8080:80", "[::1]:8080:80", "53/udp", "1-9:11-19/udp"] {
        assert_eq!(text.parse::<Publish>().expect(text).to_string(), text);
    }
    let socket: Publish = "/run/udp/tcp.sock:80".parse().expect("a path");
    assert_eq!(socket.on, On::Unix("/run/udp/tcp.sock".into()));
}

#[test]
fn what_cannot_be_published_says_why() {
    assert!(why("").contains("a port is a number"));
    assert!(why("80:0").contains("cannot be 0"));
    assert!(why("9-1").contains("ends before it begins"));
    assert!(why("1-9:1-5").contains("differ in length"));
    assert!(why("1-9:65530").contains("beyond 65535"));
    assert!(why("1.2.3:80").contains("no address"));
    assert!(why("[::1:80").contains("']:'"));
    assert!(why("/run/x").contains("port of the guest"));
}

#[test]
fn a_range_leads_to_as_many_ports_from_the_first_on() {
    let free: u16 = 20_000 + (std::process::id() % 20_000) as u16;
    let text = format!("127.0.0.1:{free}-{}:80", free + 2);
    let Ok(opened) = text.parse::<Publish>().expect("a range").open() else { return };
    assert_eq!(opened.iter().map(|o| o.port).collect::<Vec<_>>(), [80, 81, 82]);
}
