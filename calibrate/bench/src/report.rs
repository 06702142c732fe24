//! What a benchmark found: the figures of `run`'s report, and those that only a real client has.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sim::metrics::Metric;
use sim::metrics::distribution::quantile_of_sorted;
use sim::record::RunRecord;
use sim::report::RunReport;
use sim::report::text::{
    LATENCY_HEAD, NORMALISED, field, figure, latency_line, secs, throughput_line,
};

use crate::driver::{RawRun, Stopped};
use crate::endpoint::CountSource;
use crate::endpoint::connection::ConnectionCounts;
use crate::failures::Failures;
use crate::server_figures::ServerFigures;
use crate::sharing::CacheHits;

/// Version of this contract.
pub const CONTRACT: u32 = 1;
/// Sends later than this at p99 are no longer what the workload says [ms].
pub const HONEST_LATENESS_MS: f64 = 5.0;

/// A benchmark, summarised: the JSON of `servetwin bench --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Version of this contract; raised when a field changes its meaning or goes away.
    pub bench_contract: u32,
    /// As for a simulated run (`docs/machine-contracts.md`). What only the engine knows (KV use, utilisation, what bound it) is
    /// empty here.
    pub run: RunReport,
    /// What only a client knows.
    pub client: ClientFigures,
    /// What the engine said of itself over the run, where it has `/metrics`.
    pub server: Option<ServerFigures>,
}

/// What only a client knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientFigures {
    /// The endpoint's address.
    pub url: String,
    /// Its API.
    pub api: String,
    /// Start of the run [s since 1970].
    pub started_unix_s: f64,
    /// Why the sending ended.
    pub stopped: String,
    /// Salt of the prompts: `--prompt-salt` with it sends the same ones again.
    pub prompt_salt: u64,
    /// How the requests ended.
    pub failures: Failures,
    /// Requests that failed, by kind; `short_output` are those that finished with fewer tokens than asked.
    pub errors: BTreeMap<String, u64>,
    /// A message of each kind of error.
    pub error_examples: BTreeMap<String, String>,
    /// How late requests were sent [ms].
    pub lateness_ms: Lateness,
    /// Connections.
    pub connections: ConnectionCounts,
    /// Time to open a connection, median over the requests that opened one [ms].
    pub connect_p50_ms: Option<f64>,
    /// Requests sent once more without a field that the server refused.
    pub resent: u64,
    /// Chunks that brought tokens.
    pub chunks: u64,
    /// Of those, chunks that brought several.
    pub multi_token_chunks: u64,
    /// Requests by the way their tokens were counted.
    pub token_counts: BTreeMap<String, u64>,
    /// Requests of which a token count of the server was not believed, by why.
    pub usage_not_believed: BTreeMap<String, u64>,
    /// Prefix-cache hits that the workload plans, and those beyond.
    pub cache: CacheHits,
    /// Prompt tokens asked for and reported differ by this at most, where the server reports them [tokens].
    pub prompt_tokens_off_by: Option<u32>,
    /// Requests that waited for a place under the concurrency limit.
    pub held_back: u64,
    /// Processor time of the client per request [s].
    pub cpu_s_per_request: Option<f64>,
    /// Medians of the server's own times, where it gives them with each answer (llama-server).
    pub server_timings: Option<TimingsSummary>,
    /// Figures as GuideLLM defines them, over the same requests.
    pub guidellm: GuideLlmFigures,
    /// What the server made the client do differently, and other things to know.
    pub notes: Vec<String>,
}

/// How late requests were sent [ms].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// Medians of the server's own times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimingsSummary {
    /// Prompt processing [ms].
    pub prompt_p50_ms: f64,
    /// Per generated token [ms].
    pub token_p50_ms: f64,
}

/// Means over the finished, measured requests by GuideLLM's definitions (`docs/bench.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuideLlmFigures {
    /// First token chunk [ms].
    pub time_to_first_token_ms: Option<f64>,
    /// (last - first) / (tokens - 1), one value per request [ms].
    pub inter_token_latency_ms: Option<f64>,
    /// (last token - request start) / tokens, one value per request [ms].
    pub time_per_output_token_ms: Option<f64>,
    /// Until the stream's end, usage and end mark included [s].
    pub request_latency_s: Option<f64>,
    /// Finished requests over the time from the first send to the last end [req/s].
    pub requests_per_second: f64,
    /// Their output tokens over the same time [tokens/s].
    pub output_tokens_per_second: f64,
}

/// The `p` quantile of `values` [ns] in milliseconds; zero where there are none.
fn quantile_ms(values: &[u64], p: f64) -> f64 {
    quantile_of_sorted(values, p).unwrap_or(0.0) / 1e6
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut n) = (0.0, 0u64);
    for v in values {
        sum += v;
        n += 1;
    }
    (n > 0).then(|| sum / n as f64)
}

impl ClientFigures {
    /// What is wrong with the run, of which a share of `allowed` may fail; `None`: nothing.
    pub fn complaint(&self, allowed: f64) -> Option<String> {
        (self.failures).complaint(&self.errors, &self.error_examples, allowed)
    }

    /// The client's side of a run whose first `warmup_ns` are left out of the figures by GuideLLM's definitions.
    pub fn new(run: &RawRun, url: &str, api: &str, warmup_ns: u64) -> ClientFigures {
        let mut f = ClientFigures {
            url: url.to_string(),
            api: api.to_string(),
            started_unix_s: run.started_unix_s,
            stopped: match &run.stopped {
                Stopped::Done => "the workload ended".into(),
                Stopped::Known => "the figures were known well enough".into(),
                Stopped::Cap(what) => format!("{what} was reached"),
                Stopped::Errors(n) => format!("{n} requests had failed"),
                Stopped::Failing(how_long) => {
                    format!(
                        "every request had failed for {}: it was given up",
                        secs(how_long.as_secs_f64())
                    )
                }
                Stopped::Asked => "it was asked to stop".into(),
            },
            connections: run.connections,
            held_back: run.held_back,
            notes: run.notes.clone(),
            ..ClientFigures::default()
        };
        let mut late: Vec<u64> = run.samples.iter().map(|s| s.lateness_ns()).collect();
        late.sort_unstable();
        f.lateness_ms = Lateness {
            p50: quantile_ms(&late, 0.5),
            p99: quantile_ms(&late, 0.99),
            max: quantile_ms(&late, 1.0),
        };
        let mut connects: Vec<u64> = Vec::new();
        let (mut prompts, mut tokens): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        for s in &run.samples {
            let t = &s.trace;
            if let Some(error) = &t.error {
                *f.errors.entry(error.kind.name()).or_default() += 1;
                f.error_examples
                    .entry(error.kind.name())
                    .or_insert_with(|| error.message.clone());
            } else {
                if t.short {
                    *f.errors.entry("short_output".into()).or_default() += 1;
                }
                let how = match t.counted {
                    CountSource::PerChunk => "per_chunk",
                    CountSource::Confirmed => "confirmed",
                    CountSource::Spread => "spread",
                    CountSource::Unconfirmed => "unconfirmed",
                };
                *f.token_counts.entry(how.into()).or_default() += 1;
            }
            for fault in &t.usage_faults {
                *f.usage_not_believed.entry(fault.name().into()).or_default() += 1;
            }
            f.resent += u64::from(t.resent);
            f.chunks += t.chunks.len() as u64;
            f.multi_token_chunks += t.multi_token_chunks() as u64;
            if let (Some(ns), false) = (t.connected_ns, t.reused) {
                connects.push(ns);
            }
            if let Some(got) = t.usage.and_then(|u| u.prompt_tokens) {
                let off = got.abs_diff(s.spec.prompt_tokens);
                f.prompt_tokens_off_by = Some(f.prompt_tokens_off_by.unwrap_or(0).max(off));
            }
            if let Some(timings) = t.timings.filter(|t| t.predicted_tokens > 0) {
                prompts.push((timings.prompt_s * 1e9) as u64);
                tokens
                    .push((timings.predicted_s * 1e9) as u64 / u64::from(timings.predicted_tokens));
            }
        }
        connects.sort_unstable();
        f.connect_p50_ms = (!connects.is_empty()).then(|| quantile_ms(&connects, 0.5));
        if !prompts.is_empty() {
            prompts.sort_unstable();
            tokens.sort_unstable();
            f.server_timings = Some(TimingsSummary {
                prompt_p50_ms: quantile_ms(&prompts, 0.5),
                token_p50_ms: quantile_ms(&tokens, 0.5),
            });
        }
        let n = run.samples.len();
        f.cpu_s_per_request = run.cpu_s.filter(|_| n > 0).map(|s| s / n as f64);
        f.guidellm = guidellm(run, warmup_ns);
        f
    }

    /// What the reader of the figures must know.
    pub fn warnings(&self, record: &RunRecord) -> Vec<String> {
        let mut warnings: Vec<String> = self.cache.warning().into_iter().collect();
        warnings.extend(self.notes.iter().cloned());
        if !self.usage_not_believed.is_empty() {
            let kinds: Vec<String> = self
                .usage_not_believed
                .iter()
                .map(|(why, n)| format!("{n} x {why}"))
                .collect();
            warnings.push(format!(
                "token counts of the server that cannot be true were not believed ({}; docs/bench.md): tokens are counted from the chunks, prompts as asked for",
                kinds.join(", ")
            ));
        }
        if self.lateness_ms.p99 > HONEST_LATENESS_MS && self.held_back == 0 {
            warnings.push(format!(
                "1 % of the requests were sent more than {:.1} ms late: the load was not quite what the workload says",
                self.lateness_ms.p99
            ));
        }
        if self.held_back > 0 {
            warnings.push(format!(
                "{} requests waited for a place under the concurrency limit: this was a closed loop in part, and their waiting is in no latency",
                self.held_back
            ));
        }
        let short = self.errors.get("short_output").copied().unwrap_or(0);
        if short > 0 {
            warnings.push(format!("{short} answers were shorter than asked"));
        }
        if self.multi_token_chunks * 100 > self.chunks {
            warnings.push(format!(
                "{} of {} chunks brought several tokens; gaps within a chunk count as zero, so look at TPOT rather than at percentiles of ITL",
                self.multi_token_chunks, self.chunks
            ));
        }
        let guessed = ["spread", "unconfirmed"]
            .iter()
            .filter_map(|k| self.token_counts.get(*k))
            .sum::<u64>();
        if guessed > 0 {
            warnings.push(format!(
                "tokens of {guessed} answers were counted from their chunks ({} of them spread over the chunks by the length of their text)",
                self.token_counts.get("spread").copied().unwrap_or(0)
            ));
        }
        if let Some(off) = self.prompt_tokens_off_by.filter(|off| *off > 0) {
            warnings.push(format!(
                "prompts had up to {off} tokens more or fewer than asked; the record has what the server counted"
            ));
        }
        if record.counts.offered == 0 {
            warnings.push("no request was sent".into());
        }
        warnings
    }
}

/// GuideLLM's definitions: from its source, as listed in docs/bench.md.
fn guidellm(run: &RawRun, warmup_ns: u64) -> GuideLlmFigures {
    let ok = || {
        run.samples
            .iter()
            .filter(move |s| s.trace.ok() && s.sent_ns >= warmup_ns)
    };
    let start = ok().map(|s| s.sent_ns).min().unwrap_or(0);
    let end = ok().map(|s| s.sent_ns + s.trace.end_ns).max().unwrap_or(0);
    let span = end.saturating_sub(start) as f64 * 1e-9;
    let rate = |amount: f64| if span > 0.0 { amount / span } else { 0.0 };
    GuideLlmFigures {
        time_to_first_token_ms: mean(
            ok().filter_map(|s| Some(s.trace.first_token_ns()? as f64 / 1e6)),
        ),
        inter_token_latency_ms: mean(ok().filter_map(|s| {
            let n = s.trace.output_tokens();
            let span = s.trace.last_token_ns()? - s.trace.first_token_ns()?;
            (n > 1).then(|| span as f64 / f64::from(n - 1) / 1e6)
        })),
        time_per_output_token_ms: mean(ok().filter_map(|s| {
            let n = s.trace.output_tokens();
            Some(s.trace.last_token_ns()? as f64 / f64::from(n.max(1)) / 1e6)
        })),
        request_latency_s: mean(ok().map(|s| s.trace.end_ns as f64 * 1e-9)),
        requests_per_second: rate(ok().count() as f64),
        output_tokens_per_second: rate(ok().map(|s| f64::from(s.trace.output_tokens())).sum()),
    }
}

/// The report on the terminal; lines end in `\n`.
pub fn render(r: &BenchReport) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, r);
    out
}

fn write(out: &mut String, r: &BenchReport) -> std::fmt::Result {
    let (run, c) = (&r.run, &r.client);
    writeln!(out, "{}", run.name)?;
    if !run.description.is_empty() {
        field(out, "", &run.description)?;
    }
    writeln!(out)?;
    field(out, "endpoint", &run.deployment)?;
    field(out, "load", &run.load)?;
    write_requests(out, r)?;
    writeln!(out)?;
    write_latencies(out, run)?;
    writeln!(out)?;
    write_rates(out, run)?;
    write_server(out, r)?;
    write_client(out, c)?;
    for warning in &run.warnings {
        field(out, "warning", warning)?;
    }
    writeln!(out)?;
    field(
        out,
        "reproduce",
        &format!(
            "servetwin {}, seed {}, --prompt-salt {} for the same prompts",
            run.version, run.seed, c.prompt_salt
        ),
    )
}

fn write_requests(out: &mut String, r: &BenchReport) -> std::fmt::Result {
    let (run, c) = (&r.run, &r.client);
    let q = &run.requests;
    let mut outcome = format!("{} sent, {} finished", q.offered, q.finished);
    for (n, what) in [
        (q.rejected, "rejected"),
        (q.timed_out, "timed out"),
        (q.failed, "failed"),
        (q.in_flight, "given up at the end"),
    ] {
        if n > 0 {
            write!(outcome, ", {n} {what}")?;
        }
    }
    if run.warmup_s > 0.0 {
        write!(outcome, " (the first {} left out)", secs(run.warmup_s))?;
    }
    write!(outcome, " in {}; {}", secs(run.duration_s), c.stopped)?;
    field(out, "requests", &outcome)?;
    for (kind, n) in &c.errors {
        let example = c
            .error_examples
            .get(kind)
            .map_or(String::new(), |m| format!(", e.g. {m}"));
        field(out, "errors", &format!("{n} x {kind}{example}"))?;
    }
    Ok(())
}

fn write_latencies(out: &mut String, run: &RunReport) -> std::fmt::Result {
    writeln!(out, "{LATENCY_HEAD}")?;
    for (metric, label) in [
        (Metric::Ttft, "TTFT"),
        (Metric::Itl, "ITL (pooled)"),
        (Metric::Tpot, "TPOT"),
        (Metric::E2e, "E2E"),
        (Metric::Normalised, NORMALISED),
    ] {
        latency_line(out, label, run.latency(metric))?;
    }
    for s in &run.streams {
        writeln!(
            out,
            "\n  stream {}: {} sent, {} finished",
            s.name, s.requests.offered, s.requests.finished
        )?;
        latency_line(out, "TTFT", &s.ttft_ms)?;
        latency_line(out, "TPOT", &s.tpot_ms)?;
        latency_line(out, "E2E", &s.e2e_ms)?;
    }
    Ok(())
}

fn write_rates(out: &mut String, run: &RunReport) -> std::fmt::Result {
    let t = &run.throughput;
    throughput_line(out, t)?;
    if let Some(ratio) = run.slo.attainment_ratio {
        field(
            out,
            "goodput",
            &format!(
                "{} req/s; {:.1} % of finished requests meet the objective",
                figure(t.goodput_per_s),
                100.0 * ratio
            ),
        )?;
    }
    let (tokens, finished) = (&run.tokens, run.requests.finished.max(1) as f64);
    field(
        out,
        "tokens",
        &format!(
            "{} prompt, {} output; {} and {} per finished request",
            tokens.prompt,
            tokens.output,
            figure(tokens.prompt as f64 / finished),
            figure(tokens.output as f64 / finished)
        ),
    )?;
    if run.tokens.cached > 0 {
        field(
            out,
            "prefix cache",
            &format!(
                "{:.1} % of prompt tokens hit",
                100.0 * run.tokens.cached as f64 / run.tokens.prompt.max(1) as f64
            ),
        )?;
    }
    Ok(())
}

fn write_server(out: &mut String, r: &BenchReport) -> std::fmt::Result {
    if let Some(s) = &r.server {
        let mut parts: Vec<String> = Vec::new();
        for (name, l) in &s.latencies_ms {
            parts.push(format!("{name} mean {} ms", figure(l.mean)));
        }
        if let Some(n) = s.preemptions {
            parts.push(format!("{n:.0} preemptions"));
        }
        if let Some(ratio) = s.prefix_hit_ratio {
            parts.push(format!("{:.1} % prefix hits", 100.0 * ratio));
        }
        if !parts.is_empty() {
            field(out, "server says", &parts.join(", "))?;
        }
    }
    if let Some(timings) = &r.client.server_timings {
        field(
            out,
            "server says",
            &format!(
                "prompt {} ms, {} ms per token (medians of its own timings)",
                figure(timings.prompt_p50_ms),
                figure(timings.token_p50_ms)
            ),
        )?;
    }
    Ok(())
}

fn write_client(out: &mut String, c: &ClientFigures) -> std::fmt::Result {
    let late = &c.lateness_ms;
    field(
        out,
        "sent late",
        &format!(
            "p50 {} ms, p99 {} ms, max {} ms",
            figure(late.p50),
            figure(late.p99),
            figure(late.max)
        ),
    )?;
    let n = &c.connections;
    let mut connections = format!("{} opened, {} requests on used ones", n.opened, n.reused);
    if n.closed_by_server > 0 {
        write!(connections, ", {} closed by the server", n.closed_by_server)?;
    }
    if n.stale_retries > 0 {
        write!(
            connections,
            ", {} requests sent again after a stale one",
            n.stale_retries
        )?;
    }
    if let Some(ms) = c.connect_p50_ms {
        write!(connections, "; {} ms to open", figure(ms))?;
    }
    field(out, "connections", &connections)?;
    if let Some(cpu) = c.cpu_s_per_request {
        field(
            out,
            "client",
            &format!("{} us of processor time per request", figure(cpu * 1e6)),
        )?;
    }
    Ok(())
}
