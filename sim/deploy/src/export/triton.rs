//! TensorRT-LLM under Triton: the engine's build, `config.pbtxt`, values of the multi-node chart.

use std::fmt::Write as _;

use hwmodels::Dtype;
use sim::scenario::Scenario;
use toml::Value;

use super::options::{self, Setting};
use super::serving::model_id;
use super::shared::{Exported, accelerator, devices_of_node, machine, ranks, router, yaml};
use crate::import::{pbtxt_table, trtllm_build_table, trtllm_convert_table};
use crate::place::printable;
use crate::text::shell::quoted;

/// An image whose defaults are those of the scenario's engine.
pub const IMAGE: &str = "nvcr.io/nvidia/tritonserver:24.12-trtllm-python-py3";

/// `build.sh` and `config.pbtxt`, and what they cannot say.
pub fn engine_files(s: &Scenario, out: &mut Exported) {
    let (said, mut rest) = options::of(
        s,
        &[trtllm_convert_table(), trtllm_build_table(), pbtxt_table()],
    );
    let is =
        |table: &crate::keys::Table, o: &Setting| table.keys.iter().any(|k| k.names == o.names);
    let convert: Vec<&Setting> = said
        .iter()
        .filter(|o| is(trtllm_convert_table(), o))
        .collect();
    let build: Vec<&Setting> = said
        .iter()
        .filter(|o| is(trtllm_build_table(), o))
        .collect();
    let parameters: Vec<&Setting> = said.iter().filter(|o| is(pbtxt_table(), o)).collect();
    let mut text = format!(
        "#!/bin/sh\n# {}\npython convert_checkpoint.py --model_dir {} --output_dir ./checkpoint",
        printable(&s.description),
        quoted(&model_id(s))
    );
    for o in convert {
        let _ = write!(text, " \\\n  {} {}", o.long(), quoted(&o.text(",")));
    }
    formats(s, &mut text, out);
    text.push_str("\ntrtllm-build --checkpoint_dir ./checkpoint --output_dir ./engine");
    for o in build {
        let _ = write!(text, " \\\n  {} {}", o.long(), quoted(&o.text(",")));
    }
    for (path, option, on) in [
        ("engine.gemm_plugin", "--gemm_plugin", "auto"),
        ("engine.use_fused_mlp", "--use_fused_mlp", "enable"),
        ("engine.multi_block_mode", "--multi_block_mode", "enable"),
    ] {
        // A switch that the table knows as such has been written already.
        if let Some(value) = options::take(&mut rest, path) {
            let word = if value == Value::Boolean(true) {
                on
            } else {
                "disable"
            };
            let _ = write!(text, " \\\n  {option} {word}");
        }
    }
    text.push('\n');
    out.file("build.sh", text);
    out.file("config.pbtxt", config(s, &parameters));
    for (path, value) in rest {
        out.cannot(format!(
            "{path} = {value}: neither the engine's build nor config.pbtxt has it"
        ));
    }
    if s.layout.dp > 1 {
        out.cannot("layout.dp: attention ranks apart are an option of trtllm-serve");
    }
}

fn formats(s: &Scenario, text: &mut String, out: &mut Exported) {
    let Some(m) = &s.model else { return };
    match m.weights {
        None => {}
        Some(Dtype::Fp8) => text.push_str(" \\\n  --use_fp8"),
        Some(Dtype::Int8) => text.push_str(" \\\n  --use_weight_only --weight_only_precision int8"),
        Some(Dtype::Int4) => text.push_str(" \\\n  --use_weight_only --weight_only_precision int4"),
        Some(Dtype::Fp32) => text.push_str(" \\\n  --dtype float32"),
        Some(_) => out.cannot("model.weights: the checkpoint says it"),
    }
    match m.kv_cache {
        Dtype::Bf16 => {}
        Dtype::Fp8 => text.push_str(" \\\n  --fp8_kv_cache"),
        Dtype::Int8 => text.push_str(" \\\n  --int8_kv_cache"),
        _ => out.cannot("model.kv_cache: TensorRT-LLM keeps KV in 16 or 8 bits"),
    }
}

fn config(s: &Scenario, parameters: &[&Setting]) -> String {
    let table = s.engine.params.to_table();
    let batch = table
        .get("max_batch_size")
        .and_then(Value::as_integer)
        .unwrap_or(1);
    let mut text = format!(
        "name: \"tensorrt_llm\"\nbackend: \"tensorrtllm\"\nmax_batch_size: {batch}\nmodel_transaction_policy {{ decoupled: true }}\n"
    );
    let queue = parameters
        .iter()
        .find(|o| o.names.contains("max_queue_size"));
    if let Some(o) = queue {
        let _ = writeln!(
            text,
            "dynamic_batching {{ default_queue_policy {{ max_queue_size: {} }} }}",
            o.text(",")
        );
    }
    let mut add = |key: &str, value: &str| {
        let _ = write!(
            text,
            "parameters: {{\n  key: \"{key}\"\n  value: {{ string_value: \"{value}\" }}\n}}\n"
        );
    };
    add("gpt_model_type", "inflight_fused_batching");
    add("gpt_model_path", "/var/run/models/engine");
    for o in parameters
        .iter()
        .filter(|o| !o.names.contains("max_queue_size"))
    {
        add(o.names, &o.text(","));
    }
    text
}

/// `build.sh` and `config.pbtxt`.
pub fn build(s: &Scenario, out: &mut Exported) {
    engine_files(s, out);
    if s.replicas > 1 {
        out.cannot(format!(
            "layout.replicas = {}: start as many servers",
            s.replicas
        ));
    }
    machine(s, out);
    router(s, out);
}

/// `values.yaml` of the multi-node chart, with the engine's files.
pub fn helm(s: &Scenario, out: &mut Exported) {
    let node = devices_of_node(s).min(ranks(s));
    let mut text = format!("# {}\n", printable(&s.description));
    let _ = write!(
        text,
        "gpu: {}\ngpuPerNode: {node}\npersistentVolumeClaim: models\ntensorrtLLM:\n  parallelism:\n    tensor: {}\n    pipeline: {}\n",
        yaml(&product(s)),
        s.layout.tp,
        s.layout.pp
    );
    let _ = write!(
        text,
        "triton:\n  image:\n    name: {}\n  triton_model_repo_path: /var/run/models/triton_model_repo\n",
        yaml(IMAGE)
    );
    let _ = write!(
        text,
        "autoscaling:\n  enable: true\n  replicas:\n    minimum: {}\n    maximum: {}\n  metric:\n    name: triton:queue_compute:ratio\n    value: 1\n",
        s.replicas, s.replicas
    );
    out.file("values.yaml", text);
    engine_files(s, out);
    machine(s, out);
    router(s, out);
}

/// What the node's label calls the accelerator.
fn product(s: &Scenario) -> String {
    let name = accelerator(s);
    match name.as_str() {
        "H100-SXM5-80GB" => "NVIDIA-H100-80GB-HBM3".to_owned(),
        "A10G-24GB" => "NVIDIA-A10G".to_owned(),
        "L4-24GB" => "NVIDIA-L4".to_owned(),
        "L40S-48GB" => "NVIDIA-L40S".to_owned(),
        "H200-SXM5-141GB" => "NVIDIA-H200".to_owned(),
        "B200-SXM-180GB" => "NVIDIA-B200".to_owned(),
        "T4-16GB" => "Tesla-T4".to_owned(),
        _ => format!("NVIDIA-{name}"),
    }
}
