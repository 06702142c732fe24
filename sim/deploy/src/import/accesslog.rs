//! Access logs as a load: nginx's `combined` format, and JSON lines.
//!
//! A log that counts tokens is a trace: the scenario names it with its columns. One that does not gives the rate of requests over time; lengths are to be written.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::{Table as Keys, Value};

use super::draft::{Draft, Origin, Stream};
use super::load::stretches;
use crate::keys::Read::Text;
use crate::keys::{Table, says};
use crate::place::{Place, shown};
use crate::text::Wrong;

/// Stretches of rate that a log is cut into, about.
const STEPS: i64 = 240;
/// Shortest stretch [ms].
const LEAST_MS: i64 = 10_000;
/// Parts of paths that engines answer.
const PATHS: [&str; 8] = [
    "/completions",
    "/chat",
    "/responses",
    "/generate",
    "/infer",
    "/invocations",
    "/predict",
    "/messages",
];
/// Keys of JSON lines that hold the time of a request.
const TIMES: [&str; 11] = [
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "created",
    "created_at",
    "start_time",
    "request_time",
    "time_iso8601",
    "time_local",
    "msec",
];
/// Keys of JSON lines that hold token counts: prompt, output.
const TOKENS: [(&str, &str); 5] = [
    ("prompt_tokens", "completion_tokens"),
    ("input_tokens", "output_tokens"),
    ("usage.prompt_tokens", "usage.completion_tokens"),
    ("usage.input_tokens", "usage.output_tokens"),
    ("prompt_tokens", "output_tokens"),
];

/// Access logs.
pub const TABLE: Table = Table {
    kind: "access-log",
    title: "access log: nginx's `combined` format, or JSON lines",
    keys: &[
        says(
            "[time]",
            "`arrival.steps`: the rate of requests to paths of an engine (/v1/completions, /generate, ...) over time",
            Text,
        ),
        says(
            "{...}",
            "of JSON lines with a time and token counts (prompt_tokens and completion_tokens, input_tokens and output_tokens, also below usage): a trace with these columns",
            Text,
        ),
    ],
    idle: &[],
    idle_flags: &[],
};

/// A log's requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Log {
    /// JSON lines that count tokens: names of time, prompt and output.
    Counted([String; 3]),
    /// Times of the requests to engines [ms since 1970], and how many others there are.
    Times(Vec<i64>, u64),
}

/// Reads a log; none where the text is none.
pub fn read(text: &str) -> Option<Result<Log, Wrong>> {
    let first = text.lines().find(|l| !l.trim().is_empty())?;
    if combined(first).is_some() {
        return Some(times(text, combined));
    }
    let object: BTreeMap<String, serde_json::Value> = serde_json::from_str(first).ok()?;
    let flat = flattened(&object);
    let time = TIMES.iter().find(|t| flat.contains_key(**t))?;
    // One object is a document like any other; a log has several.
    let second = text.lines().filter(|l| !l.trim().is_empty()).nth(1)?;
    serde_json::from_str::<BTreeMap<String, serde_json::Value>>(second).ok()?;
    let counted = TOKENS
        .iter()
        .find(|(p, o)| flat.contains_key(*p) && flat.contains_key(*o));
    Some(match counted {
        Some((p, o)) => Ok(Log::Counted([time, p, o].map(|s| (*s).to_owned()))),
        None => times(text, |line| json_line(line, time)),
    })
}

/// A request of a log: when [ms since 1970], and whether an engine answers it.
type Request = (i64, bool);

fn times(text: &str, read: impl Fn(&str) -> Option<Request>) -> Result<Log, Wrong> {
    let mut requests = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let line_number = u32::try_from(i + 1).unwrap_or(u32::MAX);
        let wrong = || {
            Wrong::new(
                line_number,
                "is no line of an access log as the first one is",
            )
        };
        requests.push(read(line).ok_or_else(wrong)?);
    }
    let mut served: Vec<i64> = requests.iter().filter(|r| r.1).map(|r| r.0).collect();
    if served.is_empty() {
        // Paths that nobody knows: all of them are meant.
        served = requests.iter().map(|r| r.0).collect();
    }
    let others = (requests.len() - served.len()) as u64;
    served.sort_unstable();
    Ok(Log::Times(served, others))
}

/// A line of nginx's `combined` format (or Apache's `common`): `... [10/Oct/2025:13:55:36 +0000] "POST /v1/completions HTTP/1.1" 200 ...`.
fn combined(line: &str) -> Option<Request> {
    let (_, rest) = line.split_once('[')?;
    let (time, rest) = rest.split_once(']')?;
    let (_, rest) = rest.split_once('"')?;
    let (request, rest) = rest.split_once('"')?;
    rest.split_whitespace().next()?.parse::<u16>().ok()?;
    let mut words = request.split(' ');
    let (method, path) = (words.next()?, words.next().unwrap_or(""));
    Some((local_ms(time)?, method == "POST" && of_engine(path)))
}

fn of_engine(path: &str) -> bool {
    PATHS.iter().any(|p| path.contains(p))
}

/// Nginx's `$time_local`: `10/Oct/2025:13:55:36 +0000` [ms since 1970].
fn local_ms(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (date, zone) = text.trim().split_once(' ')?;
    let mut parts = date.split(['/', ':']);
    let day: i64 = parts.next()?.parse().ok()?;
    let month = parts.next()?;
    let month = MONTHS.iter().position(|m| *m == month)? as i64 + 1;
    let [year, hour, minute, second] =
        [(); 4].map(|()| parts.next().and_then(|n| n.parse::<i64>().ok()));
    let (year, hour, minute, second) = (year?, hour?, minute?, second?);
    let is_clock =
        (0..24).contains(&hour) && (0..60).contains(&minute) && (0..61).contains(&second);
    if !is_clock {
        return None;
    }
    let seconds = at(year, month, day)? + 3600 * hour + 60 * minute + second;
    Some(1000 * (seconds - offset(zone)?))
}

/// `2025-10-10T13:55:36.250Z` or with an offset [ms since 1970].
fn iso_ms(text: &str) -> Option<i64> {
    let (date, clock) = text.trim().split_once(['T', ' '])?;
    let mut parts = date.splitn(3, '-').map(|n| n.parse::<i64>().ok());
    let day = at(parts.next()??, parts.next()??, parts.next()??)?;
    let end = clock.find(['Z', '+', '-']).unwrap_or(clock.len());
    let (clock, zone) = clock.split_at(end);
    let mut parts = clock.splitn(3, ':');
    let hour: i64 = parts.next()?.parse().ok().filter(|h| (0..24).contains(h))?;
    let minute: i64 = parts.next()?.parse().ok().filter(|m| (0..60).contains(m))?;
    let second: f64 = parts
        .next()?
        .parse()
        .ok()
        .filter(|s| (0.0..61.0).contains(s))?;
    let zone = if zone.is_empty() { 0 } else { offset(zone)? };
    Some(1000 * (day + 3600 * hour + 60 * minute - zone) + (1e3 * second) as i64)
}

/// An offset from UTC: `Z`, `+0200`, `-05:30` [s].
fn offset(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits: String = text[1..].chars().filter(|c| *c != ':').collect();
    let n: i64 = digits.parse().ok().filter(|_| digits.len() == 4)?;
    Some(sign * (3600 * (n / 100) + 60 * (n % 100)))
}

/// Midnight of a day [s since 1970]; Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn at(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1970..3000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let y = if month <= 2 { year - 1 } else { year };
    let era = y / 400;
    let of_era = y - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(86_400 * days)
}

/// Keys of an object and of those inside it.
fn flattened(object: &BTreeMap<String, serde_json::Value>) -> BTreeMap<String, &serde_json::Value> {
    let mut out = BTreeMap::new();
    for (key, value) in object {
        match value.as_object() {
            Some(inner) => out.extend(inner.iter().map(|(k, v)| (format!("{key}.{k}"), v))),
            None => {
                out.insert(key.clone(), value);
            }
        }
    }
    out
}

fn json_line(line: &str, time: &str) -> Option<Request> {
    let object: BTreeMap<String, serde_json::Value> = serde_json::from_str(line).ok()?;
    let value = object.get(time)?;
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    let ms = match number {
        // Seconds, or milliseconds where seconds would be beyond the year 5000.
        Some(n) if (0.0..1e11).contains(&n) => (n * 1e3) as i64,
        Some(n) if (1e11..1e14).contains(&n) => n as i64,
        Some(_) => return None,
        None => value
            .as_str()
            .and_then(|t| iso_ms(t).or_else(|| local_ms(t)))?,
    };
    let text = |keys: [&str; 4]| keys.iter().find_map(|k| object.get(*k)?.as_str());
    let path = text(["uri", "path", "request_uri", "request"]);
    let method = text(["method", "request_method", "verb", "http_method"]);
    let served = path.is_none_or(of_engine) && method.is_none_or(|m| m == "POST");
    Some((ms, served))
}

/// Imports a log; `reference` is how the scenario names it.
pub fn import(log: &Log, file: &Arc<str>, reference: &str, draft: &mut Draft) {
    let line = |key: &str, raw: &str| Origin::new(Place::new(file, 1), key, raw);
    match log {
        Log::Counted([time, prompt, output]) => {
            let mut columns = Keys::new();
            for (key, column) in [("arrival", time), ("prompt", prompt), ("output", output)] {
                columns.insert(key.into(), column.as_str().into());
            }
            let mut arrival = Keys::new();
            arrival.insert("kind".into(), "trace".into());
            arrival.insert("file".into(), reference.into());
            arrival.insert("columns".into(), columns.into());
            let mut keys = Keys::new();
            keys.insert("arrival".into(), arrival.into());
            let origin = line("{...}", "");
            draft.used(
                &origin,
                format!(
                    "a trace: times {}, lengths {} and {}",
                    shown(time),
                    shown(prompt),
                    shown(output)
                ),
            );
            draft.stream(Stream {
                keys,
                from: origin.place.to_string(),
            });
        }
        Log::Times(served, others) => {
            let origin = line("[time]", "");
            let (Some(first), Some(last)) = (served.first(), served.last()) else {
                return;
            };
            let width = ((last - first) / STEPS).max(LEAST_MS) / 1000 * 1000;
            let bins = ((last - first) / width + 1) as usize;
            let mut counts = vec![0u64; bins];
            for t in served {
                counts[((t - first) / width) as usize] += 1;
            }
            let steps: Vec<(f64, i64)> = (counts.iter())
                .map(|n| (*n as f64 / (width as f64 / 1e3), width))
                .collect();
            let left_out = match others {
                0 => String::new(),
                n => format!("; {n} requests that no engine answers are left out"),
            };
            draft.used(
                &origin,
                format!(
                    "workload.arrival: {} requests in {bins} stretches of {} s{left_out}",
                    served.len(),
                    width / 1000
                ),
            );
            let keys = stretches(
                &steps,
                draft,
                "a log without token counts says nothing of lengths: write those of your requests",
            );
            draft.later(
                "run.duration",
                Value::from(format!("{} ms", bins as i64 * width)),
                "as long as the log",
            );
            draft.stream(Stream {
                keys,
                from: origin.place.to_string(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_logs_are_those_of_the_calendar() {
        assert_eq!(
            local_ms("10/Oct/2025:13:55:36 +0000"),
            Some(1_760_104_536_000)
        );
        assert_eq!(
            local_ms("10/Oct/2025:15:55:36 +0200"),
            Some(1_760_104_536_000)
        );
        assert_eq!(iso_ms("2025-10-10T13:55:36Z"), Some(1_760_104_536_000));
        assert_eq!(
            iso_ms("2025-10-10T08:25:36.250-05:30"),
            Some(1_760_104_536_250)
        );
        assert_eq!(iso_ms("1970-01-01 00:00:00"), Some(0));
        for wrong in [
            "",
            "10/Okt/2025:13:55:36 +0000",
            "99/Oct/2025:1:2:3 +0000",
            "x y",
            "10/Oct/2025:13:55:36 0000",
        ] {
            assert_eq!(local_ms(wrong), None, "{wrong}");
        }
        for wrong in [
            "2025-13-10T13:55:36Z",
            "2025-10-10",
            "2025-10-10T13:55",
            "T",
            "2025-10-10T13:55:xxZ",
        ] {
            assert_eq!(iso_ms(wrong), None, "{wrong}");
        }
    }

    const LINE: &str = "10.0.0.1 - - [10/Oct/2025:13:55:36 +0000] \"POST /v1/chat/completions HTTP/1.1\" 200 512 \"-\" \"curl/8 [x]\"\n";

    #[test]
    fn a_combined_log_gives_times_of_what_engines_answer() {
        let health = LINE
            .replace("POST /v1/chat/completions", "GET /health")
            .replace(":36 ", ":37 ");
        let text = format!("{LINE}{health}\n{}", LINE.replace(":36 ", ":40 "));
        let log = read(&text).unwrap().unwrap();
        assert_eq!(
            log,
            Log::Times(vec![1_760_104_536_000, 1_760_104_540_000], 1)
        );
        let broken = read(&format!("{LINE}nonsense\n")).unwrap().unwrap_err();
        assert_eq!(broken.line, 2);
        assert!(read("nonsense").is_none() && read("").is_none());
    }

    #[test]
    fn json_lines_with_tokens_are_a_trace() {
        let line = "{\"created\": 1760104536, \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 6}}\n";
        let names = ["created", "usage.prompt_tokens", "usage.completion_tokens"];
        let expected = Log::Counted(names.map(str::to_owned));
        assert_eq!(read(&line.repeat(2)).unwrap(), Ok(expected));
        // One object alone is no log.
        assert!(read(line).is_none());
        let line = "{\"time_iso8601\": \"2025-10-10T13:55:36+00:00\", \"request\": \"POST /generate HTTP/1.1\", \"status\": 200}\n";
        let log = read(&line.repeat(3)).unwrap().unwrap();
        assert_eq!(log, Log::Times(vec![1_760_104_536_000; 3], 0));
    }
}
