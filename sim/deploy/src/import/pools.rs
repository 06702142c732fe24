//! Several deployments of one service: each Deployment, StatefulSet or LeaderWorkerSet that runs an engine becomes a `[[pool]]`, with its own autoscaler.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use toml::Value;

use super::draft::{Draft, Origin};
use super::manifests;
use super::resource::{self, Unit};
use super::tree::Tree;
use super::workload::ConfigMaps;
use crate::place::{Fault, Place, shown};
use crate::report::Fate;
use crate::text::yaml::Node;

/// Resources that scale those.
const SCALERS: [&str; 3] = ["HorizontalPodAutoscaler", "ScaledObject", "PodAutoscaler"];
/// Most deployments of one import.
const MAX_POOLS: usize = 64;

/// One of several deployments, as files say it.
pub struct Pool {
    /// Its name in the scenario.
    pub name: String,
    /// What it is, and where.
    pub origin: Origin,
    /// What its replicas do of a request, where a file says it.
    pub role: Option<(&'static str, Result<Origin, String>)>,
    /// What is said of it.
    pub draft: Draft,
}

/// All deployments of an import, where there are several.
#[derive(Default)]
pub struct Pools {
    list: Vec<Pool>,
    /// Which of them are parts of what is called so: kind and name of the resource; the part's number.
    index: BTreeMap<(String, String), Vec<(usize, usize)>>,
}

/// The text at a way of keys.
fn text<'a>(doc: &'a Node, keys: &[&str]) -> &'a str {
    doc.at(keys).and_then(Node::text).unwrap_or("")
}

fn identity(doc: &Node) -> (String, String) {
    let of = |keys: &[&str]| text(doc, keys).to_owned();
    (of(&["kind"]), of(&["metadata", "name"]))
}

/// The documents of a file, those of its lists among them.
fn flat(docs: &[Rc<Node>]) -> Vec<Rc<Node>> {
    let mut out = Vec::new();
    for doc in docs {
        if text(doc, &["kind"]) == "List" {
            let items = doc.get("items").map_or(&[][..], |i| i.items());
            out.extend(flat(items));
        } else {
            out.push(doc.clone());
        }
    }
    out
}

impl Pools {
    /// The deployments of all manifests; none where fewer than two run an engine.
    pub fn find<'a>(
        files: impl Iterator<Item = (&'a Arc<str>, &'a [Rc<Node>])>,
        maps: &ConfigMaps,
        draft: &mut Draft,
    ) -> Option<Pools> {
        let mut pools = Pools::default();
        for (file, docs) in files {
            for doc in flat(docs) {
                let key = identity(&doc);
                if SCALERS.contains(&key.0.as_str()) || pools.index.contains_key(&key) {
                    continue;
                }
                let units = resource::units(&doc);
                for (part, unit) in units.iter().enumerate() {
                    let mut tried = Draft::default();
                    resource::import(unit, &doc, file, maps, &mut tried);
                    // Pods of further machines of a replica are not replicas of their own, and a resource with both sides is pools by itself.
                    let is_engine = tried.get("engine.kind").is_some();
                    if !is_engine || tried.facts.is_further || tried.facts.prefill.is_some() {
                        continue;
                    }
                    if pools.list.len() == MAX_POOLS {
                        let message = format!("more than {MAX_POOLS} deployments");
                        draft.fault(Fault::new(Place::new(file, doc.line), "kind", message));
                        return None;
                    }
                    let role = resource::role(unit, &doc, file, &tried);
                    let own = match unit {
                        Unit::Pod(template) if units.len() > 1 => template.name(),
                        _ => None,
                    };
                    pools.add(Tree { node: &doc, file }, (key.clone(), part), own, role);
                }
            }
        }
        pools.counterparts();
        (pools.list.len() > 1).then_some(pools)
    }

    /// A side without the other does both.
    pub fn counterparts(&mut self) {
        let has = |pools: &Pools, which: &str| {
            let of = |p: &Pool| p.role.as_ref().is_some_and(|(role, _)| *role == which);
            pools.list.iter().any(of)
        };
        if has(self, "prefill") != has(self, "decode") {
            for pool in &mut self.list {
                pool.role = None;
            }
        }
        for pool in &mut self.list {
            pool.draft.facts.is_apart = pool.role.is_some();
            if let Some((role, Ok(origin))) = &pool.role {
                (pool.draft).used(origin, format!("pool.role = \"{role}\""));
            }
        }
    }

    fn add(
        &mut self,
        tree: Tree<'_>,
        (key, part): ((String, String), usize),
        own: Option<&str>,
        role: Option<(&'static str, Result<Origin, String>)>,
    ) {
        let line = tree.node.entry("kind").map_or(tree.node.line, |e| e.line);
        let base = match (key.1.as_str(), own) {
            ("", None) => format!("pool-{}", self.list.len()),
            ("", Some(own)) => own.to_owned(),
            (name, None) => name.to_owned(),
            (name, Some(own)) => format!("{name}-{own}"),
        };
        let name = self.unused(base);
        let at = self.index.entry(key.clone()).or_default();
        at.push((self.list.len(), part));
        self.list.push(Pool {
            name,
            origin: Origin::new(Place::new(tree.file, line), key.0, key.1),
            role,
            draft: Draft::default(),
        });
    }

    /// `base`, or with a number behind it where a pool is called so.
    fn unused(&self, base: String) -> String {
        let named = |name: &str| self.list.iter().any(|p| p.name == name);
        let mut name = base.clone();
        let mut n = 2;
        while named(&name) {
            name = format!("{base}-{n}");
            n += 1;
        }
        name
    }

    /// Adds a deployment that a reader of its own has found; its number.
    pub fn found(
        &mut self,
        name: &str,
        origin: Origin,
        role: Option<(&'static str, Result<Origin, String>)>,
    ) -> usize {
        let name = self.unused(name.to_owned());
        self.list.push(Pool {
            name,
            origin,
            role,
            draft: Draft::default(),
        });
        self.list.len() - 1
    }

    /// What is said of deployment `i`.
    pub fn draft(&mut self, i: usize) -> &mut Draft {
        &mut self.list[i].draft
    }

    /// Imports a document; what is said of none of the deployments goes to `draft`.
    pub fn import(
        &mut self,
        doc: &Rc<Node>,
        file: &Arc<str>,
        maps: &ConfigMaps,
        draft: &mut Draft,
    ) {
        for doc in flat(std::slice::from_ref(doc)) {
            let (kind, name) = identity(&doc);
            let is_scaler = SCALERS.contains(&kind.as_str());
            let key = match is_scaler {
                true => {
                    let of = |key: &str| text(&doc, &["spec", "scaleTargetRef", key]).to_owned();
                    let kind = match of("kind") {
                        none if none.is_empty() => "Deployment".to_owned(),
                        kind => kind,
                    };
                    (kind, of("name"))
                }
                false => (kind.clone(), name.clone()),
            };
            match self.index.get(&key).cloned().as_deref() {
                Some(&[(i, _)]) if is_scaler => {
                    manifests::import(&doc, file, maps, &mut self.list[i].draft);
                }
                Some(parts) if !is_scaler => self.import_parts(parts, &doc, file, maps, draft),
                Some(_) => {
                    let line = doc.entry("kind").map_or(doc.line, |e| e.line);
                    let origin = Origin::new(Place::new(file, line), kind, name);
                    let why = "scales several parts of a resource at once, which is not simulated: replicas stay as many as the run starts with";
                    draft.fate(&origin, Fate::NotModelled, why);
                }
                None if is_scaler => {
                    let line = doc.entry("kind").map_or(doc.line, |e| e.line);
                    let origin = Origin::new(Place::new(file, line), kind, name);
                    let why = format!(
                        "scales the {} `{}`, which runs no engine among these files",
                        shown(&key.0),
                        shown(&key.1)
                    );
                    draft.fate(&origin, Fate::NoEffect, why);
                }
                None => manifests::import(&doc, file, maps, draft),
            }
        }
    }

    /// Imports the parts of a resource, each into its pool; what belongs to none goes to `draft`.
    fn import_parts(
        &mut self,
        parts: &[(usize, usize)],
        doc: &Rc<Node>,
        file: &Arc<str>,
        maps: &ConfigMaps,
        draft: &mut Draft,
    ) {
        let units = resource::units(doc);
        for &(i, part) in parts {
            if let Some(unit) = units.get(part) {
                resource::import(unit, doc, file, maps, &mut self.list[i].draft);
                resource::rest(&units, doc, file, &mut self.list[i].draft);
            }
        }
        let other = |part: &usize| parts.iter().all(|(_, p)| p != part);
        for part in (0..units.len()).filter(other) {
            resource::import(&units[part], doc, file, maps, draft);
        }
    }

    /// All of them.
    pub fn into_list(self) -> Vec<Pool> {
        self.list
    }
}

/// Keys of a pool that stand at the top of a scenario and have another name in a pool.
fn own_name(path: &str) -> Option<String> {
    match path {
        "layout.replicas" => Some("replicas".to_owned()),
        "router.policy" => Some("router".to_owned()),
        _ => ["engine.", "layout.", "model.", "hardware."]
            .iter()
            .any(|start| path.starts_with(start))
            .then(|| path.to_owned()),
    }
}

/// Puts all deployments into the scenario: what all say alike stands at its top, what differs in each pool.
pub fn place(draft: &mut Draft, pools: &mut [Pool]) {
    let shared = |pools: &[Pool], start: &str| -> Vec<String> {
        let Some((first, rest)) = pools.split_first() else {
            return Vec::new();
        };
        let keys = first.draft.keys(start);
        let same = |key: &String| {
            (rest.iter()).all(|p| {
                p.draft
                    .get(key)
                    .is_some_and(|v| Some(v) == first.draft.get(key))
            })
        };
        keys.into_iter().filter(same).collect()
    };
    // A model or a machine is another's as a whole.
    for start in ["model.", "hardware."] {
        let common = shared(pools, start);
        if (pools.iter()).all(|p| p.draft.keys(start).len() == common.len()) {
            lift(draft, pools, &common);
        }
    }
    let kind = |p: &Pool| p.draft.get("engine.kind").cloned();
    if pools.iter().all(|p| kind(p) == kind(&pools[0])) {
        let common = shared(pools, "engine.");
        lift(draft, pools, &common);
    } else if let Some(kind) = pools[0].draft.said("engine.kind") {
        draft.say("engine.kind", kind);
    }
    for pool in &mut *pools {
        draft.absorb(&pool.name, &mut pool.draft);
        let mut own = BTreeMap::new();
        for (path, said) in pool.draft.take_all() {
            match own_name(&path) {
                Some(name) => drop(own.insert(name, said)),
                None => draft.say(&path, said),
            }
        }
        draft.pool(&pool.name, &pool.origin, own);
    }
    for (i, pool) in pools.iter().enumerate() {
        if let Some((role, origin)) = &pool.role {
            draft.set_in_pool(i, "role", Value::from(*role), origin.clone());
        }
    }
}

/// Moves keys that all pools say alike to the top.
fn lift(draft: &mut Draft, pools: &mut [Pool], keys: &[String]) {
    for key in keys {
        if let Some(said) = pools[0].draft.said(key) {
            draft.say(key, said);
        }
        for pool in &mut *pools {
            pool.draft.take(key);
        }
    }
}
