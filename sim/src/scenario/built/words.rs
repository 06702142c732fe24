//! What is offered and deployed, in words.

use hwmodels::units::significant;

use super::super::Scenario;
use crate::workload::spec::{Arrival, Length, Lengths};

impl Scenario {
    /// What is offered, for the reader.
    pub fn load_in_words(&self) -> String {
        let streams: Vec<String> = self
            .workload
            .iter()
            .map(|s| {
                let what = match &s.arrival {
                    Arrival::Poisson { rate } => format!("Poisson {}", rate.human()),
                    Arrival::Gamma { rate, cv } => {
                        format!("gamma {}, cv {}", rate.human(), significant(*cv))
                    }
                    Arrival::Constant { rate } => format!("constant {}", rate.human()),
                    Arrival::Steps { steps, .. } => format!("{} steps of rate", steps.len()),
                    Arrival::Ramp { from, to, over, .. } => {
                        format!(
                            "ramp from {} to {} over {}",
                            from.human(),
                            to.human(),
                            over.human()
                        )
                    }
                    Arrival::RateTable { file, .. } => format!("rate curve {}", file.display()),
                    Arrival::Closed {
                        concurrency, think, ..
                    } if think.secs() == 0.0 => {
                        format!("closed loop at {concurrency}")
                    }
                    Arrival::Closed {
                        concurrency, think, ..
                    } => {
                        format!(
                            "closed loop of {concurrency} users, {} apart",
                            think.human()
                        )
                    }
                    Arrival::Burst {
                        requests,
                        max_in_flight: None,
                        ..
                    } => format!("{requests} at once"),
                    Arrival::Burst {
                        requests,
                        max_in_flight: Some(n),
                        ..
                    } => {
                        format!("{requests} at once, {n} in flight")
                    }
                    Arrival::Trace {
                        file, time_scale, ..
                    } if *time_scale == 1.0 => {
                        format!("trace {}", file.display())
                    }
                    Arrival::Trace {
                        file, time_scale, ..
                    } => {
                        let scale = significant(*time_scale);
                        format!("trace {}, times x {scale}", file.display())
                    }
                };
                match &s.lengths {
                    Lengths::Separate {
                        prompt: Length::Fixed(p),
                        output: Length::Fixed(o),
                    } => {
                        format!("{}: {what}, {p} in / {o} out", s.name)
                    }
                    _ => format!("{}: {what}", s.name),
                }
            })
            .collect();
        streams.join("; ")
    }
}

/// `1 replica`, `8 replicas`.
pub(in crate::scenario) fn replicas_in_words(n: u32) -> String {
    format!("{n} replica{}", if n == 1 { "" } else { "s" })
}
