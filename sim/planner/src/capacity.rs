//! How many replicas for each load: the table that goes into a ticket.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sim::report::doubt;
use sim::report::summary::CONTRACT;
use sim::report::text::figure;
use sim::scenario::Scenario;

use crate::conditions::{Condition, Standing};
use crate::fleet::{Extent, Fleet, Packing};
use crate::judge::Judge;
use crate::requests::Requests;
use crate::smallest::smallest;
use crate::{Error, World};

/// Multiples of the load, where nobody says which.
pub const MULTIPLES: [f64; 8] = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0];
/// Most replicas that are tried.
pub const MOST_REPLICAS: u32 = 512;
/// Requests that are sent alone, one at a time.
const ALONE_REQUESTS: usize = 500;
/// Mean pause between them [s].
const ALONE_S: f64 = 1_000.0;
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
    /// Why there is no number of replicas; null where there is one.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Objectives of a scenario: its own, or the 99th percentile of each metric that its `[slo]` limits.
///
/// # Errors
/// A scenario without any.
pub fn own_conditions(scenario: &Scenario) -> Result<Vec<Condition>, Error> {
    let conditions = scenario.slo.as_objectives();
    if conditions.is_empty() {
        return Err(Error::input(
            "the scenario has no objectives: give --slo 'ttft.p99 < 500 ms', or write slo = [\"ttft.p99 < 500 ms\"] in the scenario",
        ));
    }
    Ok(conditions)
}

/// The table of `scenario` at `multiples` of its load; its own number of replicas does not matter. `progress` is told how many of how many rows are
/// done.
///
/// # Errors
/// A load that depends on its answers, or of which no run says anything at any multiple; objectives that are missing, multiples that are none; the
/// simulator's own errors.
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
    let of = Of {
        world,
        conditions,
        requests: &requests,
        fleet: &fleet,
        packing: Packing::of(scenario),
        pace: doubt::pace(&fleet.info),
        alone: alone(&fleet, &requests, conditions)?,
    };
    let (done, total) = (AtomicU64::new(0), multiples.len() as u64);
    let found = multiples
        .par_iter()
        .map(|scale| {
            let row = of.row(*scale)?;
            progress(1 + done.fetch_add(1, Ordering::Relaxed), total);
            Ok(row)
        })
        .collect::<Result<Vec<Row>, Error>>()?;
    if let [Row::Refused(_, why), ..] = found.as_slice()
        && found.iter().all(|r| matches!(r, Row::Refused(..)))
    {
        return Err(Error::input(why.clone()));
    }
    let rows: Vec<CapacityRow> = (found.into_iter())
        .map(|row| match row {
            Row::Found(row) => *row,
            Row::Refused(scale, why) => of.without(scale, why),
        })
        .collect();
    Ok(CapacityTable {
        contract: CONTRACT,
        name: scenario.name.clone(),
        deployment: fleet.info.deployment.clone(),
        load: scenario.load_in_words(),
        slo: conditions.iter().map(|c| c.text.clone()).collect(),
        notes: notes(&of, &rows),
        rows,
    })
}

/// What the rows are of.
struct Of<'a> {
    world: &'a World,
    conditions: &'a [Condition],
    requests: &'a Requests,
    fleet: &'a Fleet,
    packing: Option<Packing>,
    /// How much longer or shorter steps may be than predicted [ln]; none where nothing is known of such runs.
    pace: Option<f64>,
    /// Why no number of replicas can hold.
    alone: Option<String>,
}

/// What came of a multiple of the load.
enum Row {
    Found(Box<CapacityRow>),
    /// No run says anything of so large or so short a load.
    Refused(f64, String),
}

impl Of<'_> {
    /// A row without a number of replicas.
    fn without(&self, scale: f64, reason: String) -> CapacityRow {
        CapacityRow {
            scale,
            requests_per_s: self.requests.per_s().map(|r| r * scale),
            replicas: None,
            replicas_range: None,
            with_one_spare: None,
            instances: None,
            usd_per_hour: None,
            standing: None,
            reason: Some(reason),
        }
    }

    fn row(&self, scale: f64) -> Result<Row, Error> {
        if let Some(why) = &self.alone {
            return Ok(Row::Found(Box::new(self.without(scale, why.clone()))));
        }
        let judge = match Judge::new(
            self.conditions,
            self.requests,
            scale,
            self.world.most_requests,
        ) {
            Ok(judge) => judge,
            Err(e) => return Ok(Row::Refused(scale, e.into_reason()?)),
        };
        let mut most = None;
        let found = smallest(1, 1, MOST_REPLICAS, |replicas| {
            let standing = judge.stands(self.fleet, &[replicas])?.standing;
            if replicas == MOST_REPLICAS {
                most = Some(standing.clone());
            }
            Ok::<_, Error>((standing.holds, standing))
        })?;
        let Some((replicas, standing)) = found else {
            let how = most.map_or(String::new(), |s| misses(&s, self.conditions));
            let why = format!("{MOST_REPLICAS} replicas, the most that are tried, miss it: {how}");
            return Ok(Row::Found(Box::new(self.without(scale, why))));
        };
        let with_one_spare = replicas + 1;
        let instances = self.packing.map(|p| p.instances(with_one_spare));
        let price = self.packing.and_then(|p| p.usd_per_hour);
        Ok(Row::Found(Box::new(CapacityRow {
            scale,
            requests_per_s: self.requests.per_s().map(|r| r * scale),
            replicas: Some(replicas),
            replicas_range: self.range(&judge, replicas)?,
            with_one_spare: Some(with_one_spare),
            instances,
            usd_per_hour: instances.and_then(|n| Some(f64::from(n) * price?)),
            standing: Some(standing),
            reason: None,
        })))
    }

    /// The numbers that hold with shorter and with longer steps, where `replicas` do with those predicted.
    fn range(&self, judge: &Judge, replicas: u32) -> Result<Option<[Option<u32>; 2]>, Error> {
        let Some(pace) = self.pace else {
            return Ok(None);
        };
        let fewest = |pace: f64| -> Result<Option<u32>, Error> {
            let fleet = self.fleet.paced(pace.exp());
            let found = smallest(replicas, 1, MOST_REPLICAS, |n| {
                Ok::<_, Error>((judge.stands(&fleet, &[n])?.standing.holds, ()))
            })?;
            Ok(found.map(|f| f.0))
        };
        Ok(Some([fewest(-pace)?, fewest(pace)?]))
    }
}

/// Why no number of replicas holds, if none does: the objectives are missed by requests that find a replica empty, or such are lost.
fn alone(
    fleet: &Fleet,
    requests: &Requests,
    conditions: &[Condition],
) -> Result<Option<String>, Error> {
    let Some(per_s) = requests.per_s().filter(|_| !requests.shares()) else {
        return Ok(None);
    };
    let load = requests.first(ALONE_REQUESTS, 1.0 / (ALONE_S * per_s))?;
    let record = fleet.run(&[1], load, Extent::default())?;
    let standing = Standing::of(&record, conditions, false);
    Ok((standing.sure && !standing.holds).then(|| {
        format!(
            "no number of replicas holds: requests that have a replica for themselves miss it already: {}; another layout, accelerator or limit may help",
            misses(&standing, conditions)
        )
    }))
}

/// By what `standing` misses.
fn misses(standing: &Standing, conditions: &[Condition]) -> String {
    let mut out: Vec<String> = (conditions.iter().zip(&standing.values_ms))
        .filter_map(|(c, v)| Some((c, v.filter(|v| c.margin(*v) <= 0.0)?)))
        .map(|(c, v)| format!("{} is {} ms of {}", c.label(), figure(v), c.text))
        .collect();
    if standing.lost > 0 {
        let (lost, all) = (standing.lost, standing.requests);
        out.push(format!(
            "{lost} of {all} requests are refused, time out or fail"
        ));
    }
    if standing.growing {
        out.push("the queue grows".into());
    }
    out.join(", ")
}

/// What the reader must know to judge the figures.
fn notes(of: &Of, rows: &[CapacityRow]) -> Vec<String> {
    let requests = of.requests;
    let mut notes = vec![if requests.goes_on() {
        "replicas is the smallest number with which every objective holds, no request is lost and no queue grows, in runs that take as long at each \
         multiple as the scenario's own and go on until the objectives stand clear of their limits"
            .to_owned()
    } else {
        format!(
            "all {} requests of the load; a trace is played faster at a multiple, a curve of rates takes as long and has more; replicas is the smallest \
             number with which every objective holds and no request is lost",
            requests.len()
        )
    }];
    for r in rows {
        let at = format!("at {} times the load", figure(r.scale));
        if let Some(why) = &r.reason {
            notes.push(format!("{at}: {why}"));
        }
        if let Some(s) = r.standing.as_ref().filter(|s| !s.sure) {
            notes.push(format!(
                "{at} chance decides: after {} requests a value lies within its interval of its limit, or the run is short beside its longest request",
                s.requests
            ));
        }
    }
    if of.pace.is_some() {
        notes.push("9 of 10: replicas with steps as much shorter and longer as they may be in nine of ten such deployments".to_owned());
    }
    // One note for all rows that share a reason.
    if let Some(why) = &of.alone {
        notes.truncate(1);
        notes.push(why.clone());
    }
    if requests.cut && !requests.goes_on() {
        notes.push("the load has more requests; the table rests on the first of them".to_owned());
    }
    if of.packing.is_none_or(|p| p.usd_per_hour.is_none()) {
        notes.push("no price: the scenario has no instance type with one".to_owned());
    }
    notes
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
                    number(r.replicas),
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
        let judge = Judge::new(&conditions, &requests, 6.0, 1 << 20).unwrap();
        let stands = |n: u32| judge.stands(&fleet, &[n]).unwrap().standing.holds;
        assert!(stands(n) && !stands(n - 1));
    }

    fn table_at(text: &str, scales: &[f64]) -> Result<CapacityTable, Error> {
        let scenario = Scenario::parse(text, "s.toml", &[]).unwrap();
        let conditions = own_conditions(&scenario).unwrap();
        table(
            &World::default(),
            &scenario,
            &conditions,
            scales,
            &|_, _| {},
        )
    }

    #[test]
    fn ten_times_the_requests_give_the_same_number() {
        let replicas = |requests: u32| {
            let text = TEXT.replace("800", &requests.to_string());
            let rows = table_at(&text, &[1.0, 3.0, 8.0]).unwrap().rows;
            rows.iter().map(|r| r.replicas).collect::<Vec<_>>()
        };
        let short = replicas(50);
        assert_eq!(short, replicas(800));
        assert_eq!(short, replicas(8_000));
    }

    #[test]
    fn an_objective_that_no_number_meets_is_said_with_the_reason() {
        let text = TEXT.replace("ttft = \"200 ms\"", "ttft = \"5 ms\"");
        let t = table_at(&text, &[1.0, 2.0]).unwrap();
        assert!(t.rows.iter().all(|r| r.replicas.is_none()));
        let why = t.rows[0].reason.as_ref().unwrap();
        assert!(
            why.contains("for themselves") && why.contains("TTFT p99 is"),
            "{why}"
        );
        assert_eq!(
            t.render().matches("for themselves").count(),
            1,
            "{}",
            t.render()
        );
    }

    #[test]
    fn a_load_of_which_no_run_says_anything_is_refused() {
        let e = table_at(TEXT, &[1_000_000.0]).unwrap_err();
        assert!(e.is_input() && e.to_string().contains("too large"), "{e}");
        // Beside others it is a row with its reason.
        let t = table_at(TEXT, &[1.0, 1_000_000.0]).unwrap();
        assert!(t.rows[0].replicas.is_some() && t.rows[1].reason.is_some());
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
