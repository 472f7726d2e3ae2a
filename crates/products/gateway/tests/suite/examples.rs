//! The examples run.

#[path = "../../examples/embed.rs"]
mod embed;

#[test]
fn a_program_gives_a_network_to_a_guest_whose_frames_it_has_in_memory() {
    embed::main().expect("the example runs");
}
