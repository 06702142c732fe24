//! Replicas that come and go under the simulator's own cluster: its autoscalers, nodes and pods, driven by the wall clock.
//!
//! ```text
//!  replicas of the engine --what they hold and have done--> sim::kube::Cluster (scrape, HPA, KEDA, pods, nodes)
//!          ^                                                        |
//!          +------------------ start, drain, kill ------------------+
//! ```
//!
//! The simulator plays the same [`Cluster`] on its virtual clock. Nodes that boot, images and weights that load are waits here as
//! there; what is real are the replicas, their steps, their requests, and the figures that the controllers see of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hwmodels::StepModel;
use sim::kernel::time::SimTime;
use sim::kube::record::ClusterRecord;
use sim::kube::{Cluster, Order, Sight, Traffic, Vitals};

use crate::engine::Engine;
use crate::launch::{LaunchError, MakeExecutor};

/// Longest sleep between two looks at the clock: how soon a stop is noticed.
const NAP: Duration = Duration::from_millis(20);

/// Why a fleet ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A replica could not be started.
    #[error("a replica cannot be started: {0}")]
    Start(#[from] LaunchError),
    /// Its thread ended with a panic.
    #[error("the controllers' thread broke")]
    Broken,
}

/// What the cluster sees of the engine.
struct Seen<'a> {
    engine: &'a Engine,
    /// The engine's clock began so long before the cluster's.
    ahead: SimTime,
    steps: &'a dyn StepModel,
}

impl Sight for Seen<'_> {
    fn engine(&self, index: u32) -> Vitals {
        let metrics = self.engine.replica_metrics(index).unwrap_or_default();
        Vitals {
            load: metrics.load,
            totals: metrics.totals(),
            // What the server holds outside of the scheduler is not told by replica.
            outstanding: metrics.load.running + metrics.load.waiting,
            gone: (self.engine.gone(index)).map(|at| SimTime(at.0.saturating_sub(self.ahead.0))),
        }
    }

    fn held(&self) -> u64 {
        self.engine.held()
    }

    fn offered(&self) -> u64 {
        self.engine.taken_in()
    }

    fn ended(&self) -> u64 {
        self.engine
            .taken_in()
            .saturating_sub(self.engine.uncounted())
    }

    fn traffic(&self, _: usize) -> Traffic {
        Traffic {
            offered: self.offered(),
            ended: self.ended(),
            held: self.held(),
        }
    }

    fn steps(&self, _: usize) -> &dyn StepModel {
        self.steps
    }
}

/// An engine whose replicas a cluster starts and ends, on a thread of its own.
pub struct Fleet {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<Result<ClusterRecord, FleetError>>>>,
}

impl Fleet {
    /// Lets `cluster` have the replicas of `engine` from now on, which is the cluster's instant zero; `make` makes the forward pass of each.
    /// `steps` is what controllers that plan by step times believe of a healthy one.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(
        engine: Arc<Engine>,
        cluster: Cluster,
        steps: Arc<dyn StepModel>,
        make: MakeExecutor,
    ) -> std::io::Result<Fleet> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::Builder::new()
            .name("cluster".to_owned())
            .spawn(move || play(&engine, cluster, &*steps, make, &told))?;
        Ok(Fleet {
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Ends the controllers, and gives what they did; the engine keeps the replicas that it has. `None`: it was ended before.
    ///
    /// # Errors
    /// See [`FleetError`].
    pub fn stop(&self) -> Result<Option<ClusterRecord>, FleetError> {
        self.stop.store(true, Ordering::Release);
        let thread = (self.thread.lock())
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match thread.map(JoinHandle::join) {
            None => Ok(None),
            Some(Ok(record)) => record.map(Some),
            Some(Err(_)) => Err(FleetError::Broken),
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn play(
    engine: &Engine,
    mut cluster: Cluster,
    steps: &dyn StepModel,
    mut make: MakeExecutor,
    stop: &AtomicBool,
) -> Result<ClusterRecord, FleetError> {
    let (epoch, ahead) = (Instant::now(), engine.now());
    let now = || SimTime(u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX - 1));
    while !stop.load(Ordering::Acquire) {
        // A turn that comes a little late is still the turn of its own instant: periods do not stretch.
        let at = cluster.next();
        let left = at.since(now());
        if at > now() {
            std::thread::sleep(NAP.min(Duration::from_nanos(left.0)));
            continue;
        }
        let seen = Seen {
            engine,
            ahead,
            steps,
        };
        for order in cluster.act(at, &seen) {
            match order {
                Order::Start { unit, .. } => {
                    let executor = make()?;
                    let index = engine.join(executor).map_err(LaunchError::from)?;
                    cluster.started(now(), unit, index);
                }
                Order::Drain(index) => engine.drain(index),
                Order::Kill(index) => engine.kill(index),
                // Faults of the network are of simulated clusters: between these engines and their clients there is none.
                Order::CutOff(..) | Order::Reach(_) | Order::KvLinks(_) | Order::KvPort(..) => {}
            }
        }
    }
    Ok(cluster.finish(now()))
}
