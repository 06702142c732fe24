//! The end of a run: its record, and what must hold until then.

use super::{Run, cluster};
use crate::cluster::replica::Replica;
use crate::cluster::requests::never_served;
use crate::kernel::time::SimTime;
use crate::record::{RunInfo, RunRecord};
use crate::request::Outcome;
use crate::run::options::RunError;

/// Share of its time from which on a front end at work is worth a warning.
const BUSY_FRONT_END: f64 = 0.8;

impl Run<'_> {
    /// Closes the books where the run stands.
    ///
    /// # Errors
    /// [`RunError::Record`].
    pub fn finish(mut self, mut info: RunInfo) -> Result<RunRecord, RunError> {
        let last = self.fleet.iter().map(Replica::last).max();
        let happened = self.now.max(last.unwrap_or_default());
        let end = if self.until == SimTime::NEVER {
            happened
        } else {
            self.until
        };
        for i in 0..self.fleet.len() {
            let (replica, books) = self.fleet.get(i);
            replica.close(end, books);
        }
        self.close_retries(end);
        for (id, spec) in self.gateway.drain() {
            let (row, _) = never_served(id, &spec, Outcome::InFlight, end);
            self.fleet.groups[0].books.recorder.request(&row);
        }
        info.warnings.extend(self.busy_front_end(end));
        self.tell_sent();
        let engines = self.fleet.len();
        let mut recorders = self.fleet.groups.into_iter().map(|g| g.books.recorder);
        let Some(mut all) = recorders.next() else {
            return Err(RunError::NoReplica);
        };
        for recorder in recorders {
            all.merge(recorder);
        }
        let around = self.cluster.map(|(cluster, _)| cluster.finish(end));
        if let Some(around) = &around {
            cluster::describe(&mut info, around, engines);
        }
        let gateway = self.gate.as_ref().map(|g| g.record());
        let mut record = all.finish(end, info)?;
        record.gateway = gateway;
        record.cluster = around;
        Ok(record)
    }

    /// Says that requests waited where the engine does not see them, of the busiest front end.
    pub(super) fn busy_front_end(&self, end: SimTime) -> Option<String> {
        let shares = self.fleet.iter().map(|r| r.front_end_share(end));
        let (replica, busiest) = (shares.enumerate())
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|b| b.1 >= BUSY_FRONT_END)?;
        Some(format!(
            "the front end of replica {replica} had work for {:.0} % of the run: requests wait there before the engine sees them \
             (vLLM: `engine.api_server_count`)",
            100.0 * busiest
        ))
    }

    /// Checks what must always hold after an instant.
    pub(super) fn check(&self, now: SimTime) {
        let outstanding: usize = self.fleet.iter().map(Replica::outstanding).sum();
        let drawn = usize::from(self.drawn.is_some());
        let again = self.gate.as_ref().map_or(0, |g| g.waiting());
        assert_eq!(
            self.offered,
            self.ended() + (outstanding + self.gateway.len() + again + drawn) as u64,
            "requests are conserved"
        );
        for replica in self.fleet.iter() {
            replica.check(now);
        }
    }
}
