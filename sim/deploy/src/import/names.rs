//! Names of models and accelerators as deployments write them, and what the catalog calls them.

use hwmodels::catalog::Catalog;

use crate::place::shown;

/// A model of the catalog, with the format of its weights where the name says one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The catalog's name.
    pub name: String,
    /// `model.weights`, where the name tells of a quantised copy.
    pub weights: Option<&'static str>,
}

/// Ends of names by which publishers tell a quantised copy, and its format.
const QUANTISED: [(&str, &str); 14] = [
    ("-fp8-dynamic", "fp8"),
    ("-fp8-kv", "fp8"),
    ("-fp8", "fp8"),
    ("-gptq-int4", "int4"),
    ("-gptq-int8", "int8"),
    ("-awq-int4", "int4"),
    ("-quantized.w4a16", "int4"),
    ("-quantized.w8a8", "int8"),
    ("-awq", "int4"),
    ("-gptq", "int4"),
    ("-int4", "int4"),
    ("-int8", "int8"),
    ("-w4a16", "int4"),
    ("-w8a8", "int8"),
];

/// The catalog's model that an engine is told of as `id`: a Hugging Face name, or the path of a folder named after one.
///
/// # Errors
/// There is none; with what to do.
pub fn model_of(id: &str, catalog: &Catalog) -> Result<Model, String> {
    let trimmed = id.trim().trim_start_matches("hf://").trim_end_matches('/');
    let base = trimmed.rsplit('/').next().unwrap_or(trimmed);
    // A snapshot in the hub's cache: models--org--name/snapshots/hash.
    let base = match trimmed.split('/').find_map(|p| p.strip_prefix("models--")) {
        Some(cached) => cached.rsplit("--").next().unwrap_or(base),
        None => base,
    };
    let found = |name: &str| {
        if let Ok(entry) = catalog.model_entry(name) {
            return Some(entry.arch.name.clone());
        }
        let wanted = plain(name);
        (catalog.models())
            .find(|m| {
                let aliases = m.arch.aliases.iter().map(String::as_str);
                aliases
                    .chain([m.arch.name.as_str()])
                    .any(|a| plain(a) == wanted)
            })
            .map(|m| m.arch.name.clone())
    };
    if let Some(name) = found(trimmed).or_else(|| found(base)) {
        return Ok(Model {
            name,
            weights: None,
        });
    }
    let lower = base.to_ascii_lowercase();
    for (end, format) in QUANTISED {
        if let Some(stem) = lower.strip_suffix(end)
            && let Some(name) = found(stem)
        {
            return Ok(Model {
                name,
                weights: Some(format),
            });
        }
    }
    Err(format!(
        "the model `{}` is not in the catalog (servetwin catalog list models); give its Hugging Face config.json beside the files, or the catalog's name of a model of the same \
         shape with --model NAME",
        shown(id)
    ))
}

/// A name without its publisher, in lower case, without the ending of converted checkpoints.
fn plain(name: &str) -> String {
    let base = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    base.strip_suffix("-hf").unwrap_or(&base).to_owned()
}

/// Products whose names say less than the catalog's.
const PRODUCTS: [(&str, &str); 8] = [
    ("h100-80gb-hbm3", "H100-SXM5-80GB"),
    ("h100-mega-80gb", "H100-SXM5-80GB"),
    ("h200", "H200-SXM5-141GB"),
    ("h200-141gb", "H200-SXM5-141GB"),
    ("a100", "A100-SXM4-40GB"),
    ("a100-80gb", "A100-SXM4-80GB"),
    ("h100-pcie", "H100-PCIe-80GB"),
    ("b200", "B200-SXM-180GB"),
];

/// The catalog's accelerator for the value of a node label such as `nvidia.com/gpu.product` or `cloud.google.com/gke-accelerator`.
pub fn accelerator_of(product: &str, catalog: &Catalog) -> Option<String> {
    let lower = product.to_ascii_lowercase();
    let bare = [
        "nvidia-tesla-",
        "nvidia-",
        "tesla-",
        "amd-instinct-",
        "amd-",
    ]
    .iter()
    .find_map(|start| lower.strip_prefix(start))
    .unwrap_or(&lower);
    let bare = bare.strip_suffix("-shared").unwrap_or(bare);
    let known = PRODUCTS.iter().find(|(p, _)| *p == bare).map(|(_, n)| *n);
    let name = known.unwrap_or(bare);
    catalog.accelerator(name).ok().map(|a| a.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_what_engines_are_told() {
        let catalog = Catalog::builtin();
        for (id, name, weights) in [
            ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", None),
            ("/models/Llama-2-7b-hf/", "llama-2-7b", None),
            ("hf://Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b", None),
            (
                "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8",
                "llama-3.1-8b",
                Some("fp8"),
            ),
            (
                "x/Mixtral-8x7B-Instruct-v0.1-AWQ",
                "mixtral-8x7b",
                Some("int4"),
            ),
            (
                "/c/models--tiiuae--falcon-40b/snapshots/abc",
                "falcon-40b",
                None,
            ),
        ] {
            let expected = Model {
                name: name.into(),
                weights,
            };
            assert_eq!(model_of(id, &catalog), Ok(expected), "{id}");
        }
        let error = model_of("someone/unheard-of-9b", &catalog).unwrap_err();
        assert!(error.contains("config.json"), "{error}");
    }

    #[test]
    fn accelerators_are_found_by_their_labels() {
        let catalog = Catalog::builtin();
        for (product, name) in [
            ("NVIDIA-A10G", "A10G-24GB"),
            ("NVIDIA-A100-SXM4-40GB", "A100-SXM4-40GB"),
            ("NVIDIA-H100-80GB-HBM3", "H100-SXM5-80GB"),
            ("Tesla-T4", "T4-16GB"),
            ("nvidia-l4", "L4-24GB"),
        ] {
            assert_eq!(accelerator_of(product, &catalog).as_deref(), Some(name));
        }
        assert_eq!(accelerator_of("NVIDIA-X9000", &catalog), None);
    }
}
