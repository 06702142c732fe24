//! `servetwin model`: models for the bundled engine.

use std::path::PathBuf;

use clap::Subcommand;
use engine::model::ModelError;
use engine::model::init::{DEFAULT_SEED, write};
use serde_json::json;

use crate::commands::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};
use crate::progress;

/// Make models for `servetwin serve`.
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
    let Command::Init(init) = args.command;
    let steps = 1000;
    let bar = progress::runs(steps, "weights");
    let config = write(&init.dir, init.params, init.seed, &mut |done| {
        bar.set_position((done * steps as f64) as u64);
    });
    bar.finish_and_clear();
    let config = config.map_err(|e| match e {
        e @ ModelError::Options(_) => anyhow::Error::from(BadInput(e.to_string())),
        e => e.into(),
    })?;
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
