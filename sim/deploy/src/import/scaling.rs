//! Where an imported autoscaler comes to stand: in `[autoscaler]`, if the simulator can follow it, else in the report.

use hwmodels::catalog::Catalog;
use sim::scenario::{Scenario, ScenarioError};
use toml::Value;

use super::draft::{Draft, Origin, Scaler};
use super::pools::Pool;
use crate::report::Fate;

/// Tells what becomes of keys of pods where nothing starts or ends any.
fn without_cluster(facts: Vec<(&'static str, Value, Origin)>, draft: &mut Draft) {
    for (key, value, origin) in facts {
        let why = format!(
            "no pod starts or ends in this scenario; with a [cluster] it is cluster.pod.{key} = {value}"
        );
        draft.fate(&origin, Fate::NoEffect, why);
    }
}

/// Puts the autoscaler into the scenario.
pub fn place(draft: &mut Draft) {
    let pod = std::mem::take(&mut draft.facts.pod);
    let scaler = draft.facts.scaler.take().filter(|_| !draft.has_faults());
    let Some(scaler) = scaler else {
        return without_cluster(pod, draft);
    };
    draft.facts.pod.clone_from(&pod);
    match with(draft, &scaler) {
        Ok(whole) => *draft = whole,
        Err(why) => {
            for origin in &scaler.leaves {
                let why = format!("replicas stay as many as the run starts with: {why}");
                draft.fate(origin, Fate::NotModelled, why);
            }
            without_cluster(pod, draft);
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
    for (key, value, origin) in &draft.facts.pod {
        whole.set(&format!("cluster.pod.{key}"), value.clone(), origin);
    }
    let (_, n) = nodes(draft, most(Some(scaler), KEDA_MOST));
    let groups = Value::Array(vec![group("nodes", None, n)]);
    whole.assume("cluster.node_group", groups, WHY_NODES);
    let scenario = Scenario::parse(&whole.text(&[]), "import.toml", &[]);
    let cannot = scenario.map(|s| s.build().err()).unwrap_or_else(Some);
    match cannot.and_then(|e| of_autoscaler(&e)) {
        Some(why) => Err(why),
        None => Ok(whole),
    }
}

const WHY_NODES: &str = "nodes for as many replicas as there may be, always there; where nodes come and go write min, max and [autoscaler.cluster_autoscaler]";

/// `maxReplicaCount` where a ScaledObject says none.
const KEDA_MOST: i64 = 100;

/// Nodes for `replicas` replicas, and what they are.
fn nodes(draft: &Draft, replicas: i64) -> (Option<String>, i64) {
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
    (instance.map(str::to_owned), n.max(1))
}

/// A group of `n` nodes, always there.
fn group(name: &str, instance: Option<&str>, n: i64) -> Value {
    let mut group = toml::Table::new();
    group.insert("name".into(), name.into());
    if let Some(instance) = instance {
        group.insert("instance".into(), instance.into());
    }
    group.insert("min".into(), n.into());
    group.insert("max".into(), n.into());
    group.into()
}

/// The largest size that an autoscaler may give; `otherwise` without one.
fn most(scaler: Option<&Scaler>, otherwise: i64) -> i64 {
    let Some(scaler) = scaler else {
        return otherwise;
    };
    (scaler.keys.iter())
        .find(|(key, ..)| key.starts_with("maxReplica"))
        .and_then(|(_, n, _)| n.as_integer())
        .unwrap_or(KEDA_MOST)
}

/// Groups of nodes for the largest sizes of all deployments together, one for each kind of machine.
pub fn groups(pools: &[Pool]) -> Value {
    let mut all: Vec<(Option<String>, i64)> = Vec::new();
    for pool in pools {
        let own = &pool.draft;
        let most = most(
            own.facts.scaler.as_ref(),
            own.whole("layout.replicas", 1).max(1),
        );
        let (machine, n) = nodes(own, most);
        match all.iter_mut().find(|(m, _)| *m == machine) {
            Some((_, sum)) => *sum = sum.saturating_add(n),
            None => all.push((machine, n)),
        }
    }
    let one = all.len() == 1;
    let groups = all.iter().map(|(machine, n)| match machine {
        Some(machine) if !one => group(machine, Some(machine), *n),
        _ => group("nodes", None, *n),
    });
    Value::Array(groups.collect())
}

/// Puts the autoscalers of several deployments into the scenario, each into its pool; one that the simulator cannot follow is left out.
pub fn place_all(draft: &mut Draft, pools: &[Pool], groups: Value) {
    let mut left: Vec<usize> = (0..pools.len())
        .filter(|i| pools[*i].draft.facts.scaler.is_some())
        .collect();
    while !left.is_empty() {
        let mut whole = draft.clone();
        for (i, pool) in pools.iter().enumerate() {
            // A pool's name is its pods'.
            for (key, value, origin) in pool.draft.facts.pod.iter().filter(|p| p.0 != "name") {
                let path = format!("pod.{key}");
                whole.set_in_pool(i, &path, value.clone(), Ok(origin.clone()));
                whole.used(origin, format!("pool.{path} = {value}"));
            }
        }
        for &i in &left {
            let Some(scaler) = &pools[i].draft.facts.scaler else {
                continue;
            };
            let section = scaler.section;
            for (key, value, origin) in &scaler.keys {
                let path = format!("autoscaler.{section}.{key}");
                whole.set_in_pool(i, &path, value.clone(), Ok(origin.clone()));
            }
            for origin in &scaler.leaves {
                whole.used(origin, format!("pool.autoscaler.{section}"));
            }
        }
        whole.assume("cluster.node_group", groups.clone(), WHY_NODES);
        let scenario = Scenario::parse(&whole.text(&[]), "import.toml", &[]);
        let cannot = scenario.map(|s| s.build().err()).unwrap_or_else(Some);
        let Some((pool, why)) = cannot.and_then(|e| of_a_pool(&e, pools)) else {
            *draft = whole;
            return;
        };
        // Where none is named, it is the cluster that cannot be.
        let out = |i: usize| pool.is_none_or(|p| p == i);
        for &i in left.iter().filter(|i| out(**i)) {
            let leaves = pools[i].draft.facts.scaler.iter().flat_map(|s| &s.leaves);
            for origin in leaves {
                let why = format!("replicas stay as many as the run starts with: {why}");
                draft.fate(origin, Fate::NotModelled, why);
            }
        }
        let before = left.len();
        left.retain(|i| !out(*i));
        if left.len() == before {
            break;
        }
    }
    for pool in pools {
        without_cluster(pool.draft.facts.pod.clone(), draft);
    }
}

/// What of an error is about the autoscaler of a pool, or with `None` about the cluster of all.
fn of_a_pool(e: &ScenarioError, pools: &[Pool]) -> Option<(Option<usize>, String)> {
    e.issues().iter().find_map(|issue| {
        let why = format!("{}: {}", issue.path, issue.message);
        let own = issue.path.strip_prefix("pool[").and_then(|rest| {
            let (i, key) = rest.split_once("].")?;
            Some((i.parse().ok()?, key))
        });
        match own {
            Some((i, key)) if key.starts_with("autoscaler") => Some((Some(i), why)),
            Some(_) => None,
            None if of_cluster(&issue.path) => {
                let named = |p: &Pool| issue.message.contains(&format!("`{}`", p.name));
                Some((pools.iter().position(named), why))
            }
            None => None,
        }
    })
}

fn of_cluster(path: &str) -> bool {
    path.starts_with("autoscaler") || path.starts_with("cluster")
}

/// What of an error is about the autoscaler or its cluster.
fn of_autoscaler(e: &ScenarioError) -> Option<String> {
    let issue = e.issues().iter().find(|i| of_cluster(&i.path))?;
    Some(format!("{}: {}", issue.path, issue.message))
}
