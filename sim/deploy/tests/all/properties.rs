//! Properties: what is exported is imported as it was; no text makes an importer panic or costs more than its length; the documents list what the tables say.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use deploy::import::{Kind, Options, import, tables};
use deploy::keys::Meaning;
use deploy::{Source, Target, export};
use proptest::prelude::*;
use sim::scenario::Scenario;

fn fixtures() -> Vec<(String, String)> {
    let root = format!("{}/tests/files", env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for dir in std::fs::read_dir(root).unwrap() {
        for file in std::fs::read_dir(dir.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((
                path.file_name().unwrap().to_string_lossy().into_owned(),
                text,
            ));
        }
    }
    found.sort();
    assert!(found.len() > 8);
    found
}

/// Imports and checks that every fault has words and a place.
fn tried(sources: &[Source], kind: Option<Kind>) {
    let options = Options {
        kind,
        instance: Some("p5.48xlarge".into()),
        model: Some("llama-3.1-8b".into()),
    };
    match import(sources, &options) {
        Ok(imported) => {
            Scenario::parse(&imported.scenario, "x.toml", &[])
                .expect("what is imported is a scenario");
        }
        Err(error) => {
            assert!(!error.faults.is_empty());
            for fault in &error.faults {
                assert!(!fault.message.is_empty() && !fault.place.file.is_empty());
                assert!(
                    fault.to_string().chars().all(|c| !c.is_control()),
                    "{fault:?}"
                );
            }
        }
    }
}

/// Words that matter somewhere.
const WORDS: [&str; 22] = [
    "*a",
    "&a ",
    "<<: *a",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "'",
    "\"",
    "$",
    "${X}",
    "$(x",
    "\\",
    "\n",
    "\u{0}",
    "\u{202e}",
    "99999999999999999999999",
    "-1",
    "!!binary ",
    "1e308",
];

fn mutated() -> impl Strategy<Value = (String, String, usize)> {
    let edits = prop::collection::vec(
        (
            any::<prop::sample::Index>(),
            0usize..4,
            0usize..WORDS.len(),
            1usize..40,
        ),
        1..6,
    );
    let kinds = Kind::ALL.len() + 1;
    (any::<prop::sample::Index>(), edits, 0..kinds).prop_map(|(which, edits, kind)| {
        let all = fixtures();
        let (name, text) = all[which.index(all.len())].clone();
        let mut chars: Vec<char> = text.chars().collect();
        for (at, what, word, n) in edits {
            let at = at.index(chars.len() + 1);
            let end = (at + n).min(chars.len());
            match what {
                0 => drop(chars.splice(at..at, WORDS[word].chars())),
                1 => drop(chars.drain(at..end)),
                2 => {
                    let again: Vec<char> = chars[at..end].to_vec();
                    drop(chars.splice(at..at, again));
                }
                _ => drop(chars.splice(at..end, WORDS[word].chars())),
            }
        }
        (name, chars.into_iter().collect(), kind)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_are_refused_with_words_or_imported((name, text, kind) in mutated()) {
        let kind = kind.checked_sub(1).map(|i| Kind::ALL[i]);
        tried(&[Source::new(name, text)], kind);
    }

    #[test]
    fn random_text_is_refused_with_words(text in "\\PC{0,200}", kind in 0..Kind::ALL.len()) {
        tried(&[Source::new("x", text)], Some(Kind::ALL[kind]));
    }
}

#[test]
fn hostile_files_are_refused_where_they_stand() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for i in 1..30 {
        let _ = writeln!(bomb, "a{i}: &a{i} [{}]", format!("*a{},", i - 1).repeat(10));
    }
    for (name, text, says) in [
        ("bomb.yaml", bomb.as_str(), "aliases"),
        ("deep.yaml", &"[".repeat(100_000), "deep"),
        (
            "twice.yaml",
            "apiVersion: v1\nkind: Pod\nkind: Pod\n",
            "twice.yaml:3: the key `kind` comes twice",
        ),
        ("self.yaml", "a: &a [*a]\n", "hold itself"),
        (
            "huge.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nspec:\n  replicas: 99999999999999999999\n  template:\n    spec:\n      containers:\n      - image: vllm/vllm-openai\n        args: [--model=x]\n",
            "huge.yaml:4: spec.replicas: must be a whole number",
        ),
        (
            "deep.pbtxt",
            &format!("backend: \"x\" {}", "a{".repeat(10_000)),
            "deep",
        ),
        (
            "deep.conf",
            &format!("upstream {}", "a{".repeat(10_000)),
            "deep",
        ),
        (
            "long.sh",
            &format!("vllm serve '{}", "x".repeat(100_000)),
            "does not end",
        ),
        ("empty.yaml", " \n", "is empty"),
        ("what.txt", "once upon a time\n", "--kind"),
    ] {
        let options = Options {
            instance: Some("p5.48xlarge".into()),
            model: Some("llama-3.1-8b".into()),
            ..Options::default()
        };
        let error = import(&[Source::new(name, text)], &options)
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{name}: {error}");
        assert!(error.len() < 2000, "{name}: {}", error.len());
    }
}

// ---- export and back ----

/// Keys of a section with values to choose from; an empty value leaves the key out.
fn keys(choices: &[(&'static str, &[&'static str])]) -> BoxedStrategy<String> {
    let mut all: BoxedStrategy<String> = Just(String::new()).boxed();
    for (key, values) in choices {
        let key = *key;
        let values: Vec<&'static str> = values.to_vec();
        all = (all, prop::sample::select(values))
            .prop_map(move |(text, value)| match value {
                "" => text,
                value => format!("{text}{key} = {value}\n"),
            })
            .boxed();
    }
    all
}

const LOADS: [&str; 4] = [
    "arrival = { kind = \"closed\", concurrency = 16 }\nprompt = 1024\noutput = 256\nrequests = 100\n",
    "arrival = { kind = \"poisson\", rate = \"2.5 req/s\" }\nprompt = { kind = \"normal\", mean = 986, std = 10 }\noutput = 128\nrequests = 100\n",
    "arrival = { kind = \"constant\", rate = \"4 req/s\" }\nprompt = 512\noutput = { kind = \"normal\", mean = 100, std = 25.5 }\nrequests = 77\n",
    "arrival = { kind = \"closed\", concurrency = 1 }\nprompt = 10\noutput = 10\nrequests = 5\n",
];

fn load() -> impl Strategy<Value = String> {
    let slo = prop::sample::select(vec![
        "",
        "[slo]\nttft = \"500 ms\"\n",
        "[slo]\nttft = \"2 s\"\ntpot = \"50 ms\"\ne2e = \"30 s\"\n",
    ]);
    (prop::sample::select(LOADS.to_vec()), slo)
        .prop_map(|(load, slo)| format!("[[workload]]\n{load}{slo}"))
}

fn vllm(
    replicas: &'static [&'static str],
    policies: &'static [&'static str],
    front: &'static str,
) -> impl Strategy<Value = String> {
    let model = keys(&[
        (
            "name",
            &["\"qwen3-14b\"", "\"llama-3.1-8b\"", "\"qwen3-32b\""],
        ),
        ("weights", &["", "\"fp8\"", "\"int4\""]),
        ("kv_cache", &["", "\"fp8\""]),
    ]);
    let layout = keys(&[
        ("tp", &["", "2", "8"]),
        ("pp", &["", "2"]),
        ("replicas", replicas),
    ]);
    let engine = keys(&[
        ("max_model_len", &["", "8192", "16384"]),
        ("max_num_seqs", &["", "64", "256"]),
        ("max_num_batched_tokens", &["", "8192"]),
        ("gpu_memory_utilization", &["", "0.85"]),
        ("enable_prefix_caching", &["", "false"]),
        ("scheduling_policy", &["", "\"priority\""]),
        ("async_scheduling", &["", "false"]),
        ("block_size", &["", "32"]),
        ("cudagraph_capture_sizes", &["", "[1, 2, 4, 8]"]),
        ("cuda_graphs", &["", "false"]),
        ("kv_blocks", &["", "20000"]),
        ("long_prefill_token_threshold", &["", "2048"]),
        ("api_server_count", &["", "4"]),
    ]);
    let router = keys(&[("policy", policies)]);
    (model, layout, engine, router, load()).prop_map(move |(model, layout, engine, router, load)| {
        format!(
            "[model]\n{model}[hardware]\ninstance = \"p5.48xlarge\"\n[layout]\n{layout}[engine]\nkind = \"vllm_v1\"\nversion = \"0.33\"\n{front}{engine}[router]\n{router}{load}"
        )
    })
}

fn sglang(replicas: &'static [&'static str]) -> impl Strategy<Value = String> {
    let model = keys(&[
        ("name", &["\"qwen3-32b\"", "\"deepseek-v3\""]),
        ("weights", &["", "\"fp8\""]),
        ("kv_cache", &["", "\"fp8\""]),
    ]);
    let layout = keys(&[
        ("tp", &["4", "8"]),
        ("dp", &["", "2"]),
        ("replicas", replicas),
    ]);
    let engine = keys(&[
        ("version", &["", "\"0.5.3\""]),
        ("context_length", &["16384"]),
        ("mem_fraction_static", &["", "0.9"]),
        ("max_running_requests", &["", "64"]),
        ("max_queued_requests", &["", "100"]),
        ("chunked_prefill_size", &["", "4096", "-1"]),
        ("max_prefill_tokens", &["", "32768"]),
        ("schedule_policy", &["", "\"lpm\""]),
        ("schedule_conservativeness", &["", "0.3"]),
        ("disable_radix_cache", &["", "true"]),
        ("disable_overlap_schedule", &["", "true"]),
        ("cuda_graphs", &["", "false"]),
    ]);
    let more = keys(&[
        ("cuda_graph_max_bs", &["", "128"]),
        ("enable_mixed_chunk", &["", "true"]),
        ("max_total_tokens", &["", "60000"]),
        ("page_size", &["", "16"]),
        ("disable_piecewise_cuda_graph", &["", "true", "false"]),
    ]);
    (model, layout, engine, more, load()).prop_map(|(model, layout, engine, more, load)| {
        format!("[model]\n{model}[hardware]\ninstance = \"p5en.48xlarge\"\n[layout]\n{layout}[engine]\nkind = \"sglang\"\n{engine}{more}{load}")
    })
}

fn tgi(
    replicas: &'static [&'static str],
    policies: &'static [&'static str],
) -> impl Strategy<Value = String> {
    let model = keys(&[
        ("name", &["\"llama-2-7b\"", "\"mistral-7b-v0.1\""]),
        ("weights", &["", "\"int4\""]),
    ]);
    let layout = keys(&[("tp", &["", "2"]), ("replicas", replicas)]);
    let engine = keys(&[
        ("version", &["\"v2\"", "\"v3\""]),
        ("max_input_tokens", &["1024"]),
        ("max_total_tokens", &["2048"]),
        ("max_batch_prefill_tokens", &["", "4096"]),
        ("max_concurrent_requests", &["", "512"]),
        ("waiting_served_ratio", &["", "1.5"]),
        ("max_waiting_tokens", &["", "10"]),
        ("max_batch_size", &["", "32"]),
        ("cuda_memory_fraction", &["", "0.9"]),
        ("cuda_graphs", &["", "false"]),
    ]);
    let router = keys(&[("policy", policies)]);
    (model, layout, engine, router, load()).prop_map(|(model, layout, engine, router, load)| {
        format!("[model]\n{model}[hardware]\ninstance = \"p4d.24xlarge\"\n[layout]\n{layout}[engine]\nkind = \"tgi\"\n{engine}[router]\n{router}{load}")
    })
}

fn trt(replicas: &'static [&'static str]) -> impl Strategy<Value = String> {
    let model = keys(&[
        ("name", &["\"llama-3.1-405b\"", "\"llama-3.1-70b\""]),
        ("weights", &["", "\"fp8\"", "\"int4\""]),
        ("kv_cache", &["", "\"fp8\""]),
    ]);
    let layout = keys(&[("tp", &["8"]), ("pp", &["", "2"]), ("replicas", replicas)]);
    let engine = keys(&[
        ("max_batch_size", &["", "8", "64"]),
        ("max_num_tokens", &["", "4096"]),
        ("max_seq_len", &["", "131072"]),
        ("tokens_per_block", &["", "64"]),
        ("opt_num_tokens", &["", "16"]),
        ("gemm_plugin", &["", "false"]),
        ("use_fused_mlp", &["", "false"]),
        ("multi_block_mode", &["", "false"]),
        ("enable_kv_cache_reuse", &["", "true"]),
        ("enable_chunked_context", &["", "true"]),
        ("batch_scheduler_policy", &["", "\"max_utilization\""]),
        ("kv_cache_free_gpu_mem_fraction", &["", "0.8"]),
        ("max_queue_size", &["", "100"]),
    ]);
    (model, layout, engine, load()).prop_map(|(model, layout, engine, load)| {
        format!("[model]\n{model}[hardware]\ninstance = \"p5.48xlarge\"\n[layout]\n{layout}[engine]\nkind = \"trt_llm\"\n{engine}{load}")
    })
}

/// Prefill and decode apart, each with limits and a layout of its own.
fn apart(dynamo: bool) -> impl Strategy<Value = String> {
    let side = || {
        let limits = keys(&[
            ("max_num_seqs", &["", "64", "512"]),
            ("max_num_batched_tokens", &["", "4096", "16384"]),
            ("enable_prefix_caching", &["", "false"]),
        ]);
        (1u32..5, prop::sample::select(vec![1u32, 2, 4]), limits)
    };
    let model = keys(&[("kv_cache", &["", "\"fp8\""])]);
    (model, side(), side(), load()).prop_map(move |(model, p, d, load)| {
        let front = if dynamo { "front_end = \"dynamo\"\n" } else { "" };
        let pool = |role: &str, (n, tp, limits): (u32, u32, String)| {
            let limits: Vec<&str> = limits.lines().collect();
            let limits = limits.join(", ");
            format!("[[pool]]\nname = \"{role}\"\nrole = \"{role}\"\nreplicas = {n}\nlayout = {{ tp = {tp} }}\nengine = {{ {limits} }}\n")
        };
        format!(
            "[model]\nname = \"llama-3.1-8b\"\n{model}[hardware]\ninstance = \"p5.48xlarge\"\n[engine]\nkind = \"vllm\"\nmax_model_len = 8192\n{front}{}{}{load}",
            pool("prefill", p),
            pool("decode", d)
        )
    })
}

/// Exports, imports, and compares all but name and words. The target can say everything; at most the machine is told by an option.
fn there_and_back(text: &str, target: Target) -> Result<(), TestCaseError> {
    let Ok(scenario) = Scenario::parse(text, "x.toml", &[]) else {
        return Err(TestCaseError::reject("the keys do not go together"));
    };
    let exported =
        export(&scenario, target).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
    let lost: Vec<&String> = exported
        .not_said
        .iter()
        .filter(|n| !n.starts_with("hardware: import with") && !n.contains("devices"))
        .collect();
    prop_assert!(lost.is_empty(), "{lost:?}\n{text}");
    let sources: Vec<Source> = exported
        .files
        .iter()
        .map(|f| Source::new(f.name.clone(), f.text.clone()))
        .collect();
    let files: String = sources
        .iter()
        .map(|s| format!("--- {}\n{}", s.name, s.text))
        .collect();
    let machine = exported
        .not_said
        .iter()
        .any(|n| n.starts_with("hardware: import with"));
    let instance = scenario
        .hardware
        .as_ref()
        .filter(|_| machine)
        .map(|h| h.instance.clone());
    let options = Options {
        instance,
        ..Options::default()
    };
    let imported =
        import(&sources, &options).map_err(|e| TestCaseError::fail(format!("{e}\n{files}")))?;
    prop_assert!(
        !imported.report.is_partial(),
        "{}\n{files}",
        imported.report.render()
    );
    let mut back = Scenario::parse(&imported.scenario, "y.toml", &[])
        .map_err(|e| TestCaseError::fail(e.to_string()))?;
    back.name = scenario.name.clone();
    back.description = scenario.description.clone();
    if !scenario.pools.is_empty() {
        // The top of the file is what pools leave out; what each of them is counts.
        back.layout = scenario.layout;
        back.engine = scenario.engine.clone();
        prop_assert_eq!(back.pools.len(), 2);
        back.pools
            .sort_by_key(|p| scenario.pools.iter().position(|o| o.role == p.role));
    }
    prop_assert_eq!(
        &back,
        &scenario,
        "{}\n{}\n{}",
        text,
        files,
        imported.scenario
    );
    Ok(())
}

const NO_ROUTER: &[&str] = &[""];

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, max_global_rejects: 4000, ..ProptestConfig::default() })]

    #[test]
    fn a_vllm_command_comes_back(text in vllm(&[""], NO_ROUTER, "")) {
        there_and_back(&text, Target::Vllm)?;
    }

    #[test]
    fn a_deployment_of_vllm_comes_back(text in vllm(&["", "3"], NO_ROUTER, "")) {
        there_and_back(&text, Target::Kubernetes)?;
    }

    #[test]
    fn a_leader_worker_set_of_vllm_comes_back(text in vllm(&["", "2"], NO_ROUTER, "")) {
        there_and_back(&text, Target::LeaderWorkerSet)?;
    }

    #[test]
    fn a_dynamo_graph_comes_back(text in vllm(&["", "4"], &["", "\"prefix_aware\""], "front_end = \"dynamo\"\n")) {
        there_and_back(&text, Target::Dynamo)?;
    }

    #[test]
    fn values_of_llm_d_come_back(text in vllm(&["", "4"], NO_ROUTER, "")) {
        there_and_back(&text, Target::LlmD)?;
    }

    #[test]
    fn prefill_and_decode_apart_come_back_from_a_dynamo_graph(text in apart(true)) {
        there_and_back(&text, Target::Dynamo)?;
    }

    #[test]
    fn prefill_and_decode_apart_come_back_from_llm_d(text in apart(false)) {
        there_and_back(&text, Target::LlmD)?;
    }

    #[test]
    fn a_deployment_of_tgi_comes_back(text in tgi(&["", "3"], NO_ROUTER)) {
        there_and_back(&text, Target::Kubernetes)?;
    }

    #[test]
    fn tgi_behind_nginx_comes_back(text in tgi(&["", "4"], &["", "\"least_outstanding\"", "\"random\"", "\"power_of_two\"", "\"session\""])) {
        there_and_back(&text, Target::TgiCompose)?;
    }

    #[test]
    fn an_sglang_command_comes_back(text in sglang(&[""])) {
        there_and_back(&text, Target::Sglang)?;
    }

    #[test]
    fn a_deployment_of_sglang_comes_back(text in sglang(&["", "3"])) {
        there_and_back(&text, Target::Kubernetes)?;
    }

    #[test]
    fn a_tensorrt_llm_engine_comes_back(text in trt(&[""])) {
        there_and_back(&text, Target::TrtLlm)?;
    }

    #[test]
    fn values_of_the_triton_chart_come_back(text in trt(&["", "2"])) {
        there_and_back(&text, Target::TritonHelm)?;
    }

    #[test]
    fn a_leader_worker_set_of_triton_comes_back(text in trt(&["", "2"])) {
        there_and_back(&text, Target::LeaderWorkerSet)?;
    }
}

#[test]
fn what_a_target_does_not_run_is_refused() {
    let path = format!(
        "{}/../../scenarios/llama2-7b-g5.2xlarge-tgi.toml",
        env!("CARGO_MANIFEST_DIR")
    );
    let scenario = Scenario::load(path.as_ref(), &[]).unwrap();
    let error = export(&scenario, Target::Vllm).unwrap_err().to_string();
    assert!(error.contains("runs vllm_v1, the scenario tgi"), "{error}");
    let path = format!(
        "{}/../../scenarios/queue-m-d-1.toml",
        env!("CARGO_MANIFEST_DIR")
    );
    let scenario = Scenario::load(path.as_ref(), &[]).unwrap();
    assert!(export(&scenario, Target::Kubernetes).is_err());
}

#[test]
fn pools_that_a_target_cannot_say_are_refused_in_words() {
    let text = "[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"p5.48xlarge\"\n[engine]\nkind = \"vllm\"\n[[workload]]\narrival = { kind = \"poisson\", rate = \"1 req/s\" }\nprompt = 100\noutput = 10\n[run]\nrequests = 10\n";
    let long = format!("{text}[[pool]]\nmin_prompt = 1000\n[[pool]]\nmax_prompt = 999\n");
    let scenario = Scenario::parse(&long, "x.toml", &[]).unwrap();
    for target in [Target::Dynamo, Target::Vllm] {
        let error = export(&scenario, target).unwrap_err().to_string();
        assert!(error.contains("export to k8s or lws"), "{error}");
    }
    let three = format!(
        "{text}[[pool]]\nrole = \"prefill\"\n[[pool]]\nrole = \"decode\"\n[[pool]]\nrole = \"decode\"\n"
    );
    let scenario = Scenario::parse(&three, "x.toml", &[]).unwrap();
    let error = export(&scenario, Target::Dynamo).unwrap_err().to_string();
    assert!(error.contains("export each [[pool]]"), "{error}");
    let apart = format!("{text}[[pool]]\nrole = \"prefill\"\n[[pool]]\nrole = \"decode\"\n");
    let scenario = Scenario::parse(&apart, "x.toml", &[]).unwrap();
    let error = export(&scenario, Target::Vllm).unwrap_err().to_string();
    assert!(
        error.contains("export to dynamo, llm-d, k8s or lws"),
        "{error}"
    );
    assert_eq!(
        export(&scenario, Target::Dynamo).unwrap().files[0].name,
        "graph.yaml"
    );
}

#[test]
fn each_pool_of_whole_requests_gets_manifests_that_give_it_back() {
    let text = "name = \"both\"\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"p5.48xlarge\"\n[engine]\nkind = \"vllm\"\nmax_model_len = 8192\n[[workload]]\narrival = { kind = \"poisson\", rate = \"1 req/s\" }\nprompt = 100\noutput = 10\n[run]\nrequests = 10\n\
        [[pool]]\nname = \"long\"\nmin_prompt = 1000\nreplicas = 3\nlayout = { tp = 4 }\n[[pool]]\nname = \"short\"\nmax_prompt = 999\nreplicas = 2\nengine = { max_num_seqs = 64 }\n";
    let scenario = Scenario::parse(text, "x.toml", &[]).unwrap();
    let exported = export(&scenario, Target::Kubernetes).unwrap();
    let names: Vec<&str> = exported.files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["long-deployment.yaml", "short-deployment.yaml"]);
    assert!(
        exported
            .not_said
            .iter()
            .any(|n| n.contains("your gateway's")),
        "{:?}",
        exported.not_said
    );
    for (file, pool) in exported.files.iter().zip(&scenario.pools) {
        let options = Options {
            instance: Some("p5.48xlarge".to_owned()),
            ..Options::default()
        };
        let source = Source::new(file.name.clone(), file.text.clone());
        let back = import(&[source], &options).unwrap();
        let back = Scenario::parse(&back.scenario, "y.toml", &[]).unwrap();
        assert_eq!(
            (&back.model, back.layout, back.replicas, &back.engine),
            (&pool.model, pool.layout, pool.replicas, &pool.engine),
            "{}",
            file.text
        );
    }
}

// ---- tables and documents ----

/// The tables as Markdown: what stands between the markers of `docs/import-export.md`.
fn markdown() -> String {
    let mut out = String::new();
    let mut titles: BTreeMap<&str, usize> = BTreeMap::new();
    for table in tables() {
        if table.title.is_empty() {
            continue;
        }
        assert_eq!(
            *titles
                .entry(table.title)
                .and_modify(|n| *n += 1)
                .or_insert(1),
            1,
            "{}",
            table.title
        );
        let _ = writeln!(
            out,
            "### {}\n\n| key | what becomes of it |\n|---|---|",
            table.title
        );
        for key in table.keys {
            let names: Vec<String> = key
                .names
                .split(' ')
                .map(|n| format!("`{}`", n.replace('|', "\\|")))
                .collect();
            let what = match key.meaning {
                Meaning::Sets(path, _) => format!("`{path}`"),
                Meaning::Says(words, _) => words.to_owned(),
                Meaning::Idle => "no effect".to_owned(),
                Meaning::NotModelled(why) => format!("not simulated: {why}"),
                Meaning::Refused(why) => format!("refused: {why}"),
            };
            let _ = writeln!(out, "| {} | {what} |", names.join(", "));
        }
        let idle: Vec<String> = table
            .idle
            .iter()
            .chain(table.idle_flags)
            .map(|n| format!("`{n}`"))
            .collect();
        if !idle.is_empty() {
            let _ = writeln!(out, "\nWithout effect: {}.", idle.join(", "));
        }
        out.push('\n');
    }
    out
}

/// Rewrite with `UPDATE_DOCS=1 cargo test -p deploy --test all document`.
#[test]
fn the_document_lists_what_the_tables_say() {
    let path = format!("{}/../../docs/import-export.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- keys: begin -->\n", "<!-- keys: end -->");
    let (before, rest) = text
        .split_once(begin)
        .expect("the marker before the tables");
    let (listed, after) = rest.split_once(end).expect("the marker behind the tables");
    let expected = markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{expected}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(
        listed, expected,
        "run UPDATE_DOCS=1 cargo test -p deploy --test all document"
    );
    for kind in Kind::ALL {
        assert!(
            before.contains(&format!("`{}`", kind.name())),
            "{} is not in the document",
            kind.name()
        );
    }
    for target in Target::ALL {
        assert!(
            before.contains(&format!("`{}`", target.name())),
            "{} is not in the document",
            target.name()
        );
    }
}

#[test]
fn no_key_is_listed_twice_in_a_table() {
    for table in tables() {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let names = table.keys.iter().flat_map(|k| k.names.split(' '));
        for name in names
            .chain(table.idle.iter().copied())
            .chain(table.idle_flags.iter().copied())
        {
            *seen.entry(name).or_insert(0) += 1;
        }
        let twice: Vec<_> = seen.iter().filter(|(_, n)| **n > 1).collect();
        assert!(twice.is_empty(), "{}: {twice:?}", table.kind);
    }
}

#[test]
fn keys_of_the_tables_are_keys_of_scenarios() {
    let schema = sim::scenario::schema::schema();
    let text = serde_json::to_string(schema).unwrap();
    for table in tables() {
        for key in table.keys {
            if let Meaning::Sets(path, _) = key.meaning {
                let last = path.rsplit('.').next().unwrap();
                assert!(
                    text.contains(&format!("\"{last}\"")),
                    "{}: {path}",
                    table.kind
                );
            }
        }
    }
}
