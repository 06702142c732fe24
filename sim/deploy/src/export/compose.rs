//! TGI under docker compose, nginx in front.

use std::fmt::Write as _;

use hwmodels::Dtype;
use sim::scenario::{RouterPolicy, Scenario};
use toml::Value;

use super::options;
use super::serving::model_id;
use super::shared::{Exported, devices_of_node, machine, ranks};
use crate::import::tgi_table;
use crate::place::printable;

/// TGI's image of the scenario's generation.
pub fn image(s: &Scenario) -> String {
    let v3 = s
        .engine
        .params
        .to_table()
        .get("version")
        .and_then(Value::as_str)
        == Some("v3");
    format!(
        "ghcr.io/huggingface/text-generation-inference:{}",
        if v3 { "3.3.5" } else { "2.4.1" }
    )
}

/// TGI's variables.
pub fn variables(s: &Scenario, out: &mut Exported) -> Vec<(String, String)> {
    let (said, mut rest) = options::of(s, &[tgi_table()]);
    let mut all = vec![
        ("MODEL_ID".to_owned(), model_id(s)),
        ("NUM_SHARD".to_owned(), s.layout.tp.to_string()),
    ];
    options::take(&mut rest, "layout.tp");
    options::take(&mut rest, "engine.version");
    for option in said {
        if let Some(name) = option.variable() {
            all.push((name.to_owned(), option.text(",")));
        }
    }
    match options::take(&mut rest, "engine.cuda_graphs") {
        Some(Value::Boolean(false)) => all.push(("CUDA_GRAPHS".to_owned(), "0".to_owned())),
        Some(_) => all.push(("CUDA_GRAPHS".to_owned(), "1,2,4,8,16,32".to_owned())),
        None => {}
    }
    if let Some(block) = options::take(&mut rest, "engine.block_size") {
        let kernels = [(1, "flashinfer"), (16, "paged"), (256, "flashdecoding")];
        match kernels.iter().find(|(n, _)| block.as_integer() == Some(*n)) {
            Some((_, name)) => all.push(("ATTENTION".to_owned(), (*name).to_owned())),
            None => rest.push(("engine.block_size".to_owned(), block)),
        }
    }
    if let Some(m) = &s.model {
        match m.weights {
            None => {}
            Some(Dtype::Fp8) => all.push(("QUANTIZE".to_owned(), "fp8".to_owned())),
            Some(Dtype::Int4) => all.push(("QUANTIZE".to_owned(), "awq".to_owned())),
            Some(Dtype::Int8) => all.push(("QUANTIZE".to_owned(), "eetq".to_owned())),
            Some(_) => out.cannot("model.weights: the checkpoint says it"),
        }
        match m.kv_cache {
            Dtype::Bf16 => {}
            Dtype::Fp8 => all.push(("KV_CACHE_DTYPE".to_owned(), "fp8_e4m3fn".to_owned())),
            _ => out.cannot("model.kv_cache: TGI keeps KV in 16 bits or fp8"),
        }
    }
    for (path, value) in rest {
        out.cannot(format!(
            "{path} = {value}: TGI's launcher has no option for it"
        ));
    }
    all
}

/// `compose.yaml`, `tgi.env` and `nginx.conf`.
pub fn files(s: &Scenario, out: &mut Exported) {
    let mut env = format!("# {}\n", printable(&s.description));
    for (name, value) in variables(s, out) {
        let _ = writeln!(env, "{name}={}", dotenv(&value));
    }
    let (copies, devices) = (s.replicas.min(1024), ranks(s));
    if copies < s.replicas {
        out.cannot(format!(
            "layout.replicas = {}: 1024 services are written",
            s.replicas
        ));
    }
    if copies.saturating_mul(devices) > devices_of_node(s) {
        out.cannot(format!(
            "{copies} replicas of {devices} devices do not fit one machine of {}: run the file on several and put their addresses into nginx.conf",
            devices_of_node(s)
        ));
    }
    let mut compose = format!(
        "x-tgi: &tgi\n  image: {}\n  env_file: tgi.env\n  environment:\n  - HF_TOKEN\n  shm_size: 1g\n  volumes:\n  - ./data:/data\nservices:\n",
        image(s)
    );
    let mut nginx = "events {}\nhttp {\n  upstream tgi {\n".to_owned();
    match s.router.policy {
        RouterPolicy::RoundRobin => {}
        RouterPolicy::LeastOutstanding => nginx.push_str("    least_conn;\n"),
        RouterPolicy::Random => nginx.push_str("    random;\n"),
        RouterPolicy::PowerOfTwo => nginx.push_str("    random two least_conn;\n"),
        RouterPolicy::Session => nginx.push_str("    ip_hash;\n"),
        _ => out.cannot("router.policy: nginx cannot see the engines' state"),
    }
    for i in 0..copies {
        let ids: Vec<String> = (i * devices..(i + 1) * devices)
            .map(|d| format!("\"{d}\""))
            .collect();
        let _ = write!(
            compose,
            "  tgi-{i}:\n    <<: *tgi\n    deploy:\n      resources:\n        reservations:\n          devices:\n          - {{driver: nvidia, device_ids: [{}], capabilities: [gpu]}}\n",
            ids.join(", ")
        );
        let _ = writeln!(nginx, "    server tgi-{i}:80;");
    }
    compose.push_str("  proxy:\n    image: nginx:1.27\n    ports: [\"8080:80\"]\n    volumes:\n    - ./nginx.conf:/etc/nginx/nginx.conf:ro\n");
    nginx.push_str("  }\n  server {\n    listen 80;\n    location / {\n      proxy_pass http://tgi;\n      proxy_buffering off;\n    }\n  }\n}\n");
    out.file("compose.yaml", compose);
    out.file("tgi.env", env);
    out.file("nginx.conf", nginx);
    if s.router.timeout.is_some() {
        out.cannot("router.timeout: nginx bounds the wait between two reads, not an answer");
    }
    machine(s, out);
}

/// A value as a file of variables takes it.
fn dotenv(value: &str) -> String {
    let plain = value
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_./,:".contains(c));
    match plain {
        true => value.to_owned(),
        false => format!(
            "\"{}\"",
            value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('$', "\\$")
        ),
    }
}
