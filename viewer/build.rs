//! Lists the shipped scenarios, so that they are in the program; and the files of the page, where they are to be in it too.

use std::path::Path;
use std::{env, fs};

/// Files that make the page, as viewer/web/build.sh writes them.
const PAGE: [&str; 4] = ["index.html", "viewer.js", "viewer_bg.wasm", "worker.js"];

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
    let page = page(&Path::new(&here).join(".."));
    let text = format!(
        "/// Name and gzip form of the files of the page; none where the program was built without them.\n\
         pub const PAGE: &[(&str, &[u8])] = &[\n{}];\n",
        page.concat()
    );
    fs::write(Path::new(&out).join("page.rs"), text).expect("the folder can be written");
}

/// The files of the page as entries of a list, from the folder that SERVETWIN_PAGE names (from the repository's root); none where it is not set.
fn page(root: &Path) -> Vec<String> {
    println!("cargo::rerun-if-env-changed=SERVETWIN_PAGE");
    let dir = env::var_os("SERVETWIN_PAGE").filter(|dir| !dir.is_empty());
    // The page holds the same crate, and carries no page itself.
    let wasm = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "wasm32");
    let Some(dir) = dir.filter(|_| !wasm) else {
        return Vec::new();
    };
    let entry = |name: &&str| {
        let file = root.join(&dir).join(format!("{name}.gz"));
        println!("cargo::rerun-if-changed={}", file.display());
        match fs::canonicalize(&file) {
            Ok(file) => Some(format!(
                "    ({name:?}, include_bytes!({:?})),\n",
                file.display()
            )),
            Err(e) => {
                println!(
                    "cargo::error=SERVETWIN_PAGE names no folder with the page: {}: {e}; `viewer/web/build.sh --program` builds the page, and the \
                     program with it",
                    file.display()
                );
                None
            }
        }
    };
    PAGE.iter().filter_map(entry).collect()
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
