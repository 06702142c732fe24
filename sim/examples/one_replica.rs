//! One replica of a catalog model on a catalog instance, from a scenario text to the report that `servetwin run` prints.
//!
//!     cargo run --release -p sim --example one_replica

use sim::report::{RunReport, text};
use sim::run::RunOptions;
use sim::scenario::Scenario;

const SCENARIO: &str = r#"
description = "Llama-3.1-8B on one H100 under vLLM."
[model]
name = "llama-3.1-8b"
[hardware]
instance = "p5.4xlarge"
[engine]
kind = "vllm_v1"
[[workload]]
name = "chat"
arrival = { kind = "poisson", rate = "20 req/s" }
prompt = 512
output = 128
[run]
requests = 2000
warmup = "10 s"
[slo]
ttft = "300 ms"
tpot = "20 ms"
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any key can be changed from outside, as with `servetwin run --set`.
    let overrides = ["workload[0].arrival.rate=30 req/s".to_string()];
    let scenario = Scenario::parse(SCENARIO, "one_replica.toml", &overrides)?;
    let record = scenario.run(&RunOptions::default())?;
    let report = RunReport::new(&record, 0.0);
    print!("{}", text::render(&report, text::Detail::Brief));
    Ok(())
}
