//! `servetwin catalog`: what is known by name.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use hwmodels::catalog::Catalog;
use hwmodels::error::Error;
use hwmodels::files::Disk;
use hwmodels::units::{ByteSize, BytesPerSec, FlopsPerSec, Secs};
use serde_json::{Value, json};

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{print, print_json};

/// Show accelerators, instance types, links and models that scenarios can name.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  servetwin catalog list models\n  servetwin catalog show g5.2xlarge"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Folder of catalog files that add to or replace the built-in ones.
    #[arg(long, global = true, value_name = "DIR")]
    catalog: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List names, of one kind or of all.
    #[command(after_help = "Example:\n  servetwin catalog list instances")]
    List {
        /// What to list.
        kind: Option<Kind>,
    },
    /// Show every figure of an entry with its source.
    #[command(after_help = "Example:\n  servetwin catalog show llama-2-7b")]
    Show {
        /// Name or alias of an accelerator, instance type, link or model.
        name: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Accelerators,
    Instances,
    Links,
    Models,
}

const KINDS: [Kind; 4] = [
    Kind::Accelerators,
    Kind::Instances,
    Kind::Links,
    Kind::Models,
];

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let catalog = match &args.catalog {
        Some(dir) => Catalog::with_dir(&Disk, dir).map_err(|e| BadInput(e.to_string()))?,
        None => Catalog::builtin(),
    };
    for left_out in catalog.left_out() {
        note!("warning: left out: {}", left_out.error);
    }
    match args.command {
        Command::List { kind } => list(&catalog, kind, args.json)?,
        Command::Show { name } => show(&catalog, &name, args.json)?,
    }
    Ok(exit_code::OK)
}

fn list(catalog: &Catalog, kind: Option<Kind>, as_json: bool) -> anyhow::Result<()> {
    let kinds: Vec<Kind> = kind.map_or(KINDS.to_vec(), |k| vec![k]);
    if as_json {
        let entries: serde_json::Map<String, Value> = kinds
            .into_iter()
            .map(|kind| {
                let names: Vec<String> = rows(catalog, kind).into_iter().map(|r| r.0).collect();
                (kind_name(kind).to_string(), json!(names))
            })
            .collect();
        return print_json(&entries);
    }
    let mut text = String::new();
    for kind in kinds {
        writeln!(text, "{}", kind_name(kind))?;
        let rows = rows(catalog, kind);
        let width = rows.iter().map(|r| r.0.len()).max().unwrap_or(0);
        for (name, summary) in rows {
            writeln!(text, "  {name:<width$}  {summary}")?;
        }
    }
    print(&text)
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Accelerators => "accelerators",
        Kind::Instances => "instances",
        Kind::Links => "links",
        Kind::Models => "models",
    }
}

/// Names of a kind with a line on each.
fn rows(catalog: &Catalog, kind: Kind) -> Vec<(String, String)> {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    match kind {
        Kind::Accelerators => catalog
            .accelerators()
            .map(|a| {
                let line = format!(
                    "{:.1} GiB, {:.0} GB/s, {:.0} TFLOP/s bf16",
                    gib(a.memory_bytes),
                    a.memory_bandwidth / 1e9,
                    a.bf16_flops / 1e12
                );
                (a.name.clone(), line)
            })
            .collect(),
        Kind::Instances => catalog
            .instances()
            .map(|i| {
                let price = i.price().map_or("no price".to_string(), |p| {
                    format!("{} ({})", p.usd, p.date)
                });
                (
                    i.name.clone(),
                    format!("{} x {}, {price}", i.devices, i.accelerator),
                )
            })
            .collect(),
        Kind::Links => catalog
            .links()
            .map(|l| {
                let line = format!("{:.0} GB/s, {:.1} us", l.bandwidth / 1e9, l.latency * 1e6);
                (l.name.clone(), line)
            })
            .collect(),
        Kind::Models => catalog
            .models()
            .map(|m| {
                let a = &m.arch;
                let line = format!(
                    "{} layers, hidden {}, {} query and {} KV heads",
                    a.layers, a.hidden, a.heads, a.kv_heads
                );
                (a.name.clone(), line)
            })
            .collect(),
    }
}

fn show(catalog: &Catalog, name: &str, as_json: bool) -> anyhow::Result<()> {
    let mut found = serde_json::Map::new();
    if let Ok(a) = catalog.accelerator(name) {
        found.insert("accelerator".into(), serde_json::to_value(a)?);
    }
    if let Ok(i) = catalog.instance(name) {
        found.insert("instance".into(), serde_json::to_value(i)?);
    }
    if let Ok(l) = catalog.link(name) {
        found.insert("link".into(), serde_json::to_value(l)?);
    }
    if let Ok(m) = catalog.model_entry(name) {
        found.insert("model".into(), serde_json::to_value(m)?);
    }
    if found.is_empty() {
        let errors = all_errors(catalog, name);
        // What a file that was left out defines is not unknown.
        if let Some(e) = errors.iter().find(|e| !matches!(e, Error::Unknown { .. })) {
            return Err(BadInput(e.to_string()).into());
        }
        return Err(unknown(errors, name).into());
    }
    if as_json {
        return print_json(&found);
    }
    let mut text = String::new();
    for (kind, entry) in &found {
        writeln!(text, "{kind}")?;
        lines(&mut text, entry, 1)?;
    }
    print(&text)
}

/// What each kind says of a name that it does not know.
fn all_errors(catalog: &Catalog, name: &str) -> Vec<Error> {
    let errors = [
        catalog.accelerator(name).err(),
        catalog.instance(name).err(),
        catalog.link(name).err(),
        catalog.model_entry(name).err(),
    ];
    errors.into_iter().flatten().collect()
}

/// The error for a name of no kind, with the nearest names.
fn unknown(errors: Vec<Error>, name: &str) -> BadInput {
    let near: Vec<String> = errors
        .into_iter()
        .filter_map(|e| match e {
            Error::Unknown { kind, nearest, .. } => nearest.map(|n| format!("{kind} `{n}`")),
            _ => None,
        })
        .collect();
    let hint = if near.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", near.join(" or "))
    };
    BadInput(format!(
        "nothing in the catalog is called `{name}`{hint}\n`servetwin catalog list` lists every name"
    ))
}

/// A value as indented `key: value` lines.
fn lines(out: &mut String, value: &Value, depth: usize) -> std::fmt::Result {
    let indent = 2 * depth;
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::Object(m) if !m.is_empty() => {
                        writeln!(out, "{:indent$}{key}", "")?;
                        lines(out, value, depth + 1)?;
                    }
                    Value::Array(items) if items.iter().any(Value::is_object) => {
                        writeln!(out, "{:indent$}{key}", "")?;
                        for item in items {
                            writeln!(out, "{:1$}{2}", "", indent + 2, scalar(item))?;
                        }
                    }
                    Value::Null => {}
                    _ => writeln!(out, "{:indent$}{key:<24} {}", "", figure(key, value))?,
                }
            }
            Ok(())
        }
        other => writeln!(out, "{:indent$}{}", "", scalar(other)),
    }
}

/// The value under `key`, with the unit that the key's name implies: catalogs hold bytes, seconds and rates per second.
fn figure(key: &str, value: &Value) -> String {
    let with_unit = |v: f64| {
        if key.ends_with("_bytes") {
            let size = ByteSize::new(value.as_u64()?);
            let exact = size.to_string();
            Some(if exact.len() <= 10 {
                exact
            } else {
                size.human()
            })
        } else if key.ends_with("bandwidth") {
            BytesPerSec::new(v).ok().map(BytesPerSec::human)
        } else if key.ends_with("_flops") {
            FlopsPerSec::new(v).ok().map(FlopsPerSec::human)
        } else if key.ends_with("_ops") {
            let rate = FlopsPerSec::new(v).ok()?;
            Some(rate.human().replace("FLOP", "OP"))
        } else if key == "latency" {
            Secs::new(v).ok().map(Secs::human)
        } else {
            None
        }
    };
    value
        .as_f64()
        .and_then(with_unit)
        .unwrap_or_else(|| scalar(value))
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Array(items) => items.iter().map(scalar).collect::<Vec<_>>().join(", "),
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| format!("{k} {}", figure(k, v)))
            .collect::<Vec<_>>()
            .join(", "),
        other => other.to_string(),
    }
}
