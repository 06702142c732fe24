//! llm-d's fast model actuation: which server-requesting pod gets which vLLM instance of its node, and which sleepers are deleted.
//!
//! A server-requesting pod holds accelerators and runs no server. The dual-pods controller binds it to a vLLM instance on the same node that uses
//! those accelerators. When the pod is deleted its instance falls asleep, and the next pod of the same configuration on the same accelerators wakes
//! it (path "hot"). An instance that nobody had before is started in a launcher that has the Python modules loaded (path "warm"), or in a pod of its
//! own or a new launcher (path "cold").
//!
//! Source: llm-d-incubation/llm-d-fast-model-actuation 0.6, `docs/dual-pods.md`, `docs/metrics.md` (the names of the paths),
//! `pkg/controller/dual-pods/inference-server.go` (`selectOrReclaimLauncherPod`, `enforceSleeperBudget`), `cmd/dual-pods-controller/main.go`
//! (`--sleeper-limit`), `api/fma/v1alpha1` (`LauncherConfig`, `LauncherPopulationPolicy`).

use crate::kernel::time::SimTime;

/// Launchers of a node: `LauncherConfig` and `LauncherPopulationPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LauncherSpec {
    /// `LauncherConfig.spec.maxInstances`: instances of a launcher, of which one is awake at most.
    pub max_instances: usize,
    /// `countForLauncher.launcherCount`: launchers that each node has before anybody asks for one.
    pub launcher_count: usize,
}

/// Limits of the dual-pods controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DualPodsSpec {
    /// `--sleeper-limit`: sleeping instances on an accelerator when a new one is made there. Of direct providers; launchers have their own limit.
    pub sleeper_limit: usize,
    /// Launchers; `None`: each instance is the container of a pod of its own (a direct provider).
    pub launcher: Option<LauncherSpec>,
    /// `nodeInstanceBudget.maxInstances`: instances of a node, awake or asleep. 0: no limit.
    pub node_max_instances: usize,
}

impl Default for DualPodsSpec {
    fn default() -> Self {
        DualPodsSpec {
            sleeper_limit: 1,
            launcher: None,
            node_max_instances: 0,
        }
    }
}

impl DualPodsSpec {
    /// Most sleepers that an accelerator holds beside an instance that is awake: what memory is to be left for
    /// (`docs/dual-pods.md`, GPU memory planning).
    pub fn most_sleepers(&self) -> usize {
        match self.launcher {
            Some(l) => l.max_instances.saturating_sub(1),
            None => self.sleeper_limit,
        }
    }
}

/// How a server-requesting pod was satisfied: the label `path` of `fma_actuation_seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// A sleeping instance was woken.
    Hot,
    /// A launcher that was there started an instance.
    Warm,
    /// A pod of its own, or a launcher that was not there before.
    Cold,
}

impl Path {
    /// All of them, the quickest first.
    pub const ALL: [Path; 3] = [Path::Hot, Path::Warm, Path::Cold];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Path::Hot => "hot",
            Path::Warm => "warm",
            Path::Cold => "cold",
        }
    }
}

/// Names an instance; never used twice.
pub type InstanceId = usize;

/// A vLLM instance on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Instance {
    id: InstanceId,
    /// Its `InferenceServerConfig`.
    server: usize,
    /// Its accelerators, ascending.
    gpus: Vec<u32>,
    launcher: Option<usize>,
    is_asleep: bool,
    /// When it was last bound or unbound.
    last_used: SimTime,
    /// Model tensors of it in the host's memory [bytes]: they stay there after the first sleep, awake or not.
    host_bytes: u64,
}

/// A launcher pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Launcher {
    /// From when it answers.
    ready: SimTime,
    /// Bound to a server-requesting pod.
    is_bound: bool,
}

/// What the controller answers to a server-requesting pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is bound to an instance.
    Bound {
        /// Which: a sleeping one, or the new one with the id that was offered.
        instance: InstanceId,
        /// How.
        path: Path,
        /// Instances that were deleted for it.
        deleted: Vec<InstanceId>,
        /// In words.
        why: String,
    },
    /// Launchers that could serve it have not started: ask again then.
    Later(SimTime),
}

/// The instances and launchers of a node, as the dual-pods controller keeps them.
#[derive(Clone, Debug, Default)]
pub struct NodeInstances {
    launchers: Vec<Launcher>,
    instances: Vec<Instance>,
}

impl NodeInstances {
    /// The launcher populator brings the node's launchers to `spec`; the new ones answer from `ready` on.
    pub fn populate(&mut self, spec: &DualPodsSpec, ready: SimTime) {
        let count = spec.launcher.map_or(0, |l| l.launcher_count);
        while self.launchers.len() < count {
            self.launchers.push(Launcher {
                ready,
                is_bound: false,
            });
        }
    }

    /// A pod of configuration `server` holds the accelerators `gpus` (ascending): the instance that it gets, `new` being the id of one that is made.
    pub fn request(
        &mut self,
        now: SimTime,
        spec: &DualPodsSpec,
        server: usize,
        gpus: &[u32],
        new: InstanceId,
    ) -> Answer {
        let answer = match spec.launcher {
            Some(launcher) => self.by_launcher(now, spec, launcher, server, gpus, new),
            None => self.direct(now, spec, server, gpus, new),
        };
        if let Answer::Bound { instance, .. } = &answer
            && let Some(i) = self.instances.iter_mut().find(|i| i.id == *instance)
        {
            i.last_used = now;
            i.is_asleep = false;
            if let Some(l) = i.launcher {
                self.launchers[l].is_bound = true;
            }
        }
        answer
    }

    fn is_its(&self, i: &Instance, server: usize, gpus: &[u32]) -> bool {
        i.server == server && i.gpus == gpus && i.is_asleep
    }

    /// A direct provider: the sleeper of the same accelerators, or a new pod once the sleepers of each accelerator keep the limit.
    fn direct(
        &mut self,
        now: SimTime,
        spec: &DualPodsSpec,
        server: usize,
        gpus: &[u32],
        new: InstanceId,
    ) -> Answer {
        let found = self.instances.iter().find(|i| self.is_its(i, server, gpus));
        if let Some(id) = found.map(|i| i.id) {
            return woken(id, None);
        }
        let mut deleted = Vec::new();
        for gpu in gpus {
            let on = |i: &Instance| i.is_asleep && i.gpus.contains(gpu);
            let many = self.sleepers(on).len().saturating_sub(spec.sleeper_limit);
            self.delete_oldest(many, on, &mut deleted);
        }
        self.keep_budget(spec, &mut deleted);
        self.add(now, server, gpus, None, new);
        let why = format!("a new server-providing pod{}", told(&deleted, "sleeper"));
        Answer::Bound {
            instance: new,
            path: Path::Cold,
            deleted,
            why,
        }
    }

    /// Launchers: one with the sleeper, else one with room, else one whose sleepers are deleted, else a new one.
    fn by_launcher(
        &mut self,
        now: SimTime,
        spec: &DualPodsSpec,
        launcher: LauncherSpec,
        server: usize,
        gpus: &[u32],
        new: InstanceId,
    ) -> Answer {
        let most_others = launcher.max_instances.saturating_sub(1);
        let (mut with_room, mut later) = (None, None);
        // Victims, when the first of them was used, and the launcher.
        let mut plan: Option<(Vec<InstanceId>, SimTime, usize)> = None;
        for (l, state) in self.launchers.iter().enumerate() {
            if state.is_bound {
                continue;
            }
            if state.ready > now {
                later = Some(later.map_or(state.ready, |at: SimTime| at.min(state.ready)));
                continue;
            }
            let own: Vec<&Instance> = (self.instances.iter())
                .filter(|i| i.launcher == Some(l))
                .collect();
            if let Some(i) = own.iter().find(|i| self.is_its(i, server, gpus)) {
                return woken(i.id, Some(l));
            }
            // Instances of one configuration have one port: a launcher has one of each at most.
            let (same, mut others): (Vec<&Instance>, Vec<&Instance>) =
                own.iter().copied().partition(|i| i.server == server);
            if same.is_empty() && own.len() <= most_others {
                with_room = with_room.or(Some(l));
                continue;
            }
            let many = own.len().saturating_sub(most_others).max(1);
            others.sort_by_key(|i| (i.last_used, i.id));
            let victims: Vec<&Instance> = (same.iter().copied())
                .chain(others.into_iter().take(many.saturating_sub(same.len())))
                .collect();
            let first = victims.iter().map(|i| i.last_used).min().unwrap_or(now);
            let is_better = plan.as_ref().is_none_or(|(best, used, _)| {
                (victims.len(), std::cmp::Reverse(first)) > (best.len(), std::cmp::Reverse(*used))
            });
            if is_better {
                plan = Some((victims.iter().map(|i| i.id).collect(), first, l));
            }
        }
        let mut deleted = Vec::new();
        let (chosen, path, mut why) = match (with_room, plan, later) {
            (Some(l), _, _) => (l, Path::Warm, format!("launcher {l} starts an instance")),
            (None, Some((victims, _, l)), _) => {
                for id in victims {
                    self.delete(id);
                    deleted.push(id);
                }
                (l, Path::Warm, format!("launcher {l} starts an instance"))
            }
            (None, None, Some(at)) => return Answer::Later(at),
            (None, None, None) => {
                self.launchers.push(Launcher {
                    ready: now,
                    is_bound: true,
                });
                (
                    self.launchers.len() - 1,
                    Path::Cold,
                    "a new launcher".into(),
                )
            }
        };
        self.keep_budget(spec, &mut deleted);
        self.add(now, server, gpus, Some(chosen), new);
        why += &told(&deleted, "sleeper");
        Answer::Bound {
            instance: new,
            path,
            deleted,
            why,
        }
    }

    /// Makes room for one more instance on the node.
    fn keep_budget(&mut self, spec: &DualPodsSpec, deleted: &mut Vec<InstanceId>) {
        if spec.node_max_instances > 0 {
            let many = (self.instances.len() + 1).saturating_sub(spec.node_max_instances);
            self.delete_oldest(many, |i| i.is_asleep, deleted);
        }
    }

    fn add(
        &mut self,
        now: SimTime,
        server: usize,
        gpus: &[u32],
        launcher: Option<usize>,
        id: InstanceId,
    ) {
        self.instances.push(Instance {
            id,
            server,
            gpus: gpus.to_vec(),
            launcher,
            is_asleep: false,
            last_used: now,
            host_bytes: 0,
        });
    }

    /// Sleepers for which `is` holds, the least recently used first.
    fn sleepers(&self, is: impl Fn(&Instance) -> bool) -> Vec<InstanceId> {
        let mut all: Vec<&Instance> = self.instances.iter().filter(|i| is(i)).collect();
        all.sort_by_key(|i| (i.last_used, i.id));
        all.iter().map(|i| i.id).collect()
    }

    fn delete_oldest(
        &mut self,
        many: usize,
        is: impl Fn(&Instance) -> bool,
        deleted: &mut Vec<InstanceId>,
    ) {
        for id in self.sleepers(is).into_iter().take(many) {
            self.delete(id);
            deleted.push(id);
        }
    }

    /// An instance ends.
    pub fn delete(&mut self, id: InstanceId) {
        if let Some(i) = self.instances.iter().position(|i| i.id == id) {
            self.unbind(i);
            self.instances.remove(i);
        }
    }

    fn unbind(&mut self, i: usize) {
        if let (Some(l), false) = (self.instances[i].launcher, self.instances[i].is_asleep) {
            self.launchers[l].is_bound = false;
        }
    }

    /// Room in the host's memory, which holds `capacity` bytes (`None`: any number), for the `bytes` of instance `id` that is to fall asleep: sleepers
    /// that were deleted for it, the least recently used first; `None`: there is no room, and none is made.
    pub fn make_host_room(
        &mut self,
        id: InstanceId,
        bytes: u64,
        capacity: Option<u64>,
    ) -> Option<Vec<InstanceId>> {
        let mut deleted = Vec::new();
        let Some(capacity) = capacity else {
            self.hold(id, bytes);
            return Some(deleted);
        };
        let asleep = |i: &Instance| i.is_asleep && i.id != id;
        let of_awake: u64 = (self.instances.iter())
            .filter(|i| !asleep(i) && i.id != id)
            .map(|i| i.host_bytes)
            .sum();
        if of_awake.saturating_add(bytes) > capacity {
            return None;
        }
        while self.host_bytes_but(id).saturating_add(bytes) > capacity {
            let before = deleted.len();
            // Level 2 leaves nothing there: deleting such a sleeper makes no room.
            self.delete_oldest(1, |i| asleep(i) && i.host_bytes > 0, &mut deleted);
            if deleted.len() == before {
                break;
            }
        }
        self.hold(id, bytes);
        Some(deleted)
    }

    fn hold(&mut self, id: InstanceId, bytes: u64) {
        if let Some(i) = self.instances.iter_mut().find(|i| i.id == id) {
            i.host_bytes = bytes;
        }
    }

    fn host_bytes_but(&self, id: InstanceId) -> u64 {
        let others = self.instances.iter().filter(|i| i.id != id);
        others.map(|i| i.host_bytes).sum()
    }

    /// Model tensors in the host's memory [bytes].
    pub fn host_bytes(&self) -> u64 {
        self.instances.iter().map(|i| i.host_bytes).sum()
    }

    /// Instance `id` sleeps; its launcher may be bound again.
    pub fn asleep(&mut self, now: SimTime, id: InstanceId) {
        if let Some(i) = self.instances.iter().position(|i| i.id == id) {
            self.unbind(i);
            self.instances[i].is_asleep = true;
            self.instances[i].last_used = now;
        }
    }

    /// Instances there are.
    pub fn len(&self) -> usize {
        self.instances.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }

    /// Sleepers there are.
    pub fn count_asleep(&self) -> usize {
        self.instances.iter().filter(|i| i.is_asleep).count()
    }

    /// Sleepers on each accelerator that has some, by its number.
    pub fn asleep_on(&self, gpu: u32) -> usize {
        let on = |i: &&Instance| i.is_asleep && i.gpus.contains(&gpu);
        self.instances.iter().filter(on).count()
    }
}

fn woken(instance: InstanceId, launcher: Option<usize>) -> Answer {
    let of = launcher.map_or(String::new(), |l| format!(" of launcher {l}"));
    Answer::Bound {
        instance,
        path: Path::Hot,
        deleted: Vec::new(),
        why: format!("a sleeping instance{of} is woken"),
    }
}

fn told(deleted: &[InstanceId], what: &str) -> String {
    match deleted.len() {
        0 => String::new(),
        1 => format!("; 1 {what} deleted"),
        n => format!("; {n} {what}s deleted"),
    }
}

#[cfg(test)]
mod tests;
