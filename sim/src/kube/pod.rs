//! A pod.

use super::flows::Load;
use super::record::{PodRow, StartRow};
use crate::control::actuation::Path;
use crate::kernel::time::SimTime;

/// A pod.
pub(super) struct Pod {
    pub unit: usize,
    pub name: String,
    pub node: Option<usize>,
    pub created: SimTime,
    pub scheduled: SimTime,
    pub started: SimTime,
    pub loaded: SimTime,
    pub gang_loaded: SimTime,
    pub up: SimTime,
    pub ready: SimTime,
    pub gone: SimTime,
    pub restarts: u32,
    /// Starts that ended in a crash.
    pub earlier: Vec<StartRow>,
    /// Its container is the first of ours on its node.
    pub is_first: bool,
    /// It crashed, and waits for its next start (CrashLoopBackOff).
    pub is_backing_off: bool,
    /// Crashes since the pause was last the shortest.
    pub backoffs: u32,
    /// Its accelerators on its node, by their numbers; told only where instances sleep on them.
    pub gpus: Vec<u32>,
    /// The vLLM instance that serves for it, or has.
    pub instance: Option<usize>,
    /// How it got that.
    pub path: Option<Path>,
    /// It has that instance now.
    pub is_bound: bool,
    /// Its load of weights, while that is under way.
    pub load: Option<Load>,
    pub unschedulable: String,
    /// What kept nodes from being added for it.
    pub limit: String,
}

impl From<Pod> for PodRow {
    fn from(p: Pod) -> PodRow {
        PodRow {
            name: p.name,
            replica: p.unit,
            node: p.node,
            created: p.created,
            scheduled: p.scheduled,
            started: p.started,
            loaded: p.loaded,
            gang_loaded: p.gang_loaded,
            up: p.up,
            ready: p.ready,
            gone: p.gone,
            restarts: p.restarts,
            earlier: p.earlier,
            instance: p.instance,
            path: p.path,
            unschedulable: p.unschedulable,
            limit: p.limit,
        }
    }
}
