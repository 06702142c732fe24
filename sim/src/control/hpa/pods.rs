//! Pods and their samples, and how the controller sorts them (4.2).
//!
//! Source: kubernetes `pkg/controller/podautoscaler/replica_calculator.go`, `groupPods`.

use super::spec::Settings;
use crate::kernel::time::{SimDuration, SimTime};

/// `status.phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// Bound to a node, at least one container runs.
    Running,
    /// All containers ended well.
    Succeeded,
    /// A container ended in failure.
    Failed,
}

/// The condition `Ready` of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyCondition {
    /// Its status.
    pub is_ready: bool,
    /// `lastTransitionTime`.
    pub since: SimTime,
}

/// What the controller sees of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodState {
    /// `status.phase`.
    pub phase: PodPhase,
    /// Whether a deletion timestamp is set.
    pub deleted: bool,
    /// `status.startTime`, if set.
    pub started: Option<SimTime>,
    /// The condition Ready, if set.
    pub ready: Option<ReadyCondition>,
}

impl PodState {
    /// Whether it counts for Object and External metrics: Running and Ready.
    pub fn is_running_and_ready(&self) -> bool {
        self.phase == PodPhase::Running && self.ready.is_some_and(|c| c.is_ready)
    }
}

/// A pod's value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Milli-units.
    pub value_milli: i64,
    /// When its window ended.
    pub taken: SimTime,
    /// The time that it covers.
    pub window: SimDuration,
}

/// What a metrics API returned for the pods of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSamples {
    /// By index of the pod; shorter: the rest have none.
    pub of_pods: Vec<Option<Sample>>,
    /// Samples of pods that are not listed. They are dropped.
    pub unlisted: usize,
}

impl PodSamples {
    pub(crate) fn of(&self, pod: usize) -> Option<Sample> {
        self.of_pods.get(pod).copied().flatten()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unlisted == 0 && self.of_pods.iter().all(Option::is_none)
    }
}

/// What a pod counts as in one evaluation of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodGroup {
    /// Counts, with its sample.
    Ready,
    /// Its sample is left out; it counts as 0 on a scale-up.
    Unready,
    /// Has no sample; filled in conservatively.
    Missing,
    /// Does not exist for the controller.
    Ignored,
}

/// Sorts a pod; the first rule that applies decides. `is_cpu`: the metric is the resource `cpu`.
pub fn group_of(
    pod: &PodState,
    sample: Option<Sample>,
    is_cpu: bool,
    now: SimTime,
    settings: &Settings,
) -> PodGroup {
    if pod.deleted || matches!(pod.phase, PodPhase::Failed | PodPhase::Succeeded) {
        return PodGroup::Ignored;
    }
    if pod.phase == PodPhase::Pending {
        return PodGroup::Unready;
    }
    let Some(sample) = sample else {
        return PodGroup::Missing;
    };
    if is_cpu && is_unready_for_cpu(pod, sample, now, settings) {
        return PodGroup::Unready;
    }
    PodGroup::Ready
}

/// Rule 4: a pod that starts up burns CPU that says nothing of its load.
fn is_unready_for_cpu(pod: &PodState, sample: Sample, now: SimTime, settings: &Settings) -> bool {
    let (Some(ready), Some(started)) = (pod.ready, pod.started) else {
        return true;
    };
    if started + settings.cpu_initialization_period > now {
        !ready.is_ready || sample.taken < ready.since + sample.window
    } else {
        // It became unready so soon after its start that it never was ready.
        !ready.is_ready && started + settings.initial_readiness_delay > ready.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SimTime = SimTime(1_000_000_000_000);

    fn ago(secs: u64) -> SimTime {
        SimTime(NOW.0 - secs * 1_000_000_000)
    }

    fn running(started: u64, is_ready: bool, since: u64) -> PodState {
        PodState {
            phase: PodPhase::Running,
            deleted: false,
            started: Some(ago(started)),
            ready: Some(ReadyCondition {
                is_ready,
                since: ago(since),
            }),
        }
    }

    fn sample(age: u64, window: u64) -> Option<Sample> {
        Some(Sample {
            value_milli: 1,
            taken: ago(age),
            window: SimDuration(window * 1_000_000_000),
        })
    }

    #[test]
    fn pods_that_end_are_ignored_whatever_else_holds() {
        let settings = Settings::default();
        let mut pod = running(900, true, 800);
        assert_eq!(
            group_of(&pod, sample(0, 30), true, NOW, &settings),
            PodGroup::Ready
        );
        for phase in [PodPhase::Failed, PodPhase::Succeeded] {
            pod.phase = phase;
            assert_eq!(
                group_of(&pod, sample(0, 30), false, NOW, &settings),
                PodGroup::Ignored
            );
        }
        pod.phase = PodPhase::Pending;
        assert_eq!(
            group_of(&pod, None, false, NOW, &settings),
            PodGroup::Unready
        );
        pod.deleted = true;
        assert_eq!(
            group_of(&pod, None, false, NOW, &settings),
            PodGroup::Ignored
        );
    }

    #[test]
    fn readiness_matters_for_cpu_alone() {
        let settings = Settings::default();
        let never_ready = running(900, false, 880);
        assert_eq!(
            group_of(&never_ready, sample(0, 30), true, NOW, &settings),
            PodGroup::Unready
        );
        assert_eq!(
            group_of(&never_ready, sample(0, 30), false, NOW, &settings),
            PodGroup::Ready
        );
        assert_eq!(
            group_of(&never_ready, None, true, NOW, &settings),
            PodGroup::Missing
        );
        let was_ready = running(900, false, 870);
        assert_eq!(
            group_of(&was_ready, sample(0, 30), true, NOW, &settings),
            PodGroup::Ready
        );
    }

    #[test]
    fn a_starting_pod_needs_a_sample_that_covers_a_window_after_it_became_ready() {
        let settings = Settings::default();
        let young = running(299, true, 40);
        assert_eq!(
            group_of(&young, sample(10, 30), true, NOW, &settings),
            PodGroup::Ready
        );
        assert_eq!(
            group_of(&young, sample(11, 30), true, NOW, &settings),
            PodGroup::Unready
        );
        let old = running(300, true, 40);
        assert_eq!(
            group_of(&old, sample(11, 30), true, NOW, &settings),
            PodGroup::Ready
        );
        let without_start = PodState {
            started: None,
            ..old
        };
        assert_eq!(
            group_of(&without_start, sample(0, 30), true, NOW, &settings),
            PodGroup::Unready
        );
        let without_condition = PodState { ready: None, ..old };
        assert_eq!(
            group_of(&without_condition, sample(0, 30), true, NOW, &settings),
            PodGroup::Unready
        );
    }
}
