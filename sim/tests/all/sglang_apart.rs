//! SGLang's servers of prompts and of decodes, and drafts: runs whose times follow by hand.

use std::sync::Arc;

use crate::pools::{burst, replica, run, split, times, transfer};
use sim::cluster::pools::{FirstToken, TransferSpec};
use sim::policy::sglang::{DisaggregationMode, Sglang, SglangParams, SpeculativeAlgorithm};
use sim::request::Outcome;
use sim::simulation::{EngineSpec, Simulation};

/// KV tokens of every server [tokens].
const KV: u64 = 5000;

fn server(params: &SglangParams, mode: DisaggregationMode) -> EngineSpec {
    let config = params.resolve_for(mode, KV, 4096, None, 1).unwrap();
    EngineSpec::Policy {
        make: Arc::new(move |shared| Box::new(Sglang::new(config.clone(), shared))),
        hash_block: None,
    }
}

fn params() -> SglangParams {
    SglangParams {
        disable_overlap_schedule: true,
        ..SglangParams::default()
    }
}

fn apart(prefill: &SglangParams, decode: &SglangParams) -> Simulation {
    let spec = TransferSpec {
        first_token: FirstToken::Relay,
        ..transfer()
    };
    split(
        server(prefill, DisaggregationMode::Prefill),
        server(decode, DisaggregationMode::Decode),
        spec,
    )
}

#[test]
fn the_first_token_reaches_the_client_when_the_request_joins_the_decode_batch() {
    let (rows, record) = run(&apart(&params(), &params()), burst(1, 100, 3));
    // Prefill 10.1 ms; 100 MB at 1 GB/s after 1 ms: until 111.1 ms, when the first token is told; two decode steps of 10.001 ms.
    assert_eq!(times(&rows), [(111_100, 131_102)]);
    assert_eq!(
        (rows[0].replica, rows[0].output_tokens, rows[0].outcome),
        (1, 3, Outcome::Finished)
    );
    assert_eq!(record.latencies.itl.count(), 2);
    assert_eq!(record.transfers.unwrap().count, 1);
}

#[test]
fn one_that_comes_while_a_step_runs_waits_for_its_end() {
    let mut load = burst(2, 100, 20);
    load.gap = sim::kernel::time::SimDuration(200_000_000);
    let (rows, _) = run(&apart(&params(), &params()), load);
    // The first decodes in steps of 10.001 ms from 111.1 ms on, the last of which ends at 301.119 ms. The second's blocks are set aside at the end of the step that its
    // prefill ends in, at 211.110 ms, so its KV is there at 312.110 ms.
    assert_eq!(times(&rows)[0], (111_100, 301_119));
    assert_eq!(times(&rows)[1].0, 312_110);
    let mut load = burst(2, 100, 20);
    load.gap = sim::kernel::time::SimDuration(150_000_000);
    let (rows, _) = run(&apart(&params(), &params()), load);
    // Its KV is there at 262.105 ms, within the step that ends at 111.1 + 16 x 10.001 = 271.116 ms.
    assert_eq!(times(&rows)[1].0, 271_116);
}

#[test]
fn a_server_of_prompts_takes_no_more_than_its_seats_until_kv_has_gone() {
    let two = SglangParams {
        max_running_requests: Some(2),
        ..params()
    };
    let (rows, record) = run(&apart(&two, &params()), burst(5, 100, 2));
    assert!(rows.iter().all(|r| r.outcome == Outcome::Finished));
    let transfers = record.transfers.unwrap().rows.unwrap();
    // Two at a time share the link: the third is prefilled only when the first has gone.
    let first_end = transfers.iter().map(|t| t.ended).min().unwrap();
    let later = transfers.iter().filter(|t| t.prefilled > first_end).count();
    assert_eq!(later, 3);
}

#[test]
fn a_full_decode_server_keeps_prompts_waiting_and_loses_none() {
    // 100 + 512 of 5000 tokens each: some eight at once.
    let (rows, record) = run(&apart(&params(), &params()), burst(30, 100, 40));
    assert!(
        rows.iter()
            .all(|r| r.outcome == Outcome::Finished && r.output_tokens == 40)
    );
    assert_eq!(record.transfers.unwrap().count, 30);
}

#[test]
fn a_retracted_request_goes_on_where_it_stood() {
    // Outputs longer than what was set aside for them: 5000 tokens do not hold eight requests of 1100.
    let (rows, _) = run(&apart(&params(), &params()), burst(8, 100, 1000));
    assert!(
        rows.iter()
            .all(|r| r.outcome == Outcome::Finished && r.output_tokens == 1000)
    );
    assert!(rows.iter().any(|r| r.preemptions > 0));
}

/// One server for everything whose drafts are accepted with these probabilities.
fn drafting(rates: &[f64], overlap: bool) -> Simulation {
    let p = SglangParams {
        speculative_algorithm: Some(SpeculativeAlgorithm::Eagle),
        speculative_num_steps: Some(2),
        speculative_accept_rates: Some(rates.to_vec()),
        enable_spec_v2: overlap,
        disable_overlap_schedule: !overlap,
        ..SglangParams::default()
    };
    let engine = server(&p, DisaggregationMode::Null);
    let mut sim = split(engine.clone(), engine, transfer());
    sim.serving = sim::cluster::pools::Serving::default();
    sim.replicas = vec![replica(server(&p, DisaggregationMode::Null))];
    sim
}

#[test]
fn tokens_of_accepted_drafts_come_together() {
    // Prefill 10.1 ms, then steps of 10.003 ms.
    let steps = |rates: &[f64]| {
        let (rows, record) = run(&drafting(rates, false), burst(1, 100, 10));
        assert_eq!(record.latencies.itl.count(), 9);
        (times(&rows)[0].1 - 10_100) / 10_003
    };
    assert_eq!(steps(&[1.0]), 3);
    assert_eq!(steps(&[0.0]), 9);
    assert_eq!(steps(&[1.0, 0.0]), 5);
}

#[test]
fn acceptance_is_drawn_at_its_rate_whatever_else_runs() {
    for overlap in [false, true] {
        let (rows, record) = run(&drafting(&[0.8, 0.5], overlap), burst(1, 10, 3000));
        let steps = (times(&rows)[0].1 - 10_010) as f64 / 10_003.0;
        // 1 + 0.8 + 0.8 x 0.5 tokens a step.
        let each = 2999.0 / steps;
        assert!((each - 2.2).abs() < 0.06, "{overlap}: {each}");
        // Twice the same bytes.
        let (_, again) = run(&drafting(&[0.8, 0.5], overlap), burst(1, 10, 3000));
        assert_eq!(record.fingerprint, again.fingerprint);
    }
    // What another request does to the steps changes nothing of which drafts are accepted.
    let alone = run(&drafting(&[0.5], false), burst(1, 10, 200)).1;
    let beside = run(&drafting(&[0.5], false), burst(2, 10, 200)).0;
    let steps = |end: u64| (end - 10_020) / 10_006;
    assert!(alone.counts.finished == 1 && steps(times(&beside)[0].1) > 60);
}
