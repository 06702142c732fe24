//! From measured loads to an endpoint's parameters and limits.

use serde::Serialize;

use super::alone;
use super::first;
use super::joint::Joint;
use super::limits::{self, Answer, Seen};
use super::load::{Load, Role};
use super::params::{COUNT, Params};
use super::server::{Server, Source};
use crate::drift::Drift;
use crate::fit::FitError;

/// What a fit found.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The scheduler, with how each limit is known.
    pub server: Server,
    /// The parameters.
    pub params: Params,
    /// Their 90 % intervals; none where the loads have no influence.
    pub intervals: [Option<[f64; 2]>; COUNT],
    /// How the machine's speed drifts, where requests that ran alone show it.
    pub drift: Option<Drift>,
    /// Sum of squared residuals.
    pub loss: f64,
    /// Simulated sets of loads.
    pub evaluations: usize,
    /// What the loads show without any fit.
    pub seen: Seen,
}

/// How long to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Effort {
    /// Iterations of each descent from one of several starts.
    pub iterations: usize,
    /// Rounds of limits and parameters in turn.
    pub rounds: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort {
            iterations: 15,
            rounds: 3,
        }
    }
}

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
pub enum EndpointFitError {
    /// No load to fit on.
    #[error("no load to fit on: all {0} are held out")]
    NothingToFit(usize),
    /// The fit failed.
    #[error("fit on requests: {0}")]
    Fit(#[from] FitError),
}

/// Fits the loads whose role is [`Role::Fit`]. What is read in `known` stays as it is; everything else is sought.
/// The same loads give the same answer.
///
/// # Errors
/// See [`EndpointFitError`].
pub fn fit(
    loads: &[Load],
    known: &Server,
    effort: Effort,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Fitted, EndpointFitError> {
    let fitted: Vec<&Load> = loads.iter().filter(|l| l.role == Role::Fit).collect();
    if fitted.is_empty() {
        return Err(EndpointFitError::NothingToFit(loads.len()));
    }
    let seen = limits::seen(&fitted);
    let guess = first::guess(&fitted)?;
    let joint = Joint::new(&fitted, guess, progress);
    let open = limits::unlimited(known, &seen);
    let mut answer = Answer {
        server: open,
        params: guess,
        loss: joint.loss(&open, &guess),
    };
    for round in 0..effort.rounds.max(1) {
        let before = answer.server;
        answer = limits::search(&joint, answer, &seen);
        let changed = round == 0 || answer.server != before;
        let found = if changed {
            // Parameters that made up for other limits may lie in a valley of their own.
            let from = |p| joint.descend_from_several(&answer.server, p, effort.iterations);
            vec![from(&answer.params)?, from(&guess)?]
        } else {
            vec![joint.descend(&answer.server, &answer.params, effort.iterations)?]
        };
        for (params, loss) in found {
            if loss <= answer.loss {
                (answer.params, answer.loss) = (params, loss);
            }
        }
        if !changed {
            break;
        }
    }
    let Answer {
        mut server,
        params,
        loss,
    } = answer;
    if server.max_num_seqs.source == Source::AtLeast {
        server.max_num_seqs.value = server.max_num_seqs.value.max(seen.streaming);
    }
    Ok(Fitted {
        intervals: joint.intervals(&server, &params),
        drift: alone::drift(&fitted, &server, &params),
        server,
        params,
        loss,
        evaluations: joint.evaluations(),
        seen,
    })
}
