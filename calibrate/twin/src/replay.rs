//! A recorded window, replayed through the simulator.
//!
//! Every request that the engine worked on is sent again at its own instant, with its own lengths, shared prefixes and
//! limit, and its client leaves when it left. The replay begins with what was under way when the lead-in began, so that
//! queue, batch and prefix cache have settled by the time the compared part starts; only requests that arrived in that
//! part are compared. Requests still under way at the end of the recording are given the output that finished ones
//! longer than they are had on average, and the simulation runs on until all have ended.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::RecordOptions;
use sim::record::RunRecord;
use sim::request::{ReqId, RequestSpec, Segment};
use sim::scenario::{Scenario, ScenarioError};
use sim::simulation::{RunError, RunOptions};
use sim::workload::Workload;

use super::prefix::TEXT_BLOCK_BYTES;
use super::window::{Row, Seen, Window};

/// Most sequences that one request stands for.
const MAX_SEQUENCES: u32 = 256;

/// The workload that a scenario gets while it is read: a twin brings its own.
const PLACEHOLDER: [&str; 2] = [
    "workload=[{prompt=1, output=1, arrival={kind=\"poisson\", rate=\"1 req/s\"}}]",
    "run={requests=1}",
];

/// How the recorded load is changed on its way into the simulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Factor on the rate: all gaps between arrivals shrink by it [ratio].
    pub rate: f64,
    /// Factor on prompt lengths [ratio].
    pub prompt: f64,
    /// Factor on output lengths [ratio].
    pub output: f64,
    /// Factor on every step's time [ratio].
    pub step_time: f64,
}

impl Default for Change {
    /// As recorded.
    fn default() -> Change {
        Change {
            rate: 1.0,
            prompt: 1.0,
            output: 1.0,
            step_time: 1.0,
        }
    }
}

/// Why a window could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The deployment cannot be built.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Nothing to replay.
    #[error(
        "the window holds no request that the engine worked on; wait for traffic, or take a longer window"
    )]
    Empty,
}

/// Reads the deployment of a scenario file; its workload and its `[run]` are left out.
///
/// # Errors
/// Everything that is wrong with the file or the overrides.
pub fn load_deployment(path: &Path, overrides: &[String]) -> Result<Scenario, ScenarioError> {
    let mut set: Vec<String> = PLACEHOLDER.iter().map(|s| (*s).to_owned()).collect();
    set.extend_from_slice(overrides);
    Scenario::load(path, &set)
}

/// The profile file that the deployment's step times come from, if it names one.
pub fn profile_file(scenario: &Scenario) -> Option<PathBuf> {
    if let Some(fitted) = &scenario.fitted {
        return Some(scenario.base.join(&fitted.profile));
    }
    let name = &scenario.hardware.as_ref()?.profile;
    name.ends_with(".toml").then(|| scenario.base.join(name))
}

/// A window after its replay.
pub struct Replayed {
    /// What the simulator made of it. Time counts from the window's origin; the warm-up ends where the compared part
    /// begins.
    pub record: RunRecord,
    /// The window's row that each simulated request stands for, by its id.
    pub row_of: Vec<usize>,
    /// The end of the compared part on the simulation's clock.
    pub end: SimTime,
}

/// Replays `window` on the deployment of `scenario`.
///
/// # Errors
/// See [`ReplayError`].
pub fn replay(
    window: &Window,
    scenario: &Scenario,
    change: &Change,
) -> Result<Replayed, ReplayError> {
    let origin = window.origin_ns();
    let scaled = |ns: u64| SimTime(((ns.saturating_sub(origin)) as f64 / change.rate) as u64);
    let mut load = Recorded::new(window, change);
    if load.specs.is_empty() {
        return Err(ReplayError::Empty);
    }
    let built = scenario.build()?;
    if built.cluster.is_some() {
        let message = "a window is replayed on replicas that are there from start to end; leave [cluster] out";
        return Err(scenario.places.error("cluster", message).into());
    }
    let mut simulation = built.simulation;
    if change.step_time != 1.0 {
        simulation.pace(change.step_time);
    }
    let options = RunOptions {
        record: RecordOptions {
            warmup: scaled(window.meta.start_ns).since(SimTime::ZERO),
            slo: built.slo,
            ..RecordOptions::default()
        },
        ..RunOptions::default()
    };
    let row_of = std::mem::take(&mut load.row_of);
    let mut record = simulation.run(&mut load, &options, built.info)?;
    if let Some(extent) = &built.extent {
        record.info.warnings.extend(extent.warnings());
    }
    Ok(Replayed {
        record,
        row_of,
        end: scaled(window.meta.end_ns),
    })
}

/// The recorded requests as a workload.
struct Recorded {
    specs: Vec<RequestSpec>,
    row_of: Vec<usize>,
    next: usize,
    shares: bool,
}

impl Recorded {
    fn new(window: &Window, change: &Change) -> Recorded {
        let origin = window.origin_ns();
        let expected = Expected::new(&window.rows);
        let segments = segments(&window.rows, change.prompt);
        let shares = segments.iter().any(|s| !s.is_empty());
        let mut specs = Vec::with_capacity(window.rows.len());
        let mut row_of = Vec::with_capacity(window.rows.len());
        for ((i, row), segments) in window.rows.iter().enumerate().zip(segments) {
            if !row.served() {
                continue;
            }
            let many = row.sequences.clamp(1, MAX_SEQUENCES);
            let whole = match row.outcome {
                Seen::Finished => row.output_tokens,
                _ => expected.output(row),
            };
            let length =
                |tokens: u32, factor: f64| ((f64::from(tokens) * factor).round() as u32).max(1);
            let output = length(whole / many, change.output);
            let max_tokens = length(row.max_tokens.unwrap_or(0), change.output).max(output);
            let arrival = ((row.arrival_ns - origin) as f64 / change.rate) as u64;
            let left = matches!(row.outcome, Seen::Cancelled | Seen::Failed);
            let patience = row.end_ns.filter(|_| left).map(|e| e - row.arrival_ns);
            for _ in 0..many {
                row_of.push(i);
                specs.push(RequestSpec {
                    arrival: SimTime(arrival),
                    prompt_tokens: length(row.prompt_tokens, change.prompt),
                    output_tokens: output,
                    max_tokens,
                    segments: segments.clone(),
                    timeout: patience.map(SimDuration),
                    tag: i as u64,
                    ..RequestSpec::default()
                });
            }
        }
        Recorded {
            specs,
            row_of,
            next: 0,
            shares,
        }
    }
}

impl Workload for Recorded {
    fn peek(&self) -> Option<SimTime> {
        self.specs.get(self.next).map(|s| s.arrival)
    }

    fn pop(&mut self, _id: ReqId, out: &mut RequestSpec) {
        if let Some(spec) = self.specs.get(self.next) {
            out.clone_from(spec);
            self.next += 1;
        }
    }

    fn shares_content(&self) -> bool {
        self.shares
    }

    fn len_hint(&self) -> Option<u64> {
        Some(self.specs.len() as u64)
    }
}

/// How long an answer becomes of which only a part was seen: the mean of the finished ones that are longer.
struct Expected {
    /// Output lengths of finished requests, ascending [tokens], and the sum of each and all after it.
    sorted: Vec<u32>,
    sums: Vec<u64>,
}

impl Expected {
    fn new(rows: &[Row]) -> Expected {
        let finished = rows.iter().filter(|r| r.outcome == Seen::Finished);
        let mut sorted: Vec<u32> = finished
            .map(|r| r.output_tokens / r.sequences.max(1))
            .collect();
        sorted.sort_unstable();
        let mut sums = vec![0; sorted.len() + 1];
        for i in (0..sorted.len()).rev() {
            sums[i] = sums[i + 1] + u64::from(sorted[i]);
        }
        Expected { sorted, sums }
    }

    /// Of all its sequences together [tokens].
    fn output(&self, row: &Row) -> u32 {
        let many = row.sequences.clamp(1, MAX_SEQUENCES);
        let seen = row.output_tokens / many;
        let from = self.sorted.partition_point(|n| *n <= seen);
        let longer = (self.sorted.len() - from) as u64;
        let most = row.max_tokens.unwrap_or(u32::MAX).max(1);
        // Where no finished answer is as long, the limit of the call is all that is known.
        let mean = match self.sums[from].checked_div(longer) {
            Some(mean) => u32::try_from(mean).unwrap_or(u32::MAX),
            None => row.max_tokens.unwrap_or(seen + 1),
        };
        mean.max(seen).min(most).max(1).saturating_mul(many)
    }
}

/// What each prompt shares with others, as content from its start. A block of text gets as many tokens as it had where
/// it was first seen, so that those who share it agree on its length.
fn segments(rows: &[Row], factor: f64) -> Vec<Vec<Segment>> {
    let mut users: HashMap<u64, u32> = HashMap::new();
    for row in rows.iter().filter(|r| r.served()) {
        for hash in &row.blocks {
            *users.entry(*hash).or_default() += 1;
        }
    }
    let mut lengths: HashMap<u64, u32> = HashMap::new();
    rows.iter()
        .map(|row| {
            let shared = row
                .blocks
                .iter()
                .rposition(|h| users.get(h).is_some_and(|n| *n > 1))
                .map_or(0, |last| last + 1);
            let per_block = match row.ids_per_block() {
                Some(ids) => ids as f64,
                None => {
                    TEXT_BLOCK_BYTES as f64 * f64::from(row.prompt_tokens)
                        / row.prompt_bytes.max(1) as f64
                }
            } * factor;
            let mut upto = 0.0;
            row.blocks[..shared]
                .iter()
                .map(|hash| {
                    let from = f64::round(upto);
                    upto += per_block;
                    let own = (upto.round() - from) as u32;
                    Segment {
                        content: *hash,
                        tokens: *lengths.entry(*hash).or_insert(own),
                    }
                })
                .filter(|s| s.tokens > 0)
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::{Blocks, Salt};

    fn row(id: u64, prompt: &str, tokens: u32) -> Row {
        let mut blocks = Blocks::of_text(Salt::fixed(3));
        blocks.feed(prompt.as_bytes());
        let json = serde_json::json!({
            "id": id, "api": "completions", "stream": true, "arrival_ns": id * 1_000_000, "status": 200,
            "outcome": "finished", "prompt_tokens": tokens, "prompt_counted": "usage",
            "prompt_bytes": prompt.len(), "output_tokens": 8, "output_counted": "usage",
            "max_tokens": 8, "chunks": 8, "sequences": 1, "blocks": blocks.finish(),
        });
        serde_json::from_value(json).expect("a row")
    }

    #[test]
    fn shared_text_becomes_shared_content_of_equal_length() {
        let shared = "s".repeat(640);
        // The second prompt has more bytes per token than the first.
        let rows = [
            row(0, &format!("{shared}{}", "a".repeat(640)), 320),
            row(1, &format!("{shared}{}", "b".repeat(1280)), 400),
            row(2, &"c".repeat(640), 160),
        ];
        let s = segments(&rows, 1.0);
        assert_eq!((s[0].len(), s[1].len(), s[2].len()), (10, 10, 0));
        assert_eq!(s[0], s[1]);
        assert_eq!(s[0].iter().map(|s| s.tokens).sum::<u32>(), 160);
    }

    #[test]
    fn an_unfinished_answer_is_expected_to_be_as_long_as_longer_ones_were() {
        let mut rows: Vec<Row> = (0..4).map(|i| row(i, "x", 1)).collect();
        for (row, n) in rows.iter_mut().zip([10, 20, 30, 0]) {
            row.output_tokens = n;
            row.max_tokens = Some(25);
        }
        rows[3].outcome = Seen::InFlight;
        let expected = |seen: u32| {
            let mut open = rows[3].clone();
            open.output_tokens = seen;
            Expected::new(&rows).output(&open)
        };
        assert_eq!(expected(0), 20);
        // 30 is beyond its max_tokens.
        assert_eq!(expected(20), 25);
        assert_eq!(expected(24), 25);
        let mut open = rows[3].clone();
        open.output_tokens = 3;
        assert_eq!(Expected::new(&rows[3..]).output(&open), 25);
        open.max_tokens = None;
        assert_eq!(Expected::new(&rows[3..]).output(&open), 4);
    }
}
