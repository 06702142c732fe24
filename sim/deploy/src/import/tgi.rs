//! Text Generation Inference: the launcher's arguments and its environment, on a command line, in a container, in a `.env` file, or as SageMaker hands it over.
//!
//! Names and defaults: huggingface/text-generation-inference `docs/source/reference/launcher.md` and `launcher/src/main.rs`; aws/deep-learning-containers
//! `huggingface/pytorch/tgi` for the variables that SageMaker's container translates.

use std::sync::Arc;

use super::args::{self, Args};
use super::draft::{Draft, Origin};
use crate::keys::Read::{Number, Switch, Text, Whole};
use crate::keys::{Table, not_modelled, not_modelled_flag, says, sets};
use crate::place::{Place, shown};
use crate::report::Fate;
use crate::text::shell::Word;

/// Arguments and variables.
pub const TABLE: Table = Table {
    kind: "tgi",
    title: "`text-generation-launcher ...`, its environment (`.env`), SageMaker's variables for its container",
    keys: &[
        says(
            "--model-id MODEL_ID HF_MODEL_ID",
            "`model.name`, by the catalog's aliases, or `model.config`",
            Text,
        ),
        says(
            "--num-shard NUM_SHARD SM_NUM_GPUS",
            "`layout.tp`; without it all devices of the container",
            Whole,
        ),
        says(
            "--sharded SHARDED",
            "`layout.tp` = 1 where it is false",
            Switch,
        ),
        says(
            "--quantize QUANTIZE HF_MODEL_QUANTIZE",
            "`model.weights`",
            Text,
        ),
        says("--dtype DTYPE", "16 bits either way", Text),
        says(
            "--kv-cache-dtype KV_CACHE_DTYPE",
            "`model.kv_cache` = fp8",
            Text,
        ),
        sets(
            "--max-concurrent-requests MAX_CONCURRENT_REQUESTS",
            "engine.max_concurrent_requests",
            Whole,
        ),
        sets(
            "--max-input-tokens MAX_INPUT_TOKENS --max-input-length MAX_INPUT_LENGTH",
            "engine.max_input_tokens",
            Whole,
        ),
        sets(
            "--max-total-tokens MAX_TOTAL_TOKENS",
            "engine.max_total_tokens",
            Whole,
        ),
        sets(
            "--max-batch-prefill-tokens MAX_BATCH_PREFILL_TOKENS",
            "engine.max_batch_prefill_tokens",
            Whole,
        ),
        sets(
            "--max-batch-total-tokens MAX_BATCH_TOTAL_TOKENS",
            "engine.max_batch_total_tokens",
            Whole,
        ),
        sets(
            "--max-batch-size MAX_BATCH_SIZE",
            "engine.max_batch_size",
            Whole,
        ),
        sets(
            "--max-waiting-tokens MAX_WAITING_TOKENS",
            "engine.max_waiting_tokens",
            Whole,
        ),
        sets(
            "--waiting-served-ratio WAITING_SERVED_RATIO",
            "engine.waiting_served_ratio",
            Number,
        ),
        sets(
            "--cuda-memory-fraction CUDA_MEMORY_FRACTION",
            "engine.cuda_memory_fraction",
            Number,
        ),
        sets("PREFILL_CHUNKING", "engine.prefill_chunking", Switch),
        sets(
            "PREFIX_CACHING USE_PREFIX_CACHING",
            "engine.prefix_caching",
            Switch,
        ),
        says(
            "--cuda-graphs CUDA_GRAPHS",
            "`engine.cuda_graphs`: false where it is 0",
            Text,
        ),
        says(
            "ATTENTION",
            "`engine.block_size`: 1 for flashinfer, 256 for flashdecoding, 16 for paged",
            Text,
        ),
        not_modelled(
            "--speculate SPECULATE",
            "speculative decoding is not simulated: steps verify one token a request",
        ),
        not_modelled(
            "--rope-scaling ROPE_SCALING",
            "the model's longest context is the catalog's",
        ),
        not_modelled(
            "--rope-factor ROPE_FACTOR",
            "the model's longest context is the catalog's",
        ),
        not_modelled(
            "--lora-adapters LORA_ADAPTERS",
            "LoRA adapters take memory and time that are not simulated",
        ),
        not_modelled_flag(
            "--disable-custom-kernels DISABLE_CUSTOM_KERNELS",
            "step times are those of the usual kernels",
        ),
        not_modelled("--graph-passes", "unknown kernels"),
    ],
    idle: &[
        "--revision",
        "REVISION",
        "--validation-workers",
        "VALIDATION_WORKERS",
        "--max-best-of",
        "MAX_BEST_OF",
        "--max-stop-sequences",
        "MAX_STOP_SEQUENCES",
        "--max-top-n-tokens",
        "MAX_TOP_N_TOKENS",
        "--hostname",
        "HOSTNAME",
        "--port",
        "-p",
        "PORT",
        "--prometheus-port",
        "PROMETHEUS_PORT",
        "--shard-uds-path",
        "SHARD_UDS_PATH",
        "--master-addr",
        "MASTER_ADDR",
        "--master-port",
        "MASTER_PORT",
        "--huggingface-hub-cache",
        "HUGGINGFACE_HUB_CACHE",
        "--weights-cache-override",
        "WEIGHTS_CACHE_OVERRIDE",
        "--otlp-endpoint",
        "OTLP_ENDPOINT",
        "--otlp-service-name",
        "OTLP_SERVICE_NAME",
        "--cors-allow-origin",
        "CORS_ALLOW_ORIGIN",
        "--api-key",
        "API_KEY",
        "--watermark-gamma",
        "WATERMARK_GAMMA",
        "--watermark-delta",
        "WATERMARK_DELTA",
        "--ngrok-authtoken",
        "NGROK_AUTHTOKEN",
        "--ngrok-edge",
        "NGROK_EDGE",
        "--tokenizer-config-path",
        "TOKENIZER_CONFIG_PATH",
        "--usage-stats",
        "USAGE_STATS",
        "--payload-limit",
        "PAYLOAD_LIMIT",
        "--max-client-batch-size",
        "MAX_CLIENT_BATCH_SIZE",
        "TRUST_REMOTE_CODE",
        "HF_MODEL_TRUST_REMOTE_CODE",
        "JSON_OUTPUT",
        "HF_MODEL_REVISION",
        "SAGEMAKER_*",
        "ENDPOINT_SERVER_TIMEOUT",
        "MODEL_CACHE_ROOT",
        "SM_*",
        "HF_TASK",
        "DISABLE_GRAMMAR_SUPPORT",
        "NGROK",
        "ENABLE_CUDA_GRAPHS",
        "MESSAGES_API_ENABLED",
        "HF_API_TOKEN",
    ],
    idle_flags: &[
        "--trust-remote-code",
        "--json-output",
        "--ngrok",
        "--env",
        "-e",
        "--disable-grammar-support",
    ],
};

/// Reads the launcher's words and variables; words win over variables.
pub fn import(
    words: &[Word],
    variables: &[(String, Origin)],
    file: &Arc<str>,
    image: Option<(&str, Place)>,
    draft: &mut Draft,
) {
    let mut args = Args::default();
    for (name, origin) in variables {
        match TABLE.find(name) {
            // A variable may be there without a value.
            Some(_) if origin.raw.is_empty() => draft.fate(origin, Fate::NoEffect, "empty"),
            Some(key) => args::take(
                key,
                origin.raw.clone(),
                origin.clone(),
                draft,
                &mut args.given,
            ),
            None => super::env::other(name, origin, &TABLE, draft),
        }
    }
    let line = words.first().map_or(1, |w| w.line);
    let from_words = args::read(&TABLE, words, file, draft);
    for (name, given) in from_words.given {
        if let Some(old) = args.given.insert(name, given) {
            draft.fate(
                &old.origin,
                Fate::NoEffect,
                "the command line says it too, and wins",
            );
        }
    }
    let start = match variables.first() {
        Some((_, origin)) if words.is_empty() => Origin::new(origin.place.clone(), "TGI", ""),
        _ => Origin::new(Place::new(file, line), "text-generation-launcher", ""),
    };
    settings(&args, &start, image, draft);
}

fn settings(args: &Args, start: &Origin, image: Option<(&str, Place)>, draft: &mut Draft) {
    draft.set("engine.kind", "tgi", start);
    let generation = image.and_then(|(image, place)| {
        let major = generation_of(image)?;
        Some((major, Origin::new(place, "image", image)))
    });
    match generation {
        Some((major, origin)) => {
            draft.set(
                "engine.version",
                if major >= 3 { "v3" } else { "v2" },
                &origin,
            );
        }
        None => draft.assume(
            "engine.version",
            "v3",
            "no image with a release's tag: the last generation",
        ),
    }
    if let Some(g) = args.get("--model-id") {
        draft.model(g.value.clone(), g.origin.clone());
    }
    if let Some((n, origin)) = args::whole(args.get("--num-shard"), draft) {
        draft.set("layout.tp", n, &origin);
    } else if let Some((sharded, origin)) = args::switched(args.get("--sharded"), draft) {
        match sharded {
            false => draft.set("layout.tp", 1, &origin),
            true => draft.used(&origin, "layout.tp is all devices of the container"),
        }
    }
    args::apply(args.given.values(), draft);
    formats(args, draft);
    kernels(args, draft);
}

/// The major release of an image: `ghcr.io/huggingface/text-generation-inference:2.4.0` is 2. SageMaker's tags hold it as `tgi1.4.2`.
fn generation_of(image: &str) -> Option<u32> {
    let tag = image.rsplit('/').next()?.split_once(':')?.1;
    let from = tag.find("tgi").map_or(tag, |i| &tag[i + 3..]);
    let from = from.strip_prefix('v').unwrap_or(from);
    let major = from.split('.').next().filter(|_| from.contains('.'))?;
    major.parse().ok().filter(|n| (1..10).contains(n))
}

fn formats(args: &Args, draft: &mut Draft) {
    if let Some(g) = args.get("--quantize") {
        let format = match g.value.as_str() {
            "awq" | "gptq" | "marlin" | "exl2" | "bitsandbytes-nf4" | "bitsandbytes-fp4" => "int4",
            "fp8" => "fp8",
            "eetq" | "bitsandbytes" => {
                draft.warn(format!(
                    "{}: {} keeps weights in 8 bits and computes in 16; arithmetic is counted at the 8-bit rate, so prefill may come out too fast",
                    g.origin.place, g.value
                ));
                "int8"
            }
            _ => {
                draft.fate(
                    &g.origin,
                    Fate::NotModelled,
                    "which format the weights have is not known; set model.weights",
                );
                return;
            }
        };
        draft.set("model.weights", format, &g.origin);
    }
    if let Some(g) = args.get("--dtype") {
        match g.value.as_str() {
            "float16" | "bfloat16" => draft.used(&g.origin, "16 bits"),
            _ => draft.fault(args::one_of(g, "float16 or bfloat16")),
        }
    }
    if let Some(g) = args.get("--kv-cache-dtype") {
        match g.value.starts_with("fp8") {
            true => draft.set("model.kv_cache", "fp8", &g.origin),
            false => draft.fault(args::one_of(g, "fp8_e4m3fn or fp8_e5m2")),
        }
    }
}

fn kernels(args: &Args, draft: &mut Draft) {
    if let Some(g) = args.get("--cuda-graphs") {
        draft.set("engine.cuda_graphs", g.value.trim() != "0", &g.origin);
    }
    if let Some(g) = args.get("ATTENTION") {
        let block = match g.value.as_str() {
            "flashinfer" => 1,
            "flashdecoding" => 256,
            "paged" => 16,
            _ => {
                draft.fate(
                    &g.origin,
                    Fate::NotModelled,
                    shown("its block size is not known"),
                );
                return;
            }
        };
        draft.set("engine.block_size", block, &g.origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_tag_says_the_generation() {
        for (image, major) in [
            ("ghcr.io/huggingface/text-generation-inference:1.4", Some(1)),
            (
                "ghcr.io/huggingface/text-generation-inference:3.0.1",
                Some(3),
            ),
            (
                "x.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2.1.1-tgi1.4.2-gpu-py310-cu121-ubuntu20.04",
                Some(1),
            ),
            ("ghcr.io/huggingface/text-generation-inference:latest", None),
            ("tgi", None),
        ] {
            assert_eq!(generation_of(image), major, "{image}");
        }
    }
}
