//! `pagewire bench`: measurements whose figures can be compared.
//!
//! Each engine has its turn in every round, the first round warms up and does not count, and what
//! is printed is the median with the spread. Read [`report`] for the form, [`source`] for what is
//! sent, [`kernel`] for the kernel's sockets that run beside ours.

mod flows;
mod hub;
mod idle;
mod kernel;
mod machine;
mod path;
mod port;
mod receive;
mod report;
mod ring;
mod ring_ends;
mod rr;
mod send;
mod share;
mod source;
mod stream;

use crate::args::{Bench, BenchOptions};
use crate::failure::Failure;
use crate::signals;

/// Runs one measurement.
pub(crate) fn run(options: &BenchOptions) -> Result<(), Failure> {
    signals::end_at_interrupt()?;
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
