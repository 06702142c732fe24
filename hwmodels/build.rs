//! Packs `data/` for the binary: each TOML file as MessagePack, deflated, so that a run unpacks what it asks for and parses no text.
//!
//! The texts stay the source. A profile's entry says besides what it applies to, so that nothing is unpacked to find that out.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use toml::{Table, Value};

/// Folders of `data/` with files to pack.
const FOLDERS: [&str; 3] = ["", "models", "profiles"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut code = String::from("pub(crate) const FILES: &[Packed] = &[\n");
    for folder in FOLDERS {
        let dir = Path::new("data").join(folder);
        println!("cargo:rerun-if-changed={}", dir.display());
        let mut files: Vec<PathBuf> = fs::read_dir(&dir)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_, std::io::Error>>()?;
        files.retain(|f| f.extension().is_some_and(|e| e == "toml"));
        files.sort();
        for file in files {
            println!("cargo:rerun-if-changed={}", file.display());
            let name = file.strip_prefix("data")?.display().to_string();
            let table: Table =
                toml::from_str(&fs::read_to_string(&file)?).map_err(|e| format!("{name}: {e}"))?;
            let packed = format!("{}.packed", name.replace('/', "."));
            let mut bytes = DeflateEncoder::new(Vec::new(), Compression::default());
            bytes.write_all(&rmp_serde::to_vec(&table)?)?;
            fs::write(out.join(&packed), bytes.finish()?)?;
            entry(&mut code, &name, &packed, &table)?;
        }
    }
    code.push_str("];\n");
    fs::write(out.join("packed.rs"), code)?;
    Ok(())
}

/// Writes the entry of the file `name`.
fn entry(code: &mut String, name: &str, packed: &str, table: &Table) -> std::fmt::Result {
    let text = |key: &str| table.get(key).and_then(Value::as_str).unwrap_or_default();
    let keys = |key: &str| table.get(key).and_then(Value::as_table);
    let engines: Vec<&str> = (table.get("engines").and_then(Value::as_array).into_iter())
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    // `engine.vllm_v1.request_in`: a number of vLLM's.
    let numbers_of: BTreeSet<&str> = (keys("params").into_iter().flat_map(Table::keys))
        .filter_map(|k| k.strip_prefix("engine.")?.split('.').next())
        .collect();
    let has_surfaces = keys("surfaces").is_some_and(|s| !s.is_empty());
    writeln!(
        code,
        "Packed {{ file: {name:?}, name: {:?}, accelerator: {:?}, engines: &{engines:?}, numbers_of: &{:?}, has_surfaces: {has_surfaces}, \
         bytes: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{packed}\")) }},",
        text("name"),
        text("accelerator"),
        numbers_of.iter().collect::<Vec<_>>()
    )
}
