//! Requests that met no other on the endpoint: what they took beyond the usual is the machine's doing, not another request's.

use super::load::Load;
use super::params::Params;
use super::server::Server;
use super::simulate::{Look, simulate};
use crate::drift::{Drift, Sample, estimate};

/// How the machine's speed drifted during `loads`, beside what `params` explain; none where too few requests ran alone.
pub fn drift(loads: &[&Load], server: &Server, params: &Params) -> Option<Drift> {
    let groups: Vec<Vec<Sample>> = loads
        .iter()
        .map(|load| samples(load, server, params))
        .collect();
    estimate(&groups)
}

/// A sample per request of `load` that ran alone, in the order of their sends.
fn samples(load: &Load, server: &Server, params: &Params) -> Vec<Sample> {
    let Some(predicted) = simulate(load, server, params, Look::default()) else {
        return Vec::new();
    };
    let all = &load.requests;
    let mut before = f64::NEG_INFINITY;
    let mut out = Vec::new();
    for (i, (r, p)) in all.iter().zip(&predicted.requests).enumerate() {
        let after = all.get(i + 1).map_or(f64::INFINITY, |next| next.sent);
        if let Some(p) = p
            && before <= r.sent
            && r.end <= after
        {
            out.push(Sample {
                start: r.sent,
                seconds: r.e2e(),
                off: (r.e2e() / p.e2e()).ln(),
            });
        }
        before = before.max(r.end);
    }
    out
}
