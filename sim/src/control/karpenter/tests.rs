use hwmodels::units::{Ratio, Secs};

use super::spec::{Budget, BudgetNodes, ConsolidationPolicy, NodeView};
use super::*;

fn at(secs: u64) -> SimTime {
    SimTime(secs * 1_000_000_000)
}

fn secs(s: f64) -> Secs {
    Secs::new(s).expect("a duration")
}

fn gpus(n: i64) -> Resources {
    Resources {
        cpu_milli: 4_000 * n,
        memory_bytes: n << 34,
        gpus: n,
    }
}

fn offering(name: &str, n: i64, price: f64) -> Offering {
    Offering {
        instance_type: name.to_owned(),
        capacity_type: CapacityType::OnDemand,
        allocatable: gpus(n),
        price_per_hour: price,
    }
}

/// One GPU for 1 $/h, four for 3.5, eight for 8.
fn spec() -> KarpenterSpec {
    KarpenterSpec::new(vec![
        offering("one", 1, 1.0),
        offering("four", 4, 3.5),
        offering("eight", 8, 8.0),
    ])
}

fn pod(id: u64, n: i64) -> PodView {
    PodView {
        id,
        requests: gpus(n),
        groups: GroupSet::ALL,
        created: at(0),
        is_movable: true,
    }
}

fn node(id: u64, offering: usize, pods: Vec<PodView>) -> NodeView {
    NodeView {
        id,
        offering,
        is_initialized: true,
        is_disrupted: false,
        allocatable: spec().offerings[offering].allocatable,
        pods,
        last_pod_event: at(0),
    }
}

fn karpenter(spec: KarpenterSpec) -> Karpenter {
    Karpenter::new(at(0), spec).expect("right")
}

fn seen<'a>(nodes: &'a [NodeView], pending: &'a [PodView]) -> Observed<'a> {
    Observed { nodes, pending }
}

/// Offerings claimed for these pods, once the batch has ended.
fn claimed(k: &mut Karpenter, from: u64, pods: &[PodView]) -> Vec<usize> {
    k.tick(at(from), &seen(&[], pods));
    launches(&k.tick(at(from + 1), &seen(&[], pods)))
}

fn launches(d: &Decision) -> Vec<usize> {
    let launched = |a: &Action| match a {
        Action::Launch { offering, .. } => Some(*offering),
        _ => None,
    };
    d.actions.iter().filter_map(launched).collect()
}

fn disrupted(d: &Decision) -> Vec<u64> {
    d.actions
        .iter()
        .flat_map(|a| match a {
            Action::Disrupt { nodes, .. } => nodes.clone(),
            _ => Vec::new(),
        })
        .collect()
}

/// A budget that is no limit.
fn free_hand() -> KarpenterSpec {
    KarpenterSpec {
        budgets: Vec::new(),
        ..spec()
    }
}

#[test]
fn a_batch_ends_a_second_after_the_last_pod_and_ten_after_the_first() {
    let mut k = karpenter(spec());
    let pods: Vec<PodView> = (0..30).map(|i| pod(i, 1)).collect();
    assert!(launches(&k.tick(at(0), &seen(&[], &pods[..1]))).is_empty());
    assert_eq!(k.due(), at(1));
    let mut t = 0;
    for n in 2..30 {
        t += 500;
        let now = SimTime(t * 1_000_000);
        let d = k.tick(now, &seen(&[], &pods[..n]));
        if !launches(&d).is_empty() {
            break;
        }
    }
    assert_eq!(
        t, 10_000,
        "new pods every half second prolong it up to BATCH_MAX_DURATION"
    );
}

#[test]
fn pods_share_the_cheapest_node_that_holds_them() {
    assert_eq!(claimed(&mut karpenter(spec()), 0, &[pod(1, 1)]), [0]);
    assert_eq!(claimed(&mut karpenter(spec()), 0, &[pod(1, 2)]), [1]);
    let four: Vec<PodView> = (0..4).map(|i| pod(i, 1)).collect();
    assert_eq!(
        claimed(&mut karpenter(spec()), 0, &four),
        [1],
        "one node that holds all"
    );
    let nine: Vec<PodView> = (0..9).map(|i| pod(i, 1)).collect();
    assert_eq!(claimed(&mut karpenter(spec()), 0, &nine), [2, 0]);
    let d = {
        let mut k = karpenter(spec());
        k.tick(at(0), &seen(&[], &[pod(1, 9)]));
        k.tick(at(1), &seen(&[], &[pod(1, 9)]))
    };
    assert!(
        d.actions.is_empty() && d.why.contains("no instance type holds the pod"),
        "{}",
        d.why
    );
}

#[test]
fn what_is_there_or_coming_is_not_claimed_again() {
    let mut k = karpenter(spec());
    assert_eq!(claimed(&mut k, 0, &[pod(1, 3)]), [1]);
    // One GPU of the claim is free.
    assert!(claimed(&mut k, 5, &[pod(1, 3), pod(2, 1)]).is_empty());
    assert_eq!(claimed(&mut k, 7, &[pod(1, 3), pod(2, 1), pod(3, 1)]), [0]);
    let mut k = karpenter(spec());
    let half = [node(7, 1, vec![pod(1, 2)])];
    k.tick(at(0), &seen(&half, &[pod(2, 2)]));
    assert!(launches(&k.tick(at(1), &seen(&half, &[pod(2, 2)]))).is_empty());
}

#[test]
fn a_refused_offering_is_left_alone_for_three_minutes() {
    let mut k = karpenter(spec());
    assert_eq!(claimed(&mut k, 0, &[pod(1, 1)]), [0]);
    let claim = *k.claims.keys().next().expect("a claim");
    k.refused(at(3), claim);
    assert_eq!(
        claimed(&mut k, 10, &[pod(1, 1)]),
        [1],
        "the next cheapest, when the pod is looked at again"
    );
    let mut k = karpenter(KarpenterSpec::new(vec![offering("one", 1, 1.0)]));
    assert_eq!(claimed(&mut k, 0, &[pod(1, 1)]), [0]);
    let claim = *k.claims.keys().next().expect("a claim");
    k.refused(at(3), claim);
    let pending = [pod(1, 1)];
    assert_eq!(k.due(), at(10));
    k.tick(at(10), &seen(&[], &pending));
    let d = k.tick(at(11), &seen(&[], &pending));
    assert!(d.why.contains("insufficient capacity of one"), "{}", d.why);
    assert_eq!(claimed(&mut k, 183, &[pod(2, 1)]), [0]);
}

#[test]
fn claims_that_do_not_come_up_are_withdrawn() {
    let mut k = karpenter(spec());
    claimed(&mut k, 0, &[pod(1, 1)]);
    let claim = *k.claims.keys().next().expect("a claim");
    let pending = [pod(1, 1)];
    assert!(
        !k.tick(at(300), &seen(&[], &pending))
            .actions
            .contains(&Action::Withdraw { claim })
    );
    let d = k.tick(at(301), &seen(&[], &pending));
    assert!(
        d.actions.contains(&Action::Withdraw { claim }),
        "not launched in 5 min"
    );
    assert_eq!(launches(&d), [0], "the pod waits still");
    let claim = *k.claims.keys().next().expect("a claim");
    k.launched(at(310), claim);
    assert!(
        !k.tick(at(1200), &seen(&[], &pending))
            .actions
            .contains(&Action::Withdraw { claim })
    );
    assert!(
        k.tick(at(1201), &seen(&[], &pending))
            .actions
            .contains(&Action::Withdraw { claim }),
        "not registered in 15 min"
    );
}

#[test]
fn the_limit_of_nodes_holds() {
    let mut k = karpenter(KarpenterSpec {
        nodes_limit: Some(1),
        ..spec()
    });
    let pods = [pod(1, 8), pod(2, 8)];
    k.tick(at(0), &seen(&[], &pods));
    let d = k.tick(at(1), &seen(&[], &pods));
    assert_eq!(launches(&d), [2]);
    assert!(d.why.contains("limit of nodes"), "{}", d.why);
}

#[test]
fn empty_nodes_go_within_the_budget_once_they_are_quiet() {
    let nodes: Vec<NodeView> = (0..20).map(|i| node(i, 0, Vec::new())).collect();
    let mut k = karpenter(spec());
    assert!(disrupted(&k.tick(at(9), &seen(&nodes, &[]))).is_empty());
    assert_eq!(
        disrupted(&k.tick(at(10), &seen(&nodes, &[]))),
        [0, 1],
        "a tenth"
    );
    let mut going = nodes.clone();
    going.iter_mut().take(2).for_each(|n| n.is_disrupted = true);
    assert!(
        disrupted(&k.tick(at(20), &seen(&going, &[]))).is_empty(),
        "two are going"
    );
    assert_eq!(
        disrupted(&karpenter(free_hand()).tick(at(10), &seen(&nodes, &[]))).len(),
        20
    );
    let quiet = KarpenterSpec {
        consolidate_after: Some(secs(60.0)),
        ..free_hand()
    };
    let mut k = karpenter(quiet);
    assert!(disrupted(&k.tick(at(59), &seen(&nodes, &[]))).is_empty());
    assert_eq!(disrupted(&k.tick(at(70), &seen(&nodes, &[]))).len(), 20);
    let never = KarpenterSpec {
        consolidate_after: None,
        ..free_hand()
    };
    assert!(disrupted(&karpenter(never).tick(at(900), &seen(&nodes, &[]))).is_empty());
}

#[test]
fn budgets_round_shares_up_and_the_tightest_of_a_reason_holds() {
    let mut s = spec();
    assert_eq!(
        (
            s.allowed(Reason::Empty, 1),
            s.allowed(Reason::Empty, 10),
            s.allowed(Reason::Empty, 11)
        ),
        (1, 1, 2)
    );
    s.budgets = vec![
        Budget {
            nodes: BudgetNodes::Share(Ratio::new(0.5).expect("a share")),
            reasons: Vec::new(),
        },
        Budget {
            nodes: BudgetNodes::Count(0),
            reasons: vec![Reason::Underutilized],
        },
    ];
    assert_eq!(
        (
            s.allowed(Reason::Empty, 10),
            s.allowed(Reason::Underutilized, 10)
        ),
        (5, 0)
    );
}

#[test]
fn a_consolidation_is_carried_out_after_it_was_found_right_twice() {
    let nodes = [node(1, 1, vec![pod(1, 1)]), node(2, 1, vec![pod(2, 3)])];
    let mut k = karpenter(free_hand());
    let first = k.tick(at(10), &seen(&nodes, &[]));
    assert!(
        first.actions.is_empty() && first.why.contains("to be validated"),
        "{}",
        first.why
    );
    assert_eq!(k.due(), at(25));
    assert!(k.tick(at(20), &seen(&nodes, &[])).actions.is_empty());
    assert_eq!(
        disrupted(&k.tick(at(25), &seen(&nodes, &[]))),
        [1],
        "its pod fits on the other"
    );
    let mut k = karpenter(free_hand());
    k.tick(at(10), &seen(&nodes, &[]));
    let fuller = [nodes[0].clone(), node(2, 1, vec![pod(2, 3), pod(3, 1)])];
    let given_up = k.tick(at(25), &seen(&fuller, &[]));
    assert!(
        given_up.actions.is_empty() && given_up.why.contains("not right any more"),
        "{}",
        given_up.why
    );
}

#[test]
fn nodes_are_replaced_by_one_that_is_cheaper() {
    let run = |spec: KarpenterSpec, nodes: &[NodeView]| {
        let mut k = karpenter(spec);
        k.tick(at(10), &seen(nodes, &[]));
        let d = k.tick(at(25), &seen(nodes, &[]));
        (launches(&d), disrupted(&d))
    };
    let large = [node(1, 2, vec![pod(1, 2)])];
    assert_eq!(
        run(free_hand(), &large),
        (vec![1], vec![1]),
        "four for eight"
    );
    let fits = [node(1, 1, vec![pod(1, 2)])];
    assert_eq!(
        run(free_hand(), &fits),
        (vec![], vec![]),
        "nothing is cheaper"
    );
    // One of four GPUs for 3.5 $/h takes four of 1 $/h, but does not pay for three.
    let singles: Vec<NodeView> = (1..=6).map(|i| node(i, 0, vec![pod(i, 1)])).collect();
    assert_eq!(run(free_hand(), &singles), (vec![1], vec![1, 2, 3, 4]));
    assert_eq!(run(free_hand(), &singles[..3]), (vec![], vec![]));
    assert_eq!(
        run(free_hand(), &singles[..4]),
        (vec![], vec![]),
        "bisection tries three, then two"
    );
    let when_empty = KarpenterSpec {
        consolidation_policy: ConsolidationPolicy::WhenEmpty,
        ..free_hand()
    };
    assert_eq!(run(when_empty, &large), (vec![], vec![]));
    let mut fixed = large.to_vec();
    fixed[0].pods[0].is_movable = false;
    assert_eq!(run(free_hand(), &fixed), (vec![], vec![]), "do-not-disrupt");
}

#[test]
fn spot_is_not_replaced_by_spot() {
    let mut s = free_hand();
    s.offerings
        .iter_mut()
        .for_each(|o| o.capacity_type = CapacityType::Spot);
    let large = [node(1, 2, vec![pod(1, 2)])];
    let mut k = karpenter(s.clone());
    assert_eq!(k.tick(at(10), &seen(&large, &[])).why, "nothing");
    s.offerings[2].capacity_type = CapacityType::OnDemand;
    let mut k = karpenter(s);
    assert!(
        k.tick(at(10), &seen(&large, &[]))
            .why
            .contains("four (spot)")
    );
}

#[test]
fn wrong_specs_are_told() {
    let refused = |s: KarpenterSpec, because: &str| {
        let message = Karpenter::new(at(0), s).expect_err(because);
        assert!(message.contains(because), "{message}");
    };
    refused(KarpenterSpec::new(Vec::new()), "no offerings");
    refused(
        KarpenterSpec::new(vec![offering("x", 1, f64::NAN)]),
        "price",
    );
    refused(
        KarpenterSpec {
            batch_idle_duration: secs(11.0),
            ..spec()
        },
        "BATCH_IDLE_DURATION",
    );
    refused(
        KarpenterSpec {
            disruption_poll: secs(0.0),
            ..spec()
        },
        "disruption_poll",
    );
}
