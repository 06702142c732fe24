//! The twin's replay: what the simulator recorded, it predicts again; what changed, it notices.

use std::path::PathBuf;

use sim::kernel::time::SimTime;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;
use twin::ask::{Question, engine_keys};
use twin::compare::{Comparison, compare};
use twin::drift::{Drift, DriftConfig, Sigmas};
use twin::live::{Deployment, refit_to};
use twin::replay::{Change, load_deployment, replay};
use twin::window::{Seen, Window};

const DEPLOYMENT: &str = r#"
[step]
base = "5 ms"
per_token = "40 us"
per_context_token = "0.1 us"

[engine]
kind = "vllm_v1"
kv_blocks = 2000
max_num_seqs = 64
max_num_batched_tokens = 512

[run]
duration = "60 s"

[[workload]]
arrival = { kind = "poisson", rate = "20 req/s" }
prompt = { kind = "uniform", min = 40, max = 200 }
output = { kind = "uniform", min = 10, max = 60 }
"#;

/// A scenario file of the deployment, with its folder.
fn deployment() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("d.toml");
    std::fs::write(&path, DEPLOYMENT).expect("written");
    (dir, path)
}

/// What a run with these overrides leaves, as a window of seconds 20 to 50.
fn recorded(overrides: &[&str]) -> Window {
    let set: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
    let scenario = Scenario::parse(DEPLOYMENT, "d.toml", &set).expect("it is right");
    let record = scenario.run(&RunOptions::default()).expect("it runs");
    let rows = record.request_rows.expect("rows are kept");
    Window::from_rows(&rows, SimTime::from_secs(20.0), SimTime::from_secs(50.0))
}

fn against(window: &Window, scenario: &Scenario) -> Comparison {
    let replayed = replay(window, scenario, &Change::default()).expect("it replays");
    compare(window, &replayed).expect("it compares")
}

fn error(c: &Comparison, name: &str) -> f64 {
    let figure = c.figure(name).unwrap_or_else(|| panic!("no figure {name}"));
    figure
        .error_ratio
        .unwrap_or_else(|| panic!("{name} has no error: {figure:?}"))
}

#[test]
fn a_simulated_record_replayed_through_its_own_scenario_has_no_error() {
    let (_dir, path) = deployment();
    let scenario = load_deployment(&path, &[]).expect("it is right");
    let window = recorded(&[]);
    assert!(
        window.rows.iter().any(|r| r.outcome == Seen::InFlight),
        "the border cuts through requests"
    );
    assert!(
        window.rows[0].arrival_ns < window.meta.start_ns,
        "there is a lead-in"
    );
    let c = against(&window, &scenario);
    assert!(c.compared > 200, "{c:?}");
    for name in [
        "ttft_mean",
        "ttft_p50",
        "ttft_p99",
        "tpot_mean",
        "tpot_p99",
        "e2e_mean",
        "e2e_p99",
    ] {
        // Up to the border the replay is exact; requests still under way there have only an expected length.
        assert!(error(&c, name).abs() < 2e-3, "{name}: {}", error(&c, name));
    }
    assert!(error(&c, "output_tokens_per_s").abs() < 0.01);
    assert!(error(&c, "in_system").abs() < 0.01);
}

#[test]
fn a_window_file_gives_back_the_window_and_the_same_figures() {
    let window = recorded(&[]);
    let mut bytes = Vec::new();
    window.write(&mut bytes).expect("written");
    assert_eq!(Window::read(bytes.as_slice()).expect("read"), window);
    let text = String::from_utf8(bytes).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let rows: Vec<&str> = lines[1..].iter().rev().copied().collect();
    let backwards = format!("{}\n{}", lines[0], rows.join("\n"));
    for (broken, words) in [
        (String::new(), "line 1"),
        (
            text.replacen("\"servetwin_window\":1", "\"servetwin_window\":9", 1),
            "format 9",
        ),
        (text.replacen("\"arrival_ns\"", "\"arrival\"", 1), "line 2"),
        (backwards, "order"),
    ] {
        let error = Window::read(broken.as_bytes())
            .expect_err(words)
            .to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Five minutes of the deployment at 4 req/s whose steps take `slower` times as long, with the noise of a live one: each request up to
/// 10 % faster or slower than it should be, and a machine that is a few percent faster or slower from window to window.
fn noisy(number: u32, seed: u32, slower: f64) -> Window {
    let draw = |what: u64| {
        let mut x = (u64::from(number) << 32 | u64::from(seed)) ^ (what << 20);
        // SplitMix64 (Steele, Lea, Flood 2014).
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let speed = slower * (1.0 + 0.06 * (draw(0) - 0.5));
    let set: Vec<String> = [
        "run.duration=400 s".to_owned(),
        format!("seed={}", seed * 1000 + number),
        "workload[0].arrival={kind=\"poisson\", rate=\"4 req/s\"}".to_owned(),
        format!("step.base={} ms", 5.0 * speed),
        format!("step.per_token={} us", 40.0 * speed),
        format!("step.per_context_token={} us", 0.1 * speed),
    ]
    .to_vec();
    let scenario = Scenario::parse(DEPLOYMENT, "d.toml", &set).expect("it is right");
    let record = scenario.run(&RunOptions::default()).expect("it runs");
    let rows = record.request_rows.expect("rows are kept");
    let mut window = Window::from_rows(&rows, SimTime::from_secs(60.0), SimTime::from_secs(360.0));
    for row in &mut window.rows {
        let factor = 0.9 + 0.2 * draw(1 + row.id);
        let stretch = |t: u64| row.arrival_ns + ((t - row.arrival_ns) as f64 * factor) as u64;
        (row.first_ns, row.end_ns) = (row.first_ns.map(stretch), row.end_ns.map(stretch));
    }
    window.meta.unix_origin_s = 300.0 * f64::from(number);
    window
}

#[test]
fn an_hour_of_windows_raises_nothing_and_a_slowdown_of_20_percent_is_raised_within_two() {
    let (_dir, path) = deployment();
    let scenario = load_deployment(&path, &[]).expect("it is right");
    for seed in 1..=4 {
        // A profile whose latency was predicted well, and its start of answers poorly.
        let validations = [("e2e mean", 2.0), ("ttft p50", 15.0)].map(|(metric, median_ape)| {
            hwmodels::profile::Validation {
                set: "held out".into(),
                metric: metric.into(),
                n: 5,
                median_ape,
                tolerance: 10.0,
            }
        });
        let mut drift = Drift::new(DriftConfig {
            sigma_profile: Sigmas::of_validations(&validations).expect("there are some"),
            ..DriftConfig::default()
        });
        for number in 0..12 {
            let verdicts = drift.take(&against(&noisy(number, seed, 1.0), &scenario));
            assert_eq!(verdicts.len(), 5, "{verdicts:?}");
            assert!(
                !drift.raised(),
                "seed {seed}, window {number}: {verdicts:?}"
            );
        }
        let mut verdicts = Vec::new();
        for number in 12..14 {
            verdicts = drift.take(&against(&noisy(number, seed, 1.2), &scenario));
        }
        assert!(drift.raised(), "seed {seed}: {verdicts:?}");
    }
}

#[test]
fn shared_prefixes_are_found_again_by_the_replayed_cache() {
    let (_dir, path) = deployment();
    let scenario = load_deployment(&path, &[]).expect("it is right");
    let mut window = recorded(&[]);
    let blank = against(&window, &scenario);
    // All prompts now begin with the same 32 tokens: two blocks, of which each request but the first finds both.
    for row in &mut window.rows {
        row.blocks = vec![11, 12];
        row.cached_tokens = Some(if row.id == 0 { 0 } else { 32 });
    }
    let c = against(&window, &scenario);
    let hits = c.figure("prefix_hits").expect("the server said them");
    assert!(hits.measured.expect("measured") > 0.2);
    assert!(error(&c, "prefix_hits").abs() < 0.01, "{hits:?}");
    let ttft = |c: &Comparison| {
        c.figure("ttft_mean")
            .and_then(|f| f.predicted)
            .expect("predicted")
    };
    assert!(ttft(&c) < ttft(&blank));
}

#[test]
fn what_ifs_change_the_load_and_the_deployment() {
    let (_dir, path) = deployment();
    let window = recorded(&[]);
    let now = load_deployment(&path, &[]).expect("it is right");
    let keys = engine_keys(&now);
    assert!(keys.iter().any(|k| k == "max_num_seqs"), "{keys:?}");
    let predicted = |question: &str, name: &str| {
        let q = Question::parse(question, &keys).expect(question);
        let (scenario, _) = q.deployment(&path, &[]).expect(question);
        let replayed = replay(&window, &scenario, &q.change).expect(question);
        let c = compare(&window, &replayed).expect(question);
        let figure = c.figure(name).expect(name);
        figure.predicted.expect(name)
    };
    let base = predicted("rate x1", "ttft_mean");
    assert!(predicted("rate x2", "ttft_mean") > base);
    assert!(predicted("rate x2, replicas 3", "ttft_mean") < predicted("rate x2", "ttft_mean"));
    assert!(predicted("max_num_seqs 2", "ttft_mean") > 2.0 * base);
    assert!(predicted("prompt x2", "ttft_mean") > base);
    assert!(predicted("output x0.5", "e2e_mean") < 0.7 * predicted("rate x1", "e2e_mean"));
    let (now_rate, twice) = (
        predicted("rate x1", "requests_per_s"),
        predicted("rate x2", "requests_per_s"),
    );
    assert!((twice / now_rate - 2.0).abs() < 0.2, "{now_rate} {twice}");
    let wrong = Question::parse("router least-busy", &keys).expect("the scenario will refuse it");
    let error = wrong
        .deployment(&path, &[])
        .expect_err("no such policy")
        .to_string();
    assert!(error.contains("least"), "{error}");
}

#[test]
fn a_refit_finds_how_much_slower_steps_became_and_writes_a_new_file() {
    let slower = recorded(&[
        "step.base=6.5 ms",
        "step.per_token=52 us",
        "step.per_context_token=0.13 us",
    ]);
    let (dir, path) = deployment();
    let stepped = Deployment::load(&path, &[]).expect("it is right");
    let (found, new) = refit_to(&slower, &stepped, None).expect("it refits");
    assert!((found.factor / 1.3 - 1.0).abs() < 0.01, "{}", found.factor);
    assert_eq!(new.written, dir.path().join("d-refit-1.toml"));
    let after = against(&slower, new.deployment.scenario());
    assert!(error(&after, "e2e_mean").abs() < 0.01);
    assert_eq!(
        std::fs::read_to_string(&path).expect("still there"),
        DEPLOYMENT
    );
    // A name that is taken is left alone.
    let again = refit_to(&slower, &stepped, Some(&new.written)).expect_err("taken");
    assert!(again.contains("exists"), "{again}");

    // The same with a step profile.
    let profile = dir.path().join("endpoint.toml");
    let mut p = hwmodels::Profile {
        name: "endpoint".into(),
        accelerator: "*".into(),
        basis: Some(hwmodels::Basis::default()),
        ..hwmodels::Profile::default()
    };
    for (name, value) in [
        ("step.fixed_s", 5e-3),
        ("step.token_s", 4e-5),
        ("step.context_s", 1e-7),
        ("host.request_in_s", 1e-3),
    ] {
        let entry = hwmodels::fitted::param(
            name,
            value,
            Some(value * 0.01),
            hwmodels::Evidence::Measured,
        );
        p.params.insert(name.into(), entry.expect("within bounds"));
    }
    std::fs::write(&profile, toml::to_string(&p).expect("it is TOML")).expect("written");
    let fitted = dir.path().join("fitted.toml");
    let engine = "[hardware]\nstep_profile = \"endpoint.toml\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 2000\nmax_num_seqs = 64\nmax_num_batched_tokens = 512\n";
    std::fs::write(&fitted, engine).expect("written");
    let deployment = Deployment::load(&fitted, &[]).expect("it is right");
    let (found, new) = refit_to(&slower, &deployment, None).expect("it refits");
    assert!((found.factor / 1.3 - 1.0).abs() < 0.03, "{}", found.factor);
    let text = std::fs::read_to_string(&new.written).expect("written");
    let scaled: hwmodels::Profile = toml::from_str(&text).expect("a profile");
    assert!((scaled.params["step.fixed_s"].value / (5e-3 * found.factor) - 1.0).abs() < 1e-9);
    assert!((scaled.params["host.request_in_s"].value - 1e-3).abs() < 1e-12);
    assert!(scaled.params["step.fixed_s"].std_error > Some(5e-5));
    assert!(!scaled.trusted() && scaled.provenance.notes[0].contains("step times"));
    let after = against(&slower, new.deployment.scenario());
    assert!(error(&after, "e2e_mean").abs() < 0.02);
}

#[test]
fn a_window_without_served_requests_is_refused() {
    let (_dir, path) = deployment();
    let scenario = load_deployment(&path, &[]).expect("it is right");
    let mut window = recorded(&[]);
    for row in &mut window.rows {
        (row.outcome, row.status) = (Seen::Refused, 429);
    }
    let error = replay(&window, &scenario, &Change::default())
        .err()
        .expect("nothing to replay");
    assert!(error.to_string().contains("no request"), "{error}");
}
