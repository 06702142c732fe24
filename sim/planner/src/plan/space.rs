//! The candidates of a question: every combination of its alternatives that can be placed.

use std::collections::BTreeMap;

use hwmodels::instance::Instance;
use hwmodels::layout::Placement;
use hwmodels::{Dtype, EngineKind, Layout, ModelArch};
use serde::Deserialize as _;
use sim::scenario::Scenario;
use toml::Value;

use super::apart::Apart;
use super::candidate::Candidate;
use super::pattern::allows;
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
            rejected: Vec::new(),
            combinations: 0,
        };
        let price_of = price_of(question, &probe);
        let instances = allowed(question, &price_of, &mut space.rejected)?;
        let (layout_axes, plain): (Vec<&Axis>, Vec<&Axis>) = question
            .axes
            .iter()
            .partition(|a| a.key.starts_with("layout."));
        for instance in instances {
            let Some(price) = price_of(instance) else {
                continue;
            };
            for engine in &question.engines {
                let kind = kind_of(engine)?;
                let chip = catalog
                    .accelerator(&instance.accelerator)
                    .map_err(|e| Error::input(e.to_string()))?;
                if (kind == EngineKind::TgiNeuron) != (chip.ranks_per_device > 1) {
                    let why = format!("{kind} does not run on {}", chip.name);
                    space.reject(Aside::Place, &instance.name, &why, 1);
                    continue;
                }
                let layouts = if question.own_layouts {
                    usual_layouts(instance.ranks(chip), model.arch)
                } else {
                    given_layouts(&probe, &layout_axes)?
                };
                let axes: Vec<&Axis> = plain.iter().copied().chain(engine).collect();
                let variants = combinations(&axes, question.most_candidates)?;
                let mut placed = Vec::new();
                for layout in layouts {
                    space.combinations += variants.len();
                    let found = Placement::new(&catalog, model.arch, &instance.name, layout, kind);
                    let found = found.map_err(|e| e.to_string());
                    // Layouts of our own choice need not suit every model.
                    if question.own_layouts && found.is_err() {
                        space.combinations -= variants.len();
                        continue;
                    }
                    match found.and_then(|p| allowed_nodes(p, question.max_instances)) {
                        Ok(p) => {
                            space.add(&p, None, &price, &variants, &model, question)?;
                            placed.push(p);
                        }
                        Err(why) => {
                            let what = format!("{}, {layout}", instance.name);
                            space.reject(Aside::Place, &what, &why, variants.len());
                        }
                    }
                }
                if question.disaggregated && Apart::is_modelled(kind) {
                    space.add_apart(&placed, &price, &variants, &model, question)?;
                } else if question.disaggregated {
                    let why = format!("prefill and decode apart are not planned for {kind}");
                    space.reject(Aside::Place, &instance.name, &why, variants.len());
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
        price: &(f64, Option<String>),
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
                        price,
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
        (usd, region): &(f64, Option<String>),
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
                let what = format!("{}, {words}", placement.instance.name);
                self.reject(Aside::Start, &what, &why, 1);
                continue;
            }
            let mut overrides = vec![
                format!(
                    "hardware.instance={}",
                    Value::String(placement.instance.name.clone())
                ),
                format!("layout.tp={}", layout.tp),
                format!("layout.pp={}", layout.pp),
                format!("layout.dp={}", layout.dp),
                format!("layout.ep={}", layout.ep),
            ];
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
            if let Some(region) = region {
                settings.push(("region".to_owned(), region.clone()));
                overrides.push(format!("hardware.price=\"{usd} USD/h\""));
            }
            self.candidates.push(Candidate {
                index: self.candidates.len(),
                instance: placement.instance.name.clone(),
                usd_per_hour: *usd,
                per_instance: match cell {
                    None => placement.replicas_per_node,
                    Some(c) => u32::from(c.instances == 1),
                },
                instances_per_replica: cell.map_or(placement.nodes, |c| c.instances),
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
fn allowed_nodes(placement: Placement, most: u32) -> Result<Placement, String> {
    if placement.nodes > most {
        return Err(format!(
            "a replica takes {} instances, more than max_instances = {most}",
            placement.nodes
        ));
    }
    Ok(placement)
}

/// What an instance type costs: the question's price, its file's, or the catalog's.
fn price_of<'a>(
    question: &'a Question,
    probe: &Scenario,
) -> impl Fn(&Instance) -> Option<(f64, Option<String>)> + use<'a> {
    let hardware = probe.hardware.as_ref();
    let fixed = hardware.and_then(|h| h.price).map(|p| p.usd_per_hour());
    let date = hardware.and_then(|h| h.price_date.clone());
    move |i: &Instance| {
        let catalog = fixed.or_else(|| match &date {
            Some(d) => i.price_on(d).map(|p| p.usd.usd_per_hour()),
            None => i.price().map(|p| p.usd.usd_per_hour()),
        });
        match &question.prices {
            None => Some((catalog?, None)),
            Some(prices) => {
                let (usd, region) = prices.lowest(i, catalog)?;
                Some((usd, Some(region.to_owned())))
            }
        }
    }
}

/// An instance type's price [USD/h] and the region that it is of, where they are known.
type PriceOf<'a> = dyn Fn(&Instance) -> Option<(f64, Option<String>)> + 'a;

/// The instance types that the question allows, without those that cost more than another with the same accelerators.
fn allowed<'a>(
    question: &'a Question,
    price_of: &PriceOf<'_>,
    rejected: &mut Vec<Rejection>,
) -> Result<Vec<&'a Instance>, Error> {
    let catalog = &question.catalog;
    let mut out: Vec<&Instance> = Vec::new();
    let priced = |i: &Instance| price_of(i).is_some();
    for pattern in &question.instances {
        if pattern.contains('*') {
            let found: Vec<&Instance> = catalog
                .instances()
                .filter(|i| allows(pattern, &i.name) && priced(i))
                .collect();
            if found.is_empty() {
                return Err(Error::input(format!(
                    "hardware.instance: no instance type of the catalog with a price is called `{pattern}`"
                )));
            }
            out.extend(found);
        } else {
            let one = catalog
                .instance(pattern)
                .map_err(|e| Error::input(format!("hardware.instance: {e}")))?;
            if !priced(one) {
                return Err(Error::input(format!(
                    "hardware.instance: the catalog has no price of {pattern}, or plan.prices none in the regions that are allowed; give hardware.price"
                )));
            }
            out.push(one);
        }
    }
    if question.instances.is_empty() {
        out.extend(catalog.instances().filter(|i| priced(i)));
    }
    let mut unique: Vec<&Instance> = Vec::new();
    for i in out {
        if !unique.iter().any(|u| u.name == i.name) {
            unique.push(i);
        }
    }
    // One that the user names is there because he wants to know.
    let named = |i: &Instance| {
        question
            .instances
            .iter()
            .any(|p| *p == i.name || i.aliases.contains(p))
    };
    let usd = |i: &Instance| price_of(i).map_or(f64::INFINITY, |p| p.0);
    let same = |a: &Instance, b: &Instance| {
        (&a.accelerator, a.devices, &a.intra_link) == (&b.accelerator, b.devices, &b.intra_link)
    };
    let mut kept = Vec::new();
    for (at, i) in unique.iter().enumerate() {
        let better = unique.iter().enumerate().find(|(other, o)| {
            let cheaper = usd(o) < usd(i) || (usd(o) == usd(i) && *other < at);
            same(o, i)
                && cheaper
                && o.network_bandwidth >= i.network_bandwidth.min(o.network_bandwidth)
        });
        match better {
            Some((_, o)) if !named(i) => {
                Rejection::count(
                    rejected,
                    Aside::Dominated,
                    &i.name,
                    &format!("costs more than {} with the same accelerators", o.name),
                    1,
                );
            }
            _ => kept.push(*i),
        }
    }
    Ok(kept)
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
