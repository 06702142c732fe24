//! A load through the simulator, request by request.

use std::sync::Arc;

use rand::RngExt;
use sim::cluster::drift::SpeedDrift;
use sim::cluster::router::RouterConfig;
use sim::kernel::rng::stream;
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::RecordOptions;
use sim::record::{RunInfo, StepRow};
use sim::request::Outcome;
use sim::simulation::{FrontEnd, ReplicaSpec, RunOptions, Simulation};

use super::load::{Load, Request, gap_quantiles};
use super::params::Params;
use super::replay::Replay;
use super::server::Server;

/// What the simulation says of a load: a request per measured one, in the same order; none for one that it did not answer.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The requests.
    pub requests: Vec<Option<Request>>,
    /// Quantiles of the gaps between tokens ([`super::load::GAP_QUANTILES`]) [s].
    pub gaps: Option<[f64; 2]>,
    /// Every step, where asked for.
    pub steps: Vec<StepRow>,
}

/// What of a simulation is wanted, and on which machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Keep every step.
    pub steps: bool,
    /// How the machine's speed drifts; none: not at all.
    pub drift: Option<SpeedDrift>,
    /// Which of its possible courses.
    pub course: u64,
}

/// `load` on an endpoint of `server` and `params`; none if that cannot be simulated.
pub fn simulate(load: &Load, server: &Server, params: &Params, look: Look) -> Option<Predicted> {
    // The same draws every time that the load is simulated.
    let seed = stream(load.requests.len() as u64, &load.name).random();
    let simulation = Simulation {
        serving: Default::default(),
        replicas: vec![ReplicaSpec {
            engine: server.engine(seed),
            step: Arc::new(params.step()),
            drift: look.drift,
            input_delay: SimDuration::from_secs(params.get("host.request_in_s")),
            front_end: FrontEnd {
                per_prompt_token: SimDuration::from_secs(params.get("host.prompt_token_in_s")),
                ..FrontEnd::default()
            },
            output_delay: SimDuration::ZERO,
        }],
        router: RouterConfig::default(),
        scrape_period: None,
        request_timeout: None,
        seed: look.course,
    };
    let n = load.requests.len();
    let options = RunOptions {
        record: RecordOptions {
            max_request_rows: n,
            max_step_rows: if look.steps { 1_000_000 } else { 0 },
            series_bins: 0,
            ..RecordOptions::default()
        },
        ..RunOptions::default()
    };
    let mut replay = Replay::new(load);
    let record = simulation
        .run(&mut replay, &options, RunInfo::default())
        .ok()?;
    let mut requests = vec![None; n];
    let order = replay.order();
    for row in record.request_rows? {
        let i = *order.get(row.id as usize)?;
        if row.outcome == Outcome::Finished && row.first_token != SimTime::NEVER {
            requests[i] = Some(Request {
                sent: row.arrival.as_secs(),
                first: row.first_token.as_secs(),
                end: row.end.as_secs(),
                prompt: row.prompt_tokens,
                output: row.output_tokens,
                cached: row.cached_tokens,
            });
        }
    }
    Some(Predicted {
        requests,
        gaps: gap_quantiles(&record.latencies.itl),
        steps: record.step_rows.unwrap_or_default(),
    })
}
