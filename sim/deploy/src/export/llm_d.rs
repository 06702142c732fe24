//! Values of llm-d's model service.
//!
//! Keys: llm-d-incubation/llm-d-modelservice, `charts/llm-d-modelservice/values.yaml` and `examples/values-pd.yaml`.

use std::fmt::Write as _;

use sim::scenario::{RouterPolicy, Scenario};

use super::apart::Sides;
use super::serving::{self, model_id};
use super::shared::{Exported, own_machine, ranks, selector, yaml};
use super::vllm;
use crate::place::printable;

/// How a replica that prefills hands its KV on.
pub const CONNECTOR: &str = "{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}";

/// `values.yaml`: of `s`, or of both sides where prefill and decode are apart.
pub fn values(s: &Scenario, sides: Option<&Sides>, out: &mut Exported) {
    let id = model_id(s);
    let mut text = format!(
        "# {}\n{}modelArtifacts:\n  name: {}\n  uri: {}\n",
        printable(&s.description),
        serving::secret_comment(s),
        yaml(&id),
        yaml(&format!("hf://{id}"))
    );
    if serving::is_gated(s) {
        let _ = writeln!(text, "  authSecretName: {}", serving::SECRET);
    }
    // The chart's own volume has room for 5 MiB.
    if let Some(size) = serving::disk(s) {
        let _ = writeln!(text, "  size: {size}");
    }
    match sides {
        None => {
            text += "routing:\n  servicePort: 8000\n  proxy:\n    enabled: false\n";
            text += &side("decode", s, (false, 8000), out);
            text += "prefill:\n  create: false\n  replicas: 0\n";
        }
        Some(sides) => {
            // The sidecar of a pod that decodes has its prompts computed first.
            text += "routing:\n  servicePort: 8000\n  proxy:\n    enabled: true\n    targetPort: 8200\n    connector: nixlv2\n";
            text += &side("decode", &sides.decode, (true, 8200), out);
            text += &side("prefill", &sides.prefill, (true, 8000), out);
        }
    }
    out.file("values.yaml", text);
    own_machine(s, out);
    if s.router.policy != RouterPolicy::RoundRobin {
        out.cannot("router.policy: the endpoint picker's plugins choose; they are a configuration of its own");
    }
    if s.router.timeout.is_some() {
        out.cannot("router.timeout: it is the gateway's");
    }
}

/// The variable by which vLLM's connector tells others its own address, each line indented by `pad`.
pub fn side_channel(pad: &str) -> String {
    format!(
        "{pad}- name: VLLM_NIXL_SIDE_CHANNEL_HOST\n{pad}  valueFrom:\n{pad}    fieldRef:\n{pad}      fieldPath: status.podIP\n"
    )
}

/// The pods of a side, whose engine listens on `port`; `apart`: KV goes from one side to the other.
fn side(name: &str, s: &Scenario, (apart, port): (bool, u16), out: &mut Exported) -> String {
    let mut text = format!(
        "{name}:\n  create: true\n  replicas: {}\n  parallelism:\n    tensor: {}\n{}",
        s.replicas,
        s.layout.tp,
        selector(s, 2)
    );
    let _ = write!(
        text,
        "  containers:\n  - name: vllm\n    image: {}\n    modelCommand: vllmServe\n    args:\n",
        yaml(&vllm::image(s))
    );
    // The chart writes the option of what `parallelism` says.
    let own = |w: &String| !w.starts_with("--tensor-parallel-size");
    let link = apart.then(|| format!("--kv-transfer-config={CONNECTOR}"));
    let words: Vec<String> = vllm::arguments(s, out)
        .into_iter()
        .filter(own)
        .chain(link)
        .collect();
    if words.is_empty() {
        text.truncate(text.len() - "    args:\n".len());
    }
    for word in words {
        let _ = writeln!(text, "    - {}", yaml(&word));
    }
    if apart {
        let _ = write!(text, "    env:\n{}", side_channel("    "));
    }
    let _ = write!(
        text,
        "    resources:\n      limits:\n        nvidia.com/gpu: \"{}\"\n    mountModelVolume: true\n",
        ranks(s)
    );
    text += &serving::probes(s, "/health", port, "    ");
    if serving::shares_memory(ranks(s)) {
        text += &serving::memory_mount("    ");
        text += &serving::memory_volume("  ");
    }
    text
}
