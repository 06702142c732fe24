//! Disaggregated serving (6.3): requests whose KV another executor has made, and those whose KV another one fetches.
//!
//! A request in DISAGG_GENERATION_INIT gets its blocks before any context does, receives its KV into them, and then generates like any
//! other. A context-only request ends with its first token and leaves the active list; its blocks stay until they have been fetched.

use super::{BatchSchedulerPolicy, State, TrtLlm};
use crate::policy::{KvMove, RemoteKv};
use crate::request::ReqId;

/// Where the KV of a request is that another executor makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Remote {
    /// It is made here, or has come.
    #[default]
    No,
    /// There: no blocks are set aside for it yet (DISAGG_GENERATION_INIT).
    Wanted(RemoteKv),
    /// On its way into blocks that are set aside (DISAGG_GENERATION_TRANS_IN_PROGRESS).
    Coming,
}

impl TrtLlm {
    /// Moves `id`, which was just added, from the queue of contexts to those that wait for blocks to receive into.
    pub(super) fn wait_to_receive(&mut self, id: ReqId, remote: RemoteKv) {
        self.leave_queue(id);
        self.seqs[id as usize].remote = Remote::Wanted(remote);
        let (seqs, key) = (&self.seqs, self.seqs[id as usize].key);
        let at = (self.inits).partition_point(|&w| seqs[w as usize].key < key);
        self.inits.insert(at, id);
    }

    /// Sets blocks aside for those that wait to receive, in list order, as far as the capacity policy lets them in.
    pub(super) fn start_receptions(&mut self) {
        if self.inits.is_empty() {
            return;
        }
        let policy = self.config.params.batch_scheduler_policy;
        if policy == BatchSchedulerPolicy::StaticBatch && !self.started.is_empty() {
            return;
        }
        let promised: u64 = match policy {
            BatchSchedulerPolicy::MaxUtilization => 0,
            _ => (self.started.iter())
                .map(|&id| self.blocks_to_completion(id))
                .sum(),
        };
        let mut available = self.kv.free().saturating_sub(promised);
        while let Some(&id) = self.inits.front() {
            if self.started.len() >= self.config.max_requests() {
                return;
            }
            let Remote::Wanted(remote) = self.seqs[id as usize].remote else {
                return;
            };
            let context = self.seqs[id as usize].context;
            let need = match policy {
                BatchSchedulerPolicy::MaxUtilization => self.kv.blocks_for(context),
                _ => self.blocks_to_completion(id),
            };
            let hits = self.kv.hits(id, context);
            if need > available || !self.kv.admit(id, context, hits) {
                return;
            }
            available -= need;
            self.inits.pop_front();
            self.begin_to_receive(id, remote, hits);
        }
    }

    fn begin_to_receive(&mut self, id: ReqId, remote: RemoteKv, hits: u32) {
        let cached = hits * self.config.params.tokens_per_block;
        self.moves.push(KvMove {
            id,
            tokens: remote.tokens.saturating_sub(cached),
            inwards: true,
        });
        let s = &mut self.seqs[id as usize];
        s.remote = Remote::Coming;
        s.state = State::Started;
        s.has_started = true;
        s.generated = remote.outputs;
        s.done = remote.tokens;
        // No step may hold it until its KV is there.
        s.flights = 1;
        self.queued -= 1;
        self.insert_started(id);
    }

    pub(super) fn insert_started(&mut self, id: ReqId) {
        let (seqs, key) = (&self.seqs, self.seqs[id as usize].key);
        let at = (self.started).partition_point(|&s| seqs[s as usize].key < key);
        self.started.insert(at, id);
    }

    /// The KV of `id` is there.
    pub(super) fn end_reception(&mut self, id: ReqId) {
        let s = &mut self.seqs[id as usize];
        if s.remote != Remote::Coming {
            return;
        }
        s.remote = Remote::No;
        s.flights = 0;
        let done = s.done;
        self.kv.publish(id, done);
        if self.seqs[id as usize].pause_due {
            self.pause(id);
            self.lost.push(id);
        }
    }

    /// The client of `id` leaves while it waits for blocks or for its KV. True: there is nothing else to be done.
    pub(super) fn leave_reception(&mut self, id: ReqId) -> bool {
        match self.seqs[id as usize].remote {
            Remote::No => false,
            Remote::Wanted(_) => {
                self.inits.retain(|&w| w != id);
                self.queued -= 1;
                self.seqs[id as usize].state = State::Gone;
                true
            }
            Remote::Coming => {
                self.kv.release(id);
                self.started.retain(|&s| s != id);
                self.seqs[id as usize].state = State::Gone;
                true
            }
        }
    }

    /// `id` has its first token and ends here; its blocks stay.
    pub(super) fn keep_kv(&mut self, id: ReqId) {
        if self.seqs[id as usize].state == State::Started {
            self.started.retain(|&s| s != id);
        }
        self.seqs[id as usize].state = State::Sending;
    }

    /// The KV of `id` has been fetched.
    pub(super) fn release_kept(&mut self, id: ReqId) {
        if self.seqs[id as usize].state == State::Sending {
            self.give_back(id);
            self.seqs[id as usize].state = State::Gone;
        }
    }
}
