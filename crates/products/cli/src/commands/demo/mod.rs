//! `pagewire demo`: files over one server and client, by copy and by reference, of two hosts that
//! share a pair link. [`tree`] makes the files, [`client`] measures.

mod client;
mod tree;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use pagewire::{Host, Pair};

use crate::args::DemoOptions;
use crate::failure::{Failure, reason, say};
use crate::http::message::inbox::Transfer;
use crate::http::server::Server;
use crate::http::server::service::Service;
use crate::progress::bar_style;
use crate::signals::{self, Stop};

use client::{DemoResult, fetch_all};
use tree::ServedFile;

const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";
const PREFIX: u8 = 24;
/// The port of each mode's server.
const PORTS: [(Transfer, u16); 2] = [(Transfer::Copy, 8001), (Transfer::Reference, 8002)];

/// Makes or reads the files, fetches them twice, and compares.
pub(crate) fn run(options: &DemoOptions) -> Result<(), Failure> {
    if let Some(dir) = &options.dir {
        // Before anything is started, so that a mistake is all that is printed.
        std::fs::read_dir(dir).map_err(|e| {
            let hint = "; name a directory that you may read";
            Failure::because(dir.display(), reason(&e) + hint)
        })?;
    }
    let (server, client) = hosts()?;
    let both = [server.clone(), client.clone()];
    let stop = signals::watch(move || print_stats(&both))?;

    // Removed when dropped: at the end, after an error, and after an interrupt.
    let made = match &options.dir {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("pagewire-demo-").tempdir().map_err(|e| {
            let place = std::env::temp_dir();
            Failure::because(place.display(), reason(&e) + "; set TMPDIR to a place with room")
        })?),
    };
    let directory = match (&options.dir, &made) {
        (Some(dir), _) => dir.clone(),
        (None, Some(made)) => {
            crate::failure::complain!(
                "making {} of files in {}",
                mib(options.size),
                made.path().display()
            );
            tree::generate(made.path(), options.size, &stop)
                .map_err(|e| interrupted_or(&stop, made.path(), &e))?;
            made.path().to_owned()
        }
        (None, None) => PathBuf::from("."),
    };
    let files = tree::list(&directory).map_err(|e| interrupted_or(&stop, &directory, &e))?;
    if files.is_empty() {
        return Err(Failure::because(directory.display(), "there are no files in it"));
    }
    let bytes: u64 = files.iter().map(|f| f.len).sum();
    crate::failure::complain!("{} files, {}; hashing them", files.len(), mib(bytes));
    let files = tree::hash(files, &stop).map_err(|e| interrupted_or(&stop, &directory, &e))?;

    let mut outcomes = Vec::new();
    for (transfer, port) in PORTS {
        let copy_below = if transfer == Transfer::Copy { u64::MAX } else { 0 };
        let files_of = Server::new(&directory, copy_below, 0);
        let service = Service::new(files_of.map_err(|e| interrupted_or(&stop, &directory, &e))?);
        let address = socket(SERVER, port)?;
        service.listen(address, |on, options| Ok(vec![server.listen_with(on, options)?]))?;
        let connections = usize::from(options.connections);
        let bar = progress(bytes);
        let outcome =
            fetch_all(&[&server, &client], address, &files, transfer, connections, &bar, &stop);
        bar.finish_and_clear();
        outcomes.push((transfer, outcome?));
        service.stop(std::slice::from_ref(&server));
    }
    print_table(&outcomes);
    if options.stats {
        print_stats(&[server, client]);
    }
    verdict(&files, &outcomes)
}

fn hosts() -> Result<(Host, Host), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::because("the pair link", e);
    let (left, right) = Pair::new().map_err(|e| failed(&e))?;
    let start = |device, address| {
        let host = Host::builder().device(device).address(format!("{address}/{PREFIX}"));
        host.start().map_err(|e| failed(&e))
    };
    Ok((start(left, SERVER)?, start(right, CLIENT)?))
}

fn socket(ip: &str, port: u16) -> Result<SocketAddr, Failure> {
    let ip = ip.parse().map_err(|e| Failure::because(ip, e))?;
    Ok(SocketAddr::new(ip, port))
}

fn print_stats(hosts: &[Host; 2]) {
    for (name, host) in ["server", "client"].iter().zip(hosts) {
        eprint!("{name}\n{}", host.stats());
    }
}

fn interrupted_or(stop: &Stop, path: &Path, error: &std::io::Error) -> Failure {
    if stop.is_set() {
        return Failure::Interrupted("interrupted".into());
    }
    Failure::because(path.display(), reason(error))
}

fn progress(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(5));
    bar.with_style(bar_style())
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn name(transfer: Transfer) -> &'static str {
    match transfer {
        Transfer::Copy => "copy",
        Transfer::Reference => "zero-copy",
    }
}

fn print_table(outcomes: &[(Transfer, DemoResult)]) {
    say(format_args!(
        "{:<10} {:>6} {:>14} {:>9} {:>9} {:>7}  {:>20}",
        "mode", "files", "bytes", "seconds", "Gbit/s", "CPU s", "payload bytes copied"
    ));
    for (transfer, o) in outcomes {
        say(format_args!(
            "{:<10} {:>6} {:>14} {:>9.4} {:>9.2} {:>7.3}  {:>20}",
            name(*transfer),
            o.files,
            o.bytes,
            o.time.as_secs_f64(),
            o.gbit_per_s(),
            o.cpu.as_secs_f64(),
            o.copied
        ));
    }
}

/// Prints whether every file arrived intact, and how the modes compare.
fn verdict(files: &[ServedFile], outcomes: &[(Transfer, DemoResult)]) -> Result<(), Failure> {
    for (transfer, outcome) in outcomes {
        for mismatch in outcome.mismatches.iter().take(10) {
            crate::failure::complain!("{}: {mismatch}", name(*transfer));
        }
    }
    let wrong: usize = outcomes.iter().map(|(_, o)| o.mismatches.len()).sum();
    let incomplete = outcomes.iter().any(|(_, o)| o.files != files.len());
    if wrong > 0 || incomplete {
        return Err(Failure::Failed(format!("{wrong} files did not arrive as they were sent")));
    }
    let rate = |t| outcomes.iter().find(|(transfer, _)| *transfer == t).map(|(_, o)| o);
    let (Some(copy), Some(zero)) = (rate(Transfer::Copy), rate(Transfer::Reference)) else {
        return Ok(());
    };
    let part = |time: Duration| time.as_secs_f64().max(1e-9);
    say(format_args!(
        "verdict: all {} files intact both ways (SHA-256); by reference {:.1} times as fast for {:.1}% \
         of the CPU time, with {} payload bytes copied by the stack",
        files.len(),
        part(copy.time) / part(zero.time),
        100.0 * part(zero.cpu) / part(copy.cpu),
        zero.copied
    ));
    Ok(())
}
