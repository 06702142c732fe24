//! `servetwin view`: starts the viewer, which is a program of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::commands::BadInput;
use crate::exit_code;

/// Name of the viewer's program.
const PROGRAM: &str = "servetwin-viewer";

/// Open the viewer: a run as a picture, with what limits it and what would change it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin view                                             # a gallery of scenarios
  servetwin view scenarios/llama2-7b-g5.2xlarge-tgi.toml     # runs it and shows it
  servetwin view run.servetwin                               # a record that run --record wrote

Needs the program servetwin-viewer beside servetwin or on PATH: docs/viewer.md.
Exit codes: 0 ok, 1 failure, 2 bad input.")]
pub struct Args {
    /// Scenario (.toml) or record (.servetwin); none: the gallery.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Light colours.
    #[arg(long)]
    light: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    if let Some(file) = args.file.as_ref().filter(|f| !f.is_file()) {
        return Err(BadInput(format!(
            "{} is not there, or is no file; name a scenario (.toml) or a record (.servetwin)",
            file.display()
        ))
        .into());
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = found(beside.as_deref(), std::env::split_paths(&path)).ok_or_else(|| {
        anyhow::anyhow!(
            "the viewer is not installed: there is no `{PROGRAM}` beside servetwin or on PATH; build it in the repository with \
             `cargo install --path viewer --locked` (docs/viewer.md), or print the figures with `servetwin report FILE`"
        )
    })?;
    let mut command = Command::new(&program);
    command.args(args.light.then_some("--light"));
    command.args(&args.file);
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok(match status.code() {
        Some(0) => exit_code::OK,
        Some(2) => exit_code::BAD_INPUT,
        _ => exit_code::FAILURE,
    })
}

/// The viewer in the folder `beside`, else in the first folder of `path` that has it.
fn found(beside: Option<&Path>, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    beside
        .map(Path::to_owned)
        .into_iter()
        .chain(path)
        .map(|dir| dir.join(PROGRAM))
        .find(|file| file.is_file())
}
