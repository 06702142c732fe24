//! How far predictions were from measured runs, by kind of run, and the range that a new prediction gets from it.
//!
//! `data/errors.toml` holds, for each measured set that `servetwin validate` replays, the quantiles of `|ln(predicted / measured)|` over the
//! rows that nothing was fitted on. The range of a new prediction holds nine tenths of the errors of runs like it: the sets are mixed,
//! each with a weight for how like they are ([`Kind`]) and for how many rows they have. A set is judged with the others alone
//! (`left_out`), so that the coverage which `validate` prints is one of runs that the range has not seen.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::engine::EngineKind;

/// The errors on measured sets that ship with the crate; `servetwin validate DIR --errors FILE` writes them.
const SHIPPED: &str = include_str!("../data/errors.toml");

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
}

#[derive(Deserialize, Serialize)]
struct Table {
    set: Vec<SetErrors>,
}

/// The shipped errors.
pub fn shipped() -> &'static [SetErrors] {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE
        .get_or_init(|| toml::from_str(SHIPPED).expect("data/errors.toml is checked by a test"));
    &table.set
}

/// Text of an errors file that holds `sets`.
pub fn to_toml(sets: &[SetErrors]) -> String {
    let mut out = String::from(
        "# Errors of predictions on measured runs that nothing was fitted on: quantiles 0.1 to 1.0 of |ln(predicted / measured)|.\n\
         # Written by `servetwin validate DIR --errors hwmodels/data/errors.toml`, DIR being the folder of measurements that docs/validation.md describes.\n",
    );
    for s in sets {
        let quantiles: Vec<String> = s.quantiles.iter().map(|q| format!("{q:.4}")).collect();
        let figure = match s.figure {
            Figure::Ttft => "ttft",
            Figure::Tpot => "tpot",
            Figure::Throughput => "throughput",
        };
        out += &format!(
            "\n[[set]]\nset = \"{}\"\nfigure = \"{figure}\"\nkind = {{ engine = \"{}\", experts = {}, measured_chip = {}, load = \"{}\" }}\nrows = {}\nquantiles = [{}]\n",
            s.set,
            s.kind.engine,
            s.kind.experts,
            s.kind.measured_chip,
            s.kind.load.name(),
            s.rows,
            quantiles.join(", ")
        );
    }
    out
}

/// Errors by set from single rows: set, figure, kind and `ln(predicted / measured)` of each.
pub fn by_set(rows: impl IntoIterator<Item = (String, Figure, Kind, f64)>) -> Vec<SetErrors> {
    let mut groups = std::collections::BTreeMap::<(String, Figure, Kind), Vec<f64>>::new();
    for (set, figure, kind, error) in rows {
        if error.is_finite() {
            groups
                .entry((set, figure, kind))
                .or_default()
                .push(error.abs());
        }
    }
    groups
        .into_iter()
        .map(|((set, figure, kind), mut errors)| {
            errors.sort_by(f64::total_cmp);
            let n = errors.len();
            let at = |q: f64| errors[((q * n as f64).ceil() as usize).clamp(1, n) - 1];
            SetErrors {
                set,
                figure,
                kind,
                rows: n as u64,
                quantiles: std::array::from_fn(|i| at(0.1 * (i + 1) as f64)),
            }
        })
        .collect()
}

/// Share of errors that a range is to hold.
const HELD: f64 = 0.9;
/// How much more a set of the same engine says than one of another.
const SAME_ENGINE: f64 = 3.0;
/// The same of mixtures of experts for each other, and of dense models.
const SAME_EXPERTS: f64 = 4.0;
/// The same of sets whose requests came alike ([`Load`]).
const SAME_LOAD: f64 = 4.0;
/// What a set of Neuron devices says of GPUs, and the reverse: little.
const OTHER_PLATFORM: f64 = 0.1;
/// What throughput says of the time per token, and the reverse: at saturation they are one thing, below it they are not.
const OTHER_FIGURE: f64 = 0.15;
/// Rows at which a set has half of the weight that any number of rows would give it: runs of one set err together.
const HALF_WEIGHT: f64 = 8.0;
/// A chip that is known by its data sheet alone: how much wider its range is.
const DATA_SHEET: f64 = 1.6;
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

    fn set(name: &str, engine: EngineKind, error: f64) -> Vec<(String, Figure, Kind, f64)> {
        (1..=40)
            .map(|i| {
                let e = error * f64::from(i) / 40.0;
                (name.to_owned(), Figure::Tpot, kind(engine, false), e)
            })
            .collect()
    }

    #[test]
    fn the_shipped_errors_parse_and_are_written_as_they_are_read() {
        let again: Table = toml::from_str(&to_toml(shipped())).expect("parses");
        assert_eq!(again.set, shipped());
        // What `validate --errors` writes, byte by byte: nobody edits it.
        assert_eq!(to_toml(shipped()), SHIPPED);
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
            rows.map(|(s, _, k, e)| {
                let load = kind.load;
                (s, Figure::Ttft, Kind { load, ..k }, e)
            })
            .collect()
        };
        let sets = by_set(
            at(0.1, open, "open")
                .into_iter()
                .chain(at(0.5, closed, "closed")),
        );
        let width = |k: Kind| half_width(&sets, k, Figure::Ttft, None);
        assert!(width(closed) > 1.3 * width(open));
        // A record that says nothing of its load is one of an open loop.
        let old: Kind =
            toml::from_str("engine = \"vllm_v1\"\nexperts = false\nmeasured_chip = true\n")
                .expect("parses");
        assert_eq!(old, open);
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
