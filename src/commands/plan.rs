//! `servetwin plan`: what to deploy for a model, a load and objectives.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use deploy::Target;
use planner::plan::quick::Quick;
use planner::plan::{self, Answer, Options, Part, Question, answer};
use planner::sweep::Shard;
use sim::scenario::Scenario;

use crate::bad_input::BadInput;
use crate::commands::export;
use crate::commands::shard::ShardArgs;
use crate::exit_code;
use crate::output::{self, print, print_json, write_text};
use crate::picture;
use crate::plan_plot;
use crate::progress;

/// Most draws: each simulates all finalists.
const MAX_DRAWS: u64 = 1_000;
/// Longest part that is read [bytes].
const MAX_PART_BYTES: u64 = 1 << 30;

/// Find the cheapest deployment that serves a load within its objectives, and say how sure that is.
///
/// A planning question is a scenario in which instance types, layouts, engine limits, dtypes and routers may be lists of alternatives
/// (docs/planning.md). Without a file the question is --model, --rate or --users, --prompt, --output and --slo; --show prints it as a file.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_code::help("Examples:
  servetwin plan plans/chat.toml
  servetwin plan --model llama-3.1-8b --rate '40 req/s' --prompt 1000 --output 300 --slo 'ttft.p99 < 500 ms' --instance 'g6e.*,p5.*'
  servetwin plan --model qwen3-32b --rate '10 req/s' --prompt 3000 --output 300 --slo 'ttft.p95 < 1 s' --slo 'tpot.p95 < 40 ms' --gpu H100,H200
  servetwin plan --model llama-3.1-8b --users 200 --think-time '10 s' --prompt 1000 --output 300 --slo 'ttft.p95 < 1 s' --slo 'tpot.p95 < 40 ms' --instance L40S
  servetwin plan plans/chat.toml --set plan.redundancy=none --scenario winner.toml --csv ranking.csv --plot ranking.svg
  servetwin plan plans/chat.toml --export k8s -o deployment
  servetwin plan plans/chat.toml --shard 1/2 --out parts && servetwin plan plans/chat.toml --shard 2/2 --out parts && servetwin merge plans/chat.toml parts", &[exit_code::EXPECTATION_NOT_MET], &[(exit_code::EXPECTATION_NOT_MET, "no deployment holds")]))]
pub struct Args {
    /// Planning question (TOML; docs/planning.md).
    #[arg(value_name = "FILE", required_unless_present = "model")]
    file: Option<PathBuf>,
    /// Override a value of the question, e.g. 'plan.budget=20 USD/h'. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Model in the catalog (servetwin catalog list).
    #[arg(long, value_name = "NAME", conflicts_with = "file", requires_all = ["load", "prompt", "output", "slo"])]
    model: Option<String>,
    /// Rate of the requests: '40 req/s', or 40.
    #[arg(long, value_name = "RATE", conflicts_with = "file", group = "load")]
    rate: Option<String>,
    /// Users in place of a rate: each sends when the last answer has come.
    #[arg(long, value_name = "N", conflicts_with = "file", group = "load", value_parser = clap::value_parser!(u32).range(1..))]
    users: Option<u32>,
    /// Mean pause of a user between an answer and the next request, e.g. '20 s'; exponential. Default: none.
    #[arg(long, value_name = "TIME", requires = "users")]
    think_time: Option<String>,
    /// Prompt length: tokens, or a distribution such as '{ kind = "lognormal", mean = 1000, std = 800 }'.
    #[arg(
        long,
        alias = "prompt-tokens",
        value_name = "LENGTH",
        conflicts_with = "file"
    )]
    prompt: Option<String>,
    /// Output length, likewise.
    #[arg(
        long,
        alias = "output-tokens",
        value_name = "LENGTH",
        conflicts_with = "file"
    )]
    output: Option<String>,
    /// An objective such as 'ttft.p99 < 500 ms'. Repeatable.
    #[arg(long, value_name = "CONDITION", conflicts_with = "file")]
    slo: Vec<String>,
    /// Instance types that are allowed, comma-separated; * stands for any text, an accelerator such as H100 for all types with it. Default: all with a price.
    #[arg(
        long,
        value_name = "TYPE,...",
        value_delimiter = ',',
        conflicts_with = "file"
    )]
    instance: Vec<String>,
    /// Count accelerators in place of instances, e.g. H100,H200: a replica takes those of its layout alone.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        conflicts_with = "file"
    )]
    gpu: Vec<String>,
    /// Price of one of them, e.g. '2.5 USD/h'. Default: the lowest share of an instance type's.
    #[arg(long, value_name = "PRICE", requires = "gpu")]
    gpu_price: Option<String>,
    /// Engines to try, comma-separated: vllm, sglang, trt_llm, tgi, tgi_neuron. Default: vLLM, and on Inferentia and Trainium what runs there.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        conflicts_with = "file"
    )]
    engine: Vec<String>,
    /// Format of the weights: bf16, fp8, int8, int4. Default: that of the model as published.
    #[arg(long, value_name = "FORMAT", conflicts_with = "file")]
    weights: Option<String>,
    /// Try the winner under a HorizontalPodAutoscaler, and write --scenario with it, its node group and its cluster.
    #[arg(long)]
    autoscale: bool,
    /// Most that it may cost, e.g. '20 USD/h'.
    #[arg(long, value_name = "PRICE", conflicts_with = "file")]
    budget: Option<String>,
    /// What may be lost while the objectives hold: none, n+1 (a replica), 'n+1 instance'.
    #[arg(long, value_name = "WHAT", conflicts_with = "file")]
    redundancy: Option<String>,
    /// Leave out engines on accelerators of which no run was ever compared with a prediction (plan.measured_only).
    #[arg(long)]
    measured_only: bool,
    /// Print the question as a file instead of answering it.
    #[arg(long, conflicts_with = "file")]
    show: bool,
    /// Simulate every candidate under the whole load instead of racing.
    #[arg(long)]
    exhaustive: bool,
    /// Draws of what the profiles do not know, for the doubt; 0: none.
    #[arg(long, default_value_t = Options::default().draws, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=MAX_DRAWS))]
    draws: u64,
    #[command(flatten)]
    shard: ShardArgs,
    /// Folder of the parts that --shard and --shards make.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    to: Output,
}

/// Where the answer goes.
#[derive(Debug, clap::Args)]
pub struct Output {
    /// Print one JSON object (docs/machine-contracts.md).
    #[arg(long)]
    json: bool,
    /// Write a plan's ranking as a table.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a plan's ranking as a picture, latency over price: .svg or .png.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write a plan's winner as a scenario that runs.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Write a plan's winner as the files that deploy it, as servetwin export does: k8s, vllm, ... Needs -o.
    #[arg(long, value_name = "TARGET", value_parser = export::target, requires = "export_dir")]
    export: Option<Target>,
    /// Folder of those files.
    #[arg(short = 'o', long, value_name = "DIR", requires = "export")]
    export_dir: Option<PathBuf>,
}

impl Output {
    /// Whether standard output is to be JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether files of a plan are asked for.
    pub fn has_files(&self) -> bool {
        self.csv.is_some()
            || self.plot.is_some()
            || self.scenario.is_some()
            || self.export.is_some()
    }

    fn check(&self) -> anyhow::Result<()> {
        for file in self.csv.iter().chain(&self.scenario) {
            output::check(file)?;
        }
        if let Some(file) = &self.plot {
            picture::check(file)?;
        }
        Ok(())
    }

    /// Writes the files and prints the answer.
    fn tell(&self, found: &Answer) -> anyhow::Result<u8> {
        if let Some(file) = &self.csv {
            write_text(file, &found.report.csv()?)?;
        }
        if let Some(file) = &self.plot {
            picture::write(file, &plan_plot::plan_svg(&found.report)?)?;
        }
        if let Some(file) = &self.scenario {
            match &found.scenario {
                Some(text) => write_text(file, text)?,
                None => note!("note: {} is not written: nothing holds", file.display()),
            }
        }
        if let (Some(target), Some(dir)) = (self.export, &self.export_dir) {
            self.deploy(found, target, dir)?;
        }
        if self.json {
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
}

impl Output {
    /// Writes the winner's files for `target` into `dir`.
    fn deploy(&self, found: &Answer, target: Target, dir: &Path) -> anyhow::Result<()> {
        let Some(text) = &found.scenario else {
            note!("note: {} is not written: nothing holds", dir.display());
            return Ok(());
        };
        let scenario =
            Scenario::parse(text, "the winner", &[]).map_err(|e| BadInput(e.to_string()))?;
        let exported = deploy::export(&scenario, target).map_err(|e| BadInput(e.to_string()))?;
        export::write(&exported, dir)?;
        export::tell_not_said(&exported);
        Ok(())
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let question = match (&args.file, args.model.clone()) {
        (Some(file), _) => {
            output::reads([file]);
            let mut set = args.set.clone();
            if args.measured_only {
                set.push("plan.measured_only=true".to_owned());
            }
            if args.autoscale {
                set.push("plan.autoscaled=true".to_owned());
            }
            Question::load(file, &set)?
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
    let options = Options {
        exhaustive: args.exhaustive,
        draws: args.draws,
    };
    match (args.shard.part()?, &args.out) {
        (None, None) => {}
        (Some(shard), Some(dir)) if !args.to.json && !args.to.has_files() => {
            return part(&question, options, shard, dir);
        }
        (Some(_), Some(_)) => {
            let why = "a part has no ranking yet: give --json, --csv, --plot, --scenario and --export to servetwin merge";
            return Err(BadInput(why.into()).into());
        }
        (Some(_), None) => {
            return Err(BadInput("--shard: name a folder for the part with --out".into()).into());
        }
        (None, Some(_)) => {
            return Err(
                BadInput("--out is the folder of parts: give --shard I/N too".into()).into(),
            );
        }
    }
    args.to.check()?;
    let bar = progress::spinner("");
    let found = answer(&question, options, &|what: &str| {
        bar.set_message(what.to_owned())
    })?;
    bar.finish_and_clear();
    args.to.tell(&found)
}

/// Makes one part of the search.
fn part(question: &Question, options: Options, shard: Shard, dir: &Path) -> anyhow::Result<u8> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let file = dir.join(Part::file(shard));
    output::check(&file)?;
    let bar = progress::spinner("");
    let made = plan::part(question, options, shard, &|what: &str| {
        bar.set_message(what.to_owned())
    })?;
    bar.finish_and_clear();
    let text = serde_json::to_string(&made).context("a part cannot be written")?;
    write_text(&file, &(text + "\n"))?;
    print(&format!(
        "shard {}/{}: {} of its {} candidates hold\n",
        shard.index,
        shard.count,
        made.settled.len(),
        made.counts.candidates
    ))?;
    Ok(exit_code::OK)
}

/// Puts the parts in `dirs` together.
///
/// # Errors
/// [`BadInput`] for parts that are missing, damaged, or of another question.
pub fn merge(file: &Path, set: &[String], dirs: &[PathBuf], to: &Output) -> anyhow::Result<u8> {
    let question = Question::load(file, set)?;
    to.check()?;
    let mut parts = Vec::new();
    for dir in dirs {
        let entries = std::fs::read_dir(dir)
            .map_err(|e| BadInput(format!("cannot read {}: {e}", dir.display())))?;
        let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        files.retain(|f| is_part(f));
        files.sort();
        for file in files {
            parts.push(read_part(&file)?);
        }
    }
    let bar = progress::spinner("");
    let found = plan::merge(&question, &parts, &|what: &str| {
        bar.set_message(what.to_owned())
    })?;
    bar.finish_and_clear();
    to.tell(&found)
}

/// Whether a file is called `plan-1-of-8.json`.
fn is_part(file: &Path) -> bool {
    let name = file.file_name().map(|n| n.to_string_lossy().into_owned());
    name.is_some_and(|n| n.starts_with("plan-") && n.contains("-of-") && n.ends_with(".json"))
}

fn read_part(file: &Path) -> anyhow::Result<Part> {
    let wrong = |e: &dyn std::fmt::Display| {
        BadInput(format!(
            "{} is no part of a plan: {e}; remove it and make it again",
            file.display()
        ))
    };
    output::reads([file]);
    let mut text = String::new();
    let open = std::fs::File::open(file).map_err(|e| wrong(&e))?;
    open.take(MAX_PART_BYTES)
        .read_to_string(&mut text)
        .map_err(|e| wrong(&e))?;
    serde_json::from_str(&text).map_err(|e| wrong(&e).into())
}

fn quick(args: &Args, model: String) -> Quick {
    Quick {
        model,
        rate: args.rate.clone().unwrap_or_default(),
        users: args.users,
        think_time: args.think_time.clone(),
        gpus: args.gpu.clone(),
        gpu_price: args.gpu_price.clone(),
        engines: args.engine.clone(),
        weights: args.weights.clone(),
        autoscaled: args.autoscale,
        prompt: args.prompt.clone().unwrap_or_default(),
        output: args.output.clone().unwrap_or_default(),
        slo: args.slo.clone(),
        instances: args.instance.clone(),
        budget: args.budget.clone(),
        redundancy: args.redundancy.clone(),
        measured_only: args.measured_only,
    }
}
