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
        let mut output = self.inner.collect();
        if let Some(due) = self.due.pop_front() {
            let began = Instant::now();
            std::thread::sleep(due.saturating_duration_since(began));
            if let Ok(output) = &mut output {
                output.times.paced = began.elapsed().as_secs_f64();
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::StepTimes;

    /// A forward pass that is done at once.
    struct AtOnce;

    impl Executor for AtOnce {
        fn submit(&mut self, _: Vec<SeqInput>) -> Result<(), ExecutorError> {
            Ok(())
        }

        fn collect(&mut self) -> Result<StepOutput, ExecutorError> {
            Ok(StepOutput {
                times: StepTimes {
                    linear: 1e-6,
                    total: 1e-6,
                    ..StepTimes::default()
                },
                ..StepOutput::default()
            })
        }

        fn depth(&self) -> usize {
            1
        }

        fn vocab(&self) -> usize {
            1
        }
    }

    #[test]
    fn what_a_step_slept_is_told_apart_from_what_it_computed() {
        let mut paced = Paced::new(Box::new(AtOnce), Duration::from_millis(30));
        let began = Instant::now();
        paced.submit(Vec::new()).unwrap();
        let times = paced.collect().unwrap().times;
        let all = began.elapsed().as_secs_f64();
        assert!(all >= 0.03, "{all}");
        assert!(times.paced > 0.0 && times.paced <= all, "{times:?}");
        assert_eq!((times.total, times.named()), (1e-6, 1e-6));
    }
}
