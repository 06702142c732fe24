//! Models that share accelerators and are loaded on demand: a request for a model that is not there makes room for it.
//!
//! As llama-swap does it before servers of any kind, and as Triton's explicit model control lets a client do it: the resident that was used least
//! recently gives its accelerators to the model that is asked for. Requests wait meanwhile; those of one model wait for one swap. A model that nobody
//! has asked for in a while is unloaded (`ttl`). What becomes of a model that goes (it ends, or it sleeps) and how the other comes (a start, or a wake-up) is
//! not decided here.
//!
//! Source: mostlygeek/llama-swap `internal/router/design.md`, `internal/router/scheduler/fifo.go` (queue in order of `priority`, then of arrival; a model that
//! is ready is served at once; a swap that would evict a busy model waits), `docs/kb/guides/model-runtime/ttl-and-unloading.md`,
//! `docs/kb/guides/routing/groups-and-matrix.md` (`persistent`).

use crate::kernel::time::{SimDuration, SimTime};

/// How often it looks again while a model waits for room.
const LOOK_AGAIN: SimDuration = SimDuration(100_000_000);
/// How often it looks whether a model has been idle for its `ttl`, as llama-swap does.
const TTL_LOOK: SimDuration = SimDuration(1_000_000_000);

/// When a resident may be evicted for another model.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Evict {
    /// It drains: it gets nothing new and answers what it has.
    #[default]
    Drain,
    /// Only while it has no request: it serves new ones until then (llama-swap).
    Idle,
}

/// A model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// `ttl`: it is unloaded so long after its last request; none: never.
    pub ttl: Option<SimDuration>,
    /// `priority`: requests for models of a higher one are served first.
    pub priority: i32,
    /// `persistent`: it is never evicted for another.
    pub is_persistent: bool,
    /// Most replicas of it: another is loaded while requests wait and all of its replicas are ready.
    pub most: usize,
    /// Accelerators of a replica, all on one node.
    pub gpus: i64,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDemandSpec {
    /// The models.
    pub models: Vec<ModelSpec>,
    /// When a resident may be evicted.
    pub evict: Evict,
    /// A model that was loaded stays ready for so long before it may be evicted.
    pub min_residency: SimDuration,
}

/// What is seen of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelView {
    /// Requests for it so far.
    pub offered: u64,
    /// Of these, requests that have not ended, those that wait included.
    pub unanswered: u64,
    /// Requests that wait for a replica.
    pub held: u64,
    /// Replicas that are not ready yet.
    pub starting: usize,
    /// Replicas that are ready.
    pub ready: usize,
}

/// A replica that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Names it.
    pub unit: usize,
    /// Its model.
    pub model: usize,
    /// From when it has been ready.
    pub since: SimTime,
}

/// A node that the models share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Names it.
    pub id: usize,
    /// Accelerators that nobody holds, or that nobody will hold once those that end are gone, less those that others wait for.
    pub available: i64,
    /// Replicas that are ready there.
    pub residents: Vec<Resident>,
    /// Models that may be placed there.
    pub may: Vec<bool>,
}

/// What it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A replica of `model` is to come, once those that it evicts are gone.
    Load {
        /// The model.
        model: usize,
        /// Replicas that make room.
        evict: Vec<usize>,
        /// The node where they are, or where room is; none: no node is there that could hold it.
        node: Option<usize>,
        /// In words.
        why: String,
    },
    /// A replica is not used.
    Unload {
        /// It.
        unit: usize,
        /// Its model.
        model: usize,
        /// In words.
        why: String,
    },
}

/// What it has seen of a model.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    offered: u64,
    /// When it last had a request.
    used: SimTime,
    /// Since when requests have waited.
    waits: Option<SimTime>,
}

/// Models loaded on demand.
#[derive(Clone, Debug)]
pub struct OnDemand {
    spec: OnDemandSpec,
    seen: Vec<Seen>,
}

impl OnDemand {
    /// Before anything has been asked for.
    pub fn new(spec: OnDemandSpec) -> OnDemand {
        OnDemand {
            seen: vec![Seen::default(); spec.models.len()],
            spec,
        }
    }

    /// A look at `now`: what is to be done, and when to look again at the latest; [`SimTime::NEVER`]: when a request waits.
    pub fn look(
        &mut self,
        now: SimTime,
        models: &[ModelView],
        nodes: &[NodeView],
    ) -> (Vec<Action>, SimTime) {
        for (seen, m) in self.seen.iter_mut().zip(models) {
            if m.offered > seen.offered || m.unanswered > 0 {
                seen.used = now;
            }
            seen.offered = m.offered;
            seen.waits = match m.held {
                0 => None,
                _ => Some(seen.waits.unwrap_or(now)),
            };
        }
        let mut nodes = nodes.to_vec();
        let mut actions = self.unload(now, models, &mut nodes);
        let mut due = SimTime::NEVER;
        for model in self.queue(models) {
            match self.load(now, model, models, &mut nodes) {
                Some(action) => actions.push(action),
                None => due = now + LOOK_AGAIN,
            }
        }
        let has_ttl = |r: &Resident| self.spec.models[r.model].ttl.is_some();
        if nodes.iter().flat_map(|n| &n.residents).any(has_ttl) {
            due = due.min(now + TTL_LOOK);
        }
        // What is loaded now may serve next to nobody, or be asked for more.
        if models.iter().any(|m| m.held > 0) {
            due = due.min(now + LOOK_AGAIN);
        }
        (actions, due)
    }

    /// Models that have been idle for their `ttl` go.
    fn unload(&self, now: SimTime, models: &[ModelView], nodes: &mut [NodeView]) -> Vec<Action> {
        let mut actions = Vec::new();
        for node in nodes {
            let (mut left, mut freed) = (Vec::new(), 0);
            for r in std::mem::take(&mut node.residents) {
                let spec = &self.spec.models[r.model];
                // A model that has just been loaded was used when it was asked for.
                let idle = now.since(self.seen[r.model].used.max(r.since));
                match spec.ttl {
                    Some(ttl) if idle >= ttl && models[r.model].unanswered == 0 => {
                        freed += spec.gpus;
                        actions.push(Action::Unload {
                            unit: r.unit,
                            model: r.model,
                            why: format!("idle for {:.0} s (ttl)", idle.as_secs()),
                        });
                    }
                    _ => left.push(r),
                }
            }
            node.residents = left;
            node.available += freed;
        }
        actions
    }

    /// Models that want a replica: those of the highest priority first, then those that have waited longest.
    fn queue(&self, models: &[ModelView]) -> Vec<usize> {
        let wants = |(i, m): (usize, &ModelView)| {
            let spec = &self.spec.models[i];
            let is_wanted = m.held > 0 && m.starting == 0 && m.ready < spec.most;
            is_wanted.then_some(i)
        };
        let mut all: Vec<usize> = models.iter().enumerate().filter_map(wants).collect();
        let waits = |i: usize| self.seen[i].waits.unwrap_or(SimTime::NEVER);
        all.sort_by_key(|i| {
            (
                std::cmp::Reverse(self.spec.models[*i].priority),
                waits(*i),
                *i,
            )
        });
        all
    }

    /// Whether a resident may be evicted for `model`.
    fn may_go(&self, now: SimTime, r: &Resident, model: usize, models: &[ModelView]) -> bool {
        let spec = &self.spec.models[r.model];
        r.model != model
            && !spec.is_persistent
            && now.since(r.since) >= self.spec.min_residency
            && (self.spec.evict == Evict::Drain || models[r.model].unanswered == 0)
    }

    /// Room for a replica of `model`: on the node where the fewest have to go, and of these where the first of them was used least recently.
    fn load(
        &self,
        now: SimTime,
        model: usize,
        models: &[ModelView],
        nodes: &mut [NodeView],
    ) -> Option<Action> {
        let gpus = self.spec.models[model].gpus;
        let mut best: Option<(usize, SimTime, usize, Vec<usize>)> = None;
        for (n, node) in nodes.iter().enumerate() {
            if !node.may.get(model).copied().unwrap_or(false) {
                continue;
            }
            let Some((first, evict)) = self.room_on(now, node, model, models) else {
                continue;
            };
            let is_better =
                (best.as_ref()).is_none_or(|b| (evict.len(), first, n) < (b.3.len(), b.1, b.2));
            if is_better {
                best = Some((node.id, first, n, evict));
            }
        }
        let Some((id, _, n, evict)) = best else {
            // Somebody may bring a node for it; on those that are there it has to wait.
            let is_there = nodes.iter().any(|n| n.may.get(model) == Some(&true));
            return (!is_there).then(|| Action::Load {
                model,
                evict: Vec::new(),
                node: None,
                why: "no node could hold it".into(),
            });
        };
        let node = &mut nodes[n];
        let mut of: Vec<usize> = Vec::new();
        for unit in &evict {
            if let Some(i) = node.residents.iter().position(|r| r.unit == *unit) {
                let gone = node.residents.remove(i);
                node.available += self.spec.models[gone.model].gpus;
                of.push(gone.model);
            }
        }
        node.available -= gpus;
        let held = models[model].held;
        let why = match of.len() {
            0 => format!("{held} requests wait; there is room"),
            n => format!("{held} requests wait; evicts {n}"),
        };
        Some(Action::Load {
            model,
            evict,
            node: Some(id),
            why,
        })
    }

    /// Who has to go from `node` for `model`, the least recently used first, and when the first of them was used; none: too few may.
    fn room_on(
        &self,
        now: SimTime,
        node: &NodeView,
        model: usize,
        models: &[ModelView],
    ) -> Option<(SimTime, Vec<usize>)> {
        let gpus = self.spec.models[model].gpus;
        let used = |r: &Resident| self.seen[r.model].used.max(r.since);
        let mut may: Vec<&Resident> = (node.residents.iter())
            .filter(|r| self.may_go(now, r, model, models))
            .collect();
        may.sort_by_key(|r| (used(r), r.since, r.unit));
        let mut evict: Vec<&Resident> = Vec::new();
        let mut room = node.available;
        for r in may {
            if room >= gpus {
                break;
            }
            room += self.spec.models[r.model].gpus;
            evict.push(r);
        }
        if room < gpus {
            return None;
        }
        // Whoever is not needed for the room after all stays.
        let mut spare = room - gpus;
        let mut needed = Vec::new();
        for r in evict.into_iter().rev() {
            let own = self.spec.models[r.model].gpus;
            if own <= spare {
                spare -= own;
            } else {
                needed.push(r);
            }
        }
        needed.reverse();
        let first = needed.first().map_or(SimTime::ZERO, |r| used(r));
        Some((first, needed.iter().map(|r| r.unit).collect()))
    }
}

#[cfg(test)]
mod tests;
