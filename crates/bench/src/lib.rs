//! `pagewire bench`: measurements whose figures can be compared. Every engine runs in every round;
//! the first round warms up; medians are printed with the spread. Read `report` (results), `source`
//! (what is sent), `meter` (a round), `hosts` (our sockets) and `kernel` first.

#![deny(unsafe_code)]

mod failure;
mod flows;
mod gateway;
mod hosts;
mod hub;
mod idle;
mod kernel;
mod machine;
mod meter;
mod options;
mod path;
mod port;
mod receive;
mod report;
mod ring;
mod rr;
mod send;
mod share;
mod sim;
mod source;
mod stream;
mod sys;

pub use failure::{Failure, say};
use options::Bench;
pub use options::{BenchOptions, EXAMPLES, size};

/// Runs one measurement, and prints its results on standard output.
///
/// # Errors
/// [`Failure`]: options make no sense, or something is missing on this machine.
pub fn run(options: &BenchOptions) -> Result<(), Failure> {
    match &options.bench {
        Bench::Stream(options) => stream::run(options),
        Bench::Send(options) => send::run(options),
        Bench::Path(options) => path::run(options),
        Bench::Receive(options) => receive::run(options),
        Bench::Share(options) => share::run(options),
        Bench::Ring(options) => ring::run(options),
        Bench::Rr(options) => rr::run(options),
        Bench::Idle(options) => idle::run(options),
        Bench::Port(options) => port::run(options),
        Bench::Gateway(options) => gateway::run(options),
        Bench::Sim(options) => sim::run(options),
    }
}
