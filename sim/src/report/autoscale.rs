//! What `servetwin autoscale` found: settings of a scaler, what each costs and how many requests it serves within the objective.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::record::RunRecord;
use crate::report::figures::figure;

/// Settings that were tried on the same requests, and the one to choose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AutoscaleReport {
    /// Version of this contract; raised when a field changes its meaning or goes away.
    pub contract: u32,
    /// Name of the scenario.
    pub name: String,
    /// Share of the requests sent that are to meet the objective [0, 1].
    pub wanted_ratio: f64,
    /// Seeds that each setting was run with; all of them see the same requests, boots and failures.
    pub seeds: Vec<u64>,
    /// The settings, cheapest first.
    pub settings: Vec<Trial>,
    /// Index of the one to choose among them.
    pub chosen: usize,
    /// Why.
    pub why: String,
}

/// One setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Trial {
    /// The keys that it changes, with their values.
    pub setting: Vec<String>,
    /// Whether it is the scenario as it stands.
    pub is_present: bool,
    /// Mean cost of a run [USD]; null where a price is not known.
    pub usd: Option<f64>,
    /// Mean lifetimes of all nodes [h].
    pub node_hours: f64,
    /// Mean share of the requests sent that met the objective [0, 1].
    pub attainment_ratio: f64,
    /// The same in the worst of the runs.
    pub worst_ratio: f64,
    /// Ready replicas on average.
    pub mean_ready: f64,
    /// Changes of the number of replicas, mean over the runs.
    pub changes: f64,
    /// No other setting costs less and serves as many within the objective.
    pub is_efficient: bool,
}

/// Version of the contract.
pub const CONTRACT: u32 = 1;

/// What one run says of a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunOf {
    /// Cost [USD].
    pub usd: Option<f64>,
    /// Lifetimes of all nodes [h].
    pub node_hours: f64,
    /// Share of the requests sent that met the objective [0, 1].
    pub attainment_ratio: f64,
    /// Ready replicas on average.
    pub mean_ready: f64,
    /// Changes of the number of replicas.
    pub changes: f64,
}

impl RunOf {
    /// Of a run in a cluster.
    pub fn of(record: &RunRecord) -> Option<RunOf> {
        let c = record.cluster.as_ref()?;
        let hours = (0..c.nodes.len()).map(|n| c.lifetime(n).as_secs() / 3600.0);
        let served = c.replicas.iter().flat_map(|r| &r.served);
        let ready: f64 = served.map(|(_, from, to)| to.since(*from).as_secs()).sum();
        let end = record.end.as_secs();
        let changed =
            |d: &&crate::kube::record::DecisionRow| d.from != d.to && d.about == "replicas";
        Some(RunOf {
            usd: c.usd(),
            node_hours: hours.sum(),
            attainment_ratio: match record.window.offered {
                0 => 1.0,
                n => record.window.good as f64 / n as f64,
            },
            mean_ready: if end > 0.0 { ready / end } else { 0.0 },
            changes: c.decisions.iter().filter(changed).count() as f64,
        })
    }
}

impl Trial {
    /// A setting from its runs, at least one.
    pub fn new(setting: Vec<String>, is_present: bool, runs: &[RunOf]) -> Trial {
        let n = runs.len().max(1) as f64;
        let mean = |of: fn(&RunOf) -> f64| runs.iter().map(of).sum::<f64>() / n;
        Trial {
            setting,
            is_present,
            usd: runs
                .iter()
                .map(|r| r.usd)
                .sum::<Option<f64>>()
                .map(|usd| usd / n),
            node_hours: mean(|r| r.node_hours),
            attainment_ratio: mean(|r| r.attainment_ratio),
            worst_ratio: runs.iter().map(|r| r.attainment_ratio).fold(1.0, f64::min),
            mean_ready: mean(|r| r.mean_ready),
            changes: mean(|r| r.changes),
            is_efficient: false,
        }
    }

    /// What it is held against others by: cost, or node hours without prices.
    fn cost(&self) -> f64 {
        self.usd.unwrap_or(self.node_hours)
    }

    fn in_words(&self) -> String {
        if self.is_present && self.setting.is_empty() {
            return "as it stands".into();
        }
        self.setting.join(", ")
    }
}

impl AutoscaleReport {
    /// Orders and compares trials, at least one.
    pub fn new(
        name: &str,
        wanted: f64,
        seeds: Vec<u64>,
        mut trials: Vec<Trial>,
    ) -> AutoscaleReport {
        trials.sort_by(|a, b| {
            (a.cost().total_cmp(&b.cost()))
                .then(b.attainment_ratio.total_cmp(&a.attainment_ratio))
                .then(a.setting.cmp(&b.setting))
        });
        let mut best = f64::NEG_INFINITY;
        for trial in &mut trials {
            trial.is_efficient = trial.attainment_ratio > best;
            best = best.max(trial.attainment_ratio);
        }
        let enough = trials.iter().position(|t| t.attainment_ratio >= wanted);
        let most = (0..trials.len())
            .max_by(|a, b| {
                let of = |i: usize| trials[i].attainment_ratio;
                of(*a).total_cmp(&of(*b)).then(b.cmp(a))
            })
            .unwrap_or(0);
        let chosen = enough.unwrap_or(most);
        let why = why(&trials, chosen, enough.is_some(), wanted);
        AutoscaleReport {
            contract: CONTRACT,
            name: name.to_owned(),
            wanted_ratio: wanted,
            seeds,
            settings: trials,
            chosen,
            why,
        }
    }

    /// The table on the terminal.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{}: {} settings, {} seed{} each, the same requests for all\n",
            self.name,
            self.settings.len(),
            self.seeds.len(),
            if self.seeds.len() == 1 { "" } else { "s" }
        )?;
        let money = self.settings.iter().all(|t| t.usd.is_some());
        let head = if money { "USD" } else { "node hours" };
        writeln!(
            out,
            "  {head:>10}  within SLO     worst   ready  changes  setting (* nothing cheaper serves as many)"
        )?;
        for (i, t) in self.settings.iter().enumerate() {
            let mark = match (i == self.chosen, t.is_efficient) {
                (true, _) => ">",
                (false, true) => "*",
                (false, false) => " ",
            };
            let cost = if money {
                t.usd.unwrap_or(0.0)
            } else {
                t.node_hours
            };
            writeln!(
                out,
                "{mark} {cost:>10.2}  {:>8.2} %  {:>6.2} %  {:>6}  {:>7}  {}{}",
                100.0 * t.attainment_ratio,
                100.0 * t.worst_ratio,
                figure(t.mean_ready),
                figure(t.changes),
                t.in_words(),
                if t.is_present && !t.setting.is_empty() {
                    " (as it stands)"
                } else {
                    ""
                }
            )?;
        }
        writeln!(out, "\n{}", self.why)
    }
}

fn why(trials: &[Trial], chosen: usize, is_enough: bool, wanted: f64) -> String {
    let Some(t) = trials.get(chosen) else {
        return String::new();
    };
    let share = format!("{:.2} %", 100.0 * t.attainment_ratio);
    let goal = format!("{} %", figure(100.0 * wanted));
    let mut text = match is_enough {
        true => format!(
            "choose {}: the cheapest that serves {goal} of the requests within the objective ({share})",
            t.in_words()
        ),
        false => format!(
            "no setting serves {goal} of the requests within the objective; {} comes closest ({share}), and the cheapest of those that do",
            t.in_words()
        ),
    };
    if let Some(present) = trials.iter().find(|t| t.is_present)
        && !t.is_present
        && present.cost() > 0.0
    {
        let change = 100.0 * (t.cost() / present.cost() - 1.0);
        text += &format!(
            "; as it stands: {:.2} %, this costs {:.1} % {}",
            100.0 * present.attainment_ratio,
            change.abs(),
            if change < 0.0 { "less" } else { "more" }
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(name: &str, usd: f64, ratio: f64) -> Trial {
        let run = RunOf {
            usd: Some(usd),
            attainment_ratio: ratio,
            ..RunOf::default()
        };
        Trial::new(vec![name.to_owned()], false, &[run])
    }

    #[test]
    fn the_cheapest_that_serves_enough_is_chosen() {
        let trials = vec![
            trial("dear", 9.0, 0.999),
            trial("poor", 1.0, 0.5),
            trial("good", 4.0, 0.992),
            trial("waste", 5.0, 0.6),
        ];
        let r = AutoscaleReport::new("x", 0.99, vec![1], trials);
        assert_eq!(r.settings[r.chosen].setting, ["good"]);
        let efficient: Vec<&str> = r
            .settings
            .iter()
            .filter(|t| t.is_efficient)
            .map(|t| t.setting[0].as_str())
            .collect();
        assert_eq!(efficient, ["poor", "good", "dear"]);
        assert!(r.why.contains("the cheapest that serves 99"), "{}", r.why);
        assert!(r.render().contains("\n>       4.00"), "{}", r.render());
    }

    #[test]
    fn where_none_serves_enough_the_best_is_chosen_and_that_is_said() {
        let r = AutoscaleReport::new(
            "x",
            0.99,
            vec![1],
            vec![
                trial("a", 1.0, 0.5),
                trial("b", 2.0, 0.8),
                trial("c", 3.0, 0.8),
            ],
        );
        assert_eq!(r.settings[r.chosen].setting, ["b"]);
        assert!(r.why.starts_with("no setting serves 99"), "{}", r.why);
    }
}
