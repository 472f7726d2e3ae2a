//! A test of the page in a real browser: Chromium without a window reports the plots that it shows.

use std::path::Path;
use std::process::Command;

use pagewire_testkit::{Need, can};
use serde_json::Value as Json;

use super::tests::{facts, sections};
use super::*;

/// Writes what is seen where `--dump-dom` shows it. The page itself has no script.
const LOOK: &str = r#"<script>
const seen = { plots: [], wide: document.documentElement.scrollWidth, window: innerWidth };
for (const svg of document.querySelectorAll('figure > svg')) {
  const { width, height } = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')];
  const box = text => text.getBoundingClientRect();
  const right = svg.getBoundingClientRect().right;
  const marks = [...svg.querySelectorAll('rect, circle, polyline')].filter(mark => {
    const box = mark.getBBox();
    return box.width > 0 && getComputedStyle(mark).visibility === 'visible';
  });
  seen.plots.push({
    title: svg.parentElement.querySelector('strong').textContent, width, height,
    outside: texts.filter(text => box(text).right > right + 1).map(text => text.textContent),
    letters: Math.min(...texts.map(text => box(text).height)), marks: marks.length,
  });
}
const text = 'SEEN' + JSON.stringify(seen) + 'END';
if (parent !== window) parent.postMessage(text, '*');
else document.body.replaceChildren(text);
</script>"#;

/// The page in a frame as wide as a phone: a window of a browser on a desk is never so narrow.
const PHONE: &str = r#"<!DOCTYPE html><body style="margin: 0">
<iframe src="looked.html" width="360" height="800" style="border: 0"></iframe>
<script>onmessage = message => document.body.replaceChildren(message.data);</script>"#;

struct Seen {
    dom: String,
    errors: Vec<String>,
}

fn open(page: &Path) -> Seen {
    let profile = tempfile::tempdir().expect("a directory");
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom"])
        .arg("--window-size=1280,900")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser runs");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    // Pages of the browser itself write there, too.
    let ours = |line: &&str| line.contains(":CONSOLE") && !line.contains("source: chrome://");
    let errors = log.lines().filter(ours).map(str::to_owned).collect();
    Seen { dom: String::from_utf8_lossy(&output.stdout).into_owned(), errors }
}

#[test]
fn a_browser_shows_every_plot_on_a_desk_and_on_a_phone_and_reports_no_error() {
    if !can(&[Need::Program("chromium")]) {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let sections = sections();
    write(place.path(), &facts(), &sections).expect("the page");
    let index = place.path().join(INDEX);
    let plain = open(&index);
    assert_eq!(plain.errors, [""; 0], "the page as it is");
    assert!(plain.dom.contains("<h1>Pagewire bench</h1>"), "{}", plain.dom);

    let page = fs::read_to_string(&index).expect("the page");
    let page = page.replace(POLICY, "default-src 'unsafe-inline'").replace("</body>", LOOK);
    let looked = place.path().join("looked.html");
    fs::write(&looked, page).expect("a page");
    let phone = place.path().join("phone.html");
    fs::write(&phone, PHONE).expect("a page");
    let charts = sections.iter().flat_map(|s| charts(&s.shown, s.rows()));
    let titles: Vec<String> = charts.map(|chart| chart.title).collect();
    for (page, width) in [(&looked, 1280.0), (&phone, 360.0)] {
        let seen = open(page);
        assert_eq!(seen.errors, [""; 0]);
        let text = seen.dom.split_once("SEEN").and_then(|(_, rest)| rest.split_once("END"));
        let (text, _) = text.unwrap_or_else(|| panic!("{}", seen.dom));
        let seen: Json = serde_json::from_str(&text.replace("&amp;", "&")).expect("what is seen");
        assert_eq!(seen["window"].as_f64(), Some(width));
        assert!(seen["wide"].as_f64() <= seen["window"].as_f64(), "the page is too wide: {width}");
        let plots = seen["plots"].as_array().expect("plots");
        let shown: Vec<&str> = plots.iter().filter_map(|plot| plot["title"].as_str()).collect();
        assert_eq!(shown, titles);
        for plot in plots {
            let number = |name: &str| plot[name].as_f64().unwrap_or(0.0);
            assert!(number("width") > 250.0 && number("height") > 30.0, "{width}: {plot}");
            assert!(number("letters") > 9.0 && number("marks") > 0.0, "{width}: {plot}");
            assert_eq!(plot["outside"], serde_json::json!([]), "{width}: {plot}");
        }
    }
}
