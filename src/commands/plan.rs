//! `servetwin plan`: what to deploy for a model, a load and objectives.

use std::path::PathBuf;

use planner::plan::quick::Quick;
use planner::plan::{Options, Question, answer};

use crate::commands::BadInput;
use crate::exit_code;
use crate::output::{self, print, print_json, write_text};
use crate::picture;
use crate::plan_plot;
use crate::progress;

/// Most draws: each simulates all finalists.
const MAX_DRAWS: u64 = 1_000;

/// Find the cheapest deployment that serves a load within its objectives, and say how sure that is.
///
/// A planning question is a scenario in which instance types, layouts, engine limits, dtypes and routers may be lists of alternatives
/// (docs/planning.md). Without a file the question is --model, --rate, --prompt, --output and --slo; --show prints it as a file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin plan plans/chat.toml
  servetwin plan --model llama-3.1-8b --rate '40 req/s' --prompt 1000 --output 300 --slo 'ttft.p99 < 500 ms' --instance 'g6e.*,p5.*'
  servetwin plan plans/chat.toml --set plan.redundancy=none --scenario winner.toml --csv ranking.csv --plot ranking.svg

Exit codes: 0 ok, 1 failure, 2 bad input, 3 no deployment holds.")]
pub struct Args {
    /// Planning question (TOML; docs/planning.md).
    #[arg(value_name = "FILE", required_unless_present = "model")]
    file: Option<PathBuf>,
    /// Override a value of the question, e.g. 'plan.budget=20 USD/h'. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Model in the catalog (servetwin catalog list).
    #[arg(long, value_name = "NAME", conflicts_with = "file", requires_all = ["rate", "prompt", "output", "slo"])]
    model: Option<String>,
    /// Rate of the requests, e.g. '40 req/s'.
    #[arg(long, value_name = "RATE", conflicts_with = "file")]
    rate: Option<String>,
    /// Prompt length: tokens, or a distribution such as '{ kind = "lognormal", mean = 1000, std = 800 }'.
    #[arg(long, value_name = "LENGTH", conflicts_with = "file")]
    prompt: Option<String>,
    /// Output length, likewise.
    #[arg(long, value_name = "LENGTH", conflicts_with = "file")]
    output: Option<String>,
    /// An objective such as 'ttft.p99 < 500 ms'. Repeatable.
    #[arg(long, value_name = "CONDITION", conflicts_with = "file")]
    slo: Vec<String>,
    /// Instance types that are allowed, comma-separated; * stands for any text. Default: all with a price.
    #[arg(
        long,
        value_name = "TYPE,...",
        value_delimiter = ',',
        conflicts_with = "file"
    )]
    instance: Vec<String>,
    /// Most that it may cost, e.g. '20 USD/h'.
    #[arg(long, value_name = "PRICE", conflicts_with = "file")]
    budget: Option<String>,
    /// What may be lost while the objectives hold: none, n+1 (a replica), 'n+1 instance'.
    #[arg(long, value_name = "WHAT", conflicts_with = "file")]
    redundancy: Option<String>,
    /// Print the question as a file instead of answering it.
    #[arg(long, conflicts_with = "file")]
    show: bool,
    /// Simulate every candidate under the whole load instead of racing.
    #[arg(long)]
    exhaustive: bool,
    /// Draws of what the profiles do not know, for the doubt; 0: none.
    #[arg(long, default_value_t = Options::default().draws, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=MAX_DRAWS))]
    draws: u64,
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
    /// Write the ranking as a table.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the ranking as a picture, latency over price: .svg or .png.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write the winner as a scenario that runs.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let question = match (&args.file, args.model.clone()) {
        (Some(file), _) => {
            output::reads([file]);
            Question::load(file, &args.set)?
        }
        (None, Some(model)) => {
            let text = quick(&args, model).to_toml()?;
            if args.show {
                print(&text)?;
                return Ok(exit_code::OK);
            }
            Question::parse(&text, "command line", &args.set)?
        }
        (None, None) => {
            return Err(BadInput("name a planning question, or give --model".into()).into());
        }
    };
    for file in args.csv.iter().chain(&args.scenario) {
        output::check(file)?;
    }
    if let Some(file) = &args.plot {
        picture::check(file)?;
    }
    let options = Options {
        exhaustive: args.exhaustive,
        draws: args.draws,
    };
    let bar = progress::spinner("");
    let found = answer(&question, options, &|what: &str| {
        bar.set_message(what.to_owned())
    })?;
    bar.finish_and_clear();
    if let Some(file) = &args.csv {
        write_text(file, &found.report.csv()?)?;
    }
    if let Some(file) = &args.plot {
        picture::write(file, &plan_plot::plan_svg(&found.report)?)?;
    }
    if let Some(file) = &args.scenario {
        match &found.scenario {
            Some(text) => write_text(file, text)?,
            None => note!("note: {} is not written: nothing holds", file.display()),
        }
    }
    if args.json {
        print_json(&found.report)?;
    } else {
        print(&found.report.render())?;
    }
    Ok(if found.report.winner.is_some() {
        exit_code::OK
    } else {
        exit_code::EXPECTATION_NOT_MET
    })
}

fn quick(args: &Args, model: String) -> Quick {
    Quick {
        model,
        rate: args.rate.clone().unwrap_or_default(),
        prompt: args.prompt.clone().unwrap_or_default(),
        output: args.output.clone().unwrap_or_default(),
        slo: args.slo.clone(),
        instances: args.instance.clone(),
        budget: args.budget.clone(),
        redundancy: args.redundancy.clone(),
    }
}
