//! What the crates we depend on may be: licences, sources, duplicates. `deny.toml` says the same to `cargo deny`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Licences that ask for no more than to be named.
const LICENCES: [&str; 8] = [
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that are there in several versions, and who keeps older ones.
const DUPLICATES: [(&str, &str); 16] = [
    ("base64", "spm_precompiled, of tokenizers"),
    ("bit-set", "fancy-regex, of tokenizers"),
    ("bit-vec", "bit-set"),
    ("getrandom", "ring; tokenizers"),
    ("glam", "nalgebra converts from and to several"),
    ("hashbrown", "safetensors"),
    ("itertools", "criterion; tokenizers"),
    ("linux-raw-sys", "rustix"),
    ("miniz_oxide", "png, of resvg"),
    ("rand", "tokenizers"),
    ("rand_core", "rand, of tokenizers"),
    ("rustc-hash", "naga"),
    ("rustix", "winit, of eframe"),
    ("syn", "derive macros of tokenizers; zerocopy"),
    ("thiserror", "calloop, of winit"),
    ("thiserror-impl", "thiserror"),
];

/// Crates whose licence holds more than [`LICENCES`], and why that is right: fonts, which ask to be named and not to be sold alone; what is not
/// built here.
const FONTS: [(&str, &str); 2] = [
    (
        "epaint_default_fonts",
        "(MIT OR Apache-2.0) AND OFL-1.1 AND Ubuntu-font-1.0",
    ),
    // Built for WebAssembly alone: parquet, by way of ahash. It gives up all rights.
    ("tiny-keccak", "CC0-1.0"),
];

/// A package that this machine's programs and tests are made of.
struct Package {
    name: String,
    version: String,
    licence: String,
    /// Its registry; none for what lies in a folder.
    source: Option<String>,
    manifest: String,
}

/// Asks cargo. A crate that reads its answer would switch on features of others, and all tests would be built with them.
fn packages() -> Vec<Package> {
    let host = std::env::consts::ARCH.to_owned() + "-unknown-linux-gnu";
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--all-features"])
        .args(["--locked", "--offline", "--filter-platform", &host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let list = |v: &Value| v.as_array().expect("a list").clone();
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let nodes = list(&all["resolve"]["nodes"]);
    let used: BTreeSet<_> = nodes.iter().filter_map(|n| text(&n["id"])).collect();
    let found: Vec<Package> = list(&all["packages"])
        .iter()
        .filter(|p| text(&p["id"]).is_some_and(|id| used.contains(&id)))
        .map(|p| Package {
            name: text(&p["name"]).expect("a name"),
            version: text(&p["version"]).expect("a version"),
            licence: text(&p["license"]).unwrap_or_default(),
            source: text(&p["source"]),
            manifest: text(&p["manifest_path"]).expect("a path"),
        })
        .collect();
    assert!(found.len() > 150, "{}", found.len());
    found
}

/// Whether one of the allowed licences can be chosen wherever the expression leaves a choice.
fn allowed(expression: &str) -> bool {
    expression.split(" AND ").all(|part| {
        let choices = part.trim_matches(['(', ')']).replace('/', " OR ");
        choices
            .split(" OR ")
            .any(|licence| LICENCES.contains(&licence.trim()))
    })
}

#[test]
fn expressions_of_licences_are_read() {
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-2.0 OR MIT",
        "(MIT OR GPL-3.0) AND Unicode-3.0",
    ] {
        assert!(allowed(good), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT OR ISC) AND MPL-2.0",
        "AGPL-3.0 OR MPL-2.0",
    ] {
        assert!(!allowed(bad), "{bad}");
    }
}

#[test]
fn dependencies_have_licences_that_we_may_use_and_come_from_crates_io() {
    let mut wrong = Vec::new();
    for p in packages() {
        let font = FONTS.contains(&(p.name.as_str(), p.licence.as_str()));
        if !allowed(&p.licence) && !font {
            wrong.push(format!("{} {}: licence `{}`", p.name, p.version, p.licence));
        }
        let right = match &p.source {
            Some(source) => source == "registry+https://github.com/rust-lang/crates.io-index",
            None => p.manifest.starts_with(env!("CARGO_MANIFEST_DIR")),
        };
        if !right {
            wrong.push(format!("{} {}: from {:?}", p.name, p.version, p.source));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_listed_dependencies_are_there_in_several_versions() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for p in packages() {
        versions.entry(p.name).or_default().insert(p.version);
    }
    let several: Vec<&str> = versions
        .iter()
        .filter(|(_, v)| v.len() > 1)
        .map(|(name, _)| name.as_str())
        .collect();
    let listed: Vec<&str> = DUPLICATES.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        several, listed,
        "left: crates in several versions; right: those with a reason in this file"
    );
}
