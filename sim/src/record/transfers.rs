//! What became of KV that went from prefill replicas to decode replicas.

use crate::kernel::time::{SimDuration, SimTime};
use crate::metrics::distribution::Distribution;
use crate::request::ReqId;

/// One transfer that was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferRow {
    /// The request whose KV it is.
    pub request: ReqId,
    /// Replica that made it.
    pub from: u32,
    /// Replica that it went to.
    pub to: u32,
    /// How much of it went [tokens]: what the receiver had in its prefix cache did not.
    pub tokens: u32,
    /// KV of the prompt that the sender held meanwhile [tokens].
    pub held_tokens: u32,
    /// How many bytes went beside the link's other transfers; with transfers layer by layer some have gone during the prefill.
    pub bytes: u64,
    /// The prefill was done: from here on the sender's blocks are held for the transfer.
    pub prefilled: SimTime,
    /// The receiver had set blocks aside.
    pub began: SimTime,
    /// It was all there, and the sender's blocks were free.
    pub ended: SimTime,
}

/// The transfers of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferRecord {
    /// How many were completed in the measurement window.
    pub count: u64,
    /// Transfers that were broken off, over the whole run: the client left, or a replica died.
    pub broken_off: u64,
    /// Bytes that went in the window.
    pub bytes: u128,
    /// From when the receiver's blocks were set aside until all was there.
    pub time: Distribution,
    /// From the end of the prefill until the receiver's blocks were set aside.
    pub wait: Distribution,
    /// From the end of the prefill until the sender's blocks were free.
    pub held: Distribution,
    /// Tokens held for transfers on prefill replicas, integrated over time, by replica [tokens x ns].
    pub held_token_ns: Vec<u128>,
    /// A row per transfer in the order of their ends; none where there were more than the limit.
    pub rows: Option<Vec<TransferRow>>,
}

impl TransferRecord {
    /// Nothing yet, with or without rows.
    pub fn new(rows: bool) -> TransferRecord {
        TransferRecord {
            rows: rows.then(Vec::new),
            ..TransferRecord::default()
        }
    }

    /// Takes in a transfer; figures are of those that ended after `start`, rows are kept up to `limit`.
    pub fn add(&mut self, row: &TransferRow, start: SimTime, limit: usize) {
        if row.ended >= start {
            self.count += 1;
            self.bytes += u128::from(row.bytes);
            self.time.add(row.ended.since(row.began), 1);
            self.wait.add(row.began.since(row.prefilled), 1);
            self.held.add(row.ended.since(row.prefilled), 1);
            let held: SimDuration = row.ended.since(row.prefilled.max(start));
            let from = row.from as usize;
            if self.held_token_ns.len() <= from {
                self.held_token_ns.resize(from + 1, 0);
            }
            self.held_token_ns[from] += u128::from(held.0) * u128::from(row.held_tokens);
        }
        match &mut self.rows {
            Some(rows) if rows.len() < limit => rows.push(*row),
            rows => *rows = None,
        }
    }
}
