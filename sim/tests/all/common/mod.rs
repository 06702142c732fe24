//! Random scenarios for the tests across the simulator.

pub mod clusters;

use std::sync::Arc;

use hwmodels::step::LinearStep;
use proptest::prelude::*;
use rand::RngExt;
use sim::cluster::drift::{SpeedDrift, Swing};
use sim::cluster::router::RouterConfig;
use sim::kernel::rng::{self, Stream};
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::RecordOptions;
use sim::policy::vllm_v1::{SchedulingPolicy, VllmV1Params, VllmVersion};
use sim::record::{RunInfo, RunRecord};
use sim::request::{Outcome, ReqId, RequestSpec, Segment};
use sim::simulation::{EngineSpec, FrontEnd, Path, ReplicaSpec, RunOptions, Simulation};
use sim::workload::{RequestEnd, Workload};

/// What random requests look like.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub requests: u64,
    /// Mean gap of the open loop [ns]; bursts come at the same instant.
    pub mean_gap: u64,
    pub max_prompt: u32,
    pub max_output: u32,
    /// Share of requests whose `max_tokens` lies above what they produce.
    pub stops_early: f64,
    /// Shortest patience [ns]; 0: endless.
    pub patience: u64,
    /// Users who send again as soon as they are answered.
    pub users: u64,
    /// Distinct shared prefixes; 0: nothing is shared.
    pub prefixes: u64,
    pub priorities: i32,
    pub seed: u64,
}

/// An open loop with bursts and, beside it, a closed loop without think time.
pub struct Random {
    load: Load,
    left: u64,
    next: SimTime,
    ready: std::collections::VecDeque<SimTime>,
    draws: Stream,
}

impl Random {
    pub fn new(load: Load) -> Random {
        Random {
            left: load.requests,
            next: SimTime::ZERO,
            ready: (0..load.users).map(|_| SimTime::ZERO).collect(),
            draws: rng::stream(load.seed, "requests"),
            load,
        }
    }
}

impl Workload for Random {
    fn peek(&self) -> Option<SimTime> {
        if self.left == 0 {
            return None;
        }
        Some(self.ready.front().map_or(self.next, |&t| t.min(self.next)))
    }

    fn pop(&mut self, _id: ReqId, out: &mut RequestSpec) {
        let l = self.load;
        let at = self.peek().unwrap();
        let user = self.ready.front() == Some(&at);
        if user {
            self.ready.pop_front();
        } else if self.draws.random_bool(0.7) {
            self.next += SimDuration(self.draws.random_range(0..=2 * l.mean_gap));
        }
        self.left -= 1;
        let output = self.draws.random_range(1..=l.max_output);
        let early = self.draws.random_bool(l.stops_early);
        let prompt = self.draws.random_range(1..=l.max_prompt);
        out.segments.clear();
        if l.prefixes > 0 {
            out.segments.push(Segment {
                content: self.draws.random_range(1..=l.prefixes),
                tokens: self.draws.random_range(1..=l.max_prompt),
            });
        }
        *out = RequestSpec {
            arrival: at,
            prompt_tokens: prompt,
            output_tokens: output,
            max_tokens: if early { output + 30 } else { output },
            priority: self.draws.random_range(0..=l.priorities),
            session: Some(self.draws.random_range(0..5)),
            timeout: (l.patience > 0)
                .then(|| SimDuration(self.draws.random_range(l.patience..4 * l.patience))),
            tag: u64::from(user),
            segments: std::mem::take(&mut out.segments),
            ..RequestSpec::default()
        };
    }

    fn on_end(&mut self, end: &RequestEnd) {
        assert_ne!(end.outcome, Outcome::InFlight);
        if end.tag == 1 {
            self.ready.push_back(end.at);
        }
    }

    fn reacts(&self) -> bool {
        self.load.users > 0
    }

    fn shares_content(&self) -> bool {
        self.load.prefixes > 0
    }
}

/// A random deployment of vLLM V1 replicas, and its load.
#[derive(Clone, Debug)]
pub struct Case {
    pub params: VllmV1Params,
    pub replicas: usize,
    pub router: RouterConfig,
    pub delays: bool,
    pub until: Option<u64>,
    pub scrape: bool,
    /// The machines' speed drifts.
    pub drifts: bool,
    pub load: Load,
}

impl Case {
    pub fn simulation(&self) -> Simulation {
        let ns = |on: bool, n: u64| SimDuration(if on { n } else { 0 });
        Simulation {
            serving: Default::default(),
            replicas: (0..self.replicas)
                .map(|i| ReplicaSpec {
                    engine: EngineSpec::VllmV1(self.params),
                    step: Arc::new(LinearStep {
                        base: 1e-5 * (1 + i % 2) as f64,
                        per_token: 1e-7,
                        per_ctx: 1e-9,
                        per_pair: 1e-10,
                    }),
                    drift: self.drifts.then_some(SpeedDrift {
                        swings: [(0.5, 60_000), (0.2, 3_000)].map(|(ratio, ns)| Swing {
                            ratio,
                            time: SimDuration(ns),
                        }),
                        machine: i as u32 % 2,
                    }),
                    input_delay: ns(self.delays, 3_000),
                    front_end: FrontEnd {
                        workers: 0,
                        per_request: SimDuration::ZERO,
                        per_prompt_token: ns(self.delays, 11),
                    },
                    output_delay: ns(self.delays, 7_000),
                })
                .collect(),
            router: self.router,
            scrape_period: self.scrape.then_some(SimDuration(300_000)),
            request_timeout: None,
            seed: self.load.seed,
        }
    }

    pub fn options(&self, path: Path, check: bool) -> RunOptions {
        RunOptions {
            path,
            record: RecordOptions {
                max_step_rows: 1_000_000,
                ..RecordOptions::default()
            },
            until: self.until.map(SimTime),
            check,
            ..RunOptions::default()
        }
    }

    pub fn run(&self, path: Path, check: bool) -> RunRecord {
        let options = self.options(path, check);
        self.simulation()
            .run(&mut Random::new(self.load), &options, RunInfo::default())
            .unwrap()
    }
}

fn router() -> impl Strategy<Value = RouterConfig> {
    prop_oneof![
        Just(RouterConfig::RoundRobin),
        Just(RouterConfig::Random),
        Just(RouterConfig::LeastOutstanding),
        Just(RouterConfig::PowerOfTwo),
        Just(RouterConfig::LeastKv),
        Just(RouterConfig::Session),
        Just(RouterConfig::PrefixAware(Default::default())),
    ]
}

fn load() -> impl Strategy<Value = Load> {
    (
        1u64..150,
        prop_oneof![Just(0u64), 1_000u64..400_000],
        1u32..140,
        1u32..60,
        prop_oneof![Just(0.0), Just(0.5)],
        prop_oneof![2 => Just(0u64), 1 => 50_000u64..3_000_000],
        prop_oneof![Just(0u64), 1u64..10],
        any::<u64>(),
    )
        .prop_map(
            |(requests, mean_gap, max_prompt, max_output, stops_early, patience, users, seed)| {
                Load {
                    requests,
                    mean_gap,
                    max_prompt,
                    max_output,
                    stops_early,
                    patience,
                    users,
                    prefixes: 0,
                    priorities: 0,
                    seed,
                }
            },
        )
}

fn params() -> impl Strategy<Value = VllmV1Params> {
    (
        prop_oneof![Just(VllmVersion::V0_11), Just(VllmVersion::V0_33)],
        (1u32..24, 0u32..150),
        any::<(bool, bool, bool, bool)>(),
        prop_oneof![Just(1u32), Just(4), Just(16)],
        (4u64..16, prop_oneof![Just(0.0), 0.0f64..0.5]),
        prop_oneof![3 => Just(None), 1 => (0u32..10).prop_map(Some)],
        prop_oneof![3 => Just(None), 1 => (0u64..600).prop_map(Some)],
    )
        .prop_map(
            |(
                version,
                (seqs, more),
                (chunked, caching, reserve, asynchronous),
                block,
                kv,
                reqs,
                tokens,
            )| {
                VllmV1Params {
                    version,
                    max_num_seqs: seqs,
                    max_num_batched_tokens: seqs + more,
                    max_model_len: 200,
                    enable_chunked_prefill: chunked,
                    enable_prefix_caching: caching,
                    async_scheduling: asynchronous,
                    max_num_queued_reqs: reqs,
                    max_num_queued_tokens: tokens,
                    scheduler_reserve_full_isl: reserve,
                    watermark: kv.1,
                    block_size: block,
                    // From barely one request to several.
                    num_gpu_blocks: 1 + u64::from(200u32.div_ceil(block)) * kv.0 / 4,
                    ..VllmV1Params::default()
                }
            },
        )
}

/// Cases that the fast path covers.
pub fn fast_case() -> impl Strategy<Value = Case> {
    (
        params(),
        1usize..5,
        router(),
        any::<(bool, bool, bool)>(),
        prop_oneof![3 => Just(None), 1 => (0u64..4_000_000).prop_map(Some)],
        load(),
    )
        .prop_map(
            |(params, replicas, router, (delays, scrape, drifts), until, load)| Case {
                params,
                replicas,
                router,
                delays,
                until,
                scrape,
                drifts,
                load,
            },
        )
}

/// Any case of vLLM V1: shared prefixes, priorities, several steps in flight, long-prefill threshold.
pub fn any_case() -> impl Strategy<Value = Case> {
    (
        fast_case(),
        prop_oneof![Just(0u64), 1u64..4],
        any::<bool>(),
        prop_oneof![2 => Just(1u32), 1 => 2u32..5],
        prop_oneof![2 => Just(0u32), 1 => 1u32..40],
    )
        .prop_map(|(mut case, prefixes, priority, pp, threshold)| {
            case.load.prefixes = prefixes;
            case.load.priorities = 3;
            case.params.pipeline_parallel_size = pp;
            case.params.long_prefill_token_threshold = threshold;
            if priority {
                case.params.scheduling_policy = SchedulingPolicy::Priority;
            }
            case
        })
}

/// A workload whose requests could share content, but do not.
struct Unshared(Random);

impl Workload for Unshared {
    fn peek(&self) -> Option<SimTime> {
        self.0.peek()
    }
    fn pop(&mut self, id: ReqId, out: &mut RequestSpec) {
        self.0.pop(id, out);
    }
    fn on_end(&mut self, end: &RequestEnd) {
        self.0.on_end(end);
    }
    fn shares_content(&self) -> bool {
        true
    }
}

/// The run of `case` with KV blocks named by content, though no two requests have any in common.
pub fn run_with_unique_content(case: &Case) -> RunRecord {
    let options = RunOptions {
        path: Path::Reference,
        record: RecordOptions {
            max_step_rows: 1_000_000,
            ..RecordOptions::default()
        },
        until: case.until.map(SimTime),
        check: true,
        ..RunOptions::default()
    };
    case.simulation()
        .run(
            &mut Unshared(Random::new(case.load)),
            &options,
            RunInfo::default(),
        )
        .unwrap()
}
