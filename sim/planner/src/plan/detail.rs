//! What the winner does with all its replicas, what binds it, and where it ends.

use rayon::prelude::*;
use sim::metrics::Metric;
use sim::report::RunReport;
use sim::report::curve::search::boundary;
use sim::report::doubt::{figure_of, range};

use super::energy::energy;
use super::question::{Question, Redundancy};
use super::ready::Ready;
use super::report::Detail;
use super::search::Settled;
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::Extent;

/// Requests of each run beside the one under the whole load.
const REQUESTS: usize = 4_000;
/// Multiples of the load between which the headroom is looked for.
const MULTIPLES: [f64; 6] = [1.0, 1.25, 1.5, 2.0, 4.0, 8.0];
/// Halvings of the bracket of the headroom.
const HALVINGS: u32 = 4;

/// Looks at `winner`, which is a settling of `ready`.
///
/// # Errors
/// The simulator's own.
pub fn detail(question: &Question, ready: &Ready, winner: &Settled) -> Result<Detail, Error> {
    let counts = ready.candidate.counts(winner.units);
    let stretch = |factor: f64| question.requests.stretch(REQUESTS, factor);
    let at = |factor: f64| ready.standing(question, &counts, stretch(factor), Extent::default());
    let record = ready
        .fleet
        .run(&counts, question.requests.all(1.0), question.extent)?;
    let report = RunReport::new(&record, 0.0);
    let multiples: Vec<(f64, Standing)> = MULTIPLES
        .par_iter()
        .map(|f| Ok((*f, at(*f)?)))
        .collect::<Result<_, Error>>()?;
    let at_twice = multiples
        .iter()
        .find(|(f, _)| *f == 2.0)
        .map(|(_, s)| s.clone());
    let one_lost = if counts.iter().all(|n| *n > 1) {
        let (what, extent) = (Redundancy::Replica, Extent::default());
        Some(ready.losing(question, winner.units, what, || stretch(1.0), extent)?)
    } else {
        None
    };
    let headroom = match multiples.iter().position(|(_, s)| !s.holds) {
        None => None,
        Some(0) => Some(1.0),
        Some(i) => {
            let ends = (multiples[i - 1].0, multiples[i].0);
            Some(boundary(ends, HALVINGS, |x| x, |f| Ok::<_, Error>(at(f)?.holds))?.value)
        }
    };
    let b = report.bound_by;
    let standing = Standing::of(&record, &question.conditions, question.steady);
    let range_90_ms = (question.conditions.iter().zip(&standing.values_ms))
        .map(|(c, v)| {
            // Time in the queue is no figure of any measured set.
            let figure =
                (c.limit.metric != Metric::Queue).then(|| figure_of(c.limit.metric.name()))?;
            let [low, high] = range(&report, figure, (*v)?, None);
            Some((low, high))
        })
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
    Ok(Detail {
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
        at_twice: at_twice.unwrap_or_default(),
        one_lost,
        accuracy: report.accuracy,
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
    })
}
