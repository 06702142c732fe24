//! The cluster around the engines: delays, deadlines, the order of events at one instant, errors.

use std::collections::VecDeque;
use std::sync::Arc;

use hwmodels::step::LinearStep;
use sim::cluster::router::RouterConfig;
use sim::kernel::time::{SimDuration, SimTime};
use sim::policy::static_batch::{StaticBatch, StaticBatchParams};
use sim::policy::vllm_v1::VllmV1Params;
use sim::record::{RequestRow, RunInfo};
use sim::report::RunReport;
use sim::request::{Outcome, ReqId, RequestSpec};
use sim::simulation::{EngineSpec, FrontEnd, Path, ReplicaSpec, RunError, RunOptions, Simulation};
use sim::workload::Workload;

struct List(VecDeque<RequestSpec>);

impl Workload for List {
    fn peek(&self) -> Option<SimTime> {
        self.0.front().map(|r| r.arrival)
    }
    fn pop(&mut self, _id: ReqId, out: &mut RequestSpec) {
        *out = self.0.pop_front().unwrap();
    }
}

fn request(at: u64, prompt: u32, output: u32) -> RequestSpec {
    RequestSpec {
        arrival: SimTime(at),
        prompt_tokens: prompt,
        output_tokens: output,
        max_tokens: output,
        ..RequestSpec::default()
    }
}

/// Replicas whose every step takes 1000 ns.
fn cluster(replicas: usize, params: VllmV1Params) -> Simulation {
    Simulation {
        serving: Default::default(),
        replicas: vec![
            ReplicaSpec {
                engine: EngineSpec::VllmV1(params),
                step: Arc::new(LinearStep {
                    base: 1e-6,
                    ..LinearStep::default()
                }),
                drift: None,
                input_delay: SimDuration::ZERO,
                front_end: FrontEnd::default(),
                output_delay: SimDuration::ZERO,
            };
            replicas
        ],
        router: RouterConfig::LeastOutstanding,
        scrape_period: None,
        request_timeout: None,
        seed: 1,
    }
}

fn run(sim: &Simulation, requests: &[RequestSpec]) -> Vec<RequestRow> {
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let mut list = List(requests.iter().cloned().collect());
    let record = sim.run(&mut list, &options, RunInfo::default()).unwrap();
    let mut rows = record.request_rows.unwrap();
    rows.sort_by_key(|r| r.id);
    rows
}

#[test]
fn front_end_delays_come_before_the_queue_and_after_the_step() {
    let mut sim = cluster(1, VllmV1Params::default());
    sim.replicas[0].input_delay = SimDuration(300);
    sim.replicas[0].front_end.per_prompt_token = SimDuration(2);
    sim.replicas[0].output_delay = SimDuration(70);
    let r = run(&sim, &[request(50, 100, 3)])[0];
    assert_eq!(r.first_scheduled, SimTime(50 + 300 + 200));
    assert_eq!(r.first_token, SimTime(550 + 1000 + 70));
    assert_eq!(r.end, SimTime(550 + 3000 + 70));
}

#[test]
fn requests_wait_for_a_free_worker_of_the_front_end() {
    let mut sim = cluster(1, VllmV1Params::default());
    sim.replicas[0].input_delay = SimDuration(200);
    sim.replicas[0].front_end = FrontEnd {
        workers: 2,
        per_request: SimDuration(100),
        per_prompt_token: SimDuration(20),
    };
    // The third waits for the worker of the first.
    let prompts = [request(0, 10, 1), request(0, 100, 1), request(0, 200, 1)];
    let scheduled: Vec<SimTime> = run(&sim, &prompts)
        .iter()
        .map(|r| r.first_scheduled)
        .collect();
    assert_eq!(scheduled, [500, 2300, 4600].map(SimTime));
}

#[test]
fn a_front_end_that_is_the_bottleneck_is_named() {
    let mut sim = cluster(2, VllmV1Params::default());
    let warnings = |sim: &Simulation| {
        let requests = (0..50).map(|i| request(i * 3000, 10, 2)).collect();
        let record = sim.run(
            &mut List(requests),
            &RunOptions::default(),
            RunInfo::default(),
        );
        record.unwrap().info.warnings
    };
    assert_eq!(warnings(&sim), Vec::<String>::new());
    // Least outstanding requests: every other request is the second replica's.
    sim.replicas[1].front_end = FrontEnd {
        workers: 1,
        per_request: SimDuration(10_000),
        per_prompt_token: SimDuration::ZERO,
    };
    let named = warnings(&sim);
    assert!(
        named.len() == 1 && named[0].starts_with("the front end of replica 1 had work for"),
        "{named:?}"
    );
}

#[test]
fn a_request_that_arrives_when_a_step_starts_is_in_it() {
    let sim = cluster(1, VllmV1Params::default());
    let rows = run(
        &sim,
        &[request(0, 8, 3), request(1000, 8, 1), request(1001, 8, 1)],
    );
    assert_eq!(rows[1].first_scheduled, SimTime(1000));
    assert_eq!(rows[2].first_scheduled, SimTime(2000));
}

#[test]
fn an_answer_at_the_deadline_is_in_time_and_one_after_it_is_not() {
    let sim = cluster(1, VllmV1Params::default());
    for (patience, outcome, tokens, end) in [
        (2000, Outcome::Finished, 2, 2000),
        (1999, Outcome::TimedOut, 1, 1999),
        (999, Outcome::TimedOut, 0, 999),
    ] {
        let mut r = request(0, 8, 2);
        r.timeout = Some(SimDuration(patience));
        let row = run(&sim, &[r])[0];
        assert_eq!(
            (row.outcome, row.output_tokens, row.end),
            (outcome, tokens, SimTime(end))
        );
    }
}

#[test]
fn a_client_that_leaves_makes_room_in_the_engine() {
    let sim = cluster(
        1,
        VllmV1Params {
            max_num_seqs: 1,
            ..VllmV1Params::default()
        },
    );
    let mut impatient = request(0, 8, 100);
    impatient.timeout = Some(SimDuration(2500));
    let rows = run(&sim, &[impatient, request(10, 8, 1)]);
    assert_eq!(rows[0].outcome, Outcome::TimedOut);
    assert_eq!(
        rows[1].first_scheduled,
        SimTime(3000),
        "when the step under way has ended"
    );
}

#[test]
fn the_gateway_gives_up_for_clients_that_would_wait_longer() {
    let mut sim = cluster(1, VllmV1Params::default());
    sim.request_timeout = Some(SimDuration(1500));
    let mut patient = request(0, 8, 5);
    patient.timeout = Some(SimDuration(1_000_000));
    let rows = run(&sim, &[patient, request(0, 8, 1)]);
    assert_eq!(
        (rows[0].outcome, rows[0].end),
        (Outcome::TimedOut, SimTime(1500))
    );
    assert_eq!(rows[1].outcome, Outcome::Finished);
}

#[test]
fn least_outstanding_counts_what_is_on_its_way_in_and_out() {
    let mut sim = cluster(2, VllmV1Params::default());
    for r in &mut sim.replicas {
        r.input_delay = SimDuration(5_000);
    }
    let burst: Vec<_> = (0..6).map(|i| request(i, 8, 1)).collect();
    let replicas: Vec<u32> = run(&sim, &burst).iter().map(|r| r.replica).collect();
    assert_eq!(replicas, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn a_run_cut_by_its_clock_reports_what_is_under_way() {
    let sim = cluster(1, VllmV1Params::default());
    let options = RunOptions {
        until: Some(SimTime(2500)),
        ..RunOptions::default()
    };
    let mut list = List([request(0, 8, 10), request(3000, 8, 1)].into());
    let record = sim.run(&mut list, &options, RunInfo::default()).unwrap();
    assert_eq!(record.end, SimTime(2500));
    assert_eq!((record.counts.offered, record.counts.in_flight), (1, 1));
    let row = record.request_rows.as_ref().unwrap()[0];
    assert_eq!((row.outcome, row.output_tokens), (Outcome::InFlight, 2));
    assert_eq!(
        record.replicas[0].busy,
        SimDuration(2500),
        "the step under way counts in part"
    );
}

#[test]
fn what_cannot_be_run_is_an_error_that_says_why() {
    let mut none = cluster(1, VllmV1Params::default());
    none.replicas.clear();
    let options = RunOptions::default();
    let empty = || List(VecDeque::new());
    let error = none
        .run(&mut empty(), &options, RunInfo::default())
        .unwrap_err();
    assert!(matches!(error, RunError::NoReplica));

    let stages = cluster(
        1,
        VllmV1Params {
            pipeline_parallel_size: 2,
            ..VllmV1Params::default()
        },
    );
    let options = RunOptions {
        path: Path::Fast,
        ..RunOptions::default()
    };
    let error = stages
        .run(&mut empty(), &options, RunInfo::default())
        .unwrap_err();
    assert!(error.to_string().contains("pipeline stages"), "{error}");

    let sim = cluster(1, VllmV1Params::default());
    let mut backwards = List([request(100, 8, 1), request(50, 8, 1)].into());
    let error = sim
        .run(&mut backwards, &RunOptions::default(), RunInfo::default())
        .unwrap_err();
    assert!(
        matches!(error, RunError::WorkloadWentBack { .. }),
        "{error}"
    );
}

#[test]
fn patience_that_nobody_loses_changes_no_figure_of_the_report() {
    let sim = cluster(2, VllmV1Params::default());
    let report = |patience: Option<SimDuration>, request_timeout: Option<SimDuration>| {
        let requests = (0..10).map(|i| RequestSpec {
            timeout: patience,
            ..request(i * 700, 50, 20)
        });
        let sim = Simulation {
            serving: Default::default(),
            request_timeout,
            ..sim.clone()
        };
        let record = sim
            .run(
                &mut List(requests.collect()),
                &RunOptions::default(),
                RunInfo {
                    usd_per_hour: Some(3.6),
                    ..RunInfo::default()
                },
            )
            .unwrap();
        serde_json::to_value(RunReport::new(&record, 0.0)).unwrap()
    };
    let endless = report(None, None);
    assert!(endless["throughput"]["requests_per_s"].as_f64().unwrap() > 0.0);
    let minute = Some(SimDuration(60_000_000_000));
    assert_eq!(report(minute, None), endless);
    assert_eq!(report(None, minute), endless);
}

#[test]
fn requests_that_an_idle_engine_holds_back_count_as_waiting() {
    let params = StaticBatchParams {
        max_batch_size: 4,
        max_queue_delay_microseconds: 10,
        ..StaticBatchParams::default()
    };
    let config = params.resolve(100_000, 1000).unwrap();
    let mut sim = cluster(1, VllmV1Params::default());
    sim.replicas[0].engine = EngineSpec::Policy {
        make: Arc::new(move |_| Box::new(StaticBatch::new(config.clone()))),
        hash_block: None,
    };
    let mut list = List([request(0, 10, 1), request(4_000, 10, 1)].into());
    let record = sim
        .run(&mut list, &RunOptions::default(), RunInfo::default())
        .unwrap();
    // They wait until the oldest has waited for 10 us, 10 us and 6 us; the engine is idle meanwhile.
    let waiting: f64 = record
        .series
        .points(record.end)
        .map(|p| p.waiting * p.width.0 as f64)
        .sum();
    assert!((waiting - 16_000.0).abs() < 1e-6, "{waiting}");
    assert_eq!(record.replicas[0].waiting_ns, 16_000);
}
