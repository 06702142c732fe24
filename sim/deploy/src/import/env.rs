//! Environment variables that are nobody's in particular.

use super::draft::{Draft, Origin};
use crate::keys::{Table, not_modelled};
use crate::report::Fate;

/// Variables of any container.
pub const TABLE: Table = Table {
    kind: "env",
    title: "environment variables of any container",
    keys: &[
        not_modelled("VLLM_USE_V1", "the scheduler is that of the release"),
        not_modelled(
            "VLLM_ATTENTION_BACKEND",
            "step times are those of the profile's backend",
        ),
        not_modelled(
            "CUDA_VISIBLE_DEVICES",
            "devices are those that the layout takes",
        ),
    ],
    idle: &[
        "HF_*",
        "HUGGING_FACE_*",
        "HUGGINGFACE_*",
        "NCCL_*",
        "CUDA_*",
        "NVIDIA_*",
        "FI_*",
        "LD_*",
        "PATH",
        "HOME",
        "PYTHON*",
        "OMP_*",
        "TORCH*",
        "PYTORCH_*",
        "TRANSFORMERS_*",
        "LWS_*",
        "RAY_*",
        "GLOO_*",
        "UCX_*",
        "TRITON_*",
        "AWS_*",
        "POD_*",
        "VLLM_*",
        "PORT",
        "HOSTNAME",
        "TZ",
        "LOG*",
        "RUST_*",
        "XDG_*",
        "OTEL_*",
        "SAFETENSORS_*",
        "NVSHMEM_*",
        "DO_NOT_TRACK",
        "TOKENIZERS_PARALLELISM",
        "GROUP_KEY",
        "NAMESPACE",
        "NODE_*",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "USER",
        "TRTLLM_*",
        "TLLM_*",
        "DYN_*",
        "KUBERNETES_*",
        "LMCACHE_*",
        "VOLUME",
        "DATA_*",
    ],
    idle_flags: &[],
};

/// Reports a variable that the engine's own table does not have.
pub fn other(name: &str, origin: &Origin, table: &Table, draft: &mut Draft) {
    match TABLE.find(name).map(|k| k.meaning) {
        Some(crate::keys::Meaning::NotModelled(why)) => draft.fate(origin, Fate::NotModelled, why),
        Some(_) => draft.fate(origin, Fate::NoEffect, ""),
        None => {
            let hint = table
                .nearest(name)
                .map_or_else(String::new, |n| format!("did you mean `{n}`?"));
            draft.fate(origin, Fate::NotUnderstood, hint);
        }
    }
}
