//! A Deployment or LeaderWorkerSet at work: how many replicas it wants, who scales it, and by which metrics.

use std::collections::BTreeSet;

use super::spec::{DeploymentSpec, MetricSource};
use crate::control::hpa::Hpa;
use crate::control::keda::Keda;
use crate::control::pipeline::MetricPath;
use crate::kernel::time::{SimDuration, SimTime};

/// A Deployment or LeaderWorkerSet at work.
pub(super) struct Deployment {
    /// Replicas wanted.
    pub desired: i32,
    /// The ways of the metrics that its HPA or ScaledObject looks at; `None`: one that is asked for when it is wanted.
    pub paths: Vec<Option<MetricPath>>,
    pub hpa: Option<Hpa>,
    pub keda: Option<Keda>,
    /// Time between two reconciles of its HPA, KEDA's or its own.
    pub sync_period: Option<SimDuration>,
    /// What the variant autoscaler wishes.
    pub wished: Option<i32>,
    /// Somebody asks for the saturation of the pool.
    pub reads_saturation: bool,
    /// Raised with each rolling update.
    pub generation: u32,
    /// Replicas that its controller counts.
    pub counted: usize,
    /// Replicas that are ready.
    pub ready: usize,
    /// Its pods without a node.
    pub pending: BTreeSet<usize>,
    /// What was last said of those.
    pub held_up: HeldUp,
    /// Replicas that were wanted when its ReplicaSets were last looked at (their annotation `deployment.kubernetes.io/desired-replicas`).
    pub annotated: usize,
}

/// What the scheduler said of the pods of a deployment for which it found no room.
#[derive(Default)]
pub(super) struct HeldUp {
    /// The youngest of them.
    pub newest: Option<usize>,
    /// The rooms that it looked at, by their version.
    pub version: u64,
    pub why: String,
}

impl Deployment {
    /// That of `spec`, before anything has happened.
    ///
    /// # Errors
    /// What a controller refuses of its settings, with the name of the field.
    pub fn new(spec: &DeploymentSpec) -> Result<Deployment, String> {
        let hpa = match &spec.hpa {
            Some((hpa, flags)) => Some(Hpa::new(hpa.clone(), *flags).map_err(|e| e.to_string())?),
            None => None,
        };
        let keda = match &spec.keda {
            Some((keda, flags)) => Some(Keda::new(SimTime::ZERO, keda.clone(), *flags)?),
            None => None,
        };
        let path = |source: &MetricSource| match source {
            MetricSource::Replicas(path) | MetricSource::Gateway(path) => {
                MetricPath::new(*path).map(Some)
            }
            MetricSource::QueueLength => Ok(None),
        };
        let flags = (spec.keda.as_ref().map(|k| k.1)).or(spec.hpa.as_ref().map(|h| h.1));
        Ok(Deployment {
            desired: spec.replicas,
            paths: spec.metrics.iter().map(path).collect::<Result<_, _>>()?,
            hpa,
            keda,
            sync_period: flags.map(|f| f.sync_period),
            wished: None,
            reads_saturation: spec.metrics.iter().any(MetricSource::is_saturation),
            generation: 0,
            counted: 0,
            ready: 0,
            pending: BTreeSet::new(),
            held_up: HeldUp::default(),
            annotated: spec.replicas.max(0) as usize,
        })
    }

    /// Replicas wanted.
    pub fn wanted(&self) -> usize {
        self.desired.max(0) as usize
    }

    /// What the variant autoscaler wishes, or what there is to be.
    pub fn wish(&self) -> i32 {
        self.wished.unwrap_or(self.desired)
    }
}
