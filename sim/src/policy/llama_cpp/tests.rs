use super::super::testkit::{Checks, Req, Run, req, run, workload};
use super::*;
use proptest::prelude::*;

fn config(n_parallel: u32, n_batch: u32, n_ctx: u32) -> LlamaCppConfig {
    LlamaCppParams {
        n_parallel,
        n_batch,
        n_ctx: Some(n_ctx),
        ..LlamaCppParams::default()
    }
    .resolve(1 << 20, 1 << 20, 1.0)
    .unwrap()
}

fn go(config: LlamaCppConfig, reqs: &[Req]) -> Run {
    let checks = Checks {
        block: Some(1),
        ..Checks::default()
    };
    run(&mut LlamaCpp::new(config), reqs, checks)
}

#[test]
fn no_more_requests_run_than_there_are_slots_4_2() {
    let reqs: Vec<Req> = (0..5).map(|_| req(0, 10, 5)).collect();
    let r = go(config(2, 64, 1000), &reqs);
    assert!(r.rows.iter().all(|row| row.load.running <= 2));
    assert_eq!(r.rows[0].plan.blocked, Blocked::MaxSeqs);
    // The third starts in the step after the first two have ended.
    assert_eq!(r.fates[2].first_step, Some(5));
}

#[test]
fn a_step_takes_every_decode_and_then_prompt_tokens_up_to_n_batch_4_3() {
    let r = go(config(3, 16, 1000), &[req(0, 4, 9), req(1, 30, 3)]);
    assert_eq!(r.rows[0].prefills(), [(0, 4)]);
    assert_eq!(
        (r.rows[1].decodes(), r.rows[1].prefills()),
        (vec![0], vec![(1, 15)])
    );
    assert_eq!(r.rows[2].prefills(), [(1, 15)]);
    assert_eq!(r.rows[3].decodes().len(), 2);
}

/// Passes of a step as (sequences, tokens, sampled rows).
fn passes(entries: &[(u32, u32, bool)], kv_unified: bool, n_ubatch: u32) -> Vec<(u32, u32, u32)> {
    let mut left: Vec<Left> = entries
        .iter()
        .map(|&(slot, tokens, samples)| Left {
            slot,
            tokens,
            context: 7,
            samples,
        })
        .collect();
    let mut out = Vec::new();
    while left.iter().any(|l| l.tokens > 0) {
        let p = if kv_unified {
            shared_pass(&mut left, n_ubatch)
        } else {
            equal_pass(&mut left, n_ubatch)
        };
        out.push((p.decode_seqs + p.prefill_seqs, p.tokens(), p.sampled_seqs));
    }
    out
}

#[test]
fn with_shared_cells_a_step_is_cut_every_n_ubatch_tokens_4_5() {
    let step = [(0, 1, true), (2, 1, true), (1, 20, true)];
    assert_eq!(passes(&step, true, 512), [(3, 22, 3)]);
    assert_eq!(passes(&step, true, 10), [(3, 10, 2), (1, 10, 0), (1, 2, 1)]);
}

#[test]
fn with_cells_of_their_own_neighbours_are_computed_together_as_far_as_they_are_equally_long_4_5() {
    let decodes =
        |slots: &[u32]| -> Vec<(u32, u32, bool)> { slots.iter().map(|&s| (s, 1, true)).collect() };
    assert_eq!(passes(&decodes(&[0, 1, 2]), false, 512), [(3, 3, 3)]);
    assert_eq!(
        passes(&decodes(&[0, 2, 3]), false, 512),
        [(1, 1, 1), (2, 2, 2)]
    );
    assert_eq!(passes(&decodes(&[0, 2, 4]), false, 512), [(1, 1, 1); 3]);
    // Slots 0 and 2 decode, slot 1 has a prompt: its first token goes along with slot 0.
    let step = [(0, 1, true), (2, 1, true), (1, 20, true)];
    assert_eq!(
        passes(&step, false, 512),
        [(2, 2, 1), (1, 1, 1), (1, 19, 1)]
    );
    // Prompts of 5 and 8 tokens, three rows of each at most.
    let prompts = [(0, 5, true), (1, 8, true)];
    assert_eq!(
        passes(&prompts, false, 6),
        [(2, 6, 0), (2, 4, 1), (1, 3, 1)]
    );
}

#[test]
fn without_continuous_batching_prompts_wait_for_the_running_slots_4_3() {
    let c = LlamaCppConfig {
        cont_batching: false,
        ..config(3, 16, 1000)
    };
    let r = go(c, &[req(0, 4, 4), req(1, 8, 3)]);
    assert_eq!(r.fates[1].first_step, Some(4));
}

#[test]
fn unused_slots_are_taken_from_the_last_and_prompts_served_from_the_first_4_2() {
    // Both arrive together; the second request sits in slot 1 of 0..=2, before the first in slot 2.
    let r = go(config(3, 10, 1000), &[req(0, 8, 2), req(0, 8, 2)]);
    assert_eq!(r.rows[0].prefills(), [(1, 8), (0, 2)]);
}

#[test]
fn slots_used_before_are_taken_in_an_order_that_only_the_seed_decides_4_2() {
    let first = |seed: u64| -> Vec<u64> {
        let c = LlamaCppConfig {
            slots: Slots::Used(seed),
            ..config(8, 64, 1000)
        };
        let left = |s: &Slot| s.left;
        LlamaCpp::new(c).slots.iter().map(left).collect()
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
    let mut all = first(1);
    all.sort_unstable();
    assert_eq!(all, (1..=8).collect::<Vec<u64>>(), "each was left once");
}

#[test]
fn in_slots_anywhere_a_step_has_as_many_passes_on_average_as_drawn_slots_have_runs_4_5() {
    let c = LlamaCppConfig {
        slots: Slots::Anywhere(3),
        kv_unified: false,
        ..config(8, 64, 10_000)
    };
    let r = go(c, &[req(0, 4, 2000), req(0, 4, 2000), req(0, 4, 2000)]);
    let passes = |row: &super::super::testkit::Row| row.plan.passes.len().max(1) as f64;
    let mean = r.rows.iter().map(passes).sum::<f64>() / r.rows.len() as f64;
    assert!((mean - 3.0 * 6.0 / 8.0).abs() < 0.01, "{mean}");
}

#[test]
fn a_prompt_that_begins_like_a_free_slot_is_computed_from_where_it_differs_4_2() {
    let with = |at, prompt: u32, output, hashes: Vec<u64>| Req {
        hashes,
        ..req(at, prompt, output)
    };
    let first: Vec<u64> = (0..25).collect();
    let mut second: Vec<u64> = (0..15).collect();
    second.extend(900..920);
    let far = 100 * super::super::testkit::STEP;
    let reqs = [
        with(0, 20, 5, first.clone()),
        with(far, 30, 5, second),
        with(2 * far, 20, 5, first),
    ];
    let r = go(config(4, 64, 1000), &reqs);
    assert_eq!(r.fates[1].prefilled, 15, "15 of 30 tokens were there");
    // The slot has gone on to other content: only what is common with that is left.
    assert_eq!(r.fates[2].prefilled, 5);
    let c = LlamaCppConfig {
        cache_prompt: false,
        ..config(4, 64, 1000)
    };
    assert_eq!(go(c, &reqs).fates[1].prefilled, 30);
}

#[test]
fn running_out_of_shared_cells_fails_everything_that_runs_4_4() {
    let r = go(
        config(2, 64, 50),
        &[req(0, 20, 20), req(0, 20, 20), req(1, 5, 5)],
    );
    assert!(r.fates[0].failed && r.fates[1].failed);
    assert!(r.fates[2].finished.is_some());
}

#[test]
fn a_request_beyond_its_slot_is_refused_4_1() {
    let c = LlamaCppParams {
        n_parallel: 4,
        kv_unified: false,
        n_ctx: Some(400),
        ..LlamaCppParams::default()
    };
    let c = c.resolve(400, 4096, 1.0).unwrap();
    assert_eq!(c.n_ctx_slot, 100);
    let r = go(c, &[req(0, 90, 11), req(0, 90, 10)]);
    assert_eq!(r.fates[0].rejected, Some(RejectReason::TooLong));
    assert!(r.fates[1].finished.is_some());
}

#[test]
fn start_up_refuses_what_cannot_run_4_1() {
    let refused = |p: LlamaCppParams| p.resolve(1000, 4096, 1.0).unwrap_err().param;
    let base = LlamaCppParams::default;
    assert_eq!(
        refused(LlamaCppParams {
            n_parallel: 0,
            ..base()
        }),
        "n_parallel"
    );
    assert_eq!(
        refused(LlamaCppParams {
            n_batch: 3,
            ..base()
        }),
        "n_batch"
    );
    assert_eq!(
        refused(LlamaCppParams {
            n_ctx: Some(2000),
            ..base()
        }),
        "n_ctx"
    );
    let p = LlamaCppParams {
        slot_prompt_similarity: 1.5,
        ..base()
    };
    assert_eq!(refused(p), "slot_prompt_similarity");
}

proptest! {
    #[test]
    fn every_request_ends_and_every_cell_comes_back(
        reqs in workload(30, 60, 20, 40),
        slots in 1u32..6,
        n_batch in 8u32..64,
        n_ctx in 80u32..400,
        n_ubatch in 1u32..32,
        kv_unified: bool,
    ) {
        let c = LlamaCppConfig {
            n_ubatch,
            kv_unified,
            ..config(slots, n_batch, n_ctx)
        };
        go(c, &reqs);
    }
}

/// A prompt of 20 tokens with an answer of 5, twice, with as many others between as take its slot; what is computed of it
/// the second time [tokens].
fn computed_again(c: LlamaCppConfig, others: u64) -> u64 {
    let far = 100 * super::super::testkit::STEP;
    let of = |family: u64| -> Vec<u64> { (0..25).map(|i| (family << 32) | i).collect() };
    let mut reqs: Vec<Req> = (0..=others)
        .map(|n| Req {
            hashes: of(n),
            ..req(n * far, 20, 5)
        })
        .collect();
    reqs.push(Req {
        hashes: of(0),
        ..req((others + 1) * far, 20, 5)
    });
    go(c, &reqs).fates.last().unwrap().prefilled
}

#[test]
fn a_prompt_that_lost_its_slot_comes_back_from_host_memory_4_6() {
    let split = LlamaCppConfig {
        kv_unified: false,
        ..config(2, 64, 1000)
    };
    let without = |c: &LlamaCppConfig| LlamaCppConfig {
        cache_ram: None,
        ..c.clone()
    };
    // One other takes the other slot, the second takes the prompt's.
    assert_eq!(computed_again(without(&split), 1), 1);
    assert_eq!(computed_again(without(&split), 2), 20);
    assert_eq!(computed_again(split.clone(), 2), 1);
    let small = LlamaCppConfig {
        cache_ram: Some(CacheRam {
            bytes: Some(100),
            bytes_per_token: 10.0,
            tokens: 10,
        }),
        ..split
    };
    assert_eq!(computed_again(small, 2), 20, "24 tokens do not fit");
}

#[test]
fn free_slots_that_share_the_cells_are_emptied_when_another_starts_4_6() {
    let shared = config(2, 64, 1000);
    assert_eq!(computed_again(shared.clone(), 1), 1, "from host memory");
    let full = LlamaCppConfig {
        cache_ram: Some(CacheRam {
            bytes: Some(1),
            bytes_per_token: 1.0,
            tokens: 1,
        }),
        ..shared.clone()
    };
    assert_eq!(computed_again(full.clone(), 1), 20, "emptied, and lost");
    let stay = LlamaCppConfig {
        cache_idle_slots: false,
        ..full
    };
    assert_eq!(computed_again(stay, 1), 1, "still in its slot");
}

#[test]
fn a_size_of_host_memory_is_no_less_than_minus_one_4_1() {
    let with = |cache_ram_mib| LlamaCppParams {
        cache_ram_mib,
        ..LlamaCppParams::default()
    };
    let e = with(-2).resolve(1000, 4096, 1.0).unwrap_err();
    assert_eq!(e.param, "cache_ram_mib");
    let ram = |mib| with(mib).resolve(1000, 4096, 1.0).unwrap().cache_ram;
    assert_eq!(ram(0), None);
    assert_eq!(ram(-1).unwrap().bytes, None);
    assert_eq!(ram(2).unwrap().bytes, Some(2 << 20));
}
