//! `python -m sglang.launch_server` and `sglang serve`.
//!
//! Arguments: sgl-project/sglang `python/sglang/srt/server_args.py`, releases 0.5.0 to 0.5.14.

use std::sync::Arc;

use sim::policy::sglang::SglangRelease;

use super::args::{self, Args};
use super::draft::{Draft, Mode, Origin};
use crate::keys::Read::{Number, Switch, Text, Whole, Wholes};
use crate::keys::{Key, Meaning, Table, Takes, not_modelled, not_modelled_flag, says, sets};
use crate::place::Place;
use crate::report::Fate;
use crate::text::shell::Word;

const ADAPTERS: &str = "LoRA adapters take memory and time that are not simulated";
const DRAFTS: &str = "drafts are those of the model's own module for multi-token prediction";
const TIERS: &str = "KV in host memory or storage is not simulated for SGLang";
const BALANCE: &str =
    "experts stay where they are: rebalancing and overlap of micro-batches are not simulated";
const KERNELS: &str = "step times are those of the profile's kernels";
const CONTEXT: &str = "context parallelism is not simulated";
const DELAY: &str = "prompts are not held back for others";

const fn refused(names: &'static str, why: &'static str) -> Key {
    Key {
        names,
        takes: Takes::Value,
        meaning: Meaning::Refused(why),
    }
}

/// The arguments.
pub const TABLE: Table = Table {
    kind: "sglang",
    title: "`python -m sglang.launch_server ...`, `sglang serve ...`",
    keys: &[
        says(
            "--model-path --model",
            "`model.name`, by the catalog's aliases, or `model.config`",
            Text,
        ),
        says(
            "--tensor-parallel-size --tp-size --tp",
            "`layout.tp`; with --enable-dp-attention `layout.tp` x `layout.dp`",
            Whole,
        ),
        says(
            "--data-parallel-size --dp-size --dp",
            "a factor of `layout.replicas`; with --enable-dp-attention `layout.dp`",
            Whole,
        ),
        says(
            "--enable-dp-attention",
            "attention in `layout.dp` ranks of --tp-size / --dp-size devices each",
            Switch,
        ),
        sets("--expert-parallel-size --ep-size --ep", "layout.ep", Whole),
        says("--nnodes", "machines of a replica", Whole),
        says(
            "--pipeline-parallel-size --pp-size",
            "1: its scheduler for pipeline stages is not simulated",
            Whole,
        ),
        sets("--context-length", "engine.context_length", Whole),
        sets(
            "--mem-fraction-static",
            "engine.mem_fraction_static",
            Number,
        ),
        sets(
            "--max-running-requests",
            "engine.max_running_requests",
            Whole,
        ),
        sets("--max-queued-requests", "engine.max_queued_requests", Whole),
        sets("--max-total-tokens", "engine.max_total_tokens", Whole),
        sets(
            "--chunked-prefill-size",
            "engine.chunked_prefill_size",
            Whole,
        ),
        sets("--max-prefill-tokens", "engine.max_prefill_tokens", Whole),
        sets(
            "--prefill-max-requests",
            "engine.prefill_max_requests",
            Whole,
        ),
        sets("--enable-mixed-chunk", "engine.enable_mixed_chunk", Switch),
        says(
            "--schedule-policy",
            "`engine.schedule_policy`: fcfs, lpm or lof",
            Text,
        ),
        sets(
            "--schedule-conservativeness",
            "engine.schedule_conservativeness",
            Number,
        ),
        sets("--page-size", "engine.page_size", Whole),
        sets(
            "--disable-radix-cache",
            "engine.disable_radix_cache",
            Switch,
        ),
        sets(
            "--disable-overlap-schedule",
            "engine.disable_overlap_schedule",
            Switch,
        ),
        sets("--cuda-graph-max-bs", "engine.cuda_graph_max_bs", Whole),
        sets("--cuda-graph-bs", "engine.cuda_graph_bs", Wholes),
        says(
            "--disable-cuda-graph",
            "`engine.cuda_graphs` = false",
            Switch,
        ),
        sets(
            "--disable-piecewise-cuda-graph",
            "engine.disable_piecewise_cuda_graph",
            Switch,
        ),
        says(
            "--enable-piecewise-cuda-graph",
            "`engine.disable_piecewise_cuda_graph` = false",
            Switch,
        ),
        sets(
            "--tokenizer-worker-num",
            "engine.tokenizer_worker_num",
            Whole,
        ),
        says("--quantization", "`model.weights`", Text),
        says(
            "--kv-cache-dtype",
            "`model.kv_cache`: fp8 of any sort, or the model's 16 bits",
            Text,
        ),
        says(
            "--dtype",
            "`model.weights` where it is float32; 16-bit formats cost the same",
            Text,
        ),
        says(
            "--disaggregation-mode",
            "`pool.role` where the other side is among the files",
            Text,
        ),
        Key {
            takes: Takes::Maybe,
            names: "--disaggregation-*",
            meaning: Meaning::Idle,
        },
        says(
            "--speculative-algorithm --speculative-algo",
            "`engine.speculative_algorithm`: EAGLE or NEXTN, of a model with a module for multi-token prediction",
            Text,
        ),
        sets(
            "--speculative-num-steps",
            "engine.speculative_num_steps",
            Whole,
        ),
        sets(
            "--speculative-eagle-topk",
            "engine.speculative_eagle_topk",
            Whole,
        ),
        sets(
            "--speculative-num-draft-tokens",
            "engine.speculative_num_draft_tokens",
            Whole,
        ),
        not_modelled("--speculative-*", DRAFTS),
        not_modelled_flag("--enable-lora", ADAPTERS),
        Key {
            takes: Takes::Values,
            ..not_modelled("--lora-paths", ADAPTERS)
        },
        not_modelled("--max-loras-per-batch", ADAPTERS),
        not_modelled("--max-lora-rank", ADAPTERS),
        not_modelled("--lora-backend", ADAPTERS),
        not_modelled_flag("--enable-hierarchical-cache", TIERS),
        not_modelled("--hicache-*", TIERS),
        not_modelled_flag("--enable-lmcache", TIERS),
        not_modelled(
            "--cpu-offload-gb",
            "weights in the host's memory are not simulated",
        ),
        not_modelled(
            "--num-continuous-decode-steps",
            "prompts are looked for before every decode step",
        ),
        not_modelled("--stream-interval", "every token is sent as it comes"),
        not_modelled_flag(
            "--enable-priority-scheduling",
            "requests have no priority under SGLang here",
        ),
        not_modelled(
            "--priority-scheduling-preemption-threshold",
            "see --enable-priority-scheduling",
        ),
        not_modelled_flag("--enable-prefill-delayer", DELAY),
        not_modelled("--prefill-delayer-*", DELAY),
        not_modelled("--min-free-slots-delay", DELAY),
        not_modelled_flag("--enable-eplb", BALANCE),
        not_modelled("--eplb-*", BALANCE),
        not_modelled("--ep-num-redundant-experts", BALANCE),
        not_modelled_flag("--enable-two-batch-overlap", BALANCE),
        not_modelled_flag("--enable-single-batch-overlap", BALANCE),
        not_modelled("--tbo-token-distribution-threshold", BALANCE),
        not_modelled(
            "--load-balance-method",
            "requests go to data-parallel ranks in turn",
        ),
        not_modelled(
            "--moe-dense-tp-size",
            "dense layers are split as attention is",
        ),
        not_modelled_flag("--enable-dp-lm-head", "the LM head is split over all ranks"),
        not_modelled("--moe-a2a-backend", KERNELS),
        not_modelled("--deepep-mode", KERNELS),
        not_modelled("--moe-runner-backend", KERNELS),
        not_modelled("--attention-backend", KERNELS),
        not_modelled("--prefill-attention-backend", KERNELS),
        not_modelled("--decode-attention-backend", KERNELS),
        not_modelled("--sampling-backend", KERNELS),
        not_modelled("--fp8-gemm-backend", KERNELS),
        not_modelled_flag("--enable-torch-compile", KERNELS),
        not_modelled_flag("--enable-flashinfer-allreduce-fusion", KERNELS),
        not_modelled_flag("--enable-torch-symm-mem", KERNELS),
        not_modelled_flag("--enable-nccl-nvls", KERNELS),
        not_modelled_flag("--enable-symm-mem", KERNELS),
        not_modelled(
            "--torchao-config",
            "which format the weights have is not known; set model.weights",
        ),
        not_modelled_flag(
            "--disable-custom-all-reduce",
            "all-reduces are costed with SGLang's own kernels where it has them",
        ),
        not_modelled_flag("--enable-mscclpp", KERNELS),
        not_modelled("--dcp-size", CONTEXT),
        not_modelled("--attention-context-parallel-size --attn-cp-size", CONTEXT),
        not_modelled("--swa-full-tokens-ratio", "every layer keeps every token"),
        not_modelled(
            "--radix-eviction-policy",
            "what was left longest ago is evicted first",
        ),
        not_modelled(
            "--json-model-override-args",
            "the model's shape is the catalog's, or its config.json's",
        ),
        not_modelled(
            "--config",
            "a YAML file of arguments: write its keys as options, or import it as part of the command",
        ),
        refused(
            "--dllm-algorithm",
            "diffusion models do not decode token by token",
        ),
    ],
    idle: &[
        "--host",
        "--port",
        "--served-model-name",
        "--tokenizer-path",
        "--tokenizer-mode",
        "--chat-template",
        "--completion-template",
        "--tool-call-parser",
        "--tool-server",
        "--reasoning-parser",
        "--load-format",
        "--model-loader-extra-config",
        "--revision",
        "--download-dir",
        "--api-key",
        "--admin-api-key",
        "--device",
        "--base-gpu-id",
        "--gpu-id-step",
        "--random-seed",
        "--log-level",
        "--log-level-http",
        "--log-requests-level",
        "--crash-dump-folder",
        "--decode-log-interval",
        "--metrics-*",
        "--collect-tokens-histogram",
        "--bucket-*",
        "--prompt-tokens-buckets",
        "--generation-tokens-buckets",
        "--otlp-traces-endpoint",
        "--watchdog-timeout",
        "--soft-watchdog-timeout",
        "--dist-timeout",
        "--dist-init-addr",
        "--nccl-init-addr",
        "--node-rank",
        "--nccl-port",
        "--grammar-backend",
        "--constrained-json-whitespace-pattern",
        "--preferred-sampling-params",
        "--sampling-defaults",
        "--file-storage-path",
        "--kv-events-config",
        "--mm-attention-backend",
        "--torch-compile-max-bs",
        "--warmups",
        "--model-impl",
        "--weight-version",
        "--fastapi-root-path",
        "--numa-node",
        "--scheduler-recv-interval",
    ],
    idle_flags: &[
        "--trust-remote-code",
        "--skip-tokenizer-init",
        "--enable-metrics",
        "--enable-metrics-for-all-schedulers",
        "--log-requests",
        "--show-time-cost",
        "--enable-cache-report",
        "--enable-trace",
        "--skip-server-warmup",
        "--disable-outlines-disk-cache",
        "--enable-p2p-check",
        "--enable-nan-detection",
        "--allow-auto-truncate",
        "--enable-memory-saver",
        "--enable-weights-cpu-backup",
        "--enable-custom-logit-processor",
        "--enable-request-time-stats-logging",
        "--stream-output",
        "--incremental-streaming-output",
        "--sleep-on-idle",
        "--enable-multimodal",
        "--disable-fast-image-processor",
        "--delete-ckpt-after-loading",
        "--disable-shared-experts-fusion",
        "--disable-chunked-prefix-cache",
        "--disable-cuda-graph-padding",
        "--triton-attention-reduce-in-fp32",
        "--enable-tokenizer-batch-encode",
        "--enable-return-hidden-states",
        "--disable-flashinfer-cutlass-moe-fp4-allgather",
        "--flashinfer-mla-disable-ragged",
    ],
};

/// Reads a command's words behind `python -m sglang.launch_server`. `image` is the container's, whose tag says the release.
pub fn import(words: &[Word], file: &Arc<str>, image: Option<(&str, Place)>, draft: &mut Draft) {
    if super::vllm::is_further(words, file, draft) {
        return;
    }
    let args = args::read(&TABLE, words, file, draft);
    let line = words.first().map_or(1, |w| w.line);
    let start = Origin::new(Place::new(file, line), "sglang", "");
    if let Some((n, origin)) = args::whole(args.get("--nnodes"), draft) {
        draft.used(&origin, format!("a replica stands on {n} machines"));
        draft.facts.machines = Some((n, origin));
    }
    draft.set("engine.kind", "sglang", &start);
    release(image, draft);
    model(&args, file, draft);
    args::apply(args.given.values(), draft);
    layout(&args, draft);
    formats(&args, draft);
    scheduler(&args, draft);
}

/// Reads the words behind `python -m dynamo.sglang`, which takes SGLang's arguments and some of its own.
pub fn dynamo(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    import(words, file, None, draft);
    let line = words.first().map_or(1, |w| w.line);
    let origin = Origin::new(Place::new(file, line), "dynamo.sglang", "");
    draft.set("engine.front_end", "dynamo", &origin);
}

/// The release that an image's tag names: `lmsysorg/sglang:v0.5.3-cu126` is 0.5.3.
fn release_of(image: &str) -> Option<SglangRelease> {
    let tag = image.rsplit('/').next()?.split_once(':')?.1;
    SglangRelease::named(tag.split(['-', '_', '@']).next()?)
}

fn release(image: Option<(&str, Place)>, draft: &mut Draft) {
    let installed = draft.facts.sglang_release.take();
    let tagged = image
        .and_then(|(image, place)| Some((release_of(image)?, Origin::new(place, "image", image))));
    match installed.or(tagged) {
        Some((release, origin)) => draft.set("engine.version", release.to_string(), &origin),
        None => draft.assume(
            "engine.version",
            SglangRelease::default().to_string(),
            "no image with the tag of a release of 0.5: the one whose kernels were measured",
        ),
    }
}

/// Reads `pip install 'sglang[all]==0.5.3'`.
pub fn installed(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let found = words.iter().find_map(|w| {
        let rest = w.text.strip_prefix("sglang")?;
        let (_, release) = rest.split_once("==")?;
        Some((SglangRelease::named(release)?, w))
    });
    if let Some((release, word)) = found {
        let origin = Origin::new(
            Place::new(file, word.line),
            "pip install",
            word.text.clone(),
        );
        draft.facts.sglang_release = Some((release, origin));
    }
}

fn model(args: &Args, file: &Arc<str>, draft: &mut Draft) {
    let mut positional = args.positional.iter();
    let named = args
        .get("--model-path")
        .map(|g| (g.value.clone(), g.origin.clone()));
    let found = named.or_else(|| {
        let word = positional.next()?;
        let origin = Origin::new(Place::new(file, word.line), "MODEL", word.text.clone());
        Some((word.text.clone(), origin))
    });
    for word in positional {
        let origin = Origin::new(Place::new(file, word.line), word.text.clone(), "");
        draft.fate(
            &origin,
            Fate::NotUnderstood,
            "a word that belongs to no option",
        );
    }
    if let Some((id, origin)) = found {
        draft.model(id, origin);
    }
}

fn layout(args: &Args, draft: &mut Draft) {
    let tp = args::whole(args.get("--tensor-parallel-size"), draft);
    let dp = args::whole(args.get("--data-parallel-size"), draft);
    let ranks = args::switched(args.get("--enable-dp-attention"), draft);
    if let Some((stages, origin)) = args::whole(args.get("--pipeline-parallel-size"), draft) {
        match stages {
            0 | 1 => draft.used(&origin, "one stage"),
            _ => draft.fault(origin.fault(
                "SGLang's scheduler for pipeline stages is not modelled; take more tensor-parallel ranks",
            )),
        }
    }
    let attention = ranks.as_ref().is_some_and(|(on, _)| *on);
    match (tp, dp) {
        (tp, Some((dp, of_dp))) if attention && dp > 1 => {
            let all = tp.as_ref().map_or(1, |(n, _)| *n);
            if all % dp != 0 {
                draft.fault(of_dp.fault(format!(
                    "with --enable-dp-attention --dp-size must divide --tp-size ({all}), got {dp}"
                )));
                return;
            }
            draft.set("layout.dp", dp, &of_dp);
            if let Some((_, origin)) = tp {
                draft.set("layout.tp", all / dp, &origin);
            }
        }
        (tp, dp) => {
            if let Some((n, origin)) = tp {
                draft.set("layout.tp", n, &origin);
            }
            if let Some(found) = dp {
                draft.facts.copies = true;
                draft.facts.data_parallel = Some(found);
            }
        }
    }
    if let Some((_, origin)) = ranks {
        draft.used(&origin, "how --dp-size is read");
    }
}

/// Formats of `--quantization` and what they are here.
const QUANTISATION: [(&str, &str); 18] = [
    ("fp8", "fp8"),
    ("w8a8_fp8", "fp8"),
    ("modelopt", "fp8"),
    ("modelopt_fp8", "fp8"),
    ("fbgemm_fp8", "fp8"),
    ("awq", "int4"),
    ("awq_marlin", "int4"),
    ("gptq", "int4"),
    ("gptq_marlin", "int4"),
    ("marlin", "int4"),
    ("moe_wna16", "int4"),
    ("qoq", "int4"),
    ("w4afp8", "int4"),
    ("bitsandbytes", "int4"),
    ("gguf", "int4"),
    ("auto-round", "int4"),
    ("w8a8_int8", "int8"),
    ("mxfp4", "mxfp4"),
];

fn formats(args: &Args, draft: &mut Draft) {
    if let Some(g) = args.get("--quantization") {
        match QUANTISATION.iter().find(|(name, _)| *name == g.value) {
            Some((_, format)) => draft.set("model.weights", *format, &g.origin),
            None => draft.fate(
                &g.origin,
                Fate::NotModelled,
                "which format the weights have is not known; set model.weights",
            ),
        }
    }
    if let Some(g) = args.get("--kv-cache-dtype") {
        match g.value.as_str() {
            "auto" | "bf16" | "bfloat16" => draft.set("model.kv_cache", "bf16", &g.origin),
            value if value.starts_with("fp8") => draft.set("model.kv_cache", "fp8", &g.origin),
            _ => draft.fault(args::one_of(g, "auto, bf16 or an fp8 format")),
        }
    }
    if let Some(g) = args.get("--dtype") {
        match g.value.as_str() {
            "float32" | "float" => draft.set("model.weights", "fp32", &g.origin),
            "auto" | "half" | "float16" | "bfloat16" => {
                draft.used(&g.origin, "16 bits, or the model's own format");
            }
            _ => draft.fault(args::one_of(
                g,
                "auto, half, float16, bfloat16, float or float32",
            )),
        }
    }
}

fn scheduler(args: &Args, draft: &mut Draft) {
    if let Some(g) = args.get("--schedule-policy") {
        match g.value.as_str() {
            "fcfs" | "lpm" | "lof" => {
                draft.set("engine.schedule_policy", g.value.clone(), &g.origin);
            }
            "dfs-weight" | "random" | "routing-key" | "hrrn" | "shortest-prefill-first" => {
                draft.fault(g.origin.fault(
                    "this order of waiting requests is not modelled; fcfs, lpm and lof are",
                ));
            }
            _ => draft.fault(args::one_of(g, "fcfs, lpm or lof")),
        }
    }
    if let Some(g) = args.get("--disaggregation-mode") {
        match g.value.as_str() {
            "null" => draft.used(&g.origin, "prefill and decode together"),
            mode @ ("prefill" | "decode") => {
                let which = match mode {
                    "prefill" => Mode::Prefill,
                    _ => Mode::Decode,
                };
                draft.facts.mode = Some((which, g.origin.clone()));
                if draft.facts.is_apart {
                    draft.used(&g.origin, format!("pool.role = \"{mode}\""));
                } else {
                    draft.fault(g.origin.fault(
                        "one command is one of two servers: import it beside the other, both as manifests, or without, and give each its [[pool]] with role = \"prefill\" or \"decode\"",
                    ));
                }
            }
            _ => draft.fault(args::one_of(g, "null, prefill or decode")),
        }
    }
    if let Some(g) = args.get("--speculative-algorithm") {
        match g.value.to_ascii_uppercase().as_str() {
            "EAGLE" | "NEXTN" => draft.set("engine.speculative_algorithm", "EAGLE", &g.origin),
            _ => draft.fault(g.origin.fault(
                "drafts of the model's own module (EAGLE, NEXTN) are modelled, no others: leave the arguments of speculation out",
            )),
        }
    }
    if let Some((off, origin)) = args::switched(args.get("--disable-cuda-graph"), draft) {
        draft.set("engine.cuda_graphs", !off, &origin);
    }
    if let Some((on, origin)) = args::switched(args.get("--enable-piecewise-cuda-graph"), draft) {
        draft.set("engine.disable_piecewise_cuda_graph", !on, &origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_tag_says_the_release() {
        for (image, patch) in [
            ("lmsysorg/sglang:v0.5.3-cu126", Some(3)),
            ("lmsysorg/sglang:v0.5.1.post1-cu128-b200", Some(1)),
            ("registry:5000/sglang:0.5.14", Some(14)),
            ("lmsysorg/sglang:v0.4.9-cu124", None),
            ("lmsysorg/sglang:latest", None),
            ("lmsysorg/sglang", None),
        ] {
            assert_eq!(release_of(image).map(|r| r.patch), patch, "{image}");
        }
    }
}
