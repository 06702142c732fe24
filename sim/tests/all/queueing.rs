//! Queueing theory as a judge: what has a closed form must come out.

use std::sync::Arc;

use hwmodels::step::LinearStep;
use rand::RngExt;
use sim::cluster::router::RouterConfig;
use sim::kernel::rng::{self, Stream};
use sim::kernel::time::{SimDuration, SimTime};
use sim::policy::vllm_v1::VllmV1Params;
use sim::record::{RunInfo, RunRecord};
use sim::request::{ReqId, RequestSpec};
use sim::simulation::{EngineSpec, FrontEnd, ReplicaSpec, RunOptions, Simulation};
use sim::workload::Workload;

/// Poisson arrivals; prompts of one token or of exponential length (rounded up).
struct Poisson {
    rate: f64,
    mean_prompt: Option<f64>,
    left: u64,
    next: SimTime,
    draws: Stream,
}

impl Poisson {
    fn new(rate: f64, mean_prompt: Option<f64>, requests: u64, seed: u64) -> Poisson {
        let mut p = Poisson {
            rate,
            mean_prompt,
            left: requests,
            next: SimTime::ZERO,
            draws: rng::stream(seed, "poisson"),
        };
        p.step();
        p
    }

    fn exponential(&mut self) -> f64 {
        -(1.0 - self.draws.random::<f64>()).ln()
    }

    fn step(&mut self) {
        let gap = self.exponential() / self.rate;
        self.next += SimDuration::from_secs(gap);
    }
}

impl Workload for Poisson {
    fn peek(&self) -> Option<SimTime> {
        (self.left > 0).then_some(self.next)
    }

    fn pop(&mut self, _id: ReqId, out: &mut RequestSpec) {
        let prompt_tokens = match self.mean_prompt {
            None => 1,
            Some(mean) => (self.exponential() * mean).ceil().max(1.0) as u32,
        };
        *out = RequestSpec {
            arrival: self.next,
            prompt_tokens,
            ..RequestSpec::default()
        };
        self.left -= 1;
        self.step();
    }
}

fn single_server(step: LinearStep) -> Simulation {
    Simulation {
        serving: Default::default(),
        replicas: vec![ReplicaSpec {
            engine: EngineSpec::VllmV1(VllmV1Params {
                max_num_seqs: 1,
                max_model_len: 1 << 20,
                max_num_batched_tokens: 1 << 20,
                num_gpu_blocks: 1 << 17,
                ..VllmV1Params::default()
            }),
            step: Arc::new(step),
            drift: None,
            input_delay: SimDuration::ZERO,
            front_end: FrontEnd::default(),
            output_delay: SimDuration::ZERO,
        }],
        router: RouterConfig::RoundRobin,
        scrape_period: None,
        request_timeout: None,
        seed: 1,
    }
}

/// Mean and 99.9 % half width of the mean queue time over independent runs [s].
fn mean_queue_time(sim: &Simulation, mut workload: impl FnMut(u64) -> Poisson) -> (f64, f64) {
    let runs = 20;
    let means: Vec<f64> = (0..runs)
        .map(|seed| {
            let record = run(sim, &mut workload(seed));
            let rows = record.request_rows.as_ref().unwrap();
            let steady = &rows[rows.len() / 10..];
            let sum: f64 = steady
                .iter()
                .map(|r| (r.first_scheduled - r.arrival).as_secs())
                .sum();
            sum / steady.len() as f64
        })
        .collect();
    let n = means.len() as f64;
    let mean = means.iter().sum::<f64>() / n;
    let var = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / (n - 1.0);
    // Student's t, 19 degrees of freedom, two-sided 99.9 %.
    (mean, 3.883 * (var / n).sqrt())
}

fn run(sim: &Simulation, workload: &mut dyn Workload) -> RunRecord {
    sim.run(workload, &RunOptions::default(), RunInfo::default())
        .unwrap()
}

#[test]
fn md1_mean_wait_is_that_of_pollaczek_and_khinchine() {
    let service = 0.010;
    let sim = single_server(LinearStep {
        base: service,
        ..LinearStep::default()
    });
    for rho in [0.3, 0.7, 0.85] {
        let (mean, half) =
            mean_queue_time(&sim, |seed| Poisson::new(rho / service, None, 20_000, seed));
        let expected = rho * service / (2.0 * (1.0 - rho));
        assert!(
            (mean - expected).abs() < half,
            "rho {rho}: {mean} +- {half}, expected {expected}"
        );
    }
}

#[test]
fn mm1_mean_wait_is_that_of_the_textbook() {
    // Prompts are exponential, rounded up to tokens of a thousandth of their mean.
    let service = 0.010;
    let sim = single_server(LinearStep {
        per_token: service / 1000.0,
        ..LinearStep::default()
    });
    for rho in [0.3, 0.7] {
        let (mean, half) = mean_queue_time(&sim, |seed| {
            Poisson::new(rho / service, Some(1000.0), 20_000, seed)
        });
        let expected = rho * service / (1.0 - rho);
        assert!(
            (mean - expected).abs() < half + 0.002 * expected,
            "rho {rho}: {mean} +- {half}, expected {expected}"
        );
    }
}
