//! What must hold for the record and report of any run, checked on runs of a small loaded deployment.

use std::sync::Arc;

use hwmodels::files::Disk;
use hwmodels::step::LinearStep;
use hwmodels::units::PerSec;
use proptest::prelude::*;
use sim::cluster::router::RouterConfig;
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::{Metric, RecordOptions, Slo};
use sim::policy::vllm_v1::VllmV1Params;
use sim::record::{ReplicaInfo, RunInfo, RunRecord};
use sim::report::diagnosis::Regime;
use sim::report::text::Detail;
use sim::report::{RunReport, csv, text, trace};
use sim::request::Outcome;
use sim::simulation::{EngineSpec, FrontEnd, ReplicaSpec, RunOptions, Simulation};
use sim::workload::{Arrival, Length, Lengths, Limits, Mix, StreamSpec};

const REPLICAS: u32 = 2;
const BLOCKS: u64 = 120;

fn deployment() -> (Simulation, RunInfo) {
    let replica = ReplicaSpec {
        engine: EngineSpec::VllmV1(VllmV1Params {
            max_num_seqs: 8,
            num_gpu_blocks: BLOCKS,
            ..VllmV1Params::default()
        }),
        step: Arc::new(LinearStep {
            base: 10e-3,
            per_token: 50e-6,
            per_ctx: 1e-6,
            per_pair: 0.0,
        }),
        drift: None,
        input_delay: SimDuration::ZERO,
        front_end: FrontEnd::default(),
        output_delay: SimDuration::ZERO,
    };
    let simulation = Simulation {
        serving: Default::default(),
        replicas: vec![replica; REPLICAS as usize],
        router: RouterConfig::LeastOutstanding,
        scrape_period: None,
        request_timeout: None,
        seed: 1,
    };
    let info = RunInfo {
        name: "small".into(),
        seed: 1,
        replicas: (0..REPLICAS)
            .map(|_| ReplicaInfo {
                name: "toy".into(),
                devices: 1,
                stages: 1,
                kv_blocks: BLOCKS,
                block_tokens: 16,
            })
            .collect(),
        usd_per_hour: Some(2.0),
        ..RunInfo::default()
    };
    (simulation, info)
}

fn run(rate: f64, requests: u64, record: RecordOptions) -> RunRecord {
    let (simulation, info) = deployment();
    run_streams(
        &simulation,
        info,
        &[stream("users", rate)],
        requests,
        record,
    )
}

fn stream(name: &str, rate: f64) -> StreamSpec {
    StreamSpec {
        name: name.into(),
        model: None,
        arrival: Arrival::Poisson {
            rate: PerSec::new(rate).unwrap(),
        },
        lengths: Lengths::Separate {
            prompt: Length::Uniform { min: 20, max: 200 },
            output: Length::Uniform { min: 1, max: 80 },
        },
        max_tokens: None,
        prefix: None,
        sessions: None,
        timeout: None,
        cancel: None,
        retries: None,
        priority: 0,
        sampling: sim::workload::spec::SamplingSpec::default(),
        requests: None,
    }
}

fn run_streams(
    simulation: &Simulation,
    info: RunInfo,
    streams: &[StreamSpec],
    requests: u64,
    record: RecordOptions,
) -> RunRecord {
    let limits = Limits {
        requests: Some(requests),
        duration: None,
    };
    let mut workload = Mix::new(streams, &Disk, &limits, simulation.seed).unwrap();
    let options = RunOptions {
        record,
        ..RunOptions::default()
    };
    simulation.run(&mut workload, &options, info).unwrap()
}

fn everything() -> RecordOptions {
    RecordOptions {
        max_step_rows: 1_000_000,
        ..RecordOptions::default()
    }
}

#[test]
fn littles_law_holds() {
    let record = run(20.0, 3000, everything());
    let rows = record.request_rows.as_ref().unwrap();
    // Requests under way, integrated over time, are the latencies' sum; all started and ended inside the run.
    let sum: f64 = rows.iter().map(|r| r.end.since(r.arrival).as_secs()).sum();
    assert!((sum - record.latencies.e2e.sum_secs()).abs() < 1e-6 * sum);
    // What replicas saw running is what requests spent between their first step and their end: the law, applied to the
    // batch. Without preemptions both are the same integral.
    assert_eq!(
        record.preemptions, 0,
        "the check below needs a run without preemptions"
    );
    let served: f64 = rows
        .iter()
        .map(|r| r.end.since(r.first_scheduled).0 as f64)
        .sum();
    let running: f64 = record.replicas.iter().map(|r| r.running_ns as f64).sum();
    assert!(
        (served - running).abs() < 1e-9 * served,
        "{served} {running}"
    );
}

#[test]
fn shares_of_time_add_up_to_one_and_ratios_stay_below() {
    for rate in [1.0, 20.0, 200.0] {
        let report = RunReport::new(&run(rate, 500, RecordOptions::default()), 1.0);
        let b = report.bound_by;
        let parts = [
            b.weights,
            b.kv,
            b.compute,
            b.communication,
            b.host,
            b.bubble,
            b.idle,
        ];
        assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{b:?}");
        assert!(parts.iter().all(|p| (0.0..=1.0).contains(p)), "{b:?}");
        let kv = report.kv;
        assert!(
            0.0 < kv.mean_ratio && kv.mean_ratio <= kv.peak_ratio && kv.peak_ratio <= 1.0,
            "{kv:?}"
        );
        let r = report.replicas;
        assert!(
            r.busy_ratio <= r.busiest_ratio && r.busiest_ratio <= 1.0,
            "{r:?}"
        );
        assert!((r.busy_ratio + b.idle - 1.0).abs() < 1e-9);
    }
}

#[test]
fn light_load_is_below_the_knee_and_overload_is_not() {
    let light = RunReport::new(&run(1.0, 300, RecordOptions::default()), 1.0);
    assert_eq!(
        light.diagnosis.regime,
        Regime::LatencyBound,
        "{:?}",
        light.blocked_by
    );
    let heavy = RunReport::new(&run(500.0, 1000, RecordOptions::default()), 1.0);
    assert!(
        matches!(heavy.diagnosis.regime, Regime::SlotsFull | Regime::KvFull),
        "{:?} {:?}",
        heavy.diagnosis,
        heavy.blocked_by
    );
    assert!(heavy.queue_ms.p50 > light.queue_ms.p99);
}

#[test]
fn streaming_mode_keeps_means_exactly_and_percentiles_within_the_stated_error() {
    let rows = run(30.0, 2000, RecordOptions::default());
    let streaming = run(
        30.0,
        2000,
        RecordOptions {
            max_request_rows: 0,
            ..RecordOptions::default()
        },
    );
    assert!(streaming.request_rows.is_none());
    assert_eq!(rows.fingerprint, streaming.fingerprint);
    assert_eq!(rows.latencies, streaming.latencies);
    for metric in Metric::ALL {
        for p in [0.1, 0.5, 0.9, 0.99] {
            let exact = rows.quantile_ns(metric, p).unwrap();
            let got = streaming.quantile_ns(metric, p).unwrap();
            let error = sim::metrics::distribution::RELATIVE_ERROR;
            assert!(
                (exact - got).abs() <= exact * error + 1.0,
                "{metric:?} {p}: {exact} {got}"
            );
        }
    }
}

#[test]
fn gaps_and_first_tokens_account_for_every_token() {
    let record = run(30.0, 500, RecordOptions::default());
    let tokens = record.tokens.output;
    assert_eq!(
        record.latencies.itl.count() + record.counts.finished,
        tokens
    );
    // The gaps of a request add up to its decode time.
    let rows = record.request_rows.as_ref().unwrap();
    let decode: f64 = rows
        .iter()
        .map(|r| r.end.since(r.first_token).as_secs())
        .sum();
    assert!((decode - record.latencies.itl.sum_secs()).abs() < 1e-9 * decode.max(1.0));
}

#[test]
fn tables_and_trace_hold_every_request_and_step() {
    let record = run(20.0, 200, everything());
    let mut bytes = Vec::new();
    csv::write_requests(&mut bytes, record.request_rows.as_ref().unwrap()).unwrap();
    assert_eq!(
        &csv::read_requests(bytes.as_slice()).unwrap(),
        record.request_rows.as_ref().unwrap()
    );
    let mut bytes = Vec::new();
    csv::write_steps(&mut bytes, &record).unwrap();
    let lines = String::from_utf8(bytes).unwrap().lines().count() as u64;
    assert_eq!(lines, record.steps + 1);
    let mut bytes = Vec::new();
    trace::write(&mut bytes, &record, trace::Limit::None).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let spans = |cat: &str, ph: &str| {
        events
            .iter()
            .filter(|e| e["cat"] == cat && e["ph"] == ph)
            .count() as u64
    };
    assert_eq!(spans("step", "X"), record.steps);
    assert_eq!(spans("flow", "s"), 200);
    assert_eq!(spans("flow", "f"), 200);
}

#[test]
fn streams_are_reported_apart_and_add_up() {
    let (simulation, mut info) = deployment();
    info.streams = vec!["chat".into(), "batch".into()];
    let streams = [stream("chat", 10.0), stream("batch", 20.0)];
    let record = run_streams(&simulation, info, &streams, 600, RecordOptions::default());
    let report = RunReport::new(&record, 1.0);
    let [chat, batch] = report.streams.as_slice() else {
        panic!("{:?}", report.streams);
    };
    assert_eq!(chat.requests.offered + batch.requests.offered, 600);
    assert_eq!(chat.ttft_ms.n + batch.ttft_ms.n, report.ttft_ms.n);
    let share = chat.requests.offered as f64 / 600.0;
    assert!((share - 1.0 / 3.0).abs() < 0.1, "{share}");
    assert!(text::render(&report, Detail::Brief).contains("stream batch"));
}

#[test]
fn a_warm_up_that_leaves_nothing_to_measure_is_said() {
    let record = run(
        20.0,
        50,
        RecordOptions {
            warmup: SimDuration(3_600_000_000_000),
            ..RecordOptions::default()
        },
    );
    let report = RunReport::new(&record, 1.0);
    assert_eq!(report.e2e_ms.n, 0);
    // The window is empty, and an empty window is idle.
    assert_eq!(report.bound_by.idle, 1.0);
    assert_eq!(report.warmup_s, 3600.0);
    assert!(
        report
            .warnings
            .iter()
            .any(|w| w.starts_with("nothing was measured")),
        "{:?}",
        report.warnings
    );
}

#[test]
fn the_time_series_integrates_to_what_the_replicas_used() {
    let record = run(30.0, 800, RecordOptions::default());
    let series: f64 = record
        .series
        .points(record.end)
        .map(|p| p.kv_blocks * p.width.0 as f64)
        .sum();
    let used: f64 = record.replicas.iter().map(|r| r.kv_block_ns as f64).sum();
    assert!((series - used).abs() < 1e-6 * used, "{series} {used}");
}

#[test]
fn throughput_and_offered_load_are_taken_over_the_same_time() {
    let warmup = SimDuration(2_000_000_000);
    for rate in [20.0, 45.0] {
        let record = run(
            rate,
            800,
            RecordOptions {
                warmup,
                ..RecordOptions::default()
            },
        );
        let t = RunReport::new(&record, 0.0).throughput;
        let rows = record.request_rows.as_ref().unwrap();
        let start = SimTime::ZERO + warmup;
        let last = rows.iter().map(|r| r.arrival).max().unwrap();
        let length = last.since(start).as_secs();
        let sent = rows.iter().filter(|r| r.arrival >= start).count() as f64;
        let ended = |r: &&sim::record::RequestRow| r.end >= start && r.end <= last;
        let finished: Vec<_> = rows.iter().filter(ended).collect();
        let tokens: u32 = finished.iter().map(|r| r.output_tokens).sum();
        assert!(
            (t.window_s - length).abs() < 1e-9,
            "{} {length}",
            t.window_s
        );
        assert!((t.offered_per_s - sent / length).abs() < 1e-9);
        assert!((t.requests_per_s - finished.len() as f64 / length).abs() < 1e-9);
        assert!((t.output_tokens_per_s - f64::from(tokens) / length).abs() < 1e-9);
        // The drain is left out here, and has its own figure.
        assert!(record.end > last);
        let whole = RunReport::new(&record, 0.0).throughput_with_drain;
        let window = record.end.since(start).as_secs();
        let all = rows.iter().filter(|r| r.end >= start).count() as f64;
        assert!((whole.window_s - window).abs() < 1e-9);
        assert!((whole.requests_per_s - all / window).abs() < 1e-9);
    }
}

#[test]
fn what_hardly_anything_finishes_in_is_no_window() {
    // Far beyond what is served: most requests finish after the last was sent.
    let record = run(5_000.0, 400, RecordOptions::default());
    let report = RunReport::new(&record, 0.0);
    assert_eq!(report.throughput.window_s, record.end.as_secs());
    assert_eq!(
        report.throughput.requests_per_s,
        report.throughput_with_drain.requests_per_s
    );
}

#[test]
fn the_report_shows_every_figure_with_its_count() {
    let record = run(
        20.0,
        300,
        RecordOptions {
            slo: Slo {
                ttft: Some(SimDuration(200_000_000)),
                ..Slo::default()
            },
            ..RecordOptions::default()
        },
    );
    let report = RunReport::new(&record, 0.5);
    let text = text::render(&report, Detail::Brief);
    for want in [
        "300 offered, 300 finished",
        "TTFT <= 200 ms",
        "USD per hour",
        "bound by",
        "fingerprint",
    ] {
        assert!(text.contains(want), "{want}:\n{text}");
    }
    assert!(text.lines().all(|l| l.chars().count() <= 112), "{text}");
    assert!(report.slo.attainment_ratio.unwrap() > 0.0);
    assert_eq!(report.slo.met_ratio, report.slo.attainment_ratio);
    let [margin] = report.slo.margins.as_slice() else {
        panic!("{:?}", report.slo)
    };
    assert_eq!((margin.metric.as_str(), margin.limit_ms), ("ttft", 200.0));
    assert_eq!(Some(margin.p99_ms), report.ttft_ms.p99);
    assert!(report.throughput.goodput_per_s <= report.throughput.requests_per_s);
    let back: RunReport = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(back.requests, report.requests);
    assert_eq!(back.ttft_ms.n, report.ttft_ms.n);
    assert_eq!(back.diagnosis, report.diagnosis);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn requests_are_conserved_and_instants_are_in_order(rate in 1.0f64..300.0, warmup_ms in 0u64..2000) {
        let record = run(rate, 150, RecordOptions {
            warmup: SimDuration(warmup_ms * 1_000_000),
            ..RecordOptions::default()
        });
        prop_assert!(record.counts.conserved());
        let rows = record.request_rows.as_ref().unwrap();
        prop_assert_eq!(rows.len() as u64, record.counts.offered);
        for r in rows.iter().filter(|r| r.outcome == Outcome::Finished) {
            prop_assert!(r.arrival <= r.first_scheduled);
            prop_assert!(r.first_scheduled < r.first_token);
            prop_assert!(r.first_token <= r.end);
            prop_assert!(r.end <= record.end);
        }
        let measured = rows.iter().filter(|r| r.arrival >= SimTime(warmup_ms * 1_000_000)).count() as u64;
        prop_assert_eq!(record.latencies.e2e.count(), measured);
    }
}
