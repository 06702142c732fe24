//! A gateway that sends requests again and stops sending to replicas that fail: runs whose times follow by hand, and what must hold.

use std::sync::Arc;

use crate::common::{Random, any_case};
use hwmodels::step::LinearStep;
use proptest::prelude::*;
use sim::cluster::gateway::{GatewaySpec, OutlierSpec, RetrySpec};
use sim::cluster::pools::Serving;
use sim::cluster::router::RouterConfig;
use sim::kernel::time::{SimDuration, SimTime};
use sim::policy::vllm_v1::VllmV1Params;
use sim::record::{RequestRow, RunInfo, RunRecord};
use sim::request::{Outcome, ReqId, RequestSpec};
use sim::run::{Change, Path, Run};
use sim::simulation::{EngineSpec, FrontEnd, ReplicaSpec, RunOptions, Simulation};
use sim::workload::Workload;

const MS: u64 = 1_000_000;

/// A request every `gap`, `n` of them.
struct Every {
    gap: u64,
    n: u64,
    sent: u64,
    output: u32,
}

fn every(gap: u64, n: u64, output: u32) -> Every {
    Every {
        gap,
        n,
        sent: 0,
        output,
    }
}

impl Workload for Every {
    fn peek(&self) -> Option<SimTime> {
        (self.sent < self.n).then_some(SimTime(self.sent * self.gap))
    }
    fn pop(&mut self, _: ReqId, out: &mut RequestSpec) {
        self.sent += 1;
        *out = RequestSpec {
            prompt_tokens: 10,
            output_tokens: self.output,
            max_tokens: self.output,
            ..RequestSpec::default()
        };
    }
}

/// Replicas whose steps take so many milliseconds, in rotation.
fn fleet(steps: &[f64], params: VllmV1Params, gateway: GatewaySpec) -> Simulation {
    let replica = |ms: &f64| ReplicaSpec {
        engine: EngineSpec::VllmV1(params),
        step: Arc::new(LinearStep {
            base: ms * 1e-3,
            per_token: 0.0,
            per_ctx: 0.0,
            per_pair: 0.0,
        }),
        drift: None,
        input_delay: SimDuration::ZERO,
        front_end: FrontEnd::default(),
        output_delay: SimDuration::ZERO,
    };
    Simulation {
        replicas: steps.iter().map(replica).collect(),
        router: RouterConfig::RoundRobin,
        serving: Serving {
            gateway,
            ..Serving::default()
        },
        scrape_period: None,
        request_timeout: None,
        seed: 1,
    }
}

fn run(sim: &Simulation, load: Every, kills: &[(u64, u32)]) -> (Vec<RequestRow>, RunRecord) {
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let mut run = Run::new(sim, Box::new(load), &options).unwrap();
    for &(at, i) in kills {
        run.plan(SimTime(at), Change::Kill(i));
    }
    run.run_to_end().unwrap();
    let record = run.finish(RunInfo::default()).unwrap();
    let mut rows = record.request_rows.clone().unwrap();
    rows.sort_by_key(|r| r.id);
    (rows, record)
}

fn retrying(max: u32) -> GatewaySpec {
    GatewaySpec {
        retries: Some(RetrySpec {
            max,
            ..RetrySpec::default()
        }),
        ..GatewaySpec::default()
    }
}

/// Outcome, replica and end [ms] of each request.
fn fates(rows: &[RequestRow]) -> Vec<(Outcome, u32, u64)> {
    rows.iter()
        .map(|r| (r.outcome, r.replica, r.end.0 / MS))
        .collect()
}

#[test]
fn a_request_whose_replica_dies_is_sent_to_another() {
    let p = VllmV1Params::default();
    let (rows, _) = run(
        &fleet(&[10.0, 10.0], p, GatewaySpec::default()),
        every(MS, 1, 2),
        &[(5 * MS, 0)],
    );
    assert_eq!(fates(&rows), [(Outcome::Failed, 0, 5)]);
    let (rows, record) = run(
        &fleet(&[10.0, 10.0], p, retrying(1)),
        every(MS, 1, 2),
        &[(5 * MS, 0)],
    );
    assert_eq!(fates(&rows), [(Outcome::Finished, 1, 25)]);
    assert_eq!(
        rows[0].arrival,
        SimTime::ZERO,
        "TTFT counts from when it was sent"
    );
    assert_eq!(record.gateway.unwrap().retries, 1);
}

#[test]
fn what_the_client_has_got_cannot_be_taken_back() {
    let sim = fleet(&[10.0, 10.0], VllmV1Params::default(), retrying(5));
    let (rows, _) = run(&sim, every(MS, 1, 3), &[(15 * MS, 0)]);
    assert_eq!(fates(&rows), [(Outcome::Failed, 0, 15)]);
}

#[test]
fn a_refused_request_is_sent_to_the_next_replica_until_its_retries_are_spent() {
    let full = VllmV1Params {
        max_num_seqs: 1,
        max_num_queued_reqs: Some(0),
        ..VllmV1Params::default()
    };
    // Nothing may wait in these: each refuses at once.
    let (rows, record) = run(&fleet(&[10.0; 3], full, retrying(2)), every(MS, 1, 2), &[]);
    assert_eq!(
        rows[0].outcome.clone(),
        Outcome::Rejected(sim::request::RejectReason::QueueFull)
    );
    assert_eq!((rows[0].replica, rows[0].end), (2, SimTime::ZERO));
    assert_eq!(record.gateway.unwrap().retries, 2);
    assert_eq!(record.counts.rejected, 1);
}

#[test]
fn a_try_that_takes_too_long_is_made_elsewhere() {
    let mut gateway = retrying(1);
    if let Some(r) = &mut gateway.retries {
        r.per_try_timeout = Some(SimDuration(50 * MS));
    }
    let sim = fleet(&[100.0, 10.0], VllmV1Params::default(), gateway);
    let (rows, _) = run(&sim, every(1000 * MS, 1, 2), &[]);
    assert_eq!(fates(&rows), [(Outcome::Finished, 1, 70)]);
    let sim = fleet(&[100.0, 100.0], VllmV1Params::default(), gateway);
    let (rows, _) = run(&sim, every(1000 * MS, 1, 2), &[]);
    assert_eq!(
        fates(&rows),
        [(Outcome::TimedOut, 1, 100)],
        "504 of the gateway"
    );
}

#[test]
fn a_replica_that_fails_is_out_for_a_while_and_comes_back() {
    let mut gateway = retrying(1);
    if let Some(r) = &mut gateway.retries {
        r.per_try_timeout = Some(SimDuration(50 * MS));
    }
    gateway.outliers = Some(OutlierSpec::nginx());
    let sim = fleet(&[100.0, 10.0], VllmV1Params::default(), gateway);
    // One a second: the first goes to the slow replica, and is sent to the other 50 ms later; so is the first after the slow one's return at
    // 10.05 s, which is its turn again.
    let (rows, record) = run(&sim, every(1000 * MS, 13, 2), &[]);
    let late: Vec<ReqId> = (rows.iter())
        .filter(|r| r.end.since(r.arrival) > SimDuration(20 * MS))
        .map(|r| r.id)
        .collect();
    assert_eq!(late.len(), 2);
    assert_eq!(late[0], 0);
    assert!(late[1] >= 11, "{late:?}");
    assert!(
        rows.iter()
            .all(|r| (r.outcome, r.replica) == (Outcome::Finished, 1))
    );
    let did = record.gateway.unwrap();
    assert_eq!((did.retries, did.ejections), (2, 2));
}

#[test]
fn ejections_do_not_lengthen_a_run() {
    let gateway = GatewaySpec {
        outliers: Some(OutlierSpec::nginx()),
        ..GatewaySpec::default()
    };
    let full = VllmV1Params {
        max_num_queued_reqs: Some(0),
        ..VllmV1Params::default()
    };
    let (_, record) = run(&fleet(&[10.0, 10.0], full, gateway), every(MS, 2, 2), &[]);
    assert_eq!(record.gateway.unwrap().ejections, 1);
    assert_eq!(record.end, SimTime(MS));
}

#[test]
fn one_request_too_many_is_refused_at_the_gateway() {
    let gateway = GatewaySpec {
        max_requests: Some(2),
        ..GatewaySpec::default()
    };
    let sim = fleet(&[10.0], VllmV1Params::default(), gateway);
    let (rows, record) = run(&sim, every(MS, 4, 2), &[]);
    let refused: Vec<bool> = (rows.iter())
        .map(|r| matches!(r.outcome, Outcome::Rejected(_)))
        .collect();
    assert_eq!(refused, [false, false, true, true]);
    assert_eq!(record.gateway.unwrap().overflowed, 2);
}

fn any_gateway() -> impl Strategy<Value = GatewaySpec> {
    (
        prop::option::of((
            1u32..5,
            any::<(bool, bool, bool)>(),
            prop::option::of(10_000u64..2_000_000),
            prop_oneof![Just(0u64), 1u64..100_000],
            0.0f64..100.0,
        )),
        prop::option::of((
            1u32..6,
            0u64..1_000_000,
            1_000u64..2_000_000,
            any::<bool>(),
            0.0f64..100.0,
        )),
        prop::option::of(1u32..40),
    )
        .prop_map(|(retries, outliers, max_requests)| GatewaySpec {
            retries: retries.map(
                |(max, (on_refused, on_failed, on_timeout), per_try, backoff, budget_percent)| {
                    RetrySpec {
                        max,
                        on_refused,
                        on_failed,
                        on_timeout,
                        per_try_timeout: per_try.map(SimDuration),
                        backoff: SimDuration(backoff),
                        budget_percent,
                        min_retry_concurrency: 3,
                    }
                },
            ),
            outliers: outliers.map(
                |(consecutive_failures, interval, base, grows, max_ejection_percent)| OutlierSpec {
                    consecutive_failures,
                    fail_window: (!grows).then_some(SimDuration(base)),
                    interval: SimDuration(interval),
                    base_ejection_time: SimDuration(base),
                    grows,
                    max_ejection_percent,
                },
            ),
            max_requests,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn each_request_ends_once_however_often_it_was_sent(
        case in any_case(),
        gateway in any_gateway(),
        changes in prop::collection::vec((0u64..4_000_000, 0u32..6, 0u8..4), 0..10),
    ) {
        let go = |path: Path| {
            let mut sim = case.simulation();
            let spare = sim.replicas[0].clone();
            sim.serving.gateway = gateway;
            let options = case.options(path, true);
            let mut run = Run::new(&sim, Box::new(Random::new(case.load)), &options).unwrap();
            for &(at, replica, what) in &changes {
                let n = run.snapshot().replicas.len() as u32;
                run.plan(SimTime(at), match what {
                    0 => Change::Add(Box::new(spare.clone())),
                    1 => Change::Drain(replica % n),
                    _ => Change::Kill(replica % n),
                });
            }
            run.run_to_end().unwrap();
            run.finish(RunInfo::default()).unwrap()
        };
        let record = go(Path::Auto);
        prop_assert!(record.counts.conserved());
        let mut ids: Vec<ReqId> = record.request_rows.iter().flatten().map(|r| r.id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..record.counts.offered as ReqId).collect::<Vec<_>>());
        prop_assert_eq!(format!("{record:?}"), format!("{:?}", go(Path::Reference)));
    }
}
