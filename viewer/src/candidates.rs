//! Plan and sweep results: deployments with their figures, of which some are better than all others.

use std::collections::BTreeMap;

use serde::Deserialize;
use sim::report::replications::FIGURES;

/// Most rows that are taken in.
const MAX_ROWS: usize = 100_000;

/// A figure of all candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its name, with its unit.
    pub label: String,
    /// Whether more of it is good, bad (false), or neither.
    pub more_is_better: Option<bool>,
}

/// A deployment, or a point of a sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// In words.
    pub label: String,
    /// Its figures, in the order of [`Candidates::figures`].
    pub values: Vec<Option<f64>>,
    /// What `--set` takes to get from the scenario to it.
    pub sets: Vec<String>,
    /// The answer of the plan.
    pub chosen: bool,
    /// Why it could not be run.
    pub error: Option<String>,
}

/// A plan's or a sweep's result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// Its name.
    pub name: String,
    /// What it is of, in words.
    pub about: String,
    /// The figures.
    pub figures: Vec<Figure>,
    /// The candidates.
    pub rows: Vec<Candidate>,
    /// Figures that are shown first: across and up.
    pub axes: (usize, usize),
}

#[derive(Deserialize)]
struct Plan {
    name: String,
    #[serde(default)]
    load: String,
    slo: Vec<String>,
    winner: Option<Choice>,
    alternatives: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    label: String,
    instance: String,
    instances: u32,
    layout: String,
    replicas: u32,
    settings: Vec<(String, String)>,
    usd_per_hour: Option<f64>,
    #[serde(default)]
    by_accelerator: bool,
    #[serde(default)]
    devices_per_replica: u32,
    usd_per_million_output_tokens: Option<f64>,
    standing: Standing,
    bound_requests_per_s: f64,
}

#[derive(Deserialize)]
struct Standing {
    values_ms: Vec<Option<f64>>,
    margin_ratio: f64,
}

#[derive(Deserialize)]
struct Sweep {
    name: String,
    keys: Vec<String>,
    figures: Vec<String>,
    runs: Vec<SweepRun>,
}

#[derive(Deserialize)]
struct SweepRun {
    point: u64,
    values: Vec<String>,
    figures: Vec<Option<f64>>,
    error: Option<String>,
}

/// Reads the JSON of `servetwin plan --json` or `servetwin sweep --json`; none where it is neither.
pub fn of_json(name: &str, text: &str) -> Option<Result<Candidates, String>> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let wrong = |e: serde_json::Error| format!("{name}: {e}");
    if value.get("alternatives").is_some() && value.get("slo").is_some() {
        return Some(serde_json::from_value(value).map(plan).map_err(wrong));
    }
    if value.get("runs").is_some() && value.get("keys").is_some() {
        return Some(
            serde_json::from_value::<Sweep>(value)
                .map_err(wrong)
                .and_then(|s| sweep(name, s)),
        );
    }
    None
}

/// Reads the table that a sweep writes (`results.csv`); none where it is no such table.
pub fn of_csv(name: &str, text: &[u8]) -> Option<Result<Candidates, String>> {
    let mut reader = csv::Reader::from_reader(text);
    let head: Vec<String> = (reader.headers().ok()?.iter()).map(str::to_owned).collect();
    let known = |h: &String| FIGURES.iter().any(|f| f.path == h);
    if head.get(..2) != Some(&["point".to_owned(), "seed".to_owned()]) {
        return None;
    }
    let first = head.iter().position(known)?;
    let figures: Vec<String> = head[first..]
        .iter()
        .take_while(|h| known(h))
        .cloned()
        .collect();
    let error = head.iter().position(|h| h == "error");
    let mut runs = Vec::new();
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(e) => return Some(Err(format!("{name}: {e}"))),
        };
        let text = |i: usize| record.get(i).unwrap_or("").to_owned();
        let number = |i: usize| text(i).parse::<f64>().ok().filter(|v| v.is_finite());
        runs.push(SweepRun {
            point: text(0).parse().unwrap_or(runs.len() as u64),
            values: (2..first).map(text).collect(),
            figures: (first..first + figures.len()).map(number).collect(),
            error: error.map(text).filter(|e| !e.is_empty()),
        });
    }
    let file = Sweep {
        name: name.to_owned(),
        keys: head[2..first].to_vec(),
        figures,
        runs,
    };
    Some(sweep(name, file))
}

/// Tables of a scenario that a plan's short names of settings are keys of.
const TABLES: [&str; 5] = ["engine", "router", "model", "hardware", "layout"];

/// `sets` for the resolved scenario `text`: a plan calls settings by the last part of their keys (`max_num_seqs`), which is looked up here.
/// Those that the scenario has already, or does not know, are left out.
pub fn sets_for(sets: &[String], text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let dotted = |set: &String| {
        let (key, value) = set.split_once('=')?;
        if key.contains('.') {
            return Some(set.clone());
        }
        let has = |name: &&&str| table.get(**name).is_some_and(|t| t.get(key).is_some());
        let name = TABLES.iter().find(has)?;
        // `vllm` is what `vllm_v1` was chosen from.
        let now = table.get(*name).and_then(|t| t.get(key)?.as_str());
        let same = key == "kind" && now.is_some_and(|n| n.starts_with(value));
        (!same).then(|| format!("{name}.{set}"))
    };
    sets.iter().filter_map(dotted).collect()
}

/// A figure's name, with its unit.
fn label(path: &str) -> &str {
    let found = FIGURES.iter().find(|f| f.path == path);
    found.map_or(path, |f| f.label.trim())
}

/// Whether more of a figure is good, bad (false), or neither.
pub fn more_is_better(path: &str) -> Option<bool> {
    let head = path.split('.').next().unwrap_or(path);
    match (head, path) {
        (h, _) if h.ends_with("_ms") => Some(false),
        ("throughput", _) | ("slo", _) | (_, "requests.finished") => Some(true),
        ("cost", _) => Some(false),
        (_, "requests.rejected" | "requests.timed_out" | "requests.failed") => Some(false),
        _ => None,
    }
}

fn figure(label: impl Into<String>, more_is_better: Option<bool>) -> Figure {
    Figure {
        label: label.into(),
        more_is_better,
    }
}

fn plan(plan: Plan) -> Candidates {
    let mut figures = vec![figure("price [USD/h]", Some(false))];
    figures.extend(plan.slo.iter().map(|s| {
        let what = s.split('<').next().unwrap_or(s).trim();
        figure(format!("{what} [ms]"), Some(false))
    }));
    figures.push(figure("smallest margin", Some(true)));
    figures.push(figure("USD per million output tokens", Some(false)));
    figures.push(figure("bound [req/s]", Some(true)));
    let objectives = plan.slo.len();
    let of = |(i, c): (usize, Choice)| {
        let mut values = vec![c.usd_per_hour];
        values.extend((0..objectives).map(|i| c.standing.values_ms.get(i).copied().flatten()));
        values.push(Some(c.standing.margin_ratio));
        values.push(c.usd_per_million_output_tokens);
        values.push(Some(c.bound_requests_per_s));
        let mut sets = match c.by_accelerator {
            false => vec![format!("hardware.instance={}", c.instance)],
            true => vec![
                format!("hardware.accelerator={}", c.instance),
                format!("hardware.count={}", c.devices_per_replica),
            ],
        };
        sets.extend(layout(&c.layout));
        sets.push(format!("layout.replicas={}", c.replicas));
        sets.extend(c.settings.iter().map(|(k, v)| format!("{k}={v}")));
        Candidate {
            label: format!("{} x {}", c.instances, c.label),
            values,
            sets,
            chosen: i == 0,
            error: None,
        }
    };
    let all = plan.winner.into_iter().chain(plan.alternatives);
    Candidates {
        about: format!("{}; {}", plan.load, plan.slo.join(", ")),
        name: plan.name,
        figures,
        rows: all.take(MAX_ROWS).enumerate().map(of).collect(),
        axes: (0, 1),
    }
}

/// What sets a layout such as `DP 2 x TP 4 x PP 2, EP 8`.
fn layout(words: &str) -> Vec<String> {
    let mut ranks: BTreeMap<&str, u32> = ["dp", "tp", "pp", "ep"].map(|k| (k, 1)).into();
    for part in words.split([',', 'x']) {
        if let Some((key, n)) = part.trim().split_once(' ')
            && let Some(rank) = ranks.get_mut(key.to_lowercase().as_str())
            && let Ok(n) = n.trim().parse()
        {
            *rank = n;
        }
    }
    let set = |(key, n): (&str, u32)| (n > 1 || key == "tp").then(|| format!("layout.{key}={n}"));
    ranks.into_iter().filter_map(set).collect()
}

fn sweep(name: &str, file: Sweep) -> Result<Candidates, String> {
    if file.runs.len() > MAX_ROWS {
        return Err(format!(
            "{name} has {} runs; at most {MAX_ROWS} are shown",
            file.runs.len()
        ));
    }
    let short =
        |r: &SweepRun| r.values.len() != file.keys.len() || r.figures.len() != file.figures.len();
    if let Some(i) = file.runs.iter().position(short) {
        return Err(format!(
            "{name}: run {i} has not a value of each key and figure"
        ));
    }
    let of_keys = file.keys.iter().map(|k| figure(k.clone(), None));
    let of_figures = (file.figures.iter()).map(|path| figure(label(path), more_is_better(path)));
    let figures: Vec<Figure> = of_keys.chain(of_figures).collect();
    let mut points: BTreeMap<u64, Vec<&SweepRun>> = BTreeMap::new();
    for run in &file.runs {
        points.entry(run.point).or_default().push(run);
    }
    let rows = points.values().map(|runs| candidate(&file, runs)).collect();
    let at = |path: &str| {
        let i = file.figures.iter().position(|f| f == path);
        i.map(|i| i + file.keys.len())
    };
    let across = at("throughput.output_tokens_per_s").unwrap_or(0);
    let up = at("ttft_ms.p99").unwrap_or(figures.len().saturating_sub(1));
    Ok(Candidates {
        name: file.name.clone(),
        about: format!("{} over {}", file.name, file.keys.join(", ")),
        figures,
        rows,
        axes: (across, up),
    })
}

/// A point: the means over its seeds.
fn candidate(file: &Sweep, runs: &[&SweepRun]) -> Candidate {
    let values = runs.first().map_or(&[][..], |r| r.values.as_slice());
    let of_keys = (values.iter()).map(|v| v.split(' ').next().and_then(|n| n.parse().ok()));
    let mean = |i: usize| {
        let all: Vec<f64> = runs.iter().filter_map(|r| r.figures[i]).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    };
    let sets: Vec<String> = (file.keys.iter().zip(values))
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    Candidate {
        label: sets.join(", "),
        values: of_keys.chain((0..file.figures.len()).map(mean)).collect(),
        sets,
        chosen: false,
        error: runs.iter().find_map(|r| r.error.clone()),
    }
}

/// Candidates than which no other is at least as good in both figures and better in one; in ascending `x`. A figure of which neither more nor less
/// is good counts as better when it is less.
pub fn front(all: &Candidates, x: usize, y: usize) -> Vec<usize> {
    let cost = |row: &Candidate, i: usize| {
        let v = row.values.get(i).copied().flatten()?;
        let more = all.figures[i].more_is_better == Some(true);
        Some(if more { -v } else { v })
    };
    let mut points: Vec<(f64, f64, usize)> = (all.rows.iter().enumerate())
        .filter_map(|(i, row)| Some((cost(row, x)?, cost(row, y)?, i)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut best = f64::INFINITY;
    let mut out = Vec::new();
    for (_, cost, i) in points {
        if cost < best {
            best = cost;
            out.push(i);
        }
    }
    let at = |i: &usize| all.rows[*i].values[x].unwrap_or(0.0);
    out.sort_by(|a, b| at(a).total_cmp(&at(b)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"{"contract":1,"name":"chat","load":"40 req/s","slo":["ttft.p99 < 500 ms","tpot.p99 < 40 ms"],
        "winner":{"label":"p5.4xlarge, TP 1","instance":"p5.4xlarge","instances":2,"layout":"TP 1","replicas":2,
            "settings":[["max_num_seqs","128"]],"usd_per_hour":8.0,"usd_per_million_output_tokens":0.2,
            "standing":{"values_ms":[100.0,20.0],"margin_ratio":0.5},"bound_requests_per_s":50.0},
        "alternatives":[{"label":"p5.48xlarge, DP 2 x TP 4","instance":"p5.48xlarge","instances":1,"layout":"DP 2 x TP 4, EP 8","replicas":1,
            "settings":[],"usd_per_hour":60.0,"usd_per_million_output_tokens":null,
            "standing":{"values_ms":[80.0,null],"margin_ratio":0.6},"bound_requests_per_s":90.0}]}"#;

    #[test]
    fn a_plan_gives_candidates_that_a_scenario_can_be_set_to() {
        let plan = of_json("p.json", PLAN).unwrap().unwrap();
        assert_eq!(plan.rows.len(), 2);
        assert!(plan.rows[0].chosen && !plan.rows[1].chosen);
        let sets = plan.rows[1].sets.join(" ");
        assert_eq!(
            sets,
            "hardware.instance=p5.48xlarge layout.dp=2 layout.ep=8 layout.tp=4 layout.replicas=1"
        );
        assert!(plan.rows[0].sets.contains(&"max_num_seqs=128".to_owned()));
        assert_eq!(plan.figures[1].label, "ttft.p99 [ms]");
        // Cheap and slow, dear and fast: both are on the front of price and TTFT.
        assert_eq!(front(&plan, 0, 1), [0, 1]);
        // The second has no TPOT.
        assert_eq!(front(&plan, 0, 2), [0]);
    }

    #[test]
    fn short_names_of_settings_are_looked_up_in_the_scenario() {
        let text =
            "[engine]\nkind = \"vllm_v1\"\nmax_num_seqs = 256\n[router]\npolicy = \"random\"\n";
        let sets = [
            "layout.tp=2",
            "kind=vllm",
            "max_num_seqs=64",
            "policy=least_kv",
            "unheard_of=1",
        ];
        assert_eq!(
            sets_for(&sets.map(str::to_owned), text),
            [
                "layout.tp=2",
                "engine.max_num_seqs=64",
                "router.policy=least_kv"
            ]
        );
    }

    #[test]
    fn a_sweep_gives_a_candidate_per_point_with_the_mean_over_its_seeds() {
        let csv = "point,seed,engine.max_num_seqs,ttft_ms.p99,throughput.output_tokens_per_s,fingerprint,error\n\
            0,1,64,10,100,a,\n0,2,64,30,100,b,\n1,1,128,40,90,c,\n2,1,256,,,,needs more memory\n";
        let sweep = of_csv("results.csv", csv.as_bytes()).unwrap().unwrap();
        assert_eq!(sweep.rows.len(), 3);
        assert_eq!(sweep.rows[0].values, [Some(64.0), Some(20.0), Some(100.0)]);
        assert_eq!(sweep.rows[0].sets, ["engine.max_num_seqs=64"]);
        assert_eq!(sweep.rows[2].error.as_deref(), Some("needs more memory"));
        let (x, y) = sweep.axes;
        assert_eq!((x, y), (2, 1));
        // More throughput at less latency beats the second point; the third has no figures.
        assert_eq!(front(&sweep, x, y), [0]);
    }

    #[test]
    fn other_files_are_not_taken_for_results() {
        assert!(of_json("x", "{}").is_none() && of_json("x", "[1").is_none());
        assert!(of_csv("x", b"id,stream\n1,2\n").is_none());
        let e = of_json("x", r#"{"alternatives":[],"slo":3}"#).unwrap();
        assert!(e.unwrap_err().starts_with("x: "));
    }
}
