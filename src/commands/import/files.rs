//! Which files a path on the command line stands for: a kustomization's bases and patches, a Helm chart as Helm renders it, a folder's files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bad_input::BadInput;

/// Most files of an import, and of a kustomization with all it builds on.
const MAX_FILES: usize = 64;
/// Names under which kustomize looks for its file.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
/// Endings of files that a folder is read for.
const ENDINGS: [&str; 4] = ["yaml", "yml", "json", "sh"];

/// What a path stands for.
pub enum Input {
    /// A file to read.
    File(PathBuf),
    /// Manifests that Helm made of the chart in this folder.
    Rendered(PathBuf, String),
}

/// All files that the paths stand for, each once, in their order.
///
/// # Errors
/// A folder without anything to read, a chart where Helm is not installed or refuses it, more files than an import takes.
pub fn of(paths: &[PathBuf]) -> anyhow::Result<Vec<Input>> {
    let mut out = Vec::new();
    let mut seen = BTreeSet::new();
    for path in paths {
        add(path, &mut seen, &mut out)?;
    }
    Ok(out)
}

fn add(path: &Path, seen: &mut BTreeSet<PathBuf>, out: &mut Vec<Input>) -> anyhow::Result<()> {
    let is_new = path == Path::new("-")
        || seen.insert(path.canonicalize().unwrap_or_else(|_| path.to_owned()));
    if !is_new {
        return Ok(());
    }
    if seen.len() > MAX_FILES {
        return Err(BadInput(format!("{}: more than {MAX_FILES} files", path.display())).into());
    }
    if path.is_dir() {
        return folder(path, seen, out);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if KUSTOMIZATIONS.contains(&&*name)
        && let Ok(text) = std::fs::read_to_string(path)
    {
        let here = path.parent().unwrap_or(Path::new(""));
        for reference in deploy::import::references(&text) {
            let other = here.join(&reference);
            // What is not there is told by the patch or resource that needs it.
            if other.exists() {
                add(&other, seen, out)?;
            }
        }
    }
    out.push(Input::File(path.to_owned()));
    Ok(())
}

fn folder(path: &Path, seen: &mut BTreeSet<PathBuf>, out: &mut Vec<Input>) -> anyhow::Result<()> {
    if path.join("Chart.yaml").is_file() {
        out.push(Input::Rendered(path.to_owned(), rendered(path)?));
        return Ok(());
    }
    let kustomization = KUSTOMIZATIONS.map(|name| path.join(name));
    if let Some(file) = kustomization.iter().find(|f| f.is_file()) {
        return add(file, seen, out);
    }
    let bad = |e: &dyn std::fmt::Display| BadInput(format!("cannot read {}: {e}", path.display()));
    let mut files: Vec<PathBuf> = (std::fs::read_dir(path).map_err(|e| bad(&e))?)
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|p| p.is_file())
        .filter(|p| {
            let ending = p.extension().unwrap_or_default().to_string_lossy();
            ENDINGS.contains(&&*ending)
        })
        .collect();
    files.sort();
    if files.is_empty() {
        let why = format!(
            "it holds no file ending in {}, no kustomization.yaml and no Chart.yaml",
            ENDINGS.join(", ")
        );
        return Err(bad(&why).into());
    }
    for file in files {
        add(&file, seen, out)?;
    }
    Ok(())
}

/// What `helm template` makes of a chart with its own values.
fn rendered(chart: &Path) -> anyhow::Result<String> {
    let ran = Command::new("helm")
        .args(["template", "imported"])
        .arg(chart)
        .output();
    let output = ran.map_err(|e| {
        BadInput(format!(
            "{}: is a Helm chart, and helm cannot be run ({e}); install helm, or import what `helm template {} --values FILE` writes where it is",
            chart.display(),
            chart.display()
        ))
    })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(BadInput(format!(
            "{}: helm template fails: {}",
            chart.display(),
            why.trim().lines().last().unwrap_or("it says nothing")
        ))
        .into());
    }
    String::from_utf8(output.stdout)
        .map_err(|_| BadInput(format!("{}: helm's output is not UTF-8", chart.display())).into())
}
