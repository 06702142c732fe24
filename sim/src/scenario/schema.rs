//! JSON schema of scenario files, and the search for keys and values that it does not know.

use hwmodels::EngineKind;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

use super::document::{Document, join};
use super::error::{Issue, ScenarioError};
use super::file::ScenarioFile;
use super::shape;
use crate::engines::{EngineCommon, EngineParams, memory_key};

/// The kind of engine that means vLLM at the newest release that is modelled.
pub const NEWEST_VLLM: &str = "vllm";
/// vLLM's name for the opposite of `cuda_graphs`.
pub(super) const EAGER: &str = "enforce_eager";

/// Whether engines of `kind` know [`EAGER`].
pub(super) fn has_eager(kind: EngineKind) -> bool {
    kind == EngineKind::VllmV1
}

/// JSON schema (draft 2020-12) of scenario files, for editors; made once per process.
pub fn schema() -> &'static Value {
    static SCHEMA: std::sync::OnceLock<Value> = std::sync::OnceLock::new();
    SCHEMA.get_or_init(generate)
}

fn generate() -> Value {
    let mut g = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let mut root = ScenarioFile::json_schema(&mut g).to_value();
    let engines: Vec<Value> = EngineKind::ALL
        .into_iter()
        .map(|kind| engine_schema(kind, &mut g))
        .collect();
    if let Some(properties) = root.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(
            "engine".into(),
            json!({
                "description": "The serving engine, with its own parameter names.",
                "oneOf": engines,
            }),
        );
    }
    if let Value::Object(o) = &mut root {
        o.insert(
            "$schema".into(),
            "https://json-schema.org/draft/2020-12/schema".into(),
        );
        o.insert("title".into(), "servetwin scenario".into());
        o.insert("required".into(), json!(["engine", "workload"]));
        o.insert("$defs".into(), Value::Object(g.take_definitions(true)));
    }
    // Read apart, like `[engine]`.
    if let Some(pool) = root.pointer_mut("/$defs/PoolFile/properties")
        && let Some(properties) = pool.as_object_mut()
    {
        properties.insert(
            "engine".into(),
            json!({
                "type": "object",
                "description": "Keys of `[engine]` that differ; with another `kind`, all of that engine's.",
            }),
        );
    }
    root
}

/// Schema of `[engine]` for one kind: the keys common to all, and its own.
fn engine_schema(kind: EngineKind, g: &mut schemars::SchemaGenerator) -> Value {
    let own = EngineParams::schema(kind, g).to_value();
    let common = EngineCommon::json_schema(g).to_value();
    let mut properties = Map::new();
    let of_kind = match kind {
        EngineKind::VllmV1 => json!({
            "enum": [kind.name(), NEWEST_VLLM],
            "description": "The engine; \"vllm\" is vLLM at the newest release that is modelled.",
        }),
        _ => json!({ "const": kind.name(), "description": "The engine." }),
    };
    properties.insert("kind".into(), of_kind);
    for part in [&common, &own] {
        for (k, v) in part
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let name = if k == "memory_fraction" {
                memory_key(kind)
            } else {
                k
            };
            properties.insert(name.into(), v.clone());
        }
    }
    if has_eager(kind) {
        let description = "vLLM's name for the opposite of `cuda_graphs`: decode steps launch each kernel. Default: false.";
        let property = json!({ "type": "boolean", "description": description });
        properties.insert(EAGER.into(), property);
    }
    let mut required = vec![json!("kind")];
    required.extend(
        own.get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .cloned(),
    );
    json!({
        "type": "object",
        "description": own.get("description").cloned().unwrap_or_default(),
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// The engine that a schema of `[engine]` is about.
pub fn kind_of(engine: &Value) -> Option<&str> {
    let kind = engine.pointer("/properties/kind")?;
    kind.get("const")
        .or_else(|| kind.pointer("/enum/0"))
        .and_then(Value::as_str)
}

/// Names of the keys common to all engines, as [`EngineCommon`] has them.
pub fn common_engine_keys() -> Vec<String> {
    let mut g = schemars::SchemaGenerator::default();
    let schema = EngineCommon::json_schema(&mut g).to_value();
    schema
        .get("properties")
        .and_then(Value::as_object)
        .map(|p| p.keys().cloned().collect())
        .unwrap_or_default()
}

/// The engine's kind as written.
pub fn engine_kind(document: &Document<'_>) -> Result<EngineKind, ScenarioError> {
    let names = || {
        let all: Vec<&str> = EngineKind::ALL.iter().map(|k| k.name()).collect();
        all.join(", ")
    };
    let Some(engine) = document.root().get("engine") else {
        return Err(document.error(
            "engine",
            format!("is missing; write [engine] with kind = one of {}", names()),
        ));
    };
    let Some(kind) = engine.get_ref().get("kind") else {
        let what = match engine.get_ref() {
            DeValue::Table(_) => format!("kind is missing; one of {}", names()),
            _ => "must be a table: write [engine] and its keys below".to_string(),
        };
        return Err(document.error("engine", what));
    };
    let text = kind.get_ref().as_str().unwrap_or("");
    kind_named(text).ok_or_else(|| document.error("engine.kind", unknown_engine(text)))
}

/// The engine called `text` in files.
pub fn kind_named(text: &str) -> Option<EngineKind> {
    if text == NEWEST_VLLM {
        return Some(EngineKind::VllmV1);
    }
    EngineKind::ALL.into_iter().find(|k| k.name() == text)
}

fn unknown_engine(text: &str) -> String {
    let mut candidates = EngineKind::ALL.map(EngineKind::name).to_vec();
    candidates.push(NEWEST_VLLM);
    unknown("engine", text, &candidates)
}

/// Whether the keys at `path` are an engine's.
fn is_engine(path: &str) -> bool {
    path == "engine" || path.starts_with("pool[") && path.ends_with("].engine")
}

/// Looks through the keys of an engine; `kind` is that of `[engine]`, which a pool may replace.
fn walk_engine(
    document: &Document<'_>,
    value: &DeValue<'_>,
    path: &str,
    root: &Value,
    kind: EngineKind,
    issues: &mut Vec<Issue>,
) {
    let own_kind = value.get("kind").and_then(|k| k.get_ref().as_str());
    let kind = match own_kind.map(|text| (text, kind_named(text))) {
        None => kind,
        Some((_, Some(kind))) => kind,
        Some((text, None)) => {
            issues.push(document.issue(&join(path, "kind"), unknown_engine(text)));
            return;
        }
    };
    let options = root
        .pointer("/properties/engine/oneOf")
        .and_then(Value::as_array);
    let options = options.map_or(&[][..], Vec::as_slice);
    let Some(own) = options.iter().find(|o| kind_of(o) == Some(kind.name())) else {
        return;
    };
    if let Some(problem) = shape::misfit(own, root, value, path) {
        issues.push(document.issue(path, problem));
        return;
    }
    let first = issues.len();
    if let DeValue::Table(table) = value {
        walk_table(document, table, path, own, root, kind, issues);
    }
    name_owners(&mut issues[first..], path, own, options, kind);
}

/// Refuses keys and names that the schema does not know, all at once.
pub fn check_names(document: &Document<'_>, kind: EngineKind) -> Result<(), ScenarioError> {
    let schema = schema();
    let mut issues = Vec::new();
    walk_table(
        document,
        document.root(),
        "",
        schema,
        schema,
        kind,
        &mut issues,
    );
    if issues.is_empty() {
        return Ok(());
    }
    // The table is walked by name; readers expect the order of the file.
    issues.sort_by_key(|i| document.line_of(&i.path));
    Err(ScenarioError::from_issues(issues))
}

fn walk_table(
    document: &Document<'_>,
    table: &DeTable<'_>,
    path: &str,
    schema: &Value,
    root: &Value,
    kind: EngineKind,
    issues: &mut Vec<Issue>,
) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    for (key, value) in table {
        let key: &str = key.get_ref();
        let at = join(path, key);
        match properties.get(key) {
            Some(sub) => walk(document, value.get_ref(), &at, sub, root, kind, issues),
            None => {
                let known: Vec<&str> = properties.keys().map(String::as_str).collect();
                issues.push(document.issue(&at, unknown("key", key, &known)));
            }
        }
    }
}

fn walk(
    document: &Document<'_>,
    value: &DeValue<'_>,
    path: &str,
    schema: &Value,
    root: &Value,
    kind: EngineKind,
    issues: &mut Vec<Issue>,
) {
    if is_engine(path) {
        return walk_engine(document, value, path, root, kind, issues);
    }
    let written = schema;
    let mut schema = schema;
    while let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        // Formats have several spellings (fp16, bfloat16, ...), which serde knows and the schema does not.
        let Some(found) = root.pointer(target.trim_start_matches('#')) else {
            return;
        };
        if target.ends_with("/Dtype") {
            return;
        }
        schema = found;
    }
    if let Some(problem) = shape::misfit(written, root, value, path) {
        issues.push(document.issue(path, problem));
        return;
    }
    if let Some(options) = schema
        .get("anyOf")
        .or(schema.get("oneOf"))
        .and_then(Value::as_array)
    {
        let names: Vec<&str> = options
            .iter()
            .filter_map(|o| o.get("const").and_then(Value::as_str))
            .chain(plain_names(options))
            .collect();
        if !names.is_empty() && names.len() >= options.len() {
            check_name(document, value, path, &names, issues);
            return;
        }
        // An option, or a number or table: whichever fits a value of this shape.
        let wanted = match value {
            DeValue::Table(_) => "object",
            DeValue::Array(_) => "array",
            DeValue::String(_) => "string",
            _ => return,
        };
        for option in options {
            let mut o = option;
            while let Some(target) = o.get("$ref").and_then(Value::as_str) {
                match root.pointer(target.trim_start_matches('#')) {
                    Some(found) => o = found,
                    None => break,
                }
            }
            let fits = o.get("type").and_then(Value::as_str) == Some(wanted)
                || o.get("oneOf").is_some()
                || o.get("anyOf").is_some()
                || o.get("enum").is_some();
            if fits {
                walk(document, value, path, option, root, kind, issues);
                return;
            }
        }
        return;
    }
    if let Some(names) = schema.get("enum").and_then(Value::as_array) {
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        check_name(document, value, path, &names, issues);
        return;
    }
    match value {
        DeValue::Table(t) => walk_table(document, t, path, schema, root, kind, issues),
        DeValue::Array(items) => {
            if let Some(item) = schema.get("items") {
                for (i, v) in items.iter().enumerate() {
                    walk(
                        document,
                        v.get_ref(),
                        &format!("{path}[{i}]"),
                        item,
                        root,
                        kind,
                        issues,
                    );
                }
            }
        }
        _ => {}
    }
}

/// Says of unknown keys of the engine at `path` which other engines have them. `own` is the schema of `kind`, one of `options`.
fn name_owners(issues: &mut [Issue], path: &str, own: &Value, options: &[Value], kind: EngineKind) {
    let has = |engine: &Value, key: &str| {
        let properties = engine.get("properties").and_then(Value::as_object);
        properties.is_some_and(|p| p.contains_key(key))
    };
    for issue in issues {
        let key = issue
            .path
            .strip_prefix(path)
            .and_then(|k| k.strip_prefix('.'));
        let Some(key) = key else {
            continue;
        };
        if has(own, key) {
            continue;
        }
        let owners: Vec<&str> = (options.iter().filter(|o| has(o, key)))
            .filter_map(kind_of)
            .collect();
        if !owners.is_empty() {
            issue.message = format!(
                "`{key}` is a key of kind = {}; {} has no such key",
                owners.join(", "),
                kind.name()
            );
        }
    }
}

/// Names in `enum` lists inside of a list of options (schemars groups undocumented variants so).
fn plain_names(options: &[Value]) -> impl Iterator<Item = &str> {
    options
        .iter()
        .filter_map(|o| o.get("enum").and_then(Value::as_array))
        .flatten()
        .filter_map(Value::as_str)
}

fn check_name(
    document: &Document<'_>,
    value: &DeValue<'_>,
    path: &str,
    names: &[&str],
    issues: &mut Vec<Issue>,
) {
    if let DeValue::String(s) = value
        && !names.contains(&s.as_ref())
    {
        issues.push(document.issue(path, unknown("value", s, names)));
    }
}

/// "unknown key `x`; did you mean `y`?", or the list of what is known where nothing is near.
pub fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let shown = crate::workload::input::shorten(name, 60);
    match nearest(name, known) {
        Some(near) => format!("unknown {what} `{shown}`; did you mean `{near}`?"),
        None => format!("unknown {what} `{shown}`; known: {}", known.join(", ")),
    }
}

/// The known name that `name` was most likely meant to be.
pub fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    // Longer names are no slips of these short ones, and the distance is quadratic.
    if name.len() > 64 {
        return None;
    }
    let plain = |s: &str| s.to_lowercase().replace(['-', ' '], "_");
    let name = plain(name);
    known
        .iter()
        .map(|k| (strsim::damerau_levenshtein(&name, &plain(k)), *k))
        .filter(|(d, k)| *d <= 2.max(k.len() / 3) && *d < name.len().max(2))
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}
