//! Planning questions: the race against exhaustive simulation, bounds against simulation, threads, and the shipped questions.

use std::path::Path;

use planner::plan::apart::Apart;
use planner::plan::bounds::bound;
use planner::plan::doubt::{coverage, interval};
use planner::plan::question::Redundancy;
use planner::plan::ready::start_all;
use planner::plan::space::Space;
use planner::plan::{Options, Part, PlanReport, Question, answer, merge, part};
use planner::sweep::Shard;

/// A question of 3 instance types, their layouts and engine limits, under `rate` req/s.
fn question(rate: f64, slo: &str, redundancy: &str) -> Question {
    let text = written(rate, slo, redundancy);
    Question::parse_in(&crate::short_runs(), &text, "question.toml", &[]).unwrap()
}

fn written(rate: f64, slo: &str, redundancy: &str) -> String {
    format!(
        "slo = [{slo}]\n[plan]\nredundancy = \"{redundancy}\"\nmax_instances = 24\n[model]\nname = \"llama-3.1-8b\"\nkv_cache = [\"bf16\", \"fp8\"]\n\
         [hardware]\ninstance = [\"g5.2xlarge\", \"g6e.xlarge\", \"p4d.24xlarge\"]\n[layout]\ntp = [1, 2]\n[engine]\nkind = \"vllm\"\nmax_model_len = \
         4096\nmax_num_seqs = [16, 128]\nmax_num_batched_tokens = [1024, 4096]\n[[workload]]\nname = \"chat\"\narrival = {{ kind = \"poisson\", rate = \
         \"{rate} req/s\" }}\nprompt = {{ kind = \"lognormal\", mean = 500, std = 400, max = 3000 }}\noutput = {{ kind = \"lognormal\", mean = 120, std = \
         80, max = 600 }}\n[run]\nrequests = 500\nwarmup = \"3 s\"\n"
    )
}

const CHAT: &str = "\"ttft.p99 < 1 s\", \"tpot.p95 < 40 ms\"";

const NO_DRAWS: Options = Options {
    exhaustive: false,
    draws: 0,
};

fn answered(q: &Question, exhaustive: bool) -> PlanReport {
    answer(
        q,
        Options {
            exhaustive,
            draws: 0,
        },
        &|_| {},
    )
    .unwrap()
    .report
}

#[test]
fn the_race_names_the_winner_of_exhaustive_simulation() {
    for (rate, slo, redundancy) in [
        (6.0, CHAT, "none"),
        (25.0, CHAT, "n+1"),
        (12.0, "\"ttft.p99 < 300 ms\", \"tpot.p99 < 25 ms\"", "none"),
    ] {
        let q = question(rate, slo, redundancy);
        let (raced, all) = (answered(&q, false), answered(&q, true));
        let of = |r: &PlanReport| {
            let w = r.winner.clone().unwrap();
            (w.label, w.instances, w.replicas, w.standing)
        };
        assert_eq!(
            of(&raced),
            of(&all),
            "{rate}: {}\n{}",
            raced.render(),
            all.render()
        );
        assert!(raced.search.settled < all.search.candidates, "{rate}");
    }
}

#[test]
fn an_answer_does_not_depend_on_the_number_of_threads() {
    let q = question(8.0, CHAT, "n+1");
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            answer(
                &q,
                Options {
                    exhaustive: false,
                    draws: 3,
                },
                &|_| {},
            )
            .unwrap()
        })
    };
    let (one, four) = (with(1), with(4));
    assert_eq!(
        serde_json::to_string(&one.report).unwrap(),
        serde_json::to_string(&four.report).unwrap()
    );
    assert_eq!(one.scenario, four.scenario);
}

#[test]
fn no_replica_carries_more_than_its_bound() {
    let q = question(8.0, CHAT, "none");
    let space = Space::of(&q).unwrap();
    let ready = start_all(&q, &space.candidates, &mut Vec::new());
    assert!(ready.len() > 20);
    let unlimited = Question {
        conditions: Vec::new(),
        ..question(8.0, CHAT, "none")
    };
    for r in &ready {
        // Ten times what it can do at best: what it finishes then is its capacity.
        let b = bound(r, &q).requests_per_s;
        let factor = 10.0 * b / q.moments.per_s.unwrap();
        let record = r
            .fleet
            .run(&[1], q.requests.all(factor), Default::default())
            .unwrap();
        let served = record.counts.finished as f64 / record.end.as_secs();
        // The limit on the time between tokens is part of the bound, and not of this run: batches may be larger here.
        let most = bound(r, &unlimited).requests_per_s;
        assert!(
            served <= most,
            "{}: served {served}, bound {most}",
            r.candidate.label()
        );
        assert!(b <= most * 1.001, "{}", r.candidate.label());
    }
}

#[test]
fn the_winner_as_a_scenario_gives_the_figures_of_the_plan() {
    let text = written(8.0, CHAT, "none");
    // Without a longest request of the question's own the winner takes longer ones than the load's, 3600 tokens.
    let without = text.replace("max_model_len = 4096\n", "");
    for (text, lengths) in [(text, 4096..=4096), (without, 32_768..=131_072)] {
        let q = Question::parse_in(&crate::short_runs(), &text, "question.toml", &[]).unwrap();
        let found = answer(&q, NO_DRAWS, &|_| {}).unwrap();
        let scenario =
            sim::scenario::Scenario::parse(&found.scenario.unwrap(), "winner.toml", &[]).unwrap();
        let record = scenario.run(&Default::default()).unwrap();
        let standing = planner::conditions::Standing::of(&record, &q.conditions, q.steady);
        assert_eq!(
            Some(standing.values_ms),
            found.report.detail.map(|d| d.standing.values_ms)
        );
        let length = scenario.engine.params.to_table()["max_model_len"].as_integer();
        assert!(lengths.contains(&length.unwrap()), "{length:?}");
    }
}

#[test]
fn what_cannot_hold_is_said() {
    let q = question(8.0, "\"tpot.p99 < 1 ms\"", "none");
    let report = answered(&q, false);
    assert_eq!(report.winner, None);
    let text = report.render();
    assert!(
        text.contains("NOTHING") && text.contains("a token takes at least"),
        "{text}"
    );
}

#[test]
fn what_the_winner_hangs_on_is_said_once() {
    let notes = |host: &str| {
        let instance = format!(
            "[[instance]]\nname = \"l4-box\"\naccelerator = \"L4\"\ndevices = 4\nintra_link = \"pcie4-host\"\n{host}network_link = \"ena\"\n\
             network = \"25 Gb/s\"\nvcpus = 48\nram = \"192 GiB\"\nsource = \"a test\"\nprices = [{{ date = \"2026-01-01\", usd = \"3 USD/h\" }}]\n"
        );
        let bundle = hwmodels::files::Bundle::default().with("own/boxes.toml", instance.as_bytes());
        let text = "slo = [\"ttft.p99 < 5 s\"]\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ncatalog = \"own\"\ninstance = [\"l4-box\"]\n[layout]\ntp = \
                    4\n[engine]\nkind = \"vllm\"\nmax_num_seqs = 64\nmax_num_batched_tokens = 2048\n[[workload]]\narrival = { kind = \"poisson\", rate = \
                    \"1 req/s\" }\nprompt = 200\noutput = 50\n[run]\nrequests = 100\n";
        let world = planner::World::of(bundle);
        let q = Question::parse_in(&world, text, "q.toml", &[]).unwrap();
        let report = answered(&q, false);
        assert_eq!(report.winner.as_ref().unwrap().instance, "l4-box");
        let of_host = report.notes.into_iter().filter(|n| n.contains("host_path"));
        of_host.collect::<Vec<String>>()
    };
    let said = notes("");
    assert!(
        said.len() == 1 && said[0].contains("set host_path of the instance type l4-box"),
        "{said:?}"
    );
    assert_eq!(notes("host_path = \"shared\"\n"), [""; 0]);
}

#[test]
fn a_budget_that_is_too_small_is_said_with_the_price_that_holds() {
    let text = "slo = \"ttft.p99 < 1 s\"\n[plan]\nbudget = \"0.5 USD/h\"\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"g5.2xlarge\"\n\
        [engine]\nkind = \"vllm\"\nmax_num_seqs = 64\nmax_num_batched_tokens = 2048\n[[workload]]\narrival = { kind = \"poisson\", rate = \"1 req/s\" \
        }\nprompt = 300\noutput = 50\n[run]\nrequests = 100\n";
    let report = answered(
        &Question::parse_in(&crate::short_runs(), text, "q.toml", &[]).unwrap(),
        false,
    );
    assert_eq!(report.winner, None);
    assert!(
        report.notes.iter().any(|n| n.contains("1.212")),
        "{:?}",
        report.notes
    );
}

#[test]
fn wrong_questions_say_what_and_where() {
    let base = "slo = \"ttft.p99 < 1 s\"\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"g5.2xlarge\"\n[[workload]]\narrival = { kind = \
        \"poisson\", rate = \"1 req/s\" }\nprompt = 300\noutput = 50\n[run]\nrequests = 100\n";
    let fails = |text: &str, because: &str| {
        let e = Question::parse(text, "q.toml", &[])
            .and_then(|q| Space::of(&q).map(|_| ()))
            .unwrap_err();
        assert!(
            e.is_input() && e.to_string().contains(because),
            "`{because}` not in: {e}"
        );
    };
    assert!(Space::of(&Question::parse(base, "q.toml", &[]).unwrap()).is_ok());
    fails(
        &base.replace("ttft.p99 < 1 s", "ttft < 1 s"),
        "q.toml:1: slo",
    );
    fails(
        &base.replace("g5.2xlarge", "g5.3xlarge"),
        "hardware.instance",
    );
    fails(&base.replace("g5.2xlarge", "g9.*"), "`g9.*`");
    fails(&base.replace("llama-3.1-8b", "llama-9"), "llama");
    fails(&base.replace("prompt = 300", "promt = 300"), "q.toml:8");
    fails(
        &format!("{base}[layout]\nreplicas = 3\n"),
        "layout.replicas",
    );
    fails(&format!("{base}[plan]\nredundancy = \"n+2\"\n"), "q.toml");
    fails(
        &base.replace("\"1 req/s\" }", "\"1 req/s\" }\nretries = { max = 2 }"),
        "open loop",
    );
}

/// Every shipped question is answered, in a small version of itself.
#[test]
fn the_shipped_questions_are_answered() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let mut answered = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if path.extension().is_none_or(|e| e != "toml") || !text.contains("slo") {
            continue;
        }
        let small = [
            "run.requests=400",
            "engine={ kind = \"vllm\", max_num_seqs = 128, max_num_batched_tokens = 2048 }",
        ];
        let mut q = Question::load(&path, &small.map(str::to_owned)).unwrap();
        q.world.most_requests = 1 << 14;
        let found = answer(
            &q,
            Options {
                exhaustive: false,
                draws: 2,
            },
            &|_| {},
        )
        .unwrap();
        assert!(
            found.report.winner.is_some(),
            "{}: {}",
            path.display(),
            found.report.render()
        );
        answered += 1;
    }
    assert!(answered >= 2);
}

/// The parts of `q`, each as its file holds it.
fn parts(q: &Question, options: Options, count: u64) -> Vec<Part> {
    let one = |index| {
        let made = part(q, options, Shard { index, count }, &|_| {}).unwrap();
        serde_json::from_str(&serde_json::to_string(&made).unwrap()).unwrap()
    };
    (1..=count).rev().map(one).collect()
}

#[test]
fn the_parts_of_an_exhaustive_plan_give_the_bytes_of_the_whole() {
    let q = question(8.0, CHAT, "n+1");
    let options = Options {
        exhaustive: true,
        draws: 2,
    };
    let whole = answer(&q, options, &|_| {}).unwrap();
    let merged = merge(&q, &parts(&q, options, 3), &|_| {}).unwrap();
    let text = |r: &PlanReport| serde_json::to_string_pretty(r).unwrap();
    assert_eq!(text(&merged.report), text(&whole.report));
    assert_eq!(merged.scenario, whole.scenario);
}

#[test]
fn the_parts_of_a_raced_plan_name_the_winner_of_the_whole() {
    for (rate, redundancy) in [(6.0, "none"), (25.0, "n+1")] {
        let q = question(rate, CHAT, redundancy);
        let options = Options {
            exhaustive: false,
            draws: 0,
        };
        let whole = answer(&q, options, &|_| {}).unwrap();
        for count in [2, 5] {
            let merged = merge(&q, &parts(&q, options, count), &|_| {}).unwrap();
            assert_eq!(merged.report.winner, whole.report.winner, "{rate} {count}");
            assert_eq!(merged.report.detail, whole.report.detail, "{rate} {count}");
            assert_eq!(merged.scenario, whole.scenario);
            assert_eq!(
                merged.report.search.candidates,
                whole.report.search.candidates
            );
        }
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let q = question(6.0, CHAT, "none");
    let options = Options {
        exhaustive: false,
        draws: 0,
    };
    let all = parts(&q, options, 2);
    let refused = |q: &Question, parts: &[Part]| {
        let e = merge(q, parts, &|_| {}).err().unwrap();
        assert!(e.is_input());
        e.to_string()
    };
    assert!(refused(&q, &[]).contains("--shard"));
    assert!(refused(&q, &all[..1]).contains("1 of 2 parts are missing: 1"));
    let other = question(7.0, CHAT, "none");
    assert!(refused(&other, &all).contains("another question"));
    let mut mixed = all.clone();
    mixed[0].draws = 3;
    assert!(refused(&q, &mixed).contains("other options"));
    let mut twice = all.clone();
    twice.push(all[0].clone());
    assert!(merge(&q, &twice, &|_| {}).is_ok());
    let last = twice.len() - 1;
    twice[last].settled.clear();
    assert!(refused(&q, &twice).contains("twice"));
    let mut beyond = all;
    beyond[0].settled[0].candidate = 1_000_000;
    assert!(refused(&q, &beyond).contains("does not have"));
}

#[test]
fn what_was_set_aside_is_told_by_kind() {
    let report = answered(&question(25.0, CHAT, "n+1"), false);
    let text = report.render();
    let aside = text.split("set aside\n").nth(1).unwrap();
    let aside = aside.split("\nsearch").next().unwrap();
    // At most a heading and two examples of each kind, and where the rest is.
    let kinds: std::collections::BTreeSet<_> = report.rejected.iter().map(|r| r.kind).collect();
    assert!(aside.lines().count() <= 3 * kinds.len() + 1, "{text}");
    for kind in kinds {
        assert!(aside.contains(kind.heading()), "{text}");
    }
    let told: u64 = aside
        .lines()
        .filter(|l| !l.trim_start().starts_with(['e', 'a']))
        .filter_map(|l| l.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    assert_eq!(
        told,
        report.rejected.iter().map(|r| r.candidates).sum::<u64>()
    );
}

#[test]
fn prices_of_regions_decide() {
    let text = |regions: &str| {
        format!(
            "slo = [\"ttft.p99 < 2 s\"]\n[plan]\nprices = \"prices.csv\"\n{regions}\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = [\"g6e.xlarge\", \
             \"g5.2xlarge\"]\n[engine]\nkind = \"vllm\"\nmax_num_seqs = 64\nmax_num_batched_tokens = 2048\n[[workload]]\narrival = {{ kind = \"poisson\", rate = \
             \"2 req/s\" }}\nprompt = 200\noutput = 50\n[run]\nrequests = 150\n"
        )
    };
    let prices = "instance,region,usd_per_h,multiplier\ng6e.xlarge,far,0.25,\n*,near,,1\n";
    let bundle = hwmodels::files::Bundle::default().with("prices.csv", prices.as_bytes());
    let world = planner::World::of(bundle);
    let winner = |regions: &str| {
        let q = Question::parse_in(&world, &text(regions), "q.toml", &[]).unwrap();
        let found = answer(
            &q,
            Options {
                exhaustive: false,
                draws: 0,
            },
            &|_| {},
        )
        .unwrap();
        (found.report.winner.unwrap(), found.scenario.unwrap())
    };
    let (all, scenario) = winner("");
    assert_eq!(
        (all.instance.as_str(), all.usd_per_hour),
        ("g6e.xlarge", Some(0.25 * f64::from(all.instances)))
    );
    assert!(
        all.settings.contains(&("region".into(), "far".into())),
        "{all:?}"
    );
    assert!(scenario.contains("0.25 USD/h"), "{scenario}");
    let (near, _) = winner("regions = [\"near\"]");
    assert!(
        near.usd_per_hour > all.usd_per_hour
            && near.settings.contains(&("region".into(), "near".into()))
    );
    let wrong = text("regions = [\"mars\"]");
    let e = Question::parse_in(&world, &wrong, "q.toml", &[])
        .err()
        .unwrap()
        .to_string();
    assert!(e.contains("no region `mars`"), "{e}");
    let without = wrong.replace("prices = \"prices.csv\"\n", "");
    let e = Question::parse_in(&world, &without, "q.toml", &[])
        .err()
        .unwrap()
        .to_string();
    assert!(
        e.contains("plan.regions") && e.contains("prices.csv"),
        "{e}"
    );
}

/// A day in an hour: quiet, busy, quiet.
const DAY: &str = "slo = [\"ttft.p95 < 3 s\"]\n[plan]\nPLAN\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"g6e.xlarge\"\n[engine]\nkind = \
    \"vllm\"\nmax_num_seqs = 64\nmax_num_batched_tokens = 2048\n[[workload]]\narrival = { kind = \"steps\", steps = [{ rate = \"0.2 req/s\", duration = \"2 h\" }, { rate = \
    \"6 req/s\", duration = \"20 min\" }, { rate = \"0.2 req/s\", duration = \"2 h\" }] }\nprompt = { kind = \"lognormal\", mean = 700, std = 2500, max = 16000 }\noutput = \
    200\n[run]\nduration = \"260 min\"\n";

#[test]
fn an_autoscaled_fleet_is_held_against_the_fixed_one() {
    let q = Question::parse(&DAY.replace("PLAN", "autoscaled = true"), "q.toml", &[]).unwrap();
    let report = answered(&q, false);
    let winner = report.winner.as_ref().unwrap();
    let a = report.autoscaled.as_ref().expect("the load changes");
    assert_eq!((a.min_replicas, a.max_replicas), (1, winner.replicas));
    assert!(winner.replicas > 1, "{}", report.render());
    for t in &a.trials {
        // Fewer replicas than all, more than none; what they cost follows.
        assert!(
            t.mean_ready < f64::from(winner.replicas) && t.mean_ready >= 0.9,
            "{t:?}"
        );
        assert!(t.usd < t.fixed_usd && t.usd > 0.2 * t.fixed_usd, "{t:?}");
    }
    // A lower target keeps more replicas.
    let ready: Vec<f64> = a.trials.iter().map(|t| t.mean_ready).collect();
    assert!(ready.first() >= ready.last(), "{ready:?}");
    assert!(
        report.render().contains("autoscaled: 1 to"),
        "{}",
        report.render()
    );
}

#[test]
fn two_pools_are_held_against_one() {
    let q = Question::parse(
        &DAY.replace("PLAN", "pools_by_prompt = true"),
        "q.toml",
        &[],
    )
    .unwrap();
    let report = answered(&q, false);
    let winner = report.winner.as_ref().unwrap();
    let s = report.split.as_ref().expect("prompts differ widely");
    assert!((0.2..1.0).contains(&s.short_ratio), "{s:?}");
    assert!((s.usd_per_hour - s.short.usd_per_hour - s.long.usd_per_hour).abs() < 1e-9);
    let own = winner.usd_per_hour.unwrap();
    assert!((s.more_usd_per_hour - (s.usd_per_hour - own)).abs() < 1e-9);
    assert!(s.short.standing.holds && s.long.standing.holds);
    // Each pool holds its part in a run of its own.
    for (pool, short) in [(&s.short, true), (&s.long, false)] {
        let prompts = if short {
            0..=s.boundary_tokens
        } else {
            s.boundary_tokens + 1..=u32::MAX
        };
        let part = q.with(q.requests.only(prompts));
        let alone = answered(
            &Question {
                pools_by_prompt: false,
                ..part
            },
            true,
        );
        let own = alone.winner.unwrap().usd_per_hour.unwrap();
        assert!(own <= pool.usd_per_hour + 1e-9);
    }
    assert!(report.render().contains("two pools by prompt length"));
}

#[test]
fn a_power_cap_never_helps() {
    let report = answered(&question(6.0, CHAT, "none"), false);
    let e = report
        .detail
        .as_ref()
        .unwrap()
        .energy
        .as_ref()
        .expect("its power is known");
    assert_eq!(e.watts_most, f64::from(e.devices) * e.tdp_w);
    assert!(e.output_tokens_per_joule_least > 0.0);
    let margins: Vec<f64> = e.caps.iter().map(|c| c.standing.margin_ratio).collect();
    assert!(margins.windows(2).all(|w| w[1] <= w[0]), "{margins:?}");
    assert!(
        e.caps
            .iter()
            .all(|c| c.slowdown_ratio >= 1.0
                && c.slowdown_ratio < c.cap_ratio.cbrt().recip() + 1e-12)
    );
    assert!(report.render().contains("power cap"));
}

/// Documents on an eight-device instance (the pair scenarios/llama3.1-70b-p5.48xlarge-vllm-*): prompts that hold up decodes.
fn documents(rate: f64, tpot_ms: u32, redundancy: &str) -> Question {
    let text = format!(
        "slo = [\"ttft.p99 < 2500 ms\", \"tpot.p99 < {tpot_ms} ms\"]\n[plan]\nredundancy = \"{redundancy}\"\nmax_instances = 3\ndisaggregated = \
         true\n[model]\nname = \"llama-3.1-70b\"\nweights = \"fp8\"\n[hardware]\ninstance = [\"p5.48xlarge\"]\n[layout]\ntp = [2, 4]\n[engine]\nkind = \
         \"vllm\"\nmax_model_len = 16384\nmax_num_seqs = 256\nmax_num_batched_tokens = 8192\n[[workload]]\nname = \"documents\"\narrival = {{ kind = \
         \"poisson\", rate = \"{rate} req/s\" }}\nprompt = {{ kind = \"lognormal\", median = 3500, sigma = 0.5, max = 12000 }}\noutput = {{ kind = \
         \"lognormal\", median = 180, sigma = 0.6, max = 1500 }}\n[run]\nrequests = 600\nwarmup = \"20 s\"\n"
    );
    Question::parse_in(&crate::short_runs(), &text, "documents.toml", &[]).unwrap()
}

#[test]
fn prefill_and_decode_apart_win_where_prompts_hold_up_decodes() {
    let q = documents(4.0, 25, "none");
    let found = answer(&q, NO_DRAWS, &|_| {}).unwrap();
    let (report, w) = (&found.report, found.report.winner.as_ref().unwrap());
    let apart = w
        .apart
        .as_ref()
        .unwrap_or_else(|| panic!("{}", report.render()));
    assert!(apart.prefill_replicas >= 1 && apart.decode_replicas >= 1);
    assert!(report.render().contains("prefill and decode apart"));
    // Together no layout holds for the price.
    let together = Question {
        disaggregated: false,
        ..q.clone()
    };
    let other = answered(&together, false);
    assert!(other.winner.is_none_or(|o| o.usd_per_hour > w.usd_per_hour));
    // The scenario has the pools, and gives the figures of the plan.
    let scenario =
        sim::scenario::Scenario::parse(&found.scenario.unwrap(), "winner.toml", &[]).unwrap();
    let roles: Vec<u32> = scenario.pools.iter().map(|p| p.replicas).collect();
    assert_eq!(roles, [apart.prefill_replicas, apart.decode_replicas]);
    let record = scenario.run(&Default::default()).unwrap();
    let standing = planner::conditions::Standing::of(&record, &q.conditions, q.steady);
    assert_eq!(
        Some(standing.values_ms),
        report.detail.as_ref().map(|d| d.standing.values_ms.clone())
    );
}

#[test]
fn prefill_and_decode_together_win_where_prefill_is_what_there_is_to_do() {
    // Nothing but prompts to compute: replicas that decode would stand idle.
    let q = documents(7.0, 150, "none");
    let report = answered(&q, false);
    let w = report.winner.clone().unwrap();
    assert!(w.apart.is_none() && w.instances == 1, "{}", report.render());
    let others = report.alternatives.iter().filter(|c| c.apart.is_some());
    assert!(others.count() >= 1, "{}", report.render());
    // Twice as much, and cells with one replica that prefills are too few however many instances there may be.
    let report = answered(&documents(14.0, 150, "none"), false);
    let w = report.winner.clone().unwrap();
    assert!(w.apart.is_none(), "{}", report.render());
    let why = "(the replicas that prefill can do no more)";
    let told = report.rejected.iter().any(|r| {
        r.what.contains("1 x TP 2 to prefill : 3 x TP 2 to decode") && r.reason.contains(why)
    });
    assert!(told, "{:?}", report.rejected);
}

#[test]
fn the_race_with_prefill_and_decode_apart_names_the_winner_of_exhaustive_simulation() {
    for (rate, tpot, redundancy) in [(4.0, 25, "none"), (7.0, 150, "none"), (5.0, 25, "n+1")] {
        let q = documents(rate, tpot, redundancy);
        let of = |r: &PlanReport| r.winner.clone().map(|w| (w.label, w.instances, w.standing));
        let (raced, all) = (answered(&q, false), answered(&q, true));
        assert_eq!(of(&raced), of(&all), "{}\n{}", raced.render(), all.render());
    }
}

#[test]
fn no_cell_carries_more_than_its_bound() {
    let q = documents(4.0, 25, "none");
    let space = Space::of(&q).unwrap();
    let ready = start_all(&q, &space.candidates, &mut Vec::new());
    let cells: Vec<_> = ready.iter().filter(|r| r.decode.is_some()).collect();
    assert!(cells.len() >= 5, "{}", cells.len());
    let unlimited = Question {
        conditions: Vec::new(),
        ..q.clone()
    };
    for r in cells {
        let b = bound(r, &unlimited).requests_per_s;
        let factor = 10.0 * b / q.moments.per_s.unwrap();
        let load = q.requests.all(factor);
        let counts = r.candidate.counts(1);
        let record = r.fleet.run(&counts, load, Default::default()).unwrap();
        let served = record.counts.finished as f64 / record.end.as_secs();
        assert!(
            served <= b,
            "{}: served {served}, bound {b}",
            r.candidate.label()
        );
    }
}

#[test]
fn a_link_is_refused_without_prefill_and_decode_apart() {
    let text = documents(4.0, 25, "none").base + "\n[kv_transfer]\nbandwidth = \"1 GB/s\"\n";
    let text = format!("slo = [\"ttft.p99 < 2500 ms\"]\n{text}");
    let e = Question::parse(&text, "q.toml", &[])
        .err()
        .unwrap()
        .to_string();
    assert!(e.contains("plan.disaggregated"), "{e}");
}

#[test]
fn a_slow_link_binds_prefill_and_decode_apart() {
    let q = documents(4.0, 25, "none");
    let q = Question {
        kv_transfer: Some(toml::from_str("bandwidth = \"1 GB/s\"").unwrap()),
        ..q
    };
    let space = Space::of(&q).unwrap();
    let ready = start_all(&q, &space.candidates, &mut Vec::new());
    let by: Vec<&str> = ready.iter().map(|r| bound(r, &q).by).collect();
    assert!(
        by.contains(&"the link between prefill and decode"),
        "{by:?}"
    );
}

/// Steps of a linear congruential generator as numbers of a lopsided distribution.
fn lopsided(state: &mut u64) -> f64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let uniform = (*state >> 11) as f64 / (1u64 << 53) as f64;
    (1.0 - uniform).ln().powi(2)
}

#[test]
fn one_more_draw_lies_inside_as_often_as_is_said() {
    let mut state = 7;
    for n in [3, 8, 19, 40, 200] {
        let trials = 20_000;
        let mut inside = 0;
        for _ in 0..trials {
            let drawn: Vec<f64> = (0..n).map(|_| lopsided(&mut state)).collect();
            let (low, high) = interval(drawn).unwrap();
            inside += u32::from((low..=high).contains(&lopsided(&mut state)));
        }
        let share = f64::from(inside) / f64::from(trials);
        assert!(
            (share - coverage(n)).abs() < 0.015,
            "{n}: {share} {}",
            coverage(n)
        );
    }
    assert!((coverage(19) - 0.9).abs() < 1e-12 && coverage(200) == 0.9);
    assert_eq!(interval(Vec::new()), None);
    assert_eq!(interval(vec![2.0]), Some((2.0, 2.0)));
}

fn tp(tp: u32) -> hwmodels::Layout {
    hwmodels::Layout {
        tp,
        pp: 1,
        dp: 1,
        ep: 1,
    }
}

fn mixes(p: u32, d: u32, ranks: u32) -> Vec<(u32, u32, u32)> {
    let cells = Apart::cells(tp(p), tp(d), ranks);
    cells
        .iter()
        .map(|c| (c.prefill, c.decode, c.instances))
        .collect()
}

#[test]
fn a_cell_fills_its_instances() {
    assert_eq!(mixes(2, 2, 8), [(1, 3, 1), (2, 2, 1), (3, 1, 1)]);
    assert_eq!(mixes(4, 2, 8), [(1, 2, 1)]);
    assert_eq!(mixes(1, 4, 8), [(4, 1, 1)]);
    assert_eq!(mixes(1, 1, 2), [(1, 1, 1)]);
    // One device each: instances in small ratios.
    assert_eq!(mixes(1, 1, 1)[..3], [(1, 1, 2), (1, 2, 3), (2, 1, 3)]);
    // Two replicas that prefill fill an instance, one that decodes takes two.
    assert_eq!(mixes(4, 16, 8)[0], (2, 1, 3));
}

#[test]
fn either_kind_may_be_lost() {
    let cell = Apart::cells(tp(2), tp(2), 8)[0];
    assert_eq!(cell.losing(2, Redundancy::None), [[2, 6]]);
    assert_eq!(cell.losing(2, Redundancy::Replica), [[1, 6], [2, 5]]);
    assert_eq!(cell.losing(2, Redundancy::Instance), [[1, 3]]);
    let cell = Apart::cells(tp(1), tp(1), 1)[1];
    assert_eq!(cell.losing(1, Redundancy::Instance), [[0, 2], [1, 1]]);
}

#[test]
fn the_cheapest_of_each_accelerator_is_settled_like_the_winner() {
    let q = question(12.0, CHAT, "none");
    let report = answered(&q, false);
    assert!(report.choices().all(|c| c.whole_load && c.standing.holds));
    let mut rows = 0;
    for name in ["g5.2xlarge", "g6e.xlarge", "p4d.24xlarge"] {
        let only = format!("hardware.instance=\"{name}\"");
        let text = written(12.0, CHAT, "none");
        let alone =
            Question::parse_in(&crate::short_runs(), &text, "question.toml", &[only]).unwrap();
        let found = answered(&alone, false).winner;
        let row = report.choices().find(|c| c.instance == name);
        // There is a row where it holds at all, and alone it is not found for less.
        assert_eq!(
            row.is_some(),
            found.is_some(),
            "{name}: {}",
            report.render()
        );
        if let (Some(row), Some(found)) = (row, found) {
            rows += 1;
            let (own, least) = (row.usd_per_hour.unwrap(), found.usd_per_hour.unwrap());
            assert!(own <= least * (1.0 + 1e-9), "{name}: {own} {least}");
        }
    }
    assert!(rows >= 2);
}

#[test]
fn equal_prices_are_ranked_by_room() {
    let q = question(12.0, CHAT, "none");
    let report = answered(&q, true);
    let winner = report.winner.as_ref().unwrap();
    let equal = report
        .alternatives
        .iter()
        .filter(|c| c.usd_per_hour.unwrap() <= winner.usd_per_hour.unwrap() * (1.0 + 1e-9));
    for other in equal {
        assert!(other.room_ratio <= winner.room_ratio, "{}", report.render());
    }
    // The room is that under what may be lost.
    let spare = answered(&question(12.0, CHAT, "n+1"), false);
    let (w, d) = (spare.winner.unwrap(), spare.detail.unwrap());
    assert!(w.replicas > w.replicas_needed && d.headroom.is_none_or(|h| h >= 1.0));
}
