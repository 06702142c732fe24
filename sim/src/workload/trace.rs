//! Traces: requests read from a file, one line at a time.
//!
//! A trace is read twice: once to check it from end to end (so that a run does not fail in its last hour) and
//! to count it, then line by line while the run goes on, in constant memory. Times count from the trace's first row.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::input::{Lines, shorten, split_csv};
use super::lengths::whole_tokens;

/// Formats of traces.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TraceFormat {
    /// Told from the first line.
    #[default]
    Auto,
    /// Azure public dataset, 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens.
    Azure,
    /// Mooncake JSONL: timestamp [ms], input_length, output_length, hash_ids of 512-token blocks.
    Mooncake,
    /// BurstGPT: Timestamp [s], Model, Request tokens, Response tokens, ...
    BurstGpt,
    /// Plain CSV: arrival_s, input_tokens, output_tokens, and optionally max_tokens, session.
    Csv,
    /// Request rows that `servetwin run --csv` wrote: arrival_s, prompt_tokens, output_tokens.
    Records,
}

/// Tokens of a Mooncake block (its README: "each block contains 512 tokens").
pub const MOONCAKE_BLOCK_TOKENS: u32 = 512;

/// Most rows of a trace: as many as request ids.
pub const MAX_TRACE_ROWS: u64 = u32::MAX as u64 - 1;

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceRow {
    /// Its number in the run that wrote it, which settles the order of requests sent at one instant; else 0.
    pub id: u64,
    /// When it is sent, counted from the first row [s].
    pub arrival_s: f64,
    /// Prompt length [tokens].
    pub prompt_tokens: u32,
    /// Output length [tokens].
    pub output_tokens: u32,
    /// `max_tokens` of the call, where the trace has it [tokens].
    pub max_tokens: Option<u32>,
    /// Session, where the trace has it.
    pub session: Option<u64>,
    /// Mooncake's content hashes of the prompt's 512-token blocks.
    pub hash_ids: Vec<u64>,
}

/// What a trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceSummary {
    /// Requests.
    pub rows: u64,
    /// Last arrival, counted from the first [s].
    pub span_s: f64,
    /// Sum of prompt lengths [tokens].
    pub prompt_tokens: u64,
    /// Sum of output lengths [tokens].
    pub output_tokens: u64,
    /// Rows left out because their request failed (BurstGPT: no response tokens).
    pub skipped: u64,
    /// Whether rows say which content they share.
    pub shares_content: bool,
}

/// A request of a Mooncake trace, as its JSON lines hold it; other keys are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MooncakeLine {
    /// Arrival [ms].
    pub timestamp: f64,
    /// Prompt length [tokens].
    pub input_length: f64,
    /// Output length [tokens].
    pub output_length: f64,
    /// Content hashes of the prompt's 512-token blocks, each naming its block and all before.
    #[serde(default)]
    pub hash_ids: Vec<u64>,
}

/// Which fields of a CSV line mean what.
struct Columns {
    time: usize,
    /// Factor from the column's unit to seconds; 0: a calendar time.
    time_unit: f64,
    input: usize,
    output: usize,
    max_tokens: Option<usize>,
    session: Option<usize>,
    id: Option<usize>,
}

enum Shape {
    Csv(Columns),
    Mooncake,
}

/// Reads a trace row by row.
pub struct TraceReader {
    lines: Lines,
    shape: Shape,
    /// The first row of a format without a header.
    held: Option<String>,
    first_s: Option<f64>,
    last_s: f64,
    skip_failed: bool,
    rows: u64,
    skipped: u64,
    /// Rows of a format that is not written in the order of arrival, sorted.
    sorted: Option<std::vec::IntoIter<TraceRow>>,
}

/// Most rows of a run's request table, which is sorted in memory.
const MAX_RECORD_ROWS: usize = 5_000_000;

impl TraceReader {
    /// Opens a trace file.
    pub fn open(path: &Path, format: TraceFormat) -> Result<TraceReader, String> {
        TraceReader::new(Lines::open(path)?, format)
    }

    /// Reads the header and settles the format.
    pub fn new(mut lines: Lines, format: TraceFormat) -> Result<TraceReader, String> {
        let name = lines.name().to_string();
        let Some(first) = lines.next_line()?.map(str::to_string) else {
            return Err(format!(
                "{name} is empty; a trace needs at least one request"
            ));
        };
        let format = match format {
            TraceFormat::Auto => detect(&first).ok_or_else(|| {
                lines.error(&format!(
                    "cannot tell the trace's format from \"{}\"; known headers: \
                     TIMESTAMP,ContextTokens,GeneratedTokens (azure), JSON lines (mooncake), \
                     Timestamp,Model,Request tokens,Response tokens (burst_gpt), \
                     arrival_s,input_tokens,output_tokens (csv), \
                     arrival_s,prompt_tokens,output_tokens (records)",
                    shorten(&first, 80)
                ))
            })?,
            known => known,
        };
        let mut held = None;
        let shape = if format == TraceFormat::Mooncake {
            held = Some(first);
            Shape::Mooncake
        } else {
            Shape::Csv(csv_columns(format, &first).map_err(|m| lines.error(&m))?)
        };
        let mut reader = TraceReader {
            lines,
            shape,
            held,
            first_s: None,
            last_s: 0.0,
            skip_failed: format == TraceFormat::BurstGpt,
            rows: 0,
            skipped: 0,
            sorted: None,
        };
        if format == TraceFormat::Records {
            reader.sort()?;
        }
        Ok(reader)
    }

    /// Reads all rows and sorts them by arrival: a run writes its requests in the order in which they ended.
    fn sort(&mut self) -> Result<(), String> {
        let mut rows = Vec::new();
        let mut row = TraceRow::default();
        while self.parse_row(&mut row)? {
            if rows.len() == MAX_RECORD_ROWS {
                return Err(self.lines.error(&format!(
                    "the table has more than {MAX_RECORD_ROWS} requests; take a part of it"
                )));
            }
            rows.push(row.clone());
        }
        rows.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s).then(a.id.cmp(&b.id)));
        self.sorted = Some(rows.into_iter());
        Ok(())
    }

    /// Takes the next row in the order of reading, its time as written. False: there is none.
    fn parse_row(&mut self, row: &mut TraceRow) -> Result<bool, String> {
        if let Some(sorted) = &mut self.sorted {
            return Ok(match sorted.next() {
                Some(next) => {
                    *row = next;
                    true
                }
                None => false,
            });
        }
        loop {
            let held = self.held.take();
            let line = match &held {
                Some(line) => Some(line.as_str()),
                None => self.lines.next_line()?,
            };
            let Some(line) = line else { return Ok(false) };
            let parsed = match &self.shape {
                Shape::Csv(columns) => parse_csv(line, columns, row),
                Shape::Mooncake => parse_mooncake(line, row),
            };
            let failed = parsed.map_err(|m| self.lines.error(&m))?;
            if !(failed && self.skip_failed) {
                return Ok(true);
            }
            self.skipped += 1;
        }
    }

    /// The next request; `None` at the end.
    pub fn next_row(&mut self, row: &mut TraceRow) -> Result<bool, String> {
        if !self.parse_row(row)? {
            return match self.rows {
                0 => Err(format!(
                    "{} has no requests; a trace needs at least one",
                    self.lines.name()
                )),
                _ => Ok(false),
            };
        }
        let first = *self.first_s.get_or_insert(row.arrival_s);
        let t = row.arrival_s - first;
        if !t.is_finite() || t.abs() > MAX_SPAN_S {
            return Err(self
                .lines
                .error("the arrival is more than 100 years after the first one"));
        }
        if t < self.last_s {
            return Err(self.lines.error(&format!(
                    "the trace is not sorted: this request comes {} s after the first, the one before it {} s; \
                     sort the file by arrival",
                    t, self.last_s
                )));
        }
        row.arrival_s = t;
        self.last_s = t;
        self.rows += 1;
        if self.rows > MAX_TRACE_ROWS {
            return Err(self.lines.error(&format!(
                "the trace has more than {MAX_TRACE_ROWS} requests; take a part of it"
            )));
        }
        Ok(true)
    }
}

/// Longest span of a trace [s].
const MAX_SPAN_S: f64 = 100.0 * 366.0 * 86_400.0;

/// Reads a whole trace and says what it holds; the first fault is the error.
pub fn check(path: &Path, format: TraceFormat) -> Result<TraceSummary, String> {
    check_reader(TraceReader::open(path, format)?)
}

/// [`check`] on an open reader.
pub fn check_reader(mut reader: TraceReader) -> Result<TraceSummary, String> {
    let mut summary = TraceSummary::default();
    let mut row = TraceRow::default();
    while reader.next_row(&mut row)? {
        summary.rows += 1;
        summary.span_s = row.arrival_s;
        summary.prompt_tokens += u64::from(row.prompt_tokens);
        summary.output_tokens += u64::from(row.output_tokens);
        summary.shares_content |= !row.hash_ids.is_empty();
    }
    summary.skipped = reader.skipped;
    Ok(summary)
}

/// The format that a first line belongs to.
fn detect(first: &str) -> Option<TraceFormat> {
    if first.starts_with('{') {
        return Some(TraceFormat::Mooncake);
    }
    let header = split_csv(first);
    let has = |name: &str| header.iter().any(|h| h.eq_ignore_ascii_case(name));
    if has("ContextTokens") && has("GeneratedTokens") {
        Some(TraceFormat::Azure)
    } else if has("Request tokens") && has("Response tokens") {
        Some(TraceFormat::BurstGpt)
    } else if has("arrival_s") && has("input_tokens") {
        Some(TraceFormat::Csv)
    } else if has("arrival_s") && has("prompt_tokens") {
        Some(TraceFormat::Records)
    } else {
        None
    }
}

fn csv_columns(format: TraceFormat, header: &str) -> Result<Columns, String> {
    let fields = split_csv(header);
    let find = |name: &str| fields.iter().position(|h| h.eq_ignore_ascii_case(name));
    let need = |name: &str| {
        find(name).ok_or_else(|| {
            format!(
                "no column `{name}`; the columns are {}",
                shorten(&fields.join(", "), 300)
            )
        })
    };
    let (time, time_unit, input, output) = match format {
        TraceFormat::Azure => ("TIMESTAMP", 0.0, "ContextTokens", "GeneratedTokens"),
        TraceFormat::BurstGpt => ("Timestamp", 1.0, "Request tokens", "Response tokens"),
        TraceFormat::Records => ("arrival_s", 1.0, "prompt_tokens", "output_tokens"),
        TraceFormat::Csv | TraceFormat::Auto | TraceFormat::Mooncake => {
            ("arrival_s", 1.0, "input_tokens", "output_tokens")
        }
    };
    Ok(Columns {
        time: need(time)?,
        time_unit,
        input: need(input)?,
        output: need(output)?,
        max_tokens: find("max_tokens"),
        session: find("session"),
        id: find("id"),
    })
}

/// Reads a CSV line into `row`. True: the request had no output.
fn parse_csv(line: &str, columns: &Columns, row: &mut TraceRow) -> Result<bool, String> {
    let fields = split_csv(line);
    let field = |i: usize| fields.get(i).map_or("", |f| f.as_ref());
    let number = |i: usize, what: &str| {
        let text = field(i);
        text.parse::<f64>()
            .ok()
            .filter(|x| x.is_finite())
            .ok_or_else(|| format!("{what}: expected a number, got \"{}\"", shorten(text, 60)))
    };
    row.arrival_s = if columns.time_unit == 0.0 {
        let text = field(columns.time);
        calendar_seconds(text).ok_or_else(|| {
            format!(
                "TIMESTAMP: expected e.g. 2023-11-16 18:15:46.6805900, got \"{}\"",
                shorten(text, 60)
            )
        })?
    } else {
        number(columns.time, "arrival time")? * columns.time_unit
    };
    row.prompt_tokens = whole_tokens(number(columns.input, "prompt tokens")?, "prompt tokens")?;
    let output = number(columns.output, "output tokens")?;
    row.output_tokens = whole_tokens(output, "output tokens")?;
    let optional = |i: Option<usize>| i.filter(|&i| !field(i).is_empty());
    row.max_tokens = match optional(columns.max_tokens) {
        Some(i) => Some(whole_tokens(number(i, "max_tokens")?, "max_tokens")?),
        None => None,
    };
    row.session = match optional(columns.session) {
        Some(i) => Some(field(i).parse().map_err(|_| {
            format!(
                "session: expected a number from 0 to 2^64 - 1, got \"{}\"",
                shorten(field(i), 60)
            )
        })?),
        None => None,
    };
    row.id = optional(columns.id)
        .and_then(|i| field(i).parse().ok())
        .unwrap_or(0);
    row.hash_ids.clear();
    Ok(output == 0.0)
}

/// Reads a Mooncake line into `row`. True: the request had no output.
fn parse_mooncake(line: &str, row: &mut TraceRow) -> Result<bool, String> {
    let parsed: MooncakeLine = serde_json::from_str(line).map_err(|e| {
        format!(
            "not a Mooncake request ({e}); expected e.g. \
             {{\"timestamp\": 0, \"input_length\": 900, \"output_length\": 50, \"hash_ids\": [0, 1]}}"
        )
    })?;
    row.arrival_s = parsed.timestamp * 1e-3;
    row.prompt_tokens = whole_tokens(parsed.input_length, "input_length")?;
    row.output_tokens = whole_tokens(parsed.output_length, "output_length")?;
    let blocks = row.prompt_tokens.div_ceil(MOONCAKE_BLOCK_TOKENS) as usize;
    if parsed.hash_ids.len() > blocks {
        return Err(format!(
            "hash_ids: {} hashes, but {} tokens fill only {blocks} block(s) of {MOONCAKE_BLOCK_TOKENS}",
            parsed.hash_ids.len(),
            row.prompt_tokens
        ));
    }
    row.max_tokens = None;
    row.session = None;
    row.hash_ids = parsed.hash_ids;
    Ok(parsed.output_length == 0.0)
}

/// Seconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM|Z]` (proleptic Gregorian calendar).
fn calendar_seconds(text: &str) -> Option<f64> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, format: TraceFormat) -> Result<(Vec<TraceRow>, u64), String> {
        let lines = Lines::from_reader(
            Box::new(std::io::Cursor::new(text.as_bytes().to_vec())),
            "t",
        )?;
        let mut reader = TraceReader::new(lines, format)?;
        let mut rows = Vec::new();
        let mut row = TraceRow::default();
        while reader.next_row(&mut row)? {
            rows.push(row.clone());
        }
        Ok((rows, reader.skipped))
    }

    fn fails(text: &str, words: &[&str]) {
        let e = read(text, TraceFormat::Auto).unwrap_err();
        for w in words {
            assert!(e.contains(w), "`{w}` not in: {e}");
        }
    }

    #[test]
    fn every_format_is_told_from_its_first_line() {
        let cases = [
            "arrival_s,input_tokens,output_tokens\n10.0,374,44\n14.5,396,109\n",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,374,44\n\
             2023-11-16 18:15:51.0000000,396,109\n",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 23:59:58.000000+00:00,374,44\n\
             2024-05-11 00:00:02.500000+00:00,396,109\n",
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
             5,ChatGPT,374,44,418,Conversation log\n7,GPT-4,12,0,12,API log\n9.5,GPT-4,396,109,505,API log\n",
            "id,stream,arrival_s,prompt_tokens,output_tokens,outcome\n0,0,1.000000000,374,44,finished\n\
             1,0,5.500000000,396,109,finished\n",
        ];
        for text in cases {
            let (rows, _) = read(text, TraceFormat::Auto).unwrap();
            let got: Vec<_> = rows
                .iter()
                .map(|r| (r.arrival_s, r.prompt_tokens, r.output_tokens))
                .collect();
            assert_eq!(got, [(0.0, 374, 44), (4.5, 396, 109)], "{text}");
        }
    }

    #[test]
    fn the_requests_of_a_run_are_sorted_since_they_are_written_as_they_end() {
        let text = "id,outcome,prompt_tokens,output_tokens,arrival_s\n2,finished,20,2,3.0\n1,finished,11,1,1.0\n\
                    0,finished,10,1,1.0\n3,timed_out,30,0,7.5\n";
        let (rows, _) = read(text, TraceFormat::Auto).unwrap();
        let got: Vec<_> = rows
            .iter()
            .map(|r| (r.arrival_s, r.prompt_tokens, r.output_tokens))
            .collect();
        assert_eq!(
            got,
            [(0.0, 10, 1), (0.0, 11, 1), (2.0, 20, 2), (6.5, 30, 1)]
        );
        fails(
            "id,prompt_tokens,output_tokens,arrival_s\n",
            &["no requests"],
        );
        fails(
            "id,prompt_tokens,output_tokens,arrival_s\n1,5,5,nan\n",
            &["t:2"],
        );
    }

    #[test]
    fn failed_requests_of_burst_gpt_are_skipped_and_counted() {
        let text = "Timestamp,Model,Request tokens,Response tokens\n5,a,1,0\n6,a,2,3\n7,a,4,0\n";
        let (rows, skipped) = read(text, TraceFormat::Auto).unwrap();
        assert_eq!((rows.len(), skipped), (1, 2));
        assert_eq!(rows[0].arrival_s, 0.0);
    }

    #[test]
    fn mooncake_lines_keep_their_hashes() {
        let text = "{\"timestamp\": 27482, \"input_length\": 1025, \"output_length\": 52, \"hash_ids\": [46, 47, 2353]}\n\
                    {\"timestamp\": 30535, \"input_length\": 600, \"output_length\": 26, \"hash_ids\": [46]}\n";
        let (rows, _) = read(text, TraceFormat::Auto).unwrap();
        assert_eq!(rows[0].hash_ids, [46, 47, 2353]);
        assert!((rows[1].arrival_s - 3.053).abs() < 1e-9);
    }

    #[test]
    fn bad_traces_are_refused_with_line_and_cause() {
        fails("", &["empty"]);
        fails("\n\n", &["empty"]);
        fails("arrival_s,input_tokens,output_tokens\n", &["no requests"]);
        fails("a,b,c\n1,2,3\n", &["t:1", "format", "arrival_s"]);
        let header = "arrival_s,input_tokens,output_tokens\n";
        for (row, words) in [
            ("5,1,1\n4,1,1\n", ["t:3", "not sorted"]),
            ("0,-1,1\n", ["t:2", "prompt tokens"]),
            ("0,nan,1\n", ["t:2", "expected a number"]),
            ("0,1.5,1\n", ["t:2", "whole number"]),
            ("0,1,99999999999\n", ["t:2", "whole number"]),
            ("inf,1,1\n", ["t:2", "expected a number"]),
            ("0,1\n", ["t:2", "output tokens"]),
            ("0,1,1\n1e300,1,1\n", ["t:3", "100 years"]),
            ("x,1,1\n", ["t:2", "arrival time"]),
        ] {
            fails(&format!("{header}{row}"), &words);
        }
        fails(
            "arrival_s,input_tokens\n1,2\n",
            &["t:1", "no column `output_tokens`"],
        );
        fails("{\"timestamp\": 1}\n", &["t:1", "input_length"]);
        fails(
            "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": [1, 2]}\n",
            &["t:1", "2 hashes", "1 block"],
        );
        fails(
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
            &["t:2", "TIMESTAMP"],
        );
    }

    #[test]
    fn calendar_times_are_seconds_of_the_unix_epoch() {
        assert_eq!(calendar_seconds("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(
            calendar_seconds("2000-03-01T00:00:00Z"),
            Some(951_868_800.0)
        );
        assert_eq!(
            calendar_seconds("2023-11-16 18:15:46.5"),
            Some(1_700_158_546.5)
        );
        assert_eq!(calendar_seconds("1970-01-01 02:00:00+02:00"), Some(0.0));
        for bad in [
            "",
            "2023",
            "2023-13-01 00:00:00",
            "2023-11-16",
            "2023-11-16 25:00:00",
            "a-b-c d:e:f",
        ] {
            assert_eq!(calendar_seconds(bad), None, "{bad}");
        }
    }

    /// A trace of each format to start mutating from.
    const SEEDS: [&str; 4] = [
        "arrival_s,input_tokens,output_tokens\n0.0,374,44\n4.3,396,109\n9.1,879,55\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n\
         2024-05-10 00:00:00.009930+00:00,396,109\n",
        "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,\"472\",18\n45,GPT-4,1087,0\n",
        "{\"timestamp\": 0, \"input_length\": 900, \"output_length\": 50, \"hash_ids\": [0, 1]}\n\
         {\"timestamp\": 40, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0]}\n",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn mutated_traces_never_panic(
            seed in 0usize..4,
            cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..5), 1..10),
        ) {
            let mut bytes = SEEDS[seed].as_bytes().to_vec();
            for (at, byte, how) in cuts {
                if bytes.is_empty() {
                    break;
                }
                let i = at.index(bytes.len());
                match how {
                    0 => bytes[i] = byte,
                    1 => bytes.insert(i, byte),
                    2 => {
                        bytes.remove(i);
                    }
                    3 => bytes.splice(i..i, [b'9'; 20]).for_each(drop),
                    _ => bytes.truncate(i),
                }
            }
            for format in [
                TraceFormat::Auto,
                TraceFormat::Azure,
                TraceFormat::Mooncake,
                TraceFormat::BurstGpt,
                TraceFormat::Csv,
                TraceFormat::Records,
            ] {
                let read = Lines::from_reader(Box::new(std::io::Cursor::new(bytes.clone())), "t")
                    .and_then(|lines| TraceReader::new(lines, format))
                    .and_then(check_reader);
                if let Ok(summary) = read {
                    prop_assert!(summary.rows > 0);
                    prop_assert!(summary.prompt_tokens >= summary.rows);
                }
            }
        }

        #[test]
        fn any_bytes_at_all_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Lines::from_reader(Box::new(std::io::Cursor::new(bytes)), "t")
                .and_then(|lines| TraceReader::new(lines, TraceFormat::Auto))
                .and_then(check_reader);
        }
    }
}
