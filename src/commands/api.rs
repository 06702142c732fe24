//! `servetwin api`: plans, runs, what-ifs and capacity tables over HTTP.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use api::Limits;
use api::server::Server;
use serde_json::json;

use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::print;
use crate::signals::signals;

/// Threads that serve HTTP beside those that simulate.
const HTTP_THREADS: usize = 2;

/// Answer plans, runs, what-ifs and capacity tables over HTTP, for dashboards and portals.
///
/// A POST to /v1/plan, /v1/run, /v1/whatif or /v1/capacity is answered 202 with the path of a job, which tells its progress and where its result is
/// (docs/api.md; /openapi.json for machines). Requests bring the files that their scenario names; none of this machine is read for them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin api                                     # http://127.0.0.1:8090
  servetwin api --port 0 --json                     # prints the address as one line of JSON when ready
  curl -s localhost:8090/v1/plan -H 'content-type: application/json' -d '{\"quick\": {\"model\": \"llama-3.1-8b\", \"rate\": \"40 req/s\",
    \"prompt\": 1000, \"output\": 300, \"slo\": [\"ttft.p99 < 500 ms\"], \"instances\": [\"g6e.*\", \"p5.*\"]}}'

Ends on SIGTERM or SIGINT, after the jobs under way; a second signal ends it at once.")]
pub struct Args {
    /// Address to listen on; any but a loopback address takes --api-key or --no-key.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8090)]
    port: u16,
    /// Key that callers must send as `Authorization: Bearer KEY`.
    #[arg(
        long,
        value_name = "KEY",
        env = "SERVETWIN_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// Let whoever reaches an address other than loopback use the service.
    #[arg(long, conflicts_with = "api_key")]
    no_key: bool,
    /// Largest request body; a larger one is answered 413.
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().body_bytes)]
    max_body_bytes: usize,
    /// Jobs that run at once; each uses all cores.
    #[arg(long, value_name = "N", default_value_t = Limits::default().jobs as u64, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Jobs that wait; one more is answered 429.
    #[arg(long, value_name = "N", default_value_t = Limits::default().queue as u64, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    queue: u64,
    /// Longest time that a job runs.
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().job_time.as_secs_f64())]
    job_timeout: f64,
    /// Ended jobs that are kept with their results.
    #[arg(long, value_name = "N", default_value_t = Limits::default().kept as u64, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    keep: u64,
    /// Most requests of a simulated run.
    #[arg(long, value_name = "N", default_value_t = Limits::default().requests)]
    max_requests: u64,
    /// Most candidates of a plan.
    #[arg(long, value_name = "N", default_value_t = Limits::default().candidates)]
    max_candidates: usize,
    /// How long jobs under way may take to end at shutdown.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    drain_timeout: f64,
    /// Print the ready line as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let drain = seconds("--drain-timeout", args.drain_timeout)?;
    let limits = Limits {
        body_bytes: args.max_body_bytes,
        jobs: args.jobs as usize,
        queue: args.queue as usize,
        job_time: seconds("--job-timeout", args.job_timeout)?,
        kept: args.keep as usize,
        requests: args.max_requests,
        candidates: args.max_candidates,
        key: args.api_key,
        ..Limits::default()
    };
    if limits
        .key
        .as_ref()
        .is_some_and(|k| k.trim() != k || k.is_empty())
    {
        let why =
            "--api-key must not be empty, nor begin or end with a space: no caller could send it";
        return Err(BadInput(why.into()).into());
    }
    if !args.host.is_loopback() && limits.key.is_none() && !args.no_key {
        return Err(BadInput(format!(
            "--host {}: other machines may reach this address, and whoever does could use the service; give --api-key KEY, or --no-key to let them",
            args.host
        ))
        .into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .enable_all()
        .build()
        .context("cannot start the threads that serve HTTP")?;
    let address = SocketAddr::new(args.host, args.port);
    let cut = runtime.block_on(async {
        let (stop, hurry) = signals().context("cannot listen for signals")?;
        let server = (Server::bind(address, limits).await)
            .with_context(|| format!("cannot listen on {address}"))?;
        let url = format!("http://{}", server.address()?);
        if args.json {
            print(&format!("{}\n", json!({"url": url})))?;
        } else {
            print(&format!(
                "{url} answers; its description: {url}/openapi.json\n"
            ))?;
        }
        let stop = async move {
            stop.await;
            note!(
                "shutting down: jobs under way may take {} s; a second signal ends them at once",
                drain.as_secs_f64()
            );
        };
        anyhow::Ok(server.run(stop, hurry, drain).await?)
    })?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    note!("shut down: {cut} jobs were cut off");
    Ok(exit_code::OK)
}

fn seconds(flag: &str, s: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(s)
        .map_err(|_| BadInput(format!("{flag} must be seconds from 0 on, got {s}")).into())
}
