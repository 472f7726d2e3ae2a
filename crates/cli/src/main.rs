//! The `pagewire` command: a file server, a client, a proxy, a demonstration and the measurements, all on
//! the stack.
//!
//! Read [`args`] first: what there is to ask for. Each command is a module of its own name, and the
//! measurements are a crate ([`pagewire_bench`]); what they share is [`net`] (a host from the options),
//! [`http`] and [`signals`]. A command that fails
//! says why in one line and exits with status 1; [`failure`] has the rule.

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
