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

/// For each legal transition, a neighbour that is not.
#[test]
fn what_the_figure_does_not_show_does_not_happen() {
    use Event as E;
    use State as S;
    for (state, event) in [
        (S::SynSent, E::AckOfSyn),
        (S::SynSent, E::Fin),
        (S::SynReceived, E::SynAck),
        (S::SynReceived, E::Fin),
        (S::Established, E::AckOfFin),
        (S::Established, E::Syn),
        (S::FinWait1, E::Close),
        (S::FinWait2, E::AckOfFin),
        (S::CloseWait, E::Fin),
        (S::CloseWait, E::AckOfFin),
        (S::Closing, E::Fin),
        (S::LastAck, E::Close),
        (S::TimeWait, E::Fin),
        (S::Closed, E::Reset),
        (S::Listen, E::SynAck),
    ] {
        assert_eq!(state.on(event), None, "{event:?} in {state}");
    }
}

#[test]
fn simultaneous_fin_and_ack_of_fin_lead_to_the_same_state_in_either_order() {
    let one = State::FinWait1.on(Event::AckOfFin).and_then(|s| s.on(Event::Fin));
    let other = State::FinWait1.on(Event::Fin).and_then(|s| s.on(Event::AckOfFin));
    assert_eq!((one, other), (Some(State::TimeWait), Some(State::TimeWait)));
}
