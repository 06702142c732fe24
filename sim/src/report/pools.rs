//! What each pool of replicas did, how the requests for each model fared, and the KV that went between pools.

use serde::{Deserialize, Serialize};

use crate::cluster::pools::Role;
use crate::kernel::time::SimTime;
use crate::metrics::definition::Metric;
use crate::metrics::distribution::Distribution;
use crate::record::{RunRecord, TransferRecord, TransferRow};
use crate::report::counts::RequestCounts;
use crate::report::csv::instant;
use crate::report::latency::LatencySummary;

/// A pool of replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PoolReport {
    /// Its name.
    pub name: String,
    /// What its replicas do of a request.
    pub role: Role,
    /// The model that it serves; empty where the scenario has none.
    pub model: String,
    /// Replicas; in a cluster all that ever were ready.
    pub replicas: u64,
    /// Accelerators they span.
    pub devices: u64,
    /// Share of time with a step under way, mean over its replicas [0, 1].
    pub busy_ratio: f64,
    /// Running requests per replica, time-weighted over busy time.
    pub mean_running: f64,
    /// Time-weighted mean use of its KV blocks [0, 1].
    pub kv_mean_ratio: f64,
    /// Most blocks in use on one of its replicas, of those it has [0, 1].
    pub kv_peak_ratio: f64,
    /// Share of its KV, time-weighted, that held prompts whose KV had not been fetched yet [0, 1].
    pub kv_held_for_transfer_ratio: f64,
}

/// How the requests for one of several models fared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ModelReport {
    /// The model.
    pub model: String,
    /// Requests over the whole run.
    pub requests: RequestCounts,
    /// Time to first token [ms].
    pub ttft_ms: LatencySummary,
    /// Time per output token [ms].
    pub tpot_ms: LatencySummary,
    /// End-to-end latency [ms].
    pub e2e_ms: LatencySummary,
}

/// KV that went from prefill pools to decode pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KvTransferReport {
    /// Transfers completed in the measurement window.
    pub count: u64,
    /// Transfers broken off over the whole run: the client left, or a replica died.
    pub broken_off: u64,
    /// What they moved [bytes].
    pub bytes: f64,
    /// From when the receiver's blocks were set aside until all was there [ms].
    pub time_ms: LatencySummary,
    /// From the end of the prefill until the receiver's blocks were set aside [ms].
    pub wait_ms: LatencySummary,
    /// From the end of the prefill until the sender's blocks were free [ms].
    pub held_ms: LatencySummary,
}

impl KvTransferReport {
    /// That of `record`, if KV went between its replicas.
    pub fn of(record: &RunRecord) -> Option<KvTransferReport> {
        let t = record.transfers.as_ref()?;
        let start = SimTime::ZERO + record.warmup;
        let exact = |of: &dyn Fn(&TransferRow) -> u64, rough: &Distribution| match &t.rows {
            Some(rows) => {
                let measured = rows.iter().filter(|r| r.ended >= start);
                LatencySummary::of_values(measured.map(of).collect())
            }
            None => LatencySummary::of_distribution(rough),
        };
        Some(KvTransferReport {
            count: t.count,
            broken_off: t.broken_off,
            bytes: t.bytes as f64,
            time_ms: exact(&|r| r.ended.since(r.began).0, &t.time),
            wait_ms: exact(&|r| r.began.since(r.prefilled).0, &t.wait),
            held_ms: exact(&|r| r.ended.since(r.prefilled).0, &t.held),
        })
    }
}

/// The pools of `record`, where it had several.
pub fn pools(record: &RunRecord) -> Vec<PoolReport> {
    let length = record.window.length.0 as f64;
    let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
    let lives = super::lives::lives(record);
    let life = |i: usize| match &lives {
        Some(lives) => lives.get(i).copied().unwrap_or(0.0),
        None => length,
    };
    let mut all = Vec::new();
    for (pool, own) in record.info.pools.iter().zip(record.replicas_of_pools()) {
        let there: f64 = own.iter().map(|i| life(*i)).sum();
        let infos: Vec<_> = own
            .iter()
            .filter_map(|i| record.info.replicas.get(*i))
            .collect();
        let uses: Vec<_> = own.iter().filter_map(|i| record.replicas.get(*i)).collect();
        let busy: f64 = uses.iter().map(|u| u.busy.0 as f64).sum();
        let running: f64 = uses.iter().map(|u| u.running_ns as f64).sum();
        let over_time = |of: &dyn Fn(&crate::record::ReplicaInfo) -> f64| -> f64 {
            match lives {
                Some(_) => (own.iter().zip(&infos))
                    .map(|(i, r)| of(r) * life(*i))
                    .sum(),
                None => infos.iter().map(|r| of(r)).sum::<f64>() * length,
            }
        };
        let used: f64 = uses.iter().map(|u| u.kv_block_ns as f64).sum();
        all.push(PoolReport {
            name: pool.name.clone(),
            role: pool.role,
            model: pool.model.clone(),
            replicas: u64::from(pool.replicas),
            devices: infos.iter().map(|i| u64::from(i.devices)).sum(),
            busy_ratio: share(busy, there),
            mean_running: share(running, busy),
            kv_mean_ratio: share(used, over_time(&|i| i.kv_blocks as f64)),
            kv_peak_ratio: (infos.iter().zip(&uses))
                .map(|(i, u)| share(u.kv_peak_blocks as f64, i.kv_blocks as f64))
                .fold(0.0, f64::max),
            kv_held_for_transfer_ratio: match &record.transfers {
                Some(t) => share(
                    held(t, &own),
                    over_time(&|i| i.kv_blocks as f64 * f64::from(i.block_tokens)),
                ),
                None => 0.0,
            },
        });
    }
    all
}

fn held(t: &TransferRecord, replicas: &[usize]) -> f64 {
    (replicas.iter().filter_map(|i| t.held_token_ns.get(*i)))
        .map(|ns| *ns as f64)
        .sum()
}

/// The models that the streams of `record` ask for, where there are several and request rows are kept.
pub fn models(record: &RunRecord) -> Vec<ModelReport> {
    let asked = &record.info.stream_models;
    let mut names: Vec<&String> = Vec::new();
    for name in asked {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let (Some(rows), true) = (&record.request_rows, names.len() > 1) else {
        return Vec::new();
    };
    let start = SimTime::ZERO + record.warmup;
    let of = |name: &&String| {
        let own = || (rows.iter()).filter(|r| asked.get(usize::from(r.stream)) == Some(*name));
        let mut requests = RequestCounts::default();
        for row in own() {
            requests.count(row.outcome);
        }
        let latency = |metric: Metric| {
            let measured = own().filter(|r| r.arrival >= start);
            LatencySummary::of_values(measured.filter_map(|r| metric.of(r)).map(|d| d.0).collect())
        };
        ModelReport {
            model: (*name).clone(),
            requests,
            ttft_ms: latency(Metric::Ttft),
            tpot_ms: latency(Metric::Tpot),
            e2e_ms: latency(Metric::E2e),
        }
    };
    names.iter().map(of).collect()
}

/// Writes a row per transfer, in the order of their ends.
///
/// # Errors
/// Those of the writer.
pub fn write_transfers(out: impl std::io::Write, rows: &[TransferRow]) -> std::io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    w.write_record([
        "request",
        "from",
        "to",
        "tokens",
        "bytes",
        "prefilled_s",
        "began_s",
        "ended_s",
    ])?;
    for row in rows {
        w.write_record([
            row.request.to_string(),
            row.from.to_string(),
            row.to.to_string(),
            row.tokens.to_string(),
            row.bytes.to_string(),
            instant(row.prefilled),
            instant(row.began),
            instant(row.ended),
        ])?;
    }
    w.flush()
}
