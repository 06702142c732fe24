//! What must always hold (docs/invariants.md), on random runs of every engine, as scenario files describe them.

use proptest::prelude::*;
use sim::kernel::time::SimTime;
use sim::metrics::RecordOptions;
use sim::record::{RequestRow, RunRecord};
use sim::request::Outcome;
use sim::scenario::Scenario;
use sim::simulation::{Path, RunOptions};

/// `[engine]` of each kind, with limits small enough to be reached.
const ENGINES: [&str; 12] = [
    "kind = \"vllm_v1\"\nmax_num_batched_tokens = 128\nmax_num_seqs = 6\nmax_model_len = 400",
    "kind = \"vllm_v1\"\nversion = \"0.33\"\nmax_num_batched_tokens = 64\nmax_num_seqs = 4\nmax_model_len = 400\nasync_scheduling = false",
    "kind = \"tgi\"\nversion = \"v2\"\nmax_input_tokens = 300\nmax_total_tokens = 400\nmax_batch_prefill_tokens = 320\nmax_concurrent_requests = 12",
    "kind = \"tgi\"\nversion = \"v3\"\nmax_input_tokens = 300\nmax_total_tokens = 400\nmax_batch_prefill_tokens = 100\nmax_concurrent_requests = 12",
    "kind = \"tgi_neuron\"\nbatch_size = 4\nsequence_length = 512",
    "kind = \"trt_llm\"\nmax_batch_size = 5\nmax_num_tokens = 320\nmax_seq_len = 400",
    "kind = \"trt_llm\"\nmax_batch_size = 5\nmax_num_tokens = 400\nmax_seq_len = 400\nbatch_scheduler_policy = \"max_utilization\"",
    "kind = \"static\"\nmax_batch_size = 4\nmax_seq_len = 400",
    "kind = \"llama_cpp\"\nn_parallel = 3\nn_ctx = 1800",
    "kind = \"llama_cpp\"\nn_parallel = 3\nn_ctx = 1800\nkv_unified = false\ncache_prompt = false",
    "kind = \"sglang\"\nchunked_prefill_size = 128\nmax_running_requests = 6\ncontext_length = 400\nschedule_policy = \"lpm\"\nschedule_conservativeness = 0.3",
    "kind = \"sglang\"\nchunked_prefill_size = 96\nenable_mixed_chunk = true\npage_size = 32\ncontext_length = 400\ndisable_overlap_schedule = true",
];

const ROUTERS: [&str; 7] = [
    "round_robin",
    "random",
    "least_outstanding",
    "least_kv",
    "power_of_two",
    "prefix_aware",
    "session",
];

/// A scenario text.
fn any_scenario() -> impl Strategy<Value = String> {
    (
        0..ENGINES.len(),
        0..ROUTERS.len(),
        1u32..4,
        60u32..200,
        prop_oneof![
            (5u32..60).prop_map(|r| format!("{{ kind = \"poisson\", rate = \"{r} req/s\" }}")),
            (1u32..12).prop_map(|n| format!("{{ kind = \"closed\", concurrency = {n} }}")),
            (1u32..40).prop_map(|n| format!("{{ kind = \"burst\", requests = {n} }}")),
        ],
        prop_oneof![Just(""), Just("timeout = \"1500 ms\"\n")],
        prop_oneof![
            Just(""),
            Just("prefix = { tokens = 40, groups = 3 }\n"),
            Just("sessions = { turns = 3, think = \"100 ms\" }\n")
        ],
        1u64..1000,
    )
        .prop_map(|(engine, router, replicas, blocks, arrival, patience, shared, seed)| {
            // These count cells of one token.
            let of_a_token = ["llama_cpp", "\"v3\"", "\"lpm\""];
            let blocks = match of_a_token.iter().any(|e| ENGINES[engine].contains(e)) {
                true => blocks * 32,
                false => blocks,
            };
            format!(
                "seed = {seed}\n[step]\nbase = \"5 ms\"\nper_token = \"50 us\"\n[engine]\n{}\nkv_blocks = {blocks}\n[layout]\nreplicas = {replicas}\n\
                 [router]\npolicy = \"{}\"\n[[workload]]\narrival = {arrival}\nprompt = {{ kind = \"uniform\", min = 1, max = 250 }}\n\
                 output = {{ kind = \"uniform\", min = 1, max = 100 }}\n{patience}{shared}[run]\nrequests = 60\n",
                ENGINES[engine], ROUTERS[router]
            )
        })
}

fn run(text: &str, path: Path) -> RunRecord {
    let scenario =
        Scenario::parse(text, "random.toml", &[]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let options = RunOptions {
        path,
        check: path == Path::Reference,
        record: RecordOptions {
            max_step_rows: 100_000,
            ..RecordOptions::default()
        },
        ..RunOptions::default()
    };
    scenario
        .run(&options)
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn rows(record: &RunRecord) -> &[RequestRow] {
    record.request_rows.as_deref().unwrap_or_default()
}

fn requests_end_once_and_in_order(record: &RunRecord) {
    let mut seen: Vec<_> = rows(record).iter().map(|r| r.id).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len() as u64, record.counts.offered);
    for r in rows(record) {
        assert!(r.arrival <= r.end && r.end <= record.end, "{r:?}");
        if r.first_token != SimTime::NEVER {
            assert!(r.arrival <= r.first_scheduled, "{r:?}");
            assert!(r.first_scheduled < r.first_token, "{r:?}");
            assert!(r.first_token <= r.end, "{r:?}");
        }
        if r.outcome == Outcome::Finished {
            assert!(r.output_tokens > 0, "{r:?}");
            assert_eq!(r.output_tokens == 1, r.first_token == r.end, "{r:?}");
        }
    }
}

fn replicas_keep_their_limits(record: &RunRecord) {
    let mut last = vec![SimTime::ZERO; record.replicas.len()];
    for s in record.step_rows.iter().flatten() {
        let last = &mut last[s.replica as usize];
        assert!(*last <= s.end && s.start <= s.end, "{s:?}");
        *last = s.end;
    }
    for (r, info) in record.replicas.iter().zip(&record.info.replicas) {
        assert!(r.busy.0 <= record.end.0);
        assert!(r.kv_peak_blocks <= info.kv_blocks, "{r:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn everything_holds_on_any_run_of_any_engine(text in any_scenario()) {
        // Requests, KV blocks and the scheduler's state are checked at every instant while this run goes on.
        let record = run(&text, Path::Reference);
        prop_assert!(record.counts.conserved());
        prop_assert_eq!(record.counts.in_flight, 0);
        requests_end_once_and_in_order(&record);
        replicas_keep_their_limits(&record);
        let made: u64 = rows(&record).iter().map(|r| u64::from(r.output_tokens)).sum();
        let first = rows(&record).iter().filter(|r| r.output_tokens > 0).count() as u64;
        prop_assert_eq!(first + record.latencies.itl.count(), made, "a token was lost or made twice");
        prop_assert_eq!(run(&text, Path::Auto).fingerprint, record.fingerprint);
    }
}
