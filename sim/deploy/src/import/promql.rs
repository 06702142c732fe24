//! The queries of PromQL whose value the simulator knows: a series, summed over all pods, as it is or through a function of its samples.

use crate::place::shown;

/// Longest query that is read [bytes].
const MAX_BYTES: usize = 4_000;

/// What a query asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Name of the series.
    pub series: String,
    /// `rate`, `avg_over_time` or `max_over_time`.
    pub rule: Option<&'static str>,
    /// Range of that function [s].
    pub window_s: Option<u64>,
}

/// Reads a query.
///
/// # Errors
/// In words, what is not simulated.
pub fn read(text: &str) -> Result<Query, String> {
    let wrong = || {
        format!(
            "of queries a sum of one series is simulated, e.g. sum(vllm:num_requests_waiting), not `{}`",
            shown(text)
        )
    };
    if text.len() > MAX_BYTES {
        return Err(wrong());
    }
    let mut rest = text.trim();
    if let Some(inner) = call(rest, "sum") {
        rest = inner;
    }
    let mut rule = None;
    for (function, name) in [
        ("rate", "rate"),
        ("avg_over_time", "avg_over_time"),
        ("max_over_time", "max_over_time"),
    ] {
        if let Some(inner) = call(rest, function) {
            (rest, rule) = (inner, Some(name));
            break;
        }
    }
    let name = rest
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
        .unwrap_or(rest.len());
    let (series, mut rest) = rest.split_at(name);
    if series.is_empty() {
        return Err(wrong());
    }
    rest = rest.trim_start();
    if rest.starts_with('{') {
        // Labels choose among pods; the simulated deployment has no others.
        rest = after_labels(rest).ok_or_else(wrong)?.trim_start();
    }
    let window_s = match rest.strip_prefix('[') {
        Some(range) => {
            let (range, after) = range.split_once(']').ok_or_else(wrong)?;
            rest = after.trim();
            Some(seconds(range.trim()).ok_or_else(wrong)?)
        }
        None => None,
    };
    if !rest.is_empty() || rule.is_some() != window_s.is_some() {
        return Err(wrong());
    }
    Ok(Query {
        series: series.to_owned(),
        rule,
        window_s,
    })
}

/// What stands in the brackets of a call of `function` that is all of `text`.
fn call<'a>(text: &'a str, function: &str) -> Option<&'a str> {
    let inner = text.strip_prefix(function)?.trim_start();
    let inner = inner.strip_prefix('(')?.strip_suffix(')')?;
    Some(inner.trim())
}

/// What follows `{...}`; braces in quotes are text.
fn after_labels(text: &str) -> Option<&str> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == '}' => return Some(&text[at + 1..]),
            None => {}
        }
    }
    None
}

/// A duration of PromQL, e.g. `1m30s` [s].
fn seconds(text: &str) -> Option<u64> {
    let mut total: u64 = 0;
    let mut number = String::new();
    for c in text.chars() {
        if c.is_ascii_digit() {
            number.push(c);
            continue;
        }
        let unit = match c {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        let n: u64 = number.parse().ok()?;
        total = total.checked_add(n.checked_mul(unit)?)?;
        number.clear();
    }
    (number.is_empty() && total > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_one_series_are_read() {
        for (text, series, rule, window_s) in [
            (
                "vllm:num_requests_waiting",
                "vllm:num_requests_waiting",
                None,
                None,
            ),
            (
                " sum( vllm:num_requests_waiting{job=\"a}\\\"\", x='}'} ) ",
                "vllm:num_requests_waiting",
                None,
                None,
            ),
            (
                "sum(rate(vllm:request_success_total[1m30s]))",
                "vllm:request_success_total",
                Some("rate"),
                Some(90),
            ),
            (
                "avg_over_time(tgi_queue_size{}[2m])",
                "tgi_queue_size",
                Some("avg_over_time"),
                Some(120),
            ),
        ] {
            let expected = Query {
                series: series.into(),
                rule,
                window_s,
            };
            assert_eq!(read(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_simulated_is_said() {
        for text in [
            "",
            "avg(vllm:num_requests_waiting)",
            "sum(a) / sum(b)",
            "sum by (pod) (a)",
            "histogram_quantile(0.9, a)",
            "rate(a)",
            "a[1m]",
            "a[1x]",
            "a{",
            "sum(a))",
            "1 + 1",
            "a offset 5m",
        ] {
            assert!(
                read(text).is_err_and(|e| e.contains("sum of one series")),
                "{text}"
            );
        }
        assert!(read(&"a".repeat(5_000)).is_err());
    }
}
