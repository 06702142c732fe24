//! Fits the operator models of [`hwmodels::ops`] to measured kernel tables, and checks them on shapes that were
//! not fitted.
//!
//! The split is by shape, never by row: of the distinct shapes of a table in ascending order, every third
//! is held out with all its rows. A shape is (n, k) of a weight matrix, (heads, KV heads, head size, window) of
//! attention, (hidden, inner size, experts, ranks) of routed experts, (feed-forward size, ranks) of element-wise kernels. [`fit`] gives the profile and the
//! [`Report`]; layer times measured by others with other software are predicted only.

mod tables;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use hwmodels::ops::{
    Arithmetic, Device, Experts, Kernels, ParamSpec, attention, elementwise, gemm, moe,
};
use hwmodels::profile::{Param, Profile, Provenance, Validation};
use hwmodels::{Catalog, Dtype, Evidence};
use rayon::prelude::*;
use serde::Serialize;

use crate::fit::{Bound, FitError, Loss, Options, bounded};
use crate::validate::report::Errors;
use tables::{
    AttentionRow, ElementwiseRow, ElementwiseTableRow, GemmRow, LayerRow, Measurement, MoeRow, Row,
    layer_attention, layer_rows, optional_table, table,
};

/// Largest median error of a GEMM or attention kernel that the profile's validations accept [%].
const KERNEL_TOLERANCE: f64 = 8.0;
/// The same for routed experts and element-wise kernels, whose tables are coarser [%].
const COARSE_TOLERANCE: f64 = 25.0;

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such system.
    #[error("no kernel tables are known for `{0}`; known: {known}", known = SYSTEMS.map(|s| s.name).join(", "))]
    System(String),
    /// The catalog lacks the system's accelerator.
    #[error(transparent)]
    Catalog(#[from] hwmodels::Error),
    /// The folder holds no table of this system.
    #[error(
        "{}: no file named `{system}_*_{table}_perf.csv` or `.csv.gz`; expected the public kernel tables, or those of calibrate/gpu, in `operators/`",
        folder.display()
    )]
    NoTable {
        /// Folder looked in.
        folder: PathBuf,
        /// System asked for.
        system: String,
        /// Table missing.
        table: &'static str,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// File or folder.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// A table has an unexpected shape.
    #[error("{}: {source}", path.display())]
    Parse {
        /// File.
        path: PathBuf,
        /// Reason.
        source: csv::Error,
    },
    /// The facts about the measuring machine have an unexpected shape.
    #[error("{}: {source}", path.display())]
    Json {
        /// File.
        path: PathBuf,
        /// Reason.
        source: serde_json::Error,
    },
    /// The rows do not determine the parameters.
    #[error("fitting {what}: {source}")]
    Fit {
        /// Operator and format.
        what: String,
        /// Reason.
        source: FitError,
    },
}

/// Percentage errors of pairs of (predicted, measured); `None` for none.
fn errors_of(pairs: &[(f64, f64)]) -> Option<Errors> {
    let signed: Vec<f64> = pairs.iter().map(|(p, m)| 100.0 * (p / m - 1.0)).collect();
    Errors::of(&signed)
}

/// Errors of one operator, format and regime.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportRow {
    /// Operator and format, e.g. `gemm bf16`.
    pub op: String,
    /// Part of the rows, e.g. `m 1..16`; `all` for the whole.
    pub regime: String,
    /// Errors on rows that were fitted.
    pub fitted: Option<Errors>,
    /// Errors on rows that were only predicted.
    pub held_out: Option<Errors>,
}

/// Errors by operator, of one system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// System, e.g. `h100_sxm`.
    pub system: String,
    /// How rows were split.
    pub split: String,
    /// Errors.
    pub rows: Vec<ReportRow>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: absolute percentage errors; {}",
            self.system, self.split
        )?;
        writeln!(
            f,
            "{:<18} {:<30} | {:>6} {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} {:>6} {:>6}",
            "",
            "",
            "fitted",
            "median",
            "mean",
            "p90",
            "bias",
            "held",
            "median",
            "mean",
            "p90",
            "bias"
        )?;
        for r in &self.rows {
            write!(f, "{:<18} {:<30}", r.op, r.regime)?;
            for s in [&r.fitted, &r.held_out] {
                match s {
                    None => write!(f, " | {:>6} {:>6} {:>6} {:>6} {:>6}", 0, "-", "-", "-", "-")?,
                    Some(s) => write!(
                        f,
                        " | {:>6} {:>6.1} {:>6.1} {:>6.1} {:>6.1}",
                        s.n, s.median_ape, s.mean_ape, s.p90_ape, s.bias
                    )?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Shapes held out: every third distinct one, in ascending order.
fn held_out<R: Row>(rows: &[R]) -> BTreeSet<[u32; 6]> {
    let shapes: BTreeSet<[u32; 6]> = rows.iter().map(Row::shape).collect();
    shapes.into_iter().skip(1).step_by(3).collect()
}

/// A named part of the rows.
type Regime<'a, R> = (&'a str, &'a (dyn Fn(&R) -> bool + Sync));

/// One operator to fit.
struct Task<'a, R> {
    /// Operator and format, as the report names it.
    op: &'a str,
    /// Prefix of its parameters in the profile.
    prefix: &'a str,
    specs: &'a [ParamSpec],
    /// Parameters that are given rather than fitted, and their value: properties of the kernel, or not visible
    /// in the table. They go into the profile.
    given: &'a [(&'a str, f64)],
    /// Parameters without influence on these rows; they stay out of the profile.
    unused: &'a [&'a str],
    rows: &'a [R],
    regimes: &'a [Regime<'a, R>],
    predict: &'a (dyn Fn(&[f64], &R) -> f64 + Sync),
    tolerance: f64,
}

struct Outcome {
    values: Vec<f64>,
    params: Vec<(String, Param)>,
    report: Vec<ReportRow>,
    validation: Validation,
    fitted_rows: usize,
}

impl<R: Row> Task<'_, R> {
    fn run(&self, system: &str) -> Result<Outcome, Error> {
        let out = held_out(self.rows);
        let fitted: Vec<&R> = self
            .rows
            .iter()
            .filter(|r| !out.contains(&r.shape()))
            .collect();
        let free: Vec<usize> = (0..self.specs.len())
            .filter(|&i| {
                let name = self.specs[i].name;
                self.given.iter().all(|(n, _)| *n != name) && !self.unused.contains(&name)
            })
            .collect();
        let all = |free_values: &[f64]| -> Vec<f64> {
            let mut v: Vec<f64> = self
                .specs
                .iter()
                .map(|s| {
                    let given = self.given.iter().find(|(n, _)| *n == s.name);
                    given.map_or(s.prior, |(_, v)| *v)
                })
                .collect();
            for (&i, &x) in free.iter().zip(free_values) {
                v[i] = x;
            }
            v
        };
        let bounds: Vec<Bound> = free
            .iter()
            .map(|&i| {
                let s = &self.specs[i];
                Bound::new(s.full_name(self.prefix), s.prior, s.min, s.max)
            })
            .collect();
        let options = Options {
            // Close to least absolute deviations: the bar is on the median.
            loss: Loss::SoftL1(0.03),
            max_iterations: 40,
            starts: 3,
            tolerance: 1e-6,
            step: 1e-4,
        };
        let result = bounded(
            |x| {
                let v = all(x);
                fitted
                    .par_iter()
                    .map(|r| ((self.predict)(&v, r) / r.seconds()).ln())
                    .collect()
            },
            &bounds,
            &options,
        )
        .map_err(|source| Error::Fit {
            what: self.op.to_owned(),
            source,
        })?;

        // Rows of one shape err together: count each shape as one observation.
        let shapes: BTreeSet<[u32; 6]> = fitted.iter().map(|r| r.shape()).collect();
        let inflate = (fitted.len() as f64 / shapes.len().max(1) as f64).sqrt();
        let values = all(&result.values);
        let mut params = Vec::new();
        for (j, &i) in free.iter().enumerate() {
            let s = &self.specs[i];
            params.push((
                s.full_name(self.prefix),
                Param {
                    value: round_to(result.values[j], 4),
                    std_error: result.std_errors[j].map(|e| round_to(e * inflate, 2)),
                    min: s.min,
                    max: s.max,
                    unit: s.unit.to_owned(),
                    evidence: Evidence::Fitted,
                },
            ));
        }
        for s in self.specs {
            if let Some((_, value)) = self.given.iter().find(|(n, _)| *n == s.name) {
                params.push((
                    s.full_name(self.prefix),
                    Param {
                        value: *value,
                        std_error: None,
                        min: s.min,
                        max: s.max,
                        unit: s.unit.to_owned(),
                        evidence: Evidence::Analytic,
                    },
                ));
            }
        }

        let errors = |regime: &(dyn Fn(&R) -> bool + Sync), held: bool| {
            let pairs: Vec<(f64, f64)> = self
                .rows
                .iter()
                .filter(|r| out.contains(&r.shape()) == held && regime(r))
                .map(|r| ((self.predict)(&values, r), r.seconds()))
                .collect();
            errors_of(&pairs)
        };
        let mut report = Vec::new();
        let everything: Regime<'_, R> = ("all", &|_| true);
        for (name, regime) in std::iter::once(&everything).chain(self.regimes) {
            let (fitted, held_out) = (errors(regime, false), errors(regime, true));
            if report.is_empty() || fitted.is_some() || held_out.is_some() {
                report.push(ReportRow {
                    op: self.op.to_owned(),
                    regime: (*name).to_owned(),
                    fitted,
                    held_out,
                });
            }
        }
        let validation = Validation {
            set: format!("{system} {} kernels, shapes not fitted", self.op),
            metric: "kernel time".to_owned(),
            n: report[0].held_out.map_or(0, |e| e.n as u64),
            median_ape: round_to(
                report[0].held_out.map_or(f64::INFINITY, |e| e.median_ape),
                3,
            ),
            tolerance: self.tolerance,
        };
        Ok(Outcome {
            values,
            params,
            report,
            validation,
            fitted_rows: fitted.len(),
        })
    }

    /// Errors of rows outside the fitted kind, all of them only predicted.
    fn only_predicted(&self, values: &[f64], rows: &[R], regime: &str) -> ReportRow {
        let pairs: Vec<(f64, f64)> = rows
            .iter()
            .map(|r| ((self.predict)(values, r), r.seconds()))
            .collect();
        ReportRow {
            op: self.op.to_owned(),
            regime: regime.to_owned(),
            fitted: None,
            held_out: errors_of(&pairs),
        }
    }
}

/// `x` to `digits` significant digits.
fn round_to(x: f64, digits: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let text = format!("{x:.*e}", (digits - 1).max(0) as usize);
    text.parse().unwrap_or(x)
}

/// The array that a parameter set is built from.
fn array<const N: usize>(v: &[f64]) -> [f64; N] {
    std::array::from_fn(|i| v[i])
}

/// Collects outcomes into a profile and a report.
struct Collect {
    profile: Profile,
    rows: Vec<ReportRow>,
}

impl Collect {
    fn add(&mut self, o: &Outcome) {
        self.profile.params.extend(o.params.iter().cloned());
        self.profile.validations.push(o.validation.clone());
        self.profile.provenance.rows += o.fitted_rows as u64;
        self.rows.extend(o.report.iter().cloned());
    }

    fn range(&mut self, name: String, values: impl Iterator<Item = u32>) {
        let (lo, hi) = values.fold((u32::MAX, 0), |(lo, hi), v| (lo.min(v), hi.max(v)));
        if lo <= hi {
            self.profile
                .validity
                .insert(name, [f64::from(lo), f64::from(hi)]);
        }
    }
}

/// A system that tables exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Prefix of its files, e.g. `h100_sxm`.
    pub name: &'static str,
    /// Catalog name of its accelerator.
    pub accelerator: &'static str,
    /// Accelerators (catalog names) of the same chip, which the profile holds for.
    same_chip: &'static str,
    /// Its attention kernels are FlashAttention 3: query heads that share a KV head share a tile in prefill, and
    /// decode splits KV also without such groups. FlashAttention 2 does neither.
    flash3: bool,
}

/// The systems of the public kernel tables, and those that `calibrate/gpu` was written for.
pub const SYSTEMS: [System; 3] = [
    System {
        name: "h100_sxm",
        accelerator: "H100-SXM5-80GB",
        same_chip: "H100-SXM5-80GB",
        flash3: true,
    },
    System {
        name: "a100_sxm",
        accelerator: "A100-SXM4-80GB",
        same_chip: "A100-SXM4-80GB, A100-SXM4-40GB",
        flash3: false,
    },
    System {
        name: "h200_sxm",
        accelerator: "H200-SXM5-141GB",
        same_chip: "H200-SXM5-141GB",
        flash3: true,
    },
];

/// The systems that `data/operators` holds tables of.
///
/// # Errors
/// The folder cannot be read.
pub fn present(data: &Path) -> Result<Vec<System>, Error> {
    let folder = data.join("operators");
    let mut found = Vec::new();
    for system in SYSTEMS {
        if tables::table_path(&folder, system.name, "gemm")?.is_some() {
            found.push(system);
        }
    }
    Ok(found)
}

/// Fits every operator of the system named `system` to the tables in `data/operators`; element-wise kernels to their table
/// there, or else to `data/vidur_profiles` where that holds the system.
///
/// # Errors
/// When the system is unknown, or its GEMM or attention tables are missing or malformed.
pub fn fit(data: &Path, system: &str) -> Result<(Profile, Report), Error> {
    let known = SYSTEMS.iter().find(|s| s.name == system);
    let of = known.ok_or_else(|| Error::System(system.to_owned()))?;
    let catalog = Catalog::builtin();
    let accelerator = catalog.accelerator(of.accelerator)?;
    let folder = data.join("operators");
    let device = Device::new(accelerator);
    let gemms: Vec<GemmRow> = table(&folder, system, "gemm")?;
    let decodes: Vec<AttentionRow> = table(&folder, system, "generation_attention")?;
    let prefills: Vec<AttentionRow> = table(&folder, system, "context_attention")?;
    let experts: Vec<MoeRow> = optional_table(&folder, system, "moe")?;
    let small: Vec<ElementwiseTableRow> = optional_table(&folder, system, "elementwise")?;
    let (fitted_on, software) = match Measurement::read(data)? {
        Some(m) => (vec![m.source()], m.software()),
        None => (
            vec![
                format!("ai-dynamo/aiconfigurator (Apache-2.0): kernel tables of {system}"),
                "microsoft/vidur (MIT): layer times (element-wise kernels)".to_owned(),
            ],
            gemms
                .first()
                .map(|r| format!("vLLM {}", r.version))
                .into_iter()
                .collect(),
        ),
    };
    let mut all = Collect {
        profile: Profile {
            name: format!("{}-operators", system.replace('_', "-")),
            accelerator: of.same_chip.to_owned(),
            description: format!(
                "GEMM, attention, expert and element-wise kernels on {}",
                accelerator.name
            ),
            provenance: Provenance {
                command: format!(
                    "servetwin calibrate operators --data DIR --system {system} --out FILE"
                ),
                fitted_on,
                software,
                rows: 0,
                notes: vec![
                    "Split by shape: every third distinct shape in ascending order is held out.".to_owned(),
                    "Standard errors count each shape as one observation.".to_owned(),
                    "Parameters of evidence `analytic` were not fitted: properties of the kernel (FlashAttention 2 or 3), or not visible in the table."
                        .to_owned(),
                ],
            },
            ..Profile::default()
        },
        rows: Vec::new(),
    };
    let layers = layer_rows(data, system)?;
    fit_gemms(&mut all, system, &device, &gemms, &layers)?;
    fit_decodes(&mut all, of, &device, &decodes, data)?;
    fit_prefills(&mut all, of, &device, &prefills, data)?;
    fit_experts(&mut all, system, &device, &experts)?;
    fit_elementwise(&mut all, system, &device, &layers, &small)?;
    let report = Report {
        system: system.to_owned(),
        split: "held out: every third distinct shape, with all its rows".to_owned(),
        rows: all.rows,
    };
    Ok((all.profile, report))
}

fn fit_gemms(
    all: &mut Collect,
    system: &str,
    device: &Device,
    rows: &[GemmRow],
    layers: &[LayerRow],
) -> Result<(), Error> {
    let formats = [
        ("gemm bf16", "bfloat16", Arithmetic::Bf16, 2.0),
        ("gemm fp8", "fp8", Arithmetic::Fp8, 1.0),
    ];
    for (op, dtype, arithmetic, bytes) in formats {
        let of_format = |r: &&GemmRow| r.gemm_dtype == dtype;
        let (main, odd): (Vec<GemmRow>, Vec<GemmRow>) = rows
            .iter()
            .filter(of_format)
            .cloned()
            .partition(GemmRow::model_like);
        if main.is_empty() {
            continue;
        }
        let time = |v: &[f64], m: u32, n: u32, k: u32| {
            gemm::time(
                &gemm::GemmParams::from_values(&array(v)),
                device,
                &Kernels::default(),
                gemm::Product {
                    arithmetic,
                    weight_bytes: bytes,
                    m: f64::from(m),
                    n: f64::from(n),
                    k: f64::from(k),
                },
            )
            .seconds
        };
        let unused: &[&str] = if arithmetic.quantises() {
            &[]
        } else {
            &["quantise_row", "quantise_efficiency"]
        };
        let task = Task {
            op,
            prefix: arithmetic.prefix(),
            specs: &gemm::SPECS,
            given: &[],
            unused,
            rows: &main,
            regimes: &[
                ("m 1..16", &|r| r.m <= 16),
                ("m 17..256", &|r| (17..=256).contains(&r.m)),
                ("m 257..8192", &|r| (257..=8192).contains(&r.m)),
                ("m above 8192", &|r| r.m > 8192),
            ],
            predict: &|v, r| time(v, r.m, r.n, r.k),
            tolerance: KERNEL_TOLERANCE,
        };
        let outcome = task.run(system)?;
        all.add(&outcome);
        all.rows
            .push(task.only_predicted(&outcome.values, &odd, "n or k small, or k over 20 000"));
        for (name, f) in [
            ("m", (|r: &GemmRow| r.m) as fn(&GemmRow) -> u32),
            ("n", |r| r.n),
            ("k", |r| r.k),
        ] {
            all.range(
                format!("{}.{name}", arithmetic.prefix()),
                main.iter().map(f),
            );
        }
        if arithmetic == Arithmetic::Bf16 {
            layer_gemms(all, layers, &|m, n, k| time(&outcome.values, m, n, k));
        }
    }
    Ok(())
}

/// Times below this are too coarse at 1 us resolution [s].
const COARSE: f64 = 20e-6;

/// GEMMs of whole layers, timed by another tool in another year: predicted only.
fn layer_gemms(all: &mut Collect, layers: &[LayerRow], time: &dyn Fn(u32, u32, u32) -> f64) {
    let mut pairs: [Vec<(f64, f64)>; 3] = Default::default();
    for r in layers {
        let tp = r.num_tensor_parallel_workers.max(1);
        let dim = r.n_embd / r.n_head.max(1);
        let kv = (r.n_kv_head / tp).max(1);
        let m = r.num_tokens;
        for (ms, n, k) in [
            (r.qkv, (r.n_head / tp + 2 * kv) * dim, r.n_embd),
            (r.out, r.n_embd, r.n_embd / tp),
            (r.up, 2 * r.n_expanded_embd / tp, r.n_embd),
            (r.down, r.n_embd, r.n_expanded_embd / tp),
        ] {
            if ms * 1e-3 >= COARSE {
                let regime = match m {
                    0..=16 => 0,
                    17..=256 => 1,
                    _ => 2,
                };
                pairs[regime].push((time(m, n, k), ms * 1e-3));
            }
        }
    }
    for (name, p) in ["m 1..16", "m 17..256", "m above 256"].iter().zip(&pairs) {
        if !p.is_empty() {
            all.rows.push(ReportRow {
                op: "gemm bf16".to_owned(),
                regime: format!("Llama layers (vidur), {name}"),
                fitted: None,
                held_out: errors_of(p),
            });
        }
    }
}

/// Largest head size of the kernels that are fitted; larger ones take another kernel.
const MAX_HEAD_DIM: u32 = 256;

/// Bandwidth of one unit over an even share, where the table does not show it: as fitted on A100.
const UNIT_BANDWIDTH_SHARE: f64 = 1.5;
/// Parameters that need several head sizes to show, where the table has one: as fitted on H100.
const CTA_DIMS: f64 = 1.2e-6;
const SOFTMAX_DIMS: f64 = 45.0;

fn several_head_dims(rows: &[AttentionRow]) -> bool {
    rows.iter().any(|r| r.head_dim != rows[0].head_dim)
}

fn fit_decodes(
    all: &mut Collect,
    system: &System,
    device: &Device,
    rows: &[AttentionRow],
    data: &Path,
) -> Result<(), Error> {
    for (op, dtype, kv) in [
        ("decode kv16", "bfloat16", Dtype::Bf16),
        ("decode kv8", "fp8", Dtype::Fp8),
    ] {
        let (main, wide): (Vec<AttentionRow>, Vec<AttentionRow>) = rows
            .iter()
            .filter(|r| r.kv_cache_dtype == dtype)
            .cloned()
            .partition(|r| r.head_dim <= MAX_HEAD_DIM);
        if main.is_empty() {
            continue;
        }
        let splits = main[0].splits_ungrouped().unwrap_or(system.flash3);
        let mut given = vec![("splits_ungrouped", f64::from(u8::from(splits)))];
        if splits {
            given.push(("group_copy", 0.0));
            // Every kernel of the table is split over all units, so one unit's share does not show;
            // the prior is what kernels without split reach on A100.
            given.push(("unit_bandwidth_share", UNIT_BANDWIDTH_SHARE));
        }
        if !several_head_dims(&main) {
            given.push(("cta_dims", CTA_DIMS));
        }
        let task = Task {
            op,
            prefix: attention::decode_prefix(kv),
            specs: &attention::DECODE_SPECS,
            given: &given,
            unused: &[],
            rows: &main,
            regimes: &[
                ("head 128, no window", &|r| {
                    r.head_dim == 128 && r.window_size == 0
                }),
                ("batch 1..8", &|r| r.batch_size <= 8),
                ("batch 9..64", &|r| (9..=64).contains(&r.batch_size)),
                ("batch 65..256", &|r| (65..=256).contains(&r.batch_size)),
                ("batch above 256", &|r| r.batch_size > 256),
                ("uneven contexts", &|r| r.ctx_sq_sum > 0),
            ],
            predict: &|v, r| {
                attention::decode_time(
                    &attention::DecodeParams::from_values(&array(v)),
                    device,
                    &r.decode_shape(kv),
                    &r.decodes(),
                    r.cache(),
                )
                .seconds
            },
            tolerance: KERNEL_TOLERANCE,
        };
        let outcome = task.run(system.name)?;
        all.add(&outcome);
        if !wide.is_empty() {
            all.rows
                .push(task.only_predicted(&outcome.values, &wide, "head 512 (another kernel)"));
        }
        all.range(
            format!("{}.head_dim", attention::decode_prefix(kv)),
            main.iter().map(|r| r.head_dim),
        );
        if kv == Dtype::Bf16 {
            let others: Vec<AttentionRow> = layer_attention(data, system.name)?
                .iter()
                .filter_map(|r| r.decode_row())
                .collect();
            if !others.is_empty() {
                all.rows.push(task.only_predicted(
                    &outcome.values,
                    &others,
                    "Llama-2-70B layer (vidur)",
                ));
            }
        }
    }
    Ok(())
}

fn fit_prefills(
    all: &mut Collect,
    system: &System,
    device: &Device,
    rows: &[AttentionRow],
    data: &Path,
) -> Result<(), Error> {
    for (op, dtype, kv) in [
        ("prefill kv16", "bfloat16", Dtype::Bf16),
        ("prefill kv8", "fp8", Dtype::Fp8),
    ] {
        let mut main: Vec<AttentionRow> = Vec::new();
        let mut single: Vec<AttentionRow> = Vec::new();
        let mut wide: Vec<AttentionRow> = Vec::new();
        for r in rows.iter().filter(|r| r.kv_cache_dtype == dtype) {
            let part = if r.head_dim > MAX_HEAD_DIM {
                &mut wide
            } else if r.isl == 1 {
                &mut single
            } else {
                &mut main
            };
            part.push(r.clone());
        }
        if main.is_empty() {
            continue;
        }
        let packs = main[0].packs_groups().unwrap_or(system.flash3);
        let mut given = vec![("packs_groups", f64::from(u8::from(packs)))];
        if !packs {
            given.push(("cta_group", 0.0));
        }
        if !several_head_dims(&main) {
            given.push(("softmax_dims", SOFTMAX_DIMS));
            given.push(("wide_heads", 0.0));
        }
        let task = Task {
            op,
            prefix: attention::prefill_prefix(kv),
            specs: &attention::PREFILL_SPECS,
            given: &given,
            unused: &[],
            rows: &main,
            regimes: &[
                ("head 128, no window", &|r| {
                    r.head_dim == 128 && r.window_size == 0
                }),
                ("16..128 new tokens", &|r| r.isl <= 128),
                ("129..1024 new tokens", &|r| (129..=1024).contains(&r.isl)),
                ("above 1024 new tokens", &|r| r.isl > 1024),
                ("on earlier context", &|r| r.step > 0),
            ],
            predict: &|v, r| {
                attention::prefill_time(
                    &attention::PrefillParams::from_values(&array(v)),
                    device,
                    &r.prefill_shape(kv),
                    &r.chunks(),
                )
                .seconds
            },
            tolerance: KERNEL_TOLERANCE,
        };
        let outcome = task.run(system.name)?;
        all.add(&outcome);
        all.rows
            .push(task.only_predicted(&outcome.values, &single, "1 new token"));
        if !wide.is_empty() {
            all.rows
                .push(task.only_predicted(&outcome.values, &wide, "head 512 (another kernel)"));
        }
        all.range(
            format!("{}.new_tokens", attention::prefill_prefix(kv)),
            main.iter().map(|r| r.isl),
        );
        if kv == Dtype::Bf16 {
            let others = layer_attention(data, system.name)?;
            for (name, earlier) in [
                ("Llama-2-70B (vidur), no context", false),
                ("Llama-2-70B (vidur), on context", true),
            ] {
                let rows: Vec<AttentionRow> = others
                    .iter()
                    .filter_map(|r| r.prefill_row())
                    .filter(|r| (r.step > 0) == earlier)
                    .collect();
                if !rows.is_empty() {
                    all.rows
                        .push(task.only_predicted(&outcome.values, &rows, name));
                }
            }
        }
    }
    Ok(())
}

fn fit_experts(
    all: &mut Collect,
    system: &str,
    device: &Device,
    rows: &[MoeRow],
) -> Result<(), Error> {
    let (triton, cutlass) = (Experts::Triton, Experts::Cutlass);
    // Published 8-bit expert weights carry block scales.
    let block = "fp8_block";
    for (op, dtype, weights, arithmetic, experts) in [
        (
            "moe bf16",
            "bfloat16",
            Dtype::Bf16,
            Arithmetic::Bf16,
            triton,
        ),
        ("moe fp8", block, Dtype::Fp8, Arithmetic::Fp8, triton),
        (
            "moe fp8 cutlass",
            block,
            Dtype::Fp8,
            Arithmetic::Fp8,
            cutlass,
        ),
    ] {
        let main: Vec<MoeRow> = rows
            .iter()
            .filter(|r| r.moe_dtype == dtype && r.experts() == experts)
            .cloned()
            .collect();
        if main.is_empty() {
            continue;
        }
        let task = Task {
            op,
            prefix: moe::prefix(arithmetic, experts),
            specs: &moe::SPECS,
            given: &[],
            unused: &[],
            rows: &main,
            regimes: &[
                ("tokens 1..16", &|r| r.num_tokens <= 16),
                ("tokens 17..256", &|r| (17..=256).contains(&r.num_tokens)),
                ("tokens above 256", &|r| r.num_tokens > 256),
                ("balanced", &|r| r.distribution == "balanced"),
                ("power law", &|r| r.distribution != "balanced"),
                ("experts on one rank", &|r| r.moe_ep_size == 1),
                ("experts over ranks", &|r| r.moe_ep_size > 1),
            ],
            predict: &|v, r| {
                moe::time(
                    &moe::MoeParams::from_values(&array(v), experts),
                    device,
                    &r.moe_shape(weights),
                    arithmetic,
                    f64::from(r.num_tokens),
                    r.routing(),
                )
                .seconds
            },
            tolerance: COARSE_TOLERANCE,
        };
        let outcome = task.run(system)?;
        all.add(&outcome);
    }
    Ok(())
}

/// Kernel number of the residual addition.
const RESIDUAL: u32 = 3;

fn fit_elementwise(
    all: &mut Collect,
    system: &str,
    device: &Device,
    layers: &[LayerRow],
    own: &[ElementwiseTableRow],
) -> Result<(), Error> {
    let (sampling, own): (Vec<&ElementwiseTableRow>, Vec<&ElementwiseTableRow>) =
        own.iter().partition(|r| r.kernel.starts_with("sample_"));
    let mut rows: Vec<ElementwiseRow> = own.iter().filter_map(|r| r.row()).collect();
    for r in layers.iter().filter(|_| own.is_empty()) {
        let tp = r.num_tensor_parallel_workers.max(1);
        let (m, h) = (f64::from(r.num_tokens), f64::from(r.n_embd));
        let heads = f64::from(r.n_head / tp + (r.n_kv_head / tp).max(1));
        let dim = h / f64::from(r.n_head.max(1));
        let inner = f64::from(r.n_expanded_embd / tp);
        for (kernel, ms, bytes) in [
            // In and out; queries and keys in and out; two halves in, one out; two in, one out.
            (0, r.norm, 4.0 * m * h),
            (1, r.rotary, 4.0 * m * heads * dim),
            (2, r.activation, 6.0 * m * inner),
            (RESIDUAL, r.add, 6.0 * m * h),
        ] {
            // Below 3 us the resolution is the measurement.
            if ms >= 0.003 {
                rows.push(ElementwiseRow {
                    bytes,
                    seconds: ms * 1e-3,
                    hidden: r.n_expanded_embd,
                    tp,
                    kernel,
                });
            }
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    // Engines add the residual within the norm; the separate kernel is predicted only.
    let (adds, rows): (Vec<ElementwiseRow>, Vec<ElementwiseRow>) =
        rows.into_iter().partition(|r| r.kernel == RESIDUAL);
    let task = Task {
        op: "element-wise",
        prefix: elementwise::PREFIX,
        specs: &elementwise::SPECS,
        given: &[],
        unused: &["sampling_passes"],
        rows: &rows,
        regimes: &[
            ("norm", &|r| r.kernel == 0),
            ("rotary", &|r| r.kernel == 1),
            ("activation", &|r| r.kernel == 2),
        ],
        predict: &|v, r| {
            elementwise::time(
                &elementwise::ElementwiseParams::from_values(&array(v)),
                device,
                r.bytes,
                1.0,
            )
            .seconds
        },
        tolerance: COARSE_TOLERANCE,
    };
    let outcome = task.run(system)?;
    all.add(&outcome);
    if !adds.is_empty() {
        all.rows
            .push(task.only_predicted(&outcome.values, &adds, "separate residual"));
    }
    let params = elementwise::ElementwiseParams::from_values(&array(&outcome.values));
    for kernel in ["sample_greedy", "sample_top_k_top_p", "sample_softmax"] {
        let pairs: Vec<(f64, f64)> = sampling
            .iter()
            .filter(|r| r.kernel == kernel)
            .map(|r| {
                let predicted = elementwise::sampling_time(&params, device, r.tokens, r.width);
                (predicted.seconds, r.latency * 1e-3)
            })
            .collect();
        if !pairs.is_empty() {
            all.rows.push(ReportRow {
                op: "sampling (analytic)".to_owned(),
                regime: kernel.to_owned(),
                fitted: None,
                held_out: errors_of(&pairs),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_shapes_is_held_out_with_all_its_rows() {
        let row = |n, m| GemmRow {
            version: String::new(),
            gemm_dtype: "bfloat16".to_owned(),
            m,
            n,
            k: 64,
            latency: 1.0,
        };
        let rows: Vec<GemmRow> = (0..60).map(|i| row(64 * (1 + i % 6), 1 + i / 6)).collect();
        let out = held_out(&rows);
        let shapes: Vec<u32> = out.iter().map(|s| s[0]).collect();
        assert_eq!(shapes, [128, 320]);
        let held = rows.iter().filter(|r| out.contains(&r.shape())).count();
        assert_eq!(held, 20);
    }

    #[test]
    fn a_fit_recovers_the_parameters_that_made_the_times() {
        let device = Device {
            bf16: 500e12,
            fp8: None,
            int8: None,
            bandwidth: 2e12,
            units: 100.0,
            cache: 50e6,
            cache_rate: None,
        };
        let truth: Vec<f64> = gemm::SPECS
            .iter()
            .map(|s| match s.name {
                "compute_efficiency" => 0.7,
                "bandwidth_efficiency" => 0.65,
                "fixed" => 5e-6,
                _ => s.prior,
            })
            .collect();
        let time = |v: &[f64], r: &GemmRow| {
            let (m, n, k) = (f64::from(r.m), f64::from(r.n), f64::from(r.k));
            let p = gemm::GemmParams::from_values(&array(v));
            let product = gemm::Product {
                arithmetic: Arithmetic::Bf16,
                weight_bytes: 2.0,
                m,
                n,
                k,
            };
            gemm::time(&p, &device, &Kernels::default(), product).seconds
        };
        let mut rows = Vec::new();
        for m in [1, 16, 64, 256, 1024, 4096] {
            for n in [1024, 3072, 4096, 8192] {
                for k in [1024, 2048, 4096] {
                    let mut r = GemmRow {
                        version: String::new(),
                        gemm_dtype: "bfloat16".to_owned(),
                        m,
                        n,
                        k,
                        latency: 0.0,
                    };
                    r.latency = time(&truth, &r) * 1e3;
                    rows.push(r);
                }
            }
        }
        let task = Task {
            op: "gemm bf16",
            prefix: "gemm.bf16",
            specs: &gemm::SPECS,
            given: &[],
            unused: &["quantise_row", "quantise_efficiency"],
            rows: &rows,
            regimes: &[],
            predict: &time,
            tolerance: 1.0,
        };
        let o = task.run("test").unwrap();
        let held_out = o.report[0].held_out.unwrap();
        assert_eq!(held_out.n, 24);
        assert!(held_out.median_ape < 1.0, "{held_out:?}");
        assert!((o.values[0] - 0.7).abs() < 0.02, "{:?}", o.values);
        assert!((o.values[1] - 0.65).abs() < 0.02, "{:?}", o.values);
    }

    #[test]
    fn an_unknown_system_is_refused_with_the_known_ones() {
        let e = fit(Path::new("nowhere"), "tpu").unwrap_err();
        assert!(e.to_string().contains("h100_sxm, a100_sxm"), "{e}");
    }

    #[test]
    fn a_missing_table_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let e = table::<GemmRow>(dir.path(), "h100_sxm", "gemm").unwrap_err();
        assert!(e.to_string().contains("h100_sxm_*_gemm_perf.csv"), "{e}");
    }
}
