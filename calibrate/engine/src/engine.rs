//! The engine: replicas behind a router, a bounded queue, and tickets for the requests under way.
//!
//! Replicas may join and leave while it runs (`fleet.rs` has the controllers that say when). A replica keeps its number for good; requests
//! that come while none is ready are held in front of the router.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
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
use crate::step_log::{LogFacts, StepLog, StepLogWriter, engine_file};
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
    /// Whether replicas come and go: requests are then held while there is none.
    pub elastic: bool,
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

/// Place of a request that no replica has yet.
const NOWHERE: u32 = u32::MAX;

/// A replica under its number.
struct Place {
    replica: Replica,
    /// Requests that were sent to it and have not ended.
    under_way: AtomicU64,
    /// It is sent nothing more.
    leaving: AtomicBool,
    /// When it ended.
    gone: OnceLock<SimTime>,
}

/// A request that waits for a replica to come.
struct Held {
    spec: RequestSpec,
    submission: Submission,
    place: Arc<AtomicU32>,
}

/// A running engine.
pub struct Engine {
    places: RwLock<Vec<Arc<Place>>>,
    router: Mutex<Router>,
    /// Requests that wait for a replica; whoever gives one a place holds this lock.
    held: Mutex<VecDeque<Held>>,
    elastic: bool,
    policy: Policy,
    text: Arc<Text>,
    eos: Vec<u32>,
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
    log: Mutex<Option<(StepLog, StepLogWriter)>>,
}

/// A request under way. Dropping it tells the engine that its client has gone.
pub struct Ticket {
    engine: Arc<Engine>,
    id: u64,
    place: Arc<AtomicU32>,
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

    /// The replica that serves it; `None`: it waits for one.
    pub fn replica(&self) -> Option<u32> {
        Some(self.place.load(Ordering::Acquire)).filter(|r| *r != NOWHERE)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.engine.let_go(self.id, &self.place);
        if self.engine.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.engine.idle.notify_waiters();
        }
    }
}

impl Engine {
    /// Starts a replica on each of `executors` (at least one, but for an elastic engine).
    ///
    /// # Errors
    /// When a thread or the step log cannot be started.
    pub fn start(
        spec: EngineSpec,
        executors: Vec<Box<dyn Executor>>,
    ) -> std::io::Result<Arc<Engine>> {
        let log = match &spec.step_log {
            Some(path) => Some(start_log(path, &spec, executors.len())?),
            None => None,
        };
        let mut router = Router::new(spec.router, 0);
        router.recount(0, |_| 0);
        let engine = Arc::new(Engine {
            places: RwLock::new(Vec::new()),
            router: Mutex::new(router),
            held: Mutex::new(VecDeque::new()),
            elastic: spec.elastic,
            info: ServerInfo {
                model: spec.facts.model,
                block_size: spec.policy.block_size,
                kv_blocks: spec.policy.kv_blocks,
                prefix_caching: spec.policy.hash_block.is_some(),
                max_model_len: spec.policy.max_model_len,
            },
            policy: spec.policy,
            text: spec.text,
            eos: spec.eos,
            epoch: Instant::now(),
            next_id: AtomicU64::new(0),
            queued: Arc::new(AtomicU64::new(0)),
            queue_limit: spec.queue_limit,
            kept_out: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            taken_in: AtomicU64::new(0),
            idle: Notify::new(),
            draining: AtomicBool::new(false),
            log: Mutex::new(log),
        });
        for executor in executors {
            engine.join(executor)?;
        }
        Ok(engine)
    }

    /// Starts a replica on `executor`; its number. Requests that were held go to it.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn join(&self, executor: Box<dyn Executor>) -> std::io::Result<u32> {
        let mut held = lock(&self.held);
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let index = places.len() as u32;
        let replica = Replica::start(
            ReplicaSpec {
                index,
                policy: self.policy.clone(),
                text: self.text.clone(),
                eos: self.eos.clone(),
                epoch: self.epoch,
                queued: self.queued.clone(),
                log: lock(&self.log).as_ref().map(|(_, writer)| writer.clone()),
            },
            executor,
        )?;
        lock(&self.router).join(index, replica.load());
        places.push(Arc::new(Place {
            replica,
            under_way: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            gone: OnceLock::new(),
        }));
        drop(places);
        for Held {
            spec,
            submission,
            place,
        } in held.drain(..)
        {
            if let Some(to) = self.route(&spec) {
                place.store(to, Ordering::Release);
                // A replica that has broken meanwhile drops the request, and its client is told by the closed channel.
                self.send(to, vec![submission]);
            }
        }
        Ok(index)
    }

    /// Sends replica `index` nothing more; it ends once it has answered what it holds.
    pub fn drain(&self, index: u32) {
        let _held = lock(&self.held);
        if let Some(place) = self.place(index)
            && !place.leaving.swap(true, Ordering::AcqRel)
        {
            lock(&self.router).leave(index);
        }
    }

    /// Ends replica `index` with what it holds: its clients are told that it is gone.
    pub fn kill(&self, index: u32) {
        self.drain(index);
        if let Some(place) = self.place(index) {
            place.replica.begin_stop();
            place.gone.get_or_init(|| self.now());
        }
    }

    /// When replica `index` ended, if it has: one that leaves has then answered all that it held.
    pub fn gone(&self, index: u32) -> Option<SimTime> {
        let place = self.place(index)?;
        if place.leaving.load(Ordering::Acquire) && place.under_way.load(Ordering::Acquire) == 0 {
            place.replica.begin_stop();
            place.gone.get_or_init(|| self.now());
        }
        place.gone.get().copied()
    }

    /// Time since the engine was started.
    pub fn now(&self) -> SimTime {
        SimTime(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
    }

    /// Requests that wait for a replica to come.
    pub fn held(&self) -> u64 {
        lock(&self.held).len() as u64
    }

    /// Requests taken in so far.
    pub fn taken_in(&self) -> u64 {
        self.taken_in.load(Ordering::Acquire)
    }

    fn places(&self) -> Vec<Arc<Place>> {
        (self.places.read())
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn place(&self, index: u32) -> Option<Arc<Place>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.get(index as usize).cloned()
    }

    /// The client of request `id` has its answer, or has left.
    fn let_go(&self, id: u64, place: &AtomicU32) {
        let mut held = lock(&self.held);
        let at = place.load(Ordering::Acquire);
        if at == NOWHERE {
            let before = held.len();
            held.retain(|h| h.submission.id != id);
            if held.len() < before {
                self.queued.fetch_sub(1, Ordering::AcqRel);
                self.taken_in.fetch_sub(1, Ordering::AcqRel);
            }
            return;
        }
        drop(held);
        if let Some(place) = self.place(at) {
            place.replica.cancel(id);
            lock(&self.router).ended(at);
            place.under_way.fetch_sub(1, Ordering::AcqRel);
        }
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
        let mut to: BTreeMap<u32, Vec<Submission>> = BTreeMap::new();
        let mut tickets = Vec::with_capacity(requests.len());
        let mut broken = false;
        let mut family = Arc::new(Family::new(n));
        let mut held = lock(&self.held);
        for (i, (id, request)) in (first..).zip(requests).enumerate() {
            if i > 0 && i.is_multiple_of(n) {
                family = Arc::new(Family::new(n));
            }
            let spec = self.route_by(&request);
            let found = self.route(&spec);
            if found.is_none() && !self.elastic {
                self.under_way.fetch_sub(1, ordering);
                self.queued.fetch_sub(1, ordering);
                self.taken_in.fetch_sub(1, ordering);
                broken = true;
                continue;
            }
            let place = Arc::new(AtomicU32::new(found.unwrap_or(NOWHERE)));
            let (events, receiver) = unbounded_channel();
            tickets.push(Ticket {
                engine: self.clone(),
                id,
                place: place.clone(),
                events: receiver,
            });
            let submission = Submission {
                id,
                request,
                events,
                submitted,
                family: family.clone(),
            };
            match found {
                Some(replica) => to.entry(replica).or_default().push(submission),
                None => held.push_back(Held {
                    spec,
                    submission,
                    place,
                }),
            }
        }
        for (replica, submissions) in to {
            broken |= !self.send(replica, submissions);
        }
        drop(held);
        if broken {
            return Err(Refusal::Broken);
        }
        Ok(tickets)
    }

    /// Hands requests to a replica. False: it cannot compute; what others have got already is cancelled with its tickets.
    fn send(&self, index: u32, submissions: Vec<Submission>) -> bool {
        let count = submissions.len() as u64;
        let place = self.place(index);
        if let Some(place) = &place {
            place.under_way.fetch_add(count, Ordering::AcqRel);
        }
        let taken = place.is_some_and(|p| !p.replica.is_broken() && p.replica.submit(submissions));
        if !taken {
            self.queued.fetch_sub(count, Ordering::AcqRel);
            self.taken_in.fetch_sub(count, Ordering::AcqRel);
        }
        taken
    }

    /// The replica for a request, by the replicas' state as it is; `None` where there is none.
    fn route(&self, spec: &RequestSpec) -> Option<u32> {
        let mut router = lock(&self.router);
        if router.sees_loads() {
            for (i, place) in (0..).zip(self.places()) {
                if !place.leaving.load(Ordering::Acquire) {
                    router.seen(i, place.replica.load());
                }
            }
        }
        router.route(spec)
    }

    /// What the router looks at: equal blocks of the prompt are equal segments.
    fn route_by(&self, request: &GenerateRequest) -> RequestSpec {
        let segments = if self.elastic || lock(&self.router).ready() > 1 {
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
        self.places().iter().map(|p| p.replica.load()).collect()
    }

    /// Each replica's series, those of replicas that have ended included.
    pub fn metrics(&self) -> Vec<ReplicaMetrics> {
        self.places().iter().map(|p| p.replica.metrics()).collect()
    }

    /// The series of replica `index`.
    pub fn replica_metrics(&self, index: u32) -> Option<ReplicaMetrics> {
        self.place(index).map(|p| p.replica.metrics())
    }

    /// The series as a scrape gets them.
    pub fn metrics_text(&self) -> String {
        let kept_out = self.kept_out.load(Ordering::Relaxed);
        let live: Vec<(u32, ReplicaMetrics)> = (0..)
            .zip(self.places())
            .filter(|(_, p)| p.gone.get().is_none())
            .map(|(i, p)| (i, p.replica.metrics()))
            .collect();
        render(&self.info, &live, kept_out)
    }

    /// Whether every replica can compute, and none is shutting down.
    pub fn is_healthy(&self) -> bool {
        let broken = |p: &Arc<Place>| p.gone.get().is_none() && p.replica.is_broken();
        !self.is_draining() && !self.places().iter().any(broken)
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
        let counted: u64 = self.places().iter().map(|p| p.replica.counted()).sum();
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
        // Dropped events tell the clients of requests that no replica has.
        lock(&self.held).clear();
        for place in self.places() {
            place.replica.begin_stop();
        }
    }

    /// Cancels what is left, stops every replica and closes the step log.
    ///
    /// # Errors
    /// When the step log could not be written.
    pub fn stop(&self) -> std::io::Result<()> {
        self.begin_drain();
        lock(&self.held).clear();
        for place in self.places() {
            place.replica.stop();
        }
        let log = lock(&self.log).take();
        log.map_or(Ok(()), |(log, writer)| {
            drop(writer);
            log.finish()
        })
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start_log(
    path: &Path,
    spec: &EngineSpec,
    replicas: usize,
) -> std::io::Result<(StepLog, StepLogWriter)> {
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
