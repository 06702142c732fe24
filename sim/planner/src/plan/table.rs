//! The ranking as CSV.

use super::report::PlanReport;
use crate::Error;

impl PlanReport {
    /// The winner and the alternatives, a row each, with a header.
    ///
    /// # Errors
    /// None that can come up: the table is written to memory.
    pub fn csv(&self) -> Result<String, Error> {
        let failed = |e: csv::Error| Error::Failed(e.to_string());
        let mut out = csv::Writer::from_writer(Vec::new());
        let mut header: Vec<String> = [
            "rank",
            "pareto",
            "usd_per_hour",
            "usd_per_month",
            "instances",
            "instance",
            "devices",
            "layout",
            "replicas",
            "replicas_needed",
            "margin_ratio",
            "bound_requests_per_s",
            "whole_load",
            "accelerator",
            "devices",
            "provider",
            "region",
            "measured",
            "settings",
        ]
        .map(str::to_owned)
        .to_vec();
        header.extend(self.slo.iter().map(|c| {
            let label = c.split(['<', '>', '=']).next().unwrap_or(c).trim();
            format!("{label} [ms]")
        }));
        out.write_record(&header).map_err(failed)?;
        let number = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
        for (i, c) in self.choices().enumerate() {
            let settings: Vec<String> =
                c.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let mut row = vec![
                (i + 1).to_string(),
                self.pareto.contains(&(i as u64)).to_string(),
                number(c.usd_per_hour),
                number(c.usd_per_month),
                c.instances.to_string(),
                c.instance.clone(),
                c.devices.to_string(),
                c.layout.clone(),
                c.replicas.to_string(),
                c.replicas_needed.to_string(),
                c.standing.margin_ratio.to_string(),
                c.bound_requests_per_s.to_string(),
                c.whole_load.to_string(),
                c.accelerator.clone(),
                c.devices.to_string(),
                c.provider.clone().unwrap_or_default(),
                c.region.clone().unwrap_or_default(),
                c.measured.to_string(),
                settings.join(" "),
            ];
            row.extend(
                c.standing
                    .values_ms
                    .iter()
                    .map(|v| v.map_or(String::new(), |v| v.to_string())),
            );
            out.write_record(&row).map_err(failed)?;
        }
        let bytes = out.into_inner().map_err(|e| Error::Failed(e.to_string()))?;
        String::from_utf8(bytes).map_err(|e| Error::Failed(e.to_string()))
    }
}
