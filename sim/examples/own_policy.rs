//! A scheduling policy of your own: shortest prompt first, one prompt a step, then everybody decodes.
//!
//! A policy is a state machine: it is told of requests, chooses what the next step holds, and is told what that step gave. It knows
//! nothing of time. The simulator drives it with predicted step times; `servetwin serve` drives policies with real forward passes.
//!
//!     cargo run --release -p sim --example own_policy

use std::sync::Arc;

use hwmodels::LinearStep;
use sim::cluster::router::RouterConfig;
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::definition::Metric;
use sim::policy::{Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use sim::record::RunInfo;
use sim::request::{RejectReason, ReqId};
use sim::run::RunOptions;
use sim::scenario::Scenario;
use sim::simulation::{EngineSpec, FrontEnd, ReplicaSpec, Simulation};

/// Sequences that run at once.
const SLOTS: usize = 32;

#[derive(Default)]
struct ShortestFirst {
    /// Prompt lengths of requests that wait, with their ids: the shortest last.
    waiting: Vec<(u32, ReqId)>,
    /// Running requests, with the tokens that each has computed.
    running: Vec<(ReqId, u32)>,
}

impl Scheduler for ShortestFirst {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        let place = self
            .waiting
            .partition_point(|(prompt, _)| *prompt >= params.prompt_tokens);
        self.waiting.insert(place, (params.prompt_tokens, id));
        Ok(())
    }

    fn plan(&mut self, _now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        let admitted = if self.running.len() < SLOTS {
            self.waiting.pop()
        } else {
            None
        };
        if let Some((prompt, id)) = admitted {
            plan.admitted.push(id);
            plan.stats.add_prefill(prompt, 0, true);
            plan.entries.push(Scheduled {
                id,
                tokens: prompt,
                context: 0,
                samples: true,
                decode: false,
            });
            self.running.push((id, prompt));
        } else {
            for (id, computed) in &mut self.running {
                plan.stats.add_decode(*computed + 1);
                plan.entries.push(Scheduled {
                    id: *id,
                    tokens: 1,
                    context: *computed,
                    samples: true,
                    decode: true,
                });
                *computed += 1;
            }
        }
        !plan.entries.is_empty()
    }

    fn complete(&mut self, _plan: &StepPlan, given: Given<'_>) {
        self.running.retain(|(id, _)| !given.stopped.contains(id));
    }

    fn cancel(&mut self, id: ReqId) {
        self.waiting.retain(|(_, w)| *w != id);
        self.running.retain(|(r, _)| *r != id);
    }

    fn take_failed(&mut self, _out: &mut Vec<ReqId>) {}

    fn load(&self) -> Load {
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            ..Load::default()
        }
    }
}

const WORKLOAD: &str = r#"
[step]
base = "1 ms"
[engine]
kind = "static"
kv_blocks = 1000
[[workload]]
arrival = { kind = "poisson", rate = "12 req/s" }
prompt = { kind = "lognormal", mean = 800, cv = 1.0 }
output = 60
[run]
requests = 20_000
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The load of a scenario, on a replica that runs our policy.
    let mut built = Scenario::parse(WORKLOAD, "load.toml", &[])?.build()?;
    let simulation = Simulation {
        serving: Default::default(),
        replicas: vec![ReplicaSpec {
            engine: EngineSpec::Policy {
                make: Arc::new(|_| Box::new(ShortestFirst::default())),
                hash_block: None,
            },
            step: Arc::new(LinearStep {
                base: 8e-3,
                per_token: 60e-6,
                ..LinearStep::default()
            }),
            drift: None,
            input_delay: SimDuration::ZERO,
            front_end: FrontEnd::default(),
            output_delay: SimDuration::ZERO,
        }],
        router: RouterConfig::RoundRobin,
        scrape_period: None,
        request_timeout: None,
        seed: 1,
    };
    let options = RunOptions::default();
    let record = simulation.run(&mut built.workload, &options, RunInfo::default())?;
    for metric in [Metric::Ttft, Metric::Tpot, Metric::E2e] {
        let p50 = record.quantile_ns(metric, 0.5).unwrap_or_default() / 1e6;
        let p99 = record.quantile_ns(metric, 0.99).unwrap_or_default() / 1e6;
        println!("{metric:?}: p50 {p50:.1} ms, p99 {p99:.1} ms");
    }
    Ok(())
}
