//! Speed of the simulator: requests and steps simulated per second of wall time, on one core.
//!
//! The load is that of an 8B model on one H100: 256 tokens in, 256 out, Poisson arrivals at about 70 % of what the replica can
//! serve, vLLM V1 with its defaults for such a machine.

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hwmodels::files::Disk;
use hwmodels::step::{LinearStep, StepModel};
use hwmodels::units::PerSec;
use sim::cluster::router::RouterConfig;
use sim::kernel::time::SimDuration;
use sim::metrics::RecordOptions;
use sim::policy::vllm_v1::VllmV1Params;
use sim::record::{RunInfo, RunRecord};
use sim::scenario::Scenario;
use sim::simulation::{EngineSpec, FrontEnd, Path, ReplicaSpec, RunOptions, Simulation};
use sim::workload::{Arrival, Length, Lengths, Limits, Mix, StreamSpec};

/// Requests per second at which the replica below is about 70 % loaded [req/s].
const RATE: f64 = 27.0;

/// About an 8B model in bf16 on one H100: 16 GB of weights and 128 KiB of KV per token at 2.9 TB/s, 16 GFLOP per token at
/// 500 TFLOP/s.
fn step() -> Arc<dyn StepModel> {
    Arc::new(LinearStep {
        base: 5.5e-3,
        per_token: 3.2e-5,
        per_ctx: 4.5e-8,
        per_pair: 1e-12,
    })
}

fn deployment(replicas: usize, step: &Arc<dyn StepModel>) -> Simulation {
    Simulation {
        serving: Default::default(),
        replicas: (0..replicas)
            .map(|_| ReplicaSpec {
                engine: EngineSpec::VllmV1(VllmV1Params {
                    num_gpu_blocks: 27_000,
                    ..VllmV1Params::default()
                }),
                step: step.clone(),
                drift: None,
                input_delay: SimDuration::ZERO,
                front_end: FrontEnd::default(),
                output_delay: SimDuration::ZERO,
            })
            .collect(),
        router: RouterConfig::LeastOutstanding,
        scrape_period: None,
        request_timeout: None,
        seed: 1,
    }
}

fn run(sim: &Simulation, rate: f64, output: u32, requests: u64, path: Path) -> RunRecord {
    let stream = StreamSpec {
        name: "bench".into(),
        model: None,
        arrival: Arrival::Poisson {
            rate: PerSec::new(rate).expect("a positive rate"),
        },
        lengths: Lengths::Separate {
            prompt: Length::Fixed(256),
            output: Length::Fixed(output),
        },
        max_tokens: None,
        prefix: None,
        sessions: None,
        timeout: None,
        cancel: None,
        retries: None,
        priority: 0,
        sampling: sim::workload::spec::SamplingSpec::default(),
        requests: Some(requests),
    };
    let mut mix = Mix::new(&[stream], &Disk, &Limits::default(), 1).expect("a plain stream");
    let options = RunOptions {
        path,
        record: RecordOptions {
            max_request_rows: 0,
            ..RecordOptions::default()
        },
        ..RunOptions::default()
    };
    sim.run(&mut mix, &options, RunInfo::default())
        .expect("the run ends")
}

/// The bar: a million requests on one replica in at most a second.
fn one_replica(c: &mut Criterion) {
    let mut g = c.benchmark_group("one_replica_256_in_256_out");
    g.sample_size(10).measurement_time(Duration::from_secs(8));
    let sim = deployment(1, &step());
    for requests in [10_000, 100_000, 1_000_000] {
        let record = run(&sim, RATE, 256, requests, Path::Fast);
        let batch = requests as f64 * 256.0 / record.steps as f64;
        println!(
            "{requests} requests: {} steps, mean batch {batch:.0}",
            record.steps
        );
        g.throughput(Throughput::Elements(requests));
        g.bench_function(BenchmarkId::new("fast", requests), |b| {
            b.iter(|| run(&sim, RATE, 256, requests, Path::Fast));
        });
    }
    g.throughput(Throughput::Elements(10_000));
    g.bench_function(BenchmarkId::new("reference", 10_000), |b| {
        b.iter(|| run(&sim, RATE, 256, 10_000, Path::Reference));
    });
    g.finish();
}

/// The same bar with everything that a user gets: the scenario file, the operator-by-operator step model, asynchronous
/// scheduling, request rows.
fn scenario(c: &mut Criterion) {
    let mut g = c.benchmark_group("scenario");
    g.sample_size(10).measurement_time(Duration::from_secs(8));
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../scenarios/million-requests.toml"
    );
    let scenario =
        Scenario::load(std::path::Path::new(file), &[]).expect("a scenario of the repository");
    let options = RunOptions {
        path: Path::Fast,
        ..RunOptions::default()
    };
    g.throughput(Throughput::Elements(1_000_000));
    g.bench_function("million-requests", |b| {
        b.iter(|| scenario.run(&options).expect("the run ends"));
    });
    g.finish();
}

/// Cost per step must not grow with the batch.
fn batch_size(c: &mut Criterion) {
    let mut g = c.benchmark_group("steps_at_batch_size");
    g.sample_size(10).measurement_time(Duration::from_secs(3));
    let mut sim = deployment(1, &step());
    if let EngineSpec::VllmV1(params) = &mut sim.replicas[0].engine {
        params.num_gpu_blocks = 100_000;
    }
    for (rate, output) in [
        (1.0, 256),
        (10.0, 256),
        (25.0, 256),
        (9.0, 1024),
        (12.0, 1024),
    ] {
        let steps = run(&sim, rate, output, 50_000, Path::Fast).steps;
        let batch = 50_000.0 * f64::from(output) / steps as f64;
        g.throughput(Throughput::Elements(steps));
        g.bench_function(BenchmarkId::new("fast", format!("batch_{batch:.0}")), |b| {
            b.iter(|| run(&sim, rate, output, 50_000, Path::Fast));
        });
    }
    g.finish();
}

/// Least-outstanding routing over many replicas (the bar is 1000 replicas x 10 000 requests; here a hundredth of it each).
fn replicas(c: &mut Criterion) {
    let mut g = c.benchmark_group("replicas_least_outstanding");
    g.sample_size(10).measurement_time(Duration::from_secs(5));
    for (n, each) in [(8, 5_000), (1000, 100)] {
        let sim = deployment(n, &step());
        let requests = n as u64 * each;
        g.throughput(Throughput::Elements(requests));
        g.bench_function(BenchmarkId::new("fast", n), |b| {
            b.iter(|| run(&sim, RATE * n as f64, 256, requests, Path::Fast));
        });
    }
    g.finish();
}

/// The second bar in full, once, when asked for: `SERVETWIN_SPEED_FULL=1 cargo bench -p sim --bench speed -- full`.
fn full(_: &mut Criterion) {
    if std::env::var_os("SERVETWIN_SPEED_FULL").is_none() {
        return;
    }
    let sim = deployment(1000, &step());
    let started = std::time::Instant::now();
    let record = run(&sim, RATE * 1000.0, 256, 10_000_000, Path::Fast);
    let wall = started.elapsed().as_secs_f64();
    println!(
        "1000 replicas x 10 000 requests: {wall:.1} s, {:.0} requests/s, {:.1} M steps/s",
        10e6 / wall,
        record.steps as f64 / wall / 1e6
    );
}

criterion_group!(benches, one_replica, scenario, batch_size, replicas, full);
criterion_main!(benches);
