//! Configuration files: Triton's `config.pbtxt` of `inflight_batcher_llm`, options of TensorRT-LLM's LLM API, SageMaker's environment.
//!
//! Keys: triton-inference-server/tensorrtllm_backend `all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt` and `docs/model_config.md`;
//! NVIDIA/TensorRT-LLM `tensorrt_llm/llmapi/llm_args.py`; the SageMaker API reference (CreateModel, CreateEndpointConfig).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::args::{self, Given};
use super::draft::{Draft, Origin};
use super::tree::{Tree, sweep};
use crate::keys::Read::{Number, Switch, Text, Whole};
use crate::keys::{Table, not_modelled, says, sets};
use crate::place::{Place, shown};
use crate::report::Fate;
use crate::text::prototext::{Field, Value};
use crate::text::yaml::{self, Node};

/// `config.pbtxt`: parameters and fields.
pub const PBTXT: Table = Table {
    kind: "triton-config",
    title: "Triton's `config.pbtxt` of the tensorrt_llm model (inflight_batcher_llm)",
    keys: &[
        says(
            "max_batch_size",
            "`engine.max_batch_size`, where the engine's own is not said",
            Whole,
        ),
        sets(
            "dynamic_batching.default_queue_policy.max_queue_size",
            "engine.max_queue_size",
            Whole,
        ),
        sets(
            "kv_cache_free_gpu_mem_fraction",
            "engine.kv_cache_free_gpu_mem_fraction",
            Number,
        ),
        sets(
            "max_tokens_in_paged_kv_cache",
            "engine.max_tokens_in_paged_kv_cache",
            Whole,
        ),
        sets(
            "enable_kv_cache_reuse",
            "engine.enable_kv_cache_reuse",
            Switch,
        ),
        sets(
            "enable_chunked_context",
            "engine.enable_chunked_context",
            Switch,
        ),
        sets(
            "batch_scheduler_policy",
            "engine.batch_scheduler_policy",
            Text,
        ),
        sets("multi_block_mode", "engine.multi_block_mode", Switch),
        sets("max_queue_size", "engine.max_queue_size", Whole),
        says(
            "gpt_model_type batching_strategy",
            "V1 is a batch that starts and ends together, which is refused; inflight batching otherwise",
            Text,
        ),
        not_modelled(
            "max_attention_window_size",
            "the model's window is the catalog's",
        ),
        not_modelled(
            "kv_cache_host_memory_bytes",
            "KV in the host's memory is not simulated",
        ),
        not_modelled("max_beam_width", "beam search is not simulated"),
        not_modelled("decoding_mode", "sampling takes no time"),
        not_modelled("medusa_choices", "speculative decoding is not simulated"),
        not_modelled("eagle_choices", "speculative decoding is not simulated"),
        not_modelled(
            "lora_cache_max_adapter_size",
            "LoRA adapters are not simulated",
        ),
    ],
    idle: &[
        "name",
        "backend",
        "platform",
        "input*",
        "output*",
        "instance_group*",
        "model_transaction_policy*",
        "version_policy*",
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        "gpt_model_path",
        "engine_dir",
        "encoder_model_path",
        "tokenizer_dir",
        "tokenizer_type",
        "exclude_input_in_output",
        "normalize_log_probs",
        "gpu_device_ids",
        "executor_worker_path",
        "lora_cache_*",
        "sink_token_length",
        "enable_trt_overlap",
        "cross_kv_cache_fraction",
        "iter_stats_max_iterations",
        "cancellation_check_period_ms",
        "lora_prefetch_dir",
        "request_stats_max_iterations",
        "gpu_weights_percent",
        "participant_ids",
        "num_nodes",
        "enable_context_fmha_fp32_acc",
        "cuda_graph_mode",
        "cuda_graph_cache_size",
        "speculative_decoding_fast_logits",
        "guided_decoding_backend",
        "xgrammar_tokenizer_info_path",
        "dynamic_batching.*",
        "max_num_images",
        "logits_datatype",
        "lookahead_*",
        "recv_poll_period_ms",
        "stats_check_period_ms",
        "default_model_filename",
        "recurrent*",
        "sort_beam*",
        "kv_cache_onboard_blocks",
        "event_buffer_max_size",
        "rank_reduce*",
    ],
    idle_flags: &[],
};

/// Imports a `config.pbtxt`.
pub fn pbtxt(fields: &[Field], file: &Arc<str>, draft: &mut Draft) {
    let name = fields
        .iter()
        .find(|f| f.name == "name")
        .and_then(Field::text)
        .unwrap_or("");
    let backend = fields
        .iter()
        .find(|f| f.name == "backend")
        .and_then(Field::text)
        .unwrap_or("");
    let line = fields.first().map_or(1, |f| f.line);
    if backend != "tensorrtllm" && name != "tensorrt_llm" {
        let origin = Origin::new(Place::new(file, line), "name", name);
        draft.fate(
            &origin,
            Fate::NoEffect,
            "a model of the ensemble that runs no engine (pre- and postprocessing)",
        );
        return;
    }
    draft.set(
        "engine.kind",
        "trt_llm",
        &Origin::new(Place::new(file, line), "config.pbtxt", ""),
    );
    let mut given: BTreeMap<&'static str, Given> = BTreeMap::new();
    let mut flat: Vec<(String, String, u32)> = Vec::new();
    for field in fields {
        if field.name == "parameters" {
            let key = field.get("key").and_then(Field::text).unwrap_or("");
            let value = field
                .get("value")
                .and_then(|v| v.get("string_value"))
                .and_then(Field::text)
                .unwrap_or("");
            let line = field.get("value").map_or(field.line, |f| f.line);
            flat.push((key.to_owned(), value.to_owned(), line));
        } else {
            flatten(field, "", &mut flat);
        }
    }
    for (key, value, line) in flat {
        let origin = Origin::new(Place::new(file, line), key.clone(), value.clone());
        // A template's placeholder that nobody filled in is as if it were not there.
        let empty = value.is_empty() || value.starts_with("${");
        match PBTXT.find(&key) {
            Some(_) if empty => draft.fate(&origin, Fate::NoEffect, "not filled in"),
            Some(known) => args::take(known, value, origin, draft, &mut given),
            None => {
                let hint = PBTXT
                    .nearest(&key)
                    .map_or_else(String::new, |n| format!("did you mean `{n}`?"));
                draft.fate(&origin, Fate::NotUnderstood, hint);
            }
        }
    }
    args::apply(given.values(), draft);
    if let Some((n, origin)) = args::whole(given.get("max_batch_size"), draft) {
        draft.used(
            &origin,
            "engine.max_batch_size, unless the engine's build says it",
        );
        draft.later(
            "engine.max_batch_size",
            n.into(),
            "Triton's max_batch_size (config.pbtxt); the engine's own may differ",
        );
    }
    if let Some(g) = given.get("gpt_model_type") {
        match g.value.to_ascii_lowercase().as_str() {
            "v1" => draft.fault(g.origin.fault("V1 batches start and end together: write the scenario with engine.kind = \"static\"")),
            _ => draft.used(&g.origin, "batches are formed in flight"),
        }
    }
}

fn flatten(field: &Field, prefix: &str, out: &mut Vec<(String, String, u32)>) {
    let path = match prefix.is_empty() {
        true => field.name.clone(),
        false => format!("{prefix}.{}", field.name),
    };
    match &field.value {
        Value::Scalar(text) => out.push((path, text.clone(), field.line)),
        Value::Message(inner) if inner.is_empty() => out.push((path, String::new(), field.line)),
        Value::Message(inner) => {
            for f in inner {
                flatten(f, &path, out);
            }
        }
    }
}

/// Options of the LLM API (`--extra_llm_api_options`).
pub const OPTIONS: Table = Table {
    kind: "trtllm-options",
    title: "options of TensorRT-LLM's LLM API (`--extra_llm_api_options`)",
    keys: &[
        sets("tensor_parallel_size", "layout.tp", Whole),
        sets("pipeline_parallel_size", "layout.pp", Whole),
        sets("moe_expert_parallel_size", "layout.ep", Whole),
        sets("max_batch_size", "engine.max_batch_size", Whole),
        sets("max_num_tokens", "engine.max_num_tokens", Whole),
        sets("max_seq_len", "engine.max_seq_len", Whole),
        sets(
            "enable_chunked_prefill",
            "engine.enable_chunked_context",
            Switch,
        ),
        sets(
            "kv_cache_config.enable_block_reuse",
            "engine.enable_kv_cache_reuse",
            Switch,
        ),
        sets(
            "kv_cache_config.free_gpu_memory_fraction",
            "engine.kv_cache_free_gpu_mem_fraction",
            Number,
        ),
        sets(
            "kv_cache_config.max_tokens",
            "engine.max_tokens_in_paged_kv_cache",
            Whole,
        ),
        sets(
            "kv_cache_config.tokens_per_block",
            "engine.tokens_per_block",
            Whole,
        ),
        says("kv_cache_config.dtype", "`model.kv_cache`", Text),
        says(
            "cuda_graph_config.batch_sizes[]",
            "`engine.cuda_graph_batch_sizes`",
            Whole,
        ),
        says(
            "disable_overlap_scheduler",
            "`engine.overlap_scheduler`",
            Switch,
        ),
        says(
            "scheduler_config.capacity_scheduler_policy",
            "`engine.batch_scheduler_policy`",
            Text,
        ),
        says(
            "enable_attention_dp",
            "`layout.dp` = the GPUs, `layout.tp` = 1",
            Switch,
        ),
        not_modelled(
            "speculative_config.decoding_type",
            "speculative decoding is not simulated",
        ),
        not_modelled(
            "cache_transceiver_config.backend",
            "prefill and decode on separate pools are not imported",
        ),
    ],
    idle: &[
        "backend",
        "print_iter_log",
        "cuda_graph_config.*",
        "trust_remote_code",
        "moe_config.*",
        "attn_backend",
        "enable_iter_perf_stats",
        "stream_interval",
        "num_postprocess_workers",
        "kv_cache_config.*",
        "scheduler_config.*",
        "torch_compile_config*",
        "log_level",
        "speculative_config.*",
        "attention_dp_config.*",
        "cache_transceiver_config.*",
    ],
    idle_flags: &[],
};

/// Imports the options that a worker reads from a file: of a ConfigMap among the files, by the file's name.
pub fn mounted(path: &Origin, draft: &mut Draft) {
    let name = path.raw.rsplit('/').next().unwrap_or("");
    let found = (draft.facts.mounted.iter())
        .find(|o| o.key == name)
        .cloned();
    let docs = found.as_ref().map(|o| yaml::documents(&o.raw));
    let (Some(from), Some(Ok(docs))) = (found, docs) else {
        let why = "the file is not among the ConfigMaps of these files: import it beside them (kind trtllm-options)";
        return draft.fate(path, Fate::NotModelled, why);
    };
    draft.used(path, format!("{} of {}", shown(name), from.place));
    for doc in docs {
        let lines = from.place.line;
        options(&Rc::new(doc.below(lines)), &from.place.file, draft);
    }
}

/// Imports options of the LLM API.
pub fn options(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    draft.set(
        "engine.kind",
        "trt_llm",
        &Origin::new(Place::new(file, doc.line), "LLM API options", ""),
    );
    for key in OPTIONS.keys {
        let keys: Vec<&str> = key.name().split('.').collect();
        if let crate::keys::Meaning::Sets(path, read) = key.meaning
            && let Some((text, origin)) = tree.text("", &keys)
        {
            match crate::keys::value(&text, read) {
                Ok(value) => draft.set(path, value, &origin),
                Err(why) => draft.fault(origin.fault(why)),
            }
        }
    }
    if let Some((format, origin)) = tree.text("", &["kv_cache_config", "dtype"]) {
        match format.as_str() {
            "auto" => draft.used(&origin, "the model's own format"),
            "fp8" | "int8" => draft.set("model.kv_cache", format, &origin),
            _ => draft.fault(origin.fault(format!(
                "must be auto, fp8 or int8, got `{}`",
                shown(&format)
            ))),
        }
    }
    if let Some((policy, origin)) =
        tree.text("", &["scheduler_config", "capacity_scheduler_policy"])
    {
        draft.set(
            "engine.batch_scheduler_policy",
            policy.to_ascii_lowercase(),
            &origin,
        );
    }
    if let Some((text, origin)) = tree.text("", &["disable_overlap_scheduler"]) {
        match crate::keys::switch(&text) {
            Ok(off) => draft.set("engine.overlap_scheduler", !off, &origin),
            Err(why) => draft.fault(origin.fault(why)),
        }
    }
    let sizes = doc.at(&["cuda_graph_config", "batch_sizes"]);
    let read: Option<Vec<i64>> = sizes.map(|s| {
        s.items()
            .iter()
            .filter_map(|n| n.text()?.parse().ok())
            .collect()
    });
    if let (Some(node), Some(sizes)) = (sizes, read) {
        let origin = Origin::new(
            Place::new(file, node.line),
            "cuda_graph_config.batch_sizes",
            "",
        );
        draft.set("engine.cuda_graph_batch_sizes", sizes, &origin);
    }
    if let Some((text, origin)) = tree.text("", &["enable_attention_dp"])
        && text == "true"
    {
        draft.facts.attention_dp = Some(origin);
    }
    sweep(tree, &[(String::new(), &OPTIONS)], draft);
}

/// SageMaker: a flat object of variables, CreateModel's PrimaryContainer, CreateEndpointConfig's ProductionVariants.
pub const SAGEMAKER: Table = Table {
    kind: "sagemaker",
    title: "SageMaker: variables as JSON, `create-model` and `create-endpoint-config` requests",
    keys: &[
        says("Environment.*", "variables of the TGI container", Text),
        says("Image", "the engine, and its release by the tag", Text),
        says("InstanceType", "`hardware.instance`, without `ml.`", Text),
        says("InitialInstanceCount", "`layout.replicas`", Whole),
        says(
            "RoutingConfig.RoutingStrategy",
            "`router.policy`: LEAST_OUTSTANDING_REQUESTS or RANDOM",
            Text,
        ),
    ],
    idle: &[
        "ModelName",
        "VariantName",
        "EndpointConfigName",
        "ExecutionRoleArn",
        "ModelDataUrl",
        "ModelDataSource*",
        "ContainerStartupHealthCheckTimeoutInSeconds",
        "ModelDataDownloadTimeoutInSeconds",
        "InitialVariantWeight",
        "ManagedInstanceScaling*",
        "Mode",
        "Tags*",
        "VpcConfig*",
        "EnableNetworkIsolation",
        "VolumeSizeInGB",
    ],
    idle_flags: &[],
};

/// Imports SageMaker's JSON.
pub fn sagemaker(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    let model = doc.get("PrimaryContainer").unwrap_or(doc);
    let variant = doc
        .get("ProductionVariants")
        .and_then(|v| v.items().first())
        .unwrap_or(doc);
    let environment = model.get("Environment").or_else(|| model.get("env"));
    let flat = environment.is_none() && doc.entries().iter().any(|e| is_variable(&e.key));
    let variables: Vec<(String, Origin)> = environment
        .map_or(if flat { doc.entries() } else { &[] }, |e| e.entries())
        .iter()
        .filter_map(|e| {
            Some((
                e.key.clone(),
                Origin::new(Place::new(file, e.line), e.key.clone(), e.value.text()?),
            ))
        })
        .collect();
    let model_tree = Tree { node: model, file };
    if !variables.is_empty() {
        let image = model_tree.text("", &["Image"]);
        let image = image.as_ref().map(|(i, o)| (i.as_str(), o.place.clone()));
        super::tgi::import(&[], &variables, file, image, draft);
        draft.later(
            "router.timeout",
            "60 s".into(),
            "SageMaker's InvokeEndpoint gives up after 60 s",
        );
        draft.later(
            "router.policy",
            "random".into(),
            "SageMaker's routing, unless RoutingConfig says otherwise",
        );
    }
    let variant = Tree {
        node: variant,
        file,
    };
    if let Some((kind, origin)) = variant.text("", &["InstanceType"]) {
        let name = kind.strip_prefix("ml.").unwrap_or(&kind).to_owned();
        draft.set("hardware.instance", name, &origin);
    }
    if let Some(found) = variant.whole("", &["InitialInstanceCount"], draft) {
        draft.facts.replicas.push(found);
    }
    if let Some((strategy, origin)) = variant.text("", &["RoutingConfig", "RoutingStrategy"]) {
        match strategy.as_str() {
            "LEAST_OUTSTANDING_REQUESTS" => {
                draft.set("router.policy", "least_outstanding", &origin)
            }
            "RANDOM" => draft.set("router.policy", "random", &origin),
            _ => draft.fault(origin.fault(format!(
                "must be LEAST_OUTSTANDING_REQUESTS or RANDOM, got `{}`",
                shown(&strategy)
            ))),
        }
    }
    if !flat {
        for part in [model, variant.node] {
            sweep(
                Tree { node: part, file },
                &[(String::new(), &SAGEMAKER)],
                draft,
            );
        }
    }
}

/// Whether a key looks like an environment variable.
pub fn is_variable(key: &str) -> bool {
    key.len() > 2
        && key.contains('_')
        && key
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}
