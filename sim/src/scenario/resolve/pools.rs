//! `[[pool]]` and `[kv_transfer]`.

use hwmodels::EngineKind;
use hwmodels::units::BytesPerSec;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::document::join;
use super::super::error::{Issue, ScenarioError};
use super::super::file::{LayoutFile, ScenarioFile};
use super::super::pool_cluster::PoolOnCluster;
use super::super::pools::{PoolChoice, TransferChoice, refused};
use super::super::pools_file::{KvTransferFile, PoolFile};
use super::super::{Scenario, schema};
use super::{Checker, MAX_REPLICAS, Result};
use crate::cluster::pools::{FirstToken, Role};

/// A table of a file, as far as it is read apart.
pub(super) type Table<'a> = Spanned<DeTable<'a>>;

/// Takes `[pool.engine]` out of each pool, since its keys depend on its `kind`.
pub(super) fn take_engines<'a>(root: &mut DeTable<'a>) -> Vec<Option<Table<'a>>> {
    let Some(DeValue::Array(items)) = root.get_mut("pool").map(Spanned::get_mut) else {
        return Vec::new();
    };
    let engine = |item: &mut Spanned<DeValue<'a>>| {
        let DeValue::Table(pool) = item.get_mut() else {
            return None;
        };
        let value = pool.remove("engine")?;
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(t) => Some(Spanned::new(span, t)),
            _ => None,
        }
    };
    items.iter_mut().map(engine).collect()
}

/// `own` laid over `base`, key by key, unless it is of another kind.
fn laid_over<'a>(base: &Table<'a>, own: &Option<Table<'a>>) -> Table<'a> {
    let Some(own) = own else {
        return base.clone();
    };
    let kind = |t: &Table<'a>| t.get_ref().get("kind").map(|k| k.get_ref().clone());
    let same = match (kind(base), kind(own)) {
        (_, None) => true,
        (Some(a), Some(b)) => a.as_str() == b.as_str(),
        (None, Some(_)) => false,
    };
    if !same {
        return own.clone();
    }
    let mut all = base.get_ref().clone();
    for (key, value) in own.get_ref() {
        all.remove(key.get_ref().as_ref());
        all.insert(key.clone(), value.clone());
    }
    Spanned::new(own.span(), all)
}

impl Checker<'_, '_> {
    /// Fills in the pools of a scenario that is resolved otherwise.
    pub(super) fn add_pools(
        &self,
        scenario: &mut Scenario,
        file: &ScenarioFile,
        base: &Table<'_>,
        engines: &[Option<Table<'_>>],
    ) -> Result<()> {
        if file.pool.is_empty() {
            if file.kv_transfer.is_some() {
                return self.fail(
                    "kv_transfer",
                    "goes from a [[pool]] with role = \"prefill\" to one with role = \"decode\", and there are no pools",
                );
            }
            return Ok(());
        }
        if scenario.fitted.is_some() {
            return self.fail(
                "pool",
                "does not go together with hardware.step_profile, which stands for a whole endpoint",
            );
        }
        if file.layout.as_ref().is_some_and(|l| l.replicas.is_some()) {
            return self.fail(
                "layout.replicas",
                "with pools the replicas are those of each [[pool]]; write replicas there",
            );
        }
        if file.pool.len() > 1000 {
            return self.fail(
                "pool",
                format!("must be at most 1000, got {}", file.pool.len()),
            );
        }
        let mut total = 0u32;
        for (i, p) in file.pool.iter().enumerate() {
            let engine = laid_over(base, engines.get(i).unwrap_or(&None));
            let pool = self
                .pool(p, i, scenario, file, engine)
                .map_err(|e| self.at_pool(i, &e))?;
            total = total.saturating_add(pool.replicas);
            scenario.pools.push(pool);
        }
        let least = u32::from(file.cluster.is_none());
        scenario.replicas = self.whole(total, least, MAX_REPLICAS, "pool")?;
        scenario.kv_transfer = self.kv_transfer(scenario, &file.kv_transfer)?;
        match refused(scenario) {
            Some((path, message)) => self.fail(&path, message),
            None => Ok(()),
        }
    }

    fn pool(
        &self,
        p: &PoolFile,
        i: usize,
        scenario: &Scenario,
        file: &ScenarioFile,
        engine: Table<'_>,
    ) -> Result<PoolChoice> {
        let kind = (engine.get_ref().get("kind"))
            .and_then(|k| k.get_ref().as_str().map(schema::kind_named))
            .unwrap_or(None)
            .unwrap_or(EngineKind::VllmV1);
        let engine = self.engine(kind, engine)?;
        if let Some(h) = &p.hardware
            && h.step_profile.is_some()
        {
            return self.fail(
                "hardware.step_profile",
                "stands for a whole endpoint; a pool needs an instance or an accelerator",
            );
        }
        let step = match &p.step {
            Some(step) => Some(self.step(step)?),
            None if p.model.is_none() && p.hardware.is_none() => scenario.step,
            None => None,
        };
        let (model, hardware) = if step.is_some() {
            if engine.common.kv_blocks.is_none() {
                return self.fail(
                    "step",
                    "without model and hardware there is no memory plan; give engine.kv_blocks",
                );
            }
            (None, None)
        } else {
            let model = match &p.model {
                Some(m) => Some(self.model(m)?),
                None => scenario.model.clone(),
            };
            let hardware = match &p.hardware {
                Some(h) => Some(self.hardware(h)?),
                None => scenario.hardware.clone(),
            };
            (model, hardware)
        };
        let own = p.layout.clone().unwrap_or_default();
        if own.replicas.is_some() {
            return self.fail(
                "layout.replicas",
                "write replicas beside the pool's name, not in its layout",
            );
        }
        let common = file.layout.clone().unwrap_or_default();
        let layout = LayoutFile {
            tp: own.tp.or(common.tp),
            pp: own.pp.or(common.pp),
            dp: own.dp.or(common.dp),
            ep: own.ep.or(common.ep),
            replicas: None,
        };
        let name = self.text(p.name.clone().unwrap_or(format!("pool-{i}")), "name")?;
        let is_estimated = model.is_some() && hardware.is_some();
        Ok(PoolChoice {
            on_cluster: self.on_cluster(p, file, (&name, kind), is_estimated)?,
            name,
            role: p.role.unwrap_or_default(),
            replicas: self.whole(
                p.replicas.unwrap_or(1),
                u32::from(file.cluster.is_none()),
                MAX_REPLICAS,
                "replicas",
            )?,
            min_prompt: p.min_prompt,
            max_prompt: p.max_prompt,
            router: p.router.unwrap_or(scenario.router.policy),
            model,
            hardware,
            step,
            layout: self.layout(&layout, kind)?,
            engine,
        })
    }

    /// What of the cluster is the pool's own.
    fn on_cluster(
        &self,
        p: &PoolFile,
        file: &ScenarioFile,
        of: (&str, EngineKind),
        is_estimated: bool,
    ) -> Result<Option<PoolOnCluster>> {
        let own = p.clone();
        if file.cluster.is_none() {
            for (key, is_given) in [
                ("pod", own.pod.is_some()),
                ("autoscaler", own.autoscaler.is_some()),
                ("node_groups", own.node_groups.is_some()),
            ] {
                if is_given {
                    let message = "needs a [cluster] with at least one [[cluster.node_group]]";
                    return self.fail(key, message);
                }
            }
            return Ok(None);
        }
        if let Some(a) = &own.autoscaler {
            for (key, is_given) in [
                ("cluster_autoscaler", a.cluster_autoscaler.is_some()),
                ("karpenter", a.karpenter.is_some()),
                ("on_demand", a.on_demand.is_some()),
            ] {
                if is_given {
                    let message = match key {
                        "on_demand" => "is of all pools together; write it below [autoscaler]",
                        _ => "scales nodes, which pools share; write it below [autoscaler]",
                    };
                    return self.fail(&join("autoscaler", key), message);
                }
            }
        }
        let own = (own.pod, own.autoscaler, own.node_groups);
        PoolOnCluster::filled(file, of, is_estimated, own)
            .map(Some)
            .or_else(|e| self.fail("pod", e.to_string()))
    }

    /// An issue of pool `i`, at the pool's own key where it has one.
    fn at_pool(&self, i: usize, e: &ScenarioError) -> ScenarioError {
        let issues = e.issues().iter().map(|issue| {
            let own = join(&format!("pool[{i}]"), &issue.path);
            if self.document.has(&own) {
                self.document.issue(&own, issue.message.clone())
            } else {
                Issue {
                    message: format!("pool[{i}]: {}", issue.message),
                    ..issue.clone()
                }
            }
        });
        ScenarioError::from_issues(issues.collect())
    }

    /// Which side gives the client its first token: SGLang's servers of decodes pass on what came with the KV, the others do not.
    fn first_token(&self, scenario: &Scenario, given: Option<FirstToken>) -> Result<FirstToken> {
        let parted = |p: &&PoolChoice| p.role != Role::Both;
        let kind = (scenario.pools.iter().find(parted)).map(|p| p.engine.params.kind());
        let relays = kind == Some(EngineKind::Sglang);
        match given {
            None if relays => Ok(FirstToken::Relay),
            None => Ok(FirstToken::default()),
            Some(first) if relays == (first == FirstToken::Relay) => Ok(first),
            Some(_) if relays => self.fail(
                "kv_transfer.first_token",
                "must be \"relay\" under SGLang: its prefill server makes the first token, and its decode server gives it to the client",
            ),
            Some(_) => self.fail(
                "kv_transfer.first_token",
                "\"relay\" is SGLang's way; write \"prefill\" or \"decode\"",
            ),
        }
    }

    fn kv_transfer(
        &self,
        scenario: &Scenario,
        file: &Option<KvTransferFile>,
    ) -> Result<Option<TransferChoice>> {
        if scenario.pools.iter().all(|p| p.role == Role::Both) {
            return match file {
                Some(_) => self.fail(
                    "kv_transfer",
                    "goes from a [[pool]] with role = \"prefill\" to one with role = \"decode\", and no pool has such a role",
                ),
                None => Ok(None),
            };
        }
        let file = file.clone().unwrap_or_default();
        let positive = |value: Option<BytesPerSec>, key: &str| match value {
            Some(b) if b.bytes_per_sec() <= 0.0 => {
                self.fail(&join("kv_transfer", key), "must be above zero")
            }
            other => Ok(other),
        };
        Ok(Some(TransferChoice {
            bandwidth: positive(file.bandwidth, "bandwidth")?,
            latency: (file.latency)
                .map(|t| self.secs(t, "kv_transfer.latency"))
                .transpose()?,
            fabric_bandwidth: positive(file.fabric_bandwidth, "fabric_bandwidth")?,
            bytes_per_token: (file.bytes_per_token)
                .map(|b| self.number(b, 1.0, 1e9, "kv_transfer.bytes_per_token"))
                .transpose()?,
            layerwise: file.layerwise.unwrap_or(false),
            first_token: self.first_token(scenario, file.first_token)?,
        }))
    }
}
