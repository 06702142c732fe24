//! llm-d's workload-variant autoscaler in a run: peaks of the replicas' gauges over the last minute, and the wish that its HPA acts on.

use std::collections::VecDeque;

use super::record::Controller;
use super::seen::{Seen, Told};
use super::sight::Vitals;
use super::spec::{EngineFacts, WvaVariant};
use crate::control::wva::{ReplicaView, VariantView, Wva};
use crate::kernel::time::{SimDuration, SimTime};

/// `max_over_time(...[1m])` of its queries.
const WINDOW: SimDuration = SimDuration(60_000_000_000);

/// What a look at a replica saw.
#[derive(Clone, Copy)]
struct Look {
    at: SimTime,
    unit: usize,
    kv: f64,
    waiting: f64,
}

/// The one variant of a run, and its autoscaler.
pub(super) struct Variant {
    spec: WvaVariant,
    facts: EngineFacts,
    wva: Wva,
    looks: VecDeque<Look>,
    next_look: SimTime,
}

impl Variant {
    pub fn new(spec: &WvaVariant, facts: EngineFacts) -> Result<Variant, String> {
        let first = SimTime::ZERO + SimDuration::from_secs(spec.config.interval.secs());
        Ok(Variant {
            wva: Wva::new(first, spec.config)?,
            spec: spec.clone(),
            facts,
            looks: VecDeque::new(),
            next_look: SimTime::ZERO + spec.scrape_interval,
        })
    }

    pub fn due(&self) -> SimTime {
        self.next_look.min(self.wva.due())
    }

    pub fn turn(&mut self, seen: &Seen) -> Vec<Told> {
        if self.next_look <= seen.now {
            self.look(seen);
            self.next_look = seen.now + self.spec.scrape_interval;
        }
        if self.wva.due() > seen.now {
            return Vec::new();
        }
        let ready: Vec<ReplicaView> = (seen.engines.iter())
            .filter_map(|(unit, vitals)| self.view(*unit, vitals))
            .collect();
        let variant = VariantView {
            name: &self.spec.name,
            cost: self.spec.cost,
            replicas: u32::try_from(seen.desired).unwrap_or(0),
            pending: seen.counted.saturating_sub(ready.len() as u32),
            ready: &ready,
        };
        let held = u32::try_from(seen.held).unwrap_or(u32::MAX);
        let d = self.wva.tick(seen.now, &[variant], held);
        let most = |of: fn(&ReplicaView) -> f64| ready.iter().map(of).fold(0.0, f64::max);
        let wanted = d.desired.first().copied();
        let mut told = Told::of(Controller::Wva, wanted, d.why);
        told.inputs = format!(
            "{} replicas report: KV cache at most {:.3}, queue at most {:.0}; {held} wait at the gateway",
            ready.len(),
            most(|r| r.kv_cache_usage),
            most(|r| r.queue_length)
        );
        vec![told]
    }

    fn look(&mut self, seen: &Seen) {
        for (unit, vitals) in seen.engines {
            self.looks.push_back(Look {
                at: seen.now,
                unit: *unit,
                kv: vitals.load.kv_use(),
                waiting: f64::from(vitals.load.waiting),
            });
        }
        while (self.looks.front()).is_some_and(|l| seen.now.since(l.at) > WINDOW) {
            self.looks.pop_front();
        }
    }

    /// A replica as its metrics of the last minute show it; none before the first scrape.
    fn view(&self, unit: usize, vitals: &Vitals) -> Option<ReplicaView> {
        let own = || self.looks.iter().filter(|l| l.unit == unit);
        own().next()?;
        let (t, n) = (vitals.totals, vitals.totals.finished.max(1) as f64);
        let blocks = vitals.load.kv_total_blocks as f64;
        Some(ReplicaView {
            kv_cache_usage: own().map(|l| l.kv).fold(0.0, f64::max),
            queue_length: own().map(|l| l.waiting).fold(0.0, f64::max),
            kv_capacity_tokens: blocks * f64::from(self.facts.block_tokens),
            avg_input_tokens: t.prompt_tokens as f64 / n,
            avg_output_tokens: t.output_tokens as f64 / n,
        })
    }
}
