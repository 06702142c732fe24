//! The rules of the dual-pods controller, one by one.

use super::*;

fn at(s: u64) -> SimTime {
    SimTime(s * 1_000_000_000)
}

fn direct(sleeper_limit: usize) -> DualPodsSpec {
    DualPodsSpec {
        sleeper_limit,
        ..DualPodsSpec::default()
    }
}

fn launchers(max_instances: usize, launcher_count: usize) -> DualPodsSpec {
    DualPodsSpec {
        launcher: Some(LauncherSpec {
            max_instances,
            launcher_count,
        }),
        ..DualPodsSpec::default()
    }
}

/// Which instance, how, and what was deleted.
#[track_caller]
fn bound(answer: Answer) -> (InstanceId, Path, Vec<InstanceId>) {
    match answer {
        Answer::Bound {
            instance,
            path,
            deleted,
            ..
        } => (instance, path, deleted),
        Answer::Later(at) => panic!("later: {at:?}"),
    }
}

#[test]
fn a_sleeper_is_woken_by_its_own_configuration_on_its_own_accelerators_alone() {
    let spec = direct(4);
    let mut node = NodeInstances::default();
    let (id, path, _) = bound(node.request(at(0), &spec, 0, &[1], 10));
    assert_eq!((id, path), (10, Path::Cold));
    node.asleep(at(5), 10);
    assert_eq!(bound(node.request(at(6), &spec, 0, &[0], 11)).1, Path::Cold);
    assert_eq!(bound(node.request(at(6), &spec, 1, &[2], 12)).1, Path::Cold);
    let (id, path, deleted) = bound(node.request(at(7), &spec, 0, &[1], 13));
    assert_eq!((id, path, deleted), (10, Path::Hot, vec![]));
    // It is awake now: another pod cannot have it.
    assert_eq!(bound(node.request(at(8), &spec, 0, &[1], 14)).0, 14);
}

#[test]
fn a_set_of_accelerators_matches_as_a_whole() {
    let spec = direct(4);
    let mut node = NodeInstances::default();
    bound(node.request(at(0), &spec, 0, &[0, 1], 10));
    node.asleep(at(1), 10);
    assert_eq!(bound(node.request(at(2), &spec, 0, &[0], 11)).1, Path::Cold);
    node.asleep(at(3), 11);
    assert_eq!(bound(node.request(at(4), &spec, 0, &[0, 1], 12)).0, 10);
}

#[test]
fn a_new_direct_provider_deletes_the_least_recently_used_sleepers_beyond_the_limit_of_each_accelerator()
 {
    let spec = direct(2);
    let mut node = NodeInstances::default();
    for (server, t) in [(0, 0), (1, 10), (2, 20)] {
        bound(node.request(at(t), &spec, server, &[0], server));
        node.asleep(at(t + 5), server);
    }
    // The third was made while two slept, which is within the limit; now three sleep.
    assert_eq!(node.asleep_on(0), 3);
    // Waking keeps all of them, and makes the first the last one used.
    assert_eq!(bound(node.request(at(30), &spec, 0, &[0], 9)).1, Path::Hot);
    node.asleep(at(35), 0);
    let (_, path, deleted) = bound(node.request(at(40), &spec, 3, &[0], 3));
    assert_eq!((path, deleted), (Path::Cold, vec![1]));
    assert_eq!(node.asleep_on(0), 2);
}

#[test]
fn a_limit_of_no_sleepers_leaves_none_beside_a_new_instance() {
    let spec = direct(0);
    let mut node = NodeInstances::default();
    bound(node.request(at(0), &spec, 0, &[0], 0));
    node.asleep(at(1), 0);
    // Until somebody else wants the accelerator, even then.
    assert_eq!(bound(node.request(at(2), &spec, 0, &[0], 1)).1, Path::Hot);
    node.asleep(at(3), 0);
    assert_eq!(bound(node.request(at(4), &spec, 1, &[0], 2)).2, vec![0]);
}

#[test]
fn a_launcher_with_the_sleeper_comes_before_one_with_room() {
    let spec = launchers(2, 2);
    let mut node = NodeInstances::default();
    node.populate(&spec, at(0));
    let first = bound(node.request(at(1), &spec, 0, &[0], 10));
    assert_eq!(first.1, Path::Warm);
    bound(node.request(at(1), &spec, 1, &[1], 11));
    node.asleep(at(2), 10);
    node.asleep(at(2), 11);
    // Launcher 0 has room for another, launcher 1 has the sleeper.
    assert_eq!(
        bound(node.request(at(3), &spec, 1, &[1], 12)),
        (11, Path::Hot, vec![])
    );
}

#[test]
fn a_bound_launcher_is_not_asked_and_its_sleepers_are_out_of_reach() {
    let spec = launchers(2, 1);
    let mut node = NodeInstances::default();
    node.populate(&spec, at(0));
    bound(node.request(at(1), &spec, 0, &[0], 10));
    node.asleep(at(2), 10);
    assert_eq!(bound(node.request(at(3), &spec, 1, &[1], 11)).1, Path::Warm);
    // One instance of a launcher is awake at most: the sleeper of the same launcher cannot be woken, and a new launcher is made.
    let (id, path, deleted) = bound(node.request(at(4), &spec, 0, &[0], 12));
    assert_eq!((id, path, deleted), (12, Path::Cold, vec![]));
    assert_eq!(node.count_asleep(), 1);
}

#[test]
fn a_launcher_without_room_gives_up_its_least_recently_used_instance() {
    let spec = launchers(2, 1);
    let mut node = NodeInstances::default();
    node.populate(&spec, at(0));
    for (server, t) in [(0, 1), (1, 11)] {
        bound(node.request(at(t), &spec, server, &[0], server));
        node.asleep(at(t + 5), server);
    }
    let (id, path, deleted) = bound(node.request(at(20), &spec, 2, &[0], 2));
    assert_eq!((id, path, deleted), (2, Path::Warm, vec![0]));
}

#[test]
fn a_launcher_has_one_instance_of_each_configuration() {
    let spec = launchers(3, 1);
    let mut node = NodeInstances::default();
    node.populate(&spec, at(0));
    bound(node.request(at(1), &spec, 0, &[0], 10));
    node.asleep(at(2), 10);
    // The same configuration on another accelerator wants the same port.
    assert_eq!(
        bound(node.request(at(3), &spec, 0, &[1], 11)),
        (11, Path::Warm, vec![10])
    );
}

#[test]
fn of_launchers_without_room_the_one_that_needs_most_deletions_is_reclaimed() {
    // Made under a limit of three, reclaimed under one of two: launcher 1 is over it.
    let (wide, narrow) = (launchers(3, 2), launchers(2, 2));
    let mut node = NodeInstances::default();
    node.populate(&wide, at(0));
    bound(node.request(at(1), &wide, 0, &[0], 0));
    for server in [1, 2, 3] {
        bound(node.request(at(10 + server as u64), &wide, server, &[1], server));
        node.asleep(at(20 + server as u64), server);
    }
    node.asleep(at(2), 0);
    bound(node.request(at(30), &wide, 4, &[0], 4));
    node.asleep(at(31), 4);
    let (_, path, deleted) = bound(node.request(at(40), &narrow, 5, &[0], 5));
    assert_eq!((path, deleted), (Path::Warm, vec![1, 2]));
}

#[test]
fn launchers_that_have_not_started_are_waited_for() {
    let spec = launchers(2, 1);
    let mut node = NodeInstances::default();
    node.populate(&spec, at(50));
    let answer = node.request(at(1), &spec, 0, &[0], 10);
    assert_eq!(answer, Answer::Later(at(50)));
    assert_eq!(
        bound(node.request(at(50), &spec, 0, &[0], 10)).1,
        Path::Warm
    );
}

#[test]
fn the_budget_of_a_node_counts_instances_awake_and_asleep() {
    let spec = DualPodsSpec {
        node_max_instances: 3,
        ..direct(8)
    };
    let mut node = NodeInstances::default();
    for (server, gpu) in [(0, 0), (1, 1), (2, 2)] {
        bound(node.request(at(server as u64), &spec, server, &[gpu], server));
    }
    node.asleep(at(10), 1);
    node.asleep(at(11), 0);
    assert_eq!(bound(node.request(at(12), &spec, 3, &[3], 3)).2, vec![1]);
    assert_eq!(node.len(), 3);
    // With nobody asleep there is nobody to delete: those awake stay.
    bound(node.request(at(13), &spec, 0, &[0], 9));
    assert!(bound(node.request(at(14), &spec, 4, &[1], 4)).2.is_empty());
}

#[test]
fn host_memory_holds_what_slept_once_and_makes_room_by_deleting_sleepers() {
    let spec = direct(8);
    let mut node = NodeInstances::default();
    for (server, gpu) in [(0, 0), (1, 1), (2, 2)] {
        bound(node.request(at(server as u64), &spec, server, &[gpu], server));
    }
    assert_eq!(node.make_host_room(0, 40, Some(100)), Some(vec![]));
    node.asleep(at(10), 0);
    assert_eq!(node.make_host_room(1, 40, Some(100)), Some(vec![]));
    node.asleep(at(11), 1);
    assert_eq!(node.host_bytes(), 80);
    // The third deletes the one that was used least recently.
    assert_eq!(node.make_host_room(2, 40, Some(100)), Some(vec![0]));
    node.asleep(at(12), 2);
    // An instance that was woken keeps its copy, and needs no second one.
    bound(node.request(at(13), &spec, 1, &[1], 9));
    assert_eq!(node.host_bytes(), 80);
    assert_eq!(node.make_host_room(1, 40, Some(100)), Some(vec![]));
    // More than the host has, or than those awake leave, finds no room, and deletes nobody.
    assert_eq!(node.make_host_room(2, 101, Some(100)), None);
    assert_eq!(node.make_host_room(2, 70, Some(100)), None);
    assert_eq!(node.len(), 2);
    assert_eq!(node.make_host_room(2, 70, None), Some(vec![]));
}

#[test]
fn an_instance_that_ends_frees_its_launcher() {
    let spec = launchers(1, 1);
    let mut node = NodeInstances::default();
    node.populate(&spec, at(0));
    bound(node.request(at(1), &spec, 0, &[0], 10));
    node.delete(10);
    assert!(node.is_empty());
    assert_eq!(bound(node.request(at(2), &spec, 1, &[0], 11)).1, Path::Warm);
}
