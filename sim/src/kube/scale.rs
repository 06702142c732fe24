//! Turns of autoscalers that are no HPA: when they are, and what becomes of their decisions.

use super::cluster::Cluster;
use super::event::Event;
use super::record::{Controller, DecisionRow};
use super::scalers::Scaler;
use super::seen::Seen;
use super::sight::{Sight, Vitals};
use super::spec::ScalerSpec;
use crate::kernel::time::{SimDuration, SimTime};

impl Cluster {
    /// Plans the scaler's next turn.
    pub(super) fn plan_scaler(&mut self, now: Option<SimTime>) {
        let Some(due) = self.scaler.as_ref().map(Scaler::due) else {
            return;
        };
        if due == SimTime::NEVER {
            return;
        }
        // A turn that left something due at once would be taken for ever.
        let first = now.map_or(SimTime::ZERO, |now| now + SimDuration(1_000_000));
        self.plan(due.max(first), Event::Scale);
    }

    /// A turn of the scaler.
    pub(super) fn scale(&mut self, now: SimTime, sight: &dyn Sight) {
        let Some(mut scaler) = self.scaler.take() else {
            return;
        };
        let engines: Vec<(usize, Vitals)> = self
            .engines()
            .map(|(unit, engine)| (unit, sight.engine(engine)))
            .collect();
        let seen = Seen {
            now,
            offered: sight.offered(),
            ended: sight.ended(),
            held: sight.held(),
            desired: self.desired,
            counted: self.counted_units() as u32,
            ready: self.ready_units() as u32,
            engines: &engines,
            steps: sight.steps(),
        };
        let told = scaler.turn(&seen);
        let ready = seen.ready;
        for t in told {
            let from = self.desired;
            // The variant autoscaler's wish goes by way of its HPA.
            let to = match t.controller {
                Controller::Wva => {
                    let before = self.wished.unwrap_or(from);
                    self.wished = t.scale_to.or(self.wished);
                    self.note(DecisionRow {
                        at: now,
                        controller: t.controller,
                        about: "wva_desired_replicas".into(),
                        from: before.into(),
                        to: self.wished.unwrap_or(before).into(),
                        ready,
                        inputs: t.inputs,
                        why: t.why,
                    });
                    continue;
                }
                _ => t.scale_to.unwrap_or(from),
            };
            self.desired = to;
            self.note(DecisionRow {
                at: now,
                controller: t.controller,
                about: "replicas".into(),
                from: from.into(),
                to: to.into(),
                ready,
                inputs: t.inputs,
                why: t.why,
            });
        }
        self.scaler = Some(scaler);
        if matches!(self.spec.scaler, Some(ScalerSpec::SageMaker(_))) {
            self.instances_follow(now);
        }
        self.plan_scaler(Some(now));
    }

    /// An endpoint's instances come and go with its capacity, where no node autoscaler does that: the first group is as large as the
    /// replicas need, and gives back what is empty.
    fn instances_follow(&mut self, now: SimTime) {
        if self.autoscaler.is_some() || self.karpenter.is_some() {
            return;
        }
        let per_node = match self.spec.pod.requests.gpus {
            0 => 1,
            gpus => (self.spec.groups[0].template.gpus / gpus).max(1) as usize,
        };
        let pods = self.desired.max(0) as usize * self.spec.pod.size;
        let (min, max) = (self.groups[0].min, self.groups[0].max);
        let wanted = pods.div_ceil(per_node).clamp(min, max.max(min));
        let target = self.groups[0].target;
        if wanted > target {
            let why = format!("{pods} pods need {wanted} instances");
            self.set_group_size(now, 0, wanted);
            self.instances(now, (target, wanted), why);
        } else if wanted < target {
            let empty = self.count(0, |n| n.pods.is_empty() && !n.is_tainted());
            let size = target - empty.min(target - wanted);
            if size < target {
                self.shrink(now, 0, size);
                let why = format!("{pods} pods need {wanted} instances; {empty} are empty");
                self.instances(now, (target, size), why);
            }
        }
    }

    fn instances(&mut self, now: SimTime, (from, to): (usize, usize), why: String) {
        let name = self.spec.groups[0].name.clone();
        let sizes = (from as i64, to as i64);
        self.decided(now, Controller::Endpoint, &name, sizes, why);
    }
}
