//! What TTFT owes to replicas that were starting: the estimate of the report against runs whose starts take longer and shorter.

use crate::common::clusters::{APART, ran, run};
use hwmodels::doubt::START_ERROR;
use sim::report::RunReport;
use sim::report::doubt::{Figure, in_words, spread};
use sim::scenario::Scenario;

/// The report of a run whose starts take 115 s times `factor`; a probe every second.
fn report(factor: f64, overrides: &[&str]) -> RunReport {
    let [boot, plugin, pull, load, init] =
        [50.0, 10.0, 20.0, 30.0, 5.0].map(|s: f64| format!("\"{} s\"", s * factor));
    let group = format!(
        "cluster.node_group=[{{ name = \"gpu\", max = 4, boot = {boot}, device_plugin = {plugin} }}]"
    );
    let pod = format!(
        "cluster.pod={{ image_pull = {pull}, weights_load = {load}, engine_init = {init}, periodSeconds = 1 }}"
    );
    let all: Vec<&str> = [group.as_str(), &pod]
        .into_iter()
        .chain(overrides.iter().copied())
        .collect();
    RunReport::new(&ran(&all), 0.0)
}

/// By how much the mean TTFT moves where starts take that much longer and shorter: half of the difference [ms].
fn moved(overrides: &[&str]) -> f64 {
    let mean = |factor| report(factor, overrides).ttft_ms.mean.expect("served");
    0.5 * (mean(1.0 + START_ERROR) - mean(1.0 - START_ERROR))
}

/// Nothing is there until the first request has come.
const FROM_ZERO: [&str; 4] = [
    "cluster.replicas=0",
    "change=[{ at = \"5 s\", replicas = 1 }, { at = \"5 s\", nodes = 1 }]",
    "workload[0].requests=400",
    "run={ duration = \"900 s\" }",
];

/// Six requests a second where a replica serves four: the second comes while they queue.
const CROWD: [&str; 3] = [
    "change=[{ at = \"60 s\", replicas = 2 }, { at = \"60 s\", nodes = 2 }]",
    "workload[0].arrival={ kind = \"steps\", steps = [{ rate = \"1 req/s\", duration = \"60 s\" }, { rate = \"6 req/s\", duration = \"240 s\" }, { rate = \"1 req/s\", duration = \"300 s\" }] }",
    "router.policy=\"least_outstanding\"",
];

#[test]
fn the_estimate_is_what_longer_and_shorter_starts_do_to_the_mean_ttft() {
    for (overrides, tolerance) in [(&FROM_ZERO[..], 0.15), (&CROWD, 0.25)] {
        let r = report(1.0, overrides);
        let waits = r.cluster.as_ref().and_then(|c| c.start_waits);
        let waits = waits.expect("a replica was started");
        assert_eq!(waits.starts, 1, "{waits:?}");
        let (estimate, moved) = (waits.ttft_error_ms.expect("rows"), moved(overrides));
        assert!(
            (estimate / moved - 1.0).abs() < tolerance,
            "{estimate} {moved} {waits:?}"
        );
    }
}

#[test]
fn ranges_of_ttft_are_wider_where_requests_waited_for_starts() {
    let r = report(1.0, &FROM_ZERO);
    let mut fixed = r.clone();
    fixed.cluster = None;
    assert!(spread(&r, Figure::Ttft, None) > spread(&fixed, Figure::Ttft, None));
    assert_eq!(
        spread(&r, Figure::Tpot, None),
        spread(&fixed, Figure::Tpot, None)
    );
    let text = in_words(&r);
    assert!(
        text.contains("waited for replicas that were starting, and starts may be off by 17 %"),
        "{text}"
    );
    // Without rows nobody knows who waited, and that is said.
    let mut rowless = r;
    if let Some(waits) = rowless
        .cluster
        .as_mut()
        .and_then(|c| c.start_waits.as_mut())
    {
        (waits.waited_ratio, waits.ttft_error_ms) = (None, None);
    }
    assert_eq!(
        spread(&rowless, Figure::Ttft, None),
        spread(&fixed, Figure::Ttft, None)
    );
    let text = in_words(&rowless);
    assert!(text.contains("rows of requests were not kept"), "{text}");
}

#[test]
fn replicas_that_start_when_nobody_waits_change_no_range() {
    let quiet = report(
        1.0,
        &["change=[{ at = \"100 s\", replicas = 2 }, { at = \"100 s\", nodes = 2 }]"],
    );
    let waits = quiet.cluster.as_ref().and_then(|c| c.start_waits);
    let waits = waits.expect("a replica was started");
    assert_eq!((waits.starts, waits.ttft_error_ms), (1, Some(0.0)));
    assert!(!in_words(&quiet).contains("starting"));
    let still = report(1.0, &[]);
    assert_eq!(still.cluster.and_then(|c| c.start_waits), None);
}

#[test]
fn with_prefill_and_decode_apart_the_report_says_that_starts_are_left_out() {
    let overrides = [
        "change=[{ at = \"60 s\", pool = \"decode\", replicas = 3 }, { at = \"60 s\", nodes = 3 }]"
            .to_owned(),
    ];
    let s = Scenario::parse(APART, "apart.toml", &overrides).expect("parses");
    let r = RunReport::new(&run(&s), 0.0);
    let waits = r.cluster.as_ref().and_then(|c| c.start_waits);
    let waits = waits.expect("replicas were started");
    assert!(
        waits.starts > 0 && waits.ttft_error_ms.is_none(),
        "{waits:?}"
    );
    assert!(in_words(&r).contains("prefill and decode are apart"));
}
