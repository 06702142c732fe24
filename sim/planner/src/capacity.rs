//! How many replicas for each load: the table that goes into a ticket.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sim::report::doubt;
use sim::report::summary::CONTRACT;
use sim::report::text::figure;
use sim::scenario::Scenario;
use sim::workload::Arrival;

use crate::conditions::{Condition, Standing};
use crate::fleet::{Extent, Fleet, Packing};
use crate::requests::Requests;
use crate::smallest::smallest;
use crate::{Error, World};

/// Multiples of the load, where nobody says which.
pub const MULTIPLES: [f64; 8] = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0];
/// Most replicas that are tried.
pub const MOST_REPLICAS: u32 = 512;
/// Hours of a month.
const HOURS_PER_MONTH: f64 = 730.0;

/// The table (`capacity --json`; `docs/schema/capacity.schema.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CapacityTable {
    /// Version of this contract.
    pub contract: u32,
    /// Name of the scenario.
    pub name: String,
    /// What a replica runs on, in words.
    pub deployment: String,
    /// The load in words.
    pub load: String,
    /// The objectives.
    pub slo: Vec<String>,
    /// A row per load, ascending.
    pub rows: Vec<CapacityRow>,
    /// What the reader must know to judge the figures.
    pub notes: Vec<String>,
}

/// One load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CapacityRow {
    /// Multiple of the scenario's load.
    pub scale: f64,
    /// Mean rate [req/s]; null where all requests come at once.
    pub requests_per_s: Option<f64>,
    /// Smallest number of replicas that holds; null where the most that was tried does not.
    pub replicas: Option<u32>,
    /// Smallest numbers that hold where steps are as much shorter, and longer, as they may be in nine of ten such deployments; an end is null where the most
    /// that was tried does not hold. Null where nothing is known of such runs.
    #[serde(default)]
    pub replicas_range: Option<[Option<u32>; 2]>,
    /// One more: the objectives hold with any one of them lost.
    pub with_one_spare: Option<u32>,
    /// Instances that those take; null without an instance type.
    pub instances: Option<u32>,
    /// Their price [USD/h]; null where not known.
    pub usd_per_hour: Option<f64>,
    /// How `replicas` stand.
    pub standing: Option<Standing>,
}

/// Objectives of a scenario's own `[slo]`: the 99th percentile of each limited metric.
///
/// # Errors
/// A scenario without any.
pub fn own_conditions(scenario: &Scenario) -> Result<Vec<Condition>, Error> {
    let limits = [
        ("ttft", scenario.slo.ttft),
        ("tpot", scenario.slo.tpot),
        ("e2e", scenario.slo.e2e),
    ];
    let conditions: Vec<Condition> = limits
        .into_iter()
        .filter_map(|(name, limit)| Some((name, limit?.secs() * 1e3)))
        .map(|(name, ms)| {
            Condition::parse(&format!("{name}.p99 <= {} ms", hwmodels::units::plain(ms)))
        })
        .collect::<Result<_, _>>()?;
    if conditions.is_empty() {
        return Err(Error::input(
            "the scenario has no objectives: give --slo 'ttft.p99 < 500 ms', or set slo.ttft, slo.tpot or slo.e2e",
        ));
    }
    Ok(conditions)
}

/// Whether a scenario's rates do not change and do not end by themselves.
fn steady(scenario: &Scenario) -> bool {
    let goes_on = |a: &Arrival| {
        matches!(
            a,
            Arrival::Poisson { .. } | Arrival::Gamma { .. } | Arrival::Constant { .. }
        )
    };
    scenario.workload.iter().all(|s| goes_on(&s.arrival))
}

/// The table of `scenario` at `multiples` of its load; its own number of replicas does not matter. `progress` is told how many of how many rows are
/// done.
///
/// # Errors
/// A load that depends on its answers, objectives that are missing, multiples that are none; the simulator's own errors.
pub fn table(
    world: &World,
    scenario: &Scenario,
    conditions: &[Condition],
    multiples: &[f64],
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<CapacityTable, Error> {
    let mut multiples = multiples.to_vec();
    if let Some(wrong) = multiples.iter().find(|m| !(m.is_finite() && **m > 0.0)) {
        return Err(Error::input(format!(
            "a multiple of the load must be above 0, got {wrong}"
        )));
    }
    multiples.sort_by(f64::total_cmp);
    multiples.dedup();
    let requests = Requests::draw(scenario, scenario.seed)?;
    let mut fleet = Fleet::start(scenario.clone())?;
    fleet.cancel = world.cancel.clone();
    let packing = Packing::of(scenario);
    let steady = steady(scenario);
    let per_s = requests.moments().per_s;
    let pace = doubt::pace(&fleet.info);
    let (done, total) = (AtomicU64::new(0), multiples.len() as u64);
    let rows = multiples
        .par_iter()
        .map(|scale| {
            let extent = Extent::of(scenario, *scale);
            let fewest = |fleet: &Fleet, hint: u32| {
                smallest(hint, 1, MOST_REPLICAS, |replicas| {
                    let record = fleet.run(&[replicas], requests.all(*scale), extent)?;
                    let standing = Standing::of(&record, conditions, steady);
                    Ok::<_, Error>((standing.holds, standing))
                })
            };
            let found = fewest(&fleet, 1)?;
            let replicas = found.as_ref().map(|f| f.0);
            let paced = |pace: f64, from: u32| -> Result<Option<u32>, Error> {
                Ok(fewest(&fleet.paced(pace.exp()), from)?.map(|f| f.0))
            };
            let replicas_range = match (pace, replicas) {
                (Some(pace), Some(n)) => Some([paced(-pace, n)?, paced(pace, n)?]),
                _ => None,
            };
            progress(1 + done.fetch_add(1, Ordering::Relaxed), total);
            let with_one_spare = replicas.map(|r| r + 1);
            let instances = packing.and_then(|p| Some(p.instances(with_one_spare?)));
            let price = packing.and_then(|p| p.usd_per_hour);
            Ok(CapacityRow {
                scale: *scale,
                requests_per_s: per_s.map(|r| r * scale),
                replicas,
                replicas_range,
                with_one_spare,
                instances,
                usd_per_hour: instances.and_then(|n| Some(f64::from(n) * price?)),
                standing: found.map(|f| f.1),
            })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let mut notes = vec![format!(
        "all {} requests of the load at each multiple; replicas is the smallest number with which every objective holds, no request is lost{}",
        requests.len(),
        if steady { " and no queue grows" } else { "" }
    )];
    if pace.is_some() {
        notes.push("9 of 10: replicas with steps as much shorter and longer as they may be in nine of ten such deployments".to_owned());
    }
    if requests.cut {
        notes.push("the load has more requests; the table rests on the first of them".to_owned());
    }
    if packing.is_none_or(|p| p.usd_per_hour.is_none()) {
        notes.push("no price: the scenario has no instance type with one".to_owned());
    }
    Ok(CapacityTable {
        contract: CONTRACT,
        name: scenario.name.clone(),
        deployment: fleet.info.deployment.clone(),
        load: scenario.load_in_words(),
        slo: conditions.iter().map(|c| c.text.clone()).collect(),
        rows,
        notes,
    })
}

impl CapacityTable {
    /// Header and cells of the table.
    fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut header: Vec<String> = [
            "load [x]",
            "req/s",
            "replicas",
            "9 of 10",
            "with N+1",
            "instances",
            "USD/h",
            "USD/month",
        ]
        .map(str::to_owned)
        .to_vec();
        header.extend(self.slo.iter().map(|c| {
            let label = c.split(['<', '>', '=']).next().unwrap_or(c).trim();
            format!("{label} [ms]")
        }));
        let number = |v: Option<u32>| v.map_or_else(|| "-".into(), |v| v.to_string());
        let rows = self
            .rows
            .iter()
            .map(|r| {
                let mut row = vec![
                    figure(r.scale),
                    r.requests_per_s.map_or("-".into(), figure),
                    r.replicas
                        .map_or_else(|| format!("> {MOST_REPLICAS}"), |n| n.to_string()),
                    r.replicas_range.map_or("-".into(), |ends| {
                        let [low, high] = ends.map(|n| {
                            n.map_or_else(|| format!("> {MOST_REPLICAS}"), |n| n.to_string())
                        });
                        format!("{low} to {high}")
                    }),
                    number(r.with_one_spare),
                    number(r.instances),
                    r.usd_per_hour.map_or("-".into(), figure),
                    r.usd_per_hour
                        .map_or("-".into(), |p| format!("{:.0}", p * HOURS_PER_MONTH)),
                ];
                for i in 0..self.slo.len() {
                    let value = r
                        .standing
                        .as_ref()
                        .and_then(|s| s.values_ms.get(i).copied().flatten());
                    row.push(value.map_or("-".into(), figure));
                }
                row
            })
            .collect();
        (header, rows)
    }

    /// The table on the terminal; lines end in `\n`.
    pub fn render(&self) -> String {
        let (header, rows) = self.cells();
        let width = |i: usize| {
            rows.iter()
                .chain([&header])
                .map(|r| r[i].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        let line = |row: &[String]| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(c, w)| format!("{c:>w$}"))
                .collect();
            format!("  {}\n", cells.join("  "))
        };
        let mut out = format!(
            "{}\n  {}\n  {}\n  SLO: {}\n\n",
            self.name,
            self.deployment,
            self.load,
            self.slo.join(" and ")
        );
        out += &line(&header);
        for row in &rows {
            out += &line(row);
        }
        out.push('\n');
        for note in &self.notes {
            out += &format!("  note: {note}\n");
        }
        out
    }

    /// The table in Markdown, for a ticket.
    pub fn markdown(&self) -> String {
        let (header, rows) = self.cells();
        let line = |row: &[String]| format!("| {} |\n", row.join(" | "));
        let mut out = format!(
            "**{}**: {}. SLO: {}\n\n",
            self.name,
            self.deployment,
            self.slo.join(" and ")
        );
        out += &line(&header);
        out += &line(&vec!["---:".to_owned(); header.len()]);
        for row in &rows {
            out += &line(row);
        }
        out.push('\n');
        for note in &self.notes {
            out += &format!("- {note}\n");
        }
        out
    }

    /// The table as CSV, with a header.
    ///
    /// # Errors
    /// None that can come up: the table is written to memory.
    pub fn csv(&self) -> Result<String, Error> {
        let failed = |e: csv::Error| Error::Failed(e.to_string());
        let mut out = csv::Writer::from_writer(Vec::new());
        let (header, rows) = self.cells();
        out.write_record(&header).map_err(failed)?;
        for row in &rows {
            out.write_record(row.iter().map(|c| if c == "-" { "" } else { c }))
                .map_err(failed)?;
        }
        let bytes = out.into_inner().map_err(|e| Error::Failed(e.to_string()))?;
        String::from_utf8(bytes).map_err(|e| Error::Failed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica of constant steps: 10 ms and 0.1 ms per token, so 40 output tokens take 0.4 s and more.
    const TEXT: &str = "[step]\nbase = \"10 ms\"\nper_token = \"100 us\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 2000\n[router]\npolicy = \
        \"least_outstanding\"\n[[workload]]\narrival = { kind = \"poisson\", rate = \"10 req/s\" }\nprompt = 200\noutput = 40\n[run]\nrequests = \
        800\nwarmup = \"5 s\"\n[slo]\nttft = \"200 ms\"\n";

    #[test]
    fn more_load_takes_more_replicas_and_one_more_is_spare() {
        let scenario = Scenario::parse(TEXT, "s.toml", &[]).unwrap();
        let conditions = own_conditions(&scenario).unwrap();
        assert_eq!(conditions[0].text, "ttft.p99 <= 200 ms");
        let t = table(
            &World::default(),
            &scenario,
            &conditions,
            &[8.0, 0.5, 2.0],
            &|_, _| {},
        )
        .unwrap();
        let replicas: Vec<u32> = t.rows.iter().map(|r| r.replicas.unwrap()).collect();
        assert_eq!(
            t.rows.iter().map(|r| r.scale).collect::<Vec<_>>(),
            [0.5, 2.0, 8.0]
        );
        assert!(
            replicas.windows(2).all(|w| w[0] <= w[1]) && replicas[2] > replicas[0],
            "{replicas:?}"
        );
        assert!(
            t.rows
                .iter()
                .all(|r| r.with_one_spare == Some(r.replicas.unwrap() + 1))
        );
        let text = t.render();
        assert!(
            text.contains("with N+1") && t.markdown().contains("| ---: |"),
            "{text}"
        );
        assert_eq!(t.csv().unwrap().lines().count(), 4);
    }

    #[test]
    fn the_number_is_the_smallest_that_holds() {
        let scenario = Scenario::parse(TEXT, "s.toml", &[]).unwrap();
        let conditions = own_conditions(&scenario).unwrap();
        let t = table(
            &World::default(),
            &scenario,
            &conditions,
            &[6.0],
            &|_, _| {},
        )
        .unwrap();
        let n = t.rows[0].replicas.unwrap();
        assert!(n > 1);
        let requests = Requests::draw(&scenario, scenario.seed).unwrap();
        let fleet = Fleet::start(scenario.clone()).unwrap();
        let stands = |n: u32| {
            let record = fleet
                .run(&[n], requests.all(6.0), Extent::of(&scenario, 6.0))
                .unwrap();
            Standing::of(&record, &conditions, true).holds
        };
        assert!(stands(n) && !stands(n - 1));
    }

    #[test]
    fn a_scenario_without_objectives_is_refused() {
        let text = TEXT.split("[slo]").next().unwrap();
        let scenario = Scenario::parse(text, "s.toml", &[]).unwrap();
        assert!(
            own_conditions(&scenario)
                .unwrap_err()
                .to_string()
                .contains("--slo")
        );
    }
}
