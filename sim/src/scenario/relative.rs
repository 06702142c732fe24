//! Overrides relative to what is written: `engine.max_num_seqs=2x`, `workload[0].arrival.rate=+10%`, and `workload.rate=2x` for the whole load.

use hwmodels::units::plain;
use toml::{Spanned, Table, Value};

use super::document::{Document, join};
use super::error::ScenarioError;

/// The key that stands for the load of all streams.
const WHOLE_LOAD: &str = "workload.rate";

/// `overrides` with every relative value worked out against `text` and the overrides before it.
///
/// # Errors
/// A relative value of a key that is not written; text that is not TOML.
pub fn absolute(
    text: &str,
    origin: &str,
    overrides: &[String],
) -> Result<Vec<String>, ScenarioError> {
    let mut out: Vec<String> = Vec::new();
    for o in overrides {
        let parts = o.split_once('=').map(|(k, v)| (k.trim(), v.trim()));
        let Some((key, factor)) = parts.and_then(|(k, v)| Some((k, factor_of(v)?))) else {
            out.push(o.clone());
            continue;
        };
        let fail = |message: String| ScenarioError::new(format!("--set {o}"), key, message);
        let root: Table = {
            let document = Document::parse(text, origin, &out)?;
            let root = Spanned::new(document.root_span(), document.root().clone());
            document.read("", root)?
        };
        let root = Value::Table(root);
        if key == WHOLE_LOAD {
            out.extend(whole_load(&root, factor).map_err(fail)?);
            continue;
        }
        let Some(value) = at(&root, key) else {
            return Err(fail(
                "is relative, and there is nothing it could be relative to: the key is not written; give its value".into(),
            ));
        };
        match scaled(value, factor) {
            Some(v) => out.push(format!("{key}={v}")),
            // A name may look like a factor; only numbers are multiplied.
            None if value.is_str() => out.push(o.clone()),
            None => return Err(fail("is relative, but the value is no number".into())),
        }
    }
    Ok(out)
}

/// The factor that `2x`, `+10%` or `-25 %` stands for; none for what is not relative.
fn factor_of(value: &str) -> Option<f64> {
    let number = |s: &str| {
        let plain = s.chars().all(|c| c.is_ascii_digit() || c == '.');
        s.parse::<f64>().ok().filter(|n| plain && n.is_finite())
    };
    if let Some(n) = value.strip_suffix('x') {
        return number(n.trim()).filter(|n| *n > 0.0);
    }
    let percent = value.strip_suffix('%')?.trim();
    let factor = match percent.split_at_checked(1)? {
        ("+", n) => 1.0 + number(n.trim())? / 100.0,
        ("-", n) => 1.0 - number(n.trim())? / 100.0,
        _ => return None,
    };
    (factor > 0.0).then_some(factor)
}

/// The value at `path`; a list is entered by index or by the name of one of its tables.
fn at<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = root;
    for part in path.split('.') {
        let (name, indices) = part.split_at(part.find('[').unwrap_or(part.len()));
        value = match value {
            Value::Table(t) => t.get(name)?,
            Value::Array(all) => {
                let named = |v: &&Value| v.get("name").and_then(Value::as_str) == Some(name);
                match all.iter().find(named) {
                    Some(v) => v,
                    None => all.get(name.parse::<usize>().ok()?)?,
                }
            }
            _ => return None,
        };
        for index in indices.split('[').skip(1) {
            let i: usize = index.strip_suffix(']')?.parse().ok()?;
            value = value.as_array()?.get(i)?;
        }
    }
    Some(value)
}

/// `value` times `factor`, as TOML: whole numbers stay whole, units stay.
fn scaled(value: &Value, factor: f64) -> Option<String> {
    match value {
        Value::Integer(n) => {
            let n = (*n as f64 * factor).round();
            (n.abs() < 9e15).then(|| format!("{n:.0}"))
        }
        Value::Float(x) => Some(Value::Float(x * factor).to_string()),
        Value::String(s) => {
            let end = s.find(|c: char| c.is_alphabetic() || c == '/' || c == '%');
            let (number, unit) = s.split_at(end.unwrap_or(s.len()));
            let number: f64 = number.trim().parse().ok()?;
            // A name may begin with a number too; a unit holds no digit.
            if unit.chars().any(|c| c.is_ascii_digit()) {
                return None;
            }
            let text = format!("{} {}", plain(number * factor), unit.trim());
            Some(Value::String(text.trim().to_owned()).to_string())
        }
        _ => None,
    }
}

/// Overrides that make the load of all streams `factor` times what it is, over the same stretch of it.
fn whole_load(root: &Value, factor: f64) -> Result<Vec<String>, String> {
    let streams = root.get("workload").and_then(Value::as_array);
    let streams = streams.ok_or("there is no workload")?;
    let mut out = Vec::new();
    let mut traces = true;
    for (i, stream) in streams.iter().enumerate() {
        let arrival = join(&format!("workload[{i}]"), "arrival");
        let kind = stream.get("arrival").and_then(|a| a.get("kind")?.as_str());
        let kind = kind.ok_or_else(|| format!("{arrival}.kind is missing"))?;
        traces &= kind == "trace";
        let mut times = |key: &str, default: Option<f64>, factor: f64| {
            let path = format!("{arrival}.{key}");
            let written = at(root, &path).and_then(|v| scaled(v, factor));
            if let Some(v) = written.or_else(|| default.map(|d| plain(d * factor))) {
                out.push(format!("{path}={v}"));
            }
        };
        match kind {
            "trace" => times("time_scale", Some(1.0), 1.0 / factor),
            "rate_table" => times("scale", Some(1.0), factor),
            "steps" => {
                let steps = at(root, &format!("{arrival}.steps")).and_then(Value::as_array);
                for n in 0..steps.map_or(0, Vec::len) {
                    times(&format!("steps[{n}].rate"), None, factor);
                }
            }
            "burst" => times("max_in_flight", None, factor),
            _ => {
                for key in ["rate", "from", "to", "concurrency"] {
                    times(key, None, factor);
                }
            }
        }
    }
    let keys: &[(&str, f64)] = if traces {
        &[("run.duration", 1.0 / factor), ("run.warmup", 1.0 / factor)]
    } else {
        &[("run.requests", factor)]
    };
    for (key, factor) in keys {
        if let Some(v) = at(root, key).and_then(|v| scaled(v, *factor)) {
            out.push(format!("{key}={v}"));
        }
    }
    if out.is_empty() {
        return Err("no stream has a rate".into());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"2x4\"\n[engine]\nkind = \"vllm\"\nmax_num_seqs = 100\nmemory_fraction = 0.8\n[[workload]]\nname = \"chat\"\n\
        arrival = { kind = \"poisson\", rate = \"40 req/s\" }\n[[workload]]\narrival = { kind = \"trace\", file = \"t.csv\" }\n[run]\nrequests = 10\n";

    fn one(o: &str) -> Vec<String> {
        absolute(TEXT, "s.toml", &[o.to_owned()]).unwrap()
    }

    #[test]
    fn numbers_are_multiplied_and_keep_their_units() {
        assert_eq!(one("engine.max_num_seqs=2x"), ["engine.max_num_seqs=200"]);
        assert_eq!(one("engine.max_num_seqs=+10%"), ["engine.max_num_seqs=110"]);
        assert_eq!(
            one("engine.memory_fraction=-50 %"),
            ["engine.memory_fraction=0.4"]
        );
        assert_eq!(
            one("workload[0].arrival.rate=0.5x"),
            ["workload[0].arrival.rate=\"20 req/s\""]
        );
        assert_eq!(
            one("workload.chat.arrival.rate=1.5x"),
            ["workload.chat.arrival.rate=\"60 req/s\""]
        );
    }

    #[test]
    fn what_is_not_relative_or_no_number_stays() {
        for same in ["name=2x", "seed=7", "run.requests=20", "engine.kind=tgi"] {
            assert_eq!(one(same), [same]);
        }
    }

    #[test]
    fn the_whole_load_is_every_stream() {
        assert_eq!(
            one("workload.rate=2x"),
            [
                "workload[0].arrival.rate=\"80 req/s\"",
                "workload[1].arrival.time_scale=0.5",
                "run.requests=20"
            ]
        );
    }

    #[test]
    fn a_later_override_is_relative_to_an_earlier_one() {
        let set = ["run.requests=50".to_owned(), "run.requests=2x".to_owned()];
        assert_eq!(
            absolute(TEXT, "s.toml", &set).unwrap()[1],
            "run.requests=100"
        );
    }

    #[test]
    fn a_key_that_is_not_written_has_nothing_to_be_relative_to() {
        let e = absolute(TEXT, "s.toml", &["engine.block_size=2x".to_owned()]).unwrap_err();
        assert!(e.to_string().contains("not written"), "{e}");
    }
}
