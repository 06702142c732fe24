//! What logs of other layouts add: collectives, sends between stages, and how well threads share the work.
//!
//! Where a log says how long its steps communicated, that is what is fitted. Where it does not, the profile of the first layout is
//! scaled to theirs without any communication, and what their steps take beyond that is put down to collectives
//! (or sends). Either is a time per step and per token, never below zero.

use hwmodels::fitted::{FittedStep, Target, param};
use hwmodels::{Evidence, Profile, StepModel as _};

use super::StepsError;
use super::log::{Log, Step};
use super::nnls::robust;
use super::shape::median;
use super::terms::{COLUMNS, Shape, column, row};

/// Time of communication per step and per token.
struct Excess {
    fixed: f64,
    token: f64,
    /// Median of measured over predicted without it [ratio].
    ratio: f64,
}

/// The profile as it predicts steps alone: without the gaps between them.
pub fn without_gaps(profile: &Profile) -> Profile {
    let mut p = profile.clone();
    p.params.remove("host.gap_s");
    p.params.remove("host.gap_seq_s");
    p
}

/// The model of `profile` on the layout of `log`.
///
/// # Errors
/// Layouts that the profile cannot be scaled to.
pub fn on_layout(profile: &Profile, log: &Log) -> Result<FittedStep, hwmodels::Error> {
    let (tp, pp) = log.facts.layout();
    let mut p = without_gaps(profile);
    let count = |n: Option<u32>| n.filter(|n| *n > 0).map(f64::from);
    for (name, value) in [
        ("host.threads", count(log.facts.threads)),
        ("host.cores", count(log.facts.cores)),
        ("host.min_step_s", log.facts.min_step_s),
    ] {
        if let Some(value) = value {
            p.params
                .insert(name.into(), param(name, value, None, Evidence::Measured)?);
        }
    }
    FittedStep::new(
        &p,
        &Target {
            tp,
            pp,
            replicas: log.facts.replicas.unwrap_or(1),
            ..Target::of(profile)
        },
    )
}

fn excess(profile: &Profile, log: &Log) -> Result<Option<Excess>, hwmodels::Error> {
    let mut bare = profile.clone();
    for name in [
        "comm.step_s",
        "comm.collective_s",
        "comm.collective_token_s",
        "comm.send_s",
        "comm.send_token_s",
    ] {
        bare.params
            .insert(name.into(), param(name, 0.0, None, Evidence::Analytic)?);
    }
    let model = on_layout(&bare, log)?;
    let alone: Vec<&Step> = log.steps.iter().filter(|s| !s.overlaps).collect();
    if alone.len() < super::LEAST_STEPS {
        return Ok(None);
    }
    let shape = Shape {
        crossover: 0.0,
        sharpness: 4.0,
        tile: 1.0,
    };
    let rows: Vec<[f64; COLUMNS.len()]> = alone.iter().map(|s| row(&s.stats, &shape)).collect();
    let predicted: Vec<f64> = alone.iter().map(|s| model.step(&s.stats).latency).collect();
    let beyond: Vec<f64> = alone
        .iter()
        .zip(&predicted)
        .map(|(s, p)| s.parts.map_or(s.seconds - p, |parts| parts.communication))
        .collect();
    let fit = robust(
        &rows,
        &beyond,
        &predicted,
        &predicted,
        &[column::FIXED, column::ELEMENTWISE],
        30,
    );
    let ratios: Vec<f64> = alone
        .iter()
        .zip(&predicted)
        .map(|(s, p)| s.seconds / p.max(1e-9))
        .collect();
    Ok(Some(Excess {
        fixed: fit.beta[column::FIXED],
        token: fit.beta[column::ELEMENTWISE],
        ratio: median(&ratios),
    }))
}

/// Adds to `profile` what `log`, of another layout, shows; a sentence on it.
///
/// # Errors
/// Layouts that the profile cannot be scaled to.
pub fn learn(profile: &mut Profile, log: &Log) -> Result<String, StepsError> {
    let (tp, pp) = log.facts.layout();
    let basis = profile.basis.clone().unwrap_or_default();
    let name = &log.name;
    if (tp, pp) == (basis.tp, basis.pp) {
        return threads(profile, log);
    }
    let Some(e) = excess(profile, log)? else {
        return Ok(format!(
            "{name}: too few steps that do not overlap; nothing learned"
        ));
    };
    let layers = f64::from(basis.layers.max(1));
    let mut set = |name: &str, value: f64| -> Result<(), StepsError> {
        profile
            .params
            .insert(name.to_owned(), param(name, value, None, Evidence::Fitted)?);
        Ok(())
    };
    if pp > 1 && tp == basis.tp {
        let boundaries = f64::from(pp - 1);
        set("comm.send_s", e.fixed / boundaries)?;
        set("comm.send_token_s", e.token / boundaries)?;
    } else if tp > 1 && pp == basis.pp {
        let n = f64::from(tp);
        set("comm.collective_s", e.fixed / (2.0 * layers * n.log2()))?;
        set(
            "comm.collective_token_s",
            e.token / (2.0 * layers * 2.0 * (n - 1.0) / n),
        )?;
    } else {
        return Ok(format!(
            "{name}: TP {tp} x PP {pp} differs in both from the first log, so that collectives and sends cannot be told \
             apart; nothing learned"
        ));
    }
    Ok(format!(
        "{name}: TP {tp} x PP {pp} takes {:.3} times what the scaled work alone would, {:.1} us a step and {:.2} us a token \
         of it put down to communication",
        e.ratio,
        1e6 * e.fixed,
        1e6 * e.token
    ))
}

/// Fits `host.parallel_ratio` to a log of the same layout with another number of threads.
fn threads(profile: &mut Profile, log: &Log) -> Result<String, StepsError> {
    let basis = profile.basis.clone().unwrap_or_default();
    let other = log.facts.threads.unwrap_or(basis.threads);
    let at = |profile: &Profile, ratio: f64| -> Result<f64, StepsError> {
        let mut p = profile.clone();
        p.params.insert(
            "host.parallel_ratio".into(),
            param("host.parallel_ratio", ratio, None, Evidence::Fitted)?,
        );
        let model = on_layout(&p, log)?;
        let off: Vec<f64> = log
            .steps
            .iter()
            .filter(|s| !s.overlaps)
            .map(|s| s.seconds / model.step(&s.stats).latency.max(1e-9))
            .collect();
        Ok(median(&off).ln().abs())
    };
    let mut best = (f64::INFINITY, 1.0);
    for i in 0..=100 {
        let ratio = f64::from(i) / 100.0;
        let off = at(profile, ratio)?;
        if off < best.0 {
            best = (off, ratio);
        }
    }
    profile.params.insert(
        "host.parallel_ratio".into(),
        param("host.parallel_ratio", best.1, None, Evidence::Fitted)?,
    );
    Ok(format!(
        "{}: with {other} thread(s) a rank instead of {}, {:.0} % of its work is shared among threads",
        log.name,
        basis.threads,
        100.0 * best.1
    ))
}
