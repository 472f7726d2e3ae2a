//! x
#[test]
fn a() { assert!(pagewire_c::config::Network::parse("").is_err()); }
