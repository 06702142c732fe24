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
    let trimmed = trimmed.split(['?', '@']).next().unwrap_or(trimmed);
    let base = trimmed.rsplit('/').next().unwrap_or(trimmed);
    // The tag of an image of weights, or a revision.
    let base = base.split(':').next().unwrap_or(base);
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
        let bare = bare(&wanted);
        let is_it = |a: &str| plain(a) == wanted;
        let of = |m: &&hwmodels::catalog::Model, is: &dyn Fn(&str) -> bool| {
            (m.arch.aliases.iter().map(String::as_str))
                .chain([m.arch.name.as_str()])
                .any(is)
        };
        let exact = catalog.models().find(|m| of(m, &is_it));
        // A model that was tuned has its base's shape.
        let tuned = || {
            catalog
                .models()
                .find(|m| of(m, &|a| self::bare(&plain(a)) == bare))
        };
        exact.or_else(tuned).map(|m| m.arch.name.clone())
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

/// The format of weights that a name ends in.
pub fn format_of(id: &str) -> Option<&'static str> {
    let lower = id.trim_end_matches('/').to_ascii_lowercase();
    let found = QUANTISED.iter().find(|(end, _)| lower.ends_with(end));
    found.map(|(_, format)| *format)
}

/// A name without its publisher, in lower case, without the ending of converted checkpoints.
fn plain(name: &str) -> String {
    let base = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    base.strip_suffix("-hf").unwrap_or(&base).to_owned()
}

/// Ends of names that tell how a model was tuned, and not what shape it has.
const TUNED: [&str; 11] = [
    "-instruct",
    "-it",
    "-pt",
    "-chat",
    "-base",
    "-thinking",
    "-hf",
    "-bf16",
    "-turbo",
    "-preview",
    "-vl-text",
];

/// A plain name without how it was tuned, its month, and what publishers spell either way: `Meta-Llama-3-8B-Instruct` and `llama3-8b` are one.
fn bare(plain: &str) -> String {
    let name = plain.replace('_', "-");
    let mut name = name.strip_prefix("meta-").unwrap_or(&name).to_owned();
    loop {
        let before = name.len();
        for end in TUNED {
            if let Some(rest) = name.strip_suffix(end) {
                name.truncate(rest.len());
            }
        }
        // -2507, -0528: the month or day of a release.
        if let Some((rest, last)) = name.rsplit_once('-')
            && last.len() == 4
            && last.bytes().all(|b| b.is_ascii_digit())
        {
            name.truncate(rest.len());
        }
        if name.len() == before {
            break;
        }
    }
    let start = name.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
    let family = name[..start].trim_end_matches('-');
    format!("{family}{}", &name[start..])
}

/// Products whose names say less than the catalog's.
const PRODUCTS: [(&str, &str); 18] = [
    ("h100-80gb-hbm3", "H100-SXM5-80GB"),
    ("h100-mega-80gb", "H100-SXM5-80GB"),
    ("h200", "H200-SXM5-141GB"),
    ("h200-141gb", "H200-SXM5-141GB"),
    ("a100", "A100-SXM4-40GB"),
    ("a100-80gb", "A100-SXM4-80GB"),
    ("h100-pcie", "H100-PCIe-80GB"),
    ("b200", "B200-SXM-180GB"),
    ("h100-nvlink-80gb", "H100-SXM5-80GB"),
    ("h100-mega", "H100-SXM5-80GB"),
    ("h100-80gb-mega", "H100-SXM5-80GB"),
    ("h100-sxm5", "H100-SXM5-80GB"),
    ("h200-sxm5", "H200-SXM5-141GB"),
    ("a100-nvlink-80gb", "A100-SXM4-80GB"),
    ("a100-nvlink-40gb", "A100-SXM4-40GB"),
    ("a100-80gb-sxm", "A100-SXM4-80GB"),
    ("rtx-pro-6000-blackwell", "RTX-PRO-6000-96GB"),
    ("geforce-rtx-4090", "RTX4090-24GB"),
];

/// The catalog's accelerator for the value of a node label such as `nvidia.com/gpu.product` or `cloud.google.com/gke-accelerator`.
pub fn accelerator_of(product: &str, catalog: &Catalog) -> Option<String> {
    let lower = product.trim().to_ascii_lowercase().replace([' ', '_'], "-");
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
    let bare = bare.strip_suffix("-oam").unwrap_or(bare);
    let bare = bare.strip_suffix("-server-edition").unwrap_or(bare);
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
            (
                "oci://quay.io/x/granite-3.3-8b-instruct:1.5",
                "granite-3.3-8b",
                None,
            ),
            ("meta/llama3-8b-instruct", "llama-3-8b", None),
            ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3", None),
            (
                "unsloth/Qwen3-235B-A22B-Thinking-2507",
                "qwen3-235b-a22b",
                None,
            ),
            (
                "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
                "llama-3.1-70b",
                Some("fp8"),
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
            ("H100_NVLINK_80GB", "H100-SXM5-80GB"),
            ("AMD_Instinct_MI300X_OAM", "MI300X-192GB"),
            ("NVIDIA-L40S-SHARED", "L40S-48GB"),
        ] {
            assert_eq!(accelerator_of(product, &catalog).as_deref(), Some(name));
        }
        assert_eq!(accelerator_of("NVIDIA-X9000", &catalog), None);
    }
}
