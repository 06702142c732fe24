//! Routers that decide on old news: bursts herd onto the replica that looked best, and do not where the news are fresh.

use std::sync::Arc;

use hwmodels::step::LinearStep;
use sim::cluster::pools::Serving;
use sim::cluster::router::RouterConfig;
use sim::cluster::router::prefix::PrefixAwareParams;
use sim::kernel::time::{SimDuration, SimTime};
use sim::policy::vllm_v1::VllmV1Params;
use sim::record::RunInfo;
use sim::request::{ReqId, RequestSpec, Segment};
use sim::run::Run;
use sim::scenario::Scenario;
use sim::simulation::{EngineSpec, FrontEnd, ReplicaSpec, RunOptions, Simulation};
use sim::workload::Workload;

const MS: u64 = 1_000_000;

/// Prompts of 320 tokens: when, and with which content; 0: with none that another has.
struct At(Vec<(u64, u64)>, usize);

impl Workload for At {
    fn peek(&self) -> Option<SimTime> {
        self.0.get(self.1).map(|(ms, _)| SimTime(ms * MS))
    }
    fn pop(&mut self, _: ReqId, out: &mut RequestSpec) {
        let content = self.0[self.1].1;
        self.1 += 1;
        let segments = match content {
            0 => Vec::new(),
            content => vec![Segment {
                content,
                tokens: 320,
            }],
        };
        *out = RequestSpec {
            prompt_tokens: 320,
            output_tokens: 50,
            max_tokens: 50,
            segments,
            ..RequestSpec::default()
        };
    }
    fn shares_content(&self) -> bool {
        self.0.iter().any(|(_, content)| *content > 0)
    }
}

/// The replica of each request, of replicas whose steps take so many milliseconds.
fn places(
    replicas: usize,
    step_ms: f64,
    router: RouterConfig,
    scrape_ms: Option<u64>,
    load: &[(u64, u64)],
) -> Vec<u32> {
    let replica = ReplicaSpec {
        engine: EngineSpec::VllmV1(VllmV1Params::default()),
        step: Arc::new(LinearStep {
            base: step_ms * 1e-3,
            ..LinearStep::default()
        }),
        drift: None,
        input_delay: SimDuration::ZERO,
        front_end: FrontEnd::default(),
        output_delay: SimDuration::ZERO,
    };
    let sim = Simulation {
        replicas: vec![replica; replicas],
        router,
        serving: Serving::default(),
        scrape_period: scrape_ms.map(|ms| SimDuration(ms * MS)),
        request_timeout: None,
        seed: 1,
    };
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let mut run = Run::new(&sim, Box::new(At(load.to_vec(), 0)), &options).unwrap();
    run.run_to_end().unwrap();
    let mut rows = run
        .finish(RunInfo::default())
        .unwrap()
        .request_rows
        .unwrap();
    rows.sort_by_key(|r| r.id);
    rows.iter().map(|r| r.replica).collect()
}

/// Requests at the busiest replica, of those from the `from`th on.
fn most(places: &[u32], from: usize) -> usize {
    let count = |i: &u32| places[from..].iter().filter(|p| *p == i).count();
    places[from..].iter().map(count).max().unwrap_or(0)
}

fn prefix_aware() -> RouterConfig {
    RouterConfig::PrefixAware(PrefixAwareParams::default())
}

#[test]
fn a_burst_within_one_scrape_herds_onto_the_replica_that_looked_best() {
    // One request on each of three replicas of four; at 50 ms a scrape sees which is left. Steps outlast the burst.
    let mut load = vec![(0, 0), (1, 0), (2, 0)];
    load.extend((0..8).map(|i| (60 + i, 0)));
    for router in [RouterConfig::LeastKv, prefix_aware()] {
        let fresh = places(4, 1000.0, router, None, &load);
        let mut first = fresh[..3].to_vec();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 3, "{router:?}: {fresh:?}");
        // Eleven on four: nobody has more than three, the last one none before the burst.
        assert!(most(&fresh, 3) <= 3, "{router:?}: {fresh:?}");
    }
    // With old news the first three may meet: they are sent before any scrape has seen the others.
    let apart: Vec<(u64, u64)> = (0..3).map(|i| (60 * i, 0)).collect();
    let mut load = apart;
    load.extend((0..8).map(|i| (160 + i, 0)));
    for router in [RouterConfig::LeastKv, prefix_aware()] {
        let stale = places(4, 1000.0, router, Some(50), &load);
        let left = (0..4).find(|i| !stale[..3].contains(i)).unwrap();
        assert_eq!(stale[3..], [left; 8], "{router:?}: {stale:?}");
        let fresh = places(4, 1000.0, router, None, &load);
        assert!(most(&fresh, 3) <= 3, "{router:?}: {fresh:?}");
    }
}

#[test]
fn old_news_herd_for_one_period_and_not_longer() {
    // Sixteen requests in 80 ms: each period of 20 ms has one replica for its four.
    let load: Vec<(u64, u64)> = (0..16).map(|i| (5 * i, 0)).collect();
    let of = |period| places(4, 1000.0, RouterConfig::LeastKv, period, &load);
    for (i, four) in of(Some(20)).chunks(4).enumerate() {
        assert_eq!(four, [i as u32; 4], "period {i}");
    }
    assert_eq!(most(&of(None), 0), 4);
    assert_eq!(most(&of(Some(1_000)), 0), 16);
}

#[test]
fn a_router_that_counts_what_it_has_sent_has_no_old_news() {
    let load: Vec<(u64, u64)> = (0..16).map(|i| (5 * i, 0)).collect();
    let places = places(
        4,
        1000.0,
        RouterConfig::LeastOutstanding,
        Some(1_000),
        &load,
    );
    assert_eq!(most(&places, 0), 4);
}

#[test]
fn where_prompts_were_sent_is_known_at_once_however_old_the_news_of_loads_are() {
    let load = [(0, 9), (1, 8), (2, 9), (3, 8), (4, 9)];
    let at = places(4, 1000.0, prefix_aware(), Some(1_000), &load);
    assert_eq!((at[2], at[4]), (at[0], at[0]));
    assert_eq!(at[3], at[1]);
}

#[test]
fn state_is_as_old_as_the_endpoint_pickers_unless_a_scenario_says_otherwise() {
    let text = |router: &str| {
        format!(
            "[step]\nbase = \"10 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 1000\nmax_model_len = 4096\n[router]\npolicy = \"least_kv\"\n{router}\n[layout]\nreplicas = 2\n[[workload]]\narrival = {{ kind = \"constant\", rate = \"1 req/s\" }}\nprompt = 100\noutput = 5\n[run]\nrequests = 20\n"
        )
    };
    let period = |router: &str| {
        let scenario = Scenario::parse(&text(router), "x.toml", &[]).unwrap();
        scenario.build().unwrap().simulation.scrape_period
    };
    assert_eq!(period(""), Some(SimDuration(50 * MS)));
    assert_eq!(
        period("scrape_period = \"1 s\""),
        Some(SimDuration(1000 * MS))
    );
    assert_eq!(period("scrape_period = \"0 s\""), None);
}
