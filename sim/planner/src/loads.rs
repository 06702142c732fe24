//! A scenario at a multiple of its load.

use hwmodels::units::{PerSec, Secs};
use sim::scenario::Scenario;
use sim::workload::Arrival;
use sim::workload::spec::check_rate;

use crate::Error;

/// The scenario with `factor` times its load: rates and users times it, the times of traces divided by it. Its run covers the same stretch
/// of the load.
///
/// # Errors
/// A factor that is not above 0, and rates that no arrival process can have.
pub fn at_scale(scenario: &Scenario, factor: f64) -> Result<Scenario, Error> {
    if !(factor > 0.0 && factor.is_finite()) {
        return Err(Error::input(format!(
            "a scale must be above 0, got {factor}"
        )));
    }
    let mut scenario = scenario.clone();
    let is_trace = |a: &Arrival| matches!(a, Arrival::Trace { .. });
    let traces = scenario.workload.iter().all(|s| is_trace(&s.arrival));
    for stream in &mut scenario.workload {
        scale_arrival(&mut stream.arrival, factor)?;
        if !is_trace(&stream.arrival) {
            stream.requests = stream.requests.map(|n| times(n, factor));
        }
    }
    // The run covers the same stretch of the load: a trace has the same requests in less time, a curve of rates more in the same time.
    if traces {
        scenario.limits.duration = scaled(scenario.limits.duration, 1.0 / factor)?;
        scenario.warmup = secs(scenario.warmup.secs() / factor)?;
    } else {
        scenario.limits.requests = scenario.limits.requests.map(|n| times(n, factor));
    }
    Ok(scenario)
}

fn times(n: u64, factor: f64) -> u64 {
    (n as f64 * factor).round().max(1.0) as u64
}

fn secs(s: f64) -> Result<Secs, Error> {
    Secs::new(s).map_err(|e| Error::input(e.to_string()))
}

fn scaled(t: Option<Secs>, factor: f64) -> Result<Option<Secs>, Error> {
    t.map(|t| secs(t.secs() * factor)).transpose()
}

/// Rates and users of `arrival` times `factor`, the times of a trace divided by it.
///
/// # Errors
/// Rates that no arrival process can have.
pub fn scale_arrival(arrival: &mut Arrival, factor: f64) -> Result<(), Error> {
    // Zero is a rate too: a pause in a staircase, the start of a ramp.
    let scale = |r: &mut PerSec| -> Result<(), Error> {
        *r = PerSec::new(r.per_sec() * factor).map_err(|e| Error::input(e.to_string()))?;
        Ok(())
    };
    match arrival {
        Arrival::Poisson { rate } | Arrival::Gamma { rate, .. } | Arrival::Constant { rate } => {
            *rate = check_rate(rate.per_sec() * factor)
                .map_err(|e| Error::input(format!("a rate {e}")))?;
        }
        Arrival::Steps { steps, .. } => {
            for (rate, _) in steps {
                scale(rate)?;
            }
        }
        Arrival::Ramp { from, to, .. } => {
            scale(from)?;
            scale(to)?;
        }
        Arrival::RateTable { scale, .. } => *scale *= factor,
        Arrival::Closed { concurrency, .. } => *concurrency = users(*concurrency, factor),
        Arrival::Burst {
            requests,
            max_in_flight,
            ..
        } => match max_in_flight {
            Some(n) => *n = users(*n, factor),
            None => *requests = times(*requests, factor),
        },
        Arrival::Trace { time_scale, .. } => *time_scale /= factor,
    }
    Ok(())
}

/// `n` users times `factor`, at least one.
pub fn users(n: u32, factor: f64) -> u32 {
    (f64::from(n) * factor)
        .round()
        .clamp(1.0, f64::from(u32::MAX)) as u32
}
