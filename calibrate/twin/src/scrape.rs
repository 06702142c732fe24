//! Reads the server's own `/metrics`, and keeps its readings.
//!
//! Beside a proxy they add what traffic does not show: requests running and waiting, KV in use. Without one they are all
//! there is: arrivals, lengths and latencies as histograms, from which a window of drawn requests is made.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bench::endpoint::Client;
use bench::prometheus::{EngineMetrics, Histogram, Page};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::api::Api;
use super::compare::{Comparison, Figure};
use super::replay::Replayed;
use super::tap::Clock;
use super::window::{Counted, FORMAT, Meta, Row, Seen, ServerMeans, Window};

/// Names under which servers keep the lengths of prompts.
const PROMPT_LENGTHS: [&str; 3] = [
    "vllm:request_prompt_tokens",
    "tgi_request_input_length",
    "nv_llm_input_token_len",
];

/// ... and of outputs.
const OUTPUT_LENGTHS: [&str; 3] = [
    "vllm:request_generation_tokens",
    "tgi_request_generated_tokens",
    "nv_llm_output_token_len",
];

/// One reading.
#[derive(Clone, Debug)]
pub struct Reading {
    /// When, on the twin's clock [ns].
    pub at_ns: u64,
    /// What the engine says of itself.
    pub metrics: EngineMetrics,
    /// Lengths of the prompts so far [tokens].
    pub prompts: Option<Histogram>,
    /// Lengths of the outputs so far [tokens].
    pub outputs: Option<Histogram>,
}

impl Reading {
    /// Reads a metrics page.
    pub fn of_page(at_ns: u64, page: &Page) -> Reading {
        let first = |names: &[&str]| names.iter().find_map(|n| page.histogram(n));
        Reading {
            at_ns,
            metrics: EngineMetrics::from_page(page),
            prompts: first(&PROMPT_LENGTHS),
            outputs: first(&OUTPUT_LENGTHS),
        }
    }
}

/// The readings of one server.
pub struct Scraper {
    client: Client,
    clock: Clock,
    retention: Duration,
    readings: Mutex<VecDeque<Reading>>,
}

impl Scraper {
    /// A scraper that keeps readings for `retention`.
    pub fn new(client: Client, clock: Clock, retention: Duration) -> Scraper {
        Scraper {
            client,
            clock,
            retention,
            readings: Mutex::new(VecDeque::new()),
        }
    }

    /// Reads once.
    ///
    /// # Errors
    /// In words: no answer, another status than 200, no metrics of a known engine.
    pub async fn read(&self) -> Result<(), String> {
        let answer = self
            .client
            .get("/metrics")
            .await
            .map_err(|e| format!("/metrics: {e}"))?;
        if answer.status != 200 {
            return Err(format!("/metrics answers {}", answer.status));
        }
        let page =
            Page::parse(&String::from_utf8_lossy(&answer.body)).map_err(|e| e.to_string())?;
        let reading = Reading::of_page(self.clock.now_ns(), &page);
        if reading.metrics.exporter.is_none() {
            return Err("/metrics is of no engine that is known (vLLM, TGI, Triton with TensorRT-LLM, llama.cpp)".into());
        }
        self.keep(reading);
        Ok(())
    }

    fn keep(&self, reading: Reading) {
        let oldest = reading
            .at_ns
            .saturating_sub(u64::try_from(self.retention.as_nanos()).unwrap_or(u64::MAX));
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        // One reading from before the retention stays, for differences over all of it.
        while readings.get(1).is_some_and(|r| r.at_ns < oldest) {
            readings.pop_front();
        }
        readings.push_back(reading);
    }

    /// The readings from the last one before `start_ns` up to now.
    pub fn since(&self, start_ns: u64) -> Vec<Reading> {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let first = readings.partition_point(|r| r.at_ns < start_ns);
        readings
            .iter()
            .skip(first.saturating_sub(1))
            .cloned()
            .collect()
    }
}

/// Means of the gauges of `readings`.
pub fn means(readings: &[Reading]) -> Option<ServerMeans> {
    let mean = |pick: fn(&EngineMetrics) -> Option<f64>| {
        let values: Vec<f64> = readings.iter().filter_map(|r| pick(&r.metrics)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    (!readings.is_empty()).then(|| ServerMeans {
        samples: readings.len() as u64,
        running: mean(|m| m.running),
        waiting: mean(|m| m.waiting),
        kv_ratio: mean(|m| m.kv_usage),
    })
}

/// What a server said about a stretch of time.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// Its length [s].
    pub seconds: f64,
    /// End, on the twin's clock [ns].
    pub end_ns: u64,
    /// Requests that came [/s].
    pub arrivals_per_s: f64,
    /// Requests that finished.
    pub finished: f64,
    /// Differences of counters and histograms.
    pub metrics: EngineMetrics,
    /// Lengths of prompts [tokens].
    pub prompts: Option<Histogram>,
    /// Lengths of outputs [tokens].
    pub outputs: Option<Histogram>,
    /// Means of the gauges.
    pub means: Option<ServerMeans>,
}

/// What happened between the first and the last of `readings`. `None`: too few, the server started anew, or it does not
/// count its requests.
pub fn stretch(readings: &[Reading]) -> Option<Stretch> {
    let (first, last) = (readings.first()?, readings.last()?);
    let seconds = last.at_ns.saturating_sub(first.at_ns) as f64 * 1e-9;
    let metrics = last.metrics.since(&first.metrics);
    let finished = metrics
        .finished
        .or_else(|| metrics.e2e.as_ref().map(Histogram::count))
        .or_else(|| metrics.ttft.as_ref().map(Histogram::count))?;
    let inside = |r: &Reading| Some(r.metrics.running? + r.metrics.waiting.unwrap_or(0.0));
    let grown = inside(last).zip(inside(first)).map_or(0.0, |(b, a)| b - a);
    let since =
        |now: &Option<Histogram>, before: &Option<Histogram>| now.as_ref()?.since(before.as_ref()?);
    (seconds > 0.0).then(|| Stretch {
        seconds,
        end_ns: last.at_ns,
        arrivals_per_s: (finished + grown).max(0.0) / seconds,
        finished,
        prompts: since(&last.prompts, &first.prompts),
        outputs: since(&last.outputs, &first.outputs),
        means: means(readings),
        metrics,
    })
}

impl Stretch {
    /// A window of drawn requests: Poisson arrivals at the rate that was counted, lengths from the histograms (means,
    /// where there are none), with as long a lead-in. `seed` names the draw. `None`: nothing came, or the server says
    /// nothing about lengths.
    pub fn drawn(&self, endpoint: &str, unix_origin_s: f64, seed: u64) -> Option<Window> {
        let mean = |total: Option<f64>| {
            Some(total? / self.finished).filter(|m| m.is_finite() && *m >= 0.5)
        };
        let prompt = Lengths::new(self.prompts.as_ref(), mean(self.metrics.prompt_tokens))?;
        let output = Lengths::new(self.outputs.as_ref(), mean(self.metrics.generated_tokens))?;
        if self.arrivals_per_s <= 0.0 {
            return None;
        }
        let nanos = |s: f64| (s * 1e9) as u64;
        // The clock of drawn requests is their own: the window is its second half.
        let (start_ns, end_ns) = (nanos(self.seconds), 2 * nanos(self.seconds));
        let mut rng = StdRng::seed_from_u64(seed);
        let mut rows = Vec::new();
        let mut at = 0.0;
        loop {
            let u: f64 = rng.random_range(0.0..1.0);
            at -= (1.0 - u).ln() / self.arrivals_per_s;
            let arrival_ns = nanos(at);
            if arrival_ns >= end_ns || rows.len() >= 1_000_000 {
                break;
            }
            let output_tokens = output.draw(&mut rng);
            rows.push(Row {
                id: rows.len() as u64,
                api: Api::Completions,
                stream: true,
                arrival_ns,
                first_ns: None,
                end_ns: Some(arrival_ns),
                status: 200,
                outcome: Seen::Finished,
                prompt_tokens: prompt.draw(&mut rng),
                prompt_counted: Counted::Estimate,
                prompt_bytes: 0,
                cached_tokens: None,
                output_tokens,
                output_counted: Counted::Estimate,
                max_tokens: Some(output_tokens),
                chunks: 0,
                sequences: 1,
                lossy: true,
                blocks: Vec::new(),
                gaps_us: Vec::new(),
            });
        }
        let mut notes = vec![
            "without a proxy: requests were drawn (Poisson arrivals at the counted rate, lengths from the server's \
             metrics), so percentiles depend on how the real ones came"
                .to_owned(),
        ];
        if self.metrics.prefix_hits.is_some_and(|h| h > 0.0) {
            notes.push("the server had prefix hits; drawn prompts share nothing".into());
        }
        Some(Window {
            meta: Meta {
                servetwin_window: FORMAT,
                endpoint: endpoint.to_owned(),
                unix_origin_s: unix_origin_s + self.end_ns as f64 * 1e-9 - 2.0 * self.seconds,
                start_ns,
                end_ns,
                from_ns: 0,
                server: self.means,
                notes,
            },
            rows,
        })
    }

    /// What the server measured against replays of drawn windows; the noise of an error is the spread of the draws.
    pub fn compare(&self, windows: &[Window], replays: &[Replayed]) -> Option<Comparison> {
        use sim::metrics::Metric;
        let window = windows.first()?;
        let mut figures = Vec::new();
        let mut add = |name: &str, unit: &str, measured: Option<f64>, draws: Vec<Option<f64>>| {
            let draws: Vec<f64> = draws.into_iter().flatten().collect();
            let n = draws.len() as f64;
            let mean = (n > 0.0).then(|| draws.iter().sum::<f64>() / n);
            let spread = mean
                .filter(|_| n > 1.0)
                .map(|m| (draws.iter().map(|d| (d - m).powi(2)).sum::<f64>() / (n - 1.0)).sqrt());
            let error = measured
                .filter(|m| *m > 0.0)
                .zip(mean)
                .map(|(m, p)| p / m - 1.0);
            figures.push(Figure {
                name: name.into(),
                unit: unit.into(),
                measured,
                predicted: mean,
                error_ratio: error,
                noise_ratio: error.and(spread).zip(measured).map(|(s, m)| s / m),
            });
        };
        let ms = |s: Option<f64>| s.map(|s| s * 1e3);
        for (name, histogram, metric) in [
            ("ttft", &self.metrics.ttft, Metric::Ttft),
            ("itl", &self.metrics.itl, Metric::Itl),
            ("e2e", &self.metrics.e2e, Metric::E2e),
        ] {
            let h = histogram.as_ref();
            let of = |r: &Replayed| r.record.latencies.of(metric).mean_ns().map(|ns| ns / 1e6);
            let mean = ms(h.and_then(Histogram::mean));
            add(
                &format!("{name}_mean"),
                "ms",
                mean,
                replays.iter().map(of).collect(),
            );
            for (statistic, p) in [("p50", 0.5), ("p99", 0.99)] {
                let of = |r: &Replayed| r.record.quantile_ns(metric, p).map(|ns| ns / 1e6);
                let quantile = ms(h.and_then(|h| h.quantile(p)));
                add(
                    &format!("{name}_{statistic}"),
                    "ms",
                    quantile,
                    replays.iter().map(of).collect(),
                );
            }
        }
        let per_s = |n: Option<f64>| n.map(|n| n / self.seconds);
        let rate = |of: fn(&sim::record::RunRecord) -> u64| -> Vec<Option<f64>> {
            let rate = |r: &Replayed| {
                let s = r.record.window.length.as_secs();
                (s > 0.0).then(|| of(&r.record) as f64 / s)
            };
            replays.iter().map(rate).collect()
        };
        add(
            "requests_per_s",
            "/s",
            Some(self.finished / self.seconds),
            rate(|r| r.window.finished),
        );
        add(
            "output_tokens_per_s",
            "/s",
            per_s(self.metrics.generated_tokens),
            rate(|r| r.window.tokens.output),
        );
        let means = self.means.unwrap_or_default();
        let states: Vec<[Option<f64>; 3]> =
            replays.iter().map(super::compare::mean_states).collect();
        for (i, (name, unit, measured)) in [
            ("running", "", means.running),
            ("waiting", "", means.waiting),
            ("kv_used", "ratio", means.kv_ratio),
        ]
        .into_iter()
        .enumerate()
        {
            add(name, unit, measured, states.iter().map(|s| s[i]).collect());
        }
        Some(Comparison {
            at_unix_s: window.meta.unix_origin_s + window.meta.end_ns as f64 * 1e-9,
            window_s: self.seconds,
            requests: self.finished as u64,
            compared: self.finished as u64,
            refused: 0,
            cancelled: 0,
            in_flight: 0,
            figures,
            notes: window.meta.notes.clone(),
        })
    }
}

/// Lengths to draw from.
enum Lengths<'a> {
    Histogram(&'a Histogram),
    Mean(f64),
}

impl<'a> Lengths<'a> {
    fn new(histogram: Option<&'a Histogram>, mean: Option<f64>) -> Option<Lengths<'a>> {
        match histogram.filter(|h| h.count() > 0.0) {
            Some(h) => Some(Lengths::Histogram(h)),
            None => mean.map(Lengths::Mean),
        }
    }

    fn draw(&self, rng: &mut StdRng) -> u32 {
        let u: f64 = rng.random_range(0.0..1.0);
        let tokens = match self {
            Lengths::Histogram(h) => {
                // Buckets are wide; what is drawn keeps the mean that the server counted exactly.
                let factor = match (h.mean(), mean_of_buckets(h)) {
                    (Some(true_mean), Some(drawn)) if drawn > 0.0 => true_mean / drawn,
                    _ => 1.0,
                };
                h.quantile(u).unwrap_or(1.0) * factor
            }
            Lengths::Mean(m) => *m,
        };
        (tokens.round() as u32).max(1)
    }
}

/// Mean of what is drawn from a histogram, uniform within its buckets.
fn mean_of_buckets(h: &Histogram) -> Option<f64> {
    const POINTS: u32 = 200;
    let sum: f64 = (0..POINTS)
        .filter_map(|i| h.quantile((f64::from(i) + 0.5) / f64::from(POINTS)))
        .sum();
    (h.count() > 0.0).then(|| sum / f64::from(POINTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(finished: u32) -> Page {
        let n = finished;
        Page::parse(&format!(
            "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.25\n\
             vllm:prompt_tokens_total {p}\nvllm:generation_tokens_total {g}\nvllm:request_success_total {n}\n\
             vllm:request_prompt_tokens_bucket{{le=\"100\"}} {h}\nvllm:request_prompt_tokens_bucket{{le=\"200\"}} {n}\n\
             vllm:request_prompt_tokens_bucket{{le=\"+Inf\"}} {n}\nvllm:request_prompt_tokens_sum {p}\n\
             vllm:request_prompt_tokens_count {n}\n",
            p = n * 110,
            g = n * 20,
            h = n / 2,
        ))
        .expect("a page")
    }

    #[test]
    fn a_drawn_window_has_the_rate_and_the_mean_lengths_that_were_counted() {
        let readings = [
            Reading::of_page(0, &page(100)),
            Reading::of_page(100_000_000_000, &page(600)),
        ];
        let stretch = stretch(&readings).expect("two readings");
        assert!((stretch.arrivals_per_s - 5.0).abs() < 1e-9, "{stretch:?}");
        let window = stretch.drawn("e", 0.0, 1).expect("there was traffic");
        let n = window.compared().count() as f64;
        assert!((n - 500.0).abs() < 4.0 * 500f64.sqrt(), "{n}");
        let mean = |pick: fn(&Row) -> u32| {
            window.rows.iter().map(|r| f64::from(pick(r))).sum::<f64>() / window.rows.len() as f64
        };
        assert!((mean(|r| r.prompt_tokens) / 110.0 - 1.0).abs() < 0.1);
        assert!((mean(|r| r.output_tokens) - 20.0).abs() < 1e-9);
        assert_eq!(window, stretch.drawn("e", 0.0, 1).expect("the same draw"));
        let means = stretch.means.expect("gauges");
        assert_eq!(
            (means.running, means.waiting, means.kv_ratio),
            (Some(3.0), Some(1.0), Some(0.25))
        );
    }

    #[test]
    fn a_server_that_started_anew_gives_no_window() {
        let readings = [
            Reading::of_page(0, &page(600)),
            Reading::of_page(100_000_000_000, &page(100)),
        ];
        assert!(stretch(&readings).is_none());
    }
}
