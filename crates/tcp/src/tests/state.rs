use super::*;

/// RFC 9293 section 3.3.2, figure 5, every pair of state and event, legal or not.
#[test]
fn every_state_and_event_is_as_in_the_figure() {
    let mut table = String::new();
    for state in State::ALL {
        for event in Event::ALL {
            let next = state.on(event).map_or("-", State::name);
            table.push_str(&format!("{:<13} {:<12} {next}\n", state.name(), format!("{event:?}")));
        }
    }
    assert_eq!(table, include_str!("state_table.txt"), "\n{table}");
}
