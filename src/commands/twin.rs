//! `servetwin twin`: the digital twin of a live deployment.

use std::fs::File;
use std::io::{BufReader, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bench::endpoint::{Client, Endpoint};
use bench::printable::printable;
use clap::{Parser, Subcommand};
use hwmodels::units::{Ratio, Secs};
use tokio::net::TcpListener;
use tokio::sync::watch;
use twin::ask::{Answer, Question, engine_keys};
use twin::cost::{self, CostLoad};
use twin::drift::{DriftConfig, Sigmas};
use twin::live::{Deployment, Live, LiveConfig, refit_to, replay_once};
use twin::observe::{Observer, ObserverConfig};
use twin::prefix::Salt;
use twin::proxy::{self, ProxyConfig};
use twin::report::{Report, figures_table};
use twin::scrape::Scraper;
use twin::tap::{Clock, DEFAULT_CAPACITY, channel};
use twin::window::Window;
use twin::{export, tokens};

use super::bench::TlsArgs;
use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::{self, Stdout, print, print_json};
use crate::progress;

/// How often the server's metrics are read.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);

/// Run beside a live deployment: pass its traffic through, replay it in the simulator, show measured against predicted.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  servetwin twin --endpoint http://127.0.0.1:8000 --proxy 127.0.0.1:9000 --scenario scenarios/llama3.1-8b-l4-vllm-mixed.toml
  servetwin twin --endpoint http://127.0.0.1:8000 --scenario s.toml --window 10min --metrics 127.0.0.1:9100   # metrics only
  servetwin twin ask 'rate x2, replicas 2' --window-file windows/window-1700000000.jsonl --scenario s.toml
  servetwin twin proxy-cost

Clients then talk to the proxy in place of the endpoint. docs/twin.md tells the rest.")]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    live: LiveArgs,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Answer a what-if on a recorded window: 'rate x2', 'replicas 3', 'tp 2', 'accelerator h100-sxm', ...
    #[command(
        after_help = "Words: rate xF, prompt xF, output xF, replicas N, tp N, pp N, ep N, instance NAME, accelerator NAME,
router POLICY, weights FORMAT, kv_cache FORMAT, and any key of the scenario's engine (max_num_seqs 128).
Commas join them.

Example:
  servetwin twin ask 'rate x2, max_num_seqs 128' --window-file window.jsonl --scenario s.toml"
    )]
    Ask {
        /// The question.
        question: String,
        #[command(flatten)]
        on: OnWindow,
    },
    /// Replay a recorded window: measured against predicted.
    #[command(
        after_help = "Example:\n  servetwin twin replay --window-file window.jsonl --scenario s.toml"
    )]
    Replay {
        #[command(flatten)]
        on: OnWindow,
    },
    /// Find how much slower or faster steps have become, and write a new profile; the old one stays.
    #[command(after_help = "Example:
  servetwin twin refit --window-file window.jsonl --scenario s.toml --out profiles/mine-refit.toml")]
    Refit {
        #[command(flatten)]
        on: OnWindow,
        /// New file. Default: beside the profile (or the scenario with its [step]), under a free name.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Measure what the proxy adds, against a server that streams on schedule.
    #[command(
        after_help = "Example:\n  servetwin twin proxy-cost --concurrency 16 --interval '5 ms'"
    )]
    ProxyCost {
        /// Streams at once.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
        concurrency: u32,
        /// Requests with the proxy, and as many without.
        #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        requests: u32,
        /// Tokens of each answer.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=100_000))]
        tokens: u32,
        /// Pause between tokens; 0 s sends as fast as it goes.
        #[arg(long, value_name = "TIME", default_value = "5 ms", value_parser = time)]
        interval: Duration,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct OnWindow {
    /// Window that `servetwin twin --windows DIR` wrote.
    #[arg(long, value_name = "FILE")]
    window_file: PathBuf,
    #[command(flatten)]
    scenario: ScenarioFile,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ScenarioFile {
    /// Scenario file of the deployment; its workload is not used.
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Override a value of the scenario, e.g. 'layout.replicas=2'. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct LiveArgs {
    /// The live deployment, e.g. http://127.0.0.1:8000.
    #[arg(long, value_name = "URL", required = true)]
    endpoint: Option<String>,
    /// Listen here and pass everything on to the endpoint; without it only its /metrics are read.
    #[arg(long, value_name = "ADDR")]
    proxy: Option<SocketAddr>,
    /// Send the endpoint's name as Host, in place of the one the client sent. Always so for https.
    #[arg(long, requires = "proxy")]
    rewrite_host: bool,
    #[command(flatten)]
    tls: TlsArgs,
    /// Scenario file of the deployment, with its fitted profile; without it traffic is recorded and nothing predicted.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Override a value of the scenario. Repeatable.
    #[arg(long, value_name = "KEY=VALUE", requires = "scenario")]
    set: Vec<String>,
    /// Length of the compared window.
    #[arg(long, value_name = "TIME", default_value = "5 min", value_parser = time)]
    window: Duration,
    /// Replayed in front of the window so that queue and caches have settled; not compared. Default: the window's length,
    /// at most 2 min.
    #[arg(long, value_name = "TIME", value_parser = time)]
    lead: Option<Duration>,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "30 s", value_parser = time)]
    every: Duration,
    /// Stop after this long. Default: at Ctrl-C.
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Append a JSON line per look to this file ("-": standard output, in place of the table).
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// Serve the twin's own /metrics here (Prometheus).
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Write each window into this folder, for `ask`, `replay` and `refit`.
    #[arg(long, value_name = "DIR")]
    windows: Option<PathBuf>,
    /// tokenizer.json that counts prompts where the server does not say their length.
    #[arg(long, value_name = "FILE", requires = "proxy")]
    tokenizer: Option<PathBuf>,
    /// Key that /metrics is asked with.
    #[arg(
        long,
        value_name = "KEY",
        env = "SERVETWIN_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// Standard deviation of the profile's own error, of every figure. Default: each figure's from the profile's validations,
    /// 10 % without any.
    #[arg(long, value_name = "RATIO")]
    profile_error: Option<Ratio>,
    /// Deviations from the usual error up to this are never drift.
    #[arg(long, value_name = "RATIO", default_value = "5 %")]
    tolerance: Ratio,
    /// Drift is raised by chance once in this time on average.
    #[arg(long, value_name = "TIME", default_value = "30 days", value_parser = time)]
    false_alarm_every: Duration,
    /// Refit to the newest window when drift is raised, into a new file, and go on with it.
    #[arg(long, requires = "scenario")]
    refit_on_drift: bool,
}

fn time(text: &str) -> Result<Duration, String> {
    let secs: Secs = text.parse().map_err(|e| format!("{e}"))?;
    Duration::try_from_secs_f64(secs.secs()).map_err(|e| e.to_string())
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.what {
        Some(What::Ask { question, on }) => ask(&question, &on),
        Some(What::Replay { on }) => replay(&on),
        Some(What::Refit { on, out }) => refit(&on, out.as_deref()),
        Some(What::ProxyCost {
            concurrency,
            requests,
            tokens,
            interval,
            json,
        }) => proxy_cost(
            CostLoad {
                concurrency: concurrency as usize,
                requests: requests as usize,
                tokens: tokens as usize,
                interval,
            },
            json,
        ),
        None => live(args.live),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

fn read(scenario: &Path, set: &[String]) -> anyhow::Result<Deployment> {
    let deployment = Deployment::load(scenario, set).map_err(|e| BadInput(e.to_string()))?;
    output::reads([scenario]);
    output::reads(deployment.scenario().inputs());
    Ok(deployment)
}

impl ScenarioFile {
    fn load(&self) -> anyhow::Result<Deployment> {
        read(&self.scenario, &self.set)
    }
}

impl OnWindow {
    fn window(&self) -> anyhow::Result<Window> {
        let name = self.window_file.display();
        let file = File::open(&self.window_file)
            .map_err(|e| BadInput(format!("{name}: cannot open the window: {e}")))?;
        Ok(Window::read(BufReader::new(file)).map_err(|e| BadInput(format!("{name}: {e}")))?)
    }
}

fn ask(question: &str, on: &OnWindow) -> anyhow::Result<u8> {
    let window = on.window()?;
    let deployment = on.scenario.load()?;
    let keys = engine_keys(deployment.scenario());
    let question = Question::parse(question, &keys).map_err(|e| BadInput(e.to_string()))?;
    let answer = Answer::of(&question, &window, &on.scenario.scenario, &on.scenario.set)
        .map_err(|e| BadInput(e.to_string()))?;
    if on.json {
        print_json(&answer)?;
    } else {
        print(&answer.render())?;
    }
    Ok(exit_code::OK)
}

fn replay(on: &OnWindow) -> anyhow::Result<u8> {
    let window = on.window()?;
    let deployment = on.scenario.load()?;
    let comparison = replay_once(&window, &deployment).map_err(BadInput)?;
    if on.json {
        print_json(&comparison)?;
        return Ok(exit_code::OK);
    }
    let mut text = format!(
        "window {:.0} s: {} requests, {} compared\n",
        comparison.window_s, comparison.requests, comparison.compared
    );
    text += &figures_table(&comparison.figures, &[]);
    for note in &comparison.notes {
        text += &format!("note: {note}\n");
    }
    print(&text)?;
    Ok(exit_code::OK)
}

fn refit(on: &OnWindow, out: Option<&Path>) -> anyhow::Result<u8> {
    let window = on.window()?;
    let deployment = on.scenario.load()?;
    let bar = progress::spinner("simulating the window with other step times");
    let done = refit_to(&window, &deployment, out);
    bar.finish_and_clear();
    let (found, new) = done.map_err(BadInput)?;
    if on.json {
        print_json(&serde_json::json!({
            "factor_ratio": found.factor,
            "noise_ratio": found.noise,
            "written": new.written,
            "before": found.before,
            "after": found.after,
        }))?;
    } else {
        print(&format!(
            "steps take {:.3} times as long as predicted (+- {:.1} % by chance)\n\nbefore:\n{}\nafter:\n{}\nwritten: {} (untrusted until validated on other data)\n",
            found.factor,
            found.noise * 100.0,
            figures_table(&found.before.figures, &[]),
            figures_table(&found.after.figures, &[]),
            new.written.display()
        ))?;
    }
    Ok(exit_code::OK)
}

fn proxy_cost(load: CostLoad, json: bool) -> anyhow::Result<u8> {
    let bar = progress::spinner("streaming with and without the proxy");
    let measured = runtime()?.block_on(cost::measure(load));
    bar.finish_and_clear();
    let measured = measured?;
    if json {
        print_json(&measured)?;
        return Ok(exit_code::OK);
    }
    let (d, p) = (measured.direct, measured.proxied);
    let mut text = format!(
        "{} requests of {} tokens each way, {} at once, {:.1} ms between tokens\n\n{:<26} {:>10} {:>10} {:>10}\n",
        measured.requests,
        load.tokens,
        load.concurrency,
        load.interval.as_secs_f64() * 1e3,
        "[us]",
        "direct",
        "proxied",
        "added"
    );
    for (name, direct, proxied) in [
        ("TTFT p50", d.ttft.p50_us, p.ttft.p50_us),
        ("TTFT p99", d.ttft.p99_us, p.ttft.p99_us),
        ("ITL p50", d.itl.p50_us, p.itl.p50_us),
        ("ITL p99", d.itl.p99_us, p.itl.p99_us),
        ("way of a token p50", d.way.p50_us, p.way.p50_us),
        ("way of a token p99", d.way.p99_us, p.way.p99_us),
    ] {
        text += &format!(
            "{name:<26} {direct:>10.0} {proxied:>10.0} {:>10.0}\n",
            proxied - direct
        );
    }
    text += &format!(
        "{:<26} {:>10.0} {:>10.0}\n{:<26} {:>21}\n",
        "tokens/s",
        d.tokens_per_s,
        p.tokens_per_s,
        "events the observer missed",
        measured.dropped_events
    );
    print(&text)?;
    note!(
        "server, proxy, observer and clients share this process and its cores: the figures err on the high side"
    );
    Ok(exit_code::OK)
}

/// Where looks are told.
struct Outlet {
    jsonl: Option<Box<dyn std::io::Write + Send>>,
    table: bool,
    refresh: bool,
    page: export::Page,
}

impl Outlet {
    fn tell(&mut self, report: &Report) -> anyhow::Result<()> {
        if let Some(out) = &mut self.jsonl {
            // At once: a kill leaves whole lines.
            let mut line = serde_json::to_vec(report)?;
            line.push(b'\n');
            out.write_all(&line)?;
            out.flush()?;
        }
        self.page.set(report.prometheus());
        if self.table {
            // A terminal shows the newest look; a file or a pipe gets one after another.
            let clear = if self.refresh { "\x1b[2J\x1b[H" } else { "" };
            print(&format!("{clear}{}\n", report.render()))?;
        }
        Ok(())
    }
}

fn live(args: LiveArgs) -> anyhow::Result<u8> {
    let endpoint_text = args.endpoint.clone().unwrap_or_default();
    let mut endpoint = Endpoint::new(&endpoint_text).map_err(|e| BadInput(e.to_string()))?;
    endpoint.api_key = args.api_key.clone();
    endpoint.timeout = Duration::from_secs(5);
    endpoint.tls = args.tls.options();
    let tls = endpoint.tls.clone();
    let client = Client::new(endpoint).map_err(|e| BadInput(e.to_string()))?;
    let proxy = match args.proxy {
        None => None,
        Some(address) => {
            let mut config =
                ProxyConfig::new(&endpoint_text).map_err(|e| BadInput(e.to_string()))?;
            config.rewrite_host |= args.rewrite_host;
            config.tls = tls;
            Some((address, config))
        }
    };
    for (name, value) in [("--window", args.window), ("--every", args.every)] {
        if value < Duration::from_millis(100) {
            return Err(BadInput(format!("{name} must be at least 100 ms")).into());
        }
    }
    let deployment = match &args.scenario {
        None => None,
        Some(file) => Some(read(file, &args.set)?),
    };
    let tokenizer = match &args.tokenizer {
        None => None,
        Some(file) => Some(tokens::counter(file).map_err(BadInput)?),
    };
    if let Some(dir) = &args.windows {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let jsonl: Option<Box<dyn std::io::Write + Send>> = match args.jsonl.as_deref() {
        None => None,
        Some(p) if p == Path::new("-") => Some(Box::new(Stdout)),
        Some(p) => {
            output::check(p)?;
            let file = File::options().create(true).append(true).open(p);
            Some(Box::new(
                file.with_context(|| format!("cannot write {}", p.display()))?,
            ))
        }
    };
    let table = args.jsonl.as_deref() != Some(Path::new("-"));
    let outlet = Outlet {
        jsonl,
        table,
        refresh: table && std::io::stdout().is_terminal(),
        page: export::Page::default(),
    };
    let sigma_profile = match args.profile_error {
        Some(ratio) => Sigmas::all(ratio.get()),
        None => deployment
            .as_ref()
            .and_then(|d| Sigmas::of_profile(d.scenario()))
            .unwrap_or_default(),
    };
    // Windows that are judged do not overlap.
    let apart = args.window.max(args.every).as_secs_f64();
    let lead = args
        .lead
        .unwrap_or_else(|| args.window.min(Duration::from_secs(120)));
    let config = LiveConfig {
        endpoint: endpoint_text,
        window: args.window,
        lead,
        drift: DriftConfig {
            floor: args.tolerance.get(),
            sigma_profile,
            windows_per_false_alarm: (args.false_alarm_every.as_secs_f64() / apart).max(1.0),
            ..DriftConfig::default()
        },
        windows: args.windows.clone(),
        refit_on_drift: args.refit_on_drift,
    };
    runtime()?.block_on(watch(Watching {
        config,
        deployment,
        client,
        proxy,
        tokenizer,
        outlet,
        metrics: args.metrics,
        every: args.every,
        duration: args.duration,
    }))
}

struct Watching {
    config: LiveConfig,
    deployment: Option<Deployment>,
    client: Client,
    proxy: Option<(SocketAddr, ProxyConfig)>,
    tokenizer: Option<twin::observe::CountTokens>,
    outlet: Outlet,
    metrics: Option<SocketAddr>,
    every: Duration,
    duration: Option<Duration>,
}

/// Reads the endpoint's metrics at a steady pace, until it is aborted.
async fn scrape(scraper: Arc<Scraper>) {
    let mut ticks = tokio::time::interval(SCRAPE_EVERY);
    loop {
        ticks.tick().await;
        // A reading that fails leaves a gap; the next may succeed.
        let _ = scraper.read().await;
    }
}

async fn watch(w: Watching) -> anyhow::Result<u8> {
    let clock = Clock::start();
    let retention = w.config.window + w.config.lead + Duration::from_secs(60);
    let (stop, stopped) = watch::channel(false);
    let mut observing = None;
    let mut proxying = None;
    if let Some((address, config)) = w.proxy {
        let listener = bind(address, "--proxy").await?;
        note!(
            "proxy: http://{} -> {}",
            listener.local_addr()?,
            config.upstream
        );
        let (tap, feed) = channel(DEFAULT_CAPACITY, clock);
        let observer = Observer::new(
            ObserverConfig {
                endpoint: w.config.endpoint.clone(),
                retention,
                tokenizer: w.tokenizer,
                salt: Salt::random(),
            },
            clock,
        );
        observer.spawn(feed).context("cannot start the observer")?;
        observing = Some((observer, Arc::clone(tap.counters())));
        proxying = Some(tokio::spawn(proxy::serve(listener, config, tap, stopped)));
    }
    if let Some(address) = w.metrics {
        let listener = bind(address, "--metrics").await?;
        note!("metrics: http://{}/metrics", listener.local_addr()?);
        tokio::spawn(export::serve(listener, w.outlet.page.clone()));
    }
    let scraper = Arc::new(Scraper::new(w.client, clock, retention));
    match scraper.read().await {
        Ok(()) => {}
        Err(problem) if observing.is_some() => {
            note!(
                "the endpoint's own metrics are not used: {}",
                printable(&problem)
            );
        }
        Err(problem) => {
            return Err(BadInput(format!(
                "{}; without --proxy the twin needs the endpoint's metrics",
                printable(&problem)
            ))
            .into());
        }
    }
    let scraping = tokio::spawn(scrape(Arc::clone(&scraper)));
    let mut live = Live::new(
        w.config,
        w.deployment,
        observing,
        Some(scraper),
        clock.unix_origin_s(),
    );
    let mut outlet = w.outlet;
    let start = Instant::now();
    let mut result = Ok(exit_code::OK);
    let mut interrupted = std::pin::pin!(told_to_stop());
    loop {
        let left = w.duration.map(|d| d.saturating_sub(start.elapsed()));
        let pause = left.map_or(w.every, |l| l.min(w.every));
        let over = tokio::select! {
            () = &mut interrupted => true,
            () = tokio::time::sleep(pause) => w.duration.is_some_and(|d| start.elapsed() >= d),
        };
        // The simulation must not hold up the proxy, which shares the runtime's threads.
        let looked = tokio::task::spawn_blocking(move || {
            let report = live.look();
            (live, report)
        });
        let (back, report) = looked.await.context("the twin's look failed")?;
        live = back;
        if let Err(e) = outlet.tell(&report) {
            result = Err(e);
            break;
        }
        if over {
            break;
        }
    }
    let _ = stop.send(true);
    scraping.abort();
    if let Some(proxying) = proxying {
        note!("waiting for the requests under way");
        let _ = proxying.await;
    }
    result
}

async fn bind(address: SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    Ok(TcpListener::bind(address)
        .await
        .map_err(|e| BadInput(format!("{what} {address}: {e}")))?)
}

/// Ctrl-C, or SIGTERM where there is such a thing.
async fn told_to_stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut term) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = term.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
