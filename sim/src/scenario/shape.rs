//! What stands behind a key is of the wrong shape: said in the words of scenario files, with an example.

use serde_json::Value;
use toml::de::DeValue;

use crate::workload::input::shorten;

/// Keys whose value is a table or a list, with what would be right.
const EXAMPLES: [(&str, &str); 23] = [
    ("model", "[model] and below it name = \"llama-2-7b\""),
    (
        "hardware",
        "[hardware] and below it instance = \"g5.2xlarge\"",
    ),
    ("layout", "[layout] and below it tp = 2"),
    ("step", "[step] and below it base = \"10 ms\""),
    (
        "pool",
        "[[pool]] and its keys below, one block for each pool",
    ),
    (
        "kv_transfer",
        "[kv_transfer] and below it bandwidth = \"50 GB/s\"",
    ),
    ("router", "[router] and below it policy = \"least_kv\""),
    ("engine", "[engine] and below it kind = \"vllm\""),
    ("run", "[run] and below it requests = 1000"),
    ("slo", "[slo] and below it ttft = \"500 ms\""),
    (
        "workload",
        "[[workload]] and its keys below, one block for each stream",
    ),
    (
        "arrival",
        "arrival = { kind = \"poisson\", rate = \"2.5 req/s\" }",
    ),
    (
        "steps",
        "steps = [{ rate = \"2 req/s\", duration = \"5 min\" }]",
    ),
    (
        "columns",
        "columns = { arrival = \"time\", prompt = \"input\", output = \"output\" }",
    ),
    (
        "prompt",
        "prompt = 256, or prompt = { kind = \"uniform\", min = 128, max = 512 }",
    ),
    (
        "output",
        "output = 256, or output = { kind = \"uniform\", min = 128, max = 512 }",
    ),
    (
        "turns",
        "turns = 5, or turns = { kind = \"uniform\", min = 2, max = 8 }",
    ),
    ("lengths", "lengths = { file = \"lengths.csv\" }"),
    ("prefix", "prefix = { tokens = 1024 }"),
    ("sessions", "sessions = { turns = 5, think = \"10 s\" }"),
    ("cancel", "cancel = { fraction = 0.1, after = \"5 s\" }"),
    ("retries", "retries = { max = 3 }"),
    (
        "params",
        "params = { \"engine.vllm_v1.request_in\" = 0.002 }",
    ),
];

/// An example of the key at `path`, for the end of a message.
fn example(path: &str) -> String {
    let key = path.rsplit('.').next().unwrap_or(path);
    let key = key.split('[').next().unwrap_or(key);
    match EXAMPLES.iter().find(|(k, _)| *k == key) {
        Some((_, text)) => format!("; write {text}"),
        None => String::new(),
    }
}

/// Why `value` cannot stand at `path`, if its shape is wrong; `schema` is that of the key, whose references lie in `root`.
pub(super) fn misfit(
    schema: &Value,
    root: &Value,
    value: &DeValue<'_>,
    path: &str,
) -> Option<String> {
    let wanted = wanted(schema, root)?;
    let right = match (wanted, value) {
        (Shape::Table, DeValue::Table(_)) | (Shape::List, DeValue::Array(_)) => true,
        (Shape::Table, _) | (Shape::List, _) => false,
        (Shape::Whole { least, most }, DeValue::Integer(i)) => {
            let digits = i.as_str().replace('_', "");
            // Other bases are rare; serde reads them.
            match i64::from_str_radix(&digits, i.radix()) {
                Ok(n) if i128::from(n) < least || i128::from(n) > most => {
                    return Some(format!("must be from {least} to {most}, got {n}"));
                }
                _ => true,
            }
        }
        (Shape::Whole { .. }, _) => false,
        (Shape::Number, DeValue::Integer(_) | DeValue::Float(_)) => true,
        (Shape::Bool, DeValue::Boolean(_)) | (Shape::Text, DeValue::String(_)) => true,
        (Shape::Number | Shape::Bool | Shape::Text, _) => false,
    };
    if right {
        return None;
    }
    let what = match wanted {
        Shape::Table => "a table".to_owned(),
        Shape::List if matches!(value, DeValue::Table(_)) && path == "workload" => {
            return Some(
                "must be a list of streams: write [[workload]] with two brackets instead of [workload], one block for each stream"
                    .to_owned(),
            );
        }
        Shape::List => "a list".to_owned(),
        Shape::Whole { .. } => "a whole number".to_owned(),
        Shape::Number => "a number".to_owned(),
        Shape::Bool => "true or false".to_owned(),
        Shape::Text => "text in quotes".to_owned(),
    };
    let mut message = format!("must be {what}, got {}", in_words(value));
    match (wanted, value) {
        (Shape::Text, DeValue::Integer(_) | DeValue::Float(_)) => {
            message.push_str(&format!("; write \"{}\"", plain(value)));
        }
        _ => message.push_str(&example(path)),
    }
    Some(message)
}

/// What the schema of a key wants, where that is one thing.
#[derive(Clone, Copy)]
enum Shape {
    Table,
    List,
    Whole { least: i128, most: i128 },
    Number,
    Bool,
    Text,
}

/// The shape that `schema` wants; `None` where there are several, or where the value's own reader says it better.
fn wanted(schema: &Value, root: &Value) -> Option<Shape> {
    let mut schema = schema;
    for _ in 0..8 {
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            schema = root.pointer(target.trim_start_matches('#'))?;
        } else if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
            // An option: null or one thing.
            let is_null = |o: &&Value| o.get("type").and_then(Value::as_str) == Some("null");
            let [only] = options.iter().filter(|o| !is_null(o)).collect::<Vec<_>>()[..] else {
                return None;
            };
            schema = only;
        } else {
            break;
        }
    }
    let kind = match schema.get("type")? {
        Value::String(s) => s.as_str(),
        Value::Array(a) => a.iter().filter_map(Value::as_str).find(|t| *t != "null")?,
        _ => return None,
    };
    Some(match kind {
        "object" => Shape::Table,
        "array" => Shape::List,
        "integer" => {
            let (least, most) = match schema.get("format").and_then(Value::as_str) {
                Some("uint16") => (0, i128::from(u16::MAX)),
                Some("uint32") => (0, i128::from(u32::MAX)),
                Some("uint64" | "uint") => (0, i128::from(i64::MAX)),
                Some("int32") => (i128::from(i32::MIN), i128::from(i32::MAX)),
                _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
            };
            Shape::Whole { least, most }
        }
        "number" => Shape::Number,
        "boolean" => Shape::Bool,
        // Values with units say themselves what they want.
        "string" => {
            let description = schema.get("description").and_then(Value::as_str);
            match description {
                Some(d) if d.contains("with its unit") => return None,
                _ => Shape::Text,
            }
        }
        _ => return None,
    })
}

/// The value as a reader would call it.
fn in_words(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(s) => format!("the text \"{}\"", shorten(s, 60)),
        DeValue::Integer(_) | DeValue::Float(_) => format!("the number {}", plain(value)),
        DeValue::Boolean(b) => b.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        DeValue::Datetime(d) => format!("the date {d}"),
    }
}

/// The digits of a number as written.
fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(i) => shorten(i.as_str(), 40),
        DeValue::Float(f) => shorten(f.as_str(), 40),
        _ => String::new(),
    }
}

/// The reader's complaint about the key at `path`, without the names of types of the program, and with a right form where the
/// usual one would not be meant.
pub(super) fn in_the_words_of_files(message: &str, path: &str) -> String {
    let mut text = match message.find("expected struct ") {
        Some(at) => format!("{}expected a table{}", &message[..at], example(path)),
        None => message.to_owned(),
    };
    // Latency targets are milliseconds in people's minds: 500 s is no target.
    if path.starts_with("slo.")
        && let Some((head, rest)) = text.split_once("write \"")
        && let Some((number, tail)) = rest.split_once(" s\" instead of")
        && number.parse::<f64>().is_ok_and(|x| x >= 10.0)
    {
        text = format!("{head}write \"{number} ms\" instead of{tail}");
    }
    text
}
