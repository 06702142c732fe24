//! How long it takes to build a scenario when another one on the same hardware has been built: what planning thousands of candidates pays
//! for each.

use criterion::{Criterion, criterion_group, criterion_main};
use sim::scenario::Scenario;

fn second_scenario(c: &mut Criterion) {
    let mut group = c.benchmark_group("build_second_scenario");
    for name in [
        "qwen3-14b-h100-vllm",
        "million-requests",
        "deepseek-v3-p5en-vllm-dp8",
        "llama2-7b-g5.2xlarge-tgi",
    ] {
        let file = format!("{}/../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let scenario =
            Scenario::load(std::path::Path::new(&file), &[]).expect("a scenario of the repository");
        scenario.build().expect("it builds");
        group.bench_function(name, |b| b.iter(|| scenario.build().expect("it builds")));
    }
    group.finish();
}

criterion_group!(benches, second_scenario);
criterion_main!(benches);
