//! Draws the screen of `top` from the [`Model`] and the [`Choices`].

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row as TableRow, Sparkline, Table};

use super::model::{FlowRow, Gateway, Model, Row, scaled};
use super::state::{Choices, Column, FlowColumn};
use crate::commands::flows;
use crate::commands::ss::state_name;
use crate::failure::word;

/// Rows of the plots of throughput, each.
const PLOT: u16 = 3;

/// Rows of the lists of drops and copies, at most, their borders included.
const LISTS: u16 = 8;

/// Refusals that are shown, at most.
const REFUSALS: usize = 4;

/// Columns of the numbers beside a plot.
const BESIDE: u16 = 24;

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, state: &mut Choices) {
    let longest = [&model.rates.drops, &model.rates.copies, &model.rates.parts];
    let longest = longest.iter().map(|list| list.len()).max().unwrap_or(0) as u16;
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(PLOT),
        Constraint::Length(PLOT),
        Constraint::Length((longest + 2).clamp(3, LISTS)),
        Constraint::Length(refusals_height(model)),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [head, received, sent, lists, refusals, rows, foot] = areas.areas(frame.area());
    draw_head(frame, head, model);
    let now = model.rates.received_bits;
    draw_plot(frame, received, ("in", now), model.received.iter().copied());
    draw_plot(frame, sent, ("out", model.rates.sent_bits), model.sent.iter().copied());
    draw_lists(frame, lists, model);
    state.has_gateway = model.gateway.is_some();
    match &model.gateway {
        Some(gateway) => {
            draw_refusals(frame, refusals, gateway);
            match state.shows_flows() {
                true => draw_flows(frame, rows, gateway, state),
                false => draw_sockets(frame, rows, model, state),
            }
        }
        None => draw_sockets(frame, rows, model, state),
    }
    draw_foot(frame, foot, state);
    if state.help {
        draw_help(frame);
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let seconds = model.stats.uptime_seconds as u64;
    let up = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let words = model.info.command.iter().skip(1).cloned().collect::<Vec<_>>().join(" ");
    let title = Line::from(vec![
        "pagewire top".bold(),
        Span::raw(format!("  pid {}  up {up}  {words}", model.info.pid)),
    ]);
    let sum = |of: fn(&pagewire_control::protocol::SocketCounts) -> u64| -> u64 {
        model.stats.hosts.iter().map(|host| of(&host.sockets)).sum()
    };
    let memory = model.stats.memory.map_or_else(String::new, |memory| {
        format!("  memory {}B", scaled((memory.anonymous_bytes + memory.shared_bytes) as f64))
    });
    let counts = format!(
        "connections {} (+{}/s)  time-wait {}  listeners {}  datagram sockets {}  \
         retransmissions {}/s  system calls {}/s{memory}",
        sum(|counts| counts.connections),
        scaled(model.rates.opened).trim(),
        sum(|counts| counts.time_wait),
        sum(|counts| counts.listeners),
        sum(|counts| counts.datagrams),
        scaled(model.rates.retransmits).trim(),
        scaled(model.rates.system_calls).trim(),
    );
    frame.render_widget(Paragraph::new(vec![title, Line::from(counts)]), area);
}

/// The throughput over two minutes, the newest on the right.
fn draw_plot(
    frame: &mut Frame<'_>,
    area: Rect,
    (name, now): (&str, f64),
    history: impl ExactSizeIterator<Item = u64> + Clone,
) {
    let areas = Layout::horizontal([Constraint::Length(BESIDE), Constraint::Min(10)]);
    let [beside, plot] = areas.areas(area);
    let most = history.clone().max().unwrap_or(0);
    let text = vec![
        Line::from(format!("{name:<4} {:>10}bit/s", scaled(now))).bold(),
        Line::from(format!("most {:>10}bit/s", scaled(most as f64))),
    ];
    frame.render_widget(Paragraph::new(text), beside);
    let width = usize::from(plot.width);
    let empty = width.saturating_sub(history.len());
    let skipped = history.len().saturating_sub(width);
    let data: Vec<u64> = std::iter::repeat_n(0, empty).chain(history.skip(skipped)).collect();
    frame.render_widget(Sparkline::default().data(data).max(most.max(1)), plot);
}

fn draw_lists(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let [drops, copies, parts] = Layout::horizontal([Constraint::Ratio(1, 3); 3]).areas(area);
    draw_list(frame, drops, ("drops by reason", ""), &model.rates.drops);
    draw_list(frame, copies, ("copies by reason", "B"), &model.rates.copies);
    let names: Vec<&str> = model.stats.sections.keys().map(String::as_str).collect();
    draw_list(frame, parts, (&names.join(", "), ""), &model.rates.parts);
}

fn draw_list(
    frame: &mut Frame<'_>,
    area: Rect,
    (title, unit): (&str, &str),
    list: &[(String, f64, u64)],
) {
    let rows = list.iter().map(|(name, rate, n)| {
        let rate = format!("{}{unit}/s", scaled(*rate));
        let n = format!("{}{unit}", scaled(*n as f64));
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        TableRow::new([Cell::from(name.clone()), right(rate), right(n)])
    });
    let rows: Vec<_> = match list.is_empty() {
        true => vec![TableRow::new(["none"])],
        false => rows.collect(),
    };
    let widths = [Constraint::Min(10), Constraint::Length(10), Constraint::Length(9)];
    let block = Block::new().borders(Borders::ALL).title(format!(" {title} "));
    frame.render_widget(Table::new(rows, widths).block(block), area);
}

/// The column of cores, which is there only if a host has several.
const CORE: (&str, Option<Column>, Constraint) = ("Core", None, Constraint::Length(4));

/// The other columns of the connections, by which some can be sorted.
const COLUMNS: [(&str, Option<Column>, Constraint); 12] = [
    ("Local", None, Constraint::Min(16)),
    ("Peer", Some(Column::Remote), Constraint::Min(18)),
    ("State", None, Constraint::Length(10)),
    ("Recv-Q", Some(Column::ReceiveQueue), Constraint::Length(8)),
    ("Send-Q", Some(Column::SendQueue), Constraint::Length(8)),
    ("RTT ms", Some(Column::Rtt), Constraint::Length(8)),
    ("Cwnd", None, Constraint::Length(6)),
    ("Retr", Some(Column::Retransmits), Constraint::Length(6)),
    ("In B/s", Some(Column::Received), Constraint::Length(8)),
    ("Out B/s", Some(Column::Sent), Constraint::Length(8)),
    ("Copied B", None, Constraint::Length(8)),
    ("Age s", Some(Column::Age), Constraint::Length(6)),
];

fn draw_sockets(frame: &mut Frame<'_>, area: Rect, model: &Model, state: &mut Choices) {
    let (rows, all) = state.choose(&model.rows);
    let title = title((all, "connections"), state.column.name(), state);
    let has_cores = model.stats.hosts.iter().any(|host| !host.cores.is_empty());
    let columns = || has_cores.then_some(CORE).into_iter().chain(COLUMNS);
    let heading = heading(columns().map(|(name, column, _)| (name, column == Some(state.column))));
    let visible = usize::from(area.height);
    let row = |of: &Row| row(of, has_cores);
    let widths = columns().map(|(_, _, width)| width);
    let table = Table::new(rows.into_iter().take(visible).map(row), widths)
        .header(heading)
        .block(Block::new().borders(Borders::ALL).title(title));
    frame.render_widget(table, area);
}

/// The title of a table: how many of what there are, in which order, and the filter.
fn title((all, what): (usize, &str), column: &str, state: &Choices) -> String {
    let order = if state.reverse { "smallest first" } else { "largest first" };
    let mut title = format!(" {all} {what} by {column} ({order}) ");
    if !state.filter.is_empty() {
        title.push_str(&format!("that have \"{}\" ", state.filter));
    }
    title
}

/// The heading of a table: names of columns, and whether the order is by that column.
fn heading(columns: impl IntoIterator<Item = (&'static str, bool)>) -> TableRow<'static> {
    let cell = |(name, is_order)| {
        let style = match is_order {
            true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            false => Style::new().add_modifier(Modifier::BOLD),
        };
        Cell::from(name).style(style)
    };
    TableRow::new(columns.into_iter().map(cell))
}

/// Columns of the flows, by which some can be sorted.
const FLOW_COLUMNS: [(&str, Option<FlowColumn>, Constraint); 11] = [
    ("Guest", None, Constraint::Length(5)),
    ("Flow", None, Constraint::Length(6)),
    ("Way", None, Constraint::Length(8)),
    ("State", None, Constraint::Length(5)),
    ("From", None, Constraint::Min(15)),
    ("To", None, Constraint::Min(17)),
    ("Name", Some(FlowColumn::Name), Constraint::Fill(1)),
    ("By", None, Constraint::Length(4)),
    ("Out B/s", Some(FlowColumn::Out), Constraint::Length(8)),
    ("In B/s", Some(FlowColumn::In), Constraint::Length(8)),
    ("Age s", Some(FlowColumn::Age), Constraint::Length(6)),
];

fn draw_flows(frame: &mut Frame<'_>, area: Rect, gateway: &Gateway, state: &mut Choices) {
    let (rows, all) = state.choose_flows(&gateway.rows);
    let title = title((all, "flows"), state.flow_column.name(), state);
    // The rate is the sum of two columns.
    let is_order = |column: Option<FlowColumn>| match state.flow_column {
        FlowColumn::Rate => matches!(column, Some(FlowColumn::Out | FlowColumn::In)),
        other => column == Some(other),
    };
    let heading = heading(FLOW_COLUMNS.map(|(name, column, _)| (name, is_order(column))));
    let visible = usize::from(area.height);
    let widths = FLOW_COLUMNS.map(|(_, _, width)| width);
    let table = Table::new(rows.into_iter().take(visible).map(flow_row), widths)
        .header(heading)
        .block(Block::new().borders(Borders::ALL).title(title));
    frame.render_widget(table, area);
}

fn flow_row(row: &FlowRow) -> TableRow<'static> {
    let flow = &row.flow;
    TableRow::new([
        flow.guest.to_string(),
        flow.flow.to_string(),
        format!("{} {}", flow.direction, flow.protocol),
        flows::state(flow).to_owned(),
        flow.from.to_string(),
        flow.to.to_string(),
        flows::name(flow).to_owned(),
        flows::shown_by(flow).to_owned(),
        scaled(row.bytes_out),
        scaled(row.bytes_in),
        (flow.age_ms / 1000).to_string(),
    ])
}

/// Rows for the refusals: none without a gateway.
fn refusals_height(model: &Model) -> u16 {
    let shown = |gateway: &Gateway| gateway.refusals.most.len().clamp(1, REFUSALS) as u16 + 2;
    model.gateway.as_ref().map_or(0, shown)
}

/// The most frequent refusals, and the permission that would let each pass.
fn draw_refusals(frame: &mut Frame<'_>, area: Rect, gateway: &Gateway) {
    let refusals = &gateway.refusals;
    let rows = refusals.most.iter().take(REFUSALS).map(|refusal| {
        let permit =
            refusal.permission.as_ref().map(|rule| format!("pagewire ctl allow {}", word(rule)));
        let times = Line::from(format!("{} times", refusal.times)).right_aligned();
        TableRow::new([
            Cell::from(times),
            Cell::from(refusal.what.clone()),
            Cell::from(permit.unwrap_or_default()),
        ])
    });
    let rows: Vec<_> = match refusals.most.is_empty() {
        true => vec![TableRow::new(["", "none"])],
        false => rows.collect(),
    };
    let widths = [Constraint::Length(13), Constraint::Fill(1), Constraint::Fill(1)];
    let title = format!(" refused: {} names, {} addresses ", refusals.names, refusals.addresses);
    let block = Block::new().borders(Borders::ALL).title(title);
    frame.render_widget(Table::new(rows, widths).block(block), area);
}

/// The cells of a connection; the first is its core, if there is a column for that.
fn row(row: &Row, has_cores: bool) -> TableRow<'static> {
    let socket = &row.socket;
    let cwnd = socket.tcp.as_ref().map_or(0, |tcp| tcp.cwnd_segments);
    let core = socket.core.map_or_else(|| "-".to_owned(), |core| core.to_string());
    let cells = [
        socket.local.to_string(),
        row.remote(),
        state_name(&socket.state).to_owned(),
        scaled(socket.receive_queue as f64),
        scaled(socket.send_queue as f64),
        format!("{:.3}", row.rtt_us() as f64 / 1000.0),
        cwnd.to_string(),
        row.retransmits().to_string(),
        scaled(row.received),
        scaled(row.sent),
        row.copied().map_or_else(|| "-".to_owned(), |n| scaled(n as f64)),
        row.age().to_string(),
    ];
    TableRow::new(has_cores.then_some(core).into_iter().chain(cells))
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, state: &Choices) {
    let text = if state.typing {
        format!("filter: {}_   (Enter keeps it, Esc clears it)", state.filter)
    } else {
        let paused = if state.paused { "  PAUSED" } else { "" };
        let flows = match (state.has_gateway, state.connections) {
            (false, _) => "",
            (true, false) => "f connections  ",
            (true, true) => "f flows  ",
        };
        format!(
            "q quit  s sort  r reverse  / filter  {flows}p pause  arrows scroll  ? help{paused}"
        )
    };
    frame.render_widget(Paragraph::new(text).reversed(), area);
}

const HELP: &str = "\
q, Esc     quit
s          sort by the next column: sent, received, queues,
           RTT, retransmissions, age, peer; flows by rate,
           out, in, age, name
r          reverse the order
/          filter: words that must all be in the addresses,
           the names, the state, the link, the host, or the core
           (core0)
f          flows of a gateway's guests, or connections
p          pause
arrows, j, k, Page Up, Page Down, Home   scroll

in and out are what devices carried, headers included.
Out B/s is what peers have acknowledged, In B/s what they
have sent in order. Copied B is payload that was copied
for a connection, where that is counted.
device_ and socket_ copies are made by the kernel.";

fn draw_help(frame: &mut Frame<'_>) {
    let (width, height) = (62, 19);
    let area = frame.area();
    let place = Rect {
        x: area.x + area.width.saturating_sub(width) / 2,
        y: area.y + area.height.saturating_sub(height) / 2,
        width: width.min(area.width),
        height: height.min(area.height),
    };
    frame.render_widget(Clear, place);
    let block = Block::new().borders(Borders::ALL).title(" keys ");
    frame.render_widget(Paragraph::new(HELP).block(block), place);
}

#[cfg(test)]
mod tests {
    use pagewire_control::protocol::{HostStats, Info, Refusal, Refusals, SocketCounts};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::Snapshot;
    use super::super::model::tests::{connection, gateway, snapshot};
    use super::*;
    use crate::commands::flows::tests::flow;

    fn model() -> Model {
        let command = ["pagewire", "serve", "--tap", "pw0"].map(str::to_owned).to_vec();
        let mut model = Model::new(Info { pid: 4711, command, ..Info::default() });
        for second in 0..30_u32 {
            let n = u64::from(second);
            let sockets = vec![connection(40_000, n * 5_000_000, 7), connection(50_000, 0, 7)];
            let mut snapshot = Snapshot {
                sockets,
                ..snapshot(f64::from(second), n * n * 1000, &[("tcp_checksum", n)])
            };
            snapshot.stats.hosts[0].sockets = SocketCounts { connections: 2, ..Default::default() };
            snapshot.stats.hosts[0].copies = [("app_write".to_owned(), n * 2000)].into();
            model.update(snapshot);
        }
        model
    }

    /// A gateway with a fast flow, a slow one, and many refusals.
    fn gateway_model() -> Model {
        let mut model = Model::new(Info::default());
        for second in [1, 2] {
            let flows = vec![
                flow(7, "203.0.113.7:443", (second * 100, 0)),
                flow(8, "203.0.113.8:443", (second * 2000, second * 3_000_000)),
            ];
            let mut snapshot = gateway(second as f64, flows);
            let refusal = |n: u64| Refusal {
                what: format!("bad{n}.example"),
                times: 40 - n,
                permission: (n == 0).then(|| "bad0.example:443".to_owned()),
            };
            let refusals = snapshot.gateway.as_mut().expect("it has one");
            refusals.refusals =
                Refusals { names: 9, addresses: 3, most: (0..9).map(refusal).collect() };
            snapshot.sockets = vec![connection(40_000, 0, 0)];
            model.update(snapshot);
        }
        model
    }

    fn screen(size: (u16, u16), state: &mut Choices) -> String {
        screen_of(&model(), size, state)
    }

    fn screen_of(model: &Model, (width, height): (u16, u16), state: &mut Choices) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, model, state)).expect("it is drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_the_process_rates_reasons_connections_and_keys() {
        let text = screen((120, 30), &mut Choices::default());
        for part in [
            "pid 4711",
            "serve --tap pw0",
            "connections 2",
            "4.56 Mbit/s",
            "tcp_checksum",
            "1 /s",
            "app_write",
            "2.00 kB/s",
            "2 connections by sent (largest first)",
            "10.77.0.1:40000",
            "5.00 M",
            "ESTAB",
            "q quit",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        let first = text.find(":40000").expect("it is there");
        assert!(first < text.find(":50000").expect("it is there"), "{text}");
        assert!(text.contains('█'), "a plot:\n{text}");
    }

    #[test]
    fn connections_have_a_column_of_cores_where_a_host_has_several() {
        let mut model = model();
        let text = screen_of(&model, (120, 30), &mut Choices::default());
        assert!(!text.contains("Core"), "{text}");
        model.stats.hosts[0].cores = vec![HostStats::default(); 2];
        model.rows[1].socket.core = Some(1);
        let mut state = Choices { filter: "core1".to_owned(), ..Choices::default() };
        let text = screen_of(&model, (130, 30), &mut state);
        assert!(text.contains("Core Local") && text.contains("1    10.77.0.2:80"), "{text}");
        assert!(!text.contains(":40000"), "{text}");
    }

    #[test]
    fn a_filter_a_pause_and_the_help_are_shown() {
        let mut state = Choices { filter: "50000".to_owned(), typing: true, ..Choices::default() };
        let text = screen((120, 30), &mut state);
        assert!(text.contains("1 connections") && text.contains("filter: 50000_"), "{text}");
        assert!(!text.contains(":40000"), "{text}");
        let mut state = Choices { help: true, paused: true, ..Choices::default() };
        let text = screen((120, 30), &mut state);
        assert!(text.contains(" keys ") && text.contains("PAUSED"), "{text}");
    }

    #[test]
    fn a_gateway_has_its_flows_by_rate_and_its_refusals_and_a_key_for_its_connections() {
        let (model, mut state) = (gateway_model(), Choices::default());
        let text = screen_of(&model, (140, 40), &mut state);
        for part in [
            "refused: 9 names, 3 addresses",
            "40 times bad0.example",
            "pagewire ctl allow bad0.example:443",
            "37 times bad3.example",
            "2 flows by rate (largest first)",
            "out tcp",
            "alias.example",
            "2.00 k",
            "3.00 M",
            "f connections",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(!text.contains("bad4.example"), "the table keeps its room:\n{text}");
        let first = text.find("203.0.113.8:443").expect("it is there");
        assert!(first < text.find("203.0.113.7:443").expect("it is there"), "{text}");
        state.connections = true;
        let text = screen_of(&model, (140, 40), &mut state);
        assert!(text.contains("1 connections by sent") && text.contains("f flows"), "{text}");
    }

    #[test]
    fn a_process_without_a_gateway_has_neither_flows_nor_refusals() {
        let text = screen((120, 40), &mut Choices::default());
        for part in ["flows", "refused", "f connections"] {
            assert!(!text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn no_terminal_is_too_small() {
        for size in [(1, 1), (10, 3), (40, 12), (300, 5)] {
            let mut state = Choices { help: true, ..Choices::default() };
            screen(size, &mut state);
            screen_of(&gateway_model(), size, &mut state);
        }
    }
}
