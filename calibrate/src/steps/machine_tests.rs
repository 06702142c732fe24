//! Fits of logs as machines make them: parts of steps measured, few prompts among many decodes, a speed that drifts.

use hwmodels::Profile;
use rand::{RngExt as _, SeedableRng as _};
use sim::cluster::drift::{Drift, SpeedDrift, Swing};
use sim::kernel::time::{SimDuration, SimTime};

use super::check::check;
use super::errors::Use;
use super::log::{Facts, Log, Parts};
use super::nnls::robust;
use super::tests::{Engine, setup, truth};
use super::*;

/// An engine whose reading of weights and arithmetic overlap as `sharpness` says, with a small LM head.
fn engine(sharpness: f64) -> Profile {
    truth(&[
        ("step.fixed_s", 4e-4),
        ("step.weights_s", 3.3e-3),
        ("step.token_s", 2.9e-4),
        ("step.sharpness", sharpness),
        ("step.seq_s", 2e-5),
        ("step.sampled_s", 4e-6),
        ("step.elementwise_s", 5e-5),
        ("step.context_s", 1e-6),
        ("step.pair_s", 1.7e-7),
    ])
}

/// `log` with its steps' times as parts, the LM head among the products, as the truth has them.
fn with_parts(mut log: Log, truth: &Profile) -> Log {
    let g = |name: &str| truth.get(name, 0.0);
    for s in &mut log.steps {
        let b = &s.stats;
        let shape = Shape {
            crossover: g("step.weights_s") / g("step.token_s"),
            sharpness: g("step.sharpness"),
            tile: 1.0,
        };
        let tokens = f64::from(b.tokens());
        let p = Parts {
            linear: g("step.token_s") * shape.of(tokens)
                + g("step.sampled_s") * f64::from(b.sampled_seqs),
            attention: g("step.context_s") * b.decode_ctx_sum as f64
                + g("step.pair_s") * b.prefill_pairs as f64,
            elementwise: g("step.elementwise_s") * tokens,
            ..Parts::default()
        };
        let host = g("step.fixed_s") + g("step.seq_s") * f64::from(b.decode_seqs + b.prefill_seqs);
        // A slow step is slow in all its parts.
        let slow = s.seconds / (p.linear + p.attention + p.elementwise + host);
        s.parts = Some(Parts {
            linear: p.linear * slow,
            attention: p.attention * slow,
            elementwise: p.elementwise * slow,
            ..p
        });
    }
    log
}

/// All times of `log` from `from` on (a share of its span) multiplied by `factor`.
fn slower(mut log: Log, from: f64, factor: f64) -> Log {
    let span = log.steps.last().map_or(0.0, |s| s.start);
    for s in log.steps.iter_mut().filter(|s| s.start >= from * span) {
        stretch(s, factor);
    }
    log
}

fn stretch(s: &mut Step, factor: f64) {
    s.seconds *= factor;
    if let Some(p) = &mut s.parts {
        p.linear *= factor;
        p.attention *= factor;
        p.elementwise *= factor;
    }
}

/// Loads of one user, some and many, with few prompts.
fn loads(sharpness: f64, noise: f64, seed: u64, rounds: u32) -> Vec<Log> {
    let truth = engine(sharpness);
    let mut e = Engine::new(truth.clone(), noise, 0, seed);
    let mut logs = Vec::new();
    for (name, seqs, prompt, output) in [
        ("one", 1, 40, 220),
        ("short", 1, 20, 60),
        ("some", 5, 100, 150),
        ("many", 16, 60, 60),
    ] {
        for round in 0..rounds {
            let log = e.run(&format!("{name}.{round}.csv"), seqs, prompt, output, 4, 1);
            logs.push(with_parts(log, &truth));
        }
    }
    logs
}

/// A fit of `logs` that predicts none of them from the others: that takes time.
fn fitted(logs: &[Log]) -> Outcome {
    let other = Engine::new(engine(1.0), 0.0, 0, 99).run("other.csv", 3, 50, 30, 1, 1);
    fit(logs, &[other], &setup()).expect("fits")
}

fn value(o: &Outcome, name: &str) -> f64 {
    o.profile.get(name, 0.0)
}

#[test]
fn weights_and_arithmetic_that_add_up_are_found_so_and_no_lm_head_is_made_of_their_shape() {
    let outcome = fitted(&loads(1.0, 0.08, 1, 1));
    assert!(outcome.report.by_parts);
    assert!(
        value(&outcome, "step.sharpness") < 1.12,
        "{}",
        outcome.report
    );
    for (name, want) in [("step.weights_s", 3.3e-3), ("step.token_s", 2.9e-4)] {
        let got = value(&outcome, name);
        assert!((got / want - 1.0).abs() < 0.05, "{name}: {got}, not {want}");
    }
    // A sixteenth of what a token's products take, at most.
    assert!(
        value(&outcome, "step.sampled_s") < 1.8e-5,
        "{}",
        outcome.report
    );
    // Twice the batch that was fitted, and prompts of lengths that no load had.
    let truth = engine(1.0);
    let mut e = Engine::new(truth.clone(), 0.0, 0, 2);
    let wide = with_parts(e.run("wide.csv", 32, 30, 60, 2, 1), &truth);
    let checked = check(
        &outcome.profile,
        &wide,
        &Facts::default(),
        Some(Use::HeldOut),
    );
    for k in checked.expect("the same layout").kinds {
        assert!((k.ratio() - 1.0).abs() < 0.04, "{k:?}");
    }
}

#[test]
fn weights_and_arithmetic_that_overlap_are_found_so() {
    for (seed, sharpness) in [(3, 1.5), (4, 3.0)] {
        let outcome = fitted(&loads(sharpness, 0.05, seed, 1));
        let overlap = 1.0 / value(&outcome, "step.sharpness");
        assert!(
            (overlap - 1.0 / sharpness).abs() < 0.12,
            "{sharpness}: {overlap}"
        );
        let weights = value(&outcome, "step.weights_s");
        assert!(
            (weights / 3.3e-3 - 1.0).abs() < 0.05,
            "{sharpness}: {weights}"
        );
    }
}

#[test]
fn a_step_counts_with_its_time_and_not_as_one_of_many() {
    // A thousand steps of 1 s a token and fifty of 1.1 s a token that take as long together: no slope is right for both.
    let (mut rows, mut y) = (Vec::new(), Vec::new());
    for i in 0..1050 {
        let (tokens, seconds) = if i % 21 == 0 {
            (20.0, 22.0)
        } else {
            (1.0, 1.0)
        };
        let mut row = [0.0; COLUMNS.len()];
        row[terms::column::ELEMENTWISE] = tokens;
        rows.push(row);
        y.push(seconds * if i % 2 == 0 { 1.15 } else { 0.85 });
    }
    let typical: Vec<f64> = rows.iter().map(|x| x[terms::column::ELEMENTWISE]).collect();
    let slope = |counts: &[f64]| {
        let columns = [terms::column::ELEMENTWISE];
        robust(&rows, &y, &typical, counts, &columns, 30).beta[terms::column::ELEMENTWISE]
    };
    let (by_time, by_rows) = (slope(&typical), slope(&vec![1.0; y.len()]));
    let total = |slope: f64| {
        let predicted: f64 = rows
            .iter()
            .map(|x| slope * x[terms::column::ELEMENTWISE])
            .sum();
        predicted / y.iter().sum::<f64>()
    };
    assert!((total(by_time) - 1.0).abs() < 0.02, "{by_time}");
    assert!(
        total(by_time) > total(by_rows) + 0.02,
        "{by_time} {by_rows}"
    );
}

#[test]
fn intervals_hold_the_truth_although_the_speed_drifts_within_a_load_and_between_loads() {
    let (mut held, mut asked) = (0, 0);
    let mut wider = 0.0;
    for seed in 10..14 {
        let steady = loads(1.0, 0.05, seed, 2);
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        let mut normal = || (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        let mut drifting = steady.clone();
        for log in &mut drifting {
            let level = (0.04 * normal()).exp();
            let phases: Vec<f64> = (0..100).map(|_| level * (0.05 * normal()).exp()).collect();
            for s in &mut log.steps {
                // A phase lasts for half a second.
                let at = (2.0 * s.start) as usize;
                stretch(s, phases[at % phases.len()]);
            }
        }
        let (a, b) = (fitted(&steady), fitted(&drifting));
        for (name, want) in [
            ("step.weights_s", 3.3e-3),
            ("step.token_s", 2.9e-4),
            ("step.context_s", 1e-6),
            ("step.pair_s", 1.7e-7),
        ] {
            let of = |o: &Outcome| {
                let p = o.report.parameters.iter().find(|p| p.name == name);
                p.and_then(|p| p.interval).expect("drawn")
            };
            let i = of(&b);
            asked += 1;
            held += usize::from(i.low <= want && want <= i.high);
            wider += (i.high - i.low) / (of(&a).high - of(&a).low) / 16.0;
        }
    }
    // Of 95 % intervals by the bootstrap of few loads, most hold; the count is the same in every run.
    assert!(held * 10 >= asked * 8, "{held} of {asked}");
    assert!(wider > 1.5, "{wider}");
}

#[test]
fn a_quiet_machine_gives_no_warning() {
    let report = fitted(&loads(1.0, 0.05, 20, 2)).report;
    assert_eq!(report.steadiness.warnings, Vec::<String>::new());
    assert!(
        report.steadiness.level_deviation < 0.02,
        "{:?}",
        report.steadiness
    );
}

#[test]
fn a_busy_machine_is_named_with_its_share_of_slow_steps() {
    let truth = engine(1.0);
    let mut e = Engine::new(truth.clone(), 0.05, 10, 21);
    let log = with_parts(e.run("busy.csv", 4, 50, 200, 4, 1), &truth);
    let outcome = fitted(&[log]);
    let s = &outcome.report.steadiness;
    // One step in ten takes five times as long: 40 of 140 parts of all time.
    assert!((0.06..0.14).contains(&s.slow_ratio), "{s:?}");
    assert!((0.2..0.36).contains(&s.slow_time_ratio), "{s:?}");
    assert!(s.warnings[0].contains("the machine was busy"), "{s:?}");
    let notes = &outcome.profile.provenance.notes;
    assert!(
        notes.iter().any(|n| n.contains("the machine was busy")),
        "{notes:?}"
    );
}

#[test]
fn a_speed_that_changes_within_a_log_or_between_logs_is_named_with_the_logs() {
    let mut logs = loads(1.0, 0.05, 22, 2);
    logs[5] = slower(logs[5].clone(), 0.5, 1.15);
    let report = fitted(&logs).report;
    let half = report.steadiness.logs[5]
        .second_half
        .expect("steps in both");
    assert!((half - 0.15).abs() < 0.03, "{half}");
    let words = report.steadiness.warnings.join("\n");
    assert!(words.contains("during some.1.csv"), "{words}");
    assert!(words.contains("longer in its second half"), "{words}");

    let mut logs = loads(1.0, 0.05, 23, 2);
    logs[6] = slower(logs[6].clone(), 0.0, 1.12);
    let report = fitted(&logs).report;
    let words = report.steadiness.warnings.join("\n");
    assert!(
        words.contains("between loads") && words.contains("longer in many.0.csv"),
        "{words}"
    );
    let of = |i: usize| report.steadiness.logs[i].beside_others.expect("shared");
    assert!(
        ((1.0 + of(6)) / (1.0 + of(7)) - 1.12).abs() < 0.03,
        "{words}"
    );
}

#[test]
fn a_speed_that_drifts_within_logs_is_in_the_profile_and_a_steady_one_is_not() {
    let mut logs = loads(1.0, 0.05, 24, 2);
    for (log, machine) in logs.iter_mut().zip(0..) {
        let swings = [(0.08, 1.0), (0.0, 0.0)].map(|(ratio, seconds)| Swing {
            ratio,
            time: SimDuration::from_secs(seconds),
        });
        let mut drift = Drift::new(SpeedDrift { swings, machine }, 1);
        for s in &mut log.steps {
            stretch(s, drift.factor(SimTime::from_secs(s.start)));
        }
    }
    let outcome = fitted(&logs);
    let [ratio, seconds] = ["noise.drift_ratio", "noise.drift_s"].map(|n| value(&outcome, n));
    assert!((0.065..0.095).contains(&ratio), "{ratio}");
    assert!((0.5..2.0).contains(&seconds), "{seconds}");
    assert_eq!(value(&outcome, "noise.burst_ratio"), 0.0);

    let steady = fitted(&loads(1.0, 0.05, 25, 2));
    assert_eq!(value(&steady, "noise.drift_ratio"), 0.0);
}
