//! Parts of `[cluster]`: how kube-scheduler scores nodes, and what clients meet while no replica is ready.

use super::Scenario;
use super::cluster_file::{
    AutoscalerFile, ClusterFile, DefaultingTypeFile, GatewayKind, SchedulerFile,
    ScoringStrategyFile, TriggerFile, TriggerType,
};
use super::error::ScenarioError;
use super::numbers::{nanos, secs};
use crate::kube::spec::{HoldSpec, SchedulerSpec, ScoringStrategy};

type Result<T> = std::result::Result<T, ScenarioError>;

/// Most that a weight may be: that of a plugin, and of a resource (`MaxWeight` of the scheduler is 100).
const MAX_WEIGHT: u32 = 100;
/// `timeoutSeconds` of a Knative revision (`revision-timeout-seconds` of config-defaults) [s].
const KNATIVE_TIMEOUT: f64 = 300.0;
/// `breakerQueueDepth` of Knative's activator: requests that it holds.
const KNATIVE_QUEUE: u32 = 10_000;

/// Fills in who stands in front of the replicas, and its limits; what the autoscalers look at tells of a list or of flow control.
pub(super) fn fill_gateway(file: &mut ClusterFile, autoscalers: &[&AutoscalerFile]) {
    let looks_at = |is: fn(&TriggerFile) -> bool| {
        let triggers = autoscalers.iter().filter_map(|a| a.keda.as_ref());
        triggers.flat_map(|k| &k.triggers).any(is)
    };
    let has_list = file.max_outstanding.is_some()
        || autoscalers.iter().any(|a| a.on_demand.is_some())
        || looks_at(|t| t.kind == Some(TriggerType::Redis));
    let has_flow_control = autoscalers.iter().any(|a| a.epp.is_some())
        || looks_at(|t| (t.metric.as_ref()).is_some_and(|m| m.contains("flow_control")));
    let kind = *file.gateway.get_or_insert(if has_list {
        GatewayKind::Queue
    } else if has_flow_control {
        GatewayKind::FlowControl
    } else {
        GatewayKind::Service
    });
    if kind == GatewayKind::Knative {
        file.hold_timeout.get_or_insert(secs(KNATIVE_TIMEOUT));
        file.hold_limit.get_or_insert(KNATIVE_QUEUE);
    }
}

impl Scenario {
    pub(super) fn scheduler(&self, file: Option<&SchedulerFile>) -> Result<SchedulerSpec> {
        let mut spec = SchedulerSpec::default();
        let Some(file) = file else { return Ok(spec) };
        let own = file.resources.map(|r| [r.cpu, r.memory, r.accelerators]);
        for (key, weight) in [
            ("weight", file.weight),
            ("resources", own.and_then(|all| all.into_iter().max())),
        ] {
            if weight.is_some_and(|w| w > MAX_WEIGHT) {
                let message = format!("weights are from 0 to {MAX_WEIGHT}");
                return self.wrong(&format!("cluster.scheduler.{key}"), message);
            }
        }
        if let Some([cpu, memory, accelerators]) = own.map(|all| all.map(i64::from)) {
            (spec.cpu, spec.memory, spec.accelerators) = (cpu, memory, accelerators);
        }
        spec.strategy = match file.scoring_strategy.unwrap_or_default() {
            ScoringStrategyFile::LeastAllocated => ScoringStrategy::LeastAllocated,
            ScoringStrategyFile::MostAllocated => ScoringStrategy::MostAllocated,
        };
        spec.weight = file.weight.map_or(spec.weight, i64::from);
        spec.spreads = file.defaulting_type != Some(DefaultingTypeFile::List);
        Ok(spec)
    }

    /// What happens to requests that come while no replica is ready; `None`: they are refused.
    pub(super) fn hold(&self, file: &ClusterFile) -> Result<Option<HoldSpec>> {
        let is_held = file.gateway.unwrap_or_default() != GatewayKind::Service;
        for (key, is_given) in [
            ("hold_timeout", file.hold_timeout.is_some()),
            ("hold_limit", file.hold_limit.is_some()),
        ] {
            if is_given && !is_held {
                let message = "a Service holds no requests; name in `gateway` who does: knative, keda_http, flow_control or queue";
                return self.wrong(&format!("cluster.{key}"), message);
            }
        }
        Ok(is_held.then(|| HoldSpec {
            timeout: file.hold_timeout.map(|t| nanos(Some(t))),
            limit: file.hold_limit.map(u64::from),
        }))
    }
}
