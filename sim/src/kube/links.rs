//! Links between pools that carry less than they should: the KV that goes over them takes longer.

use super::cluster::Cluster;
use super::event::Event;
use super::record::Controller;
use super::sight::{LinkShares, Order};
use super::slow::SlowLink;
use crate::kernel::time::{SimDuration, SimTime};

impl Cluster {
    /// Links lose bandwidth for a while.
    pub(super) fn slow_links(
        &mut self,
        now: SimTime,
        fault: usize,
        share: f64,
        duration: SimDuration,
    ) {
        let deployment = self.spec.faults[fault].deployment;
        self.links.push(SlowLink {
            fault,
            begin: now,
            share,
            deployment,
        });
        self.plan(now + duration, Event::LinkWell { fault, begin: now });
        let of = deployment.map_or(String::new(), |d| {
            format!(" of {}", self.spec.deployments[d].name)
        });
        let why = format!(
            "KV links{of} carry {:.0} % of their bandwidth for {:.0} s",
            100.0 * share,
            duration.as_secs()
        );
        self.decided(now, Controller::Fault, "kv links", (0, 0), why);
        self.tell_links();
    }

    /// Links are as fast as they were before `begin`.
    pub(super) fn links_recover(&mut self, now: SimTime, fault: usize, begin: SimTime) {
        self.links.retain(|l| (l.fault, l.begin) != (fault, begin));
        let why = match self.links.is_empty() {
            true => "KV links carry their bandwidth again".to_owned(),
            false => format!("KV links: {} faults are left", self.links.len()),
        };
        self.decided(now, Controller::Fault, "kv links", (0, 0), why);
        self.tell_links();
    }

    fn tell_links(&mut self) {
        let product = |of: Option<usize>| -> f64 {
            (self.links.iter())
                .filter(|l| l.deployment.is_none() || l.deployment == of)
                .map(|l| l.share)
                .product()
        };
        let deployments = (0..self.spec.deployments.len()).map(|d| product(Some(d)));
        self.orders.push(Order::KvLinks(LinkShares {
            fabric: product(None),
            deployments: deployments.collect(),
        }));
    }
}
