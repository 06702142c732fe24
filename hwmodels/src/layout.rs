//! How one replica is spread over devices, and where its ranks lie.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::accelerator::Accelerator;
use crate::catalog::Catalog;
use crate::engine::EngineKind;
use crate::error::Error;
use crate::instance::Instance;
use crate::link::Link;
use crate::model::ModelArch;
use crate::ops::collective::{Fabric, Group, LinkClass, Network};
use crate::recurrence::Recurrence;

/// Parallel layout of one replica.
///
/// Independent copies of a model are separate replicas behind a router. `dp` is for mixtures of experts: ranks that each run
/// attention for requests of their own, with a scheduler and a KV cache of their own, and meet in the expert layers of every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Layout {
    /// Tensor-parallel ranks per stage and data-parallel rank.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel attention ranks, of `tp` devices each (vLLM's `--data-parallel-size`; TensorRT-LLM's `enable_attention_dp`
    /// on `n` GPUs is `dp = n`, `tp = 1`).
    pub dp: u32,
    /// Expert-parallel ranks within a stage: 1 splits every expert over its `dp * tp` ranks,
    /// `dp * tp` gives each rank whole experts.
    pub ep: u32,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dp > 1 {
            write!(f, "DP {} x ", self.dp)?;
        }
        write!(f, "TP {}", self.tp)?;
        if self.pp > 1 {
            write!(f, " x PP {}", self.pp)?;
        }
        if self.ep > 1 {
            write!(f, ", EP {}", self.ep)?;
        }
        Ok(())
    }
}

/// Most ranks of a replica that are considered.
const MAX_RANKS: u32 = 4096;

impl Layout {
    /// One device.
    pub const SINGLE: Layout = Layout {
        tp: 1,
        pp: 1,
        dp: 1,
        ep: 1,
    };

    /// Ranks of the replica: devices on GPUs, NeuronCores on Neuron chips.
    pub fn devices(self) -> u32 {
        self.stage_ranks().saturating_mul(self.pp)
    }

    /// Ranks of one pipeline stage, over which its experts are spread.
    pub fn stage_ranks(self) -> u32 {
        self.tp.saturating_mul(self.dp)
    }

    /// Checks the rules that the model's shape sets.
    ///
    /// Query heads and the feed-forward size must divide over `tp`; key/value heads must divide or be replicated
    /// evenly; experts must divide over `ep` and each over the `dp * tp / ep` ranks that share it; every stage needs a layer.
    /// Data-parallel attention takes experts, one stage, and vLLM V1 or TensorRT-LLM.
    /// Neuron compilers pad heads and sizes, so there `tp` need not divide them.
    ///
    /// # Errors
    /// The first broken rule, with the values and what would be right.
    pub fn check(self, model: &ModelArch, engine: EngineKind) -> Result<(), Error> {
        self.check_rules(model, engine)
            .map_err(|message| Error::Layout {
                layout: self.to_string(),
                message,
            })
    }

    fn check_rules(self, m: &ModelArch, engine: EngineKind) -> Result<(), String> {
        let Layout { tp, pp, dp, ep } = self;
        if tp == 0 || pp == 0 || dp == 0 || ep == 0 {
            return Err("tp, pp, dp and ep must be at least 1".to_owned());
        }
        if self.devices() > MAX_RANKS {
            return Err(format!(
                "{} ranks are more than the {MAX_RANKS} that are supported",
                self.devices()
            ));
        }
        if pp > m.layers {
            return Err(format!(
                "{} has {} layers, fewer than the {pp} pipeline stages",
                m.name, m.layers
            ));
        }
        let moe = m.moe;
        let ranks = self.stage_ranks();
        if dp > 1 && moe.is_none() {
            return Err(format!(
                "{} has no experts, so data-parallel ranks have nothing in common: set replicas = {dp} in place of dp",
                m.name
            ));
        }
        check_attention(m, engine)?;
        self.check_attention_ranks(engine)?;
        self.check_stages(engine)?;
        if ep > 1 {
            let Some(moe) = moe else {
                return Err(format!("{} has no experts, so ep must be 1", m.name));
            };
            if !ranks.is_multiple_of(ep) {
                return Err(format!("ep ({ep}) must divide dp x tp ({ranks})"));
            }
            if !moe.experts.is_multiple_of(ep) {
                return Err(format!(
                    "ep ({ep}) must divide the {} experts of {}",
                    moe.experts, m.name
                ));
            }
        }
        if engine == EngineKind::TgiNeuron {
            return Ok(());
        }
        let divisors = |n: u32| {
            let fits: Vec<String> = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64]
                .into_iter()
                .filter(|d| n.is_multiple_of(*d))
                .map(|d: u32| d.to_string())
                .collect();
            fits.join(", ")
        };
        if !m.heads.is_multiple_of(tp) {
            return Err(format!(
                "tp ({tp}) must divide the {} attention heads of {}; possible: {}",
                m.heads,
                m.name,
                divisors(m.heads)
            ));
        }
        if !m.kv_heads.is_multiple_of(tp) && !tp.is_multiple_of(m.kv_heads) {
            return Err(format!(
                "tp ({tp}) must divide the {} key/value heads of {} or be a multiple of them",
                m.kv_heads, m.name
            ));
        }
        if !m.intermediate.is_multiple_of(tp) {
            return Err(format!(
                "tp ({tp}) must divide the feed-forward size {} of {}; possible: {}",
                m.intermediate,
                m.name,
                divisors(m.intermediate)
            ));
        }
        if let Some(r) = m.recurrence {
            check_states(&r, m, tp)?;
        }
        if let Some(moe) = moe {
            let share = ranks / ep;
            if !moe.expert_intermediate.is_multiple_of(share) {
                return Err(format!(
                    "dp x tp / ep ({share}) must divide the expert size {} of {}; a larger ep keeps experts whole",
                    moe.expert_intermediate, m.name
                ));
            }
        }
        Ok(())
    }

    /// Checks what data-parallel attention asks of the engine and of the other axes, whatever the model.
    ///
    /// # Errors
    /// What does not go together, and what would be right.
    pub fn check_attention_ranks(self, engine: EngineKind) -> Result<(), String> {
        if self.dp > 1
            && !matches!(
                engine,
                EngineKind::VllmV1 | EngineKind::TrtLlm | EngineKind::Sglang
            )
        {
            return Err(format!(
                "{engine} has no data-parallel attention (vllm_v1, trt_llm and sglang have); set layout.replicas for independent copies"
            ));
        }
        if self.dp > 1 && self.pp > 1 {
            return Err(
                "does not go together with pipeline stages here; set layout.pp = 1".to_owned(),
            );
        }
        Ok(())
    }

    /// Checks what pipeline stages ask of the engine.
    ///
    /// # Errors
    /// An engine whose stages are not modelled.
    pub fn check_stages(self, engine: EngineKind) -> Result<(), String> {
        if self.pp > 1 && engine == EngineKind::Sglang {
            return Err(
                "must be 1: SGLang's scheduler for pipeline stages is not modelled; raise layout.tp"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Layers of each stage. Where they do not divide evenly, vLLM gives the extra ones to the stages before the
    /// last (which has the LM head), from the back; the others give them to the first stages.
    /// Every stage has at least one layer when `pp <= layers`.
    pub fn stage_layers(self, layers: u32, engine: EngineKind) -> Vec<Range<u32>> {
        let pp = self.pp.max(1);
        let (base, extra) = (layers / pp, layers % pp);
        let vllm = engine == EngineKind::VllmV1;
        let mut start = 0;
        (0..pp)
            .map(|stage| {
                let has_extra = if vllm {
                    stage + 1 < pp && stage + 1 + extra >= pp
                } else {
                    stage < extra
                };
                let end = start + base + u32::from(has_extra);
                let range = start..end;
                start = end;
                range
            })
            .collect()
    }
}

/// Checks that the heads of layers with a state divide over the ranks, and their key heads (groups) divide or are copied whole.
fn check_states(r: &Recurrence, m: &ModelArch, tp: u32) -> Result<(), String> {
    if !r.value_heads.is_multiple_of(tp) {
        return Err(format!(
            "tp ({tp}) must divide the {} heads of the layers of {} with a state",
            r.value_heads, m.name
        ));
    }
    if !r.key_heads.is_multiple_of(tp) && !tp.is_multiple_of(r.key_heads) {
        return Err(format!(
            "tp ({tp}) must divide the {} key heads (groups) of the layers of {} with a state or be a multiple of them",
            r.key_heads, m.name
        ));
    }
    Ok(())
}

/// Refuses kinds of attention that are not modelled for `engine`.
fn check_attention(m: &ModelArch, engine: EngineKind) -> Result<(), String> {
    let current = matches!(
        engine,
        EngineKind::VllmV1 | EngineKind::TrtLlm | EngineKind::Sglang
    );
    if let Some(r) = m.recurrence.filter(|_| !current) {
        return Err(format!(
            "{} has layers of {}, which are modelled for vLLM V1, TensorRT-LLM and SGLang: set engine.kind to one of them",
            m.name,
            r.rule.name()
        ));
    }
    if m.indexer.is_some() && !current {
        return Err(format!(
            "{} has sparse attention, which is modelled for vLLM V1, TensorRT-LLM and SGLang: set engine.kind to one of them",
            m.name
        ));
    }
    Ok(())
}

/// Where the ranks of one replica lie on nodes of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The layout.
    pub layout: Layout,
    /// The device, as the catalog has it.
    pub accelerator: Accelerator,
    /// The node type.
    pub instance: Instance,
    /// Ranks that one node serves.
    pub node_ranks: u32,
    /// Nodes that the replica takes; stages fill a node before the next begins.
    pub nodes: u32,
    /// Stages on each full node.
    pub stages_per_node: u32,
    /// Replicas of this layout that one node holds (0 when a replica needs several nodes).
    pub replicas_per_node: u32,
    /// Layers of each stage.
    pub stage_layers: Vec<Range<u32>>,
    /// Link that joins the ranks of a stage on one node; `None` for a single rank, or for cores of one chip.
    pub tp_link: Option<Link>,
    /// Link that joins consecutive stages on one node.
    pub stage_link: Option<Link>,
    /// Network that joins stages or data-parallel ranks on different nodes; `None` when the replica stays on one.
    pub network: Option<Link>,
}

impl Placement {
    /// Places a replica of `model` on nodes of type `instance`.
    ///
    /// # Errors
    /// Unknown names, and every broken rule: those of [`Layout::check`], a tensor-parallel group that does not fill whole nodes or is larger than
    /// one where the engine joins none, several nodes where the engine runs on one.
    pub fn new(
        catalog: &Catalog,
        model: &ModelArch,
        instance: &str,
        layout: Layout,
        engine: EngineKind,
    ) -> Result<Self, Error> {
        let instance = catalog.instance(instance)?;
        let accelerator = catalog.accelerator(&instance.accelerator)?;
        layout.check(model, engine)?;
        let impossible = |message: String| Error::Layout {
            layout: layout.to_string(),
            message,
        };
        let node_ranks = instance.ranks(accelerator);
        let Layout { tp, pp, .. } = layout;
        let stage_ranks = layout.stage_ranks();
        let joins_nodes = matches!(
            engine,
            EngineKind::VllmV1 | EngineKind::TrtLlm | EngineKind::Sglang
        );
        if tp > node_ranks && !joins_nodes {
            return Err(impossible(format!(
                "tensor-parallel ranks of {engine} must share a node and {} has {node_ranks}; use TP {node_ranks} or less",
                instance.name
            )));
        }
        if stage_ranks > node_ranks && !stage_ranks.is_multiple_of(node_ranks) {
            return Err(impossible(format!(
                "{stage_ranks} data-parallel and tensor-parallel ranks do not fill whole nodes of {node_ranks}; use TP {node_ranks} or less with more pipeline stages"
            )));
        }
        let stages_per_node = (node_ranks / stage_ranks).clamp(1, pp);
        let nodes = if stage_ranks > node_ranks {
            pp * (stage_ranks / node_ranks)
        } else {
            pp.div_ceil(stages_per_node)
        };
        if nodes > 1 && matches!(engine, EngineKind::Tgi | EngineKind::TgiNeuron) {
            return Err(impossible(format!(
                "{engine} runs on one node, and {} ranks need {nodes} nodes of type {}",
                layout.devices(),
                instance.name
            )));
        }
        let intra = match &instance.intra_link {
            Some(name) => Some(catalog.link(name)?.clone()),
            None => None,
        };
        let network = catalog.link(&instance.network_link)?.clone();
        let many_chips = |ranks: u32| ranks > accelerator.ranks_per_device;
        Ok(Self {
            layout,
            node_ranks,
            nodes,
            stages_per_node,
            replicas_per_node: if nodes > 1 {
                0
            } else {
                node_ranks / layout.devices()
            },
            stage_layers: layout.stage_layers(model.layers, engine),
            tp_link: intra.clone().filter(|_| many_chips(stage_ranks)),
            stage_link: intra
                .filter(|_| stages_per_node > 1 && many_chips(stage_ranks * stages_per_node)),
            network: (nodes > 1).then_some(network),
            accelerator: accelerator.clone(),
            instance: instance.clone(),
        })
    }

    /// Chips or GPUs that the replica takes.
    pub fn devices(&self) -> u32 {
        self.layout
            .devices()
            .div_ceil(self.accelerator.ranks_per_device)
    }

    /// The node (from 0) that stage `stage` lies on.
    pub fn node_of_stage(&self, stage: u32) -> u32 {
        stage / self.stages_per_node
    }

    /// True when the send from stage `stage` to the next goes over the network.
    pub fn crosses_nodes(&self, stage: u32) -> bool {
        stage + 1 < self.layout.pp && self.node_of_stage(stage) != self.node_of_stage(stage + 1)
    }

    /// The tensor-parallel group, as collectives see it.
    pub fn tp_group(&self) -> Group {
        match self.layout.tp.div_ceil(self.node_ranks) {
            0 | 1 => Group::within_node(self.layout.tp),
            nodes => Group::across(self.layout.tp, nodes),
        }
    }

    /// What connects the ranks, for the collective model. A node with one device has no link inside; its class does
    /// not matter then and PCIe through the host is named.
    pub fn fabric(&self) -> Fabric {
        let link = self.tp_link.as_ref().or(self.stage_link.as_ref());
        let class = link
            .and_then(|l| l.kind.class())
            .unwrap_or(LinkClass::PcieHost);
        Fabric {
            link: class,
            link_bandwidth: link.map_or(self.accelerator.host_bandwidth, |l| l.bandwidth),
            memory_bandwidth: self.accelerator.memory_bandwidth,
            devices_per_node: self.node_ranks,
            host_path: self.instance.host_path.unwrap_or_default(),
            paired_access: self.accelerator.peer_access,
            sockets: self.instance.sockets,
            network: self.network.as_ref().and_then(|n| {
                Some(Network {
                    class: n.kind.network_class()?,
                    node_bandwidth: self.instance.network_bandwidth,
                })
            }),
        }
    }

    /// Whether the ranks of a stage exchange bytes through a host that nobody describes ([`Instance::host_path`]): what that costs hangs on it.
    pub fn hangs_on_host_path(&self) -> bool {
        let ranks = self.layout.stage_ranks();
        self.instance.host_path.is_none() && ranks > 1 && self.fabric().is_staged(f64::from(ranks))
    }

    /// Price of the share of the nodes that the replica takes [USD/h] on `date` (`None`: the newest),
    /// or `None` where no price is listed.
    pub fn usd_per_hour(&self, date: Option<&str>) -> Option<f64> {
        let price = match date {
            Some(d) => self.instance.price_on(d)?,
            None => self.instance.price()?,
        };
        let per_node = price.usd.usd_per_hour();
        Some(if self.nodes > 1 {
            per_node * f64::from(self.nodes)
        } else {
            per_node * f64::from(self.layout.devices()) / f64::from(self.node_ranks)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(tp: u32, pp: u32, ep: u32) -> Layout {
        Layout { tp, pp, dp: 1, ep }
    }

    fn attention_dp(dp: u32, tp: u32, ep: u32) -> Layout {
        Layout { tp, pp: 1, dp, ep }
    }

    fn check(model: &str, l: Layout) -> Result<(), String> {
        let catalog = Catalog::builtin();
        l.check(catalog.model(model).unwrap(), EngineKind::VllmV1)
            .map_err(|e| e.to_string())
    }

    fn place(
        model: &str,
        instance: &str,
        l: Layout,
        engine: EngineKind,
    ) -> Result<Placement, Error> {
        let c = Catalog::builtin();
        Placement::new(&c, c.model(model).unwrap(), instance, l, engine)
    }

    #[test]
    fn heads_must_divide_over_tensor_parallel_ranks() {
        assert!(check("llama-2-7b", layout(8, 1, 1)).is_ok());
        let e = check("llama-2-7b", layout(3, 1, 1)).unwrap_err();
        assert!(
            e.contains("32 attention heads") && e.contains("1, 2, 4, 8"),
            "{e}"
        );
        let e = check("falcon-7b", layout(2, 1, 1)).unwrap_err();
        assert!(e.contains("71 attention heads"), "{e}");
        let e = check("qwen2.5-7b", layout(7, 1, 1)).unwrap_err();
        assert!(e.contains("key/value heads"), "{e}");
    }

    #[test]
    fn key_value_heads_are_replicated_when_there_are_more_ranks() {
        assert!(check("llama-3.1-8b", layout(16, 1, 1)).is_ok());
        assert!(check("falcon-180b", layout(8, 1, 1)).is_ok());
    }

    #[test]
    fn experts_divide_over_expert_parallel_ranks() {
        assert!(check("deepseek-v3", layout(8, 1, 8)).is_ok());
        assert!(check("mixtral-8x7b", layout(4, 1, 2)).is_ok());
        assert!(
            check("llama-2-7b", layout(2, 1, 2))
                .unwrap_err()
                .contains("no experts")
        );
        assert!(
            check("mixtral-8x7b", layout(4, 1, 3))
                .unwrap_err()
                .contains("must divide dp x tp")
        );
    }

    #[test]
    fn data_parallel_attention_is_for_mixtures_of_experts() {
        assert!(check("deepseek-v3", attention_dp(8, 1, 8)).is_ok());
        assert!(check("deepseek-v3", attention_dp(4, 2, 8)).is_ok());
        let refused = |model, l| check(model, l).unwrap_err();
        assert!(refused("llama-2-7b", attention_dp(2, 1, 1)).contains("replicas = 2"));
        assert!(refused("deepseek-v3", attention_dp(8, 1, 3)).contains("must divide dp x tp (8)"));
        let stages = Layout {
            pp: 2,
            ..attention_dp(4, 1, 4)
        };
        assert!(refused("deepseek-v3", stages).contains("pp = 1"));
        let c = Catalog::builtin();
        let e = attention_dp(2, 1, 1)
            .check(c.model("mixtral-8x7b").unwrap(), EngineKind::Tgi)
            .unwrap_err();
        assert!(e.to_string().contains("vllm_v1, trt_llm and sglang"), "{e}");
    }

    #[test]
    fn data_parallel_ranks_fill_nodes() {
        let on = |model, l| place(model, "p5en.48xlarge", l, EngineKind::VllmV1);
        let place = |l| on("deepseek-v3", l);
        let one = place(attention_dp(8, 1, 8)).unwrap();
        assert_eq!((one.nodes, one.replicas_per_node), (1, 1));
        assert_eq!((one.devices(), one.network), (8, None));
        let two = place(attention_dp(16, 1, 16)).unwrap();
        assert_eq!(
            (two.nodes, two.replicas_per_node, two.devices()),
            (2, 0, 16)
        );
        assert!(two.network.is_some() && two.tp_link.is_some());
        let e = on("qwen3-235b-a22b", attention_dp(12, 1, 4));
        let e = e.unwrap_err().to_string();
        assert!(e.contains("whole nodes of 8"), "{e}");
    }

    #[test]
    fn zero_and_absurd_ranks_are_refused() {
        for l in [
            layout(0, 1, 1),
            layout(1, 0, 1),
            layout(1, 1, 0),
            layout(u32::MAX, u32::MAX, 1),
        ] {
            assert!(check("llama-2-7b", l).is_err());
        }
        assert!(
            check("llama-2-7b", layout(1, 33, 1))
                .unwrap_err()
                .contains("32 layers")
        );
    }

    #[test]
    fn uneven_stages_put_the_extra_layers_where_the_engine_does() {
        let sizes = |pp, layers, engine| -> Vec<usize> {
            layout(1, pp, 1)
                .stage_layers(layers, engine)
                .iter()
                .map(ExactSizeIterator::len)
                .collect()
        };
        assert_eq!(sizes(2, 61, EngineKind::VllmV1), [31, 30]);
        assert_eq!(sizes(4, 62, EngineKind::VllmV1), [15, 16, 16, 15]);
        assert_eq!(sizes(4, 62, EngineKind::TrtLlm), [16, 16, 15, 15]);
        assert_eq!(sizes(2, 126, EngineKind::TrtLlm), [63, 63]);
    }

    proptest! {
        #[test]
        fn stages_cover_all_layers_in_order(layers in 1u32..200, pp in 1u32..20, vllm: bool) {
            prop_assume!(pp <= layers);
            let engine = if vllm { EngineKind::VllmV1 } else { EngineKind::TrtLlm };
            let stages = layout(1, pp, 1).stage_layers(layers, engine);
            prop_assert_eq!(stages.len() as u32, pp);
            let mut next = 0;
            for s in &stages {
                prop_assert_eq!(s.start, next);
                prop_assert!(s.end > s.start);
                next = s.end;
            }
            prop_assert_eq!(next, layers);
        }
    }

    #[test]
    fn tensor_parallel_ranks_share_a_node_or_fill_several() {
        let e = place(
            "llama-3.1-405b",
            "p5.48xlarge",
            layout(16, 1, 1),
            EngineKind::Tgi,
        )
        .unwrap_err()
        .to_string();
        assert!(e.contains("p5.48xlarge has 8"), "{e}");
        let p = place(
            "deepseek-v3",
            "p5.48xlarge",
            layout(16, 1, 1),
            EngineKind::Sglang,
        )
        .unwrap();
        assert_eq!((p.nodes, p.replicas_per_node), (2, 0));
        assert_eq!(p.tp_group(), Group::across(16, 2));
        assert!(p.fabric().network.is_some());
        let p = place(
            "llama-3.1-405b",
            "p5.48xlarge",
            layout(8, 2, 1),
            EngineKind::TrtLlm,
        )
        .unwrap();
        assert_eq!((p.nodes, p.stages_per_node, p.replicas_per_node), (2, 1, 0));
        assert!(p.crosses_nodes(0) && !p.crosses_nodes(1));
        assert_eq!(p.tp_link.as_ref().unwrap().name, "nvlink4");
        assert_eq!(p.network.as_ref().unwrap().name, "efa-v2");
        let network = p.fabric().network.unwrap();
        assert_eq!(network.node_bandwidth, 400e9);
        assert_eq!(p.usd_per_hour(Some("2024-05-01")), Some(2.0 * 98.32));
    }

    #[test]
    fn neuron_ranks_are_cores_of_which_a_chip_has_two() {
        let p = place(
            "llama-3.1-8b",
            "inf2.48xlarge",
            layout(8, 1, 1),
            EngineKind::TgiNeuron,
        )
        .unwrap();
        assert_eq!((p.node_ranks, p.devices(), p.replicas_per_node), (24, 4, 3));
        assert_eq!(p.tp_link.unwrap().name, "neuronlink-v2-ring");
        let p = place(
            "llama-3.1-8b",
            "inf2.xlarge",
            layout(2, 1, 1),
            EngineKind::TgiNeuron,
        )
        .unwrap();
        assert_eq!(p.tp_link, None, "two cores of one chip need no link");
    }

    #[test]
    fn devices_without_peer_links_talk_through_the_host() {
        let p = place(
            "llama-2-13b",
            "g5.12xlarge",
            layout(4, 1, 1),
            EngineKind::Tgi,
        )
        .unwrap();
        assert_eq!(p.fabric().link, LinkClass::PcieHost);
        assert_eq!(p.fabric().devices_per_node, 4);
        let one = place("llama-2-7b", "g5.2xlarge", Layout::SINGLE, EngineKind::Tgi).unwrap();
        assert_eq!(one.tp_link, None);
        assert_eq!(one.usd_per_hour(None), Some(1.212));
        let e = place(
            "llama-2-70b",
            "g5.12xlarge",
            layout(4, 2, 1),
            EngineKind::Tgi,
        )
        .unwrap_err();
        assert!(e.to_string().contains("one node"), "{e}");
    }

    #[test]
    fn stages_that_share_a_node_use_its_links() {
        let p = place(
            "llama-3.1-70b",
            "p5.48xlarge",
            layout(2, 4, 1),
            EngineKind::VllmV1,
        )
        .unwrap();
        assert_eq!((p.nodes, p.stages_per_node), (1, 4));
        assert_eq!(p.stage_link.as_ref().unwrap().name, "nvlink4");
        assert!(!p.crosses_nodes(1));
        assert_eq!(p.network, None);
    }
}
