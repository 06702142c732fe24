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
    /// How long steps of a healthy engine take.
    fn steps(&self) -> &dyn StepModel;
}
