//! Lists the shipped scenarios, so that they are in the program.

use std::path::Path;
use std::{env, fs};

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo says where");
    let dir = Path::new(&here).join("../scenarios");
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut files: Vec<_> = fs::read_dir(&dir)
        .expect("the scenarios are beside the viewer")
        .map(|e| e.expect("a folder that can be read").path())
        .filter(|p| p.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    let entries: Vec<String> = files
        .iter()
        .map(|p| {
            let p = fs::canonicalize(p).expect("it is there");
            println!("cargo::rerun-if-changed={}", p.display());
            let name = p.file_stem().and_then(|n| n.to_str()).expect("a name");
            format!("    ({name:?}, include_str!({:?})),\n", p.display())
        })
        .collect();
    let traces = traces(&dir.join("traces"));
    let text = format!(
        "/// Name and text of the shipped scenarios.\npub const SHIPPED: [(&str, &str); {}] = [\n{}];\n\
         /// Name and bytes of the traces that they name.\npub const TRACES: [(&str, &[u8]); {}] = [\n{}];\n",
        entries.len(),
        entries.concat(),
        traces.len(),
        traces.concat()
    );
    let out = env::var("OUT_DIR").expect("cargo says where");
    fs::write(Path::new(&out).join("shipped.rs"), text).expect("the folder can be written");
}

/// The traces that scenarios name, as entries of a list.
fn traces(dir: &Path) -> Vec<String> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .expect("traces lie beside the scenarios")
        .map(|e| e.expect("a folder that can be read").path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|p| {
            let p = fs::canonicalize(p).expect("it is there");
            println!("cargo::rerun-if-changed={}", p.display());
            let name = p.file_name().and_then(|n| n.to_str()).expect("a name");
            format!("    ({name:?}, include_bytes!({:?})),\n", p.display())
        })
        .collect()
}
