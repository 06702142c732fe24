//! The longest request that a winner takes. Candidates are tried with that of the load; a deployment is to take longer ones too.

use hwmodels::EngineKind;
use sim::scenario::{Built, Scenario};

use super::candidate::Candidate;
use super::question::Question;
use crate::Error;

/// Lengths to try [tokens], the contexts that models come with.
const LENGTHS: [u32; 8] = [262_144, 131_072, 65_536, 40_960, 32_768, 16_384, 8192, 4096];

/// The candidate's scenario with `keys` laid over, and the longest `max_model_len` of vLLM with which it starts as it was tried: the same KV blocks and limits. Where the question
/// gives one, it stays.
///
/// # Errors
/// As [`Candidate::scenario`].
pub fn roomy(
    question: &Question,
    candidate: &Candidate,
    counts: &[u32],
    keys: &[String],
) -> Result<Scenario, Error> {
    let own = candidate.scenario_with(question, counts, keys)?;
    if !question.own_lengths || own.engine.params.kind() != EngineKind::VllmV1 {
        return Ok(own);
    }
    let Ok(tried) = own.build() else {
        return Ok(own);
    };
    let own_length = length(&own).unwrap_or(u32::MAX);
    for longer in LENGTHS.into_iter().filter(|n| *n > own_length) {
        let mut keys = keys.to_vec();
        keys.push(format!("engine.max_model_len={longer}"));
        let wide = candidate.scenario_with(question, counts, &keys)?;
        if wide.build().is_ok_and(|b| starts_alike(&b, &tried)) {
            return Ok(wide);
        }
    }
    Ok(own)
}

fn length(s: &Scenario) -> Option<u32> {
    let table = s.engine.params.to_table();
    u32::try_from(table.get("max_model_len")?.as_integer()?).ok()
}

fn starts_alike(a: &Built, b: &Built) -> bool {
    let limits = |built: &Built| {
        let mut decided = built.decided.clone();
        decided.remove("max_model_len");
        decided
    };
    let blocks = |built: &Built| -> Vec<u64> {
        let replicas = built.info.replicas.iter();
        replicas.map(|r| r.kv_blocks).collect()
    };
    limits(a) == limits(b) && blocks(a) == blocks(b)
}
