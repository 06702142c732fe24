//! Replays what was measured and says how far the predictions were off.
//!
//! Every measured run becomes a scenario that a user could have written ([`case`]); it runs through the
//! simulator like any other; its figures are held against the measured ones ([`report`]). The same runs with the plain
//! roofline, times one factor plus one constant fitted on the same rows ([`baseline`]), say what the mechanism is worth.

pub mod aiconfigurator;
pub mod baseline;
pub mod case;
pub mod chips;
pub mod decisions;
mod error;
pub mod gpu_steps;
mod input;
pub mod jumpstart;
pub mod neuron_llmperf;
pub mod plain;
pub mod qwen3;
pub mod report;
pub(crate) mod row;
mod sample;
pub mod serving_points;
pub mod sglang_disagg;
pub mod startup;
pub mod tables;
pub mod tgi_g5;
pub mod trtllm;
pub mod vllm;
pub mod vllm_pcie;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use hwmodels::doubt::{self, Figure};
use rayon::prelude::*;
use sim::report::doubt::figure_of;

use crate::neuron;

pub use case::{Case, Measured, Prediction, Source};
pub use error::SetError;
pub use plain::{Known, PlainErrors, PlainFigures};
pub use report::{Direction, Errors, Report, Summary};
pub use row::{LoadPlace, Row};

/// Reads a set's cases from a folder.
type Loader = fn(&Source) -> Result<Vec<Case>, SetError>;

/// Every set that users can select.
pub fn names() -> Vec<&'static str> {
    SETS.iter()
        .map(|(n, _)| *n)
        .chain(neuron::SETS.map(|(set, _)| set))
        .chain(tables::SETS)
        .chain([gpu_steps::SET, chips::SET])
        .chain(startup::SETS.map(|(set, _)| set))
        .collect()
}

/// The serving sets, by the name users select them by.
pub const SETS: [(&str, Loader); 19] = [
    ("jumpstart", jumpstart::cases),
    ("tgi_g5", tgi_g5::cases),
    ("vllm_requests", vllm::request_cases),
    ("vllm_requests_moe", vllm::mixture_cases),
    ("vllm_rate_sweep", vllm::sweep_cases),
    ("vllm_pcie", vllm_pcie::cases),
    ("qwen3_32b", qwen3::cases),
    ("sglang_qwen3_32b", aiconfigurator::sglang_qwen3_32b),
    ("sglang_deepseek_r1_disagg", sglang_disagg::cases),
    ("vllm_gpt_oss", aiconfigurator::vllm_gpt_oss),
    ("llama_405b", serving_points::llama_405b),
    ("trtllm_llama31_8b", aiconfigurator::trtllm_llama31_8b),
    ("trtllm_max_throughput", trtllm::cases),
    ("trtllm_overview", trtllm::overview_cases),
    ("trtllm_overview_moe", trtllm::overview_moe_cases),
    ("trtllm_per_gpu", trtllm::per_gpu_cases),
    ("inf2", serving_points::inf2),
    ("inf2_vllm", serving_points::inf2_vllm),
    ("neuron_llmperf", neuron_llmperf::cases),
];

/// What to validate.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Sets to run; empty: all.
    pub sets: Vec<String>,
    /// Whether to run the baseline too.
    pub baseline: bool,
    /// Whether to run plain scenarios of the same runs too ([`plain`]).
    pub plain: bool,
}

/// Validates the sets found in `source`. `progress` is called with (done, total) runs.
///
/// # Errors
/// A file is there but malformed, or none of the sets asked for is there. Otherwise missing files are noted in the report.
pub fn serving(
    source: &Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Report, SetError> {
    if let Source::Folder(dir) = source
        && !input::any(dir)
    {
        let known = input::known();
        let message =
            format!("holds none of the files of measurements (docs/validation.md):{known}");
        return Err(SetError::new(&dir.display().to_string(), message));
    }
    let wanted = |set: &str| options.sets.is_empty() || options.sets.iter().any(|s| s == set);
    let mut cases = Vec::new();
    let mut notes = Vec::new();
    for (name, load) in SETS.into_iter().filter(|(name, _)| wanted(name)) {
        match load(source) {
            Ok(c) if c.is_empty() => notes.push(format!("set `{name}` skipped: no rows of it")),
            Ok(c) => cases.extend(c),
            Err(e) if e.missing => notes.push(format!("set `{name}` skipped: {e}")),
            Err(e) => return Err(e),
        }
    }
    if let Source::Folder(dir) = source {
        notes.extend(
            carried(dir)
                .into_iter()
                .filter(|(set, _)| wanted(set))
                .map(|(_, note)| note),
        );
    }
    let tables = present_tables(source, options, &mut notes)?;
    if cases.is_empty() && tables.is_empty() && !options.sets.iter().any(|s| s == chips::SET) {
        return Err(nothing_ran(source, &notes));
    }
    // The replays and the tables have nothing to do with each other: their tails overlap.
    let (mut rows, tables) = rayon::join(
        || replays(&cases, options.baseline, progress),
        || of_tables(&tables, wanted(chips::SET)),
    );
    let (of_tables, groups) = tables?;
    if options.plain {
        give_plain(&cases, &mut rows);
    }
    rows.extend(of_tables);
    let knobs = cases
        .iter()
        .filter(|c| !c.knobs.is_empty())
        .map(|c| ((c.set.to_owned(), c.name.clone()), c.knobs.clone()))
        .collect();
    give_ranges(&mut rows);
    let mut report = Report::new(rows, &knobs);
    report.quality = decisions::Quality::of(&report.rows, &knobs);
    report.summaries.extend(groups);
    report.notes = notes;
    Ok(report)
}

/// Runs every case, and the baseline of its set where that is wanted. `progress` is called with (done, total) runs.
fn replays(cases: &[Case], baseline: bool, progress: &(dyn Fn(usize, usize) + Sync)) -> Vec<Row> {
    let (done, total) = (AtomicUsize::new(0), cases.len());
    let predict = |case: &Case| {
        let prediction = case.predict(&[], true);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        prediction
    };
    let (baselines, predictions): (_, Vec<Result<Prediction, String>>) = rayon::join(
        || match baseline {
            true => baseline::fit(cases),
            false => BTreeMap::new(),
        },
        || cases.par_iter().map(predict).collect(),
    );
    let of_case = |(case, prediction): (&Case, &Result<Prediction, String>)| {
        let base = baselines.get(case.set).and_then(|b| case.run(b).ok());
        rows_of(case, prediction, base.as_ref())
    };
    let results: Vec<Vec<Row>> = (cases.par_iter().zip(&predictions)).map(of_case).collect();
    results.into_iter().flatten().collect()
}

/// Gives the rows of `cases`, which are in their order, what plain scenarios predict.
fn give_plain(cases: &[Case], rows: &mut [Row]) {
    let of = |case: &Case, known| {
        let text = plain::plain(&case.scenario, known)?;
        let plain = Case {
            scenario: text,
            ..case.clone()
        };
        plain.run(&[]).ok()
    };
    let figures: Vec<PlainFigures> = cases
        .par_iter()
        .flat_map_iter(|case| {
            let [bare, flags] = [Known::Bare, Known::Flags].map(|known| of(case, known));
            let at = |p: &Option<Prediction>, path: &str| p.as_ref()?.number(path);
            let one = move |m: &Measured| PlainFigures {
                bare: at(&bare, m.path),
                flags: at(&flags, m.path),
            };
            case.measured.iter().map(one)
        })
        .collect();
    for (row, of) in rows.iter_mut().zip(figures) {
        row.plain = Some(of);
    }
}

/// The rows and the groups of rows of whole tables, each with its folder, and of the accelerators left out where those are `wanted`.
fn of_tables(
    present: &[(&'static str, &Path)],
    chips_wanted: bool,
) -> Result<(Vec<Row>, Vec<Summary>), SetError> {
    let mut rows = Vec::new();
    let mut groups = Vec::new();
    if chips_wanted {
        rows.extend(chips::rows()?);
    }
    for &(set, dir) in present {
        if let Some(&(_, file)) = neuron::SETS.iter().find(|(name, _)| *name == set) {
            let of = neuron::validate(dir, (set, file));
            rows.extend(of.map_err(|e| SetError::new(file, e.to_string()))?);
        } else if set == gpu_steps::SET {
            groups.extend(gpu_steps::summaries(dir)?);
        } else if startup::SETS.iter().any(|(name, _)| *name == set) {
            rows.extend(startup::rows(dir, set)?);
        } else if set == tables::SETS[0] {
            groups.extend(tables::kernels(dir)?);
        } else {
            groups.extend(tables::collectives(dir)?);
        }
    }
    Ok((rows, groups))
}

/// Gives every predicted row the range that the errors on the other sets make: those of this run, and the shipped ones of sets that it leaves out.
fn give_ranges(rows: &mut [Row]) {
    let mut known = report::errors(rows);
    let here: BTreeSet<String> = known.iter().map(|s| s.set.clone()).collect();
    known.extend(
        doubt::shipped()
            .iter()
            .filter(|s| !here.contains(&s.set))
            .cloned(),
    );
    for row in rows {
        if let (Some(kind), Some(predicted)) = (row.kind, row.predicted) {
            let figure = figure_of(&row.metric);
            let width = |figure| doubt::half_width(&known, kind, figure, Some(&row.set));
            let widths = [width(figure), width(Figure::Tpot)];
            let responses = row.responses.unwrap_or([1.0; 2]);
            row.range = Some(doubt::ends(figure, predicted, widths, responses));
        }
    }
}

/// The sets of whole tables that are asked for and there, with their folder; `notes` tells of the others.
fn present_tables<'a>(
    source: &'a Source,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Vec<(&'static str, &'a Path)>, SetError> {
    let mut present = Vec::new();
    for (set, path) in [
        neuron::SETS[0],
        neuron::SETS[1],
        (tables::SETS[0], "operators"),
        (tables::SETS[1], "collectives"),
        (gpu_steps::SET, gpu_steps::FILE),
        startup::SETS[0],
        startup::SETS[1],
    ] {
        let named = options.sets.iter().any(|s| s == set);
        match source {
            _ if !named && !options.sets.is_empty() => {}
            Source::Folder(dir) if dir.join(path).exists() => {
                input::check(dir, set)?;
                present.push((set, dir.as_path()));
            }
            Source::Folder(_) => notes.push(format!("set `{set}` skipped: no {path}")),
            Source::Published if named => {
                notes.push(format!(
                    "set `{set}` skipped: name a folder that holds {path}"
                ));
            }
            Source::Published => {}
        }
    }
    Ok(present)
}

/// The sets whose file the folder lacks and the binary carries, with what is to be said of it.
fn carried(dir: &Path) -> Vec<(&'static str, String)> {
    [
        ("trtllm_overview", trtllm::OVERVIEW),
        ("trtllm_overview_moe", trtllm::OVERVIEW),
        ("trtllm_per_gpu", trtllm::PER_GPU),
    ]
    .into_iter()
    .filter(|(_, file)| !dir.join(file).exists())
    .map(|(set, file)| {
        (
            set,
            format!("set `{set}`: the folder has no {file}, so the built-in one was used"),
        )
    })
    .collect()
}

/// Why there is nothing to report.
fn nothing_ran(source: &Source, notes: &[String]) -> SetError {
    let shown = match source {
        Source::Folder(dir) => dir.display().to_string(),
        Source::Published => "published tables".to_owned(),
    };
    SetError::new(&shown, format!("no set could be run\n{}", notes.join("\n")))
}

/// Runs `case` with `params` laid over its profile, and the baseline where its parameters are given.
pub(crate) fn rows(
    case: &Case,
    params: &[(String, f64)],
    baseline: Option<&[(String, f64)]>,
) -> Vec<Row> {
    let base = baseline.and_then(|b| case.run(b).ok());
    rows_of(case, &case.run(params), base.as_ref())
}

/// A case's rows.
fn rows_of(
    case: &Case,
    prediction: &Result<Prediction, String>,
    base: Option<&Prediction>,
) -> Vec<Row> {
    let accelerator = case.accelerator();
    let known = prediction.as_ref().ok();
    let place = known.and_then(Prediction::place);
    case.measured
        .iter()
        .map(|m| {
            let (predicted, note) = match prediction {
                Ok(r) => (r.number(m.path), String::new()),
                Err(e) => (None, e.clone()),
            };
            Row {
                set: case.set.to_owned(),
                case: case.name.clone(),
                metric: m.metric.to_owned(),
                measured: m.value,
                predicted,
                baseline: base.and_then(|r| r.number(m.path)),
                range: None,
                kind: known.and_then(Prediction::kind),
                place,
                responses: known.map(|p| p.responses(m.path)),
                plain: None,
                accelerator: accelerator.clone(),
                fitted: m.fitted,
                note,
            }
        })
        .collect()
}
