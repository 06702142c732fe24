//! Makes what of a sweep is not done yet.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use rayon::prelude::*;
use sim::metrics::RecordOptions;
use sim::report::RunReport;
use sim::simulation::RunOptions;

use super::axes::Sweep;
use super::journal::{Head, Journal};
use super::result::{Row, SweepResult};
use crate::Error;

/// A part of a sweep: run `i` belongs to shard `i mod count + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which, from 1.
    pub index: u64,
    /// How many there are.
    pub count: u64,
}

impl Shard {
    /// All of it.
    pub const WHOLE: Shard = Shard { index: 1, count: 1 };

    /// Reads `2/8`.
    ///
    /// # Errors
    /// What is not two numbers, or no shard.
    pub fn parse(text: &str) -> Result<Shard, String> {
        let wrong = || format!("`{text}` is no shard; write e.g. 2/8, from 1/8 to 8/8");
        let (index, count) = text.split_once('/').ok_or_else(wrong)?;
        let number = |s: &str| s.trim().parse::<u64>().map_err(|_| wrong());
        let shard = Shard {
            index: number(index)?,
            count: number(count)?,
        };
        if (1..=shard.count).contains(&shard.index) {
            Ok(shard)
        } else {
            Err(wrong())
        }
    }

    /// The shard of a job array, from the environment that `var` reads: Slurm's `SLURM_ARRAY_TASK_ID` with `_MIN`, `_STEP` and `_COUNT`, or
    /// Kubernetes' `JOB_COMPLETION_INDEX`, which counts from 0, with `count` shards.
    ///
    /// # Errors
    /// A count that is not known, an index beyond it.
    pub fn of_job(
        count: Option<u64>,
        var: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Shard>, String> {
        let number = |name: &str| -> Result<Option<u64>, String> {
            var(name)
                .map(|v| {
                    v.trim()
                        .parse()
                        .map_err(|_| format!("{name} is `{v}`, which is no whole number"))
                })
                .transpose()
        };
        let (index, own) = if let Some(id) = number("SLURM_ARRAY_TASK_ID")? {
            let first = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
            let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
            (
                id.saturating_sub(first) / step + 1,
                number("SLURM_ARRAY_TASK_COUNT")?,
            )
        } else if let Some(i) = number("JOB_COMPLETION_INDEX")? {
            (i.saturating_add(1), None)
        } else {
            return Ok(None);
        };
        let count = count
            .or(own)
            .ok_or("this is a job of an array, and nothing says of how many: give --shards N")?;
        if !(1..=count).contains(&index) {
            return Err(format!(
                "this is job {index} of an array of {count} shards: raise --shards, or make the array smaller"
            ));
        }
        Ok(Some(Shard { index, count }))
    }

    /// Whether run `run` is one of its.
    pub fn holds(&self, run: u64) -> bool {
        run % self.count == self.index - 1
    }

    /// Name of its journal.
    pub fn journal(&self) -> String {
        format!("journal-{}-of-{}.jsonl", self.index, self.count)
    }

    /// The shard whose journal the file is called.
    fn of_journal(file: &Path) -> Option<Shard> {
        let name = file.file_name()?.to_str()?.strip_prefix("journal-")?;
        let (index, count) = name.strip_suffix(".jsonl")?.split_once("-of-")?;
        Shard::parse(&format!("{index}/{count}")).ok()
    }
}

fn head(sweep: &Sweep, shard: Shard) -> Head {
    Head {
        sweep: sweep.fingerprint(),
        runs: sweep.runs(),
        shard: (shard.index, shard.count),
    }
}

/// Makes the runs of `shard` that the journal in `dir` does not hold yet; `progress` is told how many of how many are done, `say` of lines of the journal
/// that were damaged. Gives all rows of the shard.
///
/// # Errors
/// The journal's; defects of the simulator. A point that cannot be run is a row with its error.
pub fn run(
    sweep: &Sweep,
    shard: Shard,
    dir: &Path,
    progress: &(dyn Fn(u64, u64) + Sync),
    say: &dyn Fn(&str),
) -> Result<Vec<Row>, Error> {
    std::fs::create_dir_all(dir)
        .map_err(|e| Error::input(format!("cannot create {}: {e}", dir.display())))?;
    let path = dir.join(shard.journal());
    let (journal, held) = Journal::open(&path, &head(sweep, shard))?;
    if let Some(damage) = held.damage(&path) {
        say(&format!("{damage}; what is missing now is made anew"));
    }
    let mut done: BTreeMap<u64, Row> = BTreeMap::new();
    for row in held.rows {
        if !shard.holds(row.run) || row.run >= sweep.runs() || done.insert(row.run, row).is_some() {
            return Err(Error::input(format!(
                "{}: a run is there twice, or is none of the shard's; remove it to start over",
                shard.journal()
            )));
        }
    }
    let all: Vec<u64> = (0..sweep.runs()).filter(|i| shard.holds(*i)).collect();
    let left: Vec<u64> = all
        .iter()
        .copied()
        .filter(|i| !done.contains_key(i))
        .collect();
    progress(done.len() as u64, all.len() as u64);
    let state = Mutex::new((journal, done));
    left.par_iter().try_for_each(|i| -> Result<(), Error> {
        let row = one(sweep, *i)?;
        let mut held = state.lock().unwrap_or_else(|e| e.into_inner());
        held.0.add(&row)?;
        held.1.insert(*i, row);
        progress(held.1.len() as u64, all.len() as u64);
        Ok(())
    })?;
    let (_, done) = state.into_inner().unwrap_or_else(|e| e.into_inner());
    Ok(done.into_values().collect())
}

fn one(sweep: &Sweep, i: u64) -> Result<Row, Error> {
    let options = RunOptions {
        record: RecordOptions {
            series_bins: 0,
            ..RecordOptions::default()
        },
        ..RunOptions::default()
    };
    let made = sweep.scenario(i).and_then(|s| Ok(s.run(&options)?));
    match made {
        Ok(record) => Ok(Row::of(i, &RunReport::new(&record, 0.0))),
        Err(e) => Ok(Row::failed(i, e.into_reason()?)),
    }
}

/// The finished sweep from the journals in `dirs`.
///
/// # Errors
/// Journals of another sweep; runs that are missing, or there twice with different results.
pub fn merge(sweep: &Sweep, dirs: &[&Path]) -> Result<SweepResult, Error> {
    let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
    let mut damage = Vec::new();
    let mut journals = 0;
    for dir in dirs {
        let entries = std::fs::read_dir(dir)
            .map_err(|e| Error::input(format!("cannot read {}: {e}", dir.display())))?;
        let mut files: Vec<_> = entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| Shard::of_journal(p).is_some())
            .collect();
        files.sort();
        for file in files {
            journals += 1;
            let Some(shard) = Shard::of_journal(&file) else {
                continue;
            };
            let contents = Journal::read(&file, &head(sweep, shard))?;
            damage.extend(contents.damage(&file));
            for row in contents.rows {
                let run = row.run;
                if let Some(before) = rows.insert(run, row)
                    && rows.get(&run) != Some(&before)
                {
                    return Err(Error::input(format!(
                        "{}: run {run} is there twice, with different results",
                        file.display()
                    )));
                }
            }
        }
    }
    let missing: Vec<u64> = (0..sweep.runs())
        .filter(|i| !rows.contains_key(i))
        .collect();
    if !missing.is_empty() {
        let some: Vec<String> = missing.iter().take(5).map(u64::to_string).collect();
        return Err(Error::input(format!(
            "{} of {} runs are missing in {journals} journals (first: {}); run the shards that hold them again{}",
            missing.len(),
            sweep.runs(),
            some.join(", "),
            damage.iter().map(|d| format!("\n{d}")).collect::<String>()
        )));
    }
    Ok(SweepResult::new(sweep, rows.into_values().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_a_part_of_so_many() {
        assert_eq!(Shard::parse("2/8"), Ok(Shard { index: 2, count: 8 }));
        for wrong in ["0/8", "9/8", "1", "a/b", "1/0", ""] {
            assert!(Shard::parse(wrong).unwrap_err().contains("2/8"), "{wrong}");
        }
        let all: Vec<u64> = (1..=3)
            .flat_map(|index| (0..10).filter(move |i| Shard { index, count: 3 }.holds(*i)))
            .collect();
        assert_eq!(all.len(), 10);
    }

    #[test]
    fn job_arrays_say_which_shard_it_is() {
        let env = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_owned())
        };
        assert_eq!(Shard::of_job(None, env(&[])), Ok(None));
        let slurm = env(&[
            ("SLURM_ARRAY_TASK_ID", "7"),
            ("SLURM_ARRAY_TASK_MIN", "5"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
        ]);
        assert_eq!(
            Shard::of_job(None, slurm),
            Ok(Some(Shard { index: 3, count: 4 }))
        );
        let kubernetes = || env(&[("JOB_COMPLETION_INDEX", "0")]);
        assert_eq!(
            Shard::of_job(Some(8), kubernetes()),
            Ok(Some(Shard { index: 1, count: 8 }))
        );
        assert!(
            Shard::of_job(None, kubernetes())
                .unwrap_err()
                .contains("--shards")
        );
        assert!(
            Shard::of_job(Some(2), env(&[("JOB_COMPLETION_INDEX", "2")]))
                .unwrap_err()
                .contains("array")
        );
        assert!(
            Shard::of_job(Some(2), env(&[("JOB_COMPLETION_INDEX", "x")]))
                .unwrap_err()
                .contains("whole number")
        );
    }
}
