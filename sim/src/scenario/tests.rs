//! Tests of scenario files: what is accepted, what is refused, and with which words.

use proptest::prelude::*;

use super::*;

mod building;
mod pools;
mod words;

/// A small scenario; line numbers in the tests count from its first line.
const PLAIN: &str = r#"seed = 7
[model]
name = "llama-2-7b"
[hardware]
instance = "g5.2xlarge"
[engine]
kind = "tgi"
max_concurrent_requests = 64
[[workload]]
name = "chat"
arrival = { kind = "poisson", rate = "2.5 req/s" }
prompt = 256
output = { kind = "lognormal", median = 120, sigma = 0.8, max = 2000 }
[run]
requests = 100
"#;

fn parse(text: &str, overrides: &[&str]) -> Result<Scenario, ScenarioError> {
    let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_string()).collect();
    Scenario::parse(text, "dir/a.toml", &overrides)
}

fn with(overrides: &[&str]) -> Result<Scenario, ScenarioError> {
    parse(PLAIN, overrides)
}

/// The message of a scenario that is refused.
#[track_caller]
fn refused(text: &str, overrides: &[&str]) -> String {
    match parse(text, overrides) {
        Ok(_) => panic!("accepted: {overrides:?}\n{text}"),
        Err(e) => e.to_string(),
    }
}

#[track_caller]
fn refused_with(overrides: &[&str], words: &[&str]) {
    let e = refused(PLAIN, overrides);
    for w in words {
        assert!(e.contains(w), "`{w}` is not in: {e}");
    }
}

#[test]
fn a_plain_scenario_is_read_with_its_defaults() {
    let s = with(&[]).unwrap();
    assert_eq!(s.name, "a");
    assert_eq!(s.seed, 7);
    assert_eq!((s.layout, s.replicas), (Layout::SINGLE, 1));
    assert_eq!(s.base, Path::new("dir"));
    assert_eq!(s.router.policy, RouterPolicy::RoundRobin);
    assert!(s.drain);
    let EngineParams::Tgi(p) = &s.engine.params else {
        panic!("{:?}", s.engine.params)
    };
    assert_eq!(p.max_concurrent_requests, 64);
    assert_eq!(p.max_waiting_tokens, 20);
}

#[test]
fn what_is_shown_reads_back_to_the_same_scenario() {
    let variants: &[&[&str]] = &[
        &[],
        &["workload[0].arrival={ kind = \"gamma\", rate = \"1 req/min\", cv = 2.5 }"],
        &["workload[0].arrival={ kind = \"constant\", rate = \"0.333333 req/s\" }"],
        &[
            "workload[0].arrival={ kind = \"steps\", steps = [{ rate = \"1 req/s\", duration = \"10 s\" }, { rate = \"0 req/s\", duration = \"1 min\" }], repeat = true }",
        ],
        &[
            "workload[0].arrival={ kind = \"ramp\", from = \"0 req/s\", to = \"10 req/s\", over = \"5 min\", cv = 0 }",
        ],
        &["workload[0].arrival={ kind = \"rate_table\", file = \"day.csv.gz\", scale = 0.01 }"],
        &["workload[0].arrival={ kind = \"closed\", concurrency = 16, think = \"250 ms\" }"],
        &["workload[0].arrival={ kind = \"burst\", requests = 1000, max_in_flight = 128 }"],
        &["hardware={ accelerator = \"H100\", count = 4, price = \"9 USD/h\" }"],
        &[
            "workload[0].output={ kind = \"normal\", mean = 100.5, std = 3 }",
            "workload[0].prompt={ kind = \"uniform\", min = 1, max = 9 }",
        ],
        &[
            "workload[0].output={ kind = \"exponential\", mean = 100 }",
            "workload[0].prompt={ kind = \"lognormal\", mean = 7, std = 9 }",
        ],
        &[
            "workload[0].output={ kind = \"quantiles\", points = [[0, 1], [0.5, 20.5], [1, 400]] }",
            "workload[0].prompt={ kind = \"empirical\", file = \"x.csv\", column = \"n\" }",
        ],
        &[
            "workload[0].prefix={ tokens = 100, groups = 3, zipf = 1.1 }",
            "workload[0].sessions={ turns = { kind = \"uniform\", min = 1, max = 5 }, think = \"3 s\" }",
        ],
        &[
            "workload[0].timeout=30 s",
            "workload[0].cancel={ fraction = 0.1, after = \"4 s\" }",
            "workload[0].retries={ max = 3, jitter = 0.5, on = [\"timed_out\"] }",
        ],
        &[
            "workload[0].max_tokens=4096",
            "workload[0].priority=-3",
            "workload[0].requests=50",
        ],
        &[
            "run={ duration = \"1 h\", warmup = \"90 s\", drain = false }",
            "slo={ ttft = \"500 ms\", itl = \"50 ms\", e2e = \"1 min\" }",
        ],
        &[
            "hardware.price=1.21 USD/h",
            "hardware.price_date=2026-07-20",
            "hardware.profile=analytic",
            "hardware.catalog=mine/",
        ],
        &[
            "model={ config = \"c/config.json\", weights = \"fp8\", kv_cache = \"fp8\" }",
            "engine.kv_blocks=1234",
        ],
        &[
            "layout={ tp = 4, pp = 2, ep = 4, replicas = 3 }",
            "router={ policy = \"least_outstanding\", timeout = \"60 s\", overhead = \"2 ms\" }",
        ],
        &[
            "description=\"quotes \\\" and\\nlines\"",
            "seed=9223372036854775807",
            "name=\"x y\"",
        ],
    ];
    for v in variants {
        let s = with(v).unwrap_or_else(|e| panic!("{v:?}: {e}"));
        let shown = s.show();
        let again = parse(&shown, &[]).unwrap_or_else(|e| panic!("{e}\n{shown}"));
        assert_eq!(s, again, "{v:?}\n{shown}");
        assert_eq!(shown, again.show());
    }
}

#[test]
fn every_default_is_visible_in_what_is_shown() {
    let shown = with(&[]).unwrap().show();
    for line in [
        "pp = 1",
        "replicas = 1",
        "policy = \"round_robin\"",
        "profile = \"auto\"",
        "kv_cache = \"bf16\"",
        "max_waiting_tokens = 20",
        "warmup = \"0 s\"",
        "drain = true",
        "priority = 0",
    ] {
        assert!(shown.lines().any(|l| l == line), "`{line}` not in\n{shown}");
    }
}

#[test]
fn what_start_up_decides_is_shown_as_comments() {
    let shown = with(&[]).unwrap().show_started();
    for line in [
        "#   max_total_tokens = 2048",
        "#   block_size = 16",
        "#   kv_blocks = ",
    ] {
        assert!(
            shown.lines().any(|l| l.starts_with(line)),
            "`{line}` not in\n{shown}"
        );
    }
    let vllm = with(&["engine={ kind = \"vllm_v1\", max_model_len = 2048 }"]).unwrap();
    assert!(vllm.show_started().contains("#   max_num_seqs = 256\n"));
    assert_eq!(parse(&vllm.show_started(), &[]).unwrap(), vllm);
    let too_big = with(&["model.name=llama-2-70b"]).unwrap();
    let shown = too_big.show_started();
    assert!(shown.contains("# It cannot start:\n#   ") && shown.contains("does not fit"));
    assert_eq!(parse(&shown, &[]).unwrap(), too_big);
}

#[test]
fn unknown_keys_are_all_named_with_line_path_and_the_nearest_key() {
    let text = PLAIN
        .replace("max_concurrent_requests", "max_concurent_requests")
        .replace("prompt = 256", "promt = 256")
        .replace("median = 120", "mediam = 120");
    let e = refused(&text, &[]);
    for line in [
        "dir/a.toml:8: engine.max_concurent_requests: unknown key `max_concurent_requests`; did you mean `max_concurrent_requests`?",
        "dir/a.toml:12: workload[0].promt: unknown key `promt`; did you mean `prompt`?",
        "dir/a.toml:13: workload[0].output.mediam: unknown key `mediam`; did you mean `median`?",
    ] {
        assert!(e.lines().any(|l| l == line), "{line}\nnot in\n{e}");
    }
    let e = refused(&format!("{PLAIN}[zzz]\nx = 1\n"), &[]);
    assert!(
        e.contains("dir/a.toml:16: zzz: unknown key `zzz`; known: "),
        "{e}"
    );
    assert!(e.contains("hardware"), "{e}");
    // A key of another engine is no slip of the pen.
    let e = refused(
        &PLAIN.replace("max_concurrent_requests", "max_num_seqs"),
        &[],
    );
    assert!(
        e.contains(
            "engine.max_num_seqs: `max_num_seqs` is a key of kind = vllm_v1; tgi has no such key"
        ),
        "{e}"
    );
}

#[test]
fn unknown_names_are_refused_with_the_nearest_one() {
    refused_with(
        &["workload[0].arrival.kind=poison"],
        &["workload[0].arrival.kind: unknown value `poison`; did you mean `poisson`?"],
    );
    refused_with(
        &["engine.kind=vlm_v1"],
        &["engine.kind: unknown engine `vlm_v1`; did you mean `vllm_v1`?"],
    );
    refused_with(&["router.policy=least-kv"], &["did you mean `least_kv`?"]);
    refused_with(&["model.weights=fp17"], &["model.weights", "fp17"]);
}

#[test]
fn values_out_of_range_are_refused_with_line_and_what_would_be_right() {
    let cases: &[(&str, &str)] = &[
        (
            "rate = \"2.5 req/s\"=rate = \"0 req/s\"",
            "dir/a.toml:11: workload[0].arrival.rate: must be from 1e-9 to 1e9 req/s, got 0 req/s",
        ),
        (
            "prompt = 256=prompt = 0",
            "dir/a.toml:12: workload[0].prompt: must be >= 1, got 0",
        ),
        (
            "prompt = 256=prompt = -5",
            "dir/a.toml:12: workload[0].prompt: must be from 1 to 4294967295, got -5",
        ),
        (
            "prompt = 256=prompt = 99999999",
            "dir/a.toml:12: workload[0].prompt: must be <= 10000000, got 99999999",
        ),
        (
            "requests = 100=requests = 0",
            "dir/a.toml:15: run.requests: must be >= 1, got 0",
        ),
        (
            "requests = 100=requests = 99999999999",
            "dir/a.toml:15: run.requests: must be <= ",
        ),
        (
            "sigma = 0.8=sigma = nan",
            "dir/a.toml:13: workload[0].output.sigma: must be from 0 to 10, got NaN",
        ),
        (
            "sigma = 0.8=sigma = -inf",
            "dir/a.toml:13: workload[0].output.sigma: must be from 0 to 10, got -inf",
        ),
        ("seed = 7=seed = -7", "dir/a.toml:1: seed: "),
        (
            "rate = \"2.5 req/s\"=rate = \"2.5 GB\"",
            "dir/a.toml:11: workload[0].arrival.rate: a request rate cannot be given in `GB`",
        ),
        (
            "rate = \"2.5 req/s\"=rate = \"-2.5 req/s\"",
            "dir/a.toml:11: workload[0].arrival.rate: ",
        ),
        (
            "max_concurrent_requests = 64=max_concurrent_requests = -1",
            "dir/a.toml:8: engine.max_concurrent_requests: ",
        ),
        (
            "max_concurrent_requests = 64=max_concurrent_requests = \"x\"",
            "dir/a.toml:8: engine.max_concurrent_requests: ",
        ),
        (
            "instance = \"g5.2xlarge\"=instance = \"\"",
            "dir/a.toml:5: hardware.instance: must be 1 to 200 characters",
        ),
    ];
    for (change, message) in cases {
        // The first `=` that is not part of a key is the separator: both sides hold a whole `key = value`.
        let cut = change
            .match_indices('=')
            .map(|(i, _)| i)
            .find(|i| !change[..*i].ends_with(' '))
            .unwrap();
        let text = PLAIN.replace(&change[..cut], &change[cut + 1..]);
        assert_ne!(text, PLAIN, "{change}");
        let e = refused(&text, &[]);
        assert!(e.contains(message), "{message}\nnot in\n{e}");
    }
}

#[test]
fn keys_of_another_kind_and_missing_keys_are_named() {
    refused_with(
        &["workload[0].arrival.concurrency=5"],
        &["workload[0].arrival.concurrency: is not used by kind \"poisson\"; its keys are rate"],
    );
    refused_with(
        &["workload[0].arrival={ kind = \"closed\" }"],
        &["workload[0].arrival: `concurrency` is missing"],
    );
    refused_with(
        &["workload[0].output={ kind = \"lognormal\", mean = 3 }"],
        &["`mean` and `std`, or `median` and `sigma`"],
    );
    refused_with(
        &["workload[0].lengths={ file = \"x\" }"],
        &["workload[0].lengths: give `lengths`, or"],
    );
    refused_with(
        &["workload[0].arrival={ kind = \"trace\", file = \"t\" }"],
        &["workload[0].prompt: a trace brings its own lengths"],
    );
    refused_with(&["run={}"], &["run: stream `chat` never ends"]);
    refused_with(
        &["run.warmup=1 h", "run.duration=1 min"],
        &["run.warmup: must be less than"],
    );
    refused_with(
        &["layout.tp=4", "layout.ep=2"],
        &["layout.ep: must be 1 or equal to tp (4), got 2"],
    );
    refused_with(
        &["layout.dp=2"],
        &[
            "layout.dp: tgi has no data-parallel attention",
            "layout.replicas",
        ],
    );
    refused_with(
        &[
            "engine={ kind = \"vllm_v1\" }",
            "layout.dp=2",
            "layout.pp=2",
        ],
        &["layout.dp: does not go together with pipeline stages"],
    );
    refused_with(
        &[
            "engine={ kind = \"trt_llm\" }",
            "layout.dp=4",
            "layout.tp=2",
            "layout.ep=3",
        ],
        &["layout.ep: must divide dp x tp (8), got 3"],
    );
    let e = refused(&PLAIN.replace("kind = \"tgi\"", ""), &[]);
    assert!(e.contains("engine: kind is missing; one of vllm_v1"), "{e}");
    let e = refused(
        &PLAIN.replace("[hardware]\ninstance = \"g5.2xlarge\"\n", ""),
        &[],
    );
    assert!(e.contains("[hardware] is missing"), "{e}");
}

#[test]
fn bad_text_is_refused_with_its_line() {
    for text in ["", "  \n\t\n"] {
        assert!(refused(text, &[]).contains("dir/a.toml: is empty"));
    }
    let e = refused("seed = 1\nname = \"open\nx = 2\n", &[]);
    assert!(e.contains("dir/a.toml:2: not valid TOML"), "{e}");
    let e = refused("seed = 1\nseed = 2\n", &[]);
    assert!(e.contains("dir/a.toml:2") && e.contains("duplicate"), "{e}");
    let e = document::text_of(b"seed = 1\nname = \"\xff\"\n".to_vec(), "a.toml").unwrap_err();
    assert_eq!(
        e.to_string(),
        "a.toml:2: byte 17 is not UTF-8; save the file as UTF-8 text"
    );
    // Deep nesting and long keys meet limits, not the stack.
    let deep = format!("x = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refused(&deep, &[]).contains("not valid TOML"));
    let dotted = format!("{}x = 1", "a.".repeat(100_000));
    assert!(refused(&dotted, &[]).contains("not valid TOML"));
}

#[test]
fn files_that_are_missing_folders_or_huge_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let e = Scenario::load(&dir.path().join("no.toml"), &[]).unwrap_err();
    assert!(e.to_string().contains("cannot read the scenario"), "{e}");
    let e = Scenario::load(dir.path(), &[]).unwrap_err();
    assert!(e.to_string().contains("is a folder"), "{e}");
    // A sparse file that claims 10 GB takes no room and no time.
    let huge = dir.path().join("huge.toml");
    std::fs::File::create(&huge)
        .unwrap()
        .set_len(10_000_000_000)
        .unwrap();
    let e = Scenario::load(&huge, &[]).unwrap_err();
    assert!(e.to_string().contains("has 10000000000 bytes"), "{e}");
}

#[test]
fn overrides_count_like_the_file_and_name_themselves_in_messages() {
    let s = with(&[
        "run.requests=5",
        "workload.chat.prompt=12",
        "workload[0].output=3",
        "slo.ttft=\"1 s\"",
        "name=other",
    ])
    .unwrap();
    assert_eq!(s.limits.requests, Some(5));
    assert_eq!(s.name, "other");
    assert_eq!(
        s.workload[0].lengths,
        crate::workload::Lengths::Separate {
            prompt: crate::workload::Length::Fixed(12),
            output: crate::workload::Length::Fixed(3),
        }
    );
    assert_eq!(
        refused(PLAIN, &["run.requests=0"]),
        "--set run.requests=0: run.requests: must be >= 1, got 0"
    );
    assert_eq!(
        refused(PLAIN, &["run.requets=1"]),
        "--set run.requets=1: run.requets: unknown key `requets`; did you mean `requests`?"
    );
    for (text, words) in [
        ("run.requests", "no `=`"),
        ("=5", "no key path"),
        ("a..b=5", "no key path"),
        (
            "workload[9].prompt=5",
            "has 1 element(s), so there is no [9]",
        ),
        ("workload.talk.prompt=5", "without one named `talk`"),
        ("seed.x=5", "holds no keys"),
        ("run.duration=[1", "not valid TOML"),
    ] {
        let e = refused(PLAIN, &[text]);
        assert!(e.starts_with("--set ") && e.contains(words), "{e}");
    }
}

#[test]
fn a_constant_step_stands_in_for_model_and_hardware() {
    let text = "[step]\nbase = \"10 ms\"\n[engine]\nkind = \"tgi\"\nkv_blocks = 100\n[[workload]]\n\
                arrival = { kind = \"burst\", requests = 3 }\nprompt = 1\noutput = 1\n";
    let s = parse(text, &[]).unwrap();
    assert_eq!(s.step.unwrap().base.secs(), 0.01);
    assert_eq!(parse(&s.show(), &[]).unwrap(), s);
    let e = refused(&text.replace("kv_blocks = 100\n", ""), &[]);
    assert!(
        e.contains("step: ") && e.contains("engine.kv_blocks"),
        "{e}"
    );
    let e = refused(&text.replace("10 ms", "0 s"), &[]);
    assert!(e.contains("a step must take time"), "{e}");
    let e = refused(&format!("{text}[model]\nname = \"llama-2-7b\"\n"), &[]);
    assert!(e.contains("stands in place of"), "{e}");
}

/// What building says of a scenario that reads well but cannot be.
#[track_caller]
fn cannot_be_built(text: &str, overrides: &[&str], words: &[&str]) {
    let scenario = parse(text, overrides).unwrap_or_else(|e| panic!("{e}"));
    let e = match scenario.build() {
        Ok(_) => panic!("built: {overrides:?}"),
        Err(e) => e.to_string(),
    };
    for w in words {
        assert!(e.contains(w), "`{w}` is not in: {e}");
    }
}

#[test]
fn vllm_takes_in_one_request_at_a_time_per_api_server() {
    // A burst: the second request is scheduled one request's work in the front end after the first, or beside it.
    let scheduled = |front_end: &str| {
        let text = format!(
            "[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"p5.48xlarge\"\n\
             params = {{ \"engine.vllm_v1.request_in\" = 0.05, \"engine.vllm_v1.prompt_token_in\" = 1e-5 }}\n\
             [engine]\nkind = \"vllm_v1\"\n{front_end}\n\
             [[workload]]\narrival = {{ kind = \"burst\", requests = 2 }}\nprompt = 1000\noutput = 4\n[run]\nrequests = 2\n"
        );
        let record = parse(&text, &[]).unwrap().run(&Default::default()).unwrap();
        let rows = record.request_rows.unwrap();
        let mut at: Vec<f64> = rows.iter().map(|r| r.first_scheduled.as_secs()).collect();
        at.sort_by(f64::total_cmp);
        at
    };
    let one = scheduled("api_server_count = 1");
    assert!((one[0] - 0.06).abs() < 1e-9, "{one:?}");
    assert!(one[1] >= 0.12, "{one:?}");
    let two = scheduled("api_server_count = 2");
    assert_eq!(two[0], two[1]);
    // Dynamo hands over one after another what it has tokenised, and does in Rust the larger part of what a request takes on its way.
    let dynamo = scheduled("front_end = \"dynamo\"");
    assert!(dynamo[0] < 0.5 * one[0] && dynamo[0] >= 0.01, "{dynamo:?}");
    assert!(dynamo[1] > dynamo[0] && dynamo[1] < one[1], "{dynamo:?}");
}

#[test]
fn every_engine_serves_every_request_of_a_constant_step_scenario() {
    for engine in [
        "kind = \"vllm_v1\"",
        "kind = \"vllm_v1\"\nenable_prefix_caching = false\nasync_scheduling = false",
        "kind = \"tgi\"",
        "kind = \"tgi\"\nversion = \"v3\"\nprefix_caching = true\nmax_total_tokens = 2000",
        "kind = \"tgi_neuron\"\nbatch_size = 4\nsequence_length = 1024",
        "kind = \"trt_llm\"",
        "kind = \"trt_llm\"\nbatch_scheduler_policy = \"max_utilization\"\nenable_chunked_context = true",
        "kind = \"static\"",
    ] {
        let text = format!(
            "[step]\nbase = \"5 ms\"\nper_token = \"10 us\"\n[engine]\n{engine}\nkv_blocks = 4000\n[[workload]]\n\
             arrival = {{ kind = \"poisson\", rate = \"5 req/s\" }}\nprompt = {{ kind = \"uniform\", min = 1, max = 200 }}\n\
             output = {{ kind = \"uniform\", min = 1, max = 40 }}\nprefix = {{ tokens = 64, groups = 2 }}\n[run]\nrequests = 60\n"
        );
        let options = crate::simulation::RunOptions {
            check: true,
            ..Default::default()
        };
        let record = parse(&text, &[])
            .unwrap()
            .run(&options)
            .unwrap_or_else(|e| panic!("{engine}: {e}"));
        assert_eq!(record.counts.finished, 60, "{engine}: {:?}", record.counts);
    }
}

#[test]
fn the_schema_knows_every_key_that_is_shown() {
    let root = schema::schema();
    assert!(root.pointer("/properties/engine/oneOf").is_some());
    assert!(root.pointer("/properties/workload").is_some());
    assert!(root.pointer("/$defs/ArrivalFile/properties/rate").is_some());
}

#[test]
fn every_table_of_the_schema_has_a_section_of_the_reference() {
    let (root, page) = (schema::schema(), reference::markdown());
    for (name, table) in root["$defs"].as_object().unwrap() {
        let keys = table["properties"].as_object().into_iter().flatten();
        for (key, _) in keys {
            let row = format!("| `{key}` |");
            assert!(page.contains(&row), "{name}: {key} is in no section");
        }
    }
}

#[test]
fn the_reference_page_lists_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scenario.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- keys: begin -->\n", "<!-- keys: end -->");
    let start = page.find(begin).map(|i| i + begin.len());
    let (Some(start), Some(stop)) = (start, page.find(end)) else {
        panic!("docs/scenario.md has lost its markers");
    };
    let wanted = reference::markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let new = format!("{}{}{}", &page[..start], wanted, &page[stop..]);
        std::fs::write(&path, new).unwrap();
        return;
    }
    assert!(
        page[start..stop] == wanted,
        "docs/scenario.md is out of date: run UPDATE_DOCS=1 cargo test -p sim the_reference_page"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_scenarios_never_panic(cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..12)) {
        let mut bytes = PLAIN.as_bytes().to_vec();
        for (at, byte, how) in cuts {
            if bytes.is_empty() {
                break;
            }
            let i = at.index(bytes.len());
            match how {
                0 => bytes[i] = byte,
                1 => bytes.insert(i, byte),
                2 => {
                    bytes.remove(i);
                }
                _ => bytes.truncate(i),
            }
        }
        if let Ok(text) = document::text_of(bytes, "m.toml")
            && let Ok(s) = parse(&text, &[])
        {
            prop_assert_eq!(&parse(&s.show(), &[]).unwrap(), &s);
        }
    }

    #[test]
    fn any_override_is_an_answer_or_an_error(key in "[a-z\\[\\]0-9.=]{0,20}", value in "\\PC{0,20}") {
        let _ = parse(PLAIN, &[&format!("{key}={value}")]);
    }
}

const MIXTURE: &str = r#"[model]
name = "qwen3-235b-a22b"
weights = "fp8"
[hardware]
instance = "p5en.48xlarge"
[layout]
dp = 8
ep = 8
[engine]
kind = "vllm_v1"
max_model_len = 8192
[[workload]]
name = "chat"
arrival = { kind = "poisson", rate = "40 req/s" }
prompt = 512
output = 64
[run]
requests = 400
"#;

#[test]
fn data_parallel_ranks_hold_their_own_kv_and_run_in_step() {
    let ranks = parse(MIXTURE, &[]).unwrap();
    let built = ranks.build().unwrap();
    let plan = built.memory.clone().expect("planned");
    assert_eq!(built.info.replicas[0].kv_blocks, 8 * plan.kv_blocks);
    assert_eq!(built.info.replicas[0].devices, 8);
    assert!(built.info.deployment.contains("DP 8 x TP 1, EP 8"));
    let options = crate::simulation::RunOptions {
        check: true,
        ..crate::simulation::RunOptions::default()
    };
    let record = built.run(&options).unwrap();
    assert_eq!(record.counts.finished, 400);
    // The same devices as one tensor-parallel group hold each KV head twice.
    let group = parse(MIXTURE, &["layout.dp=1", "layout.tp=8"]).unwrap();
    let group = group.build().unwrap().memory.expect("planned");
    assert!(8 * plan.kv_blocks > group.kv_blocks);
}

#[test]
fn what_data_parallel_ranks_cannot_be_is_refused_at_its_key() {
    let trt = "engine={ kind = \"trt_llm\", attention_dp_config = { enable_balance = true } }";
    let one = ["layout.dp=1", "layout.tp=8"];
    for (overrides, words) in [
        (
            vec![trt, one[0], one[1]],
            "engine.attention_dp_config: there are no ranks",
        ),
        (
            vec!["model.name=qwen3-32b", "layout.ep=1"],
            "set replicas = 8",
        ),
        (
            vec!["engine.cudagraph_capture_sizes=[8, 0]"],
            "engine.cudagraph_capture_sizes: must be batch sizes of at least 1",
        ),
        (
            vec!["engine.cudagraph_capture_sizes=[4294967295]"],
            "engine.cudagraph_capture_sizes: all sizes are beyond the token budget",
        ),
        (
            vec!["engine.cudagraph_capture_sizes=[]"],
            "engine.cudagraph_capture_sizes: must be 1 to",
        ),
        (
            vec![
                "engine.cudagraph_capture_sizes=[8]",
                "engine.cuda_graphs=false",
            ],
            "has no effect with cuda_graphs = false",
        ),
    ] {
        let e = match parse(MIXTURE, &overrides).and_then(|s| s.build().map(drop)) {
            Err(e) => e.to_string(),
            Ok(()) => panic!("{overrides:?} was taken"),
        };
        assert!(e.contains(words), "`{words}` is not in: {e}");
    }
}
