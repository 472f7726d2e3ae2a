//! The `pagewire` command: a file server, a client, a proxy, a demonstration, measurements.
//!
//! Read [`args`] first. Each command is a module of its own name, and the measurements are a crate
//! ([`pagewire_bench`]); they share [`net`] (a host from the options), [`http`] and [`signals`].
//! [`failure`] has the rule for errors.

#![deny(unsafe_code)]

mod args;
mod demo;
mod failure;
mod fetch;
mod http;
mod limits;
mod lost;
mod net;
mod places;
mod proxy;
mod serve;
mod signals;
mod stream;
mod sys;

use std::process::ExitCode;

use clap::Parser;
use pagewire_bench::BenchOptions;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Fetch(options) => fetch::run(&options),
        Command::Proxy(options) => proxy::run(&options),
        Command::Bench(options) => bench(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn bench(options: &BenchOptions) -> Result<(), Failure> {
    signals::end_at_interrupt()?;
    Ok(pagewire_bench::run(options)?)
}
