//! Replicas that come and go: requests are held while there is none, a replica that drains answers what it holds, one that is killed
//! fails it, and no request is lost or counted twice.

use std::sync::Arc;
use std::time::Duration;

use crate::testkit::*;
use engine::engine::{Engine, EngineSpec};
use engine::executor::Executor;
use engine::fleet::Fleet;
use engine::policy::Policy;
use hwmodels::EngineKind;
use sim::kernel::time::SimTime;
use sim::kube::Cluster;
use sim::scenario::Scenario;

const TOKENS: u32 = 20;

fn vllm() -> Policy {
    policy(EngineKind::VllmV1, "block_size = 4", 400, 1)
}

/// A toy whose steps take a while.
fn toy(policy: &Policy) -> Box<dyn Executor> {
    let mut toy = Toy::new(policy, 1);
    toy.delay = Duration::from_millis(2);
    Box::new(toy)
}

fn elastic() -> Arc<Engine> {
    let spec = EngineSpec {
        elastic: true,
        ..spec(vllm())
    };
    Engine::start(spec, Vec::new()).unwrap()
}

/// `n` requests under way, each of its own prompt.
fn send(engine: &Arc<Engine>, n: u32) -> Vec<tokio::task::JoinHandle<(Vec<u32>, Answer)>> {
    (0..n)
        .map(|i| {
            let engine = engine.clone();
            let prompt: Vec<u32> = (0..8).map(|t| (t * 11 + i) % 256).collect();
            tokio::spawn(async move {
                let answer = ask(&engine, request(&prompt, TOKENS)).await;
                (prompt, answer)
            })
        })
        .collect()
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..2000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not come to be within ten seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_held_until_a_replica_joins_and_let_go_when_their_client_leaves() {
    let engine = elastic();
    let tasks = send(&engine, 5);
    until(|| engine.held() == 5).await;
    let leaver = engine.submit(request(&[1, 2, 3], TOKENS)).unwrap();
    assert_eq!(leaver.replica(), None);
    assert_eq!(engine.held(), 6);
    drop(leaver);
    assert_eq!(engine.held(), 5);
    assert_eq!(engine.join(toy(&vllm())).unwrap(), 0);
    assert_eq!(engine.held(), 0);
    for task in tasks {
        let (prompt, answer) = task.await.unwrap();
        assert_eq!(answer.tokens, expected(&prompt, TOKENS as usize));
    }
    assert_empty(&engine).await;
    assert_eq!(engine.taken_in(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_drains_answers_what_it_holds_and_one_that_is_killed_fails_it() {
    let engine = elastic();
    for _ in 0..2 {
        engine.join(toy(&vllm())).unwrap();
    }
    // Round robin: two each.
    let before = send(&engine, 4);
    until(|| engine.loads().iter().all(|l| l.running + l.waiting == 2)).await;
    engine.drain(0);
    assert_eq!(engine.gone(0), None, "it still answers");
    let after = send(&engine, 3);
    until(|| engine.loads()[1].running + engine.loads()[1].waiting >= 3).await;
    for task in before.into_iter().chain(after) {
        let (prompt, answer) = task.await.unwrap();
        assert_eq!(answer.tokens, expected(&prompt, TOKENS as usize));
    }
    until(|| engine.gone(0).is_some()).await;
    assert!(engine.is_healthy());
    assert!(!engine.metrics_text().contains("engine=\"0\""));

    let mut lost: Vec<_> = (0..3)
        .map(|i| engine.submit(request(&[i, 7, 9], 300)).unwrap())
        .collect();
    until(|| engine.loads()[1].running == 3).await;
    engine.kill(1);
    for ticket in &mut lost {
        // Tokens that it had, then nothing more.
        while ticket.next().await.is_some() {}
    }
    drop(lost);
    // Nobody is left: what comes now waits.
    let held = send(&engine, 1);
    until(|| engine.held() == 1).await;
    engine.join(toy(&vllm())).unwrap();
    for task in held {
        assert_eq!(task.await.unwrap().1.failure, None);
    }
    assert_empty(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_simulators_cluster_starts_and_ends_replicas_on_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.toml");
    let text = r#"
        [model]
        name = "llama-3.1-8b"
        [hardware]
        instance = "p5.4xlarge"
        [engine]
        kind = "vllm_v1"
        [[workload]]
        arrival = { kind = "poisson", rate = "1 req/s" }
        prompt = 8
        output = 8
        [run]
        requests = 1
        [cluster]
        replicas = 0
        start = "cold"
        [[cluster.node_group]]
        min = 2
        max = 2
        boot = "0 s"
        device_plugin = "0 s"
        has_image = true
        [cluster.pod]
        image_cached = "100 ms"
        weights_load = "100 ms"
        engine_init = "0 s"
        periodSeconds = 1
        [[change]]
        at = "100 ms"
        replicas = 2
        [[change]]
        at = "3 s"
        replicas = 1
    "#;
    std::fs::write(&file, text).unwrap();
    let scenario = Scenario::load(&file, &[]).unwrap();
    let built = scenario.build().unwrap();
    let cluster = Cluster::new(built.cluster.unwrap(), 1).unwrap();
    let steps = built.simulation.replicas[0].step.clone();

    let engine = elastic();
    let held = send(&engine, 4);
    let make = vllm();
    let fleet = Fleet::start(
        engine.clone(),
        cluster,
        steps,
        Box::new(move || Ok(toy(&make))),
    )
    .unwrap();
    for task in held {
        let (prompt, answer) = task.await.unwrap();
        assert_eq!(answer.tokens, expected(&prompt, TOKENS as usize));
    }
    until(|| engine.loads().len() == 2).await;
    until(|| engine.gone(0).is_some() || engine.gone(1).is_some()).await;
    let late = send(&engine, 2);
    for task in late {
        assert_eq!(task.await.unwrap().1.failure, None);
    }
    let record = fleet.stop().unwrap().expect("its record");
    assert!(fleet.stop().unwrap().is_none(), "it has ended");
    let served: Vec<_> = record.replicas.iter().flat_map(|r| &r.served).collect();
    assert_eq!(served.len(), 2);
    for (_, from, _) in &served {
        // Scheduled at once, image and weights 100 ms each.
        assert!(*from >= SimTime(300_000_000), "{from:?}");
    }
    assert_eq!(served.iter().filter(|s| s.2 <= record.end).count(), 2);
    assert_empty(&engine).await;
}
