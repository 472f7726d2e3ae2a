//! The state machine against the figure of RFC 9293.

use super::*;

/// RFC 9293 section 3.3.2, figure 5, every pair of state and event, legal or not.
#[test]
fn every_state_and_event_is_as_in_the_figure() {
    let mut table = format!("{:<14}", "");
    for event in Event::ALL {
        table.push_str(&format!("{:<13}", format!("{event:?}")));
    }
    for state in State::ALL {
        table.push_str(&format!("\n{:<14}", state.name()));
        for event in Event::ALL {
            table.push_str(&format!("{:<13}", state.on(event).map_or(".", State::name)));
        }
    }
    let table: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    assert_eq!(table, include_str!("state_table.txt"), "\n{table}");
}
