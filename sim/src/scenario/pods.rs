//! The pods of a replica and how they start, from `[cluster.pod]`.

use hwmodels::units::Secs;

use super::Scenario;
use super::cluster_file::{DelayFile, DelayKind, PodFile};
use super::error::ScenarioError;
use super::node_groups::{Shape, gpus};
use super::numbers::{nanos, secs};
use crate::kernel::time::SimDuration;
use crate::kube::delay::Delay;
use crate::kube::spec::{PodSpec, Portion, StartSpec, Weights};

type Result<T> = std::result::Result<T, ScenarioError>;

/// Median of the pulls of 9 to 18 GB without a cache: 216, 224, 333 and 338 s.
const IMAGE_PULL: f64 = 280.0;
/// Median of the pulls with image streaming: 2.6 and 4.5 s.
const IMAGE_CACHED: f64 = 4.0;
/// Qwen3-8B from S3 on ml.g6.2xlarge, nothing else using the network.
const WEIGHTS_LOAD: f64 = 77.0;
/// Median of the engine starts of vLLM on one GPU: 14, 34, 39 and 46 s.
const ENGINE_INIT: f64 = 37.0;

/// A duration of `value` seconds, always the same.
pub(super) fn fixed(value: f64) -> DelayFile {
    DelayFile::Fixed(secs(value))
}

/// Fills in defaults; those that are estimated from model and hardware are left to that.
pub(super) fn fill_pod(pod: &mut PodFile, is_estimated: bool) {
    pod.name.get_or_insert_with(|| "server".into());
    pod.volume_attach.get_or_insert_with(|| fixed(0.0));
    pod.image_cached.get_or_insert_with(|| fixed(IMAGE_CACHED));
    if is_estimated {
        if pod.weights_load.is_none() {
            let storage = super::startup::STORAGE;
            pod.storage.get_or_insert_with(|| storage.to_owned());
            let loader = super::startup::LOADER;
            pod.loader.get_or_insert_with(|| loader.to_owned());
        }
        if pod.engine_init.is_none() {
            pod.compile_cached.get_or_insert(false);
        }
    } else {
        pod.image_pull.get_or_insert_with(|| fixed(IMAGE_PULL));
        pod.weights_load.get_or_insert_with(|| fixed(WEIGHTS_LOAD));
        pod.engine_init.get_or_insert_with(|| fixed(ENGINE_INIT));
    }
    pod.initial_delay_seconds.get_or_insert(0);
    pod.period_seconds.get_or_insert(10);
    pod.termination_grace_period_seconds.get_or_insert(30);
    pod.restart_backoff.get_or_insert(secs(10.0));
}

impl Scenario {
    pub(super) fn pod(&self, pod: &PodFile, shape: &Shape) -> Result<PodSpec> {
        let at = |key: &str| format!("cluster.pod.{key}");
        let whole = |n: Option<u32>| SimDuration(u64::from(n.unwrap_or(0)) * 1_000_000_000);
        let is_set = shape.size > 1;
        if pod.period_seconds == Some(0) {
            return self.wrong(&at("periodSeconds"), "must be at least 1");
        }
        Ok(PodSpec {
            name: pod.name.clone().unwrap_or_default(),
            size: shape.size as usize,
            requests: gpus(shape.per_pod),
            resource: shape.resource.clone(),
            volume_attach: self.delay(&pod.volume_attach, &at("volume_attach"))?,
            max_surge: self.portion(
                &pod.max_surge,
                &at("maxSurge"),
                if is_set { "0" } else { "25%" },
            )?,
            max_unavailable: self.portion(
                &pod.max_unavailable,
                &at("maxUnavailable"),
                if is_set { "1" } else { "25%" },
            )?,
            probe_delay: whole(pod.initial_delay_seconds),
            probe_period: whole(pod.period_seconds),
            grace: whole(pod.termination_grace_period_seconds),
            restart_backoff: nanos(pod.restart_backoff),
        })
    }

    /// A number, or a share of the replicas.
    fn portion(&self, own: &Option<String>, path: &str, default: &str) -> Result<Portion> {
        let text = own.as_deref().unwrap_or(default);
        let read = match text.strip_suffix('%') {
            Some(share) => share.trim().parse().ok().map(Portion::Percent),
            None => text.trim().parse().ok().map(Portion::Count),
        };
        match read {
            Some(Portion::Percent(p)) if p > 100 => {
                self.wrong(path, format!("must be at most 100%, got {text}"))
            }
            Some(portion) => Ok(portion),
            None => self.wrong(
                path,
                format!("must be a number such as \"1\" or a share such as \"25%\", got `{text}`"),
            ),
        }
    }

    /// How pods start, as the scenario gives it.
    pub(super) fn start_given(&self, pod: &PodFile) -> Result<StartSpec> {
        let at = |key: &str| format!("cluster.pod.{key}");
        Ok(StartSpec {
            image_pull: self.delay(&pod.image_pull, &at("image_pull"))?,
            image_cached: self.delay(&pod.image_cached, &at("image_cached"))?,
            weights: Weights::Time(self.delay(&pod.weights_load, &at("weights_load"))?),
            first_start: Delay::Fixed(0.0),
            engine_init: self.delay(&pod.engine_init, &at("engine_init"))?,
            wake: None,
        })
    }

    /// Keys that need a model on hardware, where there is none.
    pub(super) fn no_figures(&self, is_estimated: bool, pod: &PodFile) -> Result<()> {
        let given = [
            ("storage", pod.storage.is_some(), pod.weights_load.is_some()),
            ("loader", pod.loader.is_some(), pod.weights_load.is_some()),
            (
                "bandwidth",
                pod.bandwidth.is_some(),
                pod.weights_load.is_some(),
            ),
            ("image", pod.image.is_some(), pod.image_pull.is_some()),
            ("registry", pod.registry.is_some(), pod.image_pull.is_some()),
            (
                "compile_cached",
                pod.compile_cached.is_some(),
                pod.engine_init.is_some(),
            ),
        ];
        for (key, is_given, has_time) in given {
            let path = format!("cluster.pod.{key}");
            if is_given && !is_estimated {
                return self.wrong(
                    &path,
                    "needs [model] and [hardware], from which start-ups are estimated",
                );
            }
            if is_given && has_time {
                return self.wrong(
                    &path,
                    "the scenario gives the time that this would estimate; leave one of them out",
                );
            }
        }
        Ok(())
    }

    /// A duration or distribution; its default was filled in.
    pub(super) fn delay(&self, file: &Option<DelayFile>, path: &str) -> Result<Delay> {
        let table = match file {
            None => return Ok(Delay::Fixed(0.0)),
            Some(DelayFile::Fixed(secs)) => return Ok(Delay::Fixed(secs.secs())),
            Some(DelayFile::Table(table)) => table,
        };
        let need = |value: Option<Secs>, key: &str| match value {
            Some(v) => Ok(v.secs()),
            None => self.wrong(
                path,
                format!("`{key}` is missing; write e.g. {key} = \"90 s\""),
            ),
        };
        let number = |value: Option<f64>, key: &str, least: f64| match value {
            Some(v) if v >= least && v <= 100.0 => Ok(v),
            Some(v) => self.wrong(path, format!("{key}: must be from {least} to 100, got {v}")),
            None => self.wrong(path, format!("`{key}` is missing; write e.g. {key} = 0.5")),
        };
        Ok(match table.kind {
            DelayKind::Uniform => {
                let (min, max) = (need(table.min, "min")?, need(table.max, "max")?);
                if max < min {
                    return self.wrong(path, "max must be at least min");
                }
                Delay::Uniform { min, max }
            }
            DelayKind::Normal => Delay::Normal {
                mean: need(table.mean, "mean")?,
                std: need(table.std, "std")?,
            },
            DelayKind::Lognormal => Delay::Lognormal {
                median: need(table.median, "median")?,
                sigma: number(table.sigma, "sigma", 0.0)?,
            },
            DelayKind::Exponential => Delay::Exponential {
                mean: need(table.mean, "mean")?,
            },
            DelayKind::Weibull => Delay::Weibull {
                scale: need(table.scale, "scale")?,
                shape: number(table.shape, "shape", 0.1)?,
            },
        })
    }
}
