//! Pools of replicas in scenario files.

use super::*;
use crate::cluster::pools::Role;
use crate::request::Outcome;
use crate::simulation::RunOptions;

/// Prefill and decode apart, on steps of constant time.
const SPLIT: &str = r#"[step]
base = "10 ms"
[engine]
kind = "vllm"
kv_blocks = 1000
max_model_len = 8192
[[pool]]
name = "p"
role = "prefill"
replicas = 2
[[pool]]
name = "d"
role = "decode"
engine = { kv_blocks = 2000 }
[kv_transfer]
bandwidth = "1 GB/s"
latency = "1 ms"
bytes_per_token = 100000
[[workload]]
arrival = { kind = "poisson", rate = "5 req/s" }
prompt = 1000
output = 20
[run]
requests = 50
"#;

/// Pools of two models, one of them split by the length of prompts.
const MODELS: &str = r#"[model]
name = "llama-3.1-8b"
[hardware]
instance = "p5.4xlarge"
[engine]
kind = "vllm"
max_model_len = 16384
[router]
policy = "least_outstanding"
[[pool]]
name = "short"
max_prompt = 2000
replicas = 2
[[pool]]
name = "long"
min_prompt = 2001
[[pool]]
name = "other"
model = { name = "qwen3-14b" }
hardware = { instance = "p5.48xlarge" }
layout = { tp = 2 }
[[workload]]
name = "a"
model = "llama-3.1-8b"
arrival = { kind = "poisson", rate = "2 req/s" }
prompt = { kind = "uniform", min = 1000, max = 3000 }
output = 20
[[workload]]
name = "b"
model = "qwen3-14b"
arrival = { kind = "poisson", rate = "2 req/s" }
prompt = 500
output = 20
[run]
requests = 60
"#;

#[test]
fn a_scenario_with_pools_is_shown_as_it_is_read() {
    for text in [SPLIT, MODELS] {
        let scenario = parse(text, &[]).unwrap();
        let shown = scenario.show();
        let again = parse(&shown, &[]).unwrap_or_else(|e| panic!("{e}\n{shown}"));
        assert_eq!(again, scenario, "{shown}");
    }
}

#[test]
fn a_pool_has_the_keys_of_the_top_and_its_own() {
    let s = parse(SPLIT, &[]).unwrap();
    assert_eq!((s.replicas, s.pools.len()), (3, 2));
    assert_eq!(s.pools[1].engine.common.kv_blocks, Some(2000));
    assert_eq!(s.pools[0].engine.common.kv_blocks, Some(1000));
    assert_eq!((s.pools[1].role, s.pools[1].replicas), (Role::Decode, 1));
    let s = parse(SPLIT, &["pool.d.replicas=4"]).unwrap();
    assert_eq!(s.replicas, 6);
}

#[test]
fn requests_go_through_both_pools_and_the_report_says_how() {
    let record = (parse(SPLIT, &[]).unwrap())
        .run(&RunOptions::default())
        .unwrap();
    let report = crate::report::RunReport::new(&record, 0.0);
    assert_eq!(report.requests.finished, 50);
    let transfers = report.kv_transfer.as_ref().unwrap();
    assert_eq!(transfers.count, 50);
    assert_eq!(transfers.bytes, 50.0 * 1000.0 * 1e5);
    // 100 MB at 1 GB/s after 1 ms; more where they meet.
    assert!(transfers.time_ms.p50.unwrap() >= 101.0);
    assert_eq!(report.pools.len(), 2);
    assert!(report.pools[0].kv_held_for_transfer_ratio > 0.0);
    assert!(report.pools[0].kv_held_for_transfer_ratio <= report.pools[0].kv_mean_ratio);
    let text = crate::report::text::render(&report, Default::default());
    assert!(
        text.contains("KV transfer") && text.contains("pool p"),
        "{text}"
    );
}

#[test]
fn requests_go_to_the_pool_of_their_model_and_length() {
    let record = (parse(MODELS, &[]).unwrap())
        .run(&RunOptions::default())
        .unwrap();
    for row in record.request_rows.as_ref().unwrap() {
        let pool = match row.replica {
            0 | 1 => "short",
            2 => "long",
            _ => "other",
        };
        let right = match (row.stream, row.prompt_tokens) {
            (1, _) => "other",
            (_, n) if n <= 2000 => "short",
            _ => "long",
        };
        assert_eq!(pool, right, "{row:?}");
    }
    let report = crate::report::RunReport::new(&record, 0.0);
    let models: Vec<&str> = report.models.iter().map(|m| m.model.as_str()).collect();
    assert_eq!(models, ["llama-3.1-8b", "qwen3-14b"]);
    assert_eq!(
        report
            .models
            .iter()
            .map(|m| m.requests.offered)
            .sum::<u64>(),
        60
    );
}

#[test]
fn prompts_that_no_pool_takes_are_refused() {
    let record = (parse(MODELS, &["pool.long.max_prompt=2500"]).unwrap())
        .run(&RunOptions::default())
        .unwrap();
    let rows = record.request_rows.unwrap();
    let long = |n: u32| n > 2500;
    assert!(rows.iter().any(|r| long(r.prompt_tokens)));
    for r in rows {
        let is_refused = matches!(r.outcome, Outcome::Rejected(_));
        assert_eq!(is_refused, r.stream == 0 && long(r.prompt_tokens));
    }
}

#[test]
fn the_link_of_pools_on_one_node_is_that_of_its_devices_and_else_the_network() {
    let text = |instance: &str| {
        format!(
            "[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"{instance}\"\n[engine]\nkind = \"vllm\"\n\
             [[pool]]\nrole = \"prefill\"\n[[pool]]\nrole = \"decode\"\n\
             [[workload]]\narrival = {{ kind = \"poisson\", rate = \"1 req/s\" }}\nprompt = 9\noutput = 9\n[run]\nrequests = 5\n"
        )
    };
    let port = |instance: &str| {
        let built = parse(&text(instance), &[]).unwrap().build().unwrap();
        let serving = built.simulation.serving;
        (
            serving.pools[0].kv_bandwidth,
            serving.transfer.unwrap().latency.0,
            built.info.usd_per_hour.unwrap(),
        )
    };
    let catalog = hwmodels::catalog::Catalog::builtin();
    let eight = catalog.instance("p5.48xlarge").unwrap();
    let link = catalog.link(eight.intra_link.as_deref().unwrap()).unwrap();
    let (bandwidth, latency, usd) = port("p5.48xlarge");
    assert_eq!(bandwidth, link.bandwidth);
    assert_eq!(latency, (link.latency * 1e9).round() as u64);
    assert_eq!(usd, eight.price().unwrap().usd.usd_per_hour(), "one node");
    let one = catalog.instance("p5.4xlarge").unwrap();
    let (bandwidth, _, usd) = port("p5.4xlarge");
    assert_eq!(bandwidth, one.network_bandwidth);
    assert_eq!(usd, 2.0 * one.price().unwrap().usd.usd_per_hour());
}

#[test]
fn pools_that_cannot_work_together_are_refused_in_words() {
    for (text, overrides, words) in [
        (
            SPLIT,
            &["pool.d.role=both"][..],
            "no pool with role = \"decode\"",
        ),
        (SPLIT, &["pool.d.name=p"], "two pools named `p`"),
        (
            SPLIT,
            &["engine={ kind = \"tgi\", kv_blocks = 1000 }"],
            "not for tgi",
        ),
        (
            SPLIT,
            &["kv_transfer.first_token=relay"],
            "\"relay\" is SGLang's way",
        ),
        (
            SGLANG,
            &["kv_transfer.first_token=prefill"],
            "must be \"relay\" under SGLang",
        ),
        (SPLIT, &["layout.replicas=3"], "write replicas there"),
        (
            SPLIT,
            &["pool.d.max_prompt=500"],
            "no decode pool takes prompts of all lengths",
        ),
        (
            SPLIT,
            &["pool.p.min_prompt=9", "pool.p.max_prompt=3"],
            "must be at least min_prompt (9)",
        ),
        (
            SPLIT,
            &["pool.d.engine.max_num_seq=3"],
            "did you mean `max_num_seqs`?",
        ),
        (
            SPLIT,
            &["pool.d.engine.kind=trt_llm"],
            "cannot read each other's KV",
        ),
        (SPLIT, &["pool.d.engine.kind=vlm"], "unknown engine `vlm`"),
        (MODELS, &["workload.a.model=gpt"], "no pool serves `gpt`"),
        (
            MODELS,
            &["kv_transfer.layerwise=true"],
            "no pool has such a role",
        ),
        (
            MODELS,
            &["pool.long.layout.replicas=2"],
            "beside the pool's name",
        ),
    ] {
        let message = refused(text, overrides);
        assert!(message.contains(words), "{overrides:?}: {message}");
    }
    let no_model = MODELS.replace("model = \"qwen3-14b\"\narrival", "arrival");
    assert!(refused(&no_model, &[]).contains("say which this stream asks for"));
    let no_link = SPLIT.replace("bandwidth = \"1 GB/s\"\n", "");
    let e = parse(&no_link, &[])
        .unwrap()
        .build()
        .err()
        .unwrap()
        .to_string();
    assert!(e.contains("`bandwidth` is missing"), "{e}");
}

/// DeepSeek-R1 under SGLang, with two nodes for each server.
const SGLANG: &str = r#"[model]
name = "deepseek-r1"
[hardware]
instance = "gd-8xh100ib-i128"
[layout]
tp = 16
[engine]
kind = "sglang"
version = "0.5.8"
[[pool]]
name = "p"
role = "prefill"
[pool.engine]
mem_fraction_static = 0.6
[[pool]]
name = "d"
role = "decode"
[[workload]]
arrival = { kind = "poisson", rate = "1 req/s" }
prompt = 1000
output = 20
[run]
requests = 20
"#;

#[test]
fn sglangs_servers_relay_the_first_token_and_every_rank_gets_its_latent() {
    let built = parse(SGLANG, &[]).unwrap().build().unwrap();
    let serving = &built.simulation.serving;
    let transfer = serving.transfer.unwrap();
    assert_eq!(
        transfer.first_token,
        crate::cluster::pools::FirstToken::Relay
    );
    // 576 values of 2 bytes in 61 layers, once for each of 16 ranks; two nodes of eight adapters of 400 Gb/s.
    let pool = &serving.pools[0];
    assert_eq!(pool.kv_bytes_per_token, 576.0 * 2.0 * 61.0 * 16.0);
    assert!(
        (pool.kv_bandwidth - 800e9).abs() < 1e9,
        "{}",
        pool.kv_bandwidth
    );
    let record = built.run(&RunOptions::default()).unwrap();
    assert_eq!(record.counts.finished, 20);
}

#[test]
fn drafts_need_a_module_of_the_model_that_makes_them() {
    let drafts = ["pool.d.engine.speculative_algorithm=EAGLE"];
    let with = parse(SGLANG, &drafts).unwrap().build();
    assert!(with.is_ok(), "{:?}", with.err());
    let other = SGLANG
        .replace("\"deepseek-r1\"", "\"qwen3-235b-a22b\"\nweights = \"fp8\"")
        .replace("tp = 16", "tp = 8");
    let e = parse(&other, &drafts).unwrap().build().err().unwrap();
    assert!(
        e.to_string()
            .contains("no module for multi-token prediction"),
        "{e}"
    );
}

#[test]
fn an_issue_of_a_pool_stands_at_the_pools_own_key() {
    let e = refused(SPLIT, &["pool.d.engine.kv_blocks=1"]);
    assert!(
        e.starts_with("--set pool.d.engine.kv_blocks=1: pool[1].engine.kv_blocks: "),
        "{e}"
    );
    let wrong = MODELS.replace("layout = { tp = 2 }", "layout = { tp = 3 }");
    let e = parse(&wrong, &[])
        .unwrap()
        .build()
        .err()
        .unwrap()
        .to_string();
    assert!(e.contains("pool[2].layout: pool `other`: "), "{e}");
}
