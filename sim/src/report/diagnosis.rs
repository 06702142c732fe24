//! Why a run is as fast as it is: what bound its steps, and what made requests wait.

use serde::{Deserialize, Serialize};

use crate::policy::Blocked;
use crate::record::RunRecord;
use crate::report::figures::secs;
use crate::report::latency::LatencySummary;

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
    /// On both sides of the knee: replicas idle or have room for most of the time, and yet one request in ten waits long for its first step. The load or the
    /// number of replicas changes within the run.
    Uneven,
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

/// Median TTFTs that one request in ten waits at least for its first step where the room changed within the run [ratio]. In a queue that is in
/// balance (M/M/1, whatever its load) that is no more than 3.3.
const LONG_WAIT: f64 = 5.0;
/// Share of the time, or of the requests, from which on a reason to wait is named [ratio].
const NAMED_SHARE: f64 = 0.01;

/// How long requests waited for their first step. Shares of time ([`BlockedBy`]) show that only where as many requests come at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// 90th percentile of the queue time, where it says that the room changed within the run: it is many times the median TTFT, or half of the
    /// requests waited longer than all the rest of their time took [ms].
    pub long_p90_ms: Option<f64>,
    /// Median TTFT [ms].
    pub ttft_p50_ms: f64,
    /// Share of the requests that waited for replicas that were starting [0, 1].
    pub for_starts: f64,
}

impl Waits {
    /// Those of a run with these summaries.
    pub fn of(
        queue: &LatencySummary,
        ttft: &LatencySummary,
        e2e: &LatencySummary,
        for_starts: Option<f64>,
    ) -> Waits {
        let ttft_p50_ms = ttft.p50.unwrap_or(0.0);
        let served = |mean: f64| mean - queue.mean.unwrap_or(0.0);
        let long = queue.p90.is_some_and(|p90| p90 > LONG_WAIT * ttft_p50_ms)
            || queue.p50 > e2e.mean.map(served);
        Waits {
            long_p90_ms: queue.p90.filter(|_| long),
            ttft_p50_ms,
            for_starts: for_starts.unwrap_or(0.0),
        }
    }
}

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
pub fn diagnose(
    bound: &BoundBy,
    blocked: &BlockedBy,
    fits: Option<f64>,
    waits: &Waits,
) -> Diagnosis {
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
    let (regime, mut knee, limit) = beyond(blocked, &steps)
        .or_else(|| uneven(bound, blocked, waits, &steps))
        .unwrap_or_else(|| below_or_at(bound, busy, &steps));
    if waits.for_starts >= NAMED_SHARE {
        knee += &format!(
            " {:.0} % of the requests waited for replicas that were starting.",
            100.0 * waits.for_starts
        );
    }
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

/// The limit of the engine that made requests wait most: for which share of the time, its regime, and why.
fn worst_limit(blocked: &BlockedBy) -> (f64, Regime, &'static str) {
    let causes = [
        (blocked.kv_full, Regime::KvFull, "no KV blocks were free"),
        (
            blocked.max_seqs,
            Regime::SlotsFull,
            "the engine ran as many sequences as it may",
        ),
        (
            blocked.token_budget,
            Regime::PrefillBound,
            "the step's token budget was spent",
        ),
    ];
    let mut worst = causes[0];
    for cause in causes {
        if cause.0 > worst.0 {
            worst = cause;
        }
    }
    worst
}

/// Regime, knee and limit where requests waited for a limit of the engine.
fn beyond(blocked: &BlockedBy, steps: &str) -> Option<(Regime, String, String)> {
    let (share, regime, why) = worst_limit(blocked);
    if share < BLOCKED_SHARE {
        return None;
    }
    let limit = match regime {
        Regime::KvFull => {
            "KV-full: more memory per replica, a smaller KV dtype, shorter contexts or more replicas move the knee"
        }
        Regime::SlotsFull => "Slots full: a larger sequence limit moves the knee if KV allows it",
        _ => {
            "Prefill-bound: more arithmetic (devices, a faster dtype) or prefix hits move the knee"
        }
    };
    let knee = format!(
        "Beyond the knee: for {:.0} % of the time requests waited because {why}.",
        100.0 * share
    );
    Some((regime, knee, format!("{limit}; {steps}.")))
}

/// Regime, knee and limit where requests waited long although the replicas had room for most of the time; `None`: they had none.
fn uneven(
    bound: &BoundBy,
    blocked: &BlockedBy,
    waits: &Waits,
    steps: &str,
) -> Option<(Regime, String, String)> {
    let growing = (bound.compute + bound.kv) / (1.0 - bound.idle);
    let room = match bound.idle > BUSY_IDLE_SHARE {
        true => format!("replicas idle {:.0} % of the time", 100.0 * bound.idle),
        false if growing < GROWING_SHARE => {
            "a step takes nearly as long for few requests as for many".to_owned()
        }
        false => return None,
    };
    let (share, _, why) = worst_limit(blocked);
    let mut knee = format!(
        "On both sides of the knee: {room}, and yet one request in ten waits {} or longer for its first step, where the median TTFT is {}.",
        secs(waits.long_p90_ms? / 1e3),
        secs(waits.ttft_p50_ms / 1e3),
    );
    if share >= NAMED_SHARE {
        knee += &format!(
            " For {:.0} % of the replicas' time requests waited because {why}.",
            100.0 * share
        );
    }
    let limit = format!(
        "Room when requests come: replicas that are there sooner, or more of them. The time of a step: {steps}."
    );
    Some((Regime::Uneven, knee, limit))
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
        Regime::Uneven => "both sides of knee",
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
        let d = diagnose(&bound(0.4), &BlockedBy::default(), None, &Waits::default());
        assert_eq!(d.regime, Regime::LatencyBound);
        let roomy = diagnose(
            &bound(0.4),
            &BlockedBy::default(),
            Some(29.4),
            &Waits::default(),
        );
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
        let d = diagnose(&steps, &BlockedBy::default(), None, &Waits::default());
        assert_eq!(d.regime, Regime::KvReadBound);
        let told = "reading KV (memory bandwidth) is the larger part (35 % of busy time); 40 % of busy time goes to reading weights";
        assert!(d.limit.contains(told), "{}", d.limit);
        let alone = BoundBy {
            weights: 0.3,
            kv: 0.5,
            compute: 0.2,
            ..BoundBy::default()
        };
        let d = diagnose(&alone, &BlockedBy::default(), None, &Waits::default());
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
        assert_eq!(
            diagnose(&bound(0.0), &blocked, None, &Waits::default()).regime,
            Regime::KvFull
        );
    }

    #[test]
    fn waits_of_a_crowd_are_told_however_long_replicas_idled_before_and_after() {
        let summary = |mean, p50, p90| LatencySummary {
            mean: Some(mean),
            p50: Some(p50),
            p90: Some(p90),
            ..LatencySummary::default()
        };
        let of = |queue, ttft, e2e| Waits::of(&queue, &ttft, &e2e, Some(0.4));
        let calm = summary(7_000.0, 6_000.0, 9_000.0);
        // An engine that takes requests in every twenty steps: all of them wait, nobody long.
        let held = of(
            summary(334.0, 380.0, 777.0),
            summary(495.0, 450.0, 950.0),
            calm,
        );
        assert_eq!(held.long_p90_ms, None);
        // One in ten of a crowd, and a crowd that is most of the requests.
        let few = of(
            summary(11_500.0, 461.0, 32_800.0),
            summary(11_800.0, 671.0, 33_300.0),
            summary(18_400.0, 8_400.0, 43_300.0),
        );
        let most = summary(25_000.0, 30_000.0, 33_000.0);
        assert_eq!(
            of(most, most, summary(32_000.0, 37_000.0, 41_000.0)).long_p90_ms,
            Some(33_000.0)
        );
        let blocked = |kv_full| BlockedBy {
            kv_full,
            ..BlockedBy::default()
        };
        let d = diagnose(&bound(0.2), &blocked(0.08), None, &few);
        assert_eq!(d.regime, Regime::Uneven);
        for told in [
            "idle 20 % of the time, and yet one request in ten waits 32.8 s or longer",
            "40 % of the requests waited for replicas that were starting",
            "For 8 % of the replicas' time requests waited because no KV blocks were free",
        ] {
            assert!(d.knee.contains(told), "{}", d.knee);
        }
        assert!(!d.text.contains("hardly any"), "{}", d.text);
        // Where a limit held requests up for long enough, that says more; where nobody waits long, nothing is changed.
        let regime = |kv_full, waits| diagnose(&bound(0.2), &blocked(kv_full), None, waits).regime;
        assert_eq!(regime(0.5, &few), Regime::KvFull);
        assert_eq!(regime(0.0, &held), Regime::LatencyBound);
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
            diagnose(&bound, &BlockedBy::default(), None, &Waits::default()).regime
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
        let d = diagnose(&bound, &BlockedBy::default(), None, &Waits::default());
        assert_eq!(d.regime, Regime::LatencyBound);
        assert!(d.knee.contains("Busy does not mean full"), "{}", d.knee);
        assert_eq!(d.text, format!("{} {}", d.knee, d.limit));
    }

    #[test]
    fn nothing_measured_has_no_diagnosis_and_is_idle() {
        let bound = bound_by(&record(0, [0; 6]));
        assert_eq!((bound.idle, bound.weights), (1.0, 0.0));
        let d = diagnose(&bound, &BlockedBy::default(), None, &Waits::default());
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
