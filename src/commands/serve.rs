//! `servetwin serve`: the bundled engine behind OpenAI's HTTP interface.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use engine::fleet::Fleet;
use engine::http::Ignored;
use engine::http::server::Server;
use engine::launch::{
    DEFAULT_MAX_BODY_BYTES, DEFAULT_QUEUE_LIMIT, LaunchError, LaunchOptions, launch, launch_elastic,
};
use hwmodels::{EngineKind, StepModel};
use kernels::dtype::WeightDtype;
use serde_json::json;
use sim::kube::Cluster;
use sim::scenario::Scenario;

use crate::bad_input::BadInput;
use crate::cluster_tables;
use crate::exit_code;
use crate::output::{self, FileSet, print};
use crate::signals::signals;

/// Threads that serve HTTP beside those that compute.
const HTTP_THREADS: usize = 2;

/// Serve a model on this machine's CPU with the simulator's schedulers, over OpenAI's HTTP interface.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin serve                                   # a small random model, vLLM V1's policy, port 8000
  servetwin serve ./model --port 0 --json           # prints the address as one line of JSON when ready
  servetwin serve --policy tgi --set max_total_tokens=2048 --step-log steps.csv
  servetwin serve --autoscale scenarios/cluster-flash-crowd.toml --min-step 25
  curl -N localhost:8000/v1/completions -H 'content-type: application/json' \\
    -d '{\"prompt\": \"Hello\", \"max_tokens\": 16, \"stream\": true}'

Ends on SIGTERM or SIGINT, after the requests under way; a second signal ends it at once.")]
pub struct Args {
    /// Folder with config.json, model.safetensors and tokenizer.json [default: a built-in random model].
    model: Option<PathBuf>,
    /// Name under which the model is served [default: its folder's].
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Which system's scheduling policy.
    #[arg(long, value_enum, default_value = "vllm-v1")]
    policy: PolicyName,
    /// A parameter of the policy under its own name, as in a scenario's [engine]. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// vLLM: requests that may run at once.
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<u32>,
    /// vLLM: token budget of a step.
    #[arg(long, value_name = "TOKENS")]
    max_num_batched_tokens: Option<u32>,
    /// vLLM: longest prompt and output together.
    #[arg(long, value_name = "TOKENS")]
    max_model_len: Option<u32>,
    /// vLLM: tokens per KV block.
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<u32>,
    /// vLLM: find prompts in the prefix cache (V1: the default).
    #[arg(long, overrides_with = "no_enable_prefix_caching")]
    enable_prefix_caching: bool,
    /// vLLM: no prefix cache.
    #[arg(long)]
    no_enable_prefix_caching: bool,
    /// vLLM V1: order of the queue, fcfs or priority.
    #[arg(long, value_name = "ORDER")]
    scheduling_policy: Option<String>,
    /// KV blocks of a replica [default: as many as 512 MiB hold].
    #[arg(long, value_name = "N")]
    num_kv_blocks: Option<u64>,
    /// Tensor-parallel ranks of a replica.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        alias = "tensor-parallel-size"
    )]
    tp: u32,
    /// Pipeline stages of a replica.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        alias = "pipeline-parallel-size"
    )]
    pp: u32,
    /// Data-parallel replicas behind the router.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        alias = "data-parallel-size"
    )]
    replicas: u32,
    /// How a request finds its replica: a router of scenario files.
    #[arg(long, value_name = "NAME", default_value = "round_robin")]
    router: String,
    /// Threads of each rank [default: the machine's cores over all ranks].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Format of weights and KV cache: f32, bf16, f16 [default: the files'].
    #[arg(long)]
    dtype: Option<WeightDtype>,
    /// Least time of a step [ms]: the engine sleeps for the rest, as if a slower device computed.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    min_step: f64,
    /// Let the [cluster] and [autoscaler] of a scenario file start and end replicas, on the wall clock; requests wait while there is none.
    #[arg(long, value_name = "FILE", conflicts_with = "replicas")]
    autoscale: Option<PathBuf>,
    /// With --autoscale: write what it did to DIR when the server ends (scaling, pods, nodes, replicas).
    #[arg(long, value_name = "DIR", requires = "autoscale")]
    cluster_csv: Option<PathBuf>,
    /// Log every step to FILE, and requests and policy to files beside it (docs/engine.md).
    #[arg(long, value_name = "FILE")]
    step_log: Option<PathBuf>,
    /// Key that callers must send as `Authorization: Bearer KEY`.
    #[arg(
        long,
        value_name = "KEY",
        env = "SERVETWIN_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// Most requests that wait for their first step; one more is answered 429.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_QUEUE_LIMIT)]
    queue_limit: u64,
    /// Largest request body; a larger one is answered 413.
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MAX_BODY_BYTES)]
    max_body_bytes: usize,
    /// How long requests under way may take to finish at shutdown.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    drain_timeout: f64,
    /// Print the ready line as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    #[value(alias = "vllm", alias = "vllm_v1")]
    VllmV1,
    Tgi,
    #[value(alias = "tgi_neuron")]
    TgiNeuron,
    #[value(alias = "trt_llm")]
    TrtLlm,
    #[value(alias = "llama_cpp")]
    LlamaCpp,
    /// SGLang: prefill before decode; always without its overlap scheduler here.
    Sglang,
    Static,
}

impl PolicyName {
    fn kind(self) -> EngineKind {
        match self {
            PolicyName::VllmV1 => EngineKind::VllmV1,
            PolicyName::Tgi => EngineKind::Tgi,
            PolicyName::TgiNeuron => EngineKind::TgiNeuron,
            PolicyName::TrtLlm => EngineKind::TrtLlm,
            PolicyName::LlamaCpp => EngineKind::LlamaCpp,
            PolicyName::Sglang => EngineKind::Sglang,
            PolicyName::Static => EngineKind::Static,
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let drain = Duration::try_from_secs_f64(args.drain_timeout).map_err(|_| {
        BadInput(format!(
            "--drain-timeout must be seconds from 0 on, got {}",
            args.drain_timeout
        ))
    })?;
    if let Some(log) = &args.step_log {
        output::check_step_log(log, args.model.as_deref())?;
    }
    if args
        .api_key
        .as_ref()
        .is_some_and(|k| k.trim() != k || k.is_empty())
    {
        return Err(BadInput(
            "--api-key must not be empty, nor begin or end with a space: no caller could send it"
                .into(),
        )
        .into());
    }
    if !(0.0..=60_000.0).contains(&args.min_step) {
        return Err(BadInput(format!(
            "--min-step: must be from 0 to 60000 ms, got {}",
            args.min_step
        ))
        .into());
    }
    let options = options(&args)?;
    let wrong = |e: LaunchError| match e {
        e if e.is_input() => anyhow::Error::from(BadInput(e.to_string())),
        e => e.into(),
    };
    let (service, around) = match &args.autoscale {
        None => (launch(&options).map_err(wrong)?, None),
        Some(file) => {
            let cluster = cluster(file, args.cluster_csv.as_deref())?;
            let (service, make) = launch_elastic(&options).map_err(wrong)?;
            (service, Some((cluster, make)))
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .enable_all()
        .build()
        .context("cannot start the threads that serve HTTP")?;
    let engine = service.engine.clone();
    let asked = service.clone();
    let address = SocketAddr::new(args.host, args.port);
    let (drained, fleet) = runtime.block_on(async {
        let (stop, hurry) = signals().context("cannot listen for signals")?;
        let under_way = engine.clone();
        let stop = async move {
            stop.await;
            note!(
                "shutting down: {} under way may take {} s; a second signal ends them at once",
                requests(under_way.under_way()),
                args.drain_timeout
            );
        };
        let server = Server::bind(address, service)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        warn_if_open(server.address()?, args.api_key.is_some());
        let url = format!("http://{}", server.address()?);
        let fleet = around
            .map(|((cluster, steps), make)| Fleet::start(engine.clone(), cluster, steps, make))
            .transpose()
            .context("cannot start the controllers")?;
        ready(&url, engine.model(), engine.max_model_len(), args.json)?;
        anyhow::Ok((server.run(stop, hurry, drain).await, fleet))
    })?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    let record = fleet.map(|f| f.stop()).transpose()?.flatten();
    engine.stop().context("cannot write the step log")?;
    if let (Some(record), Some(dir)) = (record, &args.cluster_csv) {
        let mut files = FileSet::new();
        cluster_tables::write(&mut files, dir, &record)?;
        files.commit()?;
    }
    note!(
        "shut down: of the requests under way {} finished, {} were cut off{}",
        drained.finished,
        drained.cut,
        if drained.cut > 0 {
            " (a longer --drain-timeout gives them more time)"
        } else {
            ""
        }
    );
    say_ignored(&asked.ignored);
    Ok(exit_code::OK)
}

/// Names the fields of requests that were ignored, where there were any.
fn say_ignored(ignored: &Ignored) {
    let each: Vec<String> = (ignored.counts().iter())
        .map(|(name, n)| format!("{name} ({})", requests(*n)))
        .collect();
    if !each.is_empty() {
        note!(
            "fields that requests had and this server does not know: {}; they were ignored",
            each.join(", ")
        );
    }
}

/// The cluster around an engine's replicas, and what its controllers believe of their steps.
pub(super) type Around = (Cluster, Arc<dyn StepModel>);

/// The cluster of a scenario, where it has one.
///
/// # Errors
/// [`BadInput`] where it cannot be built.
pub(super) fn around(scenario: &Scenario) -> anyhow::Result<Option<Around>> {
    if scenario.cluster.is_some() && !scenario.pools.is_empty() {
        let message = "pools on a cluster are simulated only: the engines here are all alike; leave [[pool]] out";
        return Err(BadInput(message.to_owned()).into());
    }
    let built = scenario.build().map_err(|e| BadInput(e.to_string()))?;
    let steps = (built.simulation.replicas.first()).map(|r| r.step.clone());
    let Some((spec, steps)) = built.cluster.zip(steps) else {
        return Ok(None);
    };
    let cluster = Cluster::new(spec, scenario.seed).map_err(BadInput)?;
    Ok(Some((cluster, steps)))
}

/// The cluster of a scenario file; that its record can be written.
fn cluster(file: &Path, csv: Option<&Path>) -> anyhow::Result<Around> {
    output::reads([file]);
    if let Some(dir) = csv {
        output::check_dir(dir, &cluster_tables::TABLES)?;
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let scenario = Scenario::load(file, &[]).map_err(|e| BadInput(e.to_string()))?;
    around(&scenario)?.ok_or_else(|| {
        BadInput(format!(
            "{}: has no [cluster], so that there is nothing to scale; scenarios/cluster-flash-crowd.toml shows one",
            file.display()
        ))
        .into()
    })
}

fn requests(n: u64) -> String {
    match n {
        1 => "1 request".into(),
        n => format!("{n} requests"),
    }
}

/// Whoever reaches the port may use the server: says so where that is more than this machine.
fn warn_if_open(address: SocketAddr, has_key: bool) {
    if !address.ip().is_loopback() && !has_key {
        note!(
            "warning: {address} can be reached from other machines, and there is no API key: whoever reaches it can use \
             this server\n\
             warning: set --api-key or SERVETWIN_API_KEY, or listen on 127.0.0.1"
        );
    }
}

fn options(args: &Args) -> anyhow::Result<LaunchOptions> {
    let mut keys = toml::Table::new();
    let numbers = [
        ("max_num_seqs", args.max_num_seqs),
        ("max_num_batched_tokens", args.max_num_batched_tokens),
        ("max_model_len", args.max_model_len),
        ("block_size", args.block_size),
    ];
    for (key, value) in numbers {
        if let Some(v) = value {
            keys.insert(key.into(), i64::from(v).into());
        }
    }
    if args.enable_prefix_caching || args.no_enable_prefix_caching {
        keys.insert(
            "enable_prefix_caching".into(),
            args.enable_prefix_caching.into(),
        );
    }
    if let Some(order) = &args.scheduling_policy {
        keys.insert("scheduling_policy".into(), order.clone().into());
    }
    for set in &args.set {
        let Some((key, value)) = set.split_once('=') else {
            return Err(BadInput(format!("--set {set}: write KEY=VALUE")).into());
        };
        // What is no TOML value is text, as with scenarios.
        let value = format!("v = {value}")
            .parse::<toml::Table>()
            .ok()
            .and_then(|mut t| t.remove("v"))
            .unwrap_or_else(|| value.into());
        keys.insert(key.trim().into(), value);
    }
    Ok(LaunchOptions {
        model: args.model.clone(),
        served_model_name: args.served_model_name.clone(),
        policy: args.policy.kind(),
        keys,
        num_kv_blocks: args.num_kv_blocks,
        tp: args.tp,
        pp: args.pp,
        replicas: args.replicas,
        router: args.router.clone(),
        threads: args.threads,
        dtype: args.dtype,
        step_log: args.step_log.clone(),
        api_key: args.api_key.clone(),
        queue_limit: args.queue_limit,
        max_body_bytes: args.max_body_bytes,
        min_step: Duration::from_secs_f64(args.min_step / 1e3),
    })
}

/// One line on standard output: the server answers from here on.
fn ready(url: &str, model: &str, max_model_len: u32, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let line = json!({"url": url, "model": model, "max_model_len": max_model_len});
        print(&format!("{line}\n"))
    } else {
        print(&format!(
            "serving {model} (at most {max_model_len} tokens per request) on {url}\n"
        ))
    }
}
