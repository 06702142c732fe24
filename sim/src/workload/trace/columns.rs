//! Traces of any columns: which say what, and how times are written.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::row::TraceRow;
use crate::kv::chain;
use crate::workload::input::shorten;
use crate::workload::tokens::whole_tokens;

/// Which columns of a CSV file, or keys of JSON lines, say what. A key inside of an object is written `usage.prompt_tokens`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceColumns {
    /// When the request was sent.
    pub arrival: String,
    /// Prompt length [tokens].
    pub prompt: String,
    /// Output length [tokens].
    pub output: String,
    /// `max_tokens` of the call [tokens]. Default: none.
    pub max_tokens: Option<String>,
    /// What requests of one session share: a number or any text. Default: none.
    pub session: Option<String>,
    /// How `arrival` is written. Default: "auto".
    pub time: Option<TimeFormat>,
}

/// What a request has in a trace at most: its time, its lengths, `max_tokens` and its session.
pub(super) const FIELDS: usize = 5;

/// How a column of times is written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TimeFormat {
    /// Numbers are seconds, anything else is a date.
    #[default]
    Auto,
    /// Seconds, counted from anywhere.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
    /// Dates like 2023-11-16 18:15:46.68 or 2023-11-16T18:15:46Z.
    Date,
}

impl TraceColumns {
    /// Reads `arrival=ts,prompt=in,output=out,time=ms`, as a command line has it.
    ///
    /// # Errors
    /// A key that there is not, or one that is missing.
    pub fn parse(text: &str) -> Result<TraceColumns, String> {
        let mut columns = TraceColumns::default();
        for part in text.split(',') {
            let Some((key, name)) = part.split_once('=') else {
                return Err(format!(
                    "`{}` has no `=`; write arrival=ts,prompt=in,output=out,time=ms",
                    shorten(part, 60)
                ));
            };
            let name = name.trim().to_owned();
            match key.trim() {
                "arrival" => columns.arrival = name,
                "prompt" => columns.prompt = name,
                "output" => columns.output = name,
                "max_tokens" => columns.max_tokens = Some(name),
                "session" => columns.session = Some(name),
                "time" => {
                    let time = serde_json::from_value(Value::String(name.clone()));
                    columns.time = Some(time.map_err(|_| {
                        format!(
                            "time: `{}` is none of auto, s, ms, us, ns, date",
                            shorten(&name, 60)
                        )
                    })?);
                }
                other => {
                    return Err(format!(
                        "unknown key `{}`; known: arrival, prompt, output, max_tokens, session, time",
                        shorten(other, 60)
                    ));
                }
            }
        }
        for (key, name) in [
            ("arrival", &columns.arrival),
            ("prompt", &columns.prompt),
            ("output", &columns.output),
        ] {
            if name.is_empty() {
                return Err(format!(
                    "`{key}` is missing; arrival, prompt and output are needed"
                ));
            }
        }
        Ok(columns)
    }

    /// Reads a JSON line into `row`. True: the request had no output.
    pub(super) fn parse_json(&self, line: &str, row: &mut TraceRow) -> Result<bool, String> {
        let value: Value =
            serde_json::from_str(line).map_err(|e| format!("is no JSON object ({e})"))?;
        let keys = self.names();
        let text = |at: usize| match keys[at].and_then(|key| lookup(&value, key)) {
            Some(Value::String(s)) => s.trim().into(),
            Some(Value::Null) | None => "".into(),
            Some(other) => other.to_string().into(),
        };
        let output = self.fill(row, text)?;
        Ok(output == 0.0)
    }

    /// The names in the order arrival, prompt, output, max_tokens, session.
    pub(super) fn names(&self) -> [Option<&str>; FIELDS] {
        [
            Some(&self.arrival),
            Some(&self.prompt),
            Some(&self.output),
            self.max_tokens.as_deref(),
            self.session.as_deref(),
        ]
    }

    /// Fills `row` from the texts that stand in the columns, by their place in [`TraceColumns::names`]; the output length as
    /// written.
    pub(super) fn fill<'t>(
        &self,
        row: &mut TraceRow,
        text: impl Fn(usize) -> Cow<'t, str>,
    ) -> Result<f64, String> {
        row.id = 0;
        row.hash_ids.clear();
        row.arrival_s = seconds(&text(0), self.time.unwrap_or_default(), &self.arrival)?;
        row.prompt_tokens = whole_tokens(number(&text(1), &self.prompt)?, &self.prompt)?;
        let output = number(&text(2), &self.output)?;
        row.output_tokens = whole_tokens(output, &self.output)?;
        row.max_tokens = match &self.max_tokens {
            Some(key) if !text(3).is_empty() => Some(whole_tokens(number(&text(3), key)?, key)?),
            _ => None,
        };
        let session = text(4);
        // Names of sessions become numbers that are almost surely their own.
        let named = || session.bytes().fold(0x5e55, |h, b| chain(h, u64::from(b)));
        row.session = match session.is_empty() {
            true => None,
            false => Some(session.parse().unwrap_or_else(|_| named())),
        };
        Ok(output)
    }
}

/// The value at `key`, as a whole or as a path of keys.
fn lookup<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    value.get(key).or_else(|| {
        key.split('.')
            .try_fold(value, |inside, part| inside.get(part))
    })
}

/// A number that stands in `column`.
pub(super) fn number(text: &str, column: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|x| x.is_finite())
        .ok_or_else(|| format!("column `{column}`: expected a number, got {}", got(text)))
}

/// A time that stands in `column` [s].
pub(super) fn seconds(text: &str, format: TimeFormat, column: &str) -> Result<f64, String> {
    let per_second = match format {
        TimeFormat::S => 1.0,
        TimeFormat::Ms => 1e3,
        TimeFormat::Us => 1e6,
        TimeFormat::Ns => 1e9,
        TimeFormat::Auto if text.parse::<f64>().is_ok() => 1.0,
        TimeFormat::Auto | TimeFormat::Date => {
            return calendar_seconds(text).ok_or_else(|| {
                let or_number = match format {
                    TimeFormat::Auto => "a number of seconds, or a date",
                    _ => "a date",
                };
                format!(
                    "column `{column}`: expected {or_number} like 2023-11-16 18:15:46.6805900, got {}",
                    got(text)
                )
            });
        }
    };
    Ok(number(text, column)? / per_second)
}

fn got(text: &str) -> String {
    match text {
        "" => "nothing".to_owned(),
        text => format!("\"{}\"", shorten(text, 60)),
    }
}

/// Seconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM|Z]` (proleptic Gregorian calendar).
pub(super) fn calendar_seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut parts = date.splitn(3, '-');
    let mut int = || parts.next()?.parse::<i64>().ok();
    let (year, month, day) = (int()?, int()?, int()?);
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (time, offset) = match time.find(['+', '-', 'Z']) {
        Some(i) => (&time[..i], &time[i..]),
        None => (time, ""),
    };
    let offset_s = match offset {
        "" | "Z" => 0,
        other => {
            let (sign, rest) = other.split_at(1);
            let (h, m) = rest.split_once(':')?;
            let s = h.parse::<u8>().ok()? as i64 * 3600 + m.parse::<u8>().ok()? as i64 * 60;
            if sign == "-" { -s } else { s }
        }
    };
    let mut parts = time.splitn(3, ':');
    let hour: u8 = parts.next()?.parse().ok()?;
    let minute: u8 = parts.next()?.parse().ok()?;
    let second: f64 = parts.next()?.parse().ok()?;
    if hour > 23 || minute > 59 || !(0.0..61.0).contains(&second) {
        return None;
    }
    // Days from civil: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468;
    let whole = days * 86_400 + i64::from(hour) * 3600 + i64::from(minute) * 60 - offset_s;
    Some(whole as f64 + second)
}
