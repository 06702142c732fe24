//! Prefill and decode pools joined by a link: runs whose times follow by hand, and what must hold in any of them.

use std::sync::Arc;

use crate::common::{Case, Random, any_case};
use hwmodels::step::LinearStep;
use proptest::prelude::*;
use sim::cluster::gateway::{GatewaySpec, RetrySpec};
use sim::cluster::pools::{FirstToken, PoolSpec, Role, Serving, TransferSpec};
use sim::cluster::replica::Lifecycle;
use sim::cluster::router::RouterConfig;
use sim::kernel::time::{SimDuration, SimTime};
use sim::policy::trt_llm::{BatchSchedulerPolicy, TrtLlm, TrtLlmParams};
use sim::policy::vllm_v1::VllmV1Params;
use sim::record::{RequestRow, RunInfo, RunRecord};
use sim::request::{Outcome, ReqId, RequestSpec};
use sim::run::{Change, Path, Run};
use sim::simulation::{EngineSpec, FrontEnd, ReplicaSpec, RunOptions, Simulation};
use sim::workload::Workload;

const MS: u64 = 1_000_000;

fn pool(name: &str, role: Role, replicas: u32) -> PoolSpec {
    PoolSpec {
        name: name.into(),
        role,
        model: 0,
        min_prompt: 0,
        max_prompt: u32::MAX,
        router: RouterConfig::RoundRobin,
        replicas,
        kv_bandwidth: 1e9,
        kv_bytes_per_token: 1e6,
        layers: 10,
    }
}

pub(crate) fn transfer() -> TransferSpec {
    TransferSpec {
        latency: SimDuration(MS),
        fabric: f64::INFINITY,
        layerwise: false,
        first_token: FirstToken::Prefill,
    }
}

/// Requests sent one after the other, or all at the start.
pub(crate) struct Burst {
    left: u32,
    pub(crate) gap: SimDuration,
    next: SimTime,
    spec: RequestSpec,
}

impl Workload for Burst {
    fn peek(&self) -> Option<SimTime> {
        (self.left > 0).then_some(self.next)
    }
    fn pop(&mut self, _: ReqId, out: &mut RequestSpec) {
        self.left -= 1;
        self.next += self.gap;
        *out = self.spec.clone();
    }
}

pub(crate) fn burst(n: u32, prompt: u32, output: u32) -> Burst {
    Burst {
        left: n,
        gap: SimDuration::ZERO,
        next: SimTime::ZERO,
        spec: RequestSpec {
            prompt_tokens: prompt,
            output_tokens: output,
            max_tokens: output,
            ..RequestSpec::default()
        },
    }
}

fn vllm(blocks: u64) -> EngineSpec {
    EngineSpec::VllmV1(VllmV1Params {
        num_gpu_blocks: blocks + 1,
        ..VllmV1Params::default()
    })
}

fn trt(blocks: u64, policy: BatchSchedulerPolicy) -> EngineSpec {
    let params = TrtLlmParams {
        tokens_per_block: 16,
        batch_scheduler_policy: policy,
        ..TrtLlmParams::default()
    };
    let config = params.resolve(blocks * 16, 8192, 1).unwrap();
    EngineSpec::Policy {
        make: Arc::new(move |shared| Box::new(TrtLlm::new(config.clone(), shared))),
        hash_block: None,
    }
}

/// A step takes 10 ms and 1 us per new token.
pub(crate) fn replica(engine: EngineSpec) -> ReplicaSpec {
    ReplicaSpec {
        engine,
        step: Arc::new(LinearStep {
            base: 0.010,
            per_token: 1e-6,
            per_ctx: 0.0,
            per_pair: 0.0,
        }),
        drift: None,
        input_delay: SimDuration::ZERO,
        front_end: FrontEnd::default(),
        output_delay: SimDuration::ZERO,
    }
}

pub(crate) fn split(prefill: EngineSpec, decode: EngineSpec, transfer: TransferSpec) -> Simulation {
    Simulation {
        replicas: vec![replica(prefill), replica(decode)],
        router: RouterConfig::RoundRobin,
        serving: Serving {
            pools: vec![pool("p", Role::Prefill, 1), pool("d", Role::Decode, 1)],
            transfer: Some(transfer),
            stream_models: Vec::new(),
            ..Serving::default()
        },
        scrape_period: None,
        request_timeout: None,
        seed: 1,
    }
}

pub(crate) fn run(sim: &Simulation, mut load: Burst) -> (Vec<RequestRow>, RunRecord) {
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let record = sim.run(&mut load, &options, RunInfo::default()).unwrap();
    let mut rows = record.request_rows.clone().unwrap();
    rows.sort_by_key(|r| r.id);
    (rows, record)
}

/// TTFT and end of each request [us].
pub(crate) fn times(rows: &[RequestRow]) -> Vec<(u64, u64)> {
    let us = |t: SimTime| (t.0 + 500) / 1000;
    rows.iter()
        .map(|r| (us(r.first_token), us(r.end)))
        .collect()
}

#[test]
fn ttft_ends_at_the_prefill_side_and_the_second_token_waits_for_the_transfer() {
    for engine in [
        vllm(1000),
        trt(1000, BatchSchedulerPolicy::GuaranteedNoEvict),
        trt(1000, BatchSchedulerPolicy::MaxUtilization),
    ] {
        let sim = split(engine.clone(), engine, transfer());
        let (rows, record) = run(&sim, burst(1, 100, 3));
        // Prefill 10.1 ms; 100 MB at 1 GB/s after 1 ms: until 111.1 ms; two decode steps of 10.001 ms.
        assert_eq!(times(&rows), [(10_100, 131_102)]);
        assert_eq!(
            (rows[0].replica, rows[0].output_tokens, rows[0].outcome),
            (1, 3, Outcome::Finished)
        );
        let transfers = record.transfers.unwrap();
        let row = transfers.rows.unwrap()[0];
        assert_eq!(
            (row.prefilled.0, row.began.0, row.ended.0),
            (10_100_000, 10_100_000, 111_100_000)
        );
        assert_eq!((row.tokens, row.bytes), (100, 100_000_000));
        assert_eq!(record.latencies.itl.count(), 2);
    }
}

#[test]
fn where_the_decode_side_gives_the_first_token_ttft_holds_the_transfer() {
    let spec = TransferSpec {
        first_token: FirstToken::Decode,
        ..transfer()
    };
    for engine in [
        vllm(1000),
        trt(1000, BatchSchedulerPolicy::GuaranteedNoEvict),
    ] {
        let sim = split(engine.clone(), engine, spec);
        let (rows, _) = run(&sim, burst(1, 101, 3));
        // Prefill 10.101 ms; 100 of 101 tokens go in 101 ms; then three steps, the first of which computes the prompt's last token.
        assert_eq!(times(&rows), [(121_102, 141_104)]);
        assert_eq!(rows[0].output_tokens, 3);
    }
}

#[test]
fn a_request_of_one_token_ends_where_it_is_prefilled() {
    let sim = split(vllm(100), vllm(100), transfer());
    let (rows, record) = run(&sim, burst(1, 100, 1));
    assert_eq!(times(&rows), [(10_100, 10_100)]);
    assert_eq!(rows[0].replica, 0);
    assert_eq!(record.transfers.unwrap().count, 0);
}

#[test]
fn pools_that_take_the_same_requests_are_one_service_whatever_they_stand_on() {
    let mut sim = split(vllm(1000), vllm(1000), transfer());
    sim.replicas[1].step = Arc::new(LinearStep {
        base: 0.1,
        per_token: 0.0,
        per_ctx: 0.0,
        per_pair: 0.0,
    });
    sim.serving.transfer = None;
    sim.serving.pools = vec![pool("fast", Role::Both, 1), pool("slow", Role::Both, 1)];
    let rows = |sim: &Simulation| {
        let load = Burst {
            gap: SimDuration(20 * MS),
            ..burst(60, 10, 4)
        };
        let (rows, _) = run(sim, load);
        rows.iter().filter(|r| r.replica == 0).count()
    };
    assert_eq!(rows(&sim), 30, "in turn");
    for pool in &mut sim.serving.pools {
        pool.router = RouterConfig::LeastOutstanding;
    }
    let fast = rows(&sim);
    assert!((40..60).contains(&fast), "{fast} of 60 go to the fast one");
    sim.serving.pools[1].max_prompt = 9;
    assert_eq!(rows(&sim), 60, "the other takes shorter prompts");
}

#[test]
fn two_transfers_at_once_over_one_link_take_twice_as_long() {
    let sim = split(vllm(1000), vllm(1000), transfer());
    let (rows, record) = run(&sim, burst(2, 100, 2));
    // Both are prefilled in one step of 10.2 ms, share the link for 200 ms, and decode in one step of 10.002 ms.
    assert_eq!(times(&rows), [(10_200, 221_202), (10_200, 221_202)]);
    assert_eq!(
        record.transfers.unwrap().time.mean_ns(),
        Some(201_000_000.0)
    );
}

#[test]
fn layer_by_layer_only_what_the_prefill_could_not_hide_is_exposed() {
    let spec = TransferSpec {
        layerwise: true,
        ..transfer()
    };
    let sim = split(vllm(1000), vllm(1000), spec);
    let (rows, _) = run(&sim, burst(1, 100, 2));
    // 9.09 MB of 100 went beside nine of ten layers of 10.1 ms; the last layer's tenth goes after them: 100.91 MB are no more than
    // all, so 100 are left.
    assert_eq!(times(&rows), [(10_100, 121_101)]);
    let (rows, _) = run(&sim, burst(1, 8000, 2));
    // 8 GB, 18 ms of prefill: what is left is all but 16.2 MB, and the last layer's 800 MB.
    assert_eq!(rows[0].end.0 / MS, 18 + 1 + 8000 + 10);
    let fast = Simulation {
        serving: Serving {
            pools: (sim.serving.pools.iter().cloned())
                .map(|p| PoolSpec {
                    kv_bandwidth: 1e12,
                    ..p
                })
                .collect(),
            ..sim.serving.clone()
        },
        ..sim
    };
    let (rows, _) = run(&fast, burst(1, 8000, 2));
    // At 1 TB/s all but the last layer's 0.8 ms is hidden.
    assert_eq!(times(&rows), [(18_000, 18_000 + 1_000 + 800 + 10_001)]);
}

#[test]
fn a_full_decode_side_holds_back_the_transfer_and_then_the_prefill() {
    let spec = TransferSpec {
        latency: SimDuration::ZERO,
        ..transfer()
    };
    let mut sim = split(vllm(8), vllm(5), spec);
    for r in &mut sim.replicas {
        r.step = Arc::new(LinearStep {
            base: 0.010,
            per_token: 0.0,
            per_ctx: 0.0,
            per_pair: 0.0,
        });
    }
    let (rows, record) = run(&sim, burst(3, 64, 3));
    // A prompt takes 4 of 8 blocks, and 5 of 5 where it is decoded, 64 ms on the link, 10 ms a step. The third prompt is computed when the
    // first one's blocks are free (74 ms); each transfer begins when the request before it is done (94 and 178 ms).
    assert_eq!(
        times(&rows),
        [(10_000, 94_000), (10_000, 178_000), (84_000, 262_000)]
    );
    let transfers = record.transfers.unwrap();
    let held: Vec<u64> = (transfers.rows.unwrap().iter())
        .map(|t| t.ended.since(t.prefilled).0 / MS)
        .collect();
    assert_eq!(held, [64, 148, 158]);
    assert_eq!(transfers.wait.max(), Some(SimDuration(94 * MS)));
}

#[test]
fn kv_that_dies_with_its_prefill_replica_is_computed_again_or_fails_as_the_engine_does() {
    for (engine, end) in [
        // Broken off at 50 ms; prompt and first token are computed on the decode side in 10.101 ms, which gives the second.
        (vllm(1000), (Outcome::Finished, 60_101)),
        (
            trt(1000, BatchSchedulerPolicy::GuaranteedNoEvict),
            (Outcome::Failed, 50_000),
        ),
    ] {
        let sim = split(engine.clone(), engine, transfer());
        let options = RunOptions {
            check: true,
            ..RunOptions::default()
        };
        let mut run = Run::new(&sim, Box::new(burst(1, 100, 2)), &options).unwrap();
        run.plan(SimTime(50 * MS), Change::Kill(0));
        run.run_to_end().unwrap();
        let record = run.finish(RunInfo::default()).unwrap();
        let row = record.request_rows.unwrap()[0];
        assert_eq!((row.outcome, (row.end.0 + 500) / 1000), end);
        assert_eq!(record.transfers.unwrap().broken_off, 1);
    }
}

/// Two requests 50 ms apart; the only decode replica dies at 5 ms, while the first is prefilled, and another is ready at 15 ms.
fn without_decode_for_a_while(first_token: FirstToken, gateway: GatewaySpec) -> RunRecord {
    let spec = TransferSpec {
        first_token,
        ..transfer()
    };
    let mut sim = split(vllm(1000), vllm(1000), spec);
    sim.serving.gateway = gateway;
    let load = Burst {
        gap: SimDuration(50 * MS),
        ..burst(2, 100, 3)
    };
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let mut run = Run::new(&sim, Box::new(load), &options).unwrap();
    run.plan(SimTime(5 * MS), Change::Kill(1));
    let other = run.add_to(1, &replica(vllm(1000))).unwrap();
    run.plan(SimTime(15 * MS), Change::Ready(other));
    run.run_to_end().unwrap();
    run.finish(RunInfo::default()).unwrap()
}

#[test]
fn a_request_that_nobody_can_decode_is_sent_again_if_its_client_has_got_nothing() {
    let gateway = GatewaySpec {
        retries: Some(RetrySpec::default()),
        ..GatewaySpec::default()
    };
    for (first_token, outcome, retries) in [
        (FirstToken::Decode, Outcome::Finished, 1),
        (FirstToken::Prefill, Outcome::Failed, 0),
    ] {
        let record = without_decode_for_a_while(first_token, gateway);
        let mut rows = record.request_rows.unwrap();
        rows.sort_by_key(|r| r.id);
        assert_eq!(
            (rows[0].outcome, rows[1].outcome),
            (outcome, Outcome::Finished)
        );
        assert_eq!(record.gateway.unwrap().retries, retries);
    }
}

#[test]
fn a_request_that_nobody_can_decode_makes_room_for_the_next() {
    let gateway = GatewaySpec {
        max_requests: Some(1),
        ..GatewaySpec::default()
    };
    let record = without_decode_for_a_while(FirstToken::Decode, gateway);
    assert_eq!(record.gateway.unwrap().overflowed, 0);
    assert_eq!((record.counts.failed, record.counts.finished), (1, 1));
}

/// A case split over prefill and decode replicas of vLLM or TensorRT-LLM.
#[derive(Clone, Debug)]
struct Split {
    case: Case,
    prefill: u32,
    decode: u32,
    /// 0: vLLM; else a capacity policy of TensorRT-LLM.
    engine: u8,
    layerwise: bool,
    decode_first: bool,
    fabric: bool,
    bandwidth: f64,
    /// The gateway sends again what has failed, so many times.
    retries: u32,
}

fn any_split() -> impl Strategy<Value = Split> {
    (
        any_case(),
        1u32..4,
        1u32..4,
        0u8..4,
        any::<(bool, bool, bool)>(),
        prop_oneof![Just(1e9), Just(1e10), Just(1e12)],
        0u32..3,
    )
        .prop_map(
            |(case, prefill, decode, engine, flags, bandwidth, retries)| Split {
                case,
                prefill,
                decode,
                engine,
                layerwise: flags.0,
                decode_first: flags.1,
                fabric: flags.2,
                bandwidth,
                retries,
            },
        )
}

impl Split {
    fn simulation(&self) -> Simulation {
        let mut case = self.case.clone();
        case.replicas = (self.prefill + self.decode) as usize;
        let mut sim = case.simulation();
        let policy = match self.engine {
            1 => Some(BatchSchedulerPolicy::GuaranteedNoEvict),
            2 => Some(BatchSchedulerPolicy::MaxUtilization),
            3 => Some(BatchSchedulerPolicy::StaticBatch),
            _ => None,
        };
        if let Some(policy) = policy {
            for r in &mut sim.replicas {
                let p = &case.params;
                let params = TrtLlmParams {
                    tokens_per_block: p.block_size,
                    batch_scheduler_policy: policy,
                    max_batch_size: p.max_num_seqs,
                    enable_kv_cache_reuse: p.enable_prefix_caching,
                    ..TrtLlmParams::default()
                };
                let tokens = p.num_gpu_blocks * u64::from(p.block_size);
                let config = params
                    .resolve(tokens.max(64), 200, p.pipeline_parallel_size)
                    .unwrap();
                r.engine = EngineSpec::Policy {
                    make: Arc::new(move |shared| Box::new(TrtLlm::new(config.clone(), shared))),
                    hash_block: p.enable_prefix_caching.then_some(p.block_size),
                };
            }
        }
        let of = |name, role, n| PoolSpec {
            router: case.router,
            kv_bandwidth: self.bandwidth,
            kv_bytes_per_token: 1e3,
            ..pool(name, role, n)
        };
        sim.serving = Serving {
            pools: vec![
                of("p", Role::Prefill, self.prefill),
                of("d", Role::Decode, self.decode),
            ],
            transfer: Some(TransferSpec {
                latency: SimDuration(2_000),
                fabric: if self.fabric { 1.5e9 } else { f64::INFINITY },
                layerwise: self.layerwise,
                first_token: if self.decode_first {
                    FirstToken::Decode
                } else {
                    FirstToken::Prefill
                },
            }),
            stream_models: Vec::new(),
            gateway: GatewaySpec {
                retries: (self.retries > 0).then(|| RetrySpec {
                    max: self.retries,
                    per_try_timeout: Some(SimDuration(3_000_000)),
                    ..RetrySpec::default()
                }),
                ..GatewaySpec::default()
            },
        };
        sim
    }

    fn start(&self, check: bool) -> Run<'static> {
        let options = self.case.options(Path::Auto, check);
        Run::new(
            &self.simulation(),
            Box::new(Random::new(self.case.load)),
            &options,
        )
        .unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn requests_and_blocks_are_conserved_on_both_sides(
        split in any_split(),
        changes in prop::collection::vec((0u64..4_000_000, 0u32..6, 0u8..5), 0..8),
    ) {
        let mut run = split.start(true);
        let spare = split.simulation().replicas.remove(0);
        for (at, replica, what) in changes {
            let n = run.snapshot().replicas.len() as u32;
            let change = match what {
                0 => Change::Ready(run.add_to(0, &spare).unwrap()),
                1 => Change::Ready(run.add_to(1, &spare).unwrap()),
                2 => Change::Drain(replica % n),
                _ => Change::Kill(replica % n),
            };
            run.plan(SimTime(at), change);
        }
        run.run_to_end().unwrap();
        let seen = run.snapshot();
        let record = run.finish(RunInfo::default()).unwrap();
        prop_assert!(record.counts.conserved());
        if split.case.until.is_none() {
            let here = |r: &&sim::run::ReplicaView| r.lifecycle != Lifecycle::Gone;
            for (i, r) in seen.replicas.iter().enumerate().filter(|(_, r)| here(r)) {
                prop_assert_eq!((r.load.kv_used_blocks, r.outstanding), (0, 0), "replica {} holds {:?}", i, r);
            }
        }
        let rows = record.request_rows.unwrap();
        for t in record.transfers.unwrap().rows.unwrap() {
            prop_assert!(t.prefilled <= t.began && t.began < t.ended);
        }
        for r in rows.iter().filter(|r| r.outcome == Outcome::Finished) {
            prop_assert!(r.first_scheduled < r.first_token && r.first_token <= r.end);
        }
    }

    #[test]
    fn nothing_fails_where_nothing_dies_and_every_token_comes(split in any_split()) {
        let mut run = split.start(true);
        run.run_to_end().unwrap();
        let record = run.finish(RunInfo::default()).unwrap();
        prop_assert_eq!(record.counts.failed, 0);
        let rows = record.request_rows.unwrap();
        let rows: Vec<_> = rows.iter().filter(|r| r.outcome == Outcome::Finished).collect();
        let tokens: u64 = rows.iter().map(|r| u64::from(r.output_tokens)).sum();
        prop_assert_eq!(tokens, record.tokens.output);
        // Each finished request of several tokens was decoded in the decode pool, and its KV went there once.
        let moved: std::collections::BTreeSet<ReqId> =
            record.transfers.unwrap().rows.unwrap().iter().map(|t| t.request).collect();
        for r in rows {
            let is_split = r.output_tokens > 1;
            prop_assert_eq!(r.replica >= split.prefill, is_split);
            let goes = is_split && !(split.decode_first && r.prompt_tokens == 1);
            prop_assert_eq!(moved.contains(&r.id), goes);
        }
    }
}

#[test]
fn a_split_run_is_the_same_in_pieces_watched_and_on_any_number_of_threads() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..20 {
        let split =
            proptest::strategy::ValueTree::current(&any_split().new_tree(&mut runner).unwrap());
        let on = |threads: usize, path: Path, piece: Option<u64>| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| {
                let options = split.case.options(path, false);
                let load = Box::new(Random::new(split.case.load));
                let mut run = Run::new(&split.simulation(), load, &options).unwrap();
                for k in 1..50 {
                    if let Some(piece) = piece {
                        run.step_until(SimTime(k * piece)).unwrap();
                    }
                }
                run.run_to_end().unwrap();
                format!("{:?}", run.finish(RunInfo::default()).unwrap())
            })
        };
        let one = on(1, Path::Auto, None);
        assert_eq!(one, on(2, Path::Reference, None));
        assert_eq!(one, on(4, Path::Auto, Some(70_001)));
    }
}
