//! `[router]`.

use super::super::RouterChoice;
use super::super::file::RouterFile;
use super::super::gateway_file::{GatewayRetriesFile, OutlierFile};
use super::{Checker, Result};
use crate::cluster::gateway::GatewaySpec;

impl Checker<'_, '_> {
    pub(super) fn router(&self, router: &RouterFile) -> Result<RouterChoice> {
        Ok(RouterChoice {
            policy: router.policy.unwrap_or_default(),
            timeout: self.optional_secs(router.timeout, "router.timeout")?,
            overhead: self.secs_or(router.overhead, 0.0, "router.overhead")?,
            scrape_period: self.secs_or(router.scrape_period, 0.05, "router.scrape_period")?,
            gateway: GatewaySpec {
                retries: (router.retries.as_ref())
                    .map(|r| self.gateway_retries(r))
                    .transpose()?,
                outliers: (router.outlier_detection.as_ref())
                    .map(|o| self.outliers(o))
                    .transpose()?,
                max_requests: (router.max_requests)
                    .map(|n| self.whole(n, 1, u32::MAX, "router.max_requests"))
                    .transpose()?,
            },
        })
    }

    fn gateway_retries(
        &self,
        r: &GatewayRetriesFile,
    ) -> Result<crate::cluster::gateway::RetrySpec> {
        let spec = r.spec();
        self.whole(spec.max, 1, 100, "router.retries.max")?;
        self.number(
            spec.budget_percent,
            0.0,
            100.0,
            "router.retries.budget_percent",
        )?;
        self.optional_secs(r.per_try_timeout, "router.retries.per_try_timeout")?;
        self.secs_or(r.backoff, 0.0, "router.retries.backoff")?;
        if r.on.as_ref().is_some_and(Vec::is_empty) {
            return self.fail(
                "router.retries.on",
                "names nothing; write e.g. on = [\"refused\", \"failed\"]",
            );
        }
        Ok(spec)
    }

    fn outliers(&self, o: &OutlierFile) -> Result<crate::cluster::gateway::OutlierSpec> {
        let spec = o.spec();
        let at = |key: &str| format!("router.outlier_detection.{key}");
        self.whole(
            spec.consecutive_failures,
            1,
            1_000_000,
            &at("consecutive_failures"),
        )?;
        self.number(
            spec.max_ejection_percent,
            0.0,
            100.0,
            &at("max_ejection_percent"),
        )?;
        self.secs_or(o.interval, 0.0, &at("interval"))?;
        self.optional_secs(o.base_ejection_time, &at("base_ejection_time"))?;
        Ok(spec)
    }
}
