//! Measured times, and what the model says of them.

use hwmodels::ops::collective::{AllReduceImpl, CollectiveModel, Fabric, Group, Launch};
use hwmodels::profile::Profile;

/// A collective operation of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Op {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Send,
}

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::AllReduce => "all_reduce",
            Op::AllGather => "all_gather",
            Op::ReduceScatter => "reduce_scatter",
            Op::AllToAll => "all_to_all",
            Op::Send => "send",
        }
    }
}

/// One measured time, and what the model must be asked for it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Device as reports name it.
    pub(super) device: &'static str,
    pub(super) fabric: Fabric,
    /// Library and version, e.g. `nccl 2.27.3`.
    pub(super) library: String,
    pub(super) op: Op,
    pub(super) implementation: AllReduceImpl,
    pub(super) launch: Launch,
    pub(super) group: Group,
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    /// Stage that fits this row, where one does.
    pub(super) stage: Option<Stage>,
    /// What the row is held out for (`ranks 4`, `other device`, ...), or `fitted`.
    pub(super) split: &'static str,
}

impl Row {
    pub(super) fn predict(&self, model: &CollectiveModel) -> f64 {
        match self.op {
            Op::AllReduce => {
                model.all_reduce(self.bytes, self.group, self.implementation, self.launch)
            }
            Op::AllGather => model.all_gather(self.bytes, self.group),
            Op::ReduceScatter => model.reduce_scatter(self.bytes, self.group),
            Op::AllToAll => model.all_to_all(self.bytes, self.group),
            Op::Send => model.send(self.bytes, self.group.nodes > 1),
        }
    }
}

/// Parameters that are fitted together: those whose name holds one of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stage {
    pub(super) link: &'static str,
    pub(super) what: &'static str,
}

impl Stage {
    pub(super) fn owns(&self, parameter: &str) -> bool {
        let Some(rest) = parameter
            .strip_prefix("collective.")
            .and_then(|p| p.strip_prefix(self.link))
            .and_then(|p| p.strip_prefix('.'))
        else {
            return false;
        };
        let host = rest.ends_with("host_latency") || rest.starts_with("eager_copy");
        let starts = |prefixes: &[&str]| prefixes.iter().any(|p| rest.starts_with(p));
        match self.what {
            "ring" => starts(&[
                "nccl.ring",
                "nccl.local_copy",
                "nccl.nvls",
                "nccl.socket_crossing",
            ]),
            "all_to_all" => rest.starts_with("nccl.all_to_all"),
            "send" => rest.starts_with("nccl.send"),
            "vllm" => !host && starts(&["vllm.", "multimem."]),
            "trtllm" => !host && rest.starts_with("trtllm."),
            // Of NCCL outside graphs and of TensorRT-LLM's host time there are no rows.
            "host" => host && !starts(&["nccl.", "trtllm."]),
            _ => false,
        }
    }
}

/// Logarithms of predicted over measured times.
pub(super) fn log_errors(rows: &[&Row], profile: &Profile) -> Vec<f64> {
    let mut last: Option<(Fabric, CollectiveModel)> = None;
    rows.iter()
        .map(|row| {
            let model = match &last {
                Some((fabric, model)) if *fabric == row.fabric => model,
                _ => {
                    let model = CollectiveModel::unfitted(&row.fabric, profile);
                    &last.insert((row.fabric, model)).1
                }
            };
            (row.predict(model) / row.seconds).ln()
        })
        .collect()
}
