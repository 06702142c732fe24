//! `servetwin demo --autoscale`: the engine's replicas scaled by the simulator's own controllers on the wall clock, beside the simulation of it.
//!
//! The step model is fitted on one replica alone. Then the same scenario is played twice: by the engine under [`Fleet`], with the scenario's
//! load on its port, and by the simulator.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bench::driver::Options;
use bench::endpoint::Endpoint;
use bench::session::{Preparation, Session};
use calibrate::demo::cases::Pace;
use calibrate::demo::scaling::{Agreement, Course, agreement, render};
use calibrate::demo::{Case, Paces};
use engine::fleet::Fleet;
use engine::http::server::Server;
use engine::launch::{LaunchOptions, MakeExecutor, launch_elastic};
use serde::Serialize;
use sim::kernel::time::SimTime;
use sim::kube::record::ClusterRecord;
use sim::record::RequestRow;
use sim::scenario::Scenario;

use super::{Args, KV_BLOCKS, Lab, THREADS};
use crate::cluster_plot;
use crate::cluster_tables;
use crate::commands::serve::{Around, around};
use crate::exit_code;
use crate::output::{FileSet, print, print_json, write_file, write_text};
use crate::progress;
use crate::simulate::{Keep, Path as SimPath, simulate};

/// Parameters of the model: few, so that four replicas leave a machine of two cores time to spare.
const PARAMS: &str = "3M";
/// Least time of a step [ms]: the replicas stand in for devices that decode at 40 tokens/s.
const STEP_MS: u64 = 25;
/// Requests that run at once on a replica.
const SEQS: u32 = 8;
/// Period of the autoscaler [s]: the scenario's `sync-period`.
const PERIOD_S: f64 = 3.0;
/// Length of the load [s].
const SECONDS: f64 = 120.0;
/// Replicas at most, and nodes of one accelerator.
const MOST: u32 = 4;

/// What scales the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scaler {
    /// HorizontalPodAutoscaler on requests that run and wait, 1 to 4 replicas.
    Hpa,
    /// KEDA on requests in hand, 0 to 4 replicas: from zero and back to it.
    Keda,
}

impl Scaler {
    /// Load as stretches of a rate [req/s] and a length [s]. HPA: little to do, four times as much as one replica carries, little again.
    /// KEDA: the same, but between them nothing for so long that no replica is left.
    fn load(self) -> &'static [(f64, f64)] {
        match self {
            Scaler::Hpa => &[(3.0, 20.0), (18.0, 45.0), (2.0, 55.0)],
            Scaler::Keda => &[(3.0, 20.0), (18.0, 40.0), (0.0, 35.0), (3.0, 25.0)],
        }
    }

    /// Replicas at first.
    fn replicas(self) -> u32 {
        match self {
            Scaler::Hpa => 1,
            Scaler::Keda => 0,
        }
    }

    fn section(self) -> String {
        let behavior = r#"behavior = { scaleDown = { stabilizationWindowSeconds = 9, policies = [{ type = "Pods", value = 1, periodSeconds = 6 }] } }"#;
        let flags = format!(r#"flags = {{ sync-period = "{PERIOD_S} s" }}"#);
        match self {
            Scaler::Hpa => format!(
                r#"[autoscaler.hpa]
minReplicas = 1
maxReplicas = {MOST}
metrics = [
    {{ type = "Pods", metric = "vllm:num_requests_running", averageValue = 5, rule = "avg_over_time", window = "4 s" }},
    {{ type = "Pods", metric = "vllm:num_requests_waiting", averageValue = 4, rule = "avg_over_time", window = "4 s" }},
]
{behavior}
{flags}
"#
            ),
            Scaler::Keda => format!(
                r#"[autoscaler.keda]
minReplicaCount = 0
maxReplicaCount = {MOST}
pollingInterval = {PERIOD_S}
cooldownPeriod = 9
triggers = [{{ metric = "llm_d_epp_inflight", threshold = 6 }}]
{behavior}
{flags}
"#
            ),
        }
    }
}

/// The loads that the step model is fitted on, each on one replica.
fn fitted() -> [Case; 2] {
    let case = |name, pace| Case {
        name,
        shows: "one replica",
        fitted: true,
        pace,
        workload: "prompt = { kind = \"uniform\", min = 16, max = 96 }\noutput = { kind = \"uniform\", min = 8, max = 64 }",
        engine: ["max_num_seqs = 8", "--max-num-seqs 8 --min-step 25"],
        layout: [1, 1, 1],
    };
    [
        case("one-user", Pace::Users(1)),
        case("users-8", Pace::Users(SEQS)),
    ]
}

/// What both sides play, `lead` after the controllers have begun [s].
fn scenario(model: &str, scaler: Scaler, lead: f64) -> String {
    let idle = (lead > 0.0).then_some((0.0, lead));
    let steps: Vec<String> = (idle.iter().chain(scaler.load()))
        .map(|(rate, seconds)| format!(r#"{{ rate = "{rate} req/s", duration = "{seconds} s" }}"#))
        .collect();
    format!(
        r#"name = "autoscale"
description = "The bundled engine under an autoscaler, in seconds rather than minutes."

[model]
config = {model}
kv_cache = "fp32"

[hardware]
step_profile = "profile.toml"

[engine]
kind = "vllm_v1"
kv_blocks = {KV_BLOCKS}
async_scheduling = false
max_num_seqs = {SEQS}

[router]
policy = "least_outstanding"

[[workload]]
name = "load"
arrival = {{ kind = "steps", steps = [{steps}] }}
prompt = {{ kind = "uniform", min = 16, max = 96 }}
output = {{ kind = "uniform", min = 16, max = 64 }}

[run]
duration = "{seconds} s"

[cluster]
replicas = {replicas}
gateway = "queue"
sample = "500 ms"

[[cluster.node_group]]
name = "nodes"
min = {MOST}
max = {MOST}
accelerators = 1

[cluster.pod]
image_pull = "1 s"
weights_load = "1 s"
engine_init = "500 ms"
periodSeconds = 1
terminationGracePeriodSeconds = 30

[autoscaler.metrics]
scrape_interval = "1 s"
evaluation_interval = "1 s"
metrics_relist_interval = "2 s"

{section}"#,
        model = toml::Value::from(model),
        steps = steps.join(", "),
        seconds = SECONDS + lead,
        replicas = scaler.replicas(),
        section = scaler.section(),
    )
}

/// What one side did.
struct Played {
    cluster: ClusterRecord,
    rows: Vec<RequestRow>,
    /// When the load began on the cluster's clock.
    sent: SimTime,
    unfinished: u64,
}

impl Played {
    fn course(&self) -> Course {
        Course::new(&self.cluster, &self.rows, self.sent, SECONDS)
    }
}

#[derive(Serialize)]
struct Report<'a> {
    agreement: &'a Agreement,
    period_s: f64,
    measured: &'a Course,
    predicted: &'a Course,
    unfinished: u64,
    predicted_unfinished: u64,
}

/// Measures, simulates, compares.
pub(super) fn run(args: &Args, scaler: Scaler) -> anyhow::Result<u8> {
    let out =
        (args.out.clone()).unwrap_or_else(|| std::env::temp_dir().join("servetwin-autoscale"));
    let lab = Lab::new(out, PARAMS)?;
    note!(
        "two loads of {:.0} s to fit the step model of one replica, then {SECONDS:.0} s under the autoscaler",
        args.seconds
    );
    fit(&lab, args.seconds)?;
    let load = |lead: f64| {
        let file = lab.out.join("autoscale.toml");
        let text = scenario(&format!("{}/config.json", lab.model), scaler, lead);
        write_text(&file, &text)?;
        anyhow::Ok(Scenario::load(&file, &[])?)
    };

    let spinner = progress::spinner("the engine under the autoscaler");
    let measured = measure(&lab, &load(0.0)?)?;
    spinner.set_message("simulating it");
    // The controllers had looked for so long when the first request could come: their periods fall at these instants of the load.
    let predicted = predict(&load(measured.sent.as_secs())?)?;
    spinner.finish_and_clear();

    for (name, played) in [("measured", &measured), ("predicted", &predicted)] {
        let dir = lab.out.join(name);
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let mut files = FileSet::new();
        cluster_tables::write(&mut files, &dir, &played.cluster)?;
        files.commit()?;
        let svg = cluster_plot::svg(&format!("autoscale, {name}"), &played.cluster, &[])?;
        write_text(&dir.join("cluster.svg"), &svg)?;
    }
    let (m, p) = (measured.course(), predicted.course());
    let agreement = agreement(&m, &p, PERIOD_S);
    let report = Report {
        agreement: &agreement,
        period_s: PERIOD_S,
        measured: &m,
        predicted: &p,
        unfinished: measured.unfinished,
        predicted_unfinished: predicted.unfinished,
    };
    write_file(&lab.out.join("autoscale.json"), |w| {
        serde_json::to_writer_pretty(&mut *w, &report)?;
        std::io::Write::write_all(w, b"\n")
    })?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&render(&m, &p, &agreement))?;
        print(&format!(
            "requests that did not finish: {} measured, {} predicted\n",
            measured.unfinished, predicted.unfinished
        ))?;
    }
    note!(
        "tables and plots of both sides, the scenario and the profile are in {}",
        lab.out.display()
    );
    Ok(exit_code::OK)
}

/// Fits the step model on one replica, whose steps take at least [`STEP_MS`].
fn fit(lab: &Lab, seconds: f64) -> anyhow::Result<()> {
    let paces = Paces {
        busy_per_s: f64::INFINITY,
        seconds,
    };
    let cases = fitted();
    let mut runs = Vec::new();
    for case in &cases {
        runs.push((case, vec![lab.measure(case, &paces, 0)?]));
    }
    let mut failed = Vec::new();
    lab.fit(&runs, &[], &mut failed)?;
    match failed.first() {
        Some(f) => Err(anyhow!("{}: {}", f.name, f.why)),
        None => Ok(()),
    }
}

/// The scenario's load on the engine, whose replicas the scenario's cluster starts and ends.
fn measure(lab: &Lab, scenario: &Scenario) -> anyhow::Result<Played> {
    let around = around(scenario)?.ok_or_else(|| anyhow!("the scenario has no cluster"))?;
    let mut keys = toml::Table::new();
    keys.insert("max_num_seqs".into(), i64::from(SEQS).into());
    let (service, make) = launch_elastic(&LaunchOptions {
        model: Some(lab.out.join(&lab.model)),
        keys,
        num_kv_blocks: Some(KV_BLOCKS),
        router: "least_outstanding".into(),
        threads: Some(THREADS as usize),
        min_step: Duration::from_millis(STEP_MS),
        ..LaunchOptions::default()
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the thread that serves HTTP")?;
    let engine = service.engine.clone();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = runtime.block_on(Server::bind(address, service))?;
    let url = format!("http://{}", server.address()?);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(server.run(
        async {
            let _ = stopped.await;
        },
        std::future::pending(),
        Duration::from_secs(1),
    ));
    let played = under_load(&engine, around, make, &url, scenario);
    let _ = stop.send(());
    let _ = runtime.block_on(serving);
    engine.stop()?;
    played
}

fn under_load(
    engine: &std::sync::Arc<engine::engine::Engine>,
    (cluster, steps): Around,
    mut make: MakeExecutor,
    url: &str,
    scenario: &Scenario,
) -> anyhow::Result<Played> {
    // A replica of its own answers what the client asks before the load.
    let first = engine.join(make()?)?;
    let session = Session::prepare(Endpoint::new(url)?, &Preparation::default())?;
    engine.drain(first);
    let began = std::time::SystemTime::now();
    let fleet = Fleet::start(engine.clone(), cluster, steps, make)?;
    let options = Options {
        end: Some(Duration::from_secs_f64(SECONDS + 60.0)),
        ..Options::default()
    };
    let bench = session.run(scenario, &options);
    let cluster = fleet.stop()?;
    let bench = bench?;
    let began_s = began
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64());
    Ok(Played {
        cluster: cluster.ok_or_else(|| anyhow!("the controllers have ended before"))?,
        unfinished: bench.record.counts.offered - bench.record.counts.finished,
        rows: bench.record.request_rows.unwrap_or_default(),
        sent: SimTime(((bench.client.started_unix_s - began_s).max(0.0) * 1e9) as u64),
    })
}

/// The same in the simulator.
fn predict(scenario: &Scenario) -> anyhow::Result<Played> {
    let run = simulate(scenario, scenario.seed, Keep::Requests, SimPath::Auto, None)?;
    let record = run.record;
    Ok(Played {
        cluster: (record.cluster).ok_or_else(|| anyhow!("the run had no cluster"))?,
        unfinished: record.counts.offered - record.counts.finished,
        rows: record.request_rows.unwrap_or_default(),
        sent: SimTime::ZERO,
    })
}
