//! Traces: requests read from a file, one line at a time.
//!
//! A trace is read twice: once to check it from end to end (so that a run does not fail in its last hour) and
//! to count it, then line by line while the run goes on, in constant memory. Times count from the trace's first row.

mod columns;
mod documents;
mod row;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::path::Path;

use hwmodels::files::Files;

use hwmodels::units::plain;
use serde::{Deserialize, Serialize};

use super::input::{Lines, shorten, split_csv};
use super::tokens::whole_tokens;
use columns::FIELDS;
pub use columns::{TimeFormat, TraceColumns};
pub use row::TraceRow;

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
    /// Vidur's processed traces: arrived_at [s], num_prefill_tokens, num_decode_tokens.
    Vidur,
    /// ServeGen's CSV: timestamp [s], input_tokens, output_tokens.
    Servegen,
    /// Splitwise's simulator: arrival_timestamp [s], prompt_size, token_size.
    Splitwise,
    /// AIPerf's profile_export.jsonl: a record per request. Its trace files are mooncake's.
    Aiperf,
    /// A result of `vllm bench serve --save-result --save-detailed`: one JSON object.
    VllmBench,
    /// GuideLLM's report in JSON, of one benchmark.
    Guidellm,
}

/// Tokens of a Mooncake block (its README: "each block contains 512 tokens").
pub const MOONCAKE_BLOCK_TOKENS: u32 = 512;

/// Most rows of a trace: as many as request ids.
pub const MAX_TRACE_ROWS: u64 = u32::MAX as u64 - 1;

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

/// Where the columns of a CSV file stand.
struct Csv {
    names: TraceColumns,
    /// Positions in the order of [`TraceColumns::names`].
    at: [Option<usize>; FIELDS],
    /// The request's number.
    id: Option<usize>,
}

enum Shape {
    Csv(Csv),
    Mooncake,
    /// JSON lines of any keys.
    Json(TraceColumns),
    Aiperf,
    /// Read as a whole.
    Document,
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
    /// Opens a trace file of the given columns, or without them of the given format.
    pub fn open(
        files: &dyn Files,
        path: &Path,
        format: TraceFormat,
        columns: Option<&TraceColumns>,
    ) -> Result<TraceReader, String> {
        let lines = Lines::open(files, path)?;
        match columns {
            Some(columns) => TraceReader::with_columns(lines, columns),
            None => TraceReader::new(lines, format),
        }
    }

    /// Reads the header and settles the format.
    pub fn new(mut lines: Lines, format: TraceFormat) -> Result<TraceReader, String> {
        let document = match format {
            TraceFormat::Auto => documents::detect(lines.head()?),
            TraceFormat::VllmBench | TraceFormat::Guidellm => Some(format),
            _ => None,
        };
        if let Some(format) = document {
            let (rows, skipped) = documents::read(&mut lines, format)?;
            let mut reader = TraceReader::of(lines, Shape::Document, None);
            reader.skipped = skipped;
            reader.sort_rows(rows);
            return Ok(reader);
        }
        let first = first_line(&mut lines)?;
        let format = match format {
            TraceFormat::Auto => detect(&first).ok_or_else(|| {
                lines.error(&format!(
                    "cannot tell the trace's format from \"{}\"; known are {KNOWN}. Of another file say its columns: columns = {{ arrival = \
                     \"...\", prompt = \"...\", output = \"...\" }}",
                    shorten(&first, 80)
                ))
            })?,
            known => known,
        };
        let (shape, held) = match format {
            TraceFormat::Mooncake => (Shape::Mooncake, Some(first)),
            TraceFormat::Aiperf => (Shape::Aiperf, Some(first)),
            format => {
                let csv = Csv::new(format_columns(format), &first, true);
                (Shape::Csv(csv.map_err(|m| lines.error(&m))?), None)
            }
        };
        let mut reader = TraceReader::of(lines, shape, held);
        reader.skip_failed = matches!(format, TraceFormat::BurstGpt | TraceFormat::Aiperf);
        if matches!(format, TraceFormat::Records | TraceFormat::Aiperf) {
            reader.sort()?;
        }
        Ok(reader)
    }

    /// Reads a trace of the given columns: a CSV file with a header, or JSON lines.
    pub fn with_columns(mut lines: Lines, columns: &TraceColumns) -> Result<TraceReader, String> {
        let first = first_line(&mut lines)?;
        if first.starts_with('{') {
            let shape = Shape::Json(columns.clone());
            return Ok(TraceReader::of(lines, shape, Some(first)));
        }
        let csv = Csv::new(columns.clone(), &first, false).map_err(|m| lines.error(&m))?;
        Ok(TraceReader::of(lines, Shape::Csv(csv), None))
    }

    fn of(lines: Lines, shape: Shape, held: Option<String>) -> TraceReader {
        TraceReader {
            lines,
            shape,
            held,
            first_s: None,
            last_s: 0.0,
            skip_failed: false,
            rows: 0,
            skipped: 0,
            sorted: None,
        }
    }

    /// Reads all rows and sorts them by arrival: requests are written in the order in which they ended.
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
        self.sort_rows(rows);
        Ok(())
    }

    fn sort_rows(&mut self, mut rows: Vec<TraceRow>) {
        rows.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s).then(a.id.cmp(&b.id)));
        self.sorted = Some(rows.into_iter());
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
                Shape::Csv(csv) => csv.parse(line, row),
                Shape::Mooncake => parse_mooncake(line, row),
                Shape::Json(columns) => columns.parse_json(line, row),
                Shape::Aiperf => documents::aiperf_record(line, row),
                Shape::Document => return Ok(false),
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
                    plain(t),
                    plain(self.last_s)
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

/// The first line that is not blank.
fn first_line(lines: &mut Lines) -> Result<String, String> {
    match lines.next_line()?.map(str::to_string) {
        Some(first) => Ok(first),
        None => Err(format!(
            "{} is empty; a trace needs at least one request",
            lines.name()
        )),
    }
}

/// The formats that are told from the first line.
const KNOWN: &str = "TIMESTAMP,ContextTokens,GeneratedTokens (azure), JSON lines with timestamp, input_length, output_length (mooncake), \
     Timestamp,Model,Request tokens,Response tokens (burst_gpt), arrival_s,input_tokens,output_tokens (csv), \
     arrival_s,prompt_tokens,output_tokens (records), arrived_at,num_prefill_tokens,num_decode_tokens (vidur), \
     timestamp,input_tokens,output_tokens (servegen), arrival_timestamp,prompt_size,token_size (splitwise), \
     JSON lines with metadata and metrics (aiperf), JSON with input_lens (vllm_bench) or benchmarks (guidellm)";

/// The format that a first line belongs to.
fn detect(first: &str) -> Option<TraceFormat> {
    if first.starts_with('{') {
        let aiperf = first.contains("\"metadata\"") && first.contains("\"metrics\"");
        return Some(match aiperf {
            true => TraceFormat::Aiperf,
            false => TraceFormat::Mooncake,
        });
    }
    let header = split_csv(first);
    let has = |name: &str| header.iter().any(|h| h.eq_ignore_ascii_case(name));
    [
        (TraceFormat::Azure, "ContextTokens", "GeneratedTokens"),
        (TraceFormat::BurstGpt, "Request tokens", "Response tokens"),
        (TraceFormat::Csv, "arrival_s", "input_tokens"),
        (TraceFormat::Records, "arrival_s", "prompt_tokens"),
        (
            TraceFormat::Vidur,
            "num_prefill_tokens",
            "num_decode_tokens",
        ),
        (TraceFormat::Splitwise, "prompt_size", "token_size"),
        (TraceFormat::Servegen, "timestamp", "input_tokens"),
    ]
    .into_iter()
    .find(|(_, a, b)| has(a) && has(b))
    .map(|(format, _, _)| format)
}

/// The columns of a CSV format.
fn format_columns(format: TraceFormat) -> TraceColumns {
    let (arrival, prompt, output) = match format {
        TraceFormat::Azure => ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        TraceFormat::BurstGpt => ("Timestamp", "Request tokens", "Response tokens"),
        TraceFormat::Records => ("arrival_s", "prompt_tokens", "output_tokens"),
        TraceFormat::Vidur => ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
        TraceFormat::Splitwise => ("arrival_timestamp", "prompt_size", "token_size"),
        TraceFormat::Servegen => ("timestamp", "input_tokens", "output_tokens"),
        _ => ("arrival_s", "input_tokens", "output_tokens"),
    };
    TraceColumns {
        arrival: arrival.to_owned(),
        prompt: prompt.to_owned(),
        output: output.to_owned(),
        max_tokens: None,
        session: None,
        time: Some(match format {
            TraceFormat::Azure => TimeFormat::Date,
            _ => TimeFormat::S,
        }),
    }
}

impl Csv {
    /// Finds the columns of `names` in a header; `optional`: those for `max_tokens` and `session` count where they are there.
    fn new(mut names: TraceColumns, header: &str, optional: bool) -> Result<Csv, String> {
        let header: Vec<String> = (split_csv(header).into_iter())
            .map(|h| h.into_owned())
            .collect();
        let find = |name: &str| header.iter().position(|h| h.eq_ignore_ascii_case(name));
        if optional {
            names.max_tokens = find("max_tokens").map(|i| header[i].clone());
            names.session = ["session", "session_id"]
                .into_iter()
                .find_map(find)
                .map(|i| header[i].clone());
        }
        let needed = [&names.arrival, &names.prompt, &names.output];
        for name in needed
            .into_iter()
            .chain(&names.max_tokens)
            .chain(&names.session)
        {
            if find(name).is_none() {
                let no_times = name == &names.arrival && find(&names.prompt).is_some();
                let hint = match no_times {
                    true => format!(
                        "; a file of lengths without times is drawn from with lengths = {{ file = \"...\", prompt_column = \"{}\", output_column = \
                         \"{}\" }} and an arrival of its own",
                        names.prompt, names.output
                    ),
                    false => String::new(),
                };
                return Err(format!(
                    "no column `{}`; the columns are {}{hint}",
                    shorten(name, 60),
                    shorten(&header.join(", "), 300)
                ));
            }
        }
        let id = find("id").filter(|_| optional);
        let at = names.names().map(|name| name.and_then(find));
        Ok(Csv { names, at, id })
    }

    /// Reads a CSV line into `row`. True: the request had no output.
    fn parse(&self, line: &str, row: &mut TraceRow) -> Result<bool, String> {
        let fields = split_csv(line);
        let text = |field: usize| {
            let found = self.at[field].and_then(|i| fields.get(i));
            Cow::Borrowed(found.map_or("", |f| f.as_ref()))
        };
        let output = self.names.fill(row, text)?;
        row.id = (self.id.and_then(|i| fields.get(i)))
            .and_then(|f| f.parse().ok())
            .unwrap_or(0);
        Ok(output == 0.0)
    }
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
