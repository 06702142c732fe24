//! Parameters of collectives: lines of latency and efficiency, their priors, and where values are looked up.

use std::sync::OnceLock;

use super::fabric::{Fabric, LinkClass, Network, NetworkClass};
use super::line::{Kernels, Line, Protocols};
use super::model::{CollectiveModel, NetworkModel, Staging};
use super::tuning::NcclTuning;
use crate::evidence::Evidence;
use crate::packed;
use crate::profile::{Param, Profile};

/// One parameter's prior: what it is without a measurement, and what physics allows.
#[derive(Clone, Copy, Debug)]
pub struct Prior {
    /// Value in `unit`.
    pub value: f64,
    /// Smallest value allowed.
    pub min: f64,
    /// Largest value allowed.
    pub max: f64,
    /// Unit: `s` or `ratio`.
    pub unit: &'static str,
}

/// Looks parameters up: given profile, then shipped fit (also of the stand-in), then prior.
pub(super) struct Source<'a> {
    pub(super) profile: &'a Profile,
    pub(super) shipped: Option<&'a Profile>,
    /// Collects every parameter asked for, when listing.
    pub(super) asked: Option<&'a mut Vec<(String, Prior)>>,
}

impl Source<'_> {
    fn get(&mut self, scope: &str, fallback: Option<&str>, name: &str, prior: Prior) -> f64 {
        let key = format!("collective.{scope}.{name}");
        let alias = fallback.map(|f| format!("collective.{f}.{name}"));
        if let Some(asked) = self.asked.as_mut() {
            asked.push((key.clone(), prior));
        }
        let profiles = [Some(self.profile), self.shipped];
        let found = profiles.iter().flatten().find_map(|p| p.params.get(&key));
        let stood_in = || {
            let alias = alias.as_ref()?;
            profiles.iter().flatten().find_map(|p| p.params.get(alias))
        };
        found
            .or_else(stood_in)
            .map_or(prior.value, |p| p.value)
            .clamp(prior.min, prior.max)
    }
}

/// A reader of one scope (link or network class) of parameters.
pub(super) struct Scope<'a, 'b> {
    pub(super) source: &'a mut Source<'b>,
    pub(super) name: &'static str,
    pub(super) fallback: Option<&'static str>,
}

impl Scope<'_, '_> {
    /// A latency with its prior [s].
    pub(super) fn seconds(&mut self, name: &str, value: f64) -> f64 {
        self.number(name, value, (0.0, 0.01), "s")
    }

    /// An efficiency with its prior.
    pub(super) fn ratio(&mut self, name: &str, value: f64) -> f64 {
        self.number(name, value, (1e-4, 1.0), "ratio")
    }

    /// A line with priors `(base [us], hop [us], efficiency)`.
    pub(super) fn line(&mut self, name: &str, (base, hop, efficiency): (f64, f64, f64)) -> Line {
        Line {
            base: self.seconds(&format!("{name}.base_latency"), base * 1e-6),
            hop: self.seconds(&format!("{name}.hop_latency"), hop * 1e-6),
            spread: 0.0,
            ramp: 0.0,
            efficiency: self.ratio(&format!("{name}.efficiency"), efficiency),
        }
    }

    /// As [`Scope::line`], with the growth of the latency with size.
    pub(super) fn spread_line(&mut self, name: &str, prior: (f64, f64, f64)) -> Line {
        let mut line = self.line(name, prior);
        line.spread = self.number(&format!("{name}.latency_spread"), 0.0, (0.0, 3.0), "ratio");
        line
    }

    /// As [`Scope::line`], for bulk protocols, with a ramp [s per doubling].
    pub(super) fn bulk_line(&mut self, name: &str, prior: (f64, f64, f64)) -> Line {
        let mut line = self.line(name, prior);
        line.ramp = self.seconds(&format!("{name}.ramp_latency"), 0.0);
        line
    }

    /// A number with its prior and bounds.
    pub(super) fn number(
        &mut self,
        name: &str,
        value: f64,
        (min, max): (f64, f64),
        unit: &'static str,
    ) -> f64 {
        let prior = Prior {
            value,
            min,
            max,
            unit,
        };
        self.source.get(self.name, self.fallback, name, prior)
    }

    pub(super) fn kernels(&mut self, engine: &str, base: f64, host: f64) -> Kernels {
        Kernels {
            one_shot: self.line(&format!("{engine}.one_shot"), (base, 0.1, 0.6)),
            two_shot: self.line(&format!("{engine}.two_shot"), (base + 1.0, 0.8, 0.6)),
            host: self.seconds(&format!("{engine}.host_latency"), host * 1e-6),
        }
    }
}

/// The fitted parameters that ship with the crate (`data/profiles/collectives.toml`).
pub fn shipped_profile() -> &'static Profile {
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    PROFILE.get_or_init(|| packed::find("profiles/collectives.toml").read())
}

/// Every parameter that a model of `fabric` reads, with prior and bounds, in order.
pub fn parameters(fabric: &Fabric) -> Vec<(String, Prior)> {
    let mut asked = Vec::new();
    CollectiveModel::resolve(
        fabric,
        Source {
            profile: &Profile::default(),
            shipped: None,
            asked: Some(&mut asked),
        },
    );
    asked
}

/// Every parameter of every link and network class, sorted by name.
pub fn all_parameters() -> Vec<(String, Prior)> {
    let network = |class| Network {
        class,
        node_bandwidth: 1.0,
    };
    let mut all: Vec<_> = LinkClass::ALL
        .into_iter()
        .flat_map(|link| parameters(&Fabric::single_node(link, 8, 1.0)))
        .chain(NetworkClass::ALL.into_iter().flat_map(|class| {
            parameters(&Fabric {
                network: Some(network(class)),
                ..Fabric::single_node(LinkClass::NvLink4, 8, 1.0)
            })
        }))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.dedup_by(|a, b| a.0 == b.0);
    all
}

/// `prior` as a profile parameter with another value, kept within the bounds.
pub fn fitted_param(prior: &Prior, value: f64) -> Param {
    Param {
        value: value.clamp(prior.min, prior.max),
        std_error: None,
        min: prior.min,
        max: prior.max,
        unit: prior.unit.to_owned(),
        evidence: Evidence::Fitted,
    }
}

impl CollectiveModel {
    pub(super) fn resolve(fabric: &Fabric, mut source: Source<'_>) -> Self {
        let link = fabric.link;
        let mut scope = Scope {
            source: &mut source,
            name: link.name(),
            fallback: link.stand_in().map(LinkClass::name),
        };
        // Latencies: sources 9.1, base and hop of LL, LL128 and Simple in microseconds.
        // Efficiencies: Simple on NVLink keeps about 0.8 of the datasheet rate (20.6 of 25 GB/s a
        // link), LL half of the bus up to a cap, LL128 0.92 of it.
        let ring = if link.is_nvlink_like() {
            Protocols {
                ll: scope.spread_line("nccl.ring_ll", (6.6, 0.6, 0.3)),
                ll128: Some(scope.line("nccl.ring_ll128", (14.0, 1.9, 0.7))),
                simple: scope.bulk_line("nccl.ring_simple", (8.4, 3.4, 0.8)),
            }
        } else {
            Protocols {
                ll: scope.spread_line("nccl.ring_ll", (6.6, 1.0, 0.35)),
                ll128: None,
                simple: scope.bulk_line("nccl.ring_simple", (8.4, 5.7, 0.7)),
            }
        };
        let local_copy = scope.number("nccl.local_copy", 2.0, (0.05, 10.0), "ratio of link peak");
        let mut all_to_all = scope.spread_line("nccl.all_to_all", (8.4, 0.3, 0.75));
        all_to_all.ramp = scope.seconds("nccl.all_to_all.ramp_latency", 0.0);
        let mut send = scope.spread_line("nccl.send", (8.4, 0.0, 0.75));
        send.ramp = scope.seconds("nccl.send.ramp_latency", 0.0);
        let nvls = link
            .has_in_switch_reduction()
            .then(|| scope.bulk_line("nccl.nvls", (25.0, 0.0, 0.64)));
        let multimem = link
            .has_in_switch_reduction()
            .then(|| scope.line("multimem", (7.0, 0.3, 0.55)));
        // One link's worth for all of a shared path, which is what four ranks on one socket show.
        let staging = (!link.has_peer_access()).then(|| Staging {
            shared_links: scope.number("nccl.shared_links", 1.0, (0.05, 16.0), "links"),
            crossing: scope.number("nccl.socket_crossing", 0.8, (0.05, 1.0), "ratio"),
        });
        // Kernel latencies of the engines: single-digit microseconds (9.3); host time outside a
        // graph about 20 us a call from Python.
        let vllm = scope.kernels("vllm", 4.5, 20.0);
        let trtllm = scope.kernels("trtllm", 3.0, 10.0);
        let nccl_host = scope.seconds("nccl.host_latency", 12e-6);
        let multimem_host = scope.seconds("multimem.host_latency", 40e-6);
        let eager_copy = scope.ratio("eager_copy.efficiency", 0.85);
        // No public measurement: order of tens of microseconds for a small all-reduce.
        let neuron = scope.line("neuron", (10.0, 1.0, 0.7));
        let network = fabric
            .network
            .map(|n| Self::resolve_network(&n, &mut source));
        Self {
            fabric: *fabric,
            tuning: NcclTuning::new(link, fabric.link_bandwidth),
            ring,
            local_copy,
            all_to_all,
            send,
            nvls,
            multimem,
            staging,
            vllm,
            trtllm,
            nccl_host,
            multimem_host,
            eager_copy,
            neuron,
            network,
        }
    }

    fn resolve_network(network: &Network, source: &mut Source<'_>) -> NetworkModel {
        let mut scope = Scope {
            source,
            name: network.class.name(),
            fallback: None,
        };
        // Network hop latencies of 9.1 (ring, LL / LL128 / Simple 2.7 / 4 / 14 us, plus overhead);
        // EFA rounds cost 15 to 25 us, TCP about twice that.
        let hop = match network.class {
            NetworkClass::Efa | NetworkClass::Efa4x100 => 20.0,
            NetworkClass::Infiniband => 4.0,
            NetworkClass::Tcp => 50.0,
        };
        NetworkModel {
            ring: Protocols {
                ll: scope.line("nccl.ring_ll", (0.0, hop, 0.12)),
                ll128: Some(scope.line("nccl.ring_ll128", (0.0, 1.5 * hop, 0.4))),
                simple: scope.bulk_line("nccl.ring_simple", (0.0, 4.0 * hop, 0.8)),
            },
            send: scope.bulk_line("nccl.send", (10.0, hop, 0.8)),
            node_bandwidth: network.node_bandwidth,
        }
    }
}
