//! An endpoint, ready to be measured: probed, with a way to write prompts of exact length.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sim::kernel::time::{SimDuration, SimTime};
use sim::kv::chain;
use sim::metrics::RecordOptions;
use sim::record::{RecordError, ReplicaInfo, RunInfo, RunRecord};
use sim::report::RunReport;
use sim::scenario::{Scenario, ScenarioError};
use sim::workload::StreamSpec;

use crate::driver::{self, DriveError, Options, RawRun, collect};
use crate::endpoint::{ApiKind, Client, Endpoint, EndpointError};
use crate::failures::Failures;
use crate::printable::printable;
use crate::probe::{self, Probe, ProbeError};
use crate::prometheus::EngineMetrics;
use crate::prompts::{PromptError, Prompts};
use crate::report::{BenchReport, CONTRACT, ClientFigures};
use crate::server_figures::ServerFigures;
use crate::sharing::CacheHits;

/// How an endpoint is prepared.
#[derive(Clone, Debug, Default)]
pub struct Preparation {
    /// Hugging Face `tokenizer.json` (or a folder with one) of the served model.
    pub tokenizer: Option<PathBuf>,
    /// Prompts as text even where the endpoint takes token ids.
    pub as_text: bool,
    /// Ask for the ids of generated tokens, so that later turns of a session can send them back.
    pub token_ids: bool,
    /// Salt of the prompts, for the same ones again; `None`: new ones, which no cache has met.
    pub prompt_salt: Option<u64>,
}

/// Why a benchmark could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The endpoint's description is wrong.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The endpoint does not answer as it should.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Prompts cannot be written.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The scenario's workload is wrong.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The load could not be run.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The record could not be closed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A runtime could not be started.
    #[error("the client's runtime cannot be started")]
    Runtime(#[from] std::io::Error),
    /// A trace file changed while it was read.
    #[error("a file changed while the run read it: {0}")]
    Changed(String),
}

/// An endpoint that has been looked at.
pub struct Session {
    endpoint: Endpoint,
    client: Client,
    /// What was found out.
    pub probe: Probe,
    prompts: Prompts,
    /// Of the first run's prompts.
    prompt_salt: u64,
    runs: AtomicU64,
}

/// A finished benchmark.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The record, as of a simulated run.
    pub record: RunRecord,
    /// Every request with its chunks.
    pub raw: RawRun,
    /// The client's side.
    pub client: ClientFigures,
    /// What the engine said of itself over the run.
    pub server: Option<ServerFigures>,
    /// How long it took, all in all [s].
    pub wall_s: f64,
}

impl Bench {
    /// The report on it.
    pub fn report(&self) -> BenchReport {
        BenchReport {
            bench_contract: CONTRACT,
            run: RunReport::new(&self.record, self.wall_s),
            client: self.client.clone(),
            server: self.server.clone(),
        }
    }
}

/// Salts are short enough to be typed, and to be a number in any reader of JSON.
const SHORT: u64 = u32::MAX as u64;

/// A salt that no earlier run had: the standard library's hasher starts from the system's randomness.
fn new_salt() -> u64 {
    RandomState::new().hash_one(0x5a17) & SHORT
}

/// Runs `future` on a runtime of its own.
fn block_on<F: Future>(future: F) -> Result<F::Output, std::io::Error> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(future))
}

impl Session {
    /// Probes `endpoint` and finds out how to write prompts for it. Sends a few short requests.
    ///
    /// # Errors
    /// When it does not answer, or the tokenizer cannot be used.
    pub fn prepare(
        mut endpoint: Endpoint,
        preparation: &Preparation,
    ) -> Result<Session, BenchError> {
        let (endpoint, probe, client, prompts) = block_on(async {
            let (mut probe, met) = Probe::meet(&endpoint).await?;
            if endpoint.model.is_none() && endpoint.api != ApiKind::Triton {
                endpoint.model = probe.models.first().cloned();
            }
            endpoint.token_ids = preparation.token_ids && probe.token_ids;
            if preparation.as_text {
                probe.token_prompts = false;
            }
            let client = Client::new(endpoint.clone())?;
            client.adopt(&met);
            let prompts = Prompts::find(&client, &probe, preparation.tokenizer.as_deref()).await?;
            Ok::<_, BenchError>((endpoint, probe, client, prompts))
        })??;
        Ok(Session {
            endpoint,
            client,
            probe,
            prompts,
            prompt_salt: preparation.prompt_salt.unwrap_or_else(new_salt),
            runs: AtomicU64::new(0),
        })
    }

    /// Salt of the next run's prompts: no two runs send the same ones.
    fn next_salt(&self) -> u64 {
        match self.runs.fetch_add(1, Ordering::Relaxed) {
            0 => self.prompt_salt,
            n => chain(self.prompt_salt, n) & SHORT,
        }
    }

    /// The endpoint, with the model's name filled in.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// How prompts are written.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// What the engine says of itself now; `None` where it says nothing.
    ///
    /// # Errors
    /// When no runtime can be started.
    pub fn scrape(&self) -> Result<Option<EngineMetrics>, BenchError> {
        if self.probe.metrics.is_none() {
            return Ok(None);
        }
        let client = Client::new(Endpoint {
            timeout: Duration::from_secs(5),
            ..self.endpoint.clone()
        })?;
        Ok(block_on(probe::scrape(&client))?)
    }

    /// Puts the load of `scenario` on the endpoint. Its deployment is not looked at.
    ///
    /// # Errors
    /// See [`BenchError`]; requests that fail are part of the result.
    pub fn run(&self, scenario: &Scenario, options: &Options) -> Result<Bench, BenchError> {
        let began = Instant::now();
        let mut workload = scenario.mix()?;
        let failure = workload.failure();
        let mut prompts = self.prompts.clone();
        let prompt_salt = self.next_salt();
        prompts.salt(prompt_salt);
        let warmup = SimDuration::from_secs(scenario.warmup.secs());
        let mut options = options.clone();
        options.warmup = Duration::from_nanos(warmup.0);
        options.backoff_seed = scenario.seed;
        options.retrying = streams(scenario, |s| {
            s.retries.as_ref().is_some_and(|r| r.on_failed)
        });
        if let (false, Some(end)) = (scenario.drain, scenario.limits.duration) {
            options.end = Some(Duration::from_secs_f64(end.secs()));
        }
        let before = self.scrape()?;
        let raw = driver::run(
            &self.endpoint,
            Some(&self.client),
            &mut workload,
            &mut prompts,
            &options,
        )?;
        let after = self.scrape()?;
        let changed = failure.lock().ok().and_then(|mut f| f.take());
        if let Some(message) = changed {
            return Err(BenchError::Changed(message));
        }
        let record_options = RecordOptions {
            warmup,
            slo: scenario.slo.limits(),
            series_bins: 0,
            ..RecordOptions::default()
        };
        let mut client = ClientFigures::new(
            &raw,
            &self.endpoint.url.to_string(),
            self.endpoint.api.name(),
            warmup.0,
        );
        client.prompt_salt = prompt_salt;
        client.failures = Failures::of(&raw, &streams(scenario, |s| s.cancel.is_some()));
        client.notes.extend(self.notes(&prompts));
        let server = before
            .as_ref()
            .zip(after.as_ref())
            .map(|(a, b)| ServerFigures::between(a, b));
        client.cache = CacheHits::of(&raw, server.as_ref(), prompts.overhead());
        let info = RunInfo {
            name: scenario.name.clone(),
            description: scenario.description.clone(),
            config: scenario.show(),
            seed: scenario.seed,
            load: scenario.load_in_words(),
            deployment: self.in_words(),
            streams: scenario.workload.iter().map(|s| s.name.clone()).collect(),
            replicas: vec![ReplicaInfo {
                name: self.endpoint.url.to_string(),
                devices: 0,
                stages: 1,
                kv_blocks: 0,
                block_tokens: 0,
            }],
            objectives: scenario.slo.objectives.clone(),
            ..RunInfo::default()
        };
        let end = SimTime(raw.end_ns);
        let mut record = collect::record(&collect::measured(&raw), end, &record_options, info)?;
        record.info.warnings = client.warnings(&record);
        Ok(Bench {
            record,
            raw,
            client,
            server,
            wall_s: began.elapsed().as_secs_f64(),
        })
    }

    /// What it is, for the reader.
    pub fn in_words(&self) -> String {
        format!(
            "{} ({}{}, {} API; prompts: {})",
            self.endpoint.url,
            serde_json::to_value(self.probe.server)
                .ok()
                .and_then(|v| v.as_str().map(String::from))
                .unwrap_or_default(),
            self.endpoint
                .model
                .as_ref()
                .map_or(String::new(), |m| format!(", model {}", printable(m))),
            self.endpoint.api.name(),
            self.prompts.method
        )
    }

    fn notes(&self, prompts: &Prompts) -> Vec<String> {
        let mut notes = Vec::new();
        if !prompts.exact {
            notes.push(format!("prompt lengths are not exact: {}", prompts.method));
        }
        if prompts.replaced_answers > 0 {
            notes.push(format!(
                "{} answers were sent back in later turns as other text of the same length, since the ids of their tokens are not known",
                prompts.replaced_answers
            ));
        }
        notes
    }
}

/// Indices of the scenario's streams of which `wanted` is true.
fn streams(scenario: &Scenario, wanted: impl Fn(&StreamSpec) -> bool) -> Vec<u16> {
    (0u16..)
        .zip(&scenario.workload)
        .filter(|(_, s)| wanted(s))
        .map(|(i, _)| i)
        .collect()
}
