//! SGLang's command line.

use hwmodels::Dtype;
use sim::scenario::Scenario;
use toml::Value;

use super::options;
use super::serving::{model_id, token_comment};
use super::shared::{Exported, continued, machine, router, weights};
use crate::import::sglang_table;
use crate::text::shell::quoted;

/// The words behind `python -m sglang.launch_server`, without the model.
pub fn arguments(s: &Scenario, out: &mut Exported) -> Vec<String> {
    let (said, mut rest) = options::of(s, &[sglang_table()]);
    let mut words = Vec::new();
    options::take(&mut rest, "layout.tp");
    let all = s.layout.tp.saturating_mul(s.layout.dp);
    if all > 1 {
        words.push(format!("--tp-size={all}"));
    }
    if s.layout.dp > 1 {
        words.push(format!("--dp-size={}", s.layout.dp));
        words.push("--enable-dp-attention".to_owned());
    }
    for option in said {
        let name = option.long();
        match &option.value {
            Value::Boolean(true) => words.push(name.to_owned()),
            // A switch that is off by default, and never written otherwise.
            Value::Boolean(false) => words.push(format!("{name}=false")),
            Value::Array(_) => {
                words.push(name.to_owned());
                words.extend(option.text(" ").split(' ').map(str::to_owned));
            }
            _ => words.push(format!("{name}={}", option.text(" "))),
        }
    }
    if let Some(policy) = options::take(&mut rest, "engine.schedule_policy") {
        let policy = policy.as_str().unwrap_or_default();
        words.push(format!("--schedule-policy={policy}"));
    }
    match options::take(&mut rest, "engine.cuda_graphs") {
        Some(Value::Boolean(false)) => words.push("--disable-cuda-graph".to_owned()),
        Some(_) => words.push("--disable-cuda-graph=false".to_owned()),
        None => {}
    }
    options::take(&mut rest, "engine.version");
    formats(s, &mut words, out);
    for (path, value) in rest {
        out.cannot(format!(
            "{path} = {value}: SGLang's command line has no option for it"
        ));
    }
    words
}

fn formats(s: &Scenario, words: &mut Vec<String>, out: &mut Exported) {
    let Some(m) = &s.model else { return };
    weights(m, Some("w8a8_int8"), words, out);
    match m.kv_cache {
        Dtype::Bf16 => {}
        Dtype::Fp8 => words.push("--kv-cache-dtype=fp8_e4m3".to_owned()),
        _ => out.cannot("model.kv_cache: SGLang keeps KV in 16 bits or fp8"),
    }
}

/// The release, `0.5.14`.
fn release(s: &Scenario) -> String {
    let table = s.engine.params.to_table();
    table
        .get("version")
        .and_then(Value::as_str)
        .unwrap_or("0.5.14")
        .to_owned()
}

/// The release's image.
pub fn image(s: &Scenario) -> String {
    format!("lmsysorg/sglang:v{}", release(s))
}

/// `serve.sh`.
pub fn script(s: &Scenario, out: &mut Exported) {
    let mut text = format!(
        "#!/bin/sh\n# One replica of {}.\n{}pip install 'sglang=={}'\npython -m sglang.launch_server --model-path={}",
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
            "layout.replicas = {}: run the command as often",
            s.replicas
        ));
    }
    machine(s, out);
    router(s, out);
}
