//! What passes between a cluster and its run: what the cluster sees of the engines, and what it orders.

use hwmodels::StepModel;

use super::slow::Speed;
use crate::kernel::time::{SimDuration, SimTime};
use crate::policy::Load;

/// What the run is to do.
#[derive(Clone, Debug)]
pub enum Order {
    /// A replica is ready: start an engine for it, and say with [`Cluster::started`](super::Cluster::started) which.
    Start {
        /// The replica.
        unit: usize,
        /// Its deployment, by its index.
        deployment: usize,
        /// How much longer its steps take than they should, where that may change; `None`: they take as long as they should.
        speed: Option<Speed>,
    },
    /// An engine is sent nothing more.
    Drain(u32),
    /// The gateway does not reach an engine; it tries to connect for so long.
    CutOff(u32, SimDuration),
    /// The gateway reaches an engine again.
    Reach(u32),
    /// An engine is gone with what it holds.
    Kill(u32),
    /// The links that KV goes over carry such shares of their bandwidth from now on.
    KvLinks(LinkShares),
    /// What an engine sends and receives of KV has such a share of its bandwidth from now on: the link of its node is another.
    KvPort(u32, f64),
}

/// Shares of their bandwidth that the links between pools carry.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkShares {
    /// What joins all of them.
    pub fabric: f64,
    /// What the replicas of each deployment send and receive.
    pub deployments: Vec<f64>,
}

/// Requests for one deployment, and for others that take the same ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Offered so far.
    pub offered: u64,
    /// Of those, requests that have ended here, however.
    pub ended: u64,
    /// Of those, requests held at the gateway.
    pub held: u64,
}

/// What an engine has done so far; counters grow when a request completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that completed.
    pub finished: u64,
    /// Their time in front of the engine [ns].
    pub queue_ns: u64,
    /// Their time in the engine, waiting in its queue included [ns].
    pub compute_ns: u64,
    /// Their prompts [tokens].
    pub prompt_tokens: u64,
    /// Their outputs [tokens].
    pub output_tokens: u64,
}

/// What can be seen of an engine from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vitals {
    /// What it holds.
    pub load: Load,
    /// What it has done.
    pub totals: Totals,
    /// Requests that it was sent and has not answered, those in its server and not in its scheduler included.
    pub outstanding: u32,
    /// When it ended, if it has.
    pub gone: Option<SimTime>,
}

/// What the cluster sees of the run, all that is due having happened.
pub trait Sight {
    /// Engine `index`.
    fn engine(&self, index: u32) -> Vitals;
    /// Requests held at the gateway.
    fn held(&self) -> u64;
    /// Requests offered so far.
    fn offered(&self) -> u64;
    /// Requests that have ended, however.
    fn ended(&self) -> u64;
    /// Requests for the deployment with this index.
    fn traffic(&self, deployment: usize) -> Traffic;
    /// How long steps of a healthy engine of the deployment with this index take.
    fn steps(&self, deployment: usize) -> &dyn StepModel;
}
