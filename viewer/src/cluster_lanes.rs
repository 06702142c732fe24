//! Lanes of the cluster around the replicas: nodes, pods, and who decided what. From rows of a record to stretches of time.

use egui::Color32;
use store::{Cluster, Decision, Node, Pod};

use crate::format;
use crate::theme;

/// A stretch of a lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// From [ns].
    pub from: u64,
    /// To [ns].
    pub to: u64,
    /// What it is.
    pub name: &'static str,
    /// Its colour.
    pub color: Color32,
}

/// What lanes of the cluster show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Decisions and faults.
    Decisions,
    /// A node.
    Node(usize),
    /// A pod.
    Pod(usize),
}

/// The stretches between instants of which each is named by what begins there; those that never came are left out.
fn stretches(instants: &[(Option<u64>, &'static str, Color32)], gone: u64) -> Vec<Stretch> {
    let came: Vec<(u64, &'static str, Color32)> = (instants.iter())
        .filter_map(|(at, name, color)| Some(((*at)?, *name, *color)))
        .filter(|(at, ..)| *at < gone)
        .collect();
    let ends = came.iter().skip(1).map(|(at, ..)| *at).chain([gone]);
    (came.iter().zip(ends))
        .filter(|((from, ..), to)| to > from)
        .map(|((from, name, color), to)| Stretch {
            from: *from,
            to,
            name,
            color: *color,
        })
        .collect()
}

/// A node's life.
pub fn of_node(node: &Node, end: u64) -> Vec<Stretch> {
    let gone = node.gone.unwrap_or(end).min(end);
    if node.refused {
        let refused = [(
            Some(node.requested),
            "refused: no capacity",
            theme::VERMILLION,
        )];
        return stretches(&refused, gone.max(node.requested + 1));
    }
    stretches(
        &[
            (Some(node.requested), "booting", theme::GREY),
            (node.ready, "device plugin", theme::YELLOW),
            (node.usable, "usable", theme::GREEN),
            (node.tainted, "to go", theme::ORANGE),
        ],
        gone,
    )
}

/// A pod's life: `draining` is when its replica was told to end.
pub fn of_pod(pod: &Pod, draining: Option<u64>, end: u64) -> Vec<Stretch> {
    stretches(
        &[
            (Some(pod.created), "pending", theme::GREY),
            (pod.scheduled, "image pull", theme::PURPLE),
            (pod.started, "weights load", theme::BLUE),
            (pod.loaded, "waits for its group", theme::GREY),
            (pod.gang_loaded, "engine start", theme::YELLOW),
            (pod.up, "readiness", theme::SKY),
            (pod.ready, "serves", theme::GREEN),
            (draining, "drains", theme::ORANGE),
        ],
        pod.gone.unwrap_or(end).min(end),
    )
}

/// The rows of a cluster: decisions, then each node with its pods where they are shown; pods without a node last.
pub fn rows(cluster: &Cluster, nodes: bool, pods: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    if !cluster.decisions.is_empty() {
        rows.push(Row::Decisions);
    }
    if !nodes {
        return rows;
    }
    let mut of_node: Vec<Vec<usize>> = vec![Vec::new(); cluster.nodes.len() + 1];
    for (i, pod) in cluster.pods.iter().enumerate() {
        let node = pod.node.map_or(cluster.nodes.len(), |n| n as usize);
        if let Some(list) = of_node.get_mut(node) {
            list.push(i);
        }
    }
    for (n, list) in of_node.into_iter().enumerate() {
        if n < cluster.nodes.len() {
            rows.push(Row::Node(n));
        }
        if pods {
            rows.extend(list.into_iter().map(Row::Pod));
        }
    }
    rows
}

/// What a node holds at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A replica of the run, by its index: its pod is ready.
    Replica(usize),
    /// A pod, by its index: it starts, or ends.
    Pod(usize),
}

/// The nodes that there are at `at` [ns], each with what it holds. A replica of several pods is on the node of each.
pub fn held(cluster: &Cluster, at: u64) -> Vec<(usize, Vec<Held>)> {
    let there = |from: u64, gone: Option<u64>| from <= at && gone.is_none_or(|g| at < g);
    let mut of: Vec<Option<Vec<Held>>> = (cluster.nodes.iter())
        .map(|n| (!n.refused && there(n.requested, n.gone)).then(Vec::new))
        .collect();
    for (i, pod) in cluster.pods.iter().enumerate() {
        let placed = pod.scheduled.is_some_and(|s| s <= at) && there(pod.created, pod.gone);
        let Some(Some(list)) = pod
            .node
            .filter(|_| placed)
            .and_then(|n| of.get_mut(n as usize))
        else {
            continue;
        };
        let served = cluster.replicas[pod.replica as usize].served.iter();
        let now = served.rev().find(|s| there(s.from, s.until));
        list.push(now.map_or(Held::Pod(i), |s| Held::Replica(s.replica as usize)));
    }
    let some = of.into_iter().enumerate();
    some.filter_map(|(n, list)| Some((n, list?))).collect()
}

/// What a pod, or a node, goes through at an instant.
pub fn phase(of: &[Stretch], at: u64) -> Option<&Stretch> {
    of.iter().find(|s| s.from <= at && at < s.to)
}

/// Colour of who decided.
pub fn color_of(controller: &str) -> Color32 {
    match controller {
        "hpa" => theme::SKY,
        "keda" => theme::BLUE,
        "cluster-autoscaler" => theme::PURPLE,
        "operator" => theme::YELLOW,
        _ => theme::VERMILLION,
    }
}

/// A decision in words.
pub fn words(d: &Decision) -> String {
    let mut out = format!(
        "{} at {}: {}",
        d.controller,
        format::duration(d.at as f64),
        d.about
    );
    if d.from != d.to {
        out += &format!(" {} to {}", d.from, d.to);
    }
    for text in [&d.why, &d.inputs] {
        if !text.is_empty() {
            out += "\n";
            out += text;
        }
    }
    out
}

/// A node in words.
pub fn node_words(node: &Node) -> String {
    let mut out = format!(
        "{}: {} of group {}{}, {} accelerators",
        node.name,
        node.instance,
        node.group,
        if node.spot { " (spot)" } else { "" },
        node.accelerators
    );
    if let Some(usd) = node.usd_per_hour {
        out += &format!(", {} USD/h", format::figures(usd));
    }
    if !node.why_gone.is_empty() {
        out += &format!("\ngone: {}", node.why_gone);
    }
    out
}

/// A pod in words.
pub fn pod_words(pod: &Pod) -> String {
    let mut out = pod.name.clone();
    if pod.restarts > 0 {
        out += &format!("\ncrashed and started again {} times", pod.restarts);
    }
    if !pod.unschedulable.is_empty() {
        out += &format!("\nwhile pending: {}", pod.unschedulable);
    }
    out
}

/// Price of the nodes that are paid for, over time [USD/h]; empty where a price is not known.
pub fn cost_rate(cluster: &Cluster, end: u64) -> Vec<[f64; 2]> {
    let mut changes: Vec<(u64, f64)> = Vec::new();
    for node in cluster.nodes.iter().filter(|n| !n.refused) {
        let Some(usd) = node.usd_per_hour else {
            return Vec::new();
        };
        changes.push((node.requested, usd));
        changes.extend(node.gone.map(|at| (at, -usd)));
    }
    changes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut sum = 0.0;
    let mut points = vec![[0.0, 0.0]];
    for (at, by) in changes {
        sum = (sum + by).max(0.0);
        points.push([at.min(end) as f64, sum]);
    }
    points.push([end as f64, sum]);
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: Option<u32>) -> Pod {
        Pod {
            name: "p".into(),
            node,
            created: 10,
            scheduled: Some(20),
            started: Some(20),
            loaded: Some(50),
            up: Some(60),
            ready: Some(60),
            ..Pod::default()
        }
    }

    #[test]
    fn stretches_follow_each_other_and_those_without_length_are_left_out() {
        let of = of_pod(&pod(None), Some(90), 100);
        let names: Vec<_> = of.iter().map(|s| (s.name, s.from, s.to)).collect();
        assert_eq!(
            names,
            [
                ("pending", 10, 20),
                ("weights load", 20, 50),
                ("waits for its group", 50, 60),
                ("serves", 60, 90),
                ("drains", 90, 100)
            ]
        );
        let node = Node {
            requested: 5,
            ready: Some(30),
            gone: Some(80),
            ..Node::default()
        };
        let of: Vec<_> = of_node(&node, 100).iter().map(|s| (s.name, s.to)).collect();
        assert_eq!(of, [("booting", 30), ("device plugin", 80)]);
    }

    #[test]
    fn a_node_holds_a_pod_until_it_is_ready_and_then_its_replica() {
        let mut cluster = Cluster {
            nodes: vec![Node {
                requested: 5,
                gone: Some(200),
                ..Node::default()
            }],
            pods: vec![pod(Some(0))],
            ..Cluster::default()
        };
        cluster.replicas.push(store::ClusterReplica {
            served: vec![store::Served {
                replica: 7,
                from: 60,
                until: Some(90),
            }],
            ..store::ClusterReplica::default()
        });
        assert_eq!(held(&cluster, 0), []);
        assert_eq!(held(&cluster, 15), [(0, vec![])]);
        assert_eq!(held(&cluster, 30), [(0, vec![Held::Pod(0)])]);
        assert_eq!(held(&cluster, 60), [(0, vec![Held::Replica(7)])]);
        assert_eq!(held(&cluster, 95), [(0, vec![Held::Pod(0)])]);
        assert_eq!(held(&cluster, 200), []);
    }

    #[test]
    fn pods_stand_below_their_node_and_the_price_adds_up() {
        let node = |from, gone| Node {
            requested: from,
            gone,
            usd_per_hour: Some(2.0),
            ..Node::default()
        };
        let cluster = Cluster {
            nodes: vec![node(0, Some(50)), node(20, None)],
            pods: vec![pod(Some(1)), pod(None), pod(Some(0))],
            ..Cluster::default()
        };
        let rows = rows(&cluster, true, true);
        use Row::{Node as N, Pod as P};
        assert_eq!(rows, [N(0), P(2), N(1), P(0), P(1)]);
        assert_eq!(super::rows(&cluster, false, true), []);
        let rate = cost_rate(&cluster, 100);
        let expected = [
            [0.0, 0.0],
            [0.0, 2.0],
            [20.0, 4.0],
            [50.0, 2.0],
            [100.0, 2.0],
        ];
        assert_eq!(rate, expected);
    }
}
