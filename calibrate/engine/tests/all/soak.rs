//! Memory over time under a load that includes leaving clients: run by hand.
//!
//!     cargo test --release -p engine --test all soak -- --ignored --nocapture
//!
//! `SOAK_SECONDS` sets the length (600 by default). Prints resident memory every ten seconds, and fails when the second
//! half needs more than 20 MiB beyond the most of the first: what leaks grows with every request.

use std::time::{Duration, Instant};

use crate::testkit::*;
use hwmodels::EngineKind;
use rand::RngExt;

/// Clients that send at once, each one request after the other.
const CLIENTS: u64 = 64;
/// Growth that allocators and caches may show [KiB].
const ALLOWED_KIB: u64 = 20 * 1024;

/// Resident memory of this process [KiB].
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "ten minutes; run by hand"]
async fn memory_is_flat_and_no_kv_block_is_lost() {
    let seconds = std::env::var("SOAK_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(600);
    let p = policy(
        EngineKind::VllmV1,
        "block_size = 4\nmax_num_seqs = 32",
        401,
        1,
    );
    let mut toy = Toy::new(&p, 1);
    toy.delay = Duration::from_micros(500);
    let engine = engine::engine::Engine::start(spec(p), vec![Box::new(toy)]).unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let mut draws = sim::kernel::rng::stream(client, "soak");
                let mut sent = 0u64;
                while Instant::now() < until {
                    let prompt: Vec<u32> = (0..draws.random_range(1..120))
                        .map(|_| draws.random_range(0..256u32))
                        .collect();
                    let asked = ask(&engine, request(&prompt, draws.random_range(1..60)));
                    let patience = Duration::from_millis(draws.random_range(1..200));
                    let _ = tokio::time::timeout(patience, asked).await;
                    sent += 1;
                }
                sent
            })
        })
        .collect();
    let mut seen = Vec::new();
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_secs(10.min(seconds.div_ceil(6)))).await;
        let kib = resident_kib();
        println!(
            "{:4} s: {:7.1} MiB resident",
            seconds.saturating_sub(until.saturating_duration_since(Instant::now()).as_secs()),
            kib as f64 / 1024.0
        );
        seen.push(kib);
    }
    let mut sent = 0;
    for c in clients {
        sent += c.await.unwrap();
    }
    assert_empty(&engine).await;
    let ends = engine.metrics()[0].ends();
    println!("{sent} requests: {ends:?} ended by stop, length, abort, error");
    assert_eq!(
        ends.iter().sum::<u64>(),
        sent,
        "every request is counted once"
    );
    let (first, second) = seen.split_at(seen.len() / 2);
    let (before, after) = (first.iter().max().unwrap(), second.iter().max().unwrap());
    assert!(
        after <= &(before + ALLOWED_KIB),
        "{before} KiB grew to {after} KiB"
    );
}
