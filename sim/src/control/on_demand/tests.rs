//! The rules of loading on demand, one by one.

use super::*;

fn at(s: u64) -> SimTime {
    SimTime(s * 1_000_000_000)
}

fn secs(s: u64) -> SimDuration {
    SimDuration(s * 1_000_000_000)
}

const MODEL: ModelSpec = ModelSpec {
    ttl: None,
    priority: 0,
    is_persistent: false,
    most: 1,
    gpus: 1,
};

fn on_demand(models: &[ModelSpec]) -> OnDemand {
    OnDemand::new(OnDemandSpec {
        models: models.to_vec(),
        evict: Evict::Drain,
        min_residency: SimDuration::ZERO,
    })
}

fn waiting(held: u64) -> ModelView {
    ModelView {
        offered: held,
        unanswered: held,
        held,
        ..ModelView::default()
    }
}

fn ready(offered: u64, unanswered: u64) -> ModelView {
    ModelView {
        offered,
        unanswered,
        ready: 1,
        ..ModelView::default()
    }
}

fn node(id: usize, available: i64, residents: &[(usize, usize, u64)]) -> NodeView {
    NodeView {
        id,
        available,
        residents: (residents.iter())
            .map(|(unit, model, since)| Resident {
                unit: *unit,
                model: *model,
                since: at(*since),
            })
            .collect(),
        may: vec![true; 4],
    }
}

/// Which model is loaded, who is evicted, and where.
fn loads(actions: &[Action]) -> Vec<(usize, Vec<usize>, Option<usize>)> {
    let of = |a: &Action| match a {
        Action::Load {
            model, evict, node, ..
        } => Some((*model, evict.clone(), *node)),
        Action::Unload { .. } => None,
    };
    actions.iter().filter_map(of).collect()
}

fn unloads(actions: &[Action]) -> Vec<usize> {
    let of = |a: &Action| match a {
        Action::Unload { unit, .. } => Some(*unit),
        Action::Load { .. } => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn nothing_is_loaded_before_it_is_asked_for() {
    let mut c = on_demand(&[MODEL; 2]);
    let (actions, due) = c.look(at(0), &[ModelView::default(); 2], &[node(0, 1, &[])]);
    assert_eq!((actions, due), (vec![], SimTime::NEVER));
}

#[test]
fn room_is_taken_before_anybody_is_evicted() {
    let mut c = on_demand(&[MODEL; 2]);
    let views = [ready(1, 0), waiting(3)];
    let nodes = [node(0, 0, &[(7, 0, 0)]), node(1, 1, &[])];
    let (actions, _) = c.look(at(9), &views, &nodes);
    assert_eq!(loads(&actions), [(1, vec![], Some(1))]);
}

#[test]
fn the_resident_that_was_used_least_recently_makes_room() {
    let mut c = on_demand(&[MODEL; 3]);
    let nodes = [node(0, 0, &[(7, 0, 0), (8, 1, 0)])];
    // Model 0 is asked for last.
    c.look(
        at(10),
        &[ready(1, 0), ready(1, 0), ModelView::default()],
        &nodes,
    );
    c.look(
        at(20),
        &[ready(2, 0), ready(1, 0), ModelView::default()],
        &nodes,
    );
    let (actions, _) = c.look(at(30), &[ready(2, 0), ready(1, 0), waiting(1)], &nodes);
    assert_eq!(loads(&actions), [(2, vec![8], Some(0))]);
}

#[test]
fn requests_of_one_model_wait_for_one_swap() {
    let mut c = on_demand(&[MODEL; 2]);
    let mut view = waiting(5);
    view.starting = 1;
    let nodes = [node(0, 0, &[(7, 0, 0)])];
    let (actions, _) = c.look(at(9), &[ready(1, 0), view], &nodes);
    assert!(loads(&actions).is_empty());
}

#[test]
fn a_larger_model_evicts_as_many_as_it_needs_and_no_more() {
    let large = ModelSpec { gpus: 2, ..MODEL };
    let wide = ModelSpec { gpus: 3, ..MODEL };
    let mut c = on_demand(&[MODEL, MODEL, large, wide]);
    let views = |third, fourth| [ready(1, 0), ready(1, 0), third, fourth];
    let none = ModelView::default();
    let nodes = [node(0, 0, &[(1, 0, 0), (2, 1, 5), (3, 2, 9)])];
    // Four accelerators of 1, 1 and 2: three need the two small ones and the large one, or the large one and one small one.
    let (actions, _) = c.look(at(20), &views(ready(1, 0), waiting(1)), &nodes);
    let all = loads(&actions);
    let [(3, evicted, Some(0))] = &all[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(evicted.len(), 2, "{evicted:?}");
    assert!(evicted.contains(&3), "{evicted:?}");
    let nodes = [node(0, 1, &[(1, 0, 0), (2, 1, 5)])];
    let (actions, _) = c.look(at(30), &views(waiting(1), none), &nodes);
    assert_eq!(loads(&actions), [(2, vec![1], Some(0))]);
}

#[test]
fn one_node_has_to_hold_a_replica() {
    let large = ModelSpec { gpus: 2, ..MODEL };
    let mut c = on_demand(&[MODEL, large]);
    let nodes = [node(0, 1, &[]), node(1, 1, &[(7, 0, 0)])];
    let (actions, _) = c.look(at(9), &[ready(1, 0), waiting(1)], &nodes);
    assert_eq!(loads(&actions), [(1, vec![7], Some(1))]);
    // Where no node may hold it, its pod waits for one that somebody brings.
    let mut nodes = nodes.to_vec();
    nodes.iter_mut().for_each(|n| n.may = vec![true, false]);
    let (actions, _) = c.look(at(10), &[ready(1, 0), waiting(1)], &nodes);
    assert_eq!(loads(&actions), [(1, vec![], None)]);
}

#[test]
fn what_was_just_loaded_stays_for_its_residency() {
    let mut c = OnDemand::new(OnDemandSpec {
        models: vec![MODEL; 2],
        evict: Evict::Drain,
        min_residency: secs(30),
    });
    let nodes = [node(0, 0, &[(7, 0, 10)])];
    let views = [ready(1, 0), waiting(1)];
    let (actions, due) = c.look(at(39), &views, &nodes);
    assert_eq!((loads(&actions), due), (vec![], at(39) + LOOK_AGAIN));
    let (actions, _) = c.look(at(40), &views, &nodes);
    assert_eq!(loads(&actions), [(1, vec![7], Some(0))]);
}

#[test]
fn a_busy_resident_drains_or_is_left_to_its_requests() {
    let with = |evict| {
        let mut c = OnDemand::new(OnDemandSpec {
            models: vec![MODEL; 2],
            evict,
            min_residency: SimDuration::ZERO,
        });
        let nodes = [node(0, 0, &[(7, 0, 0)])];
        let busy = loads(&c.look(at(9), &[ready(3, 1), waiting(1)], &nodes).0);
        let idle = loads(&c.look(at(10), &[ready(3, 0), waiting(1)], &nodes).0);
        (busy.len(), idle.len())
    };
    assert_eq!(with(Evict::Drain), (1, 1));
    assert_eq!(with(Evict::Idle), (0, 1));
}

#[test]
fn a_persistent_model_is_not_evicted() {
    let persistent = ModelSpec {
        is_persistent: true,
        ..MODEL
    };
    let mut c = on_demand(&[persistent, MODEL]);
    let nodes = [node(0, 0, &[(7, 0, 0)])];
    let (actions, _) = c.look(at(9), &[ready(1, 0), waiting(1)], &nodes);
    assert!(loads(&actions).is_empty());
}

#[test]
fn priority_comes_before_the_order_of_waiting() {
    let first = ModelSpec {
        priority: 5,
        ..MODEL
    };
    let mut c = on_demand(&[MODEL, MODEL, first]);
    let none = ModelView::default();
    let full = [node(0, 0, &[])];
    c.look(at(1), &[none, waiting(1), none], &full);
    c.look(at(2), &[waiting(1), waiting(1), none], &full);
    c.look(at(3), &[waiting(1), waiting(1), waiting(1)], &full);
    let room = [node(0, 2, &[])];
    let views = [waiting(1), waiting(1), waiting(1)];
    let (actions, due) = c.look(at(4), &views, &room);
    // The one of high priority, then the one that waited longest; the other looks again.
    let models: Vec<usize> = loads(&actions).iter().map(|l| l.0).collect();
    assert_eq!((models, due), (vec![2, 1], at(4) + LOOK_AGAIN));
}

#[test]
fn what_is_idle_for_its_ttl_is_unloaded() {
    let kept = ModelSpec {
        ttl: Some(secs(60)),
        ..MODEL
    };
    let mut c = on_demand(&[kept, MODEL]);
    let nodes = [node(0, 0, &[(7, 0, 0), (8, 1, 0)])];
    let (_, due) = c.look(at(10), &[ready(1, 1), ready(1, 0)], &nodes);
    assert_eq!(due, at(10) + TTL_LOOK);
    // Its last request ended by the next look.
    assert!(unloads(&c.look(at(11), &[ready(1, 0), ready(1, 0)], &nodes).0).is_empty());
    assert!(unloads(&c.look(at(69), &[ready(1, 0), ready(1, 0)], &nodes).0).is_empty());
    assert_eq!(
        unloads(&c.look(at(70), &[ready(1, 0), ready(1, 0)], &nodes).0),
        [7]
    );
    // A request between two looks counts, though it has ended.
    let mut c = on_demand(&[kept, MODEL]);
    c.look(at(10), &[ready(1, 0), ready(1, 0)], &nodes);
    c.look(at(65), &[ready(2, 0), ready(1, 0)], &nodes);
    assert!(unloads(&c.look(at(80), &[ready(2, 0), ready(1, 0)], &nodes).0).is_empty());
}

#[test]
fn another_replica_is_loaded_while_requests_wait_behind_those_that_are_ready() {
    let two = ModelSpec { most: 2, ..MODEL };
    let mut c = on_demand(&[two]);
    let mut view = ready(9, 9);
    view.held = 4;
    let nodes = [node(0, 1, &[(7, 0, 0)])];
    assert_eq!(loads(&c.look(at(1), &[view], &nodes).0).len(), 1);
    view.ready = 2;
    assert!(loads(&c.look(at(2), &[view], &nodes).0).is_empty());
}

#[test]
fn what_one_model_takes_another_does_not_get_at_the_same_look() {
    let mut c = on_demand(&[MODEL; 3]);
    let nodes = [node(0, 0, &[(7, 0, 0)])];
    let (actions, due) = c.look(at(9), &[ready(1, 0), waiting(1), waiting(1)], &nodes);
    assert_eq!(loads(&actions), [(1, vec![7], Some(0))]);
    assert_eq!(due, at(9) + LOOK_AGAIN);
}
