//! Several deployments of one service: each Deployment, StatefulSet or LeaderWorkerSet that runs an engine becomes a `[[pool]]`, with its own autoscaler.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use toml::Value;

use super::draft::{Draft, Origin};
use super::manifests;
use super::tree::Tree;
use super::workload::ConfigMaps;
use crate::place::{Fault, Place, shown};
use crate::report::Fate;
use crate::text::yaml::Node;

/// Resources that keep replicas of a pod.
const WORKLOADS: [&str; 4] = ["Deployment", "StatefulSet", "ReplicaSet", "LeaderWorkerSet"];
/// Resources that scale those.
const SCALERS: [&str; 2] = ["HorizontalPodAutoscaler", "ScaledObject"];
/// llm-d's label of pods that prefill or decode alone.
const ROLE_LABEL: &str = "llm-d.ai/role";
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
    /// Which of them is called so: kind and name of the resource.
    index: BTreeMap<(String, String), usize>,
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
                if !WORKLOADS.contains(&key.0.as_str()) || pools.index.contains_key(&key) {
                    continue;
                }
                let mut tried = Draft::default();
                manifests::import(&doc, file, maps, &mut tried);
                if tried.get("engine.kind").is_none() {
                    continue;
                }
                if pools.list.len() == MAX_POOLS {
                    let message = format!("more than {MAX_POOLS} deployments");
                    draft.fault(Fault::new(Place::new(file, doc.line), "kind", message));
                    break;
                }
                pools.add(&doc, file, key);
            }
        }
        (pools.list.len() > 1).then_some(pools)
    }

    fn add(&mut self, doc: &Node, file: &Arc<str>, key: (String, String)) {
        let line = doc.entry("kind").map_or(doc.line, |e| e.line);
        let named = |name: &str| self.list.iter().any(|p| p.name == name);
        let base = match key.1.as_str() {
            "" => format!("pool-{}", self.list.len()),
            name => name.to_owned(),
        };
        let mut name = base.clone();
        let mut n = 2;
        while named(&name) {
            name = format!("{base}-{n}");
            n += 1;
        }
        let mut draft = Draft::default();
        let role = role(Tree { node: doc, file }, &key.1);
        draft.facts.is_apart = role.is_some();
        if let Some((role, Ok(origin))) = &role {
            draft.used(origin, format!("pool.role = \"{role}\""));
        }
        self.index.insert(key.clone(), self.list.len());
        self.list.push(Pool {
            name,
            origin: Origin::new(Place::new(file, line), key.0, key.1),
            role,
            draft,
        });
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
            match self.index.get(&key) {
                Some(&i) => manifests::import(&doc, file, maps, &mut self.list[i].draft),
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

    /// All of them.
    pub fn into_list(self) -> Vec<Pool> {
        self.list
    }
}

/// What the replicas of a workload do: by llm-d's label on its pods, by the `kv_role` of vLLM's connector, or by the name of a workload that has a connector.
fn role(tree: Tree<'_>, name: &str) -> Option<(&'static str, Result<Origin, String>)> {
    let known = |word: &str| match word {
        "prefill" | "kv_producer" => Some("prefill"),
        "decode" | "kv_consumer" => Some("decode"),
        _ => None,
    };
    let templates = [
        &["spec", "template"][..],
        &["spec", "leaderWorkerTemplate", "leaderTemplate"],
        &["spec", "leaderWorkerTemplate", "workerTemplate"],
    ];
    for template in templates {
        let way: Vec<&str> = template
            .iter()
            .copied()
            .chain(["metadata", "labels", ROLE_LABEL])
            .collect();
        if let Some((value, origin)) = tree.text("", &way)
            && let Some(role) = known(&value)
        {
            return Some((role, Ok(origin)));
        }
    }
    let mut connector = None;
    for template in templates {
        let way: Vec<&str> = (template.iter().copied())
            .chain(["spec", "containers"])
            .collect();
        for container in tree.node.at(&way).map_or(&[][..], Node::items) {
            for key in ["command", "args"] {
                let words = container.get(key).map_or(&[][..], |w| w.items());
                let found = words.iter().find_map(|w| {
                    let text = w.text()?;
                    let at = text.find("kv_role")?;
                    let tail = &text[at + "kv_role".len()..];
                    let word: String = tail
                        .chars()
                        .skip_while(|c| !c.is_ascii_alphabetic())
                        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                        .collect();
                    Some((word, w.line))
                });
                connector = connector.or(found);
            }
        }
    }
    let (word, line) = connector?;
    if let Some(role) = known(&word) {
        let origin = Origin::new(Place::new(tree.file, line), "kv_role", word);
        return Some((role, Ok(origin)));
    }
    let by_name = name.split(['-', '_', '.']).find_map(known)?;
    let why = format!(
        "its name says so, and its connector's kv_role is either; label its pods {ROLE_LABEL} to be sure"
    );
    Some((by_name, Err(why)))
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
