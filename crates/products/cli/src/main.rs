//! The `pagewire` command: a file server, a client, a proxy, a gateway for programs, a
//! demonstration, measurements.
//!
//! Read [`args`] first. Each command is a module of [`commands`], and the measurements are a crate
//! ([`pagewire_bench`]); they share [`net`] (a host from the options), [`http`] and [`signals`].
//! [`failure`] has the rule for errors, [`dropin`] the names of other programs. Without the feature `full`, `demo` is the only command: it is
//! built in half a minute.

#![deny(unsafe_code)]
#![cfg_attr(not(feature = "full"), allow(dead_code, reason = "the demonstration uses a part"))]

#[cfg(feature = "full")]
mod activation;
mod args;
mod commands;
#[cfg(feature = "full")]
mod dropin;
mod failure;
mod http;
mod limits;
#[cfg(feature = "full")]
mod log;
#[cfg(feature = "full")]
mod net;
#[cfg(feature = "full")]
mod notify;
mod progress;
mod signals;
mod sys;
mod version;
#[cfg(feature = "full")]
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use commands::demo;
#[cfg(feature = "full")]
use commands::{check, ctl, fetch, gateway, pages, proxy, run, serve, ss, top};

fn main() -> ExitCode {
    #[cfg(feature = "full")]
    if let Some(code) = pagewire_gateway::netns::inside() {
        return code;
    }
    let words: Vec<OsString> = std::env::args_os().collect();
    #[cfg(feature = "full")]
    let (words, is_other) = match dropin::by_name(&words) {
        None => (words, false),
        Some(dropin::Start::Words(words)) => (words, true),
        Some(dropin::Start::End(code)) => return code,
    };
    #[cfg(not(feature = "full"))]
    let is_other = false;
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| end_usage(error, is_other));
    #[cfg(feature = "full")]
    if let Err(failure) = log::begin(cli.verbose, cli.log_level.as_deref()) {
        return failure.report();
    }
    let done = match cli.command {
        Command::Demo(options) => demo::run(&options),
        #[cfg(feature = "full")]
        Command::Serve(options) => serve::run(&options),
        #[cfg(feature = "full")]
        Command::Fetch(options) => fetch::run(&options),
        #[cfg(feature = "full")]
        Command::Proxy(options) => proxy::run(&options),
        #[cfg(feature = "full")]
        Command::Gateway(options) => gateway::run(&options),
        #[cfg(feature = "full")]
        Command::Run(options) => return run::run(&options),
        #[cfg(feature = "full")]
        Command::Ss(options) => ss::run(&options),
        #[cfg(feature = "full")]
        Command::Top(options) => top::run(&options),
        #[cfg(feature = "full")]
        Command::Ctl(options) => ctl::run(&options),
        #[cfg(feature = "full")]
        Command::Bench(options) => bench(&options),
        #[cfg(feature = "full")]
        Command::Check(options) => check::run(&options),
        #[cfg(feature = "full")]
        Command::Completions(options) => pages::completions(&options),
        #[cfg(feature = "full")]
        Command::Man(options) => pages::man(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let code = failure.report();
            // Other programs have one status for all failures.
            if is_other { ExitCode::FAILURE } else { code }
        }
    }
}

/// Wrong usage. The statuses of `run` are others, and so is that of other programs.
fn end_usage(error: clap::Error, is_other: bool) -> ! {
    if is_other {
        let _ = error.print();
        std::process::exit(1);
    }
    #[cfg(feature = "full")]
    run::end_usage(error);
    #[cfg(not(feature = "full"))]
    error.exit();
}

#[cfg(feature = "full")]
fn bench(options: &pagewire_bench::BenchOptions) -> Result<(), failure::Failure> {
    signals::end_at_interrupt()?;
    Ok(pagewire_bench::run(options)?)
}
