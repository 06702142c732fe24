//! A container that crashes, and its next start.

use super::super::cluster::Cluster;
use super::super::event::Event;
use super::super::record::{Controller, StartRow};
use super::super::sight::Order;
use super::super::unit::State;
use super::LONGEST_BACKOFF;
use crate::kernel::time::{SimDuration, SimTime};

/// A container that ran for so long begins with the shortest pause again.
const BACKOFF_RESET: SimDuration = SimDuration(600_000_000_000);

impl Cluster {
    /// The engine of a replica crashes. Its container starts again on the same node; a group of several pods is made anew
    /// (RecreateGroupOnPodRestart).
    pub(in crate::kube) fn crash(&mut self, now: SimTime, unit: usize) {
        let u = &self.units[unit];
        // A container that has not started, or waits to start again, cannot crash.
        let runs = |p: &usize| {
            let pod = &self.pods[*p];
            pod.started <= now && !pod.is_backing_off
        };
        let is_starting = u.state == State::Starting && u.pods.iter().any(runs);
        if !is_starting && !matches!(u.state, State::Serving | State::Draining) {
            return;
        }
        if let Some(engine) = u.engine {
            self.orders.push(Order::Kill(engine));
        }
        let is_draining = u.state == State::Draining;
        self.stop_serving(now, unit);
        let u = &mut self.units[unit];
        u.why_gone = "crashed".into();
        let (deployment, p) = (u.deployment, u.pods[0]);
        let ran = now.since(self.pods[p].started);
        // What serves for a pod is bound to it once: when that is lost, the dual-pods controller deletes the pod.
        let is_dual = self.actuation.is_some();
        if is_dual {
            for p in self.units[unit].pods.clone() {
                self.crash_instance(now, p);
            }
        }
        if is_draining || is_dual || self.is_set_of_groups(deployment) {
            let next = match is_draining {
                true => "it was told to end",
                false if is_dual => "its pod goes with its instance",
                false => "its group is made anew",
            };
            self.crashed(now, p, ran, next);
            self.end(now, unit);
            return;
        }
        self.set_state(unit, State::Starting);
        let u = &mut self.units[unit];
        u.epoch += 1;
        u.engine = None;
        u.why_gone.clear();
        let epoch = u.epoch;
        self.drop_load(now, p);
        let pod = &mut self.pods[p];
        if ran >= BACKOFF_RESET {
            pod.backoffs = 0;
        }
        let first = self.spec.deployments[deployment].pod.restart_backoff.0;
        let doubled = first << pod.backoffs.min(8);
        let pause = SimDuration(doubled).min(LONGEST_BACKOFF);
        pod.restarts += 1;
        pod.backoffs += 1;
        pod.is_backing_off = true;
        pod.earlier.push(StartRow {
            after: pod.earlier.last().map_or(pod.scheduled, |s| s.crashed),
            started: pod.started,
            loaded: pod.loaded,
            gang_loaded: pod.gang_loaded,
            up: pod.up,
            ready: pod.ready,
            crashed: now,
        });
        pod.started = SimTime::NEVER;
        (pod.loaded, pod.gang_loaded) = (SimTime::NEVER, SimTime::NEVER);
        (pod.up, pod.ready) = (SimTime::NEVER, SimTime::NEVER);
        self.plan(now + pause, Event::PodStarted { pod: p, epoch });
        let next = format!(
            "its container starts again in {:.0} s (CrashLoopBackOff)",
            pause.as_secs()
        );
        self.crashed(now, p, ran, &next);
    }

    /// Tells of a crash, and of what comes of it.
    fn crashed(&mut self, now: SimTime, p: usize, ran: SimDuration, next: &str) {
        let name = self.pods[p].name.clone();
        let why = format!(
            "the container of {name} crashed {:.0} s after its start: {next}",
            ran.as_secs()
        );
        self.decided(now, Controller::Kubelet, &name, (0, 0), why);
    }
}
