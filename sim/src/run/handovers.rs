//! Requests that are prefilled on one replica and decoded on another: where each stands, and the links between the replicas.

use std::collections::BTreeMap;

use crate::cluster::link::Transfers;
use crate::cluster::pools::{FirstToken, PoolSpec, TransferSpec};
use crate::cluster::requests::{Carried, Slot};
use crate::kernel::time::{SimDuration, SimTime};
use crate::kube::LinkShares;
use crate::policy::RemoteKv;
use crate::request::{ReqId, RequestSpec};

/// A request from when it is sent to a prefill replica until its KV is where it is decoded.
pub(super) struct Handover {
    pub spec: RequestSpec,
    pub patience: Option<SimDuration>,
    /// Where it is prefilled.
    pub from: u32,
    /// What is known of it since its prefill is done.
    pub carried: Option<Carried>,
    /// Where its KV lies there; `None`: not yet, or not any more.
    pub source: Option<Slot>,
    /// Where it is decoded.
    pub to: Option<(u32, Slot)>,
    /// Since when its blocks are set aside there, for how many tokens and bytes.
    pub began: Option<(SimTime, u32, f64)>,
}

/// All of them, and the links between the replicas.
pub(super) struct Handovers {
    pub spec: TransferSpec,
    pub link: Transfers,
    pub pools: Vec<PoolSpec>,
    pub pool_of: Vec<usize>,
    pub by_id: BTreeMap<ReqId, Handover>,
    /// Those whose prefill is done, in the order in which they are to be sent on.
    pub ready: Vec<ReqId>,
    /// KV that is not wanted any more: replica and slot.
    pub unwanted: Vec<(u32, Slot)>,
    /// What of their bandwidth the links carry; `None`: all.
    shares: Option<LinkShares>,
    /// What of it each replica's own port carries, which is its node's.
    own_shares: Vec<f64>,
}

impl Handovers {
    pub fn new(spec: TransferSpec, pools: &[PoolSpec]) -> Handovers {
        Handovers {
            link: Transfers::new(spec.latency, spec.fabric),
            spec,
            pools: pools.to_vec(),
            pool_of: Vec::new(),
            by_id: BTreeMap::new(),
            ready: Vec::new(),
            unwanted: Vec::new(),
            shares: None,
            own_shares: Vec::new(),
        }
    }

    /// The next replica belongs to `pool`.
    pub fn add(&mut self, pool: usize) {
        let i = self.pool_of.len() as u32;
        self.pool_of.push(pool);
        self.own_shares.push(1.0);
        self.link.set_port(i, self.port(i as usize));
    }

    /// What replica `i` can send, and receive [bytes/s].
    fn port(&self, i: usize) -> f64 {
        let p = self.pool_of[i];
        let share = (self.shares.as_ref()).and_then(|s| s.deployments.get(p));
        self.pools[p].kv_bandwidth * share.copied().unwrap_or(1.0) * self.own_shares[i]
    }

    /// The links carry other shares of their bandwidth from now on.
    pub fn set_shares(&mut self, now: SimTime, shares: LinkShares) {
        self.shares = Some(shares);
        self.share_anew(now);
    }

    /// The port of replica `i` carries another share of its bandwidth from now on.
    pub fn set_own_share(&mut self, now: SimTime, i: u32, share: f64) {
        self.own_shares[i as usize] = share;
        self.share_anew(now);
    }

    fn share_anew(&mut self, now: SimTime) {
        let of_all = self.shares.as_ref().map_or(1.0, |s| s.fabric);
        let ports = (0..self.pool_of.len()).map(|i| self.port(i)).collect();
        self.link
            .set_capacities(now, self.spec.fabric * of_all, ports);
    }

    /// When the link has something to do next.
    pub fn next(&self) -> SimTime {
        self.link.next()
    }

    /// A request is sent to replica `from` to be prefilled there.
    pub fn expect(
        &mut self,
        id: ReqId,
        spec: &RequestSpec,
        patience: Option<SimDuration>,
        from: u32,
    ) {
        let handover = Handover {
            spec: spec.clone(),
            patience,
            from,
            carried: None,
            source: None,
            to: None,
            began: None,
        };
        self.by_id.insert(id, handover);
    }

    /// Whether the decode side passes the first token on.
    pub fn relays(&self) -> bool {
        self.spec.first_token == FirstToken::Relay
    }

    /// Tokens that the client has of a request whose prefill is done [tokens].
    pub fn delivered(&self, prompt: u32) -> u32 {
        match self.relays() {
            true => 0,
            false => self.remote(prompt).outputs,
        }
    }

    /// What the receiver is told of a request of `prompt` tokens whose prefill is done.
    pub fn remote(&self, prompt: u32) -> RemoteKv {
        match self.spec.first_token {
            FirstToken::Prefill | FirstToken::Relay => RemoteKv {
                tokens: prompt,
                outputs: 1,
            },
            FirstToken::Decode => RemoteKv {
                tokens: prompt - 1,
                outputs: 0,
            },
        }
    }

    /// Bytes of `tokens` of KV that are still to go when the prefill, which took `prefill`, is done (sources 7.2): what a link of
    /// `bandwidth` [bytes/s] could not carry beside the layers before the last, and the last one's.
    pub fn bytes(&self, from: u32, tokens: u32, prefill: SimDuration, bandwidth: f64) -> f64 {
        let pool = &self.pools[self.pool_of[from as usize]];
        let all = f64::from(tokens) * pool.kv_bytes_per_token;
        if !self.spec.layerwise {
            return all;
        }
        let last = 1.0 / f64::from(pool.layers.max(1));
        let beside = bandwidth * prefill.as_secs() * (1.0 - last);
        ((all - beside).max(0.0) + all * last).min(all)
    }
}
