//! The subcommands, one file each. A command takes its parsed arguments, calls a library, and returns the exit code
//! of `crate::exit_code`; what failed comes back as an error and is printed once, here.

use std::process::ExitCode;

use crate::bad_input::BadInput;
use clap::{Parser, Subcommand};

use crate::{exit_code, message, output};

pub mod api;
pub mod autoscale;
pub mod bench;
pub mod calibrate;
pub mod capacity;
pub mod catalog;
pub mod compare;
pub mod completions;
pub mod curve;
pub mod demo;
pub mod export;
pub mod hpa;
pub mod import;
pub mod man;
pub mod merge;
pub mod model;
pub mod plan;
pub mod replay;
pub mod report;
pub mod run;
pub mod scenario;
pub mod serve;
mod shard;
pub mod startup;
pub mod sweep;
pub mod trace;
pub mod twin;
pub mod validate;
pub mod view;
pub mod whatif;

/// Simulator and digital twin of LLM serving clusters.
#[derive(Debug, Parser)]
#[command(name = "servetwin", version, about, max_term_width = 110)]
#[command(after_help = exit_code::all())]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say nothing on standard error but errors: no progress, no warnings, no notes.
    #[arg(long, short, global = true)]
    quiet: bool,
}

/// A new subcommand is a file beside this one, a variant here and an arm in [`Cli::run`].
#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Curve(curve::Args),
    Compare(compare::Args),
    Plan(Box<plan::Args>),
    Whatif(whatif::Args),
    Capacity(capacity::Args),
    Sweep(sweep::Args),
    Merge(merge::Args),
    Report(report::Args),
    View(view::Args),
    Scenario(scenario::Args),
    Catalog(catalog::Args),
    Validate(validate::Args),
    Calibrate(Box<calibrate::Args>),
    Trace(trace::Args),
    Autoscale(autoscale::Args),
    Demo(demo::Args),
    Hpa(hpa::Args),
    Import(import::Args),
    Export(export::Args),
    Api(Box<api::Args>),
    Serve(Box<serve::Args>),
    Startup(Box<startup::Args>),
    Model(model::Args),
    Twin(Box<twin::Args>),
    Bench(Box<bench::Args>),
    Replay(replay::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Cli {
    /// Runs the chosen subcommand and returns the exit code.
    pub fn run(self) -> anyhow::Result<u8> {
        if self.quiet {
            message::set_quiet();
        }
        match self.command {
            Command::Run(args) => run::run(*args),
            Command::Curve(args) => curve::run(args),
            Command::Compare(args) => compare::run(args),
            Command::Plan(args) => plan::run(*args),
            Command::Whatif(args) => whatif::run(args),
            Command::Capacity(args) => capacity::run(args),
            Command::Sweep(args) => sweep::run(args),
            Command::Merge(args) => merge::run(args),
            Command::Report(args) => report::run(&args),
            Command::View(args) => view::run(&args),
            Command::Scenario(args) => scenario::run(args),
            Command::Catalog(args) => catalog::run(args),
            Command::Validate(args) => validate::run(args),
            Command::Calibrate(args) => calibrate::run(*args),
            Command::Trace(args) => trace::run(args),
            Command::Autoscale(args) => autoscale::run(args),
            Command::Demo(args) => demo::run(args),
            Command::Hpa(args) => hpa::run(args),
            Command::Import(args) => import::run(&args),
            Command::Export(args) => export::run(&args),
            Command::Api(args) => api::run(*args),
            Command::Serve(args) => serve::run(*args),
            Command::Startup(args) => startup::run(*args),
            Command::Model(args) => model::run(args),
            Command::Twin(args) => twin::run(*args),
            Command::Bench(args) => bench::run(*args),
            Command::Replay(args) => replay::run(args),
            Command::Completions(args) => completions::run(&args),
            Command::Man(args) => man::run(&args),
        }
    }
}

/// Prints an error once, on stderr, and says how the process ends.
pub fn report_error(error: &anyhow::Error) -> ExitCode {
    if output::is_closed(error) {
        return ExitCode::from(exit_code::OK);
    }
    complain!("error: {}", in_words(error));
    let bad_input = error.chain().any(|e| {
        let planner = e.downcast_ref::<planner::Error>();
        e.is::<BadInput>() || planner.is_some_and(planner::Error::is_input)
    });
    ExitCode::from(if bad_input {
        exit_code::BAD_INPUT
    } else {
        exit_code::FAILURE
    })
}

/// The error and its causes; a cause that the text before it holds already is not told again.
fn in_words(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn causes_are_told_once() {
        let refused = || std::io::Error::other("connection refused");
        let plain = anyhow::Error::new(refused()).context("reading x.csv");
        assert_eq!(in_words(&plain), "reading x.csv: connection refused");
        let holding = anyhow::Error::new(refused()).context("no answer: connection refused");
        assert_eq!(in_words(&holding), "no answer: connection refused");
    }
}
