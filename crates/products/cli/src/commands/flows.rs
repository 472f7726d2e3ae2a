//! Tables of guests' flows, as `ctl flows` and `ss --guests` print them.

use pagewire_control::protocol::Flow;

/// The headings of a flow's cells.
const HEADINGS: [&str; 11] =
    ["Flow", "Protocol", "Way", "State", "From", "To", "Name", "By", "Out B", "In B", "Age s"];

/// The lines for one gateway: a heading, then one for each flow.
pub(crate) fn of_gateway(flows: &[Flow]) -> Vec<String> {
    let heading = HEADINGS.map(str::to_owned).to_vec();
    aligned(std::iter::once(heading).chain(flows.iter().map(|flow| cells(flow).to_vec())).collect())
}

/// The lines for several gateways: each flow with the name of its process and the number of its guest before it.
pub(crate) fn of_gateways(flows: &[(String, &Flow)]) -> Vec<String> {
    let with = |process: &str, guest: String, cells: [String; 11]| {
        [process.to_owned(), guest].into_iter().chain(cells).collect::<Vec<_>>()
    };
    let heading = with("Process", "Guest".to_owned(), HEADINGS.map(str::to_owned));
    let row =
        |(process, flow): &(String, &Flow)| with(process, flow.guest.to_string(), cells(flow));
    aligned(std::iter::once(heading).chain(flows.iter().map(row)).collect())
}

/// The name of a flow's destination: the name that the flow has shown, else the latest that was resolved.
pub(crate) fn name(flow: &Flow) -> &str {
    flow.shown.as_ref().or_else(|| flow.names.first()).map_or("-", String::as_str)
}

/// The protocol by which the flow has shown its name, or none.
pub(crate) fn shown_by(flow: &Flow) -> &str {
    flow.shown_by.as_deref().unwrap_or("-")
}

/// Whether both sides are connected, in a word.
pub(crate) fn state(flow: &Flow) -> &'static str {
    if flow.open { "open" } else { "dials" }
}

fn cells(flow: &Flow) -> [String; 11] {
    [
        flow.flow.to_string(),
        flow.protocol.clone(),
        flow.direction.clone(),
        state(flow).to_owned(),
        flow.from.to_string(),
        flow.to.to_string(),
        name(flow).to_owned(),
        shown_by(flow).to_owned(),
        flow.bytes_out.to_string(),
        flow.bytes_in.to_string(),
        format!("{:.1}", flow.age_ms as f64 / 1000.0),
    ]
}

/// Lines whose cells are below each other.
fn aligned(rows: Vec<Vec<String>>) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A flow of this number to `to`, with a name that was resolved.
    pub(crate) fn flow(number: u64, to: &str, (bytes_out, bytes_in): (u64, u64)) -> Flow {
        Flow {
            flow: number,
            guest: 2,
            protocol: "tcp".to_owned(),
            direction: "out".to_owned(),
            from: "10.0.2.15:40000".parse().unwrap(),
            to: to.parse().unwrap(),
            peer: to.parse().unwrap(),
            names: vec!["alias.example".to_owned(), "other.example".to_owned()],
            shown: None,
            shown_by: None,
            bytes_out,
            bytes_in,
            age_ms: 1250,
            open: true,
        }
    }

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn a_flow_has_the_name_that_it_shows_or_else_the_latest_that_was_resolved() {
        let resolved = flow(7, "203.0.113.1:443", (10, 20));
        let shown = Flow {
            shown: Some("www.example".to_owned()),
            shown_by: Some("tls".to_owned()),
            open: false,
            ..resolved.clone()
        };
        let unnamed = Flow { names: Vec::new(), ..resolved.clone() };
        assert_eq!([&shown, &resolved, &unnamed].map(name), ["www.example", "alias.example", "-"]);
        let lines = of_gateway(&[resolved, shown]);
        let ends = ["10.0.2.15:40000", "203.0.113.1:443"];
        let expected =
            [&["7", "tcp", "out", "open"], &ends[..], &["alias.example", "-", "10", "20", "1.2"]];
        assert_eq!(words(&lines[1]), expected.concat());
        let expected =
            [&["7", "tcp", "out", "dials"], &ends[..], &["www.example", "tls", "10", "20", "1.2"]];
        assert_eq!(words(&lines[2]), expected.concat());
    }

    #[test]
    fn flows_of_several_gateways_have_their_process_and_guest_first_and_columns_are_aligned() {
        let (short, long) =
            (flow(7, "10.0.0.1:1", (0, 0)), flow(12345, "[2001:db8::1]:443", (0, 0)));
        let lines =
            of_gateways(&[("run/1".to_owned(), &short), ("gateway/4711".to_owned(), &long)]);
        assert_eq!(words(&lines[1])[..3], ["run/1", "2", "7"]);
        assert_eq!(words(&lines[2])[..3], ["gateway/4711", "2", "12345"]);
        let column = lines[0].find("Name").expect("a heading");
        assert!(lines[1..].iter().all(|line| line[column..].starts_with("alias")), "{lines:#?}");
        assert_eq!(of_gateways(&[]).len(), 1, "the heading alone");
    }
}
