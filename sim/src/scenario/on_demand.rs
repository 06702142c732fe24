//! `[autoscaler.on_demand]`: models loaded on demand, with every default filled in and checked.

use super::Scenario;
use super::cluster_file::AutoscalerFile;
use super::error::ScenarioError;
use super::numbers::{nanos, secs};
use super::on_demand_file::OnDemandFile;
use crate::cluster::pools::Role;
use crate::control::on_demand::{ModelSpec, OnDemandSpec};
use crate::kernel::time::SimDuration;
use crate::kube::spec::{ClusterSpec, OnDemandUse};

type Result<T> = std::result::Result<T, ScenarioError>;

const AT: &str = "autoscaler.on_demand";

/// Fills in defaults.
pub(super) fn fill(file: &mut OnDemandFile) {
    file.global_ttl.get_or_insert(0);
    file.evict.get_or_insert_default();
    file.min_residency.get_or_insert(secs(0.0));
    for m in &mut file.models {
        m.ttl.get_or_insert(-1);
        m.priority.get_or_insert(0);
        m.persistent.get_or_insert(false);
        m.replicas.get_or_insert(1);
    }
}

impl Scenario {
    /// Models loaded on demand, where `file` says so.
    pub(super) fn on_demand(
        &self,
        file: &AutoscalerFile,
        spec: &ClusterSpec,
    ) -> Result<Option<OnDemandUse>> {
        let Some(own) = &file.on_demand else {
            return Ok(None);
        };
        if self.pools.len() < 2 {
            return self.wrong(
                AT,
                "swaps the models of several pools; write a [[pool]] for each",
            );
        }
        for (i, pool) in self.pools.iter().enumerate() {
            self.may_swap(i, spec)?;
            if let Some(j) = (0..i).find(|j| self.pools[*j].is_beside(pool)) {
                let message = format!(
                    "pools `{}` and `{}` take the same requests, so none says which of them is asked for",
                    self.pools[j].name, pool.name
                );
                return self.wrong(AT, message);
            }
        }
        let ttl = |secs: u32| (secs > 0).then(|| SimDuration(u64::from(secs) * 1_000_000_000));
        let global = ttl(own.global_ttl.unwrap_or(0));
        let mut models: Vec<ModelSpec> = (spec.deployments.iter())
            .map(|d| ModelSpec {
                ttl: global,
                priority: 0,
                is_persistent: false,
                most: 1,
                gpus: d.pod.requests.gpus,
            })
            .collect();
        let mut named: Vec<usize> = Vec::new();
        for (k, m) in own.models.iter().enumerate() {
            let at = |key: &str| format!("{AT}.models[{k}].{key}");
            let Some(i) = self.pools.iter().position(|p| p.name == m.pool) else {
                let known: Vec<&str> = self.pools.iter().map(|p| p.name.as_str()).collect();
                let message = super::schema::unknown("pool", &m.pool, &known);
                return self.wrong(&at("pool"), message);
            };
            if named.contains(&i) {
                return self.wrong(&at("pool"), format!("`{}` is there twice", m.pool));
            }
            named.push(i);
            let own = &mut models[i];
            own.ttl = match m.ttl.unwrap_or(-1) {
                -1 => global,
                n => match u32::try_from(n) {
                    Ok(n) => ttl(n),
                    Err(_) => {
                        let message = format!("must be -1 (globalTTL), 0 (never) or more, got {n}");
                        return self.wrong(&at("ttl"), message);
                    }
                },
            };
            own.priority = m.priority.unwrap_or(0);
            own.is_persistent = m.persistent.unwrap_or(false);
            own.most = m.replicas.unwrap_or(1) as usize;
            if own.most == 0 {
                return self.wrong(&at("replicas"), "must be at least 1");
            }
        }
        Ok(Some(OnDemandUse {
            spec: OnDemandSpec {
                models,
                evict: own.evict.unwrap_or_default(),
                min_residency: nanos(own.min_residency),
            },
            deployments: (0..self.pools.len()).collect(),
        }))
    }

    /// Whether pool `i` can be loaded on demand.
    fn may_swap(&self, i: usize, spec: &ClusterSpec) -> Result<()> {
        let (pool, d) = (&self.pools[i], &spec.deployments[i]);
        if pool.role != Role::Both {
            let message = format!("pool `{}` does a part of a request alone", pool.name);
            return self.wrong(AT, message);
        }
        if d.pod.size > 1 {
            let message = format!(
                "a replica of pool `{}` has {} pods; models that are swapped fit on a node",
                pool.name, d.pod.size
            );
            return self.wrong(AT, message);
        }
        let scaled = spec.scalers.iter().any(|s| s.deployments.contains(&i));
        if scaled || d.hpa.is_some() || d.keda.is_some() {
            let message = format!(
                "loads pool `{}`, which has an autoscaler of its own; leave one of them out",
                pool.name
            );
            return self.wrong(&format!("pool[{i}].autoscaler"), message);
        }
        Ok(())
    }
}
