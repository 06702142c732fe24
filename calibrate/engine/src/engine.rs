//! The engine: replicas behind a router, a bounded queue, and tickets for the requests under way.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sim::cluster::router::{Router, RouterConfig};
use sim::kernel::time::SimTime;
use sim::kv::chain;
use sim::policy::Load;
use sim::request::{RequestSpec, Segment};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::executor::Executor;
use crate::metrics::{Family, ReplicaMetrics, ServerInfo, render};
use crate::policy::Policy;
use crate::replica::{Replica, ReplicaSpec, Submission};
use crate::request::{Event, GenerateRequest};
use crate::step_log::{LogFacts, StepLog, engine_file};
use crate::text::Text;

/// Tokens whose equality the prefix-aware router looks at together [tokens]: its index's own block.
const ROUTER_BLOCK: usize = 16;

/// How an engine is set up.
pub struct EngineSpec {
    /// What the step log says of model and machine, under the name that is served. Stages and replicas are counted here.
    pub facts: LogFacts,
    /// The policy of every replica.
    pub policy: Policy,
    /// How a request finds its replica.
    pub router: RouterConfig,
    /// Name of the router, for the step log.
    pub router_name: String,
    /// Most requests that wait for their first step; more are refused with 429.
    pub queue_limit: u64,
    /// Tokenizer.
    pub text: Arc<Text>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Where steps are logged.
    pub step_log: Option<std::path::PathBuf>,
}

/// Why a request is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    QueueFull,
    /// The engine is shutting down.
    Draining,
    /// The replica's forward pass is broken.
    Broken,
}

/// A running engine.
pub struct Engine {
    replicas: Vec<Replica>,
    router: Mutex<Router>,
    policy: Policy,
    text: Arc<Text>,
    info: ServerInfo,
    epoch: Instant,
    next_id: AtomicU64,
    queued: Arc<AtomicU64>,
    queue_limit: u64,
    /// Times that the queue had no room.
    kept_out: AtomicU64,
    under_way: AtomicU64,
    taken_in: AtomicU64,
    idle: Notify,
    draining: AtomicBool,
    log: Mutex<Option<StepLog>>,
}

/// A request under way. Dropping it tells the engine that its client has gone.
pub struct Ticket {
    engine: Arc<Engine>,
    id: u64,
    replica: u32,
    events: UnboundedReceiver<Event>,
}

impl Ticket {
    /// What comes next; none when the engine has stopped.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// What comes next, for a reader that polls.
    pub fn poll_next(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }

    /// The engine's number of the request.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The replica that serves it.
    pub fn replica(&self) -> u32 {
        self.replica
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.engine.replicas[self.replica as usize].cancel(self.id);
        self.engine.router().ended(self.replica);
        if self.engine.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.engine.idle.notify_waiters();
        }
    }
}

impl Engine {
    /// Starts a replica on each of `executors` (at least one).
    ///
    /// # Errors
    /// When a thread or the step log cannot be started.
    pub fn start(
        spec: EngineSpec,
        executors: Vec<Box<dyn Executor>>,
    ) -> std::io::Result<Arc<Engine>> {
        let (log, writer) = match &spec.step_log {
            Some(path) => {
                let (log, writer) = start_log(path, &spec, executors.len())?;
                (Some(log), Some(writer))
            }
            None => (None, None),
        };
        let epoch = Instant::now();
        let queued = Arc::new(AtomicU64::new(0));
        let count = executors.len() as u32;
        let replicas = (0..count)
            .zip(executors)
            .map(|(index, executor)| {
                Replica::start(
                    ReplicaSpec {
                        index,
                        policy: spec.policy.clone(),
                        text: spec.text.clone(),
                        eos: spec.eos.clone(),
                        epoch,
                        queued: queued.clone(),
                        log: writer.clone(),
                    },
                    executor,
                )
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let mut router = Router::new(spec.router, 0);
        for (i, replica) in (0..).zip(&replicas) {
            router.join(i, replica.load());
        }
        router.recount(count, |_| 0);
        Ok(Arc::new(Engine {
            replicas,
            router: Mutex::new(router),
            info: ServerInfo {
                model: spec.facts.model,
                block_size: spec.policy.block_size,
                kv_blocks: spec.policy.kv_blocks,
                prefix_caching: spec.policy.hash_block.is_some(),
                max_model_len: spec.policy.max_model_len,
            },
            policy: spec.policy,
            text: spec.text,
            epoch,
            next_id: AtomicU64::new(0),
            queued,
            queue_limit: spec.queue_limit,
            kept_out: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            taken_in: AtomicU64::new(0),
            idle: Notify::new(),
            draining: AtomicBool::new(false),
            log: Mutex::new(log),
        }))
    }

    /// Takes in a request.
    ///
    /// # Errors
    /// As [`Engine::submit_all`].
    pub fn submit(self: &Arc<Engine>, request: GenerateRequest) -> Result<Ticket, Refusal> {
        let tickets = self.submit_all(vec![request], 1)?;
        tickets.into_iter().next().ok_or(Refusal::Broken)
    }

    /// Takes in requests of one client, all or none: each finds its replica by itself, and those of one replica reach its
    /// scheduler at one instant. Each `n` in a row are answers to the same prompt (`n` divides their number).
    ///
    /// # Errors
    /// See [`Refusal`]. Requests that the policy refuses are taken in and told by an event.
    pub fn submit_all(
        self: &Arc<Engine>,
        requests: Vec<GenerateRequest>,
        n: usize,
    ) -> Result<Vec<Ticket>, Refusal> {
        if self.is_draining() {
            return Err(Refusal::Draining);
        }
        let count = requests.len() as u64;
        let under_limit =
            |queued: u64| (queued + count <= self.queue_limit).then_some(queued + count);
        let (ordering, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if self
            .queued
            .fetch_update(ordering, failure, under_limit)
            .is_err()
        {
            self.kept_out.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::QueueFull);
        }
        self.under_way.fetch_add(count, ordering);
        self.taken_in.fetch_add(count, ordering);
        let submitted =
            SimTime(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX - 1));
        let first = self.next_id.fetch_add(count, Ordering::Relaxed);
        let mut to: Vec<Vec<Submission>> = self.replicas.iter().map(|_| Vec::new()).collect();
        let mut tickets = Vec::with_capacity(requests.len());
        let mut broken = false;
        let mut family = Arc::new(Family::new(n));
        for (i, (id, request)) in (first..).zip(requests).enumerate() {
            if i > 0 && i.is_multiple_of(n) {
                family = Arc::new(Family::new(n));
            }
            let spec = self.route_by(&request);
            let Some(replica) = self.route(&spec) else {
                self.under_way.fetch_sub(1, ordering);
                self.queued.fetch_sub(1, ordering);
                self.taken_in.fetch_sub(1, ordering);
                broken = true;
                continue;
            };
            let (events, receiver) = unbounded_channel();
            tickets.push(Ticket {
                engine: self.clone(),
                id,
                replica,
                events: receiver,
            });
            to[replica as usize].push(Submission {
                id,
                request,
                events,
                submitted,
                family: family.clone(),
            });
        }
        for (replica, submissions) in self.replicas.iter().zip(to) {
            let lost = submissions.len() as u64;
            if lost > 0 && (replica.is_broken() || !replica.submit(submissions)) {
                // What others have got already is cancelled with its tickets.
                self.queued.fetch_sub(lost, ordering);
                self.taken_in.fetch_sub(lost, ordering);
                broken = true;
            }
        }
        if broken {
            return Err(Refusal::Broken);
        }
        Ok(tickets)
    }

    /// The replica for a request, by the replicas' state as it is; `None` where there is none.
    fn route(&self, spec: &RequestSpec) -> Option<u32> {
        let mut router = self.router();
        if router.sees_loads() {
            for (i, replica) in (0..).zip(&self.replicas) {
                router.seen(i, replica.load());
            }
        }
        router.route(spec)
    }

    /// What the router looks at: equal blocks of the prompt are equal segments.
    fn route_by(&self, request: &GenerateRequest) -> RequestSpec {
        let segments = if self.replicas.len() > 1 {
            let block = |tokens: &[u32]| Segment {
                content: tokens.iter().fold(1, |h, &t| chain(h, u64::from(t))),
                tokens: tokens.len() as u32,
            };
            request.prompt.chunks(ROUTER_BLOCK).map(block).collect()
        } else {
            Vec::new()
        };
        RequestSpec {
            prompt_tokens: request.prompt.len() as u32,
            output_tokens: request.max_tokens,
            max_tokens: request.max_tokens,
            priority: request.priority,
            session: request.session,
            segments,
            ..RequestSpec::default()
        }
    }

    fn router(&self) -> std::sync::MutexGuard<'_, Router> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tokenizer.
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// Longest prompt and output together [tokens].
    pub fn max_model_len(&self) -> u32 {
        self.policy.max_model_len
    }

    /// Most requests that wait for their first step.
    pub fn queue_limit(&self) -> u64 {
        self.queue_limit
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        &self.info.model
    }

    /// What each replica's scheduler shows.
    pub fn loads(&self) -> Vec<Load> {
        self.replicas.iter().map(Replica::load).collect()
    }

    /// Each replica's series.
    pub fn metrics(&self) -> Vec<ReplicaMetrics> {
        self.replicas.iter().map(Replica::metrics).collect()
    }

    /// The series as a scrape gets them.
    pub fn metrics_text(&self) -> String {
        let kept_out = self.kept_out.load(Ordering::Relaxed);
        render(&self.info, &self.metrics(), kept_out)
    }

    /// Whether every replica can compute, and none is shutting down.
    pub fn is_healthy(&self) -> bool {
        !self.is_draining() && !self.replicas.iter().any(Replica::is_broken)
    }

    /// Whether new requests are refused because the engine is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Requests under way: those with a [`Ticket`].
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Acquire)
    }

    /// Requests taken in whose end the replicas have not counted yet: more than [`Engine::under_way`] for as long as
    /// the replicas have not seen that a client left.
    pub fn uncounted(&self) -> u64 {
        let counted: u64 = self.replicas.iter().map(Replica::counted).sum();
        self.taken_in
            .load(Ordering::Acquire)
            .saturating_sub(counted)
    }

    /// From now on new requests are refused.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Waits until no request is under way.
    pub async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Registered before the check, so that no wake-up is missed.
            idle.as_mut().enable();
            if self.under_way() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Cancels what is left without waiting for it: clients are told that the server is shutting down.
    pub fn begin_stop(&self) {
        self.begin_drain();
        for r in &self.replicas {
            r.begin_stop();
        }
    }

    /// Cancels what is left, stops every replica and closes the step log.
    ///
    /// # Errors
    /// When the step log could not be written.
    pub fn stop(&self) -> std::io::Result<()> {
        self.begin_drain();
        for r in &self.replicas {
            r.stop();
        }
        let log = self
            .log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        log.map_or(Ok(()), StepLog::finish)
    }
}

fn start_log(
    path: &Path,
    spec: &EngineSpec,
    replicas: usize,
) -> std::io::Result<(StepLog, crate::step_log::StepLogWriter)> {
    let mut engine = toml::Table::new();
    engine.insert("kind".into(), spec.policy.params.kind().name().into());
    let count = |n: u64| toml::Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    engine.insert("kv_blocks".into(), count(spec.policy.kv_blocks));
    engine.extend(spec.policy.params.to_table());
    // Decided by the engine where it was left open.
    if let Some(p) = &spec.policy.vllm_v1 {
        for (key, value) in [
            ("max_num_batched_tokens", p.max_num_batched_tokens),
            ("max_num_seqs", p.max_num_seqs),
            ("max_model_len", p.max_model_len),
        ] {
            engine.insert(key.into(), count(u64::from(value)));
        }
        engine.insert("async_scheduling".into(), false.into());
    }
    let mut root = engine_file(&LogFacts {
        pp: spec.policy.pp,
        replicas: u32::try_from(replicas).unwrap_or(u32::MAX),
        ..spec.facts.clone()
    });
    if let Some(toml::Value::Table(layout)) = root.get_mut("layout") {
        layout.insert("router".into(), spec.router_name.clone().into());
    }
    root.insert(
        "model_max_tokens".into(),
        count(u64::from(spec.policy.model_max_tokens)),
    );
    root.insert("engine".into(), engine.into());
    StepLog::create(path, &root)
}
