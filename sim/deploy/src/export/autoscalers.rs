//! The autoscaler of a scenario as an object to apply: HorizontalPodAutoscaler, or KEDA's ScaledObject.

use serde::Serialize;
use serde_json::{Map, Value, json};
use sim::scenario::Scenario;

use super::shared::{Exported, label};

/// A document for the workload of `kind`, which begins with its separator; empty without an autoscaler.
pub fn document(s: &Scenario, api_version: &str, kind: &str, out: &mut Exported) -> String {
    cluster(s, out);
    let Some(autoscaler) = s.cluster.as_ref().and_then(|c| c.autoscaler.as_ref()) else {
        return String::new();
    };
    let name = label(s);
    let target = json!({"apiVersion": api_version, "kind": kind, "name": name});
    let (api, kind, spec) = if let Some(hpa) = &autoscaler.hpa {
        (
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            self::hpa(&written(hpa), target, out),
        )
    } else if let Some(keda) = &autoscaler.keda {
        (
            "keda.sh/v1alpha1",
            "ScaledObject",
            self::keda(&written(keda), target, out),
        )
    } else {
        return String::new();
    };
    let mut text =
        format!("---\napiVersion: {api}\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n");
    for (key, value) in spec {
        // JSON is YAML.
        text += &format!("  {key}: {value}\n");
    }
    text
}

/// The fewest replicas of the autoscaler that [`document`] writes; none without one.
pub fn least(s: &Scenario) -> Option<u32> {
    let autoscaler = s.cluster.as_ref()?.autoscaler.as_ref()?;
    let hpa = autoscaler.hpa.as_ref();
    let keda = autoscaler.keda.as_ref();
    let least = hpa
        .map(|h| h.min_replicas.unwrap_or(1))
        .or(keda.map(|k| k.min_replica_count.unwrap_or(0)))?;
    u32::try_from(least).ok()
}

/// Says that a target writes no autoscaler.
pub fn none(s: &Scenario, out: &mut Exported) {
    if let Some(c) = &s.cluster {
        cluster(s, out);
        if c.autoscaler
            .as_ref()
            .is_some_and(|a| a.hpa.is_some() || a.keda.is_some())
        {
            out.cannot("autoscaler: export to k8s or lws for the object");
        }
    }
}

/// What all pools share, and no object of one of them says.
pub fn shared(s: &Scenario, out: &mut Exported) {
    let Some(c) = &s.cluster else { return };
    if (c.autoscaler.as_ref()).is_some_and(|a| a.cluster_autoscaler.is_some()) {
        out.cannot("autoscaler.cluster_autoscaler: they are flags of the Cluster Autoscaler");
    }
    if !c.faults.is_empty() || !c.changes.is_empty() {
        out.cannot("fault, change: what happens in a run is the simulation's");
    }
}

/// What of a cluster no object of a deployment says.
fn cluster(s: &Scenario, out: &mut Exported) {
    let Some(c) = &s.cluster else { return };
    out.cannot("cluster: nodes, start-up times and probes are the simulation's");
    if c.autoscaler
        .as_ref()
        .is_some_and(|a| a.cluster_autoscaler.is_some())
    {
        out.cannot("autoscaler.cluster_autoscaler: they are flags of the Cluster Autoscaler");
    }
    if !c.faults.is_empty() || !c.changes.is_empty() {
        out.cannot("fault, change: what happens in a run is the simulation's");
    }
}

/// A section with its keys as files have them.
fn written(section: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(section) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

type Spec = Vec<(String, Value)>;

fn take(from: &Map<String, Value>, keys: &[&str], spec: &mut Spec) {
    for key in keys {
        if let Some(value) = from.get(*key) {
            spec.push(((*key).to_owned(), value.clone()));
        }
    }
}

fn flags(from: &Map<String, Value>, at: &str, out: &mut Exported) {
    if from.contains_key("flags") {
        out.cannot(format!("{at}.flags: they are kube-controller-manager's"));
    }
}

fn hpa(from: &Map<String, Value>, target: Value, out: &mut Exported) -> Spec {
    let mut spec = vec![("scaleTargetRef".to_owned(), target)];
    take(from, &["minReplicas", "maxReplicas"], &mut spec);
    let empty = Vec::new();
    let metrics = from
        .get("metrics")
        .and_then(Value::as_array)
        .unwrap_or(&empty);
    let all: Vec<Value> = metrics.iter().map(|m| metric(m, out)).collect();
    spec.push(("metrics".to_owned(), all.into()));
    take(from, &["behavior"], &mut spec);
    flags(from, "autoscaler.hpa", out);
    spec
}

/// One entry of `metrics`.
fn metric(m: &Value, out: &mut Exported) -> Value {
    let kind = m["type"].as_str().unwrap_or("Pods");
    if !m["rule"].is_null() || !m["window"].is_null() {
        out.cannot("autoscaler.hpa.metrics[].rule: it is a recording rule of Prometheus; name what it records");
    }
    let name = json!({"name": m["metric"]});
    let mut target = Map::new();
    for (key, of) in [("averageValue", "AverageValue"), ("value", "Value")] {
        if let Some(value) = m.get(key) {
            target.insert("type".into(), of.into());
            target.insert(key.into(), value.clone());
        }
    }
    let mut source = Map::new();
    source.insert("metric".into(), name);
    source.insert("target".into(), target.into());
    if kind == "Object" {
        let object = json!({"apiVersion": "v1", "kind": "Service", "name": "SERVICE"});
        source.insert("describedObject".into(), object);
        out.cannot(
            "autoscaler.hpa.metrics[]: name the object that the metric is of in place of SERVICE",
        );
    }
    json!({"type": kind, kind.to_ascii_lowercase(): source})
}

fn keda(from: &Map<String, Value>, target: Value, out: &mut Exported) -> Spec {
    let mut spec = vec![("scaleTargetRef".to_owned(), target)];
    let plain = [
        "minReplicaCount",
        "maxReplicaCount",
        "idleReplicaCount",
        "pollingInterval",
        "cooldownPeriod",
        "initialCooldownPeriod",
        "fallback",
    ];
    take(from, &plain, &mut spec);
    if let Some(behavior) = from.get("behavior") {
        let advanced = json!({"horizontalPodAutoscalerConfig": {"behavior": behavior}});
        spec.push(("advanced".to_owned(), advanced));
    }
    let empty = Vec::new();
    let triggers = from
        .get("triggers")
        .and_then(Value::as_array)
        .unwrap_or(&empty);
    let all: Vec<Value> = triggers.iter().map(trigger).collect();
    spec.push(("triggers".to_owned(), all.into()));
    out.cannot("autoscaler.keda.triggers[]: write the address of your Prometheus or Redis in place of ADDRESS");
    flags(from, "autoscaler.keda", out);
    spec
}

/// One of `triggers`; values of `metadata` are text.
fn trigger(t: &Value) -> Value {
    let text = |key: &str| {
        t.get(key)
            .map(|v| v.as_f64().map_or_else(|| v.to_string(), |n| n.to_string()))
    };
    let redis = t["type"] == "redis";
    let (threshold, activation) = if redis {
        ("listLength", "activationListLength")
    } else {
        ("threshold", "activationThreshold")
    };
    let mut metadata = Map::new();
    let address = if redis { "address" } else { "serverAddress" };
    metadata.insert(address.into(), "ADDRESS".into());
    if let Some(series) = t["metric"].as_str() {
        let inner = match (t["rule"].as_str(), t["window"].as_str()) {
            (Some(rule), window) => format!("{rule}({series}[{}])", range(window)),
            (None, _) => series.to_owned(),
        };
        metadata.insert("query".into(), format!("sum({inner})").into());
    }
    for (to, from) in [
        (threshold, "threshold"),
        (activation, "activationThreshold"),
    ] {
        if let Some(value) = text(from) {
            metadata.insert(to.into(), value.into());
        }
    }
    let mut out = Map::new();
    out.insert("type".into(), t["type"].clone());
    out.insert("metadata".into(), metadata.into());
    for key in ["metricType", "useCachedMetrics"] {
        if let Some(value) = t.get(key) {
            out.insert(key.into(), value.clone());
        }
    }
    out.into()
}

/// A window such as `90 s` as PromQL has it.
fn range(window: Option<&str>) -> String {
    let seconds = window.and_then(|w| w.parse::<hwmodels::units::Secs>().ok());
    format!("{}s", seconds.map_or(60.0, |s| s.secs()).round().max(1.0))
}
