//! The books of requests whose KV goes to another server or comes from one.

use std::collections::VecDeque;

use crate::request::ReqId;

/// Requests whose KV goes or comes.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    /// Requests that keep KV for another server.
    pub(super) sending: usize,
    /// Requests whose KV is on the way.
    pub(super) coming: usize,
    /// Those whose KV has come.
    pub(super) arrived: VecDeque<ReqId>,
    /// Those that were retracted.
    pub(super) parked: VecDeque<ReqId>,
}

impl Transfers {
    /// Requests that wait for KV or for their turn.
    pub(super) fn waiting(&self) -> u32 {
        (self.coming + self.arrived.len() + self.parked.len()) as u32
    }
}
