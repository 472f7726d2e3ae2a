//! The `pagewire` command: a file server, a client, a proxy, a gateway for programs, a
//! demonstration, measurements.
//!
//! Read [`args`] first. Each command is a module of its own name, and the measurements are a crate
//! ([`pagewire_bench`]); they share [`net`] (a host from the options), [`http`] and [`signals`].
//! [`failure`] has the rule for errors.

#![deny(unsafe_code)]

mod args;
mod demo;
mod failure;
mod fetch;
mod gateway;
mod guest;
mod http;
mod limits;
mod log;
mod lost;
mod net;
mod places;
mod processes;
mod proxy;
mod run;
mod serve;
mod signals;
mod ss;
mod stream;
mod sys;
mod top;
mod user;
mod view;

use std::process::ExitCode;

use clap::Parser;
use pagewire_bench::BenchOptions;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    if let Some(code) = pagewire_gateway::netns::inside() {
        return code;
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| run::end_usage(&error));
    if let Err(failure) = log::begin(cli.verbose, cli.log_level.as_deref()) {
        return failure.report();
    }
    let done = match cli.command {
        Command::Demo(options) => demo::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Fetch(options) => fetch::run(&options),
        Command::Proxy(options) => proxy::run(&options),
        Command::Gateway(options) => gateway::run(&options),
        Command::Run(options) => return run::run(&options),
        Command::Ss(options) => ss::run(&options),
        Command::Top(options) => top::run(&options),
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
