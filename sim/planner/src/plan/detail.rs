//! What the winner does with all its replicas, what binds it, and where it ends.

use sim::report::curve::search::boundary;
use sim::report::{RunReport, doubt};

use super::energy::energy;
use super::question::{Question, Redundancy};
use super::ready::Ready;
use super::report::Detail;
use super::search::Settled;
use crate::Error;
use crate::conditions::Standing;
use crate::judge::{Judged, Length};

/// Multiples of the load between which the headroom is looked for.
const MULTIPLES: [f64; 5] = [1.25, 1.5, 2.0, 4.0, 8.0];
/// Halvings of the bracket of the headroom.
const HALVINGS: u32 = 5;

/// Looks at `winner`, which is a settling of `ready`: with how long the run is that its figures are of, where the load goes on.
///
/// # Errors
/// The simulator's own.
pub fn detail(
    question: &Question,
    ready: &Ready,
    winner: &Settled,
) -> Result<(Detail, Option<Length>), Error> {
    let counts = ready.candidate.counts(winner.units);
    let own = question.judge(1.0)?;
    let Judged {
        standing,
        record,
        length,
    } = own.stands(&ready.fleet, &counts)?;
    let mut report = RunReport::new(&record, 0.0);
    doubt::replay(&mut report, false, |factor| {
        let record = own.run(&ready.fleet.paced(factor), &counts, length)?;
        Ok::<_, Error>(RunReport::new(&record, 0.0))
    })?;
    let at_twice = match question.judge(2.0) {
        Ok(judge) => judge.stands(&ready.fleet, &counts)?.standing,
        // More requests than may be simulated: nothing is said of it.
        Err(e) if e.is_input() => Standing::default(),
        Err(e) => return Err(e),
    };
    let one_lost = if counts.iter().all(|n| *n > 1) {
        Some(ready.judged(&own, winner.units, Redundancy::Replica)?)
    } else {
        None
    };
    let headroom = headroom(question, ready, winner)?;
    let b = report.bound_by;
    let range_90_ms = (question.conditions.iter())
        .map(|c| (report.ranges.as_ref()?.of_limit(&c.limit)).map(|[low, high]| (low, high)))
        .collect();
    let made = report.throughput.output_tokens_per_s;
    let energy = energy(question, ready, winner, &b, made)?;
    let parts = [
        ("reading weights from memory (bandwidth)", b.weights),
        ("reading and writing KV (bandwidth)", b.kv),
        ("arithmetic (compute)", b.compute),
        ("communication between devices", b.communication),
        ("host and kernel launches", b.host),
        ("pipeline bubbles", b.bubble),
    ];
    let busy: f64 = parts.iter().map(|p| p.1).sum();
    let most = parts.iter().max_by(|x, y| x.1.total_cmp(&y.1));
    let bound = match most {
        Some((name, share)) if busy > 0.0 => {
            format!("{name}: {:.0} % of busy time", 100.0 * share / busy)
        }
        _ => "nothing: no step was made".to_owned(),
    };
    let detail = Detail {
        standing,
        range_90_ms,
        regime: report.diagnosis.regime,
        knee: report.diagnosis.knee,
        limit: report.diagnosis.limit,
        bound_by: b,
        bound,
        output_tokens_per_s: made,
        kv_peak_ratio: report.kv.peak_ratio,
        headroom,
        at_twice,
        one_lost,
        accuracy: report.accuracy,
        ranges: report.ranges,
        profiles: report.profiles.into_iter().map(|p| p.name).collect(),
        energy,
        decided: ready
            .fleet
            .decided
            .iter()
            .map(|(k, v)| {
                (
                    k.clone(),
                    v.as_str().map_or_else(|| v.to_string(), str::to_owned),
                )
            })
            .collect(),
    };
    Ok((detail, length))
}

/// The multiple of the load up to which `winner` holds when what may be lost is lost; none: up to the largest that is tried.
fn headroom(question: &Question, ready: &Ready, winner: &Settled) -> Result<Option<f64>, Error> {
    let holds = |factor: f64| -> Result<bool, Error> {
        match question.judge(factor) {
            Ok(judge) => {
                let stands = ready.judged(&judge, winner.units, question.redundancy)?;
                Ok(stands.holds)
            }
            // More requests than may be simulated: nothing is said of it.
            Err(e) if e.is_input() => Ok(false),
            Err(e) => Err(e),
        }
    };
    // One after another: far above its capacity a deployment takes long to simulate.
    let mut below = 1.0;
    for factor in MULTIPLES {
        if !holds(factor)? {
            let found = boundary((below, factor), HALVINGS, |x| x, holds)?;
            return Ok(Some(found.value));
        }
        below = factor;
    }
    Ok(None)
}
