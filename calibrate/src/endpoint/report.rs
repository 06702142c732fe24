//! What a black-box calibration found and how far its predictions are from what was measured.

use std::fmt;

use hwmodels::EngineKind;
use hwmodels::fitted::spec;
use serde::Serialize;

use super::fit::Fitted;
use super::joint::figures;
use super::load::{Load, Request, Role};
use super::names::AGAIN;
use super::params::UNKNOWNS;
use super::simulate::{Look, simulate};
use crate::drift::{COURSES, Drift};

/// What is compared of each load, with its unit.
pub const FIGURES: [(&str, &str); 4] = [
    ("e2e mean", "s"),
    ("ttft p50", "s"),
    ("e2e p99", "s"),
    ("output throughput", "tokens/s"),
];

/// A figure of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// As measured.
    pub measured: f64,
    /// As simulated.
    pub predicted: f64,
    /// Predicted over measured, less 1 [%].
    pub error_percent: f64,
}

/// One load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// Its name.
    pub name: String,
    /// What it was for.
    pub role: Role,
    /// Requests answered in full.
    pub requests: u64,
    /// Requests that were not.
    pub failed: u64,
    /// The figures, in the order of [`FIGURES`].
    pub figures: [Compared; 4],
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParamReport {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Its value; none for one that the loads do not need.
    pub value: Option<f64>,
    /// Its 90 % interval.
    pub interval: Option<[f64; 2]>,
    /// What it is.
    pub meaning: String,
}

/// One limit of the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitReport {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// How it is known.
    pub source: String,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EndpointReport {
    /// The loads, fitted ones first.
    pub loads: Vec<LoadReport>,
    /// Parameters.
    pub params: Vec<ParamReport>,
    /// How the machine's speed drifts, where that shows.
    pub drift: Option<Drift>,
    /// Limits.
    pub limits: Vec<LimitReport>,
    /// Difference of the figures between two runs of the same load [%]; none where no load was repeated.
    pub noise_percent: Option<[f64; 4]>,
    /// Median absolute error over the held-out loads, by figure [%]; none without one.
    pub held_out_percent: Option<[f64; 4]>,
    /// Facts that were read, and whatever else a reader must know.
    pub notes: Vec<String>,
    /// Sets of loads that were simulated.
    pub simulations: usize,
}

fn compare(load: &Load, fitted: &Fitted) -> Option<LoadReport> {
    let measured = figures(load.requests.iter())?;
    let predicted = predicted(load, fitted)?;
    let mut all = [Compared {
        measured: 0.0,
        predicted: 0.0,
        error_percent: 0.0,
    }; 4];
    for (k, c) in all.iter_mut().enumerate() {
        *c = Compared {
            measured: measured[k],
            predicted: predicted[k],
            error_percent: 100.0 * (predicted[k] / measured[k] - 1.0),
        };
    }
    Some(LoadReport {
        name: load.name.clone(),
        role: load.role,
        requests: load.requests.len() as u64,
        failed: load.failed,
        figures: all,
    })
}

/// The figures of `load` as simulated: their mean over several courses of the machine's speed, where that drifts.
fn predicted(load: &Load, fitted: &Fitted) -> Option<[f64; 4]> {
    let drift = fitted.drift.map(|d| d.of_machine(0));
    let courses = if drift.is_some() { COURSES } else { 1 };
    let mut mean = [0.0; 4];
    for course in 0..courses {
        let look = Look {
            drift,
            course,
            ..Look::default()
        };
        let simulated = simulate(load, &fitted.server, &fitted.params, look)?;
        let figures = figures(simulated.requests.iter().flatten())?;
        for (m, f) in mean.iter_mut().zip(figures) {
            *m += f / courses as f64;
        }
    }
    Some(mean)
}

/// The first `n` requests of a load.
fn head(load: &Load, n: usize) -> impl Iterator<Item = &Request> + Clone {
    load.requests.iter().take(n)
}

/// How far the figures of a load and its repetition are apart, over the requests that both have [%].
fn noise(loads: &[Load]) -> Option<[f64; 4]> {
    let (load, again) = loads.iter().find_map(|again| {
        let name = again.name.strip_suffix(AGAIN)?;
        Some((loads.iter().find(|l| l.name == name)?, again))
    })?;
    let n = load.requests.len().min(again.requests.len());
    let (a, b) = (figures(head(load, n))?, figures(head(again, n))?);
    let mut out = [0.0; 4];
    for (k, o) in out.iter_mut().enumerate() {
        *o = 100.0 * (b[k] / a[k] - 1.0).abs();
    }
    Some(out)
}

impl EndpointReport {
    /// Compares every load with its simulation.
    pub fn new(loads: &[Load], fitted: &Fitted, notes: Vec<String>) -> EndpointReport {
        let mut reports: Vec<LoadReport> =
            loads.iter().filter_map(|l| compare(l, fitted)).collect();
        reports.sort_by_key(|l| l.role == Role::HoldOut);
        let held: Vec<&LoadReport> = reports.iter().filter(|l| l.role == Role::HoldOut).collect();
        let mut held_out = [0.0; 4];
        for (k, h) in held_out.iter_mut().enumerate() {
            let errors = held.iter().map(|l| l.figures[k].error_percent.abs());
            *h = crate::statistics::median(errors.collect()).unwrap_or(f64::NAN);
        }
        let held_out_percent = (!held.is_empty()).then_some(held_out);
        let params = UNKNOWNS
            .iter()
            .enumerate()
            .filter_map(|(i, u)| {
                let s = spec(u.name)?;
                let there = !fitted.params.vanishes(i);
                Some(ParamReport {
                    name: u.name.into(),
                    unit: s.unit.into(),
                    value: there.then_some(fitted.params.0[i]),
                    interval: fitted.intervals[i].filter(|_| there),
                    meaning: s.meaning.into(),
                })
            })
            .collect();
        EndpointReport {
            loads: reports,
            params,
            drift: fitted.drift,
            limits: limits(fitted),
            noise_percent: noise(loads),
            held_out_percent,
            notes,
            simulations: fitted.evaluations,
        }
    }
}

fn limits(fitted: &Fitted) -> Vec<LimitReport> {
    let s = &fitted.server;
    let plenty = s.kv_tokens.source == super::server::Source::AtLeast;
    let kv = if plenty {
        fitted.seen.held_tokens
    } else {
        s.kv_tokens.value
    };
    let seats = if s.max_num_seqs.source == super::server::Source::AtLeast {
        fitted.seen.streaming
    } else {
        s.max_num_seqs.value
    };
    let row = |name: &str, value: String, source: super::server::Source| LimitReport {
        name: name.into(),
        value,
        source: source.words().into(),
    };
    let mut rows = vec![
        row("engine", s.kind.value.to_string(), s.kind.source),
        row("max_num_seqs", seats.to_string(), s.max_num_seqs.source),
        row(
            "max_num_batched_tokens",
            s.max_num_batched_tokens.value.to_string(),
            s.max_num_batched_tokens.source,
        ),
        row(
            "chunked_prefill",
            s.chunked_prefill.value.to_string(),
            s.chunked_prefill.source,
        ),
        row(
            "prefix_caching",
            s.prefix_caching.value.to_string(),
            s.prefix_caching.source,
        ),
        row("kv_tokens", kv.to_string(), s.kv_tokens.source),
    ];
    if s.kind.value == EngineKind::LlamaCpp {
        let unified = s.kv_unified;
        rows.push(row("kv_unified", unified.value.to_string(), unified.source));
    }
    rows
}

impl fmt::Display for EndpointReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Limits")?;
        for l in &self.limits {
            writeln!(f, "  {:24} {:>10}  {}", l.name, l.value, l.source)?;
        }
        writeln!(f, "Parameters (90 % interval)")?;
        for p in &self.params {
            match (p.value, p.interval) {
                (None, _) => writeln!(f, "  {:24} {:>10}  not needed", p.name, "-")?,
                (Some(v), Some([a, b])) => {
                    writeln!(
                        f,
                        "  {:24} {v:>10.3e}  {a:.3e} to {b:.3e} {}",
                        p.name, p.unit
                    )?;
                }
                (Some(v), None) => {
                    writeln!(
                        f,
                        "  {:24} {v:>10.3e}  {}, interval not known",
                        p.name, p.unit
                    )?;
                }
            }
        }
        if let Some(d) = &self.drift {
            writeln!(f, "{d}")?;
        }
        let width = self.loads.iter().map(|l| l.name.len()).max().unwrap_or(4);
        write!(
            f,
            "Errors of predictions [%]\n  {:width$}  {:>8} {:>5}",
            "load", "", "n"
        )?;
        for (name, _) in FIGURES {
            write!(f, " {name:>18}")?;
        }
        writeln!(f)?;
        for l in &self.loads {
            let role = match l.role {
                Role::Fit => "fitted",
                Role::HoldOut => "held out",
            };
            write!(f, "  {:width$}  {role:>8} {:>5}", l.name, l.requests)?;
            for c in &l.figures {
                write!(f, " {:>+18.1}", c.error_percent)?;
            }
            writeln!(f)?;
        }
        let line = |f: &mut fmt::Formatter<'_>, name: &str, v: &[f64; 4]| {
            write!(f, "  {name:width$}  {:>8} {:>5}", "", "")?;
            for x in v {
                write!(f, " {x:>18.1}")?;
            }
            writeln!(f)
        };
        if let Some(h) = &self.held_out_percent {
            line(f, "median of those held out", h)?;
        }
        if let Some(n) = &self.noise_percent {
            line(f, "two runs of one load differ by", n)?;
        }
        for n in &self.notes {
            writeln!(f, "note: {n}")?;
        }
        Ok(())
    }
}
