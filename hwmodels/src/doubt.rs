//! How far predictions were from measured runs, by kind of run, and the range that a new prediction gets from it.
//!
//! `data/errors.toml` holds, for each measured set that `servetwin validate` replays, the quantiles of `|ln(predicted / measured)|` over the
//! rows that nothing was fitted on, each as it would be at a load that changes nothing ([`RowError::response`]). The range of a new prediction holds nine tenths of the errors of runs like it: the sets are mixed,
//! each with a weight for how like they are ([`Kind`]) and for how many rows they have. A set is judged with the others alone
//! (`left_out`), so that the coverage which `validate` prints is one of runs that the range has not seen. The weights are such that the interval
//! score which it prints beside the coverage is small.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::engine::EngineKind;
use crate::packed;

/// What a figure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Time to first token, mean or quantile.
    Ttft,
    /// Time per output token and what is made of it: gaps between tokens, whole latencies.
    Tpot,
    /// Tokens per second.
    Throughput,
}

/// How requests come, as far as errors depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// At times of their own, whatever becomes of those before them; a single user, too, who meets nobody.
    #[default]
    Open,
    /// From several users who each send the next request when the last is answered: requests that end in one step start in one step, and TTFT
    /// hangs on which of them share it.
    Closed,
    /// All at once.
    Saturated,
}

impl Figure {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Ttft => "ttft",
            Figure::Tpot => "tpot",
            Figure::Throughput => "throughput",
        }
    }
}

impl Load {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Load::Open => "open",
            Load::Closed => "closed",
            Load::Saturated => "saturated",
        }
    }
}

/// What a run is like, as far as errors depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// Engine.
    pub engine: EngineKind,
    /// A mixture of experts.
    pub experts: bool,
    /// The accelerator's kernels, or the accelerator itself, were measured: not a data sheet alone.
    pub measured_chip: bool,
    /// How requests come.
    #[serde(default)]
    pub load: Load,
}

/// The errors on one kind of runs of one measured set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetErrors {
    /// Name of the set.
    pub set: String,
    /// What the figure is about.
    pub figure: Figure,
    /// What the runs are like.
    pub kind: Kind,
    /// Rows.
    pub rows: u64,
    /// Quantiles 0.1, 0.2, ... 1.0 of `|ln(predicted / measured)|`.
    pub quantiles: [f64; 10],
    /// The same rows by accelerator and metric, in the order of the names; empty where the accelerator is not known.
    #[serde(default)]
    pub on: Vec<OnAccelerator>,
}

/// The errors of one metric on the runs of a set that were measured on one accelerator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnAccelerator {
    /// Name in the catalog, e.g. `H100-SXM5-80GB`.
    pub accelerator: String,
    /// The set's name for the metric, e.g. `ttft_mean_ms`.
    pub metric: String,
    /// Rows.
    pub rows: u64,
    /// Median of `|predicted / measured - 1|` [ratio].
    pub median_error: f64,
}

/// The error of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowError {
    /// Name of the set.
    pub set: String,
    /// The set's name for the metric, e.g. `ttft_mean_ms`.
    pub metric: String,
    /// What it is about.
    pub figure: Figure,
    /// What the run is like.
    pub kind: Kind,
    /// Name of the accelerator in the catalog, where it is known.
    pub accelerator: Option<String>,
    /// `ln(predicted / measured)`.
    pub error: f64,
    /// How many times as much the figure changes as the time of steps does, under the row's load; at least 1.
    pub response: f64,
}

#[derive(Deserialize, Serialize)]
struct Table {
    set: Vec<SetErrors>,
}

/// The errors on measured sets that ship with the crate; `servetwin validate DIR --errors FILE` writes them.
pub fn shipped() -> &'static [SetErrors] {
    static TABLE: OnceLock<Table> = OnceLock::new();
    &TABLE.get_or_init(|| packed::find("errors.toml").read()).set
}

/// Text of an errors file that holds `sets`.
pub fn to_toml(sets: &[SetErrors]) -> String {
    let mut out = String::from(
        "# Errors of predictions on measured runs that nothing was fitted on: quantiles 0.1 to 1.0 of |ln(predicted / measured)|, over the response to longer steps where that is above 1.\n\
         # Written by `servetwin validate DIR --errors hwmodels/data/errors.toml`, DIR being the folder of measurements that docs/validation.md describes.\n",
    );
    for s in sets {
        let quantiles: Vec<String> = s.quantiles.iter().map(|q| format!("{q:.4}")).collect();
        out += &format!(
            "\n[[set]]\nset = \"{}\"\nfigure = \"{}\"\nkind = {{ engine = \"{}\", experts = {}, measured_chip = {}, load = \"{}\" }}\nrows = {}\nquantiles = [{}]\n",
            s.set,
            s.figure.name(),
            s.kind.engine,
            s.kind.experts,
            s.kind.measured_chip,
            s.kind.load.name(),
            s.rows,
            quantiles.join(", ")
        );
        let on: Vec<String> = (s.on.iter())
            .map(|o| {
                format!(
                    "    {{ accelerator = \"{}\", metric = \"{}\", rows = {}, median_error = {:.4} }},\n",
                    o.accelerator, o.metric, o.rows, o.median_error
                )
            })
            .collect();
        if !on.is_empty() {
            out += &format!("on = [\n{}]\n", on.concat());
        }
    }
    out
}

/// Errors by set, figure and kind of run from single rows.
pub fn by_set(rows: impl IntoIterator<Item = RowError>) -> Vec<SetErrors> {
    let mut groups = BTreeMap::<(String, Figure, Kind), Vec<RowError>>::new();
    for r in rows {
        if r.error.is_finite() {
            let key = (r.set.clone(), r.figure, r.kind);
            groups.entry(key).or_default().push(r);
        }
    }
    groups
        .into_iter()
        .map(|((set, figure, kind), rows)| {
            let plain = |r: &RowError| r.error.abs() / r.response;
            let mut errors: Vec<f64> = rows.iter().map(plain).collect();
            errors.sort_by(f64::total_cmp);
            let n = errors.len();
            let at = |q: f64| errors[((q * n as f64).ceil() as usize).clamp(1, n) - 1];
            SetErrors {
                set,
                figure,
                kind,
                rows: n as u64,
                quantiles: std::array::from_fn(|i| at(0.1 * (i + 1) as f64)),
                on: by_accelerator(&rows),
            }
        })
        .collect()
}

/// Medians by accelerator and metric.
fn by_accelerator(rows: &[RowError]) -> Vec<OnAccelerator> {
    let mut groups = BTreeMap::<(&str, &str), Vec<f64>>::new();
    for r in rows {
        if let Some(name) = &r.accelerator {
            let relative = (r.error.exp() - 1.0).abs();
            groups.entry((name, &r.metric)).or_default().push(relative);
        }
    }
    groups
        .into_iter()
        .map(|((name, metric), mut errors)| {
            errors.sort_by(f64::total_cmp);
            let n = errors.len();
            OnAccelerator {
                accelerator: name.to_owned(),
                metric: metric.to_owned(),
                rows: n as u64,
                median_error: 0.5 * (errors[(n - 1) / 2] + errors[n / 2]),
            }
        })
        .collect()
}

/// The measured sets of the same engine on `accelerator` (catalog name), those of mixtures for a mixture and those of dense models for a
/// dense one; first those whose requests came alike.
pub fn measured_on<'a>(
    sets: &'a [SetErrors],
    kind: Kind,
    accelerator: &str,
) -> Vec<(&'a SetErrors, &'a OnAccelerator)> {
    let mut out: Vec<(&SetErrors, &OnAccelerator)> = (sets.iter())
        .filter(|s| s.kind.engine == kind.engine && s.kind.experts == kind.experts)
        .flat_map(|s| s.on.iter().map(move |on| (s, on)))
        .filter(|(_, on)| on.accelerator == accelerator)
        .collect();
    out.sort_by_key(|(s, _)| (s.kind.load != kind.load, s.figure));
    out
}

/// Share of errors that a range is to hold.
pub const HELD: f64 = 0.9;
/// How much more a set of the same engine says than one of another.
const SAME_ENGINE: f64 = 3.0;
/// The same of mixtures of experts for each other, and of dense models.
const SAME_EXPERTS: f64 = 32.0;
/// The same of sets whose requests came alike ([`Load`]).
const SAME_LOAD: f64 = 2.0;
/// What a set of Neuron devices says of GPUs, and the reverse: little.
const OTHER_PLATFORM: f64 = 0.1;
/// What throughput says of the time per token, and the reverse: at saturation they are one thing, below it they are not.
const OTHER_FIGURE: f64 = 0.15;
/// Rows at which a set has half of the weight that any number of rows would give it: runs of one set err together.
const HALF_WEIGHT: f64 = 16.0;
/// A chip that is known by its data sheet alone: how much wider its range is.
const DATA_SHEET: f64 = 1.6;
/// Share of its time by which nine of ten predicted starts of a replica are off at most, on a host that nothing was fitted on [ratio]: the
/// 90th percentile over 23 warm starts of vLLM (`vllm_startup`, `total_s from the other host`, docs/accuracy.md). Weights alone come to less (13 % of 24
/// loads); boots of nodes and pulls of images were held against no starts but those that gave them.
pub const START_ERROR: f64 = 0.168;

/// No figure is surer than that [ln]: machines of one kind differ, and a machine from one day to the next.
const LEAST: f64 = 0.05;

fn weight(s: &SetErrors, kind: Kind, figure: Figure) -> f64 {
    let mut w = s.rows as f64 / (s.rows as f64 + HALF_WEIGHT);
    if s.figure != figure {
        if s.figure == Figure::Ttft || figure == Figure::Ttft {
            return 0.0;
        }
        w *= OTHER_FIGURE;
    }
    let neuron = |k: Kind| k.engine == EngineKind::TgiNeuron;
    if s.kind.engine == kind.engine {
        w *= SAME_ENGINE;
    } else if neuron(s.kind) != neuron(kind) {
        w *= OTHER_PLATFORM;
    }
    if s.kind.experts == kind.experts {
        w *= SAME_EXPERTS;
    }
    if s.kind.load == kind.load {
        w *= SAME_LOAD;
    }
    w
}

/// Share of a set's errors that are at most `e`: linear between its quantiles, and from none at 0.
fn share_within(s: &SetErrors, e: f64) -> f64 {
    let mut below = (0.0, 0.0);
    for (i, q) in s.quantiles.iter().enumerate() {
        let share = 0.1 * (i + 1) as f64;
        if e < *q {
            return below.1 + (share - below.1) * (e - below.0) / (q - below.0).max(1e-12);
        }
        below = (*q, share);
    }
    1.0
}

/// Half the width of the 90 % range of a figure of a run of this kind, as a natural logarithm: the truth lies between the figure over
/// `exp` of it and the figure times that. `left_out` names a set that is not to count.
pub fn half_width(sets: &[SetErrors], kind: Kind, figure: Figure, left_out: Option<&str>) -> f64 {
    let weighed: Vec<(&SetErrors, f64)> = sets
        .iter()
        .filter(|s| left_out != Some(s.set.as_str()))
        .map(|s| (s, weight(s, kind, figure)))
        .filter(|(_, w)| *w > 0.0)
        .collect();
    let total: f64 = weighed.iter().map(|(_, w)| w).sum();
    let within = |e: f64| -> f64 { weighed.iter().map(|(s, w)| w * share_within(s, e)).sum() };
    let (mut low, mut high) = (0.0, 4.0);
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if within(middle) < HELD * total {
            low = middle;
        } else {
            high = middle;
        }
    }
    let sheet = if kind.measured_chip { 1.0 } else { DATA_SHEET };
    (high * sheet).max(LEAST)
}

/// The ends of the range of `value`. `own` is half the width that runs like it have at a load that changes nothing ([`half_width`]), `pace` that of
/// the time of steps; `responses` say how many times as much the figure changes as the time of steps does, `[shorter, longer]` ones.
///
/// Of a latency's error, what comes from the steps grows by the response, and what does not stays: they have nothing to do with each other, so squares
/// add up. A rate is that of the steps where they set it (response 1), and that of the arrivals, which is known, where they do not (0).
pub fn ends(
    figure: Figure,
    value: f64,
    [own, pace]: [f64; 2],
    [shorter, longer]: [f64; 2],
) -> [f64; 2] {
    if figure == Figure::Throughput {
        let width = |response: f64| own * response.min(1.0);
        return [value / width(longer).exp(), value * width(shorter).exp()];
    }
    let beside = (own * own - pace * pace).max(0.0);
    let width = |response: f64| (beside + (response * pace).powi(2)).sqrt();
    [value / width(shorter).exp(), value * width(longer).exp()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(engine: EngineKind, experts: bool) -> Kind {
        Kind {
            engine,
            experts,
            measured_chip: true,
            load: Load::Open,
        }
    }

    fn set(name: &str, engine: EngineKind, error: f64) -> Vec<RowError> {
        (1..=40)
            .map(|i| RowError {
                set: name.to_owned(),
                metric: "tpot_ms".into(),
                figure: Figure::Tpot,
                kind: kind(engine, false),
                accelerator: None,
                error: error * f64::from(i) / 40.0,
                response: 1.0,
            })
            .collect()
    }

    #[test]
    fn evidence_is_of_the_engine_the_accelerator_and_the_kind_of_model() {
        let row = |set: &str, accelerator: &str, load: Load, experts: bool, ratio: f64| RowError {
            set: set.to_owned(),
            metric: "ttft_ms".into(),
            figure: Figure::Ttft,
            kind: Kind {
                load,
                ..kind(EngineKind::Sglang, experts)
            },
            accelerator: Some(accelerator.to_owned()),
            error: f64::ln(ratio),
            response: 1.0,
        };
        let sets = by_set([
            row("loops", "H100", Load::Closed, false, 1.1),
            row("loops", "H100", Load::Closed, false, 0.7),
            row("loops", "A100", Load::Closed, false, 3.0),
            row("burst", "H100", Load::Saturated, false, 1.05),
            row("mixture", "H100", Load::Closed, true, 2.0),
        ]);
        let alike = Kind {
            load: Load::Closed,
            ..kind(EngineKind::Sglang, false)
        };
        let found = measured_on(&sets, alike, "H100");
        let told: Vec<(&str, u64, f64)> = (found.iter())
            .map(|(s, on)| {
                (
                    s.set.as_str(),
                    on.rows,
                    (1e6 * on.median_error).round() / 1e6,
                )
            })
            .collect();
        // 10 % high and 30 % low: 20 % in the median.
        assert_eq!(told, [("loops", 2, 0.2), ("burst", 1, 0.05)]);
        assert!(measured_on(&sets, kind(EngineKind::VllmV1, false), "H100").is_empty());
        let again: Table = toml::from_str(&to_toml(&sets)).expect("parses");
        let told = |sets: &[SetErrors]| -> Vec<(String, u64, i64)> {
            (sets.iter().flat_map(|s| &s.on))
                .map(|o| {
                    (
                        o.accelerator.clone(),
                        o.rows,
                        (1e4 * o.median_error).round() as i64,
                    )
                })
                .collect()
        };
        assert_eq!(told(&again.set), told(&sets));
    }

    #[test]
    fn the_shipped_errors_parse_and_are_written_as_they_are_read() {
        let again: Table = toml::from_str(&to_toml(shipped())).expect("parses");
        assert_eq!(again.set, shipped());
        // What `validate --errors` writes, byte by byte: nobody edits it.
        assert_eq!(to_toml(shipped()), include_str!("../data/errors.toml"));
        for s in shipped() {
            assert!(
                s.rows > 0 && s.quantiles.is_sorted(),
                "{} {:?}",
                s.set,
                s.figure
            );
        }
    }

    #[test]
    fn a_range_holds_nine_tenths_of_the_errors_of_its_like() {
        let sets = by_set(set("a", EngineKind::VllmV1, 0.2));
        let w = half_width(
            &sets,
            kind(EngineKind::VllmV1, false),
            Figure::Tpot,
            Some("b"),
        );
        assert!((w - 0.18).abs() < 0.006, "{w}");
    }

    #[test]
    fn a_sets_own_errors_do_not_set_its_range_and_other_engines_count_less() {
        let sets = by_set(
            set("own", EngineKind::VllmV1, 0.1)
                .into_iter()
                .chain(set("like", EngineKind::VllmV1, 0.2))
                .chain(set("other", EngineKind::Tgi, 0.8)),
        );
        let k = kind(EngineKind::VllmV1, false);
        let with = half_width(&sets, k, Figure::Tpot, None);
        let without = half_width(&sets, k, Figure::Tpot, Some("own"));
        assert!(without > with, "{with} {without}");
        assert!(without < 0.6, "{without}");
        let tgi = kind(EngineKind::Tgi, false);
        assert!(half_width(&sets, tgi, Figure::Tpot, Some("own")) > without);
    }

    #[test]
    fn loops_of_users_in_step_are_less_sure_of_their_first_token() {
        let open = kind(EngineKind::VllmV1, false);
        let closed = Kind {
            load: Load::Closed,
            ..open
        };
        let at = |e: f64, kind: Kind, name: &str| -> Vec<_> {
            let rows = set(name, EngineKind::TrtLlm, e).into_iter();
            rows.map(|r| RowError {
                figure: Figure::Ttft,
                kind: Kind {
                    load: kind.load,
                    ..r.kind
                },
                ..r
            })
            .collect()
        };
        let sets = by_set(
            at(0.1, open, "open")
                .into_iter()
                .chain(at(0.5, closed, "closed")),
        );
        let width = |k: Kind| half_width(&sets, k, Figure::Ttft, None);
        assert!(width(closed) > 1.1 * width(open));
        // A record that says nothing of its load is one of an open loop.
        let old: Kind =
            toml::from_str("engine = \"vllm_v1\"\nexperts = false\nmeasured_chip = true\n")
                .expect("parses");
        assert_eq!(old, open);
    }

    #[test]
    fn a_latency_is_as_sure_as_the_load_lets_it_be() {
        let widths = [0.3, 0.1];
        let width = |figure, responses: [f64; 2]| {
            let [low, high] = ends(figure, 10.0, widths, responses);
            [(10.0 / low).ln(), (high / 10.0).ln()]
        };
        let near = |a: [f64; 2], b: [f64; 2]| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-9);
        // Where the load changes nothing: what runs alike have.
        assert!(near(width(Figure::Ttft, [1.0; 2]), [0.3; 2]));
        // By hand: 0.3^2 - 0.1^2 comes not from the steps, and 0.2^2 and 0.8^2 do.
        let by_hand = [0.08_f64 + 0.04, 0.08 + 0.64].map(f64::sqrt);
        assert!(near(width(Figure::Ttft, [2.0, 8.0]), by_hand));
        // A rate that arrivals set is known.
        assert!(near(width(Figure::Throughput, [0.0, 1.0]), [0.3, 0.0]));
    }

    #[test]
    fn errors_near_the_knee_say_what_steps_were_off_by() {
        let mut rows = set("a", EngineKind::VllmV1, 0.2);
        let plain = by_set(rows.clone());
        for row in &mut rows {
            (row.error, row.response) = (4.0 * row.error, 4.0);
        }
        assert_eq!(by_set(rows)[0].quantiles, plain[0].quantiles);
    }

    #[test]
    fn a_chip_without_measurements_is_less_sure() {
        let k = kind(EngineKind::VllmV1, false);
        let sheet = Kind {
            measured_chip: false,
            ..k
        };
        for figure in [Figure::Ttft, Figure::Tpot, Figure::Throughput] {
            let known = half_width(shipped(), k, figure, None);
            assert!(half_width(shipped(), sheet, figure, None) > 1.5 * known);
            assert!((LEAST..2.0).contains(&known), "{known}");
        }
    }
}
