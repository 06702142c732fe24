//! Steps that take as long as on a device which the processor stands in for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::executor::{Executor, ExecutorError, SeqInput, StepOutput};

/// Computes as `inner` does, but no step ends before `least` has passed since its submission: the thread sleeps for the rest.
/// Several such replicas on one small machine hardly disturb each other.
pub struct Paced {
    inner: Box<dyn Executor>,
    least: Duration,
    due: VecDeque<Instant>,
}

impl Paced {
    /// Steps of `inner`, each of `least` or longer.
    pub fn new(inner: Box<dyn Executor>, least: Duration) -> Paced {
        Paced {
            inner,
            least,
            due: VecDeque::new(),
        }
    }
}

impl Executor for Paced {
    fn submit(&mut self, step: Vec<SeqInput>) -> Result<(), ExecutorError> {
        self.due.push_back(Instant::now() + self.least);
        self.inner.submit(step).inspect_err(|_| {
            self.due.pop_back();
        })
    }

    fn collect(&mut self) -> Result<StepOutput, ExecutorError> {
        let output = self.inner.collect();
        if let Some(due) = self.due.pop_front() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        output
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn vocab(&self) -> usize {
        self.inner.vocab()
    }
}
