//! TensorRT-LLM: `trtllm-serve`, `trtllm-build`, `convert_checkpoint.py`, and the launcher of the multi-node Triton chart.
//!
//! Arguments: NVIDIA/TensorRT-LLM `tensorrt_llm/commands/{serve,build}.py`, `tensorrt_llm/plugin/plugin.py`; triton-inference-server/tutorials
//! `EKS_Multinode_Triton_TRTLLM/multinode_helm_chart/containers/server.py`.

use std::sync::Arc;

use super::args::{self, Args};
use super::draft::{Draft, Mode, Origin};
use crate::keys::Read::{Number, Switch, Text, Whole};
use crate::keys::{Table, not_modelled, not_modelled_flag, says, sets};
use crate::place::Place;
use crate::report::Fate;
use crate::text::shell::Word;

const DRAFTS: &str = "speculative decoding is not simulated: steps verify one token a request";
const BEAMS: &str = "beam search is not simulated: a request has one sequence";

/// `trtllm-serve`.
pub const SERVE: Table = Table {
    kind: "trtllm-serve",
    title: "`trtllm-serve MODEL ...`",
    keys: &[
        sets("--tensor_parallel_size --tp_size", "layout.tp", Whole),
        sets("--pipeline_parallel_size --pp_size", "layout.pp", Whole),
        sets("--moe_expert_parallel_size --ep_size", "layout.ep", Whole),
        sets("--max_batch_size", "engine.max_batch_size", Whole),
        sets("--max_num_tokens", "engine.max_num_tokens", Whole),
        sets("--max_seq_len", "engine.max_seq_len", Whole),
        sets(
            "--free_gpu_memory_fraction --kv_cache_free_gpu_memory_fraction",
            "engine.kv_cache_free_gpu_mem_fraction",
            Number,
        ),
        sets(
            "--enable_chunked_prefill",
            "engine.enable_chunked_context",
            Switch,
        ),
        says(
            "--backend",
            "`engine.overlap_scheduler`, on for pytorch",
            Text,
        ),
        says("--kv_cache_dtype", "`model.kv_cache`", Text),
        not_modelled("--max_beam_width", BEAMS),
        not_modelled(
            "--context_parallel_size --cp_size",
            "context parallelism is not simulated",
        ),
        not_modelled(
            "--moe_cluster_parallel_size --cluster_size",
            "clusters of experts are not simulated",
        ),
        not_modelled(
            "--extra_llm_api_options --config",
            "a YAML file of options: import it beside the command (kind trtllm-options)",
        ),
        not_modelled(
            "--server_role",
            "prefill and decode on separate pools are not imported",
        ),
    ],
    idle: &[
        "--tokenizer",
        "--custom_tokenizer",
        "--host",
        "--port",
        "--log_level",
        "--gpus_per_node",
        "--num_postprocess_workers",
        "--reasoning_parser",
        "--tool_parser",
        "--metadata_server_config_file",
        "--otlp_traces_endpoint",
        "--revision",
        "--custom_module_dirs",
        "--chat_template",
    ],
    idle_flags: &[
        "--trust_remote_code",
        "--fail_fast_on_attention_window_too_large",
        "--grpc",
    ],
};

/// `trtllm-build`.
pub const BUILD: Table = Table {
    kind: "trtllm-build",
    title: "`trtllm-build ...`",
    keys: &[
        sets("--max_batch_size", "engine.max_batch_size", Whole),
        sets("--max_num_tokens", "engine.max_num_tokens", Whole),
        sets(
            "--max_seq_len --max_decoder_seq_len",
            "engine.max_seq_len",
            Whole,
        ),
        sets("--opt_num_tokens", "engine.opt_num_tokens", Whole),
        sets("--tokens_per_block", "engine.tokens_per_block", Whole),
        says(
            "--max_output_len",
            "`engine.max_seq_len` together with --max_input_len (before 0.12)",
            Whole,
        ),
        says(
            "--max_input_len",
            "`engine.max_seq_len` together with --max_output_len (before 0.12)",
            Whole,
        ),
        says(
            "--gemm_plugin",
            "`engine.gemm_plugin`: false for disable",
            Text,
        ),
        says("--use_fused_mlp", "`engine.use_fused_mlp`", Text),
        says("--multi_block_mode", "`engine.multi_block_mode`", Text),
        says(
            "--use_custom_all_reduce",
            "the all-reduce is that of the machine's links",
            Text,
        ),
        not_modelled("--max_beam_width", BEAMS),
        not_modelled("--speculative_decoding_mode", DRAFTS),
        not_modelled("--max_draft_len", DRAFTS),
        not_modelled("--lora_plugin", "LoRA adapters are not simulated"),
        not_modelled("--lora_dir", "LoRA adapters are not simulated"),
        not_modelled("--paged_kv_cache", "KV is paged"),
        not_modelled("--kv_cache_type", "KV is paged"),
        not_modelled("--remove_input_padding", "input is packed"),
        not_modelled_flag(
            "--weight_streaming",
            "weights in the host's memory are not simulated",
        ),
        not_modelled("--auto_parallel", "the layout must be said"),
        not_modelled("--reduce_fusion", "fused all-reduces are not costed apart"),
        not_modelled(
            "--use_fp8_context_fmha",
            "attention of prompts is costed at the profile's rate",
        ),
    ],
    idle: &[
        "--checkpoint_dir",
        "--output_dir",
        "--model_config",
        "--build_config",
        "--model_cls_file",
        "--model_cls_name",
        "--workers",
        "--log_level",
        "--input_timing_cache",
        "--output_timing_cache",
        "--profiling_verbosity",
        "--logits_dtype",
        "--gpt_attention_plugin",
        "--context_fmha",
        "--context_fmha_fp32_acc",
        "--use_paged_context_fmha",
        "--nccl_plugin",
        "--moe_plugin",
        "--gpus_per_node",
        "--cluster_key",
        "--max_prompt_embedding_table_size",
        "--max_multimodal_len",
        "--multiple_profiles",
        "--low_latency_gemm_plugin",
        "--dry_run",
        "--max_lora_rank",
        "--lora_ckpt_source",
        "--lora_target_modules",
        "--bert_attention_plugin",
        "--identity_plugin",
        "--user_buffer",
        "--norm_quant_fusion",
        "--max_encoder_input_len",
        "--fp8_rowwise_gemm_plugin",
    ],
    idle_flags: &[
        "--strip_plan",
        "--fast_build",
        "--enable_debug_output",
        "--monitor_memory",
        "--gather_context_logits",
        "--gather_generation_logits",
        "--gather_all_token_logits",
    ],
};

/// `convert_checkpoint.py` of a model's example.
pub const CONVERT: Table = Table {
    kind: "trtllm-convert",
    title: "`python convert_checkpoint.py ...` of TensorRT-LLM's examples",
    keys: &[
        says(
            "--model_dir",
            "`model.name`, by the catalog's aliases",
            Text,
        ),
        sets("--tp_size --tensor_parallelism", "layout.tp", Whole),
        sets("--pp_size --pipeline_parallelism", "layout.pp", Whole),
        says(
            "--dtype",
            "16 bits either way; float32 is `model.weights`",
            Text,
        ),
        says(
            "--use_weight_only",
            "`model.weights`, by --weight_only_precision",
            Switch,
        ),
        says(
            "--weight_only_precision",
            "`model.weights`: int8 or int4",
            Text,
        ),
        says("--use_fp8", "`model.weights` = fp8", Switch),
        says("--use_fp8_rowwise", "`model.weights` = fp8", Switch),
        says("--fp8_kv_cache", "`model.kv_cache` = fp8", Switch),
        says("--int8_kv_cache", "`model.kv_cache` = int8", Switch),
        not_modelled("--smoothquant", "set model.weights = \"int8\""),
        not_modelled(
            "--moe_tp_size",
            "experts are split over all ranks, or whole on each (layout.ep)",
        ),
        not_modelled(
            "--moe_ep_size",
            "experts are split over all ranks, or whole on each (layout.ep)",
        ),
    ],
    idle: &[
        "--output_dir",
        "--workers",
        "--log_level",
        "--rotary_base",
        "--vocab_size",
        "--n_positions",
        "--calib_dataset",
    ],
    idle_flags: &[
        "--load_by_shard",
        "--use_parallel_embedding",
        "--load_model_on_cpu",
        "--disable_weight_only_quant_plugin",
    ],
};

/// `server.py` of the multi-node chart.
pub const LAUNCHER: Table = Table {
    kind: "triton-launcher",
    title: "`python3 ./server.py leader|worker ...` of the multi-node Triton chart",
    keys: &[
        sets("--tp", "layout.tp", Whole),
        sets("--pp", "layout.pp", Whole),
        says("--gpu_per_node", "devices of a pod", Whole),
    ],
    idle: &[
        "--triton_model_repo_dir",
        "--namespace",
        "--stateful_set_group_key",
        "--dt",
    ],
    idle_flags: &["--verbose", "--iso8601", "--enable_nsys"],
};

fn start(words: &[Word], file: &Arc<str>, program: &str) -> Origin {
    let line = words.first().map_or(1, |w| w.line);
    Origin::new(Place::new(file, line), program, "")
}

/// Reads the words behind `trtllm-serve`.
pub fn serve(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let start = start(words, file, "trtllm-serve");
    let args = args::read(&SERVE, words, file, draft);
    draft.set("engine.kind", "trt_llm", &start);
    if let Some(model) = args.positional.first() {
        let origin = Origin::new(Place::new(file, model.line), "MODEL", model.text.clone());
        draft.model(model.text.clone(), origin);
    }
    args::apply(args.given.values(), draft);
    kv_format(&args, "--kv_cache_dtype", draft);
    let backend = args.text("--backend").unwrap_or("pytorch");
    if let Some(g) = args.get("--backend") {
        draft.used(&g.origin, "which scheduler and graphs there are");
    }
    if backend == "pytorch" {
        let why = "what the PyTorch backend does unless its options say otherwise";
        draft.later("engine.overlap_scheduler", true.into(), why);
        draft.later("engine.cuda_graphs", true.into(), why);
    }
    draft.later(
        "engine.enable_kv_cache_reuse",
        true.into(),
        "KvCacheConfig's default (enable_block_reuse)",
    );
}

/// Reads the words behind `python -m dynamo.trtllm`: those of `trtllm-serve` under other names, and a file of options.
pub fn dynamo(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let mut own: Vec<Word> = Vec::new();
    let mut words = words.iter().peekable();
    let mut options = None;
    while let Some(word) = words.next() {
        let (name, given) = match word.text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.text.as_str(), None),
        };
        let mut value = || {
            given
                .clone()
                .or_else(|| words.next().map(|w| w.text.clone()))
                .unwrap_or_default()
        };
        match name {
            "--model-path" | "--model" => own.insert(
                0,
                Word {
                    text: value(),
                    line: word.line,
                },
            ),
            "--extra-engine-args" => options = Some((value(), word.line)),
            "--disaggregation-mode" => {
                let value = value();
                let mode = match value.as_str() {
                    "prefill" => Some(Mode::Prefill),
                    "decode" => Some(Mode::Decode),
                    _ => None,
                };
                let origin = Origin::new(Place::new(file, word.line), name, value);
                draft.used(&origin, "whether the worker prefills or decodes alone");
                draft.facts.mode = mode.map(|m| (m, origin));
            }
            "--served-model-name"
            | "--modality"
            | "--disaggregation-strategy"
            | "--publish-events-and-metrics" => {
                if name != "--publish-events-and-metrics" {
                    value();
                }
            }
            "--free-gpu-memory-fraction"
            | "--max-num-tokens"
            | "--max-batch-size"
            | "--max-seq-len"
            | "--tensor-parallel-size"
            | "--pipeline-parallel-size"
            | "--expert-parallel-size" => own.push(Word {
                text: format!(
                    "--{}={}",
                    name[2..].replace('-', "_").replace("expert_parallel", "ep"),
                    value()
                ),
                line: word.line,
            }),
            _ => own.push(word.clone()),
        }
    }
    serve(&own, file, draft);
    if let Some((path, line)) = options {
        let origin = Origin::new(Place::new(file, line), "--extra-engine-args", path);
        super::configs::mounted(&origin, draft);
    }
}

/// Reads the words behind `trtllm-build`.
pub fn build(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let start = start(words, file, "trtllm-build");
    let args = args::read(&BUILD, words, file, draft);
    draft.set("engine.kind", "trt_llm", &start);
    args::apply(args.given.values(), draft);
    let input = args::whole(args.get("--max_input_len"), draft);
    let output = args::whole(args.get("--max_output_len"), draft);
    match (input, output) {
        (Some((input, from)), Some((output, origin))) => {
            draft.set("engine.max_seq_len", input.saturating_add(output), &origin);
            draft.used(&from, "a part of engine.max_seq_len");
        }
        (Some((_, origin)), None) => draft.fate(
            &origin,
            Fate::NoEffect,
            "engine.max_seq_len limits prompt and output together",
        ),
        (None, Some((_, origin))) => draft.fate(
            &origin,
            Fate::NotUnderstood,
            "without --max_input_len it limits nothing",
        ),
        (None, None) => {}
    }
    for (name, key) in [
        ("--gemm_plugin", "engine.gemm_plugin"),
        ("--use_fused_mlp", "engine.use_fused_mlp"),
        ("--multi_block_mode", "engine.multi_block_mode"),
    ] {
        // enable, a data type or nothing is on.
        if let Some(g) = args.get(name) {
            draft.set(
                key,
                !matches!(g.value.as_str(), "disable" | "false" | "None"),
                &g.origin,
            );
        }
    }
    if let Some(g) = args.get("--use_custom_all_reduce") {
        draft.used(&g.origin, "the all-reduce is that of the machine's links");
    }
}

/// Reads the words behind `convert_checkpoint.py`.
pub fn convert(words: &[Word], file: &Arc<str>, draft: &mut Draft) {
    let args = args::read(&CONVERT, words, file, draft);
    args::apply(args.given.values(), draft);
    if let Some(g) = args.get("--model_dir") {
        draft.model(g.value.clone(), g.origin.clone());
    }
    if let Some(g) = args.get("--dtype") {
        match g.value.as_str() {
            "float32" => draft.set("model.weights", "fp32", &g.origin),
            _ => draft.used(&g.origin, "16 bits"),
        }
    }
    let precision = args.get("--weight_only_precision");
    if let Some((true, origin)) = args::switched(args.get("--use_weight_only"), draft) {
        let four = precision.is_some_and(|g| g.value.starts_with("int4"));
        draft.set("model.weights", if four { "int4" } else { "int8" }, &origin);
    }
    if let Some(g) = precision {
        draft.used(&g.origin, "a part of model.weights");
    }
    for name in ["--use_fp8", "--use_fp8_rowwise"] {
        if let Some((true, origin)) = args::switched(args.get(name), draft) {
            draft.set("model.weights", "fp8", &origin);
        }
    }
    for (name, format) in [("--fp8_kv_cache", "fp8"), ("--int8_kv_cache", "int8")] {
        if let Some((true, origin)) = args::switched(args.get(name), draft) {
            draft.set("model.kv_cache", format, &origin);
        }
    }
}

/// Reads the words behind the chart's `server.py`; false where it is another script of that name.
pub fn launcher(words: &[Word], file: &Arc<str>, draft: &mut Draft) -> bool {
    let role = words.first().map_or("", |w| w.text.as_str());
    if role != "leader" && role != "worker" {
        return false;
    }
    let args = args::read(&LAUNCHER, &words[1..], file, draft);
    draft.set("engine.kind", "trt_llm", &start(words, file, "server.py"));
    args::apply(args.given.values(), draft);
    if let Some((n, origin)) = args::whole(args.get("--gpu_per_node"), draft)
        && draft.facts.pod_devices.is_none()
    {
        draft.facts.pod_devices = Some((n, origin));
    }
    true
}

fn kv_format(args: &Args, name: &str, draft: &mut Draft) {
    if let Some(g) = args.get(name) {
        match g.value.as_str() {
            "auto" => draft.used(&g.origin, "the model's own format"),
            "fp8" | "int8" => draft.set("model.kv_cache", g.value.clone(), &g.origin),
            _ => draft.fault(args::one_of(g, "auto, fp8 or int8")),
        }
    }
}

/// Whether an image of Triton holds TensorRT-LLM before 0.13: its tag is a month up to 24.08.
pub fn is_before_0_13(image: &str) -> Option<bool> {
    let tag = image.rsplit('/').next()?.split_once(':')?.1;
    let (year, rest) = tag.split_once('.')?;
    let month: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let (year, month): (u32, u32) = (year.parse().ok()?, month.parse().ok()?);
    ((20..100).contains(&year) && (1..=12).contains(&month)).then_some((year, month) <= (24, 8))
}

/// What TensorRT-LLM did before 0.13 unless it was asked.
pub fn before_0_13(draft: &mut Draft) {
    let why = "TensorRT-LLM before 0.13, by the image's tag";
    for key in ["gemm_plugin", "use_fused_mlp", "multi_block_mode"] {
        draft.later(&format!("engine.{key}"), false.into(), why);
    }
    draft.later("engine.tokens_per_block", 64.into(), why);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_month_says_the_release() {
        for (image, before) in [
            ("x.amazonaws.com/triton_trtllm_multinode:24.08", Some(true)),
            (
                "nvcr.io/nvidia/tritonserver:24.09-trtllm-python-py3",
                Some(false),
            ),
            ("wenhant16/triton_trtllm_multinode:24.07.10", Some(true)),
            ("triton:latest", None),
        ] {
            assert_eq!(is_before_0_13(image), before, "{image}");
        }
    }
}
