//! The choices of the person at the terminal (order, filter, scrolling), and how keys change them.
//!
//! Nothing here reads a terminal: `top/mod.rs` passes the keys, `draw.rs` reads the choices.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{FlowRow, Row};
use crate::commands::flows;

/// Rows that a page scrolls.
const PAGE: usize = 10;

/// Characters of a filter: as many as an address with a port has.
const FILTER: usize = 60;

/// The order of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Column {
    #[default]
    Sent,
    Received,
    SendQueue,
    ReceiveQueue,
    Rtt,
    Retransmits,
    Age,
    Remote,
}

impl Column {
    const ALL: [Self; 8] = [
        Self::Sent,
        Self::Received,
        Self::SendQueue,
        Self::ReceiveQueue,
        Self::Rtt,
        Self::Retransmits,
        Self::Age,
        Self::Remote,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
            Self::SendQueue => "send queue",
            Self::ReceiveQueue => "receive queue",
            Self::Rtt => "RTT",
            Self::Retransmits => "retransmissions",
            Self::Age => "age",
            Self::Remote => "peer",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or(0);
        Self::ALL.get(at + 1).copied().unwrap_or_default()
    }
}

/// The order of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FlowColumn {
    /// Both directions together.
    #[default]
    Rate,
    Out,
    In,
    Age,
    Name,
}

impl FlowColumn {
    const ALL: [Self; 5] = [Self::Rate, Self::Out, Self::In, Self::Age, Self::Name];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Out => "out",
            Self::In => "in",
            Self::Age => "age",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or(0);
        Self::ALL.get(at + 1).copied().unwrap_or_default()
    }
}

/// The choices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) column: Column,
    pub(super) flow_column: FlowColumn,
    /// Connections are shown although the process has a gateway, whose flows are shown otherwise.
    pub(super) connections: bool,
    /// The process has a gateway.
    pub(super) has_gateway: bool,
    /// Smallest first.
    pub(super) reverse: bool,
    pub(super) filter: String,
    /// Keys go into the filter.
    pub(super) typing: bool,
    pub(super) help: bool,
    /// No new snapshots are taken.
    pub(super) paused: bool,
    /// The first row that is shown.
    pub(super) scroll: usize,
    pub(super) quit: bool,
}

impl Choices {
    /// Whether flows are shown, not connections.
    pub(super) fn shows_flows(&self) -> bool {
        self.has_gateway && !self.connections
    }

    /// Does what the key is for.
    pub(super) fn key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.quit |= matches!(key.code, KeyCode::Char('c' | 'd'));
            return;
        }
        if self.typing {
            return self.type_key(key.code);
        }
        match key.code {
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => self.quit = true,
            KeyCode::Char('s') if self.shows_flows() => self.flow_column = self.flow_column.next(),
            KeyCode::Char('s') => self.column = self.column.next(),
            KeyCode::Char('f') if self.has_gateway => {
                self.connections = !self.connections;
                self.scroll = 0;
            }
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += PAGE,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
    }

    fn type_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.chars().count() < FILTER => self.filter.push(c),
            _ => {}
        }
        self.scroll = 0;
    }

    /// The rows that pass the filter, sorted, from the one scrolled to on; and how many pass.
    /// Scrolling ends at the last row.
    pub(super) fn choose<'a>(&mut self, rows: &'a [Row]) -> (Vec<&'a Row>, usize) {
        let mut chosen: Vec<&Row> =
            rows.iter().filter(|row| self.passes(|| socket_text(row))).collect();
        chosen.sort_by(|a, b| {
            let order = match self.column {
                Column::Sent => b.sent.total_cmp(&a.sent),
                Column::Received => b.received.total_cmp(&a.received),
                Column::SendQueue => b.socket.send_queue.cmp(&a.socket.send_queue),
                Column::ReceiveQueue => b.socket.receive_queue.cmp(&a.socket.receive_queue),
                Column::Rtt => b.rtt_us().cmp(&a.rtt_us()),
                Column::Retransmits => b.retransmits().cmp(&a.retransmits()),
                Column::Age => b.age().cmp(&a.age()),
                Column::Remote => a.socket.remote.cmp(&b.socket.remote),
            };
            // Rows that are equal do not change places from second to second.
            let order = if self.reverse { order.reverse() } else { order };
            order.then_with(|| a.socket.remote.cmp(&b.socket.remote))
        });
        self.scrolled(chosen)
    }

    /// The same of flows.
    pub(super) fn choose_flows<'a>(&mut self, rows: &'a [FlowRow]) -> (Vec<&'a FlowRow>, usize) {
        let mut chosen: Vec<&FlowRow> =
            rows.iter().filter(|row| self.passes(|| flow_text(row))).collect();
        let rate = |row: &FlowRow| row.bytes_out + row.bytes_in;
        chosen.sort_by(|a, b| {
            let order = match self.flow_column {
                FlowColumn::Rate => rate(b).total_cmp(&rate(a)),
                FlowColumn::Out => b.bytes_out.total_cmp(&a.bytes_out),
                FlowColumn::In => b.bytes_in.total_cmp(&a.bytes_in),
                FlowColumn::Age => b.flow.age_ms.cmp(&a.flow.age_ms),
                FlowColumn::Name => flows::name(&a.flow).cmp(flows::name(&b.flow)),
            };
            let order = if self.reverse { order.reverse() } else { order };
            order.then(a.flow.flow.cmp(&b.flow.flow))
        });
        self.scrolled(chosen)
    }

    /// The rows from the one scrolled to on, and how many there are.
    fn scrolled<T>(&mut self, mut rows: Vec<T>) -> (Vec<T>, usize) {
        let all = rows.len();
        self.scroll = self.scroll.min(all.saturating_sub(1));
        (rows.split_off(self.scroll), all)
    }

    /// Whether the filter's words are all in the text of a row.
    fn passes(&self, text: impl FnOnce() -> String) -> bool {
        if self.filter.is_empty() {
            return true;
        }
        let text = text().to_lowercase();
        self.filter.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }
}

/// What a filter finds of a connection: parts of addresses, a state, a link, a host, a core.
fn socket_text(row: &Row) -> String {
    let socket = &row.socket;
    format!(
        "{} {} {} {} {} {} {}",
        socket.local,
        row.remote(),
        socket.state,
        crate::commands::ss::state_name(&socket.state),
        socket.host,
        socket.link.as_deref().unwrap_or_default(),
        socket.core.map(|core| format!("core{core}")).unwrap_or_default()
    )
}

/// What a filter finds of a flow: parts of addresses and names, a protocol, a direction, a state.
fn flow_text(row: &FlowRow) -> String {
    let flow = &row.flow;
    let words = [
        &flow.protocol,
        &flow.direction,
        flows::state(flow),
        flows::name(flow),
        flows::shown_by(flow),
    ];
    format!("{} {} {} {}", flow.from, flow.to, words.join(" "), flow.names.join(" "))
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::connection;
    use super::*;
    use crate::commands::flows::tests::flow;

    fn press(state: &mut Choices, keys: &str) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            state.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
    }

    fn row(port: u16, sent: f64, received: f64) -> Row {
        Row { socket: connection(port, 0, 0), sent, received }
    }

    fn ports(state: &mut Choices, rows: &[Row]) -> Vec<u16> {
        state.choose(rows).0.iter().filter_map(|row| Some(row.socket.remote?.port())).collect()
    }

    #[test]
    fn keys_sort_reverse_filter_and_quit() {
        let rows = [row(1, 5.0, 1.0), row(2, 9.0, 0.0), row(3, 0.0, 7.0)];
        let mut state = Choices::default();
        assert_eq!(ports(&mut state, &rows), [2, 1, 3]);
        press(&mut state, "s");
        assert_eq!((state.column, ports(&mut state, &rows)), (Column::Received, vec![3, 1, 2]));
        press(&mut state, "r");
        assert_eq!(ports(&mut state, &rows), [2, 1, 3]);
        press(&mut state, "/0.1:3\n");
        assert_eq!(ports(&mut state, &rows), [3]);
        press(&mut state, "/\x08\x08\x08\x08q\n");
        assert!(!state.quit, "a letter of the filter is no command");
        assert_eq!(state.filter, "0q");
        press(&mut state, "/\x1b");
        assert_eq!(ports(&mut state, &rows).len(), 3);
        press(&mut state, "q");
        assert!(state.quit);
        let mut state = Choices { typing: true, ..Choices::default() };
        state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(state.quit, "an interrupt ends it at any time");
    }

    #[test]
    fn every_column_has_its_turn() {
        let mut state = Choices::default();
        let mut seen = Vec::new();
        for _ in Column::ALL {
            seen.push(state.column.name());
            press(&mut state, "s");
        }
        seen.dedup();
        assert_eq!((seen.len(), state.column), (Column::ALL.len(), Column::Sent));
    }

    #[test]
    fn a_filter_has_words_that_all_apply_and_case_does_not_matter() {
        let rows = [row(1, 1.0, 0.0), row(22, 0.0, 0.0)];
        let mut state = Choices { filter: "estab :22".to_owned(), ..Choices::default() };
        assert_eq!(ports(&mut state, &rows), [22]);
        state.filter = "LISTEN".to_owned();
        assert_eq!(state.choose(&rows).1, 0);
    }

    #[test]
    fn flows_are_sorted_by_their_rate_and_have_columns_of_their_own() {
        let row = |number, to: &str, bytes_out, bytes_in| {
            let mut flow = flow(number, to, (0, 0));
            flow.names = vec![format!("n{number}.example")];
            FlowRow { flow, bytes_out, bytes_in }
        };
        let rows = [
            row(3, "203.0.113.3:443", 5.0, 1.0),
            row(1, "203.0.113.1:443", 0.0, 9.0),
            row(2, "203.0.113.2:80", 4.0, 0.0),
        ];
        let numbers = |state: &mut Choices| -> Vec<u64> {
            state.choose_flows(&rows).0.iter().map(|row| row.flow.flow).collect()
        };
        let mut state = Choices { has_gateway: true, ..Choices::default() };
        assert!(state.shows_flows());
        let mut seen = Vec::new();
        for _ in FlowColumn::ALL {
            seen.push((state.flow_column.name(), numbers(&mut state)));
            press(&mut state, "s");
        }
        let expected = [
            ("rate", vec![1, 3, 2]),
            ("out", vec![3, 2, 1]),
            ("in", vec![1, 3, 2]),
            ("age", vec![1, 2, 3]),
            ("name", vec![1, 2, 3]),
        ];
        assert_eq!(seen, expected);
        assert_eq!((state.flow_column, state.column), (FlowColumn::Rate, Column::Sent));
        state.filter = "TCP out n2.".to_owned();
        assert_eq!(numbers(&mut state), [2]);
    }

    #[test]
    fn a_key_changes_between_flows_and_connections_if_there_is_a_gateway() {
        let mut state = Choices { has_gateway: true, scroll: 5, ..Choices::default() };
        press(&mut state, "f");
        assert_eq!((state.shows_flows(), state.scroll), (false, 0));
        press(&mut state, "f");
        assert!(state.shows_flows());
        let mut state = Choices::default();
        press(&mut state, "f");
        assert_eq!(state, Choices::default());
    }

    #[test]
    fn scrolling_ends_at_the_last_row() {
        let rows = [row(1, 3.0, 0.0), row(2, 2.0, 0.0), row(3, 1.0, 0.0)];
        let mut state = Choices::default();
        press(&mut state, "jjjjjj");
        assert_eq!(ports(&mut state, &rows), [3]);
        press(&mut state, "k");
        assert_eq!(ports(&mut state, &rows), [2, 3]);
        assert_eq!(state.choose(&rows).1, 3);
    }

    #[test]
    fn escape_closes_the_help_before_it_quits() {
        let mut state = Choices::default();
        press(&mut state, "?\x1b");
        assert!(!state.help && !state.quit);
        press(&mut state, "\x1b");
        assert!(state.quit);
    }
}
