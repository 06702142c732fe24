//! Why a run is as fast as it is: what bound its steps, and what made requests wait.

use serde::{Deserialize, Serialize};

use crate::policy::Blocked;
use crate::record::RunRecord;

/// Shares of the replicas' time in the measurement window by what bound it; they add up to 1 [ratio]. A window in which no
/// step began counts as idle, and so does that of a deployment whose replicas nobody looked into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BoundBy {
    /// Reading weights from device memory.
    pub weights: f64,
    /// Reading or writing KV and activations in device memory.
    pub kv: f64,
    /// Arithmetic.
    pub compute: f64,
    /// Collectives and sends that nothing hides.
    pub communication: f64,
    /// Kernel launches and host work that nothing hides.
    pub host: f64,
    /// Pipeline stages waiting for each other.
    pub bubble: f64,
    /// No step under way.
    pub idle: f64,
}

/// Shares of the replicas' time in the measurement window during which requests waited because of a limit [ratio].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BlockedBy {
    /// No free KV blocks.
    pub kv_full: f64,
    /// As many sequences as the engine allows.
    pub max_seqs: f64,
    /// The step's token budget was spent.
    pub token_budget: f64,
}

/// Where on the latency-throughput curve the run was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Regime {
    /// Nothing was measured.
    Unknown,
    /// Below the knee: little waiting, and replicas idle or spend most of their time on what does not grow with the
    /// batch. Latency is that of the steps themselves.
    LatencyBound,
    /// Beyond the knee: requests waited for KV blocks.
    KvFull,
    /// Beyond the knee: requests waited for a sequence slot.
    SlotsFull,
    /// Beyond the knee: requests waited because each step's token budget was spent on prefill.
    PrefillBound,
    /// Always busy, mostly with arithmetic: every further request slows all of them.
    ComputeBound,
    /// Always busy, mostly with reading KV: every further request slows all of them.
    KvReadBound,
}

/// The diagnosis in words and in numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Diagnosis {
    /// Where on the curve the run was.
    pub regime: Regime,
    /// Two or three sentences on why: `knee` and `limit` together.
    pub text: String,
    /// Which side of the knee the run was on, and how that is known.
    pub knee: String,
    /// What limits it.
    pub limit: String,
    /// Requests like those of this run, at once, that fill a replica's KV cache; null where none ran or KV is not paged.
    pub kv_fits_requests: Option<f64>,
}

/// Time during which requests waited for one reason from which on the run counts as beyond its knee [ratio].
const BLOCKED_SHARE: f64 = 0.1;
/// Idle time up to which replicas count as always busy [ratio].
const BUSY_IDLE_SHARE: f64 = 0.02;

/// Share of busy time spent on what grows with the batch (arithmetic, KV) from which on the steps are the limit [ratio].
const GROWING_SHARE: f64 = 0.5;

/// Shares of time by cause.
pub fn bound_by(record: &RunRecord) -> BoundBy {
    let total = replica_ns(record);
    let busy: f64 = record.replicas.iter().map(|r| r.busy.0 as f64).sum();
    let mut parts = [0.0; 6];
    let mut attributed = 0.0;
    for replica in &record.replicas {
        // Steps of a pipeline overlap, so their parts are shared out over the time that was really busy.
        let sum: f64 = replica.parts_ps.iter().map(|p| *p as f64).sum();
        if sum > 0.0 {
            attributed += replica.busy.0 as f64;
            for (share, part) in parts.iter_mut().zip(replica.parts_ps) {
                *share += part as f64 / sum * replica.busy.0 as f64;
            }
        }
    }
    if total == 0.0 || attributed == 0.0 {
        return BoundBy {
            idle: 1.0,
            ..BoundBy::default()
        };
    }
    // The end of a step that began before the window is busy time without parts: it counts as the rest does.
    let [weights, kv, compute, communication, host, bubble] =
        parts.map(|p| p / attributed * busy / total);
    BoundBy {
        weights,
        kv,
        compute,
        communication,
        host,
        bubble,
        idle: (1.0 - busy / total).max(0.0),
    }
}

/// Shares of time during which a limit made requests wait.
pub fn blocked_by(record: &RunRecord) -> BlockedBy {
    let total = replica_ns(record);
    if total == 0.0 {
        return BlockedBy::default();
    }
    let share = |cause: Blocked| {
        let i = Blocked::CAUSES.iter().position(|c| *c == cause);
        let ns: f64 = i.map_or(0.0, |i| {
            record.replicas.iter().map(|r| r.blocked_ns[i] as f64).sum()
        });
        ns / total
    };
    BlockedBy {
        kv_full: share(Blocked::KvFull),
        max_seqs: share(Blocked::MaxSeqs),
        token_budget: share(Blocked::TokenBudget),
    }
}

/// Time that replicas were there, all together.
fn replica_ns(record: &RunRecord) -> f64 {
    match super::lives::lives(record) {
        Some(lives) => lives.iter().sum(),
        None => record.replicas.len() as f64 * record.window.length.0 as f64,
    }
}

/// Requests like those of the run that fill the KV cache of a replica, from the blocks that running requests held.
pub fn kv_fits_requests(record: &RunRecord) -> Option<f64> {
    let blocks: u64 = record.info.replicas.iter().map(|r| r.kv_blocks).sum();
    let held: f64 = record.replicas.iter().map(|r| r.kv_block_ns as f64).sum();
    let running: f64 = record.replicas.iter().map(|r| r.running_ns as f64).sum();
    let per_replica = blocks as f64 / record.info.replicas.len() as f64;
    (blocks > 0 && held > 0.0 && running > 0.0).then(|| per_replica * running / held)
}

/// What the shares mean; `fits` is [`kv_fits_requests`].
pub fn diagnose(bound: &BoundBy, blocked: &BlockedBy, fits: Option<f64>) -> Diagnosis {
    let busy = 1.0 - bound.idle;
    if busy <= 0.0 {
        let text = "No step ran inside the measurement window.";
        return Diagnosis {
            regime: Regime::Unknown,
            text: text.into(),
            knee: text.into(),
            limit: "Not known.".into(),
            kv_fits_requests: fits,
        };
    }
    let (main, share) = largest_part(bound);
    let steps = format!("{:.0} % of busy time goes to {main}", 100.0 * share / busy);
    let (regime, knee, limit) =
        beyond(blocked, &steps).unwrap_or_else(|| below_or_at(bound, busy, &steps));
    let room = fits.map_or(String::new(), |n| {
        format!(" KV is full at about {n:.0} such requests per replica.")
    });
    Diagnosis {
        regime,
        text: format!("{knee} {limit}{room}"),
        knee,
        limit,
        kv_fits_requests: fits,
    }
}

/// Regime, knee and limit where requests waited for a limit of the engine.
fn beyond(blocked: &BlockedBy, steps: &str) -> Option<(Regime, String, String)> {
    let causes = [
        (blocked.kv_full, Regime::KvFull),
        (blocked.max_seqs, Regime::SlotsFull),
        (blocked.token_budget, Regime::PrefillBound),
    ];
    let mut worst = causes[0];
    for cause in causes {
        if cause.0 > worst.0 {
            worst = cause;
        }
    }
    let (share, regime) = worst;
    if share < BLOCKED_SHARE {
        return None;
    }
    let (why, limit) = match regime {
        Regime::KvFull => (
            "no KV blocks were free",
            "KV-full: more memory per replica, a smaller KV dtype, shorter contexts or more replicas move the knee",
        ),
        Regime::SlotsFull => (
            "the engine ran as many sequences as it may",
            "Slots full: a larger sequence limit moves the knee if KV allows it",
        ),
        _ => (
            "the step's token budget was spent",
            "Prefill-bound: more arithmetic (devices, a faster dtype) or prefix hits move the knee",
        ),
    };
    let knee = format!(
        "Beyond the knee: for {:.0} % of the time requests waited because {why}.",
        100.0 * share
    );
    Some((regime, knee, format!("{limit}; {steps}.")))
}

/// Regime, knee and limit where hardly any request waited for a limit of the engine.
fn below_or_at(bound: &BoundBy, busy: f64, steps: &str) -> (Regime, String, String) {
    let step_times = format!("The time of a step: {steps}.");
    if bound.idle > BUSY_IDLE_SHARE {
        let knee = format!(
            "Below the knee: replicas idle {:.0} % of the time, and hardly any request waits for a limit of the engine.",
            100.0 * bound.idle
        );
        return (Regime::LatencyBound, knee, step_times);
    }
    let growing = (bound.compute + bound.kv) / busy;
    if growing < GROWING_SHARE {
        let knee = format!(
            "Below the knee, though a step is always under way. Busy does not mean full: a step takes nearly as long for few \
             requests as for many ({:.0} % of its time grows with them), so more at once raise throughput at little cost; \
             hardly any waits for a limit of the engine.",
            100.0 * growing
        );
        return (Regime::LatencyBound, knee, step_times);
    }
    let (regime, name, part, larger) = if bound.compute >= bound.kv {
        (
            Regime::ComputeBound,
            "Compute-bound",
            "arithmetic",
            bound.compute,
        )
    } else {
        (
            Regime::KvReadBound,
            "Bound by reading KV",
            "reading KV (memory bandwidth)",
            bound.kv,
        )
    };
    // What grows decides, and need not be the largest part.
    let of_it = if largest_part(bound).0 == part {
        String::new()
    } else {
        let share = 100.0 * larger / busy;
        format!("of what grows, {part} is the larger part ({share:.0} % of busy time); ")
    };
    let knee = format!(
        "At the knee or beyond: a step is always under way, and {:.0} % of its time grows with the requests in it, so every \
         further one slows all of them.",
        100.0 * growing
    );
    (regime, knee, format!("{name}: {of_it}{steps}."))
}

fn largest_part(bound: &BoundBy) -> (&'static str, f64) {
    let parts = [
        ("reading weights (memory bandwidth)", bound.weights),
        ("reading KV (memory bandwidth)", bound.kv),
        ("arithmetic", bound.compute),
        ("communication between devices", bound.communication),
        ("host work and launches", bound.host),
        ("pipeline bubbles", bound.bubble),
    ];
    let mut largest = parts[0];
    for part in parts {
        if part.1 > largest.1 {
            largest = part;
        }
    }
    largest
}

/// A regime in a word.
pub fn regime_name(regime: Regime) -> &'static str {
    match regime {
        Regime::Unknown => "-",
        Regime::LatencyBound => "below knee",
        Regime::KvFull => "KV-full",
        Regime::SlotsFull => "slots full",
        Regime::PrefillBound => "prefill-bound",
        Regime::ComputeBound => "compute-bound",
        Regime::KvReadBound => "KV-read-bound",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::time::{SimDuration, SimTime};
    use crate::metrics::{RecordOptions, Recorder};
    use crate::record::{ReplicaUse, RunInfo};

    fn bound(idle: f64) -> BoundBy {
        BoundBy {
            weights: (1.0 - idle) * 0.7,
            compute: (1.0 - idle) * 0.3,
            idle,
            ..BoundBy::default()
        }
    }

    #[test]
    fn idle_replicas_without_waiting_are_below_the_knee() {
        let d = diagnose(&bound(0.4), &BlockedBy::default(), None);
        assert_eq!(d.regime, Regime::LatencyBound);
        let roomy = diagnose(&bound(0.4), &BlockedBy::default(), Some(29.4));
        assert!(
            roomy
                .text
                .ends_with("KV is full at about 29 such requests per replica.")
        );
        assert!(
            d.text.contains("70 % of busy time goes to reading weights"),
            "{}",
            d.text
        );
    }

    #[test]
    fn what_grows_is_named_beside_a_larger_part_that_does_not() {
        let steps = BoundBy {
            weights: 0.4,
            kv: 0.35,
            compute: 0.25,
            ..BoundBy::default()
        };
        let d = diagnose(&steps, &BlockedBy::default(), None);
        assert_eq!(d.regime, Regime::KvReadBound);
        let told = "reading KV (memory bandwidth) is the larger part (35 % of busy time); 40 % of busy time goes to reading weights";
        assert!(d.limit.contains(told), "{}", d.limit);
        let alone = BoundBy {
            weights: 0.3,
            kv: 0.5,
            compute: 0.2,
            ..BoundBy::default()
        };
        let d = diagnose(&alone, &BlockedBy::default(), None);
        assert_eq!(
            d.limit,
            "Bound by reading KV: 50 % of busy time goes to reading KV (memory bandwidth)."
        );
    }

    #[test]
    fn waiting_for_kv_is_kv_full_whatever_bounds_the_steps() {
        let blocked = BlockedBy {
            kv_full: 0.5,
            max_seqs: 0.1,
            token_budget: 0.0,
        };
        assert_eq!(diagnose(&bound(0.0), &blocked, None).regime, Regime::KvFull);
    }

    #[test]
    fn always_busy_replicas_are_told_apart_by_what_grows_with_the_batch() {
        let regime = |compute: f64, kv: f64| {
            let bound = BoundBy {
                weights: 1.0 - compute - kv,
                compute,
                kv,
                ..BoundBy::default()
            };
            diagnose(&bound, &BlockedBy::default(), None).regime
        };
        assert_eq!(regime(0.2, 0.2), Regime::LatencyBound);
        assert_eq!(regime(0.5, 0.1), Regime::ComputeBound);
        assert_eq!(regime(0.1, 0.5), Regime::KvReadBound);
    }

    #[test]
    fn always_busy_and_below_the_knee_says_how_both_can_be() {
        let bound = BoundBy {
            weights: 0.8,
            compute: 0.2,
            ..BoundBy::default()
        };
        let d = diagnose(&bound, &BlockedBy::default(), None);
        assert_eq!(d.regime, Regime::LatencyBound);
        assert!(d.knee.contains("Busy does not mean full"), "{}", d.knee);
        assert_eq!(d.text, format!("{} {}", d.knee, d.limit));
    }

    #[test]
    fn nothing_measured_has_no_diagnosis_and_is_idle() {
        let bound = bound_by(&record(0, [0; 6]));
        assert_eq!((bound.idle, bound.weights), (1.0, 0.0));
        let d = diagnose(&bound, &BlockedBy::default(), None);
        assert_eq!(d.regime, Regime::Unknown);
        let no_replica = RunRecord {
            replicas: Vec::new(),
            ..record(0, [0; 6])
        };
        assert_eq!(bound_by(&no_replica).idle, 1.0);
    }

    #[test]
    fn shares_add_up_to_one_whatever_part_of_a_step_the_window_holds() {
        // The end of a step that began before the window, alone and beside one that began inside it.
        let mut of_two = record(500, [0; 6]);
        of_two.replicas.push(ReplicaUse {
            busy: SimDuration(250),
            parts_ps: [100, 0, 300, 0, 0, 0],
            ..ReplicaUse::default()
        });
        for record in [record(500, [0; 6]), of_two] {
            let b = bound_by(&record);
            let parts = [
                b.weights,
                b.kv,
                b.compute,
                b.communication,
                b.host,
                b.bubble,
                b.idle,
            ];
            assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{b:?}");
        }
    }

    /// A record of one replica in a window of 1000 ns.
    fn record(busy_ns: u64, parts_ps: [u64; 6]) -> RunRecord {
        let nothing = Recorder::new(&RecordOptions::default());
        let mut record = nothing
            .finish(SimTime(1000), RunInfo::default())
            .expect("nothing offered, nothing lost");
        record.replicas = vec![ReplicaUse {
            busy: SimDuration(busy_ns),
            parts_ps,
            ..ReplicaUse::default()
        }];
        record
    }
}
