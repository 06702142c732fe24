//! `vllm serve` and `python -m vllm.entrypoints.openai.api_server`.
//!
//! Arguments: vllm-project/vllm `vllm/engine/arg_utils.py` and `vllm/entrypoints/openai/cli_args.py`, releases 0.8 to 0.17, with those that newer ones added
//! to the scheduler.

use std::sync::Arc;

use sim::engines::params::VllmRelease;

use super::args::{self, Args, Given};
use super::draft::{Draft, Mode};
use crate::keys::Read::{Number, Switch, Text, Thousands, Whole, Wholes};
use crate::keys::{Key, Table, not_modelled, not_modelled_flag, says, sets};
use crate::place::{Place, shown};
use crate::report::Fate;
use crate::text::shell::Word;

const ADAPTERS: &str = "LoRA adapters take memory and time that are not simulated";
const DRAFTS: &str = "speculative decoding is not simulated: steps verify one token a request";
const CONTEXT: &str = "context parallelism is not simulated";
const BALANCE: &str =
    "experts stay where they are: rebalancing and overlap of micro-batches are not simulated";
const MEDIA: &str = "prompts are tokens: images and audio are not simulated";

/// The arguments.
pub const TABLE: Table = Table {
    kind: "vllm",
    title: "`vllm serve MODEL ...`, `python -m vllm.entrypoints.openai.api_server ...`",
    keys: &[
        says(
            "--model",
            "`model.name`, by the catalog's aliases, or `model.config`",
            Text,
        ),
        says("--tensor-parallel-size -tp", "`layout.tp`", Whole),
        sets("--pipeline-parallel-size -pp", "layout.pp", Whole),
        says(
            "--data-parallel-size -dp",
            "`layout.dp` of a mixture of experts; of a dense model a factor of `layout.replicas`",
            Whole,
        ),
        says(
            "--data-parallel-size-local -dpl",
            "ranks of a machine: a replica stands on --data-parallel-size / this",
            Whole,
        ),
        says("--nnodes -n", "machines of a replica", Whole),
        says(
            "--enable-expert-parallel -ep",
            "`layout.ep` = dp x tp",
            Switch,
        ),
        sets("--max-model-len", "engine.max_model_len", Thousands),
        sets("--max-num-seqs", "engine.max_num_seqs", Thousands),
        sets(
            "--max-num-batched-tokens",
            "engine.max_num_batched_tokens",
            Thousands,
        ),
        sets(
            "--gpu-memory-utilization",
            "engine.gpu_memory_utilization",
            Number,
        ),
        sets("--block-size", "engine.block_size", Whole),
        sets("--num-gpu-blocks-override", "engine.kv_blocks", Whole),
        sets(
            "--enable-chunked-prefill",
            "engine.enable_chunked_prefill",
            Switch,
        ),
        sets(
            "--enable-prefix-caching",
            "engine.enable_prefix_caching",
            Switch,
        ),
        sets(
            "--long-prefill-token-threshold",
            "engine.long_prefill_token_threshold",
            Thousands,
        ),
        sets("--scheduling-policy", "engine.scheduling_policy", Text),
        sets("--async-scheduling", "engine.async_scheduling", Switch),
        sets(
            "--cudagraph-capture-sizes --cuda-graph-sizes",
            "engine.cudagraph_capture_sizes",
            Wholes,
        ),
        sets("--api-server-count -asc", "engine.api_server_count", Whole),
        sets("--max-num-queued-reqs", "engine.max_num_queued_reqs", Whole),
        sets(
            "--max-num-queued-tokens",
            "engine.max_num_queued_tokens",
            Whole,
        ),
        sets(
            "--scheduler-reserve-full-isl",
            "engine.scheduler_reserve_full_isl",
            Switch,
        ),
        sets("--watermark", "engine.watermark", Number),
        says("--enforce-eager", "`engine.cuda_graphs` = false", Switch),
        says(
            "--max-cudagraph-capture-size",
            "the sizes of `engine.cudagraph_capture_sizes` up to it",
            Whole,
        ),
        says(
            "--kv-cache-dtype",
            "`model.kv_cache`: fp8 of any sort, or the model's 16 bits",
            Text,
        ),
        says("--quantization -q", "`model.weights`", Text),
        says(
            "--dtype",
            "`model.weights` where it is float32; 16-bit formats cost the same",
            Text,
        ),
        says(
            "--compilation-config -O",
            "`engine.cudagraph_capture_sizes`, `engine.cudagraph_mode` and `engine.cuda_graphs`, where it holds cudagraph_capture_sizes or a cudagraph_mode",
            Text,
        ),
        not_modelled("--speculative-config -sc", DRAFTS),
        not_modelled("--speculative-model", DRAFTS),
        not_modelled("--num-speculative-tokens", DRAFTS),
        not_modelled_flag("--enable-lora", ADAPTERS),
        not_modelled("--max-loras", ADAPTERS),
        not_modelled("--max-lora-rank", ADAPTERS),
        Key {
            takes: crate::keys::Takes::Values,
            ..not_modelled("--lora-modules", ADAPTERS)
        },
        not_modelled("--max-cpu-loras", ADAPTERS),
        says(
            "--kv-transfer-config",
            "how KV goes from prefill to decode, where they are apart (llm-d); elsewhere KV that moves is not simulated",
            Text,
        ),
        sets("--kv-offloading-size", "engine.kv_offloading_size", Number),
        says(
            "--moe-backend",
            "`engine.moe_backend` where it is marlin",
            Text,
        ),
        not_modelled(
            "--cpu-offload-gb",
            "weights in the host's memory are not simulated",
        ),
        not_modelled("--swap-space", "preempted requests are computed again (V1)"),
        not_modelled(
            "--kv-cache-memory-bytes",
            "the memory plan works with --gpu-memory-utilization; give --num-gpu-blocks-override, or engine.kv_blocks from the server's log",
        ),
        not_modelled("--decode-context-parallel-size -dcp", CONTEXT),
        not_modelled("--prefill-context-parallel-size -pcp", CONTEXT),
        not_modelled_flag("--enable-eplb", BALANCE),
        not_modelled_flag("--enable-dbo", BALANCE),
        not_modelled_flag("--enable-elastic-ep", BALANCE),
        not_modelled(
            "--max-num-partial-prefills",
            "the V1 scheduler's own order of prefills is simulated",
        ),
        not_modelled(
            "--max-long-partial-prefills",
            "the V1 scheduler's own order of prefills is simulated",
        ),
        not_modelled(
            "--num-scheduler-steps",
            "several steps at once were a feature of V0",
        ),
        not_modelled(
            "--scheduler-cls",
            "a scheduler of one's own is not known here",
        ),
        not_modelled(
            "--hf-overrides",
            "the model's shape is the catalog's, or its config.json's",
        ),
        not_modelled(
            "--rope-scaling",
            "the model's longest context is the catalog's; set --max-model-len",
        ),
        not_modelled("--limit-mm-per-prompt", MEDIA),
        not_modelled_flag(
            "--disable-custom-all-reduce",
            "all-reduces are costed with vLLM's own kernels where it has them",
        ),
        not_modelled("--stream-interval", "every token is sent as it comes"),
        not_modelled(
            "--attention-backend",
            "step times are those of the profile's backend",
        ),
        not_modelled(
            "--config",
            "a YAML file of arguments: write its keys as options, or import it as part of the command",
        ),
    ],
    idle: &[
        "--host",
        "--port",
        "--uds",
        "--root-path",
        "--uvicorn-log-level",
        "--served-model-name",
        "--tokenizer",
        "--tokenizer-mode",
        "--tokenizer-revision",
        "--revision",
        "--code-revision",
        "--download-dir",
        "--load-format",
        "--model-loader-extra-config",
        "--safetensors-load-strategy",
        "--ignore-patterns",
        "--config-format",
        "--hf-config-path",
        "--hf-token",
        "--seed",
        "--api-key",
        "--chat-template",
        "--chat-template-content-format",
        "--response-role",
        "--tool-call-parser",
        "--tool-parser-plugin",
        "--tool-server",
        "--reasoning-parser",
        "--reasoning-parser-plugin",
        "--ssl-keyfile",
        "--ssl-certfile",
        "--ssl-ca-certs",
        "--ssl-cert-reqs",
        "--allowed-origins",
        "--allowed-methods",
        "--allowed-headers",
        "--allowed-local-media-path",
        "--allowed-media-domains",
        "--middleware",
        "--max-log-len",
        "--log-config-file",
        "--otlp-traces-endpoint",
        "--collect-detailed-traces",
        "--show-hidden-metrics-for-version",
        "--generation-config",
        "--override-generation-config",
        "--distributed-executor-backend",
        "--worker-cls",
        "--worker-extension-cls",
        "--node-rank",
        "-r",
        "--master-addr",
        "--master-port",
        "--distributed-timeout-seconds",
        "--data-parallel-address",
        "-dpa",
        "--data-parallel-rpc-port",
        "-dpp",
        "--data-parallel-backend",
        "-dpb",
        "--data-parallel-start-rank",
        "-dpr",
        "--data-parallel-rank",
        "-dpn",
        "--all2all-backend",
        "--expert-placement-strategy",
        "--max-parallel-loading-workers",
        "--prefix-caching-hash-algo",
        "--max-logprobs",
        "--logprobs-mode",
        "--guided-decoding-backend",
        "--structured-outputs-config",
        "--task",
        "--runner",
        "--convert",
        "--model-impl",
        "--device",
        "--additional-config",
        "--max-seq-len-to-capture",
        "--kv-events-config",
        "--io-processor-plugin",
        "--logits-processors",
        "--pt-load-map-location",
    ],
    idle_flags: &[
        "--trust-remote-code",
        "--disable-log-requests",
        "--enable-log-requests",
        "--disable-log-stats",
        "--disable-uvicorn-access-log",
        "--enable-auto-tool-choice",
        "--enable-request-id-headers",
        "--enable-prompt-tokens-details",
        "--enable-server-load-tracking",
        "--disable-fastapi-docs",
        "--return-tokens-as-token-ids",
        "--disable-frontend-multiprocessing",
        "--allow-credentials",
        "--headless",
        "--enable-sleep-mode",
        "--enable-ssl-refresh",
        "--enable-force-include-usage",
        "--enable-log-outputs",
        "--log-error-stack",
        "--use-tqdm-on-load",
        "--skip-tokenizer-init",
        "--data-parallel-hybrid-lb",
        "-dph",
        "--data-parallel-external-lb",
        "-dpe",
        "--enable-tokenizer-info-endpoint",
        "--disable-sliding-window",
        "--disable-cascade-attn",
        "--calculate-kv-scales",
        "--use-v2-block-manager",
        "--ray-workers-use-nsight",
        "--disable-async-output-proc",
        "--exclude-tools-when-tool-choice-none",
        "--enable-offline-docs",
        "--disable-hybrid-kv-cache-manager",
        "--enable-mfu-metrics",
        "--cudagraph-metrics",
        "--kv-cache-metrics",
        "--enable-flashinfer-autotune",
    ],
};

/// Reads a command's words behind `vllm serve`. `image` is the container's, whose tag says the release.
pub fn import(words: &[Word], file: &Arc<str>, image: Option<(&str, Place)>, draft: &mut Draft) {
    if is_further(words, file, draft) {
        return;
    }
    let args = args::read(&TABLE, words, file, draft);
    let first = words.first().map_or(1, |w| w.line);
    let start = super::draft::Origin::new(Place::new(file, first), "vllm", "");
    engine(&start, image, draft);
    model(&args, file, draft);
    machines(&args, draft);
    if let Some((n, origin)) = args::whole(args.get("--block-size"), draft)
        && !BLOCK_SIZES.contains(&n)
    {
        draft.fault(origin.fault(format!(
            "vLLM takes blocks of 1, 8, 16, 32, 64, 128 or 256 tokens, got {n}"
        )));
    }
    args::apply(args.given.values(), draft);
    layout(&args, draft);
    formats(&args, draft);
    if let Some(g) = args.get("--kv-transfer-config") {
        draft.facts.mode = connector(&g.value).map(|mode| (mode, g.origin.clone()));
        let (fate, note) = match draft.facts.is_apart {
            true => (
                Fate::Used,
                "KV goes from prefill to decode; set [kv_transfer] for a link of your own",
            ),
            false => (
                Fate::NotModelled,
                "KV that moves between replicas or tiers is not simulated",
            ),
        };
        draft.fate(&g.origin, fate, note);
    }
    graphs(&args, draft);
}

/// Whether the words start a further machine of a replica, whose first one says all there is (`--node-rank 1`, `--headless`).
pub fn is_further(words: &[Word], file: &Arc<str>, draft: &mut Draft) -> bool {
    let further = words.iter().enumerate().find_map(|(i, w)| {
        let (name, value) = match w.text.split_once('=') {
            Some((name, value)) => (name, value),
            None => (
                w.text.as_str(),
                words.get(i + 1).map_or("", |v| v.text.as_str()),
            ),
        };
        let rank = matches!(
            name,
            "--node-rank" | "--node_rank" | "--data-parallel-start-rank" | "-dpr"
        );
        let is_later = rank && value.parse::<u32>().is_ok_and(|n| n > 0);
        (is_later || name == "--headless").then_some((name, w.line))
    });
    if let Some((name, line)) = further {
        let origin = super::draft::Origin::new(Place::new(file, line), name, "");
        draft.used(
            &origin,
            "a further machine of a replica, whose first one says what it serves",
        );
        draft.facts.is_further = true;
    }
    further.is_some()
}

/// Machines of one replica: `--nnodes`, or data-parallel ranks that do not all stand on this one.
fn machines(args: &Args, draft: &mut Draft) {
    let nodes = args::whole(args.get("--nnodes"), draft);
    let local = args::whole(args.get("--data-parallel-size-local"), draft);
    let ranks = args::whole(args.get("--data-parallel-size"), draft);
    draft.facts.machines = match (nodes, local, ranks) {
        (Some(found), ..) => Some(found),
        (None, Some((local, origin)), Some((ranks, _))) if local > 0 && ranks % local == 0 => {
            Some((ranks / local, origin))
        }
        _ => None,
    };
    if let Some((n, origin)) = draft.facts.machines.clone() {
        draft.used(&origin, format!("a replica stands on {n} machines"));
    }
}

/// What vLLM's connector does by its `kv_role`; none where it hands nothing to another server.
pub fn connector(config: &str) -> Option<Mode> {
    let hands_on = [
        "Nixl",
        "P2p",
        "PyNccl",
        "Mooncake",
        "LMCache",
        "MultiConnector",
        "Moriio",
    ];
    if !hands_on.iter().any(|name| config.contains(name)) {
        return None;
    }
    let role = config.split("kv_role").nth(1)?;
    let word = role.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    match word {
        _ if word.starts_with("kv_producer") => Some(Mode::Prefill),
        _ if word.starts_with("kv_consumer") => Some(Mode::Decode),
        _ => Some(Mode::Either),
    }
}

/// Whether the words behind `python -m dynamo.vllm` make a worker that prefills alone; the words of old are `--is-prefill-worker`.
pub fn is_prefill(words: &[Word]) -> bool {
    let mut all = words.iter().map(|w| w.text.as_str()).peekable();
    while let Some(word) = all.next() {
        let mode = match word.split_once('=') {
            Some(("--disaggregation-mode", mode)) => Some(mode),
            None if word == "--disaggregation-mode" => all.peek().copied(),
            _ => None,
        };
        if word == "--is-prefill-worker" || mode == Some("prefill") {
            return true;
        }
    }
    false
}

/// Reads the words behind `python -m dynamo.vllm`, which takes vLLM's arguments and some of its own.
pub fn dynamo(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let own = [
        "--connector",
        "--is-decode-worker",
        "--is-prefill-worker",
        "--disaggregation-mode",
    ];
    let mut skip = false;
    let words: Vec<Word> = words
        .iter()
        .filter(|w| {
            let is_value = std::mem::take(&mut skip) && !w.text.starts_with("--");
            let is_own = own.iter().any(|o| w.text.starts_with(o));
            // These take a word of their own behind them.
            skip = matches!(w.text.as_str(), "--connector" | "--disaggregation-mode");
            !is_own && !is_value
        })
        .cloned()
        .collect();
    import(&words, file, None, draft);
    let line = words.first().map_or(1, |w| w.line);
    let origin = super::draft::Origin::new(Place::new(file, line), "dynamo.vllm", "");
    draft.set("engine.front_end", "dynamo", &origin);
}

/// Reads `pip install vllm==0.15.1`.
pub fn installed(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let found = words.iter().find_map(|w| {
        let (_, release) = w.text.split_once("vllm==0.")?;
        let minor = release
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()?;
        Some((minor, w))
    });
    if let Some((minor, word)) = found {
        let origin = super::draft::Origin::new(
            Place::new(file, word.line),
            "pip install",
            word.text.clone(),
        );
        draft.facts.vllm_release = Some((minor, origin));
    }
}

/// Which scheduler, and which release.
fn engine(start: &super::draft::Origin, image: Option<(&str, Place)>, draft: &mut Draft) {
    let named = image.map(|(image, place)| {
        let origin = super::draft::Origin::new(place, "image", image);
        (release_of(image), origin)
    });
    let installed = draft.facts.vllm_release.clone();
    let (tagged, unknown) = match named {
        Some((Some(minor), origin)) => (Some((minor, origin)), None),
        Some((None, origin)) => (None, Some(origin)),
        None => (None, None),
    };
    let newest = VllmRelease::NEWEST.to_string();
    let is_modelled = |minor: u32| {
        newest
            .split_once('.')
            .and_then(|(_, n)| n.parse::<u32>().ok())
            .is_none_or(|n| minor <= n)
    };
    match tagged.or(installed) {
        Some((minor, origin)) if is_modelled(minor) => {
            draft.set("engine.kind", "vllm_v1", start);
            draft.set("engine.version", format!("0.{}", minor.max(8)), &origin);
            if minor < 8 {
                draft.fate(
                    &origin,
                    Fate::NotModelled,
                    "releases before 0.8 have the V0 scheduler, which is not simulated: taken as 0.8",
                );
            }
        }
        other => {
            let why = match (&other, &unknown) {
                (Some((minor, _)), _) => {
                    format!("0.{minor} is newer than what is modelled: the newest that is")
                }
                (None, Some(origin)) => format!(
                    "the tag of {} is no release of vLLM, which the image may hold in any: the newest that is modelled",
                    shown(&origin.raw)
                ),
                (None, None) => {
                    "no image with a release's tag: the newest that is modelled".to_owned()
                }
            };
            draft.set("engine.kind", "vllm_v1", start);
            draft.assume("engine.version", newest, &why);
        }
    }
}

/// Names of images whose tags are vLLM's releases.
const OWN_TAGS: [&str; 9] = [
    "vllm",
    "vllm-openai",
    "vllm-openai-rocm",
    "vllm-ascend",
    "vllm-tpu",
    "vllm-cpu",
    "vllm-cpu-release-repo",
    "vllm-cpu-env",
    "vllm-inference",
];
/// Publishers whose images of those names carry releases of their own.
const OTHERS: [&str; 2] = ["lmcache/", "llm-d/"];

/// vLLM's release that an image's tag names: `vllm/vllm-openai:v0.11.0` is 11, and so is `rocm/vllm-dev:rocm6.4_vllm_0.11.0`; none of an image whose tags
/// are releases of something else (llm-d, LMCache).
pub fn release_of(image: &str) -> Option<u32> {
    let (name, tag) = image.rsplit('/').next()?.split_once(':')?;
    let minor = |text: &str| -> Option<u32> {
        let digits = text.strip_prefix('v').unwrap_or(text).strip_prefix("0.")?;
        digits
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    // A tag that names vLLM is about vLLM, whoever has built it.
    if let Some(at) = tag.find("vllm") {
        return minor(tag[at + "vllm".len()..].trim_start_matches(['_', '-']));
    }
    let is_own = OWN_TAGS.contains(&name) && !OTHERS.iter().any(|o| image.contains(o));
    minor(tag).filter(|_| is_own)
}

fn model(args: &Args, file: &Arc<str>, draft: &mut Draft) {
    let mut positional = args.positional.iter();
    let named = args
        .get("--model")
        .map(|g| (g.value.clone(), g.origin.clone()));
    let found = positional.next().map(|w| {
        let origin = super::draft::Origin::new(Place::new(file, w.line), "MODEL", w.text.clone());
        (w.text.clone(), origin)
    });
    for word in positional {
        let origin = super::draft::Origin::new(Place::new(file, word.line), word.text.clone(), "");
        draft.fate(
            &origin,
            Fate::NotUnderstood,
            "a word that belongs to no option",
        );
    }
    if let Some((id, origin)) = found.or(named) {
        draft.model(id, origin);
    }
}

fn layout(args: &Args, draft: &mut Draft) {
    if let Some((n, origin)) = args::whole(args.get("--tensor-parallel-size"), draft) {
        draft.set("layout.tp", n, &origin);
    }
    if let Some(found) = args::whole(args.get("--data-parallel-size"), draft) {
        draft.facts.data_parallel = Some(found);
    }
    if let Some((true, origin)) = args::switched(args.get("--enable-expert-parallel"), draft) {
        draft.facts.expert_parallel = Some(origin);
    }
}

/// Sizes of KV blocks that vLLM takes (`vllm/config/cache.py`, `BlockSize`).
const BLOCK_SIZES: [i64; 7] = [1, 8, 16, 32, 64, 128, 256];

/// Formats of `--quantization` and what they are here.
const QUANTISATION: [(&str, &str); 22] = [
    ("fp8", "fp8"),
    ("fbgemm_fp8", "fp8"),
    ("ptpc_fp8", "fp8"),
    ("modelopt", "fp8"),
    ("fp_quant", "fp8"),
    ("awq", "int4"),
    ("awq_marlin", "int4"),
    ("gptq", "int4"),
    ("gptq_marlin", "int4"),
    ("gptq_marlin_24", "int4"),
    ("marlin", "int4"),
    ("bitsandbytes", "int4"),
    ("auto-round", "int4"),
    ("auto_round", "int4"),
    ("hqq", "int4"),
    ("moe_wna16", "int4"),
    ("gguf", "int4"),
    ("experts_int8", "int8"),
    ("deepspeedfp", "fp8"),
    ("mxfp4", "mxfp4"),
    ("gpt_oss_mxfp4", "mxfp4"),
    ("tpu_int8", "int8"),
];

fn formats(args: &Args, draft: &mut Draft) {
    if let Some(g) = args.get("--quantization") {
        match QUANTISATION.iter().find(|(name, _)| *name == g.value) {
            Some((_, format)) => draft.set("model.weights", *format, &g.origin),
            None if matches!(g.value.as_str(), "None" | "none" | "auto") => {
                draft.used(&g.origin, "the model's own format")
            }
            None => draft.fate(
                &g.origin,
                Fate::NotModelled,
                "which format the weights have is not known; set model.weights",
            ),
        }
    }
    if let Some(g) = args.get("--moe-backend") {
        if g.value == "marlin" {
            draft.set("engine.moe_backend", "marlin", &g.origin);
        } else {
            draft.used(&g.origin, "kernels are those of the profile's tables");
        }
    }
    if let Some(g) = args.get("--kv-cache-dtype") {
        match g.value.as_str() {
            "auto" | "bfloat16" | "float16" | "half" => {
                draft.set("model.kv_cache", "bf16", &g.origin)
            }
            value if value.starts_with("fp8") => draft.set("model.kv_cache", "fp8", &g.origin),
            "int8" => draft.set("model.kv_cache", "int8", &g.origin),
            _ => draft.fault(args::one_of(g, "auto, bfloat16 or an fp8 format")),
        }
    }
    if let Some(g) = args.get("--dtype") {
        match g.value.as_str() {
            "float32" | "float" => draft.set("model.weights", "fp32", &g.origin),
            "auto" | "half" | "float16" | "bfloat16" => {
                draft.used(&g.origin, "16 bits, or the model's own format")
            }
            _ => draft.fault(args::one_of(
                g,
                "auto, half, float16, bfloat16, float or float32",
            )),
        }
    }
}

/// Batch sizes for which vLLM captures graphs up to `most`: 1, 2, 4, multiples of 8 to 256, then of 16.
fn captured(most: i64) -> Vec<i64> {
    let small = [1, 2, 4].into_iter();
    let by_8 = (8..=256).step_by(8);
    let by_16 = (272..=most.clamp(0, 4096)).step_by(16);
    small
        .chain(by_8)
        .chain(by_16)
        .filter(|n| *n <= most)
        .collect()
}

fn graphs(args: &Args, draft: &mut Draft) {
    if let Some((eager, origin)) = args::switched(args.get("--enforce-eager"), draft) {
        draft.set("engine.cuda_graphs", !eager, &origin);
    }
    if let Some((most, origin)) = args::whole(args.get("--max-cudagraph-capture-size"), draft) {
        draft.set("engine.cudagraph_capture_sizes", captured(most), &origin);
    }
    if let Some(g) = args.get("--compilation-config").cloned() {
        compilation(&g, draft);
    }
}

/// `--compilation-config '{"cudagraph_capture_sizes": [1, 2], "cudagraph_mode": "NONE"}'`, or a level.
fn compilation(g: &Given, draft: &mut Draft) {
    if g.value.parse::<u32>().is_ok() {
        draft.used(
            &g.origin,
            "a level of compilation: step times are those of the profile's",
        );
        return;
    }
    let Ok(serde_json::Value::Object(keys)) = serde_json::from_str(&g.value) else {
        draft.fault(g.origin.fault(format!(
            "must be a JSON object or a level, got `{}`",
            shown(&g.value)
        )));
        return;
    };
    let mut others = Vec::new();
    for (key, value) in &keys {
        match (key.as_str(), value) {
            ("cudagraph_capture_sizes", serde_json::Value::Array(sizes)) => {
                let all: Option<Vec<i64>> = sizes.iter().map(serde_json::Value::as_i64).collect();
                match all {
                    Some(all) => draft.set("engine.cudagraph_capture_sizes", all, &g.origin),
                    None => draft.fault(
                        g.origin
                            .fault("cudagraph_capture_sizes must be a list of whole numbers"),
                    ),
                }
            }
            ("cudagraph_mode", serde_json::Value::String(mode)) => {
                draft.set(
                    "engine.cuda_graphs",
                    !mode.eq_ignore_ascii_case("NONE"),
                    &g.origin,
                );
                let mode = mode.to_ascii_uppercase();
                if ["FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY"].contains(&mode.as_str())
                {
                    draft.set("engine.cudagraph_mode", mode, &g.origin);
                }
            }
            _ => others.push(key.as_str()),
        }
    }
    if !others.is_empty() {
        draft.fate(
            &g.origin,
            Fate::NotModelled,
            shown(&format!("not simulated: {}", others.join(", "))),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_tag_says_the_release() {
        for (image, minor) in [
            ("vllm/vllm-openai:v0.11.0", Some(11)),
            ("registry:5000/vllm:0.6.3.post1", Some(6)),
            ("vllm/vllm-openai:latest", None),
            ("vllm/vllm-openai", None),
            ("aibrix/vllm-openai:v0.9.2-cu128-nixl-v0.4.1", Some(9)),
            (
                "public.ecr.aws/deep-learning-containers/vllm:0.11.2-gpu-py312",
                Some(11),
            ),
            ("rocm/vllm-dev:rocm6.4.1_vllm_0.10.1", Some(10)),
            ("ghcr.io/llm-d/llm-d-cuda:v0.5.0", None),
            ("lmcache/vllm-openai:v0.3.9", None),
            ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0", None),
        ] {
            assert_eq!(release_of(image), minor, "{image}");
        }
    }

    #[test]
    fn graphs_are_captured_as_vllm_does() {
        assert_eq!(captured(20), [1, 2, 4, 8, 16]);
        assert_eq!(captured(512).last(), Some(&512));
    }
}
