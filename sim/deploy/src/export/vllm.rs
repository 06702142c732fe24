//! vLLM's command line.

use hwmodels::Dtype;
use sim::scenario::Scenario;
use toml::Value;

use super::options;
use super::serving::{model_id, token_comment};
use super::shared::{Exported, continued, machine, router, weights};
use crate::import::vllm_table;
use crate::text::shell::quoted;

/// The words behind `vllm serve`, without the model.
pub fn arguments(s: &Scenario, out: &mut Exported) -> Vec<String> {
    let (said, mut rest) = options::of(s, &[vllm_table()]);
    let mut words = Vec::new();
    if let Some(tp) = options::take(&mut rest, "layout.tp") {
        words.push(format!("--tensor-parallel-size={tp}"));
    }
    for option in said {
        let name = option.long();
        match &option.value {
            Value::Boolean(true) => words.push(name.to_owned()),
            Value::Boolean(false) => words.push(name.replacen("--", "--no-", 1)),
            Value::Array(_) => {
                words.push(name.to_owned());
                words.extend(option.text(" ").split(' ').map(str::to_owned));
            }
            _ => words.push(format!("{name}={}", option.text(" "))),
        }
    }
    if s.layout.dp > 1 {
        words.push(format!("--data-parallel-size={}", s.layout.dp));
    }
    if options::take(&mut rest, "layout.ep").is_some() {
        let all = s.layout.tp.saturating_mul(s.layout.dp);
        match s.layout.ep == all {
            true => words.push("--enable-expert-parallel".to_owned()),
            false => out.cannot(format!(
                "layout.ep = {}: vLLM spreads experts over all {all} ranks or none",
                s.layout.ep
            )),
        }
    }
    if let Some(graphs) = options::take(&mut rest, "engine.cuda_graphs") {
        words.push(
            if graphs == Value::Boolean(true) {
                "--no-enforce-eager"
            } else {
                "--enforce-eager"
            }
            .to_owned(),
        );
    }
    options::take(&mut rest, "engine.version");
    formats(s, &mut words, out);
    for (path, value) in rest {
        out.cannot(format!(
            "{path} = {value}: vLLM's command line has no option for it"
        ));
    }
    words
}

fn formats(s: &Scenario, words: &mut Vec<String>, out: &mut Exported) {
    let Some(m) = &s.model else { return };
    weights(m, None, words, out);
    match m.kv_cache {
        Dtype::Bf16 => {}
        Dtype::Fp8 => words.push("--kv-cache-dtype=fp8".to_owned()),
        Dtype::Int8 => words.push("--kv-cache-dtype=int8".to_owned()),
        _ => out.cannot("model.kv_cache: vLLM keeps KV in 16 bits or fp8"),
    }
}

/// The release's image.
pub fn image(s: &Scenario) -> String {
    let release = release(s);
    // A release that is named in full is its own tag.
    let patch = if release.matches('.').count() > 1 {
        ""
    } else {
        ".0"
    };
    format!("vllm/vllm-openai:v{release}{patch}")
}

/// The release, `0.15`.
pub fn release(s: &Scenario) -> String {
    let table = s.engine.params.to_table();
    table
        .get("version")
        .and_then(Value::as_str)
        .unwrap_or("0.15")
        .to_owned()
}

/// `serve.sh`.
pub fn script(s: &Scenario, out: &mut Exported) {
    let mut text = format!(
        "#!/bin/sh\n# One replica of {}.\n{}pip install 'vllm=={}.*'\nvllm serve {}",
        crate::place::printable(&s.name),
        token_comment(s),
        release(s),
        quoted(&model_id(s))
    );
    continued(&mut text, &arguments(s, out));
    text.push('\n');
    out.file("serve.sh", text);
    if s.replicas > 1 {
        out.cannot(format!(
            "layout.replicas = {}: run the command as often, or export to k8s",
            s.replicas
        ));
    }
    machine(s, out);
    router(s, out);
}
