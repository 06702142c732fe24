//! The judge of the steady state: the same answer whatever the length of the run that was asked for, and a bounded one for any question.

use std::path::{Path, PathBuf};

use planner::World;
use planner::capacity::{own_conditions, table};
use planner::conditions::Condition;
use planner::plan::{Options, Question, answer};
use planner::requests::steady_rate;
use sim::scenario::Scenario;

const NO_DRAWS: Options = Options {
    exhaustive: false,
    draws: 0,
};

fn files(folder: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(folder);
    let entries = std::fs::read_dir(dir).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    all.retain(|f| f.extension().is_some_and(|e| e == "toml"));
    all.sort();
    all
}

/// Replicas at once and four times the load of a shipped scenario whose load goes on; none of others.
fn replicas(file: &Path, requests: u64) -> Option<Vec<Option<u32>>> {
    let set = [format!("run.requests={requests}")];
    let scenario = Scenario::load(file, &set).ok()?;
    steady_rate(&scenario)?;
    if scenario.cluster.is_some() || !scenario.pools.is_empty() {
        return None;
    }
    let conditions = own_conditions(&scenario)
        .unwrap_or_else(|_| vec![Condition::parse("ttft.p99 < 2 s").unwrap()]);
    let world = World::default();
    let found = table(&world, &scenario, &conditions, &[1.0, 4.0], &|_, _| {}).ok()?;
    Some(found.rows.iter().map(|r| r.replicas).collect())
}

fn same_of_scenarios(files: &[PathBuf]) -> usize {
    let mut looked_at = 0;
    for file in files {
        let Some(short) = replicas(file, 400) else {
            continue;
        };
        looked_at += 1;
        assert_eq!(Some(short), replicas(file, 4_000), "{}", file.display());
    }
    looked_at
}

#[test]
fn ten_times_the_requests_take_as_many_replicas() {
    let mut some = files("scenarios");
    some.retain(|f| {
        let name = f.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("qwen3-14b") || name.starts_with("llama3.1-8b-inf2.48xlarge-0.85")
    });
    assert!(same_of_scenarios(&some) >= 1);
}

fn winner(file: &Path, requests: u64) -> Option<(String, u32, u32)> {
    let set = [format!("run.requests={requests}")];
    let question = Question::load(file, &set).ok()?;
    if !question.steady {
        return None;
    }
    let found = answer(&question, NO_DRAWS, &|_| {}).unwrap().report;
    let w = found.winner?;
    Some((w.instance, w.instances, w.replicas))
}

/// All shipped files (docs/planning.md has the command).
#[test]
#[ignore = "minutes with optimisations"]
fn ten_times_the_requests_give_the_same_answers_to_all_that_is_shipped() {
    assert!(same_of_scenarios(&files("scenarios")) >= 8);
    for file in files("plans") {
        if let Some(short) = winner(&file, 3_000) {
            assert_eq!(Some(short), winner(&file, 30_000), "{}", file.display());
        }
    }
}

const SMALL: &str = "slo = [\"ttft.p95 < 1 s\", \"tpot.p95 < 60 ms\"]\n[plan]\nredundancy = \"none\"\nmax_instances = 8\n[model]\nname = \
    \"llama-3.1-8b\"\n[hardware]\ninstance = [\"g5.2xlarge\", \"g6e.xlarge\"]\n[layout]\ntp = [1]\n[engine]\nkind = \"vllm\"\nmax_num_seqs = [16, \
    64]\nmax_num_batched_tokens = 2048\n[[workload]]\narrival = { kind = \"poisson\", rate = \"2 req/s\" }\nprompt = 300\noutput = 20\n[run]\nrequests = \
    200\nwarmup = \"5 s\"\n";
/// What is changed of it, each at the number that it holds ...
const PLACES: [&str; 13] = [
    "p95 < 1 s",
    "p95 < 60 ms",
    "instances = 8",
    "tp = [1]",
    "seqs = [16",
    "64]",
    "tokens = 2048",
    "= \"2 req",
    "prompt = 300",
    "output = 20",
    "requests = 200",
    "= \"5 s",
    "ttft.p95",
];
/// ... to one of these.
const NUMBERS: [&str; 18] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "10",
    "50",
    "100",
    "500",
    "4096",
    "100000",
    "4294967296",
    "1e-9",
    "1e9",
    "1e300",
    "nan",
    "0.5",
];

/// A number that looks random (a linear congruential generator's upper bits) below `n`.
fn below(state: &mut u64, n: usize) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % n.max(1)
}

/// `text` with one number changed, or a character lost.
fn mutated(text: &str, state: &mut u64) -> String {
    let place = PLACES[below(state, PLACES.len())];
    let number = NUMBERS[below(state, NUMBERS.len())];
    if below(state, 12) == 0 {
        let at = below(state, text.len());
        return format!("{}{}", &text[..at], &text[at + 1..]);
    }
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let last = place.rfind(|c: char| c.is_ascii_digit()).unwrap() + 1;
    let first = place[..last].rfind(|c| !is_number(c)).map_or(0, |i| i + 1);
    let changed = format!("{}{number}{}", &place[..first], &place[last..]);
    text.replacen(place, &changed, 1)
}

/// Questions that are near `SMALL`: each is answered or refused, by no more runs than such a search may make.
fn all_end(questions: u64) {
    let (mut answers, mut refusals) = (0, 0);
    for seed in 0..questions {
        let mut state = seed;
        let mut text = SMALL.to_owned();
        for _ in 0..=seed % 3 {
            text = mutated(&text, &mut state);
        }
        let mut world = World::of(Default::default());
        world.most_requests = 4_000;
        let question = Question::parse_in(&world, &text, "q.toml", &[]);
        match question.and_then(|q| answer(&q, NO_DRAWS, &|_| {})) {
            Ok(found) => {
                answers += 1;
                // Four candidates, of each at most a scouting, a race and a few judgements.
                let s = found.report.search;
                assert!(s.requests < 2_000_000, "{text}\n{s:?}");
            }
            Err(e) => {
                refusals += 1;
                assert!(e.is_input(), "{text}\n{e}");
            }
        }
    }
    assert!(
        answers > questions / 6 && refusals > questions / 10,
        "{answers} {refusals}"
    );
}

#[test]
fn mutated_questions_are_answered_or_refused() {
    all_end(60);
}

/// The same for a thousand (docs/planning.md has the command).
#[test]
#[ignore = "minutes with optimisations"]
fn a_thousand_mutated_questions_are_answered_or_refused() {
    all_end(1_000);
}
