//! What a request spends between its client and the engine's scheduler: the client's TTFT less the engine's own, request by request.

use std::collections::BTreeMap;
use std::path::Path;

use sim::metrics::definition::Metric;
use sim::record::RunRecord;

/// Why the way cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum WayError {
    /// A log cannot be read.
    #[error("{file}: {source}")]
    Csv {
        /// The log.
        file: String,
        /// What is wrong.
        source: csv::Error,
    },
    /// A field does not hold what its column says.
    #[error("{file}, line {line}: column `{column}` holds `{value}`")]
    Field {
        /// The log.
        file: String,
        /// Line, from 1.
        line: u64,
        /// Column.
        column: &'static str,
        /// What stands there.
        value: String,
    },
}

/// One row of a log, by column.
type Row = (u64, BTreeMap<String, String>);

fn rows(path: &Path) -> Result<Vec<Row>, WayError> {
    let fail = |source| WayError::Csv {
        file: path.display().to_string(),
        source,
    };
    let mut reader = csv::Reader::from_path(path).map_err(fail)?;
    let mut out = Vec::new();
    for (i, row) in reader.deserialize().enumerate() {
        out.push((i as u64 + 2, row.map_err(fail)?));
    }
    Ok(out)
}

fn number<T: std::str::FromStr>(
    path: &Path,
    (line, row): &Row,
    column: &'static str,
) -> Result<T, WayError> {
    let value = row.get(column).cloned().unwrap_or_default();
    value.parse().map_err(|_| WayError::Field {
        file: path.display().to_string(),
        line: *line,
        column,
        value,
    })
}

/// The engine's own TTFT of each request, in the order in which its scheduler got them [s]: from there to the end of the step
/// that computed the last of its prompt. `steps` is the step log of an engine of one replica, `requests` the file beside it.
///
/// # Errors
/// Logs that cannot be read.
pub fn engine_ttft(steps: &Path, requests: &Path) -> Result<Vec<f64>, WayError> {
    let mut waiting = BTreeMap::new();
    let mut order = Vec::new();
    for row in rows(requests)? {
        let id: u64 = number(requests, &row, "id")?;
        let added: u64 = number(requests, &row, "added_ns")?;
        let prompt: u64 = number(requests, &row, "prompt_tokens")?;
        waiting.insert(id, (added as f64 / 1e9, prompt));
        order.push(id);
    }
    let mut ttft = BTreeMap::new();
    for row in rows(steps)? {
        let end: f64 = number(steps, &row, "end_s")?;
        let entries = row.1.get("entries").map_or("", String::as_str);
        for entry in entries.split_whitespace() {
            let mut parts = entry.split(':').map(str::parse::<u64>);
            let (Some(Ok(id)), Some(Ok(new)), Some(Ok(context))) =
                (parts.next(), parts.next(), parts.next())
            else {
                return Err(WayError::Field {
                    file: steps.display().to_string(),
                    line: row.0,
                    column: "entries",
                    value: entry.to_string(),
                });
            };
            if let Some((added, prompt)) = waiting.get(&id)
                && context + new >= *prompt
            {
                ttft.entry(id).or_insert(end - added);
            }
        }
    }
    Ok(order
        .iter()
        .filter_map(|id| ttft.get(id).copied())
        .collect())
}

/// Client's TTFT less the engine's [s], of the requests of a load of one user: they come one after another, so the last ones
/// of the engine are those of the record, whatever a probe sent before.
pub fn ways(record: &RunRecord, engine: &[f64]) -> Vec<f64> {
    let mut client: Vec<(u32, f64)> = record
        .request_rows
        .iter()
        .flatten()
        .filter_map(|r| Some((r.id, Metric::Ttft.of(r)?.as_secs())))
        .collect();
    client.sort_by_key(|(id, _)| *id);
    client
        .iter()
        .rev()
        .zip(engine.iter().rev())
        .map(|((_, client), engine)| client - engine)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_ttft_ends_with_the_step_that_completes_the_prompt() {
        let dir = tempfile::tempdir().unwrap();
        let (steps, requests) = (dir.path().join("s.csv"), dir.path().join("r.csv"));
        std::fs::write(
            &requests,
            "id,added_ns,prompt_tokens\n0,1000000000,8\n1,2000000000,4\n",
        )
        .unwrap();
        std::fs::write(
            &steps,
            "start_s,end_s,entries\n1.0,1.25,0:6:0\n1.25,1.5,0:2:6\n1.5,1.75,0:1:8\n2.0,2.5,1:4:0 0:1:9\n",
        )
        .unwrap();
        assert_eq!(engine_ttft(&steps, &requests).unwrap(), [0.5, 0.5]);
    }

    #[test]
    fn a_field_that_is_no_number_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.csv");
        std::fs::write(&file, "id,added_ns,prompt_tokens\n0,soon,8\n").unwrap();
        let error = engine_ttft(&file, &file).unwrap_err().to_string();
        assert!(
            error.contains("line 2") && error.contains("added_ns"),
            "{error}"
        );
    }
}
