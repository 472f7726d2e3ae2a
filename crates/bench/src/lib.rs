//! `pagewire bench`: measurements whose figures can be compared.
//!
//! Each engine has its turn in every round, the first round warms up and does not count, and what
//! is printed is the median with the spread. Read `options` for what can be asked for, `report` for
//! the form of the results, `source` for what is sent, `meter` for how a round is measured, `hosts`
//! for our sockets and `kernel` for the kernel's that run beside them.

#![deny(unsafe_code)]

mod failure;
mod flows;
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
mod source;
mod stream;
mod sys;

pub use failure::Failure;
use options::Bench;
pub use options::{BenchOptions, EXAMPLES, size};

/// Runs one measurement, and prints its results on standard output.
///
/// # Errors
/// [`Failure`]: what was asked for makes no sense, or something could not be had.
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
    }
}
