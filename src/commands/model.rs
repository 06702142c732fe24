//! `servetwin model`: models for the bundled engine.

use std::path::PathBuf;

use clap::Subcommand;
use engine::model::init::{DEFAULT_SEED, write};
use engine::model::{ModelError, ModelFacts, ModelOptions, inspect, load};
use engine::step_log::LogFacts;
use engine::timing::{self, Kind, TimedStep, TimingOptions};
use kernels::dtype::WeightDtype;
use serde_json::json;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self, print, print_json};
use crate::progress;

mod compare;

/// Make models for `servetwin serve`, and time their steps.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  servetwin model init --params 30M --seed 1 ./model && servetwin serve ./model"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a Llama model with random weights: the files that a model hub would hold, with a byte-level tokenizer.
    #[command(after_help = "Example:\n  servetwin model init --params 30M --seed 1 ./model")]
    Init(Init),
    /// Time forward passes alone, without a server: prompts and decodes of several sizes, on any layout.
    #[command(after_help = "Examples:
  servetwin model time ./model
  servetwin model time ./model --tp 2 --rounds 100 --step-log tp2.csv   # what the all-reduces take, for `calibrate steps`
  servetwin model time ./model --compare                                # matrix products beside what the machine can do")]
    Time(Time),
}

#[derive(Debug, clap::Args)]
struct Init {
    /// Folder to write; made if it is not there.
    dir: PathBuf,
    /// Parameters, about: 100K to 20B.
    #[arg(long, value_name = "COUNT", default_value = "30M", value_parser = count)]
    params: u64,
    /// Seed of the weights: the same seed gives the same bytes on every machine.
    #[arg(long, default_value_t = DEFAULT_SEED)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Time {
    /// Folder of the model [default: the built-in one].
    dir: Option<PathBuf>,
    /// Tensor-parallel ranks.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    tp: u32,
    /// Pipeline stages; a step goes through all of them before the next begins.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pp: u32,
    /// Threads of each rank.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Format of weights and KV cache: f32, bf16, f16 [default: the files'].
    #[arg(long)]
    dtype: Option<WeightDtype>,
    /// Lengths of prompts, with commas between them [tokens].
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "16,32,64,128,256,512",
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    prompts: Vec<u32>,
    /// Numbers of sequences that decode together, with commas between them.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,16",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    batches: Vec<u32>,
    /// KV of each sequence when it begins to decode [tokens].
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536))]
    context: u32,
    /// Steps of each size that count.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Log every step to FILE, as `servetwin serve --step-log` does.
    #[arg(long, value_name = "FILE")]
    step_log: Option<PathBuf>,
    /// Time the matrix products alone, with each instruction set that this machine has and in each number format, beside
    /// the memory's bandwidth and the peak of arithmetic, which are measured too. Taken are the fewest and the most of
    /// `--batches`, and the longest of `--prompts`.
    #[arg(long, conflicts_with_all = ["tp", "pp", "dtype", "context", "rounds", "step_log"])]
    compare: bool,
    /// Print JSON: a list, one object for each size; with `--compare` one object.
    #[arg(long)]
    json: bool,
}

/// A count with a suffix K, M or B.
fn count(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, scale) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1e3),
        Some('m' | 'M') => (&text[..text.len() - 1], 1e6),
        Some('b' | 'B') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(n) if n > 0.0 && n * scale < 1e15 => Ok((n * scale) as u64),
        _ => Err("write a count such as 30M or 1.5B".into()),
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.command {
        Command::Init(init) => make(&init),
        Command::Time(time) => measure(&time),
    }
}

fn make(init: &Init) -> anyhow::Result<u8> {
    let steps = 1000;
    let bar = progress::runs(steps, "weights");
    let config = write(&init.dir, init.params, init.seed, &mut |done| {
        bar.set_position((done * steps as f64) as u64);
    });
    bar.finish_and_clear();
    let config = config.map_err(told)?;
    if init.json {
        print_json(&json!({
            "dir": init.dir,
            "parameters": config.parameters(),
            "layers": config.layers,
            "hidden_size": config.hidden,
            "seed": init.seed,
        }))?;
    } else {
        print(&format!(
            "{}: {} parameters, {} layers of width {}\n",
            init.dir.display(),
            config.parameters(),
            config.layers,
            config.hidden
        ))?;
    }
    Ok(exit_code::OK)
}

fn told(e: ModelError) -> anyhow::Error {
    match e {
        e @ ModelError::Options(_) => BadInput(e.to_string()).into(),
        e => e.into(),
    }
}

const GIB: u64 = 1 << 30;
/// Largest KV cache that steps are timed with: a machine of a few cores has this much to spare.
const MOST_KV_BYTES: u64 = 8 * GIB;

/// What the steps of one size took.
#[derive(serde::Serialize)]
struct Row {
    kind: Kind,
    /// Tokens that a step computes: of its prompt, or one for each sequence.
    size: u32,
    median_s: f64,
    /// The shortest step: what the machine does when nothing disturbs it.
    best_s: f64,
    best_tokens_per_s: f64,
    /// Medians of the parts.
    linear_s: f64,
    lm_head_s: f64,
    attention_s: f64,
    elementwise_s: f64,
    communication_s: f64,
}

impl Row {
    fn of(steps: &[&TimedStep]) -> Option<Row> {
        let first = steps.first()?;
        let median = |get: fn(&TimedStep) -> f64| {
            calibrate::statistics::median(steps.iter().map(|s| get(s)).collect()).unwrap_or(0.0)
        };
        let best_s = steps
            .iter()
            .map(|s| s.seconds)
            .fold(f64::INFINITY, f64::min);
        Some(Row {
            kind: first.kind,
            size: first.size,
            median_s: median(|s| s.seconds),
            best_s,
            best_tokens_per_s: f64::from(first.size) / best_s,
            linear_s: median(|s| s.times.linear),
            lm_head_s: median(|s| s.times.lm_head),
            attention_s: median(|s| s.times.attention),
            elementwise_s: median(|s| s.times.elementwise),
            communication_s: median(|s| s.times.communication),
        })
    }
}

/// The rows for people.
fn table(args: &Time, facts: &ModelFacts, rows: &[Row]) -> String {
    let mut text = format!(
        "{}: TP {}, PP {}, {} thread(s) a rank, {:?}; medians of {} steps [ms]\n{:>8} {:>6} {:>9} {:>9} {:>9} {:>8} {:>10} {:>12} {:>13} {:>9}\n",
        facts.name,
        args.tp,
        args.pp,
        args.threads,
        facts.dtype,
        args.rounds,
        "step of",
        "tokens",
        "step",
        "best",
        "products",
        "LM head",
        "attention",
        "element-wise",
        "communication",
        "tokens/s"
    );
    for r in rows {
        let kind = match r.kind {
            Kind::Prefill => "prefill",
            Kind::Decode => "decode",
        };
        text += &format!(
            "{kind:>8} {:>6} {:>9.3} {:>9.3} {:>9.3} {:>8.3} {:>10.3} {:>12.3} {:>13.3} {:>9.0}\n",
            r.size,
            1e3 * r.median_s,
            1e3 * r.best_s,
            1e3 * r.linear_s,
            1e3 * r.lm_head_s,
            1e3 * r.attention_s,
            1e3 * r.elementwise_s,
            1e3 * r.communication_s,
            r.best_tokens_per_s
        );
    }
    text
}

fn measure(args: &Time) -> anyhow::Result<u8> {
    if args.compare {
        return compare::run(args);
    }
    let timed = TimingOptions {
        prompts: args.prompts.clone(),
        batches: args.batches.clone(),
        context: args.context,
        rounds: args.rounds,
    };
    let options = timed.sized(ModelOptions {
        dtype: args.dtype,
        threads: args.threads as usize,
        tp: args.tp as usize,
        pp: args.pp as usize,
        ..ModelOptions::default()
    });
    if let Some(log) = &args.step_log {
        output::check_step_log(log, args.dir.as_deref())?;
    }
    // Before anything is allocated.
    let facts = inspect(args.dir.as_deref(), args.dtype).map_err(told)?;
    let most = facts.config.max_position;
    let longest = timed.prompts.iter().copied().max().unwrap_or(0);
    if (longest.max(timed.context + timed.rounds + 1)) as usize > most {
        return Err(BadInput(format!(
            "--prompts, --context, --rounds: sequences of more than the model's {most} tokens"
        ))
        .into());
    }
    let kv_bytes =
        u64::from(options.num_blocks) * u64::from(options.block_size) * facts.kv_bytes_per_token;
    if kv_bytes > MOST_KV_BYTES {
        return Err(BadInput(format!(
            "--batches: {} sequences need {:.1} GiB of KV cache, more than the {} GiB that are taken at most",
            timed.batches.iter().max().unwrap_or(&0),
            kv_bytes as f64 / GIB as f64,
            MOST_KV_BYTES / GIB
        ))
        .into());
    }
    let loaded = load(args.dir.as_deref(), &options).map_err(told)?;
    let bar = progress::runs(1000, "steps");
    let mut model = loaded.executor;
    let steps = timing::time(model.as_mut(), &timed, &mut |share| {
        bar.set_position((share * 1000.0) as u64);
    })?;
    bar.finish_and_clear();
    if let Some(path) = &args.step_log {
        let facts = LogFacts {
            tp: args.tp,
            pp: args.pp,
            ..LogFacts::here(&loaded.facts, options.threads)
        };
        timing::write_log(path, &facts, &steps)?;
    }
    let sizes = timed.prompts.iter().map(|&n| (Kind::Prefill, n));
    let rows: Vec<Row> = sizes
        .chain(timed.batches.iter().map(|&n| (Kind::Decode, n)))
        .filter_map(|size| {
            let of: Vec<&TimedStep> = steps.iter().filter(|s| (s.kind, s.size) == size).collect();
            Row::of(&of)
        })
        .collect();
    if args.json {
        print_json(&rows)?;
        return Ok(exit_code::OK);
    }
    print(&table(args, &loaded.facts, &rows))?;
    Ok(exit_code::OK)
}
