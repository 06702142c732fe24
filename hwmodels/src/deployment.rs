//! From names to a step-time model: hardware x model x layout x engine x profile, resolved.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::accelerator::Accelerator;
use crate::catalog::Catalog;
use crate::dtype::Dtype;
use crate::engine::EngineKind;
use crate::engine_cost::EngineCost;
use crate::error::{Error, nearest};
use crate::instance::Instance;
use crate::launches::over_dense;
use crate::layout::Layout;
use crate::model::ModelArch;
use crate::neuron::{NeuronModel, NeuronParams};
use crate::operator_steps::{OperatorSteps, OperatorStepsSpec};
use crate::ops::collective::{Fabric, LinkClass, Network, NetworkClass};
use crate::ops::{Kernels, Products, Routing, Sampler};
use crate::profile::Profile;
use crate::profiles::{Choice, Resolved, resolve};
use crate::recurrence::Rule;
use crate::roofline::Roofline;
use crate::step::StepModel;
use crate::units::plain;

/// Which decode steps replay captured CUDA graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Graphs<'a> {
    /// As the engine does unless told otherwise.
    #[default]
    Default,
    /// None.
    Off,
    /// All that the engine captures graphs for.
    On,
    /// Those of so many sequences at most, padded to the next of these sizes, which are in ascending order.
    Sizes(&'a [u32]),
}

/// What a deployment is made of; names have been looked up.
#[derive(Clone, Debug)]
pub struct DeploymentSpec<'a> {
    /// Where links are looked up.
    pub catalog: &'a Catalog,
    /// Node type.
    pub instance: &'a Instance,
    /// The model.
    pub model: &'a ModelArch,
    /// Layout of one replica, checked against model and instance.
    pub layout: Layout,
    /// Format of the weights.
    pub weights: Dtype,
    /// Format of the KV cache.
    pub kv_cache: Dtype,
    /// The engine.
    pub engine: EngineKind,
    /// Whether the engine overlaps host and device (vLLM's asynchronous scheduling, TensorRT-LLM's overlap scheduler); `None`: its default.
    pub overlap: Option<bool>,
    /// Which decode steps replay captured graphs.
    pub graphs: Graphs<'a>,
    /// Most tokens in one step [tokens].
    pub max_tokens: u32,
    /// Profile.
    pub profile: Choice,
    /// Parameters laid over the profile, by dotted name.
    pub params: &'a BTreeMap<String, f64>,
    /// How evenly tokens spread over experts.
    pub routing: Routing,
    /// Which kernels the engine runs.
    pub kernels: Kernels,
}

/// A resolved deployment: how long its steps take, and how that is known.
#[derive(Clone)]
pub struct Deployment {
    /// Step-time model of one replica.
    pub step: Arc<dyn StepModel>,
    /// Host and front-end costs of the engine.
    pub cost: EngineCost,
    /// Profiles in use.
    pub profile: Resolved,
    /// Whether the kernels of layers that keep a state were measured on this engine, where the model has such layers: else ranges are wider.
    pub states_known: bool,
    /// What rests on priors, was extrapolated or has not been validated, in words.
    pub warnings: Vec<String>,
}

/// See [`Deployment::states_known`]. Of Mamba2 the convolution alone was measured.
fn states_known(model: &ModelArch, profile: &Profile) -> bool {
    match model.recurrence.map(|r| r.rule) {
        None => true,
        Some(Rule::Mamba2) => false,
        Some(rule) => {
            let decode = profile.surfaces.get(&format!("{}_decode", rule.surfaces()));
            decode.is_some_and(|s| s.kernels_of.is_none())
        }
    }
}

/// Vocabulary of the model on which the host time of TGI on Neuron was fitted [tokens].
const LLAMA3_VOCABULARY: f64 = 128_256.0;

/// Parameters of the roofline baseline, by dotted name.
const ROOFLINE: [&str; 2] = ["roofline.factor", "roofline.constant"];

/// Resolves `spec`.
///
/// # Errors
/// Unknown links, profiles or parameters; parameters outside their physical bounds.
pub fn deploy(spec: &DeploymentSpec<'_>) -> Result<Deployment, Error> {
    let chip = spec.catalog.accelerator(&spec.instance.accelerator)?;
    let compiled = matches!(spec.kernels.products, Products::Compiled { .. });
    let wide = matches!(spec.weights, Dtype::Bf16 | Dtype::Mxfp4);
    if compiled && wide && chip.cache_bandwidth.is_none() {
        return Err(Error::Unmeasured {
            accelerator: chip.name.clone(),
            field: "cache_bandwidth",
            needed: "kernels compiled for one number of tokens",
        });
    }
    let relative = (chip.same_chip_as.as_deref())
        .map(|name| spec.catalog.accelerator(name))
        .transpose()?;
    let mut profile = resolve(
        &chip.name,
        relative.map(|a| a.name.as_str()),
        spec.engine,
        &spec.profile,
    )?;
    if let Some(r) = spec.model.recurrence {
        let relative = relative.map(|a| a.name.as_str());
        profile = profile.with_states(r.rule, relative, spec.engine);
    }
    lay_over(&mut profile, spec.params)?;
    let p = &profile.profile;
    let (cost, graph_sizes) = engine_cost(spec, p);
    let mut warnings = Vec::new();
    if compiled && wide {
        warnings.push(
            "matrix kernels chosen for one number of tokens: their times are analytic, from tile shapes and the measured rate of the cache"
                .to_owned(),
        );
    } else if compiled {
        warnings.push(
            "kernels compiled for one number of tokens are modelled for 16-bit weights only; these are chosen per shape".to_owned(),
        );
    }
    let baseline = ROOFLINE.iter().any(|name| p.params.contains_key(*name));
    let step = step_model(spec, chip, p, cost, graph_sizes, &mut warnings)?;
    if profile.used.is_empty() && !baseline {
        warnings.push(format!(
            "no profile for {} under {}: every figure is analytic",
            chip.name, spec.engine
        ));
    }
    for u in profile.used.iter().filter(|u| !u.trusted) {
        warnings.push(format!(
            "profile `{}` is untrusted: no validation on data that was not fitted has passed",
            u.name
        ));
    }
    Ok(Deployment {
        step,
        cost,
        states_known: states_known(spec.model, &profile.profile),
        profile,
        warnings,
    })
}

/// What the engine adds to device time, and the sizes of its decode graphs where they are given.
fn engine_cost<'a>(spec: &DeploymentSpec<'a>, profile: &Profile) -> (EngineCost, &'a [u32]) {
    let mut cost = EngineCost::new(spec.engine, profile);
    if let Some(overlap) = spec.overlap {
        cost.overlap = overlap;
    }
    let mut sizes: &[u32] = &[];
    match spec.graphs {
        Graphs::Default => {}
        Graphs::Off => cost.graph_max_seqs = 0,
        Graphs::On => cost = cost.graphed(),
        Graphs::Sizes(given) => {
            cost = cost.graphed();
            sizes = given;
        }
    }
    cost = cost
        .with_launches(spec.engine, over_dense(spec.model, spec.weights))
        .with_graphs(spec.kernels.graph_mode);
    // The overlap scheduler is the PyTorch executor's, the default backend since 1.0; engines of TensorRT are enqueued from C++.
    if spec.engine == EngineKind::TrtLlm && cost.overlap {
        cost = cost.launched_from_python();
    }
    if spec.engine == EngineKind::TgiNeuron {
        neuron_sampling(spec, &mut cost);
    }
    (cost, sizes)
}

/// What choosing tokens costs the host on Neuron. Where the compiled graph does it, nothing. Else the logits of every row come to the host, and for each
/// request that draws its token the host cuts the distribution: both grow with the vocabulary, and were fitted on Llama 3's. Greedy
/// requests take the largest logit, which is one pass.
fn neuron_sampling(spec: &DeploymentSpec<'_>, cost: &mut EngineCost) {
    let on_host = spec.kernels.sampler != Sampler::Compiled;
    let drawn = on_host && spec.kernels.sampling.random;
    let vocabulary = f64::from(spec.model.vocab) / LLAMA3_VOCABULARY;
    cost.row_host *= if on_host { vocabulary } else { 0.0 };
    cost.seq_host *= if drawn { vocabulary } else { 0.0 };
}

/// The step-time model that profile and accelerator call for: the roofline where the profile has its parameters, Neuron's on its devices, else operators.
fn step_model(
    spec: &DeploymentSpec<'_>,
    chip: &Accelerator,
    profile: &Profile,
    cost: EngineCost,
    graph_sizes: &[u32],
    warnings: &mut Vec<String>,
) -> Result<Arc<dyn StepModel>, Error> {
    let parameters = (
        spec.model.parameters() as f64,
        spec.model.active_parameters() as f64,
    );
    if ROOFLINE
        .iter()
        .any(|name| profile.params.contains_key(*name))
    {
        let mut roofline = Roofline::new(
            &chip.per_rank(),
            spec.model,
            spec.layout,
            spec.weights,
            spec.kv_cache,
            parameters,
        );
        roofline.factor = profile.get(ROOFLINE[0], 1.0);
        roofline.constant = profile.get(ROOFLINE[1], 0.0);
        warnings.push("step times come from the roofline baseline".to_owned());
        return Ok(Arc::new(roofline));
    }
    if chip.ranks_per_device > 1 {
        return Ok(Arc::new(NeuronModel::new(
            chip,
            chip.ranks_per_device,
            spec.model,
            spec.layout,
            spec.weights,
            spec.kv_cache,
            parameters,
            NeuronParams::from_profile(profile),
            cost,
        )));
    }
    let model = OperatorSteps::new(&OperatorStepsSpec {
        accelerator: chip,
        fabric: fabric(spec.catalog, spec.instance, chip, spec.layout)?,
        model: spec.model,
        layout: spec.layout,
        weights: spec.weights,
        kv_cache: spec.kv_cache,
        cost,
        profile,
        max_tokens: spec.max_tokens,
        routing: spec.routing,
        kernels: spec.kernels,
        graph_sizes,
    });
    warnings.extend(model.warnings().iter().cloned());
    Ok(Arc::new(model))
}

/// Lays single parameters over the profile, within the bounds that they are known to have.
fn lay_over(profile: &mut Resolved, params: &BTreeMap<String, f64>) -> Result<(), Error> {
    for (name, value) in params {
        let (min, max, unit) = bounds(profile, name).ok_or_else(|| Error::Unknown {
            kind: "profile parameter",
            name: name.clone(),
            nearest: nearest(name, parameter_names().iter().map(String::as_str)),
        })?;
        if !(value.is_finite() && (min..=max).contains(value)) {
            return Err(Error::File {
                file: format!("parameter `{name}`"),
                message: format!(
                    "must lie within its physical bounds, {min} to {max} {unit}, got {}",
                    plain(*value)
                ),
            });
        }
        profile.profile.params.insert(
            name.clone(),
            crate::profile::Param {
                value: *value,
                std_error: None,
                min,
                max,
                unit,
                evidence: crate::Evidence::Analytic,
            },
        );
    }
    Ok(())
}

/// Physical bounds and unit of a parameter that the profile or a model knows.
fn bounds(profile: &Resolved, name: &str) -> Option<(f64, f64, String)> {
    if let Some(p) = profile.profile.params.get(name) {
        return Some((p.min, p.max, p.unit.clone()));
    }
    known_parameters().remove(name)
}

fn parameter_names() -> Vec<String> {
    known_parameters().into_keys().collect()
}

/// Every parameter that a profile can set, with bounds and unit. Parameters of collectives depend on the
/// fabric and are known through the profiles that hold them.
fn known_parameters() -> BTreeMap<String, (f64, f64, String)> {
    let mut all = BTreeMap::new();
    for (name, min, max, unit) in crate::ops::parameters() {
        all.insert(name, (min, max, unit));
    }
    for s in crate::neuron::SPECS {
        all.insert(format!("neuron.{}", s.name), (s.min, s.max, s.unit.into()));
    }
    for engine in EngineKind::ALL {
        for s in crate::engine_cost::SPECS {
            all.insert(
                format!("engine.{engine}.{}", s.name),
                (s.min, s.max, s.unit.into()),
            );
        }
    }
    all.insert(ROOFLINE[0].into(), (0.1, 100.0, "ratio".into()));
    all.insert(ROOFLINE[1].into(), (0.0, 1.0, "s".into()));
    for (name, p) in crate::ops::collective::all_parameters() {
        all.insert(name, (p.min, p.max, p.unit.to_owned()));
    }
    all
}

/// What connects the ranks of a replica on nodes of type `instance`.
fn fabric(
    catalog: &Catalog,
    instance: &Instance,
    chip: &Accelerator,
    layout: Layout,
) -> Result<Fabric, Error> {
    let (link, bandwidth) = match &instance.intra_link {
        None => (LinkClass::PcieHost, chip.host_bandwidth),
        Some(name) => {
            let l = catalog.link(name)?;
            (l.kind.class().unwrap_or(LinkClass::PcieHost), l.bandwidth)
        }
    };
    let ranks = instance.ranks(chip).max(1);
    let network = if layout.devices() > ranks {
        let l = catalog.link(&instance.network_link)?;
        let class = l.kind.network_class().unwrap_or(NetworkClass::Tcp);
        Some(Network {
            class,
            node_bandwidth: instance.network_bandwidth,
        })
    } else {
        None
    };
    Ok(Fabric {
        link,
        link_bandwidth: bandwidth,
        memory_bandwidth: chip.memory_bandwidth,
        devices_per_node: ranks,
        host_path: instance.host_path.unwrap_or_default(),
        paired_access: chip.peer_access,
        sockets: instance.sockets,
        network,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BatchStats;

    fn decode_latency(instance: &str, layout: Layout, engine: EngineKind) -> f64 {
        decode_latency_with(instance, layout, engine, &BTreeMap::new()).expect("resolves")
    }

    fn decode_latency_with(
        instance: &str,
        layout: Layout,
        engine: EngineKind,
        params: &BTreeMap<String, f64>,
    ) -> Result<f64, Error> {
        let catalog = Catalog::builtin();
        let d = deploy(&DeploymentSpec {
            catalog: &catalog,
            instance: catalog.instance(instance)?,
            model: catalog.model("llama-2-7b")?,
            layout,
            weights: Dtype::Bf16,
            kv_cache: Dtype::Bf16,
            engine,
            overlap: None,
            graphs: Graphs::Default,
            max_tokens: 4096,
            profile: Choice::Auto,
            params,
            routing: Routing::Balanced,
            kernels: Kernels::default(),
        })?;
        let mut b = BatchStats::default();
        b.add_decode(400);
        Ok(d.step.step(&b).latency)
    }

    #[test]
    fn faster_memory_decodes_faster() {
        let a10g = decode_latency("g5.2xlarge", Layout::SINGLE, EngineKind::VllmV1);
        let h100 = decode_latency("p5.4xlarge", Layout::SINGLE, EngineKind::VllmV1);
        assert!(a10g > 3.0 * h100, "{a10g} {h100}");
    }

    #[test]
    fn every_accelerator_of_the_catalog_can_be_deployed() {
        let catalog = Catalog::builtin();
        for i in catalog.instances() {
            let t = decode_latency(&i.name, Layout::SINGLE, EngineKind::Tgi);
            assert!(t > 1e-4 && t < 1.0, "{}: {t}", i.name);
        }
    }

    #[test]
    fn a_parameter_that_beats_the_hardware_is_refused() {
        let params = BTreeMap::from([("gemm.bf16.bandwidth_efficiency".to_owned(), 1.5)]);
        let e = decode_latency_with("p5.4xlarge", Layout::SINGLE, EngineKind::VllmV1, &params)
            .expect_err("more than the peak");
        assert!(e.to_string().contains("physical bounds"), "{e}");
    }

    #[test]
    fn an_unknown_parameter_names_the_nearest() {
        let params = BTreeMap::from([("engine.tgi.step_hots".to_owned(), 0.001)]);
        let e = decode_latency_with("g5.2xlarge", Layout::SINGLE, EngineKind::Tgi, &params)
            .expect_err("unknown");
        assert!(e.to_string().contains("engine.tgi.step_host"), "{e}");
    }
}
