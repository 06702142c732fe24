//! What the harness itself costs: measured against a built-in server that says when it wrote each token.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sim::metrics::distribution::quantile_of_sorted;
use sim::scenario::Scenario;

use crate::driver::{self, Options, RawRun};
use crate::echo::{EchoServer, Schedule};
use crate::endpoint::Endpoint;
use crate::prompts::{Prompts, SAFE_IDS, Writing};
use crate::session::BenchError;

/// A rate is honest while sends are at most this late at p99 ...
pub const LATENESS_BOUND_MS: f64 = 2.0;
/// ... and chunks are stamped at most this long after they were written at p99.
pub const STAMP_BOUND_MS: f64 = 5.0;
/// Tokens of each answer [tokens].
const OUTPUT_TOKENS: u32 = 16;
/// Tokens of each prompt [tokens].
const PROMPT_TOKENS: u32 = 128;
/// The server's schedule.
const SCHEDULE: Schedule = Schedule {
    first: Duration::from_millis(20),
    gap: Duration::from_millis(10),
};
/// Low rate at which the overhead is measured [req/s].
const QUIET_RATE: f64 = 20.0;
/// Highest rate that is tried [req/s].
const MOST: f64 = 51_200.0;

/// Result of the self-test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// At a low rate.
    pub quiet: Step,
    /// At rising rates.
    pub steps: Vec<Step>,
    /// Highest rate at which everything stayed within the bounds [req/s]; none where not even the lowest did.
    pub highest_honest_rate: Option<f64>,
    /// Bound on lateness at p99 [ms].
    pub lateness_bound_ms: f64,
    /// Bound on the delay of time stamps at p99 [ms].
    pub stamp_bound_ms: f64,
    /// Tokens of each answer [tokens].
    pub output_tokens: u32,
}

/// One rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Poisson rate [req/s].
    pub rate: f64,
    /// Requests sent.
    pub requests: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Sends after their due time [us].
    pub lateness_us: P50P99,
    /// Time stamps of chunks after the server wrote them [us].
    pub stamp_us: P50P99,
    /// Measured TTFT beyond the server's schedule, the server's own delay included [us].
    pub ttft_error_us: P50P99,
    /// Measured gap between tokens against the gap between the server's writes, either way [us].
    pub itl_error_us: P50P99,
    /// Processor time of the client per request [us]; zero where the system does not tell.
    pub cpu_us_per_request: f64,
    /// ... and per token [us].
    pub cpu_us_per_token: f64,
}

/// Median and 99th percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct P50P99 {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl P50P99 {
    /// Of values [ns], in microseconds.
    fn of(mut ns: Vec<u64>) -> P50P99 {
        ns.sort_unstable();
        let us = |p: f64| quantile_of_sorted(&ns, p).unwrap_or(0.0) / 1e3;
        P50P99 {
            p50: us(0.5),
            p99: us(0.99),
        }
    }
}

impl Step {
    /// Whether the harness did what the workload says and stamped chunks in time.
    pub fn honest(&self) -> bool {
        self.failed == 0
            && self.lateness_us.p99 <= LATENESS_BOUND_MS * 1e3
            && self.stamp_us.p99 <= STAMP_BOUND_MS * 1e3
    }
}

/// Measures: `seconds` at a low rate, then as long at each of rising rates until one is not honest; `tell` hears of each.
///
/// # Errors
/// When the server cannot be started.
pub fn run(seconds: f64, mut tell: impl FnMut(&Step)) -> Result<SelfTest, BenchError> {
    let server = EchoServer::start(SCHEDULE)?;
    let quiet = step(&server, QUIET_RATE, seconds)?;
    tell(&quiet);
    let mut steps = Vec::new();
    let mut rate = 100.0;
    let mut highest = quiet.honest().then_some(QUIET_RATE);
    while rate <= MOST {
        let s = step(&server, rate, seconds)?;
        tell(&s);
        steps.push(s);
        if !s.honest() {
            break;
        }
        highest = Some(rate);
        rate *= 2.0;
    }
    Ok(SelfTest {
        quiet,
        steps,
        highest_honest_rate: highest,
        lateness_bound_ms: LATENESS_BOUND_MS,
        stamp_bound_ms: STAMP_BOUND_MS,
        output_tokens: OUTPUT_TOKENS,
    })
}

fn step(server: &EchoServer, rate: f64, seconds: f64) -> Result<Step, BenchError> {
    let text = format!(
        r#"
[step]
base = "1 ms"
[engine]
kind = "vllm_v1"
kv_blocks = 1000
[[workload]]
arrival = {{ kind = "poisson", rate = "{rate} req/s" }}
prompt = {PROMPT_TOKENS}
output = {OUTPUT_TOKENS}
[run]
duration = "{seconds} s"
"#
    );
    let scenario = Scenario::parse(&text, "self-test", &[])?;
    let mut workload = scenario.mix()?;
    let mut prompts = Prompts::new(Writing::Ids(SAFE_IDS.0, SAFE_IDS.1), "token ids", true);
    let options = Options {
        keep_output: true,
        ..Options::default()
    };
    let endpoint = Endpoint::new(&server.url())?;
    let raw = driver::run(&endpoint, None, &mut workload, &mut prompts, &options)?;
    Ok(figures(server, rate, &raw))
}

fn figures(server: &EchoServer, rate: f64, raw: &RawRun) -> Step {
    let (mut stamps, mut ttft, mut itl) = (Vec::new(), Vec::new(), Vec::new());
    for s in &raw.samples {
        let Some(text) = &s.trace.text else { continue };
        let start = s
            .trace
            .start
            .saturating_duration_since(server.epoch)
            .as_nanos() as u64;
        let written: Vec<u64> = text
            .split_whitespace()
            .filter_map(|t| t.parse().ok())
            .collect();
        if written.len() != s.trace.chunks.len() {
            continue;
        }
        let seen: Vec<u64> = s.trace.chunks.iter().map(|c| start + c.at_ns).collect();
        stamps.extend(seen.iter().zip(&written).map(|(a, b)| a.saturating_sub(*b)));
        ttft.extend(
            s.trace
                .first_token_ns()
                .map(|ns| ns.saturating_sub(SCHEDULE.first.as_nanos() as u64)),
        );
        itl.extend(
            seen.windows(2)
                .zip(written.windows(2))
                .map(|(a, b)| (a[1] - a[0]).abs_diff(b[1] - b[0])),
        );
    }
    let n = raw.samples.len() as f64;
    let cpu_us = raw.cpu_s.unwrap_or(0.0) * 1e6;
    let per = |count: f64| if count > 0.0 { cpu_us / count } else { 0.0 };
    Step {
        rate,
        requests: raw.samples.len() as u64,
        failed: raw.samples.iter().filter(|s| !s.trace.ok()).count() as u64,
        lateness_us: P50P99::of(
            raw.samples
                .iter()
                .map(driver::Sample::lateness_ns)
                .collect(),
        ),
        stamp_us: P50P99::of(stamps),
        ttft_error_us: P50P99::of(ttft),
        itl_error_us: P50P99::of(itl),
        cpu_us_per_request: per(n),
        cpu_us_per_token: per(n * f64::from(OUTPUT_TOKENS)),
    }
}

/// A row of the table on the terminal.
pub fn row(s: &Step) -> String {
    let pair = |p: &P50P99| format!("{:>8.0} {:>8.0}", p.p50, p.p99);
    format!(
        "{:>8.0} {:>8} {} {} {} {} {:>8.0} {:>6.1}  {}",
        s.rate,
        s.requests,
        pair(&s.lateness_us),
        pair(&s.stamp_us),
        pair(&s.ttft_error_us),
        pair(&s.itl_error_us),
        s.cpu_us_per_request,
        s.cpu_us_per_token,
        if s.failed > 0 {
            format!("{} failed", s.failed)
        } else if s.honest() {
            "honest".into()
        } else {
            "beyond the bounds".into()
        }
    )
}

/// Heads the columns of [`row`]; times in microseconds, medians and 99th percentiles.
pub const HEAD: &str = "
                         sent late    stamp - written   TTFT - schedule  |ITL - written|  processor time
   req/s requests      p50      p99      p50      p99      p50      p99      p50      p99 /request /token
";
