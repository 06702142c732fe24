//! The whole fit: logs in; profile, errors and advice out.

use std::collections::BTreeMap;
use std::fmt;

use hwmodels::fitted::{Extent, param, spec};
use hwmodels::profile::{Provenance, Validation};
use hwmodels::{Basis, Evidence, Profile, StepModel};
use serde::Serialize;

use super::check::{Checked, distinct};
use super::errors::{Errors, Residual, Use, file_name, judge, usable};
use super::identify::{self, Identifiability};
use super::intervals::{self, Interval};
use super::log::{Facts, Log, Step};
use super::nnls::{deviation, robust};
use super::propose::{self, Allowed, Proposal};
use super::steadiness::{self, Steadiness};
use super::terms::{COLUMNS, Equation, Shape, column, row};
use super::{Fitted, LEAST_STEPS, StepsError, layouts, shape};

/// Largest median error of a step on held-out logs that a profile's validation accepts [%].
const STEP_TOLERANCE: f64 = 10.0;
/// Largest error of a held-out log's time in all [%].
const TOTAL_TOLERANCE: f64 = 5.0;

/// How to fit.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Name of the profile.
    pub name: String,
    /// The command that fits, for the provenance.
    pub command: String,
    /// Facts that hold for all logs, whatever stands beside them.
    pub facts: Facts,
}

/// A fitted parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Name.
    pub name: String,
    /// Value [unit].
    pub value: f64,
    /// Interval of 95 % of the bootstrap's draws; none where it was not drawn.
    pub interval: Option<Interval>,
    /// Unit.
    pub unit: String,
    /// What it is.
    pub meaning: String,
}

/// What a fit says about itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the profile.
    pub profile: String,
    /// Steps fitted.
    pub steps: u64,
    /// Whether the logs say where a step's time went, so that its parts were fitted one by one.
    pub by_parts: bool,
    /// The parameters.
    pub parameters: Vec<Parameter>,
    /// Tokens at which arithmetic overtakes the reading of weights; none where no bend shows.
    pub crossover_tokens: Option<f64>,
    /// Relative deviation of a measured step from the predicted one [ratio].
    pub step_noise: f64,
    /// Errors by log.
    pub errors: Vec<Errors>,
    /// Predicted and measured time by kind of step, of logs for which that was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Checked>,
    /// How steady the machine was while the fitted logs were written.
    pub steadiness: Steadiness,
    /// What the data tell apart.
    pub identifiability: Identifiability,
    /// What to measure next.
    pub proposals: Vec<Proposal>,
    /// What logs of other layouts showed, and anything else to know.
    pub notes: Vec<String>,
}

/// A fit.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The profile.
    pub profile: Profile,
    /// What it says about itself.
    pub report: Report,
    /// Residuals of all logs.
    pub residuals: Vec<Residual>,
    /// Names of the logs, as residuals number them.
    pub logs: Vec<String>,
}

/// The logs with what is known of them besides.
fn known(logs: &[Log], setup: &Setup) -> Vec<Log> {
    let known = |l: &Log| Log {
        facts: setup.facts.clone().or(&l.facts),
        ..l.clone()
    };
    logs.iter().map(known).collect()
}

/// Predicts each log from a fit of the others.
fn leave_out_in_turn(base: &[&Log], errors: &mut Vec<Errors>, notes: &mut Vec<String>) {
    for (i, out) in base.iter().enumerate() {
        let rest: Vec<&Log> = base
            .iter()
            .enumerate()
            .filter(|(j, _)| *j != i)
            .map(|(_, l)| *l)
            .collect();
        match Core::fit(&rest) {
            Ok(core) => {
                let slow = 1.0 + core.interrupted;
                let least = out.facts.min_step_s.unwrap_or(0.0) / slow;
                let predict = |s: &Step| slow * core.solved.fitted.paced(&s.stats, least);
                errors.extend(judge(out, i, Use::LeftOutInTurn, predict).0);
            }
            Err(e) => notes.push(format!("without {}: {e}", file_name(&out.name))),
        }
    }
}

/// What the held-out logs say of the fit.
fn validations(errors: &[Errors]) -> Vec<Validation> {
    let mut out = Vec::new();
    for e in errors.iter().filter(|e| e.used == Use::HeldOut) {
        for (metric, value, tolerance) in [
            ("step time", e.median_ape, STEP_TOLERANCE),
            ("time of all steps", e.total_error.abs(), TOTAL_TOLERANCE),
        ] {
            out.push(Validation {
                set: file_name(&e.log),
                metric: metric.into(),
                n: e.steps,
                median_ape: (value * 100.0).round() / 100.0,
                tolerance,
            });
        }
    }
    out
}

/// Fits `logs` and predicts `hold_out`.
///
/// The layout (and threads) of the first log is the one that is fitted; logs of other layouts teach what those add.
///
/// # Errors
/// Too few steps, or a log that is both fitted and held out.
pub fn fit(logs: &[Log], hold_out: &[Log], setup: &Setup) -> Result<Outcome, StepsError> {
    let (logs, hold_out) = (known(logs, setup), known(hold_out, setup));
    distinct(&logs, &hold_out)?;
    let first = logs.first().map(|l| l.facts.clone()).unwrap_or_default();
    let same = |l: &&Log| l.facts.layout() == first.layout() && l.facts.threads == first.threads;
    let base: Vec<&Log> = logs.iter().filter(same).collect();
    let core = Core::fit(&base)?;
    let steadiness = core.steadiness();
    let intervals = intervals::bootstrap(
        &core.logs(),
        &core.solved,
        core.equations,
        steadiness.level_deviation,
    );
    let mut notes = core.notes.clone();
    let mut profile = core.profile(&first, setup, &intervals)?;
    if let Some(drift) = &steadiness.drift {
        drift.put_into(&mut profile)?;
    }
    let warnings = (steadiness.warnings.iter()).map(|w| format!("warning: {w}"));
    profile.provenance.notes.extend(warnings);
    profile.provenance.fitted_on = base.iter().map(|l| file_name(&l.name)).collect();
    for log in logs.iter().filter(|l| !same(l)) {
        notes.push(layouts::learn(&mut profile, log)?);
        profile.provenance.fitted_on.push(file_name(&log.name));
    }
    let mut residuals = Vec::new();
    let mut errors = Vec::new();
    for (i, log) in logs.iter().chain(&hold_out).enumerate() {
        let used = if i < logs.len() {
            Use::Fitted
        } else {
            Use::HeldOut
        };
        let model = layouts::on_layout(&profile, log)?;
        let (e, r) = judge(log, i, used, |s| model.step(&s.stats).latency);
        residuals.extend(r);
        errors.extend(e);
    }
    if hold_out.is_empty() && base.len() > 1 {
        leave_out_in_turn(&base, &mut errors, &mut notes);
    }
    profile.validations.extend(validations(&errors));
    if hold_out.is_empty() {
        notes.push(
            "the profile is untrusted until a log that was not fitted is predicted: --hold-out LOG"
                .into(),
        );
    }
    hwmodels::fitted::check(&profile)?;
    let limits = hwmodels::fitted::Limits::of(&profile);
    let seen = |f: fn(&Step) -> u32| core.steps.iter().map(f).max().unwrap_or(1);
    let allowed = Allowed {
        max_num_seqs: limits
            .max_num_seqs
            .unwrap_or_else(|| 2 * seen(|s| s.stats.decode_seqs + s.stats.prefill_seqs)),
        max_num_batched_tokens: limits
            .max_num_batched_tokens
            .unwrap_or_else(|| seen(|s| s.stats.tokens())),
        max_model_len: limits.max_model_len.unwrap_or(2048),
    };
    let fitted = core.solved.fitted;
    let report = Report {
        profile: profile.name.clone(),
        steps: core.steps.len() as u64,
        by_parts: core.equations.len() > 1,
        parameters: parameters(&profile, &intervals),
        crossover_tokens: shape::bent(&fitted).then_some(fitted.shape.crossover),
        step_noise: core.noise,
        errors,
        checks: Vec::new(),
        steadiness,
        identifiability: core.identifiability(),
        proposals: propose::propose(&core.steps, &fitted, core.noise, &allowed),
        notes,
    };
    Ok(Outcome {
        profile,
        report,
        residuals,
        logs: logs
            .iter()
            .chain(&hold_out)
            .map(|l| l.name.clone())
            .collect(),
    })
}

/// A fit of the logs of one layout.
struct Core {
    /// Steps of all logs, one log after the other.
    steps: Vec<Step>,
    /// Name and number of steps of each log.
    lengths: Vec<(String, usize)>,
    equations: &'static [Equation],
    solved: shape::Solved,
    /// Deviation of a step from its prediction [ratio].
    noise: f64,
    /// Time that slow steps add to all steps together [ratio].
    interrupted: f64,
    /// Between steps: per step, and per sequence [s].
    gap: [f64; 2],
    notes: Vec<String>,
}

impl Core {
    fn fit(logs: &[&Log]) -> Result<Core, StepsError> {
        let computed = |l: &&Log| usable(l).into_iter().map(Step::computed).collect();
        let each: Vec<Vec<Step>> = logs.iter().map(computed).collect();
        let lengths = (logs.iter().zip(&each)).map(|(l, s)| (l.name.clone(), s.len()));
        let lengths = lengths.collect();
        let steps = each.concat();
        if steps.len() < LEAST_STEPS {
            let (tp, pp) = logs.first().map_or((1, 1), |l| l.facts.layout());
            return Err(StepsError::TooFew {
                logs: logs.len(),
                layout: format!("TP {tp} x PP {pp}"),
                steps: steps.len(),
                least: LEAST_STEPS,
            });
        }
        let equations = shape::equations(&steps);
        let solved = shape::fit(&steps);
        let ratios: Vec<f64> = steps
            .iter()
            .map(|s| s.seconds / solved.fitted.predict(&s.stats).max(1e-9) - 1.0)
            .collect();
        let measured: f64 = steps.iter().map(|s| s.seconds).sum();
        let predicted: f64 = steps.iter().map(|s| solved.fitted.predict(&s.stats)).sum();
        let over = measured / predicted.max(1e-12) - 1.0;
        let mut notes = Vec::new();
        if over < -0.01 {
            notes.push(format!(
                "typical steps, as fitted, sum up to {:.1} % more than all steps measured",
                -100.0 * over
            ));
        }
        let gaps: Vec<(f64, Step)> = steps.iter().filter_map(|s| Some((s.gap?, *s))).collect();
        Ok(Core {
            noise: deviation(&ratios, &vec![1.0; ratios.len()]),
            interrupted: over.clamp(0.0, 1.0),
            gap: between(&gaps),
            steps,
            lengths,
            equations,
            solved,
            notes,
        })
    }

    /// The steps of each log.
    fn logs(&self) -> Vec<&[Step]> {
        let mut rest = &self.steps[..];
        let mut logs = Vec::new();
        for (_, n) in &self.lengths {
            let (log, after) = rest.split_at(*n);
            logs.push(log);
            rest = after;
        }
        logs
    }

    fn steadiness(&self) -> Steadiness {
        let names = self.lengths.iter().map(|(name, _)| name.as_str());
        let logs: Vec<(&str, &[Step])> = names.zip(self.logs()).collect();
        steadiness::look(&logs, |s| self.solved.fitted.predict(&s.stats))
    }

    fn identifiability(&self) -> Identifiability {
        let weights: Vec<f64> = self
            .steps
            .iter()
            .map(|s| 1.0 / s.seconds.max(1e-9).powi(2))
            .collect();
        let shape = &self.solved.fitted.shape;
        identify::look(&self.steps, shape, &weights, self.equations)
    }

    fn profile(
        &self,
        facts: &Facts,
        setup: &Setup,
        intervals: &intervals::Intervals,
    ) -> Result<Profile, StepsError> {
        let Fitted { shape, beta } = self.solved.fitted;
        let mut params = BTreeMap::new();
        let mut set =
            |name: &str, value: f64, error: Option<f64>, evidence| -> Result<(), StepsError> {
                let most = spec(name).map_or(f64::INFINITY, |s| s.max);
                let p = param(name, rounded(value).min(most), error.map(rounded), evidence)?;
                params.insert(name.to_owned(), p);
                Ok(())
            };
        let silent = self.identifiability().silent;
        for (i, name) in COLUMNS.iter().enumerate() {
            if !silent.iter().any(|s| s == name) {
                let error = intervals.beta[i].std_error;
                set(name, beta[i], Some(error), Evidence::Fitted)?;
            }
        }
        if shape.crossover > 0.0 {
            set(
                "step.weights_s",
                beta[column::PRODUCT] * shape.crossover,
                Some(intervals.weights.std_error),
                Evidence::Fitted,
            )?;
        }
        set("step.sharpness", shape.sharpness, None, Evidence::Fitted)?;
        set("step.tile_tokens", shape.tile, None, Evidence::Fitted)?;
        set("host.gap_s", self.gap[0], None, Evidence::Measured)?;
        set("host.gap_seq_s", self.gap[1], None, Evidence::Measured)?;
        if let Some(least) = facts.min_step_s.filter(|s| *s > 0.0) {
            set("host.min_step_s", least, None, Evidence::Measured)?;
        }
        set(
            "noise.interrupted_ratio",
            self.interrupted,
            None,
            Evidence::Measured,
        )?;
        set("noise.step_ratio", self.noise, None, Evidence::Measured)?;
        for (name, value) in &facts.limits {
            let bounds = spec(name).map_or((0.0, 0.0), |s| (s.min, s.max));
            set(
                name,
                value.clamp(bounds.0, bounds.1),
                None,
                Evidence::Measured,
            )?;
        }
        let (tp, pp) = facts.layout();
        Ok(Profile {
            name: setup.name.clone(),
            accelerator: "*".into(),
            description: format!(
                "Step times of {} from {} logged steps",
                facts.model.as_deref().unwrap_or("an engine"),
                self.steps.len()
            ),
            provenance: Provenance {
                command: setup.command.clone(),
                rows: self.steps.len() as u64,
                notes: vec![format!(
                    "a measured step deviates by {:.1} % from the typical one",
                    100.0 * self.noise
                )],
                ..Provenance::default()
            },
            validity: Extent::ranges_of(self.steps.iter().map(|s| &s.stats)),
            basis: Some(Basis {
                engine: facts.engine.unwrap_or(hwmodels::EngineKind::VllmV1),
                model: facts.model.clone().unwrap_or_default(),
                layers: facts.layers.unwrap_or(0),
                hidden: facts.hidden.unwrap_or(0),
                tp,
                pp,
                threads: facts.threads.unwrap_or(0),
                cores: facts.cores.unwrap_or(0),
            }),
            params,
            ..Profile::default()
        })
    }
}

/// `[per step, per sequence]` of the time between steps [s]: the shape from typical gaps, the size from all.
fn between(gaps: &[(f64, Step)]) -> [f64; 2] {
    if gaps.len() < LEAST_STEPS {
        return [0.0; 2];
    }
    let straight = Shape {
        crossover: 0.0,
        sharpness: 4.0,
        tile: 1.0,
    };
    let rows: Vec<[f64; COLUMNS.len()]> =
        gaps.iter().map(|(_, s)| row(&s.stats, &straight)).collect();
    let y: Vec<f64> = gaps.iter().map(|(g, _)| *g).collect();
    let scales = vec![1.0; y.len()];
    let fit = robust(
        &rows,
        &y,
        &scales,
        &scales,
        &[column::FIXED, column::SEQ],
        20,
    );
    let typical: f64 = rows.iter().map(|x| super::nnls::dot(x, &fit.beta)).sum();
    let all: f64 = y.iter().sum();
    let size = if typical > 0.0 { all / typical } else { 0.0 };
    [fit.beta[column::FIXED] * size, fit.beta[column::SEQ] * size]
}

/// Six significant digits: more are noise in a file.
fn rounded(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

fn parameters(profile: &Profile, intervals: &intervals::Intervals) -> Vec<Parameter> {
    profile
        .params
        .iter()
        .filter(|(name, _)| !name.starts_with("limits."))
        .map(|(name, p)| Parameter {
            name: name.clone(),
            value: p.value,
            interval: if name == "step.weights_s" {
                Some(intervals.weights)
            } else {
                COLUMNS
                    .iter()
                    .position(|c| c == name)
                    .map(|i| intervals.beta[i])
            },
            unit: p.unit.clone(),
            meaning: spec(name).map_or_else(String::new, |s| s.meaning.to_owned()),
        })
        .collect()
}

/// A time in its natural unit, or a number.
fn figure(value: f64, unit: &str) -> String {
    if unit != "s" {
        return format!("{value:.4}");
    }
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 1e-6 => format!("{:.3} ns", value * 1e9),
        v if v < 1e-3 => format!("{:.3} us", value * 1e6),
        v if v < 1.0 => format!("{:.3} ms", value * 1e3),
        _ => format!("{value:.3} s"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} steps{}, a step deviates by {:.1} % from the typical one",
            self.profile,
            self.steps,
            if self.by_parts {
                ", each part of them fitted by itself"
            } else {
                ""
            },
            100.0 * self.step_noise
        )?;
        writeln!(
            f,
            "\n{:<26} {:>12}   {:<28} meaning",
            "parameter", "value", "95 % of the draws"
        )?;
        for p in &self.parameters {
            let interval = p.interval.map_or_else(String::new, |i| {
                format!("{} to {}", figure(i.low, &p.unit), figure(i.high, &p.unit))
            });
            writeln!(
                f,
                "{:<26} {:>12}   {interval:<28} {}",
                p.name,
                figure(p.value, &p.unit),
                p.meaning
            )?;
        }
        if let Some(tokens) = self.crossover_tokens {
            writeln!(
                f,
                "\narithmetic overtakes the reading of weights at {tokens:.1} tokens a step"
            )?;
        }
        writeln!(
            f,
            "\n{:<26} {:<12} {:>7} {:>9} {:>7} {:>8} {:>10}   total by kind %: decode, prefill, mixed",
            "log", "use", "steps", "median %", "p90 %", "worst %", "total %"
        )?;
        for e in &self.errors {
            let used = match e.used {
                Use::Fitted => "fitted",
                Use::LeftOutInTurn => "left out",
                Use::HeldOut => "held out",
            };
            let kinds: Vec<String> = e
                .by_kind
                .iter()
                .map(|k| k.map_or_else(|| "-".into(), |v| format!("{v:+.1}")))
                .collect();
            writeln!(
                f,
                "{:<26} {used:<12} {:>7} {:>9.1} {:>7.1} {:>8.1} {:>+10.1}   {}",
                file_name(&e.log),
                e.steps,
                e.median_ape,
                e.p90_ape,
                e.worst_ape,
                e.total_error,
                kinds.join(", ")
            )?;
        }
        for c in &self.checks {
            write!(f, "{c}")?;
        }
        writeln!(f, "\n{}", self.steadiness)?;
        for w in &self.steadiness.warnings {
            writeln!(f, "\n- warning: {w}")?;
        }
        for w in self.identifiability.words.iter().chain(&self.notes) {
            writeln!(f, "\n- {w}")?;
        }
        if !self.proposals.is_empty() {
            writeln!(
                f,
                "\nmeasure next, {:.0} s each (closed loop), the most useful first:",
                propose::SECONDS
            )?;
        }
        for p in &self.proposals {
            writeln!(
                f,
                "  concurrency {:>3}, prompt {:>4}, output {:>3}: error of predicted steps x {:.2}, of the parameters x {:.2}",
                p.load.concurrency,
                p.load.prompt,
                p.load.output,
                p.prediction_error_ratio,
                p.parameter_error_ratio
            )?;
        }
        Ok(())
    }
}
