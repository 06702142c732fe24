//! A queue that theory knows: Poisson arrivals at one server that takes 10 ms for each request, whatever it is (M/D/1).
//!
//! ```text
//! clients --Poisson, 80 req/s--> [ waiting ... ] --> server, 10 ms
//! ```
//!
//! Pollaczek and Khinchine: the mean wait is `rho / (2 (1 - rho))` service times, here 20 ms at `rho = 0.8`.
//!
//!     cargo run --release -p sim --example queue

use sim::metrics::definition::Metric;
use sim::run::RunOptions;
use sim::scenario::Scenario;

const SCENARIO: &str = r#"
[step]                      # how long a step takes, without any hardware
base = "10 ms"
[engine]
kind = "static"             # one request at a time
max_batch_size = 1
kv_blocks = 1000
[[workload]]
arrival = { kind = "poisson", rate = "80 req/s" }
prompt = 1
output = 1
[run]
requests = 200_000
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scenario = Scenario::parse(SCENARIO, "queue.toml", &[])?;
    let record = scenario.run(&RunOptions::default())?;
    let wait = record.latencies.of(Metric::Queue).mean_secs();
    println!("requests            {}", record.counts.finished);
    println!(
        "mean wait, measured {:.2} ms",
        1e3 * wait.unwrap_or_default()
    );
    println!(
        "mean wait, theory   {:.2} ms",
        10.0 * 0.8 / (2.0 * (1.0 - 0.8))
    );
    Ok(())
}
