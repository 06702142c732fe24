//! Tests of the catalog: figures against published ones, names, a user's own files.

use std::fs;

use super::*;
use crate::dtype::Dtype;
use crate::files::Disk;
use crate::layout::Layout;

fn error(text: &str) -> String {
    Catalog::builtin()
        .add_toml("my.toml", text)
        .unwrap_err()
        .to_string()
}

#[test]
fn computed_parameters_are_within_one_percent_of_the_published_ones() {
    for m in Catalog::builtin().models() {
        let published = m
            .published_parameters
            .expect("every built-in model states its size");
        let ratio = m.arch.parameters() as f64 / published;
        assert!((ratio - 1.0).abs() < 0.01, "{}: {ratio}", m.arch.name);
        if let Some(active) = m.published_active_parameters {
            let ratio = m.arch.active_parameters() as f64 / active;
            // "A10B" is rounded to a whole billion, 3.5e9 to a tenth.
            let digit = if active % 1e9 == 0.0 { 1e9 } else { 1e8 };
            let rounding: f64 = 0.5 * digit / active;
            assert!(
                (ratio - 1.0).abs() < rounding.max(0.01),
                "{} active: {ratio}",
                m.arch.name
            );
        } else {
            assert!(m.arch.moe.is_none(), "{} has no active count", m.arch.name);
        }
    }
}

#[test]
fn current_mixtures_are_there_by_the_names_of_their_checkpoints() {
    let c = Catalog::builtin();
    for (name, experts, kv_bytes) in [
        // 2 x 62 layers x 8 heads x 128 x 2 bytes; a latent of 576 in 47 layers.
        ("MiniMaxAI/MiniMax-M2.5", 256, 253_952.0),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 160, 253_952.0),
        ("zai-org/GLM-4.5-Air", 128, 188_416.0),
        ("zai-org/GLM-4.6", 160, 376_832.0),
        ("zai-org/GLM-4.7-Flash", 64, 54_144.0),
    ] {
        let arch = c.model(name).expect(name);
        assert_eq!(arch.moe.map(|m| m.experts), Some(experts), "{name}");
        assert_eq!(arch.kv_bytes_per_token(Dtype::Bf16), kv_bytes, "{name}");
    }
    assert!(c.model("minimax-m2").unwrap().qk_norm);
}

#[test]
fn parameters_are_those_of_the_model_cards() {
    // Counts that do not come from the catalog files: model cards and papers.
    let catalog = Catalog::builtin();
    for (name, total, active) in [
        ("llama-2-7b", 6.738e9, 6.738e9),
        ("llama-2-70b", 68.98e9, 68.98e9),
        ("llama-3.1-405b", 405.9e9, 405.9e9),
        ("mixtral-8x7b", 46.7e9, 12.9e9),
        ("falcon-40b", 41.3e9, 41.3e9),
        ("qwen3-32b", 32.8e9, 32.8e9),
        ("qwen3-235b-a22b", 235e9, 22.2e9),
        ("deepseek-v3", 671e9, 37.6e9),
        ("bloom-176b", 176.25e9, 176.25e9),
    ] {
        let m = catalog.model(name).unwrap();
        let (p, a) = (m.parameters() as f64, m.active_parameters() as f64);
        assert!((p / total - 1.0).abs() < 0.01, "{name}: {p}");
        assert!((a / active - 1.0).abs() < 0.01, "{name}: {a} active");
    }
    // The card of gpt-oss leaves the embedding out of its 5.13e9 active parameters.
    let oss = catalog.model("gpt-oss-120b").unwrap();
    let active = (oss.active_parameters() - oss.embedding_parameters()) as f64;
    assert!((active / 5.13e9 - 1.0).abs() < 0.01, "{active}");
}

#[test]
fn kv_bytes_per_token_follow_the_attention_kind() {
    let catalog = Catalog::builtin();
    let kv = |name: &str| catalog.model(name).unwrap().kv_bytes_per_token(Dtype::Bf16);
    assert_eq!(kv("llama-2-7b"), 524_288.0);
    assert_eq!(kv("llama-3.1-8b"), 131_072.0);
    assert_eq!(kv("falcon-7b"), 8_192.0);
    assert_eq!(kv("deepseek-v3"), 61.0 * 576.0 * 2.0);
    let deepseek = catalog.model("deepseek-v3").unwrap();
    assert_eq!(deepseek.kv_bytes_per_token_layer(Dtype::Fp8, 8), 656.0);
    assert_eq!(
        deepseek.kv_bytes_per_token_layer(Dtype::Bf16, 8),
        deepseek.kv_bytes_per_token_layer(Dtype::Bf16, 1),
        "the latent is on every rank"
    );
    let llama = catalog.model("llama-3.1-8b").unwrap();
    assert_eq!(llama.kv_bytes_per_token_layer(Dtype::Bf16, 8), 512.0);
    assert_eq!(
        llama.kv_bytes_per_token_layer(Dtype::Bf16, 16),
        512.0,
        "one head per rank is the least"
    );
    let mistral = catalog.model("mistral-7b-v0.1").unwrap();
    assert_eq!(
        mistral.kv_bytes_for_context(16_384, Dtype::Bf16),
        mistral.kv_bytes_for_context(4_096, Dtype::Bf16)
    );
    let oss = catalog.model("gpt-oss-120b").unwrap();
    let (long, all) = (100_000_u64, oss.kv_bytes_per_token(Dtype::Bf16));
    let share = oss.kv_bytes_for_context(long, Dtype::Bf16) / (all * long as f64);
    assert!(
        (share - 0.5).abs() < 0.01,
        "half of the layers see a window: {share}"
    );
}

#[test]
fn weight_bytes_keep_embedding_and_head_in_16_bits() {
    let catalog = Catalog::builtin();
    let m = catalog.model("llama-3.1-70b").unwrap();
    let tables = 2.0 * m.embedding_parameters() as f64;
    let rest = m.parameters() as f64 - tables;
    let fp8 = m.weight_bytes(Dtype::Fp8);
    assert!((fp8 / (rest + 2.0 * tables) - 1.0).abs() < 1e-3);
    assert_eq!(m.weight_bytes(Dtype::Bf16), 2.0 * m.parameters() as f64);
    // Ranks of a layout together hold the model once, but for what is replicated.
    let layout = Layout {
        tp: 4,
        pp: 2,
        dp: 1,
        ep: 1,
    };
    let sum = 4.0
        * (m.stage_weight_bytes(layout, 0..40, Dtype::Bf16)
            + m.stage_weight_bytes(layout, 40..80, Dtype::Bf16));
    let ratio = sum / m.weight_bytes(Dtype::Bf16);
    assert!((1.0..1.001).contains(&ratio), "{ratio}");
}

#[test]
fn moe_layers_are_where_the_configuration_says() {
    let catalog = Catalog::builtin();
    let v3 = catalog.model("deepseek-v3").unwrap();
    assert_eq!(v3.moe_layers_in(0..61), 58);
    assert!(!v3.is_moe_layer(2) && v3.is_moe_layer(3));
    let maverick = catalog.model("llama-4-maverick").unwrap();
    assert_eq!(maverick.moe_layers_in(0..48), 24);
    let dense = catalog.model("llama-2-7b").unwrap();
    assert_eq!(dense.moe_layers_in(0..32), 0);
}

#[test]
fn names_and_aliases_are_found_whatever_their_case() {
    let c = Catalog::builtin();
    assert_eq!(c.accelerator("H100").unwrap().name, "H100-SXM5-80GB");
    assert_eq!(c.instance("ml.G5.2xlarge").unwrap().name, "g5.2xlarge");
    assert_eq!(
        c.model("meta-llama/llama-2-7b-HF").unwrap().name,
        "llama-2-7b"
    );
    assert_eq!(c.model("llama-3.3-70b").unwrap().name, "llama-3.1-70b");
    assert_eq!(c.link("nvlink4").unwrap().bandwidth, 450e9);
}

#[test]
fn unknown_names_get_the_nearest_and_the_command_that_lists_them() {
    let e = Catalog::builtin()
        .model("lama-2-7b")
        .unwrap_err()
        .to_string();
    assert!(e.contains("did you mean `llama-2-7b`"), "{e}");
    assert!(e.contains("servetwin catalog list"), "{e}");
    let e = Catalog::builtin()
        .instance("zzzzqqqq")
        .unwrap_err()
        .to_string();
    assert!(!e.contains("did you mean"), "{e}");
}

#[test]
fn every_figure_has_a_source_and_instances_name_existing_parts() {
    let c = Catalog::builtin();
    assert!(c.accelerators().all(|a| !a.source.is_empty()));
    assert!(c.links().all(|l| !l.source.is_empty()));
    assert!(c.models().all(|m| m.source.starts_with("https://")));
    for i in c.instances() {
        assert!(!i.source.is_empty(), "{}", i.name);
        let a = c.accelerator(&i.accelerator).unwrap();
        assert!(i.ranks(a) >= i.devices);
    }
    let inf2 = c.instance("inf2.48xlarge").unwrap();
    assert_eq!(inf2.ranks(c.accelerator("inferentia2").unwrap()), 24);
}

#[test]
fn prices_carry_their_date() {
    let c = Catalog::builtin();
    let p4d = c.instance("p4d.24xlarge").unwrap();
    assert_eq!(p4d.price().unwrap().usd.usd_per_hour(), 21.957642);
    assert_eq!(
        p4d.price_on("2024-06-01").unwrap().usd.usd_per_hour(),
        32.7726
    );
    assert_eq!(p4d.price_on("2020-01-01"), None);
    assert_eq!(c.instance("p5e.48xlarge").unwrap().price(), None);
}

#[test]
fn a_user_folder_extends_and_overrides() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("mine.toml"),
        r#"
        [[accelerator]]
        name = "h100-sxm5-80gb"
        aliases = ["h100"]
        vendor = "NVIDIA"
        memory = "80 GiB"
        memory_bandwidth = "3 TB/s"
        bf16 = "900 TFLOP/s"
        units = 132
        on_chip = "50 MiB"
        host_bandwidth = "64 GB/s"
        source = "measured here"
        "#,
    )
    .unwrap();
    fs::create_dir(dir.path().join("models")).unwrap();
    fs::write(
        dir.path().join("models/tiny.json"),
        r#"{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
            "intermediate_size":128,"vocab_size":1000,"max_position_embeddings":512}"#,
    )
    .unwrap();
    let c = Catalog::with_dir(&Disk, dir.path()).unwrap();
    assert_eq!(c.accelerator("h100").unwrap().memory_bandwidth, 3e12);
    let count = c
        .accelerators()
        .filter(|a| a.name.to_lowercase().starts_with("h100-sxm"))
        .count();
    assert_eq!(count, 1);
    assert_eq!(c.model("tiny").unwrap().layers, 2);
    assert!(c.model("llama-2-7b").is_ok());
    assert!(c.instance("p5.48xlarge").is_ok());
}

#[test]
fn every_embedded_file_of_the_data_folder_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let mut files: Vec<String> = Disk
        .list(&folder)
        .unwrap()
        .into_iter()
        .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    for p in Disk.list(&folder.join("models")).unwrap() {
        files.push(format!(
            "models/{}",
            p.file_name().unwrap().to_string_lossy()
        ));
    }
    // Start-up and ranges read files of their own (crate::startup, crate::doubt).
    let of_catalog =
        |f: &&String| f.ends_with(".toml") && *f != "startup.toml" && *f != "errors.toml";
    for f in files.iter().filter(of_catalog) {
        assert!(BUILTIN.contains(&f.as_str()), "{f} is not embedded");
    }
}

#[test]
fn errors_in_user_files_name_file_line_and_field() {
    let e = error("[[link]]\nname = \"x\"\nkind = \"nvlink4\"\nbandwidth = 3\n");
    assert!(
        e.contains("my.toml") && e.contains("line 4") && e.contains("GB/s"),
        "{e}"
    );
    let e = error("[[link]]\nname = \"x\"\nbandwith = \"3 GB/s\"\n");
    assert!(
        e.contains("line 3") && e.contains("bandwith") && e.contains("`bandwidth`"),
        "{e}"
    );
    let e = error("[[model]]\nname = \"m\"\nsource = \"me\"\nconfig = { hidden_size = 1 }\n");
    assert!(
        e.contains("my.toml") && e.contains("num_hidden_layers"),
        "{e}"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("i.toml");
    fs::write(
        &file,
        "[[instance]]\nname = \"n\"\naccelerator = \"h1000\"\ndevices = 1\nnetwork_link = \"ena\"\n\
         network = \"1 Gb/s\"\nvcpus = 1\nram = \"1 GiB\"\nsource = \"me\"\n",
    )
    .unwrap();
    let left_out = |dir: &Path| {
        let c = Catalog::with_dir(&Disk, dir).unwrap();
        let [only] = c.left_out() else {
            panic!("{:?}", c.left_out())
        };
        only.error.to_string()
    };
    let e = left_out(dir.path());
    assert!(e.contains("instance `n`") && e.contains("h1000"), "{e}");
    fs::write(
        &file,
        "[[accelerator]]\nname = \"a\"\nvendor = \"v\"\nsame_chip_as = \"h1000\"\nmemory = \"80 GiB\"\n\
         memory_bandwidth = \"3 TB/s\"\nbf16 = \"900 TFLOP/s\"\nunits = 132\non_chip = \"50 MiB\"\n\
         host_bandwidth = \"64 GB/s\"\nsource = \"me\"\n",
    )
    .unwrap();
    let e = left_out(dir.path());
    assert!(e.contains("same_chip_as") && e.contains("h1000"), "{e}");
    assert!(Catalog::with_dir(&Disk, &dir.path().join("absent")).is_err());
    fs::write(&file, b"\xff\xfe").unwrap();
    let e = left_out(dir.path());
    assert!(e.contains("i.toml"), "{e}");
}

#[test]
fn one_bad_file_leaves_the_others_of_its_folder_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let good = "\u{feff}[[model]]\nname = \"mine\"\nsource = \"me\"\nconfig = { model_type = \"llama\", hidden_size = 64, \
                num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 128, vocab_size = 1000, \
                max_position_embeddings = 512 }\n";
    fs::write(dir.path().join("good.toml"), good).unwrap();
    fs::write(
        dir.path().join("bad.toml"),
        "[[instance]]\nname = \"p5.48xlarge\"\nintra_link = \"nvlink4\"\ndevices = \"eight\"\n",
    )
    .unwrap();
    fs::create_dir(dir.path().join("models")).unwrap();
    fs::write(dir.path().join("models/broken.json"), "{").unwrap();
    let c = Catalog::with_dir(&Disk, dir.path()).unwrap();
    assert_eq!(c.left_out().len(), 2);
    assert_eq!(c.model("mine").unwrap().layers, 2);
    // What the bad files do not define is as it was; what they define is an error that names them.
    assert!(c.instance("p5e.48xlarge").is_ok() && c.link("nvlink4").is_ok());
    let e = c.instance("P5.48xlarge").unwrap_err().to_string();
    assert!(e.contains("bad.toml") && e.contains("eight"), "{e}");
    let e = c.model("broken").unwrap_err().to_string();
    assert!(e.contains("broken.json"), "{e}");
}

#[test]
fn a_machine_of_ones_own_is_joined_as_its_accelerators_usually_are() {
    let mut c = Catalog::builtin();
    c.add_machine("own machine", "H100", 8, None).unwrap();
    let m = c.instance("own machine").unwrap();
    assert_eq!((m.accelerator.as_str(), m.devices), ("H100-SXM5-80GB", 8));
    assert_eq!(m.intra_link.as_deref(), Some("nvlink4"));
    assert_eq!(m.price(), None);
    c.add_machine("own machine", "L4", 2, Some(HostPath::Shared))
        .unwrap();
    let m = c.instance("own machine").unwrap();
    assert_eq!(m.intra_link.as_deref(), Some("pcie4-host"));
    assert_eq!(m.host_path, Some(HostPath::Shared));
    assert!(c.add_machine("own machine", "H1000", 8, None).is_err());
}

#[test]
fn the_names_of_other_clouds_are_known() {
    let c = Catalog::builtin();
    for (name, devices, chip) in [
        ("a3-highgpu-8g", 8, "H100-SXM5-80GB"),
        ("a3-megagpu-8g", 8, "H100-SXM5-80GB"),
        ("a3-ultragpu-8g", 8, "H200-SXM5-141GB"),
        ("a2-highgpu-1g", 1, "A100-SXM4-40GB"),
        ("a2-ultragpu-8g", 8, "A100-SXM4-80GB"),
        ("g2-standard-48", 4, "L4-24GB"),
        ("Standard_ND96isr_H100_v5", 8, "H100-SXM5-80GB"),
        ("ND96amsr_A100_v4", 8, "A100-SXM4-80GB"),
        ("Standard_NC24ads_A100_v4", 1, "A100-PCIe-80GB"),
        ("Standard_NC80adis_H100_v5", 2, "H100-NVL-94GB"),
        ("Standard_NV36ads_A10_v5", 1, "A10-24GB"),
        ("gpu_8x_h100_sxm5", 8, "H100-SXM5-80GB"),
        ("gd-8xh100ib-i128", 8, "H100-SXM5-80GB"),
    ] {
        let i = c.instance(name).unwrap();
        assert_eq!(
            (i.devices, i.accelerator.as_str()),
            (devices, chip),
            "{name}"
        );
    }
}

#[test]
fn blocks_are_those_that_vllm_logs() {
    let catalog = Catalog::builtin();
    for (model, tokens, states) in [
        ("qwen3-next-80b-a3b", 544, 3),
        ("qwen3.5-35b-a3b", 1056, 3),
        // A log of December 2025, one device. 20 layers with a state beside 7 of attention.
        ("kimi-linear-48b-a3b", 1920, 3),
        // A log of April 2026 of granite-4.0-h-1b, whose heads are the same. 36 layers beside 4.
        ("granite-4.0-h-tiny", 400, 9),
    ] {
        let arch = catalog.model(model).expect("it is in the catalog");
        assert_eq!(
            arch.vllm_blocks(Dtype::Bf16, 1, 16),
            (tokens, states),
            "{model}"
        );
    }
    let plain = catalog.model("qwen3-8b").expect("it is in the catalog");
    assert_eq!(plain.vllm_blocks(Dtype::Bf16, 1, 16), (16, 0));
}

#[test]
fn one_layer_of_four_keeps_kv() {
    let arch = Catalog::builtin();
    let arch = arch
        .model("qwen3-next-80b-a3b")
        .expect("it is in the catalog");
    assert_eq!(arch.kv_layers(), 12);
    assert_eq!(arch.kv_layers_in(0..3), 0);
    assert_eq!(arch.kv_layers_in(3..8), 2);
    // Two key and two value heads of 256 in 16 bits, twelve layers.
    assert_eq!(arch.kv_bytes_per_token(Dtype::Bf16), 12.0 * 2048.0);
    // 32 matrices of 128 x 128 and three tokens of 8192 channels, in 16 bits, in 36 layers; half of it on each of two ranks.
    let state = 36.0 * (32.0 * 128.0 * 128.0 * 2.0 + 3.0 * 8192.0 * 2.0);
    assert_eq!(arch.state_bytes_rank(Dtype::Bf16, 1, 0..48), state);
    assert_eq!(arch.state_bytes_rank(Dtype::Bf16, 2, 0..48), state / 2.0);
}

#[test]
fn sparse_latent_attention_keeps_a_key_of_its_indexer_for_each_token() {
    let c = Catalog::builtin();
    let v32 = c.model("deepseek-ai/DeepSeek-V3.2").unwrap();
    let indexer = v32.indexer.unwrap();
    assert_eq!(
        (indexer.heads, indexer.head_dim, indexer.top_k),
        (64, 128, 2048)
    );
    // 1152 or 656 bytes of latent and 132 of the indexer's key, in 61 layers, on every rank.
    assert_eq!(v32.kv_bytes_per_token(Dtype::Bf16), 61.0 * 1284.0);
    assert_eq!(v32.kv_bytes_per_token(Dtype::Fp8), 61.0 * 788.0);
    assert_eq!(v32.kv_bytes_per_token_layer(Dtype::Fp8, 8), 788.0);
    assert_eq!(v32.vllm_blocks(Dtype::Bf16, 8, 16), (64, 0));
    // 1536 x 64 x 128 + 7168 x (128 + 64) parameters a layer more than DeepSeek-V3.
    let v3 = c.model("deepseek-v3").unwrap();
    let more = v32.parameters() - v3.parameters();
    assert_eq!(more, 61 * (12_582_912 + 1_376_256 + 256));
    let glm = c.model("zai-org/GLM-5").unwrap();
    assert_eq!(glm.kv_bytes_per_token(Dtype::Bf16), 78.0 * 1284.0);
    let e = Layout::SINGLE
        .check(glm, crate::engine::EngineKind::Tgi)
        .unwrap_err();
    assert!(e.to_string().contains("sparse attention"), "{e}");
}

#[test]
fn states_of_a_sequence_are_those_of_hand() {
    let c = Catalog::builtin();
    let rank = |name: &str, unsaid, tp| {
        let arch = c.model(name).unwrap();
        arch.state_bytes_rank(unsaid, tp, 0..arch.layers)
    };
    let bf16 = Dtype::Bf16;
    // 20 layers: 32 matrices of 128 x 128 in 32 bits whatever the engine, three tokens of 3 x 4096 channels in 16.
    let kimi = 20.0 * (32.0 * 128.0 * 128.0 * 4.0 + 3.0 * 12_288.0 * 2.0);
    assert_eq!(rank("kimi-linear-48b-a3b", bf16, 1), kimi);
    assert_eq!(rank("kimi-linear-48b-a3b", bf16, 4), kimi / 4.0);
    // 27 layers: 128 heads of 80 x 128 in 32 bits, and 10 240 + 2 x 8 x 128 channels.
    let nano = 27.0 * (128.0 * 80.0 * 128.0 * 4.0 + 3.0 * 12_288.0 * 2.0);
    assert_eq!(rank("nemotron-nano-9b-v2", bf16, 1), nano);
    assert_eq!(rank("nemotron-nano-9b-v2", bf16, 8), nano / 8.0);
    // 36 layers: 128 heads of 64 x 128 in what the engine takes, and 8192 channels beside one group's 256, which every rank has.
    let [states, heads, group] = [128.0 * 64.0 * 128.0, 3.0 * 8192.0 * 2.0, 3.0 * 256.0 * 2.0];
    let granite = |bytes: f64, tp: f64| 36.0 * ((states * bytes + heads) / tp + group);
    assert_eq!(rank("granite-4.0-h-small", bf16, 1), granite(2.0, 1.0));
    assert_eq!(
        rank("granite-4.0-h-small", Dtype::Fp32, 1),
        granite(4.0, 1.0)
    );
    assert_eq!(rank("granite-4.0-h-small", bf16, 4), granite(2.0, 4.0));
}

#[test]
fn layers_with_a_state_have_the_parameters_of_their_matrices() {
    let c = Catalog::builtin();
    let layer = |name: &str| {
        let arch = c.model(name).unwrap();
        arch.recurrence.unwrap().parameters(arch.hidden)
    };
    // q, k, v, output; beta and the first halves of two gates; their second halves; convolutions; A, the bias of the gates, the norm.
    let kimi = 4 * 2304 * 4096 + 2304 * (32 + 256) + 2 * 128 * 4096 + 4 * 12_288 + 32 + 4096 + 128;
    assert_eq!(layer("kimi-linear-48b-a3b"), kimi);
    // z, x, B, C and dt; output; the convolution and its bias; A, D, the bias; the norm.
    let nano = 2688 * (2 * 4096 + 2 * 1024 + 64) + 4096 * 2688 + 6144 * 5 + 3 * 64 + 4096;
    assert_eq!(layer("nemotron-3-nano-30b-a3b"), nano);
    // Norms of half layers, and nothing of attention where there is none.
    let arch = c.model("nemotron-nano-9b-v2").unwrap();
    let mlp = arch.layer_params(arch.block(1));
    assert_eq!(
        (mlp.mixer, mlp.dense, mlp.small),
        (0, 2 * 4480 * 15_680, 4480)
    );
    assert_eq!((arch.kv_layers(), arch.state_layers_in(0..56)), (4, 27));
}

#[test]
fn ranks_divide_the_heads_of_states_and_share_groups() {
    let c = Catalog::builtin();
    let check = |name: &str, tp, engine| {
        let layout = Layout {
            tp,
            ..Layout::SINGLE
        };
        layout.check(c.model(name).unwrap(), engine)
    };
    use crate::engine::EngineKind::{Sglang, Tgi, VllmV1};
    assert!(check("granite-4.0-h-small", 8, VllmV1).is_ok());
    assert!(check("nemotron-nano-9b-v2", 8, Sglang).is_ok());
    let e = check("granite-4.0-h-micro", 1, Tgi)
        .unwrap_err()
        .to_string();
    assert!(e.contains("Mamba2") && e.contains("SGLang"), "{e}");
    // A rank holds a share of the matrices, and half a share of weights more of what is copied.
    let arch = c.model("kimi-linear-48b-a3b").unwrap();
    let r = arch.recurrence.unwrap();
    let copied = u64::from(2 * r.value_dim * arch.hidden);
    let (whole, half) = (
        r.parameters(arch.hidden),
        r.on_rank(2).parameters(arch.hidden),
    );
    assert!(2 * half > whole && 2 * half - whole < copied + 1000);
}
