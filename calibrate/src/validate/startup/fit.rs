//! The fitted figures of `hwmodels/data/startup.toml`, derived from measurements.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use hwmodels::startup::defaults::{Defaults, Line};

use super::super::case::Source;
use super::super::error::SetError;
use super::{vllm, weights};
use crate::statistics::median;

/// A fit's figures, in the form of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Hosts by name: page cache [bytes/s] and lines.
    pub hosts: BTreeMap<&'static str, HostFit>,
    /// Single figures by their place in the file, in base units (s, bytes/s).
    pub figures: BTreeMap<&'static str, f64>,
}

/// A host's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct HostFit {
    /// From the page cache [bytes/s].
    pub page_cache: f64,
    /// Lines by key.
    pub lines: BTreeMap<&'static str, Line>,
}

/// Hosts, and those whose starts they are fitted on.
const HOSTS: [(&str, &[&str]); 4] = [
    ("a100", &["a100"]),
    ("h100-epyc", &["h100-epyc"]),
    ("h100-xeon", &["h100-xeon"]),
    ("hopper", &["h100-epyc", "h100-xeon"]),
];

/// Smallest spread that is written: repeated starts on one host differ by about this.
const LEAST_SIGMA: f64 = 0.03;

type Value = fn(&vllm::Start) -> f64;

/// Lines of a host: key, the measured value, whether it depends on layers and on bytes.
const LINES: [(&str, Value, [bool; 2]); 6] = [
    ("framework", |s| s.framework_bootstrap_s, [false, false]),
    ("compile_cached", |s| s.torch_compile_s, [true, false]),
    ("profiling", |s| s.kv_cache_profiling_s, [false, true]),
    ("graphs", |s| s.graph_capturing_s, [true, true]),
    ("init", vllm::Start::init_rest_s, [true, false]),
    ("front_end", vllm::Start::front_end_s, [false, false]),
];

/// Fits on the rows in `dir` that the sets mark as fitted.
///
/// # Errors
/// A file is missing or malformed, or lacks a row that is needed.
pub fn fit(dir: &Path) -> Result<Fit, SetError> {
    let source = Source::Folder(dir.to_owned());
    let starts: Vec<vllm::Start> = vllm::starts(&source)?
        .into_iter()
        .filter(vllm::Start::fitted)
        .collect();
    let mut hosts = BTreeMap::new();
    for (name, of) in HOSTS {
        let warm: Vec<&vllm::Start> = starts
            .iter()
            .filter(|s| of.contains(&s.host()) && !s.from_ssd())
            .collect();
        hosts.insert(
            name,
            host(&warm).map_err(|m| SetError::new(vllm::FILE, format!("host {name}: {m}")))?,
        );
    }
    let mut figures = BTreeMap::new();
    let ssd = starts.iter().filter(|s| s.from_ssd());
    let rate = median(rates(ssd)?)
        .ok_or_else(|| SetError::new(vllm::FILE, "no start from SSDs".into()))?;
    figures.insert("load.safetensors.nvme.per_stream", rate);
    storage(&source, &mut figures).map_err(|e| SetError::new(weights::FILE, e))?;
    shared(&source, &mut figures)?;
    Ok(Fit { hosts, figures })
}

fn rates<'a>(starts: impl Iterator<Item = &'a vllm::Start>) -> Result<Vec<f64>, SetError> {
    let rate = |s: &vllm::Start| s.size().map(|(_, gb)| gb * 1e9 / s.load_weights_s);
    starts
        .map(|s| rate(s).map_err(|m| SetError::new(vllm::FILE, m)))
        .collect()
}

fn host(starts: &[&vllm::Start]) -> Result<HostFit, String> {
    if starts.len() < vllm::FITTED.len() {
        return Err(format!(
            "{} fitted starts, {} are needed",
            starts.len(),
            vllm::FITTED.len()
        ));
    }
    let sizes: Vec<(u32, f64)> = starts.iter().map(|s| s.size()).collect::<Result<_, _>>()?;
    let rate = |(s, size): (&&vllm::Start, &(u32, f64))| size.1 * 1e9 / s.load_weights_s;
    let page_cache = median(starts.iter().zip(&sizes).map(rate).collect()).unwrap_or(0.0);
    let mut lines = BTreeMap::new();
    for (key, value, depends) in LINES {
        let values: Vec<f64> = starts.iter().map(|s| value(s)).collect();
        let mut line =
            least_squares(&sizes, &values, depends).ok_or_else(|| format!("{key}: no fit"))?;
        let square =
            |(size, y): (&(u32, f64), &f64)| (line.at(size.0, size.1 * 1e9) / y).ln().powi(2);
        let mean = sizes.iter().zip(&values).map(square).sum::<f64>() / values.len() as f64;
        line.sigma = mean.sqrt().max(LEAST_SIGMA);
        lines.insert(key, line);
    }
    Ok(HostFit { page_cache, lines })
}

/// The line of least relative squares; the geometric mean where nothing matters.
fn least_squares(sizes: &[(u32, f64)], values: &[f64], depends: [bool; 2]) -> Option<Line> {
    if depends == [false, false] {
        let logs: f64 = values.iter().map(|v| v.ln()).sum();
        let base = (logs / values.len() as f64).exp();
        return Some(Line {
            base,
            ..Line::default()
        });
    }
    let columns: Vec<usize> = [true, depends[0], depends[1]]
        .iter()
        .enumerate()
        .filter(|(_, used)| **used)
        .map(|(i, _)| i)
        .collect();
    let rows: Vec<Vec<f64>> = sizes
        .iter()
        .zip(values)
        .map(|(&(layers, gb), y)| {
            let all = [1.0, f64::from(layers), gb];
            columns.iter().map(|&c| all[c] / y).collect()
        })
        .collect();
    let x = normal_equations(&rows)?;
    let mut full = [0.0; 3];
    for (&c, v) in columns.iter().zip(x) {
        full[c] = v;
    }
    Some(Line {
        base: full[0],
        per_layer: full[1],
        per_gb: full[2],
        sigma: 0.0,
    })
}

/// `x` for which `rows * x` is nearest to ones; at most three columns.
fn normal_equations(rows: &[Vec<f64>]) -> Option<Vec<f64>> {
    let n = rows.first()?.len();
    let mut m: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let dot = |j: usize| rows.iter().map(|r| r[i] * r[j]).sum::<f64>();
            let right = rows.iter().map(|r| r[i]).sum::<f64>();
            (0..n).map(dot).chain([right]).collect()
        })
        .collect();
    for i in 0..n {
        let pivot = (i..n).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        m.swap(i, pivot);
        if m[i][i].abs() < 1e-15 {
            return None;
        }
        for k in (0..n).filter(|k| *k != i) {
            let factor = m[k][i] / m[i][i];
            let from = m[i].clone();
            m[k].iter_mut()
                .zip(from)
                .for_each(|(a, b)| *a -= factor * b);
        }
    }
    Some((0..n).map(|i| m[i][n] / m[i][i]).collect())
}

/// Figures of loaders and storages.
fn storage(source: &Source, figures: &mut BTreeMap<&'static str, f64>) -> Result<(), String> {
    let loads = weights::loads(source).map_err(|e| e.to_string())?;
    let find = |loader: &str, storage: &str, n: u32| {
        loads
            .iter()
            .find(|l| {
                !l.is_start()
                    && (l.loader(), l.storage(), l.loader_concurrency)
                        == (loader, Some(storage), Some(n))
            })
            .ok_or_else(|| format!("no row of {loader} from {storage} with {n} stream(s)"))
    };
    let (plain, streamer) = (
        find("safetensors", "ebs_gp3", 1)?,
        find("runai-streamer", "ebs_gp3", 1)?,
    );
    let rate = |l: &weights::Load| l.bytes() / l.seconds;
    figures.insert("load.ebs.per_stream", (rate(plain) * rate(streamer)).sqrt());
    let volume = 1000.0 * f64::from(1 << 20);
    let open: Vec<f64> = [4, 8]
        .into_iter()
        .map(|n| find("tensorizer", "ebs_gp3", n).map(|l| l.seconds - l.bytes() / volume))
        .collect::<Result<_, _>>()?;
    figures.insert("load.tensorizer.ebs.open", (open[0] + open[1]) / 2.0);
    // t = open + bytes / (n * rate) at two numbers of streams.
    let (a, b) = (
        find("runai-streamer", "s3", 4)?,
        find("runai-streamer", "s3", 16)?,
    );
    let per_stream = (a.bytes() / 4.0 - b.bytes() / 16.0) / (a.seconds - b.seconds);
    figures.insert("load.runai-streamer.s3.per_stream", per_stream);
    figures.insert(
        "load.runai-streamer.s3.open",
        a.seconds - a.bytes() / 4.0 / per_stream,
    );
    let (few, many) = (find("tensorizer", "s3", 8)?, find("tensorizer", "s3", 64)?);
    figures.insert("load.tensorizer.s3.per_stream", rate(few) / 8.0);
    figures.insert("load.tensorizer.s3.ceiling", rate(many));
    let defaults = Defaults::builtin();
    let rest: Vec<f64> = loads
        .iter()
        .filter(|l| l.is_start() && l.fitted())
        .map(|l| Ok(l.seconds - l.path(&defaults)?.alone_s()))
        .collect::<Result<_, String>>()?;
    if rest.is_empty() {
        return Err("no start on EBS gp3".to_owned());
    }
    figures.insert(
        "vllm 0.5.5.ready",
        rest.iter().sum::<f64>() / rest.len() as f64,
    );
    Ok(())
}

/// Figures of disks that a pull and a download share.
fn shared(source: &Source, figures: &mut BTreeMap<&'static str, f64>) -> Result<(), SetError> {
    let steps = weights::steps(source)?;
    let lacks = |what: &str| SetError::new(weights::SHARED_FILE, format!("no row of {what}"));
    let alone = &weights::PULLS[0];
    let seconds = weights::seconds(
        &steps,
        alone.instance,
        "model download from S3, image cached",
    )
    .ok_or_else(|| lacks("a download alone"))?;
    let disk = alone.model_gb * 1e9 / seconds;
    figures.insert("platform.disk_write", disk);
    let ratio = Defaults::builtin().image.unpack_ratio;
    let mut logs = 0.0;
    for instance in ["ml.g4dn.xlarge", "ml.g5.xlarge"] {
        let of = |step| weights::seconds(&steps, instance, step).ok_or_else(|| lacks(instance));
        let saved = of("P50, no cache")? - of("P50, image cached")?;
        let pull = weights::PULLS.iter().find(|p| p.instance == instance);
        let pull = pull.ok_or_else(|| lacks(instance))?;
        // What a cached image saves falls with the rate; bisected.
        let (mut low, mut high) = (1e6, disk);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if pull.saved(disk, middle, ratio) > saved {
                low = middle;
            } else {
                high = middle;
            }
        }
        logs += low.ln();
    }
    figures.insert("image.pull.rate", (logs / 2.0).exp());
    Ok(())
}

impl Fit {
    /// As `startup.toml` has it, four significant digits.
    pub fn toml(&self) -> String {
        let mut text = String::new();
        for (name, host) in &self.hosts {
            let _ = writeln!(
                text,
                "[[host]]\nname = \"{name}\"\npage_cache = \"{} GB/s\"",
                digits(host.page_cache * 1e-9)
            );
            for (key, _, _) in LINES {
                let line = host.lines[key];
                let _ = write!(text, "{key} = {{ base = {}", digits(line.base));
                for (part, v) in [("per_layer", line.per_layer), ("per_gb", line.per_gb)] {
                    if v != 0.0 {
                        let _ = write!(text, ", {part} = {}", digits(v));
                    }
                }
                let _ = writeln!(text, ", sigma = {:.2} }}", line.sigma);
            }
            text.push('\n');
        }
        for (place, value) in &self.figures {
            let _ = if *value > 1e3 {
                writeln!(text, "# {place}: {} MB/s", digits(value * 1e-6))
            } else {
                writeln!(text, "# {place}: {} s", digits(*value))
            };
        }
        text
    }
}

fn digits(value: f64) -> String {
    hwmodels::units::significant(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let sizes = [(24, 1.0), (32, 13.0), (40, 28.0), (48, 18.0)];
        let value = |(l, g): &(u32, f64)| 0.5 + 0.02 * f64::from(*l) + 0.03 * g;
        let values: Vec<f64> = sizes.iter().map(value).collect();
        let line = least_squares(&sizes, &values, [true, true]).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(
            near(line.base, 0.5) && near(line.per_layer, 0.02) && near(line.per_gb, 0.03),
            "{line:?}"
        );
        let flat = least_squares(&sizes, &[2.0, 2.0, 8.0, 8.0], [false, false]).unwrap();
        assert!(near(flat.base, 4.0));
        assert_eq!(
            least_squares(&[(8, 1.0), (8, 1.0)], &[1.0, 2.0], [true, false]),
            None
        );
    }

    #[test]
    fn the_shipped_figures_are_those_of_the_fit() {
        let Some(dir) = std::env::var_os("SERVETWIN_MEASURED") else {
            eprintln!("skipped: SERVETWIN_MEASURED names no folder of measurements");
            return;
        };
        let fit = fit(Path::new(&dir)).unwrap();
        let d = Defaults::builtin();
        let near = |what: &str, shipped: f64, fitted: f64| {
            assert!(
                (shipped - fitted).abs() <= 2e-3 * fitted.abs(),
                "{what}: {shipped} {fitted}"
            );
        };
        for (name, host) in &fit.hosts {
            let h = d.host(name).unwrap();
            near(name, h.page_cache.bytes_per_sec(), host.page_cache);
            let lines = [
                h.framework,
                h.compile_cached,
                h.profiling,
                h.graphs,
                h.init,
                h.front_end,
            ];
            for ((key, _, _), shipped) in LINES.iter().zip(lines) {
                let fitted = host.lines[key];
                near(key, shipped.base, fitted.base);
                near(key, shipped.per_layer, fitted.per_layer);
                near(key, shipped.per_gb, fitted.per_gb);
            }
        }
        let load = |l: &str, s: &str| d.load(l, s).unwrap();
        let rate = |l: &str, s: &str| load(l, s).per_stream.unwrap().bytes_per_sec();
        for (place, shipped) in [
            (
                "load.safetensors.nvme.per_stream",
                rate("safetensors", "nvme"),
            ),
            ("load.ebs.per_stream", rate("safetensors", "ebs_gp3")),
            ("load.ebs.per_stream", rate("runai-streamer", "ebs_io2")),
            (
                "load.tensorizer.ebs.open",
                load("tensorizer", "ebs_gp3").open.secs(),
            ),
            (
                "load.runai-streamer.s3.per_stream",
                rate("runai-streamer", "s3"),
            ),
            (
                "load.runai-streamer.s3.open",
                load("runai-streamer", "s3").open.secs(),
            ),
            ("load.tensorizer.s3.per_stream", rate("tensorizer", "s3")),
            (
                "load.tensorizer.s3.ceiling",
                load("tensorizer", "s3").ceiling.unwrap().bytes_per_sec(),
            ),
            ("vllm 0.5.5.ready", weights::READY_S),
            (
                "platform.disk_write",
                d.platform("g6.2xlarge").unwrap().disk_write.bytes_per_sec(),
            ),
            ("image.pull.rate", d.image.pull.rate.bytes_per_sec()),
        ] {
            near(place, shipped, fit.figures[place]);
        }
    }
}
