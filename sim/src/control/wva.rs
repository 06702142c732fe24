//! llm-d's workload-variant autoscaler: replicas of the variants of one model, by saturation and cost.
//!
//! A variant is one way of serving the model (hardware, parallelism, quantization) with a cost per replica. Once in a reconcile interval the autoscaler
//! looks at every replica's KV cache and queue and says how many replicas each variant should have; an HPA or KEDA acts on that. Sources:
//! llm-d/llm-d-workload-variant-autoscaler `docs/saturation-analyzer.md` (percentages, V1), `internal/engines/analyzers/saturation_v2/analyzer.go` (tokens, V2),
//! `internal/engines/pipeline/cost_aware_optimizer.go`, `deploy/configmap-saturation-scaling.yaml` (defaults). Not modelled: `enableLimiter`, the throughput
//! analyzer, roles of prefill and decode, capacity guessed from the arguments of a variant that never ran.

use std::collections::{BTreeMap, VecDeque};

use hwmodels::units::Secs;
use serde::{Deserialize, Serialize};

use crate::kernel::time::{SimDuration, SimTime};

/// Which analyzer decides.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Analyzer {
    /// Spare share of KV cache and queue; one replica at a time. Without an `analyzers` section.
    Percentage,
    /// Tokens in use against the capacity of a replica; several at a time. The default since 0.9.
    #[default]
    Tokens,
}

/// The saturation-scaling ConfigMap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WvaSpec {
    /// Whether the `analyzers` section names the token analyzer.
    pub analyzer: Analyzer,
    /// `kvCacheThreshold`: a replica is saturated from this share of its KV cache on.
    pub kv_cache_threshold: f64,
    /// `queueLengthThreshold`: or from so many waiting requests on.
    pub queue_length_threshold: f64,
    /// `kvSpareTrigger`: grows where the mean spare share is below (percentages).
    pub kv_spare_trigger: f64,
    /// `queueSpareTrigger`: or the mean spare queue.
    pub queue_spare_trigger: f64,
    /// `scaleUpThreshold`: grows where demand is above this share of supply, pending replicas among it (tokens).
    pub scale_up_threshold: f64,
    /// `scaleDownBoundary`: shrinks where demand is below this share of supply.
    pub scale_down_boundary: f64,
    /// `GLOBAL_OPT_INTERVAL`: time between two decisions.
    pub interval: Secs,
}

impl Default for WvaSpec {
    fn default() -> Self {
        WvaSpec {
            analyzer: Analyzer::Tokens,
            kv_cache_threshold: 0.8,
            queue_length_threshold: 5.0,
            kv_spare_trigger: 0.1,
            queue_spare_trigger: 3.0,
            scale_up_threshold: 0.85,
            scale_down_boundary: 0.7,
            interval: Secs::new(60.0).unwrap_or_default(),
        }
    }
}

/// A replica that reports metrics: peaks of the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaView {
    /// Share of its KV cache in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Waiting requests.
    pub queue_length: f64,
    /// Tokens that its KV cache holds.
    pub kv_capacity_tokens: f64,
    /// Mean prompt length of its requests [tokens].
    pub avg_input_tokens: f64,
    /// Mean output length [tokens].
    pub avg_output_tokens: f64,
}

/// A variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantView<'a> {
    /// Its name; ties are broken by it.
    pub name: &'a str,
    /// `cost` of a replica; 10 unless set.
    pub cost: f64,
    /// Replicas, pending ones among them.
    pub replicas: u32,
    /// Of these, those that do not report yet.
    pub pending: u32,
    /// Replicas that report.
    pub ready: &'a [ReplicaView],
}

/// What it decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Desired replicas of each variant, in the order of the inputs.
    pub desired: Vec<u32>,
    /// Why, in words.
    pub why: String,
}

/// Observations that the compute capacity of a variant is averaged over.
const HISTORY: usize = 10;

/// The autoscaler of one model, and what it remembers.
#[derive(Clone, Debug)]
pub struct Wva {
    spec: WvaSpec,
    /// Tokens in use on saturated replicas, by variant and class of output length.
    compute: BTreeMap<(String, u8), VecDeque<f64>>,
    /// Capacity of a replica when it was last seen.
    known: BTreeMap<String, f64>,
    next: SimTime,
}

impl Wva {
    /// An autoscaler that decides for the first time at `start`.
    ///
    /// # Errors
    /// The key that is wrong, by its real name.
    pub fn new(start: SimTime, spec: WvaSpec) -> Result<Wva, String> {
        let share = |key: &str, v: f64| match v > 0.0 && v <= 1.0 {
            true => Ok(()),
            false => Err(format!("{key}: must be above 0 and at most 1, got {v}")),
        };
        share("kvCacheThreshold", spec.kv_cache_threshold)?;
        share("scaleUpThreshold", spec.scale_up_threshold)?;
        share("scaleDownBoundary", spec.scale_down_boundary)?;
        if spec.scale_up_threshold <= spec.scale_down_boundary {
            return Err(format!(
                "scaleUpThreshold ({}): must be above scaleDownBoundary ({})",
                spec.scale_up_threshold, spec.scale_down_boundary
            ));
        }
        for (key, v) in [
            ("queueLengthThreshold", spec.queue_length_threshold),
            ("kvSpareTrigger", spec.kv_spare_trigger),
            ("queueSpareTrigger", spec.queue_spare_trigger),
            ("GLOBAL_OPT_INTERVAL", spec.interval.secs()),
        ] {
            if !(v.is_finite() && v > 0.0) {
                return Err(format!("{key}: must be above 0, got {v}"));
            }
        }
        if spec.kv_spare_trigger > spec.kv_cache_threshold {
            return Err(format!(
                "kvSpareTrigger ({}): must be at most kvCacheThreshold ({})",
                spec.kv_spare_trigger, spec.kv_cache_threshold
            ));
        }
        Ok(Wva {
            spec,
            compute: BTreeMap::new(),
            known: BTreeMap::new(),
            next: start,
        })
    }

    /// When the next decision is due.
    pub fn due(&self) -> SimTime {
        self.next
    }

    /// One decision. `waiting`: requests that wait at the endpoint picker, before any replica.
    pub fn tick(&mut self, now: SimTime, variants: &[VariantView], waiting: u32) -> Decision {
        self.next = now + SimDuration::from_secs(self.spec.interval.secs());
        match self.spec.analyzer {
            Analyzer::Percentage => self.by_percentage(variants),
            Analyzer::Tokens => self.by_tokens(variants, waiting),
        }
    }

    fn by_percentage(&self, variants: &[VariantView]) -> Decision {
        let s = &self.spec;
        let healthy: Vec<&ReplicaView> = variants
            .iter()
            .flat_map(|v| v.ready)
            .filter(|r| {
                r.kv_cache_usage < s.kv_cache_threshold && r.queue_length < s.queue_length_threshold
            })
            .collect();
        let reporting: usize = variants.iter().map(|v| v.ready.len()).sum();
        // Replicas on their way count, so that none is asked for twice.
        let current: Vec<u32> = variants
            .iter()
            .map(|v| v.ready.len() as u32 + v.pending)
            .collect();
        if reporting == 0 {
            return Decision {
                desired: variants.iter().map(|v| v.replicas).collect(),
                why: "kept: no replica reports".to_owned(),
            };
        }
        let n = healthy.len() as f64;
        let mean = |f: fn(&ReplicaView) -> f64| healthy.iter().map(|r| f(r)).sum::<f64>() / n;
        let (kv, queue) = (mean(|r| r.kv_cache_usage), mean(|r| r.queue_length));
        let (spare_kv, spare_queue) = (s.kv_cache_threshold - kv, s.queue_length_threshold - queue);
        let mut desired = current.clone();
        if healthy.is_empty()
            || spare_kv < s.kv_spare_trigger
            || spare_queue < s.queue_spare_trigger
        {
            if variants.iter().any(|v| v.pending > 0) {
                return Decision {
                    desired,
                    why: "kept: saturated, replicas are pending".to_owned(),
                };
            }
            if let Some(i) = cheapest(variants) {
                desired[i] += 1;
                let why = match healthy.is_empty() {
                    true => "all replicas are saturated".to_owned(),
                    false => format!("spare KV {spare_kv:.3}, spare queue {spare_queue:.1}"),
                };
                return Decision {
                    desired,
                    why: format!("{} one more: {why}", variants[i].name),
                };
            }
        }
        let scale = n / (n - 1.0);
        let safe = healthy.len() >= 2
            && s.kv_cache_threshold - kv * scale >= s.kv_spare_trigger
            && s.queue_length_threshold - queue * scale >= s.queue_spare_trigger;
        let dearest = (0..variants.len())
            .filter(|i| desired[*i] > 1)
            .max_by(|a, b| order(&variants[*a], &variants[*b]));
        match dearest.filter(|_| safe) {
            Some(i) => {
                desired[i] -= 1;
                Decision {
                    desired,
                    why: format!(
                        "{} one less: the others keep spare capacity",
                        variants[i].name
                    ),
                }
            }
            None => Decision {
                desired,
                why: format!("kept: spare KV {spare_kv:.3}, spare queue {spare_queue:.1}"),
            },
        }
    }

    fn by_tokens(&mut self, variants: &[VariantView], waiting: u32) -> Decision {
        let mut capacity = Vec::new();
        let (mut demand, mut supply, mut coming) = (0.0, 0.0, 0.0);
        for v in variants {
            let each = self.capacity_of(v);
            demand += v.ready.iter().map(demand_of).sum::<f64>();
            supply += each * v.ready.len() as f64;
            coming += each * f64::from(v.ready.len() as u32 + v.pending);
            capacity.push(each);
        }
        let all: Vec<&ReplicaView> = variants.iter().flat_map(|v| v.ready).collect();
        let lengths: Vec<f64> = all
            .iter()
            .map(|r| r.avg_input_tokens)
            .filter(|l| *l > 0.0)
            .collect();
        if !lengths.is_empty() {
            demand += f64::from(waiting) * lengths.iter().sum::<f64>() / lengths.len() as f64;
        }
        let mut desired: Vec<u32> = variants.iter().map(|v| v.replicas).collect();
        let required = demand / self.spec.scale_up_threshold - coming;
        let spare = supply - demand / self.spec.scale_down_boundary;
        let figures =
            format!("demand {demand:.0} tokens, supply {supply:.0}, with pending {coming:.0}");
        if required > 0.0 {
            let best = (0..variants.len())
                .filter(|i| capacity[*i] > 0.0)
                .min_by(|a, b| {
                    (variants[*a].cost / capacity[*a])
                        .total_cmp(&(variants[*b].cost / capacity[*b]))
                });
            let Some(i) = best else {
                return Decision {
                    desired,
                    why: format!("kept: {figures}; no variant's capacity is known"),
                };
            };
            let more = (required / capacity[i]).ceil() as u32;
            desired[i] += more;
            return Decision {
                desired,
                why: format!("{} {more} more: {figures}", variants[i].name),
            };
        }
        if spare > 0.0 {
            let removed = shrink(variants, &capacity, spare, &mut desired);
            if !removed.is_empty() {
                return Decision {
                    desired,
                    why: format!("{}: {figures}", removed.join(", ")),
                };
            }
        }
        Decision {
            desired,
            why: format!("kept: {figures}"),
        }
    }

    /// Tokens that a replica of a variant can have in hand: the median of those that report, or what was last seen.
    fn capacity_of(&mut self, variant: &VariantView) -> f64 {
        let mut found: Vec<f64> = variant
            .ready
            .iter()
            .filter(|r| r.kv_capacity_tokens > 0.0)
            .map(|r| {
                let memory = r.kv_capacity_tokens * self.spec.kv_cache_threshold;
                memory.min(self.compute_capacity(variant.name, r).unwrap_or(memory))
            })
            .collect();
        if found.is_empty() {
            return self.known.get(variant.name).copied().unwrap_or(0.0);
        }
        found.sort_by(f64::total_cmp);
        let n = found.len();
        let median = 0.5 * (found[n / 2] + found[(n - 1) / 2]);
        self.known.insert(variant.name.to_owned(), median);
        median
    }

    /// What a replica had in hand when its queue was full: now, or on average before.
    fn compute_capacity(&mut self, variant: &str, r: &ReplicaView) -> Option<f64> {
        let class = match r.avg_output_tokens {
            o if o < 100.0 => 0,
            o if o < 500.0 => 1,
            _ => 2,
        };
        let history = self.compute.entry((variant.to_owned(), class)).or_default();
        let used = tokens_in_use(r);
        if r.queue_length >= self.spec.queue_length_threshold && used > 0.0 {
            history.push_back(used);
            if history.len() > HISTORY {
                history.pop_front();
            }
            return Some(used);
        }
        (!history.is_empty()).then(|| history.iter().sum::<f64>() / history.len() as f64)
    }
}

fn tokens_in_use(r: &ReplicaView) -> f64 {
    r.kv_cache_usage * r.kv_capacity_tokens
}

fn demand_of(r: &ReplicaView) -> f64 {
    tokens_in_use(r) + r.queue_length * r.avg_input_tokens
}

fn order(a: &VariantView, b: &VariantView) -> std::cmp::Ordering {
    a.cost.total_cmp(&b.cost).then_with(|| a.name.cmp(b.name))
}

fn cheapest(variants: &[VariantView]) -> Option<usize> {
    (0..variants.len()).min_by(|a, b| order(&variants[*a], &variants[*b]))
}

/// Takes replicas from the dearest variants first; the last replica of the cheapest stays. What was taken, in words.
fn shrink(
    variants: &[VariantView],
    capacity: &[f64],
    mut spare: f64,
    desired: &mut [u32],
) -> Vec<String> {
    let mut dearest_first: Vec<usize> = (0..variants.len()).collect();
    dearest_first.sort_by(|a, b| variants[*b].cost.total_cmp(&variants[*a].cost));
    let cheapest = cheapest(variants);
    let mut removed = Vec::new();
    for i in dearest_first {
        if spare <= 0.0 || capacity[i] <= 0.0 {
            continue;
        }
        let others = (0..desired.len()).any(|j| j != i && desired[j] > 0);
        let keep = u32::from(cheapest == Some(i) && !others);
        let less = ((spare / capacity[i]).floor() as u32).min(desired[i].saturating_sub(keep));
        if less > 0 {
            desired[i] -= less;
            spare -= f64::from(less) * capacity[i];
            removed.push(format!("{} {less} less", variants[i].name));
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(kv: f64, queue: f64) -> ReplicaView {
        ReplicaView {
            kv_cache_usage: kv,
            queue_length: queue,
            kv_capacity_tokens: 10_000.0,
            avg_input_tokens: 100.0,
            avg_output_tokens: 200.0,
        }
    }

    fn variant<'a>(
        name: &'a str,
        cost: f64,
        pending: u32,
        ready: &'a [ReplicaView],
    ) -> VariantView<'a> {
        VariantView {
            name,
            cost,
            replicas: ready.len() as u32 + pending,
            pending,
            ready,
        }
    }

    fn wva(analyzer: Analyzer) -> Wva {
        Wva::new(
            SimTime::ZERO,
            WvaSpec {
                analyzer,
                ..WvaSpec::default()
            },
        )
        .expect("right")
    }

    fn decide(analyzer: Analyzer, variants: &[VariantView]) -> Vec<u32> {
        wva(analyzer).tick(SimTime::ZERO, variants, 0).desired
    }

    #[test]
    fn by_percentage_little_spare_capacity_adds_one_of_the_cheapest() {
        let busy = [replica(0.71, 0.0), replica(0.71, 0.0)];
        let calm = [replica(0.68, 0.0), replica(0.71, 0.0)];
        let two = |a: &[ReplicaView], b: &[ReplicaView]| {
            decide(
                Analyzer::Percentage,
                &[variant("h100", 20.0, 0, a), variant("l4", 5.0, 0, b)],
            )
        };
        assert_eq!(two(&busy, &busy), [2, 3]);
        assert_eq!(two(&calm, &calm), [2, 2], "0.105 is spare");
        let queued = [replica(0.1, 2.1), replica(0.1, 2.1)];
        assert_eq!(two(&queued, &queued), [2, 3], "2.9 of 5 are spare");
    }

    #[test]
    fn by_percentage_saturated_replicas_are_left_out_of_the_mean() {
        let full = [
            replica(0.8, 0.0),
            replica(0.3, 5.0),
            replica(0.3, 1.0),
            replica(0.3, 1.0),
        ];
        assert_eq!(
            decide(Analyzer::Percentage, &[variant("a", 10.0, 0, &full)]),
            [3],
            "the two others are calm"
        );
        let all = [replica(0.8, 0.0), replica(0.9, 9.0)];
        let d = wva(Analyzer::Percentage).tick(SimTime::ZERO, &[variant("a", 10.0, 0, &all)], 0);
        assert_eq!(
            (d.desired, d.why.as_str()),
            (vec![3], "a one more: all replicas are saturated")
        );
    }

    #[test]
    fn by_percentage_one_less_only_where_the_others_can_take_its_load() {
        let calm = [replica(0.34, 0.0), replica(0.34, 0.0)];
        assert_eq!(
            decide(Analyzer::Percentage, &[variant("a", 10.0, 0, &calm)]),
            [1],
            "0.68 leaves 0.12"
        );
        let fuller = [replica(0.36, 0.0), replica(0.36, 0.0)];
        assert_eq!(
            decide(Analyzer::Percentage, &[variant("a", 10.0, 0, &fuller)]),
            [2],
            "0.72 leaves 0.08"
        );
        let queued = [replica(0.1, 1.1), replica(0.1, 1.1)];
        assert_eq!(
            decide(Analyzer::Percentage, &[variant("a", 10.0, 0, &queued)]),
            [2],
            "2.2 leave 2.8"
        );
        let one = [replica(0.0, 0.0)];
        assert_eq!(
            decide(Analyzer::Percentage, &[variant("a", 10.0, 0, &one)]),
            [1]
        );
        let idle = [replica(0.0, 0.0), replica(0.0, 0.0)];
        let both = [
            variant("l4", 5.0, 0, &idle),
            variant("h100", 20.0, 0, &idle),
        ];
        assert_eq!(decide(Analyzer::Percentage, &both), [2, 1], "the dearest");
    }

    #[test]
    fn by_percentage_pending_replicas_are_waited_for() {
        let busy = [replica(0.79, 0.0)];
        assert_eq!(
            decide(Analyzer::Percentage, &[variant("a", 10.0, 1, &busy)]),
            [2]
        );
        assert_eq!(
            decide(Analyzer::Percentage, &[variant("a", 10.0, 2, &[])]),
            [2],
            "none reports"
        );
    }

    #[test]
    fn by_tokens_grows_by_as_many_as_demand_needs() {
        // A replica holds 8000 tokens: 80 % of 10 000. 2 x 7900 in use over 0.85 is 18 588.
        let busy = [replica(0.79, 0.0), replica(0.79, 0.0)];
        assert_eq!(
            decide(Analyzer::Tokens, &[variant("a", 10.0, 0, &busy)]),
            [3]
        );
        assert_eq!(
            decide(Analyzer::Tokens, &[variant("a", 10.0, 1, &busy)]),
            [3],
            "the pending one is supply to come"
        );
        let d = wva(Analyzer::Tokens).tick(SimTime::ZERO, &[variant("a", 10.0, 0, &busy)], 300);
        assert_eq!(
            d.desired,
            [7],
            "300 prompts of 100 tokens wait at the endpoint picker: 53 882 are needed"
        );
    }

    #[test]
    fn by_tokens_a_full_queue_shows_what_a_replica_can_compute() {
        let full = [replica(0.3, 10.0)];
        let mut w = wva(Analyzer::Tokens);
        // 3000 in use with a full queue: that is its capacity. Demand is 4000.
        assert_eq!(
            w.tick(SimTime::ZERO, &[variant("a", 10.0, 0, &full)], 0)
                .desired,
            [2]
        );
        let later = [replica(0.28, 0.0)];
        let d = w.tick(SimTime::ZERO, &[variant("a", 10.0, 0, &later)], 0);
        assert_eq!(
            d.desired,
            [2],
            "it is remembered: 2800 over 0.85 is more than 3000"
        );
    }

    #[test]
    fn by_tokens_the_cheapest_capacity_grows_and_the_dearest_shrinks() {
        let busy = [replica(0.9, 0.0)];
        let large = [ReplicaView {
            kv_capacity_tokens: 40_000.0,
            ..replica(0.9, 0.0)
        }];
        let grown = decide(
            Analyzer::Tokens,
            &[
                variant("l4", 5.0, 0, &busy),
                variant("h100", 15.0, 0, &large),
            ],
        );
        assert_eq!(grown, [1, 2], "15 for 32 000 beats 5 for 8000");
        let idle = [replica(0.01, 0.0), replica(0.01, 0.0)];
        let shrunk = decide(
            Analyzer::Tokens,
            &[
                variant("l4", 5.0, 0, &idle),
                variant("h100", 15.0, 0, &idle),
            ],
        );
        assert_eq!(shrunk, [1, 0], "the last of the cheapest stays");
        let middle = [replica(0.6, 0.0), replica(0.6, 0.0)];
        assert_eq!(
            decide(Analyzer::Tokens, &[variant("a", 5.0, 0, &middle)]),
            [2],
            "12 000 of 16 000"
        );
    }

    #[test]
    fn a_variant_without_replicas_is_known_from_before() {
        let mut w = wva(Analyzer::Tokens);
        let small = [replica(0.5, 0.0)];
        let other = [ReplicaView {
            kv_capacity_tokens: 40_000.0,
            ..replica(0.2, 0.0)
        }];
        w.tick(
            SimTime::ZERO,
            &[variant("a", 10.0, 0, &small), variant("b", 10.0, 0, &other)],
            0,
        );
        let busy = [replica(0.8, 0.0)];
        let d = w.tick(
            SimTime::ZERO,
            &[variant("a", 10.0, 0, &busy), variant("b", 10.0, 0, &[])],
            0,
        );
        assert_eq!(
            d.desired,
            [1, 1],
            "b was seen with 32 000 tokens for the same cost"
        );
        assert_eq!(w.due(), SimTime(60_000_000_000));
    }

    #[test]
    fn wrong_keys_are_named() {
        let refused = |change: fn(&mut WvaSpec), key: &str| {
            let mut spec = WvaSpec::default();
            change(&mut spec);
            let message = Wva::new(SimTime::ZERO, spec).expect_err(key);
            assert!(message.starts_with(key), "{message}");
        };
        refused(|s| s.kv_cache_threshold = 1.1, "kvCacheThreshold");
        refused(|s| s.scale_up_threshold = 0.7, "scaleUpThreshold");
        refused(|s| s.queue_length_threshold = 0.0, "queueLengthThreshold");
        refused(|s| s.kv_spare_trigger = 0.9, "kvSpareTrigger");
        refused(|s| s.interval = Secs::default(), "GLOBAL_OPT_INTERVAL");
    }
}
