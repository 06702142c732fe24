//! Tests of what cannot be built: overrides of the plain scenario, and words of the message.

use super::*;

/// Overrides, and words that the message has.
type Case = (&'static [&'static str], &'static [&'static str]);

/// Models, hardware and layouts.
const DEPLOYMENTS: &[Case] = &[
    (
        &["model.name=llama-2-8b"],
        &["model.name: ", "llama-2-8b", "llama-2-7b"],
    ),
    (
        &["hardware.instance=g5.3xlarge"],
        &["hardware.instance: ", "g5.3xlarge", "g5."],
    ),
    (&["layout.tp=2"], &["layout", "g5.2xlarge"]),
    (&["layout.pp=40"], &["layout", "32 layers"]),
    (
        &["layout.tp=3", "hardware.instance=g5.12xlarge"],
        &["layout", "32"],
    ),
    (
        &["model.name=llama-2-13b", "hardware.instance=g5.12xlarge"],
        &[
            "layout",
            "does not fit",
            "needs",
            "has",
            "smallest layout that fits",
        ],
    ),
    (
        &["model.name=llama-3.1-405b"],
        &["does not fit", "needs", "has"],
    ),
    (
        &["hardware.profile=nonesuch"],
        &["hardware.profile: ", "nonesuch", "analytic, ", "vllm"],
    ),
    (
        &["hardware.instance=H100"],
        &[
            "hardware.instance: `H100` is an accelerator (H100-SXM5-80GB), not an instance type",
            "p5.4xlarge (1 x)",
            "p5.48xlarge (8 x)",
            "accelerator = \"H100\"",
        ],
    ),
    (
        &["hardware={ accelerator = \"H1000\", count = 8 }"],
        &["hardware.accelerator: ", "H1000"],
    ),
    (
        &[
            "hardware={ accelerator = \"H100\", count = 2 }",
            "layout={ tp = 2, pp = 2 }",
            "engine={ kind = \"vllm_v1\" }",
        ],
        &["hardware.count: the layout takes 2 machines", "raise count"],
    ),
    (
        &["hardware.profile=none/such.toml"],
        &["hardware.profile: ", "such.toml"],
    ),
    (
        &["hardware.params={ \"engine.tgi.step_hots\" = 0.1 }"],
        &["hardware.params: ", "engine.tgi.step_host"],
    ),
    (
        &["hardware.params={ \"engine.tgi.step_host\" = -5.0 }"],
        &["hardware.params: ", "physical bounds"],
    ),
    (
        &["hardware.price_date=1999-01-01"],
        &["hardware.price_date: ", "no price"],
    ),
    (&["hardware.catalog=none/"], &["hardware.catalog: "]),
    (
        &["model={ config = \"none/config.json\" }"],
        &["model.config: ", "cannot read the model configuration"],
    ),
];

/// Settings of engines.
const ENGINES: &[Case] = &[
    (
        &["engine.max_input_tokens=4000"],
        &[
            "engine.max_input_tokens: must be < max_total_tokens",
            "TGI would not start",
        ],
    ),
    (
        &["engine.max_concurrent_requests=0"],
        &["engine.max_concurrent_requests: must be at least 1, got 0"],
    ),
    (
        &["engine={ kind = \"vllm_v1\", max_num_seqs = 0 }"],
        &["engine.max_num_seqs: must be >= 1, got 0"],
    ),
    (
        &["engine={ kind = \"vllm_v1\", max_model_len = 100000 }"],
        &["engine.max_model_len: 100000 is beyond the 4096"],
    ),
    (
        &["engine={ kind = \"vllm_v1\", gpu_memory_utilization = 0.3 }"],
        &["does not fit"],
    ),
    (&["engine={ kind = \"vllm_v1\", watermark = nan }"], &[]),
    (
        &["engine={ kind = \"vllm_v1\", api_server_count = 0 }"],
        &["engine.api_server_count: ", "from 1 to 1024, got 0"],
    ),
    (
        &["engine={ kind = \"vllm_v1\", front_end = \"dynamo\", api_server_count = 4 }"],
        &["engine.api_server_count: ", "front_end"],
    ),
    (
        &["engine={ kind = \"tgi_neuron\", batch_size = 4, sequence_length = 2048 }"],
        &["engine.kind: ", "Inferentia"],
    ),
    (
        &["engine={ kind = \"trt_llm\", tokens_per_block = 33 }"],
        &["engine.tokens_per_block: ", "power of two"],
    ),
    (
        &["engine={ kind = \"trt_llm\", gemm_plugin = false }"],
        &["engine.gemm_plugin: ", "A10G", "cache_bandwidth"],
    ),
    (
        &["engine={ kind = \"static\", max_batch_size = 0 }"],
        &["engine.max_batch_size: "],
    ),
];

/// Files of the workload.
const FILES: &[Case] = &[
    (
        &["workload[0].output={ kind = \"empirical\", file = \"none.csv\", column = \"n\" }"],
        &["workload[0].output.file: ", "none.csv"],
    ),
    (
        &["workload[0].arrival={ kind = \"rate_table\", file = \"none.csv\" }"],
        &["workload[0].arrival.file: ", "none.csv"],
    ),
];

#[test]
fn what_cannot_be_built_is_refused_at_its_key() {
    let fp8_on = "[[workload]]\narrival = { kind = \"trace\", file = \"no-such-trace.csv\" }\n[engine]\nkind = \"static\"\n\
                  kv_blocks = 10\n[step]\nbase = \"1 ms\"\n";
    for (overrides, words) in [DEPLOYMENTS, ENGINES, FILES].concat() {
        if words.is_empty() {
            // Not a number is refused before anything is built.
            assert!(refused(PLAIN, overrides).contains("must be a finite number"));
        } else {
            cannot_be_built(PLAIN, overrides, words);
        }
    }
    cannot_be_built(
        fp8_on,
        &[],
        &[
            "dir/a.toml:2: workload[0].arrival.file: ",
            "no-such-trace.csv",
        ],
    );
}

#[test]
fn bad_trace_files_are_refused_before_the_run_with_their_own_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.csv");
    let scenario = "[step]\nbase = \"1 ms\"\n[engine]\nkind = \"static\"\nkv_blocks = 100\n[[workload]]\n\
                    arrival = { kind = \"trace\", file = \"t.csv\" }\n";
    let origin = dir.path().join("s.toml").display().to_string();
    let build = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        Scenario::parse(scenario, &origin, &[])
            .unwrap()
            .build()
            .map(|_| ())
    };
    let header = "arrival_s,input_tokens,output_tokens\n";
    build(format!("{header}0,5,5\n1,5,5\n").as_bytes()).unwrap();
    for (bytes, word) in [
        (Vec::new(), "is empty"),
        (header.as_bytes().to_vec(), "has no requests"),
        (
            format!("{header}5,5,5\n1,5,5\n").into_bytes(),
            "t.csv:3: the trace is not sorted",
        ),
        (format!("{header}0,-5,5\n").into_bytes(), "t.csv:2: "),
        (format!("{header}0,nan,5\n").into_bytes(), "t.csv:2: "),
        (
            [header.as_bytes(), b"0,\xff,5\n"].concat(),
            "t.csv:2: byte 2 of the line is not UTF-8",
        ),
        (vec![b'x'; 9 << 20], "t.csv:1: the line is longer than"),
        (
            vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3],
            "cannot read",
        ),
    ] {
        let e = build(&bytes).unwrap_err().to_string();
        assert!(
            e.contains("s.toml:7: workload[0].arrival.file: ") && e.contains(word),
            "{word}: {e}"
        );
    }
}

/// Seven replicas of one eighth of the memory each share the price of a device.
#[test]
fn mig_parts_are_devices_of_their_own() {
    let of = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
        let s = Scenario::parse(PLAIN, "a.toml", &overrides).unwrap_or_else(|e| panic!("{e}"));
        let again = Scenario::parse(&s.show(), "a.toml", &[]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(s, again);
        s.build().unwrap_or_else(|e| panic!("{e}"))
    };
    let engine = "engine={ kind = \"vllm_v1\", max_model_len = 2048 }";
    let small = [
        "model.name=llama-3.2-1b",
        "hardware.instance=p4d.24xlarge",
        engine,
    ];
    let whole = of(&small);
    let mut cut = small.to_vec();
    cut.extend(["hardware.mig=3g.20gb", "layout.replicas=16"]);
    let parts = of(&cut);
    // Two parts a device, eight devices: all sixteen stand on one instance.
    let price = |b: &built::Built| b.info.usd_per_hour.unwrap();
    assert!(
        (price(&parts) / price(&whole) - 8.0).abs() < 1e-9 || price(&parts) == price(&whole),
        "{} {}",
        price(&parts),
        price(&whole)
    );
    let blocks = |b: &built::Built| b.info.replicas[0].kv_blocks;
    let share = blocks(&parts) as f64 / blocks(&whole) as f64;
    assert!((0.35..0.5).contains(&share), "{share}");
    for (overrides, words) in [
        (
            &["hardware.mig=3g.21gb"][..],
            &["hardware.mig: ", "3g.20gb"][..],
        ),
        (
            &["hardware.mig=3g.20gb", "layout.tp=2"],
            &["hardware.mig: ", "no link"],
        ),
        (
            &["hardware.mig=1g.5gb", "hardware.instance=g5.2xlarge"],
            &["hardware.mig: ", "has no MIG"],
        ),
    ] {
        let mut all = small.to_vec();
        all.extend(overrides);
        cannot_be_built(PLAIN, &all, words);
    }
}
