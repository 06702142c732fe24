//! A scenario at another load.

use hwmodels::units::{PerSec, Secs};
use planner::loads::{at_scale, scale_arrival, users};
use sim::report::curve::LoadAxis;
use sim::scenario::Scenario;
use sim::workload::Arrival;
use sim::workload::spec::check_rate;

use crate::bad_input::BadInput;

/// A scenario whose load can be set.
pub struct Loads<'a> {
    scenario: &'a Scenario,
    /// What is varied.
    pub axis: LoadAxis,
    /// Whether a longer run is more of the same: no trace that ends, no curve of the day.
    pub steady: bool,
}

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Requests after which the sending ends.
    pub requests: u64,
    /// Time at the start that is left out [s].
    pub warmup_s: f64,
}

/// What to vary where nobody said.
pub fn natural_axis(scenario: &Scenario) -> LoadAxis {
    match scenario.workload.as_slice() {
        [only] if is_closed(&only.arrival) => LoadAxis::Concurrency,
        streams if streams.iter().all(|s| rate_of(&s.arrival).is_some()) => LoadAxis::Rate,
        _ => LoadAxis::Scale,
    }
}

fn is_closed(arrival: &Arrival) -> bool {
    matches!(arrival, Arrival::Closed { .. } | Arrival::Burst { .. })
}

/// Mean rate of an open-loop stream [req/s]; none for the others, whose rate is not one number.
fn rate_of(arrival: &Arrival) -> Option<f64> {
    match arrival {
        Arrival::Poisson { rate } | Arrival::Gamma { rate, .. } | Arrival::Constant { rate } => {
            Some(rate.per_sec())
        }
        _ => None,
    }
}

impl<'a> Loads<'a> {
    /// The loads of `scenario` along `axis`.
    ///
    /// # Errors
    /// Its streams cannot be varied that way.
    pub fn new(scenario: &'a Scenario, axis: LoadAxis) -> anyhow::Result<Loads<'a>> {
        let goes_on = |a: &Arrival| rate_of(a).is_some() || matches!(a, Arrival::Closed { .. });
        let loads = Loads {
            scenario,
            axis,
            steady: axis != LoadAxis::Scale
                || scenario.workload.iter().all(|s| goes_on(&s.arrival)),
        };
        loads.at(1.0, None)?;
        Ok(loads)
    }

    /// The scenario as it stands.
    pub fn scenario(&self) -> &Scenario {
        self.scenario
    }

    /// The load of the scenario as it stands; for an open loop made of a closed one, one request per second.
    pub fn own(&self) -> f64 {
        let total: Option<f64> = self
            .scenario
            .workload
            .iter()
            .map(|s| rate_of(&s.arrival))
            .sum();
        match self.axis {
            LoadAxis::Rate => total.unwrap_or(1.0),
            LoadAxis::Concurrency | LoadAxis::Scale => 1.0,
        }
    }

    /// Users of all closed loops at `load`, whose requests are answered before they send again.
    pub fn users(&self, load: f64) -> f64 {
        let users = |a: &Arrival| match a {
            Arrival::Closed { concurrency, .. } => f64::from(*concurrency),
            _ => 0.0,
        };
        match self.axis {
            LoadAxis::Rate => 0.0,
            LoadAxis::Concurrency => load,
            LoadAxis::Scale => {
                load * self
                    .scenario
                    .workload
                    .iter()
                    .map(|s| users(&s.arrival))
                    .sum::<f64>()
            }
        }
    }

    /// Requests per second at `load`, where that is known before any run.
    pub fn requests_per_s(&self, load: f64) -> Option<f64> {
        let sessions = self.scenario.workload.iter().any(|s| s.sessions.is_some());
        (self.axis == LoadAxis::Rate && !sessions).then_some(load)
    }

    /// The closest load that there is.
    pub fn round(&self, load: f64) -> f64 {
        match self.axis {
            LoadAxis::Concurrency => load.round(),
            LoadAxis::Rate | LoadAxis::Scale => load,
        }
    }

    /// The scenario at `load`; with `extent`, as long as that says.
    ///
    /// # Errors
    /// There is no such load.
    pub fn at(&self, load: f64, extent: Option<Extent>) -> anyhow::Result<Scenario> {
        let mut scenario = match self.axis {
            LoadAxis::Rate => at_rate(self.scenario, load),
            LoadAxis::Concurrency => at_concurrency(self.scenario, load),
            LoadAxis::Scale => at_scale(self.scenario, load).map_err(Into::into),
        }?;
        if let Some(extent) = extent {
            scenario.limits.requests = Some(extent.requests);
            scenario.limits.duration = None;
            scenario.drain = true;
            scenario.warmup = Secs::new(extent.warmup_s)?;
            for stream in &mut scenario.workload {
                stream.requests = None;
            }
        }
        Ok(scenario)
    }
}

/// The scenario with its streams sending `rate` requests a second together, in their proportions.
fn at_rate(scenario: &Scenario, rate: f64) -> anyhow::Result<Scenario> {
    let mut scenario = scenario.clone();
    per_sec(rate)?;
    if let [only] = scenario.workload.as_mut_slice()
        && is_closed(&only.arrival)
    {
        only.arrival = Arrival::Poisson {
            rate: per_sec(rate)?,
        };
        return Ok(scenario);
    }
    let total: Option<f64> = scenario.workload.iter().map(|s| rate_of(&s.arrival)).sum();
    let Some(total) = total else {
        return Err(no_rate(&scenario).into());
    };
    for stream in &mut scenario.workload {
        scale_arrival(&mut stream.arrival, rate / total)?;
    }
    Ok(scenario)
}

fn no_rate(scenario: &Scenario) -> BadInput {
    let names: Vec<&str> = scenario
        .workload
        .iter()
        .filter(|s| rate_of(&s.arrival).is_none())
        .map(|s| s.name.as_str())
        .collect();
    BadInput(format!(
        "the rate of stream {} is not one number: sweep multiples of the scenario's load, e.g. --scales 0.5,1,2",
        names.join(", ")
    ))
}

fn per_sec(rate: f64) -> anyhow::Result<PerSec> {
    check_rate(rate).map_err(|e| BadInput(format!("a rate {e}")).into())
}

/// The scenario with its only stream as a closed loop of `load` users, a whole number.
fn at_concurrency(scenario: &Scenario, load: f64) -> anyhow::Result<Scenario> {
    if load < 1.0 {
        return Err(BadInput(format!("a concurrency must be at least 1, got {load}")).into());
    }
    let mut scenario = scenario.clone();
    let n = scenario.workload.len();
    let [only] = scenario.workload.as_mut_slice() else {
        return Err(BadInput(format!(
            "a concurrency can be swept for one stream only, the scenario has {n}; sweep --scales instead"
        ))
        .into());
    };
    match &mut only.arrival {
        Arrival::Closed { concurrency, .. } => *concurrency = users(1, load),
        Arrival::Trace { .. } => {
            return Err(BadInput(format!(
                "a concurrency cannot be swept for stream {}, a trace: sweep multiples of its speed, e.g. --scales 0.5,1,2",
                only.name
            ))
            .into());
        }
        other => {
            *other = Arrival::Closed {
                concurrency: users(1, load),
                stagger: Secs::default(),
                think: Secs::default(),
                think_cv: 0.0,
                refused_pause: Secs::new(1.0)?,
            };
        }
    }
    Ok(scenario)
}
