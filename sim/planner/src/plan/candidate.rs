//! A candidate: a deployment in any number of units.

use hwmodels::Layout;
use sim::scenario::Scenario;

use super::apart::Apart;
use super::question::{Question, Redundancy};
use crate::Error;

/// One deployment of one or more replicas, whose number is what is searched.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its place in the space.
    pub index: usize,
    /// Instance type; the accelerator where these are rented one by one, each of which then counts as an instance.
    pub instance: String,
    /// Its accelerator's name in the catalog.
    pub accelerator: String,
    /// Price of an instance [USD/h]; none where nobody says.
    pub usd_per_hour: Option<f64>,
    /// Whether deployments are ranked by their number of accelerators in place of their price.
    pub by_devices: bool,
    /// Accelerators of an instance.
    pub devices_per_instance: u32,
    /// Where accelerators are rented one by one: replicas that a machine may hold, whoever rents the rest of it.
    pub per_machine: Option<u32>,
    /// Replicas that one instance holds; 0: a replica spans several.
    pub per_instance: u32,
    /// Instances that one replica takes.
    pub instances_per_replica: u32,
    /// Accelerators of a replica.
    pub devices: u32,
    /// Layout of a replica; of one that prefills where prefill and decode are apart.
    pub layout: Layout,
    /// Prefill and decode apart: the replicas of a cell, which then stands in place of a replica.
    pub apart: Option<Apart>,
    /// What it differs in from others of its instance type and layout, e.g. `max_num_seqs 128`.
    pub settings: Vec<(String, String)>,
    /// The keys that make it, as overrides of the question's base.
    pub overrides: Vec<String>,
}

impl Candidate {
    /// Replicas of `units`: of whole instances where one holds several replicas, else of replicas.
    pub fn replicas(&self, units: u32) -> u32 {
        self.counts(units)
            .iter()
            .fold(0, |n, c| n.saturating_add(*c))
    }

    /// Cells of `units`: replicas, or the groups of those that prefill and decode.
    pub fn cells(&self, units: u32) -> u32 {
        units.saturating_mul(self.per_instance.max(1))
    }

    /// Replicas of each kind of `units`: one number, or those that prefill and those that decode.
    pub fn counts(&self, units: u32) -> Vec<u32> {
        let cells = self.cells(units);
        match &self.apart {
            None => vec![cells],
            Some(a) => a.counts(cells).to_vec(),
        }
    }

    /// What is left of `units`, for each way to lose `what`.
    pub fn losing(&self, units: u32, what: Redundancy) -> Vec<Vec<u32>> {
        match &self.apart {
            None => vec![vec![self.cells(units).saturating_sub(self.spare(what))]],
            Some(a) => a.losing(self.cells(units), what),
        }
    }

    /// Replicas that are lost with `what`.
    fn spare(&self, what: Redundancy) -> u32 {
        // Where accelerators are rented one by one, a machine may hold as many replicas as fit it.
        what.spare(self.per_machine.unwrap_or(self.per_instance))
    }

    /// Most units of a deployment.
    pub fn most_units(&self, question: &Question) -> u32 {
        let machines = question.max_instances;
        match (self.per_machine, self.per_instance) {
            (Some(n), 0) => machines.saturating_mul(n),
            (Some(n), of_one) => machines.saturating_mul((n / of_one).max(1)),
            (None, 0) => machines / self.instances_per_replica.max(1),
            (None, _) => machines,
        }
    }

    /// Instances of `units`.
    pub fn instances(&self, units: u32) -> u32 {
        if self.per_instance > 0 {
            units
        } else {
            units.saturating_mul(self.instances_per_replica)
        }
    }

    /// Accelerators of `units`.
    pub fn accelerators(&self, units: u32) -> u32 {
        self.instances(units)
            .saturating_mul(self.devices_per_instance)
    }

    /// Price of `units` [USD/h], where it is known.
    pub fn usd(&self, units: u32) -> Option<f64> {
        Some(f64::from(self.instances(units)) * self.usd_per_hour?)
    }

    /// What `units` are ranked by: their price [USD/h], or their accelerators where something that was asked for has no price.
    pub fn cost(&self, units: u32) -> f64 {
        match self.usd(units).filter(|_| !self.by_devices) {
            Some(usd) => usd,
            None => f64::from(self.accelerators(units)),
        }
    }

    /// Units that cost at most `cost`.
    pub fn units_for(&self, cost: f64) -> u32 {
        // A hair more, so that rounding does not cost a unit.
        (cost * (1.0 + 1e-9) / self.cost(1)).floor().clamp(0.0, 1e9) as u32
    }

    /// Units whose surviving cells are at least `cells`.
    pub fn units_of(&self, cells: u32, question: &Question) -> u32 {
        let what = question.redundancy;
        if self.apart.is_none() {
            let with_spare = cells.saturating_add(self.spare(what));
            return with_spare.div_ceil(self.per_instance.max(1)).max(1);
        }
        let mut units = cells.div_ceil(self.per_instance.max(1)).max(1);
        while units < question.max_instances && self.losing(units, what).concat().contains(&0) {
            units += 1;
        }
        units
    }

    /// Replicas of `units` that are left when what may be lost is lost.
    pub fn surviving(&self, units: u32, question: &Question) -> u32 {
        let left = self.losing(units, question.redundancy);
        let sums = left
            .iter()
            .map(|l| l.iter().fold(0u32, |n, c| n.saturating_add(*c)));
        sums.min().unwrap_or(0)
    }

    /// What shares a step model but for its largest step, of each kind of replica: instance type, layout, dtypes, engine.
    pub fn shapes(&self) -> Vec<String> {
        let own = |o: &&String| {
            !o.starts_with("engine.max_") && !o.starts_with("router.") && !o.starts_with("layout.")
        };
        let keys: Vec<&str> = self
            .overrides
            .iter()
            .filter(own)
            .map(String::as_str)
            .collect();
        let layouts = std::iter::once(self.layout).chain(self.apart.map(|a| a.decode_layout));
        layouts
            .map(|layout| format!("{} {layout} {}", self.instance, keys.join(" ")))
            .collect()
    }

    /// Its replicas' layouts in words.
    pub fn layouts(&self) -> String {
        match &self.apart {
            None => self.layout.to_string(),
            Some(a) => a.in_words(self.layout),
        }
    }

    /// The deployment in words, without its number of replicas.
    pub fn label(&self) -> String {
        let mut out = format!("{}, {}", self.instance, self.layouts());
        for (key, value) in &self.settings {
            out += &format!(", {key} {value}");
        }
        out
    }

    /// Its scenario with `counts` replicas of each kind.
    ///
    /// # Errors
    /// A combination that no scenario can have.
    pub fn scenario(&self, question: &Question, counts: &[u32]) -> Result<Scenario, Error> {
        self.scenario_with(question, counts, &[])
    }

    /// The same with further `keys` laid over.
    ///
    /// # Errors
    /// As [`Candidate::scenario`].
    pub fn scenario_with(
        &self,
        question: &Question,
        counts: &[u32],
        keys: &[String],
    ) -> Result<Scenario, Error> {
        let mut overrides = self.overrides.clone();
        match &self.apart {
            None => overrides.push(format!(
                "layout.replicas={}",
                counts.first().copied().unwrap_or(1)
            )),
            Some(a) => overrides.extend(a.overrides(counts, question.kv_transfer.as_ref())),
        }
        overrides.extend_from_slice(keys);
        Ok(question
            .world
            .scenario(&question.base, &question.origin, &overrides)?)
    }
}
