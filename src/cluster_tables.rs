//! The tables of a run in a cluster, as files of a folder.

use std::path::Path;

use sim::kube::record::ClusterRecord;
use sim::report::{actuation, cluster_csv};

use crate::output::FileSet;

/// Their names; the last two are of a cluster with several deployments, and of one whose instances sleep.
pub const TABLES: [&str; 6] = [
    "scaling.csv",
    "pods.csv",
    "nodes.csv",
    "replicas.csv",
    "deployments.csv",
    "instances.csv",
];

/// Adds the tables of `cluster` in `dir` to `files`.
///
/// # Errors
/// Those of [`FileSet::write`].
pub fn write(files: &mut FileSet, dir: &Path, cluster: &ClusterRecord) -> anyhow::Result<()> {
    let [scaling, pods, nodes, replicas, deployments, instances] =
        TABLES.map(|name| dir.join(name));
    files.write(&scaling, |out| cluster_csv::write_scaling(out, cluster))?;
    files.write(&pods, |out| cluster_csv::write_pods(out, cluster))?;
    files.write(&nodes, |out| cluster_csv::write_nodes(out, cluster))?;
    files.write(&replicas, |out| cluster_csv::write_replicas(out, cluster))?;
    if cluster.deployments.len() > 1 {
        let all = &cluster.deployments;
        files.write(&deployments, |out| cluster_csv::write_deployments(out, all))?;
    }
    if let Some(a) = &cluster.actuation {
        files.write(&instances, |out| {
            actuation::write_instances(out, cluster, a)
        })?;
    }
    Ok(())
}
