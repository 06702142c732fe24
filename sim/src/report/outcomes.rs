//! What became of the requests of one or several runs, and what their reports warn of: the part of every table that
//! says whose latencies it shows.

use serde::{Deserialize, Serialize};

pub use crate::report::counts::{Rejections, RequestCounts};
use crate::report::summary::RunReport;

impl RequestCounts {
    /// Requests of all `runs`.
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a RunReport>) -> RequestCounts {
        let mut sum = RequestCounts::default();
        for r in runs.into_iter().map(|r| &r.requests) {
            sum.offered += r.offered;
            sum.finished += r.finished;
            sum.rejected += r.rejected;
            sum.timed_out += r.timed_out;
            sum.failed += r.failed;
            sum.in_flight += r.in_flight;
        }
        sum
    }
}

/// The sentence that comes first where no request of a run finished; none where one did.
pub fn nothing_finished(r: &RunReport) -> Option<String> {
    if r.requests.finished > 0 {
        return None;
    }
    if r.requests.offered == 0 {
        return Some("NOTHING FINISHED: no request was offered before the run ended".into());
    }
    let why = r
        .rejections
        .filter(|_| r.requests.rejected > 0)
        .map_or(String::new(), |why| format!(" ({})", why.in_words()));
    Some(format!(
        "NOTHING FINISHED: of {} requests offered, {}{why}; there are no latencies",
        r.requests.offered,
        r.requests.unfinished_in_words()
    ))
}

/// A warning of several runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RunWarning {
    /// As the first of these runs has it.
    pub text: String,
    /// Runs that warn of the same, their numbers aside.
    pub runs: u64,
}

impl RunWarning {
    /// With how many of `all` runs say so, where they are not all.
    pub fn in_words(&self, all: u64) -> String {
        if self.runs == all {
            self.text.clone()
        } else {
            format!("{} ({} of {all} runs warn so)", self.text, self.runs)
        }
    }
}

/// The warnings of `runs`, each once: those that differ in their numbers alone count as the same.
pub fn warnings_of<'a>(runs: impl IntoIterator<Item = &'a RunReport>) -> Vec<RunWarning> {
    let mut found: Vec<(String, RunWarning)> = Vec::new();
    for run in runs {
        let mut of_this_run: Vec<String> = Vec::new();
        for text in &run.warnings {
            let key = without_numbers(text);
            if of_this_run.contains(&key) {
                continue;
            }
            match found.iter_mut().find(|(k, _)| *k == key) {
                Some((_, warning)) => warning.runs += 1,
                None => found.push((
                    key.clone(),
                    RunWarning {
                        text: text.clone(),
                        runs: 1,
                    },
                )),
            }
            of_this_run.push(key);
        }
    }
    found.into_iter().map(|(_, warning)| warning).collect()
}

/// `text` with a mark in place of each number.
fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_number = false;
    for c in text.chars() {
        let number = c.is_ascii_digit() || (in_number && c == '.');
        if !number {
            out.push(c);
        } else if !in_number {
            out.push('#');
        }
        in_number = number;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::counts::warning;

    fn run(offered: u64, finished: u64, warnings: &[&str]) -> RunReport {
        let mut r = RunReport::empty();
        r.requests.offered = offered;
        r.requests.finished = finished;
        r.requests.rejected = offered - finished;
        r.warnings = warnings.iter().map(|w| (*w).to_string()).collect();
        r
    }

    #[test]
    fn counts_of_several_runs_add_up_and_name_what_there_is() {
        let sum = RequestCounts::of(&[run(100, 25, &[]), run(100, 35, &[])]);
        assert_eq!(sum.in_words(), "200 offered, 60 finished, 140 rejected");
        assert_eq!((sum.lost(), sum.finished_ratio()), (140, Some(0.3)));
        assert_eq!(RequestCounts::default().finished_ratio(), None);
    }

    #[test]
    fn warnings_that_differ_in_their_numbers_alone_are_told_once() {
        let runs = [
            run(9, 9, &["75 of 100 were rejected", "profile x"]),
            run(9, 9, &["7.5 of 90 were rejected"]),
        ];
        let found = warnings_of(&runs);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].runs, found[1].runs), (2, 1));
        assert_eq!(found[0].in_words(2), "75 of 100 were rejected");
        assert_eq!(found[1].in_words(2), "profile x (1 of 2 runs warn so)");
    }

    #[test]
    fn a_run_that_answered_nothing_says_so_and_why() {
        let mut nothing = run(200, 0, &[]);
        nothing.rejections = Some(Rejections {
            too_long: 200,
            ..Rejections::default()
        });
        assert_eq!(
            nothing_finished(&nothing).unwrap(),
            "NOTHING FINISHED: of 200 requests offered, 200 rejected (longer than the engine accepts); there are no latencies"
        );
        assert_eq!(nothing_finished(&run(200, 1, &[])), None);
        let text = nothing_finished(&RunReport::empty()).unwrap();
        assert!(text.contains("no request was offered"), "{text}");
    }

    #[test]
    fn few_lost_requests_are_no_warning_many_are() {
        let counts = |lost| RequestCounts {
            offered: 1000,
            finished: 1000 - lost,
            rejected: lost,
            ..RequestCounts::default()
        };
        assert_eq!(warning(&counts(10), None), None);
        let text = warning(&counts(750), None).unwrap();
        assert!(text.starts_with("of 1000 requests 750 rejected"), "{text}");
    }
}
