//! Pools, models and transfers in the text of a report.

use std::fmt::Write as _;

use crate::cluster::pools::Role;
use crate::report::figures::{field, figure};
use crate::report::latency_line::latency_line;
use crate::report::summary::RunReport;

/// Writes the lines of a report on pools, models and transfers.
///
/// # Errors
/// Those of `out`.
pub fn write_latencies(out: &mut String, r: &RunReport) -> std::fmt::Result {
    for m in &r.models {
        writeln!(out, "\n  model {}: {}", m.model, m.requests.in_words())?;
        latency_line(out, "TTFT", &m.ttft_ms)?;
        latency_line(out, "TPOT", &m.tpot_ms)?;
        latency_line(out, "E2E", &m.e2e_ms)?;
    }
    if let Some(t) = &r.kv_transfer {
        writeln!(out)?;
        latency_line(out, "KV transfer", &t.time_ms)?;
        latency_line(out, "wait for blocks", &t.wait_ms)?;
        latency_line(out, "KV held", &t.held_ms)?;
    }
    Ok(())
}

/// Writes a line for each pool.
///
/// # Errors
/// Those of `out`.
pub fn write_use(out: &mut String, r: &RunReport) -> std::fmt::Result {
    for p in &r.pools {
        let role = match p.role {
            Role::Both => "",
            Role::Prefill => " (prefill)",
            Role::Decode => " (decode)",
        };
        let held = if p.role == Role::Prefill {
            format!(
                ", of which {:.1} % held for transfers",
                100.0 * p.kv_held_for_transfer_ratio
            )
        } else {
            String::new()
        };
        field(
            out,
            &format!("pool {}", p.name),
            &format!(
                "{} x {} devices{role}; a step under way {:.1} % of the time, with {} requests in it; KV in use {:.1} %, peak {:.1} %{held}",
                p.replicas,
                p.devices / p.replicas.max(1),
                100.0 * p.busy_ratio,
                figure(p.mean_running),
                100.0 * p.kv_mean_ratio,
                100.0 * p.kv_peak_ratio,
            ),
        )?;
    }
    if let Some(g) = &r.gateway {
        field(
            out,
            "gateway",
            &format!(
                "sent requests again {} times; ejected replicas {} times; refused {} for its limit",
                g.retries, g.ejections, g.overflowed
            ),
        )?;
    }
    if let Some(t) = &r.kv_transfer {
        let broken = if t.broken_off > 0 {
            format!("; {} broken off", t.broken_off)
        } else {
            String::new()
        };
        field(
            out,
            "KV transfers",
            &format!("{} of {} GB in all{broken}", t.count, figure(t.bytes / 1e9)),
        )?;
    }
    Ok(())
}
