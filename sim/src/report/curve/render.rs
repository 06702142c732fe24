//! The curve as a table on the terminal.

use super::{Curve, CurvePoint, Estimate};
use crate::report::diagnosis::regime_name;
use crate::report::figures::figure;
use crate::report::outcomes::{RunWarning, warnings_of};
use crate::report::stationarity::SIGNIFICANCE;

impl Curve {
    /// The table on the terminal.
    pub fn render(&self) -> String {
        let mut out = format!(
            "{}\n\n{:>13} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7} {:>8}  {}\n",
            self.name,
            self.axis.label(),
            "req/s",
            "tokens/s",
            "TTFT p50",
            "TTFT p99",
            "TPOT p50",
            "E2E p50",
            "KV peak",
            "busy",
            "n",
            "regime"
        );
        let knee = self.knee_load.and_then(|load| self.nearest(load));
        for (i, p) in self.points.iter().enumerate() {
            out += &row(p);
            out += if Some(i) == knee { " <- knee\n" } else { "\n" };
        }
        out += "\nlatencies in ms\n";
        match &self.capacity {
            Some(c) => {
                let range = self.capacity_range.map_or(String::new(), |[low, high]| {
                    let (low, high) = (figure(low), figure(high));
                    format!(", {low} to {high} req/s in 9 of 10 such deployments")
                });
                out += &format!("  capacity   {} in steady state{range}\n", of(c, " req/s"));
            }
            None => {
                out += &format!(
                    "  capacity   not found; at most {} req/s were served\n",
                    figure(self.max_requests_per_s)
                );
            }
        }
        let unit = self.axis.unit();
        if let Some(knee) = &self.knee {
            out += &format!(
                "  knee       {}: the largest throughput / latency\n",
                of(knee, unit)
            );
        }
        if let Some(limit) = &self.slo_limit {
            out += &format!("  objective  met up to {}\n", of(limit, unit));
        }
        if self.points.iter().any(|p| p.report.stationarity.growing()) {
            out += &format!(
                "  not stationary: more requests come than end, so latencies are those of a run of n requests and grow with it \
                 (significance {} %)\n",
                100.0 * SIGNIFICANCE
            );
        }
        for note in &self.notes {
            out += &format!("  note: {note}\n");
        }
        // What the rows say themselves is not said again.
        let told = |w: &&RunWarning| !w.text.starts_with("not stationary");
        let warnings = warnings_of(self.points.iter().map(|p| &p.report));
        for warning in warnings.iter().filter(told) {
            let text = warning.in_words(self.points.len() as u64);
            out += &format!("  warning: {text}\n");
        }
        if let Some(d) = &self.saturation {
            out += &format!("at the highest load: {}\n", d.text);
        }
        out
    }
}

impl Curve {
    /// The point whose load is closest to `load`.
    fn nearest(&self, load: f64) -> Option<usize> {
        let distance = |p: &CurvePoint| (p.load - load).abs();
        (0..self.points.len())
            .min_by(|a, b| distance(&self.points[*a]).total_cmp(&distance(&self.points[*b])))
    }
}

/// An estimate with its interval.
fn of(e: &Estimate, unit: &str) -> String {
    format!(
        "{}{unit} ({} to {})",
        figure(e.value),
        figure(e.low),
        figure(e.high)
    )
}

fn row(p: &CurvePoint) -> String {
    let r = &p.report;
    let ms = |v: Option<f64>| v.map_or("-".into(), figure);
    let grows = match r.stationarity.growth_per_s {
        Some(g) if r.stationarity.growing() => {
            format!(", not stationary: +{} req/s", figure(g))
        }
        _ => String::new(),
    };
    let lost = match r.requests.lost() {
        0 => String::new(),
        n => format!(", {n} of {} requests lost", r.requests.offered),
    };
    format!(
        "{:>13} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6.1}% {:>6.1}% {:>8}  {}{grows}{lost}",
        figure(p.load),
        figure(r.throughput.requests_per_s),
        figure(r.throughput.output_tokens_per_s),
        ms(r.ttft_ms.p50),
        ms(r.ttft_ms.p99),
        ms(r.tpot_ms.p50),
        ms(r.e2e_ms.p50),
        100.0 * r.kv.peak_ratio,
        100.0 * r.replicas.busy_ratio,
        r.e2e_ms.n,
        regime_name(r.diagnosis.regime),
    )
}
