//! A trace in the Trace Event Format, which <https://ui.perfetto.dev> opens.
//!
//! One process per replica: a lane per pipeline stage with its steps, and counters of running and waiting requests and
//! of KV use. One process for the clients: each request with its phases (queue, prefill, decode), and an arrow from its
//! sending to the step that first held it. A step's record holds its start and end, not its stages' times, so with
//! pipeline parallel each stage is drawn with an equal share of the step.

use std::io::{self, Write};

use serde_json::json;

use crate::kernel::time::SimTime;
use crate::record::{RequestRow, RunRecord, StepRow};
use crate::report::csv::outcome_name;

/// Process of the clients; replicas count from 1.
const CLIENTS: u64 = 0;

/// Writes the trace.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidInput`] where the record kept no steps or requests.
pub fn write(out: impl Write, record: &RunRecord) -> io::Result<()> {
    let (Some(steps), Some(requests)) = (&record.step_rows, &record.request_rows) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the run has more steps or requests than a trace may hold; shorten it",
        ));
    };
    let mut w = Events::new(out)?;
    w.event(
        &json!({"ph": "M", "name": "process_name", "pid": CLIENTS, "args": {"name": "clients"}}),
    )?;
    for (i, info) in record.info.replicas.iter().enumerate() {
        let pid = i as u64 + 1;
        let name = format!("replica {i} {}", info.name);
        w.event(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}))?;
        for stage in 0..info.stages.max(1) {
            let name = format!("stage {stage}");
            w.event(
                &json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": stage, "args": {"name": name}}),
            )?;
        }
    }
    for step in steps {
        write_step(&mut w, record, step)?;
    }
    for request in requests {
        write_request(&mut w, request)?;
    }
    w.finish()
}

/// The list of events, one per line.
struct Events<W> {
    out: W,
    first: bool,
}

impl<W: Write> Events<W> {
    fn new(mut out: W) -> io::Result<Events<W>> {
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        Ok(Events { out, first: true })
    }

    fn event(&mut self, event: &serde_json::Value) -> io::Result<()> {
        if !self.first {
            self.out.write_all(b",\n")?;
        }
        self.first = false;
        serde_json::to_writer(&mut self.out, event)?;
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

/// The format's unit.
fn micros(t: SimTime) -> f64 {
    t.0 as f64 / 1e3
}

fn write_step<W: Write>(w: &mut Events<W>, record: &RunRecord, step: &StepRow) -> io::Result<()> {
    let pid = u64::from(step.replica) + 1;
    let info = record.info.replicas.get(step.replica as usize);
    let stages = info.map_or(1, |i| u64::from(i.stages.max(1)));
    let s = &step.stats;
    let name = match (s.prefill_seqs, s.decode_seqs) {
        (0, _) => "decode",
        (_, 0) => "prefill",
        _ => "mixed",
    };
    let length = step.end.since(step.start).0;
    for stage in 0..stages {
        let from = SimTime(step.start.0 + length * stage / stages);
        let to = SimTime(step.start.0 + length * (stage + 1) / stages);
        let mut args = json!({
            "decode_seqs": s.decode_seqs,
            "prefill_seqs": s.prefill_seqs,
            "prefill_tokens": s.prefill_tokens,
            "context_tokens": s.decode_ctx_sum,
        });
        for (part, value) in hwmodels::Parts::NAMES.iter().zip(step.parts.as_array()) {
            if value > 0.0 {
                args[format!("{part}_ms")] = json!(value * 1e3);
            }
        }
        w.event(&json!({
            "ph": "X", "cat": "step", "name": name, "pid": pid, "tid": stage,
            "ts": micros(from), "dur": micros(to) - micros(from), "args": args,
        }))?;
    }
    let ts = micros(step.start);
    w.event(&json!({
        "ph": "C", "name": "requests", "pid": pid, "ts": ts,
        "args": {"running": step.running, "waiting": step.waiting},
    }))?;
    w.event(&json!({
        "ph": "C", "name": "KV blocks", "pid": pid, "ts": ts, "args": {"used": step.kv_used_blocks},
    }))
}

fn write_request<W: Write>(w: &mut Events<W>, r: &RequestRow) -> io::Result<()> {
    let id = r.id;
    let mut span = |name: &str, from: SimTime, to: SimTime, args: serde_json::Value| {
        w.event(&json!({
            "ph": "b", "cat": "request", "id": id, "name": name, "pid": CLIENTS, "tid": r.stream,
            "ts": micros(from), "args": args,
        }))?;
        w.event(&json!({
            "ph": "e", "cat": "request", "id": id, "name": name, "pid": CLIENTS, "tid": r.stream,
            "ts": micros(to),
        }))
    };
    let args = json!({
        "prompt_tokens": r.prompt_tokens,
        "cached_tokens": r.cached_tokens,
        "output_tokens": r.output_tokens,
        "preemptions": r.preemptions,
        "replica": r.replica,
        "outcome": outcome_name(r.outcome),
    });
    // The viewer nests what lies inside, so the whole comes first.
    span(&format!("request {id}"), r.arrival, r.end, args)?;
    let scheduled = r.first_scheduled.min(r.end);
    let token = r.first_token.min(r.end);
    span("queue", r.arrival, scheduled, json!({}))?;
    if r.first_scheduled < r.end {
        span("prefill", scheduled, token, json!({}))?;
        if r.first_token < r.end {
            span("decode", token, r.end, json!({}))?;
        }
        w.event(&json!({
            "ph": "X", "cat": "send", "name": "send", "pid": CLIENTS, "tid": r.stream,
            "ts": micros(r.arrival), "dur": 0,
        }))?;
        w.event(&json!({
            "ph": "s", "cat": "flow", "id": id, "name": "to first step", "pid": CLIENTS, "tid": r.stream,
            "ts": micros(r.arrival),
        }))?;
        w.event(&json!({
            "ph": "f", "bp": "e", "cat": "flow", "id": id, "name": "to first step",
            "pid": u64::from(r.replica) + 1, "tid": 0, "ts": micros(r.first_scheduled),
        }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::time::SimDuration;
    use crate::metrics::{RecordOptions, Recorder};
    use crate::policy::Blocked;
    use crate::record::{ReplicaInfo, RunInfo};
    use crate::request::Outcome;

    fn record(max_step_rows: usize) -> RunRecord {
        let mut r = Recorder::new(&RecordOptions {
            max_step_rows,
            ..RecordOptions::default()
        });
        r.offered(SimTime(1_000));
        let mut stats = hwmodels::BatchStats::default();
        stats.add_prefill(10, 0, true);
        r.step(&StepRow {
            replica: 0,
            start: SimTime(2_000),
            end: SimTime(6_000),
            stats,
            parts: hwmodels::Parts {
                compute: 4e-6,
                ..hwmodels::Parts::default()
            },
            running: 1,
            waiting: 0,
            kv_used_blocks: 1,
            blocked: Blocked::Nothing,
        });
        r.request(&RequestRow {
            id: 7,
            stream: 0,
            replica: 0,
            prompt_tokens: 10,
            cached_tokens: 0,
            output_tokens: 2,
            preemptions: 0,
            arrival: SimTime(1_000),
            first_scheduled: SimTime(2_000),
            first_token: SimTime(6_000),
            end: SimTime(9_000),
            outcome: Outcome::Finished,
        });
        let info = RunInfo {
            replicas: vec![ReplicaInfo {
                name: "a".into(),
                devices: 2,
                stages: 2,
                kv_blocks: 10,
                block_tokens: 16,
            }],
            ..RunInfo::default()
        };
        r.finish(SimTime::ZERO + SimDuration(9_000), info).unwrap()
    }

    #[test]
    fn the_trace_is_json_with_a_lane_per_stage_spans_that_close_and_flows_that_arrive() {
        let mut bytes = Vec::new();
        write(&mut bytes, &record(10)).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let count = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
        assert_eq!(count("b"), 4);
        assert_eq!(count("b"), count("e"));
        assert_eq!((count("s"), count("f")), (1, 1));
        let steps: Vec<_> = events.iter().filter(|e| e["cat"] == "step").collect();
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[1]["ts"], 4.0);
        assert_eq!(steps[1]["dur"], 2.0);
        assert_eq!(steps[0]["args"]["compute_ms"], 4e-3);
        assert_eq!(count("C"), 2);
    }

    #[test]
    fn a_record_without_steps_has_no_trace() {
        let error = write(Vec::new(), &record(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
