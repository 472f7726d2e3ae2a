//! The `pagewire` command.
fn main() {}
