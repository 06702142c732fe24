//! The list of every key of a scenario file, for `docs/scenario.md`, written from the schema.

use std::fmt::Write as _;

use serde_json::Value;

use super::schema::schema;

/// Every section with its keys, as Markdown: what stands between the markers of `docs/scenario.md`.
pub fn markdown() -> String {
    let root = schema();
    let mut out = String::new();
    let sections = [
        ("At the top", ""),
        ("[model]", "/$defs/ModelFile"),
        ("[hardware]", "/$defs/HardwareFile"),
        ("[layout]", "/$defs/LayoutFile"),
        ("[step]", "/$defs/StepFile"),
        ("[[pool]]", "/$defs/PoolFile"),
        ("[kv_transfer]", "/$defs/KvTransferFile"),
        ("[router]", "/$defs/RouterFile"),
        ("[router.retries]", "/$defs/GatewayRetriesFile"),
        ("[router.outlier_detection]", "/$defs/OutlierFile"),
        ("[[workload]]", "/$defs/StreamFile"),
        ("workload.arrival", "/$defs/ArrivalFile"),
        ("workload.arrival.steps", "/$defs/RateStepFile"),
        ("workload.arrival.columns", "/$defs/TraceColumns"),
        (
            "workload.prompt, workload.output, sessions.turns",
            "/$defs/LengthTable",
        ),
        ("workload.lengths", "/$defs/PairsFile"),
        ("workload.prefix", "/$defs/PrefixFile"),
        ("workload.sessions", "/$defs/SessionsFile"),
        ("workload.cancel", "/$defs/CancelFile"),
        ("workload.retries", "/$defs/RetriesFile"),
        ("workload.sampling", "/$defs/SamplingFile"),
        ("[run]", "/$defs/RunFile"),
        ("[slo]", "/$defs/SloFile"),
        ("[cluster]", "/$defs/ClusterFile"),
        ("[cluster.scheduler]", "/$defs/SchedulerFile"),
        ("cluster.scheduler.resources", "/$defs/ResourceWeightsFile"),
        ("[[cluster.node_group]]", "/$defs/NodeGroupFile"),
        ("[cluster.pod]", "/$defs/PodFile"),
        ("[cluster.actuation]", "/$defs/ActuationFile"),
        ("cluster.actuation.launcher", "/$defs/LauncherFile"),
        (
            "cluster.actuation.nodeInstanceBudget",
            "/$defs/InstanceBudgetFile",
        ),
        (
            "Durations of [[cluster.node_group]], [cluster.pod] and mtbf",
            "/$defs/DelayTable",
        ),
        ("[autoscaler]", "/$defs/AutoscalerFile"),
        ("[autoscaler.metrics]", "/$defs/MetricPathFile"),
        ("[autoscaler.hpa]", "/$defs/HpaFile"),
        ("autoscaler.hpa.metrics", "/$defs/HpaMetricFile"),
        ("behavior", "/$defs/BehaviorFile"),
        (
            "behavior.scaleUp, behavior.scaleDown",
            "/$defs/ScalingRulesFile",
        ),
        ("policies", "/$defs/ScalingPolicyFile"),
        ("flags", "/$defs/HpaFlagsFile"),
        ("[autoscaler.keda]", "/$defs/KedaFile"),
        ("autoscaler.keda.triggers", "/$defs/TriggerFile"),
        ("autoscaler.keda.fallback", "/$defs/FallbackFile"),
        (
            "[autoscaler.cluster_autoscaler]",
            "/$defs/ClusterAutoscalerFile",
        ),
        ("[autoscaler.karpenter]", "/$defs/KarpenterFile"),
        ("autoscaler.karpenter.limits", "/$defs/LimitsFile"),
        ("autoscaler.karpenter.disruption", "/$defs/DisruptionFile"),
        (
            "autoscaler.karpenter.disruption.budgets",
            "/$defs/BudgetFile",
        ),
        ("[autoscaler.sagemaker]", "/$defs/SageMakerFile"),
        (
            "autoscaler.sagemaker.TargetTrackingScaling",
            "/$defs/TargetTrackingFile",
        ),
        ("autoscaler.sagemaker.StepScaling", "/$defs/StepScalingFile"),
        ("autoscaler.sagemaker.StepScaling.Alarm", "/$defs/AlarmFile"),
        (
            "autoscaler.sagemaker.StepScaling.StepAdjustments",
            "/$defs/StepFile2",
        ),
        (
            "autoscaler.sagemaker.ScheduledActions",
            "/$defs/ScheduledActionFile",
        ),
        (
            "autoscaler.sagemaker.PredictiveScaling",
            "/$defs/PredictiveFile",
        ),
        ("[autoscaler.wva]", "/$defs/WvaFile"),
        ("autoscaler.wva.config", "/$defs/WvaSpec"),
        ("[autoscaler.epp]", "/$defs/EppFile"),
        ("[autoscaler.dynamo]", "/$defs/PlannerConfig"),
        ("[autoscaler.on_demand]", "/$defs/OnDemandFile"),
        ("autoscaler.on_demand.models", "/$defs/OnDemandModelFile"),
        ("[[fault]]", "/$defs/FaultFile"),
        ("[[change]]", "/$defs/ChangeFile"),
        ("engine.attention_dp_config", "/$defs/AttentionDpConfig"),
    ];
    for (title, pointer) in sections {
        if let Some(s) = root.pointer(pointer) {
            section(&mut out, title, s, root);
        }
    }
    for engine in root
        .pointer("/properties/engine/oneOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let kind = super::schema::kind_of(engine);
        section(
            &mut out,
            &format!("[engine] with kind = \"{}\"", kind.unwrap_or("")),
            engine,
            root,
        );
    }
    out
}

fn section(out: &mut String, title: &str, schema: &Value, root: &Value) {
    let _ = writeln!(
        out,
        "### {title}\n\n{}\n",
        one_line(schema.get("description"))
    );
    let _ = writeln!(out, "| key | value | meaning |\n|---|---|---|");
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, sub) in properties.into_iter().flatten() {
        let _ = writeln!(
            out,
            "| `{key}` | {} | {} |",
            value_of(sub, root),
            one_line(sub.get("description")).replace('|', "\\|")
        );
    }
    out.push('\n');
}

fn one_line(text: Option<&Value>) -> String {
    let text = text.and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What may stand behind the key, in a few words.
fn value_of(schema: &Value, root: &Value) -> String {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return match root.pointer(target.trim_start_matches('#')) {
            Some(s) => value_of(s, root),
            None => "value".into(),
        };
    }
    if let Some(c) = schema.get("const").and_then(Value::as_str) {
        return format!("\"{c}\"");
    }
    if let Some(example) = schema.pointer("/examples/0").and_then(Value::as_str) {
        return format!("text like \"{example}\"");
    }
    if let Some(names) = schema.get("enum").and_then(Value::as_array) {
        let names: Vec<String> = names.iter().filter_map(Value::as_str).map(quoted).collect();
        return names.join(", ");
    }
    if let Some(options) = schema
        .get("anyOf")
        .or(schema.get("oneOf"))
        .and_then(Value::as_array)
    {
        let mut parts: Vec<String> = options
            .iter()
            .filter(|o| o.get("type").and_then(Value::as_str) != Some("null"))
            .map(|o| value_of(o, root))
            .collect();
        parts.dedup();
        return parts.join(", ");
    }
    let kind = match schema.get("type") {
        Some(Value::String(s)) => s.as_str(),
        Some(Value::Array(a)) => a
            .iter()
            .filter_map(Value::as_str)
            .find(|t| *t != "null")
            .unwrap_or(""),
        _ => "",
    };
    match kind {
        "integer" => "whole number".into(),
        "number" => "number".into(),
        "boolean" => "true or false".into(),
        "string" => "text".into(),
        "array" => match schema.get("items") {
            Some(items) => format!("list of: {}", value_of(items, root)),
            None => "list".into(),
        },
        "object" => "table".into(),
        _ => "value".into(),
    }
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}
