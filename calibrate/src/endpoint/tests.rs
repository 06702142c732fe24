use hwmodels::EngineKind;
use rand::RngExt;
use sim::cluster::drift::{SpeedDrift, Swing};
use sim::kernel::time::SimDuration;

use super::facts::Facts;
use super::load::Pacing;
use super::simulate::{Look, simulate};
use super::*;

/// An endpoint whose truth is known.
fn truth(kind: EngineKind, seats: u32) -> (Server, Params) {
    let server = Server {
        kind: Known::read(kind),
        max_num_seqs: Known::read(seats),
        max_num_batched_tokens: Known::read(512),
        kv_tokens: Known::read(100_000),
        ..Server::default()
    };
    let mut p = Params::least();
    for (name, value) in [
        ("step.fixed_s", 1e-3),
        ("step.weights_s", 4e-3),
        ("step.token_s", 2e-4),
        ("step.sharpness", 2.0),
        ("step.seq_s", 4e-4),
        ("step.context_s", 5e-7),
        ("step.pair_s", 4e-8),
        ("host.request_in_s", 3e-3),
    ] {
        p.set(name, value);
    }
    (server, p)
}

/// Sends `n` requests with lengths from `prompt` and `output`: by `users` users, or else `rate` times a second.
fn plan(n: usize, prompt: [u32; 2], output: [u32; 2], users: usize, rate: f64, seed: u64) -> Load {
    let mut rng = sim::kernel::rng::stream(seed, "test");
    let mut t = 0.0;
    let requests: Vec<Request> = (0..n)
        .map(|i| {
            match i.checked_div(users) {
                // In the plan each request of a user comes a second after the one before.
                Some(round) => t = round as f64 + (i % users) as f64 * 1e-3,
                None => t += -f64::ln(1.0 - rng.random::<f64>()) / rate,
            }
            Request {
                sent: t,
                first: t + 0.1,
                end: t + 0.9,
                prompt: rng.random_range(prompt[0]..=prompt[1]),
                output: rng.random_range(output[0]..=output[1]),
                cached: 0,
            }
        })
        .collect();
    Load {
        name: format!("{n} x {prompt:?}/{output:?}, {users} users, {rate}/s"),
        role: Role::Fit,
        pacing: if users > 0 {
            Pacing::Users
        } else {
            Pacing::Schedule
        },
        requests,
        failed: 0,
        gaps: None,
    }
}

/// What would be measured of `plan` on a simulated endpoint, with `noise` on every time (relative).
fn measure(plan: &Load, server: &Server, params: &Params, noise: f64, seed: u64) -> Load {
    let mut rng = sim::kernel::rng::stream(seed, "test");
    let p = simulate(plan, server, params, Look::default()).expect("simulates");
    let mut requests: Vec<Request> = p.requests.into_iter().flatten().collect();
    assert_eq!(requests.len(), plan.requests.len(), "{}", plan.name);
    requests.sort_by(|a, b| a.sent.total_cmp(&b.sent));
    for r in &mut requests {
        let mut factor = || 1.0 + noise * (rng.random::<f64>() - 0.5) * 2.0;
        let (ttft, decode) = (r.ttft() * factor(), (r.end - r.first) * factor());
        r.first = r.sent + ttft;
        r.end = r.first + decode;
    }
    let n = requests.len() as u64;
    Load::new(&plan.name, plan.role, requests, n, p.gaps).unwrap()
}

fn loads(server: &Server, params: &Params, noise: f64) -> Vec<Load> {
    [
        plan(24, [32, 1500], [1, 24], 1, 0.0, 1),
        plan(32, [64, 64], [48, 48], 4, 0.0, 2),
        plan(64, [64, 64], [48, 48], 16, 0.0, 3),
        plan(60, [600, 600], [16, 16], 6, 0.0, 4),
        plan(120, [20, 400], [8, 64], 0, 9.0, 5),
    ]
    .iter()
    .enumerate()
    .map(|(i, l)| measure(l, server, params, noise, 100 + i as u64))
    .collect()
}

/// Step time of a batch of `decodes` sequences of `context` tokens and `prefill` prompt tokens [s].
fn step(params: &Params, decodes: u32, context: u32, prefill: u32) -> f64 {
    use hwmodels::StepModel;
    let mut b = hwmodels::BatchStats::default();
    for _ in 0..decodes {
        b.add_decode(context);
    }
    if prefill > 0 {
        b.add_prefill(prefill, 0, true);
    }
    params.step().step(&b).latency
}

fn close(found: f64, truth: f64, tolerance: f64, what: &str) {
    let error = found / truth - 1.0;
    assert!(
        error.abs() <= tolerance,
        "{what}: found {found:.4e}, truth {truth:.4e}, {:.1} % off",
        100.0 * error
    );
}

/// Nothing known but whose rules it follows.
fn of_kind(kind: EngineKind) -> Server {
    Server {
        kind: Known::read(kind),
        ..Server::default()
    }
}

/// Fits measurements of an endpoint whose scheduler nobody knows and compares what it predicts.
fn recovers(
    (server, params): (Server, Params),
    known: Server,
    noise: f64,
    tolerance: f64,
) -> Fitted {
    let loads = loads(&server, &params, noise);
    let effort = Effort {
        iterations: 10,
        rounds: 3,
    };
    let start = std::time::Instant::now();
    let fitted = fit(&loads, &known, effort, &|_| {}).unwrap();
    eprintln!(
        "{:.1} s, {} evaluations, loss {:.4}",
        start.elapsed().as_secs_f64(),
        fitted.evaluations,
        fitted.loss
    );
    let fit_loads: Vec<&Load> = loads.iter().collect();
    let at_truth = joint::Joint::new(&fit_loads, params, &|_| {}).loss(&server, &params);
    eprintln!("loss at truth {at_truth:.4}; {:?}", fitted.server);
    for (i, u) in UNKNOWNS.iter().enumerate() {
        eprintln!(
            "{:24} {:.3e} truth {:.3e} {:?}",
            u.name, fitted.params.0[i], params.0[i], fitted.intervals[i]
        );
    }
    for (d, c, p) in [
        (1, 100, 0),
        (8, 100, 0),
        (4, 500, 0),
        (0, 0, 500),
        (4, 100, 400),
    ] {
        let (found, real) = (step(&fitted.params, d, c, p), step(&params, d, c, p));
        close(
            found,
            real,
            tolerance,
            &format!("step of {d} decodes at {c}, prefill {p}"),
        );
    }
    fitted
}

#[test]
fn a_vllm_endpoint_with_few_seats_is_recovered_from_requests_alone() {
    let fitted = recovers(
        truth(EngineKind::VllmV1, 8),
        of_kind(EngineKind::VllmV1),
        0.01,
        0.06,
    );
    assert_eq!(fitted.server.max_num_seqs.value, 8);
    assert_eq!(fitted.server.max_num_seqs.source, Source::Inferred);
}

#[test]
fn slots_of_a_llama_server_are_found() {
    let fitted = recovers(
        truth(EngineKind::LlamaCpp, 4),
        of_kind(EngineKind::LlamaCpp),
        0.01,
        0.06,
    );
    assert_eq!(fitted.server.max_num_seqs.value, 4);
    assert!(fitted.server.kv_unified.value);
}

/// Eight slots that do not share their cells.
fn cells_of_their_own() -> (Server, Params) {
    let (mut server, params) = truth(EngineKind::LlamaCpp, 8);
    server.kv_unified = Known::read(false);
    (server, params)
}

/// Slots as the server tells them; whether they share their cells it does not tell.
fn eight_slots(kv_unified: bool) -> Server {
    Server {
        max_num_seqs: Known::read(8),
        kv_unified: Known::default_of(kv_unified),
        ..of_kind(EngineKind::LlamaCpp)
    }
}

#[test]
fn slots_with_cells_of_their_own_are_recovered_through_the_passes_of_their_steps() {
    let fitted = recovers(cells_of_their_own(), eight_slots(false), 0.01, 0.12);
    assert!(!fitted.server.kv_unified.value);
}

#[test]
fn what_an_endpoint_said_is_kept_beside_its_loads_and_checked_when_read() {
    let dir = tempfile::tempdir().unwrap();
    let load = dir.path().join("one");
    assert_eq!(
        store::read_facts(std::slice::from_ref(&load)).unwrap(),
        None
    );
    let facts = Facts {
        server: eight_slots(false),
        ..Facts::default()
    };
    store::write_facts(dir.path(), &facts).unwrap();
    for folder in [dir.path(), &load] {
        assert_eq!(
            store::read_facts(&[folder.to_path_buf()]).unwrap(),
            Some(facts.clone())
        );
    }
    let mut wrong = facts;
    wrong.server.max_num_seqs.value = 4_000_000_000;
    store::write_facts(dir.path(), &wrong).unwrap();
    let error = store::read_facts(&[load]).unwrap_err().to_string();
    assert!(
        error.contains("endpoint.json: server.max_num_seqs: must be 1 to"),
        "{error}"
    );
}

#[test]
fn an_unusual_number_of_slots_speaks_for_cells_of_their_own() {
    let fitted = recovers(
        cells_of_their_own(),
        of_kind(EngineKind::LlamaCpp),
        0.01,
        0.12,
    );
    assert_eq!(fitted.server.max_num_seqs.value, 8);
    assert!(!fitted.server.kv_unified.value);
}

#[test]
fn that_slots_do_not_share_their_cells_is_told_by_the_passes_of_their_steps() {
    let fitted = recovers(cells_of_their_own(), eight_slots(true), 0.01, 0.12);
    assert!(!fitted.server.kv_unified.value);
    assert_eq!(fitted.server.kv_unified.source, Source::Inferred);
}

#[test]
fn stored_loads_give_the_same_profile_to_the_byte_and_a_scenario_that_runs() {
    let (server, params) = truth(EngineKind::VllmV1, 8);
    let dir = tempfile::tempdir().unwrap();
    for (i, mut load) in loads(&server, &params, 0.02).into_iter().enumerate() {
        load.requests.truncate(40);
        load.role = if i == 3 { Role::HoldOut } else { Role::Fit };
        store::write(dir.path(), i, &load).unwrap();
    }
    let once = || {
        let folders = store::folders(&[dir.path().to_owned()]).unwrap();
        let loads: Vec<Load> = folders
            .iter()
            .map(|f| store::read(f, Role::Fit).unwrap())
            .collect();
        let effort = Effort {
            iterations: 4,
            rounds: 1,
        };
        let fitted = fit(&loads, &Server::default(), effort, &|_| {}).unwrap();
        let report = EndpointReport::new(&loads, &fitted, Vec::new());
        let origin = output::Origin {
            name: "stored".into(),
            command: "servetwin calibrate --records DIR".into(),
            ..output::Origin::default()
        };
        let profile = output::profile(&loads, &fitted, &report, &origin).unwrap();
        let scenario = output::scenario(&loads, &fitted, &origin, "stored.toml");
        (toml::to_string_pretty(&profile).unwrap(), scenario, profile)
    };
    let (a, b) = (once(), once());
    assert_eq!(a.0, b.0);
    assert_eq!(a.1, b.1);
    assert_eq!(a.2.validations.len(), 4, "one load was held out");
    std::fs::write(dir.path().join("stored.toml"), &a.0).unwrap();
    let path = dir.path().join("stored.scenario.toml");
    std::fs::write(&path, &a.1).unwrap();
    let scenario =
        sim::scenario::Scenario::load(&path, &[]).unwrap_or_else(|e| panic!("{e}\n{}", a.1));
    let record = scenario
        .run(&sim::simulation::RunOptions::default())
        .unwrap();
    assert!(record.counts.finished >= 200, "{:?}", record.counts);
}

#[test]
fn requests_that_ran_alone_show_how_the_machine_drifts_and_others_are_not_asked() {
    let (server, params) = truth(EngineKind::VllmV1, 64);
    let swings = [(0.1, 1.0), (0.0, 0.0)].map(|(ratio, seconds)| Swing {
        ratio,
        time: SimDuration::from_secs(seconds),
    });
    let measured = |plan: &Load, drift| {
        let look = Look {
            drift,
            course: 3,
            ..Look::default()
        };
        let p = simulate(plan, &server, &params, look).expect("simulates");
        let requests: Vec<Request> = p.requests.into_iter().flatten().collect();
        let n = requests.len() as u64;
        Load::new(&plan.name, plan.role, requests, n, None).expect("answers")
    };
    let drift = Some(SpeedDrift { swings, machine: 0 });
    let alone = plan(600, [32, 400], [8, 48], 1, 0.0, 1);
    let seen = alone::drift(&[&measured(&alone, drift)], &server, &params).expect("drifts");
    close(seen.slow.ratio, 0.1, 0.2, "ratio");
    assert_eq!(
        alone::drift(&[&measured(&alone, None)], &server, &params),
        None
    );
    let crowd = plan(200, [32, 400], [8, 48], 8, 0.0, 2);
    assert_eq!(
        alone::drift(&[&measured(&crowd, drift)], &server, &params),
        None
    );
}
