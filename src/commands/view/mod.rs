//! `servetwin view`: starts the viewer, which is a program of its own, or serves it as a page.

mod web;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::bad_input::BadInput;
use crate::exit_code;

/// Name of the viewer's program.
const PROGRAM: &str = "servetwin-viewer";

/// Open the viewer: a run as a picture, with what limits it and what would change it.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_code::help("Examples:
  servetwin view                                             # a gallery of scenarios
  servetwin view scenarios/llama2-7b-g5.2xlarge-tgi.toml     # runs it and shows it
  servetwin view run.servetwin                               # a record that run --record wrote
  servetwin view before.toml after.toml                      # runs held against each other; the first is shown
  servetwin view plan.json                                   # candidates of a plan (plan --json) or a sweep (results.json)
  servetwin view --twin 127.0.0.1:9100                       # a twin as it goes on (twin --metrics 127.0.0.1:9100)
  servetwin view --web run.servetwin                         # in a browser: prints the address

Needs the program servetwin-viewer beside servetwin or on PATH; --web needs one with the page built in, or a folder with the page, which
viewer/web/build.sh makes: docs/viewer.md.", &[], &[]))]
pub struct Args {
    /// Scenario (.toml), record (.servetwin), result of a plan or a sweep (.json, .csv), or folder of bench --csv; none: the gallery;
    /// several: the first is shown, the others are held against it.
    #[arg(value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Light colours.
    #[arg(long)]
    light: bool,
    /// Connect to the twin that serves its metrics at this address (twin --metrics).
    #[arg(long, value_name = "ADDRESS")]
    twin: Option<String>,
    /// Serve the viewer as a page on 127.0.0.1 until Ctrl-C, and print its address.
    #[arg(long)]
    web: bool,
    /// Folder with the page's files. Default: servetwin-web beside servetwin, else what is built into servetwin-viewer.
    #[arg(long, value_name = "DIR", requires = "web")]
    files: Option<PathBuf>,
    /// Port of the page; 0: any that is free.
    #[arg(long, value_name = "PORT", requires = "web", default_value_t = 0)]
    port: u16,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    if let Some(file) = args.file.iter().find(|f| !f.exists()) {
        return Err(BadInput(format!(
            "{} is not there; name a scenario (.toml), a record (.servetwin), the result of a plan or a sweep, or a folder of bench --csv",
            file.display()
        ))
        .into());
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.to_owned()));
    if args.web && args.file.len() > 1 {
        return Err(BadInput(
            "--web opens one file; drop the others on the page, or use the viewer's own window"
                .to_owned(),
        )
        .into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = found(beside.as_deref(), std::env::split_paths(&path));
    if args.web {
        return web::run(args, beside.as_deref(), program.as_deref());
    }
    let program = program.ok_or_else(|| {
        anyhow::anyhow!(
            "the viewer is not installed: there is no `{PROGRAM}` beside servetwin or on PATH; build it in the repository with \
             `cargo install --path viewer --locked` (docs/viewer.md), or print the figures with `servetwin report FILE`"
        )
    })?;
    let mut command = Command::new(&program);
    command.args(args.light.then_some("--light"));
    command.args(
        args.twin
            .iter()
            .flat_map(|address| ["--twin", address.as_str()]),
    );
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
