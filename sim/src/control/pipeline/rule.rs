//! What is recorded of an exporter's series: the rules over Triton's counters, and plain functions of any series (4.9).
//!
//! Source: `triton-metrics_prometheus-rule.yaml` in triton-inference-server/tutorials
//! `Deployment/Kubernetes/EKS_Multinode_Triton_TRTLLM` and in aws-samples/awsome-inference.

use super::series::Series;
use crate::kernel::time::{SimDuration, SimTime};

/// What an exporter shows of one model of one pod. Durations, successes and tokens are counters that grow when a request completes; the
/// rest are gauges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// `nv_inference_queue_duration_us`.
    QueueDurationUs,
    /// `nv_inference_compute_infer_duration_us`.
    ComputeInferDurationUs,
    /// `nv_inference_request_duration_us`.
    RequestDurationUs,
    /// `nv_inference_request_success`, `vllm:request_success_total`, ...
    RequestSuccess,
    /// Prompt tokens of completed requests.
    PromptTokens,
    /// Output tokens of completed requests.
    GenerationTokens,
    /// Requests that hold KV or a slot: `vllm:num_requests_running`, `tgi_batch_current_size`, ...
    Running,
    /// Requests that wait in the engine: `vllm:num_requests_waiting`, `tgi_queue_size`, ...
    Waiting,
    /// Share of the KV blocks in use [0, 1]: `vllm:kv_cache_usage_perc`.
    KvUsage,
    /// Requests that are held or under way: what the endpoint picker has in hand.
    Inflight,
    /// How full the pool is: `llm_d_epp_flow_control_pool_saturation`.
    PoolSaturation,
    /// What another controller wants: `wva_desired_replicas`.
    DesiredReplicas,
}

impl Counter {
    /// Number of series.
    pub const COUNT: usize = 12;

    /// Place in an array of all series.
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Whether it only grows.
    pub fn is_counter(self) -> bool {
        matches!(
            self,
            Counter::QueueDurationUs
                | Counter::ComputeInferDurationUs
                | Counter::RequestDurationUs
                | Counter::RequestSuccess
                | Counter::PromptTokens
                | Counter::GenerationTokens
        )
    }
}

/// Values of all series, by [`Counter`] in its order.
pub type Counters = [f64; Counter::COUNT];

/// What the metrics API is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A recording rule over two counters.
    Ratio(RatioRule),
    /// The last scraped value; no recording rule.
    Instant(Counter),
    /// A recording rule of one function over one series.
    Over {
        /// Which series.
        series: Counter,
        /// Which function.
        function: OverTime,
        /// Its range.
        window: SimDuration,
    },
}

/// A function over a range of one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverTime {
    /// `rate`.
    Rate,
    /// `avg_over_time`.
    Avg,
    /// `max_over_time`.
    Max,
}

impl Rule {
    /// Whether Prometheus records it, so that it is as old as the last evaluation of its group.
    pub fn is_recorded(&self) -> bool {
        !matches!(self, Rule::Instant(_))
    }

    /// How far back it looks.
    pub fn window(&self) -> SimDuration {
        match self {
            Rule::Ratio(ratio) => ratio.window,
            Rule::Instant(_) => SimDuration::ZERO,
            Rule::Over { window, .. } => *window,
        }
    }

    /// Its value for one model of one pod; none where there are too few samples.
    pub fn evaluate(&self, now: SimTime, scraped: &[Series; Counter::COUNT]) -> Option<f64> {
        match self {
            Rule::Ratio(ratio) => ratio.evaluate(now, scraped),
            Rule::Instant(series) => scraped[series.index()].instant(now),
            Rule::Over {
                series,
                function,
                window,
            } => {
                let series = &scraped[series.index()];
                match function {
                    OverTime::Rate => series.rate(now, *window),
                    OverTime::Avg => series.avg(now, *window),
                    OverTime::Max => series.max(now, *window),
                }
            }
        }
    }
}

/// `rate(numerator[window]) / clamp_min(rate(denominator[window]), 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatioRule {
    /// The series that it records.
    pub record: &'static str,
    /// What is divided.
    pub numerator: Counter,
    /// What it is divided by; a rate below 1 counts as 1.
    pub denominator: Counter,
    /// Range of both rates.
    pub window: SimDuration,
}

impl RatioRule {
    const fn over_a_minute(record: &'static str, numerator: Counter, denominator: Counter) -> Self {
        RatioRule {
            record,
            numerator,
            denominator,
            window: SimDuration(60_000_000_000),
        }
    }

    /// `triton:queue_compute:ratio`: time in the queue for each unit of time in inference.
    pub const QUEUE_COMPUTE_RATIO: RatioRule = RatioRule::over_a_minute(
        "triton:queue_compute:ratio",
        Counter::QueueDurationUs,
        Counter::ComputeInferDurationUs,
    );
    /// `triton:request_duration:average` [us].
    pub const REQUEST_DURATION_AVERAGE: RatioRule = RatioRule::over_a_minute(
        "triton:request_duration:average",
        Counter::RequestDurationUs,
        Counter::RequestSuccess,
    );
    /// `triton:queue_duration:average` [us].
    pub const QUEUE_DURATION_AVERAGE: RatioRule = RatioRule::over_a_minute(
        "triton:queue_duration:average",
        Counter::QueueDurationUs,
        Counter::RequestSuccess,
    );
    /// `triton:compute_duration:average` [us].
    pub const COMPUTE_DURATION_AVERAGE: RatioRule = RatioRule::over_a_minute(
        "triton:compute_duration:average",
        Counter::ComputeInferDurationUs,
        Counter::RequestSuccess,
    );

    /// Its value for one model of one pod; none where a rate has too few samples.
    pub fn evaluate(&self, now: SimTime, scraped: &[Series; Counter::COUNT]) -> Option<f64> {
        let rate = |counter: Counter| scraped[counter.index()].rate(now, self.window);
        Some(rate(self.numerator)? / rate(self.denominator)?.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scraped(queue: [f64; 2], compute: [f64; 2]) -> [Series; Counter::COUNT] {
        let series = |[a, b]: [f64; 2]| {
            let mut s = Series::default();
            s.push(SimTime::from_secs(15.0), a);
            s.push(SimTime::from_secs(45.0), b);
            s
        };
        let mut all: [Series; Counter::COUNT] = Default::default();
        all[0] = series(queue);
        all[1] = series(compute);
        all
    }

    #[test]
    fn the_ratio_is_queue_time_over_compute_time() {
        let now = SimTime::from_secs(60.0);
        let rule = RatioRule::QUEUE_COMPUTE_RATIO;
        // Large counters, so that nothing is cut at zero: 3e6 us waited, 2e6 us computed.
        let ratio = rule
            .evaluate(now, &scraped([1e9, 1.003e9], [1e9, 1.002e9]))
            .expect("two samples");
        assert!((ratio - 1.5).abs() < 1e-9, "{ratio}");
        assert_eq!(
            RatioRule::QUEUE_DURATION_AVERAGE.evaluate(now, &scraped([0.0, 1.0], [0.0, 1.0])),
            None
        );
    }

    #[test]
    fn without_completions_the_denominator_is_one_microsecond_a_second() {
        let now = SimTime::from_secs(60.0);
        let rule = RatioRule::QUEUE_COMPUTE_RATIO;
        assert_eq!(
            rule.evaluate(now, &scraped([1e9, 1e9], [1e9, 1e9])),
            Some(0.0)
        );
        // A queue without compute: the ratio is the rate itself, 600 us in 30 s extrapolated to 60.
        let ratio = rule
            .evaluate(now, &scraped([1e9, 1e9 + 600.0], [1e9, 1e9]))
            .expect("two samples");
        assert!((ratio - 20.0).abs() < 1e-6, "{ratio}");
    }
}
