//! Every scenario that ships runs as it is, shortened to a few requests each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hwmodels::files::Bundle;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios")
}

fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|f| f.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    assert!(files.len() > 20, "the scenarios are not where they were");
    files
}

#[test]
fn every_shipped_scenario_builds_and_runs() {
    let overrides = ["run.requests=40".to_string(), "run.warmup=0 s".to_string()];
    for file in files() {
        let name = file.display();
        let scenario = Scenario::load(&file, &overrides).unwrap_or_else(|e| panic!("{e}"));
        let record = scenario
            .run(&RunOptions {
                check: true,
                ..RunOptions::default()
            })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let c = record.counts;
        assert!(c.conserved(), "{name}: {c:?}");
        assert!(c.offered >= 40, "{name}: {c:?}");
        assert!(c.finished >= 38, "{name}: {c:?}");
    }
}

#[test]
fn every_shipped_scenario_says_what_it_shows_and_is_listed() {
    let index = std::fs::read_to_string(folder().join("README.md")).unwrap();
    for file in files() {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            text.starts_with("# "),
            "{name} starts with a comment on what it shows"
        );
        assert!(
            text.contains("\ndescription = \""),
            "{name} has a description"
        );
        assert!(
            index.contains(&format!("`{name}`")),
            "{name} is not in scenarios/README.md"
        );
    }
}

#[test]
fn every_shipped_scenario_reads_back_from_what_is_shown() {
    for file in files() {
        let origin = file.display().to_string();
        let scenario = Scenario::load(&file, &[]).unwrap();
        let again = Scenario::parse(&scenario.show(), &origin, &[]).unwrap();
        assert_eq!(scenario, again, "{origin}");
    }
}

#[test]
fn the_same_scenario_and_seed_give_the_same_fingerprint() {
    let file = folder().join("llama3.1-8b-h100-vllm-chat-sessions.toml");
    let run = |seed: u64| {
        let overrides = ["run.requests=200".to_string(), format!("seed={seed}")];
        let s = Scenario::load(&file, &overrides).unwrap();
        s.run(&RunOptions::default()).unwrap().fingerprint
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Runs the textbook queue; the mean wait [s].
fn mean_wait(overrides: &[String]) -> f64 {
    let file = folder().join("queue-m-d-1.toml");
    let record = Scenario::load(&file, overrides)
        .unwrap()
        .run(&RunOptions::default())
        .unwrap();
    record.latencies.queue.mean_secs().unwrap()
}

#[test]
fn the_textbook_queue_waits_as_long_as_the_textbook_says() {
    // M/D/1 at rho = 0.8 and 10 ms of service: Wq = rho / (2 (1 - rho)) x 10 ms = 20 ms. With 100 000 customers the
    // standard error of the mean, whose samples correlate over about 1 / (1 - rho)^2 services, is near 0.5 ms.
    let wait = mean_wait(&[]);
    assert!((wait - 0.020).abs() < 0.002, "{wait}");
    let half = mean_wait(&["workload.customers.arrival.rate=40 req/s".to_string()]);
    assert!((half - 0.4 / 1.2 * 0.010).abs() < 0.0004, "{half}");
}

/// A scenario and the files that it names need no disk.
#[test]
fn a_scenario_runs_from_files_in_memory() {
    let scenario = "model.name = \"llama-3.1-8b\"\n[hardware]\ninstance = \"g6.xlarge\"\n[engine]\nkind = \"vllm\"\nmax_model_len = 4096\n\
        [[workload]]\narrival = { kind = \"trace\", file = \"traces/t.csv\" }\n";
    let trace = "arrival_s,prompt_tokens,output_tokens\n0.5,100,10\n1.0,200,20\n1.5,50,5\n";
    let bundle = Bundle::from_iter([("in/s.toml", scenario), ("in/traces/t.csv", trace)]);
    let s = Scenario::load_from(Arc::new(bundle.clone()), "in/s.toml".as_ref(), &[]).unwrap();
    let record = s.run(&RunOptions::default()).unwrap();
    assert_eq!(record.counts.finished, 3);

    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("in/traces")).unwrap();
    std::fs::write(dir.path().join("in/s.toml"), scenario).unwrap();
    std::fs::write(dir.path().join("in/traces/t.csv"), trace).unwrap();
    let on_disk = Scenario::load(&dir.path().join("in/s.toml"), &[]).unwrap();
    let same = on_disk.run(&RunOptions::default()).unwrap();
    assert_eq!(record.fingerprint, same.fingerprint);
}

#[test]
fn vllm_takes_its_limits_by_release_and_device() {
    let limits = |accelerator: &str, version: &str| {
        let text = format!(
            r#"
            [model]
            name = "qwen2.5-7b"
            [hardware]
            accelerator = "{accelerator}"
            [engine]
            kind = "vllm_v1"
            version = "{version}"
            max_model_len = 4096
            [[workload]]
            arrival = {{ kind = "closed", concurrency = 1 }}
            prompt = 64
            output = 8
            [run]
            requests = 1
            "#
        );
        let scenario = Scenario::parse(&text, "limits.toml", &[]).expect("reads");
        assert_eq!(
            scenario.engine.params.to_table()["version"].as_str(),
            Some(version)
        );
        let built = scenario.build().unwrap_or_else(|e| panic!("{e}"));
        ["max_num_batched_tokens", "max_num_seqs"].map(|key| built.decided[key].as_integer())
    };
    for (accelerator, version, tokens, seqs) in [
        ("rtx-4090", "0.8.3", 2048, 1024),
        ("rtx-4090", "0.8.4", 2048, 256),
        ("h100-pcie", "0.8", 8192, 1024),
        ("A100-SXM4-80GB", "0.8.5", 8192, 1024),
        ("A100-SXM4-80GB", "0.9", 2048, 256),
        ("b200", "0.27", 8192, 1024),
        ("b200", "0.28", 16_384, 1024),
    ] {
        assert_eq!(
            limits(accelerator, version),
            [Some(tokens), Some(seqs)],
            "{accelerator} {version}"
        );
    }
}

/// A scenario of a model whose layers keep states, with `keys` of its engine.
fn states(model: &str, keys: &str) -> Scenario {
    let text = format!(
        r#"
        [model]
        name = "{model}"
        [hardware]
        instance = "p5.48xlarge"
        [layout]
        tp = 4
        [engine]
        {keys}
        [[workload]]
        arrival = {{ kind = "poisson", rate = "2 req/s" }}
        prompt = 4000
        output = 50
        [run]
        requests = 30
        "#
    );
    Scenario::parse(&text, "states.toml", &[]).expect("reads")
}

#[test]
fn models_whose_layers_keep_states_run_under_the_engines_that_have_them() {
    for model in [
        "kimi-linear-48b-a3b",
        "nemotron-nano-9b-v2",
        "granite-4.0-h-small",
        "qwen3-next-80b-a3b",
    ] {
        for keys in [
            "kind = \"vllm_v1\"\nmax_model_len = 65536",
            "kind = \"trt_llm\"\nmax_batch_size = 64",
            "kind = \"sglang\"\ndisable_radix_cache = true\nmax_running_requests = 64",
        ] {
            let record = states(model, keys).run(&RunOptions::default());
            let record = record.unwrap_or_else(|e| panic!("{model} {keys}: {e}"));
            assert_eq!(record.counts.finished, 30, "{model} {keys}");
        }
        let e = states(model, "kind = \"tgi\"").build().map(|_| ());
        let e = e.expect_err("TGI has no such layers").to_string();
        assert!(e.contains("which are modelled for vLLM V1"), "{model}: {e}");
    }
}

#[test]
fn engines_refuse_what_they_cannot_do_beside_states() {
    for (keys, words) in [
        (
            "kind = \"sglang\"\nmax_running_requests = 64",
            ["disable_radix_cache", "set it to true"],
        ),
        (
            "kind = \"sglang\"\ndisable_radix_cache = true",
            ["max_running_requests", "mamba_full_memory_ratio"],
        ),
        (
            "kind = \"trt_llm\"\nenable_kv_cache_reuse = true",
            ["enable_kv_cache_reuse", "set it to false"],
        ),
    ] {
        let s = states("nemotron-nano-9b-v2", keys);
        let e = s.build().map(|_| ()).expect_err("refused").to_string();
        for w in words {
            assert!(e.contains(w), "{keys}: `{w}` is not in: {e}");
        }
    }
}

#[test]
fn ranges_are_wider_where_kernels_of_states_were_not_measured() {
    let measured = |model: &str, engine: &str| {
        let record = states(model, engine).run(&RunOptions::default());
        let info = record.unwrap_or_else(|e| panic!("{e}")).info;
        info.like.map(|kind| kind.measured_chip)
    };
    let vllm = "kind = \"vllm_v1\"\nmax_model_len = 65536";
    let trt = "kind = \"trt_llm\"\nmax_batch_size = 64";
    assert_eq!(measured("kimi-linear-48b-a3b", vllm), Some(true));
    assert_eq!(measured("kimi-linear-48b-a3b", trt), Some(false));
    assert_eq!(measured("nemotron-nano-9b-v2", vllm), Some(false));
    assert_eq!(measured("qwen3-next-80b-a3b", trt), Some(true));
}
