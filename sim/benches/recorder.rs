//! What recording costs, per step and per gap: the simulator calls both for every step.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sim::kernel::time::{SimDuration, SimTime};
use sim::metrics::{Distribution, RecordOptions, Recorder};
use sim::policy::Blocked;
use sim::record::StepRow;
use std::hint::black_box;

const N: u64 = 100_000;

fn recorder(c: &mut Criterion) {
    let mut group = c.benchmark_group("recorder");
    group.throughput(Throughput::Elements(N));
    group.bench_function("distribution add", |b| {
        b.iter(|| {
            let mut d = Distribution::default();
            for i in 0..N {
                d.add(SimDuration(20_000_000 + black_box(i) * 37), 40);
            }
            d
        })
    });
    group.bench_function("gaps", |b| {
        b.iter(|| {
            let mut r = Recorder::new(&RecordOptions::default());
            for i in 0..N {
                let gap = SimDuration(20_000_000 + black_box(i) * 37);
                r.gaps(SimTime(i * 20_000_000), gap, 40);
            }
            r
        })
    });
    group.bench_function("step", |b| {
        let mut stats = hwmodels::BatchStats::default();
        for context in 500..540 {
            stats.add_decode(context);
        }
        b.iter(|| {
            let mut r = Recorder::new(&RecordOptions::default());
            for i in 0..N {
                r.step(&StepRow {
                    replica: 0,
                    start: SimTime(i * 20_000_000),
                    end: SimTime((i + 1) * 20_000_000),
                    stats: black_box(stats),
                    parts: hwmodels::Parts {
                        weights: 12e-3,
                        kv: 5e-3,
                        host: 3e-3,
                        ..hwmodels::Parts::default()
                    },
                    running: 40,
                    waiting: 0,
                    kv_used_blocks: 2000,
                    blocked: Blocked::Nothing,
                });
            }
            r
        })
    });
    group.finish();
}

criterion_group!(benches, recorder);
criterion_main!(benches);
