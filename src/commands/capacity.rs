//! `servetwin capacity`: how many replicas for each load.

use clap::ValueEnum;
use planner::capacity::{MULTIPLES, own_conditions, table};
use planner::conditions::Condition;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};
use crate::progress;
use crate::simulate::ScenarioArgs;

/// Most loads of a table.
const MAX_LOADS: usize = 1_000;

/// How the table is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For a terminal.
    #[default]
    Text,
    /// For a ticket.
    Markdown,
    /// For a spreadsheet.
    Csv,
    /// One JSON object (docs/machine-contracts.md).
    Json,
}

/// How many replicas each load takes, with one to spare: the table that goes into a ticket.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin capacity scenarios/llama2-7b-g5.2xlarge-tgi.toml
  servetwin capacity scenarios/qwen3-14b-h100-vllm.toml --slo 'ttft.p99 < 500 ms' --scales 0.5,1,2,4 --format markdown")]
pub struct Args {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// An objective such as 'ttft.p99 < 500 ms', in place of the scenario's. Repeatable.
    #[arg(long, value_name = "CONDITION")]
    slo: Vec<String>,
    /// Multiples of the scenario's load, comma-separated.
    #[arg(long, value_delimiter = ',', value_name = "X,...")]
    scales: Vec<f64>,
    /// How to print it.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let scenario = args.scenario.load()?;
    let conditions = if args.slo.is_empty() {
        own_conditions(&scenario)?
    } else {
        args.slo
            .iter()
            .map(|c| Condition::parse(c).map_err(planner::Error::from))
            .collect::<Result<_, _>>()?
    };
    if args.scales.len() > MAX_LOADS {
        return Err(BadInput(format!(
            "{} loads; at most {MAX_LOADS} make a table",
            args.scales.len()
        ))
        .into());
    }
    let scales: &[f64] = if args.scales.is_empty() {
        &MULTIPLES
    } else {
        &args.scales
    };
    let bar = progress::runs(scales.len() as u64, "loads");
    let found = table(
        &planner::World::default(),
        &scenario,
        &conditions,
        scales,
        &|done: u64, _| bar.set_position(done),
    )?;
    bar.finish_and_clear();
    match if args.json { Format::Json } else { args.format } {
        Format::Text => print(&found.render())?,
        Format::Markdown => print(&found.markdown())?,
        Format::Csv => print(&found.csv()?)?,
        Format::Json => print_json(&found)?,
    }
    Ok(exit_code::OK)
}
