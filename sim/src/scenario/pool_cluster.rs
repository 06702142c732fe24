//! What of a cluster is a pool's own: its pods, its autoscaler and where its pods may be.

use hwmodels::EngineKind;

use super::cluster_file::{AutoscalerFile, PodFile};
use super::file::ScenarioFile;
use super::pods::fill_pod;

/// What of the cluster is a pool's own.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolOnCluster {
    /// Its pods: `[cluster.pod]` with the pool's own keys over it.
    pub pod: PodFile,
    /// Who changes the number of its replicas.
    pub autoscaler: Option<AutoscalerFile>,
    /// Node groups that its pods may be placed on; none: all that have its accelerator.
    pub node_groups: Vec<String>,
}

impl PoolOnCluster {
    /// That of pool `name`, with defaults filled in: its own keys over those at the top of `file`.
    pub(super) fn filled(
        file: &ScenarioFile,
        (name, engine): (&str, EngineKind),
        is_estimated: bool,
        own: (Option<PodFile>, Option<AutoscalerFile>, Option<Vec<String>>),
    ) -> std::result::Result<PoolOnCluster, toml::de::Error> {
        let (pod, mut autoscaler, node_groups) = own;
        let common = (file.cluster.as_ref()).and_then(|c| c.pod.clone());
        let mut pod = laid_over(&common.unwrap_or_default(), &pod.unwrap_or_default())?;
        pod.name.get_or_insert_with(|| name.to_owned());
        fill_pod(&mut pod, is_estimated);
        if let Some(a) = &mut autoscaler {
            let common = file.autoscaler.as_ref().and_then(|a| a.metrics.clone());
            a.metrics = a.metrics.take().or(common);
            super::autoscaler::fill(a, engine);
        }
        Ok(PoolOnCluster {
            pod,
            autoscaler,
            node_groups: node_groups.unwrap_or_default(),
        })
    }
}

/// `own` laid over `base`, key by key.
fn laid_over(base: &PodFile, own: &PodFile) -> std::result::Result<PodFile, toml::de::Error> {
    let table = |p: &PodFile| toml::Table::try_from(p).unwrap_or_default();
    let mut all = table(base);
    all.extend(table(own));
    all.try_into()
}
