//! The engine's loop with a toy forward pass: under every policy the tokens are those of the sequence alone, whatever is
//! batched, cached, preempted or cancelled beside it.

use std::time::Duration;

use crate::testkit::*;
use engine::engine::Engine;
use engine::policy::Policy;
use engine::request::{Failure, Finish};
use hwmodels::EngineKind;
use rand::RngExt;
use sim::request::RejectReason;

/// 40 requests at random instants over 30 shared and unshared prompts, some of whose clients leave.
async fn random_load(policy: Policy, depth: usize, seed: u64) {
    let engine = engine(policy, depth);
    let mut draws = sim::kernel::rng::stream(seed, "load");
    let mut tasks = Vec::new();
    for _ in 0..40 {
        let shared = draws.random_range(0..3u32);
        let mut prompt: Vec<u32> = (0..draws.random_range(0..60u32))
            .map(|i| (i * 7 + shared) % 256)
            .collect();
        prompt.extend((0..draws.random_range(1..40)).map(|_| draws.random_range(0..256u32)));
        let max = draws.random_range(1..30u32);
        let leaves = draws
            .random_bool(0.15)
            .then(|| draws.random_range(0..3000u64));
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            let asked = ask(&engine, request(&prompt, max));
            match leaves {
                Some(us) => {
                    let _ = tokio::time::timeout(Duration::from_micros(us), asked).await;
                }
                None => {
                    let a = asked.await;
                    assert_eq!(a.failure, None);
                    assert_eq!(a.tokens, expected(&prompt, max as usize));
                    assert_eq!(a.finish, Some(Finish::Length));
                }
            }
        }));
        if draws.random_bool(0.3) {
            tokio::time::sleep(Duration::from_micros(draws.random_range(0..2000))).await;
        }
    }
    for t in tasks {
        t.await.unwrap();
    }
    assert_empty(&engine).await;
    let ends: u64 = engine.metrics()[0].ends().iter().sum();
    assert_eq!(ends, 40, "every request is counted once");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_policy_gives_each_sequence_its_own_tokens() {
    use EngineKind as K;
    for (kind, keys, blocks, pp) in [
        // 40 blocks of 4 tokens: a few sequences at once, so that some lose their KV.
        (
            K::VllmV1,
            "block_size = 4\nmax_num_batched_tokens = 48",
            41,
            1,
        ),
        (
            K::VllmV1,
            "block_size = 4\nmax_num_batched_tokens = 48\nenable_prefix_caching = false",
            41,
            1,
        ),
        (K::VllmV1, "block_size = 4\nmax_num_seqs = 6", 41, 2),
        (
            K::VllmV1,
            "block_size = 8\nscheduling_policy = \"priority\"",
            31,
            3,
        ),
        (
            K::Tgi,
            "max_total_tokens = 200\nmax_input_tokens = 160\nmax_batch_prefill_tokens = 220",
            20,
            1,
        ),
        (
            K::Tgi,
            "version = \"v3\"\nmax_total_tokens = 200\nmax_batch_prefill_tokens = 100",
            400,
            1,
        ),
        (
            K::Tgi,
            "paged = false\nmax_total_tokens = 200\nmax_input_tokens = 160\nmax_batch_total_tokens = 600\nmax_batch_prefill_tokens = 400",
            640,
            1,
        ),
        (
            K::TrtLlm,
            "batch_scheduler_policy = \"max_utilization\"\ntokens_per_block = 16\nenable_kv_cache_reuse = true\nmax_seq_len = 150",
            12,
            1,
        ),
        (
            K::TrtLlm,
            "enable_chunked_context = true\nmax_num_tokens = 64\nmax_seq_len = 150",
            20,
            2,
        ),
        (K::TgiNeuron, "batch_size = 4\nsequence_length = 256", 4, 1),
        (
            K::TgiNeuron,
            "batch_size = 4\nsequence_length = 256\nserver = \"optimum_vllm\"",
            4,
            1,
        ),
        (
            K::Static,
            "max_batch_size = 4\nmax_queue_delay_microseconds = 300\nmax_seq_len = 200",
            60,
            1,
        ),
        (K::LlamaCpp, "cache_prompt = false\nn_parallel = 4", 60, 1),
        (
            K::Sglang,
            "chunked_prefill_size = 48\nmax_running_requests = 5",
            12,
            1,
        ),
        (
            K::Sglang,
            "chunked_prefill_size = 48\nenable_mixed_chunk = true\npage_size = 16",
            14,
            1,
        ),
    ] {
        let p = policy(kind, keys, blocks, pp);
        for seed in 0..3 {
            random_load(p.clone(), pp as usize, seed).await;
        }
    }
}

#[tokio::test]
async fn a_prompt_seen_before_is_taken_from_the_cache_and_so_is_an_answer_sent_back() {
    let engine = engine(policy(EngineKind::VllmV1, "block_size = 16", 100, 1), 1);
    let prompt: Vec<u32> = (0..64).collect();
    let first = ask(&engine, request(&prompt, 40)).await;
    assert_eq!(first.cached, 0);
    let again = ask(&engine, request(&prompt, 40)).await;
    assert_eq!(again.cached, 48, "the last token is always computed");
    assert_eq!(again.tokens, first.tokens);
    let mut turn = prompt.clone();
    turn.extend(&first.tokens);
    turn.push(1);
    let follow_up = ask(&engine, request(&turn, 5)).await;
    // 64 + 39 tokens have KV (the last was never computed): 6 blocks.
    assert_eq!(follow_up.cached, 96);
    assert_eq!(follow_up.tokens, expected(&turn, 5));
}

#[tokio::test]
async fn stop_strings_stop_tokens_and_min_tokens_end_an_output_where_they_say() {
    let engine = engine(policy(EngineKind::VllmV1, "", 100, 1), 1);
    let prompt = [5, 6, 7];
    let all = expected(&prompt, 40);
    let whole = text().decode(&all, true);
    // A stop string from the middle of what will be said.
    let stop: String = whole.chars().skip(10).take(3).collect();
    let at = whole.find(&stop).unwrap();
    let mut r = request(&prompt, 40);
    r.stop = vec![stop.clone()];
    let a = ask(&engine, r.clone()).await;
    assert_eq!(
        (a.text.as_str(), a.finish),
        (&whole[..at], Some(Finish::Stop))
    );
    r.include_stop_str_in_output = true;
    assert_eq!(ask(&engine, r.clone()).await.text, whole[..at + stop.len()]);
    r.min_tokens = 40;
    assert_eq!(ask(&engine, r).await.tokens, all);
    let mut r = request(&prompt, 40);
    r.stop_token_ids = vec![all[7]];
    let first = all.iter().position(|t| *t == all[7]).unwrap();
    let a = ask(&engine, r.clone()).await;
    assert_eq!(a.tokens, all[..=first]);
    assert_eq!(a.text, text().decode(&all[..first], true));
    // Banned until then, so another token is taken: the output is as long as asked for at least.
    r.min_tokens = 20;
    assert!(ask(&engine, r).await.tokens.len() >= 20);
}

#[tokio::test]
async fn a_failed_step_fails_its_requests_and_leaves_nothing_wrong_in_the_cache() {
    for depth in [1, 2] {
        let p = policy(EngineKind::VllmV1, "block_size = 4", 200, depth);
        let mut toy = Toy::new(&p, depth as usize);
        toy.fail_every = 7;
        let engine = Engine::start(spec(p), vec![Box::new(toy)]).unwrap();
        let prompt: Vec<u32> = (0..50).collect();
        let (mut served, mut failed) = (0, 0);
        for n in 0..60 {
            let a = ask(&engine, request(&prompt, 1 + n % 5)).await;
            match a.failure {
                None => {
                    served += 1;
                    assert_eq!(a.tokens, expected(&prompt, 1 + n as usize % 5));
                }
                Some(Failure::Executor(m)) => {
                    failed += 1;
                    assert!(m.contains("asked to fail"), "{m}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(
            served > 20 && failed > 5,
            "{served} served, {failed} failed"
        );
        assert_empty(&engine).await;
    }
}

#[tokio::test]
async fn what_the_policy_refuses_is_told_and_what_exceeds_the_queue_is_not_taken_in() {
    let p = policy(
        EngineKind::VllmV1,
        "max_num_seqs = 1\nmax_model_len = 100",
        20,
        1,
    );
    let mut toy = Toy::new(&p, 1);
    toy.delay = Duration::from_millis(20);
    let mut s = spec(p);
    s.queue_limit = 2;
    let engine = Engine::start(s, vec![Box::new(toy)]).unwrap();
    let a = ask(&engine, request(&[1; 90], 20)).await;
    assert_eq!(a.failure, Some(Failure::Rejected(RejectReason::TooLong)));
    let mut running = engine.submit(request(&[1], 50)).unwrap();
    running.next().await.unwrap();
    let held: Vec<_> = (0..2)
        .map(|_| engine.submit(request(&[1], 50)).unwrap())
        .collect();
    assert!(engine.submit(request(&[1], 50)).is_err());
    drop(held);
    // They leave the queue at the engine's next tick; the one that runs stays.
    while engine.uncounted() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(ask(&engine, request(&[2], 1)).await.tokens.len(), 1);
    drop(running);
    assert_empty(&engine).await;
}

#[tokio::test]
async fn priorities_overtake_under_the_priority_policy() {
    let p = policy(
        EngineKind::VllmV1,
        "max_num_seqs = 1\nscheduling_policy = \"priority\"",
        50,
        1,
    );
    let mut toy = Toy::new(&p, 1);
    toy.delay = Duration::from_millis(3);
    let engine = Engine::start(spec(p), vec![Box::new(toy)]).unwrap();
    let mut first = engine.submit(request(&[1], 20)).unwrap();
    first.next().await.unwrap();
    let ends: Vec<_> = [5, -1]
        .into_iter()
        .map(|priority| {
            let mut r = request(&[2], 3);
            r.priority = priority;
            let engine = engine.clone();
            tokio::spawn(async move {
                ask(&engine, r).await;
                std::time::Instant::now()
            })
        })
        .collect();
    let mut at = Vec::new();
    for e in ends {
        at.push(e.await.unwrap());
    }
    assert!(at[1] < at[0], "the more urgent one ends first");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_load_as_the_router_says() {
    let p = policy(EngineKind::VllmV1, "", 100, 1);
    let toys: Vec<Box<dyn engine::executor::Executor>> = (0..3)
        .map(|_| Box::new(Toy::new(&p, 1)) as Box<_>)
        .collect();
    let engine = Engine::start(spec(p), toys).unwrap();
    for _ in 0..9 {
        ask(&engine, request(&[1, 2], 4)).await;
    }
    // An answer may reach its client before its replica counts it.
    assert_empty(&engine).await;
    for m in engine.metrics() {
        assert_eq!(m.ends(), [0, 3, 0, 0]);
    }
}
