//! Record files: what a run leaves, in one file that can be read in parts.
//!
//! ```text
//!  Run --Observer--> Collector --+
//!                                +--> Record --write--> FILE.servetwin --Reader--> Record, or parts of it
//!  RunRecord, RunReport ---------+
//! ```
//!
//! - [`Record`] what is kept: the report, rows of requests, levels of steps, counts over time, events of the fleet
//! - [`Collector`] takes it in while a run goes on, in bounded memory
//! - [`resample`] series and distributions of it, as curves
//! - [`fn@write`] and [`Reader`] the file: a zip of NumPy arrays, described in `docs/record.md`
//!
//! Rows beyond the limits are thinned, and the record says how: of the requests every 2^n-th is kept, of the steps 2^n neighbours of one
//! replica become one [`StepSpan`] with their sums. Nothing is dropped silently, and counts over time are exact.

mod cluster;
mod collect;
mod columns;
mod cursor;
mod error;
mod flat;
mod levels;
mod npy;
mod packed;
mod read;
mod record;
pub mod resample;
mod rows;
mod run;
mod tables;
mod write;

pub use cluster::{Cluster, ClusterReplica, Decision, Node, Pod, Sample, Served};
pub use collect::{Collected, Collector, Limits};
pub use error::StoreError;
pub use flat::{from_bytes, to_bytes};
pub use levels::{FAN_OUT, StepLevel, build_levels, merge};
pub use packed::{Iter, Packable, Packed, Packer, Rows};
pub use read::{Reader, is_record, read, read_file, read_slice};
pub use record::{Info, Record, SloLimits};
pub use rows::{Bin, Event, EventKind, Rates, Replica, Stat, StepSpan, Transfer};
pub use run::run;
pub use write::write;

/// Version of the format; raised when a reader of the former one would misread a file.
///
/// 2: `cluster.json`. Files of format 1 have none, and are read as before.
pub const FORMAT: u32 = 2;

/// How the name of a record file ends.
pub const EXTENSION: &str = "servetwin";

/// Rows of a table that lie in one chunk.
pub const CHUNK_ROWS: usize = 1 << 16;

/// Most rows of a table that a reader takes in: a file that says more is refused.
pub const MAX_ROWS: usize = 1 << 22;
