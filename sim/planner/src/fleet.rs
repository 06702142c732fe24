//! A deployment with any number of replicas.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hwmodels::units::{PerSec, Secs};
use sim::cluster::pools::{PoolSpec, Serving};
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
    /// With one replica of each kind: one kind, or one of each pool.
    pub simulation: Simulation,
    /// Where its pools take more replicas than it was started with: how they are joined then.
    pub beyond: Option<Serving>,
    /// As reports name it, without the resolved scenario. Fleets that are alike share it.
    pub info: Arc<RunInfo>,
    /// Start-up's decisions.
    pub decided: toml::Table,
    /// Parameters of its profile that are known within a standard error. Fleets that are alike share them.
    pub uncertain: Arc<std::collections::BTreeMap<String, hwmodels::profile::Param>>,
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
    /// That of a scenario; none where it has no instance type of a catalog, and no machine of its own.
    pub fn of(scenario: &Scenario) -> Option<Packing> {
        let hardware = scenario.hardware.as_ref()?;
        let mut catalog = scenario.catalog().ok()?;
        if let Some(m) = &hardware.machine {
            (catalog.add_machine(&hardware.instance, &m.accelerator, m.count, m.host_path)).ok()?;
        }
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
    /// The deployment of `scenario`, whose load does not matter, nor does the number of replicas where there are no pools.
    ///
    /// # Errors
    /// What keeps it from starting: its memory, a limit that the engine refuses.
    pub fn start(mut scenario: Scenario) -> Result<Fleet, Error> {
        without_load(&mut scenario);
        if scenario.pools.is_empty() {
            scenario.replicas = 1;
        }
        let Built {
            mut simulation,
            mut info,
            decided,
            uncertain,
            ..
        } = scenario.build()?;
        let firsts: Vec<usize> = (simulation.serving.pools.iter())
            .scan(0, |next, p| {
                let first = *next;
                *next += p.replicas as usize;
                Some(first)
            })
            .collect();
        if !firsts.is_empty() {
            simulation.replicas = firsts
                .iter()
                .map(|i| simulation.replicas[*i].clone())
                .collect();
            info.replicas = firsts.iter().map(|i| info.replicas[*i].clone()).collect();
        }
        info.config = String::new();
        Ok(Fleet {
            beyond: None,
            simulation,
            info: Arc::new(info),
            decided,
            uncertain: Arc::new(uncertain),
            cancel: None,
        })
    }

    /// Takes what `other` has where it is the same, so that it is there once.
    pub fn share(&mut self, other: &Fleet) {
        if self.info == other.info {
            self.info = Arc::clone(&other.info);
        }
        if self.uncertain == other.uncertain {
            self.uncertain = Arc::clone(&other.uncertain);
        }
    }

    /// The same with steps that take `factor` times as long.
    pub fn paced(&self, factor: f64) -> Fleet {
        let mut fleet = self.clone();
        fleet.simulation.pace(factor);
        fleet
    }

    /// One of the replicas.
    pub fn replica(&self) -> &ReplicaSpec {
        &self.simulation.replicas[0]
    }

    /// One of those that decode.
    pub fn decode_replica(&self) -> &ReplicaSpec {
        &self.simulation.replicas[self.simulation.replicas.len() - 1]
    }

    /// Plays `load` to `counts` replicas of each kind behind the router.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn run(
        &self,
        counts: &[u32],
        mut load: Playback,
        extent: Extent,
    ) -> Result<RunRecord, Error> {
        let counts: Vec<u32> = counts.iter().map(|n| (*n).max(1)).collect();
        let started = &self.simulation.serving;
        let more = |p: &(&PoolSpec, &u32)| *p.1 > p.0.replicas;
        let mut serving = match &self.beyond {
            Some(beyond) if started.pools.iter().zip(&counts).any(|p| more(&p)) => beyond.clone(),
            _ => started.clone(),
        };
        for (pool, n) in serving.pools.iter_mut().zip(&counts) {
            pool.replicas = *n;
        }
        let repeated = |i: usize| vec![self.simulation.replicas[i].clone(); counts[i] as usize];
        let kinds = self.simulation.replicas.len().min(counts.len());
        let simulation = Simulation {
            serving,
            replicas: (0..kinds).flat_map(repeated).collect(),
            ..self.simulation.clone()
        };
        let options = RunOptions {
            record: RecordOptions {
                warmup: extent.warmup.max(load.warmup()),
                series_bins: 0,
                ..RecordOptions::default()
            },
            until: extent.until,
            cancel: self.cancel.clone(),
            ..RunOptions::default()
        };
        let mut info = RunInfo::clone(&self.info);
        let kinds = info.replicas.clone().into_iter().zip(&counts);
        info.replicas = kinds.flat_map(|(one, n)| vec![one; *n as usize]).collect();
        for (pool, n) in info.pools.iter_mut().zip(&counts) {
            pool.replicas = *n;
        }
        Ok(simulation.run(&mut load, &options, info)?)
    }
}
