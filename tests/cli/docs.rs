//! What the documents say about the repository is so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Markdown file that is ours.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in [
        "",
        "docs",
        "scenarios",
        "scenarios/traces",
        "calibrate/data/published",
    ] {
        let Ok(entries) = fs::read_dir(root().join(dir)) else {
            continue;
        };
        let paths = entries.filter_map(|e| e.ok().map(|e| e.path()));
        found.extend(paths.filter(|p| p.extension().is_some_and(|e| e == "md")));
    }
    found.sort();
    assert!(found.len() > 5, "{found:?}");
    found
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1).filter_map(|t| t.split(')').next()) {
            let file = target.split('#').next().unwrap_or("");
            if file.is_empty() || file.contains("://") || file.starts_with('<') {
                continue;
            }
            let there = document.parent().unwrap_or(Path::new("")).join(file);
            if !there.exists() {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn examples_of_the_help_name_scenarios_that_exist() {
    for command in ["run", "curve", "compare"] {
        let out = Command::new(env!("CARGO_BIN_EXE_servetwin"))
            .args([command, "--help"])
            .output()
            .unwrap();
        let help = String::from_utf8(out.stdout).unwrap();
        let names: Vec<&str> = help
            .split_whitespace()
            .filter(|w| w.starts_with("scenarios/"))
            .collect();
        assert!(!names.is_empty(), "{command}");
        for name in names {
            assert!(root().join(name).is_file(), "{command}: {name}");
        }
    }
}

#[test]
fn the_sample_of_the_readme_is_what_the_program_prints() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let sample = readme
        .split("```text\n")
        .nth(1)
        .and_then(|t| t.split("```").next());
    let out = Command::new(env!("CARGO_BIN_EXE_servetwin"))
        .args(["run", "scenarios/llama2-7b-g5.2xlarge-tgi.toml"])
        .current_dir(root())
        .output()
        .unwrap();
    let printed = String::from_utf8(out.stdout).unwrap();
    assert_eq!(sample, Some(printed.as_str()));
}
