//! The conclusions that were measured in "Benchmark and optimize endpoint deployment in Amazon SageMaker JumpStart" (Llama-2-7B under TGI, 256 tokens in
//! and out, closed loops; calibrate/data/published/jumpstart_tgi.csv), reached by simulation.

use sim::report::RunReport;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;

/// Llama-2-7B on `instance` with TP `tp`, `replicas` times, under `users` users.
fn run(instance: &str, tp: u32, replicas: u32, users: u32) -> RunReport {
    let requests = (users * 6).max(24);
    let text = format!(
        "[model]\nname = \"llama-2-7b\"\n[hardware]\ninstance = \"{instance}\"\n[layout]\ntp = {tp}\nreplicas = {replicas}\n[engine]\nkind = \
         \"tgi\"\nmax_input_tokens = 1024\nmax_total_tokens = 2048\nmax_concurrent_requests = 512\n[router]\npolicy = \"least_outstanding\"\n\
         [[workload]]\narrival = {{ kind = \"closed\", concurrency = {users} }}\nprompt = 256\noutput = 256\n[run]\nrequests = {requests}\n"
    );
    let scenario = Scenario::parse(&text, "jumpstart.toml", &[]).unwrap();
    RunReport::new(&scenario.run(&RunOptions::default()).unwrap(), 0.0)
}

fn tokens_per_s(r: &RunReport) -> f64 {
    r.throughput.output_tokens_per_s
}

fn usd_per_token(r: &RunReport) -> f64 {
    r.cost.usd_per_million_output_tokens.unwrap()
}

fn latency(r: &RunReport) -> f64 {
    r.normalised_ms.mean.unwrap()
}

/// Measured: TP 8 ends at 2944 tokens/s; one TP 1 replica on one of eight GPUs at 1775.
#[test]
fn eight_replicas_of_tp_1_on_p4d_carry_more_than_one_of_tp_8() {
    let users = 512;
    let (eight, one) = (
        run("p4d.24xlarge", 1, 8, users),
        run("p4d.24xlarge", 8, 1, users),
    );
    assert!(
        tokens_per_s(&eight) > 2.0 * tokens_per_s(&one),
        "{} {}",
        tokens_per_s(&eight),
        tokens_per_s(&one)
    );
    assert!(usd_per_token(&eight) < usd_per_token(&one));
}

/// Measured at 32, 128 and 512 users: 1230, 3040, 3752 tokens/s with TP 4 against 1079, 2312, 2944 with TP 8, and less latency per token.
#[test]
fn tp_4_beats_tp_8_for_one_replica_on_p4d() {
    for users in [32, 128, 512] {
        let (four, eight) = (
            run("p4d.24xlarge", 4, 1, users),
            run("p4d.24xlarge", 8, 1, users),
        );
        assert!(
            tokens_per_s(&four) > tokens_per_s(&eight),
            "{users}: {} {}",
            tokens_per_s(&four),
            tokens_per_s(&eight)
        );
        assert!(
            latency(&four) < latency(&eight),
            "{users}: {} {}",
            latency(&four),
            latency(&eight)
        );
    }
}

/// Measured per token: 17 ms on g5.12xlarge against 33 ms on g5.2xlarge with one user, 20 against 39 ms with eight.
#[test]
fn g5_12xlarge_is_faster_than_g5_2xlarge() {
    for users in [1, 8, 32] {
        let (large, small) = (
            run("g5.12xlarge", 4, 1, users),
            run("g5.2xlarge", 1, 1, users),
        );
        assert!(
            latency(&large) < 0.8 * latency(&small),
            "{users}: {} {}",
            latency(&large),
            latency(&small)
        );
    }
}

/// Measured with eight users: 208 tokens/s for 1.21 USD/h against 406 tokens/s for 5.67 USD/h.
#[test]
fn g5_2xlarge_costs_less_per_token_than_g5_12xlarge_at_moderate_load() {
    for users in [4, 8, 16] {
        let (large, small) = (
            run("g5.12xlarge", 4, 1, users),
            run("g5.2xlarge", 1, 1, users),
        );
        assert!(
            usd_per_token(&small) < usd_per_token(&large),
            "{users}: {} {}",
            usd_per_token(&small),
            usd_per_token(&large)
        );
    }
}

/// The post's table of g5.2xlarge instances behind one endpoint: throughput grows with their number while the load fills them.
#[test]
fn throughput_grows_with_the_number_of_instances() {
    let made: Vec<f64> = [1, 2, 4]
        .map(|n| tokens_per_s(&run("g5.2xlarge", 1, n, 128)))
        .to_vec();
    assert!(
        made[1] > 1.7 * made[0] && made[2] > 1.5 * made[1],
        "{made:?}"
    );
    // With as many users per instance, as many tokens per instance.
    let alone = tokens_per_s(&run("g5.2xlarge", 1, 1, 32));
    let four = tokens_per_s(&run("g5.2xlarge", 1, 4, 128));
    assert!((four / (4.0 * alone) - 1.0).abs() < 0.15, "{four} {alone}");
}
