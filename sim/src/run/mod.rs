//! A run that can be held: advanced to an instant, looked at, changed, cancelled and watched.
//!
//! ```text
//!  workload --requests--> router --> replica 0  front desk -> engine -> record
//!     ^                     ^    --> replica 1  ...
//!     |                     |
//!     +---- ends -----------+---- what the router sees (fresh or scraped)
//! ```
//!
//! Virtual time jumps from one instant at which something happens to the next; the order within an instant is that of
//! [`crate::cluster`]. Replicas are advanced on their own for as long as nothing from outside can reach them ([`Pace`]); the record does
//! not depend on that, nor on the number of threads.

mod gate;
mod gateway;
mod group;
mod handovers;
mod held;
pub(crate) mod options;
mod outliers;
mod plans;
mod retries;
mod services;
mod simulate;
mod view;

pub use held::Run;
pub use options::{Path, RunError, RunOptions};
pub use plans::Change;
pub use view::{Pace, ReplicaView, Snapshot, Status};
