//! `servetwin replay`: a step log of the engine through the simulator.

use std::path::PathBuf;

use engine::replay::{ReplayError, read, replay};

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};

/// Check that the simulator schedules a step log's requests as the engine did, given the measured step times.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_code::help("Example:
  servetwin serve --step-log steps.csv   # load it, stop it, then
  servetwin replay steps.csv", &[], &[(exit_code::OK, "the same schedule"), (exit_code::FAILURE, "another one")]))]
pub struct Args {
    /// The step log; its requests and policy are read from the files beside it.
    log: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let log = read(&args.log).map_err(|e| match e {
        e @ ReplayError::Run(_) => anyhow::Error::from(e),
        e => BadInput(e.to_string()).into(),
    })?;
    let compared = replay(&log)?;
    if args.json {
        print_json(&compared)?;
    } else {
        for c in &compared {
            let verdict = c.difference.as_deref().unwrap_or("the same schedule");
            print(&format!(
                "replica {}: {} steps, {} requests, {} tokens: {verdict}\n",
                c.replica, c.steps, c.requests, c.tokens
            ))?;
        }
    }
    let same = compared.iter().all(|c| c.difference.is_none());
    Ok(if same {
        exit_code::OK
    } else {
        exit_code::FAILURE
    })
}
