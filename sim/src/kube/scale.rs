//! Turns of autoscalers that are no HPA: when they are, and what becomes of their decisions.

use super::cluster::Cluster;
use super::event::Event;
use super::record::{Controller, DecisionRow};
use super::scalers::Scaler;
use super::seen::{Seen, Told};
use super::sight::{Sight, Vitals};
use super::spec::ScalerSpec;
use crate::kernel::time::{SimDuration, SimTime};

impl Cluster {
    /// Plans the next turn of an autoscaler.
    pub(super) fn plan_scaler(&mut self, scaler: usize, now: Option<SimTime>) {
        let Some(due) = self.scalers[scaler].as_ref().map(Scaler::due) else {
            return;
        };
        if due == SimTime::NEVER {
            return;
        }
        // A turn that left something due at once would be taken for ever.
        let first = now.map_or(SimTime::ZERO, |now| now + SimDuration(1_000_000));
        self.plan(due.max(first), Event::Scale(scaler));
    }

    /// A turn of an autoscaler.
    pub(super) fn scale(&mut self, now: SimTime, scaler: usize, sight: &dyn Sight) {
        let Some(mut own) = self.scalers[scaler].take() else {
            return;
        };
        let scaled = self.spec.scalers[scaler].deployments.clone();
        let engines: Vec<Vec<(usize, Vitals)>> = (scaled.iter())
            .map(|d| {
                let engines = self.engines(*d);
                engines.map(|(u, e)| (u, sight.engine(e))).collect()
            })
            .collect();
        let seen: Vec<Seen> = (scaled.iter().zip(&engines))
            .map(|(d, engines)| self.seen(now, *d, engines, sight))
            .collect();
        let told = own.turn(&seen);
        self.scalers[scaler] = Some(own);
        for t in told {
            self.follow(now, scaled[t.deployment], t);
        }
        if matches!(self.spec.scalers[scaler].spec, ScalerSpec::SageMaker(_)) {
            self.instances_follow(now, scaled[0]);
        }
        self.plan_scaler(scaler, Some(now));
    }

    /// What an autoscaler sees of deployment `d`.
    fn seen<'a>(
        &self,
        now: SimTime,
        d: usize,
        engines: &'a [(usize, Vitals)],
        sight: &'a dyn Sight,
    ) -> Seen<'a> {
        let t = sight.traffic(d);
        Seen {
            now,
            offered: t.offered,
            ended: t.ended,
            held: t.held,
            desired: self.deployments[d].desired,
            counted: self.counted_units(d) as u32,
            ready: self.ready_of(d) as u32,
            engines,
            steps: sight.steps(d),
        }
    }

    /// Deployment `d` gets the size that its autoscaler says.
    fn follow(&mut self, now: SimTime, d: usize, t: Told) {
        let (about, ready) = (self.about(d), self.ready_of(d) as u32);
        let its = &mut self.deployments[d];
        // The variant autoscaler's wish goes by way of its HPA.
        let (about, from, to) = match t.controller {
            Controller::Wva => {
                let before = its.wish();
                its.wished = t.scale_to.or(its.wished);
                let about = match about.strip_suffix("replicas") {
                    Some(of) => format!("{of}wva_desired_replicas"),
                    None => about,
                };
                (about, before, its.wished.unwrap_or(before))
            }
            _ => {
                let from = its.desired;
                its.desired = t.scale_to.unwrap_or(from);
                (about, from, its.desired)
            }
        };
        self.note(DecisionRow {
            at: now,
            controller: t.controller,
            about,
            from: from.into(),
            to: to.into(),
            ready,
            inputs: t.inputs,
            why: t.why,
        });
    }

    /// An endpoint's instances come and go with its capacity, where no node autoscaler does that: the first group that deployment `d` may use is as
    /// large as the replicas need that have it as their first, and gives back what is empty.
    fn instances_follow(&mut self, now: SimTime, d: usize) {
        if self.autoscaler.is_some() || self.karpenter.is_some() {
            return;
        }
        let first =
            |d: usize| (0..self.groups.len()).find(|g| self.spec.deployments[d].may_use(*g));
        let Some(g) = first(d) else { return };
        let (mut pods, mut nodes) = (0, 0);
        for d in (0..self.deployments.len()).filter(|d| first(*d) == Some(g)) {
            let spec = &self.spec.deployments[d].pod;
            let per_node = match spec.requests.gpus {
                0 => 1,
                gpus => (self.spec.groups[g].template.gpus / gpus).max(1) as usize,
            };
            let own = self.deployments[d].wanted() * spec.size;
            (pods, nodes) = (pods + own, nodes + own.div_ceil(per_node));
        }
        let (min, max) = (self.groups[g].min, self.groups[g].max);
        let wanted = nodes.clamp(min, max.max(min));
        let target = self.groups[g].target;
        if wanted > target {
            let why = format!("{pods} pods need {wanted} instances");
            self.set_group_size(now, g, wanted);
            self.instances(now, g, (target, wanted), why);
        } else if wanted < target {
            let empty = self.count(g, |n| n.pods.is_empty() && !n.is_tainted());
            let size = target - empty.min(target - wanted);
            if size < target {
                self.shrink(now, g, size);
                let why = format!("{pods} pods need {wanted} instances; {empty} are empty");
                self.instances(now, g, (target, size), why);
            }
        }
    }

    fn instances(&mut self, now: SimTime, g: usize, (from, to): (usize, usize), why: String) {
        let name = self.spec.groups[g].name.clone();
        let sizes = (from as i64, to as i64);
        self.decided(now, Controller::Endpoint, &name, sizes, why);
    }
}
