//! The cluster in a trace: a lane for each node, pod, sleeping instance and controller, and counters of replicas, nodes and held requests.

use std::fmt::Arguments;
use std::io::{self, Write};

use super::{Events, Shown, micros};
use crate::control::actuation::Path;
use crate::kernel::time::SimTime;
use crate::kube::record::{ClusterRecord, Controller, DecisionRow, NodeRow, PodRow};
use crate::report::actuation::instance_name;

/// Processes of the cluster: after those of any number of replicas.
const CONTROLLERS: u64 = 5_000_000_001;
const NODES: u64 = 5_000_000_002;
const PODS: u64 = 5_000_000_003;
const INSTANCES: u64 = 5_000_000_004;

/// Text as JSON: names are the user's and may hold any character.
fn json(text: &str) -> io::Result<String> {
    Ok(serde_json::to_string(text)?)
}

/// One lane of a process.
struct Track<'a, W> {
    w: &'a mut Events<W>,
    shown: &'a Shown,
    pid: u64,
    tid: usize,
    end: SimTime,
}

impl<W: Write> Track<'_, W> {
    fn name(&mut self, name: &str) -> io::Result<()> {
        let (pid, tid, name) = (self.pid, self.tid, json(name)?);
        self.w.event(format_args!(
            r#""ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":{name}}}"#
        ))
    }

    /// What lasts from one instant to another, where both were reached.
    fn slice(&mut self, name: &str, from: SimTime, to: SimTime, args: Arguments) -> io::Result<()> {
        let to = to.min(self.end);
        if from >= to || !self.shown.span(from, to) {
            return Ok(());
        }
        let (pid, tid) = (self.pid, self.tid);
        let length = SimTime(to.since(from).0);
        self.w.event(format_args!(
            r#""ph":"X","cat":"cluster","name":"{name}","pid":{pid},"tid":{tid},"ts":{},"dur":{},"args":{{{args}}}"#,
            micros(from),
            micros(length)
        ))
    }
}

/// Writes the lanes of `c`, as far as `shown` lets them through.
pub(super) fn write<W: Write>(
    w: &mut Events<W>,
    c: &ClusterRecord,
    shown: &Shown,
) -> io::Result<()> {
    for (pid, name) in [
        (CONTROLLERS, "controllers"),
        (NODES, "nodes"),
        (PODS, "pods"),
    ] {
        w.event(format_args!(
            r#""ph":"M","name":"process_name","pid":{pid},"args":{{"name":"{name}"}}"#
        ))?;
    }
    for (tid, node) in c.nodes.iter().enumerate() {
        let end = c.end;
        let mut track = Track {
            w,
            shown,
            pid: NODES,
            tid,
            end,
        };
        node_lane(&mut track, node)?;
    }
    for (tid, pod) in c.pods.iter().enumerate() {
        let mut track = Track {
            w,
            shown,
            pid: PODS,
            tid,
            end: c.end,
        };
        pod_lane(&mut track, c, pod)?;
    }
    instances(w, c, shown)?;
    controllers(w, c, shown)?;
    counters(w, c, shown)
}

fn node_lane<W: Write>(t: &mut Track<W>, node: &NodeRow) -> io::Result<()> {
    t.name(&node.name)?;
    let (gone, group, instance) = (node.gone, json(&node.group)?, json(&node.instance)?);
    let what = if node.is_refused { "refused" } else { "boot" };
    t.slice(
        what,
        node.requested,
        node.ready.min(gone),
        format_args!(r#""group":{group},"instance":{instance}"#),
    )?;
    t.slice(
        "device plugin",
        node.ready,
        node.usable.min(gone),
        format_args!(""),
    )?;
    t.slice(
        "usable",
        node.usable,
        node.tainted.min(gone),
        format_args!(""),
    )?;
    let why = json(&node.why_gone)?;
    t.slice("to go", node.tainted, gone, format_args!(r#""why":{why}"#))
}

fn pod_lane<W: Write>(t: &mut Track<W>, c: &ClusterRecord, pod: &PodRow) -> io::Result<()> {
    t.name(&pod.name)?;
    let node = json(c.node_of(pod).map_or("none", |n| n.name.as_str()))?;
    let why = json(&pod.unschedulable)?;
    let none = format_args!("");
    let until = |at: SimTime| at.min(pod.gone);
    t.slice(
        "Pending",
        pod.created,
        until(pod.scheduled),
        format_args!(r#""reason":{why}"#),
    )?;
    t.slice(
        "image pull",
        pod.scheduled,
        until(pod.started),
        format_args!(r#""node":{node}"#),
    )?;
    t.slice("weights load", pod.started, until(pod.loaded), none)?;
    t.slice("gang wait", pod.loaded, until(pod.gang_loaded), none)?;
    let init = match pod.path {
        Some(Path::Hot) => "waking",
        _ => "engine init",
    };
    t.slice(init, pod.gang_loaded, until(pod.up), none)?;
    t.slice("readiness", pod.up, until(pod.ready), none)?;
    let replica = &c.replicas[pod.replica];
    for (engine, from, to) in &replica.served {
        // Starts before the last one are told by what they served.
        t.slice(
            "ready",
            *from,
            until(*to),
            format_args!(r#""replica":{engine}"#),
        )?;
    }
    let why = json(&replica.why_gone)?;
    t.slice(
        "draining",
        replica.draining,
        pod.gone,
        format_args!(r#""why":{why}"#),
    )
}

/// A lane for each vLLM instance that may sleep: awake for which pod, and asleep.
fn instances<W: Write>(w: &mut Events<W>, c: &ClusterRecord, shown: &Shown) -> io::Result<()> {
    let Some(a) = &c.actuation else {
        return Ok(());
    };
    w.event(format_args!(
        r#""ph":"M","name":"process_name","pid":{INSTANCES},"args":{{"name":"instances"}}"#
    ))?;
    for (tid, i) in a.instances.iter().enumerate() {
        let mut t = Track {
            w,
            shown,
            pid: INSTANCES,
            tid,
            end: c.end,
        };
        t.name(&instance_name(c, i))?;
        for p in i.pods.iter().filter_map(|p| c.pods.get(*p)) {
            let pod = json(&p.name)?;
            let pod = format_args!(r#""pod":{pod}"#);
            let start = match p.path {
                Some(Path::Hot) => "wakes",
                _ => "starts",
            };
            t.slice(start, p.started, p.up.min(p.gone), pod)?;
            let serving = c.replicas.get(p.replica);
            let falls = serving.map_or(SimTime::NEVER, |r| r.draining);
            t.slice("awake", p.up, falls.min(p.gone), pod)?;
            t.slice("drains, falls asleep", falls, p.gone, pod)?;
        }
        for (from, to) in &i.naps {
            t.slice("asleep", *from, *to, format_args!(""))?;
        }
    }
    Ok(())
}

fn controllers<W: Write>(w: &mut Events<W>, c: &ClusterRecord, shown: &Shown) -> io::Result<()> {
    let mut known: Vec<(Controller, Option<&str>)> = Vec::new();
    for d in &c.decisions {
        // With several deployments each HPA has a lane of its own.
        let of = (c.deployments.len() > 1)
            .then(|| d.about.strip_suffix(" replicas"))
            .flatten();
        let lane = (d.controller, of);
        let tid = match known.iter().position(|k| *k == lane) {
            Some(tid) => tid,
            None => {
                known.push(lane);
                let name = match of {
                    Some(of) => json(&format!("{} of {of}", d.controller.name()))?,
                    None => json(d.controller.name())?,
                };
                let tid = known.len() - 1;
                w.event(format_args!(
                    r#""ph":"M","name":"thread_name","pid":{CONTROLLERS},"tid":{tid},"args":{{"name":{name}}}"#
                ))?;
                tid
            }
        };
        if shown.span(d.at, SimTime(d.at.0.saturating_add(1))) {
            decision(w, tid, d)?;
        }
    }
    Ok(())
}

fn decision<W: Write>(w: &mut Events<W>, tid: usize, d: &DecisionRow) -> io::Result<()> {
    let name = match d.from == d.to {
        true => format!("{}: {} kept", d.about, d.from),
        false => format!("{}: {} to {}", d.about, d.from, d.to),
    };
    let (name, why, inputs) = (json(&name)?, json(&d.why)?, json(&d.inputs)?);
    w.event(format_args!(
        r#""ph":"i","s":"t","cat":"cluster","name":{name},"pid":{CONTROLLERS},"tid":{tid},"ts":{},"args":{{"why":{why},"inputs":{inputs},"ready":{}}}"#,
        micros(d.at),
        d.ready
    ))
}

fn counters<W: Write>(w: &mut Events<W>, c: &ClusterRecord, shown: &Shown) -> io::Result<()> {
    for s in &c.samples {
        if !shown.span(s.at, SimTime(s.at.0.saturating_add(1))) {
            continue;
        }
        for (name, args) in [
            (
                "replicas",
                format!(r#""wanted":{},"ready":{}"#, s.desired, s.ready),
            ),
            (
                "node count",
                format!(r#""ready":{},"booting":{}"#, s.nodes, s.booting_nodes),
            ),
            ("requests held", format!(r#""held":{}"#, s.held)),
        ] {
            counter(w, &json(name)?, s.at, &args)?;
        }
    }
    for d in &c.deployments {
        let name = json(&format!("{} replicas", d.name))?;
        for s in &d.samples {
            if shown.span(s.at, SimTime(s.at.0.saturating_add(1))) {
                let args = format!(r#""wanted":{},"ready":{}"#, s.desired, s.ready);
                counter(w, &name, s.at, &args)?;
            }
        }
    }
    Ok(())
}

/// The height of a counter at an instant; `name` is JSON.
fn counter<W: Write>(w: &mut Events<W>, name: &str, at: SimTime, args: &str) -> io::Result<()> {
    w.event(format_args!(
        r#""ph":"C","name":{name},"pid":{CONTROLLERS},"ts":{},"args":{{{args}}}"#,
        micros(at)
    ))
}
