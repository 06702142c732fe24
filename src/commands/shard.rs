//! Which part of the work a process of a job array makes.

use planner::sweep::Shard;

use crate::bad_input::BadInput;

/// Most shards.
const MAX_SHARDS: u64 = 100_000;

/// The part to make.
#[derive(Clone, Debug, clap::Args)]
pub struct ShardArgs {
    /// Make a part only, e.g. 2/8; servetwin merge puts the parts together.
    #[arg(long, value_name = "I/N", value_parser = Shard::parse)]
    shard: Option<Shard>,
    /// Make the part of this job of a job array of N (SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX).
    #[arg(long, value_name = "N", conflicts_with = "shard", value_parser = clap::value_parser!(u64).range(1..=MAX_SHARDS))]
    shards: Option<u64>,
}

impl ShardArgs {
    /// The part; none: all of it.
    ///
    /// # Errors
    /// [`BadInput`] where this is no job of an array, or its index is beyond it.
    pub fn part(&self) -> anyhow::Result<Option<Shard>> {
        if self.shards.is_none() {
            return Ok(self.shard);
        }
        let shard =
            Shard::of_job(self.shards, |name| std::env::var(name).ok()).map_err(BadInput)?;
        let none = "--shards: this is no job of an array (neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set); give --shard I/N";
        Ok(Some(shard.ok_or_else(|| BadInput(none.into()))?))
    }
}
