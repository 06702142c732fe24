//! The parameters of a fitted step model: names, units, bounds, priors; and reading them from a profile.

use std::collections::BTreeMap;

use crate::error::{Error, nearest};
use crate::evidence::Evidence;
use crate::profile::{Param, Profile};
use crate::units::plain;

/// One parameter: name, unit, what it is without a measurement, and the range that makes sense.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSpec {
    /// Dotted name in profiles.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Value where a profile is silent.
    pub prior: f64,
    /// Smallest value allowed.
    pub min: f64,
    /// Largest value allowed.
    pub max: f64,
    /// What it is.
    pub meaning: &'static str,
}

const fn time(name: &'static str, max: f64, meaning: &'static str) -> StepSpec {
    StepSpec {
        name,
        unit: "s",
        prior: 0.0,
        min: 0.0,
        max,
        meaning,
    }
}

const fn other(
    name: &'static str,
    unit: &'static str,
    prior: f64,
    min: f64,
    max: f64,
    meaning: &'static str,
) -> StepSpec {
    StepSpec {
        name,
        unit,
        prior,
        min,
        max,
        meaning,
    }
}

/// Every parameter of a fitted step model.
pub const SPECS: [StepSpec; 43] = [
    time(
        "step.fixed_s",
        1.0,
        "host time of any step: scheduling, input preparation, launches",
    ),
    time("step.weights_s", 10.0, "reading the weights once"),
    time(
        "step.token_s",
        1.0,
        "matrix products of a token where arithmetic bounds them",
    ),
    other(
        "step.sharpness",
        "ratio",
        4.0,
        1.0,
        32.0,
        "exponent that joins weights_s and token_s: 1 adds them, a large one takes the larger",
    ),
    other(
        "step.tile_tokens",
        "tokens",
        1.0,
        1.0,
        512.0,
        "tokens are computed in whole tiles of this many rows",
    ),
    time(
        "step.seq_s",
        0.1,
        "host time per sequence in the step: bookkeeping, sampling, detokenisation",
    ),
    time(
        "step.chunk_s",
        1.0,
        "per prefill chunk in the step, beside its tokens",
    ),
    time("step.sampled_s", 0.1, "LM head and logits per sampled row"),
    time(
        "step.elementwise_s",
        1.0,
        "what a token costs beside matrix products and attention: norms, rotary embedding, activations, writing KV",
    ),
    time(
        "step.context_s",
        1e-3,
        "attention of a decode per token of its context",
    ),
    time(
        "step.pair_s",
        1e-3,
        "attention of a prefill chunk per query-key pair",
    ),
    time(
        "step.mixed_s",
        1.0,
        "what a step with both prefill and decode costs on top",
    ),
    time(
        "host.gap_s",
        1.0,
        "from the end of a step to the start of the next while requests run",
    ),
    time("host.gap_seq_s", 0.1, "the same per sequence of the step"),
    time(
        "host.min_step_s",
        60.0,
        "least time of a forward pass: where it computes for less, the engine sleeps for the rest",
    ),
    time(
        "host.request_in_s",
        10.0,
        "from the client's send to the scheduler, per request: HTTP, validation",
    ),
    time(
        "host.prompt_token_in_s",
        1e-2,
        "the same per prompt token: tokenisation",
    ),
    time(
        "host.token_out_s",
        10.0,
        "from the end of a step to the client: detokenisation, streaming",
    ),
    time(
        "host.shared_token_s",
        0.1,
        "processor time of server and clients per output token, beside the ranks; it delays steps where ranks leave no core free",
    ),
    other(
        "host.threads",
        "threads",
        0.0,
        0.0,
        4096.0,
        "threads of one rank; without it the threads of the fit are shared out over all ranks",
    ),
    other(
        "host.cores",
        "cores",
        0.0,
        0.0,
        4096.0,
        "cores that ranks and replicas share; without it those of the fit; 0: each rank has a device of its own",
    ),
    other(
        "host.parallel_ratio",
        "ratio",
        0.97,
        0.0,
        1.0,
        "share of a rank's work that its threads divide among themselves (Amdahl)",
    ),
    other(
        "host.memory_threads",
        "threads",
        0.0,
        0.0,
        4096.0,
        "threads that together saturate the memory's bandwidth; 0: all cores",
    ),
    time(
        "comm.step_s",
        0.1,
        "handing a step to further ranks and waiting for the last",
    ),
    time(
        "comm.collective_s",
        0.1,
        "one all-reduce between two ranks, whatever its size",
    ),
    time(
        "comm.collective_token_s",
        1e-2,
        "one all-reduce between two ranks, per token",
    ),
    time(
        "comm.send_s",
        0.1,
        "one send between pipeline stages, whatever its size",
    ),
    time(
        "comm.send_token_s",
        1e-2,
        "one send between pipeline stages, per token",
    ),
    other(
        "limits.kv_blocks",
        "blocks",
        0.0,
        2.0,
        16_777_216.0,
        "KV blocks of a replica",
    ),
    other(
        "limits.block_size",
        "tokens",
        16.0,
        1.0,
        1_048_576.0,
        "tokens per KV block",
    ),
    other(
        "limits.max_num_seqs",
        "sequences",
        0.0,
        1.0,
        1_048_576.0,
        "requests that may run at once",
    ),
    other(
        "limits.max_num_batched_tokens",
        "tokens",
        0.0,
        1.0,
        1_048_576.0,
        "token budget of a step",
    ),
    other(
        "limits.max_model_len",
        "tokens",
        0.0,
        2.0,
        1_048_576.0,
        "longest prompt and output together",
    ),
    other(
        "limits.async_scheduling",
        "switch",
        0.0,
        0.0,
        1.0,
        "1: a step is scheduled while the one before runs",
    ),
    other(
        "limits.prefix_caching",
        "switch",
        1.0,
        0.0,
        1.0,
        "1: freed blocks are found again by content",
    ),
    other(
        "limits.max_num_queued_reqs",
        "requests",
        0.0,
        1.0,
        1e9,
        "waiting requests beyond which new ones are refused",
    ),
    other(
        "limits.chunked_prefill",
        "switch",
        1.0,
        0.0,
        1.0,
        "1: a prompt may take several steps",
    ),
    other(
        "noise.interrupted_ratio",
        "ratio",
        0.0,
        0.0,
        1.0,
        "time that rare slow steps add to all steps together: interruptions, other work on the machine",
    ),
    other(
        "noise.step_ratio",
        "ratio",
        0.0,
        0.0,
        10.0,
        "standard deviation of a measured step's time over the predicted, for intervals; predictions do not use it",
    ),
    other(
        "noise.drift_ratio",
        "ratio",
        0.0,
        0.0,
        1.0,
        "standard deviation of the logarithm of the machine's slowness, shared by all steps near in time",
    ),
    other(
        "noise.drift_s",
        "s",
        0.0,
        0.0,
        1e4,
        "time over which that correlates, by exp(-t / drift_s)",
    ),
    other(
        "noise.burst_ratio",
        "ratio",
        0.0,
        0.0,
        1.0,
        "the same of a second, faster process: interruptions that last some steps",
    ),
    other(
        "noise.burst_s",
        "s",
        0.0,
        0.0,
        1e4,
        "time over which that correlates",
    ),
];

/// The parameter named `name`.
pub fn spec(name: &str) -> Option<&'static StepSpec> {
    SPECS.iter().find(|s| s.name == name)
}

/// A profile entry for parameter `name`, with the unit and bounds of [`SPECS`].
///
/// # Errors
/// An unknown name, or a value outside the parameter's bounds.
pub fn param(
    name: &str,
    value: f64,
    std_error: Option<f64>,
    evidence: Evidence,
) -> Result<Param, Error> {
    let s = spec(name).ok_or_else(|| unknown(name))?;
    let param = Param {
        value,
        std_error,
        min: s.min,
        max: s.max,
        unit: s.unit.to_owned(),
        evidence,
    };
    within(name, &param, s)?;
    Ok(param)
}

fn unknown(name: &str) -> Error {
    Error::Unknown {
        kind: "step parameter",
        name: name.to_owned(),
        nearest: nearest(name, SPECS.iter().map(|s| s.name)),
    }
}

fn within(name: &str, p: &Param, s: &StepSpec) -> Result<(), Error> {
    let (min, max) = (p.min.max(s.min), p.max.min(s.max));
    if p.value.is_finite() && min <= p.value && p.value <= max {
        return Ok(());
    }
    Err(Error::File {
        file: format!("parameter `{name}`"),
        message: format!(
            "must lie within its physical bounds, {min} to {max} {}, got {}",
            s.unit,
            plain(p.value)
        ),
    })
}

/// Checks that `profile` is a fitted step model: it says what it was measured on, every parameter is known and within
/// its bounds, and a step takes time.
///
/// # Errors
/// What is missing or wrong, by name.
pub fn check(profile: &Profile) -> Result<(), Error> {
    let file = |message: String| Error::File {
        file: format!("profile `{}`", profile.name),
        message,
    };
    let Some(basis) = &profile.basis else {
        return Err(file(
            "is no fitted step model: it has no [basis]; `servetwin calibrate steps` writes one"
                .into(),
        ));
    };
    if basis.tp == 0 || basis.pp == 0 {
        return Err(file("basis.tp and basis.pp must be at least 1".into()));
    }
    for (name, p) in &profile.params {
        let s = spec(name).ok_or_else(|| unknown(name))?;
        within(name, p, s)?;
    }
    for (quantity, [low, high]) in &profile.validity {
        if !(low.is_finite() && high.is_finite() && low <= high) {
            return Err(file(format!(
                "validity.{quantity}: [{low}, {high}] is no range"
            )));
        }
    }
    let least: f64 = [
        "step.fixed_s",
        "step.weights_s",
        "step.token_s",
        "step.elementwise_s",
        "step.seq_s",
        "host.gap_s",
        "host.min_step_s",
    ]
    .iter()
    .map(|n| profile.get(n, 0.0))
    .sum();
    if least < 1e-9 {
        return Err(file(
            "a step must take time: step.fixed_s, step.seq_s, step.weights_s and step.token_s are all zero"
                .into(),
        ));
    }
    Ok(())
}

/// `profile` with single parameters laid over it, within their bounds.
///
/// # Errors
/// Unknown names and values outside their bounds.
pub fn laid_over(profile: &Profile, params: &BTreeMap<String, f64>) -> Result<Profile, Error> {
    let mut profile = profile.clone();
    for (name, value) in params {
        let p = param(name, *value, None, Evidence::Analytic)?;
        profile.params.insert(name.clone(), p);
    }
    Ok(profile)
}

/// What the endpoint allows, as far as the profile knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// KV blocks of a replica.
    pub kv_blocks: Option<u64>,
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// Requests that may run at once.
    pub max_num_seqs: Option<u32>,
    /// Token budget of a step.
    pub max_num_batched_tokens: Option<u32>,
    /// Longest prompt and output together.
    pub max_model_len: Option<u32>,
    /// Whether a step is scheduled while the one before runs.
    pub async_scheduling: Option<bool>,
    /// Whether freed blocks are found again by content.
    pub prefix_caching: Option<bool>,
    /// Whether a prompt may take several steps.
    pub chunked_prefill: Option<bool>,
    /// Waiting requests beyond which new ones are refused.
    pub max_num_queued_reqs: Option<u32>,
}

impl Limits {
    /// The limits in `profile`.
    pub fn of(profile: &Profile) -> Limits {
        let number = |name: &str| profile.params.get(name).map(|p| p.value.round());
        let count = |name: &str| number(name).map(|v| v as u32);
        let switch = |name: &str| number(name).map(|v| v >= 1.0);
        Limits {
            kv_blocks: number("limits.kv_blocks").map(|v| v as u64),
            block_size: count("limits.block_size"),
            max_num_seqs: count("limits.max_num_seqs"),
            max_num_batched_tokens: count("limits.max_num_batched_tokens"),
            max_model_len: count("limits.max_model_len"),
            async_scheduling: switch("limits.async_scheduling"),
            prefix_caching: switch("limits.prefix_caching"),
            chunked_prefill: switch("limits.chunked_prefill"),
            max_num_queued_reqs: count("limits.max_num_queued_reqs"),
        }
    }
}
