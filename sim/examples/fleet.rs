//! A router before replicas that come and go, in a run that is held: advanced second by second, looked at, changed.
//!
//! ```text
//!            t = 0 s         t = 20 s              t = 40 s
//! router --> replica 0       replica 0 is killed
//!        --> replica 1       replica 1             replica 1 drains
//!                            replica 2 joins       replica 2
//! ```
//!
//!     cargo run --release -p sim --example fleet

use sim::kernel::time::SimTime;
use sim::record::RunInfo;
use sim::run::{Change, Run, RunOptions};
use sim::scenario::Scenario;

const SCENARIO: &str = r#"
[step]
base = "10 ms"
per_token = "20 us"
[cluster]
replicas = 2
[router]
policy = "least_outstanding"
[engine]
kind = "vllm_v1"
max_num_seqs = 64
kv_blocks = 4000
[[workload]]
arrival = { kind = "poisson", rate = "30 req/s" }
prompt = 200
output = 100
[run]
duration = "60 s"
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let built = Scenario::parse(SCENARIO, "fleet.toml", &[])?.build()?;
    let spare = built.simulation.replicas[0].clone();
    let workload = Box::new(built.workload);
    let mut run = Run::new(&built.simulation, workload, &RunOptions::default())?;
    run.plan(SimTime::from_secs(20.0), Change::Kill(0));
    run.plan(SimTime::from_secs(20.0), Change::Add(Box::new(spare)));
    run.plan(SimTime::from_secs(40.0), Change::Drain(1));
    println!("  time  replicas: state, running, waiting");
    for second in (5..=65).step_by(5) {
        run.step_until(SimTime::from_secs(f64::from(second)))?;
        let seen = run.snapshot();
        print!("{second:>4} s ");
        for r in &seen.replicas {
            let (running, waiting) = (r.load.running, r.load.waiting);
            print!(
                "  {:<8} {running:>3} {waiting:>3}",
                format!("{:?}", r.lifecycle)
            );
        }
        println!();
    }
    run.run_to_end()?;
    let record = run.finish(RunInfo::default())?;
    let c = record.counts;
    println!(
        "{} offered = {} finished + {} failed with replica 0",
        c.offered, c.finished, c.failed
    );
    Ok(())
}
