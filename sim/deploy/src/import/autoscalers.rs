//! Autoscalers: HorizontalPodAutoscaler (autoscaling/v2) and KEDA's ScaledObject, as `[autoscaler]`.

use toml::{Table as Keys, Value};

use super::draft::{Draft, Origin, Scaler};
use super::promql;
use super::tree::{Found, Tree, join, sweep};
use crate::keys::Read::{Number, Switch, Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::place::Place;
use crate::report::Fate;
use crate::text::yaml::{Node, Value as Yaml};

/// HorizontalPodAutoscaler.
pub const HPA: Table = Table {
    kind: "hpa",
    title: "HorizontalPodAutoscaler (autoscaling/v2)",
    keys: &[
        says("kind", "what the document is", Text),
        says(
            "spec.minReplicas",
            "`autoscaler.hpa.minReplicas`, and `layout.replicas` where the workload says fewer or nothing",
            Whole,
        ),
        says("spec.maxReplicas", "`autoscaler.hpa.maxReplicas`", Whole),
        says(
            "spec.metrics[].type",
            "Pods, Object and External; of Resource and ContainerResource nothing is simulated",
            Text,
        ),
        says("spec.metrics[].pods*", "`autoscaler.hpa.metrics[]`", Text),
        says("spec.metrics[].object*", "the same", Text),
        says("spec.metrics[].external*", "the same", Text),
        not_modelled("spec.metrics[].resource*", NO_CPU),
        not_modelled("spec.metrics[].containerResource*", NO_CPU),
        says("spec.behavior*", "`autoscaler.hpa.behavior`", Text),
    ],
    idle: &[
        "apiVersion",
        "metadata.*",
        "status*",
        "spec.scaleTargetRef.*",
    ],
    idle_flags: &[],
};

const NO_CPU: &str = "CPU and memory of pods are not simulated";

/// ScaledObject.
pub const KEDA: Table = Table {
    kind: "keda",
    title: "KEDA ScaledObject",
    keys: &[
        says("kind", "what the document is", Text),
        says(
            "spec.minReplicaCount",
            "`autoscaler.keda.minReplicaCount`, and `layout.replicas` where the workload says fewer or nothing",
            Whole,
        ),
        says(
            "spec.maxReplicaCount",
            "`autoscaler.keda.maxReplicaCount`",
            Whole,
        ),
        says(
            "spec.idleReplicaCount",
            "`autoscaler.keda.idleReplicaCount`",
            Whole,
        ),
        says(
            "spec.pollingInterval",
            "`autoscaler.keda.pollingInterval`",
            Whole,
        ),
        says(
            "spec.cooldownPeriod",
            "`autoscaler.keda.cooldownPeriod`",
            Whole,
        ),
        says(
            "spec.initialCooldownPeriod",
            "`autoscaler.keda.initialCooldownPeriod`",
            Whole,
        ),
        says("spec.fallback*", "`autoscaler.keda.fallback`", Whole),
        says(
            "spec.triggers[].type",
            "prometheus and redis; others are not simulated",
            Text,
        ),
        says(
            "spec.triggers[].metadata.query",
            "the series, where the query is a sum of one: `sum(vllm:num_requests_waiting)`, `sum(rate(vllm:request_success_total[1m]))`",
            Text,
        ),
        says(
            "spec.triggers[].metadata.threshold",
            "`autoscaler.keda.triggers[].threshold`",
            Number,
        ),
        says(
            "spec.triggers[].metadata.listLength",
            "the same, of redis",
            Number,
        ),
        says(
            "spec.triggers[].metadata.activationThreshold",
            "`autoscaler.keda.triggers[].activationThreshold`",
            Number,
        ),
        says(
            "spec.triggers[].metadata.activationListLength",
            "the same, of redis",
            Number,
        ),
        says(
            "spec.triggers[].metricType",
            "`autoscaler.keda.triggers[].metricType`",
            Text,
        ),
        says(
            "spec.triggers[].useCachedMetrics",
            "`autoscaler.keda.triggers[].useCachedMetrics`",
            Switch,
        ),
        says(
            "spec.advanced.horizontalPodAutoscalerConfig.behavior*",
            "`autoscaler.keda.behavior`",
            Text,
        ),
    ],
    idle: &[
        "apiVersion",
        "metadata.*",
        "status*",
        "spec.scaleTargetRef.*",
        "spec.triggers[].metadata*",
        "spec.triggers[].name",
        "spec.triggers[].authenticationRef*",
        "spec.advanced*",
    ],
    idle_flags: &[],
};

/// AIBrix' PodAutoscaler.
pub const AIBRIX: Table = Table {
    kind: "podautoscaler",
    title: "AIBrix' PodAutoscaler (autoscaling.aibrix.ai/v1alpha1)",
    keys: &[
        says("kind", "what the document is", Text),
        says(
            "spec.minReplicas",
            "`autoscaler.hpa.minReplicas`, and `layout.replicas` where the workload says fewer or nothing",
            Whole,
        ),
        says("spec.maxReplicas", "`autoscaler.hpa.maxReplicas`", Whole),
        says(
            "spec.scalingStrategy",
            "HPA: a HorizontalPodAutoscaler of the same metric; of KPA and APA the minimum counts",
            Text,
        ),
        says(
            "spec.metricsSources[].targetMetric",
            "`autoscaler.hpa.metrics[].metric`",
            Text,
        ),
        says(
            "spec.metricsSources[].targetValue",
            "`autoscaler.hpa.metrics[].averageValue`",
            Number,
        ),
    ],
    idle: &[
        "apiVersion",
        "metadata*",
        "status*",
        "spec.scaleTargetRef.*",
        "spec.metricsSources[].*",
        "spec.subTargetSelector*",
    ],
    idle_flags: &[],
};

/// Imports a PodAutoscaler: with the strategy HPA it makes a HorizontalPodAutoscaler.
pub fn aibrix(tree: Tree<'_>, draft: &mut Draft) {
    least(tree, "minReplicas", draft);
    let mut scaler = Scaler::new("hpa");
    for key in ["minReplicas", "maxReplicas"] {
        scaler.whole(tree, &["spec", key], draft);
    }
    // Zero is for strategies that wake up.
    scaler
        .keys
        .retain(|(key, n, _)| *key != "minReplicas" || n.as_integer() != Some(0));
    let strategy = tree.text("", &["spec", "scalingStrategy"]);
    let is_hpa = strategy.as_ref().is_some_and(|(name, _)| name == "HPA");
    if let Some((name, origin)) = strategy {
        match is_hpa {
            true => draft.used(&origin, "a HorizontalPodAutoscaler"),
            false => draft.fate(
                &origin,
                Fate::NotModelled,
                format!(
                    "AIBrix' {} is not simulated: replicas stay as many as the run starts with",
                    crate::place::shown(&name)
                ),
            ),
        }
    }
    let list = tree.node.at(&["spec", "metricsSources"]);
    let mut metrics = Vec::new();
    for item in list.map_or(&[][..], Node::items) {
        let text = |key: &str| item.get(key).and_then(|n| n.text());
        let (Some(name), Some(value)) = (text("targetMetric"), text("targetValue")) else {
            continue;
        };
        for (key, raw) in [("targetMetric", name), ("targetValue", value)] {
            let line = item.entry(key).map_or(item.line, |e| e.line);
            let path = format!("spec.metricsSources[].{key}");
            scaler
                .leaves
                .push(Origin::new(Place::new(tree.file, line), path, raw));
        }
        let mut keys = Keys::new();
        keys.insert("type".into(), "Pods".into());
        keys.insert("metric".into(), series(name).into());
        keys.insert("averageValue".into(), scalar(value));
        metrics.push(keys);
    }
    if is_hpa {
        scaler.list(
            "metrics",
            tree.find("", &["spec", "metricsSources"]),
            metrics,
        );
    }
    keep(scaler, "metrics", draft);
    sweep(tree, &[(String::new(), &AIBRIX)], draft);
}

impl Scaler {
    fn new(section: &'static str) -> Scaler {
        Scaler {
            section,
            ..Scaler::default()
        }
    }

    fn whole(&mut self, tree: Tree<'_>, keys: &[&'static str], draft: &mut Draft) {
        let Some(key) = keys.last() else { return };
        if let Some((n, origin)) = tree.whole("", keys, draft) {
            self.leaves.push(origin.clone());
            self.keys.push((key, n.into(), origin));
        }
    }

    /// A part of the document that has the same keys as the scenario's.
    fn same(&mut self, tree: Tree<'_>, keys: &[&'static str]) {
        let Some((key, found)) = keys.last().zip(tree.find("", keys)) else {
            return;
        };
        let path = found.origin.key.clone();
        leaves(
            tree,
            found.node,
            &path,
            found.origin.place.line,
            &mut self.leaves,
        );
        self.keys.push((key, value(found.node), found.origin));
    }

    /// A list of tables that was read item by item.
    fn list(&mut self, key: &'static str, found: Option<Found<'_>>, items: Vec<Keys>) {
        if let Some(found) = found.filter(|_| !items.is_empty()) {
            let items = items.into_iter().map(Value::Table).collect();
            self.keys.push((key, Value::Array(items), found.origin));
        }
    }
}

/// The origins of all values below `path`.
fn leaves(tree: Tree<'_>, node: &Node, path: &str, line: u32, out: &mut Vec<Origin>) {
    match &node.value {
        Yaml::Map(entries) if !entries.is_empty() => {
            for e in entries {
                leaves(tree, &e.value, &join(path, &e.key), e.line, out);
            }
        }
        Yaml::List(items) if !items.is_empty() => {
            for item in items {
                leaves(tree, item, &format!("{path}[]"), item.line, out);
            }
        }
        _ => out.push(Origin::new(
            Place::new(tree.file, line),
            path,
            node.text().unwrap_or(""),
        )),
    }
}

/// YAML as TOML.
fn value(node: &Node) -> Value {
    match &node.value {
        Yaml::Map(entries) => {
            let all = entries.iter().filter(|e| !e.value.is_null());
            Value::Table(all.map(|e| (e.key.clone(), value(&e.value))).collect())
        }
        Yaml::List(items) => Value::Array(items.iter().map(|i| value(i)).collect()),
        _ => scalar(node.text().unwrap_or("")),
    }
}

fn scalar(text: &str) -> Value {
    if let Ok(n) = text.parse::<i64>() {
        return n.into();
    }
    match (text, text.parse::<f64>()) {
        ("true", _) => true.into(),
        ("false", _) => false.into(),
        (_, Ok(x)) if x.is_finite() => x.into(),
        _ => text.into(),
    }
}

/// Imports a HorizontalPodAutoscaler.
pub fn hpa(tree: Tree<'_>, draft: &mut Draft) {
    least(tree, "minReplicas", draft);
    let mut scaler = Scaler::new("hpa");
    for key in ["minReplicas", "maxReplicas"] {
        scaler.whole(tree, &["spec", key], draft);
    }
    let list = tree.node.at(&["spec", "metrics"]);
    let mut metrics = Vec::new();
    for item in list.map_or(&[][..], Node::items) {
        let mut seen = Vec::new();
        leaves(tree, item, "spec.metrics[]", item.line, &mut seen);
        match metric(item) {
            Ok(keys) => {
                metrics.push(keys);
                scaler.leaves.append(&mut seen);
            }
            Err(why) => {
                for origin in &seen {
                    draft.fate(origin, Fate::NotModelled, why);
                }
            }
        }
    }
    scaler.list("metrics", tree.find("", &["spec", "metrics"]), metrics);
    scaler.same(tree, &["spec", "behavior"]);
    keep(scaler, "metrics", draft);
    sweep(tree, &[(String::new(), &HPA)], draft);
}

/// One entry of an HPA's `metrics`.
fn metric(item: &Node) -> Result<Keys, &'static str> {
    let kind = item.get("type").and_then(|t| t.text()).unwrap_or("");
    let part = match kind {
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return Err(NO_CPU),
    };
    let name = item.at(&[part, "metric", "name"]).and_then(Node::text);
    let mut keys = Keys::new();
    keys.insert("type".into(), kind.into());
    keys.insert("metric".into(), series(name.unwrap_or("")).into());
    for key in ["averageValue", "value"] {
        if let Some(target) = item.at(&[part, "target", key]).and_then(Node::text) {
            keys.insert(key.into(), scalar(target));
        }
    }
    Ok(keys)
}

/// A series' name as its exporter has it: prometheus-adapter's rules put `_` for vLLM's `:`, since names of the custom metrics API take none, and Google's
/// adapter has `prometheus.googleapis.com|NAME|gauge`.
fn series(name: &str) -> String {
    let parts = name
        .strip_prefix("prometheus.googleapis.com")
        .map(|r| r.trim_start_matches(['|', '/']));
    let name = parts.map_or(name, |rest| rest.split(['|', '/']).next().unwrap_or(rest));
    match name.strip_prefix("vllm_") {
        Some(rest) => format!("vllm:{rest}"),
        None => name.to_owned(),
    }
}

/// Imports a ScaledObject.
pub fn keda(tree: Tree<'_>, draft: &mut Draft) {
    least(tree, "minReplicaCount", draft);
    let mut scaler = Scaler::new("keda");
    for key in [
        "minReplicaCount",
        "maxReplicaCount",
        "idleReplicaCount",
        "pollingInterval",
        "cooldownPeriod",
        "initialCooldownPeriod",
    ] {
        scaler.whole(tree, &["spec", key], draft);
    }
    let list = tree.node.at(&["spec", "triggers"]);
    let mut triggers = Vec::new();
    for item in list.map_or(&[][..], Node::items) {
        let mut seen = Vec::new();
        leaves(tree, item, "spec.triggers[]", item.line, &mut seen);
        seen.retain(|o| {
            KEDA.find(&o.key)
                .is_some_and(|k| k.meaning != crate::keys::Meaning::Idle)
        });
        match trigger(item) {
            Ok(keys) => {
                triggers.push(keys);
                scaler.leaves.append(&mut seen);
            }
            Err(why) => {
                for origin in &seen {
                    draft.fate(origin, Fate::NotModelled, why.clone());
                }
            }
        }
    }
    scaler.list("triggers", tree.find("", &["spec", "triggers"]), triggers);
    let fallback = ["failureThreshold", "replicas"]
        .map(|key| tree.whole("", &["spec", "fallback", key], draft));
    if let [Some((failures, origin)), Some((replicas, other))] = fallback {
        let mut keys = Keys::new();
        keys.insert("failureThreshold".into(), failures.into());
        keys.insert("replicas".into(), replicas.into());
        scaler.keys.push(("fallback", keys.into(), origin.clone()));
        scaler.leaves.extend([origin, other]);
    }
    scaler.same(
        tree,
        &[
            "spec",
            "advanced",
            "horizontalPodAutoscalerConfig",
            "behavior",
        ],
    );
    keep(scaler, "triggers", draft);
    sweep(tree, &[(String::new(), &KEDA)], draft);
}

/// One of a ScaledObject's `triggers`.
fn trigger(item: &Node) -> Result<Keys, String> {
    let kind = item.get("type").and_then(|t| t.text()).unwrap_or("");
    let of = |key: &str| item.at(&["metadata", key]).and_then(Node::text);
    let mut keys = Keys::new();
    keys.insert("type".into(), kind.into());
    let (threshold, activation) = match kind {
        "prometheus" => {
            let query = promql::read(of("query").unwrap_or(""))?;
            keys.insert("metric".into(), series(&query.series).into());
            if let Some(rule) = query.rule {
                keys.insert("rule".into(), rule.into());
            }
            if let Some(window) = query.window_s {
                keys.insert("window".into(), format!("{window} s").into());
            }
            ("threshold", "activationThreshold")
        }
        "redis" => ("listLength", "activationListLength"),
        other => {
            let other = crate::place::shown(other);
            return Err(format!(
                "of KEDA's scalers prometheus and redis are simulated, not `{other}`"
            ));
        }
    };
    for (from, to) in [
        (threshold, "threshold"),
        (activation, "activationThreshold"),
    ] {
        if let Some(text) = of(from) {
            let number: f64 = (text.trim().parse())
                .map_err(|_| format!("{from} is no number: `{}`", crate::place::shown(text)))?;
            keys.insert(to.into(), number.into());
        }
    }
    for key in ["metricType", "useCachedMetrics"] {
        if let Some(text) = item.get(key).and_then(|n| n.text()) {
            keys.insert(key.into(), scalar(text));
        }
    }
    Ok(keys)
}

fn least(tree: Tree<'_>, key: &str, draft: &mut Draft) {
    if let Some(found) = tree.whole("", &["spec", key], draft) {
        draft.facts.least_replicas = Some(found);
    }
}

/// Keeps an autoscaler that has something to look at until the scenario around it is known.
fn keep(scaler: Scaler, needs: &str, draft: &mut Draft) {
    if !scaler.keys.iter().any(|(key, ..)| *key == needs) {
        let why = format!(
            "replicas stay as many as the run starts with: none of its {needs} is simulated"
        );
        for origin in &scaler.leaves {
            draft.fate(origin, Fate::NotModelled, why.clone());
        }
        return;
    }
    if let Some(other) = &draft.facts.scaler
        && let (Some((.., from)), Some((.., origin))) = (other.keys.first(), scaler.keys.first())
    {
        let message = format!(
            "a second autoscaler beside that of {}; import one deployment at a time",
            from.place
        );
        draft.fault(origin.clone().fault(message));
        return;
    }
    draft.facts.scaler = Some(scaler);
}
