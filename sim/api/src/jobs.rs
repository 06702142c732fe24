//! Answers under way: a queue, as many at once as may be, each with its time.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::Limits;
use crate::problem::{Code, Problem};
use crate::work::{Kind, Progress, ProgressView, Task};

/// Stack of the thread that works on a job [bytes], that of a program's first thread.
const STACK_BYTES: usize = 8 << 20;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits.
    Queued,
    /// It is worked on.
    Running,
    /// Its result is there.
    Succeeded,
    /// It has an error in place of a result.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

impl State {
    /// Whether it stays.
    pub fn is_end(self) -> bool {
        !matches!(self, State::Queued | State::Running)
    }
}

/// What came of a job.
#[derive(Clone, Debug)]
enum Stage {
    Queued,
    Running,
    Ended(Result<Arc<[u8]>, Problem>),
}

impl Stage {
    fn state(&self) -> State {
        match self {
            Stage::Queued => State::Queued,
            Stage::Running => State::Running,
            Stage::Ended(Ok(_)) => State::Succeeded,
            Stage::Ended(Err(e)) if e.code == Code::Cancelled => State::Cancelled,
            Stage::Ended(Err(_)) => State::Failed,
        }
    }
}

/// A job.
pub struct Job {
    /// Its name.
    pub id: String,
    kind: Kind,
    created_s: f64,
    started_s: AtomicU64,
    ended_s: AtomicU64,
    progress: Progress,
    cancel: Arc<AtomicBool>,
    late: AtomicBool,
    stage: watch::Sender<Stage>,
}

/// A job as callers read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct JobView {
    /// Its name.
    pub id: String,
    /// What it answers.
    pub kind: Kind,
    /// Where it is.
    pub state: State,
    /// How far it is.
    pub progress: ProgressView,
    /// When it came [s since 1970].
    pub created_s: f64,
    /// When work on it began [s since 1970]; null while it waits.
    pub started_s: Option<f64>,
    /// When it ended [s since 1970]; null before.
    pub ended_s: Option<f64>,
    /// Path of the job.
    pub url: String,
    /// Path of its result; null where there is none.
    pub result_url: Option<String>,
    /// Why it has no result; null otherwise.
    pub error: Option<Problem>,
}

fn now_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |d| d.as_secs_f64())
}

/// A time that may not have come yet, in an atomic: bits of the seconds, 0 before.
fn time(at: &AtomicU64) -> Option<f64> {
    Some(f64::from_bits(at.load(Ordering::Relaxed))).filter(|s| *s > 0.0)
}

impl Job {
    /// As callers read it.
    pub fn view(&self) -> JobView {
        let stage = self.stage.borrow().clone();
        let url = format!("/v1/jobs/{}", self.id);
        JobView {
            id: self.id.clone(),
            kind: self.kind,
            state: stage.state(),
            progress: self.progress.view(),
            created_s: self.created_s,
            started_s: time(&self.started_s),
            ended_s: time(&self.ended_s),
            result_url: matches!(stage, Stage::Ended(Ok(_))).then(|| format!("{url}/result")),
            url,
            error: match stage {
                Stage::Ended(Err(e)) => Some(e),
                _ => None,
            },
        }
    }

    /// Its result.
    ///
    /// # Errors
    /// That it has not ended; why there is none.
    pub fn result(&self) -> Result<Arc<[u8]>, Problem> {
        match &*self.stage.borrow() {
            Stage::Ended(result) => result.clone(),
            _ => Err(Problem::new(
                Code::NotReady,
                "no result",
                format!("the job has not ended; ask /v1/jobs/{} again", self.id),
            )),
        }
    }

    /// Returns when it has ended.
    pub async fn ended(&self) {
        let mut stage = self.stage.subscribe();
        // The sender is this job's own: it is not gone.
        let _ = stage.wait_for(|s| matches!(s, Stage::Ended(_))).await;
    }

    fn is_end(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Ended(_))
    }

    fn end(&self, result: Result<Arc<[u8]>, Problem>) {
        self.ended_s.store(now_s().to_bits(), Ordering::Relaxed);
        self.stage.send_replace(Stage::Ended(result));
    }
}

#[derive(Default)]
struct Table {
    by_id: BTreeMap<String, Arc<Job>>,
    queue: VecDeque<(Arc<Job>, Task)>,
    running: Vec<Arc<Job>>,
    /// Ended jobs, the oldest first, with the bytes of their results.
    ended: VecDeque<(Arc<Job>, usize)>,
    count: u64,
    stopping: bool,
}

/// All jobs.
pub struct Jobs {
    limits: Limits,
    table: Mutex<Table>,
    /// Keyed by the system's randomness: names of jobs cannot be guessed.
    names: [RandomState; 2],
    /// Raised with every change of the table.
    changed: watch::Sender<u64>,
    runtime: Handle,
}

/// How many jobs there are.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Counts {
    /// Jobs that wait.
    pub queued: usize,
    /// Jobs that are worked on.
    pub running: usize,
    /// Ended jobs that are kept.
    pub kept: usize,
}

impl Jobs {
    /// No jobs; their clocks run on `runtime`.
    pub fn new(limits: Limits, runtime: Handle) -> Arc<Jobs> {
        Arc::new(Jobs {
            limits,
            table: Mutex::default(),
            names: [RandomState::new(), RandomState::new()],
            changed: watch::Sender::new(0),
            runtime,
        })
    }

    /// What callers may take.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a task on.
    ///
    /// # Errors
    /// As many jobs wait as may; the service is shutting down.
    pub fn add(self: &Arc<Jobs>, task: Task) -> Result<Arc<Job>, Problem> {
        let mut table = self.table();
        if table.stopping {
            let why = "the service is shutting down";
            return Err(Problem::new(Code::Stopping, "the job was not taken", why));
        }
        let all_run = table.running.len() >= self.limits.jobs;
        if all_run && table.queue.len() >= self.limits.queue {
            let why = format!(
                "{} jobs run and {} wait, as many as may; try again later",
                table.running.len(),
                table.queue.len()
            );
            return Err(Problem::new(Code::QueueFull, "the job was not taken", why));
        }
        table.count += 1;
        let half = |key: &RandomState| key.hash_one(table.count);
        let job = Arc::new(Job {
            id: format!("{:016x}{:016x}", half(&self.names[0]), half(&self.names[1])),
            kind: task.kind(),
            created_s: now_s(),
            started_s: AtomicU64::new(0),
            ended_s: AtomicU64::new(0),
            progress: Progress::default(),
            cancel: Arc::default(),
            late: AtomicBool::new(false),
            stage: watch::Sender::new(Stage::Queued),
        });
        table.by_id.insert(job.id.clone(), job.clone());
        table.queue.push_back((job.clone(), task));
        self.start(&mut table);
        Ok(job)
    }

    /// Starts what waits, as far as may be.
    fn start(self: &Arc<Jobs>, table: &mut Table) {
        while table.running.len() < self.limits.jobs {
            let Some((job, task)) = table.queue.pop_front() else {
                break;
            };
            job.started_s.store(now_s().to_bits(), Ordering::Relaxed);
            job.stage.send_replace(Stage::Running);
            table.running.push(job.clone());
            let jobs = self.clone();
            let own = job.clone();
            let work = move || jobs.work(&own, &task);
            let named = std::thread::Builder::new().name("job".into());
            if let Err(e) = named.stack_size(STACK_BYTES).spawn(work) {
                table.running.pop();
                let e = Problem::new(Code::Internal, "the job cannot be started", e.to_string());
                self.close(table, &job, Err(e));
            }
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Works on a job, on a thread of its own.
    fn work(self: &Arc<Jobs>, job: &Arc<Job>, task: &Task) {
        let clock = {
            let (job, limit) = (job.clone(), self.limits.job_time);
            self.runtime.spawn(async move {
                tokio::time::sleep(limit).await;
                job.late.store(true, Ordering::Relaxed);
                job.cancel.store(true, Ordering::Relaxed);
            })
        };
        let answered = catch_unwind(AssertUnwindSafe(|| {
            task.answer(&self.limits, &job.cancel, &job.progress)
        }));
        clock.abort();
        let result = match answered {
            Ok(Ok(bytes)) => Ok(Arc::from(bytes)),
            Ok(Err(e)) if e.code == Code::Cancelled && job.late.load(Ordering::Relaxed) => {
                let why = format!(
                    "it took longer than {} s, the most that this service gives a job; ask for less: fewer alternatives, fewer requests",
                    self.limits.job_time.as_secs_f64()
                );
                Err(Problem::new(Code::JobTimeout, "no result", why))
            }
            Ok(Err(e)) => Err(e),
            Err(_) => {
                let why = "a defect of servetwin; its log says more";
                Err(Problem::new(Code::Internal, "the job failed", why))
            }
        };
        let mut table = self.table();
        table.running.retain(|j| j.id != job.id);
        self.close(&mut table, job, result);
        self.start(&mut table);
    }

    /// Ends a job, and forgets the oldest where more are kept than may be.
    fn close(&self, table: &mut Table, job: &Arc<Job>, result: Result<Arc<[u8]>, Problem>) {
        table
            .ended
            .push_back((job.clone(), result.as_ref().map_or(0, |r| r.len())));
        job.end(result);
        let bytes = |t: &Table| t.ended.iter().map(|e| e.1).sum::<usize>();
        while table.ended.len() > self.limits.kept
            || (table.ended.len() > 1 && bytes(table) > self.limits.kept_bytes)
        {
            if let Some((oldest, _)) = table.ended.pop_front() {
                table.by_id.remove(&oldest.id);
            }
        }
    }

    /// The job of this name.
    ///
    /// # Errors
    /// There is none, or none any more.
    pub fn get(&self, id: &str) -> Result<Arc<Job>, Problem> {
        let found = self.table().by_id.get(id).cloned();
        found.ok_or_else(|| {
            let why = format!(
                "no job of that name is there; of those that ended, the last {} are kept",
                self.limits.kept
            );
            Problem::new(Code::NotFound, "there is no such job", why)
        })
    }

    /// All jobs, the oldest first.
    pub fn list(&self) -> Vec<JobView> {
        let mut all: Vec<JobView> = self.table().by_id.values().map(|j| j.view()).collect();
        all.sort_by(|a, b| {
            let by_time = a.created_s.total_cmp(&b.created_s);
            by_time.then(a.id.cmp(&b.id))
        });
        all
    }

    /// Cancels a job that has not ended, and forgets one that has; true: it was forgotten.
    ///
    /// # Errors
    /// There is no such job.
    pub fn delete(&self, id: &str) -> Result<(Arc<Job>, bool), Problem> {
        let job = self.get(id)?;
        let mut table = self.table();
        if job.is_end() {
            table.ended.retain(|(j, _)| j.id != id);
            table.by_id.remove(id);
            return Ok((job, true));
        }
        job.cancel.store(true, Ordering::Relaxed);
        // One that runs ends by itself, between two instants of its simulation.
        let waits = table.queue.iter().position(|(j, _)| j.id == id);
        if let Some(at) = waits {
            table.queue.remove(at);
            self.close(&mut table, &job, Err(Problem::cancelled()));
        }
        Ok((job, false))
    }

    /// How many there are.
    pub fn counts(&self) -> Counts {
        let table = self.table();
        Counts {
            queued: table.queue.len(),
            running: table.running.len(),
            kept: table.ended.len(),
        }
    }

    /// Whether no job is taken any more.
    pub fn is_stopping(&self) -> bool {
        self.table().stopping
    }

    /// Takes no more jobs, and cancels those that wait. Gives how many run.
    pub fn stop(&self) -> usize {
        let mut table = self.table();
        table.stopping = true;
        while let Some((job, _)) = table.queue.pop_front() {
            self.close(&mut table, &job, Err(Problem::cancelled()));
        }
        table.running.len()
    }

    /// Cancels what runs.
    pub fn cancel_all(&self) {
        for job in &self.table().running {
            job.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Returns when nothing runs.
    pub async fn idle(&self) {
        let mut changed = self.changed.subscribe();
        while self.counts().running > 0 {
            if changed.changed().await.is_err() {
                break;
            }
        }
    }
}
