//! Fixtures are made by hand after the shapes that the tools write (docs/bench.md), small enough to check every figure.

use std::time::Duration;

use sim::metrics::Metric;
use sim::scenario::Scenario;

use super::*;
use crate::driver::Options;
use crate::echo::{EchoServer, Schedule};
use crate::endpoint::Endpoint;
use crate::session::{Bench, Preparation, Session};

fn read(text: &str) -> Imported {
    let mut all = parse(text, "file").unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn ms(i: &Imported, metric: Metric) -> f64 {
    i.record.latencies.of(metric).mean_ns().unwrap() / 1e6
}

fn close(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-3, "{got} {want}");
}

#[test]
fn guidellm_requests_become_rows_by_our_definitions() {
    let i = read(include_str!("fixtures/guidellm.json"));
    let c = i.record.counts;
    assert_eq!(
        (c.finished, c.failed, c.in_flight),
        (2, 1, 1),
        "what was never sent is not counted"
    );
    close(ms(&i, Metric::Ttft), 110.0);
    close(ms(&i, Metric::Itl), 20.0);
    // Theirs includes the first token: 181 ms / 5 and 200 ms / 5. Ours: 80 ms / 4.
    close(ms(&i, Metric::Tpot), 20.0);
    close(i.stated["time_per_output_token_ms"].mean.unwrap(), 37.0);
    // Until the last token, not until the stream's end.
    close(ms(&i, Metric::E2e), 190.0);
    assert_eq!(i.record.tokens.prompt, 192);
    assert_eq!(i.record.tokens.cached, 16);
    assert!(i.notes.iter().any(|n| n.contains("no single gaps")));
}

#[test]
fn the_extra_gap_that_vllms_client_counts_is_left_out() {
    let i = read(include_str!("fixtures/vllm.json"));
    assert_eq!((i.record.counts.finished, i.record.counts.failed), (2, 1));
    close(ms(&i, Metric::Ttft), 150.0);
    // 20 + 30 + 10 and 20 + 20; the third gap of the second request led to no token.
    assert_eq!(i.record.latencies.itl.count(), 5);
    close(ms(&i, Metric::Itl), 20.0);
    close(i.stated["itl_ms"].mean.unwrap(), 16.83);
    close(ms(&i, Metric::Tpot), 20.0);
    close(ms(&i, Metric::E2e), 200.0);
    assert!(i.notes.iter().any(|n| n.contains("more gaps than tokens")));
    // The arrival order and spacing are kept.
    assert_eq!(
        i.record.request_rows.as_ref().unwrap()[1].arrival,
        SimTime(250_000_000)
    );
}

#[test]
fn a_vllm_file_without_details_gives_its_own_figures_only() {
    let mut value: Value = serde_json::from_str(include_str!("fixtures/vllm.json")).unwrap();
    for key in ["ttfts", "itls", "input_lens", "output_lens"] {
        value.as_object_mut().unwrap().remove(key);
    }
    let i = read(&value.to_string());
    assert_eq!(i.record.counts.offered, 0);
    close(i.stated["ttft_ms"].p99.unwrap(), 199.0);
    close(i.stated["request_throughput"].mean.unwrap(), 1.3333);
}

#[test]
fn aiperf_records_become_rows_and_its_summary_is_kept_as_stated() {
    let i = read(include_str!("fixtures/aiperf.jsonl"));
    let c = i.record.counts;
    assert_eq!(
        (c.offered, c.finished, c.failed, c.timed_out),
        (3, 1, 1, 1),
        "the warm-up is left out"
    );
    close(ms(&i, Metric::Ttft), 100.0);
    close(ms(&i, Metric::E2e), 160.0);
    // Four tokens in three chunks: gaps of 20 and 40 ms, and one token without a gap of its own.
    assert_eq!(i.record.latencies.itl.count(), 3);
    close(ms(&i, Metric::Itl), 20.0);
    let i = read(include_str!("fixtures/aiperf.json"));
    assert_eq!(i.record.counts.offered, 0);
    close(i.stated["time_to_first_token [ms]"].p99.unwrap(), 110.0);
}

#[test]
fn counts_of_the_server_stand_before_those_that_aiperf_made_of_the_text() {
    let record = |usage: &str| {
        format!(
            r#"{{"metadata":{{"benchmark_phase":"profiling","request_start_ns":2000000000,"request_end_ns":2165000000}},"metrics":{{"time_to_first_token":{{"value":100.0,"unit":"ms"}},"request_latency":{{"value":160.0,"unit":"ms"}},"input_sequence_length":{{"value":128,"unit":"tokens"}},"output_sequence_length":{{"value":5,"unit":"tokens"}}{usage}}},"error":null}}"#
        )
    };
    let of_server = record(
        r#","usage_prompt_tokens":{"value":140,"unit":"tokens"},"usage_completion_tokens":{"value":4,"unit":"tokens"},"usage_prompt_cache_read_tokens":{"value":16,"unit":"tokens"}"#,
    );
    let i = read(&of_server);
    let t = i.record.tokens;
    assert_eq!((t.prompt, t.output, t.cached), (140, 4, 16));
    close(ms(&i, Metric::Tpot), 20.0);
    assert!(
        !i.notes.iter().any(|n| n.contains("own tokenizer")),
        "{:?}",
        i.notes
    );
    let of_client = read(&record(""));
    assert_eq!(
        (
            of_client.record.tokens.prompt,
            of_client.record.tokens.output
        ),
        (128, 5)
    );
    assert!(
        of_client
            .notes
            .iter()
            .any(|n| n.contains("tokens of 1 answers")),
        "{:?}",
        of_client.notes
    );
}

#[test]
fn a_guidellm_file_that_keeps_a_sample_says_so() {
    let mut value: Value = serde_json::from_str(include_str!("fixtures/guidellm.json")).unwrap();
    let whole = read(&value.to_string());
    assert!(
        !whole.notes.iter().any(|n| n.contains("a sample")),
        "{:?}",
        whole.notes
    );
    value["benchmarks"][0]["scheduler_metrics"]["requests_made"]["successful"] = 400.into();
    let sampled = read(&value.to_string());
    let told = |n: &String| n.contains("lists 2 of 400 successful requests, a sample");
    assert!(sampled.notes.iter().any(told), "{:?}", sampled.notes);
    // Where the file counts what it measured, that is what the lists are held against.
    value["benchmarks"][0]["metrics"]["request_totals"] =
        serde_json::json!({"successful": 2, "errored": 1, "incomplete": 2});
    let warmed = read(&value.to_string());
    assert!(!warmed.notes.iter().any(told), "{:?}", warmed.notes);
}

#[test]
fn names_in_a_file_cannot_act_on_a_terminal() {
    let mut value: Value = serde_json::from_str(include_str!("fixtures/vllm.json")).unwrap();
    value["model_id"] = "m\u{1b}[2J".into();
    let i = read(&value.to_string());
    assert_eq!(i.record.info.deployment, "m\\u{1b}[2J");
}

#[test]
fn inference_perf_is_read_in_seconds_from_both_of_its_files() {
    let i = read(include_str!("fixtures/inference_perf_requests.json"));
    assert_eq!((i.record.counts.finished, i.record.counts.failed), (2, 1));
    close(ms(&i, Metric::Ttft), 95.0);
    close(ms(&i, Metric::Itl), 20.0);
    assert_eq!(i.record.tokens.prompt, 192);
    let i = read(include_str!("fixtures/inference_perf_summary.json"));
    close(i.stated["inter_token_latency [s]"].p99.unwrap(), 0.02);
    close(i.stated["failures"].mean.unwrap(), 1.0);
}

#[test]
fn files_of_no_known_format_are_refused_with_a_reason() {
    for (bad, why) in [
        ("", "empty"),
        ("{}", "no known"),
        ("[1, 2]", "no known"),
        ("{\"benchmarks\": []}", "no benchmarks"),
        (
            "{\"ttfts\": [1], \"itls\": [], \"input_lens\": [1], \"output_lens\": [1]}",
            "entries",
        ),
        ("{\"a\": 1}\n{\"b\":", "line 2"),
        ("[{\"start_time\": 1, \"info\": {}}]", "no end_time"),
        (
            "[{\"start_time\": 2, \"end_time\": 1, \"info\": {}}]",
            "before it starts",
        ),
    ] {
        let e = parse(bad, "x").unwrap_err();
        assert!(e.contains(why), "{bad}: {e}");
    }
    assert!(matches!(
        import(Path::new("/nowhere/x.json")),
        Err(ImportError::File { .. })
    ));
}

fn bench() -> Bench {
    let schedule = Schedule {
        first: Duration::from_millis(5),
        gap: Duration::from_millis(2),
    };
    let server = EchoServer::start(schedule).unwrap();
    let session = Session::prepare(
        Endpoint::new(&server.url()).unwrap(),
        &Preparation::default(),
    )
    .unwrap();
    let text = "[step]\nbase = \"1 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 1000\n[[workload]]\n\
        arrival = { kind = \"constant\", rate = \"200 req/s\" }\nprompt = 20\noutput = 6\n[run]\nrequests = 20\n";
    session
        .run(
            &Scenario::parse(text, "t", &[]).unwrap(),
            &Options::default(),
        )
        .unwrap()
}

#[test]
fn what_is_written_in_the_formats_of_others_reads_back_to_the_same_latencies() {
    let b = bench();
    for (value, itl_is_exact) in [(guidellm::write(&b), false), (vllm::write(&b), true)] {
        let i = read(&value.to_string());
        assert_eq!(i.record.counts.finished, 20);
        assert_eq!(i.record.tokens.output, b.record.tokens.output);
        assert_eq!(i.record.tokens.prompt, b.record.tokens.prompt);
        for metric in [Metric::Ttft, Metric::Tpot, Metric::E2e, Metric::Itl] {
            let (ours, theirs) = (b.record.latencies.of(metric), i.record.latencies.of(metric));
            assert_eq!(ours.count(), theirs.count(), "{metric:?}");
            // Wall-clock seconds in a double keep about a quarter of a microsecond.
            let (a, b) = (ours.mean_ns().unwrap(), theirs.mean_ns().unwrap());
            assert!((a - b).abs() < 2_000.0, "{metric:?}: {a} {b}");
        }
        if itl_is_exact {
            let (a, b) = (
                b.record.latencies.itl.quantile_ns(0.9).unwrap(),
                i.record.latencies.itl.quantile_ns(0.9).unwrap(),
            );
            assert!((a - b).abs() < 0.01 * a + 2_000.0, "{a} {b}");
        }
    }
    // The stated figures of a GuideLLM-like file are those of the report.
    let i = read(&guidellm::write(&b).to_string());
    let ttft = i.stated["time_to_first_token_ms"].mean.unwrap();
    close(
        ttft,
        b.report().client.guidellm.time_to_first_token_ms.unwrap(),
    );
}
