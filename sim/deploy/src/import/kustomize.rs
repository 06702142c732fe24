//! Several files of one application: a kustomization's bases, patches and images become the resources that `kustomize build` makes of them.
//!
//! Fields: kubectl.docs.kubernetes.io, "kustomization". Values keep the line of the base, where a reader finds what was patched; each patch is reported at
//! its own line.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::detect::Content;
use super::draft::{Draft, Origin};
use crate::place::{Fault, Place, shown};
use crate::text::yaml::{self, Entry, Node, Value};

/// Most patches of an import.
const MAX_PATCHES: usize = 1_000;
/// Most values that patches of an import write, each time that they do.
const MAX_WORK: usize = 10_000_000;

/// Lists of these keys are merged by the key of their items: containers by name, mounts by path.
const BY_NAME: [(&str, &str); 7] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("env", "name"),
    ("volumes", "name"),
    ("volumeMounts", "mountPath"),
    ("ports", "containerPort"),
    ("imagePullSecrets", "name"),
];

/// The text at a way of keys.
fn text<'a>(node: &'a Node, keys: &[&str]) -> &'a str {
    node.at(keys).and_then(Node::text).unwrap_or("")
}

fn is_kustomization(doc: &Node) -> bool {
    let kind = text(doc, &["kind"]);
    let bare = kind.is_empty()
        && doc.get("containers").is_none()
        && doc.get("resources").is_some_and(|r| !r.items().is_empty());
    matches!(kind, "Kustomization" | "Component") || bare
}

/// The files and folders on which a kustomization builds, as it writes them; none of another text.
pub fn references(of: &str) -> Vec<String> {
    let mut out = Vec::new();
    let docs = yaml::documents(of).unwrap_or_default();
    for doc in docs.iter().filter(|d| is_kustomization(d)) {
        for key in ["resources", "bases", "components", "patchesStrategicMerge"] {
            let items = doc.get(key).map_or(&[][..], |l| l.items());
            out.extend(items.iter().filter_map(|i| i.text().map(str::to_owned)));
        }
        for key in ["patches", "patchesJson6902"] {
            let items = doc.get(key).map_or(&[][..], |l| l.items());
            let paths = items
                .iter()
                .filter_map(|i| i.get("path")?.text().map(str::to_owned));
            out.extend(paths);
        }
    }
    // What is not here cannot be read: a repository's address, or a patch written in place.
    out.retain(|path| {
        !path.contains("://") && !path.contains("github.com/") && !path.contains('\n')
    });
    out
}

/// Why a patch is refused.
const TOO_LARGE: &str = "makes a resource larger or nested deeper than a file may be";

/// A resource among the files: which file, which document.
type Spot = (usize, usize);

/// Merges patches into what they patch, and takes them out of the files.
pub fn merge<S>(read: &mut [(Arc<str>, S, Content)], draft: &mut Draft) {
    let mut docs: Vec<(Spot, Rc<Node>)> = Vec::new();
    for (i, (_, _, content)) in read.iter().enumerate() {
        if let Content::Manifests(all) = content {
            docs.extend(all.iter().enumerate().map(|(j, d)| ((i, j), Rc::clone(d))));
        }
    }
    let files: Vec<Arc<str>> = read.iter().map(|(file, ..)| Arc::clone(file)).collect();
    let mut all = Files {
        docs: docs.into_iter().collect(),
        files,
        gone: Vec::new(),
        left: MAX_WORK,
    };
    let kustomizations: Vec<(Spot, Rc<Node>)> = (all.docs.iter())
        .filter(|(_, d)| is_kustomization(d))
        .map(|(s, d)| (*s, Rc::clone(d)))
        .collect();
    all.partial(draft);
    for (spot, doc) in &kustomizations {
        all.kustomize(*spot, doc, draft);
    }
    let Files { docs, gone, .. } = all;
    for (i, (_, _, content)) in read.iter_mut().enumerate() {
        if let Content::Manifests(own) = content {
            *own = (docs.iter())
                .filter(|((at, _), _)| *at == i)
                .filter(|(spot, _)| !gone.contains(spot))
                .map(|(_, d)| Rc::clone(d))
                .collect();
        }
    }
}

struct Files {
    docs: BTreeMap<Spot, Rc<Node>>,
    files: Vec<Arc<str>>,
    /// Patches, once they are in what they patch.
    gone: Vec<Spot>,
    /// Values that may still be written anew.
    left: usize,
}

impl Files {
    /// Whether `n` more values may be written; a fault where not.
    fn spend(&mut self, n: usize, origin: &Origin, draft: &mut Draft) -> bool {
        let is_enough = n <= self.left;
        self.left = self.left.saturating_sub(n);
        if !is_enough {
            draft.fault(origin.fault(format!("the patches write more than {MAX_WORK} values")));
        }
        is_enough
    }

    /// Resources without any image are patches of those of the same kind and name in another file.
    fn partial(&mut self, draft: &mut Draft) {
        let spots: Vec<Spot> = self.docs.keys().copied().collect();
        for spot in spots {
            let doc = Rc::clone(&self.docs[&spot]);
            if text(&doc, &["metadata", "name"]).is_empty()
                || !has_containers(&doc)
                || has_image(&doc)
            {
                continue;
            }
            let base = (self.docs.iter())
                .find(|(s, d)| {
                    s.0 != spot.0 && same(d, &doc) && !self.gone.contains(s) && has_image(d)
                })
                .map(|(s, _)| *s);
            if let Some(base) = base {
                self.patch(base, spot, &doc, draft);
            }
        }
    }

    /// Merges the patch `doc` of `from` into the resource at `base`.
    fn patch(&mut self, base: Spot, from: Spot, doc: &Node, draft: &mut Draft) {
        let Some(old) = self.docs.get(&base) else {
            return;
        };
        let new = merged(old, doc, "");
        let is_too_large = new.is_too_large();
        let place = Place::new(&self.files[from.0], doc.line);
        let name = text(doc, &["metadata", "name"]);
        let origin = Origin::new(place, "patch", name);
        let to = Place::new(&self.files[base.0], old.line);
        if is_too_large {
            return draft.fault(origin.fault(TOO_LARGE));
        }
        draft.used(
            &origin,
            format!("merged into {to}: lines of that file stand for both"),
        );
        self.docs.insert(base, Rc::new(new));
        self.gone.push(from);
    }

    /// What a kustomization changes.
    fn kustomize(&mut self, spot: Spot, doc: &Node, draft: &mut Draft) {
        let file = Arc::clone(&self.files[spot.0]);
        let lists = ["patches", "patchesStrategicMerge", "patchesJson6902"].map(|key| doc.get(key));
        let patches = lists.into_iter().flatten().flat_map(|l| l.items());
        for patch in patches.take(MAX_PATCHES) {
            let inline = patch.get("patch").and_then(|p| p.text());
            let path = patch.get("path").and_then(|p| p.text()).or(patch.text());
            let origin = Origin::new(Place::new(&file, patch.line), "patches", path.unwrap_or(""));
            if let Some(inline) = inline {
                let Ok(docs) = yaml::documents(inline) else {
                    draft.fault(origin.fault("the patch is no YAML"));
                    continue;
                };
                for d in docs {
                    self.apply(
                        &d.on_line(patch.line),
                        patch.get("target"),
                        None,
                        &origin,
                        draft,
                    );
                }
                continue;
            }
            let found = path.and_then(|path| self.at(&file, path));
            match found {
                Some(spots) => {
                    for from in spots
                        .into_iter()
                        .filter(|s| !self.gone.contains(s))
                        .collect::<Vec<_>>()
                    {
                        let d = Rc::clone(&self.docs[&from]);
                        self.apply(&d, patch.get("target"), Some(from), &origin, draft);
                    }
                }
                None => draft.warn(format!(
                    "{}: the patch {} is not among the files",
                    origin.place,
                    shown(path.unwrap_or(""))
                )),
            }
        }
        self.images(doc, &file, draft);
        self.counts(doc, &file, draft);
    }

    /// The documents of the file that `path`, from the folder of `file`, is.
    fn at(&self, file: &str, path: &str) -> Option<Vec<Spot>> {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let wanted = plain(&format!("{folder}/{path}"));
        let exact = self.files.iter().position(|f| plain(f) == wanted);
        let base = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
        let i = exact.or_else(|| self.files.iter().position(|f| base(f) == base(path)))?;
        Some(self.docs.keys().filter(|s| s.0 == i).copied().collect())
    }

    /// Applies a patch, of either sort, to what it is for.
    fn apply(
        &mut self,
        patch: &Node,
        target: Option<&Rc<Node>>,
        from: Option<Spot>,
        origin: &Origin,
        draft: &mut Draft,
    ) {
        let is_ops = !patch.items().is_empty();
        let wanted = |d: &Node| match target {
            Some(t) => {
                let fits = |key: &str, value: &str| {
                    let given = text(t, &[key]);
                    given.is_empty() || given == value || given == ".*"
                };
                fits("kind", text(d, &["kind"])) && fits("name", text(d, &["metadata", "name"]))
            }
            None => !is_ops && same(d, patch),
        };
        let spots: Vec<Spot> = (self.docs.iter())
            .filter(|(s, d)| {
                from.is_none_or(|f| f.0 != s.0)
                    && !self.gone.contains(s)
                    && !is_kustomization(d)
                    && wanted(d)
            })
            .map(|(s, _)| *s)
            .collect();
        if spots.is_empty() {
            draft.warn(format!(
                "{}: the patch is for no resource among the files",
                origin.place
            ));
        }
        for spot in spots {
            let Some(old) = self.docs.get(&spot) else {
                continue;
            };
            // Each operation walks the resource anew.
            let each = patch.items().len().max(1).saturating_mul(old.size());
            let size = patch.size().saturating_add(each);
            if !self.spend(size, origin, draft) {
                return;
            }
            let Some(old) = self.docs.get(&spot) else {
                continue;
            };
            let new = match is_ops {
                false => Ok(merged(old, patch, "")),
                true => operations(old, patch),
            };
            let new = new.and_then(|n| match n.is_too_large() {
                true => Err(TOO_LARGE.to_owned()),
                false => Ok(n),
            });
            match new {
                Ok(new) => {
                    let to = Place::new(&self.files[spot.0], old.line);
                    draft.used(
                        origin,
                        format!("merged into {to}: lines of that file stand for both"),
                    );
                    self.docs.insert(spot, Rc::new(new));
                }
                Err(why) => draft.fault(Fault::new(origin.place.clone(), "patches", why)),
            }
        }
        self.gone.extend(from);
    }

    /// `images`: other names and tags of images.
    fn images(&mut self, doc: &Node, file: &Arc<str>, draft: &mut Draft) {
        for item in doc.get("images").map_or(&[][..], |l| l.items()) {
            let name = text(item, &["name"]);
            let (new, tag, digest) = (
                text(item, &["newName"]),
                text(item, &["newTag"]),
                text(item, &["digest"]),
            );
            let change = |image: &str| {
                let bare = image.split('@').next().unwrap_or(image);
                let bare = match bare.rsplit_once(':') {
                    Some((bare, tag)) if !tag.contains('/') => bare,
                    _ => bare,
                };
                if bare != name {
                    return None;
                }
                let base = if new.is_empty() { bare } else { new };
                let old = image[bare.len()..].to_owned();
                Some(match (tag, digest) {
                    ("", "") => format!("{base}{old}"),
                    ("", digest) => format!("{base}@{digest}"),
                    (tag, _) => format!("{base}:{tag}"),
                })
            };
            let origin = Origin::new(Place::new(file, item.line), "images", name);
            draft.used(
                &origin,
                format!("the image {} of its containers", shown(name)),
            );
            let all = (self.docs.values()).fold(0, |n: usize, d| n.saturating_add(d.size()));
            if !self.spend(all, &origin, draft) {
                return;
            }
            for doc in self.docs.values_mut() {
                *doc = Rc::new(with_images(doc, &change));
            }
        }
    }

    /// `replicas`: other numbers of replicas.
    fn counts(&mut self, doc: &Node, file: &Arc<str>, draft: &mut Draft) {
        for item in doc.get("replicas").map_or(&[][..], |l| l.items()) {
            let (name, count) = (text(item, &["name"]), text(item, &["count"]));
            let origin = Origin::new(Place::new(file, item.line), "replicas", count);
            draft.used(&origin, format!("replicas of {}", shown(name)));
            for doc in self.docs.values_mut() {
                if text(doc, &["metadata", "name"]) == name && doc.at(&["spec"]).is_some() {
                    let way = ["spec", "replicas"].map(str::to_owned);
                    if let Ok(new) = set(doc, &way, "add", item.get("count")) {
                        *doc = Rc::new(new);
                    }
                }
            }
        }
    }
}

/// A path without `.` and `..`.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|p| *p != "..") => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn same(a: &Node, b: &Node) -> bool {
    let of = |d: &Node, keys: &[&str]| text(d, keys).to_owned();
    let space = |d: &Node| of(d, &["metadata", "namespace"]);
    let either = space(a) == space(b) || space(a).is_empty() || space(b).is_empty();
    let name = ["metadata", "name"];
    of(a, &["kind"]) == of(b, &["kind"])
        && of(a, &name) == of(b, &name)
        && either
        && !of(a, &name).is_empty()
}

/// Whether a container stands anywhere in the resource.
fn has_containers(node: &Node) -> bool {
    node.get("containers")
        .is_some_and(|c| !c.items().is_empty())
        || node.entries().iter().any(|e| has_containers(&e.value))
        || node.items().iter().any(|i| has_containers(i))
}

/// Whether any container of the resource names its image.
fn has_image(node: &Node) -> bool {
    let own = node.get("containers").map_or(&[][..], |c| c.items());
    own.iter().any(|c| c.get("image").is_some())
        || node.entries().iter().any(|e| has_image(&e.value))
        || node.items().iter().any(|i| has_image(i))
}

fn with_images(node: &Node, change: &dyn Fn(&str) -> Option<String>) -> Node {
    match &node.value {
        Value::Map(entries) => {
            let entries = entries.iter().map(|e| {
                let new = match (e.key.as_str(), e.value.text()) {
                    ("image", Some(image)) => {
                        change(image).map(|text| e.value.with(Value::Scalar { text, quoted: true }))
                    }
                    _ => None,
                };
                let value = new.unwrap_or_else(|| with_images(&e.value, change));
                Entry {
                    value: Rc::new(value),
                    ..e.clone()
                }
            });
            node.with(Value::Map(entries.collect()))
        }
        Value::List(items) => {
            let items = items.iter().map(|i| Rc::new(with_images(i, change)));
            node.with(Value::List(items.collect()))
        }
        Value::Scalar { .. } => node.clone(),
    }
}

/// `patch` laid over `base`: mappings key by key, lists of named things by their names, all else in place of the old.
fn merged(base: &Node, patch: &Node, key: &str) -> Node {
    match (&base.value, &patch.value) {
        (Value::Map(old), Value::Map(new)) => {
            let mut entries = old.clone();
            for e in new.iter().filter(|e| e.key != "$patch") {
                let at = entries.iter().position(|o| o.key == e.key);
                let gone = e.value.is_null() || text(&e.value, &["$patch"]) == "delete";
                match at {
                    Some(i) if gone => drop(entries.remove(i)),
                    Some(i) => {
                        let value = merged(&entries[i].value, &e.value, &e.key);
                        entries[i].value = Rc::new(value);
                    }
                    None if gone => {}
                    None => entries.push(Entry {
                        key: e.key.clone(),
                        line: base.line,
                        value: Rc::new(e.value.on_line(base.line)),
                    }),
                }
            }
            base.with(Value::Map(entries))
        }
        (Value::List(old), Value::List(new)) => {
            let Some((_, by)) = BY_NAME.iter().find(|(list, _)| *list == key) else {
                return patch.on_line(base.line);
            };
            let mut items = old.clone();
            for item in new {
                let name = text(item, &[by]);
                let at = items
                    .iter()
                    .position(|o| !name.is_empty() && text(o, &[by]) == name);
                let gone = text(item, &["$patch"]) == "delete";
                match at {
                    Some(i) if gone => drop(items.remove(i)),
                    Some(i) => items[i] = Rc::new(merged(&items[i], item, "")),
                    None => items.push(Rc::new(item.on_line(base.line))),
                }
            }
            base.with(Value::List(items))
        }
        _ => patch.on_line(base.line),
    }
}

/// A list of operations (JSON patch) on `base`.
fn operations(base: &Node, patch: &Node) -> Result<Node, String> {
    let mut node = base.clone();
    for op in patch.items() {
        let (what, path) = (text(op, &["op"]), text(op, &["path"]));
        let way: Vec<String> = path
            .split('/')
            .skip(1)
            .map(|part| part.replace("~1", "/").replace("~0", "~"))
            .collect();
        if !matches!(what, "add" | "replace" | "remove") {
            if what == "test" {
                continue;
            }
            return Err(format!(
                "`{}` is no operation that is read: add, replace or remove",
                shown(what)
            ));
        }
        node = set(&node, &way, what, op.get("value"))
            .map_err(|()| format!("`{}` is not in what it patches", shown(path)))?;
        if node.is_too_large() {
            return Err(TOO_LARGE.to_owned());
        }
    }
    Ok(node)
}

/// `node` with the value at a way of keys and numbers added, replaced or removed.
fn set(node: &Node, way: &[String], what: &str, value: Option<&Rc<Node>>) -> Result<Node, ()> {
    let Some((first, rest)) = way.split_first() else {
        return value.map(|v| v.on_line(node.line)).ok_or(());
    };
    let new = || value.map(|v| Rc::new(v.on_line(node.line))).ok_or(());
    match &node.value {
        Value::Map(entries) => {
            let mut entries = entries.clone();
            let at = entries.iter().position(|e| e.key == *first);
            match (at, rest.is_empty()) {
                (Some(i), true) if what == "remove" => drop(entries.remove(i)),
                (Some(i), true) => entries[i].value = new()?,
                (Some(i), false) => {
                    let inner = set(&entries[i].value, rest, what, value)?;
                    entries[i].value = Rc::new(inner);
                }
                (None, true) if what == "add" => entries.push(Entry {
                    key: first.clone(),
                    line: node.line,
                    value: new()?,
                }),
                (None, _) => return Err(()),
            }
            Ok(node.with(Value::Map(entries)))
        }
        Value::List(items) => {
            let mut items = items.clone();
            let at = match first.as_str() {
                "-" => items.len(),
                n => n.parse().map_err(|_| ())?,
            };
            match (rest.is_empty(), what) {
                (true, "add") if at <= items.len() => items.insert(at, new()?),
                (true, "remove") if at < items.len() => drop(items.remove(at)),
                (true, _) if at < items.len() => items[at] = new()?,
                (false, _) if at < items.len() => {
                    items[at] = Rc::new(set(&items[at], rest, what, value)?);
                }
                _ => return Err(()),
            }
            Ok(node.with(Value::List(items)))
        }
        Value::Scalar { .. } => Err(()),
    }
}
