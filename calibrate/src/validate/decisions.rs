//! Whether predictions name the right choice: over measured runs that differ only in what one deploys (accelerator or instance type, devices, layout) and
//! served the same load, how often the predicted best is the measured best, how much worse it is where not, and whether stated doubt is right.
//!
//! A decision is a group of rows of one set, metric and load. A group whose rows were all fitted on is none. Beside the sets' own metrics stand those that
//! decide about cost: tokens per second and device, and per dollar where the choice is among instance types with a price.
//!
//! The doubt of a pair: the logarithm of the predicted ratio over its standard error, which is that of both ranges times a factor; alternatives under one load
//! share part of their error, and the factor says how much is left of it. It comes from the pairs of all other sets, so that no set judges itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use hwmodels::catalog::Catalog;
use serde::Serialize;

use super::row::Row;

/// Standard errors from the middle to the end of a 90 % range.
const RANGE_ERRORS: f64 = 1.645;
/// A choice that is at most this much worse than the best is as good [ratio].
const AS_GOOD: f64 = 0.05;
/// Measured alternatives that differ by less are no pair: chance decides [ratio].
const NOISE: f64 = 0.05;
/// Bands of stated certainty.
const BANDS: [(f64, f64); 5] = [
    (0.5, 0.7),
    (0.7, 0.85),
    (0.85, 0.95),
    (0.95, 0.99),
    (0.99, 1.0),
];

/// What of a set's knobs is a choice, in the order in which its cases give them.
struct Choices {
    set: &'static str,
    /// Places of the knobs that one decides about.
    choice: &'static [usize],
    /// Place of the number of devices.
    devices: usize,
    /// Place of the instance type, where the price is of one.
    instance: Option<usize>,
    /// Places of the output length and of the number of users, of closed loops.
    closed: Option<(usize, usize)>,
}

/// The sets with alternatives. Those of TensorRT-LLM differ in the accelerator and its number; their loads in the lengths.
const CHOICES: [Choices; 9] = [
    Choices {
        set: "jumpstart",
        choice: &[1, 2],
        devices: 2,
        instance: Some(1),
        closed: None,
    },
    Choices {
        set: "jumpstart_minimum_latency",
        choice: &[1, 2],
        devices: 2,
        instance: Some(1),
        closed: None,
    },
    Choices {
        set: "qwen3_32b",
        choice: &[0],
        devices: 0,
        instance: None,
        closed: Some((2, 3)),
    },
    Choices {
        set: "vllm_gpt_oss",
        choice: &[0],
        devices: 0,
        instance: None,
        closed: Some((2, 3)),
    },
    Choices {
        set: "trtllm_llama31_8b",
        choice: &[0],
        devices: 0,
        instance: None,
        closed: Some((2, 3)),
    },
    Choices {
        set: "trtllm_max_throughput",
        choice: &[1, 2],
        devices: 2,
        instance: None,
        closed: None,
    },
    Choices {
        set: "trtllm_overview",
        choice: &[1, 2],
        devices: 2,
        instance: None,
        closed: None,
    },
    Choices {
        set: "trtllm_overview_moe",
        choice: &[1, 2],
        devices: 2,
        instance: None,
        closed: None,
    },
    Choices {
        set: "trtllm_per_gpu",
        choice: &[1, 2],
        devices: 2,
        instance: None,
        closed: None,
    },
];

/// Decisions of one set and metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decisions {
    /// Data set.
    pub set: String,
    /// Metric; `per device` and `per USD`: tokens per second over devices or price.
    pub metric: String,
    /// Groups of alternatives under the same load.
    pub groups: usize,
    /// Alternatives in all of them.
    pub alternatives: usize,
    /// Groups whose predicted best is the measured best.
    pub best: usize,
    /// Groups whose predicted best is measured at most 5 % worse than the best.
    pub as_good: usize,
    /// How much worse the predicted best is measured than the best, mean over the groups [ratio].
    pub mean_regret: f64,
    /// The same, the worst group [ratio].
    pub worst_regret: f64,
    /// Spearman's rank correlation, mean over the groups of three and more; none without any.
    pub rank_correlation: Option<f64>,
}

/// Pairs of alternatives by how sure the prediction was which is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Certainty {
    /// Stated certainty from [ratio].
    pub from: f64,
    /// To [ratio].
    pub to: f64,
    /// Pairs.
    pub pairs: usize,
    /// Mean stated certainty [ratio].
    pub stated: f64,
    /// Share of the pairs whose predicted better is the measured better [ratio].
    pub right: f64,
}

/// Both.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Quality {
    /// By set and metric.
    pub decisions: Vec<Decisions>,
    /// By certainty.
    pub certainty: Vec<Certainty>,
}

/// One alternative: larger is better.
#[derive(Clone, Debug)]
struct Alternative {
    measured: f64,
    predicted: f64,
    /// Half of the 90 % range [ln], where there is one.
    half: Option<f64>,
    fitted: bool,
}

type Groups = BTreeMap<(String, String, Vec<String>), Vec<Alternative>>;

impl Quality {
    /// Judges `rows`; `knobs` are the coordinates of their cases.
    pub fn of(rows: &[Row], knobs: &BTreeMap<(String, String), Vec<String>>) -> Quality {
        let mut groups = groups(rows, knobs);
        groups.retain(|_, all| all.len() > 1 && all.iter().any(|a| !a.fitted));
        Quality {
            decisions: decisions(&groups),
            certainty: certainty(&groups),
        }
    }

    /// As Markdown; empty where nothing could be judged.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        if self.decisions.is_empty() {
            return out;
        }
        out.push_str(
            "\nDecisions: alternatives (instance type or accelerator, devices, layout) under the same load, of which at least one was only predicted.\n\n\
             | set | by | decisions | alternatives | best named | within 5 % of it | regret, mean | regret, worst | rank correlation |\n\
             |---|---|---|---|---|---|---|---|---|\n",
        );
        let percent =
            |part: usize, of: usize| format!("{:.0} %", 100.0 * part as f64 / of.max(1) as f64);
        let mut line = |d: &Decisions| {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {:.1} % | {:.1} % | {} |",
                d.set,
                d.metric,
                d.groups,
                d.alternatives,
                percent(d.best, d.groups),
                percent(d.as_good, d.groups),
                100.0 * d.mean_regret,
                100.0 * d.worst_regret,
                d.rank_correlation
                    .map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"))
            );
        };
        self.decisions.iter().for_each(&mut line);
        line(&self.total());
        if !self.certainty.is_empty() {
            out.push_str(
                "\nCertainty: pairs of alternatives whose measurements differ by more than 5 %, by how sure the prediction was which is better.\n\n\
                 | stated | pairs | stated, mean | right |\n|---|---|---|---|\n",
            );
            for c in &self.certainty {
                let _ = writeln!(
                    out,
                    "| {:.0} to {:.0} % | {} | {:.1} % | {:.1} % |",
                    100.0 * c.from,
                    100.0 * c.to,
                    c.pairs,
                    100.0 * c.stated,
                    100.0 * c.right
                );
            }
        }
        out
    }

    /// All decisions together.
    fn total(&self) -> Decisions {
        let groups: usize = self.decisions.iter().map(|d| d.groups).sum();
        let ranked: Vec<(f64, usize)> = (self.decisions.iter())
            .filter_map(|d| Some((d.rank_correlation?, d.groups)))
            .collect();
        let weight: usize = ranked.iter().map(|r| r.1).sum();
        Decisions {
            set: "all".into(),
            metric: "all".into(),
            groups,
            alternatives: self.decisions.iter().map(|d| d.alternatives).sum(),
            best: self.decisions.iter().map(|d| d.best).sum(),
            as_good: self.decisions.iter().map(|d| d.as_good).sum(),
            mean_regret: (self.decisions.iter())
                .map(|d| d.mean_regret * d.groups as f64)
                .sum::<f64>()
                / groups.max(1) as f64,
            worst_regret: (self.decisions.iter()).fold(0.0, |m, d| m.max(d.worst_regret)),
            rank_correlation: (weight > 0)
                .then(|| ranked.iter().map(|(r, n)| r * *n as f64).sum::<f64>() / weight as f64),
        }
    }
}

/// Alternatives by set, metric and load.
fn groups(rows: &[Row], knobs: &BTreeMap<(String, String), Vec<String>>) -> Groups {
    let catalog = Catalog::builtin();
    let mut out = Groups::new();
    let mut seen: BTreeSet<(String, String, String)> = BTreeSet::new();
    for c in &CHOICES {
        let of_set = rows.iter().filter(|r| r.set == c.set);
        for r in of_set {
            let Some(own) = knobs.get(&(r.set.clone(), r.case.clone())) else {
                continue;
            };
            // A case that a set measured twice is one alternative.
            if !seen.insert((r.set.clone(), r.case.clone(), r.metric.clone())) {
                continue;
            }
            let load: Vec<String> = (own.iter().enumerate())
                .filter(|(i, _)| !c.choice.contains(i))
                .map(|(_, k)| k.clone())
                .collect();
            let number = |i: usize| own.get(i).and_then(|k| k.parse::<f64>().ok());
            let mut add = |metric: &str, a: Option<Alternative>| {
                if let Some(a) = a {
                    let key = (r.set.clone(), metric.to_owned(), load.clone());
                    out.entry(key).or_default().push(a);
                }
            };
            let direct = alternative(r);
            add(&r.metric, direct.clone());
            let rate = if is_rate(&r.metric) {
                direct
            } else {
                c.closed
                    .filter(|_| r.metric == "tpot_ms")
                    .and_then(|(output, users)| {
                        closed_rate(r, rows, number(output)?, number(users)?)
                    })
            };
            let over = |a: &Option<Alternative>, by: Option<f64>| {
                let (a, by) = (a.clone()?, by.filter(|b| *b > 0.0)?);
                Some(Alternative {
                    measured: a.measured / by,
                    predicted: a.predicted / by,
                    ..a
                })
            };
            add("tokens/s per device", over(&rate, number(c.devices)));
            if let Some(at) = c.instance {
                let instance = own.get(at).and_then(|name| catalog.instance(name).ok());
                let usd = instance
                    .and_then(|i| i.price())
                    .map(|p| p.usd.usd_per_hour());
                add("tokens/s per USD", over(&rate, usd));
            }
        }
    }
    out
}

fn is_rate(metric: &str) -> bool {
    metric.contains("tok_s")
}

/// A row as an alternative; none where nothing was predicted.
fn alternative(r: &Row) -> Option<Alternative> {
    let predicted = r.predicted.filter(|p| *p > 0.0)?;
    let invert = |x: f64| if is_rate(&r.metric) { x } else { 1.0 / x };
    Some(Alternative {
        measured: invert(r.measured),
        predicted: invert(predicted),
        half: r.range.map(|[_, high]| (high / predicted).ln()),
        fitted: r.fitted,
    })
}

/// Output tokens per second of a closed loop of `users`, from TTFT and TPOT: each sends again when its answer has ended.
fn closed_rate(tpot: &Row, rows: &[Row], output: f64, users: f64) -> Option<Alternative> {
    let same = |r: &&Row| r.set == tpot.set && r.case == tpot.case && r.metric == "ttft_ms";
    let ttft = rows.iter().find(same)?;
    let rate = |ttft: f64, tpot: f64| 1e3 * users * output / (ttft + (output - 1.0) * tpot);
    let a = alternative(tpot)?;
    Some(Alternative {
        measured: rate(ttft.measured, tpot.measured),
        predicted: rate(ttft.predicted?, tpot.predicted?),
        ..a
    })
}

fn decisions(groups: &Groups) -> Vec<Decisions> {
    let mut by: BTreeMap<(&str, &str), Vec<&Vec<Alternative>>> = BTreeMap::new();
    for ((set, metric, _), all) in groups {
        by.entry((set, metric)).or_default().push(all);
    }
    let one = |((set, metric), groups): ((&str, &str), Vec<&Vec<Alternative>>)| {
        let regrets: Vec<f64> = groups.iter().map(|g| regret(g)).collect();
        let ranked: Vec<f64> = groups.iter().filter_map(|g| spearman(g)).collect();
        let n = groups.len();
        Decisions {
            set: set.to_owned(),
            metric: metric.to_owned(),
            groups: n,
            alternatives: groups.iter().map(|g| g.len()).sum(),
            best: regrets.iter().filter(|r| **r <= 0.0).count(),
            as_good: regrets.iter().filter(|r| **r <= AS_GOOD).count(),
            mean_regret: regrets.iter().sum::<f64>() / n as f64,
            worst_regret: regrets.iter().copied().fold(0.0, f64::max),
            rank_correlation: (!ranked.is_empty())
                .then(|| ranked.iter().sum::<f64>() / ranked.len() as f64),
        }
    };
    by.into_iter().map(one).collect()
}

/// How much worse the predicted best is measured than the measured best [ratio].
fn regret(group: &[Alternative]) -> f64 {
    let best = group.iter().map(|a| a.measured).fold(0.0, f64::max);
    let named = group
        .iter()
        .max_by(|a, b| a.predicted.total_cmp(&b.predicted));
    named.map_or(0.0, |a| best / a.measured - 1.0)
}

/// Spearman's rank correlation of three and more alternatives; equal values share their mean rank.
fn spearman(group: &[Alternative]) -> Option<f64> {
    if group.len() < 3 {
        return None;
    }
    let ranks = |of: fn(&Alternative) -> f64| -> Vec<f64> {
        let rank = |x: f64| {
            let below = group.iter().filter(|a| of(a) < x).count();
            let equal = group.iter().filter(|a| of(a) == x).count();
            below as f64 + (equal as f64 + 1.0) / 2.0
        };
        group.iter().map(|a| rank(of(a))).collect()
    };
    let (m, p) = (ranks(|a| a.measured), ranks(|a| a.predicted));
    let mean = (group.len() as f64 + 1.0) / 2.0;
    let (mut cov, mut var_m, mut var_p) = (0.0, 0.0, 0.0);
    for (x, y) in m.iter().zip(&p) {
        cov += (x - mean) * (y - mean);
        var_m += (x - mean).powi(2);
        var_p += (y - mean).powi(2);
    }
    (var_m > 0.0 && var_p > 0.0).then(|| cov / (var_m * var_p).sqrt())
}

/// A pair of alternatives.
struct Pair {
    set: String,
    /// Predicted ratio over the standard error of independent errors.
    z: f64,
    /// Error of the ratio over that standard error.
    error: f64,
    right: bool,
}

fn pairs(groups: &Groups) -> Vec<Pair> {
    let mut out = Vec::new();
    // What is derived from a set's own metric would count the same pair again.
    let own = groups
        .iter()
        .filter(|((_, metric, _), _)| !metric.contains(" per "));
    for ((set, _, _), all) in own {
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                let (Some(x), Some(y)) = (a.half, b.half) else {
                    continue;
                };
                let (measured, predicted) = (
                    (a.measured / b.measured).ln(),
                    (a.predicted / b.predicted).ln(),
                );
                if (a.fitted && b.fitted) || measured.abs() < (1.0 + NOISE).ln() {
                    continue;
                }
                let error = x.hypot(y) / RANGE_ERRORS;
                out.push(Pair {
                    set: set.clone(),
                    z: predicted.abs() / error,
                    error: (predicted - measured).abs() / error,
                    right: (predicted > 0.0) == (measured > 0.0),
                });
            }
        }
    }
    out
}

/// How sure each pair's prediction was, and how often it was right.
fn certainty(groups: &Groups) -> Vec<Certainty> {
    let pairs = pairs(groups);
    let sets: BTreeSet<&str> = pairs.iter().map(|p| p.set.as_str()).collect();
    // Without other sets there is nothing to learn the factor from.
    if sets.len() < 2 {
        return Vec::new();
    }
    let mut stated: Vec<(f64, bool)> = Vec::new();
    for set in sets {
        let factor = factor(pairs.iter().filter(|p| p.set != set));
        let own = pairs.iter().filter(|p| p.set == set);
        stated.extend(own.map(|p| (normal(p.z / factor), p.right)));
    }
    let band = |(from, to): (f64, f64)| {
        let last = to == 1.0;
        let inside: Vec<&(f64, bool)> = (stated.iter())
            .filter(|(p, _)| *p >= from && (*p < to || last))
            .collect();
        let n = inside.len();
        (n > 0).then(|| Certainty {
            from,
            to,
            pairs: n,
            stated: inside.iter().map(|s| s.0).sum::<f64>() / n as f64,
            right: inside.iter().filter(|s| s.1).count() as f64 / n as f64,
        })
    };
    BANDS.into_iter().filter_map(band).collect()
}

/// What is left of independent errors in a ratio: where 90 % of the pairs lie, over where they would. Each set has the same weight.
fn factor<'a>(pairs: impl Iterator<Item = &'a Pair>) -> f64 {
    let mut by_set: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for p in pairs {
        by_set.entry(&p.set).or_default().push(p.error);
    }
    let n = by_set.len().max(1) as f64;
    let mut ends = 0.0;
    for errors in by_set.values_mut() {
        errors.sort_by(f64::total_cmp);
        ends += errors[(0.9 * (errors.len() - 1) as f64).round() as usize];
    }
    (ends / n / RANGE_ERRORS).max(0.05)
}

/// The standard normal distribution's share below `z`, from 0 on (Abramowitz and Stegun 26.2.17, error below 7.5e-8).
fn normal(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    1.0 - (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of `qwen3_32b`: TP 1 to 4 for `users`.
    fn row(tp: u32, users: u32, metric: &str, measured: f64, predicted: f64) -> Row {
        Row {
            set: "qwen3_32b".into(),
            case: format!("{tp} {users}"),
            metric: metric.into(),
            measured,
            predicted: Some(predicted),
            baseline: None,
            range: Some([predicted / 1.2, predicted * 1.2]),
            kind: None,
            place: None,
            responses: None,
            plain: None,
            accelerator: None,
            fitted: false,
            note: String::new(),
        }
    }

    fn knobs(rows: &[Row]) -> BTreeMap<(String, String), Vec<String>> {
        let own = |r: &Row| {
            let (tp, users) = r.case.split_once(' ').unwrap();
            [tp, "1000", "100", users].map(str::to_owned).to_vec()
        };
        rows.iter()
            .map(|r| ((r.set.clone(), r.case.clone()), own(r)))
            .collect()
    }

    fn find<'a>(q: &'a Quality, metric: &str) -> &'a Decisions {
        q.decisions.iter().find(|d| d.metric == metric).unwrap()
    }

    #[test]
    fn regret_is_what_the_named_choice_costs() {
        // TP 4 is the fastest; with 8 users TP 2 is named, which is a tenth slower.
        let rows = [
            row(1, 4, "tpot_ms", 40.0, 42.0),
            row(2, 4, "tpot_ms", 22.0, 20.0),
            row(4, 4, "tpot_ms", 12.0, 13.0),
            row(2, 8, "tpot_ms", 22.0, 18.0),
            row(4, 8, "tpot_ms", 20.0, 19.0),
        ];
        let q = Quality::of(&rows, &knobs(&rows));
        let d = find(&q, "tpot_ms");
        assert_eq!((d.groups, d.alternatives, d.best, d.as_good), (2, 5, 1, 1));
        assert!((d.worst_regret - 0.1).abs() < 1e-9 && (d.mean_regret - 0.05).abs() < 1e-9);
        assert_eq!(d.rank_correlation, Some(1.0));
        assert!(
            q.markdown()
                .contains("| qwen3_32b | tpot_ms | 2 | 5 | 50 % | 50 % | 5.0 % | 10.0 % | 1.00 |")
        );
        // One set cannot say how sure it is.
        assert!(q.certainty.is_empty());
    }

    #[test]
    fn tokens_per_device_come_from_the_closed_loop() {
        let both = |tp, ttft: f64, tpot: f64| {
            [
                row(tp, 4, "ttft_ms", ttft, ttft),
                row(tp, 4, "tpot_ms", tpot, tpot),
            ]
        };
        let rows: Vec<Row> = [both(1, 500.0, 40.0), both(2, 300.0, 25.0)]
            .into_iter()
            .flatten()
            .collect();
        let groups = groups(&rows, &knobs(&rows));
        let load = ["1000", "100", "4"].map(str::to_owned).to_vec();
        let per = &groups[&("qwen3_32b".into(), "tokens/s per device".into(), load)];
        let expected = 1e3 * 4.0 * 100.0 / (500.0 + 99.0 * 40.0);
        assert!((per[0].measured - expected).abs() < 1e-9);
        // Twice the devices are not twice as fast: the named best is one device, not two.
        assert!(per[0].measured > per[1].measured);
    }

    #[test]
    fn a_group_that_was_fitted_on_is_no_decision() {
        let mut rows = [
            row(1, 4, "tpot_ms", 40.0, 42.0),
            row(2, 4, "tpot_ms", 22.0, 20.0),
        ];
        rows.iter_mut().for_each(|r| r.fitted = true);
        assert_eq!(Quality::of(&rows, &knobs(&rows)), Quality::default());
    }

    #[test]
    fn ranks_of_opposite_orders_are_opposite() {
        let a = |measured, predicted| Alternative {
            measured,
            predicted,
            half: None,
            fitted: false,
        };
        assert_eq!(
            spearman(&[a(1.0, 3.0), a(2.0, 2.0), a(3.0, 1.0)]),
            Some(-1.0)
        );
        assert_eq!(spearman(&[a(1.0, 1.0), a(2.0, 2.0)]), None);
        assert_eq!(spearman(&[a(1.0, 1.0), a(1.0, 2.0), a(1.0, 3.0)]), None);
    }

    #[test]
    fn the_normal_distribution_is_right() {
        for (z, p) in [
            (0.0, 0.5),
            (1.0, 0.841_344_7),
            (1.644_853_6, 0.95),
            (3.0, 0.998_650_1),
        ] {
            assert!((normal(z) - p).abs() < 1e-6, "{z}");
        }
    }
}
