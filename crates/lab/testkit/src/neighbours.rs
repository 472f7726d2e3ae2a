//! A comparison for examples that measure how much one guest disturbs another: rates beside an ordinary
//! neighbour and beside a hostile one of the same pace, in turns.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A result with any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The part of the ordinary rate that a hostile neighbour must leave.
const ENOUGH: f64 = 0.9;

/// A series of measurements, one for each attack.
#[derive(Debug)]
pub struct Trial {
    rounds: usize,
    last: Duration,
    only: Vec<String>,
    enough: bool,
}

impl Trial {
    /// Reads the command line: rounds \[7\], seconds of a phase \[1\], names of attacks \[all\]. Prints
    /// the heading.
    ///
    /// # Errors
    /// An argument that should be a number is not.
    pub fn from_args() -> Result<Self> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let rounds = args.first().map_or(Ok(7), |text| text.parse())?;
        let seconds = args.get(1).map_or(Ok(1.0), |text| text.parse())?;
        let only = args.get(2..).unwrap_or_default().to_vec();
        println!("{rounds} rounds of {seconds} s each way, medians, Gbit/s");
        println!("{:10} {:>10} {:>10} {:>8}", "neighbour", "ordinary", "hostile", "left");
        let last = Duration::try_from_secs_f64(seconds)?;
        Ok(Self { rounds, last, only, enough: true })
    }

    /// Whether an attack is to be measured.
    pub fn wants(&self, attack: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == attack)
    }

    /// Measures beside both kinds of neighbour, in turns, and prints the medians. `phase` gets whether
    /// the neighbour is hostile, and how long to measure; its result is in bytes a second.
    ///
    /// # Errors
    /// The errors of `phase`.
    pub fn measure(
        &mut self,
        attack: &str,
        mut phase: impl FnMut(bool, Duration) -> Result<f64>,
    ) -> Result<()> {
        let mut rates = [Vec::new(), Vec::new()];
        // The first round warms up.
        for round in 0..=self.rounds {
            for (rates, hostile) in rates.iter_mut().zip([false, true]) {
                let rate = phase(hostile, self.last)?;
                if round > 0 {
                    rates.push(rate * 8e-9);
                }
            }
        }
        let [ordinary, hostile] = rates.map(median);
        let left = if ordinary > 0.0 { hostile / ordinary } else { 0.0 };
        let verdict = if left >= ENOUGH { "" } else { "  TOO LITTLE" };
        println!("{attack:10} {ordinary:>10.2} {hostile:>10.2} {:>7.0}%{verdict}", left * 100.0);
        self.enough &= left >= ENOUGH;
        Ok(())
    }

    /// Failure if an attack left less than nine tenths.
    pub fn exit_code(&self) -> ExitCode {
        if self.enough { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Measures the growth of `count` per second while `neighbour` runs on a thread of its own. Ends the
/// neighbour by its flag.
///
/// # Errors
/// An error of the neighbour, or a panic.
pub fn beside(
    count: &AtomicU64,
    last: Duration,
    neighbour: impl FnOnce(&AtomicBool) -> Result<()> + Send,
) -> Result<f64> {
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| neighbour(&end));
        // The phase has begun.
        thread::sleep(last / 8);
        let (before, began) = (count.load(Ordering::Relaxed), Instant::now());
        thread::sleep(last);
        let grown = count.load(Ordering::Relaxed) - before;
        let rate = grown as f64 / began.elapsed().as_secs_f64();
        end.store(true, Ordering::Relaxed);
        busy.join().map_err(|_| "the neighbour panicked")??;
        Ok(rate)
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
