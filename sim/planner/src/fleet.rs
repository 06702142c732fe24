//! A deployment with any number of replicas.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hwmodels::units::{PerSec, Secs};
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::RecordOptions;
use sim::record::{RunInfo, RunRecord};
use sim::scenario::{Built, Scenario};
use sim::simulation::{ReplicaSpec, RunOptions, Simulation};
use sim::workload::Arrival;
use sim::workload::spec::{Length, Lengths};

use crate::Error;
use crate::requests::Playback;

/// How long a run is, and what is left out of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Time at the start that is left out.
    pub warmup: SimDuration,
    /// The run ends here though requests are under way; none: when all have ended.
    pub until: Option<SimTime>,
}

impl Extent {
    /// That of the scenario under `factor` times its load, of which a run covers the same requests.
    pub fn of(scenario: &Scenario, factor: f64) -> Extent {
        Extent {
            warmup: SimDuration::from_secs(scenario.warmup.secs() / factor),
            until: match scenario.limits.duration {
                Some(d) if !scenario.drain => Some(SimTime::from_secs(d.secs() / factor)),
                _ => None,
            },
        }
    }
}

/// Replicas that can be had in any number.
#[derive(Clone)]
pub struct Fleet {
    /// With one replica.
    pub simulation: Simulation,
    /// As reports name it.
    pub info: RunInfo,
    /// Start-up's decisions.
    pub decided: toml::Table,
    /// Parameters of its profile that are known within a standard error.
    pub uncertain: std::collections::BTreeMap<String, hwmodels::profile::Param>,
    /// Raised by whoever wants its runs to stop.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// How replicas lie on instances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packing {
    /// Replicas that one instance holds; 0: a replica spans several.
    pub per_instance: u32,
    /// Instances that one replica takes.
    pub instances_per_replica: u32,
    /// Price of an instance [USD/h], where known.
    pub usd_per_hour: Option<f64>,
}

impl Packing {
    /// That of a scenario; none where it has no instance type of a catalog.
    pub fn of(scenario: &Scenario) -> Option<Packing> {
        let hardware = scenario.hardware.as_ref().filter(|h| h.machine.is_none())?;
        let catalog = scenario.catalog().ok()?;
        let instance = catalog.instance(&hardware.instance).ok()?;
        let ranks = instance
            .ranks(catalog.accelerator(&instance.accelerator).ok()?)
            .max(1);
        let devices = scenario.layout.devices().max(1);
        let price = match (&hardware.price, &hardware.price_date) {
            (Some(p), _) => Some(p.usd_per_hour()),
            (None, Some(d)) => instance.price_on(d).map(|p| p.usd.usd_per_hour()),
            (None, None) => instance.price().map(|p| p.usd.usd_per_hour()),
        };
        Some(Packing {
            per_instance: ranks / devices,
            instances_per_replica: devices.div_ceil(ranks),
            usd_per_hour: price,
        })
    }

    /// Instances that `replicas` take.
    pub fn instances(&self, replicas: u32) -> u32 {
        match self.per_instance {
            0 => replicas.saturating_mul(self.instances_per_replica),
            n => replicas.div_ceil(n),
        }
    }
}

/// A load of one request, so that starting a deployment reads no trace.
fn without_load(scenario: &mut Scenario) {
    scenario.workload.truncate(1);
    if let (Some(stream), Ok(rate)) = (scenario.workload.first_mut(), PerSec::new(1.0)) {
        stream.arrival = Arrival::Poisson { rate };
        stream.lengths = Lengths::Separate {
            prompt: Length::Fixed(1),
            output: Length::Fixed(1),
        };
        stream.max_tokens = None;
        stream.prefix = None;
        stream.sessions = None;
        stream.retries = None;
    }
    scenario.limits.requests = Some(1);
    scenario.warmup = Secs::default();
}

impl Fleet {
    /// The deployment of `scenario`, whose load and number of replicas do not matter.
    ///
    /// # Errors
    /// What keeps it from starting: its memory, a limit that the engine refuses.
    pub fn start(mut scenario: Scenario) -> Result<Fleet, Error> {
        without_load(&mut scenario);
        scenario.replicas = 1;
        let Built {
            simulation,
            info,
            decided,
            uncertain,
            ..
        } = scenario.build()?;
        Ok(Fleet {
            simulation,
            info,
            decided,
            uncertain,
            cancel: None,
        })
    }

    /// One of the replicas.
    pub fn replica(&self) -> &ReplicaSpec {
        &self.simulation.replicas[0]
    }

    /// Plays `load` to `replicas` replicas behind the router.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn run(
        &self,
        replicas: u32,
        mut load: Playback,
        extent: Extent,
    ) -> Result<RunRecord, Error> {
        let n = replicas.max(1) as usize;
        let simulation = Simulation {
            replicas: vec![self.replica().clone(); n],
            ..self.simulation.clone()
        };
        let options = RunOptions {
            record: RecordOptions {
                warmup: extent.warmup,
                series_bins: 0,
                ..RecordOptions::default()
            },
            until: extent.until,
            cancel: self.cancel.clone(),
            ..RunOptions::default()
        };
        let mut info = self.info.clone();
        if let Some(one) = info.replicas.first().cloned() {
            info.replicas = vec![one; n];
        }
        Ok(simulation.run(&mut load, &options, info)?)
    }
}
