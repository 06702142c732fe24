//! `servetwin scenario`: what a scenario file says, and whether it is right.

use clap::Subcommand;
use sim::scenario;

use crate::exit_code;
use crate::output::{print, print_json};
use crate::simulate::{self, ScenarioArgs};

/// Show, check or describe scenario files.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the resolved scenario as TOML, every default visible.
    #[command(
        after_help = "Example:\n  servetwin scenario show scenarios/llama2-7b-g5.2xlarge-tgi.toml"
    )]
    Show(ScenarioArgs),
    /// Check that a scenario can run: keys, values, files, and that the model fits.
    #[command(
        after_help = "Example:\n  servetwin scenario check scenarios/llama2-7b-g5.2xlarge-tgi.toml"
    )]
    Check(ScenarioArgs),
    /// Print the JSON schema of scenario files, for editors.
    #[command(after_help = "Example:\n  servetwin scenario schema > scenario.schema.json")]
    Schema,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        Command::Show(file) => print(&file.load()?.show_started())?,
        Command::Check(file) => {
            let scenario = file.load()?;
            print(&simulate::check(&scenario)?)?;
        }
        Command::Schema => print_json(&scenario::schema::schema())?,
    }
    Ok(exit_code::OK)
}
