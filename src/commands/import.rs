//! `servetwin import`: deployment files to a scenario.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use deploy::import::{Kind, Options};
use deploy::{Imported, Source};
use serde::Serialize;
use sim::scenario::Scenario;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self, print, print_json, write_text};

mod files;

use files::Input;

/// Make a scenario of deployment files, and say what became of every key.
///
/// Each FILE is a shell script or command line (vllm serve, text-generation-launcher, trtllm-serve, trtllm-build, vllm bench serve, guidellm, aiperf, genai-perf),
/// a Kubernetes manifest, a docker compose file, a .env file, an nginx configuration, Helm values, Triton's config.pbtxt, SageMaker's environment, or a
/// model's config.json, a SkyPilot task, Ray Serve's applications, or a Python file of Modal or BentoML. Its kind is told by its content. Several files make one
/// scenario: a Deployment, its autoscaler, the benchmark's command. A folder stands for its files, a folder with a kustomization.yaml for all it builds on, one
/// with a Chart.yaml for what `helm template` makes of it where helm is installed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin import serve.sh --instance p5.48xlarge
  servetwin import deployment.yaml bench.sh -o scenario.toml
  servetwin import overlays/prod/ -o scenario.toml
  servetwin import compose.yaml .env nginx.conf --instance g5.12xlarge -o scenario.toml --report json

The scenario goes to standard output, or into the file of -o; the report to standard error, or with -o to standard output. What no file says is a marked default.")]
pub struct Args {
    /// Files or folders to import; - is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the scenario into FILE.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The kind of the files, in place of what their content tells (docs/import-export.md).
    #[arg(long, value_name = "KIND", value_parser = kind)]
    kind: Option<Kind>,
    /// The machine that serves: an instance type, or 8xH100 for one of your own. In place of what the files say.
    #[arg(long, value_name = "TYPE")]
    instance: Option<String>,
    /// The catalog's name of the model, in place of what the files say.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// How the report is written: with json one object on standard output, which holds the scenario too.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    report: Format,
    /// Refuse files with keys that are not simulated or not understood.
    #[arg(long)]
    strict: bool,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines to read.
    Text,
    /// One JSON object.
    Json,
}

fn kind(text: &str) -> Result<Kind, String> {
    let found = Kind::ALL.iter().find(|k| k.name() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
        format!("one of {}", names.join(", "))
    })
}

/// What `--report json` prints.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    report: &'a deploy::report::Report,
    /// The scenario as TOML.
    scenario: &'a str,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    output::reads(&args.files);
    if let Some(path) = &args.output {
        output::check(path)?;
    }
    let sources = (files::of(&args.files)?.into_iter())
        .map(|input| match input {
            Input::File(path) => read(&path, args.output.as_deref()),
            Input::Rendered(chart, text) => Ok(Source::new(chart.display().to_string(), text)),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let options = Options {
        kind: args.kind,
        instance: args.instance.clone(),
        model: args.model.clone(),
    };
    let imported =
        deploy::import::import(&sources, &options).map_err(|e| BadInput(e.to_string()))?;
    if args.strict && imported.report.is_partial() {
        return Err(BadInput(format!(
            "--strict: not all of the files is in the scenario\n{}",
            imported.report.render()
        ))
        .into());
    }
    if let Some(path) = &args.output {
        write_text(path, &imported.scenario)?;
    }
    tell(args, &imported)?;
    cannot_start(args, &imported);
    Ok(exit_code::OK)
}

fn tell(args: &Args, imported: &Imported) -> anyhow::Result<()> {
    let text = imported.report.render();
    match (args.report, &args.output) {
        (Format::Json, _) => print_json(&Whole {
            report: &imported.report,
            scenario: &imported.scenario,
        }),
        (Format::Text, Some(_)) => print(&text),
        (Format::Text, None) => {
            print(&imported.scenario)?;
            note!("{text}");
            Ok(())
        }
    }
}

/// Says so where the scenario is right in itself, but the engine would not start: the model does not fit, a limit is impossible.
fn cannot_start(args: &Args, imported: &Imported) {
    let origin = args.output.as_deref().unwrap_or(Path::new("import.toml"));
    let built = Scenario::parse(&imported.scenario, &origin.display().to_string(), &[])
        .map(|s| s.build().map(drop));
    if let Ok(Err(why)) = built {
        note!("warning: this deployment would not start: {why}");
    }
}

fn read(path: &Path, output: Option<&Path>) -> anyhow::Result<Source> {
    let bad = |e: &dyn std::fmt::Display| BadInput(format!("cannot read {}: {e}", path.display()));
    let most = deploy::text::MAX_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    let stdin = path == Path::new("-");
    if stdin {
        std::io::stdin()
            .lock()
            .take(most)
            .read_to_end(&mut bytes)
            .map_err(|e| bad(&e))?;
    } else {
        let file = std::fs::File::open(path).map_err(|e| bad(&e))?;
        file.take(most)
            .read_to_end(&mut bytes)
            .map_err(|e| bad(&e))?;
    }
    let text = String::from_utf8(bytes).map_err(|_| bad(&"it is not UTF-8 text"))?;
    let name = if stdin {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    Ok(Source {
        reference: reference(path, output),
        name,
        text,
    })
}

/// How a scenario in `output` names `path`: by its name alone where they share a folder, else by its whole path.
fn reference(path: &Path, output: Option<&Path>) -> String {
    let folder = |p: &Path| {
        let parent = p
            .parent()
            .filter(|f| !f.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        parent.canonicalize().ok()
    };
    let here = folder(output.unwrap_or(Path::new("x")));
    let (Some(there), Some(name)) = (folder(path), path.file_name()) else {
        return path.display().to_string();
    };
    if here.as_ref() == Some(&there) {
        return name.to_string_lossy().into_owned();
    }
    there.join(name).display().to_string()
}
