//! Scale-up: where pending pods fit, and which group grows by how much (5.1).
//!
//! Source: kubernetes/autoscaler `estimator/binpacking_estimator.go`, `expander/*`.

use super::spec::{Expander, NodeGroup, PodView, Resources};

/// What is free on a node: the index of its group, and how much.
pub(super) type Free = (usize, Resources);

/// Puts pods, one after the other, where they first fit; returns those that fit nowhere.
pub(super) fn place(pods: &[PodView], free: &mut [Free]) -> Vec<PodView> {
    let mut left = Vec::new();
    // Room only becomes less: what one pod did not find on a node, none after it that asks for the same does.
    let mut from: Vec<(&PodView, usize)> = Vec::new();
    for pod in pods {
        let alike = |(other, _): &(&PodView, usize)| {
            other.requests == pod.requests && other.groups == pod.groups
        };
        let class = from.iter().position(alike).unwrap_or_else(|| {
            from.push((pod, 0));
            from.len() - 1
        });
        let start = &mut from[class].1;
        let fits = |(group, free): &Free| pod.groups.has(*group) && free.holds(pod.requests);
        match free[*start..].iter().position(fits) {
            Some(i) => {
                *start += i;
                let room = &mut free[*start].1;
                *room = room.less(pod.requests);
            }
            None => {
                *start = free.len();
                left.push(*pod);
            }
        }
    }
    left
}

/// What a group could do for the pending pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Growth {
    pub(super) group: usize,
    pub(super) nodes: usize,
    pub(super) pods: usize,
    wasted: (f64, f64),
    price_per_hour: f64,
    priority: i32,
}

/// Packs pods onto at most `room` new nodes of a group, the largest first. None: it helps no pod.
pub(super) fn estimate(
    pods: &[PodView],
    index: usize,
    group: &NodeGroup,
    room: usize,
) -> Option<Growth> {
    let score = |pod: &PodView| {
        let (cpu, memory) = pod.requests.shares_of(group.template);
        cpu + memory
    };
    let mut order: Vec<&PodView> = pods
        .iter()
        .filter(|p| p.groups.has(index) && group.template.holds(p.requests))
        .collect();
    order.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.id.cmp(&b.id)));
    let mut free: Vec<Resources> = Vec::new();
    let (mut packed, mut used) = (0, Resources::default());
    // Where the last pod found room, for others that ask for the same.
    let mut last: Option<(Resources, usize)> = None;
    for pod in order {
        let from = last.filter(|l| l.0 == pod.requests).map_or(0, |l| l.1);
        let fits = free[from..].iter().position(|f| f.holds(pod.requests));
        let node = match fits {
            Some(node) => from + node,
            None if free.len() < room => {
                free.push(group.template);
                free.len() - 1
            }
            None => continue,
        };
        last = Some((pod.requests, node));
        free[node] = free[node].less(pod.requests);
        packed += 1;
        used = used.plus(pod.requests);
    }
    if packed == 0 {
        return None;
    }
    let nodes = free.len();
    let (cpu, memory) = used.shares_of(group.template);
    Some(Growth {
        group: index,
        nodes,
        pods: packed,
        wasted: (1.0 - cpu / nodes as f64, 1.0 - memory / nodes as f64),
        price_per_hour: group.price_per_hour * nodes as f64,
        priority: group.priority,
    })
}

/// Picks one of several; of equals the first group, but of the random expander the one drawn.
pub(super) fn pick(expander: Expander, growths: &[Growth], draw: u64) -> Option<&Growth> {
    let waste = |g: &&Growth| g.wasted.0;
    match expander {
        Expander::Random if growths.is_empty() => None,
        Expander::Random => growths.get((draw % growths.len() as u64) as usize),
        Expander::LeastWaste => growths.iter().min_by(|a, b| {
            waste(a)
                .total_cmp(&waste(b))
                .then(a.wasted.1.total_cmp(&b.wasted.1))
        }),
        Expander::MostPods => growths.iter().rev().max_by_key(|g| g.pods),
        Expander::Price => growths
            .iter()
            .min_by(|a, b| a.price_per_hour.total_cmp(&b.price_per_hour)),
        Expander::Priority => growths.iter().rev().max_by_key(|g| g.priority),
    }
}
