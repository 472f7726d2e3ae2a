//! The program that a reader sees first, in two documents: it does what they say.

use std::io::{Read, Write};

use pagewire::{Host, Pair};

const README: &str = include_str!("../../../../../README.md");
const GETTING_STARTED: &str = include_str!("../../../../../docs/GETTING-STARTED.md");

/// Runs the program; returns the line that it prints.
fn first_program() -> Result<String, Box<dyn std::error::Error>> {
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;

    let listener = server.listen("10.0.0.1:9000")?;
    let mut conn = client.connect("10.0.0.1:9000")?;
    let (mut peer, _) = listener.accept()?;

    conn.send(vec![7u8; 1 << 20])?;
    let mut bytes = 0;
    while bytes < 1 << 20 {
        bytes += peer.recv_chunks(1 << 20)?.len();
    }
    let printed = format!("{bytes} bytes, {} copied", client.stats().ledger.ours());

    peer.write_all(b"thanks")?;
    conn.read_exact(&mut [0; 6])?;
    Ok(printed)
}

/// The statements of a Rust block that begins as this program does, but for what they print.
fn statements(text: &str) -> Vec<&str> {
    let program = text.split("let (left, right)").nth(1).expect("the program");
    let lines = program.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    let to_its_end = lines.take_while(|line| *line != "Ok(())" && *line != "Ok(printed)");
    to_its_end.filter(|line| !line.is_empty() && !line.contains(" copied\"")).collect()
}

#[test]
fn the_first_program_prints_what_the_documents_promise() {
    assert!(GETTING_STARTED.contains("$ cargo run\n1048576 bytes, 0 copied\n"));
    for _ in 0..20 {
        assert_eq!(first_program().expect("it runs"), "1048576 bytes, 0 copied");
    }
}

#[test]
fn the_documents_show_the_same_program() {
    let here = statements(include_str!("first_program.rs"));
    assert!(here.len() > 10, "{here:?}");
    for text in [README, GETTING_STARTED] {
        assert_eq!(statements(text), here);
    }
}
