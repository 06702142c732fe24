//! From the layout that a step model was fitted on to another layout of the same engine, by mechanism.
//!
//! - **Tensor parallel** divides weights, matrix products and attention by the number of ranks, leaves what every rank
//!   repeats (`step.elementwise_s`), and adds two all-reduces per layer: a latency that grows with log2(n), and bytes over bandwidth by the ring's
//!   2 (n-1)/n (both are 1 for two ranks, which is what `comm.*` are stated for).
//! - **Pipeline stages** leave a step's own time, add a send per boundary, and let a step follow the one before
//!   after the time of the fullest stage.
//! - **Ranks on shared cores** (`basis.cores` above 0): a rank of t threads does its work at the speed that Amdahl's law gives;
//!   where all ranks of a step have more threads than there are cores, they take turns; and together they
//!   have no more memory bandwidth than the machine. Where ranks leave no core free, what server and clients compute for each
//!   token (`host.shared_token_s`) interrupts a rank, and with it the step: the other ranks wait at the next all-reduce.

use super::Coefficients;
use crate::error::Error;
use crate::profile::{Basis, Profile};

/// The layout that is to be predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Replicas that share the machine.
    pub replicas: u32,
    /// Layers of the model; 0: as in the profile.
    pub layers: u32,
    /// Hidden size of the model; 0: as in the profile.
    pub hidden: u32,
}

impl Target {
    /// The layout that `profile` was fitted on.
    pub fn of(profile: &Profile) -> Target {
        let basis = profile.basis.clone().unwrap_or_default();
        Target {
            tp: basis.tp,
            pp: basis.pp,
            replicas: 1,
            layers: 0,
            hidden: 0,
        }
    }
}

/// Bandwidth of copies between the memories of ranks, where nothing was measured [bytes/s]: threads of one machine, and
/// devices on a fast link. Orders of magnitude.
const PRIOR_BANDWIDTH: [f64; 2] = [5e9, 100e9];
/// Latency of a collective, likewise [s].
const PRIOR_LATENCY: [f64; 2] = [20e-6, 10e-6];
/// Bytes of an activation element, likewise: 32-bit on processors, 16-bit on accelerators.
const ACTIVATION_BYTES: [f64; 2] = [4.0, 2.0];

/// How fast one rank is.
#[derive(Clone, Copy, Debug)]
struct Speed {
    /// Relative to one undisturbed thread: arithmetic.
    compute: f64,
    /// Likewise, reading memory.
    memory: f64,
}

/// The speed of one of `ranks` ranks of `threads` threads that work at the same time.
fn speed(profile: &Profile, cores: f64, threads: f64, ranks: f64) -> Speed {
    if cores <= 0.0 || threads <= 0.0 {
        return Speed {
            compute: 1.0,
            memory: 1.0,
        };
    }
    let f = super::spec("host.parallel_ratio").map_or(1.0, |s| profile.get(s.name, s.prior));
    let saturating = match profile.get("host.memory_threads", 0.0) {
        n if n > 0.0 => n,
        _ => cores,
    };
    let turn = (cores / (threads * ranks)).min(1.0);
    Speed {
        compute: turn / ((1.0 - f) + f / threads),
        memory: (threads * turn).min(saturating / ranks),
    }
}

/// Layers of the model; 0: not known, and not needed.
fn layers(profile: &Profile, basis: &Basis, target: &Target) -> Result<u32, Error> {
    let layers = if target.layers > 0 {
        target.layers
    } else {
        basis.layers
    };
    let moved = (target.tp, target.pp) != (basis.tp, basis.pp);
    if moved && layers == 0 {
        return Err(Error::Layout {
            layout: format!("TP {} x PP {}", target.tp, target.pp),
            message: format!(
                "profile `{}` was fitted on TP {} x PP {} of a model whose layers it does not know: name the model in \
                 the scenario, or write basis.layers into the profile",
                profile.name, basis.tp, basis.pp
            ),
        });
    }
    if layers > 0 && target.pp > layers {
        return Err(Error::Layout {
            layout: format!("TP {} x PP {}", target.tp, target.pp),
            message: format!(
                "the model has {layers} layers, fewer than the {} stages",
                target.pp
            ),
        });
    }
    Ok(layers)
}

/// Time of the fullest stage as a share of that of all layers, where a rank is `slowed` by the other stages.
fn stage_share(stages: u32, layers: u32, slowed: f64) -> f64 {
    if stages <= 1 {
        return 1.0;
    }
    let layers = layers.max(stages);
    f64::from(layers.div_ceil(stages)) / f64::from(layers) * slowed
}

/// The coefficients on `target`, and what they rest on that was not measured.
pub(super) fn scale(
    profile: &Profile,
    target: &Target,
) -> Result<(Coefficients, Vec<String>), Error> {
    let basis = profile.basis.clone().unwrap_or_default();
    let get = |name: &str| profile.get(name, super::spec(name).map_or(0.0, |s| s.prior));
    let known = |name: &str| profile.params.contains_key(name);
    let layers = layers(profile, &basis, target)?;
    let mut warnings = Vec::new();
    let (tp0, tp) = (f64::from(basis.tp), f64::from(target.tp));
    let pp = f64::from(target.pp);

    let cores0 = f64::from(basis.cores);
    let cores = if known("host.cores") {
        get("host.cores")
    } else {
        cores0
    };
    let threads0 = f64::from(basis.threads);
    let threads = if known("host.threads") {
        get("host.threads")
    } else {
        shared_out(&basis, target)
    };
    // One step keeps the ranks of one stage busy at a time.
    let before = speed(profile, cores0, threads0, tp0);
    let now = speed(profile, cores, threads, tp);

    let repeated = before.compute / now.compute;
    let compute = tp0 / tp * repeated;
    let memory = tp0 / tp * before.memory / now.memory;

    let comm = collectives(profile, &basis, target, f64::from(layers), &mut warnings);
    let send = if target.pp > 1 {
        sends(profile, &basis, target, &mut warnings)
    } else {
        [0.0; 2]
    };
    // Several steps are in flight, so the stages compete for cores.
    let crowded_stages = speed(profile, cores, threads, tp * pp);
    let stage_share = stage_share(target.pp, layers, now.compute / crowded_stages.compute);
    let replicas = f64::from(target.replicas.max(1));
    let crowded = |threads: f64, ranks: f64, cores: f64| {
        if cores > 0.0 {
            (threads * ranks - (cores - 1.0)).clamp(0.0, 1.0)
        } else {
            0.0
        }
    };
    // What there was of it in the fitted steps is in their own coefficients.
    let shared = get("host.shared_token_s")
        * (crowded(threads, tp * replicas, cores) - crowded(threads0, tp0, cores0)).max(0.0);
    let slow = 1.0 + get("noise.interrupted_ratio");
    let s = |name: &str| get(name) * slow;
    Ok((
        Coefficients {
            fixed: s("step.fixed_s") + s("host.gap_s"),
            seq: s("step.seq_s") + s("host.gap_seq_s") + shared,
            chunk: s("step.chunk_s"),
            weights: s("step.weights_s") * memory,
            token: s("step.token_s") * compute,
            sharpness: get("step.sharpness"),
            tile: get("step.tile_tokens").round(),
            elementwise: s("step.elementwise_s") * repeated,
            sampled: s("step.sampled_s") * compute,
            context: s("step.context_s") * compute,
            pair: s("step.pair_s") * compute,
            mixed: s("step.mixed_s"),
            collective: comm[0] * slow,
            collective_token: comm[1] * slow,
            send: send[0] * slow,
            send_token: send[1] * slow,
            stage_share,
            // It stands for a device that nothing here slows down.
            least: get("host.min_step_s"),
        },
        warnings,
    ))
}

/// Threads of a rank where nobody says: those of the fit, shared out over the ranks of all replicas.
fn shared_out(basis: &Basis, target: &Target) -> f64 {
    let all = basis.threads * basis.tp * basis.pp;
    let ranks = (target.tp * target.pp * target.replicas.max(1)).max(1);
    f64::from((all / ranks).max(u32::from(basis.threads > 0)))
}

/// `[per step, per token]` of all collectives of a step [s].
fn collectives(
    profile: &Profile,
    basis: &Basis,
    target: &Target,
    layers: f64,
    warnings: &mut Vec<String>,
) -> [f64; 2] {
    let fitted = [
        "comm.step_s",
        "comm.collective_s",
        "comm.collective_token_s",
    ]
    .iter()
    .any(|n| profile.params.contains_key(*n));
    if target.tp == basis.tp && !fitted || target.tp == 1 {
        // What there is of them is in the step's own coefficients.
        return [0.0; 2];
    }
    let [latency, per_token] = if fitted {
        [
            profile.get("comm.collective_s", 0.0),
            profile.get("comm.collective_token_s", 0.0),
        ]
    } else {
        warnings.push(format!(
            "TP {}: all-reduce times are priors, as the profile was fitted on TP {} and holds no comm.*",
            target.tp, basis.tp
        ));
        prior(basis, target)
    };
    let of = |n: u32| {
        let n = f64::from(n);
        let count = 2.0 * layers;
        [
            count * latency * n.log2(),
            count * per_token * 2.0 * (n - 1.0) / n,
        ]
    };
    let there = of(target.tp);
    let step = profile.get("comm.step_s", 0.0);
    if fitted || basis.tp == 1 {
        return [there[0] + step, there[1]];
    }
    // Those of the fit are in the step's own coefficients.
    let here = of(basis.tp);
    [(there[0] - here[0]).max(0.0), (there[1] - here[1]).max(0.0)]
}

/// `[per step, per token]` of all sends of a step between stages [s].
fn sends(
    profile: &Profile,
    basis: &Basis,
    target: &Target,
    warnings: &mut Vec<String>,
) -> [f64; 2] {
    let fitted = ["comm.send_s", "comm.send_token_s"]
        .iter()
        .any(|n| profile.params.contains_key(*n));
    if !fitted && target.pp == basis.pp {
        return [0.0; 2];
    }
    let [latency, per_token] = if fitted {
        [
            profile.get("comm.send_s", 0.0),
            profile.get("comm.send_token_s", 0.0),
        ]
    } else {
        warnings.push(format!(
            "PP {}: sends between stages are priors, as the profile was fitted on PP {} and holds no comm.send_s",
            target.pp, basis.pp
        ));
        prior(basis, target)
    };
    let folded = if fitted { 1 } else { basis.pp };
    let boundaries = f64::from(target.pp.saturating_sub(folded));
    [boundaries * latency, boundaries * per_token]
}

/// `[latency, per token]` of one message between two ranks where nothing was measured [s].
fn prior(basis: &Basis, target: &Target) -> [f64; 2] {
    let own_devices = usize::from(basis.cores == 0);
    let hidden = f64::from(if target.hidden > 0 {
        target.hidden
    } else {
        basis.hidden
    });
    [
        PRIOR_LATENCY[own_devices],
        hidden * ACTIVATION_BYTES[own_devices] / PRIOR_BANDWIDTH[own_devices],
    ]
}
