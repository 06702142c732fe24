//! The `servetwin` command line: parses, calls a library, prints.

// What is written goes through `output` and `message`: a closed pipe is no panic, and `--quiet` holds everywhere.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod message;

mod bad_input;
mod cluster_plot;
mod cluster_tables;
mod commands;
mod exit_code;
mod output;
mod picture;
mod plan_plot;
mod plot;
mod progress;
mod residual_plot;
mod signals;
mod simulate;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

fn main() -> ExitCode {
    let matches = commands::Cli::command().get_matches();
    let result = commands::Cli::from_arg_matches(&matches)
        .map_err(anyhow::Error::from)
        .and_then(commands::Cli::run);
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => commands::report_error(&error),
    }
}
