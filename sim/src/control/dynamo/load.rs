//! The fast loop: every `load_adjustment_interval`, from the load of each worker.
//!
//! One worker more where the workers are over the threshold or target, one less where what is left would keep well below it. Nothing while scaling is
//! in progress, without data, or where another number of workers reports than is ready.

use super::config::{Mode, OptimizationTarget};
use super::{Capabilities, Decision, Inputs, PerfModel, Planner, Pool, WorkerLoad, shown};

/// Thresholds of targets without an SLA, up and down: queued prompt tokens over the context length (up at it, down below it).
const PREFILL_THROUGHPUT: (f64, f64) = (1.0, 0.1);
/// Down only where nothing is queued.
const PREFILL_LATENCY: (f64, f64) = (0.1, 0.0);
/// KV tokens, waiting ones among them, over those that the worker holds (up above it, down below it).
const DECODE_THROUGHPUT: (f64, f64) = (1.0, 0.6);
/// The same for `latency`.
const DECODE_LATENCY: (f64, f64) = (0.4, 0.1);

/// What one pool's load asks for: so many workers, or a reason for no opinion.
type Wanted = Result<u32, &'static str>;

pub(super) fn decide(planner: &Planner, seen: &Inputs, model: &dyn PerfModel) -> Decision {
    let held = |why: &str| Decision {
        why: why.to_owned(),
        ..Decision::default()
    };
    if !planner.config.enable_load_scaling {
        return held("disabled");
    }
    match planner.config.mode {
        Mode::Disagg => both(planner, seen, model),
        Mode::Prefill => {
            let wanted =
                ready(&seen.prefill, true).and_then(|()| prefill(planner, &seen.prefill, model));
            one(planner, &seen.prefill, wanted, true)
        }
        Mode::Decode => {
            let wanted =
                ready(&seen.decode, true).and_then(|()| decode(planner, &seen.decode, model));
            one(planner, &seen.decode, wanted, false)
        }
        Mode::Agg => {
            let wanted = ready(&seen.decode, true).and_then(|()| agg(planner, &seen.decode, model));
            one(planner, &seen.decode, wanted, false)
        }
    }
}

/// Whether a pool's load can be judged.
fn ready(pool: &Pool, settled: bool) -> Result<(), &'static str> {
    if settled && pool.expected != pool.ready {
        return Err("scaling_in_progress");
    }
    if pool.load.is_empty() {
        return Err("no_fpm_data");
    }
    if pool.load.len() != pool.ready as usize {
        return Err("worker_count_mismatch");
    }
    Ok(())
}

/// One pool: floor of the slow loop, budget.
fn one(planner: &Planner, pool: &Pool, wanted: Wanted, is_prefill: bool) -> Decision {
    let wanted = match wanted {
        Ok(n) => n,
        Err(why) => {
            return Decision {
                why: why.to_owned(),
                ..Decision::default()
            };
        }
    };
    let floor = if is_prefill {
        planner.floor.0
    } else {
        planner.floor.1
    };
    let floored = match planner.config.enable_throughput_scaling {
        true => wanted.max(floor),
        false => wanted,
    };
    let (p, d) = match is_prefill {
        true => planner.within_budget(floored, 0),
        false => planner.within_budget(0, floored),
    };
    let last = if is_prefill { p } else { d };
    let why = reason(last, wanted, floored, pool.ready);
    Decision {
        num_prefill: (is_prefill && last != pool.ready).then_some(last),
        num_decode: (!is_prefill && last != pool.ready).then_some(last),
        why: format!("{why}: {} to {last}", pool.ready),
    }
}

/// Prefill and decode apart: each by its own load, then both within the budget. Unlike a single pool they do not wait for a scaling in progress.
fn both(planner: &Planner, seen: &Inputs, model: &dyn PerfModel) -> Decision {
    let held = |why: &str| Decision {
        why: why.to_owned(),
        ..Decision::default()
    };
    let (p, d) = (&seen.prefill, &seen.decode);
    if p.load.is_empty() && d.load.is_empty() {
        return held("no_fpm_data");
    }
    let differs = |pool: &Pool| !pool.load.is_empty() && ready(pool, false).is_err();
    if differs(p) || differs(d) {
        return held("worker_count_mismatch");
    }
    let opinion =
        |pool: &Pool, of: fn(&Planner, &Pool, &dyn PerfModel) -> Wanted| match pool.load.is_empty()
        {
            true => Err("no_fpm_data"),
            false => of(planner, pool, model),
        };
    let (wanted_p, wanted_d) = (opinion(p, prefill), opinion(d, decode));
    let (mut last_p, mut last_d) = (wanted_p.unwrap_or(p.ready), wanted_d.unwrap_or(d.ready));
    let (first_p, first_d) = (last_p, last_d);
    if planner.config.enable_throughput_scaling {
        (last_p, last_d) = (last_p.max(planner.floor.0), last_d.max(planner.floor.1));
    }
    let (floored_p, floored_d) = (last_p, last_d);
    let least = planner.config.min_endpoint;
    (last_p, last_d) = planner.within_budget(last_p.max(least), last_d.max(least));
    if (last_p, last_d) == (p.ready, d.ready) {
        let why = |w: Wanted, first, floored, now| match w {
            Err(why) => why,
            Ok(_) => reason(now, first, floored, now),
        };
        return held(&format!(
            "kept {}: prefill {}, decode {}",
            shown(&planner.config, p.ready, d.ready),
            why(wanted_p, first_p, floored_p, p.ready),
            why(wanted_d, first_d, floored_d, d.ready)
        ));
    }
    Decision {
        num_prefill: Some(last_p),
        num_decode: Some(last_d),
        why: format!(
            "{} to {}: prefill {}, decode {}",
            shown(&planner.config, p.ready, d.ready),
            shown(&planner.config, last_p, last_d),
            reason(last_p, first_p, floored_p, p.ready),
            reason(last_d, first_d, floored_d, d.ready)
        ),
    }
}

/// The planner's own words.
fn reason(last: u32, wanted: u32, floored: u32, current: u32) -> &'static str {
    let capped = floored > wanted && wanted < current;
    match last.cmp(&current) {
        std::cmp::Ordering::Greater => "scale_up",
        _ if capped => "scale_down_capped_by_throughput",
        std::cmp::Ordering::Less => "scale_down",
        std::cmp::Ordering::Equal => "no_change",
    }
}

/// By thresholds: up where any worker is over, down where all are under.
fn by_threshold(
    planner: &Planner,
    now: u32,
    shares: &[f64],
    over: impl Fn(f64) -> bool,
    under: impl Fn(f64) -> bool,
) -> Wanted {
    if shares.iter().any(|s| over(*s)) {
        return Ok(now + 1);
    }
    if now > 1 && shares.iter().all(|s| under(*s)) {
        return Ok((now - 1).max(planner.config.min_endpoint));
    }
    Ok(now)
}

/// By target: up where all workers are over it, down where `keeps` says that those left stay below.
fn by_target(planner: &Planner, now: u32, estimates: &[f64], target: f64, keeps: bool) -> Wanted {
    if estimates.is_empty() {
        return Err("insufficient_data");
    }
    if estimates.iter().all(|e| *e > target) {
        return Ok(now + 1);
    }
    match now > 1 && keeps {
        true => Ok((now - 1).max(planner.config.min_endpoint)),
        false => Ok(now),
    }
}

fn shares_of(
    load: &[WorkerLoad],
    limit: Option<u64>,
    tokens: impl Fn(&WorkerLoad) -> f64,
) -> Result<Vec<f64>, &'static str> {
    let limit = limit.filter(|l| *l > 0).ok_or("insufficient_data")? as f64;
    Ok(load.iter().map(|w| tokens(w) / limit).collect())
}

/// What each survivor carries of what one carries now.
fn consolidation(now: u32) -> f64 {
    match now > 1 {
        true => f64::from(now) / f64::from(now - 1),
        false => 1.0,
    }
}

fn prefill(planner: &Planner, pool: &Pool, model: &dyn PerfModel) -> Wanted {
    let now = pool.ready;
    let limit = planner.prefill.context_length;
    let queued = |w: &WorkerLoad| w.queued_prefill_tokens;
    match planner.config.optimization_target {
        OptimizationTarget::Throughput => {
            let (up, down) = PREFILL_THROUGHPUT;
            by_threshold(
                planner,
                now,
                &shares_of(pool.load, limit, queued)?,
                |s| s >= up,
                |s| s < down,
            )
        }
        OptimizationTarget::Latency => {
            let (up, down) = PREFILL_LATENCY;
            by_threshold(
                planner,
                now,
                &shares_of(pool.load, limit, queued)?,
                |s| s >= up,
                |s| s <= down,
            )
        }
        OptimizationTarget::Sla => {
            let estimates: Vec<f64> = pool
                .load
                .iter()
                .filter_map(|w| model.ttft_ms(queued(w), 0.0))
                .collect();
            let keeps = pool
                .load
                .iter()
                .all(|w| queue_keeps(planner, now, queued(w), 0.0, model));
            by_target(planner, now, &estimates, planner.config.ttft, keeps)
        }
    }
}

/// Whether the queue's part of TTFT stays within `load_scaling_down_sensitivity` of what a request's own prefill leaves of the target.
fn queue_keeps(
    planner: &Planner,
    now: u32,
    queued: f64,
    decode_kv: f64,
    model: &dyn PerfModel,
) -> bool {
    let scale = consolidation(now);
    let kv = decode_kv * scale;
    let (Some(own), Some(after)) = (
        model.ttft_ms(0.0, kv),
        model.ttft_ms((queued * scale).floor(), kv),
    ) else {
        return false;
    };
    let budget = (planner.config.ttft - own) * planner.config.load_scaling_down_sensitivity / 100.0;
    budget > 0.0 && after - own < budget
}

fn decode(planner: &Planner, pool: &Pool, model: &dyn PerfModel) -> Wanted {
    let tokens = |w: &WorkerLoad| w.scheduled_decode_kv_tokens + w.queued_decode_kv_tokens;
    by_kv(planner, pool, &planner.decode, tokens, tokens, model)
}

/// By KV: `estimated` tokens decide on more workers, `combined` ones must fit on fewer.
fn by_kv(
    planner: &Planner,
    pool: &Pool,
    caps: &Capabilities,
    estimated: impl Fn(&WorkerLoad) -> f64,
    combined: impl Fn(&WorkerLoad) -> f64,
    model: &dyn PerfModel,
) -> Wanted {
    let now = pool.ready;
    let (up, down) = match planner.config.optimization_target {
        OptimizationTarget::Throughput => DECODE_THROUGHPUT,
        OptimizationTarget::Latency => DECODE_LATENCY,
        OptimizationTarget::Sla => {
            let estimates: Vec<f64> = pool
                .load
                .iter()
                .filter_map(|w| model.itl_ms(estimated(w)))
                .collect();
            let target = planner.config.itl;
            let share = planner.config.load_scaling_down_sensitivity / 100.0;
            let keeps = pool.load.iter().all(|w| {
                let after = (combined(w) * consolidation(now)).floor();
                let fits = caps.max_kv_tokens.is_none_or(|most| after < most as f64);
                fits && model.itl_ms(after).is_some_and(|itl| itl < target * share)
            });
            return by_target(planner, now, &estimates, target, keeps);
        }
    };
    by_threshold(
        planner,
        now,
        &shares_of(pool.load, caps.max_kv_tokens, combined)?,
        |s| s > up,
        |s| s < down,
    )
}

/// Workers that do both: up where either side asks, down where both agree.
fn agg(planner: &Planner, pool: &Pool, model: &dyn PerfModel) -> Wanted {
    let now = pool.ready;
    let combined = |w: &WorkerLoad| {
        w.scheduled_decode_kv_tokens + w.queued_decode_kv_tokens + w.queued_prefill_tokens
    };
    let decoding = |w: &WorkerLoad| w.scheduled_decode_kv_tokens + w.queued_decode_kv_tokens;
    let by_decode = by_kv(planner, pool, &planner.decode, decoding, combined, model);
    if planner.config.optimization_target != OptimizationTarget::Sla {
        return by_decode;
    }
    let estimates: Vec<f64> = pool
        .load
        .iter()
        .filter_map(|w| model.ttft_ms(w.queued_prefill_tokens, w.scheduled_decode_kv_tokens))
        .collect();
    let keeps = pool.load.iter().all(|w| {
        queue_keeps(
            planner,
            now,
            w.queued_prefill_tokens,
            w.scheduled_decode_kv_tokens,
            model,
        )
    });
    match (
        by_target(planner, now, &estimates, planner.config.ttft, keeps),
        by_decode,
    ) {
        (Ok(p), _) if p > now => Ok(p),
        (_, Ok(d)) if d > now => Ok(d),
        (Ok(p), Ok(d)) => Ok(p.max(d)),
        // Without a word of prefill, decode alone may shrink.
        (Err(_), Ok(d)) => Ok(d),
        (_, Err(why)) => Err(why),
    }
}
