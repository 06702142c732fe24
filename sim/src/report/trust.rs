//! How far predictions of an engine on an accelerator were from measured runs, in one line.

use hwmodels::ModelArch;
use hwmodels::catalog::Catalog;

use crate::record::MeasuredError;

/// The models of each measured set, as the catalog calls them: of its rows that nothing was fitted on.
const MODELS: [(&str, &[&str]); 20] = [
    ("jumpstart", &["llama-2-7b"]),
    (
        "jumpstart_minimum_latency",
        &[
            "llama-2-7b",
            "llama-2-13b",
            "llama-2-70b",
            "mistral-7b",
            "mixtral-8x7b",
            "falcon-7b",
            "falcon-40b",
            "falcon-180b",
        ],
    ),
    ("tgi_g5", &["llama-2-13b", "mistral-7b"]),
    ("vllm_requests", &["codellama-34b"]),
    ("vllm_requests_moe", &["mixtral-8x7b"]),
    ("vllm_rate_sweep", &["qwen3-14b"]),
    ("vllm_pcie", &["llama-3.1-8b", "qwen2.5-14b"]),
    ("qwen3_32b", &["qwen3-32b"]),
    ("sglang_qwen3_32b", &["qwen3-32b"]),
    ("sglang_deepseek_r1_disagg", &["deepseek-r1"]),
    ("vllm_gpt_oss", &["gpt-oss-120b"]),
    ("llama_405b", &["llama-3.1-405b"]),
    ("trtllm_llama31_8b", &["llama-3.1-8b"]),
    (
        "trtllm_max_throughput",
        &[
            "llama-3.1-8b",
            "llama-3.3-70b",
            "llama-3.1-405b",
            "llama-4-maverick",
            "llama-4-scout",
            "qwen3-235b-a22b",
        ],
    ),
    (
        "trtllm_overview",
        &["llama-3.1-8b", "llama-3.3-70b", "llama-3.1-405b"],
    ),
    (
        "trtllm_overview_moe",
        &["llama-4-maverick", "llama-4-scout", "qwen3-235b-a22b"],
    ),
    (
        "trtllm_per_gpu",
        &[
            "llama-3.3-70b",
            "gpt-oss-20b",
            "gpt-oss-120b",
            "llama-4-maverick",
            "qwen3-235b-a22b",
            "deepseek-v3",
        ],
    ),
    ("inf2", &["llama-3.1-8b"]),
    ("inf2_vllm", &["llama-3.1-8b"]),
    ("neuron_llmperf", &["llama-3.1-70b"]),
];

/// Most models that are named.
const NAMED: usize = 4;
/// Models whose parameters differ by no more than this are of one size [ratio].
const ONE_SIZE: f64 = 1.5;

/// What was measured like a deployment, in one line: `TTFT within 9.6 % on 90, TPOT within 2.4 % on 75 held-out runs of vLLM on H100 (median; qwen3-32b); no
/// model of llama-3.1-70b's size among them`. `what` names engine and accelerator. None
/// where nothing was measured.
pub fn in_words(
    accuracy: &[MeasuredError],
    what: &str,
    model: Option<&ModelArch>,
) -> Option<String> {
    // Of a metric the set with the most rows.
    let most =
        |metric: &str| (accuracy.iter().filter(|a| a.metric.contains(metric))).max_by_key(|a| a.n);
    let of = |(metric, name): (&str, &'static str)| Some((name, most(metric)?));
    let first = of(("ttft", "TTFT"));
    let rest = [
        ("tpot", "TPOT"),
        ("itl", "ITL"),
        ("ms_per_token", "latency per token"),
        ("e2e", "E2E latency"),
        ("tok_s", "throughput"),
    ];
    let found: Vec<(&str, &MeasuredError)> = first
        .into_iter()
        .chain(rest.into_iter().find_map(of))
        .collect();
    if found.is_empty() {
        return None;
    }
    let each: Vec<String> = found
        .iter()
        .map(|(name, a)| {
            format!(
                "{name} within {:.1} % on {}",
                100.0 * a.median_error_ratio,
                a.n
            )
        })
        .collect();
    let catalog = Catalog::builtin();
    let mut models = models_of(accuracy);
    if let Some(own) = model {
        // A set holds dense models and mixtures; errors are of the kind of the model at hand.
        let alike = |m: &ModelArch| m.moe.is_some() == own.moe.is_some();
        models.retain(|name| catalog.model(name).is_ok_and(alike));
    }
    let mut text = format!(
        "{} held-out runs of {what} (median{})",
        each.join(", "),
        listed(&models)
    );
    if !found.iter().any(|(name, _)| *name == "TTFT") {
        text += "; TTFT never measured";
    }
    if let Some(own) = model {
        text += &stranger(&models, own, &catalog);
    }
    Some(text)
}

/// The models that were measured, each once.
fn models_of(accuracy: &[MeasuredError]) -> Vec<&'static str> {
    let mut out: Vec<&str> = Vec::new();
    for a in accuracy {
        let of_set = MODELS.iter().find(|(set, _)| *set == a.set);
        for model in of_set.map_or(&[][..], |(_, models)| models) {
            if !out.contains(model) {
                out.push(model);
            }
        }
    }
    out
}

fn listed(models: &[&str]) -> String {
    if models.is_empty() {
        return String::new();
    }
    let named = models[..models.len().min(NAMED)].join(", ");
    match models.len().saturating_sub(NAMED) {
        0 => format!("; {named}"),
        more => format!("; {named} and {more} more"),
    }
}

/// What the reader must know where the model `own` is not one of `models`.
fn stranger(models: &[&str], own: &ModelArch, catalog: &Catalog) -> String {
    let name = &own.name;
    let measured: Vec<&ModelArch> = (models.iter())
        .filter_map(|m| catalog.model(m).ok())
        .collect();
    if measured.is_empty() || measured.iter().any(|m| m.name == *name) {
        return String::new();
    }
    let size = |m: &ModelArch| m.parameters() as f64;
    let ratio = |m: &&ModelArch| (size(m) / size(own)).max(size(own) / size(m));
    if measured.iter().any(|m| ratio(m) < ONE_SIZE) {
        format!("; {name} not among them")
    } else {
        format!("; no model of {name}'s size among them")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(set: &str, metric: &str, n: u64, median: f64, load: Option<&str>) -> MeasuredError {
        MeasuredError {
            set: set.into(),
            metric: metric.into(),
            n,
            median_error_ratio: median,
            load: load.map(str::to_owned),
        }
    }

    #[test]
    fn the_line_names_errors_runs_and_models_and_who_is_missing() {
        let accuracy = [
            error("vllm_rate_sweep", "ttft_mean_ms", 2, 0.047, None),
            error("qwen3_32b", "ttft_ms", 90, 0.096, Some("closed")),
            error("vllm_rate_sweep", "tpot_mean_ms", 2, 0.004, None),
            error("qwen3_32b", "tpot_ms", 75, 0.024, Some("closed")),
            error("vllm_rate_sweep", "e2e_mean_ms", 200, 0.006, None),
        ];
        let catalog = Catalog::builtin();
        let line = |model: &str| {
            in_words(
                &accuracy,
                "vLLM on H100",
                Some(catalog.model(model).unwrap()),
            )
            .unwrap()
        };
        assert_eq!(
            line("llama-3.1-70b"),
            "TTFT within 9.6 % on 90, TPOT within 2.4 % on 75 held-out runs of vLLM on H100 (median; qwen3-14b, qwen3-32b); no model of llama-3.1-70b's size \
             among them"
        );
        assert!(line("phi-4").ends_with("; phi-4 not among them"));
        assert!(line("qwen3-32b").ends_with("qwen3-32b)"));
        assert_eq!(in_words(&[], "vLLM on L40S", None), None);
        let only = [error("trtllm_overview", "output_tok_s", 54, 0.072, None)];
        let line = in_words(&only, "TensorRT-LLM on H100", None).unwrap();
        assert!(
            line.starts_with("throughput within 7.2 % on 54 held-out runs"),
            "{line}"
        );
        assert!(line.ends_with("TTFT never measured"), "{line}");
    }

    #[test]
    fn the_models_of_every_shipped_set_are_in_the_catalog() {
        let catalog = Catalog::builtin();
        for set in hwmodels::doubt::shipped() {
            let found = MODELS.iter().find(|(name, _)| *name == set.set);
            let (_, models) = found.unwrap_or_else(|| panic!("{} is not in MODELS", set.set));
            for model in *models {
                assert!(catalog.model(model).is_ok(), "{model} of {}", set.set);
            }
        }
    }
}
