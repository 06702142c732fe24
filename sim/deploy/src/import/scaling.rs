//! Where an imported autoscaler comes to stand: in `[autoscaler]`, if the simulator can follow it, else in the report.

use hwmodels::catalog::Catalog;
use sim::scenario::{Scenario, ScenarioError};
use toml::Value;

use super::draft::{Draft, Scaler};
use crate::report::Fate;

/// Puts the autoscaler into the scenario.
pub fn place(draft: &mut Draft) {
    let Some(scaler) = draft.facts.scaler.take() else {
        return;
    };
    if draft.has_faults() {
        return;
    }
    match with(draft, &scaler) {
        Ok(whole) => *draft = whole,
        Err(why) => {
            for origin in &scaler.leaves {
                let why = format!("replicas stay as many as the run starts with: {why}");
                draft.fate(origin, Fate::NotModelled, why);
            }
        }
    }
}

/// The scenario with the autoscaler, or why the simulator cannot follow it.
fn with(draft: &Draft, scaler: &Scaler) -> Result<Draft, String> {
    let mut whole = draft.clone();
    for (key, value, origin) in &scaler.keys {
        let path = format!("autoscaler.{}.{key}", scaler.section);
        whole.set(&path, value.clone(), origin);
    }
    for origin in &scaler.leaves {
        whole.used(origin, format!("[autoscaler.{}]", scaler.section));
    }
    let most = (scaler.keys.iter())
        .find(|(key, ..)| key.starts_with("maxReplica"))
        .and_then(|(_, n, _)| n.as_integer())
        .unwrap_or(KEDA_MOST);
    let why = "nodes for as many replicas as there may be, always there; where nodes come and go write min, max and [autoscaler.cluster_autoscaler]";
    whole.assume("cluster.node_group", nodes(draft, most), why);
    let scenario = Scenario::parse(&whole.text(&[]), "import.toml", &[]);
    let cannot = scenario.map(|s| s.build().err()).unwrap_or_else(Some);
    match cannot.and_then(|e| of_autoscaler(&e)) {
        Some(why) => Err(why),
        None => Ok(whole),
    }
}

/// `maxReplicaCount` where a ScaledObject says none.
const KEDA_MOST: i64 = 100;

/// A group of nodes for `replicas` replicas.
fn nodes(draft: &Draft, replicas: i64) -> Value {
    let catalog = Catalog::builtin();
    let instance = draft.get("hardware.instance").and_then(Value::as_str);
    let of_instance = instance.and_then(|name| {
        let i = catalog.instance(name).ok()?;
        Some(i64::from(
            i.ranks(catalog.accelerator(&i.accelerator).ok()?),
        ))
    });
    let per_node = of_instance
        .unwrap_or_else(|| draft.whole("hardware.count", 1))
        .max(1);
    let ranks = ["layout.tp", "layout.pp", "layout.dp"]
        .iter()
        .fold(1i64, |all, key| all.saturating_mul(draft.whole(key, 1)))
        .max(1);
    let n = match per_node / ranks {
        0 => replicas.saturating_mul((ranks - 1) / per_node + 1),
        several => (replicas.max(1) - 1) / several + 1,
    };
    let mut group = toml::Table::new();
    group.insert("name".into(), "nodes".into());
    group.insert("min".into(), n.max(1).into());
    group.insert("max".into(), n.max(1).into());
    Value::Array(vec![group.into()])
}

/// What of an error is about the autoscaler or its cluster.
fn of_autoscaler(e: &ScenarioError) -> Option<String> {
    let about = |path: &str| path.starts_with("autoscaler") || path.starts_with("cluster");
    let issue = e.issues().iter().find(|i| about(&i.path))?;
    Some(format!("{}: {}", issue.path, issue.message))
}
