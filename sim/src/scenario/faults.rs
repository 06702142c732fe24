//! `[[fault]]` and `[[change]]`: what breaks and what operators do, checked.

use super::Scenario;
use super::cluster_file::{
    ChangeFile, DelayFile, FaultFile, FaultKindFile, LinkFile, SpotHandlerFile,
};
use super::error::ScenarioError;
use super::numbers::{MAX_NODES, nanos, secs};
use crate::kernel::time::SimTime;
use crate::kube::delay::Delay;
use crate::kube::spec::{
    ChangeKind, ChangeSpec, ClusterSpec, FaultKind, FaultSpec, ScalerSpec, ScalerUse, Slows,
    SpotHandler, Target, When,
};

type Result<T> = std::result::Result<T, ScenarioError>;

/// Fills in defaults.
pub(super) fn fill(fault: &mut FaultFile) {
    match fault.kind {
        FaultKindFile::Replica => {}
        FaultKindFile::Node => {
            fault.noticed_after.get_or_insert(secs(340.0));
        }
        FaultKindFile::Spot => {
            fault.notice.get_or_insert(secs(120.0));
            match fault.handler.get_or_insert_default() {
                SpotHandlerFile::Drain => {}
                SpotHandlerFile::GracefulShutdown => {
                    fault.shutdown_grace.get_or_insert(secs(15.0));
                }
                SpotHandlerFile::None => {
                    fault.noticed_after.get_or_insert(secs(100.0));
                }
            }
        }
        FaultKindFile::Straggler => {
            fault.factor.get_or_insert(1.5);
        }
        FaultKindFile::DegradedLink => {
            fault.share.get_or_insert(0.25);
            if fault.link == Some(LinkFile::Kv) {
                fault.duration.get_or_insert(secs(600.0));
            }
        }
        FaultKindFile::RouterPartition => {
            fault.duration.get_or_insert(secs(60.0));
            fault.connect_timeout.get_or_insert(secs(5.0));
        }
        FaultKindFile::ThermalThrottling => {
            fault.factor.get_or_insert(1.5);
            fault.duration.get_or_insert(secs(600.0));
        }
        FaultKindFile::CrashLoop => {
            fault.crashes_after.get_or_insert(secs(20.0));
            fault.duration.get_or_insert(secs(600.0));
        }
        FaultKindFile::SlowStorage => {
            fault.share.get_or_insert(0.25);
            fault.duration.get_or_insert(secs(600.0));
        }
        FaultKindFile::MetricsOutage | FaultKindFile::NoCapacity => {
            fault.duration.get_or_insert(secs(600.0));
        }
    }
}

impl Scenario {
    fn group_named(&self, name: &Option<String>, path: &str, spec: &ClusterSpec) -> Result<usize> {
        let Some(name) = name else { return Ok(0) };
        match spec.groups.iter().position(|g| g.name == *name) {
            Some(i) => Ok(i),
            None => {
                let known: Vec<&str> = spec.groups.iter().map(|g| g.name.as_str()).collect();
                let message = super::schema::unknown("node group", name, &known);
                self.wrong(&format!("{path}.node_group"), message)
            }
        }
    }

    /// Share of a bandwidth that is left.
    fn share(&self, fault: &FaultFile, path: &str) -> Result<f64> {
        let share = fault.share.unwrap_or(0.25);
        match (0.001..=1.0).contains(&share) {
            true => Ok(share),
            false => {
                let message = format!("must be from 0.001 to 1, got {share}");
                self.wrong(&format!("{path}.share"), message)
            }
        }
    }

    pub(super) fn fault(
        &self,
        fault: &FaultFile,
        path: &str,
        spec: &ClusterSpec,
    ) -> Result<FaultSpec> {
        let at_key = |key: &str| format!("{path}.{key}");
        self.has_its_keys(fault, path)?;
        let kind = match fault.kind {
            FaultKindFile::Replica => FaultKind::Replica,
            FaultKindFile::Node => FaultKind::Node {
                noticed_after: nanos(fault.noticed_after),
            },
            FaultKindFile::Spot => FaultKind::Spot {
                notice: nanos(fault.notice),
                handler: match fault.handler.unwrap_or_default() {
                    SpotHandlerFile::Drain => SpotHandler::Drain,
                    SpotHandlerFile::GracefulShutdown => SpotHandler::GracefulShutdown {
                        grace: nanos(fault.shutdown_grace),
                    },
                    SpotHandlerFile::None => SpotHandler::None {
                        noticed_after: nanos(fault.noticed_after),
                    },
                },
            },
            FaultKindFile::Straggler | FaultKindFile::ThermalThrottling => {
                let factor = fault.factor.unwrap_or(1.5);
                if !(0.1..=100.0).contains(&factor) {
                    return self.wrong(
                        &at_key("factor"),
                        format!("must be from 0.1 to 100, got {factor}"),
                    );
                }
                FaultKind::Straggler {
                    factor,
                    duration: fault.duration.map(|d| nanos(Some(d))),
                    cause: match fault.kind {
                        FaultKindFile::ThermalThrottling => "thermal throttling",
                        _ => "straggler",
                    },
                    slows: Slows::Steps,
                }
            }
            FaultKindFile::DegradedLink if fault.link == Some(LinkFile::Kv) => FaultKind::KvLink {
                share: self.share(fault, path)?,
                duration: nanos(fault.duration),
            },
            FaultKindFile::DegradedLink => FaultKind::Straggler {
                factor: 1.0 / self.share(fault, path)?,
                duration: fault.duration.map(|d| nanos(Some(d))),
                cause: "degraded link",
                slows: Slows::Communication,
            },
            FaultKindFile::RouterPartition => FaultKind::Partition {
                duration: nanos(fault.duration),
                connect_timeout: nanos(fault.connect_timeout),
            },
            FaultKindFile::CrashLoop => FaultKind::CrashLoop {
                after: nanos(fault.crashes_after),
                duration: nanos(fault.duration),
            },
            FaultKindFile::SlowStorage => FaultKind::SlowStorage {
                share: self.share(fault, path)?,
                duration: nanos(fault.duration),
            },
            FaultKindFile::MetricsOutage => FaultKind::MetricsOutage {
                duration: nanos(fault.duration),
            },
            FaultKindFile::NoCapacity => FaultKind::NoCapacity {
                duration: nanos(fault.duration),
            },
        };
        if fault.kind == FaultKindFile::Spot && spec.groups.iter().all(|g| !g.is_spot) {
            return self.wrong(path, "no node group has spot = true");
        }
        let when = match (fault.at, &fault.mtbf) {
            (Some(at), None) => When::At {
                at: SimTime::from_secs(at.secs()),
                target: match (fault.all, fault.target) {
                    (Some(true), _) => Target::All,
                    (_, Some(t)) => Target::Nth(t as usize),
                    (_, None) => Target::Any,
                },
            },
            (None, Some(DelayFile::Fixed(mean))) => {
                When::After(Delay::Exponential { mean: mean.secs() })
            }
            (None, Some(_)) => When::After(self.delay(&fault.mtbf, &at_key("mtbf"))?),
            _ => {
                return self.wrong(
                    path,
                    "needs `at` or `mtbf`, and not both; write e.g. at = \"10 min\"",
                );
            }
        };
        let deployment = self.hit(fault, path, &kind)?;
        Ok(FaultSpec {
            kind,
            when,
            deployment,
            groups: self.groups_hit(fault, path, spec)?,
        })
    }

    /// Refuses keys that do nothing for this kind of fault.
    fn has_its_keys(&self, fault: &FaultFile, path: &str) -> Result<()> {
        use FaultKindFile::*;
        let kind = fault.kind;
        let is_kv = fault.link == Some(LinkFile::Kv);
        let of_nodes = match kind {
            Node | Spot | Straggler | ThermalThrottling => true,
            DegradedLink => !is_kv,
            _ => false,
        };
        let of_replicas = matches!(kind, Replica | CrashLoop | RouterPartition);
        let lasts = !matches!(kind, Replica | Node | Spot);
        let is_slow = matches!(kind, Straggler | ThermalThrottling);
        const NODES: &str = "what hits nodes, and no_capacity";
        // Each key: whether it is given, whether this kind has it, and which kinds do.
        let keys = [
            (
                "target",
                fault.target.is_some(),
                of_nodes || of_replicas,
                "what hits nodes or replicas",
            ),
            (
                "link",
                fault.link.is_some(),
                kind == DegradedLink,
                "degraded_link",
            ),
            ("notice", fault.notice.is_some(), kind == Spot, "spot"),
            ("handler", fault.handler.is_some(), kind == Spot, "spot"),
            (
                "shutdown_grace",
                fault.shutdown_grace.is_some(),
                fault.handler == Some(SpotHandlerFile::GracefulShutdown),
                "spot with handler = \"graceful_shutdown\"",
            ),
            (
                "noticed_after",
                fault.noticed_after.is_some(),
                kind == Node || fault.handler == Some(SpotHandlerFile::None),
                "node, and spot with handler = \"none\"",
            ),
            (
                "factor",
                fault.factor.is_some(),
                is_slow,
                "straggler and thermal_throttling",
            ),
            (
                "share",
                fault.share.is_some(),
                matches!(kind, SlowStorage | DegradedLink),
                "slow_storage and degraded_link",
            ),
            (
                "crashes_after",
                fault.crashes_after.is_some(),
                kind == CrashLoop,
                "crash_loop",
            ),
            (
                "connect_timeout",
                fault.connect_timeout.is_some(),
                kind == RouterPartition,
                "router_partition",
            ),
            (
                "duration",
                fault.duration.is_some(),
                lasts,
                "all but replica, node and spot",
            ),
            (
                "node_group",
                fault.node_group.is_some(),
                of_nodes || kind == NoCapacity,
                NODES,
            ),
            (
                "zone",
                fault.zone.is_some(),
                of_nodes || kind == NoCapacity,
                NODES,
            ),
        ];
        let wrong = keys
            .iter()
            .find(|(_, is_given, is_its, _)| *is_given && !is_its);
        if let Some((key, _, _, kinds)) = wrong {
            let message =
                format!("does nothing for this kind of fault; leave it out: it is of {kinds}");
            return self.wrong(&format!("{path}.{key}"), message);
        }
        Ok(())
    }

    /// The node groups that a fault hits; `None`: any.
    fn groups_hit(
        &self,
        fault: &FaultFile,
        path: &str,
        spec: &ClusterSpec,
    ) -> Result<Option<Vec<usize>>> {
        if let Some(zone) = &fault.zone {
            if fault.node_group.is_some() {
                let message = "stands in place of node_group; leave one of them out";
                return self.wrong(&format!("{path}.zone"), message);
            }
            let groups = spec.groups.iter().enumerate();
            let its: Vec<usize> = (groups.filter(|(_, g)| g.zone == *zone))
                .map(|(i, _)| i)
                .collect();
            if its.is_empty() {
                let known: Vec<&str> = spec.groups.iter().map(|g| g.zone.as_str()).collect();
                let message = super::schema::unknown("zone of a node group", zone, &known);
                return self.wrong(&format!("{path}.zone"), message);
            }
            return Ok(Some(its));
        }
        match (&fault.node_group, fault.kind) {
            (None, kind) if kind != FaultKindFile::NoCapacity => Ok(None),
            (name, _) => Ok(Some(vec![self.group_named(name, path, spec)?])),
        }
    }

    /// The pool with this name, by its index.
    fn pool_named(&self, name: &str, path: &str) -> Result<usize> {
        match self.pools.iter().position(|p| p.name == name) {
            Some(i) => Ok(i),
            None => {
                let known: Vec<&str> = self.pools.iter().map(|p| p.name.as_str()).collect();
                let message = match known.is_empty() {
                    true => "there are no pools; leave it out".to_owned(),
                    false => super::schema::unknown("pool", name, &known),
                };
                self.wrong(&format!("{path}.pool"), message)
            }
        }
    }

    /// The deployment that a fault hits, where it names one.
    fn hit(&self, fault: &FaultFile, path: &str, kind: &FaultKind) -> Result<Option<usize>> {
        let at_key = |key: &str| format!("{path}.{key}");
        if matches!(kind, FaultKind::KvLink { .. }) && self.kv_transfer.is_none() {
            let message = "no KV goes between pools: no pool has role = \"prefill\"";
            return self.wrong(&at_key("link"), message);
        }
        if fault.all == Some(true)
            && (fault.target.is_some() || fault.at.is_none() || kind.is_of_all())
        {
            let message = "goes with `at` and without `target`, for what hits replicas or nodes";
            return self.wrong(&at_key("all"), message);
        }
        let Some(name) = &fault.pool else {
            return Ok(None);
        };
        let of_nodes = matches!(
            kind,
            FaultKind::Node { .. } | FaultKind::Spot { .. } | FaultKind::Straggler { .. }
        );
        if of_nodes && fault.at.is_none() {
            let message = "needs `at`: which pods a node will hold is not known when it comes";
            return self.wrong(&at_key("pool"), message);
        }
        if kind.is_of_all() && !matches!(kind, FaultKind::KvLink { .. }) {
            return self.wrong(&at_key("pool"), "hits the cluster as a whole; leave it out");
        }
        self.pool_named(name, path).map(Some)
    }

    /// The deployment that a change is of.
    fn changed(&self, change: &ChangeFile, path: &str) -> Result<usize> {
        match (&change.pool, self.pools.is_empty()) {
            (Some(name), _) => self.pool_named(name, path),
            (None, true) => Ok(0),
            (None, false) => {
                let names: Vec<&str> = self.pools.iter().map(|p| p.name.as_str()).collect();
                let message = format!("`pool` is missing: say which of {}", names.join(", "));
                self.wrong(path, message)
            }
        }
    }

    pub(super) fn change(
        &self,
        change: &ChangeFile,
        path: &str,
        spec: &ClusterSpec,
    ) -> Result<ChangeSpec> {
        let Some(at) = change.at else {
            return self.wrong(path, "`at` is missing; write e.g. at = \"10 min\"");
        };
        let is_of_bounds = change.min_replicas.is_some() || change.max_replicas.is_some();
        let is_of_group = change.min.is_some() || change.max.is_some() || change.nodes.is_some();
        if change.restart == Some(true) {
            if change.replicas.is_some() || is_of_bounds || is_of_group {
                return self.wrong(path, "changes one thing: restart, or sizes");
            }
            return Ok(ChangeSpec {
                at: SimTime::from_secs(at.secs()),
                what: ChangeKind::Restart(self.changed(change, path)?),
            });
        }
        let what = match (change.replicas, is_of_bounds, is_of_group) {
            (Some(n), false, false) => ChangeKind::Replicas {
                deployment: self.changed(change, path)?,
                replicas: i32::try_from(n).unwrap_or(i32::MAX),
            },
            (None, true, false) => {
                let d = self.changed(change, path)?;
                let is_its = |s: &&ScalerUse| {
                    s.deployments == [d] && matches!(s.spec, ScalerSpec::SageMaker(_))
                };
                let is_endpoint = spec.scalers.iter().any(|s| is_its(&s));
                let its = &spec.deployments[d];
                if its.hpa.is_none() && its.keda.is_none() && !is_endpoint {
                    return self.wrong(path, "there is no [autoscaler.hpa], keda, epp, wva or sagemaker whose bounds it could change");
                }
                ChangeKind::Bounds {
                    deployment: d,
                    min: change.min_replicas,
                    max: change.max_replicas,
                }
            }
            (None, false, true) => {
                let group = self.group_named(&change.node_group, path, spec)?;
                let size = |n: Option<u32>| n.map(|n| n.min(MAX_NODES) as usize);
                if let (Some(min), Some(max)) = (change.min, change.max)
                    && max < min
                {
                    return self.wrong(
                        &format!("{path}.max"),
                        format!("must be at least min ({min}), got {max}"),
                    );
                }
                ChangeKind::Group {
                    group,
                    min: size(change.min),
                    max: size(change.max),
                    nodes: size(change.nodes),
                }
            }
            _ => {
                return self.wrong(
                    path,
                    "changes one thing: replicas, or minReplicas and maxReplicas, or a node group's min, max and nodes",
                );
            }
        };
        Ok(ChangeSpec {
            at: SimTime::from_secs(at.secs()),
            what,
        })
    }
}
