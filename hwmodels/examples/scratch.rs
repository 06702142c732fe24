#![allow(missing_docs)]
use hwmodels::catalog::Catalog;
use hwmodels::deployment::*;
use hwmodels::ops::Routing;
use hwmodels::profiles::Choice;
use hwmodels::*;
use std::collections::BTreeMap;
fn main() {
    let cat = Catalog::builtin();
    let mut params = BTreeMap::new();
    for a in std::env::args().skip(1) {
        if let Some((k, v)) = a.split_once('=') {
            params.insert(k.to_owned(), v.parse().unwrap());
        }
    }
    let cases: Vec<(&str, &str, u32, u32, EngineKind, Vec<(u32, u32)>)> = vec![
        (
            "llama-2-7b",
            "p5.4xlarge",
            1,
            1,
            EngineKind::VllmV1,
            vec![(17, 700), (84, 700)],
        ),
        (
            "codellama-34b",
            "p5.48xlarge",
            2,
            1,
            EngineKind::VllmV1,
            vec![(29, 700), (85, 700)],
        ),
        (
            "qwen3-14b",
            "p5.4xlarge",
            1,
            1,
            EngineKind::VllmV1,
            vec![(3, 1050), (16, 1050)],
        ),
        (
            "qwen3-32b",
            "p5.48xlarge",
            2,
            1,
            EngineKind::VllmV1,
            vec![(8, 1450), (128, 1450)],
        ),
        (
            "llama-3.1-405b",
            "p5.48xlarge",
            8,
            2,
            EngineKind::TrtLlm,
            vec![(1, 1500)],
        ),
        (
            "llama-2-7b",
            "p4d.24xlarge",
            1,
            1,
            EngineKind::Tgi,
            vec![(1, 384), (64, 384)],
        ),
        (
            "llama-2-7b",
            "g5.2xlarge",
            1,
            1,
            EngineKind::Tgi,
            vec![(1, 384), (16, 384)],
        ),
    ];
    for (m, i, tp, pp, e, pts) in cases {
        let d = deploy(&DeploymentSpec {
            catalog: &cat,
            instance: cat.instance(i).unwrap(),
            model: cat.model(m).unwrap(),
            layout: Layout { tp, pp, ep: 1 },
            weights: Dtype::Bf16,
            kv_cache: Dtype::Bf16,
            engine: e,
            overlap: Some(true),
            graphs: None,
            max_tokens: 8192,
            profile: Choice::Auto,
            params: &params,
            routing: Routing::Balanced,
        })
        .unwrap();
        println!("{m} {i} tp{tp} {:?}", Parts::NAMES);
        for (b, c) in pts {
            let mut s = BatchStats::default();
            for _ in 0..b {
                s.add_decode(c)
            }
            let x = d.step.step(&s);
            println!(
                " decode b={b} c={c}: {:.2} ms parts {:?}",
                x.latency * 1e3,
                x.parts.as_array().map(|v| (v * 1e5).round() / 100.0)
            );
        }
        for n in [16u32, 256, 1024, 4096] {
            let mut s = BatchStats::default();
            s.add_prefill(n, if n == 16 { 560 } else { 0 }, true);
            let x = d.step.step(&s);
            println!(
                " prefill {n}: {:.2} ms {:?}",
                x.latency * 1e3,
                x.parts.as_array().map(|v| (v * 1e5).round() / 100.0)
            );
        }
    }
}
