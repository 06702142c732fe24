//! `servetwin curve`, `compare` and `scenario`, end to end.

use crate::common::{SMALL, assert_refused, json, root, scenario, servetwin, stderr, stdout};

fn small(args: &[&str]) -> std::process::Output {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "small.toml", SMALL);
    let file = file.to_str().unwrap();
    let args: Vec<&str> = args
        .iter()
        .map(|a| if *a == "FILE" { file } else { *a })
        .collect();
    servetwin(&args)
}

/// A server of 10 ms per request under Poisson arrivals.
const M_D_1: &str = r#"
[step]
base = "10 ms"
[engine]
kind = "static"
max_batch_size = 1
kv_blocks = 1000
[[workload]]
name = "customers"
arrival = { kind = "poisson", rate = "7 req/s" }
prompt = 1
output = 1
[run]
requests = 500
[slo]
ttft = "50 ms"
"#;

fn number(v: &serde_json::Value, path: &str) -> f64 {
    let found = v.pointer(path);
    found
        .and_then(serde_json::Value::as_f64)
        .unwrap_or_else(|| panic!("{path}: {found:?}"))
}

#[test]
fn curve_finds_the_capacity_the_knee_and_the_limit_of_m_d_1() {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "queue.toml", M_D_1);
    let curve = json(&servetwin(&[
        "curve",
        file.to_str().unwrap(),
        "--json",
        "--points",
        "8",
    ]));
    assert_eq!(curve["axis"], "rate");
    let points = curve["points"].as_array().unwrap();
    assert_eq!(points.len(), 8);
    // 10 ms each: 100 a second, whatever the length of the run.
    assert!(
        (number(&curve, "/capacity/value") - 100.0).abs() < 1.0,
        "{curve}"
    );
    // Throughput / mean time in the system, load 2 (1 - load) / (2 - load), is largest at 2 - sqrt 2.
    let knee = 100.0 * (2.0 - 2f64.sqrt());
    assert!(
        number(&curve, "/knee/low") <= knee && knee <= number(&curve, "/knee/high"),
        "{}",
        curve["knee"]
    );
    assert!(
        (number(&curve, "/knee_load") - knee).abs() < 8.0,
        "{}",
        curve["knee"]
    );
    let slo = number(&curve, "/slo_load");
    assert!(
        (slo - slo_of_m_d_1()).abs() < 6.0,
        "{slo} {}",
        slo_of_m_d_1()
    );
    assert!(number(&curve, "/slo_limit/low") < number(&curve, "/slo_limit/high"));
    // The last load is beyond the capacity, and says so; latency is not compared with its own growth.
    let last = points.last().unwrap();
    assert_eq!(last["report"]["stationarity"]["verdict"], "growing");
    assert_eq!(points[0]["report"]["stationarity"]["verdict"], "stationary");
    assert!(curve["saturation"]["text"].as_str().unwrap().len() > 20);
}

/// The load [req/s] at which 1 % of the requests of a server of 10 ms wait longer than 40 ms (Erlang 1909: P(W <= t) for M/D/1).
fn slo_of_m_d_1() -> f64 {
    let beyond = |load: f64| {
        let sum: f64 = (0..=4)
            .map(|k| {
                let x = load * (f64::from(k) - 4.0);
                let factorial: f64 = (1..=k).map(f64::from).product();
                x.powi(k) / factorial * (-x).exp()
            })
            .sum();
        1.0 - (1.0 - load) * sum
    };
    let (mut low, mut high) = (0.01, 0.99);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if beyond(middle) < 0.01 {
            low = middle;
        } else {
            high = middle;
        }
    }
    100.0 * low
}

#[test]
fn the_capacity_does_not_depend_on_the_length_of_the_scenario() {
    let capacity = |requests: &str| {
        let set = format!("run.requests={requests}");
        let args = ["curve", "FILE", "--json", "--points", "2", "--seeds", "2"];
        let curve = json(&small(&[&args[..], &["--set", &set]].concat()));
        number(&curve, "/max_requests_per_s")
    };
    let (short, long) = (capacity("200"), capacity("16000"));
    assert!((short / long - 1.0).abs() < 0.02, "{short} {long}");
}

#[test]
fn curve_runs_the_loads_it_is_given_and_plots_them() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("curve.svg");
    let file = scenario(&dir, "queue.toml", M_D_1);
    let out = servetwin(&[
        "curve",
        file.to_str().unwrap(),
        "--rates",
        "90,20,55,130",
        "--seeds",
        "2",
        "--plot",
        plot.to_str().unwrap(),
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = stdout(&out);
    assert_eq!(text.matches("<- knee").count(), 1, "{text}");
    assert_eq!(text.matches("not stationary: +").count(), 1, "{text}");
    let svg = std::fs::read_to_string(plot).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("throughput [req/s]"),
        "{}",
        &svg[..200]
    );
    assert!(svg.contains("SLO TTFT 50 ms") && svg.contains("objective met"));
}

#[test]
fn curve_does_not_call_the_edge_of_its_loads_a_knee() {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "queue.toml", M_D_1);
    for (rates, edge) in [("10,20,30", "highest load"), ("80,90,130", "lowest load")] {
        let args = ["curve", file.to_str().unwrap(), "--rates", rates, "--json"];
        let curve = json(&servetwin(&args));
        assert!(curve["knee_load"].is_null(), "{}", curve["knee_load"]);
        let notes = curve["notes"].to_string();
        assert!(notes.contains("no knee") && notes.contains(edge), "{notes}");
    }
}

#[test]
fn curve_takes_traces_day_curves_and_mixes() {
    let dir = tempfile::tempdir().unwrap();
    let trace: String = (0..400)
        .map(|i| {
            let at = i * 1000 + i % 7 * 90;
            format!("{{\"timestamp\": {at}, \"input_length\": 100, \"output_length\": 20, \"hash_ids\": [{i}]}}\n")
        })
        .collect();
    std::fs::write(dir.path().join("trace.jsonl"), trace).unwrap();
    std::fs::write(
        dir.path().join("day.csv"),
        "t_s,rate_rps\n0,1\n100,4\n200,1\n",
    )
    .unwrap();
    let poisson = "{ kind = \"poisson\", rate = \"5 req/s\" }";
    let lengths = "prompt = { kind = \"uniform\", min = 50, max = 150 }\noutput = { kind = \"uniform\", min = 1, max = 40 }\n";
    let mix = format!(
        "{lengths}[[workload]]\nname = \"users\"\narrival = {{ kind = \"closed\", concurrency = 4 }}\n{lengths}"
    );
    let with = |from: &str, to: &str| {
        assert!(SMALL.contains(from));
        SMALL.replace(from, to)
    };
    let cases = [
        (
            with(poisson, "{ kind = \"trace\", file = \"trace.jsonl\" }").replace(lengths, ""),
            0.9,
        ),
        (
            with(poisson, "{ kind = \"rate_table\", file = \"day.csv\" }"),
            2.0,
        ),
        (with(lengths, &mix), 5.0),
    ];
    for (i, (text, least)) in cases.iter().enumerate() {
        let file = scenario(&dir, &format!("{i}.toml"), text);
        let file = file.to_str().unwrap();
        let args = ["curve", file, "--scales", "1,2", "--seeds", "2", "--json"];
        let curve = json(&servetwin(&args));
        assert_eq!(curve["axis"], "scale");
        let offered = |i: usize| {
            number(
                &curve,
                &format!("/points/{i}/report/throughput/offered_per_s"),
            )
        };
        assert!(offered(0) > *least, "{i}: {}", offered(0));
        assert!(
            (offered(1) / offered(0) - 2.0).abs() < 0.3,
            "{i}: {} {}",
            offered(0),
            offered(1)
        );
        assert_refused(&servetwin(&["curve", file, "--rates", "1,2"]), "--scales");
    }
    // Without loads: multiples up to the capacity, found by itself.
    let file = dir.path().join("0.toml");
    let found = json(&servetwin(&[
        "curve",
        file.to_str().unwrap(),
        "--points",
        "5",
        "--seeds",
        "1",
        "--json",
    ]));
    assert_eq!(found["axis"], "scale");
    assert!(
        number(&found, "/points/4/load") > 2.0,
        "{}",
        found["points"][4]["load"]
    );
}

#[test]
fn curve_over_concurrency_keeps_that_many_requests_under_way() {
    let curve = json(&small(&["curve", "FILE", "--concurrency", "1,4", "--json"]));
    let points = curve["points"].as_array().unwrap();
    let running = |i: usize| {
        points[i]["report"]["replicas"]["mean_running"]
            .as_f64()
            .unwrap()
    };
    assert!((running(0) - 1.0).abs() < 0.01, "{}", running(0));
    assert!(running(1) > 3.5 && running(1) <= 4.0, "{}", running(1));
    let closed = SMALL.replace(
        "{ kind = \"poisson\", rate = \"5 req/s\" }",
        "{ kind = \"closed\", concurrency = 2 }",
    );
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "closed.toml", &closed);
    let found = json(&servetwin(&["curve", file.to_str().unwrap(), "--json"]));
    assert_eq!(found["axis"], "concurrency");
    assert!(found["points"].as_array().unwrap().len() >= 3);
}

#[test]
fn curve_tells_of_requests_that_were_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = M_D_1.replace("[engine]", "[engine]\nmax_queue_size = 1");
    let file = scenario(&dir, "full.toml", &text);
    let out = servetwin(&["curve", file.to_str().unwrap(), "--rates", "5,200"]);
    let text = stdout(&out);
    let row = |rate: &str| {
        let mut rows = text.lines().filter(|l| l.trim_start().starts_with(rate));
        rows.next().unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert!(row("200").contains("requests lost"), "{text}");
    assert!(text.contains("waiting queue was full"), "{text}");
}

#[test]
fn curve_refuses_loads_that_make_no_sense() {
    assert_refused(
        &small(&["curve", "FILE", "--rates", "0"]),
        "from 1e-9 to 1e9 req/s",
    );
    assert_refused(
        &small(&["curve", "FILE", "--rates=-1"]),
        "from 1e-9 to 1e9 req/s",
    );
    assert_refused(
        &small(&["curve", "FILE", "--rates", "NaN"]),
        "from 1e-9 to 1e9 req/s",
    );
    assert_refused(&small(&["curve", "FILE", "--scales", "0"]), "above 0");
    assert_refused(
        &small(&["curve", "FILE", "--concurrency", "0"]),
        "at least 1",
    );
}

#[test]
fn compare_pairs_runs_by_seed() {
    let c = json(&small(&[
        "compare",
        "FILE",
        "FILE",
        "--set-b",
        "step.base=20 ms",
        "--seeds",
        "3",
        "--json",
    ]));
    assert_eq!(c["seeds"], serde_json::json!([1, 2, 3]));
    let figures = c["figures"].as_array().unwrap();
    let tpot = figures
        .iter()
        .find(|f| f["path"] == "tpot_ms.mean")
        .unwrap();
    assert_eq!(tpot["significant"], true);
    let mean = tpot["difference"]["mean"].as_f64().unwrap();
    assert!((8.0..20.0).contains(&mean), "{mean}");
    // Same seeds, same arrivals: the paired runs were offered the same requests.
    let prompt = |side: &str, i: usize| c[side][i]["tokens"]["prompt"].clone();
    for i in 0..3 {
        assert_eq!(prompt("runs_a", i), prompt("runs_b", i));
    }
}

#[test]
fn a_scenario_does_not_differ_from_itself() {
    let out = small(&["compare", "FILE", "FILE", "--seeds", "3"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = stdout(&out);
    assert!(
        text.contains("within noise") && !text.contains("+1."),
        "{text}"
    );
}

#[test]
fn compare_names_the_keys_that_differ_and_whose_requests_were_rejected() {
    let args = [
        "compare",
        "FILE",
        "FILE",
        "--set",
        "workload[0].arrival.rate=50 req/s",
        "--set-b",
        "engine.max_num_seqs=1",
        "--set-b",
        "engine.max_num_queued_reqs=1",
        "--seeds",
        "2",
    ];
    let text = stdout(&small(&args));
    for want in [
        "   engine.max_num_queued_reqs: (not set) -> 1",
        "   engine.max_num_seqs: ",
        "A and B did not serve the same requests",
        "warning of B",
        "waiting queue was full",
    ] {
        assert!(text.contains(want), "{want}:\n{text}");
    }
    let c = json(&small(&[&args[..], &["--json"]].concat()));
    assert_eq!(c["same_requests"], false);
    assert!(
        c["notes"][0]
            .as_str()
            .unwrap()
            .contains("A finished 100.0 %")
    );
    assert!(
        c["warnings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|w| w["side"] == "B")
    );
    let path = |f: &serde_json::Value| f["path"] == "requests.rejected";
    let figures = c["figures"].as_array().unwrap();
    let rejected = figures.iter().find(|f| path(f)).unwrap();
    assert!(rejected["b"].as_f64().unwrap() > rejected["a"].as_f64().unwrap());
}

#[test]
fn compare_on_a_trace_claims_no_certainty() {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "small.toml", SMALL);
    let tables = dir.path().join("tables");
    let args = [
        "run",
        file.to_str().unwrap(),
        "--csv",
        tables.to_str().unwrap(),
    ];
    assert_eq!(servetwin(&args).status.code(), Some(0));
    let replayed = SMALL
        .replace(
            "{ kind = \"poisson\", rate = \"5 req/s\" }",
            "{ kind = \"trace\", file = \"tables/requests.csv\" }",
        )
        .lines()
        .filter(|l| !l.starts_with("prompt") && !l.starts_with("output"))
        .collect::<Vec<_>>()
        .join("\n");
    let file = scenario(&dir, "trace.toml", &replayed);
    let file = file.to_str().unwrap();
    let args = [
        "compare",
        file,
        file,
        "--set-b",
        "step.base=20 ms",
        "--seeds",
        "3",
    ];
    let out = servetwin(&args);
    let text = stdout(&out);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(text.contains("The seeds change nothing"), "{text}");
    assert!(
        text.contains("--draws") && text.contains("--same-load"),
        "{text}"
    );
    let c = json(&servetwin(&[&args[..], &["--json"]].concat()));
    assert_eq!(c["seeds_vary"], false);
    for figure in c["figures"].as_array().unwrap() {
        assert!(figure["difference"]["half_width"].is_null(), "{figure}");
        assert!(figure["significant"].is_null(), "{figure}");
    }
}

#[test]
fn compare_takes_several_scenarios_against_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, base: &str| {
        let text = SMALL.replace("base = \"10 ms\"", &format!("base = \"{base}\""));
        scenario(&dir, name, &text).display().to_string()
    };
    let files = [
        of("a.toml", "10 ms"),
        of("b.toml", "12 ms"),
        of("c.toml", "14 ms"),
    ];
    let mut args = vec!["compare", &files[0], &files[1], &files[2], "--seeds", "2"];
    let text = stdout(&servetwin(&args));
    for want in [
        "   step.base: 10 ms -> 12 ms",
        "   step.base: 10 ms -> 14 ms",
        "change: against A",
    ] {
        assert!(text.contains(want), "{want}:\n{text}");
    }
    args.push("--json");
    let c = json(&servetwin(&args));
    assert_eq!(c["more"].as_array().unwrap().len(), 1);
    let tpot = |figures: &serde_json::Value| {
        let all = figures.as_array().unwrap();
        let found = all.iter().find(|f| f["path"] == "tpot_ms.mean").unwrap();
        found["difference"]["mean"].as_f64().unwrap()
    };
    assert!(tpot(&c["more"][0]["figures"]) > tpot(&c["figures"]));
    let alone = servetwin(&["compare", &files[0]]);
    assert_eq!(alone.status.code(), Some(2));
}

#[test]
fn compare_draws_parameters_alike_on_all_sides() {
    let file = root().join("scenarios/llama2-7b-g5.2xlarge-tgi.toml");
    let file = file.to_str().unwrap();
    let of = |b: &str| {
        let args = [
            "--draws",
            "4",
            "--json",
            "--set",
            "run.requests=30",
            "--set",
            "run.warmup=0 s",
        ];
        let c = json(&servetwin(
            &[&["compare", file, file, "--set-b", b][..], &args].concat(),
        ));
        assert_eq!(c["draws"], 4);
        let all = c["figures"].as_array().unwrap();
        let tpot = all.iter().find(|f| f["path"] == "tpot_ms.mean").unwrap();
        ["low", "high"].map(|end| tpot[end].as_f64().unwrap())
    };
    // The same scenario with the same draws does not differ, whatever the parameters are.
    assert_eq!(of("seed=1"), [0.0, 0.0]);
    let [low, high] = of("layout.replicas=2");
    assert!(low < high && high < 0.0, "{low} {high}");
}

#[test]
fn loads_are_described_in_figures_that_people_read() {
    let args = [
        "run",
        "FILE",
        "--set",
        "workload[0].arrival.rate=8969.87707589708 req/h",
    ];
    let text = stdout(&small(&args));
    assert!(text.contains("Poisson 2.492 req/s"), "{text}");
    let shown = stdout(&small(&[
        "scenario",
        "show",
        "FILE",
        "--set",
        "workload[0].arrival.rate=8969.87707589708 req/h",
    ]));
    assert!(shown.contains(" req/s\""), "{shown}");
    assert!(!shown.contains("req/h"), "{shown}");
    let warned = stdout(&small(&[
        "run",
        "FILE",
        "--set",
        "run.warmup=30 s",
        "--set",
        "run.requests=20",
    ]));
    assert!(
        warned.contains("the warm-up of 30 s leaves out"),
        "{warned}"
    );
}

#[test]
fn the_resolved_scenario_reads_back_to_itself() {
    let first = stdout(&small(&["scenario", "show", "FILE"]));
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "again.toml", &first);
    let second = stdout(&servetwin(&["scenario", "show", file.to_str().unwrap()]));
    assert_eq!(first, second);
    assert!(first.contains("drain = true"), "{first}");
}

#[test]
fn check_tells_a_scenario_that_runs_from_one_that_cannot() {
    let out = small(&["scenario", "check", "FILE"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("ok"));
    let too_large = "[model]\nname = \"llama-2-70b\"\n[hardware]\ninstance = \"g5.2xlarge\"\n[engine]\nkind = \"tgi\"\n\
                     [[workload]]\narrival = { kind = \"poisson\", rate = \"1 req/s\" }\nprompt = 10\noutput = 10\n\
                     [run]\nrequests = 10\n";
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(&dir, "large.toml", too_large);
    assert_refused(
        &servetwin(&["scenario", "check", file.to_str().unwrap()]),
        "does not fit",
    );
}

#[test]
fn the_committed_scenario_schema_is_current() {
    let printed = stdout(&servetwin(&["scenario", "schema"]));
    let path = root().join("docs/schema/scenario.schema.json");
    if std::env::var_os("SERVETWIN_WRITE_SCHEMAS").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == printed,
        "docs/schema/scenario.schema.json is out of date: SERVETWIN_WRITE_SCHEMAS=1 cargo test --test cli schema"
    );
}

#[test]
fn every_command_shows_an_example() {
    for args in [
        &["run"][..],
        &["curve"],
        &["compare"],
        &["catalog"],
        &["catalog", "list"],
        &["catalog", "show"],
        &["scenario", "show"],
        &["scenario", "check"],
        &["scenario", "schema"],
    ] {
        let out = servetwin(&[args, &["--help"]].concat());
        assert!(stdout(&out).contains("Example"), "{args:?}");
    }
}
