use super::*;
use crate::evidence::Evidence;
use crate::profile::Basis;

fn profile(basis: Basis, values: &[(&str, f64)]) -> Profile {
    let mut p = Profile {
        name: "test".into(),
        basis: Some(basis),
        ..Profile::default()
    };
    for (name, value) in values {
        let entry = param(name, *value, None, Evidence::Measured).expect("in bounds");
        p.params.insert((*name).to_owned(), entry);
    }
    p
}

fn cpu() -> Basis {
    Basis {
        layers: 10,
        hidden: 500,
        threads: 2,
        cores: 2,
        ..Basis::default()
    }
}

fn decodes(n: u32, context: u32) -> BatchStats {
    let mut b = BatchStats::default();
    for _ in 0..n {
        b.add_decode(context);
    }
    b
}

fn at(p: &Profile, tp: u32, pp: u32, replicas: u32) -> FittedStep {
    FittedStep::new(
        p,
        &Target {
            tp,
            pp,
            replicas,
            ..Target::of(p)
        },
    )
    .expect("scales")
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * b.abs().max(1e-6), "{a}, not {b}");
}

#[test]
fn each_term_adds_what_its_name_says() {
    let p = profile(
        Basis::default(),
        &[
            ("step.fixed_s", 1e-3),
            ("step.token_s", 2e-4),
            ("step.seq_s", 3e-5),
            ("step.chunk_s", 4e-4),
            ("step.sampled_s", 5e-5),
            ("step.elementwise_s", 1e-5),
            ("noise.interrupted_ratio", 0.1),
            ("step.context_s", 6e-7),
            ("step.pair_s", 7e-8),
            ("step.mixed_s", 8e-4),
            ("host.gap_s", 9e-4),
            ("host.gap_seq_s", 1e-5),
        ],
    );
    let mut b = decodes(3, 100);
    b.add_prefill(10, 20, true);
    let cost = at(&p, 1, 1, 1).step(&b);
    // 13 tokens, 4 sequences of which one is a chunk, 4 sampled, 300 contexts, 10*20 + 55 pairs.
    close(
        cost.latency,
        1.1 * (1e-3
            + 13.0 * (2e-4 + 1e-5)
            + 4.0 * 3e-5
            + 4e-4
            + 4.0 * 5e-5
            + 300.0 * 6e-7
            + 255.0 * 7e-8
            + 8e-4
            + 9e-4
            + 4.0 * 1e-5),
    );
    close(cost.parts.total(), cost.latency);
    close(cost.interval, cost.latency);
    close(cost.parts.kv, 1.1 * 300.0 * 6e-7);
    close(at(&p, 1, 1, 1).step(&BatchStats::default()).latency, 0.0);
}

#[test]
fn a_least_time_holds_for_what_is_not_the_hosts_and_only_where_that_is_shorter() {
    let p = profile(
        Basis::default(),
        &[
            ("step.fixed_s", 1e-3),
            ("step.token_s", 2e-4),
            ("host.gap_s", 5e-4),
            ("noise.interrupted_ratio", 0.1),
            ("host.min_step_s", 25e-3),
        ],
    );
    let m = at(&p, 1, 1, 1);
    let short = m.step(&decodes(8, 100));
    close(short.latency, 25e-3 + 1.1 * 1.5e-3);
    close(short.interval, short.latency);
    close(short.parts.total(), short.latency);
    close(short.parts.bubble, 25e-3 - 1.1 * 8.0 * 2e-4);
    close(
        m.computed(&decodes(8, 100)).latency,
        1.1 * (1.5e-3 + 8.0 * 2e-4),
    );
    let long = m.step(&decodes(200, 100));
    close(long.latency, 1.1 * (1.5e-3 + 200.0 * 2e-4));
    close(long.parts.bubble, 0.0);
    close(m.step(&BatchStats::default()).latency, 0.0);
}

#[test]
fn weights_bound_small_batches_and_arithmetic_large_ones() {
    let p = profile(
        Basis::default(),
        &[
            ("step.weights_s", 4e-3),
            ("step.token_s", 1e-3),
            ("step.sharpness", 2.0),
        ],
    );
    let c = *at(&p, 1, 1, 1).coefficients();
    let total = |n: f64| c.linear(n).iter().sum::<f64>();
    close(total(3.0), 5e-3);
    assert!((total(1000.0) - 1.0).abs() < 1e-4);
    let [weights, compute] = c.linear(3.0);
    close(weights / compute, 16.0 / 9.0);
    // Smooth and rising.
    assert!((1..64).all(|n| total(f64::from(n) + 1.0) > total(f64::from(n))));
}

#[test]
fn whole_tiles_of_rows_are_computed() {
    let p = profile(
        Basis::default(),
        &[("step.token_s", 1e-3), ("step.tile_tokens", 4.0)],
    );
    let m = at(&p, 1, 1, 1);
    close(m.step(&decodes(1, 1)).latency, 4e-3);
    close(m.step(&decodes(5, 1)).latency, 8e-3);
}

#[test]
fn tensor_parallel_divides_the_work_and_adds_two_collectives_a_layer() {
    // Accelerators: nothing is shared.
    let basis = Basis {
        cores: 0,
        threads: 0,
        ..cpu()
    };
    let p = profile(
        basis,
        &[
            ("step.fixed_s", 1e-3),
            ("step.weights_s", 8e-3),
            ("step.token_s", 1e-3),
            ("step.sharpness", 1.0),
            ("step.context_s", 1e-6),
            ("step.elementwise_s", 1e-4),
            ("comm.step_s", 5e-4),
            ("comm.collective_s", 1e-5),
            ("comm.collective_token_s", 1e-6),
        ],
    );
    let b = decodes(4, 100);
    let parts = at(&p, 4, 1, 1).step(&b).parts;
    close(parts.host, 1e-3);
    close(parts.weights, 2e-3);
    close(parts.compute, 4e-3 / 4.0 + 4.0 * 1e-4);
    close(parts.kv, 400.0 * 1e-6 / 4.0);
    // 20 collectives; log2(4) = 2 rounds; 2 * 3/4 of the bytes; 4 tokens.
    close(
        parts.communication,
        5e-4 + 20.0 * 1e-5 * 2.0 + 20.0 * 1e-6 * 1.5 * 4.0,
    );
}

#[test]
fn two_single_threaded_ranks_on_two_cores_are_as_fast_as_one_of_two_threads() {
    let p = profile(
        cpu(),
        &[
            ("step.weights_s", 8e-3),
            ("step.token_s", 1e-3),
            ("step.sharpness", 1.0),
            ("host.parallel_ratio", 1.0),
            ("comm.collective_s", 0.0),
        ],
    );
    let b = decodes(4, 100);
    close(
        at(&p, 2, 1, 1).step(&b).latency,
        at(&p, 1, 1, 1).step(&b).latency,
    );
    // Two replicas of one thread each: half the speed each.
    let half = at(&p, 1, 1, 2).step(&b);
    close(half.parts.compute, 8e-3);
    close(half.parts.weights, 16e-3);
}

#[test]
fn more_threads_than_cores_take_turns() {
    let p = profile(
        cpu(),
        &[
            ("step.token_s", 1e-3),
            ("host.parallel_ratio", 1.0),
            ("host.threads", 2.0),
            ("comm.collective_s", 0.0),
        ],
    );
    // Two ranks of two threads on two cores: each has half the work at half the speed.
    close(at(&p, 2, 1, 1).step(&decodes(4, 1)).latency, 4e-3);
}

#[test]
fn pipeline_stages_keep_latency_and_space_steps_by_the_fullest_stage() {
    let basis = Basis {
        layers: 5,
        threads: 0,
        cores: 0,
        ..cpu()
    };
    let p = profile(
        basis,
        &[
            ("step.fixed_s", 1e-3),
            ("step.token_s", 1e-3),
            ("comm.send_s", 2e-4),
            ("comm.send_token_s", 1e-5),
        ],
    );
    let cost = at(&p, 1, 2, 1).step(&decodes(10, 1));
    close(cost.latency, 1e-3 + 10e-3 + 2e-4 + 1e-4);
    // Three of five layers on the fullest stage.
    close(cost.interval, 0.6 * (10e-3 + 2e-4 + 1e-4));
}

#[test]
fn scaling_without_measured_collectives_says_so_and_without_layers_is_refused() {
    let p = profile(cpu(), &[("step.token_s", 1e-3)]);
    let m = at(&p, 2, 1, 1);
    assert!(
        m.warnings().iter().any(|w| w.contains("priors")),
        "{:?}",
        m.warnings()
    );
    assert!(m.step(&decodes(1, 1)).parts.communication > 0.0);
    let mut unknown = p.clone();
    unknown.basis = Some(Basis { layers: 0, ..cpu() });
    let target = Target {
        tp: 2,
        ..Target::of(&unknown)
    };
    let e = FittedStep::new(&unknown, &target).expect_err("layers are not known");
    assert!(e.to_string().contains("basis.layers"), "{e}");
}

#[test]
fn wrong_profiles_are_refused_by_name() {
    let no_basis = Profile::default();
    assert!(check(&no_basis).is_err_and(|e| e.to_string().contains("no fitted step model")));
    let mut p = profile(cpu(), &[("step.token_s", 1e-3)]);
    p.params.insert(
        "step.tokens_s".into(),
        param("step.token_s", 1.0, None, Evidence::Fitted).expect("fine"),
    );
    assert!(check(&p).is_err_and(|e| e.to_string().contains("did you mean `step.token")));
    assert!(param("step.token_s", -1e-9, None, Evidence::Fitted).is_err());
    assert!(param("step.token_s", f64::NAN, None, Evidence::Fitted).is_err());
    let none = profile(cpu(), &[("step.context_s", 1e-6)]);
    assert!(check(&none).is_err_and(|e| e.to_string().contains("must take time")));
}

#[test]
fn leaving_the_fitted_ranges_is_said_with_how_far() {
    let mut p = profile(cpu(), &[("step.token_s", 1e-3)]);
    p.validity.insert("tokens".into(), [2.0, 8.0]);
    p.validity.insert("context".into(), [1.0, 100.0]);
    let extent = Arc::new(Extent::new(&p));
    let m = at(&p, 1, 1, 1).watched(extent.clone());
    m.step(&decodes(8, 100));
    assert!(extent.warnings().is_empty());
    m.step(&decodes(1, 100));
    m.step(&decodes(20, 100));
    m.step(&decodes(4, 300));
    let w = extent.warnings();
    assert_eq!(w.len(), 2, "{w:?}");
    assert!(
        w[0].contains("up to 20 and down to 1 in 2 of 4 steps"),
        "{w:?}"
    );
    assert!(w[1].contains("up to 300 in 1 of 4"), "{w:?}");
}

#[test]
fn a_profile_written_and_read_back_is_the_same() {
    let mut p = profile(
        cpu(),
        &[("step.token_s", 1.25e-3), ("limits.kv_blocks", 512.0)],
    );
    p.validity.insert("tokens".into(), [1.0, 64.0]);
    let text = toml::to_string_pretty(&p).expect("writes");
    let back: Profile = toml::from_str(&text).expect("reads");
    assert_eq!(back, p);
    assert_eq!(Limits::of(&back).kv_blocks, Some(512));
    assert_eq!(Limits::of(&back).max_num_seqs, None);
}
