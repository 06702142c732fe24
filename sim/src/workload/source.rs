//! What a run asks of a source of requests.

use crate::kernel::time::SimTime;
use crate::request::{Outcome, ReqId, RequestSpec};

/// What a workload is told when one of its requests has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// The id it got when it was popped.
    pub id: ReqId,
    /// The tag its source gave it.
    pub tag: u64,
    /// Stream it belongs to.
    pub stream: u16,
    /// Session it belongs to, if any.
    pub session: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// When its client knew: last token, refusal, or giving up.
    pub at: SimTime,
    /// Tokens its client got [tokens].
    pub output_tokens: u32,
}

/// A source of requests.
///
/// The run asks `peek` for the instant of the next request; when its clock is there it calls `pop`. After every
/// `on_end` it asks `peek` again, so that closed loops, sessions and retries can send their next request
/// (at `at` or later). Nothing here allocates in steady state.
pub trait Workload: Send {
    /// When the next request is sent; `None`: nothing more, unless a later `on_end` brings something.
    /// Never earlier than the `arrival` of the last popped request, nor than the `at` of the last `on_end`.
    fn peek(&self) -> Option<SimTime>;

    /// Takes the request that `peek` announced and writes all of it into `out` (reused between calls; `segments`
    /// keeps its memory: clear it first). `out.arrival` is what `peek` said. `id` is what the run calls this
    /// request: 0, 1, 2, ... in the order of `pop`.
    fn pop(&mut self, id: ReqId, out: &mut RequestSpec);

    /// One of its requests has ended, other than by the end of the run.
    fn on_end(&mut self, end: &RequestEnd) {
        let _ = end;
    }

    /// Whether an `on_end` can bring further requests or move those to come: closed loops, sessions, retries. Where nothing does, a run
    /// draws requests ahead of its clock, and `on_end` is not called.
    fn reacts(&self) -> bool {
        true
    }

    /// Whether two requests can ever share prompt content, i.e. whether any `segments` will be non-empty.
    /// False lets prefix caches count blocks instead of naming them; the results are the same.
    fn shares_content(&self) -> bool {
        false
    }

    /// How many requests there will be, if that is known: for progress bars and to size memory.
    fn len_hint(&self) -> Option<u64> {
        None
    }
}

/// A workload that somebody else holds.
impl<W: Workload + ?Sized> Workload for &mut W {
    fn peek(&self) -> Option<SimTime> {
        (**self).peek()
    }

    fn pop(&mut self, id: ReqId, out: &mut RequestSpec) {
        (**self).pop(id, out);
    }

    fn on_end(&mut self, end: &RequestEnd) {
        (**self).on_end(end);
    }

    fn reacts(&self) -> bool {
        (**self).reacts()
    }

    fn shares_content(&self) -> bool {
        (**self).shares_content()
    }

    fn len_hint(&self) -> Option<u64> {
        (**self).len_hint()
    }
}
