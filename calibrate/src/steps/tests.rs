use hwmodels::fitted::{FittedStep, Target, param};
use hwmodels::{Basis, BatchStats, Evidence, Profile, StepModel as _};
use rand::{RngExt as _, SeedableRng as _};

use super::log::{Facts, link, parse};
use super::terms::column;
use super::*;

/// An engine whose steps take what `truth` says, with noise.
pub(super) struct Engine {
    truth: Profile,
    noise: f64,
    /// One step in so many takes five times as long.
    outliers: u32,
    rng: rand::rngs::StdRng,
}

pub(super) fn truth(values: &[(&str, f64)]) -> Profile {
    let mut p = Profile {
        name: "truth".into(),
        basis: Some(Basis {
            layers: 8,
            hidden: 512,
            threads: 2,
            cores: 2,
            ..Basis::default()
        }),
        ..Profile::default()
    };
    for (name, value) in values {
        let entry = param(name, *value, None, Evidence::Measured).expect("in bounds");
        p.params.insert((*name).to_owned(), entry);
    }
    p
}

/// A CPU engine of some 50M parameters.
fn usual() -> Profile {
    truth(&[
        ("step.fixed_s", 4e-4),
        ("step.weights_s", 6e-3),
        ("step.token_s", 9e-4),
        ("step.sharpness", 3.0),
        ("step.seq_s", 6e-5),
        ("step.context_s", 1.5e-6),
        ("step.pair_s", 8e-7),
    ])
}

impl Engine {
    pub(super) fn new(truth: Profile, noise: f64, outliers: u32, seed: u64) -> Engine {
        Engine {
            truth,
            noise,
            outliers,
            rng: rand::rngs::StdRng::seed_from_u64(seed),
        }
    }

    /// Some steps of `seqs` requests at a time with prompts of `prompt`.
    pub(super) fn run(
        &mut self,
        name: &str,
        seqs: u32,
        prompt: u32,
        output: u32,
        rounds: u32,
        tp: u32,
    ) -> Log {
        let target = Target {
            tp,
            ..Target::of(&self.truth)
        };
        let model = FittedStep::new(&self.truth, &target).expect("scales");
        let mut steps = Vec::new();
        let mut at = 0.0;
        let mut add = |engine: &mut Engine, stats: BatchStats| {
            let cost = model.computed(&stats);
            let mut seconds = cost.latency;
            let u: f64 = (0..12).map(|_| engine.rng.random::<f64>()).sum::<f64>() - 6.0;
            seconds *= 1.0 + engine.noise * u;
            if engine.outliers > 0 && engine.rng.random_range(0..engine.outliers) == 0 {
                seconds *= 5.0;
            }
            let paced = (model.least() - (seconds - cost.parts.host)).max(0.0);
            seconds += paced;
            steps.push(Step {
                replica: 0,
                start: at,
                seconds,
                paced,
                stats,
                parts: None,
                gap: None,
                overlaps: false,
            });
            at += seconds + 1e-4;
        };
        for _ in 0..rounds {
            // Requests come one after the other while those before decode.
            for i in 0..seqs {
                let mut b = BatchStats::default();
                for j in 0..i {
                    b.add_decode(prompt + i - j);
                }
                b.add_prefill(prompt, 0, true);
                add(self, b);
            }
            for t in 0..output {
                let mut b = BatchStats::default();
                for j in 0..seqs {
                    b.add_decode(prompt + t + seqs - j);
                }
                add(self, b);
            }
        }
        link(&mut steps);
        Log {
            name: name.to_owned(),
            steps,
            facts: Facts {
                layers: Some(8),
                hidden: Some(512),
                threads: Some(2 / tp),
                cores: Some(2),
                tp: Some(tp),
                min_step_s: Some(model.least()),
                ..Facts::default()
            },
        }
    }

    /// Loads that tell everything apart.
    fn varied(&mut self) -> Vec<Log> {
        vec![
            self.run("one.csv", 1, 40, 120, 3, 1),
            self.run("short.csv", 6, 20, 60, 4, 1),
            self.run("long.csv", 4, 300, 150, 2, 1),
            self.run("wide.csv", 24, 60, 40, 2, 1),
        ]
    }
}

pub(super) fn setup() -> Setup {
    Setup {
        name: "test".into(),
        command: "cargo test".into(),
        ..Setup::default()
    }
}

#[track_caller]
fn holds(outcome: &Outcome, name: &str, want: f64) {
    let p = outcome
        .report
        .parameters
        .iter()
        .find(|p| p.name == name)
        .unwrap_or_else(|| panic!("no {name}"));
    let i = p.interval.expect("drawn");
    // Half as wide again as the 95 % interval on either side: one test of many must not fail by chance.
    let slack = 0.5 * (i.high - i.low);
    assert!(
        i.low - slack <= want && want <= i.high + slack,
        "{name}: {want} is not in {i:?}, fitted {}",
        p.value
    );
}

#[test]
fn known_parameters_are_recovered_within_their_intervals() {
    let logs = Engine::new(usual(), 0.02, 0, 1).varied();
    let outcome = fit(&logs, &[], &setup()).expect("fits");
    for (name, want) in [
        ("step.context_s", 1.5e-6),
        ("step.pair_s", 8e-7),
        ("step.weights_s", 6e-3),
    ] {
        holds(&outcome, name, want);
    }
    assert!((0.01..0.03).contains(&outcome.report.step_noise));
    for e in &outcome.report.errors {
        // A log that is left out may lie outside of what the others show (one user beside batches).
        let (median, total) = match e.used {
            errors::Use::LeftOutInTurn => (20.0, 20.0),
            _ => (3.0, 1.5),
        };
        assert!(
            e.median_ape < median && e.total_error.abs() < total,
            "{e:?}"
        );
    }
    let left_out = outcome
        .report
        .errors
        .iter()
        .filter(|e| e.used == errors::Use::LeftOutInTurn);
    assert_eq!(left_out.count(), 4);
    // What a further token costs in a large batch is known better than its two causes.
    let slope =
        outcome.profile.get("step.token_s", 0.0) + outcome.profile.get("step.elementwise_s", 0.0);
    assert!((slope / 9e-4 - 1.0).abs() < 0.03, "{slope}");
    let gap = outcome.profile.get("host.gap_s", 0.0);
    assert!((gap - 1e-4).abs() < 1e-5, "{gap}");
    assert!(!outcome.profile.trusted());
}

#[test]
fn what_an_engine_sleeps_is_no_ones_cost_and_comes_back_as_the_least_time_of_a_step() {
    let mut paced = usual();
    let least = param("host.min_step_s", 0.025, None, Evidence::Measured).expect("in bounds");
    paced.params.insert("host.min_step_s".into(), least);
    let logs = Engine::new(paced, 0.02, 0, 1).varied();
    let slept = logs[0].steps.iter().filter(|s| s.paced > 0.0).count();
    assert!(slept > 300, "{slept} steps are shorter than the least time");
    let outcome = fit(&logs, &[], &setup()).expect("fits");
    assert_eq!(outcome.profile.get("host.min_step_s", 0.0), 0.025);
    for (name, want) in [("step.pair_s", 8e-7), ("step.weights_s", 6e-3)] {
        holds(&outcome, name, want);
    }
    let fitted = |e: &&errors::Errors| e.used == errors::Use::Fitted;
    for e in outcome.report.errors.iter().filter(fitted) {
        assert!(e.total_error.abs() < 3.0 && e.median_ape < 3.0, "{e:?}");
    }
    // The same engine without it, predicted by that profile: the log says that it has none.
    let free = Engine::new(usual(), 0.02, 0, 2).run("free.csv", 4, 60, 60, 2, 1);
    let checked = check(&outcome.profile, &free, &Facts::default(), None).expect("predicts");
    assert!((checked.all.ratio() - 1.0).abs() < 0.03, "{checked:?}");
}

#[test]
fn a_log_that_was_not_fitted_is_predicted_and_makes_the_profile_trusted() {
    let mut engine = Engine::new(usual(), 0.02, 0, 2);
    let logs = engine.varied();
    let other = engine.run("other.csv", 12, 100, 80, 2, 1);
    let outcome = fit(&logs, &[other], &setup()).expect("fits");
    assert!(
        outcome.profile.trusted(),
        "{:?}",
        outcome.profile.validations
    );
    let text = toml::to_string_pretty(&outcome.profile).expect("writes");
    let back: Profile = toml::from_str(&text).expect("reads");
    assert_eq!(back, outcome.profile);
    // The same log twice proves nothing.
    let e = fit(&logs, &logs[..1], &setup()).expect_err("both");
    assert!(e.to_string().contains("one.csv"), "{e}");
}

#[test]
fn slow_steps_do_not_move_the_parameters_but_their_time_is_not_lost() {
    let clean = fit(&Engine::new(usual(), 0.02, 0, 3).varied(), &[], &setup()).expect("fits");
    let dirty_logs = Engine::new(usual(), 0.02, 25, 3).varied();
    let dirty = fit(&dirty_logs, &[], &setup()).expect("fits");
    let measured: f64 = dirty.residuals.iter().map(|r| r.measured).sum();
    for (b, s) in [(8, 100), (1, 60), (24, 80)] {
        let mut batch = BatchStats::default();
        for _ in 0..b {
            batch.add_decode(s);
        }
        let typical = |o: &Outcome| {
            let mut p = layouts::without_gaps(&o.profile);
            p.params.remove("noise.interrupted_ratio");
            let m = FittedStep::new(&p, &Target::of(&p)).expect("fits");
            m.step(&batch).latency
        };
        let ratio = typical(&dirty) / typical(&clean);
        assert!((ratio - 1.0).abs() < 0.02, "{b} sequences: {ratio}");
    }
    // One step in 25 takes five times as long: 16 % of time on top.
    let ratio = dirty.profile.get("noise.interrupted_ratio", 0.0);
    assert!((0.08..0.25).contains(&ratio), "{ratio}");
    let total: f64 = dirty.residuals.iter().map(|r| r.predicted).sum();
    assert!((total / measured - 1.0).abs() < 0.03);
}

#[test]
fn no_coefficient_is_ever_negative() {
    // Steps that get faster with context and tokens: no physical model fits, and none of its terms turns negative.
    let mut engine = Engine::new(usual(), 0.3, 10, 4);
    let mut logs = engine.varied();
    for s in logs.iter_mut().flat_map(|l| &mut l.steps) {
        s.seconds =
            0.02 / (1.0 + f64::from(s.stats.tokens()) + s.stats.decode_ctx_sum as f64 * 1e-3);
    }
    let outcome = fit(&logs, &[], &setup()).expect("fits");
    for (name, p) in &outcome.profile.params {
        assert!(p.value >= 0.0, "{name}: {}", p.value);
    }
    for p in &outcome.report.parameters {
        assert!(p.interval.is_none_or(|i| i.low >= 0.0), "{p:?}");
    }
}

#[test]
fn what_the_data_cannot_tell_apart_is_said_with_what_would_help() {
    // One batch size, one prompt length, decodes only apart from the first steps.
    let mut engine = Engine::new(usual(), 0.02, 0, 5);
    let mut log = engine.run("narrow.csv", 4, 64, 200, 3, 1);
    log.steps.retain(|s| s.stats.prefill_tokens == 0);
    let outcome = fit(&[log], &[], &setup()).expect("fits");
    let id = &outcome.report.identifiability;
    assert!(id.silent.iter().any(|s| s == "step.pair_s"), "{id:?}");
    assert!(
        id.words.iter().any(|w| w.contains("no step held a prompt")),
        "{id:?}"
    );
    assert!(
        id.together
            .iter()
            .any(|(a, b, _)| a == "step.fixed_s" && b == "step.seq_s"),
        "{id:?}"
    );
    assert!(!outcome.profile.params.contains_key("step.pair_s"));
    // With loads that vary, the same parameters are told apart.
    let good = fit(&engine.varied(), &[], &setup())
        .expect("fits")
        .report
        .identifiability;
    assert!(good.silent.is_empty(), "{good:?}");
    assert!(
        !good
            .together
            .iter()
            .any(|(a, b, _)| a == "step.fixed_s" && b == "step.seq_s"),
        "{good:?}"
    );
}

#[test]
fn the_load_that_is_proposed_shows_what_was_not_seen() {
    let mut engine = Engine::new(usual(), 0.02, 0, 6);
    // Single requests only: nothing is known of large batches.
    let log = engine.run("single.csv", 1, 30, 100, 4, 1);
    let outcome = fit(
        &[log],
        &[],
        &Setup {
            facts: Facts {
                limits: [
                    ("limits.max_num_seqs".to_owned(), 32.0),
                    ("limits.max_num_batched_tokens".to_owned(), 512.0),
                    ("limits.max_model_len".to_owned(), 1024.0),
                ]
                .into(),
                ..Facts::default()
            },
            ..setup()
        },
    )
    .expect("fits");
    let p = &outcome.report.proposals;
    assert_eq!(p.len(), 3);
    assert!(p[0].load.concurrency > 1, "{p:?}");
    assert!(p[0].prediction_error_ratio < 0.8, "{p:?}");
    assert!(
        p.iter()
            .all(|p| p.load.concurrency <= 32 && p.load.prompt + p.load.output <= 1024)
    );
}

#[test]
fn a_tensor_parallel_log_teaches_what_collectives_cost() {
    let mut profile = usual();
    for (name, v) in [
        ("comm.collective_s", 3e-5),
        ("comm.collective_token_s", 2e-6),
    ] {
        profile.params.insert(
            name.into(),
            param(name, v, None, Evidence::Measured).expect("fine"),
        );
    }
    let mut engine = Engine::new(profile, 0.01, 0, 7);
    let mut logs = engine.varied();
    logs.push(engine.run("tp2.csv", 8, 50, 60, 4, 2));
    let held = engine.run("tp2-other.csv", 3, 120, 60, 4, 2);
    let outcome = fit(&logs, &[held], &setup()).expect("fits");
    // Sixteen collectives: what the scaled work leaves is theirs, within the noise of that difference.
    let got = 16.0 * outcome.profile.get("comm.collective_s", 0.0)
        + 16.0 * 8.0 * outcome.profile.get("comm.collective_token_s", 0.0);
    let want = 16.0 * (3e-5 + 8.0 * 2e-6);
    assert!((got / want - 1.0).abs() < 0.4, "{got} against {want}");
    let e = outcome.report.errors.last().expect("held out");
    assert!(e.total_error.abs() < 3.0, "{e:?}");
    assert!(outcome.report.notes.iter().any(|n| n.contains("tp2.csv")));
}

#[test]
fn parts_of_a_step_tell_apart_what_its_total_does_not() {
    // One batch size: from totals alone, fixed, sequence, product and sampling costs are one number.
    let mut engine = Engine::new(usual(), 0.0, 0, 8);
    let mut log = engine.run("parts.csv", 4, 64, 100, 3, 1);
    log.steps
        .extend(engine.run("longer", 4, 200, 100, 3, 1).steps);
    for s in &mut log.steps {
        let b = &s.stats;
        let unit = terms::Shape {
            crossover: 6e-3 / 9e-4,
            sharpness: 3.0,
            tile: 1.0,
        };
        s.parts = Some(super::log::Parts {
            linear: 9e-4 * unit.of(f64::from(b.tokens())),
            attention: 1.5e-6 * b.decode_ctx_sum as f64 + 8e-7 * b.prefill_pairs as f64,
            sample: 6e-5 * f64::from(b.decode_seqs + b.prefill_seqs),
            ..super::log::Parts::default()
        });
    }
    let outcome = fit(&[log], &[], &setup()).expect("fits");
    assert!(outcome.report.by_parts);
    for (name, want) in [
        ("step.fixed_s", 4e-4),
        ("step.seq_s", 6e-5),
        ("step.context_s", 1.5e-6),
        ("step.pair_s", 8e-7),
    ] {
        let got = outcome.profile.get(name, 0.0);
        assert!((got / want - 1.0).abs() < 0.05, "{name}: {got}, not {want}");
    }
}

#[test]
fn the_lm_head_is_told_from_the_other_products_by_logs_that_have_it() {
    // Decodes alone: each token is sampled, so that nothing but the log's own column tells the two apart.
    let mut truth = usual();
    truth.params.insert(
        "step.sampled_s".into(),
        param("step.sampled_s", 3e-4, None, Evidence::Measured).expect("fine"),
    );
    let mut engine = Engine::new(truth, 0.0, 0, 11);
    let mut log = Log::default();
    for (seqs, prompt) in [(1, 40), (4, 64), (12, 80)] {
        log.steps
            .extend(engine.run("decodes", seqs, prompt, 80, 2, 1).steps);
    }
    log.steps.retain(|s| s.stats.prefill_seqs == 0);
    link(&mut log.steps);
    for s in &mut log.steps {
        let b = &s.stats;
        let unit = terms::Shape {
            crossover: 6e-3 / 9e-4,
            sharpness: 3.0,
            tile: 1.0,
        };
        s.parts = Some(super::log::Parts {
            linear: 9e-4 * unit.of(f64::from(b.tokens())),
            lm_head: Some(3e-4 * f64::from(b.sampled_seqs)),
            attention: 1.5e-6 * b.decode_ctx_sum as f64,
            sample: 6e-5 * f64::from(b.decode_seqs),
            ..super::log::Parts::default()
        });
    }
    assert_eq!(shape::equations(&log.steps).len(), terms::PARTS.len());
    let outcome = fit(std::slice::from_ref(&log), &[], &setup()).expect("fits");
    let got = outcome.profile.get("step.sampled_s", 0.0);
    assert!((got / 3e-4 - 1.0).abs() < 0.02, "{got}");
    // A log of before, alone or among others: the head is one of the products.
    let one = &mut log.steps[7];
    if let Some(p) = &mut one.parts {
        p.linear += p.lm_head.take().expect("it has one");
    }
    let seconds = one.seconds;
    let equations = shape::equations(&log.steps);
    assert_eq!(equations.len(), terms::PARTS_WITHOUT_HEAD.len());
    let sum: f64 = equations
        .iter()
        .map(|e| (e.value)(&log.steps[7]).expect("said"))
        .sum();
    assert!((sum / seconds - 1.0).abs() < 1e-9, "the parts add up");
}

#[test]
fn fitting_twice_gives_the_same_profile() {
    let logs = Engine::new(usual(), 0.05, 30, 9).varied();
    let a = fit(&logs, &[], &setup()).expect("fits");
    let b = fit(&logs, &[], &setup()).expect("fits");
    assert_eq!(a.profile, b.profile);
    assert_eq!(a.report, b.report);
}

const HEADER: &str = "replica,start_s,end_s,running,waiting,kv_used_blocks,blocked_by,decode_seqs,decode_tokens,\
                      decode_ctx_sum,prefill_seqs,prefill_tokens,prefill_pairs,sampled_seqs,extra\n";

#[test]
fn logs_are_read_with_their_gaps_and_other_columns_are_let_be() {
    let text = format!(
        "{HEADER}0,0.0,0.5,1,0,1,,0,0,0,1,4,10,1,x\n0,0.501,0.6,1,0,1,,1,1,5,0,0,0,1,y\n0,9.0,9.1,1,0,1,,0,0,0,1,4,10,1,\n"
    );
    let steps = parse(text.as_bytes(), "a.csv").expect("reads");
    assert_eq!(steps.len(), 3);
    assert!((steps[0].gap.expect("busy") - 0.001).abs() < 1e-12);
    assert_eq!(steps[1].gap, None, "nothing ran on into the third");
    assert_eq!(steps[1].stats.decode_ctx_sum, 5);
    let e = parse(&b"a,b\n1,2\n"[..], "a.csv")
        .expect_err("no log")
        .to_string();
    assert!(e.contains("a.csv: no column `start_s`"), "{e}");
    let bad = format!("{HEADER}0,0.0,0.5,1,0,1,,0,0,0,1,-4,10,1,x\n");
    let e = parse(bad.as_bytes(), "a.csv")
        .expect_err("negative")
        .to_string();
    assert!(e.contains("line 2: prefill_tokens: `-4`"), "{e}");
    let back = format!("{HEADER}0,1.0,0.5,1,0,1,,0,0,0,1,4,10,1,x\n");
    assert!(parse(back.as_bytes(), "a.csv").is_err());
    assert!(parse(&b""[..], "a.csv").is_err());
}

#[test]
fn parts_are_read_with_and_without_a_column_of_the_lm_head() {
    let row = "0,0.0,0.5,1,0,1,,0,0,0,1,4,10,1";
    let old = HEADER.replace("extra", "linear_s,attention_s") + row + ",0.25,0.125\n";
    let new =
        HEADER.replace("extra", "linear_s,lm_head_s,attention_s") + row + ",0.25,0.0625,0.125\n";
    for (text, lm_head) in [(old, None), (new, Some(0.0625))] {
        let p = parse(text.as_bytes(), "a.csv").expect("reads")[0]
            .parts
            .expect("has parts");
        assert_eq!((p.linear, p.lm_head, p.attention), (0.25, lm_head, 0.125));
    }
}

#[test]
fn what_a_step_slept_is_read_where_the_log_says_it() {
    let row = "0,0.0,0.5,1,0,1,,0,0,0,1,4,10,1";
    let with = |value: &str| HEADER.replace("extra", "paced_s") + row + "," + value + "\n";
    let step = parse(with("0.3").as_bytes(), "a.csv").expect("reads")[0];
    assert_eq!((step.seconds, step.paced), (0.5, 0.3));
    assert_eq!(step.computed().seconds, 0.2);
    let old = HEADER.to_owned() + row + ",x\n";
    assert_eq!(parse(old.as_bytes(), "a.csv").expect("reads")[0].paced, 0.0);
    let e = parse(with("0.6").as_bytes(), "a.csv")
        .expect_err("longer than the step")
        .to_string();
    assert!(e.contains("line 2: paced_s: `0.6`"), "{e}");
}

#[test]
fn too_few_steps_are_refused() {
    let mut engine = Engine::new(usual(), 0.02, 0, 10);
    let mut log = engine.run("few.csv", 1, 10, 50, 1, 1);
    log.steps.truncate(20);
    let e = fit(&[log], &[], &setup()).expect_err("too few");
    assert!(e.to_string().contains("17 usable steps"), "{e}");
    assert!(fit(&[], &[], &setup()).is_err());
}

#[test]
fn facts_beside_a_log_become_limits_and_layout() {
    let f = log::facts(
        "model = \"tiny\"\nlayers = 6\nhidden = 64\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 300\nmax_num_seqs = 16\n\
         enable_prefix_caching = false\n[layout]\ntp = 2\npp = 1\nthreads = 1\ncores = 4\n",
        "a.toml",
    )
    .expect("reads");
    assert_eq!(
        (f.layout(), f.threads, f.cores, f.layers, f.hidden),
        ((2, 1), Some(1), Some(4), Some(6), Some(64))
    );
    assert_eq!(f.limits["limits.kv_blocks"], 300.0);
    assert_eq!(f.limits["limits.prefix_caching"], 0.0);
    assert_eq!(f.min_step_s, None);
    let paced = log::facts("min_step_s = 0.025", "a.toml").expect("reads");
    assert_eq!(paced.min_step_s, Some(0.025));
    assert!(log::facts("= 1", "a.toml").is_err());
}

#[test]
fn columns_name_parameters_of_the_step_model() {
    for c in COLUMNS {
        assert!(hwmodels::fitted::spec(c).is_some(), "{c}");
    }
    assert_eq!(COLUMNS[column::MIXED], "step.mixed_s");
    assert_eq!(COLUMNS[column::PRODUCT], "step.token_s");
}
