//! A scenario as files to apply: commands, manifests, Helm values.
//!
//! Options of an engine are written by the same tables that importers read ([`crate::keys`]), so that what is exported is imported as it was. What a target
//! cannot say is listed, and nothing is written for it.

mod apart;
mod autoscalers;
mod compose;
mod kubernetes;
mod llm_d;
mod load;
mod options;
mod serving;
mod sglang;
mod shared;
mod target;
mod triton;
mod vllm;

use hwmodels::EngineKind;
use sim::cluster::pools::Role;
use sim::scenario::{ModelSource, Scenario};

use apart::{Part, Parts, Sides};
pub use shared::{Exported, File};
pub use target::Target;

use crate::place::{Error, Fault, Place};

/// Writes the scenario as files of the target.
///
/// # Errors
/// A scenario whose engine the target does not run, or that is no deployment (constant step times, a fitted profile).
pub fn export(scenario: &Scenario, target: Target) -> Result<Exported, Error> {
    let mut out = Exported::default();
    let each = matches!(target, Target::Kubernetes | Target::LeaderWorkerSet);
    match apart::parts(scenario, each).map_err(fault)? {
        Parts::One => replicas(scenario, (None, Role::Both), target, &mut out)?,
        Parts::Sides(sides) => {
            replicas(&sides.decode, (Some(&sides), Role::Both), target, &mut out)?;
            if (scenario.kv_transfer).is_some_and(|t| t != Default::default()) {
                out.cannot("kv_transfer: the link is the machine's");
            }
        }
        Parts::Pools(pools) => {
            if !each {
                return Err(fault(format!(
                    "the scenario has several pools, and {} writes one kind of replica; export to {} or {}, or each [[pool]] as a scenario of its own",
                    target.name(),
                    Target::Kubernetes.name(),
                    Target::LeaderWorkerSet.name()
                )));
            }
            for part in &pools {
                let Part {
                    name,
                    file,
                    role,
                    own,
                } = part;
                let mut part = Exported::default();
                if *role != Role::Both && own.engine.params.kind() != EngineKind::VllmV1 {
                    return Err(fault(format!(
                        "pool {name} does one part of a request, and {} writes that for vLLM alone",
                        target.name()
                    )));
                }
                replicas(own, (None, *role), target, &mut part)?;
                out.pool((name, file), part);
            }
            out.cannot("[[pool]]: which pool gets a request is your gateway's to say");
            if (scenario.kv_transfer).is_some_and(|t| t != Default::default()) {
                out.cannot("kv_transfer: the link is the machine's");
            }
            autoscalers::shared(scenario, &mut out);
            return Ok(out);
        }
    }
    load::files(scenario, &mut out);
    Ok(out)
}

fn fault(message: String) -> Error {
    Error::from(Fault::new(Place::option("export"), "", message))
}

/// Replicas of one kind that do `role` of a request, or with `sides` prefill and decode apart, the latter being `s`.
fn replicas(
    s: &Scenario,
    (sides, role): (Option<&Sides>, Role),
    target: Target,
    out: &mut Exported,
) -> Result<(), Error> {
    let kind = s.engine.params.kind();
    let runs: &[EngineKind] = match target {
        Target::Vllm | Target::Dynamo | Target::LlmD => &[EngineKind::VllmV1],
        Target::Sglang => &[EngineKind::Sglang],
        Target::Kubernetes => &[EngineKind::VllmV1, EngineKind::Tgi, EngineKind::Sglang],
        Target::LeaderWorkerSet => &[EngineKind::VllmV1, EngineKind::TrtLlm],
        Target::TgiCompose => &[EngineKind::Tgi],
        Target::TritonHelm | Target::TrtLlm => &[EngineKind::TrtLlm],
    };
    if !runs.contains(&kind) {
        let able: Vec<&str> = runs.iter().map(|k| k.name()).collect();
        return Err(fault(format!(
            "the target {} runs {}, the scenario {}; choose another with --to",
            target.name(),
            able.join(" or "),
            kind.name()
        )));
    }
    if sides.is_some() && !matches!(target, Target::Dynamo | Target::LlmD) {
        return Err(fault(format!(
            "the scenario has prefill and decode apart, and {} writes one kind of replica; export to {}, {}, {} or {}, or each [[pool]] as a scenario of its own",
            target.name(),
            Target::Dynamo.name(),
            Target::LlmD.name(),
            Target::Kubernetes.name(),
            Target::LeaderWorkerSet.name()
        )));
    }
    let (Some(_), Some(_)) = (&s.model, &s.hardware) else {
        return Err(fault("the scenario has no model on hardware ([step], a fitted profile), so there is nothing to deploy".to_owned()));
    };
    let is_cut = s.hardware.as_ref().is_some_and(|h| h.mig.is_some());
    if is_cut && target != Target::Kubernetes {
        return Err(fault(format!(
            "the scenario has MIG parts (hardware.mig), and {} writes whole devices; export to {}",
            target.name(),
            Target::Kubernetes.name()
        )));
    }
    match target {
        Target::Vllm => vllm::script(s, out),
        Target::Sglang => sglang::script(s, out),
        Target::Kubernetes => kubernetes::deployment(s, role, out),
        Target::LeaderWorkerSet => kubernetes::leader_worker_set(s, role, out),
        Target::TgiCompose => compose::files(s, out),
        Target::TritonHelm => triton::helm(s, out),
        Target::TrtLlm => triton::build(s, out),
        Target::Dynamo => kubernetes::dynamo(s, sides, out),
        Target::LlmD => llm_d::values(s, sides, out),
    }
    if !matches!(target, Target::Kubernetes | Target::LeaderWorkerSet) {
        autoscalers::none(s, out);
    }
    general(s, out);
    Ok(())
}

/// What no target says.
fn general(s: &Scenario, out: &mut Exported) {
    if let Some(h) = &s.hardware {
        for (said, key) in [
            (h.profile != "auto", "hardware.profile"),
            (!h.params.is_empty(), "hardware.params"),
            (h.price.is_some(), "hardware.price"),
            (h.price_date.is_some(), "hardware.price_date"),
            (h.catalog.is_some(), "hardware.catalog"),
        ] {
            if said {
                out.cannot(format!("{key}: it is the simulation's"));
            }
        }
    }
    if let Some(m) = &s.model {
        if m.expert_skew != 0.0 {
            out.cannot("model.expert_skew: it is the load's on the experts");
        }
        if matches!(m.source, ModelSource::Config(_)) {
            out.cannot("model.config: import the config.json beside the files");
        }
    }
    if s.router.overhead.secs() != 0.0 {
        out.cannot("router.overhead: it is the network's");
    }
}
