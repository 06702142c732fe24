use super::spec::Expander;
use super::spec::{GroupSet, Resources};
use super::*;

fn at(secs: u64) -> SimTime {
    SimTime(secs * 1_000_000_000)
}

fn secs(n: u64) -> SimDuration {
    at(n).since(SimTime::ZERO)
}

const GPU_NODE: Resources = Resources {
    cpu_milli: 96_000,
    memory_bytes: 1_000,
    gpus: 8,
};

fn group(name: &str, max: usize) -> NodeGroup {
    NodeGroup {
        name: name.to_owned(),
        min: 0,
        max,
        template: GPU_NODE,
        price_per_hour: 32.0,
        priority: 0,
    }
}

fn pod(id: u64, gpus: i64, created: u64) -> PodView {
    PodView {
        id,
        requests: Resources {
            cpu_milli: 1_000,
            memory_bytes: 100,
            gpus,
        },
        groups: GroupSet::ALL,
        created: at(created),
        is_movable: true,
    }
}

fn node(id: u64, pods: Vec<PodView>) -> NodeView {
    NodeView {
        id,
        group: 0,
        is_ready: true,
        is_cordoned: false,
        allocatable: GPU_NODE,
        pods,
    }
}

fn autoscaler(groups: Vec<NodeGroup>, sizes: &[usize]) -> ClusterAutoscaler {
    ClusterAutoscaler::new(Flags::default(), groups, sizes).expect("right groups")
}

fn seen<'a>(nodes: &'a [NodeView], unschedulable: &'a [PodView]) -> Observed<'a> {
    Observed {
        nodes,
        removing: (0, 0),
        unschedulable,
        draw: 0,
    }
}

fn grown(scan: &Scan) -> Option<(usize, usize)> {
    match scan.actions.as_slice() {
        [Action::SetGroupSize { group, size }] => Some((*group, *size)),
        _ => None,
    }
}

#[test]
fn gpu_pods_wait_until_the_oldest_is_thirty_seconds_old() {
    let mut ca = autoscaler(vec![group("p4d", 4)], &[0]);
    let pods = [pod(1, 8, 0), pod(2, 8, 20)];
    assert_eq!(ca.scan(at(29), seen(&[], &pods)).actions, []);
    let scan = ca.scan(at(30), seen(&[], &pods));
    assert_eq!(
        (grown(&scan), scan.why.as_str()),
        (Some((0, 2)), "p4d from 0 to 2 nodes for 2 pending pods")
    );
    // What was asked for counts, so that nothing is asked for twice.
    assert_eq!(ca.scan(at(40), seen(&[], &pods)).actions, []);
}

#[test]
fn pods_without_a_gpu_wait_two_seconds() {
    let mut ca = autoscaler(vec![group("p4d", 4)], &[0]);
    let pods = [pod(1, 0, 10)];
    assert_eq!(
        ca.scan(at(11), seen(&[], &pods)).why,
        "waits: 1 pending pods are too young"
    );
    assert_eq!(grown(&ca.scan(at(12), seen(&[], &pods))), Some((0, 1)));
}

#[test]
fn pods_are_packed_and_the_maximum_holds() {
    let pods: Vec<PodView> = (0..9).map(|i| pod(i, 4, 0)).collect();
    assert_eq!(
        grown(&autoscaler(vec![group("p4d", 10)], &[0]).scan(at(60), seen(&[], &pods))),
        Some((0, 5))
    );
    assert_eq!(
        grown(&autoscaler(vec![group("p4d", 3)], &[0]).scan(at(60), seen(&[], &pods))),
        Some((0, 3))
    );
    // One of them fits beside what runs.
    let nodes = [node(1, vec![pod(99, 4, 0)])];
    assert_eq!(
        grown(&autoscaler(vec![group("p4d", 10)], &[1]).scan(at(60), seen(&nodes, &pods))),
        Some((0, 5))
    );
}

#[test]
fn a_gpu_node_without_gpus_yet_is_upcoming() {
    let mut ca = autoscaler(vec![group("p4d", 4)], &[1]);
    let mut young = node(1, Vec::new());
    young.allocatable.gpus = 0;
    assert_eq!(ca.scan(at(60), seen(&[young], &[pod(1, 8, 0)])).actions, []);
}

#[test]
fn refused_capacity_backs_a_group_off_ever_longer_and_others_are_tried() {
    let mut ca = autoscaler(vec![group("p4d", 4), group("p5", 4)], &[0, 0]);
    let pods = [pod(1, 8, 0)];
    assert_eq!(grown(&ca.scan(at(60), seen(&[], &pods))), Some((0, 1)));
    ca.refused(at(70), 0, 0);
    assert_eq!(grown(&ca.scan(at(80), seen(&[], &pods))), Some((1, 1)));
    ca.refused(at(90), 1, 0);
    let both = ca.scan(at(100), seen(&[], &pods));
    assert_eq!(
        (both.actions.len(), both.why.as_str()),
        (
            0,
            "nothing: no node group helps 1 pending pods, 2 groups are backed off"
        )
    );
    // 5 minutes after 70 s the first may be tried again; its next pause is 10 minutes.
    assert_eq!(grown(&ca.scan(at(370), seen(&[], &pods))), Some((0, 1)));
    ca.refused(at(380), 0, 0);
    assert_eq!(grown(&ca.scan(at(390), seen(&[], &pods))), Some((1, 1)));
    ca.refused(at(400), 1, 0);
    assert_eq!(ca.scan(at(979), seen(&[], &pods)).actions, []);
    assert_eq!(grown(&ca.scan(at(980), seen(&[], &pods))), Some((0, 1)));
}

#[test]
fn back_off_ends_at_thirty_minutes_and_is_forgotten_after_three_hours() {
    let mut ca = autoscaler(vec![group("p4d", 4)], &[0]);
    let length = |ca: &ClusterAutoscaler| ca.state[0].backoff.map(|b| b.length.0 / 60_000_000_000);
    let mut lengths = Vec::new();
    for n in 0..5 {
        ca.refused(at(n), 0, 0);
        lengths.push(length(&ca));
    }
    assert_eq!(lengths, [5, 10, 20, 30, 30].map(Some));
    ca.refused(at(4 + 10_800), 0, 0);
    assert_eq!(length(&ca), Some(5));
}

#[test]
fn instances_that_do_not_register_in_time_are_withdrawn() {
    let mut ca = autoscaler(vec![group("p4d", 4)], &[0]);
    let pods = [pod(1, 8, 0)];
    ca.scan(at(60), seen(&[], &pods));
    assert_eq!(
        ca.scan(at(960), seen(&[], &pods)).actions,
        [],
        "15 minutes are not over"
    );
    let overdue = ca.scan(at(961), seen(&[], &pods));
    assert_eq!(grown(&overdue), Some((0, 0)), "{}", overdue.why);
    assert_eq!(ca.target(0), 0);
    assert_eq!(
        grown(&ca.scan(at(1262), seen(&[], &pods))),
        Some((0, 1)),
        "after the pause"
    );
}

#[test]
fn expanders_choose_by_their_rule() {
    let small = NodeGroup {
        template: Resources {
            cpu_milli: 2_000,
            memory_bytes: 200,
            gpus: 1,
        },
        price_per_hour: 1.0,
        priority: 1,
        ..group("g5", 1)
    };
    let large = NodeGroup {
        priority: 7,
        ..group("p4d", 4)
    };
    let pods = [pod(1, 1, 0), pod(2, 1, 0)];
    let chosen = |expander, draw| {
        let flags = Flags {
            expander,
            ..Flags::default()
        };
        let mut ca = ClusterAutoscaler::new(flags, vec![small.clone(), large.clone()], &[0, 0])
            .expect("right groups");
        let observed = Observed {
            draw,
            ..seen(&[], &pods)
        };
        grown(&ca.scan(at(60), observed)).map(|(group, _)| group)
    };
    assert_eq!(chosen(Expander::LeastWaste, 0), Some(0));
    assert_eq!(chosen(Expander::MostPods, 0), Some(1));
    assert_eq!(chosen(Expander::Price, 0), Some(0));
    assert_eq!(chosen(Expander::Priority, 0), Some(1));
    assert_eq!(
        (chosen(Expander::Random, 4), chosen(Expander::Random, 5)),
        (Some(0), Some(1))
    );
}

#[test]
fn an_empty_node_goes_after_ten_minutes_without_interruption() {
    let mut ca = autoscaler(vec![group("p4d", 4)], &[2]);
    let busy = node(1, vec![pod(1, 8, 0)]);
    let idle = [busy.clone(), node(2, Vec::new())];
    let full = [busy.clone(), node(2, vec![pod(2, 8, 0)])];
    assert_eq!(ca.scan(at(0), seen(&idle, &[])).actions, []);
    assert_eq!(ca.scan(at(300), seen(&full, &[])).actions, []);
    assert_eq!(ca.scan(at(310), seen(&idle, &[])).actions, []);
    assert_eq!(ca.scan(at(900), seen(&idle, &[])).actions, []);
    let removed = ca.scan(at(910), seen(&idle, &[]));
    assert_eq!(
        removed.actions,
        [Action::RemoveNode {
            node: 2,
            evict_at: at(915)
        }]
    );
    assert_eq!(ca.target(0), 1);
}

#[test]
fn gpus_alone_decide_on_gpu_nodes_and_pods_must_find_room() {
    let light = |id, node_id| node(node_id, vec![pod(id, 3, 0)]);
    let scan_after = |nodes: &[NodeView]| {
        let mut ca = autoscaler(vec![group("p4d", 4)], &[nodes.len()]);
        ca.scan(at(0), seen(nodes, &[]));
        ca.scan(at(600), seen(nodes, &[])).actions.len()
    };
    assert_eq!(
        scan_after(&[light(1, 1), light(2, 2)]),
        1,
        "one drained in a scan"
    );
    assert_eq!(scan_after(&[light(1, 1)]), 0, "nowhere to go");
    assert_eq!(
        scan_after(&[node(1, vec![pod(1, 4, 0)]), node(2, vec![pod(2, 4, 0)])]),
        0,
        "half used is not below the threshold"
    );
    let mut fixed = light(1, 1);
    fixed.pods[0].is_movable = false;
    let mut other = light(2, 2);
    other.pods[0].is_movable = false;
    assert_eq!(
        scan_after(&[fixed, other]),
        0,
        "pods that may not be evicted"
    );
}

#[test]
fn scale_down_waits_after_an_add_and_after_a_failure() {
    let mut ca = autoscaler(vec![group("p4d", 4)], &[1]);
    let idle = [node(1, Vec::new()), node(2, Vec::new())];
    let huge = [pod(1, 8, 0), pod(2, 8, 0)];
    ca.scan(at(100), seen(&idle[..1], &huge));
    assert_eq!(ca.target(0), 2);
    ca.scan(at(101), seen(&idle, &[]));
    let waits = ca.scan(at(699), seen(&idle, &[]));
    assert_eq!(
        waits.why,
        "nothing: scale-down waits 600 s after the last add"
    );
    assert_eq!(
        ca.scan(at(701), seen(&idle, &[])).actions.len(),
        2,
        "the timers ran on"
    );
    ca.removal_failed(at(710), &idle[0]);
    let failed = ca.scan(at(720), seen(&idle[..1], &[]));
    assert_eq!(
        failed.why,
        "nothing: scale-down waits 180 s after the last failure"
    );
}

#[test]
fn minimum_and_health_of_the_cluster_hold() {
    let mut least = group("p4d", 9);
    least.min = 1;
    let mut ca = autoscaler(vec![least], &[2]);
    let idle = [node(1, Vec::new()), node(2, Vec::new())];
    ca.scan(at(0), seen(&idle, &[]));
    assert_eq!(ca.scan(at(600), seen(&idle, &[])).actions.len(), 1);
    let mut ca = autoscaler(vec![group("p4d", 9)], &[6]);
    let mut nodes: Vec<NodeView> = (0..6).map(|i| node(i, Vec::new())).collect();
    nodes.iter_mut().take(4).for_each(|n| n.is_ready = false);
    let sick = ca.scan(at(0), seen(&nodes, &[pod(1, 8, 0)]));
    assert_eq!(sick.why, "nothing: 4 of 6 nodes are unready");
}

#[test]
fn bounds_that_contradict_each_other_are_refused() {
    let mut wrong = group("p4d", 1);
    wrong.min = 2;
    let message =
        ClusterAutoscaler::new(Flags::default(), vec![wrong], &[0]).expect_err("min above max");
    assert_eq!(message, "node group p4d: min (2) must be at most max (1)");
}

#[test]
fn a_loop_that_changed_something_or_found_pods_too_young_is_followed_by_another_at_once() {
    let next = |flags: Flags, now: u64, pods: &[PodView]| {
        let mut ca = ClusterAutoscaler::new(flags, vec![group("p4d", 4)], &[0]).expect("right");
        let scan = ca.scan(at(now), seen(&[], pods));
        ca.next_loop(at(now), &scan).since(at(now)).as_secs()
    };
    let frequent = Flags::default();
    assert_eq!(next(frequent, 5, &[]), 10.0, "nothing to do: the timer");
    assert_eq!(
        next(frequent, 40, &[pod(1, 8, 0)]),
        0.001,
        "it was productive"
    );
    let gke = Flags {
        gpu_pod_buffer: secs(2),
        ..frequent
    };
    assert_eq!(
        next(gke, 5, &[pod(1, 8, 5)]),
        2.0,
        "the pod is old enough then"
    );
    assert_eq!(
        next(frequent, 5, &[pod(1, 8, 5)]),
        10.0,
        "30 s: the timer first"
    );
    let slow = Flags {
        frequent_loops_enabled: false,
        ..gke
    };
    assert_eq!(next(slow, 40, &[pod(1, 8, 0)]), 10.0);
    assert_eq!(next(slow, 5, &[pod(1, 8, 5)]), 10.0);
}

#[test]
fn a_salvo_grows_several_groups_in_one_loop() {
    let pods: Vec<PodView> = (0..6).map(|i| pod(i, 8, 0)).collect();
    let actions = |salvo_scale_up| {
        let flags = Flags {
            salvo_scale_up,
            expander: Expander::LeastWaste,
            ..Flags::default()
        };
        let groups = vec![group("a", 4), group("b", 4)];
        let mut ca = ClusterAutoscaler::new(flags, groups, &[0, 0]).expect("right groups");
        ca.scan(at(60), seen(&[], &pods)).actions
    };
    let grown = |group, size| Action::SetGroupSize { group, size };
    assert_eq!(actions(false), [grown(0, 4)]);
    assert_eq!(actions(true), [grown(0, 4), grown(1, 2)]);
}

#[test]
fn what_is_being_removed_counts_against_the_limits() {
    let light = |id, node_id| node(node_id, vec![pod(id, 3, 0)]);
    let nodes = [light(1, 1), light(2, 2), light(3, 3)];
    let removed = |removing| {
        let mut ca = autoscaler(vec![group("p4d", 9)], &[3]);
        let observed = Observed {
            removing,
            ..seen(&nodes, &[])
        };
        ca.scan(at(0), observed);
        ca.scan(at(600), observed).actions.len()
    };
    assert_eq!(
        (removed((0, 0)), removed((0, 1)), removed((9, 0))),
        (1, 0, 1)
    );
    assert_eq!(removed((10, 0)), 0);
}

#[test]
fn a_cordoned_node_has_no_room_and_counts_for_its_group() {
    let mut ca = autoscaler(vec![group("p4d", 4)], &[1]);
    let mut going = node(1, Vec::new());
    going.is_cordoned = true;
    let pods = [pod(1, 8, 0)];
    let scan = ca.scan(at(60), seen(&[going], &pods));
    assert_eq!(grown(&scan), Some((0, 2)), "{}", scan.why);
}
