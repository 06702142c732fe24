//! Tables of a cluster: decisions, pods, nodes, and the state over time. Instants are seconds; what was never reached is empty.

use std::io::{self, Write};

use crate::kernel::time::SimTime;
use crate::kube::record::{ClusterRecord, DeploymentRow, PHASES};

fn instant(t: SimTime) -> String {
    if t == SimTime::NEVER {
        String::new()
    } else {
        format!("{}.{:09}", t.0 / 1_000_000_000, t.0 % 1_000_000_000)
    }
}

/// `scaling.csv`: every decision, and every reason to leave a size as it was.
///
/// # Errors
/// Those of `out`.
pub fn write_scaling(out: impl Write, c: &ClusterRecord) -> io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    w.write_record([
        "at_s",
        "controller",
        "about",
        "from",
        "to",
        "ready",
        "inputs",
        "why",
    ])?;
    for d in &c.decisions {
        w.write_record([
            instant(d.at).as_str(),
            d.controller.name(),
            &d.about,
            &d.from.to_string(),
            &d.to.to_string(),
            &d.ready.to_string(),
            &d.inputs,
            &d.why,
        ])?;
    }
    w.flush()
}

/// `pods.csv`: each start of each pod's container, with its instants and the time spent in each phase.
///
/// # Errors
/// Those of `out`.
pub fn write_pods(out: impl Write, c: &ClusterRecord) -> io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    let mut head: Vec<String> = [
        "pod",
        "replica",
        "node",
        "created_s",
        "scheduled_s",
        "started_s",
        "loaded_s",
        "up_s",
        "ready_s",
        "gone_s",
        "restarts",
        "unschedulable",
        "path",
        "start",
        "crashed_s",
        "limit",
    ]
    .map(str::to_owned)
    .to_vec();
    head.extend(PHASES.iter().map(|p| format!("{p}_s")));
    w.write_record(&head)?;
    for p in &c.pods {
        let node = c.node_of(p);
        for (i, (start, phases)) in p.phases_of_starts(node, c.end).enumerate() {
            let mut row = vec![
                p.name.clone(),
                c.replicas[p.replica].name.clone(),
                node.map_or(String::new(), |n| n.name.clone()),
            ];
            let instants = [
                p.created,
                p.scheduled,
                start.started,
                start.loaded,
                start.up,
                start.ready,
                p.gone,
            ];
            row.extend(instants.map(instant));
            row.push(p.restarts.to_string());
            row.push(p.unschedulable.clone());
            row.push(p.path.map_or(String::new(), |path| path.name().to_owned()));
            row.push(i.to_string());
            row.push(instant(start.crashed));
            row.push(p.limit.clone());
            row.extend(phases.map(|d| instant(SimTime(d.0))));
            w.write_record(&row)?;
        }
    }
    w.flush()
}

/// `nodes.csv`: each node with the instants of its life and its cost.
///
/// # Errors
/// Those of `out`.
pub fn write_nodes(out: impl Write, c: &ClusterRecord) -> io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    w.write_record([
        "node",
        "group",
        "instance",
        "spot",
        "requested_s",
        "ready_s",
        "usable_s",
        "tainted_s",
        "gone_s",
        "why_gone",
        "lifetime_s",
        "usd",
    ])?;
    for (n, node) in c.nodes.iter().enumerate() {
        let life = c.lifetime(n);
        let usd = node.usd_per_hour.map(|p| p * life.as_secs() / 3600.0);
        w.write_record([
            node.name.clone(),
            node.group.clone(),
            node.instance.clone(),
            u8::from(node.is_spot).to_string(),
            instant(node.requested),
            instant(node.ready),
            instant(node.usable),
            instant(node.tainted),
            instant(node.gone),
            node.why_gone.clone(),
            instant(SimTime(life.0)),
            usd.map_or(String::new(), |usd| format!("{usd:.6}")),
        ])?;
    }
    w.flush()
}

/// `replicas.csv`: the state of the cluster over time.
///
/// # Errors
/// Those of `out`.
pub fn write_replicas(out: impl Write, c: &ClusterRecord) -> io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    w.write_record([
        "at_s",
        "offered",
        "held",
        "waiting",
        "running",
        "wanted",
        "replicas",
        "ready",
        "pending_pods",
        "booting_nodes",
        "nodes",
        "in_server",
    ])?;
    for s in &c.samples {
        w.write_record([
            instant(s.at),
            s.offered.to_string(),
            s.held.to_string(),
            s.waiting.to_string(),
            s.running.to_string(),
            s.desired.to_string(),
            s.replicas.to_string(),
            s.ready.to_string(),
            s.pending_pods.to_string(),
            s.booting_nodes.to_string(),
            s.nodes.to_string(),
            s.in_server.to_string(),
        ])?;
    }
    w.flush()
}

/// `deployments.csv`: the state of each of several deployments over time.
///
/// # Errors
/// Those of `out`.
pub fn write_deployments(out: impl Write, deployments: &[DeploymentRow]) -> io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    w.write_record([
        "at_s",
        "deployment",
        "held",
        "waiting",
        "running",
        "wanted",
        "replicas",
        "ready",
        "pending_pods",
        "in_server",
    ])?;
    for d in deployments {
        for s in &d.samples {
            w.write_record([
                instant(s.at),
                d.name.clone(),
                s.held.to_string(),
                s.waiting.to_string(),
                s.running.to_string(),
                s.desired.to_string(),
                s.replicas.to_string(),
                s.ready.to_string(),
                s.pending_pods.to_string(),
                s.in_server.to_string(),
            ])?;
        }
    }
    w.flush()
}
