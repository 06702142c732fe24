//! Tests of what engines refuse, of shapes and rates that cannot be, and of machines without a catalog.

use super::*;

#[test]
fn what_vllm_refuses_at_start_up_is_refused_with_its_words() {
    let vllm = |keys: &str| format!("engine={{ kind = \"vllm_v1\", {keys} }}");
    for (keys, words) in [
        (
            "enable_chunked_prefill = false, max_num_batched_tokens = 512",
            &[
                "engine.max_num_batched_tokens: max_num_batched_tokens (512) is smaller than max_model_len (4096)",
                "chunked prefill is disabled",
            ][..],
        ),
        (
            "max_num_batched_tokens = 64, max_num_seqs = 256",
            &["max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (256)"],
        ),
        (
            "enable_chunked_prefill = false, version = \"0.11\"",
            &[
                "engine.enable_chunked_prefill: vLLM 0.11 always splits prompts",
                "0.12",
            ],
        ),
    ] {
        cannot_be_built(PLAIN, &[&vllm(keys)], words);
    }
    let decided = |keys: &str| with(&[&vllm(keys)]).unwrap().build().unwrap();
    let number = |built: &Built, key: &str| built.decided[key].as_integer().unwrap();
    // Of what is left out, vLLM makes defaults that go together, and the memory plan knows them.
    let whole = decided("enable_chunked_prefill = false, max_model_len = 3000");
    assert_eq!(number(&whole, "max_num_batched_tokens"), 3000);
    let parts = decided("max_model_len = 3000");
    assert_eq!(number(&parts, "max_num_batched_tokens"), 2048);
    assert!(whole.memory.unwrap().activation_peak > parts.memory.unwrap().activation_peak);
    let few = decided("max_num_batched_tokens = 64, max_model_len = 2048");
    assert_eq!(number(&few, "max_num_seqs"), 64);
    // What it only warns of is a warning.
    let wide = decided("max_num_batched_tokens = 8192, max_num_seqs = 2, max_model_len = 1024");
    let warned = wide.info.warnings.join("\n");
    assert!(
        warned.contains("exceeds max_num_seqs x max_model_len (2048)"),
        "{warned}"
    );
    // TensorRT-LLM starts and warns too.
    let trt = with(&["engine={ kind = \"trt_llm\", max_batch_size = 64, max_num_tokens = 32 }"]);
    let warned = trt.unwrap().build().unwrap().info.warnings.join("\n");
    assert!(
        warned.contains("max_batch_size [64] should be less than or equal to max_num_tokens [32]")
    );
}

#[test]
fn outputs_end_at_max_tokens_and_the_report_says_how_many() {
    let text = "[step]\nbase = \"1 ms\"\n[engine]\nkind = \"static\"\nkv_blocks = 100\n[[workload]]\nname = \"chat\"\n\
                arrival = { kind = \"burst\", requests = 40 }\nprompt = 8\noutput = { kind = \"uniform\", min = 1, max = 40 }\n\
                max_tokens = 20\n";
    let record = parse(text, &[]).unwrap().run(&Default::default()).unwrap();
    let rows = record.request_rows.unwrap();
    assert!(rows.iter().all(|r| r.output_tokens <= 20));
    let at_limit = rows.iter().filter(|r| r.output_tokens == 20).count();
    let warned = record.info.warnings.join("\n");
    let said: usize = warned
        .split_once("stream `chat`: ")
        .and_then(|(_, rest)| rest.split_once(' '))
        .and_then(|(n, _)| n.parse().ok())
        .unwrap_or_else(|| panic!("{warned}"));
    assert!(warned.contains("max_tokens = 20") && warned.contains("finish reason: length"));
    // One in forty is drawn at the limit itself.
    assert!(
        said > 0 && said <= at_limit && at_limit - said <= 6,
        "{said} of {at_limit}"
    );
    let uncut = parse(text, &["workload.chat.max_tokens=40"]).unwrap();
    assert!(
        uncut
            .run(&Default::default())
            .unwrap()
            .info
            .warnings
            .is_empty()
    );
}

#[test]
fn rates_that_offer_nothing_are_refused_or_named() {
    refused_with(
        &["workload[0].arrival.rate=1e-300 req/s"],
        &["workload[0].arrival.rate: must be from 1e-9 to 1e9 req/s, got 1e-300 req/s"],
    );
    let e = refused(PLAIN, &["workload[0].arrival.rate=1e99 req/s"]);
    assert!(e.ends_with("got 1e99 req/s"), "{e}");
    let e = refused(PLAIN, &["workload[0].arrival.rate=2.5e300"]);
    assert!(e.len() < 300, "{e}");
    let text = "[step]\nbase = \"1 ms\"\n[engine]\nkind = \"static\"\nkv_blocks = 100\n[[workload]]\n\
                arrival = { kind = \"poisson\", rate = \"1e-8 req/s\" }\nprompt = 8\noutput = 8\n[run]\nduration = \"1 min\"\n";
    let record = parse(text, &[]).unwrap().run(&Default::default()).unwrap();
    assert!(
        record
            .info
            .warnings
            .join("\n")
            .contains("no request was sent")
    );
}

#[test]
fn a_wrong_shape_is_named_in_the_words_of_files() {
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "[run]\n",
            "[slo]\nttft = 500\n[run]\n",
            &["slo.ttft: a duration needs a unit: write \"500 ms\" instead of 500"],
        ),
        (
            "[run]\n",
            "[slo]\ne2e = 2.5\n[run]\n",
            &["slo.e2e: a duration needs a unit: write \"2.5 s\" instead of 2.5"],
        ),
        (
            "arrival = { kind = \"poisson\", rate = \"2.5 req/s\" }",
            "arrival = \"poisson\"",
            &[
                "workload[0].arrival: must be a table, got the text \"poisson\"; write arrival = { kind = \"poisson\", rate = ",
            ],
        ),
        (
            "prompt = 256",
            "prompt = 256\nsessions = 5",
            &[
                "workload[0].sessions: must be a table, got the number 5; write sessions = { turns = 5",
            ],
        ),
        (
            "[[workload]]",
            "[workload]",
            &[
                "dir/a.toml:9: workload: must be a list of streams: write [[workload]] with two brackets",
            ],
        ),
        (
            "max_concurrent_requests = 64",
            "max_concurrent_requests = \"many\"",
            &["engine.max_concurrent_requests: must be a whole number, got the text \"many\""],
        ),
        ("seed = 7", "seed = -7", &["seed: must be from 0 to "]),
        (
            "kind = \"tgi\"\nmax_concurrent_requests = 64",
            "kind = \"vllm_v1\"\nversion = 0.15",
            &["engine.version: must be text in quotes, got the number 0.15; write \"0.15\""],
        ),
        (
            "name = \"llama-2-7b\"",
            "name = true",
            &["model.name: must be text in quotes, got true"],
        ),
    ];
    for (from, to, words) in cases {
        let text = PLAIN.replace(from, to);
        assert_ne!(text, PLAIN, "{from}");
        let e = refused(&text, &[]);
        for w in *words {
            assert!(e.contains(w), "`{w}` is not in: {e}");
        }
        for rust in ["struct", "u32", "u64", "i64", "f64", "sequence", "map"] {
            assert!(!e.contains(rust), "{rust}: {e}");
        }
    }
}

#[test]
fn vllm_without_a_scheduler_is_the_newest_release_that_is_modelled() {
    let s = with(&["engine={ kind = \"vllm\", max_model_len = 2048 }"]).unwrap();
    let shown = s.show();
    assert!(
        shown.contains("kind = \"vllm_v1\"\n") && shown.contains("version = \"0.33\""),
        "{shown}"
    );
    assert_eq!(parse(&shown, &[]).unwrap(), s);
    let s = with(&["engine={ kind = \"vllm\", version = \"0.20\" }"]).unwrap();
    assert!(s.show().contains("version = \"0.20\""));
    let s = with(&["engine={ kind = \"vllm_v1\" }"]).unwrap();
    assert!(s.show().contains("version = \"0.15\""));
}

#[test]
fn a_machine_of_ones_own_needs_an_accelerator_and_a_count() {
    let own = "hardware={ accelerator = \"H100\", count = 8 }";
    let s = with(&[own, "layout.tp=8"]).unwrap();
    assert_eq!(parse(&s.show(), &[]).unwrap(), s);
    let built = s.build().unwrap();
    assert!(
        built.info.deployment.contains("8 x H100-SXM5-80GB"),
        "{}",
        built.info.deployment
    );
    assert_eq!(built.info.usd_per_hour, None);
    // The same devices as a p5.48xlarge: the same steps.
    let run = |hardware: &str| {
        let s = with(&[hardware, "layout.tp=8"]).unwrap();
        s.run(&Default::default()).unwrap().fingerprint
    };
    assert_eq!(run(own), run("hardware={ instance = \"p5.48xlarge\" }"));
    let priced = with(&["hardware={ accelerator = \"H100\", count = 8, price = \"20 USD/h\" }"]);
    assert_eq!(
        priced.unwrap().build().unwrap().info.usd_per_hour,
        Some(20.0)
    );
    refused_with(
        &["hardware={ accelerator = \"H100\", instance = \"g5.2xlarge\" }"],
        &["hardware.instance: does not go together with accelerator"],
    );
    refused_with(
        &["hardware={ count = 8 }"],
        &["hardware.count: counts the devices of"],
    );
    refused_with(
        &["hardware={ accelerator = \"H100\", count = 0 }"],
        &["hardware.count: must be >= 1, got 0"],
    );
    refused_with(
        &["hardware={ instance = \"g5.2xlarge\", host_path = \"shared\" }"],
        &["hardware.host_path: is of a machine that `accelerator` describes"],
    );
}

#[test]
fn a_rented_machine_stages_slower_than_one_with_a_root_port_for_each_device() {
    let step = |more: &str| {
        let hardware = format!("hardware={{ accelerator = \"RTX4090\", count = 2{more} }}");
        let s = with(&[&hardware, "layout.tp=2", "workload[0].prompt=1000"]).unwrap();
        assert_eq!(parse(&s.show(), &[]).unwrap(), s);
        let report = crate::report::RunReport::new(&s.run(&Default::default()).unwrap(), 0.0);
        crate::report::expect::number(&report, "ttft_ms.mean").unwrap()
    };
    assert_eq!(step(""), step(", host_path = \"own\""));
    assert!(step(", host_path = \"shared\"") > 1.2 * step(""));
}

#[test]
fn ranks_that_stage_through_a_host_nobody_describes_are_warned_of_once() {
    let warned = |hardware: &str, tp: u32| {
        let overrides = [
            format!("hardware={{ {hardware} }}"),
            format!("layout.tp={tp}"),
        ];
        let s = with(&[&overrides[0], &overrides[1]]).unwrap();
        // What is shown asks the same question again.
        assert_eq!(parse(&s.show(), &[]).unwrap(), s);
        let warnings = s.build().unwrap().info.warnings;
        let of_host = warnings.into_iter().filter(|w| w.contains("host_path"));
        of_host.collect::<Vec<String>>()
    };
    let [warning] = &warned("accelerator = \"RTX4090\", count = 2", 2)[..] else {
        panic!("one warning");
    };
    assert!(
        warning.starts_with("TP 2 on RTX4090-24GB") && warning.contains("set hardware.host_path"),
        "{warning}"
    );
    assert_eq!(warned("accelerator = \"L4\", count = 4", 4).len(), 1);
    for (hardware, tp) in [
        (
            "accelerator = \"RTX4090\", count = 2, host_path = \"own\"",
            2,
        ),
        ("accelerator = \"L4\", count = 4, host_path = \"shared\"", 4),
        // Nothing is exchanged; a pair that reaches each other; NVLink; an instance type that says it.
        ("accelerator = \"RTX4090\", count = 2", 1),
        ("accelerator = \"L4\", count = 2", 2),
        ("accelerator = \"H100\", count = 4", 4),
        ("instance = \"g5.12xlarge\"", 4),
    ] {
        assert_eq!(warned(hardware, tp), [""; 0], "{hardware} tp={tp}");
    }
    // Pools that hang on it alike say so once.
    let pools = with(&[
        "hardware={ accelerator = \"RTX4090\", count = 2 }",
        "layout.tp=2",
        "pool=[{ name = \"a\" }, { name = \"b\" }]",
    ]);
    let warnings = pools.unwrap().build().unwrap().info.warnings;
    let of_host = warnings.iter().filter(|w| w.contains("host_path"));
    assert_eq!(of_host.count(), 1, "{warnings:?}");
}

#[test]
fn a_byte_order_mark_is_no_part_of_any_file() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), format!("\u{feff}{text}")).unwrap();
    };
    write(
        "config.json",
        r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
            "intermediate_size":11008,"vocab_size":32000,"max_position_embeddings":4096}"#,
    );
    std::fs::create_dir(dir.path().join("cat")).unwrap();
    write(
        "cat/mine.toml",
        "[[link]]\nname = \"my-link\"\nkind = \"tcp\"\nbandwidth = \"1 GB/s\"\nlatency = \"9 us\"\nsource = \"me\"\n",
    );
    write("lengths.csv", "n\n5\n");
    let profile = hwmodels::Profile {
        accelerator: "A10G-24GB".into(),
        ..Default::default()
    };
    write("profile.toml", &toml::to_string(&profile).unwrap());
    let text = PLAIN
        .replace("name = \"llama-2-7b\"", "config = \"config.json\"")
        .replace(
            "instance = \"g5.2xlarge\"",
            "instance = \"g5.2xlarge\"\ncatalog = \"cat\"\nprofile = \"profile.toml\"",
        )
        .replace(
            "prompt = 256",
            "prompt = { kind = \"empirical\", file = \"lengths.csv\", column = \"n\" }",
        );
    write("s.toml", &text);
    let built = Scenario::load(&dir.path().join("s.toml"), &[])
        .unwrap()
        .build()
        .unwrap();
    let warnings = built.info.warnings.join("\n");
    assert!(!warnings.contains("left out"), "{warnings}");
}
