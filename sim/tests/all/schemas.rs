//! The schemas under `docs/schema` are those of the code. After a change of a contract, write them anew with
//! `SERVETWIN_WRITE_SCHEMAS=1 cargo test -p sim --test all schemas` and commit them.

use std::fs;
use std::path::Path;

#[test]
fn committed_schemas_are_current() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    let write = std::env::var_os("SERVETWIN_WRITE_SCHEMAS").is_some();
    for (name, schema) in sim::report::schema::contracts() {
        let current = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        let path = dir.join(name);
        if write {
            fs::write(&path, &current).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == current,
            "docs/schema/{name} is out of date: SERVETWIN_WRITE_SCHEMAS=1 cargo test -p sim --test all schemas"
        );
    }
}

/// The same of scenario files, as `servetwin scenario schema` prints it.
#[test]
fn the_schema_of_scenarios_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema/scenario.schema.json");
    let current = serde_json::to_string_pretty(sim::scenario::schema::schema()).unwrap() + "\n";
    if std::env::var_os("SERVETWIN_WRITE_SCHEMAS").is_some() {
        fs::write(&path, &current).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == current,
        "docs/schema/scenario.schema.json is out of date: SERVETWIN_WRITE_SCHEMAS=1 cargo test -p sim --test all schemas"
    );
}
