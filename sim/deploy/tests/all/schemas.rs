//! What is exported keeps to the schemas of its targets, and has what a deployment needs to serve.

use std::collections::BTreeSet;
use std::path::Path;

use deploy::text::yaml::{self, Node};
use deploy::{Exported, Target, export};
use serde_json::{Map, Value};
use sim::scenario::Scenario;

fn schemas() -> Value {
    serde_json::from_str(include_str!("../schemas/targets.json")).unwrap()
}

/// A document as JSON; plain scalars that look like numbers or truths are those.
fn json(node: &Node) -> Value {
    match &node.value {
        yaml::Value::Map(entries) => {
            let entries = entries.iter().map(|e| (e.key.clone(), json(&e.value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        yaml::Value::List(items) => items.iter().map(|i| json(i)).collect(),
        yaml::Value::Scalar { text, quoted } => match (*quoted, serde_json::from_str(text)) {
            (false, Ok(plain)) => plain,
            _ => Value::String(text.clone()),
        },
    }
}

fn documents(text: &str) -> Vec<Value> {
    let all = yaml::documents(text).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    all.iter().map(|node| json(node)).collect()
}

/// What of `value` the schema does not allow, with the way to it. Knows the words of JSON Schema that `targets.json` uses, and no others.
fn faults(all: &Value, schema: &Value, value: &Value, way: &str, found: &mut Vec<String>) {
    let Value::Object(words) = schema else {
        panic!("{way}: {schema} is no schema");
    };
    for (word, says) in words {
        let list = || says.as_array().unwrap_or_else(|| panic!("{way}: {word}"));
        match word.as_str() {
            "$ref" => {
                let name = says.as_str().unwrap().trim_start_matches("#/$defs/");
                let other = all["$defs"].get(name);
                faults(
                    all,
                    other.unwrap_or_else(|| panic!("{name}")),
                    value,
                    way,
                    found,
                );
            }
            "type" => {
                let is = |kind: &Value| match kind.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "number" => value.is_number(),
                    other => panic!("{way}: type {other}"),
                };
                let right = says
                    .as_array()
                    .map_or_else(|| is(says), |l| l.iter().any(is));
                if !right {
                    found.push(format!("{way}: {value} is no {says}"));
                }
            }
            "enum" if !list().contains(value) => {
                found.push(format!("{way}: {value} is none of {says}"));
            }
            "oneOf" => {
                let fits = |one: &Value| {
                    let mut wrong = Vec::new();
                    faults(all, one, value, way, &mut wrong);
                    wrong.is_empty()
                };
                if !list().iter().any(fits) {
                    found.push(format!("{way}: {value} is none of {says}"));
                }
            }
            "required" => {
                for name in list().iter().filter_map(Value::as_str) {
                    if value.is_object() && value.get(name).is_none() {
                        found.push(format!("{way}: {name} is missing"));
                    }
                }
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    faults(all, says, item, &format!("{way}[{i}]"), found);
                }
            }
            "properties" | "additionalProperties" | "enum" => {}
            other => panic!("{way}: the word {other}"),
        }
    }
    let known = &schema["properties"];
    for (name, inner) in value.as_object().into_iter().flatten() {
        let way = format!("{way}.{name}");
        match (known.get(name), &schema["additionalProperties"]) {
            (Some(own), _) => faults(all, own, inner, &way, found),
            (None, Value::Bool(false)) => found.push(format!("{way}: there is no such field")),
            (None, Value::Object(_)) => {
                faults(all, &schema["additionalProperties"], inner, &way, found);
            }
            (None, _) => {}
        }
    }
}

/// Checks the YAML of an export; gives the kinds of its documents.
fn checked(name: &str, exported: &Exported, target: Target) -> BTreeSet<String> {
    let all = schemas();
    let mut kinds = BTreeSet::new();
    let manifests = exported.files.iter().filter(|f| f.name.ends_with(".yaml"));
    for file in manifests {
        for document in documents(&file.text) {
            let kind = match target {
                Target::LlmD => "LlmDValues",
                Target::TgiCompose | Target::TritonHelm => continue,
                _ => document["kind"].as_str().expect("a kind"),
            };
            let mut found = Vec::new();
            faults(&all, &all["$defs"][kind], &document, kind, &mut found);
            assert!(
                found.is_empty(),
                "{name} {}: {found:#?}\n{}",
                file.name,
                file.text
            );
            kinds.insert(kind.to_owned());
        }
    }
    kinds
}

fn scenarios() -> Vec<(String, Scenario)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<(String, Scenario)> = files
        .filter(|f| f.extension().is_some_and(|e| e == "toml"))
        .map(|f| {
            let name = f.file_stem().unwrap().to_string_lossy().into_owned();
            (name, Scenario::load(&f, &[]).unwrap())
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(all.len() > 20);
    all
}

#[test]
fn exports_of_all_shipped_scenarios_keep_to_the_schemas_of_their_targets() {
    let mut kinds = BTreeSet::new();
    for (name, scenario) in scenarios() {
        for target in Target::ALL {
            if let Ok(exported) = export(&scenario, *target) {
                kinds.append(&mut checked(&name, &exported, *target));
            }
        }
    }
    let every = schemas();
    let tops = every["$defs"].as_object().unwrap().iter();
    let mut tops: BTreeSet<String> = tops
        .filter(|(_, s)| !s["properties"]["kind"]["enum"].is_null())
        .map(|(name, _)| name.clone())
        .collect();
    tops.insert("LlmDValues".into());
    assert_eq!(
        kinds, tops,
        "kinds that were written, kinds that have a schema"
    );
}

#[test]
fn what_is_wrong_with_a_manifest_is_found() {
    let all = schemas();
    let good = "apiVersion: apps/v1\nkind: Deployment\nspec:\n  selector: {matchLabels: {app: a}}\n  template:\n    spec:\n      containers:\n      - {name: a, image: b}\n";
    let of = |text: &str| {
        let mut found = Vec::new();
        let document = &documents(text)[0];
        faults(&all, &all["$defs"]["Deployment"], document, "", &mut found);
        found.join("; ")
    };
    assert_eq!(of(good), "");
    for (from, to, says) in [
        (
            "spec:\n  selector",
            "spec:\n  replica: 2\n  selector",
            "replica: there is no such field",
        ),
        (
            "spec:\n  selector",
            "spec:\n  replicas: two\n  selector",
            "is no \"integer\"",
        ),
        ("name: a, ", "", "containers[0]: name is missing"),
        (
            "image: b",
            "image: b, env: [{name: X, value: 1}]",
            "1 is no \"string\"",
        ),
        ("apps/v1", "apps/v2", "is none of"),
    ] {
        let wrong = of(&good.replace(from, to));
        assert!(wrong.contains(says), "{to}: {wrong}");
    }
}

/// vLLM on a node of eight devices.
fn vllm(name: &str, model: &str, rest: &str) -> Scenario {
    let text = format!(
        "name = \"{name}\"\n[model]\nname = \"{model}\"\n[hardware]\ninstance = \"p5.48xlarge\"\n[engine]\nkind = \"vllm\"\nmax_model_len = 8192\n{rest}\n[[workload]]\narrival = {{ kind = \"poisson\", rate = \"1 req/s\" }}\nprompt = 100\noutput = 10\n[run]\nrequests = 10\n"
    );
    Scenario::parse(&text, "x.toml", &[]).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn text(s: &Scenario, target: Target) -> String {
    let exported = export(s, target).unwrap();
    checked(&s.name, &exported, target);
    exported.files.iter().map(|f| f.text.as_str()).collect()
}

#[test]
fn a_gated_chat_model_over_several_devices_gets_token_template_and_shared_memory() {
    let one = vllm("one", "llama-3.1-70b", "[layout]\ntp = 4\n");
    let k8s = text(&one, Target::Kubernetes);
    for part in [
        "--model=meta-llama/Llama-3.1-70B-Instruct",
        "secretKeyRef: {name: hf-token-secret, key: HF_TOKEN}",
        "# The model is gated",
        "{name: shm, mountPath: /dev/shm}",
        "emptyDir: {medium: Memory}",
        "--endpoint-type chat",
        "replicas: 1",
    ] {
        assert!(k8s.contains(part), "{part}\n{k8s}");
    }
    let open = text(&vllm("two", "qwen3-14b", ""), Target::Kubernetes);
    assert!(open.contains("key: HF_TOKEN, optional: true}"), "{open}");
    assert!(!open.contains("shm") && !open.contains("gated"), "{open}");
    let base = text(
        &vllm("three", "gpt-neox-20b", "[layout]\ntp = 2\n").clone(),
        Target::Vllm,
    );
    assert!(base.contains("--endpoint-type completions"), "{base}");
    let llm_d = text(&one, Target::LlmD);
    for part in ["authSecretName: hf-token-secret", "name: shm"] {
        assert!(llm_d.contains(part), "{part}\n{llm_d}");
    }
    // 141 GB of weights do not fit the chart's own 5 MiB.
    let size = llm_d.split("size: ").nth(1).unwrap().split("Gi").next();
    let size: f64 = size.unwrap().parse().unwrap();
    assert!((150.0..300.0).contains(&size), "{size}");
    assert!(text(&one, Target::Dynamo).contains("envFromSecret: hf-token-secret"));
}

/// How long a start may take by a manifest [s].
fn start(manifest: &str) -> f64 {
    let after = manifest.split("failureThreshold: ").nth(1).unwrap();
    let failures = after.split('\n').next().unwrap();
    failures.parse::<f64>().unwrap() * 10.0
}

#[test]
fn probes_give_a_larger_model_more_time_and_headless_workers_none() {
    let small = start(&text(&vllm("a", "llama-3.1-8b", ""), Target::Kubernetes));
    let large = vllm("b", "llama-3.1-405b", "[layout]\ntp = 8\npp = 2\n");
    let set = text(&large, Target::LeaderWorkerSet);
    assert!(
        small >= 600.0 && start(&set) > 2.0 * small,
        "{small} {}",
        start(&set)
    );
    assert_eq!(set.matches("readinessProbe").count(), 1, "{set}");
    assert!(set.contains("worker-index: \"0\""), "{set}");
    // The controller makes a headless Service under the set's own name.
    assert!(set.contains("name: b-serve\n"), "{set}");
}

#[test]
fn beside_an_autoscaler_no_number_of_replicas_is_written() {
    let scaler = "[layout]\nreplicas = 3\n[cluster]\nnode_group = [{ name = \"nodes\", min = 8, max = 8 }]\n[autoscaler]\nhpa = { minReplicas = 2, maxReplicas = 4, metrics = [{ metric = \"vllm:num_requests_waiting\", averageValue = 3 }] }\n";
    let s = vllm("c", "llama-3.1-8b", scaler);
    for target in [Target::Kubernetes, Target::LeaderWorkerSet] {
        let exported = export(&s, target).unwrap();
        let yaml = &exported.files[0].text;
        assert!(!yaml.contains("\n  replicas:"), "{yaml}");
        assert!(yaml.contains("minReplicas: 2"), "{yaml}");
        let told = exported.not_said.iter().any(|n| n.contains("replicas = 3"));
        assert!(told, "{:?}", exported.not_said);
    }
}

#[test]
fn objects_of_pools_have_names_of_their_own() {
    let long = "the-answer-to-a-planning-question-with-a-very-long-name-indeed";
    let pools = |a: &str, b: &str| format!("[[pool]]\nname = \"{a}\"\n[[pool]]\nname = \"{b}\"\n");
    for (a, b) in [("prefill", "decode"), ("a.b", "a-b"), ("A", "a")] {
        let s = vllm(long, "llama-3.1-8b", &pools(a, b));
        let exported = export(&s, Target::Kubernetes).unwrap();
        let files: BTreeSet<&str> = exported.files.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(files.len(), exported.files.len(), "{files:?}");
        let names: Vec<String> = (exported.files.iter())
            .filter(|f| f.name.ends_with(".yaml"))
            .map(|f| documents(&f.text)[0]["metadata"]["name"].to_string())
            .collect();
        assert!(names.len() == 2 && names[0] != names[1], "{names:?}");
        assert!(names.iter().all(|n| n.len() <= 63), "{names:?}");
    }
}
