//! Candidates whose prefill and decode are apart: cells of replicas that prefill and replicas that decode.
//!
//! A cell is what such a deployment grows by. Where a replica of each fits one instance, a cell is an instance that is filled with a mix of them, so that
//! KV of a deployment of one instance goes over the link between its devices. Where not, a cell is a few instances of each kind in a small ratio. Between
//! instances KV goes over each replica's share of their network.

use hwmodels::{EngineKind, Layout};
use toml::Table;

use super::question::Redundancy;

/// Ratios of prefill to decode instances of a cell that spans several.
const RATIOS: [(u32, u32); 9] = [
    (1, 1),
    (1, 2),
    (2, 1),
    (1, 3),
    (3, 1),
    (2, 3),
    (3, 2),
    (1, 4),
    (4, 1),
];

/// The replicas of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// Those that prefill, laid out as the candidate says.
    pub prefill: u32,
    /// Those that decode.
    pub decode: u32,
    /// Layout of one that decodes.
    pub decode_layout: Layout,
    /// Instances of a cell.
    pub instances: u32,
    /// Replicas that prefill, and that decode, which one lost instance may take with it: each pair is a way to lose one.
    lost_with_instance: [(u32, u32); 2],
}

impl Apart {
    /// Whether an engine's prefill and decode can be apart.
    pub fn is_modelled(kind: EngineKind) -> bool {
        matches!(kind, EngineKind::VllmV1 | EngineKind::TrtLlm)
    }

    /// The cells of replicas laid out as `prefill` and `decode` on instances of `ranks` devices.
    pub fn cells(prefill: Layout, decode: Layout, ranks: u32) -> Vec<Apart> {
        let (p, d) = (prefill.devices().max(1), decode.devices().max(1));
        if p.saturating_add(d) <= ranks {
            let left = |a: u32| (ranks - a * p) / d;
            // Where no further replica fits.
            let full = |a: u32| ranks - a * p - left(a) * d < p.min(d);
            return (1..=(ranks - d) / p)
                .filter(|a| full(*a))
                .map(|a| Apart {
                    prefill: a,
                    decode: left(a),
                    decode_layout: decode,
                    instances: 1,
                    lost_with_instance: [(a, left(a)); 2],
                })
                .collect();
        }
        // Instances that one replica takes, and replicas that one instance holds.
        let nodes = |devices: u32| devices.div_ceil(ranks.max(1));
        let held = |devices: u32| (ranks / devices).max(1);
        RATIOS
            .map(|(a, b)| Apart {
                prefill: a * held(p),
                decode: b * held(d),
                decode_layout: decode,
                instances: a * nodes(p) + b * nodes(d),
                lost_with_instance: [(held(p), 0), (0, held(d))],
            })
            .to_vec()
    }

    /// Replicas that prefill and that decode of `cells`.
    pub fn counts(&self, cells: u32) -> [u32; 2] {
        [self.prefill, self.decode].map(|n| n.saturating_mul(cells))
    }

    /// What is left of `cells`, for each way to lose what may be lost.
    pub fn losing(&self, cells: u32, what: Redundancy) -> Vec<Vec<u32>> {
        let [p, d] = self.counts(cells);
        let mut lost = match what {
            Redundancy::None => vec![(0, 0)],
            Redundancy::Replica => vec![(1, 0), (0, 1)],
            Redundancy::Instance => self.lost_with_instance.to_vec(),
        };
        lost.dedup();
        lost.iter()
            .map(|(a, b)| vec![p.saturating_sub(*a), d.saturating_sub(*b)])
            .collect()
    }

    /// The keys of a scenario with so many replicas, over those of the candidate.
    pub fn overrides(&self, counts: &[u32], link: Option<&Table>) -> Vec<String> {
        let count = |i: usize| counts.get(i).copied().unwrap_or(1).max(1);
        let Layout { tp, pp, dp, ep } = self.decode_layout;
        let mut out = vec![format!(
            "pool=[{{ name = \"prefill\", role = \"prefill\", replicas = {} }}, {{ name = \"decode\", role = \"decode\", replicas = {}, layout = {{ tp = \
             {tp}, pp = {pp}, dp = {dp}, ep = {ep} }} }}]",
            count(0),
            count(1)
        )];
        let own = link.into_iter().flatten();
        out.extend(own.map(|(key, value)| format!("kv_transfer.{key}={value}")));
        out
    }

    /// In words; `prefill` is the layout of a replica that prefills.
    pub fn in_words(&self, prefill: Layout) -> String {
        format!(
            "{} x {prefill} to prefill : {} x {} to decode",
            self.prefill, self.decode, self.decode_layout
        )
    }
}
