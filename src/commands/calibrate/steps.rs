//! `servetwin calibrate steps`: a step model from the step logs of an engine.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use calibrate::steps::errors::Use;
use calibrate::steps::log::Facts;
use calibrate::steps::{Checked, Log, Outcome, Setup, check, distinct, fit, log};
use engine::step_log::{engine_path, requests_path};

use crate::bad_input::BadInput;
use crate::output::{self, FileSet, print, print_json, write_text};
use crate::{exit_code, progress, residual_plot};

/// Where logs are, and what is known of their engine.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Step logs to fit: `servetwin serve --step-log FILE`, or a simulated run's steps.csv. The first one's layout is fitted;
    /// logs of other layouts or threads teach what those add.
    #[arg(
        required_unless_present = "profile",
        conflicts_with = "profile",
        value_name = "LOG"
    )]
    logs: Vec<PathBuf>,
    /// Logs to predict and not to fit, of other loads; may be repeated.
    #[arg(long, value_name = "LOG", num_args = 1..)]
    hold_out: Vec<PathBuf>,
    /// Further logs to predict and not to fit: prints predicted over measured time by kind of step (decodes by batch size, prefills
    /// and mixed steps by tokens) for them and for the fitted ones; may be repeated. The profile's validations do not change.
    #[arg(long, value_name = "LOG", num_args = 1..)]
    check: Vec<PathBuf>,
    /// Fit nothing: check this profile.
    #[arg(long, value_name = "FILE", requires = "check", conflicts_with_all = ["hold_out", "out", "plot"])]
    profile: Option<PathBuf>,
    /// Write the profile here; a scenario names it as hardware.step_profile.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write plots of the residuals into this folder (SVG).
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// Name of the profile. Default: that of the file it is written to.
    #[arg(long)]
    name: Option<String>,
    /// Name of the model, whatever LOG.engine.toml says.
    #[arg(long)]
    model: Option<String>,
    /// Hugging Face config.json of the model: layers and hidden size, which other layouts need. Default: as LOG.engine.toml
    /// says.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Threads of one rank. Default: as LOG.engine.toml says.
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// Cores of the machine that ranks share; none for accelerators. Default: as LOG.engine.toml says.
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
}

/// Fits, prints the report on stdout and writes profile and plots.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    for log in args.logs.iter().chain(&args.hold_out).chain(&args.check) {
        output::reads([log, &requests_path(log), &engine_path(log)]);
    }
    output::reads(args.config.iter().chain(&args.profile));
    if let Some(path) = &args.out {
        output::check(path)?;
    }
    let read = |paths: &[PathBuf]| -> Result<Vec<Log>, BadInput> {
        paths
            .iter()
            .map(|p| log::read(p).map_err(|e| BadInput(e.to_string())))
            .collect()
    };
    let (logs, hold_out, checks) = (read(&args.logs)?, read(&args.hold_out)?, read(&args.check)?);
    if let Some(path) = &args.profile {
        return check_only(path, &checks, args);
    }
    distinct(&logs, &checks).map_err(|e| BadInput(e.to_string()))?;
    let setup = Setup {
        name: name(args),
        command: "servetwin calibrate steps LOG... --out FILE".to_owned(),
        facts: facts(args)?,
    };
    let bar = progress::spinner(&format!("fitting {} log(s)", logs.len()));
    let mut outcome = fit(&logs, &hold_out, &setup).map_err(|e| BadInput(e.to_string()))?;
    bar.finish_and_clear();
    if !checks.is_empty() {
        let fitted = logs.iter().map(|l| (l, Use::Fitted));
        let others = hold_out.iter().chain(&checks).map(|l| (l, Use::HeldOut));
        outcome.report.checks = fitted
            .chain(others)
            .map(|(log, used)| check(&outcome.profile, log, &setup.facts, Some(used)))
            .collect::<Result<_, _>>()
            .map_err(|e| BadInput(e.to_string()))?;
    }
    if let Some(path) = &args.out {
        let text =
            toml::to_string_pretty(&outcome.profile).context("writing the profile as TOML")?;
        write_text(path, &text)?;
    }
    if let Some(dir) = &args.plot {
        plots(dir, &outcome)?;
    }
    if args.json {
        print_json(&outcome.report)?;
    } else {
        print(&outcome.report.to_string())?;
    }
    Ok(exit_code::OK)
}

/// Checks a profile that was fitted before.
fn check_only(path: &Path, logs: &[Log], args: &Args) -> anyhow::Result<u8> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| BadInput(format!("cannot read {}: {e}", path.display())))?;
    let profile: hwmodels::Profile =
        toml::from_str(&text).map_err(|e| BadInput(format!("{}: {e}", path.display())))?;
    let facts = facts(args)?;
    let checked: Vec<Checked> = logs
        .iter()
        .map(|log| check(&profile, log, &facts, None))
        .collect::<Result<_, _>>()
        .map_err(|e| BadInput(format!("{}: {e}", path.display())))?;
    if args.json {
        print_json(&checked)?;
    } else {
        print(&checked.iter().map(ToString::to_string).collect::<String>())?;
    }
    Ok(exit_code::OK)
}

fn name(args: &Args) -> String {
    let of_file = |p: &PathBuf| p.file_stem().map(|s| s.to_string_lossy().into_owned());
    args.name
        .clone()
        .or_else(|| args.out.as_ref().and_then(of_file))
        .unwrap_or_else(|| "steps".into())
}

fn facts(args: &Args) -> anyhow::Result<Facts> {
    let mut facts = Facts {
        model: args.model.clone(),
        threads: args.threads,
        cores: args.cores,
        ..Facts::default()
    };
    if let Some(path) = &args.config {
        let text = std::fs::read_to_string(path)
            .map_err(|e| BadInput(format!("cannot read {}: {e}", path.display())))?;
        let name = args.model.clone().unwrap_or_else(|| "model".into());
        let parsed = hwmodels::hf_config::from_json(&name, &text)
            .map_err(|e| BadInput(format!("{}: {e}", path.display())))?;
        facts.layers = Some(parsed.arch.layers);
        facts.hidden = Some(parsed.arch.hidden);
    }
    Ok(facts)
}

/// Residuals against tokens, context and time, and a line per step.
fn plots(dir: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut files = FileSet::new();
    for (file, svg) in residual_plot::all(outcome)? {
        files.write(&dir.join(file), |out| out.write_all(svg.as_bytes()))?;
    }
    files.commit()
}
