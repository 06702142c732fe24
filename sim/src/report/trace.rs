//! A trace in the Trace Event Format, which <https://ui.perfetto.dev> opens.
//!
//! One process per replica: a lane per pipeline stage with its steps, and counters of running and waiting requests and
//! of KV use. One process for the clients: each request with its phases (queue, prefill, decode), and an arrow from its
//! sending to the step that first held it. A step's record holds its start and end, not its stages' times, so with
//! pipeline parallel each stage is drawn with an equal share of the step.
//!
//! Of a run in a cluster also a lane for each node, pod and controller.
//!
//! Viewers open some hundred megabytes at most, so a trace shows a part of a long run: see [`Limit`].

mod cluster;

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use hwmodels::units::Secs;

use crate::kernel::time::SimTime;
use crate::record::{RequestRow, RunRecord, StepRow};
use crate::report::csv::outcome_name;

/// Process of the clients; replicas count from 1.
const CLIENTS: u64 = 0;

/// What of a run its trace shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// All of it.
    None,
    /// The first requests to be sent, so many, and the steps until the last of them ends.
    First(u64),
    /// One request of so many, and one step of each replica of so many: an overview of a long run.
    OneOf(u64),
    /// What is under way at some time from the first instant up to, not including, the second.
    Window(SimTime, SimTime),
}

impl Limit {
    /// Where nothing else is asked for: a file of some megabytes.
    pub const DEFAULT: Limit = Limit::First(2000);
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::None => f.write_str("none"),
            Limit::First(n) => write!(f, "{n}"),
            Limit::OneOf(n) => write!(f, "1/{n}"),
            Limit::Window(from, to) => write!(f, "{} s..{} s", from.as_secs(), to.as_secs()),
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    /// Reads what [`Limit`] shows: `none`, `500`, `1/20`, `60 s..90 s`.
    fn from_str(text: &str) -> Result<Limit, String> {
        let wrong = || {
            format!(
                "`{text}` is no limit of a trace: write a number of requests (500), a share of them (1/20), a stretch of the run \
                 (60 s..90 s) or none"
            )
        };
        let count = |text: &str| text.trim().parse().ok().filter(|n| *n > 0);
        if text.trim() == "none" {
            return Ok(Limit::None);
        }
        if let Some((from, to)) = text.split_once("..") {
            let time = |text: &str| -> Result<SimTime, String> {
                let secs: Secs = text
                    .trim()
                    .parse()
                    .map_err(|e| format!("{}: {e}", wrong()))?;
                Ok(SimTime::from_secs(secs.secs()))
            };
            let (from, to) = (time(from)?, time(to)?);
            if from >= to {
                return Err(format!("`{text}` ends before it begins"));
            }
            return Ok(Limit::Window(from, to));
        }
        if let Some(("1", n)) = text.trim().split_once('/') {
            return count(n).map(Limit::OneOf).ok_or_else(wrong);
        }
        count(text).map(Limit::First).ok_or_else(wrong)
    }
}

/// How much of a run a trace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Requests in the trace.
    pub requests: usize,
    /// Requests of the run.
    pub of_requests: usize,
    /// Steps in the trace.
    pub steps: usize,
    /// Steps of the run.
    pub of_steps: usize,
}

impl Written {
    /// In words what was left out; nothing where nothing was.
    pub fn left_out(&self) -> Option<String> {
        (self.requests < self.of_requests || self.steps < self.of_steps).then(|| {
            format!(
                "{} of {} requests and {} of {} steps",
                self.requests, self.of_requests, self.steps, self.of_steps
            )
        })
    }
}

/// Writes the trace of what `limit` says.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidInput`] where the record kept no steps or requests.
pub fn write(out: impl Write, record: &RunRecord, limit: Limit) -> io::Result<Written> {
    let (Some(steps), Some(requests)) = (&record.step_rows, &record.request_rows) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the run has more steps or requests than a trace may hold; shorten it",
        ));
    };
    let shown = Shown::of(limit, requests);
    let mut w = Events::new(out, limit)?;
    w.event(format_args!(
        r#""ph":"M","name":"process_name","pid":{CLIENTS},"args":{{"name":"clients"}}"#
    ))?;
    for (i, info) in record.info.replicas.iter().enumerate() {
        let pid = i as u64 + 1;
        // The name is the user's: it may hold any character.
        let name = serde_json::to_string(&format!("replica {i} {}", info.name))?;
        w.event(format_args!(
            r#""ph":"M","name":"process_name","pid":{pid},"args":{{"name":{name}}}"#
        ))?;
        for stage in 0..info.stages.max(1) {
            w.event(format_args!(
                r#""ph":"M","name":"thread_name","pid":{pid},"tid":{stage},"args":{{"name":"stage {stage}"}}"#
            ))?;
        }
    }
    let mut written = Written {
        requests: 0,
        of_requests: requests.len(),
        steps: 0,
        of_steps: steps.len(),
    };
    let mut replicas = vec![Lane::default(); record.info.replicas.len()];
    for step in steps {
        let index = step.replica as usize;
        if index >= replicas.len() {
            replicas.resize(index + 1, Lane::default());
        }
        let lane = &mut replicas[index];
        lane.steps += 1;
        if shown.step(step, lane.steps - 1) {
            written.steps += 1;
            write_step(&mut w, record, step, lane)?;
        }
    }
    for request in requests.iter().filter(|r| shown.request(r)) {
        written.requests += 1;
        write_request(&mut w, request, shown.arrow(request))?;
    }
    if let Some(around) = &record.cluster {
        cluster::write(&mut w, around, &shown)?;
    }
    w.finish()?;
    Ok(written)
}

/// Writes the trace compressed with gzip, which viewers open as well.
///
/// # Errors
/// As [`write()`].
pub fn write_gzip(out: impl Write, record: &RunRecord, limit: Limit) -> io::Result<Written> {
    let mut out = flate2::write::GzEncoder::new(out, flate2::Compression::default());
    let written = write(io::BufWriter::new(&mut out), record, limit)?;
    out.finish()?.flush()?;
    Ok(written)
}

/// Which rows a limit lets through.
struct Shown {
    limit: Limit,
    /// Of [`Limit::First`]: what comes after the last request, by sending and number.
    beyond: Option<(SimTime, u32)>,
    /// Of [`Limit::First`]: when the last of the requests ends.
    end: SimTime,
}

impl Shown {
    fn of(limit: Limit, requests: &[RequestRow]) -> Shown {
        let mut shown = Shown {
            limit,
            beyond: None,
            end: SimTime::NEVER,
        };
        if let Limit::First(n) = limit
            && n < requests.len() as u64
        {
            let mut sent: Vec<(SimTime, u32)> =
                requests.iter().map(|r| (r.arrival, r.id)).collect();
            shown.beyond = Some(*sent.select_nth_unstable(n as usize).1);
            let ends = requests.iter().filter(|r| shown.request(r)).map(|r| r.end);
            shown.end = ends.max().unwrap_or(SimTime::ZERO);
        }
        shown
    }

    fn request(&self, r: &RequestRow) -> bool {
        match self.limit {
            Limit::None => true,
            Limit::First(_) => self.beyond.is_none_or(|beyond| (r.arrival, r.id) < beyond),
            Limit::OneOf(n) => u64::from(r.id).is_multiple_of(n),
            Limit::Window(from, to) => r.arrival < to && r.end >= from,
        }
    }

    /// `index` counts the steps of the replica.
    fn step(&self, s: &StepRow, index: u64) -> bool {
        match self.limit {
            Limit::None => true,
            Limit::First(_) => s.start <= self.end,
            Limit::OneOf(n) => index.is_multiple_of(n),
            Limit::Window(from, to) => s.start < to && s.end > from,
        }
    }

    /// Whether something of the cluster is shown that lasts from one instant to another.
    fn span(&self, from: SimTime, to: SimTime) -> bool {
        match self.limit {
            Limit::None | Limit::OneOf(_) => true,
            Limit::First(_) => from <= self.end,
            Limit::Window(first, last) => from < last && to > first,
        }
    }

    /// Whether the request's first step is there for an arrow to lead to.
    fn arrow(&self, r: &RequestRow) -> bool {
        match self.limit {
            Limit::None | Limit::First(_) => true,
            Limit::OneOf(n) => n == 1,
            Limit::Window(from, to) => from <= r.first_scheduled && r.first_scheduled < to,
        }
    }
}

/// What was last written of a replica.
#[derive(Clone, Default)]
struct Lane {
    /// Its steps so far, in the trace or not.
    steps: u64,
    /// Running and waiting requests.
    requests: Option<(u32, u32)>,
    /// KV blocks in use.
    blocks: Option<u64>,
}

/// The list of events, one per line.
struct Events<W> {
    out: W,
    first: bool,
}

impl<W: Write> Events<W> {
    fn new(mut out: W, limit: Limit) -> io::Result<Events<W>> {
        writeln!(
            out,
            r#"{{"displayTimeUnit":"ms","otherData":{{"limit":"{limit}"}},"traceEvents":["#
        )?;
        Ok(Events { out, first: true })
    }

    /// An event whose fields are `fields`.
    fn event(&mut self, fields: fmt::Arguments) -> io::Result<()> {
        let comma = if self.first { "" } else { ",\n" };
        self.first = false;
        write!(self.out, "{comma}{{{fields}}}")
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

/// A count of nanoseconds in a larger unit, exact and without trailing zeros.
struct Nanos {
    nanos: u64,
    /// Decimal places: 3 gives microseconds, 6 milliseconds.
    places: usize,
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10_u64.pow(self.places as u32);
        write!(f, "{}", self.nanos / unit)?;
        let (mut rest, mut places) = (self.nanos % unit, self.places);
        if rest == 0 {
            return Ok(());
        }
        while rest.is_multiple_of(10) {
            rest /= 10;
            places -= 1;
        }
        write!(f, ".{rest:0places$}")
    }
}

/// The format's unit.
fn micros(t: SimTime) -> Nanos {
    Nanos {
        nanos: t.0,
        places: 3,
    }
}

/// What a step held and where its time went, as far as it is not nothing.
struct StepArgs<'a>(&'a StepRow);

impl fmt::Display for StepArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.0.stats;
        let counts = [
            ("decode_seqs", u64::from(s.decode_seqs)),
            ("prefill_seqs", u64::from(s.prefill_seqs)),
            ("prefill_tokens", u64::from(s.prefill_tokens)),
            ("context_tokens", s.decode_ctx_sum),
        ];
        let mut comma = "";
        for (name, n) in counts.into_iter().filter(|(_, n)| *n > 0) {
            write!(f, r#"{comma}"{name}":{n}"#)?;
            comma = ",";
        }
        let parts = hwmodels::Parts::NAMES.iter().zip(self.0.parts.as_array());
        for (name, seconds) in parts {
            let nanos = (seconds * 1e9).round() as u64;
            if nanos > 0 {
                let places = 6;
                write!(f, r#"{comma}"{name}_ms":{}"#, Nanos { nanos, places })?;
                comma = ",";
            }
        }
        Ok(())
    }
}

fn write_step<W: Write>(
    w: &mut Events<W>,
    record: &RunRecord,
    step: &StepRow,
    lane: &mut Lane,
) -> io::Result<()> {
    let pid = u64::from(step.replica) + 1;
    let info = record.info.replicas.get(step.replica as usize);
    let stages = info.map_or(1, |i| u64::from(i.stages.max(1)));
    let s = &step.stats;
    let name = match (s.prefill_seqs, s.decode_seqs) {
        (0, _) => "decode",
        (_, 0) => "prefill",
        _ => "mixed",
    };
    let length = step.end.since(step.start).0;
    for stage in 0..stages {
        let from = SimTime(step.start.0 + length * stage / stages);
        let to = SimTime(step.start.0 + length * (stage + 1) / stages);
        w.event(format_args!(
            r#""ph":"X","cat":"step","name":"{name}","pid":{pid},"tid":{stage},"ts":{},"dur":{},"args":{{{}}}"#,
            micros(from),
            micros(SimTime(to.0 - from.0)),
            StepArgs(step)
        ))?;
    }
    let ts = micros(step.start);
    // A counter holds until its next event.
    if lane.requests.replace((step.running, step.waiting)) != Some((step.running, step.waiting)) {
        w.event(format_args!(
            r#""ph":"C","name":"requests","pid":{pid},"ts":{ts},"args":{{"running":{},"waiting":{}}}"#,
            step.running, step.waiting
        ))?;
    }
    if lane.blocks.replace(step.kv_used_blocks) != Some(step.kv_used_blocks) {
        w.event(format_args!(
            r#""ph":"C","name":"KV blocks","pid":{pid},"ts":{ts},"args":{{"used":{}}}"#,
            step.kv_used_blocks
        ))?;
    }
    Ok(())
}

fn write_request<W: Write>(w: &mut Events<W>, r: &RequestRow, arrow: bool) -> io::Result<()> {
    let (id, tid) = (r.id, r.stream);
    let mut span = |name: fmt::Arguments, from: SimTime, to: SimTime, args: fmt::Arguments| {
        w.event(format_args!(
            r#""ph":"b","cat":"request","id":{id},"name":"{name}","pid":{CLIENTS},"tid":{tid},"ts":{}{args}"#,
            micros(from)
        ))?;
        w.event(format_args!(
            r#""ph":"e","cat":"request","id":{id},"name":"{name}","pid":{CLIENTS},"tid":{tid},"ts":{}"#,
            micros(to)
        ))
    };
    let none = format_args!("");
    // The viewer nests what lies inside, so the whole comes first.
    span(
        format_args!("request {id}"),
        r.arrival,
        r.end,
        format_args!(
            r#","args":{{"prompt_tokens":{},"cached_tokens":{},"output_tokens":{},"preemptions":{},"replica":{},"outcome":"{}"}}"#,
            r.prompt_tokens,
            r.cached_tokens,
            r.output_tokens,
            r.preemptions,
            r.replica,
            outcome_name(r.outcome)
        ),
    )?;
    let scheduled = r.first_scheduled.min(r.end);
    let token = r.first_token.min(r.end);
    span(format_args!("queue"), r.arrival, scheduled, none)?;
    if r.first_scheduled >= r.end {
        return Ok(());
    }
    span(format_args!("prefill"), scheduled, token, none)?;
    if r.first_token < r.end {
        span(format_args!("decode"), token, r.end, none)?;
    }
    if !arrow {
        return Ok(());
    }
    let sent = micros(r.arrival);
    w.event(format_args!(
        r#""ph":"X","cat":"send","name":"send","pid":{CLIENTS},"tid":{tid},"ts":{sent},"dur":0"#
    ))?;
    w.event(format_args!(
        r#""ph":"s","cat":"flow","id":{id},"name":"to first step","pid":{CLIENTS},"tid":{tid},"ts":{sent}"#
    ))?;
    w.event(format_args!(
        r#""ph":"f","bp":"e","cat":"flow","id":{id},"name":"to first step","pid":{},"tid":0,"ts":{}"#,
        u64::from(r.replica) + 1,
        micros(r.first_scheduled)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::time::SimDuration;
    use crate::metrics::{RecordOptions, Recorder};
    use crate::policy::Blocked;
    use crate::record::{ReplicaInfo, RunInfo};
    use crate::request::Outcome;

    fn record(max_step_rows: usize) -> RunRecord {
        long_record(max_step_rows, 1)
    }

    /// A record of `n` requests, each of them alone in one step of 4 us.
    fn long_record(max_step_rows: usize, n: u64) -> RunRecord {
        let mut r = Recorder::new(&RecordOptions {
            max_step_rows,
            ..RecordOptions::default()
        });
        let mut stats = hwmodels::BatchStats::default();
        stats.add_prefill(10, 0, true);
        for i in 0..n {
            let at = |ns: u64| SimTime(i * 10_000 + ns);
            r.offered(at(1_000));
            r.step(&StepRow {
                replica: 0,
                start: at(2_000),
                end: at(6_000),
                stats,
                parts: hwmodels::Parts {
                    compute: 4e-6,
                    ..hwmodels::Parts::default()
                },
                running: 1,
                waiting: 0,
                kv_used_blocks: 1 + i,
                blocked: Blocked::Nothing,
            });
            r.request(&RequestRow {
                id: i as u32,
                stream: 0,
                replica: 0,
                prompt_tokens: 10,
                cached_tokens: 0,
                output_tokens: 2,
                preemptions: 0,
                arrival: at(1_000),
                first_scheduled: at(2_000),
                first_token: at(6_000),
                end: at(9_000),
                outcome: Outcome::Finished,
            });
        }
        let info = RunInfo {
            replicas: vec![ReplicaInfo {
                name: "a \"quoted\"".into(),
                devices: 2,
                stages: 2,
                kv_blocks: 10,
                block_tokens: 16,
            }],
            ..RunInfo::default()
        };
        r.finish(SimTime::ZERO + SimDuration(n * 10_000), info)
            .unwrap()
    }

    fn events(record: &RunRecord, limit: Limit) -> (Vec<serde_json::Value>, Written) {
        let mut bytes = Vec::new();
        let written = write(&mut bytes, record, limit).unwrap();
        let mut trace: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let events = trace["traceEvents"].as_array_mut().unwrap();
        (std::mem::take(events), written)
    }

    fn count(events: &[serde_json::Value], key: &str, value: &str) -> usize {
        events.iter().filter(|e| e[key] == value).count()
    }

    #[test]
    fn the_trace_is_json_with_a_lane_per_stage_spans_that_close_and_flows_that_arrive() {
        let (events, written) = events(&record(10), Limit::DEFAULT);
        let count = |ph: &str| count(&events, "ph", ph);
        assert_eq!(written.left_out(), None);
        assert_eq!(count("b"), 4);
        assert_eq!(count("b"), count("e"));
        assert_eq!((count("s"), count("f")), (1, 1));
        let steps: Vec<_> = events.iter().filter(|e| e["cat"] == "step").collect();
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[1]["ts"], 4.0);
        assert_eq!(steps[1]["dur"], 2.0);
        assert_eq!(steps[0]["args"]["compute_ms"], 4e-3);
        assert_eq!(count("C"), 2);
        let named = |name: &str| events.iter().any(|e| e["args"]["name"] == name);
        assert!(named("replica 0 a \"quoted\"") && named("stage 1"));
    }

    #[test]
    fn a_limit_shows_what_it_says_and_tells_what_is_left_out() {
        let record = long_record(100, 20);
        let of = |limit: &str| {
            let (events, written) = events(&record, limit.parse().unwrap());
            // Two stages, and four spans of a request.
            assert_eq!(count(&events, "cat", "step"), 2 * written.steps, "{limit}");
            assert_eq!(count(&events, "ph", "b"), 4 * written.requests, "{limit}");
            assert_eq!(count(&events, "ph", "s"), count(&events, "ph", "f"));
            (
                written.requests,
                written.steps,
                count(&events, "ph", "s"),
                written.left_out(),
            )
        };
        let some = |n: usize| Some(format!("{n} of 20 requests and {n} of 20 steps"));
        assert_eq!(of("none"), (20, 20, 20, None));
        assert_eq!(of("20"), (20, 20, 20, None));
        assert_eq!(of("3"), (3, 3, 3, some(3)));
        assert_eq!(of("1/5"), (4, 4, 0, some(4)));
        // The second request ends at 19 us, the third is sent at 21 us and the fourth at 31 us.
        assert_eq!(of("19.5 us..31 us"), (1, 1, 1, some(1)));
        // A request whose first step lies before the stretch has no arrow.
        assert_eq!(
            of("17 us..18 us"),
            (1, 0, 0, Some("1 of 20 requests and 0 of 20 steps".into()))
        );
        for limit in [
            Limit::None,
            Limit::First(3),
            Limit::OneOf(7),
            Limit::Window(SimTime(1_000), SimTime(2_000_000_000)),
        ] {
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
        for wrong in [
            "", "0", "-1", "1/0", "2/3", "5 s", "5..6", "2 s..1 s", "1 s..", "some",
        ] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn counters_are_written_when_they_change() {
        let (events, _) = events(&long_record(100, 20), Limit::None);
        // One of the requests, which stay one running and none waiting, and one of the blocks for each step.
        assert_eq!(count(&events, "name", "requests"), 1);
        assert_eq!(count(&events, "name", "KV blocks"), 20);
    }

    #[test]
    fn a_compressed_trace_unpacks_to_the_plain_one() {
        let record = long_record(100, 20);
        let (mut plain, mut packed) = (Vec::new(), Vec::new());
        let written = write(&mut plain, &record, Limit::First(5)).unwrap();
        assert_eq!(
            write_gzip(&mut packed, &record, Limit::First(5)).unwrap(),
            written
        );
        let mut unpacked = Vec::new();
        let mut reader = flate2::read::GzDecoder::new(packed.as_slice());
        io::Read::read_to_end(&mut reader, &mut unpacked).unwrap();
        assert!(unpacked == plain && 4 * packed.len() < plain.len());
    }

    #[test]
    fn times_are_exact() {
        let shown = |nanos, places| Nanos { nanos, places }.to_string();
        assert_eq!(shown(1_234_567_891, 3), "1234567.891");
        assert_eq!(shown(1_000, 3), "1");
        assert_eq!(shown(1_050, 3), "1.05");
        assert_eq!(shown(4_000, 6), "0.004");
        assert_eq!(shown(0, 6), "0");
    }

    #[test]
    fn a_record_without_steps_has_no_trace() {
        let error = write(Vec::new(), &record(0), Limit::None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
