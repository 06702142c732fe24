//! `servetwin export`: a scenario as files to apply.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use deploy::{Exported, Target};

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self, FileSet, print};
use crate::simulate::ScenarioArgs;

/// Write a scenario as the files that deploy it: commands, manifests, Helm values.
///
/// What the target cannot say is listed on standard error, with where else to say it. Importing the files gives the same scenario back, but for that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin export scenarios/qwen3-32b-8xh100-azure-tp2x4.toml --to k8s
  servetwin export scenarios/llama2-7b-p4d-tgi-tp1x8.toml --to tgi-compose -o deploy/

Targets: vllm, sglang, k8s, lws, tgi-compose, triton-helm, trtllm, dynamo, llm-d (docs/import-export.md).")]
pub struct Args {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// What to write.
    #[arg(long, value_name = "TARGET", value_parser = target)]
    to: Target,
    /// Write the files into DIR, which is made where it is not there. Default: all of them on standard output, each behind its name.
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// The target called `text`.
///
/// # Errors
/// The names there are.
pub fn target(text: &str) -> Result<Target, String> {
    let found = Target::ALL.iter().find(|t| t.name() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = Target::ALL.iter().map(|t| t.name()).collect();
        format!("one of {}", names.join(", "))
    })
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    let scenario = args.scenario.load()?;
    let exported = deploy::export(&scenario, args.to).map_err(|e| BadInput(e.to_string()))?;
    match &args.output {
        Some(dir) => write(&exported, dir)?,
        None => print(&all(&exported))?,
    }
    tell_not_said(&exported);
    Ok(exit_code::OK)
}

/// Writes the files into `dir`, all of them or none.
///
/// # Errors
/// A folder or a file that cannot be written.
pub fn write(exported: &Exported, dir: &Path) -> anyhow::Result<()> {
    let names: Vec<&str> = exported.files.iter().map(|f| f.name.as_str()).collect();
    output::check_dir(dir, &names)?;
    std::fs::create_dir_all(dir)
        .map_err(|e| BadInput(format!("cannot create {}: {e}", dir.display())))?;
    let mut set = FileSet::new();
    for file in &exported.files {
        set.write(&dir.join(&file.name), |out| {
            out.write_all(file.text.as_bytes())
        })?;
    }
    set.commit()?;
    for name in names {
        note!("wrote {}", dir.join(name).display());
    }
    Ok(())
}

/// Says what the target has no words for.
pub fn tell_not_said(exported: &Exported) {
    if !exported.not_said.is_empty() {
        note!("Not in these files:");
    }
    for what in &exported.not_said {
        note!("  {what}");
    }
}

/// The files one after another, each behind its name where there are several.
fn all(exported: &Exported) -> String {
    let mut text = String::new();
    for file in &exported.files {
        if exported.files.len() > 1 {
            let _ = writeln!(text, "### {}", file.name);
        }
        text.push_str(&file.text);
    }
    text
}
