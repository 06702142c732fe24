//! `servetwin calibrate`: from measured tables to profiles.

pub mod endpoint;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use calibrate::validate::{Report, Source};
use clap::Subcommand;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self, FileSet, print, print_json, write_text};
use crate::progress;

mod steps;

/// Fit parameters to measurements; print the errors, on fitted rows and on rows held out.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  servetwin calibrate --endpoint http://127.0.0.1:8000 --budget 5min --out endpoint.toml
  servetwin calibrate --records measured/ --out endpoint.toml"
)]
pub struct Args {
    #[command(flatten)]
    endpoint: endpoint::Args,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All-reduce and other collectives: NCCL, the engines' own kernels, NVLink, PCIe, two nodes.
    #[command(
        after_help = "Example:\n  servetwin calibrate collectives --data measured/ --out collectives.toml"
    )]
    Collectives(Data),
    /// GEMM, attention, expert and element-wise kernels of one accelerator.
    #[command(
        after_help = "Example:\n  servetwin calibrate operators --data measured/ --system h100_sxm --out h100.toml"
    )]
    Operators {
        #[command(flatten)]
        data: Data,
        /// System whose kernel tables to use: h100_sxm, a100_sxm or h200_sxm.
        #[arg(long, value_name = "NAME")]
        system: String,
    },
    /// Inferentia2 and Trainium devices, from published batch-1 latencies.
    #[command(
        after_help = "Example:\n  servetwin calibrate neuron --data measured/ --out inferentia2.toml"
    )]
    Neuron(Data),
    /// A step model of an engine from its step logs: any scenario can then name it as hardware.step_profile.
    #[command(
        after_help = "Example:\n  servetwin serve --step-log one.csv    # while a load runs; another load gives two.csv\n  \
                      servetwin calibrate steps one.csv two.csv --hold-out three.csv --out my-engine.toml"
    )]
    Steps(steps::Args),
    /// Engine and accelerator parameters from whole serving runs, by simulating inside the fit.
    #[command(
        after_help = "Example:\n  servetwin calibrate serving tgi --data measured/ --out profiles/"
    )]
    Serving {
        /// What to fit: tgi, vllm or tgi-neuron.
        plan: String,
        /// Folder of the measured runs; without it the published tables that the binary carries.
        #[arg(long, value_name = "DIR", env = "SERVETWIN_MEASURED")]
        data: Option<PathBuf>,
        /// Write the fitted profiles into this folder, one file each.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print the errors as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Where measurements are, and where the profile goes.
#[derive(Debug, clap::Args)]
struct Data {
    /// Folder of the measured tables.
    #[arg(long, value_name = "DIR", env = "SERVETWIN_MEASURED")]
    data: PathBuf,
    /// Write the fitted profile here.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the errors as JSON.
    #[arg(long)]
    json: bool,
}

impl What {
    /// Nothing is fitted that could not be written.
    fn check(&self) -> anyhow::Result<()> {
        let data = match self {
            What::Collectives(data) | What::Neuron(data) => data,
            What::Operators { data, .. } => data,
            What::Steps(_) | What::Serving { .. } => return Ok(()),
        };
        let folders = ["", "operators", "collectives"].map(|f| data.data.join(f));
        let entries = folders.iter().filter_map(|f| f.read_dir().ok()).flatten();
        output::reads(entries.filter_map(|e| Some(e.ok()?.path())));
        data.out.iter().try_for_each(|out| output::check(out))
    }
}

/// Fits, prints the errors on stdout and writes the profile.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let Some(what) = args.what else {
        if !args.endpoint.asked() {
            return Err(
                BadInput("give --endpoint URL, --records DIR or a subcommand".into()).into(),
            );
        }
        return endpoint::run(args.endpoint);
    };
    what.check()?;
    match what {
        What::Collectives(data) => {
            let (profile, report) = calibrate::collectives::fit(&data.data).map_err(bad_input)?;
            data.finish(&profile, &report)?;
        }
        What::Operators { data, system } => {
            let (profile, report) = calibrate::operators::fit(&data.data, &system)?;
            data.finish(&profile, &report)?;
        }
        What::Neuron(data) => {
            let (profile, rows) =
                calibrate::neuron::fit(&data.data).map_err(|e| BadInput(e.to_string()))?;
            data.finish(&profile, &Report::new(rows, &BTreeMap::new()))?;
        }
        What::Steps(args) => return steps::run(&args),
        What::Serving {
            plan,
            data,
            out,
            json,
        } => serving(&plan, data, out, json)?,
    }
    Ok(exit_code::OK)
}

fn serving(
    name: &str,
    data: Option<PathBuf>,
    out: Option<PathBuf>,
    json: bool,
) -> anyhow::Result<()> {
    let plans = calibrate::serving::PLANS;
    let plan = plans.iter().find(|p| p.name == name).ok_or_else(|| {
        let names: Vec<&str> = plans.iter().map(|p| p.name).collect();
        BadInput(format!(
            "unknown plan `{name}`; plans are {}",
            names.join(", ")
        ))
    })?;
    let source = data.map_or(Source::Published, Source::Folder);
    if let Some(dir) = &out {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let bar = progress::spinner("simulating the fitted runs");
    let (profiles, rows) = calibrate::serving::fit(plan, &source, &|n| {
        bar.set_position(n as u64);
    })
    .map_err(|e| BadInput(e.to_string()))?;
    bar.finish_and_clear();
    if let Some(dir) = &out {
        let mut files = FileSet::new();
        for p in &profiles {
            let text = toml::to_string_pretty(p).context("writing a profile as TOML")?;
            let path = dir.join(format!("{}.toml", p.name));
            files.write(&path, |out| out.write_all(text.as_bytes()))?;
        }
        files.commit()?;
    }
    let fitted_on: Vec<String> = (plan.fitted_rows(&rows))
        .map(|r| format!("fitted on: {} {} {}\n", r.set, r.case, r.metric))
        .collect();
    let report = Report::new(rows, &BTreeMap::new());
    if json {
        return print_json(&report);
    }
    let mut text = report.to_string();
    text.extend(fitted_on);
    for p in &profiles {
        for (name, v) in &p.params {
            let error = v
                .std_error
                .map_or_else(String::new, |e| format!(" +- {e:.2e}"));
            text += &format!("{}: {name} = {:.4e}{error} {}\n", p.name, v.value, v.unit);
        }
    }
    print(&text)
}

/// Tables that are missing, malformed or too short are the caller's.
fn bad_input(error: calibrate::collectives::Error) -> BadInput {
    BadInput(error.to_string())
}

impl Data {
    fn finish(
        &self,
        profile: &hwmodels::Profile,
        report: &(impl std::fmt::Display + serde::Serialize),
    ) -> anyhow::Result<()> {
        if let Some(path) = &self.out {
            let text = toml::to_string_pretty(profile).context("writing the profile as TOML")?;
            write_text(path, &text)?;
        }
        if self.json {
            print_json(report)
        } else {
            print(&report.to_string())
        }
    }
}
