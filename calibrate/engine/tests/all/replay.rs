//! The bar of the engine: its step log through the simulator, with the measured step times, is the same schedule.

use std::path::Path;
use std::time::Duration;

use crate::testkit::*;
use engine::engine::Engine;
use engine::policy::Policy;
use engine::replay::{Comparison, read, replay};
use hwmodels::EngineKind;
use rand::RngExt;

/// A random load on `replicas` replicas: shared prompts, answers sent back, priorities, clients that leave.
async fn logged(policy: Policy, depth: usize, replicas: usize, seed: u64, log: &Path) {
    let toys = (0..replicas)
        .map(|_| {
            let mut toy = Toy::new(&policy, depth);
            toy.delay = Duration::from_micros(150);
            Box::new(toy) as Box<dyn engine::executor::Executor>
        })
        .collect();
    let mut s = spec(policy);
    s.step_log = Some(log.into());
    let engine = Engine::start(s, toys).unwrap();
    let mut draws = sim::kernel::rng::stream(seed, "replay");
    let mut tasks = Vec::new();
    for _ in 0..60 {
        let group = draws.random_range(0..4u32);
        let mut prompt: Vec<u32> = (0..draws.random_range(0..70u32))
            .map(|i| (i * 11 + group) % 256)
            .collect();
        prompt.extend((0..draws.random_range(1..30)).map(|_| draws.random_range(0..256u32)));
        let mut r = request(&prompt, draws.random_range(1..40));
        r.priority = draws.random_range(-1..2);
        let leaves = draws
            .random_bool(0.2)
            .then(|| draws.random_range(0..6000u64));
        let again = draws.random_bool(0.3);
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            let asked = ask(&engine, r.clone());
            match leaves {
                Some(us) => {
                    let _ = tokio::time::timeout(Duration::from_micros(us), asked).await;
                }
                None => {
                    let a = asked.await;
                    if again && a.failure.is_none() {
                        r.prompt.extend(&a.tokens);
                        r.prompt.push(1);
                        r.max_tokens = 5;
                        ask(&engine, r).await;
                    }
                }
            }
        }));
        if draws.random_bool(0.5) {
            tokio::time::sleep(Duration::from_micros(draws.random_range(0..1500))).await;
        }
    }
    for t in tasks {
        t.await.unwrap();
    }
    assert_empty(&engine).await;
    engine.stop().unwrap();
}

fn check(name: &str, log: &Path) -> Vec<Comparison> {
    let compared = replay(&read(log).unwrap()).unwrap();
    for c in &compared {
        assert_eq!(c.difference, None, "{name}: {c:?}");
        assert!(c.steps > 20 && c.requests > 10, "{name}: {c:?}");
    }
    compared
}

#[tokio::test(flavor = "multi_thread")]
async fn every_policys_log_replays_to_the_same_schedule() {
    use EngineKind as K;
    let dir = tempfile::tempdir().unwrap();
    for (i, (kind, keys, blocks, pp)) in [
        (K::VllmV1, "block_size = 4\nmax_num_batched_tokens = 64", 41, 1),
        (K::VllmV1, "block_size = 4\nmax_num_batched_tokens = 64\nenable_prefix_caching = false", 41, 1),
        (K::VllmV1, "block_size = 4\nmax_num_batched_tokens = 64", 41, 2),
        (K::VllmV1, "block_size = 4\nmax_num_seqs = 5\nscheduling_policy = \"priority\"\nversion = \"0.22\"", 50, 2),
        (K::VllmV1, "block_size = 4\nmax_num_queued_reqs = 6\nmax_num_seqs = 4", 60, 1),
        (K::Tgi, "max_total_tokens = 200\nmax_input_tokens = 160\nmax_batch_prefill_tokens = 220", 20, 1),
        (K::Tgi, "version = \"v3\"\nmax_total_tokens = 200\nmax_batch_prefill_tokens = 100\nmax_concurrent_requests = 12", 400, 1),
        (K::TrtLlm, "batch_scheduler_policy = \"max_utilization\"\ntokens_per_block = 16\nenable_kv_cache_reuse = true\nmax_seq_len = 170", 13, 1),
        (K::TgiNeuron, "batch_size = 4\nsequence_length = 256", 4, 1),
        (K::Static, "max_batch_size = 4\nmax_queue_delay_microseconds = 2000\nmax_seq_len = 200", 60, 1),
        (K::LlamaCpp, "cache_prompt = false\nn_parallel = 4", 60, 1),
        (K::Sglang, "chunked_prefill_size = 48\nmax_running_requests = 5", 13, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let log = dir.path().join(format!("{i}.csv"));
        logged(policy(kind, keys, blocks, pp), pp as usize, 1, i as u64, &log).await;
        check(&format!("{kind:?} {keys}"), &log);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tight_cache_is_replayed_through_its_preemptions_and_hits() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("steps.csv");
    let p = policy(EngineKind::VllmV1, "block_size = 4", 41, 1);
    logged(p, 1, 1, 77, &log).await;
    check("tight", &log);
    let read = read(&log).unwrap();
    let requests = &read.replicas[0].requests;
    assert!(requests.iter().any(|r| r.preemptions > 0));
    assert!(requests.iter().any(|r| r.cached_tokens > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_replica_is_replayed_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("steps.csv");
    let p = policy(EngineKind::VllmV1, "block_size = 4", 61, 1);
    logged(p, 1, 2, 5, &log).await;
    assert_eq!(check("replicas", &log).len(), 2);
}

#[tokio::test]
async fn a_changed_log_is_told_by_its_first_different_step() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("steps.csv");
    let p = policy(EngineKind::VllmV1, "block_size = 4", 61, 1);
    logged(p, 1, 1, 9, &log).await;
    let mut read = read(&log).unwrap();
    read.replicas[0].steps[5].entries[0].tokens += 1;
    let c = &replay(&read).unwrap()[0];
    assert!(
        c.difference.as_ref().unwrap().starts_with("step 5"),
        "{c:?}"
    );
    std::fs::write(&log, "replica,start_s\n0,x\n").unwrap();
    let e = engine::replay::read(&log).err().unwrap().to_string();
    assert!(e.contains("line 2: start_s"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_of_one_prompt_are_requests_of_their_own_and_replay() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("steps.csv");
    let p = policy(
        EngineKind::VllmV1,
        "block_size = 4\nmax_num_seqs = 6",
        81,
        1,
    );
    let toy = Toy::new(&p, 1);
    let mut s = spec(p);
    s.step_log = Some(log.clone());
    let engine = Engine::start(s, vec![Box::new(toy)]).unwrap();
    for i in 0..6u32 {
        let prompt: Vec<u32> = (0..30).map(|t| (t * 7 + i) % 256).collect();
        let r = request(&prompt, 20);
        let mut open = engine.submit_all(vec![r; 4], 4).unwrap();
        for ticket in &mut open {
            while let Some(event) = ticket.next().await {
                if matches!(event, engine::request::Event::Output { ended: Some(_), .. }) {
                    break;
                }
            }
        }
    }
    assert_empty(&engine).await;
    engine.stop().unwrap();
    check("choices", &log);
    let read = read(&log).unwrap();
    let requests = &read.replicas[0].requests;
    assert_eq!(requests.len(), 24);
    for four in requests.chunks(4) {
        let ids: Vec<u64> = four.iter().map(|r| r.id).collect();
        assert_eq!(ids, [0, 1, 2, 3].map(|i| ids[0] + i));
        assert!(four.iter().all(|r| r.added == four[0].added), "one instant");
        let cached: Vec<u32> = four.iter().map(|r| r.cached_tokens).collect();
        assert_eq!(cached, [0, 28, 28, 28]);
    }
}
