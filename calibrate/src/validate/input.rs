//! The files of measurements, and what must hold of every row: a measured time or rate that is zero, negative or infinite is a mistake of the
//! measurement or of its file, and an error relative to it says nothing.

use std::io::Read;
use std::path::{Path, PathBuf};

use csv::StringRecord;
use flate2::read::MultiGzDecoder;
use serde::de::DeserializeOwned;

use super::error::SetError;

/// A file of measurements.
pub struct DataFile {
    /// Its name in a folder. A `*` stands for any text.
    pub name: &'static str,
    /// The sets that it holds.
    pub sets: &'static [&'static str],
    /// Columns of numbers above zero; a field may be empty where nothing was measured.
    measured: &'static [&'static str],
    /// A column and one that is never below it: the first token of an answer comes no later than its last.
    order: Option<(&'static str, &'static str)>,
}

const fn file(
    name: &'static str,
    sets: &'static [&'static str],
    measured: &'static [&'static str],
) -> DataFile {
    DataFile {
        name,
        sets,
        measured,
        order: None,
    }
}

/// Every file that a set is read from.
pub const FILES: [DataFile; 29] = [
    file(
        "jumpstart_tgi.csv",
        &["jumpstart"],
        &["throughput_tok_s", "latency_ms_per_token"],
    ),
    file(
        "serving2/tgi_g5.csv",
        &["tgi_g5"],
        &[
            "num_accel",
            "concurrency",
            "output_tokens_corrected",
            "e2e_mean_s",
        ],
    ),
    file(
        "serving2/vllm_pcie.csv",
        &["vllm_pcie"],
        &["tp", "request_rate", "mean_tpot_ms", "p50_itl_ms"],
    ),
    file("traces/lengths_sharegpt_v3.csv.gz", &["vllm_pcie"], &[]),
    file(
        "vllm_h100_requests/experiments.csv",
        &["vllm_requests"],
        &[],
    ),
    DataFile {
        order: Some(("ttft_s", "e2e_s")),
        ..file(
            "vllm_h100_requests/requests.csv.gz",
            &["vllm_requests"],
            &["ttft_s", "e2e_s"],
        )
    },
    file(
        "vllm_h100_requests2/experiments.csv",
        &["vllm_requests_moe"],
        &[],
    ),
    DataFile {
        order: Some(("ttft_s", "e2e_s")),
        ..file(
            "vllm_h100_requests2/requests.csv.gz",
            &["vllm_requests_moe"],
            &["ttft_s", "e2e_s"],
        )
    },
    file(
        "serving2/sglang_qwen3_32b_h100.csv",
        &["sglang_qwen3_32b"],
        &[
            "concurrency",
            "tp_size",
            "silicon_ttft_ms",
            "silicon_tpot_ms",
        ],
    ),
    file(
        "serving2/sglang_deepseek_r1_h100_disagg.csv",
        &["sglang_deepseek_r1_disagg"],
        &[
            "concurrency",
            "prefill_tp_size",
            "decode_tp_size",
            "silicon_ttft_ms",
            "silicon_tpot_ms",
        ],
    ),
    file(
        "serving2/trtllm_llama31_8b_h100.csv",
        &["trtllm_llama31_8b"],
        &[
            "concurrency",
            "tp_size",
            "silicon_ttft_ms",
            "silicon_tpot_ms",
        ],
    ),
    file(
        "serving2/vllm_gpt_oss_120b_h100.csv",
        &["vllm_gpt_oss"],
        &[
            "concurrency",
            "tp_size",
            "silicon_ttft_ms",
            "silicon_tpot_ms",
        ],
    ),
    DataFile {
        order: Some(("ttft_ms", "e2e_ms")),
        ..file(
            "vllm_h100_rate_sweep/requests.csv.gz",
            &["vllm_rate_sweep"],
            &["ttft_ms", "e2e_ms"],
        )
    },
    file(
        "h100_qwen3_32b_vllm.csv",
        &["qwen3_32b"],
        &[
            "concurrency",
            "tp_size",
            "silicon_ttft_ms",
            "silicon_tpot_ms",
        ],
    ),
    file("serving_points.csv", &["llama_405b", "inf2"], &["value"]),
    file(
        "trtllm_max_throughput.csv",
        &["trtllm_max_throughput"],
        &["output_tok_s"],
    ),
    file(
        "trtllm_overview.csv",
        &["trtllm_overview", "trtllm_overview_moe"],
        &["output_tok_s"],
    ),
    file(
        "trtllm_per_gpu.csv",
        &["trtllm_per_gpu"],
        &["output_tok_s_gpu"],
    ),
    file(
        "inf2_guidellm.csv",
        &["inf2_vllm"],
        &["ttft_mean_ms", "itl_mean_ms", "output_tok_s"],
    ),
    file(
        "neuron_decoder_batch1.csv",
        &["neuron_batch1"],
        &["ttft_p50_ms", "tpot_p50_ms"],
    ),
    file("operators/*_perf.csv.gz", &["kernels"], &["latency"]),
    file("operators/*_perf.csv", &["kernels"], &["latency"]),
    file(
        "collectives/engine_and_nccl_allreduce.csv.gz",
        &["collectives"],
        &["latency_us"],
    ),
    file(
        "collectives/nccl_graph_timed.csv.gz",
        &["collectives"],
        &["median_ms"],
    ),
    file(
        "nccl_allreduce_2node_efa.csv",
        &["collectives"],
        &["time_us"],
    ),
    file("steps.csv", &["gpu_steps"], &["device_ms"]),
    file(
        "weights_load_times.csv",
        &["weights_load"],
        &["weights_gb", "seconds"],
    ),
    file("cluster/node_and_pod.csv", &["weights_load"], &["seconds"]),
    file(
        "vllm_startup_warm.csv",
        &["vllm_startup"],
        &[
            "framework_bootstrap_s",
            "load_weights_s",
            "torch_compile_s",
            "kv_cache_profiling_s",
            "graph_capturing_s",
            "init_engine_s",
            "total_s",
        ],
    ),
];

impl DataFile {
    /// The file of this name.
    fn of(name: &str) -> Option<&'static DataFile> {
        FILES.iter().find(|f| match f.name.split_once('*') {
            Some((head, tail)) => name.starts_with(head) && name.ends_with(tail),
            None => f.name == name,
        })
    }

    /// The files of this name in the folder `dir`, by name.
    fn paths(&self, dir: &Path) -> Vec<PathBuf> {
        if !self.name.contains('*') {
            let path = dir.join(self.name);
            return path.is_file().then_some(path).into_iter().collect();
        }
        let (folder, _) = self.name.split_once('/').unwrap_or((".", ""));
        let entries = std::fs::read_dir(dir.join(folder)).into_iter().flatten();
        let matches = |path: &PathBuf| {
            let name = path.strip_prefix(dir).ok().and_then(Path::to_str);
            name.and_then(DataFile::of)
                .is_some_and(|f| f.name == self.name)
        };
        let paths = entries.filter_map(|e| Some(e.ok()?.path()));
        let mut found: Vec<PathBuf> = paths.filter(matches).collect();
        found.sort();
        found
    }
}

/// Whether the folder holds any file of measurements.
pub fn any(dir: &Path) -> bool {
    FILES.iter().any(|f| !f.paths(dir).is_empty())
}

/// The files that a folder may hold, with their sets, for a message.
pub fn known() -> String {
    let lines = FILES.map(|f| format!("\n  {} ({})", f.name, f.sets.join(", ")));
    lines.concat()
}

/// Checks the rows of the files of `set` in the folder `dir`, for sets that are not read here.
///
/// # Errors
/// A file cannot be read, or a row is wrong.
pub fn check(dir: &Path, set: &str) -> Result<(), SetError> {
    for file in FILES.iter().filter(|f| f.sets.contains(&set)) {
        for path in file.paths(dir) {
            let shown = path.display().to_string();
            let input =
                std::fs::File::open(&path).map_err(|e| SetError::new(&shown, e.to_string()))?;
            let input: Box<dyn Read> = if shown.ends_with(".gz") {
                Box::new(MultiGzDecoder::new(input))
            } else {
                Box::new(input)
            };
            records(input, file.name, &shown, |_, _| Ok(()))?;
        }
    }
    Ok(())
}

/// Reads the rows of the file `name`, which messages call `shown`.
///
/// # Errors
/// It is no table with the columns of a `T`, has no rows, or a row has a measurement that is none.
pub fn parse<T: DeserializeOwned>(
    input: impl Read,
    name: &str,
    shown: &str,
) -> Result<Vec<T>, SetError> {
    let mut rows = Vec::new();
    records(input, name, shown, |record, headers| {
        rows.push(record.deserialize(Some(headers))?);
        Ok(())
    })?;
    Ok(rows)
}

/// Checks every row and hands it with the names of the columns to `take`.
fn records(
    input: impl Read,
    name: &str,
    shown: &str,
    mut take: impl FnMut(&StringRecord, &StringRecord) -> Result<(), csv::Error>,
) -> Result<(), SetError> {
    let mut reader = csv::Reader::from_reader(input);
    let headers = match reader.headers() {
        Ok(headers) => headers.clone(),
        Err(e) => return Err(SetError::new(shown, e.to_string())),
    };
    let checks = Checks::new(name, &headers);
    let mut record = StringRecord::new();
    let mut empty = true;
    loop {
        let read = reader.read_record(&mut record);
        if !read.map_err(|e| SetError::new(shown, e.to_string()))? {
            break;
        }
        empty = false;
        let wrong = |message: String| {
            let line = record.position().map_or(0, csv::Position::line);
            SetError::new(&format!("{shown}:{line}"), message)
        };
        checks.row(&record).map_err(wrong)?;
        take(&record, &headers).map_err(|e| wrong(in_words(&e, &record, &headers)))?;
    }
    if empty {
        return Err(SetError::new(shown, "has no rows".into()));
    }
    Ok(())
}

/// What is wrong with a row, with the column's name in place of its number.
fn in_words(error: &csv::Error, record: &StringRecord, headers: &StringRecord) -> String {
    let csv::ErrorKind::Deserialize { err, .. } = error.kind() else {
        return error.to_string();
    };
    let field = err.field().map(|i| i as usize);
    match field.and_then(|i| Some((headers.get(i)?, record.get(i)?))) {
        Some((column, value)) => format!("{column}: `{value}`: {}", err.kind()),
        None => err.kind().to_string(),
    }
}

/// The columns of a file that are checked, by number.
struct Checks<'a> {
    measured: Vec<(usize, &'a str)>,
    order: Option<[(usize, &'a str); 2]>,
    /// Rows of failed requests hold no measurement.
    status: Option<usize>,
}

impl Checks<'_> {
    fn new(name: &str, headers: &StringRecord) -> Checks<'static> {
        let column = |name: &'static str| Some((headers.iter().position(|h| h == name)?, name));
        let file = DataFile::of(name);
        Checks {
            measured: file
                .iter()
                .flat_map(|f| f.measured)
                .filter_map(|c| column(c))
                .collect(),
            order: file
                .and_then(|f| f.order)
                .and_then(|(low, high)| Some([column(low)?, column(high)?])),
            status: column("status").map(|(i, _)| i),
        }
    }

    fn row(&self, record: &StringRecord) -> Result<(), String> {
        if self.status.is_some_and(|i| record.get(i) != Some("ok")) {
            return Ok(());
        }
        let number = |i: usize| record.get(i).and_then(|v| v.trim().parse::<f64>().ok());
        for &(i, column) in &self.measured {
            // What is no number at all is told when the row is read.
            if let Some(value) = number(i).filter(|v| !(v.is_finite() && *v > 0.0)) {
                return Err(format!(
                    "{column} is {value}: a measurement is a number above 0, or empty where nothing was measured"
                ));
            }
        }
        if let Some([(low, name), (high, of)]) = self.order
            && let (Some(a), Some(b)) = (number(low), number(high))
            && a > b
        {
            return Err(format!("{name} is {a}, above {of}, which is {b}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Row {
        tp: u32,
        throughput_tok_s: Option<f64>,
    }

    fn read(text: &str) -> Result<Vec<Row>, String> {
        parse(text.as_bytes(), "jumpstart_tgi.csv", "x.csv").map_err(|e| e.to_string())
    }

    #[test]
    fn rows_without_a_measurement_are_refused_by_line_and_column() {
        let rows = read("tp,throughput_tok_s\n1,5\n2,\n").unwrap();
        assert_eq!((rows[0].throughput_tok_s, rows[1].tp), (Some(5.0), 2));
        assert_eq!(rows[1].throughput_tok_s, None);
        for wrong in ["0", "-1", "inf", "-inf", "NaN", "0.0", "1e999"] {
            let error = read(&format!("tp,throughput_tok_s\n1,5\n2,{wrong}\n")).unwrap_err();
            assert!(
                error.starts_with("x.csv:3: throughput_tok_s is "),
                "{wrong}: {error}"
            );
        }
        for (text, because) in [
            ("tp,throughput_tok_s\n", "x.csv: has no rows"),
            ("tp,throughput_tok_s\n-1,5\n", "x.csv:2: tp: `-1`"),
            (
                "tp,throughput_tok_s\n1,fast\n",
                "x.csv:2: throughput_tok_s: `fast`",
            ),
            ("throughput_tok_s\n5\n", "missing field `tp`"),
            ("tp,throughput_tok_s\n1\n", "x.csv"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(because), "{error}");
        }
    }

    #[test]
    fn an_answer_does_not_end_before_it_begins_and_failed_requests_measure_nothing() {
        let name = "vllm_h100_rate_sweep/requests.csv.gz";
        let read = |row: &str| {
            let text = format!("status,ttft_ms,e2e_ms\n{row}\n");
            records(text.as_bytes(), name, "x", |_, _| Ok(())).map_err(|e| e.to_string())
        };
        assert_eq!(read("ok,5,9"), Ok(()));
        assert_eq!(read("error,0,0"), Ok(()));
        let error = read("ok,9,5").unwrap_err();
        assert!(error.contains("x:2: ttft_ms is 9, above e2e_ms"), "{error}");
    }

    #[test]
    fn every_set_has_its_files() {
        // That one is made of what the binary carries.
        let carried = super::super::chips::SET;
        for set in super::super::names().into_iter().filter(|s| *s != carried) {
            assert!(FILES.iter().any(|f| f.sets.contains(&set)), "{set}");
        }
        for file in &FILES {
            for set in file.sets {
                assert!(super::super::names().contains(set), "{set}");
            }
        }
    }

    #[test]
    fn a_folder_is_known_by_its_files() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!any(dir.path()));
        std::fs::create_dir(dir.path().join("operators")).unwrap();
        std::fs::write(dir.path().join("operators/notes.csv"), "").unwrap();
        assert!(!any(dir.path()));
        let table = dir.path().join("operators/h100_sxm_gemm_perf.csv");
        std::fs::write(&table, "m,latency\n1,0.5\n2,0\n").unwrap();
        assert!(any(dir.path()));
        let error = check(dir.path(), "kernels").unwrap_err().to_string();
        assert!(error.contains("gemm_perf.csv:3: latency is 0"), "{error}");
        check(dir.path(), "collectives").unwrap();
    }
}
