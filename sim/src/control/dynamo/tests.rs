use hwmodels::units::Secs;

use super::config::{LoadPredictor, OptimizationTarget};
use super::*;

fn at(secs: u64) -> SimTime {
    SimTime(secs * 1_000_000_000)
}

/// TTFT 100 ms and 0.1 ms a queued token; ITL 10 ms and 0.001 ms a token of KV; 2, 4 and 1 requests a second.
struct Linear;

impl PerfModel for Linear {
    fn ttft_ms(&self, queued: f64, kv: f64) -> Option<f64> {
        Some(100.0 + 0.1 * queued + 0.001 * kv)
    }
    fn itl_ms(&self, kv: f64) -> Option<f64> {
        Some(10.0 + 0.001 * kv)
    }
    fn prefill_rps(&self, _: f64, isl: f64) -> Option<(f64, f64)> {
        Some((2000.0 / isl, 0.4 * isl))
    }
    fn decode_rps(&self, _: f64, _: f64, osl: f64) -> Option<(f64, f64)> {
        Some((400.0 / osl, 40.0))
    }
    fn agg_rps(&self, _: f64, _: f64, _: f64, _: f64) -> Option<f64> {
        Some(1.0)
    }
}

fn config(mode: Mode, target: OptimizationTarget) -> PlannerConfig {
    PlannerConfig {
        mode,
        optimization_target: target,
        max_gpu_budget: -1,
        ..PlannerConfig::default()
    }
}

fn planner(config: PlannerConfig) -> Planner {
    let caps = Capabilities {
        num_gpu: 1,
        context_length: Some(8_000),
        max_kv_tokens: Some(100_000),
    };
    Planner::new(at(0), config, caps, caps).expect("right")
}

fn load(queued: f64, kv: f64, waiting_kv: f64) -> WorkerLoad {
    WorkerLoad {
        queued_prefill_tokens: queued,
        scheduled_decode_kv_tokens: kv,
        queued_decode_kv_tokens: waiting_kv,
    }
}

fn pool(load: &[WorkerLoad]) -> Pool<'_> {
    Pool {
        ready: load.len() as u32,
        expected: load.len() as u32,
        load,
    }
}

fn inputs<'a>(prefill: &'a [WorkerLoad], decode: &'a [WorkerLoad]) -> Inputs<'a> {
    Inputs {
        prefill: pool(prefill),
        decode: pool(decode),
        traffic: None,
    }
}

/// What the fast loop wants of a single pool with these loads.
fn single(mode: Mode, target: OptimizationTarget, loads: &[WorkerLoad]) -> Option<u32> {
    let mut c = config(mode, target);
    c.enable_load_scaling = true;
    c.enable_throughput_scaling = false;
    let seen = if mode == Mode::Prefill {
        inputs(loads, &[])
    } else {
        inputs(&[], loads)
    };
    let d = planner(c).tick(at(5), &seen, &Linear);
    d.num_prefill.or(d.num_decode)
}

#[test]
fn defaults_are_those_of_the_planner() {
    let c = PlannerConfig::default();
    assert_eq!(
        (
            c.throughput_adjustment_interval.secs(),
            c.load_adjustment_interval.secs()
        ),
        (180.0, 5.0)
    );
    assert_eq!(
        (c.max_gpu_budget, c.min_endpoint, c.ttft, c.itl),
        (8, 1, 500.0, 50.0)
    );
    assert_eq!(c.load_scaling_down_sensitivity, 80.0);
    let r = c.resolved().expect("right");
    assert!(
        r.enable_load_scaling && !r.enable_throughput_scaling,
        "a target without an SLA"
    );
}

#[test]
fn prefill_by_thresholds_counts_queued_tokens_against_the_context() {
    let t = |target, queued: &[f64]| {
        let loads: Vec<WorkerLoad> = queued.iter().map(|q| load(*q, 0.0, 0.0)).collect();
        single(Mode::Prefill, target, &loads)
    };
    use OptimizationTarget::{Latency, Throughput};
    assert_eq!(
        t(Throughput, &[8_000.0, 0.0]),
        Some(3),
        "any worker, at the threshold"
    );
    assert_eq!(t(Throughput, &[7_999.0, 0.0]), None);
    assert_eq!(t(Throughput, &[799.0, 0.0]), Some(1), "all below a tenth");
    assert_eq!(t(Throughput, &[800.0, 0.0]), None);
    assert_eq!(t(Throughput, &[0.0]), None, "never the last");
    assert_eq!(t(Latency, &[800.0, 0.0]), Some(3));
    assert_eq!(t(Latency, &[1.0, 0.0]), None);
    assert_eq!(t(Latency, &[0.0, 0.0]), Some(1), "nothing is queued");
}

#[test]
fn decode_by_thresholds_counts_kv_and_what_waits_for_it() {
    let t = |target, kv: &[(f64, f64)]| {
        let loads: Vec<WorkerLoad> = kv.iter().map(|(k, w)| load(50_000.0, *k, *w)).collect();
        single(Mode::Decode, target, &loads)
    };
    use OptimizationTarget::{Latency, Throughput};
    assert_eq!(
        t(Throughput, &[(90_000.0, 10_000.0), (0.0, 0.0)]),
        None,
        "not at the threshold"
    );
    assert_eq!(t(Throughput, &[(90_000.0, 10_001.0), (0.0, 0.0)]), Some(3));
    assert_eq!(t(Throughput, &[(59_999.0, 0.0), (0.0, 0.0)]), Some(1));
    assert_eq!(t(Throughput, &[(60_000.0, 0.0), (0.0, 0.0)]), None);
    assert_eq!(t(Latency, &[(40_001.0, 0.0), (0.0, 0.0)]), Some(3));
    assert_eq!(t(Latency, &[(9_999.0, 0.0), (0.0, 0.0)]), Some(1));
}

#[test]
fn workers_that_do_both_count_queued_prompts_as_kv_to_come() {
    let loads = [load(50_000.0, 50_001.0, 0.0), load(0.0, 0.0, 0.0)];
    assert_eq!(
        single(Mode::Agg, OptimizationTarget::Throughput, &loads),
        Some(3)
    );
}

#[test]
fn by_sla_all_workers_must_be_over_to_grow() {
    let t = |queued: &[f64]| {
        let loads: Vec<WorkerLoad> = queued.iter().map(|q| load(*q, 0.0, 0.0)).collect();
        single(Mode::Prefill, OptimizationTarget::Sla, &loads)
    };
    assert_eq!(t(&[4_001.0, 4_001.0]), Some(3), "100 + 400.1 ms");
    assert_eq!(t(&[4_001.0, 3_000.0]), None);
    // Twice the queue on the survivor: 0.2 ms a token against four fifths of 400 ms.
    assert_eq!(t(&[1_599.0, 1_599.0]), Some(1));
    assert_eq!(t(&[1_600.0, 0.0]), None);
    let d = |kv: &[f64]| {
        let loads: Vec<WorkerLoad> = kv.iter().map(|k| load(0.0, *k, 0.0)).collect();
        single(Mode::Decode, OptimizationTarget::Sla, &loads)
    };
    assert_eq!(d(&[40_001.0, 40_001.0]), Some(3));
    assert_eq!(
        d(&[14_999.0, 14_999.0]),
        Some(1),
        "10 + 30 ms is below 40 ms"
    );
    assert_eq!(d(&[15_000.0, 14_999.0]), None);
}

#[test]
fn nothing_is_done_without_data_or_in_the_midst_of_scaling() {
    let mut p = planner(config(Mode::Decode, OptimizationTarget::Throughput));
    let busy = [load(0.0, 200_000.0, 0.0)];
    let mut seen = inputs(&[], &busy);
    seen.decode.expected = 2;
    let why = |p: &mut Planner, t: u64, seen: &Inputs| p.tick(at(t), seen, &Linear).why;
    assert_eq!(why(&mut p, 5, &seen), "load: scaling_in_progress");
    seen.decode.expected = 1;
    seen.decode.load = &[];
    assert_eq!(why(&mut p, 10, &seen), "load: no_fpm_data");
    seen.decode.load = &busy;
    (seen.decode.ready, seen.decode.expected) = (2, 2);
    assert_eq!(why(&mut p, 15, &seen), "load: worker_count_mismatch");
    (seen.decode.ready, seen.decode.expected) = (1, 1);
    assert_eq!(why(&mut p, 20, &seen), "load: scale_up: 1 to 2");
}

#[test]
fn both_pools_scale_by_their_own_load() {
    let mut p = planner(config(Mode::Disagg, OptimizationTarget::Throughput));
    let (prefill, decode) = ([load(9_000.0, 0.0, 0.0)], [load(0.0, 1.0, 0.0); 3]);
    let d = p.tick(at(5), &inputs(&prefill, &decode), &Linear);
    assert_eq!((d.num_prefill, d.num_decode), (Some(2), Some(2)));
    assert!(
        d.why.contains("prefill scale_up, decode scale_down"),
        "{}",
        d.why
    );
}

#[test]
fn the_slow_loop_plans_for_what_it_foresees() {
    let mut c = config(Mode::Disagg, OptimizationTarget::Sla);
    c.load_predictor = LoadPredictor::Constant;
    let mut p = planner(c);
    assert_eq!(p.due(), at(5));
    let mut seen = inputs(&[], &[]);
    let traffic = Traffic {
        num_req: 1800.0,
        isl: 1000.0,
        osl: 100.0,
        kv_hit_rate: None,
    };
    seen.traffic = Some(traffic);
    let d = p.tick(at(180), &seen, &Linear);
    // 10 requests a second over 2 and 4.
    assert_eq!((d.num_prefill, d.num_decode), (Some(5), Some(3)));
    seen.traffic = Some(Traffic {
        kv_hit_rate: Some(0.5),
        ..traffic
    });
    let d = p.tick(at(360), &seen, &Linear);
    assert_eq!(
        (d.num_prefill, d.num_decode),
        (Some(3), Some(3)),
        "half of each prompt is cached"
    );
    seen.traffic = Some(Traffic {
        num_req: 18.0,
        isl: 5_000.0,
        kv_hit_rate: Some(0.0),
        ..traffic
    });
    let d = p.tick(at(540), &seen, &Linear);
    assert_eq!(d.num_prefill, Some(4), "2000 ms over 500 ms");
    seen.traffic = None;
    assert!(
        p.tick(at(720), &seen, &Linear)
            .why
            .contains("no_traffic_data")
    );
}

#[test]
fn with_both_loops_the_slow_one_sets_the_floor_of_the_fast_one() {
    let mut c = config(Mode::Decode, OptimizationTarget::Sla);
    c.enable_load_scaling = true;
    let mut p = planner(c);
    let idle = [load(0.0, 0.0, 0.0); 4];
    let mut seen = inputs(&[], &idle);
    let d = p.tick(at(5), &seen, &Linear);
    assert_eq!(d.num_decode, Some(3));
    seen.traffic = Some(Traffic {
        num_req: 2880.0,
        isl: 1000.0,
        osl: 100.0,
        kv_hit_rate: None,
    });
    // Both are due; the fast one decides, the slow one leaves its floor.
    let d = p.tick(at(180), &seen, &Linear);
    assert_eq!(d.num_decode, Some(3));
    assert!(d.why.contains("set_lower_bound 4 decode"), "{}", d.why);
    let d = p.tick(at(185), &seen, &Linear);
    assert_eq!(d.num_decode, None, "{}", d.why);
    assert!(
        d.why.contains("scale_down_capped_by_throughput"),
        "{}",
        d.why
    );
}

#[test]
fn the_budget_shrinks_both_pools_in_proportion() {
    let mut c = config(Mode::Disagg, OptimizationTarget::Sla);
    c.max_gpu_budget = 8;
    let p = planner(c.clone());
    assert_eq!(p.within_budget(5, 3), (5, 3));
    assert_eq!(p.within_budget(10, 6), (5, 3));
    assert_eq!(
        p.within_budget(30, 1),
        (7, 1),
        "min_endpoint is kept for decode"
    );
    c.max_gpu_budget = 1;
    assert_eq!(planner(c).within_budget(5, 3), (0, 0));
    let mut one = config(Mode::Decode, OptimizationTarget::Throughput);
    one.max_gpu_budget = 3;
    assert_eq!(planner(one).within_budget(0, 9), (0, 3));
}

#[test]
fn wrong_keys_are_named() {
    let refused = |change: fn(&mut PlannerConfig), key: &str| {
        let mut c = config(Mode::Disagg, OptimizationTarget::Sla);
        change(&mut c);
        let message = c.resolved().expect_err(key);
        assert!(message.contains(key), "{message}");
    };
    refused(
        |c| c.enable_throughput_scaling = false,
        "enable_load_scaling",
    );
    refused(|c| c.ttft = 0.0, "ttft");
    refused(
        |c| c.load_scaling_down_sensitivity = 101.0,
        "load_scaling_down_sensitivity",
    );
    refused(
        |c| c.load_adjustment_interval = Secs::default(),
        "load_adjustment_interval",
    );
    refused(
        |c| {
            c.enable_load_scaling = true;
            c.load_adjustment_interval = c.throughput_adjustment_interval;
        },
        "must be shorter",
    );
}
