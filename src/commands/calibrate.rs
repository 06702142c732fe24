//! `servetwin calibrate`: from measured tables to profiles.

use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;

use super::BadInput;
use crate::exit_code;

/// Fit parameters to measurements; print the errors, on fitted rows and on rows held out.
#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All-reduce and other collectives: NCCL, the engines' own kernels, NVLink, PCIe, two nodes.
    #[command(
        after_help = "Example:\n  servetwin calibrate collectives --data measured/ --out collectives.toml"
    )]
    Collectives(Data),
    /// Host time of a step, per step and per sequence, of a Python engine of early 2024.
    #[command(after_help = "Example:\n  servetwin calibrate host --data measured/")]
    Host(Data),
    /// GEMM, attention, expert and element-wise kernels of one accelerator.
    #[command(
        after_help = "Example:\n  servetwin calibrate operators --data measured/ --system h100_sxm --out h100.toml"
    )]
    Operators {
        #[command(flatten)]
        data: Data,
        /// System whose kernel tables to use: h100_sxm or a100_sxm.
        #[arg(long, value_name = "NAME")]
        system: String,
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

/// Fits, prints the errors on stdout and writes the profile.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.what {
        What::Collectives(data) => {
            let (profile, report) = calibrate::collectives::fit(&data.data).map_err(bad_input)?;
            data.finish(&profile, &report)?;
        }
        What::Host(data) => {
            let (profile, report) = calibrate::host::fit(&data.data).map_err(bad_input)?;
            data.finish(&profile, &report)?;
        }
        What::Operators { data, system } => {
            let (profile, report) = calibrate::operators::fit(&data.data, &system)?;
            data.finish(&profile, &report)?;
        }
    }
    Ok(exit_code::OK)
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
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        } else {
            print!("{report}");
        }
        Ok(())
    }
}
