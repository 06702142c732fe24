//! The candidates of a question: every combination of its alternatives that can be placed.

use std::collections::BTreeMap;

use hwmodels::layout::Placement;
use hwmodels::{Dtype, EngineKind, Layout, ModelArch};
use serde::Deserialize as _;
use sim::scenario::Scenario;
use toml::Value;

use super::apart::Apart;
use super::candidate::Candidate;
use super::offers::Offer;
use super::question::{Axis, Question, model_name};
use super::report::{Aside, Rejection};
use crate::Error;

/// A question's candidates, and what could not be one.
pub struct Space {
    /// The candidates in a fixed order.
    pub candidates: Vec<Candidate>,
    /// Combinations that cannot be placed, by reason.
    pub rejected: Vec<Rejection>,
    /// Combinations there are, placed or not.
    pub combinations: usize,
}

/// The model as far as placing it needs.
struct Arch<'a> {
    arch: &'a ModelArch,
    /// Format of the weights where a candidate says nothing.
    weights: Dtype,
}

impl Space {
    /// Lists the candidates of `question`.
    ///
    /// # Errors
    /// Instance types that the catalog does not have or that have no price; too many combinations; nothing that can be placed.
    pub fn of(question: &Question) -> Result<Space, Error> {
        let probe =
            (question.world).scenario(&question.base, &question.origin, &first(question))?;
        let mut catalog = question.catalog.clone();
        let name = own_model(&probe, &mut catalog)?;
        let entry = catalog
            .model_entry(&name)
            .map_err(|e| Error::input(format!("model.name: {e}")))?;
        let given = probe.model.as_ref().and_then(|m| m.weights);
        let model = Arch {
            arch: &entry.arch,
            weights: given.unwrap_or(entry.arch.native_dtype),
        };
        let mut space = Space {
            candidates: Vec::new(),
            rejected: question.offers.rejected.clone(),
            combinations: 0,
        };
        let (layout_axes, plain): (Vec<&Axis>, Vec<&Axis>) = question
            .axes
            .iter()
            .partition(|a| a.key.starts_with("layout."));
        for offer in &question.offers.list {
            for engine in &question.engines {
                let kind = kind_of(engine)?;
                let chip = catalog
                    .accelerator(&offer.accelerator)
                    .map_err(|e| Error::input(e.to_string()))?;
                let is_neuron = chip.ranks_per_device > 1;
                if (kind == EngineKind::TgiNeuron) != is_neuron {
                    // Each accelerator has engines of its own choice where the question names none.
                    if !question.own_engines {
                        let why = does_not_run(kind, &chip.name, is_neuron);
                        space.reject(Aside::Place, &offer.name, &why, 1);
                    }
                    continue;
                }
                let layouts = if question.own_layouts {
                    usual_layouts(offer.devices * chip.ranks_per_device, model.arch)
                } else {
                    given_layouts(&probe, &layout_axes)?
                };
                let axes: Vec<&Axis> = plain.iter().copied().chain(engine).collect();
                let variants = combinations(&axes, question.most_candidates)?;
                let mut placed = Vec::new();
                for layout in layouts {
                    space.combinations += variants.len();
                    let found = Placement::new(&catalog, model.arch, &offer.place, layout, kind);
                    let found = found.map_err(|e| e.to_string());
                    // Layouts of our own choice need not suit every model, nor the accelerators of one machine.
                    let is_beyond = |p: &Placement| offer.is_slice && p.nodes > 1;
                    if question.own_layouts && found.as_ref().map_or(true, is_beyond) {
                        space.combinations -= variants.len();
                        continue;
                    }
                    match found.and_then(|p| allowed_nodes(p, offer, question.max_instances)) {
                        Ok(p) => {
                            space.add(&p, None, offer, &variants, &model, question)?;
                            placed.push(p);
                        }
                        Err(why) => {
                            let what = format!("{}, {layout}", offer.name);
                            space.reject(Aside::Place, &what, &why, variants.len());
                        }
                    }
                }
                if !question.disaggregated {
                    continue;
                }
                if Apart::is_modelled(kind) && !offer.is_slice {
                    space.add_apart(&placed, offer, &variants, &model, question)?;
                } else {
                    let where_ = match offer.is_slice {
                        true => "on whole instances only".to_owned(),
                        false => format!("not for {kind}"),
                    };
                    let why = format!("prefill and decode apart are planned {where_}");
                    space.reject(Aside::Place, &offer.name, &why, variants.len());
                }
            }
        }
        if space.candidates.is_empty() {
            let why: Vec<String> = space
                .rejected
                .iter()
                .take(5)
                .map(Rejection::in_words)
                .collect();
            return Err(Error::input(format!(
                "no deployment can be placed: {}",
                why.join("; ")
            )));
        }
        Ok(space)
    }

    /// Adds the cells of any two of the placements whose prefill and decode are apart.
    fn add_apart(
        &mut self,
        placed: &[Placement],
        offer: &Offer,
        variants: &[Vec<(&Axis, &Value)>],
        model: &Arch<'_>,
        question: &Question,
    ) -> Result<(), Error> {
        // Stages and data-parallel ranks are a cluster's own way of more throughput; connectors of KV know replicas without them.
        let plain = |p: &&Placement| p.layout.pp == 1 && p.layout.dp == 1;
        for prefill in placed.iter().filter(plain) {
            for decode in placed.iter().filter(plain) {
                for cell in Apart::cells(prefill.layout, decode.layout, prefill.node_ranks) {
                    self.combinations += variants.len();
                    if cell.instances > question.max_instances {
                        let what = format!(
                            "{}, {}",
                            prefill.instance.name,
                            cell.in_words(prefill.layout)
                        );
                        let why = format!(
                            "a cell takes {} instances, more than max_instances = {}",
                            cell.instances, question.max_instances
                        );
                        self.reject(Aside::Place, &what, &why, variants.len());
                        continue;
                    }
                    self.add(
                        prefill,
                        Some((cell, decode)),
                        offer,
                        variants,
                        model,
                        question,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        placement: &Placement,
        apart: Option<(Apart, &Placement)>,
        offer: &Offer,
        variants: &[Vec<(&Axis, &Value)>],
        model: &Arch<'_>,
        question: &Question,
    ) -> Result<(), Error> {
        let most = question.most_candidates;
        let cell = apart.map(|(cell, _)| cell);
        let layout = placement.layout;
        for variant in variants {
            if self.candidates.len() >= most {
                return Err(Error::input(format!(
                    "the question has more than {most} candidates; give fewer alternatives"
                )));
            }
            let of_decode = apart.and_then(|(_, decode)| too_heavy(decode, variant, model));
            if let Some(why) = too_heavy(placement, variant, model).or(of_decode) {
                let words = cell.map_or_else(|| layout.to_string(), |c| c.in_words(layout));
                let what = format!("{}, {words}", offer.name);
                self.reject(Aside::Start, &what, &why, 1);
                continue;
            }
            let mut overrides = hardware(offer, placement.devices(), question);
            overrides.extend([
                format!("layout.tp={}", layout.tp),
                format!("layout.pp={}", layout.pp),
                format!("layout.dp={}", layout.dp),
                format!("layout.ep={}", layout.ep),
            ]);
            overrides.extend(
                variant
                    .iter()
                    .map(|(axis, value)| format!("{}={value}", axis.key)),
            );
            let own = variant
                .iter()
                .filter(|(axis, _)| axis.values.len() > 1 || axis.key == "engine.kind");
            let mut settings: Vec<(String, String)> = own
                .map(|(axis, value)| (short(&axis.key), plain(value)))
                .collect();
            if let Some(region) = &offer.region {
                settings.push(("region".to_owned(), region.clone()));
            }
            let (per_instance, instances_per_replica) = match cell {
                Some(c) => (u32::from(c.instances == 1), c.instances),
                None if !offer.is_slice => (placement.replicas_per_node, placement.nodes),
                // An accelerator may have ranks for several replicas.
                None if placement.devices() == 1 => {
                    let ranks = placement.accelerator.ranks_per_device;
                    (ranks / layout.devices().max(1), 1)
                }
                None => (0, placement.devices()),
            };
            self.candidates.push(Candidate {
                index: self.candidates.len(),
                instance: offer.name.clone(),
                accelerator: offer.accelerator.clone(),
                usd_per_hour: offer.usd_per_hour,
                by_devices: question.offers.by_devices,
                per_instance,
                instances_per_replica,
                devices_per_instance: if offer.is_slice { 1 } else { offer.devices },
                per_machine: offer.is_slice.then_some(placement.replicas_per_node),
                devices: placement.devices(),
                layout,
                apart: cell,
                settings,
                overrides,
            });
        }
        Ok(())
    }

    fn reject(&mut self, kind: Aside, what: &str, reason: &str, n: usize) {
        Rejection::count(&mut self.rejected, kind, what, reason, n);
    }
}

/// The keys of the hardware that a replica of `devices` accelerators takes.
fn hardware(offer: &Offer, devices: u32, question: &Question) -> Vec<String> {
    let text = |s: &str| Value::String(s.to_owned());
    let price = |usd: f64| format!("hardware.price=\"{usd} USD/h\"");
    let mut out = Vec::new();
    if offer.is_slice {
        out.push(format!("hardware.accelerator={}", text(&offer.accelerator)));
        out.push(format!("hardware.count={devices}"));
        out.extend(
            offer
                .usd_per_hour
                .map(|usd| price(usd * f64::from(devices))),
        );
        let host_path = offer.host_path.and_then(|h| Value::try_from(h).ok());
        out.extend(host_path.map(|h| format!("hardware.host_path={h}")));
        return out;
    }
    out.push(format!("hardware.instance={}", text(&offer.name)));
    if offer.region.is_some() {
        out.extend(offer.usd_per_hour.map(price));
    }
    let date = question.price_date.as_ref();
    out.extend(date.map(|d| format!("hardware.price_date={}", text(d))));
    out
}

/// Why an engine that the question names has no place on an accelerator, and which has.
fn does_not_run(kind: EngineKind, chip: &str, is_neuron: bool) -> String {
    let own = match is_neuron {
        true => "tgi_neuron runs there, with server = \"tgi\" or \"optimum_vllm\" (vLLM's plug-in)",
        false => "it is for Inferentia and Trainium",
    };
    format!("{kind} does not run on {chip}; {own}")
}

/// The last part of a key path.
fn short(key: &str) -> String {
    key.rsplit('.').next().unwrap_or(key).to_owned()
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// The first alternative of everything, on some hardware.
fn first(question: &Question) -> Vec<String> {
    let engine = question.engines.first().into_iter().flatten();
    let plain = question
        .axes
        .iter()
        .filter(|a| !a.key.starts_with("layout."));
    let mut all = vec!["hardware.instance=\"p5.48xlarge\"".to_owned()];
    all.extend(
        plain
            .chain(engine)
            .map(|a| format!("{}={}", a.key, a.values[0])),
    );
    all
}

/// Adds the model of a Hugging Face file to the catalog, if it is one; its name.
fn own_model(probe: &Scenario, catalog: &mut hwmodels::catalog::Catalog) -> Result<String, Error> {
    match &probe.model {
        Some(model) => Ok(probe.add_model(model, catalog)?),
        None => Err(Error::input(format!(
            "model: {} is not named",
            model_name(probe)
        ))),
    }
}

fn kind_of(engine: &[Axis]) -> Result<EngineKind, Error> {
    let kind = engine
        .iter()
        .find(|a| a.key == "engine.kind")
        .and_then(|a| a.values.first());
    let name = kind.and_then(Value::as_str).unwrap_or("vllm");
    let name = if name == "vllm" { "vllm_v1" } else { name };
    EngineKind::ALL
        .into_iter()
        .find(|k| k.name() == name)
        .ok_or_else(|| {
            let known: Vec<&str> = EngineKind::ALL.iter().map(|k| k.name()).collect();
            Error::input(format!(
                "engine.kind: `{name}` is no engine; there are {}",
                known.join(", ")
            ))
        })
}

/// A placement that takes no more instances than are allowed, or why not.
fn allowed_nodes(placement: Placement, offer: &Offer, most: u32) -> Result<Placement, String> {
    if placement.nodes > 1 && offer.is_slice {
        return Err(format!(
            "a replica takes {} accelerators, and nothing says how machines of {} are joined; take whole instances, or raise hardware.count",
            placement.devices(),
            offer.devices
        ));
    }
    if placement.nodes > most {
        return Err(format!(
            "a replica takes {} instances, more than max_instances = {most}",
            placement.nodes
        ));
    }
    Ok(placement)
}

/// Layouts of nodes of `ranks` that people try: tensor parallel in powers of two, two or four stages, experts spread or not.
fn usual_layouts(ranks: u32, model: &ModelArch) -> Vec<Layout> {
    let powers = |most: u32| (0..=most.max(1).ilog2()).map(|i| 1u32 << i);
    let mut out = Vec::new();
    for tp in powers(ranks) {
        for pp in [1, 2, 4] {
            // Stages fill a node before the next begins.
            if pp > 1 && tp.saturating_mul(pp) > ranks && tp != ranks {
                continue;
            }
            let eps: &[u32] = if model.moe.is_some() && tp > 1 {
                &[1, tp]
            } else {
                &[1]
            };
            out.extend(eps.iter().map(|ep| Layout {
                tp,
                pp,
                dp: 1,
                ep: *ep,
            }));
        }
        if model.moe.is_some() {
            let ranked = powers(ranks / tp).filter(|dp| *dp > 1);
            out.extend(ranked.map(|dp| Layout {
                tp,
                pp: 1,
                dp,
                ep: dp * tp,
            }));
        }
    }
    out
}

/// The layouts that the question names.
fn given_layouts(probe: &Scenario, axes: &[&Axis]) -> Result<Vec<Layout>, Error> {
    let mut out = vec![probe.layout];
    for axis in axes {
        let mut more = Vec::new();
        for value in &axis.values {
            let n = value
                .as_integer()
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0);
            let n = n.ok_or_else(|| {
                Error::input(format!(
                    "{}: must be whole numbers from 1, got {value}",
                    axis.key
                ))
            })?;
            for layout in &out {
                let mut layout = *layout;
                match axis.key.as_str() {
                    "layout.tp" => layout.tp = n,
                    "layout.pp" => layout.pp = n,
                    "layout.dp" => layout.dp = n,
                    "layout.ep" => layout.ep = n,
                    other => {
                        return Err(Error::input(format!(
                            "{other}: is no key of a layout; there are tp, pp, dp and ep"
                        )));
                    }
                }
                more.push(layout);
            }
        }
        out = more;
    }
    Ok(out)
}

/// Every combination of the axes' values, the last axis fastest.
fn combinations<'a>(
    axes: &[&'a Axis],
    most: usize,
) -> Result<Vec<Vec<(&'a Axis, &'a Value)>>, Error> {
    let mut out: Vec<Vec<(&Axis, &Value)>> = vec![Vec::new()];
    for axis in axes {
        if out.len().saturating_mul(axis.values.len()) > most {
            return Err(Error::input(format!(
                "the question has more than {most} candidates; give fewer alternatives of {}",
                axis.key
            )));
        }
        out = out
            .iter()
            .flat_map(|head| {
                axis.values.iter().map(move |value| {
                    let mut all = head.clone();
                    all.push((*axis, value));
                    all
                })
            })
            .collect();
    }
    Ok(out)
}

/// Why the weights alone do not fit the devices, if they do not: what memory planning would find, without its search for advice.
fn too_heavy(
    placement: &Placement,
    variant: &[(&Axis, &Value)],
    model: &Arch<'_>,
) -> Option<String> {
    let arch = model.arch;
    let given = variant.iter().find(|(axis, _)| axis.key == "model.weights");
    let dtype = match given {
        Some((_, value)) => Dtype::deserialize((*value).clone()).ok()?,
        None => model.weights,
    };
    let heaviest = placement
        .stage_layers
        .iter()
        .map(|layers| arch.stage_weight_bytes(placement.layout, layers.clone(), dtype))
        .fold(0.0, f64::max);
    let room = placement.accelerator.memory_bytes as f64
        / f64::from(placement.accelerator.ranks_per_device);
    (heaviest > room).then(|| {
        let gib = |b: f64| hwmodels::units::significant(b / (1u64 << 30) as f64);
        format!(
            "weights take {} GiB of a device's {} GiB",
            gib(heaviest),
            gib(room)
        )
    })
}

/// How many of the candidates have each value of each setting.
pub fn census(candidates: &[Candidate]) -> BTreeMap<String, usize> {
    let mut out = BTreeMap::new();
    for c in candidates {
        *out.entry(c.instance.clone()).or_insert(0) += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_layouts_fill_nodes() {
        let catalog = hwmodels::catalog::Catalog::builtin();
        let dense = catalog.model("llama-3.1-8b").unwrap();
        let layouts = usual_layouts(8, dense);
        assert!(layouts.contains(&Layout {
            tp: 8,
            pp: 2,
            dp: 1,
            ep: 1
        }));
        assert!(!layouts.contains(&Layout {
            tp: 4,
            pp: 4,
            dp: 1,
            ep: 1
        }));
        assert!(layouts.iter().all(|l| l.dp == 1 && l.ep == 1));
        let moe = catalog.models().find(|m| m.arch.moe.is_some()).unwrap();
        assert!(
            usual_layouts(8, &moe.arch)
                .iter()
                .any(|l| l.dp == 8 && l.ep == 8)
        );
    }
}
