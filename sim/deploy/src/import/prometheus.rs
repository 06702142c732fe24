//! A range query of Prometheus as a load: the rate of requests over time, by the HTTP API's `/api/v1/query_range`.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Origin, Stream};
use super::load::stretches;
use super::tree::{Tree, sweep};
use crate::keys::Read::Text;
use crate::keys::{Table, says};
use crate::place::Place;
use crate::text::yaml::Node;

/// Most stretches of rate that a scenario is given.
const MAX_STEPS: usize = 2_000;

/// The answer to a range query.
pub const TABLE: Table = Table {
    kind: "prometheus",
    title: "Prometheus: the answer to a range query for a rate of requests, e.g. `sum(rate(vllm:request_success_total[1m]))`",
    keys: &[
        says("data.resultType", "matrix", Text),
        says(
            "data.result[].values[][]",
            "`arrival.steps`: the series' sum [req/s], each value until the next",
            Text,
        ),
    ],
    idle: &[
        "status",
        "data.result[].metric*",
        "warnings*",
        "infos*",
        "isPartial",
        "data.result",
        "data.stats*",
    ],
    idle_flags: &[],
};

/// Imports the answer to a range query.
pub fn import(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    let line = doc.entry("data").map_or(doc.line, |e| e.line);
    let origin = Origin::new(Place::new(file, line), "data.result", "");
    if doc.at(&["data", "resultType"]).and_then(Node::text) != Some("matrix") {
        draft.fault(origin.fault(
            "must be the answer to a range query (/api/v1/query_range), of resultType matrix",
        ));
        return;
    }
    let Some(rates) = rates(tree, draft) else {
        return;
    };
    let times: Vec<i64> = rates.keys().copied().collect();
    if times.len() < 2 || times.len() > MAX_STEPS {
        draft.fault(origin.fault(format!(
            "has {} points in time; 2 to {MAX_STEPS} can be imported: ask with another step",
            times.len()
        )));
        return;
    }
    let mut gaps: Vec<i64> = times.windows(2).map(|w| w[1] - w[0]).collect();
    // The last value lasts as long as one usually does.
    let mut sorted = gaps.clone();
    sorted.sort_unstable();
    gaps.push(sorted[sorted.len() / 2]);
    let steps: Vec<(f64, i64)> = rates.values().copied().zip(gaps.iter().copied()).collect();
    let why = "a rate says nothing of lengths: write those of your requests";
    let keys = stretches(&steps, draft, why);
    draft.used(
        &origin,
        format!("workload.arrival: {} stretches", times.len()),
    );
    let total: i64 = gaps.iter().sum();
    draft.later(
        "run.duration",
        format!("{total} ms").into(),
        "as long as the query's range",
    );
    draft.stream(Stream {
        keys,
        from: format!("{} data.result", origin.place),
    });
    sweep(tree, &[(String::new(), &TABLE)], draft);
}

/// The sum of all series at each time [ms].
fn rates(tree: Tree<'_>, draft: &mut Draft) -> Option<BTreeMap<i64, f64>> {
    let mut rates: BTreeMap<i64, f64> = BTreeMap::new();
    let series = tree
        .node
        .at(&["data", "result"])
        .map_or(&[][..], Node::items);
    for point in series
        .iter()
        .flat_map(|s| s.get("values").map_or(&[][..], |v| v.items()))
    {
        let number = |i: usize| point.items().get(i)?.text()?.parse::<f64>().ok();
        let place = Place::new(tree.file, point.line);
        let origin = Origin::new(place, "data.result[].values", "");
        let (Some(time), Some(rate)) = (number(0), number(1)) else {
            draft.fault(origin.fault("must be pairs of a time [s] and a value"));
            return None;
        };
        // NaN stands where a rate has nothing to divide by.
        if !rate.is_nan() {
            if !(0.0..1e9).contains(&rate) || !(0.0..1e12).contains(&time) {
                draft.fault(origin.fault("a time or a rate that cannot be"));
                return None;
            }
            *rates.entry((time * 1e3).round() as i64).or_insert(0.0) += rate;
        }
    }
    Some(rates)
}
