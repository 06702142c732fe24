//! `servetwin validate`: how far predictions are from measurements.

use std::path::PathBuf;

use calibrate::validate::{Options, Source, serving};

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};
use crate::progress;

/// Replay measured runs; print measured, predicted and error, fitted rows and predicted rows apart.
///
/// Without a folder: the published tables that the binary carries.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  servetwin validate\n  servetwin validate --set jumpstart --rows\n  servetwin validate measured/ --json"
)]
pub struct Args {
    /// Folder of measurements in the tidy form that docs/validation.md describes.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only this set; may be given several times.
    #[arg(long = "set", value_name = "NAME")]
    sets: Vec<String>,
    /// Print every row, not only the errors by set and metric.
    #[arg(long)]
    rows: bool,
    /// Leave the roofline baseline out: faster.
    #[arg(long)]
    no_baseline: bool,
    /// Run plain scenarios of the same runs too, which do not know how the servers were started nor how the client asked, and print both errors.
    #[arg(long)]
    plain: bool,
    /// Write the errors by kind of run to this file, from which ranges of later predictions are made.
    #[arg(long, value_name = "FILE")]
    errors: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the sets and prints the report.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let known = calibrate::validate::names();
    if let Some(unknown) = args.sets.iter().find(|s| !known.contains(&s.as_str())) {
        let message = format!("unknown set `{unknown}`; sets are {}", known.join(", "));
        return Err(BadInput(message).into());
    }
    let source = match args.dir {
        Some(dir) if !dir.is_dir() => {
            let message = format!("{} is not a folder of measurements", dir.display());
            return Err(BadInput(message).into());
        }
        Some(dir) => Source::Folder(dir),
        None => Source::Published,
    };
    let options = Options {
        sets: args.sets,
        baseline: !args.no_baseline,
        plain: args.plain,
    };
    let bar = progress::runs(0, "runs");
    let report = serving(&source, &options, &|done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let report = report.map_err(|e| BadInput(e.to_string()))?;
    if let Some(path) = &args.errors {
        std::fs::write(path, hwmodels::doubt::to_toml(&report.errors()))
            .map_err(|e| BadInput(format!("cannot write {}: {e}", path.display())))?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.markdown(args.rows))?;
    }
    Ok(exit_code::OK)
}
